"""The heads of threads, and their segments, as objects of an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from locus_store.backends.documents.objects import (
    CUT,
    MAX_NAME_BYTES,
    MAX_PART_BYTES,
    checked_prefix,
    decoded,
    digest,
    encoded,
)
from locus_store.backends.documents.protocol import IDENTITY_KEY, Body, Dated, Documents, Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor
    from datetime import datetime

    from locus_store.backends.documents.objects import ListedObject, Objects
    from locus_store.backends.documents.protocol import Tag

T = TypeVar("T")
R = TypeVar("R")

LAYOUT: Final = "v1/"
HEADS: Final = LAYOUT + "heads/"
SEGMENTS: Final = LAYOUT + "segments/"
ITEMS: Final = LAYOUT + "items/"
"""The journal of a store."""

IDENTITY: Final = LAYOUT + "store"

_END_OF_ID: Final = b"\0"


class ObjectDocuments(Documents):
    """The heads of threads as documents, and their segments, in an object store.

    Args:
        objects: The store.
        prefix: What all names begin with.
        heads: What the names of documents have between the prefix and the key.

    Raises:
        InvalidArgumentError: The prefix is not valid.
    """

    trusts_cache = True

    def __init__(self, objects: Objects, prefix: str = "", heads: str = HEADS) -> None:
        self.blocks = objects.blocks  # type: ignore[misc]  # of this object
        self.time_step = objects.time_step  # type: ignore[misc]
        self.objects = objects
        self.prefix = checked_prefix(prefix)
        self.heads = self.prefix + heads

    @property
    def pool(self) -> Executor | None:
        """See ``Documents``, also for the following methods."""
        return self.objects.pool

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        found = self.objects.get(self.name_of(key), known=known)
        if found is None or found.content is None:
            return found
        return Found(found.tag, found.content.removeprefix(self._before(key)))

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        found = self.get(key) if body.kept_bytes else None
        content = body.whole(found.content or b"") if found else body.rest
        return self.objects.put(self.name_of(key), self._before(key) + content, tag=tag)

    def delete(self, key: str, *, tag: Tag) -> None:
        self.objects.delete(self.name_of(key), tag=tag)

    def keys(self, after: str = "") -> Iterator[str]:
        begin = self.name_of(after) if after else ""
        for it in self.objects.list(self.heads, begin):
            if (key := self._key(it.name)) is not None:
                yield key

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        return self.objects.each(work, items)

    def now(self) -> datetime:
        return self.objects.now()

    def where(self, key: str) -> str:
        return self.objects.where(self.name_of(key))

    def strays(self) -> list[str]:
        below = self.objects.list(self.heads)
        return [self._misnamed(it.name) for it in below if self._key(it.name) is None]

    def survey(self) -> tuple[list[Dated], list[str]]:
        return self.dated(self.objects.list(self.heads))

    def dated(self, heads: Iterable[ListedObject]) -> tuple[list[Dated], list[str]]:
        """Return the keys of heads, and a message for each that no thread has."""
        dated, strays = list[Dated](), list[str]()
        for it in heads:
            key = self._key(it.name)
            if key is None:
                strays.append(self._misnamed(it.name))
            else:
                dated.append(Dated(key, it.modified_at, it.tag))
        return dated, strays

    def _misnamed(self, name: str) -> str:
        return f"{self.objects.where(name)} is not named as the head of a thread; remove it"

    # --- names

    def name_of(self, key: str) -> str:
        """Return the name of a thread's head, or of the store's identity."""
        if key == IDENTITY_KEY:
            return self.prefix + IDENTITY
        before = self.heads
        return before + encoded(key, min(MAX_PART_BYTES, MAX_NAME_BYTES - len(before.encode())))

    def _key(self, name: str) -> str | None:
        """Return the thread whose head has this name; ``None`` if no thread has it."""
        text = name[len(self.heads) :]
        key = self._cut_key(name) if CUT in text else decoded(text)
        return key if key and self.name_of(key) == name else None

    def _before(self, key: str) -> bytes:
        """Return what precedes the content: the id of a thread, if its name is cut."""
        return key.encode() + _END_OF_ID if CUT in self.name_of(key) else b""

    def _cut_key(self, name: str) -> str | None:
        """Return the thread of a head whose name has a digest in place of the id's end."""
        found = self.objects.get(name)
        key, end, _ = (found.content or b"" if found else b"").partition(_END_OF_ID)
        return key.decode(errors="replace") if end else None

    def segment(self, thread_id: str, name: str) -> str:
        """Return the name of the object that holds a segment."""
        return f"{self.prefix}{SEGMENTS}{digest(thread_id)}/{name}"

    def segments(self) -> Iterator[tuple[str, str, datetime]]:
        """Yield the digest of the thread, the name and the time of each stored segment."""
        before = self.prefix + SEGMENTS
        for it in self.objects.list(before):
            thread, _, name = it.name[len(before) :].partition("/")
            yield thread, name, it.modified_at

    def segment_names(self, named: dict[str, set[str]]) -> list[str]:
        """Return the names of the objects of segments, by the digests of their threads."""
        before = self.prefix + SEGMENTS
        return [f"{before}{thread}/{name}" for thread, names in named.items() for name in names]

    def discard_segments(self, named: dict[str, set[str]]) -> None:
        """Delete segments, by the digests of their threads."""
        self.objects.discard(self.segment_names(named))
