"""Agent Framework's checkpoint storage beside the framework's own ones, and with its workflows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntFlag
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from lazily import TESTS_RUN, Later
from log_urls import EACH, url_of
from pydantic import BaseModel

from locus_store import (
    IntegrityError,
    NotFoundError,
    SerializationError,
    UnsupportedError,
    open_checkpointer,
)
from locus_store.testing.kit import HOSTILE_IDS
from locus_store.timeline.readable import find_differences

if TESTS_RUN:
    import approval_workflow
    from agent_framework import (
        Content,
        FileCheckpointStorage,
        InMemoryCheckpointStorage,
        Message,
        WorkflowCheckpoint,
        WorkflowEvent,
        register_checkpoint_type,
    )
    from agent_framework._workflows._runner_context import WorkflowMessage
    from agent_framework.exceptions import WorkflowCheckpointException
    from approval_workflow import Order, workflow

    from locus_store.adapters.agent_framework import (
        CheckpointIntegrityError,
        CheckpointNotFoundError,
        CheckpointSerializationError,
        LocusCheckpointStorage,
    )
    from locus_store.backends import FileBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio
THEIRS = ("InMemoryCheckpointStorage", "FileCheckpointStorage")


class Colour(Enum):
    RED = "red"


class Bits(IntFlag):
    ONE = 1
    TWO = 2


class Offer(BaseModel):
    """A model of the application."""

    price: Decimal
    parts: list[str] = []


@dataclass
class Box:
    """A dataclass of the application whose constructor does something."""

    held: Any = None
    notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made.append(self)


made: list[Box] = []


class Named:
    """A class with the framework's two methods."""

    def __init__(self, name: str) -> None:
        self.name = name

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Named:
        return cls(data["name"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    __hash__ = None


class Other:
    """A class that cannot be stored."""


class Rows(list[Any]):
    """A list of the application."""


if TESTS_RUN:
    ALLOWED = [Bits, Box, Colour, Named, Offer, Order]

    GENERIC = (list[str], str | None, dict[str, list[Order]])
    """Types of an answer that ``FileCheckpointStorage`` refuses to load."""

    VALUES = [
        (1, "a", (None,)),
        {"b": 1, "a": {"d": 2, "c": 3}},
        {1, "a", (2, 3)},
        frozenset({b"a"}),
        bytearray(b"x"),
        b"\x00\xff",
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))),
        datetime(2026, 1, 2),  # noqa: DTZ001  (without a zone)
        date(2026, 1, 2),
        time(1, 2, 3),
        timedelta(days=-1, microseconds=5),
        Decimal("1.10"),
        UUID(int=5),
        float("inf"),
        2**70,
        Colour.RED,
        Named("x"),
        Offer(price=Decimal("2.5"), parts=["a"]),
        [Order("ticket", ("a", "b"))],
        deque([1, (2,)]),
        Message(role="user", contents=["hi", Content.from_function_result("c", result="1")]),
        WorkflowCheckpoint(workflow_name="inner", graph_signature_hash="h", checkpoint_id="c"),
        WorkflowMessage(data=Order("x"), source_id="a", target_id="b"),
    ]


def same_form(value: Any) -> Any:
    """Return what two equal values have in common: the framework's messages compare by identity."""
    return value.to_dict() if isinstance(value, Message) else value


@pytest.fixture(params=EACH)
async def storage(request: Any, tmp_path: Path) -> AsyncIterator[LocusCheckpointStorage]:
    url = url_of(request.param, request, tmp_path)
    async with LocusCheckpointStorage.from_url(url, allowed=ALLOWED) as opened:
        yield opened


@pytest.fixture(params=(*EACH, *THEIRS))
async def either(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """Our storage, and the framework's own ones."""
    if request.param == "InMemoryCheckpointStorage":
        yield InMemoryCheckpointStorage()
    elif request.param == "FileCheckpointStorage":
        names = [f"{it.__module__}:{it.__qualname__}" for it in ALLOWED]
        yield FileCheckpointStorage(tmp_path, allowed_checkpoint_types=names)
    else:
        url = url_of(request.param, request, tmp_path)
        async with LocusCheckpointStorage.from_url(url, allowed=ALLOWED) as opened:
            yield opened


def checkpoint(name: str = "w", **values: Any) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(workflow_name=name, graph_signature_hash="h", **values)


def chain(count: int, **values: Any) -> list[WorkflowCheckpoint]:
    """Return checkpoints that each continue the one before."""
    found: list[WorkflowCheckpoint] = []
    for n in range(count):
        previous = found[-1].checkpoint_id if found else None
        when = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n)).isoformat()
        found.append(checkpoint(timestamp=when, previous_checkpoint_id=previous, **values))
    return found


