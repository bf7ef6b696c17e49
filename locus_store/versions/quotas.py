"""The rules of quotas: a process takes a *lease* on a part of what its tenant may still store.

All leases together never exceed the limits. So a process decides its calls alone until its lease is
used up, and no call waits for a counter that others change. What a lease was used for is reported
with a later one. A lease that is not reported counts as used when it ends. The stored amounts are
counted again where a call would be refused, or where much was stored since the last count.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

Amounts: TypeAlias = dict[str, int]
"""By the names of ``Quota``."""

STORED: Final = ("threads", "bytes")
SAVES: Final = "saves_per_minute"

ROW_BYTES: Final = 100
"""Counted for each version, write, message and item, beside its contents."""

LEASE_SECONDS: Final = 60.0
"""A lease that is not reported counts as used after this time."""

USE_SECONDS: Final = 45.0
"""A process uses a lease no longer: the rest is for the calls that are under way then."""

PART: Final = 8
"""A lease has so much of what is left; after so much of the limit the bytes are counted again."""

SHORT_SECONDS: Final = 0.1
PAUSE_PART: Final = 20
"""A count that takes longer is followed by a pause of so many times the rest of its duration."""

UNNOTICED_SECONDS: Final = 120.0
"""By then, all calls know of a new quota, and what they stored before is counted."""


class Count(NamedTuple):
    """The stored amounts, as they were counted."""

    stored: Amounts
    spent_before: Amounts
    """``Usage.spent`` before the count began: the count has it all."""

    seconds: float


class LeaseRequest(NamedTuple):
    """A request for a lease; a repeated one has the same answer."""

    key: str
    need: Amounts
    """The least amounts of the lease."""

    spent: dict[str, Amounts]
    """Amounts for which earlier leases of the process were used, by their keys."""

    ended: frozenset[str] = frozenset()
    """Those of them that are not used any more."""

    is_exact: bool = False
    """The lease is for one call."""

    recount: Count | None = None


@dataclass(slots=True)
class StoredLease:
    """A lease, as it is stored."""

    ends: float
    granted: Amounts
    spent: Amounts = field(default_factory=dict)
    """As far as it was reported."""

    def compute_left(self, name: str) -> int:
        """Return what may still be stored, or was not reported."""
        return max(0, self.granted.get(name, 0) - self.spent.get(name, 0))


@dataclass(slots=True)
class Usage:
    """The use of a tenant's quota, as it is stored. Times are seconds since 1970."""

    counted: Amounts = field(default_factory=dict)
    spent: Amounts = field(default_factory=dict)
    """By all leases; only grows."""

    spent_before: Amounts = field(default_factory=dict)
    """``spent`` before the last count."""

    leases: dict[str, StoredLease] = field(default_factory=dict)
    minute: int = 0
    saves: int = 0
    """Granted in that minute."""

    counted_at: float = 0.0
    count_seconds: float = 0.0
    due_at: float = 0.0
    """When the amounts have to be counted again; 0: there is no such time."""

    def compute_used(self, now: float) -> Amounts:
        """Return what is used or leased."""
        used = {name: self.compute_stored(name) for name in STORED}
        for lease in self.leases.values():
            for name in STORED:
                used[name] += lease.compute_left(name)
        return {**used, SAVES: self.saves if self.minute == now // 60 else 0}

    def compute_stored(self, name: str) -> int:
        """Return what was counted, and spent since then."""
        since = self.spent.get(name, 0) - self.spent_before.get(name, 0)
        return max(0, self.counted.get(name, 0) + since)

    def settle(self, request: LeaseRequest, now: float) -> None:
        """Take what a process reports, and remove the leases that have ended."""
        for key, lease in list(self.leases.items()):
            is_over = not now < lease.ends <= now + 2 * LEASE_SECONDS  # the clock was set back
            spent = lease.granted if is_over else request.spent.get(key, {})
            for name in STORED:
                more = max(0, spent.get(name, 0) - lease.spent.get(name, 0))
                lease.spent[name] = lease.spent.get(name, 0) + more
                self.spent[name] = self.spent.get(name, 0) + more
            if is_over or key in request.ended:
                del self.leases[key]

    def take_count(self, count: Count, now: float) -> None:
        self.counted, self.spent_before = count.stored, count.spent_before
        self.counted_at, self.count_seconds, self.due_at = now, count.seconds, 0.0

    def needs_count(self, limits: Mapping[str, int], limit: str | None, now: float) -> bool:
        """Return whether the amounts have to be counted before a limit refuses, or at all."""
        more = self.compute_stored("bytes") - self.counted.get("bytes", 0)
        has_grown = more * PART > limits.get("bytes", more * PART)
        is_due = self.due_at > 0 and not now < self.due_at <= now + UNNOTICED_SECONDS
        pause = PAUSE_PART * max(0.0, self.count_seconds - SHORT_SECONDS)
        rests = self.counted_at <= now < self.counted_at + pause
        return (has_grown or is_due or limit in STORED) and not rests


class LeaseAnswer(NamedTuple):
    """The answer to a request for a lease."""

    limits: Amounts
    granted: Amounts
    """Of each limit; empty if the request was refused."""

    refused: str | None
    """The limit that refused it."""

    used: Amounts
    wants_count: bool
    spent: Amounts
    """For ``Count.spent_before``."""

    seconds_left: float
    """Of the minute."""


def take_lease(usage: Usage, limits: Amounts, request: LeaseRequest, now: float) -> LeaseAnswer:
    """Answer a request for a lease, and note it in the usage."""
    usage.settle(request, now)
    if request.recount is not None:
        usage.take_count(request.recount, now)
    if usage.minute != now // 60:
        usage.minute, usage.saves = int(now // 60), 0
    used, refused = usage.compute_used(now), None
    lease = usage.leases.get(request.key)
    if lease is None:
        rooms = {name: max(0, limit - used[name]) for name, limit in limits.items()}
        need = {name: request.need.get(name, 0) for name in limits}
        refused = next((name for name in limits if need[name] > rooms[name]), None)
        if refused is None:
            part = 0 if request.is_exact else 1
            granted = {name: max(need[name], part * room // PART) for name, room in rooms.items()}
            lease = usage.leases[request.key] = StoredLease(now + LEASE_SECONDS, granted)
            usage.saves += granted.get(SAVES, 0)
    granted = {} if lease is None else {**lease.granted}
    wants_count = request.recount is None and usage.needs_count(limits, refused, now)
    left = 60 - now % 60
    return LeaseAnswer(limits, granted, refused, used, wants_count, {**usage.spent}, left)


def load_usage(document: dict[str, Any]) -> Usage:
    """Return the usage of a stored document, which stays as it is."""
    copied = deepcopy(document)
    leases = {key: StoredLease(**it) for key, it in copied.pop("leases").items()}
    return Usage(**copied, leases=leases)
