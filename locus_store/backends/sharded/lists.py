"""The lists and searches of a set of shards: the answers of all, merged in the contract's order."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from locus_store.backend import FullBackend, SharedByTenants, TakesTurns
from locus_store.backends.sharded.shard_set import Shard, ShardSet
from locus_store.errors import InvalidArgumentError
from locus_store.types import (
    Active,
    Head,
    Hit,
    LineContents,
    Tenant,
    Vacuumed,
    Version,
    VersionsWanted,
)
from locus_store.types.arguments import check_limit, check_scan
from locus_store.types.facts import Fact
from locus_store.types.thread_info import DescribesThreads, ThreadFacts, ThreadsWanted, UserIdType
from locus_store.types.turns import ThreadTurn
from locus_store.versions.sharding import HIDDEN_TENANT
from locus_store.versions.sizes import ListsStatuses, StatusesWanted, ThreadStatus, parse_place

T = TypeVar("T")


class ShardedLists(FullBackend, TakesTurns, DescribesThreads, SharedByTenants, ListsStatuses):
    """Asks all shards of a backend.

    A thread that changes its shard meanwhile may be in two answers: the newer one counts.
    """

    shard_set: ShardSet
    shards: list[Shard]

    @abstractmethod
    async def read_at(self, thread_id: str, ask: Callable[[Shard], Awaitable[T]]) -> T:
        """Return the answer of the shard that has a thread."""

    @abstractmethod
    async def find_line(self, shard: Shard, thread_id: str, namespace: str) -> int:
        """Return the line of a thread in a shard; 0 if it has no version there."""

    async def _gather(self, ask: Callable[[Shard], Awaitable[T]]) -> list[T]:
        return await self.shard_set.gather(self.shards, ask)

    async def _change_all(self, change: Callable[[Shard], Awaitable[T]]) -> list[T]:
        """Return the answers of all shards to a change, also of attempts before the last one."""
        answers: list[T] = []

        async def ask(shard: Shard) -> None:
            answers.append(await change(shard))

        await self._gather(ask)
        return answers

    async def recent(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[Active]:
        check_limit(limit)
        if after is None:
            return _merge(await self._gather(lambda it: it.recent(limit, pattern)), limit)

        async def place(shard: Shard) -> tuple[Any, str]:
            return await shard.get_last_active_at(after), shard.store_id

        async def recent() -> list[list[Active]]:
            at, store = await self.read_at(after, place)
            order = list(self.shard_set.stores)

            async def ask(shard: Shard) -> list[Active]:
                if shard.store_id == store:
                    return await shard.recent(limit, pattern, after=after)
                is_behind = order.index(shard.store_id) > order.index(store)
                return await shard.list_recent_before(at, limit, pattern, with_ties=is_behind)

            return await self._gather(ask)

        return _merge(await self.shard_set.repeat(recent), limit)

    async def find_statuses(self, criteria: StatusesWanted) -> list[ThreadStatus]:
        """See ``ListsStatuses``; a place is that of a shard, followed by the shard's number."""

        async def find(shard: Shard) -> list[tuple[int, ThreadStatus]]:
            number = self.shard_set.stores[shard.store_id]
            place = criteria.place and _make_place(criteria.place, number)
            found = await shard.find_statuses(replace(criteria, place=place))
            return [(number, it) for it in found]

        found = sorted(_join(await self._gather(find)), key=_make_sort_key, reverse=True)
        statuses = _find_first(replace(it, place=f"{it.place}/{at}") for at, it in found)
        return statuses[: criteria.limit]

    async def heads(self, limit: int = 100) -> list[Head]:
        check_limit(limit)
        found = _join(await self._gather(lambda it: it.list_active_heads(limit)))
        found.sort(key=lambda it: it[0], reverse=True)
        return _find_first(it for _, it in found)[:limit]

    async def newest(self, wanted: VersionsWanted, limit: int) -> list[Version]:
        check_limit(limit)
        if wanted.thread_id is not None:
            return await self.read_at(wanted.thread_id, lambda it: it.newest(wanted, limit))

        async def newest(shard: Shard) -> list[Version]:
            after, order = wanted.after, self.shard_set.stores
            if after is not None and order[shard.store_id] > order.get(after.mark.store, -1):
                # Those of the same time, line and sequence follow.
                mark = replace(after.mark, sequence=after.mark.sequence + 1)
                after = replace(after, mark=mark)
            return await shard.newest(replace(wanted, after=after), limit)

        found = _join(await self._gather(newest))
        found.sort(key=lambda it: (it.created_at, it.mark.line, it.mark.sequence), reverse=True)
        return found[:limit]

    async def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        """See ``ListsVersions``; the versions of a call should be of one shard.

        The line of a thread that has moved since keeps the number that the versions name.
        """

        async def ask() -> list[LineContents]:
            groups, moved = (defaultdict[str, list[Version]](list) for _ in range(2))
            for version in versions:
                groups[version.mark.store].append(version)
            found: list[LineContents] = []
            for store, some in groups.items():
                here = await self.shards[self.shard_set.stores[store]].contents(some)
                found += here
                lines = {it.line for it in here}
                for version in some:
                    if version.mark.line not in lines and self.shard_set.has_changed:
                        moved[version.thread_id].append(version)
            for name, some in moved.items():
                found += await self.read_at(name, partial(self._find_contents, some))
            return found

        if self.shard_set.layout is None:
            await self.shard_set.open()
        return await self.shard_set.repeat(ask)

    async def _find_contents(self, versions: Sequence[Version], shard: Shard) -> list[LineContents]:
        """Return what ``contents`` does of versions of a thread that has moved."""
        lines = {it.namespace: it.mark.line for it in versions}
        here = {it: await self.find_line(shard, versions[0].thread_id, it) for it in lines}
        marks = [replace(it.mark, store=shard.store_id, line=here[it.namespace]) for it in versions]
        found = await shard.contents(
            [replace(it, mark=mark) for it, mark in zip(versions, marks, strict=True)]
        )
        names = {here[it]: line for it, line in lines.items()}
        return [it._replace(line=names[it.line]) for it in found]

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        found = _join(await self._gather(lambda it: it.find(query, limit)))
        found.sort(key=lambda it: (it.score, it.updated_at), reverse=True)
        return _find_first(found)[:limit]

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        found = _join(await self._gather(lambda it: it.query(key, value, limit)))
        found.sort(key=lambda it: it.updated_at, reverse=True)
        return list({(it.thread_id, it.checkpoint_id): it for it in found}.values())[:limit]

    async def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        return list(dict.fromkeys(_join(await self._gather(lambda it: it.tagged(key, value)))))

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        check_scan(limit, after)
        found = _join(await self._gather(lambda it: it.scan(limit, after=after)))
        return sorted(set(found))[:limit]

    async def list_turns(self, thread_id: str | None = None, limit: int = 100) -> list[ThreadTurn]:
        if thread_id is not None:
            return await self.read_at(thread_id, lambda it: it.list_turns(thread_id, limit))
        found = _join(await self._gather(lambda it: it.list_turns(limit=limit)))
        return sorted(found, key=lambda it: (it.thread_id, it.position))[:limit]

    async def find_threads(self, key: str, value: Any, *, user_id: str | None = None) -> list[str]:
        found = await self._gather(lambda it: it.find_threads(key, value, user_id=user_id))
        return list(dict.fromkeys(_join(found)))

    async def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        last = wanted.offset + wanted.limit
        page = replace(wanted, offset=0, limit=last)
        found = _join(await self._gather(lambda it: it.find_active_facts(page)))
        found.sort(key=lambda it: it[0], reverse=True)
        return _find_first(it for _, it in found)[wanted.offset : last]

    async def forget_user(self, user_id: str) -> dict[str, int]:
        return await self._forget(super().forget_user, user_id)

    async def forget_where(self, key: str, value: Any) -> dict[str, int]:
        return await self._forget(super().forget_where, key, value)

    async def _forget(self, forget_rest: Callable[..., Any], *criteria: Any) -> dict[str, int]:
        """Remove threads wherever they are; then what has changed its shard meanwhile."""
        name = forget_rest.__name__
        await self.complete_moves()
        found = await self._change_all(lambda it: getattr(self._see(it), name)(*criteria))
        counts = Counter[str]()
        for some in [*found, await forget_rest(*criteria)]:
            counts.update(some)
        await self.shard_set.remove_copies()
        return dict(counts)

    async def complete_moves(self) -> None:
        """Complete the moves whose threads were taken: they are in no list if it was killed."""
        await self.shard_set.admit_taken(self.shards, await self.shard_set.open())

    def _see(self, shard: Any) -> Any:
        return shard

    async def vacuum_report(self, older_than_days: float = 30) -> Vacuumed:
        found = await self._change_all(lambda it: it.vacuum_report(older_than_days))
        return Vacuumed(*map(sum, zip(*found, strict=True)))

    async def expire(self) -> int:
        return sum(await self._change_all(lambda it: it.expire()))

    async def tenants(self) -> list[Tenant]:
        found: dict[str, Tenant] = {}
        for own in _join(await self._gather(lambda it: it.tenants())):
            old = found.get(own.name, Tenant(own.name, 0, 0))
            found[own.name] = Tenant(own.name, old.threads + own.threads, old.items + own.items)
        return [found[it] for it in sorted(found) if not it.startswith(HIDDEN_TENANT)]

    async def may_see_all_tenants(self) -> bool:
        return all(await self._gather(lambda it: it.may_see_all_tenants()))

    async def damage(self) -> list[str]:
        found = await self._gather(lambda it: it.damage())
        return [f"shard {at}: {it}" for at, some in enumerate(found, 1) for it in some]

    async def facts(self) -> list[Fact]:
        found = await self._gather(lambda it: it.facts())
        layout = self.shard_set.layout
        state = f"{layout.shards}, {layout.state}" if layout else "unknown"
        return [*await super().facts(), Fact("shards", state), *_join_facts(found)]

    async def tenant_facts(self) -> list[Fact]:
        return _join_facts(await self._gather(lambda it: it.tenant_facts()))

    async def require_user_id_type(self, users: UserIdType) -> None:
        await self._gather(lambda it: it.require_user_id_type(users))


