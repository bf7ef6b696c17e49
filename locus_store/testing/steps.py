"""Storage for graph runners: parents, pending writes, rebuilt values."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from locus_store.errors import ConflictError, NotFoundError
from locus_store.testing.kit import (
    INVALID_IDS,
    INVALID_OPTIONAL_IDS,
    LoopKit,
    exact,
    expect_invalid,
    refused,
    requires,
    seam,
    skip_unless_capable,
)
from locus_store.transfer.verifying import verify
from locus_store.types import Expected, Mark, PendingWrite, Version
from locus_store.values import frames
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.versions import CHANNELS, REBUILT, expand_write
from locus_store.versions.archives import Problem
from locus_store.versions.segments import decompress_payload


class BackendKit(LoopKit):
    """The fixtures of the contracts of a backend."""

    @pytest.fixture
    def backend(self) -> Any:
        """The object to test, on empty storage; override this."""
        raise NotImplementedError("give the contract a `backend` fixture")

    @pytest.fixture(autouse=True)
    async def closing(self, backend: Any, request: pytest.FixtureRequest) -> AsyncIterator[None]:
        skip_unless_capable(backend, request)
        yield
        await backend.close()


@seam("connection", "layout")
@requires("branching")
class PendingWrites(BackendKit):
    """``put_writes`` and ``get_writes``."""

    async def test_writes_come_back_in_the_order_of_their_tasks(self, backend: Any) -> None:
        payloads = [b"", b"\0\xff", b"x" * 100_000]
        writes = [
            PendingWrite("b", 1, "c", "t", payloads[0], "2"),
            PendingWrite("b", 0, "c", "t", payloads[1], "2"),
            PendingWrite("z", 0, "日本語", "", payloads[2], "1"),
            PendingWrite("a", -1, "__error__", "t", b"e", "2"),
        ]
        await backend.put_writes("t", "v", writes)
        assert await backend.get_writes("t", "v") == [writes[2], writes[3], writes[1], writes[0]]
        assert await backend.get_writes("t", "other") == []
        assert await backend.get_writes("t", "v", namespace="other") == []
        assert await backend.get_writes("other", "v") == []

    async def test_stored_writes_stay_and_special_ones_are_replaced(self, backend: Any) -> None:
        old, new = (
            [PendingWrite("a", idx, "c", "t", payload) for idx in (-2, -1, 0, 1)]
            for payload in (b"old", b"new")
        )
        await backend.put_writes("t", "v", old)
        await backend.put_writes("t", "v", [*new, *new])
        payloads = [it.payload for it in await backend.get_writes("t", "v")]
        assert payloads == [b"new", b"new", b"old", b"old"]

    async def test_writes_may_precede_their_thread(self, backend: Any) -> None:
        await backend.put_writes("t", "v", [make_write("a")])
        assert await backend.load("t") is None
        assert await backend.exists("t") is False
        assert await backend.history("t") == []
        assert [await backend.copy_thread("t", "copy") for _ in range(2)] == [False, False]
        assert await backend.read_thread("copy") is None
        if backend.capabilities.list_threads:
            assert await backend.list_threads() == []
            assert await backend.scan() == ["t"]
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend.save("t", {"n": 2}, checkpoint_id="w")
        assert await backend.get_writes("t", "v") == [make_write("a")]
        assert await list_versions(backend) == ["w", "v"]

    async def test_writes_go_with_their_checkpoint_and_their_thread(self, backend: Any) -> None:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend.save("t", {"n": 2}, checkpoint_id="w")
        for name in ("v", "w"):
            await backend.put_writes("t", name, [make_write("a")])
        await backend.delete("t", "v")
        assert await backend.get_writes("t", "v") == []
        assert len(await backend.get_writes("t", "w")) == 1
        await backend.delete("t")
        await backend.save("t", {"n": 2}, checkpoint_id="w")
        assert await backend.get_writes("t", "w") == []

    @requires("branching", "ttl")
    async def test_writes_begin_and_renew_a_time_to_live(self, backend: Any) -> None:
        writes = [[make_write(f"task {n}")] for n in range(3)]

        async def left(thread_id: str) -> float:
            found = await backend.read_thread(thread_id)
            return float((found.expires_at - found.active_at).total_seconds())

        await backend.put_writes("new", "v", writes[0], ttl_seconds=3_600)
        assert 3_300 < await left("new") < 3_800
        await backend.write_state("t", {"n": 1}, checkpoint_id="v", ttl_seconds=600)
        await backend.put_writes("t", "v", writes[0])
        await backend.put_writes("t", "v", writes[0], ttl_seconds=60)
        assert 500 < await left("t") < 700
        await backend.put_writes("t", "v", writes[1], ttl_seconds=3_600)
        assert 3_300 < await left("t") < 3_800
        await backend.put_writes("t", "v", writes[2], namespace="below", ttl_seconds=7_200)
        assert 6_800 < await left("t") < 7_400
        await backend.save("forever", {"n": 1}, checkpoint_id="v")
        await backend.put_writes("forever", "v", writes[0], ttl_seconds=60)
        assert (await backend.read_thread("forever")).expires_at is None

    async def test_what_is_no_write_is_refused_and_nothing_is_written(self, backend: Any) -> None:
        good = make_write("a")
        changes: list[dict[str, Any]] = [
            {"task_id": ""}, {"channel": "\0"}, {"idx": 2**31}, {"idx": "1"}, {"idx": True},
            {"task_path": "\ud800"}, {"task_path": None}, {"payload": "text"}, {"payload": None},
        ]  # fmt: skip
        await expect_invalid(
            changes, lambda it: backend.put_writes("t", "v", [good, replace(good, **it)])
        )
        await expect_invalid(
            INVALID_IDS,
            lambda it: backend.put_writes(it, "v", [good]),
            lambda it: backend.put_writes("t", it, [good]),
        )
        assert await backend.get_writes("t", "v") == []


LONG = [f"{n} " + secrets.token_hex(64) for n in range(40)]
"""A channel's value that is worth a frame."""


