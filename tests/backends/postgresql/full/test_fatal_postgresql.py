"""A session that PostgreSQL ends behind any reply: the operation's own error, or a typed one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zlib import crc32

import fatal
import pytest
from tiers import ALL

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    NotFoundError,
    PostgreSQLBackend,
    PostgreSQLStore,
    StorageBackendAdapter,
)
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import servers

pytestmark = pytest.mark.anyio

MOST = 200
"""Replies of an operation."""

Operation = tuple[Any, "Callable[[World, str], Awaitable[Any]]"]


class World:
    """A checkpointer and a store over one database, behind the proxy."""

    def __init__(self, url: str) -> None:
        self.backend = PostgreSQLBackend(url, pool_size=2)
        self.checkpointer = StorageBackendAdapter(self.backend, state_type=dict)
        self.store = PostgreSQLStore(backend=self.backend)

    async def make(self, thread: str) -> None:
        """The thread with two versions and a write, another and an expired one, and two items."""
        old = StorageBackendAdapter(self.backend, state_type=dict, ttl_seconds=1e-6)
        await asyncio.gather(
            self.checkpointer.save({"said": ["tea 0"]}, thread, "v0"),
            self.checkpointer.save({"said": ["tea 1"]}, thread, "v1"),
            self.backend.put_writes(thread, "v1", [write("task")]),
            self.checkpointer.save({"said": []}, f"{thread}-there", "v0"),
            old.save({"said": []}, f"{thread}-expired", "v0"),
            self.store.put_batch([(("items", thread), name, {"n": 1}) for name in "ab"]),
        )


def write(task: str) -> PendingWrite:
    return PendingWrite(task_id=task, idx=0, channel="c", type="text", payload=b"x")


async def counted(work: Awaitable[Any]) -> int:
    return len(await work)


async def read(it: World, thread: str) -> bool:
    found = await it.backend.read_thread(thread)
    return found is not None and len(found.lines[0].records) == 2


async def restored(it: World, thread: str) -> bool:
    found = await it.backend.read_thread(thread)
    assert found is not None
    return await it.backend.write_thread(replace(found, thread_id=f"{thread}-restored"))


async def forgotten(it: World, thread: str) -> int:
    return (await it.backend.forget_user(f"user of {thread}"))["threads"]


SAID = {"said": ["tea 1"]}
OPERATIONS: dict[str, Operation] = {
    "save": ("n", lambda it, t: it.checkpointer.save({"said": ["b"]}, t, "n")),
    "first save": ("n", lambda it, t: it.checkpointer.save({"said": ["b"]}, f"{t}-new", "n")),
    "save of a known parent": (
        "n",
        lambda it, t: it.checkpointer.save({"said": []}, t, "n", parent_checkpoint_id="v0"),
    ),
    "save of a missing parent": (
        NotFoundError,
        lambda it, t: it.checkpointer.save({"said": []}, t, "n", parent_checkpoint_id="none"),
    ),
    "replacing save": ("v0", lambda it, t: it.checkpointer.save({"said": ["b"]}, t, "v0")),
    "load": (SAID, lambda it, t: it.checkpointer.load(t)),
    "load of an old version": (
        {"said": ["tea 0"]},
        lambda it, t: it.checkpointer.load(t, "v0"),
    ),
    "load of nothing": (None, lambda it, t: it.checkpointer.load(f"{t}-none")),
    "exists": (True, lambda it, t: it.checkpointer.exists(t)),
    "list_checkpoints": (["v1", "v0"], lambda it, t: it.checkpointer.list_checkpoints(t)),
    "history behind nothing": (
        NotFoundError,
        lambda it, t: it.backend.history(t, before="none"),
    ),
    "list_threads": (
        NotFoundError,
        lambda it, t: it.backend.list_threads(after=f"{t}-none"),
    ),
    "list_with_metadata": (1, lambda it, t: counted(it.checkpointer.list_with_metadata(1))),
    "search": (1, lambda it, t: counted(it.checkpointer.search("tea", 1))),
    "query_by_metadata": ([], lambda it, t: it.checkpointer.query_by_metadata("a", t)),
    "get_metadata": ({}, lambda it, t: it.checkpointer.get_metadata(t)),
    "copy_thread": (True, lambda it, t: it.checkpointer.copy_thread(t, f"{t}-copy")),
    "copy_thread onto a thread": (
        ConflictError,
        lambda it, t: it.checkpointer.copy_thread(t, f"{t}-there"),
    ),
    "copy_thread of nothing": (
        False,
        lambda it, t: it.checkpointer.copy_thread(f"{t}-none", f"{t}-copy"),
    ),
    "delete of a version": (True, lambda it, t: it.checkpointer.delete(t, "v0")),
    "delete": (True, lambda it, t: it.checkpointer.delete(t)),
    "vacuum": (0, lambda it, t: it.checkpointer.vacuum(30)),
    "expire": (1, lambda it, t: it.checkpointer.expire()),
    "prune": (1, lambda it, t: it.backend.prune(t)),
    "put_writes": (True, lambda it, t: it.backend.put_writes(t, "v1", [write("b")])),
    "put_writes beside others": (
        ConflictError,
        lambda it, t: it.backend.put_writes(t, "v1", [write("b")], seen=[]),
    ),
    "get_writes": (1, lambda it, t: counted(it.backend.get_writes(t, "v1"))),
    "namespaces": ([""], lambda it, t: it.backend.namespaces(t)),
    "read_thread": (True, read),
    "write_thread": (True, restored),
    "forget_user": (0, forgotten),
    "store put": (1, lambda it, t: it.store.put(("items", t), "c", {"n": 3})),
    "store get": ({"n": 1}, lambda it, t: it.store.get(("items", t), "a")),
    "store search": (2, lambda it, t: counted(it.store.search(("items", t)))),
    "store delete": (True, lambda it, t: it.store.delete(("items", t), "a")),
    "store list": (2, lambda it, t: counted(it.store.list(("items", t)))),
    "store clear": (2, lambda it, t: it.store.clear_namespace(("items", t))),
}


@pytest.fixture
async def proxy(postgresql: servers.Server) -> AsyncIterator[fatal.Proxy]:
    made = fatal.Proxy(postgresql.port, postgresql.host)
    yield made
    made.close()


@pytest.fixture
async def world(
    proxy: fatal.Proxy, postgresql: servers.Server, migrated_database: str
) -> AsyncIterator[World]:
    name = urlsplit(migrated_database).path.removeprefix("/")
    made = World(proxy.url(postgresql, name, sslmode="disable"))
    async with made.store, made.backend:
        yield made


def out(world: World) -> int:
    homes: Any = world.backend._runner._pools._resources
    return int(homes[asyncio.get_running_loop()]._sync.pool.checkedout())


async def outcome(work: Awaitable[Any]) -> Any:
    """A value, or the class of an error."""
    try:
        return await work
    except Exception as exc:  # noqa: BLE001  (compared)
        return type(exc)


AT_ONCE = ("save of a missing parent", "load", "copy_thread onto a thread", "delete")
"""Tested with a socket that closes at once, too; the later it closes, the more may go wrong."""


@pytest.mark.parametrize(
    ("name", "is_late"), [*((it, True) for it in OPERATIONS), *((it, False) for it in AT_ONCE)]
)
async def test_a_session_ended_behind_any_reply_hides_no_error(
    name: str, is_late: bool, world: World, proxy: fatal.Proxy
) -> None:
    expected, call = OPERATIONS[name]
    is_error = isinstance(expected, type)
    every = 1 if ALL else 2
    for number in range(1 + crc32(name.encode()) % every, MOST, every):
        thread = f"t{number}"
        await world.make(thread)
        proxy.end_behind(number, late=is_late)
        found = await asyncio.wait_for(outcome(call(world, thread)), 60)
        was_ended = proxy.was_ended
        proxy.end_behind(-1, late=False)
        # The outcome of a commit may be unknown; an error of the rules never is.
        allowed = [expected] if is_error else [expected, ConnectionFailedError]
        assert found in allowed, f"behind reply {number}"
        assert out(world) == 0
        assert await world.checkpointer.load(f"{thread}-there") == {"said": []}
        if not was_ended:
            assert number > 1
            return
        await outcome(world.checkpointer.expire())
    raise AssertionError("it never ended")
