"""A journal of a store's changes: a head that each change continues, and immutable segments.

The head's first line names the segments in order, and the tokens of the last changes in them. Each
further line of a head or segment is one change, ``{"n": number, "by": token, "put": [...], ...}``.
A line's checksum begins with that of the line above, so a line that was changed, lost or added is
found. Lines state results: an item as it is after the change. The first segment begins with a line
that has all items. A removal makes a new first segment, so that removed values are stored no more.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4
from zlib import crc32

import orjson

from locus_store.backends.documents.item_store import KeptItem
from locus_store.backends.documents.protocol import Access, Body, ChangedError, Documents, Tag
from locus_store.errors import BackendError, IntegrityError, LocusStoreError, SchemaError
from locus_store.types.items import Name, StoreItem

FORMAT: Final = 1
HEAD: Final = "journal"
"""The key of the head; those of segments begin with a digit."""

HEAD_BYTES: Final = 64 * 1024
"""A longer head is made a segment by the next change."""

_CHECK: Final = b',"check":"%08x"}\n'
_CHECK_BYTES: Final = len(_CHECK % 0)
_DIGITS: Final = 16
_RECENT: Final = 100
"""Tokens of changes in segments that the head has."""

_SEEN: Final = 10_000
"""Tokens of changes that one object remembers."""

_TOKEN: Final = re.compile(rb'^{"n":\d+,"by":"(\w+)"', re.MULTILINE)
_TIMES: Final = ("created_at", "updated_at", "expires_at")


class ItemSegment(NamedTuple):
    """A segment, as the head names it."""

    key: str
    size: int
    last: int
    """The number of its last line."""

    check: int
    """The checksum of the change of this number."""


@dataclass(slots=True)
class Position:
    """A place in the journal: behind a line."""

    number: int = 0
    check: int = 0


@dataclass(slots=True)
class ItemChanges:
    """The changes of one line."""

    put: list[KeptItem] = field(default_factory=list)
    renewed: list[KeptItem] = field(default_factory=list)
    """Items whose time to live began again, and that keep their order."""

    removed: list[Name] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.put or self.renewed or self.removed)

    def to_line(self, dimension: int | None) -> dict[str, Any]:
        """Return the changes as a line has them."""
        ordered = sorted(self.put, key=lambda it: it.order)
        has_vectors = any(it.vectors for it in ordered)
        found = {
            "put": [*map(_describe_item, ordered)],
            "renewed": [*map(_describe_item, self.renewed)],
            "removed": self.removed,
            "dimension": dimension if has_vectors else None,
        }
        return {name: it for name, it in found.items() if it}


class State(Protocol):
    """The items that a journal is read into."""

    def reset(self) -> None:
        """Forget all items."""

    def replay(self, row: dict[str, Any]) -> None:
        """Apply the changes of a line."""

    def encode_all(self) -> dict[str, Any]:
        """Return one line's changes that put all items."""


