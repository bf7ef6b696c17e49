"""Existence of threads, and saves that need their thread or checkpoint to be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest

from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import ConflictError, IntegrityError
from locus_store.testing.kit import expect, needs, refused, requires, seam
from locus_store.testing.steps import BackendKit, find_problems, make_write
from locus_store.transfer.verifying import verify
from locus_store.types import ArchivedLine, ArchivedMessage, ArchivedThread, ArchivedWrite
from locus_store.types.records import PendingWrite
from locus_store.types.thread_info import DescribesThreads
from locus_store.values.encoding import pack_frame
from locus_store.versions import JSON_WRITE

DAY = timedelta(days=1)


def without_versions(thread_id: str, days: float = 0, **changes: Any) -> ArchivedThread:
    """Return a thread without data, ``days`` old; ``changes`` set its fields."""
    moment = datetime.now(UTC) - days * DAY
    empty: dict[str, Any] = {
        **dict.fromkeys(("user_id", "name", "expires_at")),
        "metadata": {},
        "lines": [],
        "messages": [],
    }
    minute = moment.replace(second=0, microsecond=0)
    return ArchivedThread(
        thread_id=thread_id, created_at=moment, active_at=minute, **{**empty, **changes}
    )


def make_message(sequence: int = 1, days: float = 0, text: str | None = "hello") -> ArchivedMessage:
    """Return a message, ``days`` old."""
    return ArchivedMessage(
        sequence=sequence,
        message_id=f"m{sequence}",
        role="user",
        metadata={"n": sequence, "of": [1.5, None]},
        created_at=datetime.now(UTC) - days * DAY,
        text=text,
        payload=None if text else pack_frame(b"[1]"),
    )


def make_logged_thread(thread_id: str, days: float) -> ArchivedThread:
    """Return a thread with only a message, ``days`` old."""
    newest = make_message(1, days)
    minute = newest.created_at.replace(second=0, microsecond=0)
    return replace(without_versions(thread_id, messages=[newest]), active_at=minute)


def make_pending_line(days: float = 0) -> ArchivedLine:
    """Return a namespace with only a pending write, ``days`` old."""
    moment = datetime.now(UTC) - days * DAY
    write = ArchivedWrite(checkpoint_id="v", write=make_write("a"), created_at=moment)
    return ArchivedLine(
        namespace="", head=None, floor=0, last_sequence=0, records=[], writes=[write]
    )


def make_older(thread: ArchivedThread, days: float, count: int | None = None) -> ArchivedThread:
    """Return the thread with all its versions, or the first ones, ``days`` older."""

    def age(line: ArchivedLine) -> ArchivedLine:
        old = [replace(it, created_at=it.created_at - days * DAY) for it in line.records[:count]]
        return replace(line, records=[*old, *line.records[len(old) :]])

    return replace(thread, lines=[age(it) for it in thread.lines])


async def rewrite(
    backend: Any, thread_id: str, change: Callable[[ArchivedThread], ArchivedThread]
) -> None:
    """Replace a thread by what a change makes of it."""
    thread = await backend.read_thread(thread_id)
    await backend.delete(thread_id)
    await backend.write_thread(change(thread))


async def make_old(backend: Any, **changes: Any) -> None:
    """Replace thread ``t`` by one whose versions are 40 days older, and with other changes."""
    await rewrite(backend, "t", lambda it: replace(make_older(it, 40), **changes))


MAKERS: dict[str, Callable[[str], ArchivedThread]] = {
    "message": lambda name: without_versions(
        name, messages=[make_message(1), make_message(2, text=None)]
    ),
    "name": lambda name: without_versions(name, name="Lisbon"),
    "empty name": lambda name: without_versions(name, name=""),
    "long name": lambda name: without_versions(name, name="é" * 1000),
    "user": lambda name: without_versions(name, user_id="alex"),
}
"""A thread by the only thing that makes it one."""


@requires("branching")
class Existence(BackendKit):
    """``exists``, lists, copies, ``delete`` and ``vacuum`` agree on which threads exist."""

    @pytest.fixture(params=["version", "version in a namespace", *MAKERS])
    async def kind(self, backend: Any, request: pytest.FixtureRequest) -> str:
        """Create thread ``t`` with one kind of data; return the kind."""
        if request.param in MAKERS:
            assert await backend.write_thread(MAKERS[request.param]("t")) is True
        else:
            namespace = "" if request.param == "version" else "sub"
            await backend.write_state("t", {"n": 1}, namespace=namespace, checkpoint_id="v")
        return str(request.param)

    async def list_existing(self, backend: Any) -> list[str]:
        """Return the listed threads, or those of two names that exist if there are no lists."""
        if backend.capabilities.list_threads:
            found: list[str] = await backend.list_threads()
            return found
        return [it for it in ("copy", "t") if await backend.exists(it)]

    async def test_a_version_message_name_or_user_makes_a_thread(
        self, backend: Any, kind: str
    ) -> None:
        assert await backend.exists("t") is True
        assert await self.list_existing(backend) == ["t"]
        assert await backend.exists("t", "v") is (kind == "version")
        assert (await backend.load("t") is not None) is (kind == "version")
        assert await backend.scan() == ["t"]

    @requires("branching", "list_with_metadata")
    async def test_only_threads_with_a_version_have_a_head(self, backend: Any, kind: str) -> None:
        heads = ["t"] if kind == "version" else []
        assert [it.thread_id for it in await backend.heads()] == heads

    async def test_whatever_makes_a_thread_is_copied(self, backend: Any, kind: str) -> None:
        assert await backend.copy_thread("t", "copy") is True
        source, copy = [await backend.read_thread(it) for it in ("t", "copy")]
        assert replace(copy, thread_id="t", active_at=source.active_at) == source
        listed = await self.list_existing(backend)
        assert sorted(listed) == ["copy", "t"]
        assert kind in MAKERS or listed == ["copy", "t"]  # without versions both have the same time
        with pytest.raises(ConflictError, match="'copy'"):
            await backend.copy_thread("t", "copy")
        assert await find_problems(backend) == []

    async def test_delete_answers_whether_there_was_a_thread(self, backend: Any, kind: str) -> None:
        checkpointer = StorageBackendAdapter(backend, state_type=dict)
        await backend.copy_thread("t", "u")
        for target, name in ((backend, "t"), (checkpointer, "u")):
            assert await target.delete(name, "unknown") is False
            assert [await target.delete(name) for _ in range(2)] == [True, False]
            assert await target.exists(name) is False
        assert await backend.scan() == []

    async def test_a_copy_keeps_the_message_log_and_the_user(self, backend: Any) -> None:
        for n in range(3):
            await backend.save("t", {"n": n}, checkpoint_id=f"v{n}")
        await backend.put_writes("t", "v2", [make_write("a")])
        thread = replace(
            await backend.read_thread("t"),
            user_id="alex",
            name="Lisbon",
            metadata={"k": [1, {"é": None}]},
            messages=[make_message(n, text="" if n == 2 else "hi") for n in (1, 2, 3, 7)],
        )
        await backend.delete("t")
        await backend.write_thread(thread)
        assert await backend.copy_thread("t", "copy") is True
        await backend.delete("t")
        copy = await backend.read_thread("copy")
        assert replace(copy, thread_id="t", active_at=thread.active_at) == thread
        assert await backend.load("copy", "v0") == {"n": 0}

    async def test_a_copy_onto_pending_writes_is_a_conflict(self, backend: Any) -> None:
        await backend.save("t", {"n": 1})
        await backend.put_writes("copy", "v", [make_write("a")])
        with pytest.raises(ConflictError, match=r"'copy'.*pending writes"):
            await backend.copy_thread("t", "copy")
        assert len(await backend.get_writes("copy", "v")) == 1
        assert await backend.load("copy") is None

    async def test_other_data_outlives_the_last_version(self, backend: Any, kind: str) -> None:
        is_version = kind.startswith("version")
        namespace = "other" if is_version else ""
        await backend.write_state("t", {"n": 2}, namespace=namespace, checkpoint_id="w")
        assert await self.list_existing(backend) == ["t"]
        before = await backend.read_thread("t")
        assert await backend.remove("t", ["w"], namespace=namespace) == 1
        assert await backend.exists("t") is True
        assert await self.list_existing(backend) == ["t"]
        after = await backend.read_thread("t")
        kept = [(it.messages, it.name, it.user_id) for it in (before, after)]
        assert kept[0] == kept[1]
        if is_version:
            assert await backend.remove("t", ["v"], namespace=after.lines[0].namespace) == 1
            assert await backend.scan() == []

    async def test_pending_writes_keep_no_thread_without_versions(self, backend: Any) -> None:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend.put_writes("t", "w", [make_write("a")], namespace="sub")
        assert await backend.delete("t", "v") is True
        assert await backend.exists("t") is False
        assert await self.list_existing(backend) == []
        assert await backend.delete("t") is False
        assert await backend.scan() == []

    async def test_a_thread_without_versions_can_be_saved(self, backend: Any, kind: str) -> None:
        before = await backend.read_thread("t")
        for n in range(2):
            await backend.save("t", {"n": n}, checkpoint_id=f"s{n}")
        after = await backend.read_thread("t")
        kept = [(it.messages, it.name, it.user_id) for it in (before, after)]
        assert kept[0] == kept[1]
        assert await backend.load("t") == {"n": 1}
        assert await self.list_existing(backend) == ["t"]

    @requires("branching", "ttl")
    async def test_an_expired_thread_of_other_data_is_gone(self, backend: Any, kind: str) -> None:
        if kind.startswith("version"):
            pytest.skip("the contract of expiry has it")
        ended = datetime.now(UTC) - DAY
        await backend.delete("t")
        await backend.write_thread(replace(MAKERS[kind]("t"), expires_at=ended))
        assert await backend.exists("t") is False
        assert await self.list_existing(backend) == []
        assert await backend.copy_thread("t", "copy") is False
        assert await backend.delete("t") is False

    async def test_all_threads_of_a_user_are_forgotten(self, backend: Any, kind: str) -> None:
        thread = await backend.read_thread("t")
        await backend.delete("t")
        await backend.write_thread(replace(thread, user_id="u"))
        counts = await backend.forget_user("u")
        assert counts["threads"] == 1
        assert counts["messages"] == len(thread.messages)
        assert await backend.exists("t") is False
        assert await backend.scan() == []

    @pytest.mark.parametrize("name", ["message 'm2'", "a pending write"])
    async def test_damaged_content_is_refused_and_found(self, backend: Any, name: str) -> None:
        damaged = pack_frame(b'"hello"').replace(b"hello", b"jello")
        line, write = make_pending_line(), PendingWrite("a", 0, "c", JSON_WRITE, damaged)
        line.writes[0] = replace(line.writes[0], write=write)
        messages = [make_message(), make_message(2)._replace(payload=damaged)]
        changes = {"messages": messages} if name.startswith("message") else {"lines": [line]}
        thread = without_versions("t", **changes)
        with pytest.raises(IntegrityError, match=name):
            await backend.write_thread(thread)
        assert await backend.read_thread("t") is None
        with suppress(IntegrityError):  # a service checks what is sent
            await backend.restore(thread)
            assert name in " ".join([str(it) async for it in verify(backend, ["t"])])

    @requires("branching", "list_threads")
    async def test_threads_without_versions_stand_among_the_others(self, backend: Any) -> None:
        for n in range(4):
            await backend.save(f"saved {n}", {"n": n})
            await backend.put_writes(f"pending {n}", "v", [make_write("a")])
            await backend.write_thread(make_logged_thread(f"logged {n}", 9 + n / 24))
        expected = [f"saved {n}" for n in (3, 2, 1, 0)] + [f"logged {n}" for n in range(4)]
        assert await backend.list_threads() == expected
        for place, name in enumerate(expected):
            assert await backend.list_threads(3, after=name) == expected[place + 1 : place + 4]
        assert await backend.list_threads(pattern="l*") == expected[4:]

    @requires("branching", "vacuum")
    async def test_vacuum_spares_a_thread_with_a_young_message(self, backend: Any) -> None:
        for n in range(3):
            await backend.save("t", {"n": n}, checkpoint_id=f"v{n}")
        await make_old(backend, messages=[make_message(1, 50), make_message(2, 1)])
        assert await backend.vacuum(30) == 2
        assert await backend.load("t") == {"n": 2}
        assert len((await backend.read_thread("t")).messages) == 2
        assert await find_problems(backend) == []

    @requires("branching", "vacuum")
    async def test_vacuum_spares_a_thread_with_a_young_pending_write(self, backend: Any) -> None:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await make_old(backend)
        await backend.put_writes("t", "v", [make_write("a")])
        assert await backend.vacuum(30) == 0
        assert len(await backend.get_writes("t", "v")) == 1

    @requires("branching", "vacuum", "list_threads")
    async def test_vacuum_removes_threads_of_which_nothing_is_young(self, backend: Any) -> None:
        await backend.save("saved", {"n": 1})
        saved = await backend.read_thread("saved")
        for thread in (
            without_versions("old message", messages=[make_message(1, 50), make_message(2, 40)]),
            without_versions(
                "young message", 40, messages=[make_message(1, 50), make_message(2, 1)]
            ),
            without_versions("old name", 40, name="Lisbon"),
            without_versions("young name", 1, name="Lisbon"),
            without_versions("old write", lines=[make_pending_line(40)]),
            without_versions("young write", 40, lines=[make_pending_line(1)]),
            make_older(replace(saved, thread_id="old version", messages=[make_message(1, 41)]), 40),
        ):
            await backend.write_thread(thread)
        found = await backend.vacuum_report(30)
        assert (found.removed, found.threads, found.messages) == (1, 4, 3)
        assert await backend.scan() == ["saved", "young message", "young name", "young write"]
        found = await backend.vacuum_report(30)
        assert (found.removed, found.threads, found.messages) == (0, 0, 0)
        assert await find_problems(backend) == []


_SEEN: list[list[tuple[str, int]] | None] = [None, []]


@seam("connection")
@requires("branching")
class MustExist(BackendKit):
    """``put_writes(must_exist=…)`` and ``write_state(thread_must_exist=True)``."""

    async def test_writes_of_a_deleted_checkpoint_are_refused(self, backend: Any) -> None:
        for seen in _SEEN:
            await backend.save("t", {"n": 1}, checkpoint_id="v")
            await backend.save("t", {"n": 2}, checkpoint_id="w")
            put = partial(_put_late, backend, seen=seen, must_exist="checkpoint")
            assert await put("v")
            await backend.delete("t", "v")
            with pytest.raises(ConflictError, match="gone"):
                await put("v")
            await backend.delete("t")
            for namespace in ("", "below"):
                with refused(ConflictError, namespace, match="gone"):
                    await put("w", namespace=namespace)
            assert await backend.scan() == []

    async def test_writes_of_a_thread_may_precede_their_checkpoint(self, backend: Any) -> None:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        for number, (seen, namespace) in enumerate(product(_SEEN, ("", "below"))):
            name = f"next {number}"
            assert await _put_late(backend, name, seen=seen, namespace=namespace)
            assert await backend.get_writes("t", name, namespace=namespace) == [make_write("a")]

    async def test_writes_of_a_deleted_thread_are_refused(self, backend: Any) -> None:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend.delete("t")
        for seen, namespace in product(_SEEN, ("", "below")):
            with refused(ConflictError, (seen, namespace), match="deleted"):
                await _put_late(backend, seen=seen, namespace=namespace)
        assert await backend.scan() == []

    @requires()
    async def test_a_save_whose_thread_must_exist_is_refused_without_it(self, backend: Any) -> None:
        for options in ({}, {"is_root": True}, {"ttl_seconds": 60}, {"keep_last": 1}):
            if "ttl_seconds" in options:
                needs(backend, "ttl")
            with pytest.raises(ConflictError, match="deleted"):
                await save_below(backend, **options)
            await backend.save("t", {"n": 1})
            await save_below(backend, **options)
            await save_below(backend, "second", **options)
            await backend.delete("t")
            with pytest.raises(ConflictError, match="deleted"):
                await save_below(backend, **options)
            assert await backend.exists("t") is False
            if backend.capabilities.list_threads:
                assert await backend.scan() == []

    async def test_a_thread_of_nothing_but_writes_does_not_exist(self, backend: Any) -> None:
        for namespace in ("", "below"):
            await backend.put_writes("t", "v", [make_write("a")], namespace=namespace)
        await expect(
            ConflictError,
            ("", "below", "other"),
            lambda it: save_below(backend, namespace=it),
            lambda it: _put_late(backend, "v", "b", namespace=it),
            lambda it: _put_late(backend, "v", "b", namespace=it, seen=[("a", 0)]),
            match="deleted",
        )
        assert await backend.exists("t") is False
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await save_below(backend)
        assert await backend.get_writes("t", "v") == [make_write("a")]

    async def test_a_thread_that_has_only_a_name_exists(self, backend: Any) -> None:
        if isinstance(backend, DescribesThreads):
            await backend.put_thread("t", name="Weather")
        else:
            await backend.write_thread(without_versions("t", name="Weather"))
        assert await _put_late(backend)
        await save_below(backend)
        assert await backend.namespaces("t") == ["below"]

    async def test_a_deletion_among_saves_and_writes_leaves_nothing(self, backend: Any) -> None:
        for number in range(8):
            await backend.save("t", {"n": 1}, checkpoint_id="v")
            late = [
                write(backend, namespace=f"n{n}")
                for write in (save_below, _put_late)
                for n in range(3)
            ]
            calls = [*late[:number], backend.delete("t"), *late[number:]]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            failed = [it for it in answers if isinstance(it, BaseException)]
            assert [it for it in failed if not isinstance(it, ConflictError)] == []
            assert await backend.scan() == []


async def save_below(
    backend: Any, checkpoint_id: str = "first", *, namespace: str = "below", **options: Any
) -> None:
    """Save a version of a namespace of thread ``t``, which must exist."""
    options |= {"namespace": namespace, "checkpoint_id": checkpoint_id}
    await backend.write_state("t", {"n": checkpoint_id}, thread_must_exist=True, **options)


async def _put_late(
    backend: Any,
    checkpoint_id: str = "w",
    task_id: str = "a",
    *,
    must_exist: str = "thread",
    **options: Any,
) -> Any:
    """Put a write of a checkpoint of thread ``t``; one of both must exist."""
    return await backend.put_writes(
        "t", checkpoint_id, [make_write(task_id)], must_exist=must_exist, **options
    )
