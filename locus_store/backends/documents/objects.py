"""An object store: its primitives, the names of objects, and the heads of threads as documents."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from locus_store.backends.documents.protocol import (
    IDENTITY_KEY,
    LAST,
    Body,
    Calls,
    Dated,
    Documents,
    Found,
    Tag,
)
from locus_store.errors import IntegrityError, InvalidArgumentError
from locus_store.types.facts import Fact

T = TypeVar("T")
R = TypeVar("R")

LAYOUT: Final = "v1/"
HEADS: Final = LAYOUT + "heads/"
SEGMENTS: Final = LAYOUT + "segments/"
ITEMS: Final = LAYOUT + "items/"
"""The journal of a store."""

IDENTITY: Final = LAYOUT + "store"

_END_OF_ID: Final = b"\0"

MAX_NAME_BYTES: Final = 1000
"""The longest name of an object; services allow 1,024 bytes, some with a slash before it."""

MAX_PART_BYTES: Final = 200
"""The longest part between two slashes: where objects are files, it is 255 with an ending."""

MAX_PREFIX_BYTES: Final = 512
"""The longest prefix, so that most of a thread's id remains readable in its name."""

_ESCAPE: Final = " "
"""Escapes itself and the characters below it, so that names sort as the ids do."""
_SPACE: Final = "~"
_FIRST: Final = ord("0")
"""Represents NUL behind an escape."""
_PLAIN: Final = {
    ".": ".-",
    "/": "._",
    "[": "[-",
    "\\": "[_",
    "\ufffd": "\ufffd-",
    "\ufffe": "\ufffd_",
    "\uffff": "\ufffd~",
}
"""No name of an id has a slash, since a service that keeps objects as files has no ``a`` beside
``a/b``. Nor has it characters that XML does not allow.
"""
_PART: Final = re.compile(r" ([0-O~])|([.\[\ufffd][-_~])|([^ ./\[\\\ufffd-\uffff]+)")
CUT: Final = " |"
"""Precedes the digest of an id that is too long for a name."""
_DIGEST_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a list."""

    name: str
    modified_at: datetime
    """By the server's clock."""

    tag: Tag | None = None
    """``None``: the list does not say."""


class Objects(Calls, ABC):
    """Bytes by name, in one flat namespace; any thread may call the methods.

    Names have up to 1,000 bytes in UTF-8. Each call is atomic and durable when it returns, and a
    read or list that begins later sees it.
    """

    @abstractmethod
    def get(self, name: str, *, known: Tag | None = None) -> Found | None:
        """Return an object; ``None`` if there is none.

        The content is left out if its tag is ``known``.
        """

    @abstractmethod
    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        """Replace the object that has this tag, or create one if ``tag`` is ``None``.

        Of two puts on one tag one fails.

        Raises:
            ChangedError: The stored tag differs, and nothing was written; or it is not known
                whether the put was done.
        """

    @abstractmethod
    def store(self, name: str, content: bytes) -> None:
        """Put an object under a name that no other writer uses."""

    @abstractmethod
    def delete(self, name: str, *, tag: Tag) -> None:
        """Delete the object that has this tag.

        Raises:
            ChangedError: As ``put``; also if there is no object.
        """

    @abstractmethod
    def discard(self, names: Collection[str]) -> None:
        """Delete objects; missing ones are ignored.

        Raises:
            BackendError: Some of them stay; the others are deleted.
        """

    @abstractmethod
    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        """Yield the objects below a prefix, with names above ``after``, ordered by UTF-8."""

    def locate(self, name: str) -> str:
        """Return the place of an object, for messages."""
        return f"object {name!r}"


def check_prefix(prefix: object) -> str:
    """Return a prefix; refuse one that is not valid."""
    if not isinstance(prefix, str) or any(it < " " for it in prefix):
        raise InvalidArgumentError(f"prefix={prefix!r} must be a string without control characters")
    try:
        size = len(prefix.encode())
    except UnicodeEncodeError as exc:
        raise InvalidArgumentError(f"prefix={prefix!r} is not valid Unicode") from exc
    if size > MAX_PREFIX_BYTES:
        raise InvalidArgumentError(f"prefix has {size} bytes; {MAX_PREFIX_BYTES} are allowed")
    return prefix


