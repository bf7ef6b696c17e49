"""Real LangGraph graphs that continue from a rewound version."""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

import pytest
from lazily import TESTS_RUN

from locus_store import MemoryBackend, UnsupportedError
from locus_store.timeline.rewind import rewind
from locus_store.types import PendingWrite

if TESTS_RUN:
    pytest.importorskip("langgraph")
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.graph import START, StateGraph
    from langgraph.types import Command, Send, interrupt

    from locus_store.adapters.langgraph import LangGraphSaver

pytestmark = pytest.mark.anyio
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    words: Annotated[list[str], operator.add]


def extend(words: Any, writes: Any) -> Any:
    return [*(words or []), *(word for it in writes for word in it)]


class Deltas(TypedDict):
    words: Annotated[list[str], DeltaChannel(extend)]


class Trip:
    """A graph of parallel tasks, a list of the tasks that ran, and what they do."""

    def __init__(self, serde: Any = None) -> None:
        self.log: list[str] = []
        self.is_broken = False
        self.memory = MemoryBackend()
        self.serde = serde

    def look(self, state: State) -> Any:
        return self._done("look")

    def beside(self, state: State) -> Any:
        return self._done("beside")

    def sent(self, state: State) -> Any:
        return self._done(f"sent {state['words'][0]}")

    def ask(self, state: State) -> Any:
        return self._done(f"{interrupt('city?')} {interrupt('street?')}")

    def fetch(self, state: State) -> Any:
        if self.is_broken:
            raise ZeroDivisionError
        return self._done("fetch")

    def end(self, state: State) -> Any:
        return self._done("end")

    def _done(self, word: str) -> Any:
        self.log.append(word)
        return {"words": [word]}

    def graph(self, slow: str) -> Any:
        builder = StateGraph(State)
        for name in ("look", "beside", "sent", slow, "end"):
            builder.add_node(name, getattr(self, name))
        builder.add_edge(START, "look")
        builder.add_edge("look", "beside")
        builder.add_edge("look", slow)
        builder.add_conditional_edges(
            "look", lambda _: [Send("sent", {"words": ["a"]}), Send("sent", {"words": ["b"]})]
        )
        builder.add_edge(["beside", slow], "end")
        return builder.compile(checkpointer=LangGraphSaver(self.memory, serde=self.serde))

    async def head(self) -> str:
        head = await self.memory.version("t")
        assert head is not None
        return head.checkpoint_id

    def ran(self) -> list[str]:
        """Return what ran since the last question."""
        log, self.log = self.log, []
        return sorted(log)


async def test_a_resumed_graph_runs_only_the_interrupted_task_again() -> None:
    trip = Trip()
    graph = trip.graph("ask")
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    await graph.ainvoke(Command(resume="Gasse"), CONFIG)
    assert trip.ran() == ["Bern Gasse", "beside", "end", "look", "sent a", "sent b"]

    await rewind(trip.memory, "t", stopped)
    assert (await graph.aget_state(CONFIG)).next == ("ask",)
    await graph.ainvoke(Command(resume="Basel"), CONFIG)
    done = await graph.ainvoke(Command(resume="Weg"), CONFIG)
    assert trip.ran() == ["Basel Weg", "end"]
    assert sorted(done["words"]) == ["Basel Weg", "beside", "end", "look", "sent a", "sent b"]


async def test_encrypted_tasks_of_send_run_again_as_their_nodes_cannot_be_read() -> None:
    trip = Trip(EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"))
    graph = trip.graph("ask")
    await graph.ainvoke({"words": []}, CONFIG)
    trip.ran()
    await rewind(trip.memory, "t", await trip.head(), runs_again=True)
    assert (await graph.aget_state(CONFIG)).next == ("sent", "sent", "ask")
    await graph.ainvoke(Command(resume="Basel"), CONFIG)
    assert trip.ran() == ["sent a", "sent b"]


async def test_an_interrupted_head_keeps_its_tasks_answers_and_interrupts() -> None:
    trip = Trip()
    graph = trip.graph("ask")
    await graph.ainvoke({"words": []}, CONFIG)
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    before = await graph.aget_state(CONFIG)
    trip.ran()
    await rewind(trip.memory, "t", await trip.head())
    again = await graph.aget_state(CONFIG)
    assert (again.next, again.values) == (before.next, before.values)
    assert [it.value for it in again.interrupts] == ["street?"]
    assert again.interrupts[0].id != before.interrupts[0].id
    await graph.ainvoke(Command(resume={again.interrupts[0].id: "Gasse"}), CONFIG)
    assert trip.ran() == ["Bern Gasse", "end"]


async def test_an_interrupt_that_was_answered_is_asked_again() -> None:
    trip = Trip()
    builder = StateGraph(State)
    builder.add_node("ask", lambda _: {"words": [interrupt("city?")]})
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=LangGraphSaver(trip.memory))
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    await rewind(trip.memory, "t", stopped)
    [asked] = (await graph.aget_state(CONFIG)).interrupts
    done = await graph.ainvoke(Command(resume={asked.id: "Basel"}), CONFIG)
    assert done["words"] == ["Basel"]


