"""A set of databases: its layout, which every client re-reads, and the moves of threads.

docs/decisions/0286 has the protocol, and what holds at each of its steps.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from locus_store.backend import FullBackend, SharedByTenants, TakesTurns
from locus_store.errors import (
    BackendError,
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    NotFoundError,
)
from locus_store.runtime.stepping import pause, run_together
from locus_store.sql.sharding import SqlShard
from locus_store.types.thread_info import DescribesThreads
from locus_store.versions.sharding import (
    HIDDEN_TENANT,
    Move,
    OldLayoutError,
    ShardLayout,
    choose_shard,
    is_routed,
    judge_layouts,
    make_used_error,
    require_layout,
)
from locus_store.versions.sizes import ListsStatuses

T = TypeVar("T")

LEASE_SECONDS = 2.0
"""A client uses the layout that it read for so long."""

ANNOUNCED_SECONDS = 5.0
"""From the announcement of a change to the first move: no client has the layout before it, and no
call that began under it is still under way."""

PATIENCE = 40
"""Pauses until a move of another client, which may have ended, is replaced."""

PATIENCE_SECONDS: Final = 60.0
"""The wait for calls and transactions that began under an older layout."""

TRIES: Final = 10
"""Times that a call is tried as the layout changes meanwhile."""

PAUSE_SECONDS: Final = 0.05
"""Between two looks at what another client or a transaction does."""

WAITS = 14
"""Times ``ANNOUNCED_SECONDS`` that a write waits for the first move; more than a rebalance does."""


class Shard(SqlShard, FullBackend, TakesTurns, SharedByTenants, DescribesThreads, ListsStatuses):
    """The powers of a database that may be a shard; for type checkers."""


class ShardSet:
    """The databases of a set, shared by the objects of all tenants.

    Args:
        shards: In the order of the set; further ones are used when they were added to it.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.layout: ShardLayout | None = None
        self.stores: dict[str, int] = {}
        """Number of the shard by the identity of its database."""

        self._read_at = [float("-inf")] * len(shards)
        self._used = [""] * len(shards)
        """The layouts by which the shards create threads, as they store them."""

        self._under_way: set[tuple[int, object]] = set()
        """The changes whose place is decided, and that are not over, with their process."""

    async def open(self) -> ShardLayout:
        """Open all databases, and check that they are the set; create the layout of a new set.

        Raises:
            InvalidArgumentError: They are another set, incomplete, or in another order.
        """
        await run_together(it.open() for it in self.shards)
        stores = [it.store_id for it in self.shards]
        for at, store in enumerate(stores):
            if store in stores[:at]:
                first = stores.index(store) + 1
                raise InvalidArgumentError(
                    f"shards {first} and {at + 1} of the list are the same database, or one is a"
                    " copy of the other; name each database once"
                )
        self.stores = {store: at for at, store in enumerate(stores)}
        found: list[ShardLayout | None] = []
        while True:
            begun = time.monotonic()
            before, found = found, await run_together(it.read_layout() for it in self.shards)
            try:
                layout = judge_layouts(found)
            except InvalidArgumentError:
                if found == before:
                    raise
                continue  # they may have been read before and after a change
            of = layout and layout.set_id
            known = [it for it in found[: layout.shards if layout else 0] if it and it.set_id == of]
            if layout is None or len(known) < layout.shards:
                await self._complete(found, layout)
            elif any(it.epoch == 0 for it in known):  # a new set, now complete
                await self.write_layout(replace(layout, epoch=1))
            else:
                break
        self._read_at = [begun] * len(self.shards)
        self.layout = layout
        for number, own in enumerate(found):
            await self._use(number, own)
        return layout

    async def _use(self, number: int, layout: ShardLayout | None) -> None:
        """Have a shard create threads by the layout that was found in it.

        The changes whose place was decided by an older one are over before, or refused. If they are
        not over for a minute, the call is refused.
        """
        if layout is None or layout.text == self._used[number]:
            return
        older = {it for it in self._under_way if it[0] == os.getpid()}  # none of before a fork
        until = time.monotonic() + PATIENCE_SECONDS
        while older & self._under_way:
            if time.monotonic() > until:
                raise BackendError(
                    "the set of shards has changed, and calls of this process that began before"
                    " are not over; nothing was read or written. Try again"
                )
            await pause(PAUSE_SECONDS / 10)
        self._used[number] = layout.text
        self.shards[number].use_layout(layout)

    async def _complete(
        self, layouts: Sequence[ShardLayout | None], newest: ShardLayout | None
    ) -> None:
        """Store the layout in the databases that lack it.

        That of a new set has epoch 0 until all have it: an empty database in the place of a shard
        differs from one of a new set. A first database that has threads already becomes a
        set of one shard; another one that has some is refused.
        """
        are_used = [bool(await it.tenants()) for it in self.shards]
        count = 1 if are_used[0] else len(self.shards)
        layout = newest or ShardLayout(shards=count, former=count, epoch=0)
        for number, is_used in enumerate(are_used):
            if is_used and layouts[number] is None and (number or layout.shards > 1):
                raise make_used_error(number)
        for number in reversed(range(layout.shards)):
            old, mine = layouts[number], replace(layout, shard=number)
            is_own = old is not None and old.set_id == layout.set_id
            if not is_own and not await self.shards[number].write_layout(old, mine):
                return  # another process does the same

    async def _refresh(self, number: int) -> ShardLayout:
        """Return the newest layout, after asking a shard whose answer is too old.

        A database that is no longer this shard is refused, and a set of more shards than are known.
        """
        layout = self.layout or await self.open()
        at = time.monotonic()
        if at - self._read_at[number] < LEASE_SECONDS:
            return layout
        found = await self.shards[number].read_layout()
        if number >= layout.former and layout.state == "announced" and not (found and found.epoch):
            return layout
        if found is None or (found.set_id, found.shard) != (layout.set_id, number):
            raise IntegrityError(
                f"the database of shard {number + 1} is no longer that shard of the set; it was"
                " replaced or restored meanwhile. Open the set again"
            )
        found.require_listed(len(self.shards))
        layout = self.layout or layout
        if found.epoch > layout.epoch:
            self.layout = layout = found
        await self._use(number, found)
        self._read_at[number] = at
        return self.layout or layout

    @property
    def has_changed(self) -> bool:
        """True if threads may have moved since the set was created."""
        return self.layout is not None and self.layout.epoch > 1

    def find_settled(self, tenant: str | None, thread_id: str) -> int | None:
        """Return the shard of a thread if that is known without a question."""
        layout = self.layout
        if layout is None:
            return None
        was, at = layout.get_places(tenant, thread_id)
        is_fresh = time.monotonic() - self._read_at[at] < LEASE_SECONDS
        return at if was == at and is_fresh else None

    def get_place(self, tenant: str | None, thread_id: str) -> int:
        """Return the shard where a thread belongs by the layout of a change that is under way."""
        assert self.layout is not None  # noqa: S101  (a change has one)
        return self.layout.get_places(tenant, thread_id)[1]

    async def write_layout(self, layout: ShardLayout) -> None:
        """Store a layout in all shards, and use it; the first shard decides between two.

        Raises:
            ConflictError: Another rebalance has stored another one.
        """
        for number in range(min(layout.databases, len(self.shards))):
            shard, mine = self.shards[number], replace(layout, shard=number)
            while (old := await shard.read_layout()) is None or old.epoch < mine.epoch:
                await shard.write_layout(old, mine)
            await self._use(number, old)
            if old.epoch == mine.epoch and old != mine:
                raise ConflictError(
                    "another rebalance changes this set at the same time; wait for its end, and"
                    " run this one again"
                )
        self.layout = layout

    async def _find(self, shards: Sequence[Shard], thread_id: str) -> tuple[ShardLayout, int, int]:
        """Return the layout, and where the thread was and belongs by it; both were asked."""
        layout = self.layout or await self.open()
        while True:
            was, at = layout.get_places(shards[0].tenant, thread_id)
            await self._refresh(was)
            newest = await self._refresh(at)
            if newest.epoch == layout.epoch:
                return layout, was, at
            layout = newest

    async def repeat(self, work: Callable[[], Awaitable[T]], *, reads: bool = True) -> T:
        """Try work again that the layout of a database refused, or whose answer is too old."""
        for _ in range(TRIES):
            layout, start = self.layout or await self.open(), time.monotonic()
            try:
                answer = await work()
                if reads and not is_current(start):
                    require_layout(await self.is_newest(layout))
            except (OldLayoutError, ConflictError, NotFoundError) as exc:
                failed, is_refused = exc, isinstance(exc, OldLayoutError)
                if is_current(start) and not is_refused:
                    raise
                if await self.is_newest(layout) and not is_refused:  # else it may have moved
                    raise
            else:
                return answer
        raise failed

    async def is_newest(self, layout: ShardLayout) -> bool:
        """Look at all shards; return whether none has a newer layout."""
        self._read_at = [float("-inf")] * len(self.shards)
        number, newest = 0, layout
        while number < newest.used:
            newest = await self._refresh(number)
            number += 1
        return newest.epoch == layout.epoch

    async def read(
        self, shards: Sequence[Shard], thread_id: str, ask: Callable[[Shard], Awaitable[T]]
    ) -> T:
        """Return the answer of the shard that has a thread."""
        return await self.repeat(lambda: self._read(shards, thread_id, ask))

    async def _read(
        self, shards: Sequence[Shard], thread_id: str, ask: Callable[[Shard], Awaitable[T]]
    ) -> T:
        while True:
            _, was, at = await self._find(shards, thread_id)
            if was == at:
                return await ask(shards[at])
            is_here, move = await shards[was].find_move(thread_id)
            if not is_here:
                if move is not None and move.is_taken:
                    await self._admit(shards, was, move, [thread_id])
                return await ask(shards[at])
            try:
                answer = await ask(shards[was])
            except LocusStoreError:
                if (await shards[was].find_move(thread_id))[0]:
                    raise
            else:
                if (await shards[was].find_move(thread_id))[0]:
                    return answer

    async def change(
        self,
        shards: Sequence[Shard],
        thread_ids: Sequence[str],
        ask: Callable[[Shard], Awaitable[T]],
    ) -> T:
        """Have the shard of the first thread change it, while the others are where they belong."""

        async def try_it() -> T:
            tenant = shards[0].tenant
            while True:
                layout, change = self.layout, (os.getpid(), object())
                for thread_id in thread_ids:
                    if self.find_settled(tenant, thread_id) is None:
                        await self.settle(shards, thread_id)
                self._under_way.add(change)
                token = is_routed.set(True)
                try:
                    if self.layout is layout:
                        return await ask(shards[self.get_place(tenant, thread_ids[0])])
                finally:
                    is_routed.reset(token)
                    self._under_way.discard(change)

        return await self.repeat(try_it, reads=False)

    async def settle(self, shards: Sequence[Shard], thread_id: str) -> None:
        """Have a thread, if it exists, be where it belongs."""
        for _ in range(WAITS * round(ANNOUNCED_SECONDS / PAUSE_SECONDS) + 1):
            layout, was, at = await self._find(shards, thread_id)
            if was == at:
                return
            if layout.state == "moving":
                await self.move(shards, thread_id, layout, was)
                return
            self._read_at[was] = float("-inf")
            await pause(PAUSE_SECONDS)
        raise BackendError(
            f"thread {thread_id!r} changes its shard, and nothing was written: a rebalance stopped"
            " after its announcement. Run 'locus-store shards rebalance' again"
        )

    async def move(
        self, shards: Sequence[Shard], thread_id: str, layout: ShardLayout, was: int
    ) -> bool:
        """Move a thread where it belongs; return ``False`` if it was not at its former place.

        Several clients may move it at once.

        Raises:
            ConflictError: The new shard has a thread of this id, too.
            OldLayoutError: The former shard has a later layout.
        """
        old, patience = shards[was], PATIENCE
        at = choose_shard(layout.shards, old.tenant, thread_id)
        while True:
            is_here, found = await self._find_move(old, thread_id, patience)
            if found is not None and found.is_taken:
                await self._admit(shards, was, found, [thread_id])
                return True
            if not is_here:
                return False
            if (await shards[at].find_move(thread_id))[0]:
                if (await old.find_move(thread_id))[0]:
                    raise ConflictError(
                        f"thread {thread_id!r} is in shard {was + 1}, and another one of this id is"
                        f" in shard {at + 1}, where it belongs: a client wrote it after it had"
                        " stood still for long, or a database was restored. Look at both in their"
                        " databases, by the URLs of the two, and delete one there"
                    )
                continue  # another client has moved it
            mine = Move(tenant=old.tenant or "", thread_id=thread_id, target=at)
            if not await old.reserve_move(thread_id, found, mine, epoch=layout.epoch):
                continue
            if found is not None:
                hidden = shards[found.target].for_tenant(found.hidden_tenant)
                await hidden.remove_thread(thread_id)
            if await self._take(shards, thread_id, was, mine):
                await self._admit(shards, was, replace(mine, is_taken=True), [thread_id])
                return True
            patience *= 2  # copies of a large thread take long, and those of two clients compete

    @staticmethod
    async def _find_move(old: Shard, thread_id: str, patience: int) -> tuple[bool, Move | None]:
        """Return ``find_move`` when another client's move has ended, or did not for long."""
        is_here, found = await old.find_move(thread_id)
        for _ in range(patience):
            if not is_here or found is None or found.is_taken:
                break
            await pause(PAUSE_SECONDS * (0.5 + random.random()))  # noqa: S311  (no secret)
            is_here, found = await old.find_move(thread_id)
        return is_here, found

    async def _take(self, shards: Sequence[Shard], thread_id: str, was: int, move: Move) -> bool:
        """Copy a thread to the new shard, hidden, and remove it from the old one if it is same."""
        old, hidden = shards[was], shards[move.target].for_tenant(move.hidden_tenant)
        thread = await old.read_stored(thread_id)
        if thread is not None:
            await hidden.restore(thread)
            if await old.take_thread(thread, move):
                return True
            await hidden.remove_thread(thread_id)
        await old.drop_move(move)
        return False

    async def _admit(
        self, shards: Sequence[Shard], was: int, move: Move, thread_ids: Sequence[str]
    ) -> None:
        """Show hidden copies whose threads were taken, and end their move.

        A role that may not see the copies is refused, unless another client has shown them, and a
        thread whose id the new shard has, too.
        """
        hidden = shards[move.target].for_tenant(move.hidden_tenant)
        for thread_id in thread_ids:
            for _ in range(PATIENCE):
                if await hidden.admit_thread(thread_id, move.tenant):
                    break
                is_there, _move = await shards[move.target].find_move(thread_id)
                if is_there or move not in await shards[was].list_moves():
                    break  # another client was faster
                await pause(PAUSE_SECONDS)
            else:
                if not await hidden.may_see_all_tenants():
                    raise BackendError(
                        f"thread {thread_id!r} changes its shard, and row security hides its copy"
                        " from this role: nothing was read or written. Run 'locus-store shards"
                        " rebalance' with a role that sees all tenants"
                    )
        await shards[was].drop_move(move)

    async def refresh(self) -> ShardLayout:
        """Return the newest layout, of which all shards were asked."""
        while True:
            layout = self.layout or await self.open()
            newest = [await self._refresh(it) for it in range(layout.used)]
            if newest[-1].epoch == layout.epoch:
                return layout

    async def gather(
        self, shards: Sequence[Shard], ask: Callable[[Shard], Awaitable[T]]
    ) -> list[T]:
        """Return the answers of all shards in their order.

        A thread that moves meanwhile is in one answer at least: the shards that threads leave are
        asked first.
        """
        return await self.repeat(lambda: self._gather(shards, ask))

    async def _gather(
        self, shards: Sequence[Shard], ask: Callable[[Shard], Awaitable[T]]
    ) -> list[T]:
        layout = await self.refresh()
        if layout.state == "stable":
            return await run_together(ask(it) for it in shards[: layout.shards])
        count, shrinks = min(layout.shards, layout.former), layout.shards < layout.former
        parts = [shards[:count], shards[count : layout.databases]]
        left = await run_together(ask(it) for it in parts[shrinks])
        await self.admit_taken(shards, layout)
        others = await run_together(ask(it) for it in parts[not shrinks])
        return others + left if shrinks else left + others

    async def admit_taken(self, shards: Sequence[Shard], layout: ShardLayout) -> None:
        """Complete the moves of this tenant whose threads were taken."""
        for was, shard in enumerate(shards[: layout.databases]):
            for move in await shard.list_moves():
                if move.is_taken and move.tenant == shards[0].tenant:
                    hidden = shards[move.target].for_tenant(move.hidden_tenant)
                    await self._admit(shards, was, move, await hidden.scan() or [move.thread_id])

    async def remove_copies(self) -> None:
        """Remove the hidden copies of moves that have ended, or whose threads were removed."""
        shards = self.shards[: (self.layout or await self.open()).databases]
        tenants = [(it, tenant.name) for it in shards for tenant in await it.tenants()]
        begun = set()
        for shard in shards:
            for move in await shard.list_moves():
                owner = shard.for_tenant(move.tenant)
                if move.is_taken or (await owner.find_move(move.thread_id))[0]:
                    begun.add(move.hidden_tenant)
                else:
                    await owner.drop_move(move)
        for shard, name in tenants:
            if name.startswith(HIDDEN_TENANT) and name not in begun:
                hidden = shard.for_tenant(name)
                for thread_id in await hidden.scan():
                    await hidden.remove_thread(thread_id)


def is_current(start: float) -> bool:
    """Return whether no thread may have moved since a fresh layout was looked at, at that time."""
    return time.monotonic() - start < ANNOUNCED_SECONDS - LEASE_SECONDS
