"""Documents in Redis or Valkey: a list for each thread, and the indexes that list it.

Each call is a plain one, which waits for the asynchronous client in a greenlet.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from asyncio import sleep
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby, islice
from operator import gt, lt
from secrets import token_bytes
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from locus_store.backends.documents.protocol import Body, ChangedError, Dated, Documents, Found, Tag
from locus_store.backends.documents.workers import WriteQueues
from locus_store.backends.redis import scripts
from locus_store.backends.redis.connections import Connections, LoopClient
from locus_store.backends.redis.keys import (
    BUCKETS,
    DEFAULT_TENANT,
    ENTRY_DIGITS,
    RedisKeys,
    compute_bucket,
)
from locus_store.errors import NotFoundError, SchemaError
from locus_store.runtime import loops
from locus_store.runtime.greenlets import run, wait
from locus_store.types import Active, ArchivedThread, Tenant
from locus_store.values.times import from_microseconds, to_microseconds

T = TypeVar("T")

PAGE: Final = 50
"""Threads that are read in one round trip."""

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
"""The server is asked for its time this often, and when this host's clock was set."""

SET_SECONDS: Final = 0.1
"""A clock that moved by more against the steady one was set, or the host was suspended."""


class ListedDocuments(Documents):
    """The documents of threads, as far as the indexes list them."""

    names: RedisKeys

    @abstractmethod
    def _open(self) -> LoopClient:
        """Return the connections of the running loop, once the layout was found to be ours."""

    def keys(self, after: str = "") -> Iterator[str]:
        while page := [it.decode() for it in self._read_page("ids", PAGE, after.encode())]:
            yield from page
            after = page[-1]

    def list_live(self, after: str) -> Iterator[tuple[str, bool]]:
        keys = self.keys(after)
        while names := list(islice(keys, PAGE)):
            asked = [("ZSCORE", self.names.list_indexes(compute_bucket(it))[0], it) for it in names]
            scores = wait(self._open().run_script_and_commands(_GET, [], *asked))
            yield from zip(names, (it is not None for it in scores), strict=True)

    def list_active(self, size: int, after: str | None) -> Iterator[Active]:
        place = b"" if after is None else self._find_entry(after)
        if place is None:
            raise NotFoundError(f"there is no thread {after!r} to list after")
        while page := self._read_page("active", size, place):
            yield from map(_parse_active, page)
            place = page[-1]
            size = max(size, PAGE)

    def iterate_newest(self, size: int = 0) -> Iterator[list[Dated]]:
        place, size = b"", min(size or PAGE, MOST_TOGETHER)
        while page := self._read_page("active", size, place):
            yield [Dated(*it) for it in map(_parse_active, page)]
            place, size = page[-1], PAGE

    def _find_entry(self, thread_id: str) -> bytes | None:
        """Return the entry of a thread; ``None`` if it is not listed."""
        client, active = self._open(), self.names.list_indexes(compute_bucket(thread_id))[0]
        score = wait(client.run_command("ZSCORE", active, thread_id))
        key = self.names.get_document(thread_id)
        if score is None or not wait(client.run_command("EXISTS", key)):
            return None
        return f"{float(score):0{ENTRY_DIGITS}.0f}{thread_id}".encode()

    def _read_page(self, kind: str, limit: int, after: bytes) -> list[bytes]:
        """Return the first entries of all buckets in order.

        Each is asked for a few; those whose few all come before the last one that is wanted are
        asked again.
        """
        if limit == 0:
            return []
        is_newest_first = kind == "active"
        found: list[bytes] = []
        places: dict[int, bytes] = dict.fromkeys(range(BUCKETS), after)
        size = limit // (BUCKETS // 4) + 2  # of evenly spread ones, few buckets have more
        while places:
            for bucket, (end, *page) in self._read_pages(kind, size, places).items():
                found += page
                places[bucket] = end
            places = {bucket: end for bucket, end in places.items() if end}
            found.sort(reverse=is_newest_first)
            del found[limit:]
            if len(found) == limit:
                last = found[-1]
                is_before = gt if is_newest_first else lt
                places = {b: it for b, it in places.items() if is_before(it, last)}
            size = min(2 * size, limit)
        return found

    def _read_pages(self, kind: str, size: int, places: dict[int, bytes]) -> dict[int, list[bytes]]:
        """Return the result of ``page`` for each bucket after its position.

        One script reads all buckets. On a cluster they are on different nodes: one script each.
        """
        buckets, client = list(places), self._open()
        groups = [[it] for it in buckets] if client.is_cluster else [buckets]
        calls = [
            (
                [key for it in group for key in self.names.list_indexes(it)],
                (kind, size, *(places[it] for it in group)),
            )
            for group in groups
        ]
        answers = wait(client.run_script_and_commands(scripts.DOCUMENTS["page"], calls))
        each = (it for pages in answers for it in _split_pages(pages))
        return dict(zip(buckets, each, strict=True))

    def expire(self) -> int:
        """Remove the threads whose time is over; return how many."""
        client, count = self._open(), 0
        expiry = [self.names.list_indexes(bucket)[2] for bucket in range(BUCKETS)]
        while expiry:
            calls = [([it], (PAGE,)) for it in expiry]
            over = wait(client.run_script_and_commands(scripts.DOCUMENTS["expired"], calls))
            count += self._heal([it.decode() for some in over for it in some])
            expiry = [it for it, some in zip(expiry, over, strict=True) if some]
        return count

    def sweep(self) -> None:
        names = self.keys()
        while page := list(islice(names, PAGE)):
            self._heal(page)

    def _heal(self, names: Iterable[str]) -> int:
        """Remove those of the threads whose time is over or whose key was lost.

        Returns:
            How many of them had a time.
        """
        calls = [(self.names.list_writing(it), (it,)) for it in names]
        expire = self._open().run_script_and_commands(scripts.DOCUMENTS["expire"], calls)
        return sum(wait(expire))

    def count_tenants(self, items_prefix: str) -> list[Tenant]:
        """Return the tenants that have threads, or items in the store with a prefix."""
        seconds, fraction = map(int, wait(self._open().run_command("TIME")))
        now = 1_000_000 * seconds + fraction
        threads = self._count([*range(BUCKETS)], self.names.prefix, "ids", now // 1000)
        items = self._count(["store"], items_prefix, "names", now)
        names = sorted(threads.keys() | items.keys())
        return [Tenant(it, threads.get(it, 0), items.get(it, 0)) for it in names]

    def _count(
        self, hash_tags: Sequence[object], prefix: str, kind: str, now: int
    ) -> dict[str, int]:
        """Return how many live names the tenants have in the sorted sets of a kind.

        A tenant whose names have all expired is among them until they are removed.
        """
        client = self._open()
        asked = [("SMEMBERS", f"{prefix}{{{it}}}:tenants") for it in hash_tags]
        found = wait(client.run_script_and_commands(_GET, [], *asked))
        pairs = [
            (unquote(quoted.decode()), tag)
            for tag, some in zip(hash_tags, found, strict=True)
            for quoted in some
        ]
        pairs += [(DEFAULT_TENANT, it) for it in hash_tags]
        starts = [RedisKeys(prefix, name).get_start(tag) for name, tag in pairs]
        cards = [("ZCARD", f"{it}:{kind}") for it in starts]
        over = [("ZCOUNT", f"{it}:expiry", "-inf", now) for it in starts]
        counts = wait(client.run_script_and_commands(_GET, [], *cards, *over))
        live: dict[str, int] = {}
        for (name, _), all_of, gone in zip(pairs, counts, counts[len(pairs) :], strict=False):
            if all_of:
                live[name] = live.get(name, 0) + all_of - gone
        return live


def _split_pages(pages: bytes) -> Iterator[list[bytes]]:
    """Yield the parts of each bucket in the answer of ``page``."""
    parts, at = pages.split(b"\0"), 0
    while at < len(parts):
        begin, at = at + 1, at + 1 + int(parts[at])
        yield parts[begin:at]


def _parse_active(entry: bytes) -> Active:
    at = from_microseconds(int(entry[:ENTRY_DIGITS]))
    return Active(entry[ENTRY_DIGITS:].decode(), at)


class RedisDocuments(ListedDocuments):
    """Documents below a prefix.

    Args:
        connections: To the server or cluster.
        prefix: Prefix of all keys.
        tenant: Whose threads they are.
    """

    trusts_cache = True
    rivals = "other clients"
    remedy = "Restore the server, or delete the thread"

    def __init__(self, connections: Connections, prefix: str, tenant: str) -> None:
        self._connections = connections
        self._is_ours = False
        self.names = RedisKeys(prefix, tenant)
        self.imported: set[str] = set()
        """Threads whose keys of the Locus SDK may stay."""

        self._ahead = timedelta()
        """The time by which the server's clock is ahead."""

        self._asked_at, self._apart = -CLOCK_SECONDS, 0.0

    def for_tenant(self, tenant: str) -> RedisDocuments:
        other = copy(self)
        other.names, other.imported = replace(self.names, tenant=tenant), set()
        return other

    async def run_call(self, call: Callable[[], T]) -> T:
        return await run(call)

    async def run_in_order(self, queues: WriteQueues, key: str, call: Callable[[], T]) -> T:
        del queues  # connections have one for each event loop
        client = await self._connections.get()
        return await client.run_in_order(
            key, lambda: client.run_within_one_time(partial(run, call))
        )

    def pause(self, seconds: float) -> None:
        wait(sleep(seconds))

    def run_off_loop(self, work: Callable[[], T], size: int) -> T:
        return wait(loops.run_off_loop(work, size)) if size > loops.THREADED_BYTES else work()

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        client = self._open()
        keys, theirs = [self.names.get_document(key)], self.names.list_foreign(key)
        others = [("TYPE", it) for it in theirs]
        if known is not None and (found := _parse_answer(wait(client.read(_GET, keys, known)))):
            return found
        calls = [(keys, (b"",))] if known is None else []
        answers = wait(client.run_script_and_commands(_GET, calls, *others))
        found = _parse_answer(answers.pop(0)) if calls else None
        if found is None and key not in self.imported:
            self._refuse_foreign(client, dict(zip(theirs, answers, strict=True)))
        return found

    def confirm(self, key: str) -> None:
        client, keys = self._open(), self.names.list_writing(key)
        if client.replicas:
            wait(client.retry(lambda: client.write(_CONFIRM, keys, key)))

    def get_all(self, tags: Mapping[str, Tag | None]) -> Mapping[str, Found | None]:
        client = self._open()
        names = list(tags)
        groups = [names[at : at + IN_ONE_CALL] for at in range(0, len(names), IN_ONE_CALL)]
        if client.is_cluster:  # the keys of a call share a slot
            names.sort(key=compute_bucket)
            groups = [[*some] for _, some in groupby(names, compute_bucket)]
        calls = [
            ([self.names.get_document(it) for it in group], [tags[it] or b"" for it in group])
            for group in groups
        ]
        found: dict[str, Found | None] = {}
        answers = wait(client.run_script_and_commands(_GET, calls))
        for group, answer in zip(groups, answers, strict=True):
            each = answer if len(group) > 1 else [answer]
            found.update(zip(group, map(_parse_answer, each), strict=True))
        return found

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        active_at = "" if body.active_at is None else max(0, to_microseconds(body.active_at))
        expires_at = "" if body.expires_at is None else to_microseconds(body.expires_at) // 1000
        content = token_bytes(TOKEN_BYTES), body.kept_bytes, body.rest
        return self._write(_PUT, key, tag or b"", *content, active_at, expires_at)

    def delete(self, key: str, *, tag: Tag) -> None:
        self._write(_DELETE, key, tag)

    def _write(self, script: scripts.Script, key: str, *args: Any) -> bytes:
        """Run a conditional script; return its answer."""
        client, keys = self._open(), self.names.list_writing(key)
        answer: bytes = wait(client.attempt(lambda: client.write(script, keys, key, *args)))
        return answer

    def _open(self) -> LoopClient:
        client = wait(self._connections.get())
        if not self._is_ours:
            self._look(client)
            client = wait(self._connections.get())  # the other one may be closed by now
        return client

    def _look(self, client: LoopClient) -> None:
        """Read the store's identity; refuse threads that another release created."""
        layout, store = wait(client.run_command("HMGET", self.names.meta, "layout", "store"))
        if layout not in {None, LAYOUT}:
            raise SchemaError(
                f"the threads of prefix {self.names.prefix!r} in Redis {client.where} are of "
                f"layout {layout.decode()}, this release knows {LAYOUT.decode()} only; use the "
                "release that created them, or choose another prefix="
            )
        self._store, self._is_ours = store and store.decode(), True

    def read_identity(self) -> str | None:
        if self._store is None:
            self._is_ours = False
            self._open()
        return self._store

    def identify(self, store: str) -> None:
        client = self._open()
        wait(client.run_command("HSETNX", self.names.meta, "layout", LAYOUT))
        wait(client.run_command("HSETNX", self.names.meta, "store", store))
        self._look(client)
        if self._store != store:
            raise ChangedError

    def read_clock(self) -> datetime:
        steady = time.monotonic()
        was_set = abs(time.time() - steady - self._apart) > SET_SECONDS
        if was_set or steady - self._asked_at > CLOCK_SECONDS:
            self._ask_for_time()
        return datetime.now(UTC) + self._ahead

    def _ask_for_time(self) -> None:
        client = self._open()
        for _ in range(3):  # the server may have answered at any time of a call
            before = datetime.now(UTC)
            seconds, fraction = map(int, wait(client.run_command("TIME")))
            half = (datetime.now(UTC) - before) / 2
            if half.total_seconds() < SET_SECONDS:
                break
        self._ahead = from_microseconds(1_000_000 * seconds + fraction) - before - half
        self._asked_at = time.monotonic()
        self._apart = time.time() - self._asked_at

    def locate(self, key: str) -> str:
        return f"thread {key!r} in Redis {self._connections.where}"

    def _refuse_foreign(self, client: LoopClient, kinds: dict[str, Any]) -> None:
        """Refuse a thread that the Locus SDK, or a similar library, keeps below the prefix."""
        for key, kind in kinds.items():
            if kind in {b"string", "string"}:
                raise SchemaError(
                    f"Redis {client.where} has a key {key!r} that is not ours: the Locus SDK keeps "
                    "its threads so. Import them with `locus-store import locus "
                    "redis://host:port/db`, or use another prefix="
                )

    def accept_import(self, thread: ArchivedThread) -> None:
        """Accept a thread beside keys of the Locus SDK that it was imported from."""
        client, name = self._open(), thread.thread_id
        heads = [it.checkpoint_id for line in thread.lines for it in line.records[-1:]]
        keys = [key for it in heads for key in self.names.list_foreign_versions(name, it)]
        if any(wait(client.run_command("EXISTS", key)) for key in keys):
            self.imported.add(name)


def _parse_answer(answer: Any) -> Found | None:
    if not answer:
        return None
    end = 2 + answer[1]
    tag, kind = answer[2:end], answer[:1]
    return Found(tag, None if kind == b"k" else answer[end:], continues=kind == b"c")
