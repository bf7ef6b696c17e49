"""The form of a thread's document: how a thread becomes bytes, and a document a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from locus_store.backends.documents import format as documents_format
from locus_store.backends.documents.protocol import Body, Documents, Tag
from locus_store.versions.threads import Thread, ThreadTransaction


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


class DocumentForm:
    """A whole thread in one document, to which a save adds."""

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
        where = self.documents.locate(thread_id)
        return documents_format.parse_thread(content, thread_id, where, self.documents.remedy)

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
        thread = transaction.thread
        assert thread is not None  # noqa: S101  (the caller deletes it else)
        if old is not None and transaction.adds_only:
            body, end = documents_format.encode_tail(transaction, old.end)
        else:
            body, end = documents_format.encode_thread(thread)
        return Draft(body, thread, end) if body.rest else None

    def draft_deletion(self, old: Parsed) -> Draft:
        """Return the deletion of a document."""
        return Draft(None)

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
        return draft.body is not None and documents_format.holds(content, draft.body)

    def find_leftovers(self, read: Callable[[str], Parsed | None]) -> set[str]:
        """Return the places of stored data that no document names."""
        return set()

    def sweep(self, read: Callable[[str], Parsed | None]) -> None:
        """Remove what killed writers have left; ``read`` reads a thread, expired or not."""
        self.documents.sweep()