def compute_content_md5(content: bytes) -> str:
    """Return the header ``Content-MD5`` of a put, by which a service refuses a cut-off body."""
    return b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def digest(thread_id: str) -> str:
    """Return the digest that stands for a thread's id."""
    return hashlib.sha256(thread_id.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def encode_name(thread_id: str, max_bytes: int) -> str:
    """Return the id as a name that sorts as the id does; a digest replaces the end of a long one.

    See ``_PLAIN`` and ``_ESCAPE``.
    """
    text = "".join(map(_escape, thread_id))
    if len(text.encode()) <= max_bytes:
        return text
    kept = text.encode()[: max_bytes - len(CUT) - _DIGEST_CHARACTERS].decode(errors="ignore")
    return kept.rstrip(_ESCAPE) + CUT + digest(thread_id)


def _escape(character: str) -> str:
    if character > _ESCAPE:
        return _PLAIN.get(character, character)
    return _ESCAPE + (_SPACE if character == _ESCAPE else chr(ord(character) + _FIRST))


def decode_name(name: str) -> str | None:
    """Return the id that has this name; ``None`` if the name is cut or no id has it."""
    plain = {it: character for character, it in _PLAIN.items()}
    out, end = list[str](), 0
    for found in _PART.finditer(name):
        escaped, pair, rest = found.groups()
        if found.start() != end or (pair and pair not in plain):
            return None
        if escaped:
            out.append(_ESCAPE if escaped == _SPACE else chr(ord(escaped) - _FIRST))
        else:
            out.append(plain[pair] if pair else rest)
        end = found.end()
    return "".join(out) or None if end == len(name) else None


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
        self.prefix = check_prefix(prefix)
        self.heads = self.prefix + heads

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.objects!r}, {self.prefix!r})"

    @property
    def pool(self) -> Executor | None:
        return self.objects.pool

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        found = self.objects.get(self.name_head(key), known=known)
        if found is None or found.content is None:
            return found
        return Found(found.tag, found.content.removeprefix(self._get_start(key)))

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        found = self.get(key) if body.kept_bytes else None
        content = body.whole(found.content or b"") if found else body.rest
        return self.objects.put(self.name_head(key), self._get_start(key) + content, tag=tag)

    def delete(self, key: str, *, tag: Tag) -> None:
        self.objects.delete(self.name_head(key), tag=tag)

    def keys(self, after: str = "") -> Iterator[str]:
        begin = self.name_head(after) if after else ""
        for entry in self.objects.list(self.heads, begin):
            if (key := self._find_key(entry.name)) is not None:
                yield key

    def run_each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        return self.objects.run_each(work, items)

    def read_clock(self) -> datetime:
        return self.objects.read_clock()

    def locate(self, key: str) -> str:
        return self.objects.locate(self.name_head(key))

    def list_strays(self) -> list[str]:
        heads = self.objects.list(self.heads)
        return [self._describe_stray(it) for it in heads if self._find_key(it.name) is None]

    def _describe_stray(self, head: ListedObject) -> str:
        return f"{self.objects.locate(head.name)} is not named as the head of a thread; remove it"

    def iterate_newest(self, size: int = 0) -> Iterator[list[Dated]]:
        yield self.sort_heads(self.objects.list(self.heads))

    def sort_heads(self, heads: Iterable[ListedObject]) -> list[Dated]:
        """Return the keys of heads; see ``iterate_newest``."""
        dated = list[Dated]()
        for head in heads:
            key = self._find_key(head.name)
            if key is None:
                raise IntegrityError(self._describe_stray(head))
            dated.append(Dated(key, head.modified_at, head.tag))
        return sorted(dated, key=lambda it: it.at or LAST, reverse=True)

    def name_head(self, key: str) -> str:
        """Return the name of a thread's head, or of the store's identity."""
        if key == IDENTITY_KEY:
            return self.prefix + IDENTITY
        before = self.heads
        return before + encode_name(key, min(MAX_PART_BYTES, MAX_NAME_BYTES - len(before.encode())))

    def _find_key(self, name: str) -> str | None:
        """Return the thread whose head has this name; ``None`` if no thread has it."""
        text = name[len(self.heads) :]
        key = self._cut_key(name) if CUT in text else decode_name(text)
        return key if key and self.name_head(key) == name else None

    def _get_start(self, key: str) -> bytes:
        """Return what precedes the content: the id of a thread, if its name is cut."""
        return key.encode() + _END_OF_ID if CUT in self.name_head(key) else b""

    def _cut_key(self, name: str) -> str | None:
        """Return the thread of a head whose name has a digest in place of the id's end."""
        found = self.objects.get(name)
        key, end, _ = (found.content or b"" if found else b"").partition(_END_OF_ID)
        return key.decode(errors="replace") if end else None

    def name_segment(self, thread_id: str, name: str) -> str:
        return f"{self.prefix}{SEGMENTS}{digest(thread_id)}/{name}"

    def list_segments(self) -> Iterator[tuple[str, str, datetime]]:
        """Yield the digest of the thread, the name and the time of each stored segment."""
        before = self.prefix + SEGMENTS
        for entry in self.objects.list(before):
            thread, _, name = entry.name[len(before) :].partition("/")
            yield thread, name, entry.modified_at

    def list_segment_names(self, segments: dict[str, set[str]]) -> list[str]:
        """Return the names of the objects of segments, by the digests of their threads."""
        before = self.prefix + SEGMENTS
        return [f"{before}{thread}/{name}" for thread, names in segments.items() for name in names]


_LARGE_SKEW: Final = timedelta(minutes=1)


def describe_clock(objects: Objects, remedy: str) -> Fact:
    """Return how far the service's clock is from this machine's."""
    skew = abs(objects.read_clock() - datetime.now(UTC))
    text = f"differs from the service's by {skew.total_seconds():.0f} s"
    return Fact("clock", text, "ok") if skew < _LARGE_SKEW else Fact("clock", text, "warn", remedy)
