"""Outboxes: changes of the message logs of several threads, each of which has its own document.

The put of the first thread's document commits the change, with its edits of other threads in an
outbox. They are applied to the other documents, and then the outbox is removed. Each read or write
of a thread that has an outbox applies it first: a change that was cut off in between is finished
before a part of it is seen. Each of the other documents keeps the token of the outbox, so that it
is applied once.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, islice
from typing import Final, Protocol

from locus_store.backends.documents.protocol import DocumentReads, Parsed
from locus_store.types.logs import Outbox
from locus_store.types.messages import LogEdit
from locus_store.types.thread_info import may_see
from locus_store.versions import logs
from locus_store.versions.threads import ThreadChange, ThreadTransaction

MOST_DELIVERED: Final = 64
"""A thread with so many tokens loses half of them, once their outboxes are known to be removed."""


class Threads(Protocol):
    """Access to stored threads, whatever their outboxes are."""

    @property
    def documents(self) -> DocumentReads: ...

    def read_parsed(self, access: DocumentReads, thread_id: str) -> Parsed | None:
        """Return a thread as it is stored; ``None`` if it has no document."""

    def write_as_is(self, thread_id: str, change: ThreadChange[None], *, creates: bool) -> None:
        """Change a thread."""


def deliver(threads: Threads, source: str, outbox: Outbox) -> None:
    """Apply the outbox of the thread ``source``, and remove it."""
    for thread_id, edits in groupby(outbox.edits, key=lambda it: it.thread_id):
        change = _make_change(threads, thread_id, source, outbox.token, list(edits))
        threads.write_as_is(thread_id, change, creates=True)
    threads.write_as_is(source, lambda it: _remove(it, outbox), creates=False)


def _make_change(
    threads: Threads, thread_id: str, source: str, token: str, edits: Iterable[LogEdit]
) -> ThreadChange[None]:
    old = _remove_tokens(threads, thread_id)

    def apply(transaction: ThreadTransaction) -> None:
        delivered = transaction.old.delivered if transaction.old else {}
        # The outbox is looked at after the thread was read: its token may have been forgotten.
        if delivered.get(source) == token or not find_outbox(threads, source, token):
            return
        owner = transaction.thread.user_id if transaction.thread else None
        for edit in edits:  # a thread that was deleted since may be another user's by now
            if may_see(owner, edit.user_id):
                logs.apply(transaction, edit)
        assert transaction.thread is not None  # noqa: S101  (an outbox has no edits without messages)
        kept = {name: it for name, it in delivered.items() if (name, it) not in old}
        transaction.thread.delivered = {**kept, source: token}

    return apply


def find_outbox(threads: Threads, source: str, token: str) -> Outbox | None:
    """Return the outbox of the thread ``source`` if it has this token."""
    found = threads.read_parsed(threads.documents, source)
    outbox = found.thread.outbox if found else None
    return outbox if outbox and outbox.token == token else None


def _remove_tokens(threads: Threads, thread_id: str) -> set[tuple[str, str]]:
    """Return the older half of a thread's many tokens, after their outboxes were removed."""
    found = threads.read_parsed(threads.documents, thread_id)
    delivered = found.thread.delivered if found else {}
    if len(delivered) < MOST_DELIVERED:
        return set()
    old = set(islice(delivered.items(), MOST_DELIVERED // 2))
    return {(name, token) for name, token in old if not find_outbox(threads, name, token)}


def _remove(transaction: ThreadTransaction, outbox: Outbox) -> None:
    if transaction.thread is None:
        transaction.drop_thread()  # it has expired
    elif transaction.thread.outbox and transaction.thread.outbox.token == outbox.token:
        transaction.thread.outbox = None
        if transaction.thread.is_empty:
            transaction.drop_thread()
