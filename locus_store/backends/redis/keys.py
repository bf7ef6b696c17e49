"""Names and layout of the keys in Redis.

Keys begin with the prefix and a hash tag, ``{0}`` to ``{63}``: a bucket. A thread's keys and the
indexes that list the thread share a bucket, so that one script writes them, all or nothing, on a
cluster too. An index cannot contradict the threads.

====================================  ==========================================================
``<prefix>{17}:thread|<thread>``      hash: what is known of a thread, and its namespaces
``<prefix>{17}:line|<thread>|<ns>``   hash: a namespace's head and chain, and a field ``r<n>`` for
                                      the n-th version: what is known of it but for its payload;
                                      ``alone``, how many payloads at the log's end are small, of
                                      the head's chain and in places of their own, where it is known
``<prefix>{17}:order|<thread>|<ns>``  sorted set: checkpoint ids by sequence
``<prefix>{17}:log|<thread>|<ns>``    list: payloads by sequence, as ``<chain> <payload>``; or
                                      many of one chain in the place of the first, as ``+<chain>
                                      <length> <length> ...``, a line end and the payloads, behind
                                      which the others' places are empty
``<prefix>{17}:writes|<thread>|<ns>`` hash: pending writes
``<prefix>{17}:messages|<thread>``    list: the message log
``<prefix>{17}:active``               sorted set: threads that exist by the microsecond of activity
``<prefix>{17}:ids``                  sorted set: all threads by id, of pending writes only too
``<prefix>{17}:expiry``               sorted set: threads by the end of their time, in milliseconds
``<prefix>{17}:absent``               never there
====================================  ==========================================================

While a slot of a cluster is being moved, a script that names a key that is not there is refused
before it begins; one that finds all its keys is refused where it comes to one that it emptied
itself, which is too late. So scripts that write name one more, which is never there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import check_text

if TYPE_CHECKING:
    from collections.abc import Iterable

BUCKETS: Final = 64
"""Hash tags: at most so many nodes of a cluster have threads, and a list asks each of them."""

MAX_PREFIX: Final = 200

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

    def foreign(self, thread_id: str) -> list[str]:
        """Return the Locus SDK's string keys of a thread, with and without its adapter."""
        return [f"{self.prefix}{thread_id}:latest", f"{self.prefix}{thread_id}"]

    def foreign_versions(self, thread_id: str, checkpoint_id: str) -> list[str]:
        """Return the Locus SDK's string keys of a version; the newest one's id may be a mark."""
        if checkpoint_id == "latest":
            return self.foreign(thread_id)
        return [f"{self.prefix}{thread_id}:{checkpoint_id}"]

    def indexes(self, bucket: int) -> list[str]:
        """Return the keys ``active``, ``ids`` and ``expiry``."""
        return _indexes(self._start(bucket))

    def sweeping(self, bucket: int) -> list[str]:
        """Return the keys that are written when threads are removed from the indexes."""
        return [*self.indexes(bucket), absent(self._start(bucket))]

    def reading(self, thread_id: str, namespace: str) -> list[str]:
        """Return a script's keys to read: the thread, and its line, order, log and writes."""
        start, thread = self._start(bucket_of(thread_id)), _escaped(thread_id)
        return [f"{start}thread|{thread}", *_line(start, thread, namespace)]

    def writing(self, thread_id: str, namespace: str, others: Iterable[str] = ()) -> list[str]:
        """Return a script's keys to write: also messages, indexes, ``absent``, other namespaces."""
        start, thread = self._start(bucket_of(thread_id)), _escaped(thread_id)
        return _all(start, thread, namespace, others, absent(start))

    def archiving(self, thread_id: str, namespace: str, others: Iterable[str] = ()) -> list[str]:
        """Return a whole thread's keys: as ``writing``, with the thread's row for ``absent``."""
        start, thread = self._start(bucket_of(thread_id)), _escaped(thread_id)
        return _all(start, thread, namespace, others, f"{start}thread|{thread}")

    def line(self, thread_id: str, namespace: str) -> list[str]:
        """Return the keys ``line``, ``order``, ``log`` and ``writes`` of a namespace."""
        return _line(self._start(bucket_of(thread_id)), _escaped(thread_id), namespace)

    def _start(self, bucket: int) -> str:
        return f"{self.prefix}{{{bucket}}}:"


def _indexes(start: str) -> list[str]:
    return [start + name for name in ("active", "ids", "expiry")]


def absent(start: str) -> str:
    """Return the key with this prefix that never exists."""
    return f"{start}absent"


def _all(
    start: str, thread: str, namespace: str, others: Iterable[str], in_between: str
) -> list[str]:
    return [
        *(f"{start}thread|{thread}", *_line(start, thread, namespace)),
        *(f"{start}messages|{thread}", *_indexes(start), in_between),
        *(key for it in others for key in _line(start, thread, it)),
    ]


def _line(start: str, thread: str, namespace: str) -> list[str]:
    name = f"{thread}|{_escaped(namespace)}"
    return [f"{start}{kind}|{name}" for kind in ("line", "order", "log", "writes")]


def bucket_of(name: str) -> int:
    """Return the bucket of a thread."""
    return crc32(name.encode()) % BUCKETS


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("|", "%7C")
