"""The graph of ``langgraph.json``, compiled without a checkpointer: the server gives it one."""

from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState) -> dict:
    """Return a reply. Call your model here."""
    return {"messages": [("ai", f"That was message {len(state['messages'])}.")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