def _join(answers: Iterable[Iterable[T]]) -> list[T]:
    return [it for some in answers for it in some]


def _find_first(entries: Iterable[Any]) -> list[Any]:
    """Return the first entry of each thread."""
    each: dict[str, Any] = {}
    for entry in entries:
        each.setdefault(entry.thread_id, entry)
    return list(each.values())


def _merge(lists: Iterable[Sequence[Active]], limit: int) -> list[Active]:
    """Return the first threads of lists; of one time, those of the first list come first."""
    each = sorted(_join(lists), key=lambda it: it.active_at, reverse=True)
    return _find_first(each)[:limit]


def _make_sort_key(entry: tuple[int, ThreadStatus]) -> tuple[datetime, int, int]:
    """Return the rank of a thread; of one time and key, that of the first shard is first."""
    number, status = entry
    at, key = parse_place(status.place or "")
    return at, int(key), -number


def _make_place(place: str, number: int) -> str:
    """Return the place in the list of a shard that is behind a place in the list of all."""
    at, name = parse_place(place)
    try:
        key, last = map(int, name.split("/"))
    except ValueError:
        raise InvalidArgumentError(
            f"after={place[:80]!r} does not name a place in a list of threads of shards"
        ) from None
    return f"{at.isoformat()}/{key + (number > last)}"  # those of the same time and key follow


def _join_facts(facts: Iterable[Iterable[Fact]]) -> list[Fact]:
    """Return the facts of shards under their numbers."""
    each = [(at, fact) for at, some in enumerate(facts, 1) for fact in some]
    return [replace(fact, name=f"shard {at}: {fact.name}") for at, fact in each]
