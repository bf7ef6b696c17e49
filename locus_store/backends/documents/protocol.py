"""Below the engine: documents, read whole and written conditionally, and their form."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from locus_store.backends.documents.workers import WriteQueues
from locus_store.errors import IntegrityError
from locus_store.runtime.stepping import run_in_thread
from locus_store.types import Active
from locus_store.versions.threads import Thread, ThreadTransaction

T = TypeVar("T")
R = TypeVar("R")

Tag: TypeAlias = "Hashable"
"""Identifies the content of a document, as an object store's ETag does: compared, never read."""

IDENTITY_KEY: Final = ""
"""Key of the document that names the store; a thread's key is its id, which is not empty."""

LAST: Final = datetime.max.replace(tzinfo=UTC)


class Dated(NamedTuple):
    """A document in a list."""

    key: str
    at: datetime | None = None
    """The time of its last change by the storage's clock; ``None``: unknown."""

    tag: Tag | None = None
    """``None``: unknown."""


class ChangedError(Exception):
    """The stored tag differs, or the storage's answer was lost and the outcome is unknown."""


class StaleTagError(ChangedError):
    """The stored tag differs, and nothing was written."""


@dataclass(frozen=True, slots=True)
class Found:
    """A stored document."""

    tag: Tag
    content: bytes | None
    """``None``: the caller knows it, since its tag is the one that was given as ``known``."""

    continues: bool = False
    """The content stands behind the one that has the tag ``known``."""


@dataclass(frozen=True, slots=True)
class Body:
    """The content to put as a document."""

    kept_bytes: int
    """The number of bytes kept from the start of the stored content; 0 if none is stored."""

    rest: bytes

    beside: Any = None
    """Changes of documents that the storage derives, to be made with the put."""

    active_at: datetime | None = None
    """The last activity of the thread; ``None``: lists leave it out."""

    expires_at: datetime | None = None
    """From then on the storage may delete the document."""

    def whole(self, content: bytes = b"") -> bytes:
        """Return the whole content; ``content`` is the one whose tag the put names."""
        return content[: self.kept_bytes] + self.rest if self.kept_bytes else self.rest


class DocumentReads(Protocol):
    """Reads of single documents."""

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """Return a document; ``None`` where there is none.

        The content may be left out where its tag is ``known``. If the document was only continued
        since then, the content may be what stands behind the known one.
        """


class ReadTogether:
    """Documents that were read together, and others.

    Args:
        documents: Where they are stored.
        tags: Their keys, and the tags of those that are known.
    """

    def __init__(self, documents: Documents, tags: Mapping[str, Tag | None]) -> None:
        self._documents = documents
        self._tags = tags
        self._found = documents.get_all(tags)

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``DocumentReads``; reads a document again whose known content was forgotten."""
        if key not in self._found or self._tags[key] != known:
            return self._documents.get(key, known=known)
        return self._found[key]


class Access(DocumentReads, Protocol):
    """Reads and conditional writes of single documents."""

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        """Replace the document that has this tag, or create one where ``tag`` is ``None``.

        Atomic and durable when it returns: a reader finds the old content or the new one, and of
        two puts on the same tag one fails.

        Returns:
            The new tag, which no earlier content of this key has had.

        Raises:
            StaleTagError: The stored tag differs, or ``None`` was given and there is a document.
            ChangedError: It is not known whether the put was done.
        """

    def delete(self, key: str, *, tag: Tag) -> None:
        """Delete the document that has this tag.

        Raises:
            StaleTagError, ChangedError: As ``put``; also if there is no document.
        """


class Calls:
    """The threads that the calls of a storage run in, and its clock."""

    blocks: ClassVar[bool] = True
    """A call may wait for a disk or a network, and so runs in a worker thread."""

    time_step: ClassVar[timedelta] = timedelta(0)
    """The step of the times in lists: an entry may be so much newer than its time."""

    @property
    def pool(self) -> Executor | None:
        """The threads that calls run in; ``None``: those of the event loop."""
        return None

    def run_each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
        """Return the results of ``work``, in order; several items may be worked on at once."""
        return map(work, items)

    def read_clock(self) -> datetime:
        """Return the time by the storage's clock."""
        return datetime.now(UTC)


