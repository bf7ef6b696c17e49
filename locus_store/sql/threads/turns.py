"""Turns in SQL: a row for each thread that has one, which also guards the writes of its holder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import bindparam as bind

from locus_store.sql.columns.types import make_clock, make_cutoff
from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads.pending import iterate_rows
from locus_store.sql.threads.statements import (
    RowAccess,
    compile_other,
    has_other_layout,
    is_of_thread,
    select_clock,
)
from locus_store.types.options import DAY
from locus_store.types.turns import ThreadTurn
from locus_store.values.times import EPOCH, to_microseconds
from locus_store.versions import turns
from locus_store.versions.sharding import require_layout
from locus_store.versions.turns import Ticket


def require_turn(repository: RowAccess, thread_id: str, number: int) -> None:
    """Refuse a write of a turn that has ended; see ``turns.require_turn``.

    The row of the turn is locked until the transaction ends: the next turn begins after it.
    """
    limit, turn = repository.make_pause_limit(), repository.tables.turns
    locked = compile_other(
        repository.sql,
        (require_turn, bool(limit)),
        lambda: sa.select(turn.c.tickets, *limit).where(*is_of_thread(turn)).with_for_update(),
    )
    rows = locked.fetch_rows(repository.connection, _make_key(repository, thread_id))
    guard = turns.ReadGuard(thread_id, _load(rows), _read_clock(repository))
    turns.require_turn(guard, number)


def require_none(repository: RowAccess, thread_id: str, turn: int | None) -> None:
    """Refuse a write of no turn if one is held; ``turn`` is its number, as it was read."""
    if turn is not None:  # no lock: its holder may wait for the thread, which this write has locked
        turns.require_turn(read_tickets(repository, thread_id)[0], None)


def change_tickets(
    repository: RowAccess, thread_id: str, change: Callable[[list[Ticket], datetime], list[Ticket]]
) -> turns.ReadGuard:
    """Change the tickets of a thread; return what they are then.

    One statement writes, on the condition that the row is the one that was read. So a process that
    stands still between both holds no lock that the next turn would wait for.
    """
    while True:
        guard, revision = read_tickets(repository, thread_id)
        tickets = change([*guard.tickets], guard.now)
        if tickets == guard.tickets or _put(repository, guard, revision, tickets):
            return guard._replace(tickets=tickets)


def end_turn(repository: RowAccess, thread_id: str, turn_key: str | None) -> bool:
    """See ``TakesTurns.end_turn``."""
    ended: list[bool] = []

    def end(tickets: list[Ticket], now: datetime) -> list[Ticket]:
        left, is_ended = turns.end_tickets(tickets, turn_key, now)
        ended.append(is_ended)
        return left

    change_tickets(repository, thread_id, end)
    return ended[-1]


def end_expired(repository: RowAccess) -> None:
    """Remove the turns of a tenant that have ended, of threads that do not exist."""
    table, threads = repository.tables.turns, repository.tables.threads.c
    is_ended = table.c.tenant == repository.tenant, has_ended(table)
    is_its = threads.tenant == table.c.tenant, threads.thread_id == table.c.thread_id
    repository.connection.execute(table.delete().where(*is_ended, ~sa.exists().where(*is_its)))


def has_ended(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a call ended a turn, or that it was not renewed for a day."""
    return table.c.expires_at <= make_cutoff(DAY)


def read_tickets(repository: RowAccess, thread_id: str) -> tuple[turns.ReadGuard, int | None]:
    """Return the tickets of a thread at the present time, and the revision of their row."""
    rows = repository.ask(_select_tickets, **_make_key(repository, thread_id))
    if not rows:
        return turns.ReadGuard(thread_id, [], _read_clock(repository)), None
    [(_, revision, at)] = rows
    return turns.ReadGuard(thread_id, _load(rows), at), revision


def _select_tickets(t: Tables) -> sa.Select[Any]:
    c = t.turns.c
    return sa.select(c.tickets, c.revision, make_clock()).where(*is_of_thread(t.turns))


def _make_key(repository: RowAccess, thread_id: str) -> dict[str, Any]:
    return {"of_tenant": repository.tenant, "of_thread_id": thread_id}


def _load(rows: Sequence[Sequence[Any]]) -> list[Ticket]:
    return turns.load_tickets(rows[0][0].get("tickets")) if rows else []


def _read_clock(repository: RowAccess) -> datetime:
    at: datetime = repository.ask(select_clock)[0][0]
    return at


def _put(
    repository: RowAccess, guard: turns.ReadGuard, revision: int | None, tickets: list[Ticket]
) -> bool:
    """Replace the tickets of a row, unless it has changed.

    A revision is from the clock, so that a row that is created again has another one.
    """
    values = {
        **_make_key(repository, guard.thread_id),
        "turn": tickets[0].number,
        "expires_at": tickets[0].until,
        "revision": max((revision or 0) + 1, to_microseconds(guard.now)),
        "tickets": {"tickets": turns.dump_tickets(tickets)},
    }
    if revision is None:
        require_layout(repository.change(_insert, repository.tenancy.layout, **values))
        return True
    return bool(repository.change(_update, **values, of_revision=revision))


_CHANGED: Final = ("turn", "expires_at", "revision", "tickets")


def _insert(t: Tables, layout: object) -> sa.Insert:
    c = t.turns.c
    names = {"tenant": "of_tenant", "thread_id": "of_thread_id", **{it: it for it in _CHANGED}}
    row = sa.select(*(bind(given, type_=c[name].type) for name, given in names.items()))
    return t.turns.insert().from_select([*names], row.where(~has_other_layout(t, layout)))


def _update(t: Tables) -> sa.Update:
    is_same = *is_of_thread(t.turns), t.turns.c.revision == bind("of_revision")
    return t.turns.update().where(*is_same).values({it: bind(it) for it in _CHANGED})


def list_turns(repository: RowAccess, thread_id: str | None, limit: int) -> list[ThreadTurn]:
    """See ``TakesTurns.list_turns``."""
    c = repository.tables.turns.c
    is_turn = c.tenant == repository.tenant, c.turn >= 0, c.expires_at > EPOCH
    query = sa.select(c.thread_id, c.tickets, make_clock()).where(*is_turn)
    if thread_id is not None:
        query = query.where(c.thread_id == thread_id)

    def fetch(size: int, last: Any) -> Sequence[Any]:
        page = query if last is None else query.where(c.thread_id > last.thread_id)
        return repository.connection.execute(page.order_by(c.thread_id).limit(size)).all()

    rows = iterate_rows(fetch, limit)  # many may have lapsed
    found = (turns.describe_tickets(name, _load([[it]]), at) for name, it, at in rows)
    return [*islice(chain.from_iterable(found), limit)]
