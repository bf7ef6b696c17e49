"""Turns in SQL: a row for each thread that has one, which also guards the writes of its holder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from locus_store.sql.columns.types import now
from locus_store.sql.threads.statements import Scoped
from locus_store.types.turns import ThreadTurn, TurnStep
from locus_store.versions import turns
from locus_store.versions.turns import Ticket


def require_turn(repository: Scoped, thread_id: str, number: int | None) -> None:
    """Refuse a write that the thread's turn does not permit; see ``turns.require_turn``.

    The row of the turn is locked until the transaction ends: the next turn begins after it.
    """
    tickets = _lock(repository, thread_id)
    guard = turns.ReadGuard(thread_id, tickets, _read_clock(repository))
    turns.require_turn(guard, number)


def require_none(repository: Scoped, thread_id: str, turn: int | None) -> None:
    """Refuse a write of no turn if one is held; ``turn`` is its number, as it was read."""
    if turn is not None:
        require_turn(repository, thread_id, None)


def end_expired(repository: Scoped) -> None:
    """Remove the turns of a tenant that have ended without a renewal."""
    c = repository.tables.turns.c
    which = c.tenant == repository.scope.tenant, c.expires_at <= now()
    dead = [
        row.thread_id for row in repository.connection.execute(sa.select(c.thread_id).where(*which))
    ]
    for thread_id in dead:
        end_turn(repository, thread_id, "")


def _lock(repository: Scoped, thread_id: str) -> list[Ticket]:
    """Lock the turns of a thread, if it has any; return their tickets."""
    c = repository.tables.turns.c
    row = repository.connection.execute(
        _select(repository, thread_id, c.tickets).with_for_update()
    ).first()
    return _load(row)


def read_tickets(repository: Scoped, thread_id: str) -> tuple[list[Ticket], datetime]:
    """Return the tickets of a thread and the time."""
    c = repository.tables.turns.c
    row = repository.connection.execute(
        _select(repository, thread_id, c.tickets, now().label("at"))
    ).first()
    return _load(row), row.at if row else _read_clock(repository)


def _select(repository: Scoped, thread_id: str, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    c = repository.tables.turns.c
    return sa.select(*columns).where(c.tenant == repository.scope.tenant, c.thread_id == thread_id)


def _load(row: Sequence[Any] | None) -> list[Ticket]:
    return turns.load_tickets(row[0].get("tickets")) if row else []


def _read_clock(repository: Scoped) -> datetime:
    at: datetime = repository.connection.execute(sa.select(now())).scalar_one()
    return at


def take_step(repository: Scoped, step: TurnStep) -> list[ThreadTurn]:
    """See ``TakesTurns.step_turn``; under the lock of the row."""
    old = _lock(repository, step.thread_id)
    at = _read_clock(repository)
    tickets = turns.take_step(old, step, at)
    _put(repository, step.thread_id, old, tickets)
    return turns.describe_tickets(step.thread_id, tickets, at)


def end_turn(repository: Scoped, thread_id: str, turn_key: str | None) -> bool:
    """See ``TakesTurns.end_turn``."""
    old = _lock(repository, thread_id)
    at = _read_clock(repository)
    left = turns.end_tickets(old, turn_key, at)
    _put(repository, thread_id, old, left)
    return len(left) < len(turns.describe_tickets(thread_id, old, at))


def _put(repository: Scoped, thread_id: str, old: list[Ticket], tickets: list[Ticket]) -> None:
    """Replace the tickets of a thread; without any it has no row."""
    if tickets == old:
        return
    table = repository.tables.turns
    which = table.c.tenant == repository.scope.tenant, table.c.thread_id == thread_id
    if not tickets:
        repository.connection.execute(table.delete().where(*which))
        return
    values = {
        "turn": tickets[0].number,
        "expires_at": tickets[0].until,
        "tickets": {"tickets": turns.dump_tickets(tickets)},
    }
    if old:
        repository.connection.execute(table.update().where(*which).values(values))
    else:
        key = {"tenant": repository.scope.tenant, "thread_id": thread_id}
        repository.connection.execute(table.insert().values({**key, **values}))


def list_turns(repository: Scoped, thread_id: str | None, limit: int) -> list[ThreadTurn]:
    """See ``TakesTurns.list_turns``."""
    c = repository.tables.turns.c
    query = sa.select(c.thread_id, c.tickets, now()).where(c.tenant == repository.scope.tenant)
    if thread_id is not None:
        query = query.where(c.thread_id == thread_id)
    rows = repository.connection.execute(query.order_by(c.thread_id).limit(limit))
    found = [
        turn
        for name, tickets, at in rows
        for turn in turns.describe_tickets(name, _load([tickets]), at)
    ]
    return found[:limit]
