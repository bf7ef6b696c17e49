"""Facts about a bucket of an S3 service for ``locus-store doctor``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from locus_store.backends.documents.objects import HEADS, ITEMS, SEGMENTS
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from locus_store.backends.s3.client import S3Objects

_LARGE_SKEW: Final = timedelta(minutes=1)


def collect_facts(objects: S3Objects) -> list[Fact]:
    """Return the numbers of objects, and what the service does with conditions and clocks.

    An object is put and deleted to see whether the service keeps conditions.
    """
    counts = [sum(1 for _ in objects.list(objects.prefix + it)) for it in (HEADS, SEGMENTS, ITEMS)]
    text = "{:,} heads of threads, {:,} segments; {:,} of the store".format(*counts)
    return [Fact("objects", text), _conditions(objects), _clock(objects)]


def _conditions(objects: S3Objects) -> Fact:
    if objects.require_conditions():
        return Fact("conditions", "of puts and deletions are kept", "ok")
    remedy = (
        "a deleted thread leaves an empty object with its id; use a service that keeps If-Match"
    )
    return Fact("conditions", "of deletions are ignored", "warn", remedy)


def _clock(objects: S3Objects) -> Fact:
    skew = abs(objects.now() - datetime.now(UTC))
    text = f"differs from the service's by {skew.total_seconds():.0f} s"
    if skew < _LARGE_SKEW:
        return Fact("clock", text, "ok")
    return Fact("clock", text, "warn", "set it; services refuse requests beyond 15 minutes")
