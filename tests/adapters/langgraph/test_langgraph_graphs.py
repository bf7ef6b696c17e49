"""Real graphs with the real LangGraph on our saver."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from lazily import TESTS_RUN, Later
from servers import wait_until
from tiers import first_of

from locus_store import ConflictError, InvalidArgumentError
from locus_store.runtime.stepping import run_in_thread

if TESTS_RUN:
    import langgraph.checkpoint.base
    import langgraph.pregel._checkpoint as of_pregel
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langgraph.checkpoint.base.id import UUID, uuid6
    from langgraph.func import entrypoint, task
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
    from langgraph.store.memory import InMemoryStore
    from langgraph.types import Command, RetryPolicy, Send, StateUpdate, interrupt
    from workers import on_graph
    from workers.on_graph import DeltaSaid, Said, asks, at, chain, outcome, tells

    from locus_store.adapters.langgraph import LangGraphSaver, run_in_turns

    WORKER = Path(on_graph.__file__)
    NO_WAIT = RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=5, retry_on=ValueError)

DURABILITIES = ["sync", "async", "exit"]
each_state = pytest.mark.parametrize(
    "state", [Later(lambda: Said), Later(lambda: DeltaSaid)], ids=["Said", "DeltaSaid"]
)


def said(snapshot):
    return snapshot.values.get("said", [])


# --- times to live


def test_a_run_gives_its_thread_a_time_to_live(any_storage, call):
    saver = any_storage.open()
    graph = chain(answers).compile(checkpointer=saver)
    config: Any = at()
    config["configurable"] |= {"ttl_seconds": 3_600}
    call.invoke(graph, {"said": ["a"]}, config)
    call.invoke(graph, {"said": ["b"]}, {"configurable": {"thread_id": "forever"}})

    def left(thread_id):
        found = saver._portals.run("", saver.saver.backend.read_thread, thread_id)
        return found.expires_at and (found.expires_at - datetime.now(UTC)).total_seconds()

    assert 3_500 < left(config["configurable"]["thread_id"]) < 3_700
    assert left("forever") is None
    with pytest.raises(InvalidArgumentError, match="ttl_seconds"):
        call.invoke(graph, {"said": ["c"]}, {"configurable": {"thread_id": "u", "ttl_seconds": -1}})


def test_reading_a_thread_renews_it_where_that_is_configured(storage, call):
    with LangGraphSaver.from_url(storage.url, ttl={"default_ttl": 1}) as short:
        chain(answers).compile(checkpointer=short).invoke({"said": ["a"]}, at())
    ttl = {"default_ttl": 60, "refresh_on_read": True}
    with LangGraphSaver.from_url(storage.url, ttl=ttl) as saver:
        assert said(chain(answers).compile(checkpointer=saver).get_state(at())) != []
        saver._portals.run("", saver.saver.renewals)
        thread_id = at()["configurable"]["thread_id"]
        found = saver._portals.run("", saver.saver.backend.read_thread, thread_id)
        assert (found.expires_at - datetime.now(UTC)).total_seconds() > 3_500


@pytest.mark.parametrize(
    ("ttl", "options"),
    [
        ({"default_tll": 1}, {}),
        (60, {}),
        ({"default_ttl": "1"}, {}),
        ({"default_ttl": -1}, {}),
        ({"refresh_on_read": True}, {}),
        ({"default_ttl": 1}, {"ttl_seconds": 60}),
    ],
)
def test_a_ttl_that_makes_no_sense_is_refused(ttl, options):
    with pytest.raises(InvalidArgumentError):
        LangGraphSaver.from_url("memory://", ttl=ttl, **options)


# --- chat


def answers(state):
    return {"said": [f"answer {len(state['said'])}"]}


def test_a_chat_goes_on_from_saver_to_saver(any_storage, call):
    for turn in range(4):
        graph = chain(answers).compile(checkpointer=any_storage.open())
        found = call.invoke(graph, {"said": [f"turn {turn}"]})
    expected = [it for n in range(4) for it in (f"turn {n}", f"answer {2 * n + 1}")]
    assert found["said"] == expected
    history = call.history(graph)
    assert [it.metadata["step"] for it in history] == [*range(10, -2, -1)]
    assert said(call.state(graph)) == expected
    parents = [it.parent_config for it in history]
    assert [it and it["configurable"]["checkpoint_id"] for it in parents] == [
        *(it.config["configurable"]["checkpoint_id"] for it in history[1:]),
        None,
    ]


def test_a_saver_is_used_in_with_in_async_with_and_in_neither(storage):
    async def turn(saver, text):
        graph = chain(answers).compile(checkpointer=saver)
        return await graph.ainvoke({"said": [text]}, at())

    async def within(text):
        async with LangGraphSaver.from_url(storage.url) as saver:
            return await turn(saver, text)

    with LangGraphSaver.from_url(storage.url) as saver:
        chain(answers).compile(checkpointer=saver).invoke({"said": ["with"]}, at())
        asyncio.run(turn(saver, "async in with"))
    asyncio.run(within("async with"))
    neither = storage.open()
    asyncio.run(turn(neither, "neither"))
    chain(answers).compile(checkpointer=neither).invoke({"said": ["sync"]}, at())
    found = asyncio.run(turn(neither, "again"))
    assert found["said"][::2] == ["with", "async in with", "async with", "neither", "sync", "again"]


def test_messages_keep_their_types_and_ids(any_storage, call):
    def answer(state):
        return {"messages": [AIMessage(f"{len(state['messages'])}", id=f"a{len(state)}")]}

    for text in ("one", "two"):
        builder = chain(answer, state=MessagesState)
        graph = builder.compile(checkpointer=any_storage.open())
        found = call.invoke(graph, {"messages": [HumanMessage(text, id=text)]})
    assert [type(it) for it in found["messages"]] == [HumanMessage, AIMessage, HumanMessage]
    assert [it.content for it in found["messages"]] == ["one", "3", "two"]


# --- fan-out


def fanning_out(state, fails, ran):
    def split(state):
        return {"said": ["split"]}

    def work(number):
        ran[number] += 1
        if number in fails:
            raise ValueError(number)
        return {"said": [number]}

    def end(state):
        return {"said": ["end"]}

    builder = StateGraph(state).add_node(split).add_node(work).add_node(end)
    builder.add_edge(START, "split").add_edge("work", "end").add_edge("end", END)
    return builder.add_conditional_edges("split", lambda _: [Send("work", n) for n in range(5)])


@each_state
def test_only_the_tasks_that_failed_run_again(storage, call, state):
    for durability in DURABILITIES:
        _fail_and_resume(storage, call, durability, state)


def _fail_and_resume(storage, call, durability, state):
    ran, config = Counter(), at(durability)
    first = fanning_out(state, {3}, ran).compile(checkpointer=storage.open())
    with pytest.raises(ValueError, match="3"):
        call.invoke(first, {"said": ["in"]}, config, durability=durability)
    finished = {it for it in ran if ran[it]} - {3}
    snapshot = call.state(first, config)
    assert {it.name for it in snapshot.tasks} == {"work"}
    saved = {it.path[1] for it in snapshot.tasks if it.result is not None}
    assert snapshot.tasks[3].error is not None
    second = fanning_out(state, set(), ran).compile(checkpointer=storage.open())
    found = call.invoke(second, None, config, durability=durability)
    assert found["said"] == ["in", "split", 0, 1, 2, 3, 4, "end"]
    assert ran[3] == 2
    assert all(ran[it] == 1 for it in saved)
    assert saved <= finished


def test_a_run_that_ended_before_a_checkpoint_is_known_by_its_tasks(storage, call, monkeypatch):
    first = storage.open()
    put = first.aput

    def ends(state):
        return {"said": ["end"]}

    async def end(config, made, metadata, versions):
        if metadata["step"] == 1:
            raise ValueError("killed")
        return await put(config, made, metadata, versions)

    monkeypatch.setattr(first, "aput", end)
    graph = chain(tells, ends).compile(checkpointer=first)
    with pytest.raises(ValueError, match="killed"):
        call.invoke(graph, {"said": ["in"]}, at("sync"), durability="sync")
    graph = chain(tells, ends).compile(checkpointer=storage.open())
    snapshot = call.state(graph, at("sync"))
    assert (snapshot.next, [it.name for it in snapshot.tasks]) == ((), ["tells"])
    found = call.invoke(graph, None, at("sync"), durability="sync")
    assert found["said"][-1] == "end"
    assert call.state(graph, at("sync")).tasks == ()


# --- human in the loop


def test_an_interrupt_is_resumed_by_another_saver(any_storage, call):
    first = chain(asks, tells).compile(checkpointer=any_storage.open())
    found = call.invoke(first, {"said": ["in"]})
    assert [it.value for it in found["__interrupt__"]] == ["which?"]
    second = chain(asks, tells).compile(checkpointer=any_storage.open())
    snapshot = call.state(second)
    assert snapshot.next == ("asks",)
    assert [it.value for it in snapshot.interrupts] == ["which?"]
    assert snapshot.interrupts == tuple(found["__interrupt__"])
    assert call.invoke(second, Command(resume="this"))["said"] == ["in", "this", "told"]
    assert call.state(first).next == ()


def test_a_node_may_ask_many_times(storage, call):
    ran = []

    def interviews(state):
        ran.append(1)
        return {"said": [interrupt(f"question {n}") for n in range(3)]}

    for given in ({"said": []}, Command(resume=0), Command(resume=1), Command(resume=2)):
        graph = chain(interviews).compile(checkpointer=storage.open())
        found = call.invoke(graph, given)
    assert found["said"] == [0, 1, 2]
    assert len(ran) == 4


def asking_at_once():
    def ask(number):
        return {"said": [(number, interrupt(number))]}

    builder = StateGraph(Said).add_node(ask)
    return builder.add_conditional_edges(START, lambda _: [Send("ask", n) for n in range(3)])


def test_parallel_interrupts_are_answered_one_by_one_and_together(storage, call):
    found = call.invoke(asking_at_once().compile(checkpointer=storage.open()), {"said": ["in"]})
    ids = {it.value: it.id for it in found["__interrupt__"]}
    assert set(ids) == {0, 1, 2}
    graph = asking_at_once().compile(checkpointer=storage.open())
    found = call.invoke(graph, Command(resume={ids[1]: "b"}))
    assert {it.value for it in found["__interrupt__"]} == {0, 2}
    assert {it.value for it in call.state(graph).interrupts} >= {0, 2}
    graph = asking_at_once().compile(checkpointer=storage.open())
    found = call.invoke(graph, Command(resume={ids[0]: "a", ids[2]: "c"}))
    assert found["said"] == ["in", (0, "a"), (1, "b"), (2, "c")]


def test_a_run_stops_before_and_after_nodes(storage, call):
    builder = chain(answers, tells)
    graph = builder.compile(checkpointer=storage.open(), interrupt_before=["tells"])
    call.invoke(graph, {"said": ["in"]})
    assert call.state(graph).next == ("tells",)
    call.update(graph, at(), {"said": ["edited"]})
    assert call.state(graph).next == ("tells",)
    other = builder.compile(checkpointer=storage.open(), interrupt_after=["answers"])
    assert call.invoke(other, None)["said"] == ["in", "answer 1", "edited", "told"]
    call.invoke(other, {"said": ["again"]})
    assert call.state(other).next == ("tells",)


# --- time travel


def at_step(history, step):
    """The newest snapshot of a step."""
    return next(it for it in history if it.metadata["step"] == step)


@pytest.mark.parametrize("durability", DURABILITIES[:2])
def test_a_thread_is_forked_from_the_past_in_every_way(any_storage, call, durability):
    def graph():
        return chain(answers, tells).compile(checkpointer=any_storage.open())

    call.invoke(graph(), {"said": ["in"]}, durability=durability)
    call.invoke(graph(), {"said": ["more"]}, durability=durability)
    history = call.history(graph())
    first = ["in", "answer 1", "told"]
    assert said(history[0]) == [*first, "more", "answer 4", "told"]
    old = at_step(history, 1).config  # between the nodes of the first run

    replayed = call.invoke(graph(), None, old, durability=durability)
    assert replayed["said"] == first
    assert said(call.state(graph())) == first

    again = call.invoke(graph(), {"said": ["other"]}, old, durability=durability)
    assert again["said"] == ["in", "answer 1", "other", "answer 3", "told"]

    made = call.update(graph(), old, {"said": ["edited"]}, as_node="answers")
    assert said(call.state(graph())) == ["in", "answer 1", "edited"]
    assert call.state(graph()).next == ("tells",)
    assert call.invoke(graph(), None, made, durability=durability)["said"][-1] == "told"

    copied = call.update(graph(), old, None, as_node="__copy__")
    assert said(call.state(graph())) == ["in", "answer 1"]
    assert call.state(graph()).metadata["source"] == "fork"
    found = call.invoke(graph(), None, copied, durability=durability)
    assert found["said"] == first

    after = call.history(graph())
    ids = [it.config["configurable"]["checkpoint_id"] for it in after]
    assert len(ids) == len(set(ids))
    assert after[-len(history) :] == history
    call.invoke(graph(), {"said": ["on"]})
    assert said(call.state(graph()))[:3] == first


def test_many_updates_are_made_at_once(storage, call):
    graph = chain(answers, tells).compile(checkpointer=storage.open())
    steps = [
        [StateUpdate({"said": [f"{n} {m}"]}, "answers") for m in range(1 if n == 0 else 2)]
        for n in range(3)
    ]
    call(graph, "bulk_update_state", at(), steps)
    assert said(call.state(graph)) == ["0 0", "1 0", "1 1", "2 0", "2 1"]
    call(graph, "bulk_update_state", at(), [[StateUpdate(None, END)]])
    assert call.state(graph).next == ()
    assert call.invoke(graph, {"said": ["in"]})["said"][-3:] == ["in", "answer 6", "told"]


def test_a_resumed_run_may_be_gone_back_to_and_answered_otherwise(storage, call):
    def graph():
        return chain(asks, tells).compile(checkpointer=storage.open())

    call.invoke(graph(), {"said": ["in"]})
    assert call.invoke(graph(), Command(resume="a"))["said"] == ["in", "a", "told"]
    old = at_step(call.history(graph()), 0).config
    found = call.invoke(graph(), None, old)
    assert found["__interrupt__"][0].value == "which?"
    assert call.invoke(graph(), Command(resume="b"))["said"] == ["in", "b", "told"]


# --- subgraphs


def test_a_subgraphs_interrupt_is_resumed_and_its_state_seen(storage, call):
    def graph():
        inner = chain(asks, tells).compile()
        builder = StateGraph(Said).add_node("inner", inner).add_node(tells)
        builder.add_edge(START, "inner").add_edge("inner", "tells")
        return builder.compile(checkpointer=storage.open())

    call.invoke(graph(), {"said": ["in"]})
    (inside,) = call.state(graph(), subgraphs=True).tasks
    assert said(inside.state) == ["in"]
    assert inside.state.next == ("asks",)
    call.update(graph(), inside.state.config, {"said": ["edited"]})
    assert said(call.state(graph(), subgraphs=True).tasks[0].state) == ["in", "edited"]
    found = call.invoke(graph(), Command(resume="this"))
    assert found["said"] == ["in", "in", "edited", "this", "told", "told"]


def counting(storage, call_by_send=False):
    """A graph whose subgraph remembers, and tells, all it was given."""

    def remember(state):
        return {"seen": [len(state["seen"])]}

    class Inner(TypedDict):
        said: Annotated[list, operator.add]
        seen: Annotated[list, operator.add]

    inner = chain(remember, state=Inner).compile(checkpointer=True)

    def outer(state):
        return {"said": [len(inner.invoke({"said": ["x"]})["seen"])]}

    async def aouter(state):
        return {"said": [len((await inner.ainvoke({"said": ["x"]}))["seen"])]}

    builder = StateGraph(Said).add_node("outer", _both(outer, aouter))
    if call_by_send:
        return builder.add_conditional_edges(
            START, lambda _: [Send("outer", n) for n in range(3)]
        ).compile(checkpointer=storage.open())
    return builder.add_edge(START, "outer").compile(checkpointer=storage.open())


def _both(sync, coroutine):
    from langgraph._internal._runnable import RunnableCallable

    return RunnableCallable(sync, coroutine)


def test_a_subgraph_with_a_memory_of_its_own_remembers_over_runs(storage, call):
    for _ in range(4):
        found = call.invoke(counting(storage), {"said": ["in"]})
    assert found["said"] == ["in", 1, "in", 2, "in", 3, "in", 4]
    graph = counting(storage)
    histories = {
        it.config["configurable"]["checkpoint_ns"]
        for it in call.all(graph.checkpointer, "list", {"configurable": {"thread_id": "t"}})
    }
    assert len(histories) == 2


def test_a_subgraph_with_a_memory_goes_back_in_time_with_its_graph(storage, call):
    for _ in range(4):
        call.invoke(counting(storage), {"said": ["in"]})
    graph = counting(storage)
    old = at_step(call.history(graph), 3).config  # the second run's input is there
    replayed = call.invoke(graph, None, old)
    assert replayed["said"] == ["in", 1, "in", 2]
    call.invoke(counting(storage), {"said": ["in"]})
    assert said(call.state(counting(storage)))[:5] == ["in", 1, "in", 2, "in"]


def test_tasks_of_one_step_share_a_subgraph_with_a_memory(storage, call):
    for _ in range(3):
        found = call.invoke(counting(storage, call_by_send=True), {"said": ["in"]})
    assert [it for it in found["said"] if it == "in"] == ["in"] * 3
    assert len(found["said"]) == 12
    assert all(it == "in" or it >= 1 for it in found["said"])


class Number(TypedDict):
    n: int


def calling(saver):
    """A graph that calls a subgraph, which asks, and then one with a memory of its own."""

    def number(state):
        return {"n": interrupt("n?")}

    def double(state):
        return {"n": 2 * state["n"]}

    class Outer(Said, Number):
        pass

    inner, memory = (chain(it, state=Number) for it in (number, double))
    builder = StateGraph(Outer).add_node("inner", inner.compile())
    builder.add_node("memory", memory.compile(checkpointer=True))
    builder.add_edge(START, "inner").add_edge("inner", "memory")
    return builder.compile(checkpointer=saver)


def count_lines(call, saver):
    found = call.all(saver, "list", at())
    return Counter(it.config["configurable"]["checkpoint_ns"].split(":")[0] for it in found)


def test_a_prune_removes_the_calls_of_subgraphs_that_are_over(any_storage, call):
    graph = calling(any_storage.open())
    for n in range(4):
        call.invoke(graph, {"said": ["in"]})
        if n < 3:
            call.invoke(graph, Command(resume=n))
    call(graph.checkpointer, "prune", ["t"])
    assert count_lines(call, graph.checkpointer) == {"": 1, "inner": 1, "memory": 1}
    assert call.invoke(graph, Command(resume=3)) == {"said": ["in"] * 4, "n": 6}
    call(graph.checkpointer, "prune", ["t"])
    assert count_lines(call, graph.checkpointer) == {"": 1, "memory": 1}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("updates", [False, True])
def test_keep_last_removes_the_calls_of_subgraphs_with_their_checkpoints(
    any_storage, call, updates, durability
):
    graph = calling(any_storage.open(keep_last=4))
    for n in range(6):
        if updates:
            call(graph, "update_state", at(), {"said": ["in"]}, as_node=START)
        call.invoke(graph, None if updates else {"said": ["in"]}, durability=durability)
        assert count_lines(call, graph.checkpointer)["inner"] <= 5  # of two calls
        found = call.invoke(graph, Command(resume=n), durability=durability)
    assert found == {"said": ["in"] * 6, "n": 10}


def test_a_subgraph_that_is_faster_than_the_first_save_of_its_run_is_kept(monkeypatch):
    saver, is_called = LangGraphSaver.from_url("memory://", keep_last=1), threading.Event()
    put = saver.saver.put

    async def put_late(**save):
        if not save["checkpoint_ns"]:
            assert is_called.wait(60)
        return await put(**save)

    def fast(state):
        return {"said": ["fast"]}

    def call_inner(state):
        return inner.invoke(state)

    def note_call(state):
        time.sleep(0.5)  # the subgraph is saved meanwhile
        is_called.set()
        time.sleep(0.5)  # the run is, too
        return {"said": ["noted"]}

    monkeypatch.setattr(saver.saver, "put", put_late)
    inner = chain(fast, note_call).compile()
    graph = StateGraph(Said).add_node(call_inner).add_edge(START, "call_inner")
    found = graph.compile(checkpointer=saver).invoke({"said": []}, at(), durability="async")
    assert found["said"] == ["fast", "noted"]


def test_subgraphs_of_subgraphs_are_resumed(storage, call):
    ran = Counter()

    def count(name):
        def node(state):
            ran[name] += 1
            return {"said": [name]}

        node.__name__ = name
        return node

    def graph():
        deepest = chain(count("deep"), asks).compile()
        middle = StateGraph(Said).add_node(count("before")).add_node("deepest", deepest)
        middle.add_edge(START, "before").add_edge("before", "deepest")
        outer = StateGraph(Said).add_node("middle", middle.compile())
        return outer.add_edge(START, "middle").compile(checkpointer=storage.open())

    call.invoke(graph(), {"said": ["in"]})
    found = call.invoke(graph(), Command(resume="this"))
    assert found["said"][-1] == "this"
    assert ran == {"before": 1, "deep": 1}


# --- processes


class Process:
    """One that runs a graph; told what to do on its standard input, and tells in JSON lines."""

    def __init__(self, *arguments: str, **more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error::ResourceWarning", str(WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **more},
        )
        self._limit = threading.Timer(on_graph.DEADLINE_SECONDS, self.process.kill)
        self._limit.start()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()

    def tells_until(self, last: object) -> list[Any]:
        told: list[Any] = []
        while not told or told[-1] != last:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            told.append(json.loads(line))
        return told

    def ends(self) -> list[Any]:
        told, complaints = self.process.stdout.read(), self.process.stderr.read()
        assert (self.process.wait(), complaints) == (0, "")
        return [json.loads(it) for it in told.splitlines()]


def ran(*arguments: str, **more: str) -> list[Any]:
    with Process(*arguments, **more) as process:
        return process.ends()


@pytest.mark.full
def test_a_killed_process_is_resumed_in_another(storage, call):
    saver = storage.open()
    with Process("run", storage.url, call.form, "steps", "async") as process:
        assert process.tells_until("waits") == ["one", "two", "waits"]
        wait_until(
            lambda: (found := call(saver, "get_tuple", at())) and found.metadata["step"] == 1,
            "the first step's checkpoint",
        )
        process.process.kill()
        process.process.wait()
    told = ran("resume", storage.url, call.form, "steps")
    assert told == ["two", "three", {"state": ["in", "one", "two", "three"]}]


@pytest.mark.full
def test_what_tasks_wrote_before_the_kill_is_not_done_again(storage, call):
    saver = storage.open()
    with Process("run", storage.url, call.form, "fan_out", "sync") as process:
        told = process.tells_until("waits")
        assert set(told) >= {2, "waits"}

        def are_saved():
            writes = call(saver, "get_tuple", at()).pending_writes
            return len([it for it in writes if it[1] == "said"]) == 2

        wait_until(are_saved, "the writes of the two tasks that ended")
        process.process.kill()
        process.process.wait()
    told = ran("resume", storage.url, call.form, "fan_out")
    assert told == [2, {"state": ["in", "split", 0, 1, 2, "end"]}]


@pytest.mark.full
def test_a_run_that_asks_is_answered_in_another_process(storage, call):
    assert ran("run", storage.url, call.form, "asking", "exit") == [["in"]]
    told = ran("resume", storage.url, call.form, "asking", "yes")
    assert told == [{"state": ["in", "yes", "told"]}]


@pytest.mark.full
def test_the_classes_of_a_state_are_allowed_by_compile_in_strict_mode(storage, call):
    told = ran("strict", storage.url, call.form, LANGGRAPH_STRICT_MSGPACK="true")
    assert told == [[3, ["Item"], "Order", "Item"], ["tuple"]]


# --- two runs at once


def answering(state, while_answering):
    """A graph of two nodes, the first of which calls ``while_answering(name of the run)``."""

    def answer(state, config):
        name = config["configurable"]["name"]
        while_answering(name)
        return {"said": [f"answer {name}"]}

    def end(state, config):
        return {"said": [f"end {config['configurable']['name']}"]}

    return chain(answer, end, state=state)


def no_wait(name):
    pass


class Runs:
    """Runs of ``answering`` on one thread, which may be under way at once."""

    def __init__(self, storage, call, state, durability, **options):
        self.outcomes = {}
        self._storage, self._form, self._options = storage, call.form, options
        self._state, self.thread_id = state, durability
        self.graph = self._compiled(no_wait)

    def _compiled(self, while_answering):
        saver = self._storage.open(**self._options)
        return answering(self._state, while_answering).compile(checkpointer=saver)

    def run(self, name, while_answering=no_wait):
        graph, config = self._compiled(while_answering), at(self.thread_id, name=name)
        given = {"said": [f"in {name}"]}
        self.outcomes[name] = outcome(
            self._form, lambda it: it.invoke(graph, given, config, durability=self.thread_id)
        )

    def told(self):
        return [it for it, found in self.outcomes.items() if isinstance(found, ConflictError)]

    def said(self):
        found = outcome(self._form, lambda it: it.state(self.graph, at(self.thread_id)))
        return said(found)

    def require_kept(self):
        """Each run that was not told of a conflict has left all that it said, once."""
        final = self.said()
        assert len(final) == len(set(final))
        for name, found in self.outcomes.items():
            if isinstance(found, ConflictError):
                continue
            if isinstance(found, Exception):
                raise found
            for text in (f"in {name}", f"answer {name}", f"end {name}"):
                assert text in final, (text, final, self.outcomes)


@each_state
@pytest.mark.parametrize("begins", first_of("head", "empty"))
def test_a_run_within_a_run_is_kept_or_one_of_them_is_told(storage, call, state, begins):
    for durability in DURABILITIES:
        runs = Runs(storage, call, state, durability)
        if begins == "head":
            runs.run("first")
        runs.run("a", lambda _, runs=runs: runs.run("b"))
        runs.require_kept()
        assert len(runs.told()) == 1
        runs.run("last")
        runs.require_kept()
        assert runs.outcomes["last"]["said"] == runs.said()


@each_state
def test_runs_that_meet_are_kept_or_told(storage, call, state):
    def meeting(barrier):
        def meet(_):
            with suppress(threading.BrokenBarrierError):
                barrier.wait(on_graph.DEADLINE_SECONDS)

        return meet

    def run(runs, name, barrier):
        runs.run(name, meeting(barrier))
        barrier.abort()  # one that was told does not come

    for durability in DURABILITIES:
        runs = Runs(storage, call, state, durability)
        for turn in range(3):
            barrier = threading.Barrier(2)
            threads = [
                threading.Thread(target=run, args=(runs, f"{turn} {n}", barrier)) for n in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        runs.require_kept()
        assert len(runs.told()) >= 3


@each_state
@pytest.mark.parametrize("durability", DURABILITIES)
def test_of_two_answers_to_one_question_one_counts(storage, call, state, durability):
    def asked(while_answering):
        def ask(state):
            answer = interrupt("which?")
            while_answering(answer)
            return {"said": [answer]}

        return chain(ask, tells, state=state).compile(checkpointer=storage.open())

    def answer(text, while_answering):
        graph, given = asked(while_answering), Command(resume=text)
        outcomes[text] = outcome(
            call.form, lambda it: it.invoke(graph, given, durability=durability)
        )

    outcomes = {}
    call.invoke(asked(no_wait), {"said": ["in"]}, durability=durability)
    answer("a", lambda _: answer("b", no_wait))
    told = {name for name, it in outcomes.items() if isinstance(it, ConflictError)}
    assert told
    for kept in outcomes.keys() - told:
        assert outcomes[kept]["said"] == ["in", kept, "told"]
        assert said(call.state(asked(no_wait))) == ["in", kept, "told"]


def resumed_at_once(storage, count):
    """A thread with tasks that failed, and a graph in which they do not."""
    ran = Counter()
    numbers = set(range(count))
    return (
        fanning_out(Said, numbers, ran).compile(checkpointer=storage.open()),
        fanning_out(Said, set(), ran).compile(checkpointer=storage.open()),
    )


def test_the_writes_of_one_run_may_arrive_in_any_order(storage, call):
    failing, working = resumed_at_once(storage, 5)
    with pytest.raises(ValueError, match=r"\d"):
        call.invoke(failing, {"said": ["in"]})
    plain = working.checkpointer.saver
    put_writes, other_is_there, sent = plain.put_writes, threading.Event(), []

    async def late(**options):
        sent.append(options)
        if len(sent) == 1:
            await run_in_thread(lambda: other_is_there.wait(on_graph.DEADLINE_SECONDS))
        try:
            await put_writes(**options)
        finally:
            other_is_there.set()

    plain.put_writes = late
    found = call.invoke(working, None)
    assert found["said"] == ["in", "split", 0, 1, 2, 3, 4, "end"]


def test_a_run_that_was_told_once_writes_nothing_more(storage, call):
    graph = chain(asks, tells).compile(checkpointer=storage.open())
    call.invoke(graph, {"said": ["in"]})
    one, other = storage.open(), storage.open()
    first, second = (call(it, "get_tuple", at()).config for it in (one, other))
    call(one, "put_writes", first, [("__resume__", "a")], "task")
    for writes in ([("__resume__", "b")], [("said", ["b"])]):
        with pytest.raises(ConflictError):
            call(other, "put_writes", second, writes, "task")
    call(one, "put_writes", first, [("said", ["a"])], "task")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_of_a_run_and_an_update_meanwhile_one_is_told(storage, call, durability):
    def update(_):
        given = at(durability), {"said": ["edited"]}
        updates.append(outcome(call.form, lambda it: it.update(runs.graph, *given, as_node="end")))

    updates = []
    runs = Runs(storage, call, Said, durability)
    runs.run("a", update)
    runs.require_kept()
    assert [type(it) for it in (*updates, *runs.outcomes.values())].count(ConflictError) == 1
    assert ("edited" in runs.said()) == (not isinstance(updates[0], ConflictError))


@pytest.mark.parametrize(("on_conflict", "newest"), [("branch", "b"), ("overwrite", "a")])
def test_a_second_run_may_be_kept_beside_or_win(storage, call, on_conflict, newest):
    for durability in DURABILITIES:
        runs = Runs(storage, call, Said, durability, on_conflict=on_conflict)
        runs.run("first")
        runs.run("a", lambda _, runs=runs: runs.run("b"))
        if durability != "async":  # there, the first run may not have begun to save
            assert runs.said() == runs.outcomes[newest]["said"]
        seen = [said(it) for it in call.history(runs.graph, at(durability))]
        for name in ("a", "b"):
            assert runs.outcomes[name]["said"][-1] == f"end {name}"
            assert runs.outcomes[name]["said"] in seen


# --- growth and durability


@pytest.mark.full
def test_a_thousand_steps_grow_by_what_they_say(storage, call, postgresql):
    steps, text = 1000, "a step that says something of a hundred characters or so, as a node does"

    def step(state):
        return {"said": [f"{text} {len(state['said'])}"]}

    def bytes_used():
        if storage.url.startswith("sqlite"):
            path = Path(storage.url.removeprefix("sqlite:///"))
            return sum(it.stat().st_size for it in path.parent.glob(f"{path.name}*"))
        name = storage.url.partition("?")[0].rpartition("/")[2]
        tables = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'locus%'"
        return sum(
            postgresql.value("SELECT pg_total_relation_size($1::regclass)", it, database=name)
            for (it,) in postgresql.fetch(tables, database=name)
        )

    builder = StateGraph(Said).add_node(step).add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: END if len(state["said"]) % 500 == 0 else "step"
    )
    sizes = [bytes_used()]
    for given in (["in"], ["more"]):
        saver = storage.open()
        call.invoke(
            builder.compile(checkpointer=saver), {"said": given}, at() | {"recursion_limit": 2000}
        )
        call(saver, "get_tuple", at())
        sizes.append(bytes_used())
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert second < 1.5 * first
    assert second < 4000 * steps / 2
    graph = builder.compile(checkpointer=storage.open())
    found = call.history(graph)
    whole = said(found[0])
    assert len(whole) == steps
    assert whole[:2] == ["in", f"{text} 1"]
    assert whole[499:502] == [f"{text} 499", "more", f"{text} 501"]
    assert len(found) == steps + 2
    assert all(said(it) == whole[: len(said(it))] for it in found)


@pytest.mark.parametrize(("durability", "checkpoints"), [("sync", 6), ("async", 6), ("exit", 2)])
def test_a_durability_saves_as_often_as_it_says(any_storage, call, durability, checkpoints):
    for text in ("one", "two"):
        graph = chain(tells).compile(checkpointer=any_storage.open())
        found = call.invoke(graph, {"said": [text]}, durability=durability)
    assert found["said"] == ["one", "told", "two", "told"]
    assert len(call.history(graph)) == checkpoints
    assert said(call.state(graph)) == found["said"]


# --- functional API


@pytest.mark.parametrize("durability", DURABILITIES)
def test_parallel_nodes_and_tasks_write_within_the_turn_of_their_run(storage, call, durability):
    builder = StateGraph(Said)
    for name in "abc":
        builder.add_node(name, tells).add_edge(START, name)

    @task
    def number(n):
        return n

    saver = storage.open()

    @entrypoint(checkpointer=saver)
    def add(numbers):
        return sum(it.result() for it in [number(n) for n in numbers])

    graph = builder.compile(checkpointer=saver)
    for run in (run_in_turns(graph), run_in_turns(graph), graph):
        found = call.invoke(run, {"said": ["in"]}, durability=durability)
    assert Counter(found["said"]) == {"in": 3, "told": 9}
    with saver.turn("u"):
        found = graph.invoke({"said": ["in"]}, at("u"), durability=durability)
    assert found["said"] == ["in"] + ["told"] * 3
    assert run_in_turns(add).invoke([1, 2], at("v"), durability=durability) == 3


def test_a_run_with_the_config_of_a_node_has_no_turn_of_the_nodes_run(storage, call):
    configs = []

    def note(state, config):
        configs.append(config)
        return {"said": ["noted"]}

    graph = StateGraph(Said).add_node(note).add_edge(START, "note")
    graph = graph.compile(checkpointer=storage.open())
    call.invoke(run_in_turns(graph), {"said": ["in"]})
    for run in (graph, run_in_turns(graph)):
        assert call.invoke(run, {"said": ["in"]}, configs[0])["said"][-1] == "noted"


def test_an_entrypoint_remembers_and_its_tasks_run_once(storage, call):
    ran, broken = Counter(), [True]

    @task
    def square(number):
        ran[number] += 1
        return number * number

    def made():
        @entrypoint(checkpointer=storage.open())
        def flow(numbers, *, previous=None):
            total = sum(it.result() for it in [square(n) for n in numbers])
            if broken:
                raise ValueError(total)
            asked = interrupt("add?")
            return entrypoint.final(value=(total + asked, previous), save=total)

        @entrypoint(checkpointer=storage.open())
        async def aflow(numbers, *, previous=None):
            total = sum([await square(n) for n in numbers])
            if broken:
                raise ValueError(total)
            asked = interrupt("add?")
            return entrypoint.final(value=(total + asked, previous), save=total)

        return flow if call.form == "sync" else aflow

    with pytest.raises(ValueError, match="14"):
        call.invoke(made(), [1, 2, 3])
    broken.clear()
    assert call.invoke(made(), None)["__interrupt__"][0].value == "add?"
    assert call.invoke(made(), Command(resume=100)) == (114, None)
    assert ran == {1: 1, 2: 1, 3: 1}
    call.invoke(made(), [4])
    assert call.invoke(made(), Command(resume=0)) == (16, 14)
    assert call.state(made()).values == (16, 14)


# --- what else graphs do


def test_a_command_moves_on_and_to_the_parent_graph(storage, call):
    def choose(state) -> Command:
        return Command(goto="inner", update={"said": ["chosen"]})

    def leave(state) -> Command:
        return Command(goto="last", graph=Command.PARENT, update={"said": ["left"]})

    def last(state):
        return {"said": [interrupt("done?")]}

    def graph():
        builder = StateGraph(Said).add_node("choose", choose, destinations=("inner",))
        builder.add_node("inner", chain(leave).compile()).add_node(last)
        return builder.add_edge(START, "choose").compile(checkpointer=storage.open())

    call.invoke(graph(), {"said": ["in"]})
    assert call.state(graph()).next == ("last",)
    assert call.invoke(graph(), Command(resume="yes"))["said"] == ["in", "chosen", "left", "yes"]
    call.invoke(graph(), Command(goto="last", update={"said": ["again"]}))
    found = call.invoke(graph(), Command(resume="no", update={"said": ["and"]}))
    assert sorted(found["said"][4:]) == ["again", "and", "no"]


def test_a_node_is_tried_again(storage, call):
    tries = Counter()

    def flaky(state):
        tries["flaky"] += 1
        if tries["flaky"] < 4:
            raise ValueError(tries["flaky"])
        return {"said": ["done"]}

    builder = StateGraph(Said).add_node("flaky", flaky, retry_policy=NO_WAIT)
    graph = builder.add_edge(START, "flaky").compile(checkpointer=storage.open())
    assert call.invoke(graph, {"said": ["in"]})["said"] == ["in", "done"]
    assert tries["flaky"] == 4
    assert [it.error for of in call.history(graph) for it in of.tasks] == [None, None]


def test_a_store_stands_beside_the_saver(storage, call):
    def remember(state, *, store):
        store.put(("facts",), str(len(state["said"])), {"said": state["said"]})
        return {"said": [len(store.search(("facts",)))]}

    store = InMemoryStore()
    builder = StateGraph(Said)
    builder.add_node("remember", remember).add_edge(START, "remember")
    for thread_id in ("t", "u"):
        graph = builder.compile(checkpointer=storage.open(), store=store)
        found = call.invoke(graph, {"said": [thread_id] * (1 + len(thread_id))}, at(thread_id))
    assert found["said"] == ["u", "u", 1]
    assert call.invoke(graph, {"said": ["more"]}, at("u"))["said"][-1] == 2


if TESTS_RUN:

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **kwargs):
            return self

    @tool
    def add(one: int, other: int) -> int:
        """Add two numbers."""
        return one + other


def model():
    asks = AIMessage("", tool_calls=[{"name": "add", "args": {"one": 2, "other": 3}, "id": "c1"}])
    return Model(messages=iter([asks, AIMessage("5")]))


@pytest.mark.filterwarnings("ignore:create_react_agent")
@pytest.mark.parametrize("kind", ["agent", "nodes"])
def test_an_agent_with_tools_goes_on_after_its_tool_was_allowed(storage, call, kind):
    fake = model()

    def chatbot(state):
        return {"messages": [fake.invoke(state["messages"])]}

    def graph():
        stops = {"checkpointer": storage.open(), "interrupt_before": ["tools"]}
        if kind == "agent":
            return create_react_agent(fake, [add], **stops)
        builder = StateGraph(MessagesState).add_node(chatbot).add_node("tools", ToolNode([add]))
        builder.add_edge(START, "chatbot").add_edge("tools", "chatbot")
        return builder.add_conditional_edges("chatbot", tools_condition).compile(**stops)

    call.invoke(graph(), {"messages": [("user", "2 + 3?")]})
    assert call.state(graph()).next == ("tools",)
    found = call.invoke(graph(), None)["messages"]
    assert [type(it) for it in found] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert [found[2].content, found[3].content] == ["5", "5"]
    assert call.state(graph()).values["messages"] == found


def test_a_graph_with_a_config_has_its_metadata_and_is_deleted_by_run(storage, call):
    saver = storage.open()
    graph = chain(tells).compile(checkpointer=saver)
    run_id = "00000000-0000-4000-8000-000000000007"
    bound = graph.with_config(configurable={"thread_id": "t"}, metadata={"user": "u"})
    call.invoke(bound, {"said": ["in"]}, {"metadata": {"run_id": run_id}})
    assert {it.metadata["user"] for it in call.history(graph)} == {"u"}
    found = call.all(saver, "list", None, filter={"user": "u", "step": 1})
    assert [it.checkpoint["channel_values"]["said"] for it in found] == [["in", "told"]]
    call(saver, "delete_for_runs", [run_id])
    assert call.history(graph) == []


# --- clocks


def wrong_clock(monkeypatch, hours):
    """Make the ids of checkpoints, here, those of a host whose clock is wrong."""
    shift = int(timedelta(hours=hours).total_seconds() * 10**7)

    def wrong(node=None, clock_seq=None):
        made = uuid6(node, clock_seq).int
        time = (made >> 80 << 12) | (made >> 64 & 0xFFF)  # 60 bits, in 100 ns
        time += shift
        return UUID(int=(time >> 12 << 80) | (time & 0xFFF) << 64 | made & (1 << 64) - 1, version=6)

    for module in (of_pregel, langgraph.checkpoint.base):
        monkeypatch.setattr(module, "uuid6", wrong)


def test_a_wrong_clock_hides_nothing(any_storage, call, monkeypatch):
    def graph():
        return chain(asks, tells).compile(checkpointer=any_storage.open())

    expected = []
    for turn, hours in enumerate([0, 48, 0, -48, 0]):
        with monkeypatch.context() as patch:
            wrong_clock(patch, hours)
            call.invoke(graph(), {"said": [f"in {turn}"]})
        with monkeypatch.context() as patch:
            wrong_clock(patch, -hours)
            found = call.invoke(graph(), Command(resume=turn))
        expected += [f"in {turn}", turn, "told"]
        assert found["said"] == expected
    history = call.history(graph())
    assert [it.metadata["step"] for it in history] == [*range(18, -2, -1)]
    call.update(graph(), history[4].config, {"said": ["edited"]}, as_node="asks")
    assert said(call.state(graph()))[-1] == "edited"
    assert len(call.history(graph())) == 21
