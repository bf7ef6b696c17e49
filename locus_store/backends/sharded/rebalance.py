"""The move of threads to the shards that are added to a set, and from one that is removed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from locus_store.backends.sharded import shard_set
from locus_store.backends.sharded.backend import ShardedBackend
from locus_store.backends.sharded.shard_set import Shard, ShardSet
from locus_store.errors import (
    BackendError,
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
)
from locus_store.runtime.progress import step
from locus_store.runtime.stepping import pause
from locus_store.versions.sharding import HIDDEN_TENANT, ShardLayout, choose_shard, make_used_error

_PAGE = 500
"""Threads whose ids are read at once."""


class Rebalanced(NamedTuple):
    """The result of a rebalance."""

    shards: int
    """The number of shards that the set has now."""

    moved: int
    """The number of threads that this run moved; clients that wrote to threads moved others."""


async def rebalance(backend: ShardedBackend, *, removes_last: bool = False) -> Rebalanced:
    """Add the databases behind the shards of a set to it, and move the threads that belong there.

    Clients may read and write meanwhile, if they have opened the set with the longer list. For
    ``ANNOUNCED_SECONDS``, writes to the threads that are to be moved wait. A second run continues
    an interrupted one, and removes copies that a ``copy_thread`` has left.

    Args:
        backend: Over all databases.
        removes_last: Remove the last shard of the list instead; its threads move to the others.

    Raises:
        ConflictError: A thread is in two shards; the others were moved, and the set keeps its
            state until a further run. Or another rebalance adds other databases.
        IntegrityError: A thread is damaged; as above.
        InvalidArgumentError: A new database is not empty, or the list is not the set's. Or the
            last one is not a shard, or the only one. Or the role does not see all tenants.
    """
    of = backend.shard_set
    layout = await of.open()
    if not all([await it.may_see_all_tenants() for it in of.shards]):
        raise InvalidArgumentError(
            "row security hides other tenants from this role, and their threads would be left"
            " behind; rebalance as the owner of the tables, or as a role with BYPASSRLS"
        )
    if removes_last:
        layout = await _remove_last(of, layout)
    elif layout.state == "stable" and layout.shards < len(of.shards):
        for number in range(layout.shards, len(of.shards)):
            if await of.shards[number].tenants():
                raise make_used_error(number)
        count = len(of.shards)
        layout = layout.change(state="announced", former=layout.shards, shards=count)
    await of.write_layout(layout)
    if layout.state == "announced":
        await _wait_for_open_transactions(of)
        await pause(shard_set.ANNOUNCED_SECONDS)
        layout = layout.change(state="moving")
        await of.write_layout(layout)
    moved = await _move_threads(of, layout)
    if layout.state == "moving":
        layout = layout.change(state="stable", former=layout.databases)
        await of.write_layout(layout)
        # Again: a client that had stood still may have written one to its former place.
        moved += await _move_threads(of, layout)
    return Rebalanced(layout.shards, moved)


async def _wait_for_open_transactions(of: ShardSet) -> None:
    """Wait, at most a minute, until no transaction may create a thread by an older layout."""
    until = time.monotonic() + shard_set.PATIENCE_SECONDS
    for number, shard in enumerate(of.shards):
        left = await shard.list_open_transactions()
        while left := left & await shard.list_open_transactions():
            if time.monotonic() > until:
                raise BackendError(
                    f"a transaction in shard {number + 1} is open since before this rebalance, and"
                    " may create a thread at its former place; end it, and rebalance again"
                )
            await pause(shard_set.PAUSE_SECONDS)


async def _remove_last(of: ShardSet, layout: ShardLayout) -> ShardLayout:
    """Return the layout in which the removal of the last shard is announced, or has begun."""
    count = len(of.shards)
    if layout.former == count == layout.shards + 1 and await of.shards[-1].read_layout():
        return layout
    if layout.state != "stable" or layout.shards != count:
        raise InvalidArgumentError(
            f"database {count} of the list is not a shard yet, and cannot be removed; list the"
            " shards, or complete its rebalance first"
        )
    if count == 1:
        raise InvalidArgumentError("a set keeps one shard at least, and this one has no other")
    return layout.change(state="announced", former=count, shards=count - 1)


async def _move_threads(of: ShardSet, layout: ShardLayout) -> int:
    """Move the threads that are not where they belong, end other moves; return how many there were.

    The error of a thread that cannot be moved is raised when the others were moved.
    """
    moved, failed = 0, list[LocusStoreError]()
    for was in range(min(layout.databases, len(of.shards))):
        async for shards, thread_id in _list_threads(of, was):
            place = choose_shard(layout.shards, shards[was].tenant, thread_id)
            try:
                moved += place != was and await of.move(shards, thread_id, layout, was)
            except (ConflictError, IntegrityError) as exc:
                failed.append(exc)
            step()
    for first in failed:
        more = f" ({len(failed) - 1} more threads could not be moved)" if failed[1:] else ""
        raise type(first)(f"{first}{more}; then rebalance again") from first
    await _end_moves(of, layout)
    return moved


async def _list_threads(of: ShardSet, number: int) -> AsyncIterator[tuple[Sequence[Shard], str]]:
    """Yield the threads of a shard, each with the shards of its tenant."""
    for tenant in await of.shards[number].tenants():
        if tenant.name.startswith(HIDDEN_TENANT):
            continue
        shards = [it.for_tenant(tenant.name) for it in of.shards]
        after: str | None = None
        while page := await shards[number].scan(_PAGE, after=after):
            for thread_id in page:
                yield shards, thread_id
            after = page[-1]


async def _end_moves(of: ShardSet, layout: ShardLayout) -> None:
    """End the moves that other clients began and left, and remove hidden copies without a move."""
    former = of.shards[: layout.former]
    while moves := [(shard, move) for shard in former for move in await shard.list_moves()]:
        for shard, move in moves:
            if move.is_taken:
                await of.admit_taken([it.for_tenant(move.tenant) for it in of.shards], layout)
            else:  # or it was taken meanwhile
                await shard.for_tenant(move.tenant).drop_move(move)
    await of.remove_copies()
