"""An object store: five primitives, and the names of objects."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from concurrent.futures import Executor

    from locus_store.backends.documents.protocol import Found, Tag

T = TypeVar("T")
R = TypeVar("R")

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


class Objects(ABC):
    """Bytes by name, in one flat namespace; any thread may call the methods.

    Names have up to 1,000 bytes in UTF-8. Each call is atomic and durable when it returns, and a
    read or list that begins later sees it.
    """

    blocks: ClassVar[bool] = True
    """A call may wait for a network, and so runs in a worker thread."""

    time_step: ClassVar[timedelta] = timedelta(0)
    """The step of the times in lists: an object may be so much newer than its time."""

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

    # --- what a store may do better

    @property
    def pool(self) -> Executor | None:
        """The threads that calls run in; ``None``: those of the event loop."""
        return None

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        """Return the results of ``work``, in order; several items may be worked on at once."""
        return map(work, items)

    def now(self) -> datetime:
        """Return the time by the server's clock."""
        return datetime.now(UTC)

    def where(self, name: str) -> str:
        """Return the place of an object, for messages."""
        return f"object {name!r}"


def checked_prefix(prefix: object) -> str:
    """Return a valid prefix.

    Raises:
        InvalidArgumentError: It is not valid.
    """
    if not isinstance(prefix, str) or any(it < " " for it in prefix):
        raise InvalidArgumentError(f"prefix={prefix!r} must be a string without control characters")
    try:
        size = len(prefix.encode())
    except UnicodeEncodeError as exc:
        raise InvalidArgumentError(f"prefix={prefix!r} is not valid Unicode") from exc
    if size > MAX_PREFIX_BYTES:
        raise InvalidArgumentError(f"prefix has {size} bytes; {MAX_PREFIX_BYTES} are allowed")
    return prefix


def digest(thread_id: str) -> str:
    """Return the digest that stands for a thread's id."""
    return hashlib.sha256(thread_id.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def encoded(thread_id: str, max_bytes: int) -> str:
    """Return the id as a name that sorts as the id does; a digest replaces the end of a long one.

    See ``_PLAIN`` and ``_ESCAPE``.
    """
    text = "".join(map(_escaped, thread_id))
    if len(text.encode()) <= max_bytes:
        return text
    kept = text.encode()[: max_bytes - len(CUT) - _DIGEST_CHARACTERS].decode(errors="ignore")
    return kept.rstrip(_ESCAPE) + CUT + digest(thread_id)


def _escaped(character: str) -> str:
    if character > _ESCAPE:
        return _PLAIN.get(character, character)
    return _ESCAPE + (_SPACE if character == _ESCAPE else chr(ord(character) + _FIRST))


def decoded(name: str) -> str | None:
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