def make_write(task_id: str, payload: bytes = b"1", idx: int = 0) -> PendingWrite:
    """Return a write of a task."""
    return PendingWrite(task_id, idx, "c", "t", payload)


async def list_versions(backend: Any, *, namespace: str = "") -> list[str]:
    """Return the visible versions of thread ``t``, newest first."""
    found = await backend.history("t", namespace=namespace, limit=1_000)
    return [it.checkpoint_id for it in found]


async def find_problems(backend: Any) -> list[str]:
    """Return the problems of the storage and, if it lists threads, of every thread."""
    if not backend.capabilities.list_threads:
        return [str(it) for it in await backend.damage()]
    return [str(it) async for it in verify(backend) if isinstance(it, Problem)]


async def grow(
    backend: Any, *checkpoint_ids: str, namespace: str = "", **options: Any
) -> dict[str, dict[str, Any]]:
    """Save versions of thread ``t``, each with one more string; return their states."""
    found = await backend.read_state("t", namespace=namespace)
    said = found.state["said"] if found else []
    states = {}
    for name in checkpoint_ids:
        said = [*said, f"{name} {secrets.token_hex(32)}"]
        states[name] = {"said": said}
        await backend.write_state(
            "t", states[name], checkpoint_id=name, namespace=namespace, **options
        )
    return states


def check_records(version: Version, records: Sequence[tuple[int, int, bytes]], state: Any) -> None:
    """Check that records are in their order, each once, and fold to a version's state."""
    sequences = [it[0] for it in records]
    assert sequences == sorted(set(sequences))
    at = version.mark.sequence
    (chain,) = [it[1] for it in records if it[0] == at]
    payloads = [it[2] for it in records if it[1] == chain and it[0] <= at]
    assert exact(frames.fold(payloads, MAX_STATE_BYTES)) == exact(state)


