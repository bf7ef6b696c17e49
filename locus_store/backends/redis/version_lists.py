"""Versions of many namespaces, each read by a script of its own, in few round trips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.backend import ListsVersions
from locus_store.backends.redis import scripts
from locus_store.backends.redis.answers import records_in, version_in, whole, writes_in
from locus_store.backends.redis.thread_lists import name_in, time_in
from locus_store.types import FOREVER, LineContents
from locus_store.types.arguments import check_limit
from locus_store.versions.reading import Newest, is_plain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from datetime import datetime

    from locus_store.backends.redis.connections import LoopClient
    from locus_store.backends.redis.keys import RedisKeys
    from locus_store.backends.redis.scripts import Script
    from locus_store.backends.redis.thread_lists import ThreadLists
    from locus_store.types import Version, VersionsWanted

ALL: Final = 2**31 - 1

PAGE: Final = 200
"""Threads that are read in one round trip."""


class VersionReads:
    """Reads of namespaces, which are given as pairs of a thread and its namespace.

    Args:
        keys: The names of the keys.
    """

    def __init__(self, keys: RedisKeys) -> None:
        self._keys = keys

    async def names(self, home: LoopClient, thread_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return the namespaces in which live threads have a version."""
        calls = [(self._keys.reading(it, ""), ()) for it in thread_ids]
        found = await home.each(scripts.NAMES, calls)
        each = zip(thread_ids, found, strict=True)
        return [(thread_id, name.decode()) for thread_id, some in each for name in sorted(some)]

    async def heads(
        self, home: LoopClient, names: Sequence[tuple[str, str]]
    ) -> list[list[Version]]:
        """Return the head of each namespace in a list, which is empty if there is none."""
        return [it or [] for it in await self._versions(home, scripts.HEADS, names)]

    async def histories(
        self,
        home: LoopClient,
        names: Sequence[tuple[str, str]],
        *,
        limit: int = ALL,
        before: str | None = None,
    ) -> list[list[Version]]:
        """Return visible versions of namespaces, newest first.

        Args:
            home: The connections.
            names: The namespaces.
            limit: At most this many of each, if ``before`` is not given.
            before: Only versions below this id; where none has it, those of smaller ids.
        """
        start = "" if before is None else f"={before}"
        found = await self._versions(home, scripts.HISTORY, names, start, limit)
        lacking = [name for name, it in zip(names, found, strict=True) if it is None]
        if before is None or not lacking:
            return [it or [] for it in found]
        others = iter(await self.histories(home, lacking))
        return [_with_smaller_ids(next(others), before) if it is None else it for it in found]

    async def _versions(
        self, home: LoopClient, script: Script, names: Sequence[tuple[str, str]], *args: Any
    ) -> list[list[Version] | None]:
        """Return the versions that a script answers; ``None``: the one to begin below is missing.

        Raises:
            IntegrityError: A namespace lost keys.
        """
        found = await home.each(script, [(self._keys.reading(*it), args) for it in names])
        return [_versions_in(*name, it) for name, it in zip(names, found, strict=True)]

    async def contents(
        self, home: LoopClient, lines: dict[tuple[str, str], list[str]]
    ) -> list[LineContents]:
        """Return what the states of versions, given by their ids, are made of."""
        calls = [(self._keys.reading(*name), ids) for name, ids in lines.items()]
        found = await home.each(scripts.CONTENTS, calls)
        each = zip(lines.items(), found, strict=True)
        return [_contents_in(name[0], ids, it) for (name, ids), it in each if whole(name[0], it)]


def _with_smaller_ids(found: list[Version], before: str) -> list[Version]:
    return [it for it in found if it.checkpoint_id < before]


def _versions_in(thread_id: str, namespace: str, found: list[Any]) -> list[Version] | None:
    if not whole(thread_id, found):
        return []
    if found[0] == b"missing":
        return None
    store, line, rows = found
    return [version_in(thread_id, namespace, store, line, row) for row in rows]


def _contents_in(thread_id: str, ids: list[str], found: list[Any]) -> LineContents:
    line, order, log, writes = found
    each = zip(ids, writes, strict=True)
    return LineContents(
        int(line),
        records_in(thread_id, order, log),
        {name: writes_in(name, flat) for name, flat in each if flat},
    )


class RedisVersionLists(ListsVersions):
    """Lists of versions by their time."""

    _home: Callable[[], Awaitable[LoopClient]]
    _lists: ThreadLists
    _reads: VersionReads

    async def newest(self, wanted: VersionsWanted, limit: int) -> list[Version]:
        """See ``ListsVersions``, also for the following method."""
        check_limit(limit)
        newest = Newest["Version"](wanted, limit)
        most = limit if is_plain(wanted) else ALL
        async for home, active_at, thread_ids in self._candidates(wanted.thread_id, limit):
            # A clock that went back may have left versions that are newer than the activity.
            if not (wanted.may_continue or newest.may_take(active_at)):
                break
            names = [(it, wanted.namespace or "") for it in thread_ids]
            if wanted.namespace is None:
                names = await self._reads.names(home, thread_ids)
            for some in await self._reads.histories(home, names, limit=most, before=wanted.before):
                for it in some:
                    if newest.takes(it.checkpoint_id, it.metadata):
                        newest.add((it.created_at, it.mark.line, it.mark.sequence), it)
        return [it for _, it in newest.found()]

    async def _candidates(
        self, thread_id: str | None, limit: int
    ) -> AsyncIterator[tuple[LoopClient, datetime, list[str]]]:
        """Yield pages of threads, the most recently active first, and when the first was active."""
        if thread_id is not None:
            yield await self._home(), FOREVER, [thread_id]
            return
        home, entry = await self._home(), b""
        while page := await self._lists.listed(home, min(limit, PAGE), entry):
            yield home, time_in(page[0]), [name_in(it) for it in page]
            entry = page[-1]

    async def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        lines: dict[tuple[str, str], list[str]] = {}
        for it in versions:
            lines.setdefault((it.thread_id, it.namespace), []).append(it.checkpoint_id)
        return await self._reads.contents(await self._home(), lines)
