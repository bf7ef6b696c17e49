"""Documents in Redis or Valkey: a list for each thread, and the indexes that list it.

Each call is a plain one, which waits for the asynchronous client in a greenlet.
"""

from __future__ import annotations

import time
from asyncio import sleep
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby, islice
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final, TypeVar

from locus_store.backends.documents.protocol import (
    Body,
    ChangedError,
    Dated,
    Documents,
    Found,
)
from locus_store.backends.redis import scripts
from locus_store.backends.redis.keys import RedisKeys, bucket_of, microseconds, moment
from locus_store.backends.redis.thread_lists import PAGE, ThreadLists, name_in, time_in
from locus_store.errors import NotFoundError, SchemaError
from locus_store.runtime import loops
from locus_store.runtime.greenlets import run, wait
from locus_store.types import Active

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from locus_store.backends.documents.lanes import Lanes
    from locus_store.backends.documents.protocol import DocumentReads, Tag
    from locus_store.backends.redis.connections import Connections, LoopClient
    from locus_store.backends.redis.scripts import Script
    from locus_store.types import ArchivedThread

T = TypeVar("T")

LAYOUT: Final = b"4"
"""The version of the layout of keys and values."""

TOKEN_BYTES: Final = 8

_GET, _CONFIRM = scripts.DOCUMENTS["get"], scripts.DOCUMENTS["confirm"]
_PUT, _DELETE = scripts.DOCUMENTS["put"], scripts.DOCUMENTS["delete"]

IN_ONE_CALL: Final = 25
"""Threads that one call of a script reads; other clients wait for its end."""

MOST_TOGETHER: Final = 200
"""Threads that are read in one round trip for a list of known length."""

CLOCK_SECONDS: Final = 60.0
"""The server is asked for its time this often."""