class ItemJournal:
    """The journal of a store, and how far ``state`` has read it.

    Args:
        documents: Where it is kept; nothing else is.
        state: The items.
    """

    def __init__(self, documents: Documents, state: State) -> None:
        self.documents = documents
        self._state = state
        self.forget()

    def forget(self) -> None:
        """Read the whole journal the next time."""
        self._tag: Tag | None = None
        self._content = b""
        self._segments: list[ItemSegment] = []
        self._at = Position()
        self._recent: deque[str] = deque(maxlen=_SEEN)
        """The tokens of the last lines."""

        self._state.reset()

    @property
    def is_known(self) -> bool:
        """True if the journal was read or written before."""
        return self._tag is not None

    def refresh(self, access: Access) -> None:
        """Read what was added since the last time.

        Raises:
            ChangedError: A segment was replaced meanwhile.
            IntegrityError: The journal is damaged, or copied while it was changed.
        """
        found = access.get(HEAD, known=self._tag)
        if found is None:
            self.forget()
        elif found.content is not None:
            try:
                self._read(found.content)
            except ChangedError as exc:
                if (now := access.get(HEAD, known=found.tag)) and now.content is None:
                    raise self._make_damage(*exc.args) from exc
                raise
            self._tag, self._content = found.tag, found.content

    def _read(self, content: bytes) -> None:
        if self._content and content.startswith(self._content):
            added = _Lines(content[len(self._content) :], self._at)
            if self._replay(added):
                self._recent.extend(_read_tokens(added.content))
                return
        head, lines = self._split(content)
        self._segments = [ItemSegment(*it) for it in head["segments"]]
        if not (self._at.number and self._apply_continuation(lines)):
            self._at = Position()
            self._state.reset()
            if not self._apply_continuation(lines):
                raise self._make_damage(HEAD)
        self._recent.clear()
        self._recent.extend([*head["recent"], *_read_tokens(lines)])

    def _apply_continuation(self, lines: bytes) -> bool:
        """Apply the lines behind those that are known; return whether they continue them."""
        start, floor = Position(), self._segments[0].last if self._segments else 0
        if 0 < self._at.number < floor:
            return False
        for segment in self._segments:
            if segment.last > self._at.number and not self._apply(segment, start):
                return False
            start = Position(segment.last, segment.check)
        return self._replay(_Lines(lines, start))

    def _apply(self, segment: ItemSegment, start: Position) -> bool:
        content = self._read_segment(segment)
        lines = _Lines(content, start if start.number else Position(segment.last - 1))
        if not self._replay(lines):
            if not self._at.number or lines.is_damaged:
                raise self._make_damage(segment.key)
            return False
        self._at = Position(segment.last, segment.check)
        return True

    def _replay(self, lines: _Lines) -> bool:
        """Apply the lines behind the position; return whether they are whole and continue it."""
        at = self._at
        if lines.at.number == at.number and lines.at.check != at.check:
            return False
        for row in lines:
            here = lines.at
            if here.number == at.number and here.check != at.check:
                return False
            if here.number > at.number:
                self._state.replay(row)
                self._at = at = Position(here.number, here.check)
        return not lines.is_damaged and lines.at.number >= at.number

    def _split(self, content: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the head's first line, and the others."""
        first, _, lines = content.partition(b"\n")
        head = _parse_line(first + b"\n", 0)
        if head is None:
            raise self._make_damage(HEAD)
        if head["journal"] != FORMAT:
            raise SchemaError(
                f"{self.documents.locate(HEAD)} has format {head['journal']}, which a newer "
                "version of this library wrote; upgrade the library"
            )
        return head, lines

    def _make_damage(self, key: str) -> IntegrityError:
        return IntegrityError(
            f"{self.documents.locate(key)}, a part of the store's journal, is damaged or missing. "
            f"{self.documents.remedy}"
        )

    def has(self, number: int, token: str) -> bool:
        """Return whether a line was written, whose number was to be this one.

        Raises:
            BackendError: It was too long ago.
        """
        if token in self._recent:
            return True
        if number <= self._at.number - len(self._recent):
            raise BackendError(
                f"the answer of {self.documents.locate(HEAD)} was lost, and other writers have "
                "changed much since: the change may have been written. Read the items, and repeat "
                "it where it was not"
            )
        return False

    @property
    def next_number(self) -> int:
        return self._at.number + 1

    def append(self, access: Access, token: str, row: dict[str, Any]) -> bool:
        """Add a line; ``state`` has its changes already. Return whether to ``clean`` then.

        Raises:
            ChangedError: Another writer was faster, or the outcome is unknown.
        """
        line, check = _encode_line({"n": self.next_number, "by": token, **row}, self._at.check)
        erases = "removed" in row
        is_sealed = self._tag is not None and (erases or len(self._content) > HEAD_BYTES)
        if self._tag is None or is_sealed:
            segments = self._seal(token, whole=erases) if is_sealed else []
            named, recent = [list(it) for it in segments], [*self._recent][-_RECENT:]
            about = {"journal": FORMAT, "id": uuid4().hex, "segments": named, "recent": recent}
            head, _ = _encode_line(about, 0)
            body, content = Body(0, head + line), head + line
            if self._tag is None and self.documents.read_identity() is None:
                self.documents.identify(uuid4().hex)
        else:
            segments = self._segments
            body, content = Body(len(self._content), line), self._content + line
        self._tag = access.put(HEAD, body, tag=self._tag)
        self._content, self._segments = content, segments
        self._at = Position(self.next_number, check)
        self._recent.append(token)
        return is_sealed

    def _seal(self, token: str, *, whole: bool) -> list[ItemSegment]:
        """Write the head's lines as a segment, joined with those that are no longer; return all.

        With ``whole``, all items are written as one segment.
        """
        lines = self._split(self._content)[1]
        kept, size = [*self._segments], len(lines)
        while kept and (whole or kept[-1].size <= size):
            size += kept.pop().size
        if kept:
            joined = self._segments[len(kept) :]
            content = b"".join([*map(self._read_segment, joined), lines])
        else:
            row = {"n": self._at.number, "by": token, **self._state.encode_all()}
            content, _ = _encode_line(row, 0)
        # Not the token: a key whose put has lost its answer cannot be put again.
        key = f"{self._at.number:0{_DIGITS}}-{uuid4().hex}"
        self.documents.put(key, Body(0, content), tag=None)
        return [*kept, ItemSegment(key, len(content), self._at.number, self._at.check)]

    def _read_segment(self, segment: ItemSegment) -> bytes:
        if (found := self.documents.get(segment.key)) is None:
            raise ChangedError(segment.key)
        return found.content or b""

    def clean(self, *, erases: bool) -> None:
        """Remove the segments that no head can name any more, those of killed writers too.

        A later head names new segments only with more lines than this one's.

        Raises:
            BackendError: One stays that has values which were removed.
        """
        named = {it.key for it in self._segments}
        last = f"{self._segments[-1].last:0{_DIGITS}}~"
        try:
            for key in [*self.documents.keys()]:
                if key < last and key not in named and (found := self.documents.get(key)):
                    with suppress(ChangedError):  # another writer was faster
                        self.documents.delete(key, tag=found.tag)
        except LocusStoreError as exc:
            if erases:  # else the next time
                raise BackendError(
                    f"the items are removed, but their values are still stored: {exc}. Any later "
                    "removal of an item deletes them"
                ) from exc


class _Lines:
    """The lines of a head or segment, until the first one that is damaged."""

    def __init__(self, content: bytes, start: Position) -> None:
        self.at = start
        """Behind the last line."""

        self.is_damaged = False
        self.content = content

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self.content.splitlines(keepends=True):
            row = _parse_line(line, self.at.check)
            if row is None or row["n"] != self.at.number + 1:
                self.is_damaged = True
                return
            self.at = Position(row["n"], crc32(line[:-_CHECK_BYTES], self.at.check))
            yield row


def _encode_line(row: dict[str, Any], check: int) -> tuple[bytes, int]:
    text = orjson.dumps(row)[:-1]
    check = crc32(text, check)
    return text + _CHECK % check, check


def _read_tokens(lines: bytes) -> list[str]:
    return [it.decode() for it in _TOKEN.findall(lines)]


def _parse_line(line: bytes, check: int) -> dict[str, Any] | None:
    """Return a line's content; ``None`` if it is damaged."""
    text = line[:-_CHECK_BYTES]
    if line[-_CHECK_BYTES:] != _CHECK % crc32(text, check):
        return None
    found: dict[str, Any] = orjson.loads(text + b"}")
    return found


def _describe_item(entry: KeptItem) -> list[Any]:
    item = entry.item
    times = [getattr(item, name) for name in _TIMES]
    found = [item.namespace, item.key, item.version, *times, item.ttl_seconds]
    vectors = [base64.b64encode(it).decode() for it in entry.vectors]
    return [*found, item.value, item.metadata, vectors]


def make_item(row: list[Any], order: int) -> KeptItem:
    """Return an item of a line."""
    namespace, key, version, created, updated, expires, ttl, value, metadata, vectors = row
    item = StoreItem(
        namespace=tuple(namespace),
        key=key,
        value=value,
        metadata=metadata,
        created_at=datetime.fromisoformat(created),
        updated_at=datetime.fromisoformat(updated),
        version=version,
        expires_at=expires and datetime.fromisoformat(expires),
        ttl_seconds=ttl,
    )
    return KeptItem(item, order, tuple(map(base64.b64decode, vectors)))