class TestStorages:
    """Promises of a storage: ours and the framework's keep them."""

    async def test_a_checkpoint_comes_back(self, either: Any) -> None:
        saved = checkpoint(
            state={"n": 1, "text": "ß%_'"}, iteration_count=3, metadata={"a": [None]}
        )
        assert await either.save(saved) == saved.checkpoint_id
        assert await either.load(saved.checkpoint_id) == saved
        assert await either.list_checkpoints(workflow_name="w") == [saved]
        assert await either.get_latest(workflow_name="w") == saved

    async def test_absence_is_an_error_or_nothing(self, either: Any) -> None:
        with pytest.raises(WorkflowCheckpointException):
            await either.load("none")
        assert await either.delete("none") is False
        assert await either.list_checkpoints(workflow_name="w") == []
        assert await either.list_checkpoint_ids(workflow_name="w") == []
        assert await either.get_latest(workflow_name="w") is None

    async def test_a_chain_comes_back_with_its_lineage(self, either: Any) -> None:
        saved = chain(5)
        for it in saved:
            await either.save(it)
        found = await either.list_checkpoints(workflow_name="w")
        assert {it.checkpoint_id: it.previous_checkpoint_id for it in found} == {
            it.checkpoint_id: it.previous_checkpoint_id for it in saved
        }
        ids = await either.list_checkpoint_ids(workflow_name="w")
        assert sorted(ids) == sorted(it.checkpoint_id for it in saved)

    async def test_the_latest_is_by_time_and_not_by_iteration(self, either: Any) -> None:
        saved = chain(3, iteration_count=4)
        saved[0] = replace(saved[0], iteration_count=99)
        for it in (saved[1], saved[2], saved[0]):
            await either.save(it)
        assert await either.get_latest(workflow_name="w") == saved[2]

    async def test_workflows_are_kept_apart(self, either: Any) -> None:
        names = sorted({it for it in HOSTILE_IDS if len(it) < 200})[:12]
        saved = [checkpoint(it) for it in names]
        for it in saved:
            await either.save(it)
        for it in saved:
            assert await either.list_checkpoints(workflow_name=it.workflow_name) == [it]
            assert await either.get_latest(workflow_name=it.workflow_name) == it

    async def test_a_renamed_workflow_continues_a_checkpoint(self, either: Any) -> None:
        first = checkpoint("old")
        renamed = replace(checkpoint("new"), previous_checkpoint_id=first.checkpoint_id)
        for it in (first, renamed):
            await either.save(it)
            assert await either.get_latest(workflow_name=it.workflow_name) == it

    async def test_a_deleted_checkpoint_leaves_the_others(self, either: Any) -> None:
        saved = chain(3)
        for it in saved:
            await either.save(it)
        assert await either.delete(saved[1].checkpoint_id) is True
        assert await either.delete(saved[1].checkpoint_id) is False
        with pytest.raises(WorkflowCheckpointException):
            await either.load(saved[1].checkpoint_id)
        assert await either.load(saved[2].checkpoint_id) == saved[2]
        later = checkpoint(previous_checkpoint_id=saved[1].checkpoint_id)
        await either.save(later)
        assert await either.get_latest(workflow_name="w") == later
        for it in (saved[0], saved[2], later):
            assert await either.delete(it.checkpoint_id) is True
        assert await either.list_checkpoint_ids(workflow_name="w") == []

    async def test_a_checkpoint_that_is_saved_again_is_replaced(self, either: Any) -> None:
        first = checkpoint(state={"n": 1})
        await either.save(first)
        await either.save(replace(first, state={"n": 2}))
        await either.save(replace(first, state={"n": 2}))
        assert (await either.load(first.checkpoint_id)).state == {"n": 2}
        assert await either.list_checkpoint_ids(workflow_name="w") == [first.checkpoint_id]

    async def test_values_are_copies(self, either: Any) -> None:
        saved = checkpoint(state={"list": [1]})
        await either.save(saved)
        saved.state["list"].append(2)
        found = await either.load(saved.checkpoint_id)
        assert found.state == {"list": [1]}
        found.state["list"].append(3)
        assert (await either.load(saved.checkpoint_id)).state == {"list": [1]}

    async def test_lineages_of_one_workflow_run_at_once(self, either: Any) -> None:
        async def run(n: int) -> list[WorkflowCheckpoint]:
            saved = chain(4, state={"run": n})
            for it in saved:
                await either.save(it)
            return saved

        runs = await asyncio.gather(*map(run, range(6)))
        for it in (it for saved in runs for it in saved):
            assert await either.load(it.checkpoint_id) == it
        assert len(await either.list_checkpoint_ids(workflow_name="w")) == 24

    async def test_reserved_keys_are_keys(self, either: Any) -> None:
        state = {"$": "dict", "v": 1, "__pickled__": "x", "__type__": "y", "z": {"$": [], "_$": 2}}
        saved = checkpoint(state=state)
        await either.save(saved)
        assert (await either.load(saved.checkpoint_id)).state == state

    async def test_values_come_back(self, either: Any) -> None:
        for n, value in enumerate(VALUES):
            saved = checkpoint(
                state={"value": value}, messages={"a": [WorkflowMessage(value, "a")]}
            )
            await either.save(saved)
            found = await either.load(saved.checkpoint_id)
            for it in (found.state["value"], found.messages["a"][0].data):
                assert (n, type(it)) == (n, type(value))
                assert same_form(it) == same_form(value)

    async def test_a_pending_request_comes_back(self, either: Any) -> None:
        for kind in (str, Order, *(() if isinstance(either, FileCheckpointStorage) else GENERIC)):
            event = WorkflowEvent.request_info("r", "desk", Order("x"), kind)
            saved = checkpoint(
                pending_request_info_events={"r": event},
                messages={"a": [WorkflowMessage(True, "a", original_request_info_event=event)]},
            )
            await either.save(saved)
            found = await either.load(saved.checkpoint_id)
            for it in (
                found.pending_request_info_events["r"],
                found.messages["a"][0].original_request_info_event,
            ):
                assert (it.request_id, it.source_executor_id) == ("r", "desk")
                assert (it.request_type, it.response_type, it.data) == (Order, kind, Order("x"))

    async def test_what_files_do_not_keep_comes_back(self, either: Any) -> None:
        """``FileCheckpointStorage`` makes keys strings and flags numbers."""
        keyed, flags = {1: "a", (2, "x"): b"b"}, Bits.ONE | Bits.TWO
        saved = checkpoint(state={"keyed": keyed, "flags": flags})
        await either.save(saved)
        found = (await either.load(saved.checkpoint_id)).state
        is_exact = found["keyed"] == keyed and type(found["flags"]) is Bits
        assert is_exact is not isinstance(either, FileCheckpointStorage)

    async def test_the_order_of_keys_stays(self, either: Any) -> None:
        messages = {it: [WorkflowMessage(it, it)] for it in "zab"}
        saved = checkpoint(messages=messages)
        await either.save(saved)
        assert list((await either.load(saved.checkpoint_id)).messages) == [*"zab"]

    async def test_a_workflow_continues_after_a_restart(self, either: Any) -> None:
        paused = await workflow(either).run("ticket")
        assert [it.request_id for it in paused.get_request_info_events()] == ["r1"]
        latest = await either.get_latest(workflow_name="orders")
        assert latest.state["order"] == Order("ticket", ("new", "checked"))
        for answer in (True, False):  # twice from one checkpoint
            result = await workflow(either).run(
                responses={"r1": answer}, checkpoint_id=latest.checkpoint_id
            )
            assert result.get_outputs() == [f"ticket ('new', 'checked') {answer} 1"]
        found = await either.list_checkpoints(workflow_name="orders")
        known = {it.checkpoint_id for it in found}
        assert all(it.previous_checkpoint_id in known | {None} for it in found)