@seam("connection", "layout")
@requires("branching")
class FramedWrites(BackendKit):
    """``put_writes`` of changes of a channel's value, and by two runs at once."""

    async def save_framed(self, backend: Any, texts: list[str]) -> tuple[Any, PendingWrite]:
        """Save version ``v`` with a channel; return its mark and a write as frames against it."""
        await backend.write_state("t", {CHANNELS: {"c": LONG}}, checkpoint_id="v")
        mark, tree = backend.known_version("t", "v")
        payload = frames.diff_value(texts, tree, (CHANNELS, "c"), MAX_STATE_BYTES)
        assert payload is not None
        return mark, replace(make_write("a", payload), basis=mark.sequence)

    async def put_framed(self, backend: Any, texts: list[str]) -> PendingWrite:
        """Put the write that ``framed`` returns."""
        mark, write = await self.save_framed(backend, texts)
        assert await backend.put_writes("t", "v", [write], known=mark) is True
        return write

    async def read_value(self, backend: Any, checkpoint_id: str = "v") -> Any:
        """Return the value of a version's only write."""
        found = await backend.read_state("t", checkpoint_id, with_writes=True)
        (write,) = found.writes
        whole = expand_write(write, found.state, MAX_STATE_BYTES)
        return frames.decode_value(whole.payload, MAX_STATE_BYTES)

    async def test_a_write_may_be_what_changed_in_its_checkpoint(self, backend: Any) -> None:
        write = await self.put_framed(backend, [*LONG, "new"])
        assert await backend.get_writes("t", "v") == [write]
        assert await self.read_value(backend) == [*LONG, "new"]
        assert len(write.payload) < 200

    async def test_a_change_of_another_version_is_not_stored(self, backend: Any) -> None:
        mark, write = await self.save_framed(backend, [*LONG, "new"])
        await backend.write_state("t", {CHANNELS: {"c": []}}, checkpoint_id="v")
        batch = [make_write("whole"), write]
        assert await backend.put_writes("t", "v", batch, known=mark) is False
        assert await backend.put_writes("t", "unknown", batch, known=mark) is False
        assert await backend.put_writes("t", "v", batch, namespace="a", known=mark) is False
        assert await backend.put_writes("u", "v", batch, known=mark) is False
        assert await backend.writes_of("t", ["v", "unknown"]) == {}
        assert await backend.put_writes("t", "v", [make_write("whole")], known=mark) is True

    async def test_a_checkpoint_that_is_replaced_keeps_its_writes_whole(self, backend: Any) -> None:
        said = [*LONG[:20], "new", *LONG[20:]]
        await self.put_framed(backend, said)
        for state in ({CHANNELS: {"c": ["other"]}}, {"no": "channels"}):
            await backend.write_state("t", state, checkpoint_id="v")
            assert await self.read_value(backend) == said
            assert [it.basis for it in await backend.get_writes("t", "v")] == [None]
        assert await find_problems(backend) == []

    async def test_a_checkpoint_that_is_saved_again_keeps_its_writes(self, backend: Any) -> None:
        mark, write = await self.save_framed(backend, [*LONG, "new"])
        await backend.put_writes("t", "v", [write, make_write("b")], known=mark)
        again = await backend.write_state("t", {CHANNELS: {"c": LONG}}, checkpoint_id="v")
        assert again.outcome == "same"
        assert await backend.get_writes("t", "v") == [write, make_write("b")]

    async def test_a_deletion_before_leaves_a_change_readable(self, backend: Any) -> None:
        await backend.write_state("t", {CHANNELS: {"c": LONG[:39]}}, checkpoint_id="before")
        await self.put_framed(backend, [*LONG, "new"])
        assert await backend.remove("t", ["before"]) == 1
        assert await self.read_value(backend) == [*LONG, "new"]

    async def test_a_thread_is_copied_with_its_changes(self, backend: Any) -> None:
        write = await self.put_framed(backend, [*LONG, "new"])
        archive = await backend.read_thread("t")
        assert await backend.copy_thread("t", "u") is True
        assert await backend.get_writes("u", "v") == [write]
        await backend.delete("t")
        assert await backend.write_thread(archive) is True
        assert await self.read_value(backend) == [*LONG, "new"]

    async def test_writes_of_another_run_are_a_conflict(self, backend: Any) -> None:
        """So is a write of the same task with another value."""
        mine, theirs = make_write("mine"), make_write("theirs")
        assert await backend.put_writes("t", "v", [mine], seen=set()) is True
        assert await backend.put_writes("t", "v", [mine], seen=set()) is True  # a retry
        for other in (theirs, replace(mine, payload=b"other")):
            with pytest.raises(ConflictError) as conflict:
                await backend.put_writes("t", "v", [other], seen=set())
            assert conflict.value.head_id == "v"
            assert await backend.get_writes("t", "v") == [mine]
        assert await backend.put_writes("t", "v", [theirs], seen={("mine", 0)}) is True
        assert await backend.put_writes("t", "v", [make_write("any")]) is True
        assert await backend.put_writes("t", "w", [theirs], seen=set()) is True
        assert len(await backend.get_writes("t", "v")) == 3

    async def test_writes_of_many_checkpoints_are_read_at_once(self, backend: Any) -> None:
        ids = [f"v{n}" for n in range(450)]
        for name in ids[::10]:
            writes = [make_write("b", name.encode()), make_write("a"), make_write("a", idx=-1)]
            await backend.put_writes("t", name, writes, namespace="n")
        await backend.put_writes("t", "not asked for", [make_write("a")], namespace="n")
        found = await backend.writes_of("t", ids, namespace="n")
        assert set(found) == set(ids[::10])
        for name, writes in found.items():
            places = [(it.task_id, it.idx, it.payload) for it in writes]
            assert places == [("a", -1, b"1"), ("a", 0, b"1"), ("b", 0, name.encode())]
        assert await backend.writes_of("t", ids) == {}
        assert await backend.writes_of("t", [], namespace="n") == {}
        assert await backend.writes_of("unknown", ids) == {}


