"""A graph that waits for a person: saver, store and interrupt, over two processes.

    pip install langgraph ".[langgraph]"
    python examples/langgraph_approval.py ask order-7 "a refund of 90 EUR"
    python examples/langgraph_approval.py answer order-7 yes
    python examples/langgraph_approval.py ask order-8 "a refund of 20 EUR"

``ask`` stops at the question and exits. ``answer`` is another process, which may run a day later
on another host: it continues the same graph. The store keeps what the graph learned about the
person across threads, so the third command names the last answer. ``LOCUS_STORE_URL`` names the
database.
"""

import argparse
import os
from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command, interrupt

from locus_store.adapters.langgraph import LangGraphSaver, LangGraphStore

URL = os.environ.get("LOCUS_STORE_URL", "sqlite:///approvals.db")
PEOPLE = ("people", "alex")


class Request(TypedDict, total=False):
    """The state of a thread."""

    wanted: str
    reply: str


def approve(state: Request, config: RunnableConfig, *, store: BaseStore) -> Request:
    """Ask the person, and remember the answer."""
    before = store.get(PEOPLE, "last answer")
    hint = f" (last answer: {before.value['answer']})" if before else ""
    answer = interrupt(f"Approve {state['wanted']}?{hint}")
    store.put(PEOPLE, "last answer", {"answer": answer})
    return {"reply": f"{state['wanted']}: {'approved' if answer == 'yes' else 'refused'}"}


def run(thread_id: str, given: Request | Command) -> str:
    """Run the graph until it ends or asks, and return its last words."""
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    with LangGraphSaver.from_url(URL) as saver, LangGraphStore.from_url(URL) as store:
        graph = StateGraph(Request).add_node(approve).add_edge(START, "approve")
        compiled = graph.compile(checkpointer=saver, store=store)
        found = compiled.invoke(given, config)
        waiting = compiled.get_state(config).interrupts
        return waiting[0].value if waiting else found["reply"]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A graph that waits for a person.")
    parser.add_argument("what", choices=["ask", "answer"])
    parser.add_argument("thread")
    parser.add_argument("text")
    options = parser.parse_args()
    asked = options.what == "ask"
    given = {"wanted": options.text} if asked else Command(resume=options.text)
    print(run(options.thread, given))


if __name__ == "__main__":
    main()
