"""``DeltaChannel`` on our saver: what LangGraph's own in-memory saver gives, and what may go."""

from __future__ import annotations

import asyncio
from typing import Annotated, TypedDict

import pytest
from lazily import TESTS_RUN

from locus_store import ConflictError

if TESTS_RUN:
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command, Overwrite, Send, interrupt
    from workers.on_graph import DeltaSaid, Said, at, extend

DURABILITIES = ["sync", "async", "exit"]


def merge(old: dict, writes: list[dict]) -> dict:
    """Keys of later writes win."""
    return {key: it for of in (old, *writes) for key, it in of.items()}


class State(TypedDict, total=False):
    said: Annotated[list, DeltaChannel(extend)]
    often: Annotated[list, DeltaChannel(extend, snapshot_frequency=3)]
    facts: Annotated[dict, DeltaChannel(merge, snapshot_frequency=5)]
    plain: int


def graph_on(saver):
    """It asks where what was said begins with that."""

    def split(state):
        length = len(state.get("said", []))
        return {"said": [f"split {length}"], "plain": length}

    def work(number):
        return {"said": [f"work {number}"], "often": [number], "facts": {f"w{number}": [number]}}

    def ask(state):
        if state["said"][0] == "asks":
            return {"often": [interrupt("which?")]}
        return {"facts": {"asked": len(state["said"])}}

    builder = StateGraph(State).add_node(split).add_node(work).add_node(ask)
    builder.add_edge(START, "split").add_edge("work", "ask").add_edge("ask", END)
    builder.add_conditional_edges("split", lambda _: [Send("work", n) for n in range(3)])
    return builder.compile(checkpointer=saver)


def shown(snapshot):
    """Return the parts of a snapshot that are equal in every run."""
    names = ("source", "step", "counters_since_delta_snapshot")
    return (
        snapshot.values,
        snapshot.next,
        {name: list(it) if isinstance(it, tuple) else it for name, it in _told(snapshot, names)},
        [it.value for it in snapshot.interrupts],
    )


def _told(snapshot, names):
    for name in names:
        found = (snapshot.metadata or {}).get(name)
        yield (
            name,
            {key: list(it) for key, it in found.items()} if isinstance(found, dict) else found,
        )


class Both:
    """A graph on our saver, each time a new one, and on LangGraph's in memory."""

    def __init__(self, storage, call, durability):
        self._call, self._storage = call, storage
        self._more = {"durability": durability}
        self._theirs = graph_on(InMemorySaver())

    def _ours(self):
        return graph_on(self._storage.open())

    def do(self, form, given, of=None):
        """Run or update both; ``of`` is the place in the history to do it on."""
        found = []
        for graph in (self._ours(), self._theirs):
            config = at() if of is None else self._call.history(graph)[of].config
            if form == "invoke":
                found.append(self._call.invoke(graph, given, config, **self._more))
            else:
                made = self._call.update(graph, config, given, as_node=form)
                found.append(shown(self._call.state(graph, made)))
        found = [
            {**it, "__interrupt__": [one.value for one in it["__interrupt__"]]}
            if isinstance(it, dict) and "__interrupt__" in it
            else it
            for it in found
        ]
        assert found[0] == found[1]
        self.require_same()
        return found[0]

    def require_same(self):
        ours, theirs = (
            [shown(it) for it in self._call.history(graph)]
            for graph in (self._ours(), self._theirs)
        )
        assert ours == theirs


@pytest.mark.parametrize("durability", DURABILITIES)
def test_runs_are_the_same_as_in_memory(any_storage, call, durability):
    both = Both(any_storage, call, durability)
    both.do("invoke", {"said": ["in"]})
    both.do("invoke", {"said": ["more"], "facts": {"a": 1}})
    found = both.do("invoke", {"said": Overwrite(["asks"])})
    assert found["__interrupt__"] == ["which?"]
    both.do("invoke", Command(resume="this"))
    both.do("split", {"said": ["edited"], "facts": {"b": [1, 2]}})
    both.do("invoke", None)
    both.do("invoke", Command(resume="that"))
    both.do("ask", {"said": Overwrite(["anew"])})
    assert both.do("invoke", {"said": ["on"]})["said"][:2] == ["anew", "on"]


@pytest.mark.parametrize("durability", DURABILITIES[:2])
def test_forks_are_the_same_as_in_memory(storage, call, durability):
    both = Both(storage, call, durability)
    both.do("invoke", {"said": ["in"]})
    both.do("invoke", {"said": ["more"]})
    both.do("invoke", None, 2)  # replayed from between the nodes
    both.do("invoke", {"said": ["other"]}, 7)
    both.do("split", {"said": ["edited"]}, 9)
    both.do("invoke", None)
    both.do("__copy__", None, 4)
    both.do("invoke", {"said": ["last"]})
    both.do("invoke", {"said": ["the very last"]}, 1)