@seam("layout")
@requires("branching")
class Reading(BackendKit):
    """``fetch(with_writes=)``, ``records``, ``read_states``, ``namespaces``, ``tagged``."""

    async def test_a_thread_whose_records_were_joined_is_the_same(self, backend: Any) -> None:
        """They are no longer compressed."""
        await backend.save("t", {"said": ["the same text " * 100]})
        thread = await backend.read_thread("t")
        [record] = thread.lines[0].records
        plain = replace(record, payload=decompress_payload(record.payload, 10_000))
        joined = replace(thread, lines=[replace(thread.lines[0], records=[plain])])
        assert joined != thread
        assert await backend.write_thread(joined) is False
        await backend.replace_thread(joined, joined)
        await backend.save("t", {"n": "newer"})
        with pytest.raises(ConflictError, match="'t'"):
            await backend.replace_thread(joined, thread)
        assert await backend.load("t") == {"n": "newer"}

    async def test_a_version_is_read_with_its_writes(self, backend: Any) -> None:
        states = await grow(backend, "v", "w")
        writes = [make_write("b"), make_write("a"), make_write("a", idx=-2)]
        await backend.put_writes("t", "v", writes)
        for checkpoint_id, expected in (("v", writes[::-1]), ("w", []), (None, [])):
            stored = await backend.fetch("t", checkpoint_id=checkpoint_id, with_writes=True)
            assert stored.writes == expected
            found = await backend.read_state("t", checkpoint_id, with_writes=True)
            assert found.writes == expected
            assert exact(found.state) == exact(states[checkpoint_id or "w"])
        assert (await backend.fetch("t", checkpoint_id="v")).writes is None
        assert (await backend.read_state("t", "v")).writes is None
        assert await backend.read_state("t", "x", with_writes=True) is None

    async def test_a_head_that_is_known_is_read_with_new_writes(self, backend: Any) -> None:
        states = await grow(backend, "v")
        for n in range(3):
            await backend.put_writes("t", "v", [make_write(f"{n}")])
            found = await backend.read_state("t", with_writes=True)
            assert [it.task_id for it in found.writes] == [str(it) for it in range(n + 1)]
            assert found.state == states["v"]
        known, _ = backend.known_version("t", "v")
        stored = await backend.fetch_head("t", known=known, with_writes=True)
        assert len(stored.writes) == 3
        assert (await backend.fetch_head("t", known=known)).version.mark == known

    async def test_records_are_whole_chains_and_none_is_newer(self, backend: Any) -> None:
        states = await grow(backend, *(f"v{n}" for n in range(8)))
        await backend.write_state("t", {"said": []}, checkpoint_id="fork", parent_id="v1")
        states["fork"] = {"said": []}
        versions = (await backend.history("t", limit=100))[::-1]
        for first in range(len(versions)):
            for last in range(first, len(versions)):
                await self.check(backend, versions[first : last + 1], states)

    async def check(
        self, backend: Any, versions: Sequence[Version], states: dict[str, dict[str, Any]]
    ) -> None:
        """Check that the records of a range fold to its states."""
        first, last = versions[0].mark.sequence, versions[-1].mark.sequence
        records = await backend.records("t", first=first, last=last)
        assert records[-1][0] == last
        for version in versions:
            check_records(version, records, states[version.checkpoint_id])

    async def test_records_have_what_is_hidden(self, backend: Any) -> None:
        ids = [f"v{n}" for n in range(20)]
        states = await grow(backend, *ids, keep_last=2)
        visible = (await backend.history("t", limit=100))[::-1]
        assert [it.checkpoint_id for it in visible] == ids[-2:]
        await self.check(backend, visible, states)
        assert await backend.records("unknown", first=1, last=9) == []
        assert await backend.records("t", namespace="n", first=1, last=9) == []

    async def test_states_of_many_versions_are_read_in_one_pass(self, backend: Any) -> None:
        states = await grow(backend, *(f"v{n}" for n in range(120)))
        wanted = (await backend.history("t", limit=120))[::7]
        read = await backend.read_states(
            wanted, lambda version, folder: (version.checkpoint_id, str(folder.get_state()))
        )
        assert read == [(it.checkpoint_id, str(states[it.checkpoint_id])) for it in wanted]
        assert await backend.read_states([], lambda version, _: version) == []

    async def test_versions_that_go_while_they_are_listed_are_left_out(self, backend: Any) -> None:
        states = await grow(backend, "v0", "v1", "v2")
        wanted = await backend.history("t")
        await backend.remove("t", ["v1"])
        assert await backend.read_states(
            wanted, lambda version, folder: (version.checkpoint_id, folder.get_state())
        ) == [(it, states[it]) for it in ("v2", "v0")]
        await backend.remove("t")
        assert await backend.read_states(wanted, lambda version, _: version) == []
        for number in range(4):  # the thread is created again
            await backend.write_state("t", {"other": number}, checkpoint_id=f"w{number}")
        with suppress(NotFoundError):
            assert await backend.read_states(wanted, lambda version, _: version) == []

    async def test_namespaces_are_those_with_a_version(self, backend: Any) -> None:
        named = ["", "A", "a", "a|b", "é", "🎉"]
        for namespace in reversed(named):
            await backend.write_state("t", {"n": 1}, namespace=namespace, checkpoint_id="v")
        await backend.put_writes("t", "v", [make_write("a")], namespace="writes")
        await backend.write_state("other", {"n": 1}, namespace="b")
        assert await backend.namespaces("t") == named
        await backend.remove("t", ["v"], namespace="a")
        assert await backend.namespaces("t") == [it for it in named if it != "a"]
        assert await backend.namespaces("unknown") == []

    @requires("branching", "ttl", "metadata_query")
    async def test_an_expired_thread_has_nothing(self, backend: Any) -> None:
        await backend.put_writes("t", "v", [make_write("a")])
        options: dict[str, Any] = {"metadata": {"run_id": "r"}, "ttl_seconds": 0.000001}
        await backend.write_state("t", {"n": 1}, checkpoint_id="v", **options)
        assert await backend.scan() == await backend.namespaces("t") == []
        assert await backend.read_thread("t") is None
        assert await backend.tagged("run_id", "r") == []
        assert await backend.get_writes("t", "v") == []
        assert await backend.records("t", first=1, last=1) == []
        assert await backend.prune("t") == 0
        await backend.put_writes("t", "v", [make_write("a")])
        assert await backend.scan() == ["t"]
        assert await backend.load("t") is None

    @requires("metadata_query")
    async def test_versions_are_found_by_their_own_metadata(self, backend: Any) -> None:
        tag = {"run_id": "r"}
        await grow(backend, "v0", metadata=tag)
        await grow(backend, "v1", metadata={"run_id": "s"})
        await grow(backend, "v2", labels=tag)
        await grow(backend, "v3", metadata={"run_id": ["r"], "other": "r"})
        await grow(backend, "v4", metadata=tag, namespace="a:b")
        await backend.write_state("u", {"n": 1}, checkpoint_id="v5", metadata=tag)
        found = [("t", "", "v0"), ("t", "", "v3"), ("t", "a:b", "v4"), ("u", "", "v5")]
        assert sorted(await backend.tagged("run_id", "r")) == found
        assert await backend.tagged("run_id", "R") == []
        assert await backend.tagged("run_id", "' OR 1=1 --") == []
        for name, value in (("number", 1), ("text", "1")):
            await grow(backend, name, metadata={"k": value})
        assert await backend.tagged("k", 1) == [("t", "", "number")]
        assert await backend.tagged("k", "1") == [("t", "", "text")]
        await grow(backend, "h0", "h1", "h2", metadata=tag, namespace="hidden", keep_last=1)
        assert len(await backend.tagged("run_id", "r")) == len(found) + 3