class RedisDocuments(Documents):
    """Documents below a prefix.

    Args:
        connections: To the server or cluster.
        prefix: Prefix of all keys.
    """

    trusts_cache = keys_are_live = True
    rivals = "other clients"
    remedy = "Restore the server, or delete the thread"

    def __init__(self, connections: Connections, prefix: str) -> None:
        self.names = RedisKeys(prefix)
        self._connections = connections
        self._lists = ThreadLists(self.names, self._home)
        self._is_ours = False
        self.imported: set[str] = set()
        """Threads whose keys of the Locus SDK may stay."""

        self._ahead = timedelta()
        """The lead of the server's clock."""

        self._asked_at = -CLOCK_SECONDS

    # --- calls

    async def run_call(self, call: Callable[[], T]) -> T:
        """See ``Documents``, also for the following methods."""
        return await run(call)

    async def run_in_order(self, lanes: Lanes, key: str, call: Callable[[], T]) -> T:
        del lanes  # connections have one for each event loop
        home = await self._connections.home()
        return await home.in_order(key, lambda: home.within_one_time(partial(run, call)))

    def pause(self, seconds: float) -> None:
        wait(sleep(seconds))

    def off_loop(self, work: Callable[[], T], size: int) -> T:
        return wait(loops.off_loop(work, size)) if size > loops.THREADED_BYTES else work()

    # --- documents

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        return wait(self._get(key, known))

    async def _get(self, key: str, known: Tag | None) -> Found | None:
        home = await self._home()
        keys, theirs = [self.names.document(key)], self.names.foreign(key)
        if known is not None:
            found = _found(await home.read(_GET, keys, known))
            kinds = [] if found else await home.each(_GET, [], *(("TYPE", it) for it in theirs))
        else:
            others = (("TYPE", it) for it in theirs)
            answer, *kinds = await home.each(_GET, [(keys, (b"",))], *others)
            found = _found(answer)
        if found is None and key not in self.imported:
            self._refuse_foreign(home, dict(zip(theirs, kinds, strict=True)))
        return found

    def confirm(self, key: str) -> None:
        wait(self._confirm(key))

    async def _confirm(self, key: str) -> None:
        home = await self._home()
        if home.replicas:
            await home.again(lambda: home.write(_CONFIRM, self.names.writing(key), key))

    def get_all(self, known: Mapping[str, Tag | None]) -> DocumentReads:
        return _Read(wait(self._get_all(known)))

    async def _get_all(self, known: Mapping[str, Tag | None]) -> dict[str, Found | None]:
        home = await self._home()
        names = list(known)
        groups = [names[at : at + IN_ONE_CALL] for at in range(0, len(names), IN_ONE_CALL)]
        if home.is_cluster:  # the keys of a call share a slot
            names.sort(key=bucket_of)
            groups = [[*some] for _, some in groupby(names, bucket_of)]
        calls = [
            ([self.names.document(it) for it in group], [known[it] or b"" for it in group])
            for group in groups
        ]
        found: dict[str, Found | None] = {}
        for group, answer in zip(groups, await home.each(_GET, calls), strict=True):
            answers = answer if len(group) > 1 else [answer]
            found.update(zip(group, map(_found, answers), strict=True))
        return found

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        active_at = "" if body.active_at is None else max(0, microseconds(body.active_at))
        expires_at = "" if body.expires_at is None else microseconds(body.expires_at) // 1000
        content = token_bytes(TOKEN_BYTES), body.kept_bytes, body.rest
        return wait(self._write(_PUT, key, tag or b"", *content, active_at, expires_at))

    def delete(self, key: str, *, tag: Tag) -> None:
        wait(self._write(_DELETE, key, tag))

    async def _write(self, script: Script, key: str, *args: Any) -> bytes:
        """Run a conditional script; return its answer."""
        home = await self._home()
        keys = self.names.writing(key)
        answer: bytes | None = await home.attempt(lambda: home.write(script, keys, key, *args))
        if answer is None:
            raise ChangedError
        return answer

    # --- lists

    def keys(self, after: str = "") -> Iterator[str]:
        while page := wait(self._lists.scanned(PAGE, after)):
            yield from page
            after = page[-1]

    def active(self, size: int, after: str | None) -> Iterator[Active]:
        place = b"" if after is None else wait(self._lists.entry(after))
        if place is None:
            raise NotFoundError(f"there is no thread {after!r} to list after")
        while page := wait(self._lists.listed(size, place)):
            yield from map(_active, page)
            place = page[-1]
            size = max(size, PAGE)

    def newest(self, size: int = 0) -> Iterator[list[Dated]]:
        place, size = b"", min(size or PAGE, MOST_TOGETHER)
        while page := wait(self._lists.listed(size, place)):
            yield [Dated(*it) for it in map(_active, page)]
            place, size = page[-1], PAGE

    def expire(self) -> int:
        """Remove the threads whose time is over; return how many."""
        return wait(self._lists.expire())

    def sweep(self) -> None:
        names = self.keys()
        while page := list(islice(names, PAGE)):
            wait(self._lists.heal(page))

    # --- the store

    async def _home(self) -> LoopClient:
        """Return the connections, once the layout was found to be ours."""
        home = await self._connections.home()
        if not self._is_ours:
            await self._look(home)
            home = await self._connections.home()  # the other one may be closed by now
        return home

    async def _look(self, home: LoopClient) -> None:
        """Read the store's identity.

        Raises:
            SchemaError: Another release created the threads.
        """
        layout, store = await home.command("HMGET", self.names.meta, "layout", "store")
        if layout not in {None, LAYOUT}:
            raise SchemaError(
                f"the threads of prefix {self.names.prefix!r} in Redis {home.where} are of layout "
                f"{layout.decode()}, this release knows {LAYOUT.decode()} only; use the release "
                "that created them, or choose another prefix="
            )
        self._store, self._is_ours = store and store.decode(), True

    def identity(self) -> str | None:
        if self._store is None:
            self._is_ours = False
            wait(self._home())
        return self._store

    def identify(self, store: str) -> None:
        wait(self._identify(store))

    async def _identify(self, store: str) -> None:
        home = await self._home()
        await home.command("HSETNX", self.names.meta, "layout", LAYOUT)
        await home.command("HSETNX", self.names.meta, "store", store)
        await self._look(home)
        if self._store != store:
            raise ChangedError

    def now(self) -> datetime:
        if time.monotonic() - self._asked_at > CLOCK_SECONDS:
            wait(self._ask_for_time())
        return datetime.now(UTC) + self._ahead

    async def _ask_for_time(self) -> None:
        home, before = await self._home(), datetime.now(UTC)
        seconds, fraction = map(int, await home.command("TIME"))
        after = datetime.now(UTC)
        self._ahead = moment(1_000_000 * seconds + fraction) - (before + (after - before) / 2)
        self._asked_at = time.monotonic()

    def where(self, key: str) -> str:
        return f"thread {key!r} in Redis {self._connections.where}"

    # --- keys of others

    def _refuse_foreign(self, home: LoopClient, kinds: dict[str, Any]) -> None:
        """Refuse a thread that another library keeps below the same prefix.

        Args:
            home: The connections.
            kinds: The types of its keys.

        Raises:
            SchemaError: The Locus SDK's own backend, or a similar one, keeps it.
        """
        for key, kind in kinds.items():
            if kind in {b"string", "string"}:
                raise SchemaError(
                    f"Redis {home.where} has a key {key!r} that is not ours: the Locus SDK keeps "
                    "its threads so. Import them with `locus-store import locus "
                    "redis://host:port/db`, or use another prefix="
                )

    async def accept_import(self, thread: ArchivedThread) -> None:
        """Accept a thread beside keys of the Locus SDK that it was imported from."""
        home, name = await self._home(), thread.thread_id
        heads = [it.checkpoint_id for line in thread.lines for it in line.records[-1:]]
        keys = [key for it in heads for key in self.names.foreign_versions(name, it)]
        if any([await home.command("EXISTS", key) for key in keys]):
            self.imported.add(name)


class _Read:
    """Documents that were read together."""

    def __init__(self, found: dict[str, Found | None]) -> None:
        self._found = found

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``DocumentReads``."""
        del known
        return self._found[key]


def _found(answer: Any) -> Found | None:
    """Return the document of a script's answer."""
    if not answer:
        return None
    end = 2 + answer[1]
    tag, kind = answer[2:end], answer[:1]
    return Found(tag, None if kind == b"k" else answer[end:], continues=kind == b"c")


def _active(entry: bytes) -> Active:
    return Active(name_in(entry), time_in(entry))
