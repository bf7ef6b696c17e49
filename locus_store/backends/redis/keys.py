"""Names and layout of the keys in Redis.

Keys begin with the prefix and a hash tag, ``{0}`` to ``{63}``: a bucket. A thread's key and the
indexes that list the thread share a bucket, so that one script writes them, all or nothing, on a
cluster too. An index cannot contradict the threads.

==============================  ================================================================
``<prefix>{17}:thread|<id>``    list: the tag of a thread, and its packs (``documents/packed.py``)
``<prefix>{17}:active``         sorted set: threads that exist by the microsecond of activity
``<prefix>{17}:ids``            sorted set: all threads by id, of pending writes only too
``<prefix>{17}:expiry``         sorted set: threads by the end of their time, in milliseconds
``<prefix>{17}:absent``         never there
``<prefix>{meta}``              hash: the store's identity, and the version of this layout
==============================  ================================================================

While a slot of a cluster is being moved, a script that names a key that is not there is refused
before it begins; one that finds all its keys is refused where it comes to one that it emptied
itself, which is too late. So scripts that write name one more, which is never there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zlib import crc32

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import check_text

BUCKETS: Final = 64
"""Hash tags: at most so many nodes of a cluster have threads, and a list asks each of them."""

MAX_PREFIX: Final = 200

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

ENTRY_DIGITS: Final = 18
"""Digits of the activity's microsecond, which precedes the id in an entry of a page."""


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """The keys of one store.

    Raises:
        InvalidArgumentError: The prefix has a brace in it, which would be the hash tag.
    """

    prefix: str

    def __post_init__(self) -> None:
        check_text("prefix", self.prefix, minimum=0, maximum=MAX_PREFIX)
        if "{" in self.prefix or "}" in self.prefix:
            raise InvalidArgumentError(
                f"prefix={self.prefix!r} has a brace in it; on a cluster, braces decide the slot "
                "of a key, and the store sets its own"
            )

    @property
    def meta(self) -> str:
        """The hash with the store's identity and the version of this layout."""
        return f"{self.prefix}{{meta}}"

    def list_foreign(self, thread_id: str) -> list[str]:
        """Return the Locus SDK's string keys of a thread, with and without its adapter."""
        return [f"{self.prefix}{thread_id}:latest", f"{self.prefix}{thread_id}"]

    def list_foreign_versions(self, thread_id: str, checkpoint_id: str) -> list[str]:
        """Return the Locus SDK's string keys of a version; the newest one's id may be a mark."""
        if checkpoint_id == "latest":
            return self.list_foreign(thread_id)
        return [f"{self.prefix}{thread_id}:{checkpoint_id}"]

    def list_indexes(self, bucket: int) -> list[str]:
        """Return the keys ``active``, ``ids`` and ``expiry``."""
        return [f"{self.prefix}{{{bucket}}}:{name}" for name in ("active", "ids", "expiry")]

    def get_document(self, thread_id: str) -> str:
        """Return the key of a thread."""
        return f"{self.prefix}{{{compute_bucket(thread_id)}}}:thread|{thread_id}"

    def list_writing(self, thread_id: str) -> list[str]:
        """Return a script's keys to write a thread: also the indexes, and ``make_absent_key``."""
        bucket = compute_bucket(thread_id)
        never_there = make_absent_key(f"{self.prefix}{{{bucket}}}:")
        return [self.get_document(thread_id), *self.list_indexes(bucket), never_there]


def make_absent_key(start: str) -> str:
    """Return the key with this prefix that never exists."""
    return f"{start}absent"


def compute_bucket(name: str) -> int:
    """Return the bucket of a thread."""
    return crc32(name.encode()) % BUCKETS


def to_microseconds(moment: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def from_microseconds(value: int) -> datetime:
    """Return the time of microseconds since 1970."""
    return EPOCH + value * MICROSECOND
