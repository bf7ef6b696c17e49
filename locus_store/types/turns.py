"""Turns: records, and checks of their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import check_choice, check_limit, check_number, check_text

Wait = Literal["reject", "wait", "queue", "replace"]
"""The reaction of ``turn`` to another turn of the thread that is held."""

Entry = Literal["reject", "queue", "replace", "none"]
"""The way of a step into a queue; ``none``: it only renews a turn that was asked for before."""

LEAST_LEASE_SECONDS: Final = 0.5
MOST_LEASE_SECONDS: Final = 3600.0

MOST_WAITING: Final = 100
"""Default number of turns that wait for a thread at most."""


class TurnOptions(TypedDict, total=False):
    """The options of ``turn``."""

    wait: Wait
    """While another turn is held: ``"reject"`` raises ``TurnError``; ``"queue"``, the default,
    waits, first come, first served; ``"wait"`` does so for ``timeout_seconds``, which it needs;
    ``"replace"`` ends the turn that is held and all that wait."""

    lease_seconds: float
    """The turn of a process that has died ends so long after its last renewal; 0.5 to 3,600, or
    30."""

    timeout_seconds: float | None
    """Wait no longer than this, then raise ``TurnError``."""

    most_waiting: int
    """Raise ``TurnError`` if so many wait already; or 100."""

    owner: str | None
    """Names the holder to others; ``None``: host and process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTurn:
    """A turn that is held or waits."""

    thread_id: str
    number: int
    """The fencing token: greater than that of every earlier turn of the thread."""

    owner: str
    """The process or user that asked for it."""

    position: int
    """0: it is held; else its place in the queue."""

    since: datetime
    """Time of the request, by the storage's clock."""

    seconds_left: float
    """It ends then, unless it is renewed."""

    turn_key: str
    """Identifies the request, also if it is sent twice."""

    def __str__(self) -> str:
        return f"turn {self.number} of {self.owner!r} ({self.seconds_left:.1f} s left)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStep:
    """A request for a turn, or its renewal; validated."""

    thread_id: str
    turn_key: str
    owner: str
    lease_seconds: float
    entry: Entry
    most_waiting: int = MOST_WAITING


def check_turn(step: TurnStep, wait: Wait, timeout_seconds: float | None) -> None:
    """Refuse arguments of a turn that are not valid; the error names the bounds."""
    check_text("thread_id", step.thread_id)
    check_text("owner", step.owner)
    check_choice("wait", wait, Wait)
    least, most = LEAST_LEASE_SECONDS, MOST_LEASE_SECONDS
    check_number("lease_seconds", step.lease_seconds, minimum=least, maximum=most)
    check_number("timeout_seconds", timeout_seconds, minimum=0, optional=True)
    if wait == "wait" and timeout_seconds is None:
        raise InvalidArgumentError(
            'wait="wait" needs timeout_seconds; wait="queue" waits without a limit'
        )
    check_limit(step.most_waiting, "most_waiting", minimum=1)