@requires("branching")
class Needed(BackendKit):
    """A version with the label ``rebuilt`` keeps its parent and the writes there."""

    async def save_chain(self, backend: Any, *rebuilt: str, **options: Any) -> None:
        """Save versions that are rebuilt from one another, each with a write."""
        for name in rebuilt:
            await grow(backend, name, labels={REBUILT: ["c"]}, **options)
            await backend.put_writes("t", name, [make_write(name)])

    async def test_pruning_leaves_the_heads(self, backend: Any) -> None:
        states = await grow(backend, "v0", "v1", "v2")
        await grow(backend, "a0", "a1", namespace="a")
        for name in ("v1", "v2"):
            await backend.put_writes("t", name, [make_write(name)])
        await backend.save("other", {"n": 1})
        await backend.save("other", {"n": 2})
        assert await backend.prune("t") == 3
        assert await list_versions(backend) == ["v2"]
        assert await list_versions(backend, namespace="a") == ["a1"]
        assert set(await backend.writes_of("t", ["v1", "v2"])) == {"v2"}
        found = await backend.read_state("t")
        assert found.state == states["v2"]
        assert found.version.parent_id is None
        assert len(await backend.history("other")) == 2
        assert await backend.prune("t") == 0
        assert await backend.prune("unknown") == 0
        assert await find_problems(backend) == []

    async def test_pruning_takes_side_branches_and_what_is_hidden(self, backend: Any) -> None:
        await grow(backend, "v0", "v1", "v2", "v3", keep_last=2)
        await backend.write_state(
            "t", {"n": 1}, checkpoint_id="side", parent_id="v2", forks=False, on_conflict="branch"
        )
        assert await list_versions(backend) == ["side", "v3", "v2"]
        assert await backend.prune("t") == 4
        assert await list_versions(backend) == ["v3"]
        await grow(backend, "v4")
        assert await list_versions(backend) == ["v4", "v3"]

    async def test_pruning_spares_what_a_head_is_rebuilt_from(self, backend: Any) -> None:
        await grow(backend, "v0", "v1")
        await self.save_chain(backend, "v2", "v3")
        await backend.put_writes("t", "v1", [make_write("v1")])
        await grow(backend, "a0", "a1", namespace="a")
        assert await backend.prune("t") == 2
        assert await list_versions(backend) == ["v3", "v2", "v1"]
        assert set(await backend.writes_of("t", ["v1", "v2", "v3"])) == {"v1", "v2", "v3"}
        await grow(backend, "v4")
        assert await backend.prune("t") == 3
        assert await list_versions(backend) == ["v4"]

    async def test_what_another_version_is_rebuilt_from_is_not_removed(self, backend: Any) -> None:
        await grow(backend, "v0", "v1")
        await self.save_chain(backend, "v2", "v3")
        for bad in (["v1"], ["v2"], ["v0", "v1"], ["v1", "v2"]):
            with refused(ConflictError, bad):
                await backend.remove("t", bad)
        assert await list_versions(backend) == ["v3", "v2", "v1", "v0"]
        assert set(await backend.writes_of("t", ["v2", "v3"])) == {"v2", "v3"}
        assert await backend.remove("t", ["v0"]) == 1
        assert await backend.remove("t", ["v3"]) == 1
        assert await backend.remove("t", ["v1", "v2"]) == 2
        assert await backend.remove("t") == 0

    async def test_what_is_rebuilt_from_goes_with_its_thread_only(self, backend: Any) -> None:
        states = await grow(backend, "v0")
        await self.save_chain(backend, "v1")
        with pytest.raises(ConflictError):
            await backend.write_state("t", {"n": "other"}, checkpoint_id="v0")
        assert (await backend.read_state("t", "v0")).state == states["v0"]
        assert await backend.remove("t") == 2
        assert await backend.writes_of("t", ["v1"]) == {}

    async def test_keep_last_spares_what_is_rebuilt_from(self, backend: Any) -> None:
        await grow(backend, *(f"v{n}" for n in range(10)), keep_last=1)
        await backend.put_writes("t", "v9", [make_write("v9")])
        await self.save_chain(backend, *(f"w{n}" for n in range(80)), keep_last=1)
        assert await list_versions(backend) == ["w79"]
        needed = ["v9", *(f"w{n}" for n in range(80))]
        assert set(await backend.writes_of("t", needed)) == set(needed)
        archive = await backend.read_thread("t")
        kept = [it.checkpoint_id for it in archive.lines[0].records]
        assert kept == needed

    async def test_keep_last_gives_back_what_is_needed_no_more(self, backend: Any) -> None:
        await grow(backend, "v0", keep_last=1)
        await self.save_chain(backend, *(f"w{n}" for n in range(70)), keep_last=1)
        await grow(backend, *(f"x{n}" for n in range(70)), keep_last=1)
        archive = await backend.read_thread("t")
        assert len(archive.lines[0].records) < 70
        assert await list_versions(backend) == ["x69"]