def grown(storage, call, **options):
    """A thread of many checkpoints."""
    for text in ("one", "two", "three"):
        graph = graph_on(storage.open(**options))
        call.invoke(graph, {"said": [text]})
    return call.state(graph).values


def bytes_used(storage, call):
    backend = storage.open().saver.backend
    archived = call(_Async(backend), "read_thread", "t")
    return sum(len(it.payload) for line in archived.lines for it in line.records)


class _Async:
    """A backend, whose methods are all async, for ``Caller``."""

    def __init__(self, backend):
        self._backend = backend
        self.aread_thread = backend.read_thread
        self.read_thread = lambda *args: asyncio.run(backend.read_thread(*args))


def test_prune_keeps_a_thread_readable_and_gives_the_rest_back(storage, call):
    before = grown(storage, call)
    saver = storage.open()
    many, size = len(call.history(graph_on(saver))), bytes_used(storage, call)
    call(saver, "prune", ["t"])
    left = call.history(graph_on(storage.open()))
    assert left[0].values == before
    assert bytes_used(storage, call) <= size
    assert len(left) <= many
    expected = [*before["said"], "more", f"split {len(before['said']) + 1}"]
    found = call.invoke(graph_on(storage.open()), {"said": ["more"]})
    assert found["said"][: len(expected)] == expected
    assert call.state(graph_on(storage.open())).values["said"] == found["said"]


def test_prune_removes_all_that_is_not_needed(storage, call):
    class Often(TypedDict):
        said: Annotated[list, DeltaChannel(extend, snapshot_frequency=2)]

    def answer(state):
        return {"said": [len(state["said"])]}

    def graph():
        builder = StateGraph(Often).add_node(answer).add_edge(START, "answer")
        return builder.compile(checkpointer=storage.open())

    for _ in range(10):
        found = call.invoke(graph(), {"said": ["in"]})
    assert len(call.history(graph())) == 30
    size = bytes_used(storage, call)
    call(graph().checkpointer, "prune", ["t"])
    assert len(call.history(graph())) <= 4
    assert bytes_used(storage, call) < size
    assert call.state(graph()).values == found
    assert call.invoke(graph(), {"said": ["more"]})["said"] == [*found["said"], "more", 21]


def test_keep_last_keeps_what_a_channel_is_rebuilt_from(any_storage, call):
    writing, reading = (any_storage.open(keep_last=2) for _ in range(2))
    for n in range(12):
        found = call.invoke(graph_on(writing), {"said": [f"turn {n}"]})
        assert call.state(graph_on(reading)).values == found
    history = call.history(graph_on(any_storage.open()))
    assert history[0].values == found
    assert all(it.values["said"] == found["said"][: len(it.values["said"])] for it in history)


def test_a_run_that_others_are_rebuilt_from_is_not_deleted(storage, call):
    saver = storage.open()
    for name in ("one", "two"):
        config = at() | {"metadata": {"run_id": name}}
        call.invoke(graph_on(saver), {"said": [name]}, config)
    before = [it.values for it in call.history(graph_on(saver))]
    with pytest.raises(ConflictError, match="rebuilt"):
        call(saver, "delete_for_runs", ["one"])
    assert [it.values for it in call.history(graph_on(storage.open()))] == before
    call(saver, "delete_for_runs", ["two"])
    left = [it.values for it in call.history(graph_on(storage.open()))]
    assert left == before[-len(left) :]
    assert len(left) < len(before)
    call(saver, "delete_for_runs", ["one"])
    assert call.history(graph_on(saver)) == []


def test_a_copy_has_the_same_history_and_goes_on_by_itself(any_storage, call):
    before = grown(any_storage, call)
    saver = any_storage.open()
    call(saver, "copy_thread", "t", "u")
    histories = [
        [shown(it) for it in call.history(graph_on(saver), at(name))] for name in ("t", "u")
    ]
    assert histories[0] == histories[1]
    call(saver, "prune", ["t"], strategy="delete")
    found = call.invoke(graph_on(any_storage.open()), {"said": ["on"]}, at("u"))
    assert found["said"][: len(before["said"]) + 1] == [*before["said"], "on"]
    assert call.state(graph_on(any_storage.open()), at("u")).values["said"] == found["said"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_channel_becomes_a_delta_channel_and_back(storage, call, durability):
    def answer(state):
        return {"said": [len(state["said"])]}

    for state in (Said, DeltaSaid, DeltaSaid):
        builder = StateGraph(state).add_node("answer", answer).add_edge(START, "answer")
        graph = builder.compile(checkpointer=storage.open())
        found = call.invoke(graph, {"said": ["in"]}, durability=durability)
        assert call.state(builder.compile(checkpointer=storage.open())).values == found
    assert found["said"] == ["in", 1, "in", 3, "in", 5]
