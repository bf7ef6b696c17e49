"""The blocking facade, as code without an event loop uses it; see tests/contracts too."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from locus_store import (
    AgentState,
    ConflictError,
    InvalidArgumentError,
    MemoryCheckpointer,
    Message,
    StorageBackendAdapter,
    sqlite_checkpointer,
)
from locus_store.blocking import (
    BlockingCheckpointer,
    BlockingMessageLog,
    BlockingStore,
    BlockingThread,
    open_checkpointer,
)
from locus_store.checkpointer import CheckpointerThread
from locus_store.runtime import loops, stepping
from locus_store.runtime.portals import Portals

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkpointer():
    with BlockingCheckpointer(MemoryCheckpointer(state_type=dict)) as opened:
        yield opened


def test_a_conversation_without_an_event_loop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'checkpoints.db'}"
    with open_checkpointer(url) as checkpointer:
        saved = checkpointer.save(AgentState(messages=(Message.user("hello"),)), "t")
    with open_checkpointer(url) as checkpointer:
        state = checkpointer.load("t")
        checkpointer.save(state.with_message(Message.assistant("hi")), "t")
        assert [it.content for it in checkpointer.load("t").messages] == ["hello", "hi"]
        assert len(checkpointer.load("t", saved).messages) == 1


def test_it_has_every_method_with_the_same_signature() -> None:
    for name, method in inspect.getmembers(StorageBackendAdapter, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            blocking = getattr(BlockingCheckpointer, name)
            assert inspect.signature(blocking).parameters == inspect.signature(method).parameters


@pytest.mark.parametrize("facade", [BlockingCheckpointer, BlockingStore, BlockingMessageLog])
def test_every_method_is_documented(facade) -> None:
    for name, method in inspect.getmembers(facade, inspect.isfunction):
        assert name.startswith("_") or method.__doc__, name


@pytest.mark.parametrize(
    ("checkpointers", "threads"),
    [(StorageBackendAdapter, CheckpointerThread), (BlockingCheckpointer, BlockingThread)],
)
def test_a_handle_has_every_method_that_takes_a_thread_id(checkpointers, threads) -> None:
    methods = inspect.getmembers(checkpointers, inspect.isfunction)
    signatures = {name: inspect.signature(it).parameters for name, it in methods if name[0] != "_"}
    signatures.pop("for_thread")
    bound = {
        name: [it for it in parameters if it != "thread_id"]
        for name, parameters in signatures.items()
        if "thread_id" in parameters
    }
    handles = {name: it for name, it in vars(threads).items() if inspect.isfunction(it)}
    assert {name: [*inspect.signature(it).parameters] for name, it in handles.items()} == bound
    assert all(handles[name].__doc__ for name in bound)


def test_a_handle_of_one_thread_blocks(checkpointer: BlockingCheckpointer) -> None:
    thread = checkpointer.for_thread("t")
    with thread.turn() as turn:
        thread.save({"n": 1}, "v1", on_conflict="branch")
        assert thread.busy().number == turn.number
    assert checkpointer.load("t") == thread.load("v1") == {"n": 1}
    assert thread.effect("paid", lambda key: key) == thread.effects()[0].result
    assert thread.delete() is True
    with pytest.raises(AttributeError, match="'BlockingThread' object has no attribute 'search'"):
        thread.search("hello")
    with pytest.raises(InvalidArgumentError, match="thread_id must have 1 to 255 characters"):
        checkpointer.for_thread("")


def test_it_declares_what_its_checkpointer_does(checkpointer: BlockingCheckpointer) -> None:
    assert checkpointer.capabilities == MemoryCheckpointer().capabilities


class Waiting(MemoryCheckpointer):
    """Waits for more than its own work, and so needs an event loop."""

    async def load(self, *args, **kwargs):
        await asyncio.sleep(0.001)
        return await super().load(*args, **kwargs)


def test_close_ends_its_thread_and_it_may_be_used_again(begun_threads) -> None:
    checkpointer = BlockingCheckpointer(Waiting(state_type=dict))
    for n in range(3):
        checkpointer.save({"n": n}, "t", on_conflict="overwrite")
        assert checkpointer.load("t") == {"n": n}
        assert begun_threads()
        checkpointer.close()
        checkpointer.close()
        assert not begun_threads()


def test_it_begins_no_thread_where_no_event_loop_is_needed(tmp_path: Path, begun_threads) -> None:
    checkpointer = BlockingCheckpointer(sqlite_checkpointer(tmp_path / "a.db", state_type=dict))
    for n in range(3):
        checkpointer.save({"n": n}, "t")
        assert checkpointer.load("t") == {"n": n}
        assert not begun_threads()
        checkpointer.close()
        checkpointer.close()
    assert checkpointer.load("t") == {"n": 2}
    checkpointer.close()


def test_a_close_before_any_use_is_nothing(begun_threads) -> None:
    BlockingCheckpointer(MemoryCheckpointer()).close()
    assert not begun_threads()


def test_many_threads_may_use_it_at_once(checkpointer: BlockingCheckpointer) -> None:
    def talk(name: str) -> list[int]:
        for n in range(10):
            state = checkpointer.load(name) or {"n": []}
            state["n"] = [*state["n"], n]
            checkpointer.save(state, name)
        return checkpointer.load(name)["n"]

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(talk, [f"t{n}" for n in range(16)]))
    assert told == [list(range(10))] * 16


def test_of_racing_threads_exactly_one_wins(checkpointer: BlockingCheckpointer) -> None:
    checkpointer.save({"n": 0}, "t")
    loaded = threading.Barrier(4)

    def turn(n: int) -> str:
        state = checkpointer.load("t")
        state["n"] = n
        loaded.wait()
        try:
            return checkpointer.save(state, "t")
        except ConflictError:
            return "told"

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(turn, range(1, 5))).count("told") == 3
    assert len(checkpointer.list_checkpoints("t")) == 2


def test_a_thread_without_marks_is_remembered_by_its_caller() -> None:
    """A state with no room for a mark: the facade carries the load for the calling thread."""

    class Plain:
        def __init__(self, n: int) -> None:
            self.n = n

        def to_checkpoint(self):
            return {"n": self.n}

        @classmethod
        def from_checkpoint(cls, data):
            return cls(data["n"])

    inner = MemoryCheckpointer(state_type=Plain)
    with BlockingCheckpointer(inner) as mine, BlockingCheckpointer(inner) as theirs:
        mine.save(Plain(0), "t")
        assert mine.load("t").n == 0
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: (theirs.load("t"), theirs.save(Plain(1), "t"))).result()
        with pytest.raises(ConflictError):
            mine.save(Plain(2), "t")


def test_errors_come_as_they_are(checkpointer: BlockingCheckpointer) -> None:
    with pytest.raises(TypeError):
        checkpointer.save({}, "t", colour="red")
    with pytest.raises(ValueError, match="thread_id"):
        checkpointer.load("")


# --- calls in a running loop


class Home(loops.LoopResources):
    async def _release(self) -> None:
        pass


def test_a_call_that_waits_for_the_loop_it_stopped_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(stepping, "PATIENCE_SECONDS", 0.01)
    portals = Portals()

    async def main() -> None:
        done = threading.Event()
        released = Home().spawn(_set(done))
        with pytest.raises(RuntimeError, match="a sync method of Saver waited"):
            portals.run("Saver", asyncio.to_thread, done.wait, 60)
        await released

    async def _set(event: threading.Event) -> None:
        event.set()

    asyncio.run(main())
    portals.close()


def test_a_long_call_in_a_loop_without_other_work_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(stepping, "PATIENCE_SECONDS", 0)
    portals = Portals()

    async def main() -> str:
        return portals.run("Saver", asyncio.sleep, 0.01, "done")

    assert asyncio.run(main()) == "done"
    portals.close()


def test_a_call_on_the_portals_own_loop_is_refused() -> None:
    portals = Portals()

    async def inner() -> None:
        portals.run("Saver", asyncio.sleep, 0)

    with pytest.raises(RuntimeError, match="call its async method"):
        portals.run("Saver", inner)
    portals.close()
