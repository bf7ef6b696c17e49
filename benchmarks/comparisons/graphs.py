"""Graphs whose steps are measured; each returns its builder and an input.

The last six have the shapes of the graphs in langgraph's own folder ``bench``, which are larger.
"""

from __future__ import annotations

import operator
import uuid
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from pydantic import BaseModel, create_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Made = tuple[Any, Any]
"""A builder, and what its graph is invoked with."""


class Counted(TypedDict):
    """The state of a graph of small nodes."""

    n: int
    log: Annotated[list[str], operator.add]


def ten_nodes() -> Made:
    """A row of ten small nodes."""

    def count(state: Counted) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [f"step {state['n']}"]}

    return row(Counted, [count] * 10), {"n": 0, "log": []}


def row(state: Any, nodes: Sequence[Callable[..., Any]]) -> Any:
    builder = StateGraph(state)
    before = START
    for number, node in enumerate(nodes):
        builder.add_node(f"node{number}", node)
        builder.add_edge(before, f"node{number}")
        before = f"node{number}"
    return builder.add_edge(before, END)


def agent(calls: int = 24, query: str = "weather in Zurich, " * 10) -> Made:
    """An agent that calls a tool until it has about 50 messages."""

    def model(state: MessagesState) -> dict[str, Any]:
        asked = sum(isinstance(it, AIMessage) for it in state["messages"])
        if asked == calls:
            return {"messages": [AIMessage("answer " * 50, id=str(uuid.uuid4()))]}
        call = {"id": f"call-{asked}", "name": "search", "args": {"query": query}}
        return {"messages": [AIMessage("", tool_calls=[call], id=str(uuid.uuid4()))]}

    def tools(state: MessagesState) -> dict[str, list[AnyMessage]]:
        last: Any = state["messages"][-1]
        found = [
            ToolMessage(f"result for {it['args']['query']}", tool_call_id=it["id"])
            for it in last.tool_calls
        ]
        return {"messages": found}

    builder: Any = StateGraph(MessagesState).add_node("model", model).add_node("tools", tools)
    builder.add_edge(START, "model").add_edge("tools", "model")
    last: Callable[[Any], Any] = lambda state: state["messages"][-1]  # noqa: E731
    builder.add_conditional_edges("model", lambda it: "tools" if last(it).tool_calls else END)
    return builder, {"messages": [HumanMessage("What is the weather?", id="question")]}


def react_agent() -> Made:
    """Tool calls of 3.6 KB each."""
    return agent(10, "0123456789abcdef-0123456789abcdef-000" * 100)


def sequential() -> Made:
    """A row of 50 nodes that do nothing."""
    return row(MessagesState, [lambda state: None] * 50), {"messages": []}


class Jokes(TypedDict):
    """The state of a graph that fans out."""

    subjects: list[str]
    jokes: Annotated[list[str], operator.add]


class Joke(TypedDict):
    """The state of its subgraphs."""

    subject: str
    jokes: list[str]


def fan_out() -> Made:
    """Ten subgraphs at once, each of which loops ten times."""
    inner: Any = StateGraph(Joke)
    inner.add_node("edit", lambda state: {"subject": f"{state['subject']} - hohoho"})
    inner.add_node("generate", lambda state: {"jokes": [f"Joke about {state['subject']}"]})
    inner.add_node("bump", lambda state: {"jokes": [state["jokes"][0] + " a"]})
    inner.add_edge(START, "edit").add_edge("edit", "generate").add_edge("generate", "bump")
    inner.add_conditional_edges(
        "bump", lambda state: END if state["jokes"][0].endswith(" a" * 10) else "bump"
    )
    builder: Any = StateGraph(Jokes).add_node("joke", inner.compile())
    builder.add_conditional_edges(
        START, lambda state: [Send("joke", {"subject": it}) for it in state["subjects"]], ["joke"]
    )
    return builder.add_edge("joke", END), {"subjects": ["x" * 1000] * 10, "jokes": []}


