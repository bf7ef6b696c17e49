"""The contract of a storage backend below the adapter."""

from __future__ import annotations

import asyncio
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
from locus_store.testing.existing import Existence, MustExist
from locus_store.testing.history import Tails
from locus_store.testing.kit import (
    HOSTILE_IDS,
    INVALID_IDS,
    NUMBERS,
    TEXTS,
    exact,
    expect_refusals,
    refused,
    requires,
)
from locus_store.testing.limits import BackendLimits
from locus_store.testing.states import RefusedMarks
from locus_store.testing.steps import (
    BackendKit,
    FramedWrites,
    Needed,
    Parents,
    PendingWrites,
    Reading,
    names,
    problems,
)
from locus_store.testing.thread_info import Forgetting, LocusSpellings, ThreadInfoRules
from locus_store.testing.version_lists import Recency, VersionLists
from locus_store.types import Expected, PendingWrite
from locus_store.types.state import AgentState


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
        assert await names(backend, namespace="a:b") == ["v3", "v2"]
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
        for lines in (
            [replace(root, writes=[])],
            [replace(root, records=[replace(first, metadata={}), *root.records[1:]])],
            [replace(root, records=[replace(first, checkpoint_id="other"), *root.records[1:]])],
        ):
            with refused(ConflictError, lines):
                await backend.write_thread(replace(thread, lines=lines + thread.lines[1:]))
        for change in ({"user_id": "u"}, {"name": "n"}, {"metadata": {"k": 1}}):
            with refused(ConflictError, change):
                await backend.write_thread(replace(thread, **change))
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
        await expect_refusals(errors, bad, with_root)
        bad = [{"records": [*root.records[:-1], replace(record, **changes)]} for changes in (
            {"sequence": 2**70}, {"sequence": "13"}, {"chain": 0}, {"parent": False},
            {"digest": b""}, {"payload": "text"}, {"metadata": [1]}, {"labels": {1: 2}},
            {"metadata": {"k": float("nan")}}, {"checkpoint_id": ""},
            {"created_at": record.created_at.replace(tzinfo=None)},
            {"created_at": record.created_at.replace(year=1)},
        )]  # fmt: skip
        await expect_refusals((*errors, SerializationError), bad, with_root)
        bad = [{"thread_id": ["t"]}, {"user_id": "\0"}, {"lines": [root, root]}]
        await expect_refusals(errors, bad, lambda it: backend.write_thread(replace(thread, **it)))
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
        assert await problems(backend) == []

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
        await expect_refusals(IntegrityError, bad, with_last)
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
        await expect_refusals(InvalidArgumentError, bad, lambda it: backend.scan(after=it))
        assert await backend.scan(0) == []

    @requires()
    async def test_a_time_to_live_that_is_none_is_refused(self, backend: Any) -> None:
        bad = (0, -1, float("inf"), float("nan"), 1e300, "9", True)
        await expect_refusals(
            InvalidArgumentError, bad, lambda it: backend.write_state("t", {"n": 1}, ttl_seconds=it)
        )
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
        await expect_refusals(
            InvalidArgumentError, filter(None, INVALID_IDS),
            lambda it: backend.write_state("t", {"n": 1}, namespace=it),
            lambda it: backend.read_state("t", namespace=it),
            lambda it: backend.history("t", namespace=it),
            match="namespace",
        )  # fmt: skip
