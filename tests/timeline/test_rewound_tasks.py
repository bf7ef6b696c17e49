"""Real graphs of functions, subgraphs and error handlers that continue from a rewound version."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from lazily import TESTS_RUN
from test_graph import backend  # noqa: F401  (a fixture)

from locus_store import BackendError, ConflictError, UnsupportedError
from locus_store.timeline import rewind as module
from locus_store.timeline.rewind import prepare, rewind

if TESTS_RUN:
    pytest.importorskip("langgraph")
    from langgraph.cache.memory import InMemoryCache
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.func import entrypoint, task
    from langgraph.graph import START, StateGraph
    from langgraph.types import CachePolicy, Command, Send, interrupt

    from locus_store.adapters.langgraph import LangGraphSaver

pytestmark = pytest.mark.anyio
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    words: Annotated[list[str], operator.add]


class Trip:
    """A storage, and a list of what ran."""

    def __init__(self, storage: Any) -> None:
        self.backend = storage
        self.log: list[str] = []
        self.saver = LangGraphSaver(storage)

    def ran(self) -> list[str]:
        """Return what ran since the last question."""
        log, self.log = self.log, []
        return log

    def node(self, word: str) -> Any:
        def run(_: State) -> Any:
            self.log.append(word)
            return {"words": [word]}

        return run

    def asking(self, *questions: str) -> Any:
        def run(_: State) -> Any:
            answers = " ".join(interrupt(it) for it in questions)
            self.log.append(answers)
            return {"words": [answers]}

        return run

    def chain(self, **nodes: Any) -> Any:
        """Return a graph of nodes one after the other, without a saver."""
        builder = StateGraph(State)
        names = list(nodes)
        for name, node in nodes.items():
            builder.add_node(name, node)
        for edge in zip([START, *names], names, strict=False):
            builder.add_edge(*edge)
        return builder

    async def head(self) -> str:
        head = await self.backend.version("t")
        assert head is not None
        return head.checkpoint_id

    async def lines(self) -> dict[str, list[str]]:
        names = await self.backend.namespaces("t")
        found = {it: await self.backend.history("t", namespace=it) for it in names}
        return {name: [it.checkpoint_id for it in page] for name, page in found.items()}


@pytest.fixture
def trip(backend: Any) -> Trip:  # noqa: F811
    return Trip(backend)


# --- functions of the functional API


def _functions(trip: Trip) -> Any:
    @task
    async def fetch(word: str) -> str:
        trip.log.append(f"fetch {word}")
        return word

    @task
    async def plan(word: str) -> str:
        found = await fetch(f"{word}!")
        trip.log.append(f"plan {word}")
        return found

    @entrypoint(checkpointer=trip.saver)
    async def travel(word: str) -> Any:
        found = [await fetch(word), await plan(word)]
        found.append(await fetch(interrupt("city?")))
        return [*found, interrupt("street?")]

    return travel


CALLS = ["fetch a", "fetch a!", "plan a"]


async def test_functions_whose_names_are_given_do_not_run_again(trip: Trip) -> None:
    travel = _functions(trip)
    await travel.ainvoke("a", CONFIG)
    assert trip.ran() == CALLS
    await rewind(trip.backend, "t", await trip.head(), names=["plan", "fetch"])
    await travel.ainvoke(Command(resume="Bern"), CONFIG)
    await rewind(trip.backend, "t", await trip.head(), names=["plan", "fetch"])
    assert await travel.ainvoke(Command(resume="Weg"), CONFIG) == ["a", "a!", "Bern", "Weg"]
    assert trip.ran() == ["fetch Bern"]


async def test_functions_whose_names_are_not_stored_are_refused_by_place(trip: Trip) -> None:
    travel = _functions(trip)
    await travel.ainvoke("a", CONFIG)
    before = await trip.lines()
    with pytest.raises(UnsupportedError, match="call 1 of 'travel', call 2 of 'travel', call"):
        await rewind(trip.backend, "t", await trip.head())
    with pytest.raises(UnsupportedError, match="finished: call 2 of 'travel', call 1 of"):
        await rewind(trip.backend, "t", await trip.head(), names=["fetch"])
    assert await trip.lines() == before
    assert trip.ran() == CALLS
    await rewind(trip.backend, "t", await trip.head(), runs_again=True)
    await travel.ainvoke(Command(resume="Bern"), CONFIG)
    assert trip.ran() == [*CALLS, "fetch Bern"]


async def test_functions_that_ran_in_an_earlier_step_need_no_names(trip: Trip) -> None:
    travel = _functions(trip)
    answers: list[Any] = [Command(resume="Bern"), Command(resume="Weg")]
    for given in ("b", *answers, "a"):
        await travel.ainvoke(given, CONFIG)
    trip.ran()
    await rewind(trip.backend, "t", await trip.head())
    await travel.ainvoke(Command(resume="Basel"), CONFIG)
    assert trip.ran() == ["fetch Basel"]


async def test_calls_of_a_completed_function_run_again_and_are_announced(trip: Trip) -> None:
    travel = _functions(trip)
    await travel.ainvoke("a", CONFIG)
    stopped = await trip.head()
    for answer in ("Bern", "Gasse"):
        await travel.ainvoke(Command(resume=answer), CONFIG)
    trip.ran()
    with pytest.raises(UnsupportedError, match="call 3 of 'travel'"):
        await rewind(trip.backend, "t", stopped)
    await rewind(trip.backend, "t", stopped, runs_again=True)
    await travel.ainvoke(Command(resume="Basel"), CONFIG)
    assert await travel.ainvoke(Command(resume="Weg"), CONFIG) == ["a", "a!", "Basel", "Weg"]
    assert trip.ran() == [*CALLS, "fetch Basel"]


# --- Send


async def test_encrypted_tasks_of_send_are_found_by_the_names_of_nodes(trip: Trip) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    builder = trip.chain(look=trip.node("look"), ask=trip.asking("city?"))
    builder.add_node("sent", trip.node("sent"))
    builder.add_conditional_edges("look", lambda _: [Send("sent", {"words": []})] * 2)
    graph = builder.compile(checkpointer=LangGraphSaver(trip.backend, serde=serde))
    await graph.ainvoke({"words": []}, CONFIG)
    assert trip.ran() == ["look", "sent", "sent"]
    with pytest.raises(UnsupportedError, match="the task of Send 1, the task of Send 2"):
        await rewind(trip.backend, "t", await trip.head())
    await rewind(trip.backend, "t", await trip.head(), names=["sent"])
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    assert trip.ran() == ["Bern"]
    await graph.ainvoke({"words": []}, CONFIG)
    trip.ran()
    await rewind(trip.backend, "t", await trip.head())  # the nodes have run before
    await graph.ainvoke(Command(resume="Basel"), CONFIG)
    assert trip.ran() == ["Basel"]


# --- subgraphs


def _deep(trip: Trip) -> Any:
    deep = trip.chain(low=trip.node("low"), ask=trip.asking("city?", "street?")).compile()
    inner = trip.chain(look=trip.node("look"), deep=deep).compile()
    return trip.chain(start=trip.node("start"), inner=inner).compile(checkpointer=trip.saver)


async def test_finished_nodes_of_an_interrupted_subgraph_do_not_run_again(trip: Trip) -> None:
    graph = _deep(trip)
    await graph.ainvoke({"words": []}, CONFIG)
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    before = await graph.aget_state(CONFIG, subgraphs=True)
    assert trip.ran() == ["start", "look", "low"]
    await rewind(trip.backend, "t", await trip.head())
    again = await graph.aget_state(CONFIG, subgraphs=True)
    while again.tasks:
        assert (again.next, again.values) == (before.next, before.values)
        assert [it.value for it in again.interrupts] == ["street?"]
        assert again.interrupts[0].id != before.interrupts[0].id
        again, before = again.tasks[0].state, before.tasks[0].state
        if again is None:
            break
    [asked] = (await graph.aget_state(CONFIG)).interrupts
    done = await graph.ainvoke(Command(resume={asked.id: "Weg"}), CONFIG)
    assert trip.ran() == ["Bern Weg"]
    assert done["words"][-1] == "Bern Weg"


async def test_copied_subgraphs_name_the_copies_above_them(trip: Trip) -> None:
    graph = _deep(trip)
    await graph.ainvoke({"words": []}, CONFIG)
    before = await trip.lines()
    await rewind(trip.backend, "t", await trip.head())
    lines = await trip.lines()
    inner, deep = sorted(lines.keys() - before.keys(), key=len)
    assert deep.startswith(f"{inner}|deep:")
    for line, above in ((inner, [""]), (deep, ["", inner])):
        head = await trip.backend.version("t", namespace=line)
        assert head.metadata["parents"] == {it: lines[it][0] for it in above}


async def test_a_completed_subgraph_continues_from_its_first_interrupt(trip: Trip) -> None:
    graph = _deep(trip)
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    for answer in ("Bern", "Gasse"):
        await graph.ainvoke(Command(resume=answer), CONFIG)
    trip.ran()
    for street in ("Weg", "Platz"):
        await rewind(trip.backend, "t", stopped)
        for answer in ("Basel", street):
            await graph.ainvoke(Command(resume=answer), CONFIG)
        assert trip.ran() == [f"Basel {street}"]
        assert "Bern Gasse" not in (await graph.aget_state(CONFIG)).values["words"]


async def test_a_subgraph_that_failed_continues_behind_its_finished_nodes(trip: Trip) -> None:
    broken = [True]

    def fetch(_: State) -> Any:
        if broken[0]:
            raise ZeroDivisionError
        return trip.node("fetch")(_)

    inner = trip.chain(look=trip.node("look"), fetch=fetch).compile()
    graph = trip.chain(inner=inner, end=trip.node("end")).compile(checkpointer=trip.saver)
    with pytest.raises(ZeroDivisionError):
        await graph.ainvoke({"words": []}, CONFIG)
    failed, broken[0] = await trip.head(), False
    for _ in range(2):
        await rewind(trip.backend, "t", failed)
        trip.ran()
        await graph.ainvoke(None, CONFIG)
        assert trip.ran() == ["fetch", "end"]


async def test_a_subgraph_behind_an_answer_of_its_own_node_starts_again(trip: Trip) -> None:
    inner = trip.chain(look=trip.node("look"), ask=trip.asking("street?")).compile()

    async def travel(_: State) -> Any:
        city = interrupt("city?")
        return {"words": (await inner.ainvoke({"words": [city]}))["words"]}

    graph = trip.chain(travel=travel).compile(checkpointer=trip.saver)
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    for answer in ("Bern", "Gasse"):
        await graph.ainvoke(Command(resume=answer), CONFIG)
    trip.ran()
    assert (await prepare(trip.backend, "t", stopped)).repeated == ["the nodes of 'travel'"]
    await rewind(trip.backend, "t", stopped, runs_again=True)
    await graph.ainvoke(Command(resume="Basel"), CONFIG)
    done = await graph.ainvoke(Command(resume="Weg"), CONFIG)
    assert done["words"] == ["Basel", "look", "Weg"]


async def test_all_subgraphs_of_an_interrupted_node_are_kept(trip: Trip) -> None:
    first = trip.chain(look=trip.node("look")).compile()
    second = trip.chain(see=trip.node("see"), ask=trip.asking("city?")).compile()

    async def travel(_: State) -> Any:
        found = await first.ainvoke({"words": ["a"]})
        return await second.ainvoke(found)

    graph = trip.chain(travel=travel).compile(checkpointer=trip.saver)
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    assert trip.ran() == ["look", "see"]
    await rewind(trip.backend, "t", stopped)
    done = await graph.ainvoke(Command(resume="Bern"), CONFIG)
    assert (trip.ran(), done["words"]) == (["Bern"], ["a", "look", "see", "Bern"])
    await rewind(trip.backend, "t", await trip.head())
    found = await prepare(trip.backend, "t", stopped)
    assert found.repeated == []


async def test_a_subgraph_of_a_function_continues(trip: Trip) -> None:
    inner = trip.chain(look=trip.node("look"), ask=trip.asking("city?")).compile()

    @task
    async def find(word: str) -> Any:
        return (await inner.ainvoke({"words": [word]}))["words"]

    @entrypoint(checkpointer=trip.saver)
    async def travel(word: str) -> Any:
        return await find(word)

    await travel.ainvoke("a", CONFIG)
    trip.ran()
    await rewind(trip.backend, "t", await trip.head())
    assert await travel.ainvoke(Command(resume="Bern"), CONFIG) == ["a", "look", "Bern"]
    assert trip.ran() == ["Bern"]


async def test_a_subgraph_with_a_memory_of_its_own_has_that_of_the_version(trip: Trip) -> None:
    inner = trip.chain(look=trip.node("look"), ask=trip.asking("city?"))
    outer = trip.chain(inner=inner.compile(checkpointer=True), end=trip.node("end"))
    graph = outer.compile(checkpointer=trip.saver)
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    await rewind(trip.backend, "t", stopped)
    assert [it.value for it in (await graph.aget_state(CONFIG)).interrupts] == ["city?"]
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    once = await graph.aget_state(CONFIG)
    trip.ran()
    for answer in ("Basel", "Genf"):
        await rewind(trip.backend, "t", stopped)
        done = await graph.ainvoke(Command(resume=answer), CONFIG)
        assert (trip.ran(), done["words"]) == ([answer, "end"], ["look", answer, "end"])
    await rewind(trip.backend, "t", once.config["configurable"]["checkpoint_id"])
    await graph.ainvoke({"words": []}, CONFIG)
    done = await graph.ainvoke(Command(resume="Chur"), CONFIG)
    assert "Bern" in done["words"]
    assert not {"Basel", "Genf"} & set(done["words"])


async def test_a_rewind_that_conflicts_leaves_no_subgraphs(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = _deep(trip)
    await graph.ainvoke({"words": []}, CONFIG)
    before, head = await trip.lines(), await trip.head()
    write = module._write

    async def late(storage: Any, copy: Any) -> None:
        if copy.namespace == "":
            state = {"channel_values": {}, "channel_versions": {}}
            await storage.write_state("t", state, checkpoint_id="late")
        await write(storage, copy)

    monkeypatch.setattr(module, "_write", late)
    with pytest.raises(ConflictError):
        await rewind(trip.backend, "t", head)
    assert await trip.lines() == before | {"": ["late", *before[""]]}


@pytest.mark.parametrize("error", [BackendError, asyncio.CancelledError])
async def test_a_rewind_that_fails_changes_no_subgraph(
    trip: Trip, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    inner = trip.chain(note=trip.node("note"))
    outer = trip.chain(inner=inner.compile(checkpointer=True), ask=trip.asking("city?"))
    graph = outer.compile(checkpointer=trip.saver)
    await graph.ainvoke({"words": []}, CONFIG)
    first = await trip.head()
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    await graph.ainvoke({"words": []}, CONFIG)
    before = await trip.lines()
    write = module._write

    async def failing(storage: Any, copy: Any) -> None:
        if copy.namespace == "":
            raise error("down")
        await write(storage, copy)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", failing)
        with pytest.raises(error):
            await rewind(trip.backend, "t", first)
    assert await trip.lines() == before


async def test_a_rewind_without_its_last_subgraph_is_repeated(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = trip.chain(look=trip.node("look"), ask=trip.asking("city?"))
    outer = trip.chain(inner=inner.compile(checkpointer=True), end=trip.node("end"))
    graph = outer.compile(checkpointer=trip.saver)
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    await graph.ainvoke(Command(resume="Bern"), CONFIG)
    write = module._write

    async def failing(storage: Any, copy: Any) -> None:
        if copy.namespace == "inner":
            raise BackendError("down")
        await write(storage, copy)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", failing)
        with pytest.raises(
            BackendError, match=r"not the subgraph 'inner': down\. Repeat the rewind"
        ):
            await rewind(trip.backend, "t", stopped)
    await rewind(trip.backend, "t", stopped)
    done = await graph.ainvoke(Command(resume="Basel"), CONFIG)
    assert done["words"] == ["look", "Basel", "end"]


async def test_a_cancelled_rewind_is_whole(trip: Trip) -> None:
    graph = _deep(trip)
    await graph.ainvoke({"words": []}, CONFIG)
    before, head = await trip.lines(), await trip.head()
    whole = asyncio.ensure_future(rewind(trip.backend, "t", head))
    for _ in range(3):
        await asyncio.sleep(0)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    after = await trip.lines()
    assert after == before or len(after[""]) == len(before[""]) + 1


async def test_the_interrupt_of_a_named_function_is_pending_again(trip: Trip) -> None:
    @task
    async def ask(city: str) -> str:
        return str(interrupt(f"{city}?"))

    @entrypoint(checkpointer=trip.saver)
    async def travel(city: str) -> str:
        return await ask(city)

    await travel.ainvoke("Bern", CONFIG)
    await rewind(trip.backend, "t", await trip.head(), names=["ask"])
    (pending,) = (await travel.aget_state(CONFIG)).interrupts
    assert pending.value == "Bern?"
    assert await travel.ainvoke(Command(resume={pending.id: "yes"}), CONFIG) == "yes"


# --- others


async def test_of_a_failed_task_only_the_error_handler_runs_again_as_in_any_resume(
    trip: Trip,
) -> None:

    def fail(_: State) -> Any:
        trip.log.append("fail")
        raise ZeroDivisionError

    builder = trip.chain(ask=trip.asking("city?"))
    builder.add_node("fail", fail, error_handler=trip.node("handled"))
    builder.add_edge(START, "fail")
    graph = builder.compile(checkpointer=trip.saver)
    await graph.ainvoke({"words": []}, CONFIG)
    stopped = await trip.head()
    assert trip.ran() == ["fail", "handled"]
    for answer in ("Bern", "Basel"):
        await rewind(trip.backend, "t", stopped)
        done = await graph.ainvoke(Command(resume=answer), CONFIG)
        assert sorted(trip.ran()) == sorted(done["words"]) == [answer, "handled"]


async def test_a_cached_task_needs_no_new_id(trip: Trip) -> None:
    builder = trip.chain(ask=trip.asking("city?"))
    builder.add_node("look", trip.node("look"), cache_policy=CachePolicy())
    builder.add_edge(START, "look")
    graph = builder.compile(checkpointer=trip.saver, cache=InMemoryCache())
    await graph.ainvoke({"words": []}, CONFIG)
    [_, *_, started] = [it async for it in graph.aget_state_history(CONFIG)]
    await rewind(trip.backend, "t", started.config["configurable"]["checkpoint_id"])
    await graph.ainvoke(None, CONFIG)
    assert trip.ran() == ["look"]
