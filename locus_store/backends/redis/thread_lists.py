"""Lists of threads: the indexes of all buckets, read as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from locus_store.backends.redis import scripts
from locus_store.backends.redis.keys import (
    BUCKETS,
    ENTRY_DIGITS,
    RedisKeys,
    compute_bucket,
    from_microseconds,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from datetime import datetime

    from locus_store.backends.redis.connections import LoopClient

PAGE: Final = 50
"""Threads that are read in one round trip."""


class ThreadLists:
    """The indexes of threads below a prefix.

    Args:
        keys: The names of the keys.
        get_client: Returns the connections of the running loop.
    """

    def __init__(self, keys: RedisKeys, get_client: Callable[[], Awaitable[LoopClient]]) -> None:
        self.keys = keys
        self._get_client = get_client

    async def list_entries(self, limit: int, after: bytes = b"") -> list[bytes]:
        """Return entries of listed threads after ``after``, the most recently active first."""
        return await self._page("active", limit, after)

    async def scan(self, limit: int, after: str | None) -> list[str]:
        """Return all live threads by id."""
        found = await self._page("ids", limit, (after or "").encode())
        return [it.decode() for it in found]

    async def read_entry(self, thread_id: str) -> bytes | None:
        """Return the entry of a listed thread."""
        client, active = (
            await self._get_client(),
            self.keys.list_indexes(compute_bucket(thread_id))[0],
        )
        score = await client.run_command("ZSCORE", active, thread_id)
        if score is None or not await client.run_command(
            "EXISTS", self.keys.get_document(thread_id)
        ):
            return None
        return f"{float(score):0{ENTRY_DIGITS}.0f}{thread_id}".encode()

    async def _page(self, kind: str, limit: int, after: bytes) -> list[bytes]:
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
            for bucket, (end, *page) in (await self._pages(kind, size, places)).items():
                found += page
                places[bucket] = end
            places = {bucket: end for bucket, end in places.items() if end}
            found.sort(reverse=is_newest_first)
            del found[limit:]
            if len(found) == limit:
                last = found[-1]
                ahead = {b: it for b, it in places.items() if _before(it, last, is_newest_first)}
                places = ahead
            size = min(2 * size, limit)
        return found

    async def _pages(
        self, kind: str, size: int, places: dict[int, bytes]
    ) -> dict[int, list[bytes]]:
        """Return the result of ``page`` for each bucket after its position.

        One script reads all buckets. On a cluster they are on different nodes: one script each.
        """
        buckets = list(places)
        client = await self._get_client()
        groups = [[it] for it in buckets] if client.is_cluster else [buckets]
        calls = [
            (
                [key for it in group for key in self.keys.list_indexes(it)],
                (kind, size, *(places[it] for it in group)),
            )
            for group in groups
        ]
        answers = await client.run_script_and_commands(scripts.DOCUMENTS["page"], calls)
        return dict(zip(buckets, (it for pages in answers for it in _parted(pages)), strict=True))

    async def expire(self) -> int:
        """Remove the threads whose time is over; return how many."""
        client, count = await self._get_client(), 0
        expiry = [self.keys.list_indexes(bucket)[2] for bucket in range(BUCKETS)]
        while expiry:
            calls = [([it], (PAGE,)) for it in expiry]
            over = await client.run_script_and_commands(scripts.DOCUMENTS["expired"], calls)
            names = [it.decode() for some in over for it in some]
            count += await self.heal(names)
            expiry = [it for it, some in zip(expiry, over, strict=True) if some]
        return count

    async def heal(self, names: Iterable[str]) -> int:
        """Remove those of the threads whose time is over or whose key was lost.

        Returns:
            How many of them had a time.
        """
        calls = [(self.keys.list_writing(it), (it,)) for it in names]
        return sum(
            await (await self._get_client()).run_script_and_commands(
                scripts.DOCUMENTS["expire"], calls
            )
        )


def _parted(pages: bytes) -> Iterator[list[bytes]]:
    """Yield the parts of each bucket in the answer of ``page``."""
    parts, at = pages.split(b"\0"), 0
    while at < len(parts):
        begin, at = at + 1, at + 1 + int(parts[at])
        yield parts[begin:at]


def _before(entry: bytes, last: bytes, is_newest_first: bool) -> bool:
    return entry > last if is_newest_first else entry < last


def parse_time(entry: bytes) -> datetime:
    """Return the time of a thread's activity from an entry of ``ThreadLists.list_entries``."""
    return from_microseconds(int(entry[:ENTRY_DIGITS]))


def name_in(entry: bytes) -> str:
    """Return the thread's id from an entry of ``ThreadLists.list_entries``."""
    return entry[ENTRY_DIGITS:].decode()
