"""Turns of the sessions and graphs of other libraries: each by the library's own names."""

from __future__ import annotations

import asyncio
import contextvars
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import ConflictError, InvalidArgumentError, TurnError
from locus_store.session import AgentState, Message, SqliteCheckpointer
from locus_store.testing.turns import run_outside

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agents.db'}"


async def check(adapter: Any, thread_id: str, turn: Any, write: Any) -> None:
    """Check that ``turn`` guards what ``write`` writes."""
    async with adapter:
        async with turn() as held:
            await write()
            assert (await adapter.busy(thread_id)).number == held.number
            with pytest.raises(TurnError, match="belongs to no turn"):
                await run_outside(write())
        assert await adapter.turns() == []
        await run_outside(write())


async def test_openai_agents(url: str) -> None:
    session = pytest.importorskip("locus_store.adapters.openai_agents").LocusSession
    adapter = session.from_url("s", url)
    items = [{"role": "user", "content": "Hello."}]
    await check(adapter, "s", adapter.turn, lambda: adapter.add_items(items))


async def test_agent_framework(url: str) -> None:
    framework = pytest.importorskip("agent_framework")
    from locus_store.adapters.agent_framework import LocusHistoryProvider

    adapter = LocusHistoryProvider.from_url(url)
    numbers = count()

    async def write() -> None:
        message = framework.Message(role="user", contents=[f"Message {next(numbers)}."])
        await adapter.save_messages(None, [message])

    await check(adapter, "default", adapter.turn, write)
    async with adapter.turn("s"):
        assert (await adapter.turns())[0].thread_id == "s"
    await adapter.close()


async def test_adk(url: str) -> None:
    pytest.importorskip("google.adk")
    from google.adk.events import Event, EventActions

    from locus_store.adapters.adk import LocusSessionService

    adapter = LocusSessionService.from_url(url)
    names = {"app_name": "app", "user_id": "u/1", "session_id": "s"}
    await adapter.create_session(**names)

    async def write() -> None:
        session = await adapter.get_session(**names)
        actions = EventActions(state_delta={"n": 1})
        await adapter.append_event(session, Event(author="a", invocation_id="i", actions=actions))

    await check(adapter, "app/u%2F1/s", lambda: adapter.turn(**names), write)


async def test_claude_agent(url: str) -> None:
    store = pytest.importorskip("locus_store.adapters.claude_agent").LocusSessionStore
    adapter, key = store.from_url(url), {"project_key": "-home", "session_id": "s"}
    entry = {"type": "user", "uuid": "u", "message": {"role": "user", "content": "Hello."}}
    await check(adapter, "-home/s", lambda: adapter.turn(key), lambda: adapter.append(key, [entry]))


def test_strands(url: str) -> None:
    pytest.importorskip("strands")
    from strands.types.session import Session, SessionAgent, SessionType

    from locus_store.adapters.strands import LocusSessionRepository

    agent = SessionAgent(agent_id="a", state={}, conversation_manager_state={})
    with LocusSessionRepository.from_url(url) as repository:
        with repository.turn("s"):
            repository.create_session(Session(session_id="s", session_type=SessionType.AGENT))
            with pytest.raises(TurnError, match="belongs to no turn"):
                contextvars.Context().run(repository.create_agent, "s", agent)
        repository.create_agent("s", agent)


async def test_a_session_has_turns_in_both_forms(tmp_path: Path) -> None:
    config, state = {"thread_id": "t"}, AgentState(context=[Message.text_message("Hello.")])
    async with SqliteCheckpointer(str(tmp_path / "sessions.db")) as session:
        async with session.turn("t") as turn:
            await session.aput_state(config, state)
            assert (await session.abusy("t")).number == turn.number
            with pytest.raises(TurnError, match="belongs to no turn"):
                await run_outside(session.aput_state(dict(config), state))
            assert await run_outside(session.arelease_turn("t")) is True
        assert await session.aturns() == []

    def block() -> None:
        with session.turn("t") as turn:
            assert [it.number for it in session.turns()] == [turn.number]
            assert session.busy("t").number == turn.number
            assert session.release_turn("t") is True

    await asyncio.to_thread(block)
    session.release()


@pytest.fixture
def saver(url: str) -> Any:
    adapter = pytest.importorskip("locus_store.adapters.langgraph")
    with adapter.LangGraphSaver.from_url(url) as opened:
        yield opened


CONFIG = {"configurable": {"thread_id": "t"}}


def compile_graph(saver: Any, node: Any) -> Any:
    from langgraph.graph import START, StateGraph

    builder = StateGraph(dict).add_node("node", node).add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def run_in_turns(graph: Any, **options: Any) -> Any:
    from locus_store.adapters import langgraph

    return langgraph.run_in_turns(graph, **options)