# --- wide states: 15 channels, of which one list grows until the graph ends

GROWING = ("messages", "trigger_events", "categorizations", "responses")
LISTS = (*GROWING, "relevant_rules", "memory_docs")
OBJECTS = ("user_info", "crm_info", "slack_participants", "notified", "autoresponse", "issue")
TEXTS = ("primary_issue_medium", "email_thread_id", "bot_id")
WIDE: dict[str, Any] = {
    **dict.fromkeys(LISTS, list[Any] | None),
    **dict.fromkeys(GROWING, Annotated[list[Any], operator.add]),
    **dict.fromkeys(OBJECTS, dict[str, Any] | None),
    **dict.fromkeys(TEXTS, str | None),
}
LOOPS = 16
"""Messages at which a graph of a wide state ends: it doubles them in each loop."""


def wide(state: Any, read: Callable[[Any, str], Any]) -> Made:
    def node(name: str, *written: str) -> Callable[[Any], dict[str, Any]]:
        def run(it: Any) -> dict[str, Any]:
            value = read(it, name)
            one = value[-1] if isinstance(value, list) and value else value
            every = value if isinstance(value, list) else [value]
            shapes = {**dict.fromkeys(LISTS, every), **dict.fromkeys(OBJECTS, one)}
            return {key: shapes.get(key, "x" * 300) for key in written}

        return run

    builder = StateGraph(state)
    builder.add_node("one", node("messages", "trigger_events", "primary_issue_medium"))
    builder.add_node("two", node("trigger_events", "autoresponse", "issue"))
    builder.add_node("three", node("autoresponse", "relevant_rules"))
    builder.add_node("four", node("trigger_events", "categorizations", "responses", "memory_docs"))
    builder.add_node("five", node("categorizations", *OBJECTS[:4], "email_thread_id", "bot_id"))
    builder.add_node("six", node("responses", "messages"))
    for before, after in ((START, "one"), ("one", "two"), ("two", "three"), ("two", "four")):
        builder.add_edge(before, after)
    builder.add_edge(["three", "four"], "five")
    builder.add_edge("five", "six")
    builder.add_conditional_edges(
        "six", lambda it: END if len(read(it, "messages")) > LOOPS else "one"
    )
    inner = ["hi?" * 10, True, 1, 6327816386138, None] * 5
    message = {str(i) * 10: {str(j) * 10: inner for j in range(5)} for i in range(5)}
    return builder, {"messages": [message]}


def wide_dict() -> Made:
    """A wide state, as a dict."""
    return wide(TypedDict("WideDict", WIDE), lambda it, name: it.get(name))  # type: ignore[operator]


def wide_state() -> Made:
    """A wide state, as a dataclass."""
    fields = [
        (it, kind, field(default_factory=list) if it in GROWING else field(default=None))
        for it, kind in WIDE.items()
    ]
    return wide(make_dataclass("WideState", fields, kw_only=True), getattr)


def pydantic_state() -> Made:
    """A wide state, as a model of pydantic."""
    fields: Any = {it: (kind, [] if it in GROWING else None) for it, kind in WIDE.items()}
    model: type[BaseModel] = create_model("WideModel", **fields)
    return wide(model, getattr)


@dataclass(frozen=True)
class Graph:
    """A graph to be measured."""

    title: str
    make: Callable[[], Made]
    runs: int
    """Runs on one thread in a round."""


GRAPHS = (
    Graph("ten small nodes", ten_nodes, 5),
    Graph("an agent, 50 messages", agent, 1),
    Graph("bench: fan-out to subgraphs", fan_out, 1),
    Graph("bench: react agent", react_agent, 1),
    Graph("bench: sequential", sequential, 1),
    Graph("bench: wide dict", wide_dict, 1),
    Graph("bench: wide state", wide_state, 1),
    Graph("bench: pydantic", pydantic_state, 1),
)