class Documents(Access, Calls, ABC):
    """Documents by key. Implement the four abstract methods; any thread may call them.

    Keys are strings of up to 255 characters; any character but NUL may occur.
    """

    rivals: ClassVar[str] = "other writers"
    """The writers that may change a document while it is held; for messages."""

    remedy: ClassVar[str] = "Restore it from a backup, or remove it"
    """The instruction for a damaged document; for messages."""

    trusts_cache: ClassVar[bool] = False
    """The first attempt of a write reads nothing if the thread is cached: its put decides."""

    _store: str | None = None

    @abstractmethod
    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``Access``; also for ``put`` and ``delete``."""

    @abstractmethod
    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag: ...

    @abstractmethod
    def delete(self, key: str, *, tag: Tag) -> None: ...

    @abstractmethod
    def keys(self, after: str = "") -> Iterator[str]:
        """Return the keys above ``after`` in the order of code points, read page by page."""

    def list_live(self, after: str) -> Iterator[tuple[str, bool]]:
        """Yield keys as ``keys`` does; each with ``True`` where its thread is known to be live."""
        return ((it, False) for it in self.keys(after))

    async def run_call(self, call: Callable[[], T]) -> T:
        """Run a call that reads or writes documents; in a worker thread if it may block."""
        return await run_in_thread(call, pool=self.pool) if self.blocks else call()

    async def run_in_order(self, queues: WriteQueues, key: str, call: Callable[[], T]) -> T:
        """Run a write of a document after all earlier ones, even if the caller is cancelled."""
        return await queues.run(key, call, self.pool)

    def pause(self, seconds: float) -> None:
        """Wait, so that other writers can finish."""
        time.sleep(seconds)

    def run_off_loop(self, work: Callable[[], T], size: int) -> T:
        """Return what ``work`` returns; it takes time with ``size`` bytes and reads nothing."""
        return work()

    def held(self, key: str, *, creates: bool) -> AbstractContextManager[Access]:
        """Return access to one document for a read and the write that depends on it.

        A storage that has locks keeps other writers of the document waiting meanwhile, and with
        ``creates`` those that would create it. The condition of ``put`` decides in any case.
        """
        return nullcontext(self)

    def read_identity(self) -> str | None:
        """Return the store's name, which versions' marks carry; ``None`` if it is not written yet.

        Raises:
            IntegrityError: It is damaged.
        """
        if self._store is None and (found := self.get(IDENTITY_KEY)) and found.content:
            self._store = found.content.decode()
        return self._store

    def identify(self, store: str) -> None:
        """Write the name of the store, before the first thread.

        Raises:
            ChangedError: Another writer was faster.
        """
        self.put(IDENTITY_KEY, Body(0, store.encode()), tag=None)
        self._store = store

    def confirm(self, key: str) -> None:
        """Make a put or deletion that was done, but not answered, as durable as an answered one."""

    def locate(self, key: str) -> str:
        """Return the place of a document, for messages."""
        return f"document {key!r}"

    def list_strays(self) -> list[str]:
        """Return a message for each document that cannot belong to a thread."""
        return []

    def list_active(self, size: int, after: str | None) -> Iterator[Active] | None:
        """Yield the threads that exist, the most recently active first; ``None``: read them.

        Args:
            size: The number that is probably read.
            after: The last one that was listed.

        Raises:
            NotFoundError: ``after`` does not exist.
        """
        return None

    def iterate_newest(self, size: int = 0) -> Iterator[list[Dated]]:
        """Yield pages of all keys, the most recently changed first; keys without a time precede.

        Threads of pending writes only may be left out.

        Args:
            size: The number that is probably read; 0: unknown.

        Raises:
            IntegrityError: A document cannot belong to a thread.
        """
        for stray in self.list_strays():
            raise IntegrityError(stray)
        yield [Dated(it) for it in self.keys("")]

    def get_all(self, tags: Mapping[str, Tag | None]) -> Mapping[str, Found | None]:
        """Return those of the documents of these keys that are read together; see ``get``."""
        return {}

    def sweep(self) -> None:
        """Remove what killed writers have left beside the documents."""


class Parsed(NamedTuple):
    """A thread as it was parsed from a document."""

    tag: Tag
    thread: Thread
    """Shared, and so never changed."""

    end: Any
    """The form's own facts of the document; its ``size`` is in bytes."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A change of one thread's document, before it is written."""

    body: Body | None
    """``None``: the document is deleted."""

    thread: Thread | None = None
    end: Any = None
    dropped: Sequence[str] = ()
    """Segments that the document names no longer."""

    removed: Sequence[tuple[int, int]] = ()
    """Lines and sequences of versions whose derived documents are to be removed."""

    sealed: Any = None
    """Segments to write before the document."""

    token: str = ""
    began: datetime = LAST
    """The time before the segments are written, by the storage's clock; of a deletion, the time at
    which its thread was created."""


class DocumentForm:
    """The form of a thread's document."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents

    def clear(self) -> None:
        """Forget what is kept in memory."""

    def limit(self, max_bytes: int) -> None:
        """Keep at most this many bytes beside the parsed documents."""

    def parse(self, content: bytes, thread_id: str) -> tuple[Thread, Any]:
        """Return the thread of a document, and the form's facts of it.

        Raises:
            IntegrityError: It was cut off or changed, or is another thread's, or none of ours.
            SchemaError: It is of a newer version of this library.
        """
        raise NotImplementedError

    def parse_continued(self, base: Parsed, content: bytes) -> tuple[Thread, Any]:
        """Return the thread of a document that continues a known one by ``content``.

        Called only if ``Found.continues``, which is of a form whose documents end nowhere.
        """
        raise NotImplementedError

    def share(self, thread: Thread) -> Thread:
        """Return a thread from the cache for reading."""
        return thread

    def compute_active_at(self, document: Parsed, at: datetime | None) -> datetime:
        """Return the time of a thread's last activity, by which lists are ordered.

        Args:
            document: The thread.
            at: The time of its document, by the storage's clock.
        """
        return document.thread.active_at

    def draft(self, transaction: ThreadTransaction, old: Parsed | None) -> Draft | None:
        """Return the document after a transaction; ``None`` if nothing changed."""
        raise NotImplementedError

    def draft_deletion(self, old: Parsed) -> Draft:
        """Return the deletion of a document."""
        return Draft(None, began=old.thread.created_at)

    def prepare(self, draft: Draft) -> None:
        """Write what the document will name."""

    def finish(self, thread_id: str, draft: Draft) -> None:
        """Remove what the written document names no longer.

        Raises:
            LocusStoreError: Some of it stays.
        """

    def abandon(self, thread_id: str, draft: Draft) -> None:
        """Remove what was written for a draft that is stored nowhere."""

    def holds(self, content: bytes, draft: Draft) -> bool:
        """Return whether a document is the result of a put, or has grown from it."""
        raise NotImplementedError

    def find_leftovers(self, read: Callable[[str], Parsed | None]) -> set[str]:
        """Return the places of stored data that no document names."""
        return set()

    def sweep(self, read: Callable[[str], Parsed | None]) -> None:
        """Remove what killed writers have left; ``read`` reads a thread, expired or not."""
        self.documents.sweep()
