"""The contract of a storage backend below the adapter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from locus_store.backends.memory.backend import MemoryBackend
from locus_store.errors import (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    SerializationError,
)
from locus_store.saver import CheckpointSaver
from locus_store.testing.existing import Existence, MustExist, make_older, rewrite
from locus_store.testing.history import Tails
from locus_store.testing.kit import (
    HOSTILE_IDS,
    INVALID_IDS,
    NUMBERS,
    TEXTS,
    exact,
    expect,
    expect_invalid,
    limit_backend,
    refused,
    requires,
)
from locus_store.testing.states import LARGE, LIMIT
from locus_store.testing.steps import (
    BackendKit,
    FramedWrites,
    Needed,
    Parents,
    PendingWrites,
    Reading,
    find_problems,
    list_versions,
)
from locus_store.testing.thread_info import Forgetting, LocusSpellings, ThreadInfoRules
from locus_store.testing.version_lists import Recency, VersionLists
from locus_store.types import Expected, PendingWrite, Vacuumed
from locus_store.types.marks import MARK_KEY
from locus_store.types.state import AgentState
from locus_store.values import frames
from locus_store.versions import JSON_WRITE


@requires("branching")
class WholeThreads(BackendKit):
    """``scan``, ``read_thread``, ``write_thread``, ``forget_user``."""

    async def grow(self, backend: Any, thread_id: str = "t") -> dict[tuple[str, str], Any]:
        """Create a thread with forks, namespaces, hidden versions and writes; return its states."""
        said = [f"text {n}" for n in range(12)]
        states: dict[tuple[str, str], Any] = {}
        for n in range(12):
            name, data = f"v{n}", {"said": said[: n + 1], "n": n}
            await backend.write_state(
                thread_id, data, checkpoint_id=name, metadata={"n": n, "f": 1.0}, labels={"l": [n]}
            )
            states["", name] = data
        states["", "fork"] = {"said": said[:2], "é": None}
        await backend.write_state(
            thread_id, states["", "fork"], checkpoint_id="fork", parent_id="v1"
        )
        for n in range(4):
            await backend.write_state(
                thread_id, {"n": n}, namespace="a:b", checkpoint_id=f"v{n}", keep_last=2
            )
        states |= {("a:b", f"v{n}"): {"n": n} for n in (2, 3)}
        for name, namespace in product(("v3", "later"), ("", "c")):
            write = PendingWrite("a", 0, "c", "t", b"\0" + name.encode(), "path")
            await backend.put_writes(thread_id, name, [write], namespace=namespace)
        return states

    async def take(self, backend: Any) -> Any:
        """Delete the thread, and return it."""
        thread = await backend.read_thread("t")
        assert await backend.delete("t") is True
        return thread

    async def test_a_thread_that_was_read_is_written_as_it_was(self, backend: Any) -> None:
        states = await self.grow(backend)
        before = await backend.history("t", limit=100)
        thread = await self.take(backend)
        assert await backend.read_thread("t") is None
        assert await backend.write_thread(thread) is True
        assert await backend.read_thread("t") == thread
        for (namespace, name), data in states.items():
            found = await backend.read_state("t", name, namespace=namespace)
            assert exact(found.state) == exact(data)
        assert await list_versions(backend, namespace="a:b") == ["v3", "v2"]
        shown, expected = (
            [(it.checkpoint_id, it.parent_id, it.metadata, it.created_at) for it in versions]
            for versions in (await backend.history("t", limit=100), before)
        )
        assert shown == expected

    async def test_another_kind_of_backend_stores_the_same_thread(self, backend: Any) -> None:
        await self.grow(backend)
        memory, thread = MemoryBackend(), await backend.read_thread("t")
        assert await memory.write_thread(thread) is True
        assert await memory.read_thread("t") == thread
        assert await backend.write_thread(replace(thread, thread_id="u")) is True
        assert await backend.read_thread("u") == replace(thread, thread_id="u")

    async def test_a_thread_that_is_there_is_not_written_again(self, backend: Any) -> None:
        await self.grow(backend)
        thread = await backend.read_thread("t")
        assert await backend.write_thread(thread) is False
        await backend.save("t", {"n": "newer"})
        with pytest.raises(ConflictError, match="'t'"):
            await backend.write_thread(thread)
        assert await backend.load("t") == {"n": "newer"}

    async def test_a_thread_that_differs_in_anything_is_a_conflict(self, backend: Any) -> None:
        await self.grow(backend)
        thread = await backend.read_thread("t")
        root, first = thread.lines[0], thread.lines[0].records[0]
        others = (
            replace(root, writes=[]),
            replace(root, records=[replace(first, metadata={}), *root.records[1:]]),
            replace(root, records=[replace(first, checkpoint_id="other"), *root.records[1:]]),
        )
        changes: list[dict[str, Any]] = [{"lines": [it, *thread.lines[1:]]} for it in others]
        changes += [{"user_id": "u"}, {"name": "n"}, {"metadata": {"k": 1}}]
        await expect(ConflictError, changes, lambda it: backend.write_thread(replace(thread, **it)))
        assert await backend.read_thread("t") == thread

    async def test_of_two_that_write_the_same_thread_both_are_content(self, backend: Any) -> None:
        await self.grow(backend)
        thread = await self.take(backend)
        answers = await asyncio.gather(*(backend.write_thread(thread) for _ in range(4)))
        assert sorted(answers) == [False, False, False, True]
        assert await backend.read_thread("t") == thread

    async def test_what_no_backend_gave_is_refused(self, backend: Any) -> None:
        await self.grow(backend)
        thread = await self.take(backend)
        root = thread.lines[0]
        record, write = root.records[-1], root.writes[0]

        def with_root(changes: dict[str, Any]) -> Any:
            lines = [replace(root, **changes), *thread.lines[1:]]
            return backend.write_thread(replace(thread, lines=lines))

        errors: tuple[type[Exception], ...] = (IntegrityError, InvalidArgumentError)
        bad: list[dict[str, Any]] = [
            {"floor": 1000}, {"floor": -1}, {"floor": 1.0}, {"floor": "0"}, {"head": True},
            {"last_sequence": 2**63}, {"last_sequence": 1}, {"last_sequence": 1e300},
            {"records": root.records[::-1]}, {"records": [*root.records, record]}, {"writes": None},
            {"writes": [write, write]}, {"namespace": 1}, {"namespace": "\ud800"},
        ]  # fmt: skip
        await expect(errors, bad, with_root)
        bad = [{"records": [*root.records[:-1], replace(record, **changes)]} for changes in (
            {"sequence": 2**70}, {"sequence": "13"}, {"chain": 0}, {"parent": False},
            {"digest": b""}, {"payload": "text"}, {"metadata": [1]}, {"labels": {1: 2}},
            {"metadata": {"k": float("nan")}}, {"checkpoint_id": ""},
            {"created_at": record.created_at.replace(tzinfo=None)},
            {"created_at": record.created_at.replace(year=1)},
        )]  # fmt: skip
        await expect((*errors, SerializationError), bad, with_root)
        bad = [{"thread_id": ["t"]}, {"user_id": "\0"}, {"lines": [root, root]}]
        await expect(errors, bad, lambda it: backend.write_thread(replace(thread, **it)))
        assert await backend.scan() == []

    async def test_saves_go_on_from_a_thread_that_was_written(self, backend: Any) -> None:
        await self.grow(backend)
        old, thread = await backend.read_state("t"), await self.take(backend)
        await backend.write_thread(thread)
        found = await backend.read_state("t")
        stale = Expected(made_from=old.version.mark, head=old.head)
        with pytest.raises(ConflictError):
            await backend.write_state("t", {"n": "stale"}, expected=stale)
        fresh = Expected(made_from=found.version.mark, head=found.head)
        await backend.write_state("t", {**found.state, "n": 99}, expected=fresh)
        assert await backend.load("t") == {**found.state, "n": 99}
        assert await find_problems(backend) == []

    async def test_a_damaged_thread_is_refused(self, backend: Any) -> None:
        await self.grow(backend)
        thread = await self.take(backend)
        root, last = thread.lines[0], thread.lines[0].records[-1]

        def with_last(changes: dict[str, Any]) -> Any:
            damaged = replace(root, records=[*root.records[:-1], replace(last, **changes)])
            return backend.write_thread(replace(thread, lines=[damaged, *thread.lines[1:]]))

        flipped = last.payload[:-1] + bytes([last.payload[-1] ^ 1])
        bad: list[dict[str, Any]] = [{"payload": flipped}, {"digest": bytes(16)}, {"parent": 77}]
        bad += [{"checkpoint_id": "v1"}, {"sequence": 99}]
        await expect(IntegrityError, bad, with_last)
        assert await backend.scan() == []

    @requires("list_threads")
    async def test_all_threads_are_scanned_in_the_order_of_their_ids(self, backend: Any) -> None:
        ids = sorted(HOSTILE_IDS)
        for name in HOSTILE_IDS:
            await backend.write_state(name, {"n": 1}, namespace="a" if len(name) == 1 else "")
        assert await backend.scan(len(ids) + 1) == ids
        found: list[str] = []
        while page := await backend.scan(7, after=found[-1] if found else None):
            found += page
        assert found == ids
        bad = filter(None, INVALID_IDS)
        await expect_invalid(bad, lambda it: backend.scan(after=it))
        assert await backend.scan(0) == []

    @requires()
    async def test_a_time_to_live_that_is_none_is_refused(self, backend: Any) -> None:
        bad = (0, -1, float("inf"), float("nan"), 1e300, "9", True)
        await expect_invalid(bad, lambda it: backend.write_state("t", {"n": 1}, ttl_seconds=it))
        assert await backend.load("t") is None

    @requires("branching", "ttl")
    async def test_renewing_gives_a_thread_more_time_and_never_less(self, backend: Any) -> None:
        await backend.write_state("t", {"n": 1}, ttl_seconds=60)
        await backend.write_state("forever", {"n": 1})
        at = (await backend.read_thread("t")).expires_at
        assert await backend.renew("t", 30) is False
        assert (await backend.read_thread("t")).expires_at == at
        assert await backend.renew("t", 3_600) is True
        renewed = (await backend.read_thread("t")).expires_at
        assert 3_400 < (renewed - at).total_seconds() < 3_700
        assert await backend.renew("t", 3_600 - 200) is False
        assert await backend.renew("forever", 60) is False
        assert await backend.renew("missing", 60) is False
        assert (await backend.read_thread("forever")).expires_at is None
        assert (await backend.read_state("t")).state == {"n": 1}

    @requires("branching", "ttl")
    async def test_an_expired_thread_is_not_renewed(self, backend: Any) -> None:
        await backend.write_state("t", {"n": 1}, ttl_seconds=1e-6)
        assert await backend.renew("t", 60) is False
        assert await backend.load("t") is None


class RefusedMarks(BackendKit):
    """No backend stores a mark, or a state other than an object."""

    async def test_a_state_that_is_no_object_is_refused(self, backend: Any) -> None:
        saver, states = CheckpointSaver(backend), list[Any]([[], None, "n", 1])
        for state in states:
            with refused(SerializationError, state, match="a state is a JSON object"):
                await backend.write_state("t", state)
            with refused(SerializationError, state, match="a state is a JSON object"):
                await saver.put(thread_id="t", checkpoint_id="v1", checkpoint_data=state)
        assert await backend.exists("t") is False

    async def test_a_mark_in_plain_data_is_refused(self, backend: Any) -> None:
        for metadata in ({MARK_KEY: "1.a.b.c"}, {MARK_KEY: None, "k": 1}):
            data: Mapping[str, Any] = {"n": 1, "metadata": metadata}
            with pytest.raises(SerializationError, match=MARK_KEY):
                await backend.save("t", data)
            with pytest.raises(SerializationError, match=MARK_KEY):
                await CheckpointSaver(backend).put(
                    thread_id="t", checkpoint_id="v1", checkpoint_data=data
                )
        assert await backend.exists("t") is False
        await backend.save("t", {"metadata": {"deep": {MARK_KEY: 1}}})


class BackendLimits(BackendKit):
    """The limit below a checkpointer: whole threads, pending writes, verification."""

    async def plant(self, backend: Any) -> None:
        """Save a state and a pending write above the limit."""
        await backend.write_state("large", {"value": "a" * LARGE}, checkpoint_id="v")
        payload = frames.encode_value("a" * LARGE, 2 * LARGE)
        await backend.put_writes("large", "v", [PendingWrite("task", 0, "c", JSON_WRITE, payload)])

    @requires("branching")
    async def test_an_archived_state_above_the_limit_is_not_restored(self, backend: Any) -> None:
        await self.plant(backend)
        archived = replace(await backend.read_thread("large"), thread_id="copy")
        (line,) = archived.lines
        for name, part in {
            "checkpoint": replace(line, writes=[]),
            "pending write": replace(line, records=[], head=None),
        }.items():
            with refused(IntegrityError, name, match="max_state_bytes=20000"):
                await limit_backend(backend, LIMIT).write_thread(replace(archived, lines=[part]))
        assert await backend.read_thread("copy") is None

    @requires("branching")
    async def test_a_check_reports_what_is_above_the_limit(self, backend: Any) -> None:
        await self.plant(backend)
        found = await find_problems(limit_backend(backend, LIMIT))
        assert len(found) == 2
        assert all("max_state_bytes=20000" in it for it in found)

    async def save_large(self, backend: Any, thread_id: str, versions: int = 4) -> Any:
        """Save ``v0`` above the limit, and smaller versions that are stored as changes.

        Returns:
            A backend with the limit.
        """
        for n in range(versions):
            state = {"body": "b" * 1000, "value": n or "a" * LARGE}
            await backend.write_state(thread_id, state, checkpoint_id=f"v{n}")
        return limit_backend(backend, LIMIT)

    async def read_numbers(self, backend: Any, thread_id: str) -> list[int]:
        """Return the values of the thread's versions below the limit, newest first."""
        ids = [it.checkpoint_id for it in await backend.history(thread_id, limit=1_000)]
        found = [await backend.load(thread_id, it) for it in ids if it != "v0"]
        return [state["value"] for state in found]

    async def test_a_save_is_not_failed_by_its_sweep(
        self, backend: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        small = await self.save_large(backend, "large", 90)
        await backend.delete("large", "v3")
        with caplog.at_level(logging.WARNING, "locus_store.operations"):
            for n in range(90, 93):
                await small.write_state("large", {"value": n}, checkpoint_id=f"v{n}", keep_last=20)
        assert "thread 'large'" in caplog.text
        assert "max_state_bytes=20000" in caplog.text
        assert await self.read_numbers(backend, "large") == list(range(92, 72, -1))
        assert await small.load("large") == {"value": 92}
        assert await find_problems(backend) == []

    async def test_a_later_save_sweeps_what_an_earlier_one_left(
        self, backend: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        small = await self.save_large(backend, "large", 90)
        for n in range(90, 95):
            await small.write_state("large", {"value": n}, checkpoint_id=f"v{n}", keep_last=20)
        caplog.clear()
        for n in range(95, 113):
            await small.write_state("large", {"value": n}, checkpoint_id=f"v{n}", keep_last=2)
        if backend.capabilities.branching:
            (line,) = (await backend.read_thread("large")).lines
            assert line.records[0].sequence > 90
        assert not caplog.records
        assert await find_problems(small) == []

    async def test_a_version_above_the_limit_without_children_is_deleted(
        self, backend: Any
    ) -> None:
        small = await self.save_large(backend, "large", 1)
        await small.write_state("large", {"value": 1}, checkpoint_id="v1")
        assert await small.delete("large", "v0") is True
        assert await find_problems(small) == []

    async def test_deleting_beside_a_version_above_the_limit_names_it(self, backend: Any) -> None:
        small = await self.save_large(backend, "large")
        for name in ("v0", "v1", "v2"):
            with refused(IntegrityError, name, match="max_state_bytes=20000"):
                await small.delete("large", name)
        assert await self.read_numbers(backend, "large") == [3, 2, 1]
        assert await find_problems(backend) == []
        assert await small.delete("large", "v3") is True
        assert await small.delete("large") is True
        assert await small.exists("large") is False

    @requires("branching", "vacuum")
    async def test_vacuum_goes_on_behind_a_thread_above_the_limit(
        self, backend: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("a large one", "t"):
            small = await self.save_large(backend, name)
            if name == "t":
                await backend.delete(name, "v0")
            await rewrite(backend, name, lambda it: make_older(it, 40, count=1))
        with caplog.at_level(logging.WARNING, "locus_store.operations"):
            report = await small.vacuum_report(30)
        assert report == Vacuumed(removed=1, skipped=0, unreadable=1)
        assert "thread 'a large one'" in caplog.text
        assert await self.read_numbers(backend, "t") == [3, 2]
        assert await self.read_numbers(backend, "a large one") == [3, 2, 1]
        assert await small.vacuum(30) == 0
        assert await find_problems(backend) == []

    @requires("branching")
    async def test_a_write_above_the_limit_is_neither_saved_nor_read(self, backend: Any) -> None:
        saver = CheckpointSaver(limit_backend(backend, LIMIT))
        of: dict[str, Any] = {"thread_id": "t"}
        await saver.put(**of, checkpoint_id="v", checkpoint_data={"channel_values": {"c": "a"}})
        of["checkpoint_id"] = "v"
        for large in ("a" * LARGE, ["a" * 1000] * 30):
            with pytest.raises(SerializationError, match="max_state_bytes=20000"):
                await saver.put_writes(**of, task_id="task", writes=[("c", large)])
        assert await backend.get_writes("t", "v") == []
        writes = [("c", "a" * LARGE)]
        await CheckpointSaver(backend).put_writes(**of, task_id="task", writes=writes)
        with pytest.raises(IntegrityError, match="max_state_bytes=20000"):
            await saver.get_writes(**of)


class StorageBackendContract(
    PendingWrites, FramedWrites, Reading, Needed, Parents, WholeThreads, Existence, Recency,
    Forgetting, RefusedMarks, LocusSpellings, BackendLimits, Tails, MustExist, ThreadInfoRules,
    VersionLists,
):  # fmt: skip
    """The dict-shaped methods of a ``StorageBackend``, and what lies under the adapter."""

    async def test_a_dict_is_saved_and_loaded(self, backend: Any) -> None:
        data = {"list": list(NUMBERS), "text": list(TEXTS)}
        assert isinstance(await backend.save("t", data), str)
        found = await backend.load("t")
        assert type(found) is dict
        assert exact(found) == exact(data)
        assert await backend.load("unknown") is None

    @requires("search")
    async def test_search_gives_thread_ids(self, backend: Any) -> None:
        await backend.save("t1", {"text": "alpha beta"})
        await backend.save("t2", {"text": "alpha"})
        assert await backend.search("alpha beta") == ["t1"]
        assert set(await backend.search("alpha", limit=5)) == {"t1", "t2"}

    async def test_a_backend_in_place_of_a_checkpointer_is_refused(self, backend: Any) -> None:
        state = AgentState()
        for args, options in (
            ((state, "t"), {}), ((state, "t", "v1"), {}), ((state, "t", "v1", {"k": 1}), {}),
            ((), {"state": state, "thread_id": "t"}), (({"n": 1}, "t"), {}),
            ((), {"state": state, "thread_id": "t", "metadata": {}}),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=backend.factory):
                await backend.save(*args, **options)
        assert await backend.exists("t") is False

    async def test_namespaces_are_lines_of_their_own(self, backend: Any) -> None:
        names = ("", "a", "/", "//", "a:b", "%", "_", "'", "日本語", "x" * 255)
        for name in names:
            await backend.write_state("t", {"of": name}, namespace=name, checkpoint_id="v")
        for name in names:
            found = await backend.read_state("t", namespace=name)
            assert found.state == {"of": name}
            assert [it.namespace for it in await backend.history("t", namespace=name)] == [name]
        assert await backend.remove("t", ["v"], namespace="a") == 1
        left = [it for it in names if await backend.read_state("t", namespace=it)]
        assert left == [it for it in names if it != "a"]
        assert await backend.delete("t") is True
        assert [it for it in names if await backend.read_state("t", namespace=it)] == []

    async def test_parents_are_known(self, backend: Any) -> None:
        for n in range(3):
            await backend.save("t", {"n": n}, checkpoint_id=f"v{n}")
        await backend.write_state("t", {"n": 9}, checkpoint_id="fork", parent_id="v0")
        parents = {it.checkpoint_id: it.parent_id for it in await backend.history("t")}
        assert parents == {"fork": "v0", "v2": "v1", "v1": "v0", "v0": None}
        assert await backend.remove("t", ["v0", "v1"]) == 2
        parents = {it.checkpoint_id: it.parent_id for it in await backend.history("t")}
        assert parents == {"fork": None, "v2": None}

    async def test_versions_are_counted_by_the_server_and_never_again(self, backend: Any) -> None:
        marks = []
        for n in range(3):
            written = await backend.write_state("t", {"n": n}, checkpoint_id="v")
            marks.append(written.mark)
        assert marks == sorted(marks, key=lambda it: it.sequence)
        await backend.delete("t")
        written = await backend.write_state("t", {"n": 2}, checkpoint_id="v")
        assert written.mark.line not in {it.line for it in marks}
        assert written.mark.store == marks[0].store

    async def test_times_are_the_servers_and_aware(self, backend: Any) -> None:
        for n in range(3):
            await backend.save("t", {"n": n})
        times = [it.created_at for it in await backend.history("t")]
        assert times == sorted(times, reverse=True)
        assert all(it.utcoffset() is not None for it in times)

    async def test_what_is_no_namespace_is_refused(self, backend: Any) -> None:
        await expect_invalid(
            filter(None, INVALID_IDS),
            lambda it: backend.write_state("t", {"n": 1}, namespace=it),
            lambda it: backend.read_state("t", namespace=it),
            lambda it: backend.history("t", namespace=it),
            match="namespace",
        )