# --- ours alone


@pytest.mark.full
async def test_another_process_continues_a_workflow(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with LocusCheckpointStorage.from_url(url, allowed=[Order]) as storage:
        await workflow(storage).run("ticket")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "approval_workflow", url],
        check=True,
        cwd=Path(approval_workflow.__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "ticket ('new', 'checked') True 1\n"


async def test_checkpoints_are_versions_of_a_thread(storage: LocusCheckpointStorage) -> None:
    saved = [replace(it, state={"n": n}) for n, it in enumerate(chain(3))]
    fork = checkpoint(previous_checkpoint_id=saved[0].checkpoint_id)
    for it in (*saved, fork):
        await storage.save(it)
    backend, thread_id = storage.checkpointer.backend, f"w/{saved[0].checkpoint_id}"
    versions = await backend.history(thread_id)
    assert [(it.checkpoint_id, it.parent_id) for it in reversed(versions)] == [
        (it.checkpoint_id, it.previous_checkpoint_id) for it in (*saved, fork)
    ]
    old, new = [await backend.load(thread_id, it.checkpoint_id) for it in saved[:2]]
    assert ("state", "n") in [it.path for it in find_differences(old, new)]
    assert await storage.checkpointer.list_threads() == [thread_id]
    assert await storage.checkpointer.vacuum(1) == 0
    assert await storage.load(fork.checkpoint_id) == fork


async def test_each_run_is_a_thread_and_another_process_continues_it(
    storage: LocusCheckpointStorage,
) -> None:
    runs = [chain(2, state={"run": n}) for n in range(3)]
    for saved in zip(*runs, strict=True):  # the runs take turns
        for it in saved:
            await storage.save(it)
    fresh = LocusCheckpointStorage(storage.checkpointer)
    later = checkpoint(previous_checkpoint_id=runs[1][-1].checkpoint_id)
    await fresh.save(later)
    threads = [f"w/{first.checkpoint_id}" for first, _ in runs]
    assert sorted(await storage.checkpointer.list_threads()) == sorted(threads)
    found = [await storage.checkpointer.backend.history(it) for it in threads]
    assert [len(it) for it in found] == [2, 3, 2]
    ids = await storage.list_checkpoint_ids(workflow_name="w")
    assert ids == [it.checkpoint_id for saved in zip(*runs, strict=True) for it in saved] + [
        later.checkpoint_id
    ]
    assert await storage.checkpointer.backend.delete(threads[1]) is True
    assert len(await storage.list_checkpoints(workflow_name="w")) == 4


async def test_checkpoints_are_copied_in_any_order_and_twice(
    storage: LocusCheckpointStorage,
) -> None:
    saved = chain(4)
    for _ in range(2):
        fresh = LocusCheckpointStorage(storage.checkpointer)
        for it in reversed(saved):
            await fresh.save(it)
    found = await storage.list_checkpoint_ids(workflow_name="w")
    assert sorted(found) == sorted(it.checkpoint_id for it in saved)
    assert len(await storage.list_checkpoints(workflow_name="w")) == 4
    assert await storage.get_latest(workflow_name="w") == saved[-1]
    for it in saved:
        assert await storage.delete(it.checkpoint_id) is True
    assert await storage.list_checkpoint_ids(workflow_name="w") == []
    assert await storage.checkpointer.list_threads() == []


async def test_the_latest_is_found_behind_older_ones_that_were_copied(
    storage: LocusCheckpointStorage,
) -> None:
    latest = checkpoint(timestamp=datetime(2026, 2, 1, tzinfo=UTC).isoformat())
    await storage.save(latest)
    for _ in range(12):
        await storage.save(chain(1)[0])
    for it in chain(12):
        await storage.save(it)
    await storage.save(checkpoint("w2"))
    assert await storage.get_latest(workflow_name="w") == latest


async def test_the_latest_is_found_without_a_read_of_every_version(
    storage: LocusCheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        last = None
        for _ in range(12):
            saved = checkpoint(previous_checkpoint_id=last)
            last = await storage.save(saved)
    backend, read = storage.checkpointer.backend, 0
    history = backend.history

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal read
        found = await history(*args, **options)
        read += len(found)
        return found

    monkeypatch.setattr(backend, "history", counted)
    assert await storage.get_latest(workflow_name="w") == saved
    assert read <= 20


async def test_a_checkpoint_is_found_by_its_id_alone(storage: LocusCheckpointStorage) -> None:
    saved = [checkpoint(it) for it in ("a", "b", "c")]
    for it in saved:
        await storage.save(it)
    fresh = LocusCheckpointStorage(storage.checkpointer)
    assert await fresh.load(saved[1].checkpoint_id) == saved[1]
    assert await fresh.delete(saved[1].checkpoint_id) is True
    for it in (storage, fresh):
        with pytest.raises(CheckpointNotFoundError):
            await it.load(saved[1].checkpoint_id)


async def test_of_many_checkpoints_so_many_are_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with LocusCheckpointStorage.from_url(url, keep_last=2) as storage:
        saved = chain(5)
        for it in saved:
            await storage.save(it)
        assert await storage.list_checkpoints(workflow_name="w") == saved[3:]
        paused = saved[3:]
        for _ in range(3):  # other runs remove none of this one
            for it in chain(3):
                await storage.save(it)
        found = await storage.list_checkpoints(workflow_name="w")
        assert (found[:2], len(found)) == (paused, 8)


async def test_an_object_that_cannot_be_stored_is_refused(storage: LocusCheckpointStorage) -> None:
    for value in (Other(), [Other], lambda: None, {"deep": [{1: Other()}]}, Box(Other())):
        with pytest.raises(
            CheckpointSerializationError, match=r"checkpoint\.state\.value"
        ) as caught:
            await storage.save(checkpoint(state={"value": value}))
        assert isinstance(caught.value, WorkflowCheckpointException)
        assert isinstance(caught.value, SerializationError)
    assert await storage.list_checkpoint_ids(workflow_name="w") == []
    assert not await storage.checkpointer.exists("w")


async def test_a_class_is_stored_where_it_is_allowed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with LocusCheckpointStorage.from_url(url) as strict:
        with pytest.raises(CheckpointSerializationError, match="allowed="):
            await strict.save(checkpoint(state={"order": Order("x")}))
        register_checkpoint_type(Colour)
        saved = checkpoint(state={"colour": Colour.RED})
        await strict.save(saved)
        assert await strict.load(saved.checkpoint_id) == saved
        async with LocusCheckpointStorage.from_url(url, allowed=[Order]) as other:
            await other.save(later := checkpoint(state={"order": Order("x")}))
        with pytest.raises(CheckpointIntegrityError, match="allowed=") as caught:
            await strict.load(later.checkpoint_id)
        assert isinstance(caught.value, WorkflowCheckpointException)
        assert isinstance(caught.value, IntegrityError)


async def test_no_constructor_runs_on_what_is_stored(storage: LocusCheckpointStorage) -> None:
    saved = checkpoint(state={"box": Box(1)})
    await storage.save(saved)
    made.clear()
    found = await storage.load(saved.checkpoint_id)
    assert (found.state["box"].held, made) == (1, [])


FORGED = [
    {"$": "x", "c": 100, "v": ["object", "antigravity:x", {}]},
    {"$": "x", "c": 100, "v": ["object", "os:system", "true"]},
    {"$": "x", "c": 100, "v": ["object", "subprocess:Popen", {"args": "true"}]},
    {"$": "x", "c": 100, "v": ["object", "agent_framework:FileCheckpointStorage", {}]},
    {"$": "x", "c": 100, "v": ["object", "agent_framework._tools:FunctionTool", {"name": "x"}]},
    {"$": "x", "c": 100, "v": ["object", "agent_framework._mcp:MCPStdioTool", {"command": "true"}]},
    {"$": "x", "c": 100, "v": ["object", ["agent_framework"], {}]},
    {"$": "x", "c": 100, "v": ["class", "os:system"]},
    {"$": "x", "c": 100, "v": ["alias", {"$": "x", "c": 100, "v": ["class", "os:system"]}]},
    {"$": "x", "c": 100, "v": ["event", {"type": "request_info"}]},
    {"$": "b", "v": "not base64"},
    {"$": "x", "c": 100, "v": ["datetime", 5]},
    {"$": "x", "c": 100, "v": ["set", [[]]]},
    {"$": "d", "k": ["a"], "v": {}},
    {"$": "m", "v": [[1]]},
    {"$": "x", "c": 100, "v": ["int", "9" * 5000]},
    {"$": "x", "c": 100, "v": ["none", 1]},
    {"$": "x", "c": 100, "v": []},
    {"$": "x", "c": 5, "v": ["int", "9"]},
    {"$": "x", "c": 100, "b": "zG94"},
    {"$": "none"},
    {"$": {}, "v": 1},
    {"__pickled__": "gASVHwAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAR0cnVllIWUUpQu", "$": 1},
]
"""Values that a hostile writer may store."""


async def test_hostile_rows_are_errors_and_import_nothing(tmp_path: Path) -> None:
    async with LocusCheckpointStorage.from_url(f"sqlite:///{tmp_path / 'a.db'}") as storage:
        saved = checkpoint(state={"value": 1})
        await storage.save(saved)
        backend, named = storage.checkpointer.backend, saved.checkpoint_id
        (version,) = await backend.history(thread := f"w/{named}")
        state = await backend.load(thread)
        for forged in FORGED:
            forgery = {**state, "state": {"value": forged}}
            await backend.write_state(
                thread, forgery, checkpoint_id=named, metadata=version.metadata
            )
            before = set(sys.modules)
            for call in (
                storage.load(named),
                storage.list_checkpoints(workflow_name="w"),
                storage.get_latest(workflow_name="w"),
            ):
                with pytest.raises(CheckpointIntegrityError):
                    await call
            new = {it for it in set(sys.modules) - before if not it.startswith("locus_store")}
            assert new == set()


async def test_versions_of_other_software_are_no_checkpoints(
    storage: LocusCheckpointStorage,
) -> None:
    for thread_id in ("w", "w/a", "w/b"):
        await storage.checkpointer.backend.save(thread_id, {"a": 1})
    assert await storage.list_checkpoints(workflow_name="w") == []
    assert await storage.get_latest(workflow_name="w") is None
    await storage.save(saved := checkpoint())
    assert await storage.list_checkpoints(workflow_name="w") == [saved]


async def test_errors_are_of_both_kinds(storage: LocusCheckpointStorage) -> None:
    with pytest.raises(CheckpointNotFoundError) as caught:
        await storage.load("none")
    assert isinstance(caught.value, WorkflowCheckpointException)
    assert isinstance(caught.value, NotFoundError)


async def test_a_storage_over_what_is_open_leaves_it_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_checkpointer(url) as checkpointer:
        async with LocusCheckpointStorage(checkpointer) as storage:
            await storage.save(saved := checkpoint())
        assert await storage.for_tenant("acme").list_checkpoint_ids(workflow_name="w") == []
        assert await LocusCheckpointStorage(checkpointer.backend).load(saved.checkpoint_id) == saved

    with pytest.raises(UnsupportedError):
        LocusCheckpointStorage(FileBackend(tmp_path / "files")).for_tenant("acme")


async def test_checkpoints_are_found_by_the_user_of_the_storage(
    storage: LocusCheckpointStorage,
) -> None:
    mine = LocusCheckpointStorage(storage.checkpointer, user_id="u")
    await mine.save(checkpoint("w"))
    await storage.save(checkpoint("x"))
    backend: Any = storage.checkpointer.backend
    found = await backend.threads_of("u")
    assert found
    assert (await backend.forget_user("u"))["threads"] == len(found)
    assert await mine.list_checkpoints(workflow_name="w") == []
    assert len(await storage.list_checkpoints(workflow_name="x")) == 1


KEPT = [
    defaultdict(list, a=[1]), Counter("aab"), OrderedDict(b=1, a=2), deque([1, 2, 3], maxlen=3),
    1 + 2j, range(1, 9, 2), datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Oslo"), fold=1),
    {"cut": "a\ud83d", "\ude00": 1},
    Later(lambda: Rows([1, Order("x")])), {date(2026, 1, 1): 1, "2026-01-01": 2},
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=lambda it: ascii(it)[:30])
async def test_containers_zones_and_cut_strings_come_back(tmp_path: Path, value: Any) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with LocusCheckpointStorage.from_url(url, allowed=[*ALLOWED, Rows]) as storage:
        saved = checkpoint(state={"value": value})
        await storage.save(saved)
        found = (await storage.load(saved.checkpoint_id)).state["value"]
    assert (type(found), repr(found)) == (type(value), repr(value))
    assert getattr(found, "default_factory", None) is getattr(value, "default_factory", None)


async def test_the_path_of_a_refusal_passes_through_forms(storage: LocusCheckpointStorage) -> None:
    value = [defaultdict(list, {(1, 2): {"b": 1, "a": [deque([Other()])]}})]
    with pytest.raises(CheckpointSerializationError, match=r"value\[0\]\[\(1, 2\)\]\.a\[0\]\[0\]"):
        await storage.save(checkpoint(state={"value": value}))
