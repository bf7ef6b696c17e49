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
``<prefix>{17}:tenants``        set: tenants with threads in the bucket, but for ``default``
``<prefix>{meta}``              hash: the store's identity, and the version of this layout
==============================  ================================================================

The first four keys of another tenant than ``default`` begin with ``<prefix>{17}@acme:``, its name
quoted as in a URL.

While a slot of a cluster is being moved, a script that names a key that is not there is refused
before it begins; one that finds all its keys is refused where it comes to one that it emptied
itself, which is too late. So scripts that write name one more, which is never there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote
from zlib import crc32

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import check_tenant, check_text

BUCKETS: Final = 64
"""Hash tags: at most so many nodes of a cluster have threads, and a list asks each of them."""

MAX_PREFIX: Final = 200

DEFAULT_TENANT: Final = "default"

ENTRY_DIGITS: Final = 18
"""Digits of the activity's microsecond, which precedes the id in an entry of a page."""


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """The keys of a tenant of one store.

    Raises:
        InvalidArgumentError: The prefix has a brace in it, which would be the hash tag; or the
            tenant's name is not valid.
    """

    prefix: str
    tenant: str = DEFAULT_TENANT

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        check_text("prefix", self.prefix, minimum=0, maximum=MAX_PREFIX)
        if "{" in self.prefix or "}" in self.prefix:
            raise InvalidArgumentError(
                f"prefix={self.prefix!r} has a brace in it; on a cluster, braces decide the slot "
                "of a key, and the store sets its own"
            )

    @property
    def is_default(self) -> bool:
        """These are the keys of the tenant that an object has if none is named."""
        return self.tenant == DEFAULT_TENANT

    def get_start(self, hash_tag: object) -> str:
        """Return what the tenant's keys with a hash tag begin with, up to the colon."""
        of_tenant = "" if self.is_default else "@" + quote(self.tenant, safe="")
        return f"{self.prefix}{{{hash_tag}}}{of_tenant}"

    def list_others(self, hash_tag: object) -> list[str]:
        """Return the keys of a script that writes, beside those of the tenant."""
        start = f"{self.prefix}{{{hash_tag}}}:"
        return [f"{start}absent", *([] if self.is_default else [f"{start}tenants"])]

    @property
    def meta(self) -> str:
        """The hash with the store's identity and the version of this layout."""
        return f"{self.prefix}{{meta}}"

    def list_foreign(self, thread_id: str) -> list[str]:
        """Return the Locus SDK's string keys of a thread, with and without its adapter.

        It has no tenants.
        """
        if not self.is_default:
            return []
        return [f"{self.prefix}{thread_id}:latest", f"{self.prefix}{thread_id}"]

    def list_foreign_versions(self, thread_id: str, checkpoint_id: str) -> list[str]:
        """Return the Locus SDK's string keys of a version; the newest one's id may be a mark."""
        if checkpoint_id == "latest" or not self.is_default:
            return self.list_foreign(thread_id)
        return [f"{self.prefix}{thread_id}:{checkpoint_id}"]

    def list_indexes(self, bucket: int) -> list[str]:
        """Return the keys ``active``, ``ids`` and ``expiry``."""
        return [f"{self.get_start(bucket)}:{name}" for name in ("active", "ids", "expiry")]

    def get_document(self, thread_id: str) -> str:
        return f"{self.get_start(compute_bucket(thread_id))}:thread|{thread_id}"

    def list_writing(self, thread_id: str) -> list[str]:
        """Return a script's keys to write a thread: also the indexes, and ``list_others``."""
        bucket = compute_bucket(thread_id)
        indexes = self.list_indexes(bucket)
        return [self.get_document(thread_id), *indexes, *self.list_others(bucket)]


def compute_bucket(name: str) -> int:
    """Return the bucket of a thread."""
    return crc32(name.encode()) % BUCKETS
