"""Tools of graphs whose calls are effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

from locus_store import InvalidArgumentError, MemoryBackend, OutcomeUnknownError
from locus_store.effects import Done

if TESTS_RUN:
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, ToolRuntime
    from langgraph.types import Command, interrupt

    from locus_store.adapters.langgraph import LangGraphSaver, durable_tool

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def saver(request, tmp_path):
    if request.param == "memory":
        yield LangGraphSaver(MemoryBackend())
        return
    with LangGraphSaver.from_url(f"sqlite:///{tmp_path / 'a.db'}") as made:
        yield made


def asked(call_id: str, **args: Any) -> dict[str, Any]:
    call = {"name": "pay", "args": args, "id": call_id, "type": "tool_call"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def graph_of(saver: Any, pay: Callable[..., Any], **options: Any) -> Any:
    durable = durable_tool(tool(pay), saver, **options)
    builder = StateGraph(MessagesState).add_node("tools", ToolNode([durable]))
    return builder.add_edge(START, "tools").compile(checkpointer=saver)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_call_is_made_once_in_a_thread(saver, is_async: bool) -> None:
    keys: list[str] = []

    def pay(order: int, config: RunnableConfig) -> list[int]:
        """Pay an order."""
        keys.append(config["configurable"]["idempotency_key"])
        return [order, len(keys)]

    graph = graph_of(saver, pay)
    found = []
    for thread, call_id in (("t", "c1"), ("t", "c1"), ("t", "c2"), ("u", "c1")):
        config = {"configurable": {"thread_id": thread}}
        given = asked(call_id, order=7)
        state = await graph.ainvoke(given, config) if is_async else graph.invoke(given, config)
        found.append((state["messages"][-1].content, state["messages"][-1].tool_call_id))
    assert found == [("[7, 1]", "c1"), ("[7, 1]", "c1"), ("[7, 2]", "c2"), ("[7, 3]", "c1")]
    effects = [*await saver.saver.effects("t"), *await saver.saver.effects("u")]
    assert [it.idempotency_key for it in effects] == keys


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_runtime_of_a_tool_has_the_idempotency_key(saver, is_async: bool) -> None:
    keys: list[str] = []

    def pay(order: int, runtime: ToolRuntime) -> str:
        """Pay an order."""
        keys.append(runtime.config["configurable"]["idempotency_key"])
        return f"{runtime.tool_call_id} of {len(runtime.state['messages'])}"

    graph, config = graph_of(saver, pay), {"configurable": {"thread_id": "t"}}
    given = asked("c", order=7)
    state = await graph.ainvoke(given, config) if is_async else graph.invoke(given, config)
    assert state["messages"][-1].content == "c of 1"
    assert [it.idempotency_key for it in await saver.saver.effects("t")] == keys


async def test_other_arguments_and_unknown_outcomes_are_refused(saver) -> None:
    calls: list[int] = []

    def pay(order: int) -> int:
        """Pay an order."""
        calls.append(order)
        if order == 0:
            raise RuntimeError("lost")
        return order

    graph, config = graph_of(saver, pay), {"configurable": {"thread_id": "t"}}
    await graph.ainvoke(asked("c", order=1), config)
    with pytest.raises(InvalidArgumentError, match="other arguments"):
        await graph.ainvoke(asked("c", order=2), config)
    with pytest.raises(RuntimeError, match="lost"):
        await graph.ainvoke(asked("d", order=0), config)
    with pytest.raises(OutcomeUnknownError):
        await graph.ainvoke(asked("d", order=0), config)
    with pytest.raises(OutcomeUnknownError):
        await graph.ainvoke(None, config)
    assert calls == [1, 0]
    with pytest.raises(InvalidArgumentError, match="tool call"):
        await durable_tool(tool(pay), saver).ainvoke({"order": 1})


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("settled", "content"),
    [
        ("booked Bern", "booked Bern"),
        ({"receipt": 7}, '{"receipt": 7}'),
        (None, "null"),
        ([{"type": "text", "text": "é"}], [{"type": "text", "text": "é"}]),
    ],
)
async def test_the_json_that_settles_an_unknown_outcome_is_the_content_of_the_tool(
    saver, is_async: bool, settled: Any, content: Any
) -> None:
    def pay(order: int) -> str:
        """Pay an order."""
        raise TimeoutError("no reply")

    config = {"configurable": {"thread_id": "t"}}
    answering = graph_of(saver, pay, on_unknown=lambda _: Done(settled))
    graph = graph_of(saver, pay)
    for call_id in ("resolved", "answered"):
        with pytest.raises(TimeoutError):
            await graph.ainvoke(asked(call_id, order=1), config)
    await saver.saver.resolve_effect("t", "resolved", took_place=True, result=settled)
    for used, call_id in ((graph, "resolved"), (answering, "answered"), (graph, "answered")):
        given = asked(call_id, order=1)
        state = await used.ainvoke(given, config) if is_async else used.invoke(given, config)
        message = state["messages"][-1]
        found = message.content, message.tool_call_id, message.name, message.status
        assert found == (content, call_id, "pay", "success")


async def test_an_interrupted_tool_begins_again_with_the_answer(saver) -> None:
    calls: list[str] = []

    def pay(order: int) -> str:
        """Pay an order."""
        answer = interrupt(f"pay {order}?")
        calls.append(answer)
        return answer

    graph, config = graph_of(saver, pay), {"configurable": {"thread_id": "t"}}
    await graph.ainvoke(asked("c", order=1), config)
    for _ in range(2):
        state = await graph.ainvoke(Command(resume="yes"), config)
    assert state["messages"][-1].content == "yes"
    assert calls == ["yes"]