def test_a_graph_runs_in_a_turn_that_is_held(saver: Any) -> None:
    graph = compile_graph(saver, lambda _: {"said": "hello"})
    with saver.turn("t") as turn:
        graph.invoke({}, CONFIG)
        with pytest.raises(TurnError):
            contextvars.Context().run(graph.invoke, {}, CONFIG)
        assert saver.busy("t").number == turn.number
    assert saver.turns() == []
    assert graph.invoke({}, CONFIG) == {"said": "hello"}


def test_each_run_of_a_graph_is_a_turn(saver: Any) -> None:
    found: list[Any] = []

    def say(state: dict[str, Any]) -> dict[str, Any]:
        found.append(saver.busy("t"))
        if len(found) == 1:
            with pytest.raises(TurnError, match="is still taken"):
                contextvars.Context().run(graph.invoke, {}, CONFIG)
        return {"n": len(found)}

    graph = run_in_turns(compile_graph(saver, say), wait="reject")
    for number in (1, 2):
        assert graph.with_config(tags=["x"]).invoke({}, CONFIG) == {"n": number}
        assert saver.turns() == []
    assert found[0].number < found[1].number
    with saver.turn("t") as turn:
        graph.invoke({}, CONFIG)
        assert found[2].number == turn.number


def test_a_run_that_ends_early_ends_its_turn(saver: Any) -> None:
    from langgraph.types import Command, interrupt

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(interrupt("Go on?"))

    graph = run_in_turns(compile_graph(saver, ask), wait="reject")
    assert "__interrupt__" in graph.invoke({}, CONFIG)
    assert saver.turns() == []
    stream = graph.stream({}, CONFIG)
    next(stream)
    assert saver.busy("t") is not None
    stream.close()
    assert saver.turns() == []
    with pytest.raises(ValueError, match="no"):
        graph.invoke(Command(resume="no"), CONFIG)
    assert saver.turns() == []


async def test_asynchronous_runs_wait_for_each_other(saver: Any) -> None:
    running: list[int] = []

    async def say(state: dict[str, Any]) -> dict[str, Any]:
        running.append(1)
        await asyncio.sleep(0)
        assert running == [1]
        running.clear()
        return {"said": "hello"}

    graph = run_in_turns(compile_graph(saver, say))
    await asyncio.gather(*(graph.ainvoke({}, CONFIG) for _ in range(4)))
    steps = [it.metadata["step"] async for it in graph.aget_state_history(CONFIG)]
    assert steps == sorted(steps, reverse=True)
    assert await saver.aturns() == []


async def test_a_run_follows_a_stream_that_was_dropped(saver: Any) -> None:
    async def say(state: dict[str, Any]) -> dict[str, Any]:
        return {"said": "hello"}

    graph = run_in_turns(compile_graph(saver, say))
    async for _ in graph.astream({}, CONFIG, durability="exit"):
        assert await saver.abusy("t") is not None
        break
    assert await graph.ainvoke({}, CONFIG) == {"said": "hello"}
    assert await saver.aturns() == []


@pytest.mark.parametrize("ends", ["replaced", "released", "deleted"])
async def test_a_run_that_lost_its_turn_ends_at_its_next_step(saver: Any, ends: str) -> None:
    from langgraph.graph import START, StateGraph

    done: list[int] = []

    def make_node(number: int) -> Any:
        async def work(_: dict[str, Any]) -> dict[str, Any]:
            done.append(number)
            if number == 1 and ends == "replaced":
                await contextvars.Context().run(asyncio.create_task, take_over())
            elif number == 1:
                await (saver.arelease_turn if ends == "released" else saver.adelete_thread)("t")
            return {"n": number}

        return work

    async def take_over() -> None:
        async with saver.turn("t", wait="replace"):
            pass

    builder = StateGraph(dict)
    for number in range(6):
        builder.add_node(str(number), make_node(number))
        builder.add_edge(str(number - 1) if number else START, str(number))
    graph = run_in_turns(builder.compile(checkpointer=saver))
    with pytest.raises((TurnError, ConflictError)):
        await graph.ainvoke({}, CONFIG)
    assert done == [0, 1]


def test_a_run_in_turns_needs_our_saver() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    plain, theirs = (compile_graph(it, lambda _: {"n": 1}) for it in (None, InMemorySaver()))
    assert run_in_turns(plain).invoke({}) == {"n": 1}
    with pytest.raises(InvalidArgumentError, match="needs a LangGraphSaver"):
        run_in_turns(theirs).invoke({}, CONFIG)
