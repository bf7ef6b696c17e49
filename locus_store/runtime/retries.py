"""Attempts of a call, and the pauses between them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from locus_store.runtime import observe
from locus_store.runtime.stepping import pause

T = TypeVar("T")

RACES: Final = 6
"""Attempts of work that lost to another transaction's locks, however long each of them takes."""

RACING_SECONDS: Final = 5.0
"""The time for which such work is attempted more often."""


class Pauses:
    """Random pauses, each on average twice as long as the one before.

    Args:
        first: The first pause is at most this long, in seconds.
        longest: No pause is longer.
        within: The last pause ends before so many seconds have passed; ``None``: there is no last
            one.
    """

    def __init__(self, first: float, longest: float, within: float | None = None) -> None:
        self._most = first
        self._longest = longest
        self._until = math.inf if within is None else time.monotonic() + within

    def get_next(self, at_least: float = 0.0) -> float | None:
        """Return the seconds before the next attempt; ``None`` if time does not suffice for it."""
        seconds = at_least + random.uniform(0, self._most)  # noqa: S311
        self._most = min(2 * self._most, self._longest)
        return seconds if time.monotonic() + seconds < self._until else None

    def sleep(self) -> None:
        """Block the thread until the next attempt, if there is one."""
        time.sleep(self.get_next() or 0.0)


async def retry_lost_races(
    work: Callable[[], Awaitable[T]], lost_race: Callable[[BaseException, int], bool]
) -> T:
    """Run work; run it again if its error, after so many attempts, is that of a lost race."""
    pauses = Pauses(0.01, 0.16, RACING_SECONDS)
    attempts = 0
    while True:
        attempts += 1
        try:
            return await work()
        except Exception as exc:
            seconds = pauses.get_next()
            if not lost_race(exc, attempts) or (attempts >= RACES and seconds is None):
                raise
            observe.report_retry("race", exc)
        await pause(seconds or 0.0)


def parse_date(text: object) -> datetime | None:
    """Return the time that a header names; ``None`` if it names none."""
    try:
        found = parsedate_to_datetime(str(text))
    except (OverflowError, TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