class Parents(BackendKit):
    """``write_state(forks=False)`` and ``write_state(is_root=True)``."""

    async def read_parent(self, backend: Any, checkpoint_id: str) -> str | None:
        found = await backend.read_state("t", checkpoint_id)
        parent_id: str | None = found.version.parent_id
        return parent_id

    async def test_a_parent_that_is_the_head_is_no_fork(self, backend: Any) -> None:
        await grow(backend, "v0", "v1")
        await grow(backend, "v2", parent_id="v1", forks=False)
        assert await self.read_parent(backend, "v2") == "v1"
        assert await list_versions(backend) == ["v2", "v1", "v0"]

    async def test_a_version_says_the_same_by_itself_and_in_the_history(self, backend: Any) -> None:
        for n in range(3):
            await backend.write_state("t", {"n": n}, checkpoint_id=f"v{n}", labels={"l": n})
        listed = await backend.history("t")
        assert [it.parent_id for it in listed] == ["v1", "v0", None]
        assert await backend.version("t") == listed[0]
        assert [await backend.version("t", f"v{2 - n}") for n in range(3)] == listed

    async def test_a_parent_that_is_not_the_head_is_a_conflict_but_for_a_fork(
        self, backend: Any
    ) -> None:
        with pytest.raises(ConflictError):
            await grow(backend, "v0", parent_id="unknown", forks=False)
        await grow(backend, "v0", "v1")
        with pytest.raises(ConflictError):
            await grow(backend, "v2", parent_id="unknown", forks=False)
        with pytest.raises(ConflictError) as conflict:
            await grow(backend, "v2", parent_id="v0", forks=False)
        assert (conflict.value.head_id, conflict.value.parent_id) == ("v1", "v0")
        with pytest.raises(NotFoundError):
            await grow(backend, "v2", parent_id="unknown")
        assert await list_versions(backend) == ["v1", "v0"]

    async def test_a_loser_is_kept_beside_or_wins_as_it_asks(self, backend: Any) -> None:
        await grow(backend, "v0", "v1")
        late: dict[str, Any] = {"parent_id": "v0", "forks": False}
        side = await backend.write_state(
            "t", {"n": 1}, checkpoint_id="side", on_conflict="branch", **late
        )
        assert side.outcome == "side"
        assert (await backend.read_state("t")).version.checkpoint_id == "v1"
        won = await backend.write_state(
            "t", {"n": 2}, checkpoint_id="won", on_conflict="overwrite", **late
        )
        assert won.outcome == "head"
        assert (await backend.read_state("t")).version.checkpoint_id == "won"
        assert await self.read_parent(backend, "side") == "v0"
        assert await self.read_parent(backend, "won") == "v0"

    async def test_a_root_is_made_from_nothing_and_becomes_the_head(self, backend: Any) -> None:
        await grow(backend, "v0", "v1", is_root=True)
        assert await self.read_parent(backend, "v0") is None
        assert await self.read_parent(backend, "v1") is None
        found = await backend.read_state("t")
        assert found.version.checkpoint_id == "v1"
        await grow(backend, "v2")
        assert await self.read_parent(backend, "v2") == "v1"
        assert await find_problems(backend) == []

    @requires("branching")
    async def test_a_state_of_another_store_costs_what_changed(self, backend: Any) -> None:
        elsewhere = Mark("elsewhere", 7, 3, bytes(16))
        expected = Expected(made_from=elsewhere, head=elsewhere)
        for n in range(4):
            await backend.write_state(
                *("t", {"said": [*LONG, *range(n)]}),
                checkpoint_id=f"v{n}",
                expected=expected,
                **{"writer": "w"} if n % 2 else {"run": "r"},
            )
        records = (await backend.read_thread("t")).lines[0].records
        assert [len(it.payload) < 200 for it in records] == [False, True, True, True]
        assert [it.parent_id for it in await backend.history("t")] == ["v2", "v1", "v0", None]

    @requires("branching")
    async def test_a_fork_of_the_last_run_by_another_stores_state(self, backend: Any) -> None:
        elsewhere = Mark("elsewhere", 7, 3, bytes(16))
        expected = Expected(made_from=elsewhere, head=elsewhere)
        options: dict[str, Any] = {"run": "r", "expected": expected}
        for name in ("v1", "v2"):
            await backend.write_state("t", {"n": name}, checkpoint_id=name, run="r")
        with pytest.raises(NotFoundError):
            await backend.write_state("t", {"n": 3}, parent_id="nowhere", **options)
        await backend.write_state("t", {"n": 3}, checkpoint_id="v3", parent_id="v1", **options)
        assert await self.read_parent(backend, "v3") == "v1"

    async def test_a_writer_or_run_that_is_no_id_is_refused(self, backend: Any) -> None:
        save = partial(backend.write_state, "t", {"n": 1})
        await expect_invalid(INVALID_OPTIONAL_IDS, lambda it: save(writer=it), match="writer")
        await expect_invalid(INVALID_OPTIONAL_IDS, lambda it: save(run=it), match="run")
        assert await backend.load("t") is None

    @requires("branching")
    async def test_roots_cost_what_changed(self, backend: Any) -> None:
        await backend.write_state("t", {"said": LONG}, checkpoint_id="v0")
        await backend.write_state("t", {"said": [*LONG, "n"]}, checkpoint_id="v1", is_root=True)
        records = (await backend.read_thread("t")).lines[0].records
        assert len(records[1].payload) < 200
        assert (await backend.read_state("t")).state == {"said": [*LONG, "n"]}
