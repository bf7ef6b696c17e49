"""Instants as integers: microseconds since 1970 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def to_microseconds(moment: datetime) -> int:
    """Return an instant as microseconds since 1970."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return (moment - EPOCH) // MICROSECOND


def from_microseconds(count: float) -> datetime:
    """Return the instant of microseconds since 1970, in UTC."""
    return EPOCH + timedelta(microseconds=count)
