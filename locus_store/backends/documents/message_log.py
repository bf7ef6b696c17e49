"""The message log of any storage of documents: logs in the documents of their threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from uuid import uuid4

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.listing import put_facts
from locus_store.backends.documents.outboxes import deliver
from locus_store.backends.documents.threads import OverThreads
from locus_store.backends.documents.workers import move_off_loop
from locus_store.errors import BackendError, ConflictError, LocusStoreError, NotOwnerError
from locus_store.messages import BackendMessageLog
from locus_store.types.logs import LogsWanted, Outbox, select_head
from locus_store.types.messages import (
    LogChange,
    LogChanged,
    LogEdit,
    LogInfo,
    LogRead,
    LogWanted,
    make_unknown_message_error,
    require_revision,
)
from locus_store.types.thread_info import PutThread, claim_of, require_owner
from locus_store.versions import logs, turns
from locus_store.versions.threads import CLAIM_AGE, Thread, ThreadTransaction


class DocumentMessageLog(OverThreads, BackendMessageLog):
    """Keeps message logs in the documents of a backend."""

    backend: DocumentBackend

    def __init__(
        self, backend: DocumentBackend, *, owns: bool, ttl_seconds: float | None = None
    ) -> None:
        super().__init__(backend, owns=owns, ttl_seconds=ttl_seconds)
        self._threads = backend._threads  # noqa: SLF001  (of this engine)

    def _enter(self, tenant: str) -> None:
        self.backend, self.owns = self.backend.for_tenant(tenant), False
        self._threads = self.backend._threads  # noqa: SLF001  (of this engine)

    async def change(self, change: LogChange) -> LogChanged:
        return await self._threads.run_in_order(change.thread_id, lambda: self._change_logs(change))

    def _change_logs(self, change: LogChange) -> LogChanged:
        others = [it for it in change.split() if it.thread_id != change.thread_id]
        claimed: dict[str, datetime | None] = {}
        try:  # claims precede the commit, after which another user may not claim a thread
            for name, user_id in self._list_claims(change, others).items():
                claim = partial(_claim, put=claim_of(name, user_id))
                claimed[name] = self._threads.write(name, claim, creates=True)
            return self._commit(change, [it for it in others if it.puts])
        except (ConflictError, NotOwnerError):
            for name, until in claimed.items():
                with suppress(LocusStoreError):  # then it expires
                    self._threads.write(name, partial(_release, until=until), creates=False)
            raise

    def _list_claims(self, change: LogChange, others: Sequence[LogEdit]) -> dict[str, str]:
        """Return the threads to claim before the commit, in order, and their users.

        Of two changes that claim each other's threads, all claims of one precede the other's.
        """
        look, name = self._threads.read_steadily, change.thread_id
        claims = [it for it in others if look(partial(self._is_unclaimed, it)) and it.puts]
        if not claims:
            return {}
        _require_own(change, look(partial(self._threads.read, name)))
        if look(partial(self._is_unclaimed, change)) and name < claims[-1].thread_id:
            claims.append(change)
        users = {it.thread_id: it.user_id or "" for it in claims}
        return dict(sorted(users.items()))

    def _commit(self, change: LogChange, others: list[LogEdit]) -> LogChanged:
        name, outbox = change.thread_id, Outbox(uuid4().hex, others) if others else None
        own = [it for it in (*change.also, change) if it.thread_id == name]

        def apply(transaction: ThreadTransaction) -> LogChanged:
            turns.require_turn(transaction, change.turn)
            _require_own(change, transaction.thread)
            changed = [logs.apply(transaction, it) for it in own][-1]
            if outbox is not None:
                (transaction.thread or transaction.begin()).outbox = outbox
            return changed

        creates = any(it.puts for it in (*own, *others))
        changed = self._threads.write(name, apply, creates=creates)
        if changed is None:
            _require_own(change, None)
        if outbox is not None:
            self._deliver(name, outbox)
        return changed or LogChanged(0)

    def _is_unclaimed(self, edit: LogEdit) -> bool:
        """Return whether an edit makes a thread its user's; refuse another user's, or turn's."""
        thread = None if edit.user_id is None else self._threads.read(edit.thread_id)
        owner = thread.user_id if thread else None
        require_owner(edit.thread_id, owner, edit.user_id)
        self.backend.require_turn(edit.thread_id, edit.turn)
        return owner != edit.user_id or (thread is not None and thread.is_claim)

    def _deliver(self, thread_id: str, outbox: Outbox) -> None:
        try:
            deliver(self._threads, thread_id, outbox)
        except LocusStoreError as exc:
            others = ", ".join(sorted({repr(it.thread_id) for it in outbox.edits}))
            raise BackendError(
                f"the change is stored with thread {thread_id!r}, and is applied to {others} when "
                f"that thread is read next: do not send it again ({exc})"
            ) from exc

    @move_off_loop
    def look(self, wanted: LogWanted) -> LogRead | None:
        thread = self._threads.read(wanted.thread_id)
        if thread is None and wanted.after is not None:
            raise make_unknown_message_error(wanted)
        return logs.look(thread, wanted, self._threads.max_state_bytes) if thread else None

    @move_off_loop
    def find_logs(self, wanted: LogsWanted) -> list[LogInfo]:
        each = (logs.find_info(it, name) for it, name in self._iterate_matching(wanted))
        return [it for it in each if it is not None]

    @move_off_loop
    def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        most, found = self._threads.max_state_bytes, self._iterate_matching(wanted)
        names = (
            (thread, select_head(thread.thread_id, name, whole=wanted.whole))
            for thread, name in found
        )
        each = (logs.look(thread, head, most) for thread, head in names)
        return [it for it in each if it is not None]

    def _iterate_matching(self, criteria: LogsWanted) -> Iterator[tuple[Thread, str]]:
        """Yield the threads and namespaces of the logs that match, in order."""
        found = (
            (thread, name)
            for thread in self._iterate_threads(criteria)
            for name in sorted(thread.logs)
            if criteria.takes(thread.thread_id, name, thread.user_id)
        )
        return islice(found, criteria.limit)

    def _iterate_threads(self, criteria: LogsWanted) -> Iterator[Thread]:
        """Yield the live threads that may have such logs, by thread id."""
        if criteria.thread_id is not None:
            each = iter([self._threads.read(criteria.thread_id)])
        else:
            first = criteria.after[0] if criteria.after else ""
            ids = (it for it in self._threads.documents.keys("") if it >= first)
            named = (it for it in ids if it.startswith(criteria.prefix))
            each = iter(self._threads.documents.run_each(self._threads.read, named))
        return (it for it in each if it is not None)

    async def drop(
        self, thread_id: str, namespace: str | None, expected_revision: int | None
    ) -> bool:
        found = await self._threads.change(
            thread_id, lambda it: logs.drop(it, namespace, expected_revision)
        )
        if found is None:
            require_revision((thread_id, namespace or ""), expected_revision, 0)
        return found or False


def _claim(transaction: ThreadTransaction, put: PutThread) -> datetime | None:
    """Claim a thread; return until when, if there is nothing else in it."""
    put_facts(transaction, put)
    thread = transaction.thread
    assert thread is not None  # noqa: S101  (it has the facts)
    if thread.is_empty and transaction.is_new:
        thread.active_at, thread.expires_at = transaction.now, transaction.now + CLAIM_AGE
    return thread.expires_at


def _release(transaction: ThreadTransaction, until: datetime | None) -> None:
    """Remove a thread that was claimed until a time, and has not been used since."""
    if transaction.old and transaction.old.is_claim and transaction.old.expires_at == until:
        transaction.drop_thread()


def _require_own(change: LogChange, thread: Thread | None) -> None:
    """Refuse a change of another user's thread, or of a log that has another revision."""
    name, log = change.thread_id, thread.logs.get(change.namespace) if thread else None
    for edit in (change, *change.also):
        if edit.thread_id == name:
            require_owner(name, thread.user_id if thread else None, edit.user_id)
    found = log.revision if log else 0
    require_revision((name, change.namespace), change.expected_revision, found)