async def test_a_finished_step_runs_again_from_its_beginning() -> None:
    trip = Trip()
    graph = trip.graph("fetch")
    await graph.ainvoke({"words": []}, CONFIG)
    [_, *_, looked, _, _] = [it async for it in graph.aget_state_history(CONFIG)]
    trip.ran()
    await rewind(trip.memory, "t", looked.config["configurable"]["checkpoint_id"])
    again = await graph.aget_state(CONFIG)
    assert (again.next, again.values) == (looked.next, looked.values)
    await graph.ainvoke(None, CONFIG)
    assert trip.ran() == ["beside", "end", "fetch", "sent a", "sent b"]


async def test_of_parallel_tasks_only_the_one_that_failed_runs_again() -> None:
    trip = Trip()
    graph = trip.graph("fetch")
    trip.is_broken = True
    with pytest.raises(ZeroDivisionError):
        await graph.ainvoke({"words": []}, CONFIG)
    trip.ran()
    trip.is_broken = False
    failed = await trip.head()
    await rewind(trip.memory, "t", failed)
    await graph.ainvoke(None, CONFIG)
    assert trip.ran() == ["end", "fetch"]
    await rewind(trip.memory, "t", await trip.head())
    await rewind(trip.memory, "t", failed)
    await graph.ainvoke(None, CONFIG)
    assert trip.ran() == ["end", "fetch"]


async def test_a_rewind_of_a_subgraph_s_task_continues() -> None:
    trip = Trip()
    inner = StateGraph(State)
    inner.add_node("look", trip.look)
    inner.add_node("ask", trip.ask)
    inner.add_edge(START, "look")
    inner.add_edge("look", "ask")
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=LangGraphSaver(trip.memory))
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    for answer in ("Bern", "Gasse"):
        await graph.ainvoke(Command(resume=answer), CONFIG)
    await rewind(trip.memory, "t", stopped)
    await graph.ainvoke(Command(resume="Basel"), CONFIG)
    done = await graph.ainvoke(Command(resume="Weg"), CONFIG)
    assert done["words"] == ["look", "Basel Weg"]
    assert trip.ran() == ["Basel Weg", "Bern Gasse", "look"]


async def test_a_delta_channel_has_its_old_value_after_a_rewind() -> None:
    builder = StateGraph(Deltas)
    for name in "abc":
        builder.add_node(name, lambda _, name=name: {"words": [name]})
    for edge in ((START, "a"), ("a", "b"), ("b", "c")):
        builder.add_edge(*edge)
    memory = MemoryBackend()
    graph = builder.compile(checkpointer=LangGraphSaver(memory))
    done = await graph.ainvoke({"words": ["in"]}, CONFIG)
    for old in [it async for it in graph.aget_state_history(CONFIG)]:
        await rewind(memory, "t", old.config["configurable"]["checkpoint_id"])
        again = await graph.aget_state(CONFIG)
        assert (again.values, again.next) == (old.values, old.next)
        if old.next:
            assert await graph.ainvoke(None, CONFIG) == done


async def test_without_xxhash_the_finished_tasks_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trip = Trip()
    await trip.graph("ask").ainvoke({"words": []}, CONFIG)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    head = await trip.head()
    with pytest.raises(UnsupportedError, match="pip install xxhash"):
        await rewind(trip.memory, "t", head)
    assert await trip.head() == head


async def test_a_checkpoint_whose_id_is_not_langgraph_s_has_no_tasks_to_keep() -> None:
    memory = MemoryBackend()
    state = {"v": 4, "channel_values": {}, "channel_versions": {"a": 1}, "versions_seen": {}}
    await memory.write_state("t", state, checkpoint_id="first", metadata={"step": 0})
    write = PendingWrite("task", 0, "a", "json", b"1", "~__pregel_pull, look")
    await memory.put_writes("t", "first", [write])
    with pytest.raises(UnsupportedError, match="finished: 'look'"):
        await rewind(memory, "t", "first")
    await rewind(memory, "t", "first", runs_again=True)
