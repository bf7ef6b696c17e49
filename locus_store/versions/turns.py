"""The rules of turns: a thread has a list of tickets, whose first one holds the turn.

A ticket that is not renewed ends at its time, by the storage's clock. The number of the first
ticket is the fencing token that saves carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

from locus_store.errors import TurnError
from locus_store.types.turns import MOST_LEASE_SECONDS, ThreadTurn, TurnStep
from locus_store.values.times import EPOCH

RENEWED_PART: Final = 2 / 3
"""A ticket that has more of its lease left is not written again."""

CROWD: Final = 8
"""The place of a ticket in a queue of so many is kept for two leases, of twice as many for three.

So the renewals of a queue, which compete for one row or document, grow no further with it.
"""

KEPT_CHANGES: Final = 100
"""Changes of tickets that a document has grown by, on average, when it is rewritten."""


class Ticket(NamedTuple):
    """A request for the turn of a thread, as it is stored."""

    key: str
    number: int
    owner: str
    lease_seconds: float
    since: datetime
    until: datetime


def take_step(tickets: Sequence[Ticket], step: TurnStep, now: datetime) -> list[Ticket]:
    """Return the tickets after a step; those that have ended are left out.

    A request that has to be rejected is not among them. The step of a ticket that waits, and need
    not be renewed, changes nothing: of those that wait, only the next one removes the ended ones.
    """
    live = _list_live(tickets, now)
    lease_seconds = max(0.0, min(step.lease_seconds, MOST_LEASE_SECONDS))
    lease = timedelta(seconds=lease_seconds)
    place_lease = lease * (1 + len(live) / CROWD)
    for at, ticket in enumerate(live):
        if ticket.key == step.turn_key:
            lease = place_lease if at else lease
            if ticket.until - now < lease * RENEWED_PART:
                live[at] = ticket._replace(until=now + lease)
            return [*tickets] if at > 1 and live[at] is ticket else live
    is_full = len(live) > (0 if step.entry == "reject" else step.most_waiting)
    if step.entry == "none" or (is_full and step.entry != "replace"):
        return [*keep_number(live, tickets)]
    number = max([int(now.timestamp() * 1_000_000), *(it.number + 1 for it in tickets)])
    made = Ticket(step.turn_key, number, step.owner, lease_seconds, now, now + place_lease)
    return _list_live([made] if step.entry == "replace" else [*live, made], now)


def keep_number(live: Sequence[Ticket], tickets: Sequence[Ticket]) -> Sequence[Ticket]:
    """Return the live ones of tickets; without any, an ended one that has the last number.

    The next number is above it, although the clock may have been set back.
    """
    if live or not tickets:
        return live or tickets
    return [Ticket("", max(it.number for it in tickets), "", 0.0, EPOCH, EPOCH)]


def _list_live(tickets: Sequence[Ticket], now: datetime) -> list[Ticket]:
    """Return the live ones; the first has a lease left at most, also if the clock was set back."""
    live = [it for it in tickets if it.until > now]
    for first in live[:1]:
        most = now + timedelta(seconds=first.lease_seconds)
        live[0] = first._replace(until=min(first.until, most))
    return live


def end_tickets(
    tickets: Sequence[Ticket], turn_key: str | None, now: datetime
) -> tuple[list[Ticket], bool]:
    """Return the tickets without one, and whether it was there; ``None``: it holds the turn."""
    live = _list_live(tickets, now)
    left = live[1:] if turn_key is None else [it for it in live if it.key != turn_key]
    return [*keep_number(_list_live(left, now), tickets)], len(left) < len(live)


def get_held(tickets: Sequence[Ticket], now: datetime) -> Ticket | None:
    """Return the ticket that holds the turn.

    One that waits behind an ended ticket does not hold it before a step has said so to its owner.
    """
    return tickets[0] if tickets and tickets[0].until > now else None


class Guard(Protocol):
    """The turns of a thread at a time, which permit or refuse writes."""

    @property
    def thread_id(self) -> str: ...
    @property
    def tickets(self) -> Sequence[Ticket]: ...
    @property
    def now(self) -> datetime: ...


class ReadGuard(NamedTuple):
    """A ``Guard`` of what was read."""

    thread_id: str
    tickets: Sequence[Ticket]
    now: datetime


def require_turn(guard: Guard, number: int | None) -> None:
    """Refuse a write while another turn is held, or of a turn that has ended; name the turn."""
    found = get_held(guard.tickets, guard.now)
    if (found.number if found else None) == number:
        return
    thread_id = guard.thread_id
    held = next(iter(describe_tickets(thread_id, guard.tickets, guard.now)), None)
    if number is None:
        raise TurnError(
            f"thread {thread_id!r} is taken by {held}, and this write belongs to no turn; nothing"
            " was written. Take a turn first, or write in the context of the one that is held"
        )
    now = f"thread {thread_id!r} is now taken by {held}" if held else "it has expired or was ended"
    raise TurnError(
        f"turn {number} of thread {thread_id!r} is over: {now}; nothing was written. Take a new "
        "turn, load the thread and run the step again"
    )


def describe_tickets(thread_id: str, tickets: Sequence[Ticket], now: datetime) -> list[ThreadTurn]:
    """Return the turns of a thread, the one that is held first."""
    live = [it for it in tickets if it.until > now]
    return [
        ThreadTurn(
            thread_id=thread_id,
            number=ticket.number,
            owner=ticket.owner,
            position=at,
            since=ticket.since,
            seconds_left=(ticket.until - now).total_seconds(),
            turn_key=ticket.key,
        )
        for at, ticket in enumerate(live)
    ]


def dump_tickets(tickets: Sequence[Ticket]) -> list[list[Any]]:
    """Return tickets as JSON."""
    return [[*it[:4], it.since.isoformat(), it.until.isoformat()] for it in tickets]


def load_tickets(rows: Sequence[Sequence[Any]] | None) -> list[Ticket]:
    """Return the tickets of ``dump_tickets``."""
    return [Ticket(*it[:4], *map(datetime.fromisoformat, it[4:])) for it in rows or ()]
