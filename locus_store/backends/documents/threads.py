"""Threads over documents: each is read and written whole, and cached as it was parsed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, ParamSpec, TypeAlias, TypeVar
from uuid import uuid4

from locus_store.backends.documents.outboxes import deliver, find_outbox
from locus_store.backends.documents.packed import PackedForm
from locus_store.backends.documents.protocol import (
    LAST,
    Access,
    ChangedError,
    Dated,
    DocumentForm,
    DocumentReads,
    Documents,
    Draft,
    Parsed,
    ReadTogether,
    StaleTagError,
    Tag,
)
from locus_store.backends.documents.segments import GoneError
from locus_store.backends.documents.workers import WriteQueues
from locus_store.errors import BackendError, IntegrityError, LocusStoreError
from locus_store.runtime.forks import start_in_each_process
from locus_store.runtime.observe import report_unremoved
from locus_store.runtime.recent import Recent
from locus_store.runtime.retries import Pauses
from locus_store.types.logs import Outbox
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.versions.threads import Thread, ThreadChange, ThreadTransaction

P = ParamSpec("P")
T = TypeVar("T")

KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of parsed documents that one object keeps."""

ATTEMPTS = 20
"""Attempts to write a document that other writers change at the same time."""

LONGEST_PAUSE_SECONDS = 0.1

ThreadCache: TypeAlias = Recent[tuple[str | None, str], Parsed]
"""Threads by tenant and id."""


class DocumentThreads:
    """The threads of a storage; usable by several threads, and by both processes after a fork."""

    def __init__(
        self,
        documents: Documents,
        *,
        form: DocumentForm | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        tenant: str | None = None,
        cache: ThreadCache | None = None,
    ) -> None:
        self.documents = documents
        self.form = form or PackedForm(documents)
        self.max_state_bytes = max_state_bytes
        self.tenant = tenant
        self.cache: ThreadCache = cache or Recent(KEPT_BYTES, keeps_last=True)
        """Threads as they were read or written last, also of other tenants; they may have changed
        since.
        """

        start_in_each_process(self._start)

    def _start(self) -> None:
        """Initialize the empty state of a new object, or of a child process."""
        self._writing = threading.Lock()
        self._queues = WriteQueues()
        self.form.clear()

    def clear(self) -> None:
        self.cache.clear()
        self.form.clear()

    def get_cached(self, thread_id: str) -> Parsed | None:
        """Return a thread as it was read or written last."""
        return self.cache.get((self.tenant, thread_id))

    def drop_cached(self, thread_id: str) -> None:
        self.cache.drop((self.tenant, thread_id))

    def limit(self, max_bytes: int) -> None:
        """Keep at most this many bytes of documents; the one used last is always kept."""
        self.cache.limit(max_bytes)
        self.form.limit(max_bytes)

    async def look(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a read; in a worker thread if it may block the event loop."""
        read = partial(self.read_steadily, partial(work, *args, **kwargs))
        return await self.documents.run_call(read)

    async def make(self, thread_id: str, change: ThreadChange[T], *, removes: bool = False) -> T:
        """Change a thread, or create it; see ``write``."""
        write = partial(self.write, thread_id, change, creates=True, removes=removes)
        return await self.run_in_order(thread_id, write)  # type: ignore[arg-type]  # None only where the change gives it

    async def change(self, thread_id: str, change: ThreadChange[T]) -> T | None:
        """Change a thread; return ``None`` if it has no document."""
        write = partial(self.write, thread_id, change, creates=False)
        return await self.run_in_order(thread_id, write)

    def read_steadily(self, work: Callable[[], T]) -> T:
        """Return what work returns; repeat it while other writers replace the segments it reads."""
        missing: str | None = None
        for _ in range(ATTEMPTS):
            try:
                return work()
            except GoneError as exc:
                if exc.name == missing:
                    raise
                missing = exc.name
        return work()

    def scan(self, limit: int, after: str | None) -> list[str]:
        keys = self.documents.list_live(after or "")
        there = self.documents.run_each(lambda it: (it[0], it[1] or self._is_there(it[0])), keys)
        found = list(islice((it for it, is_there in there if is_there), limit))
        if limit and not found:
            for stray in self.documents.list_strays():
                raise IntegrityError(stray)
        return found

    def _is_there(self, thread_id: str) -> bool:
        try:
            return self.read(thread_id) is not None
        except LocusStoreError:
            return True

    def iterate_live(self) -> Iterator[Thread]:
        """Yield all live threads; do not change them.

        Raises:
            IntegrityError: A document is damaged, or cannot be a thread's.
        """
        for *_, thread in self._read_each():
            yield thread

    def iterate_by_activity(self, size: int = 0) -> Iterator[tuple[datetime, Thread]]:
        """Yield all live threads and their activity, the last first; reads few more than it yields.

        ``size`` is the number that is probably taken; 0: unknown.

        Raises:
            IntegrityError: As ``iterate_live``.
        """
        waiting: list[tuple[timedelta, timedelta, timedelta, int, datetime, Thread]] = []
        for number, (at, active_at, thread) in enumerate(self._read_each(size)):
            while waiting and at and LAST - waiting[0][0] > at + self.documents.time_step:
                yield heappop(waiting)[-2:]
            age, created = LAST - thread.active_at, LAST - thread.created_at
            heappush(waiting, (LAST - active_at, age, created, number, active_at, thread))
        while waiting:
            yield heappop(waiting)[-2:]

    def _read_each(self, size: int = 0) -> Iterator[tuple[datetime | None, datetime, Thread]]:
        """Yield the times of documents, newest first, and of activity, and the live threads."""
        size = size and size + 1  # one more ends the last one's wait
        for page in self.documents.iterate_newest(size):
            access = self._read_together([it.key for it in page])
            for at, found in self.documents.run_each(partial(self._read_dated, access), page):
                if found is not None and found.thread.is_live(self.documents.read_clock):
                    yield at, self.form.compute_active_at(found, at), self.form.share(found.thread)

    def _read_dated(
        self, access: DocumentReads, entry: Dated
    ) -> tuple[datetime | None, Parsed | None]:
        kept = self.get_cached(entry.key)
        is_known = kept is not None and entry.tag is not None and kept.tag == entry.tag
        if kept is None or not is_known or kept.thread.outbox:
            return entry.at, self._read_settled(access, entry.key)
        return entry.at, kept

    def read_all(self, thread_ids: Iterable[str]) -> list[Thread]:
        """Return those of the threads that are live, read together; do not change them."""
        ids = list(dict.fromkeys(thread_ids))
        read = partial(self.read, documents=self._read_together(ids))
        return [it for it in self.documents.run_each(read, ids) if it]

    def _read_together(self, thread_ids: list[str]) -> DocumentReads:
        kept = {it: self.get_cached(it) for it in thread_ids}
        tags = {it: one.tag if one else None for it, one in kept.items()}
        return ReadTogether(self.documents, tags)

    def read(self, thread_id: str, documents: DocumentReads | None = None) -> Thread | None:
        """Return a live thread; do not change it."""
        found = self._read_settled(documents or self.documents, thread_id)
        is_live = found and found.thread.is_live(self.documents.read_clock)
        return self.form.share(found.thread) if found and is_live else None

    def _read_settled(self, access: DocumentReads, thread_id: str) -> Parsed | None:
        """Return a thread as it is stored, after its outbox was applied."""
        found = self.read_parsed(access, thread_id)
        while found is not None and found.thread.outbox is not None:
            deliver(self, thread_id, found.thread.outbox)
            found = self.read_parsed(self.documents, thread_id)
        return found

    def find_damage(self) -> list[str]:
        """Return the faults of the storage itself."""
        try:
            self.documents.read_identity()
        except IntegrityError as exc:
            return [str(exc)]
        return [*self.documents.list_strays(), *self._find_leftovers()]

    def _find_leftovers(self) -> list[str]:
        """Return a message if there is data that no document names."""
        read = partial(self.read_parsed, self.documents)
        left = self.form.find_leftovers(read)
        if left:  # else a writer was between its document and what it names
            left &= self.form.find_leftovers(read)
        if not left:
            return []
        message = (
            f"data of {len(left)} versions or segments is named by no thread, {min(left)!r} among "
            "it: a deletion or a writer did not finish. `locus-store threads vacuum` deletes it "
            "once it is a day old"
        )
        return [message]

    def read_parsed(self, access: DocumentReads, thread_id: str) -> Parsed | None:
        """Return a thread as it is stored, also its outbox; from the cache if it is unchanged."""
        kept = self.get_cached(thread_id)
        found = access.get(thread_id, known=kept.tag if kept else None)
        if found is None:
            self.drop_cached(thread_id)
            return None
        if kept is not None and found.content is None:
            return kept
        content = found.content or b""
        if kept is not None and found.continues:
            parse = partial(self.form.parse_continued, kept, content)
        else:
            parse = partial(self.form.parse, content, thread_id)
        try:
            thread, end = self.documents.run_off_loop(parse, len(content))
        except IntegrityError:
            if not found.continues:
                raise
            self.drop_cached(thread_id)  # a failover took back what is kept
            return self.read_parsed(self.documents, thread_id)
        made = Parsed(found.tag, thread, end)
        self.keep(made)
        return made

    def sweep(self) -> list[LocusStoreError]:
        """Remove what killed writers have left; return the error if some of it stays."""
        try:
            self.form.sweep(partial(self.read_parsed, self.documents))
        except LocusStoreError as exc:
            return [exc]
        return []

    def keep(self, document: Parsed) -> None:
        """Cache a thread that was just read or written."""
        key = self.tenant, document.thread.thread_id
        self.cache.put(key, document, document.end.size)

    def write(
        self, thread_id: str, change: ThreadChange[T], *, creates: bool, removes: bool | None = None
    ) -> T | None:
        """Change a thread; return ``None`` if it does not exist and ``creates`` is off.

        Its outbox is applied before.

        Args:
            thread_id: The thread.
            change: Edits it.
            creates: It may be new.
            removes: The caller asks for a removal, and so all of it must be done; ``None``: if the
                thread may not be new.

        Raises:
            BackendError: It could not be written, or data that was to be removed stays.
        """
        removes = not creates if removes is None else removes
        write = _Write(self, thread_id, change, creates, removes)
        while True:
            try:
                return write.run()
            except _UnsettledError as exc:
                deliver(self, exc.source, exc.outbox)

    def write_as_is(self, thread_id: str, change: ThreadChange[T], *, creates: bool) -> T | None:
        """Change a thread and leave its outbox to the change; see ``write``."""
        return _Write(self, thread_id, change, creates, removes=False, as_is=True).run()

    async def run_in_order(self, thread_id: str, work: Callable[[], T]) -> T:
        """Run a write after all earlier writes of the thread, even if the caller is cancelled."""
        if not self.documents.blocks:
            return self.run_at_once(work)
        return await self.documents.run_in_order(self._queues, thread_id, work)

    def run_at_once(self, work: Callable[[], T]) -> T:
        """Run a write directly, for documents that never block; one write at a time."""
        with self._writing:
            return work()


class OverThreads:
    """A part of a backend over documents, or a message log."""

    _threads: DocumentThreads

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._threads.look(work)


class _UnsettledError(Exception):
    """Raised for the outbox of the thread ``source``, which has to be applied before."""

    def __init__(self, source: str, outbox: Outbox) -> None:
        super().__init__(outbox.token)
        self.source = source
        self.outbox = outbox


@dataclass(slots=True)
class _Write(Generic[T]):
    """A change of one thread, and its outcome."""

    threads: DocumentThreads
    thread_id: str
    change: ThreadChange[T]
    creates: bool
    removes: bool
    as_is: bool = False
    """The thread's outbox is left to the change."""

    sent: list[tuple[Draft, T, Tag | None]] = field(default_factory=list)
    """The requests that may still be done, their answers, and the tags that they named."""

    trusts_cache: bool = True
    """The next attempt is the first one, which may trust the cache."""

    def run(self) -> T | None:
        """Try the change until the put is accepted; see ``DocumentThreads.write``."""
        documents, pauses = self.threads.documents, Pauses(0.002, LONGEST_PAUSE_SECONDS)
        for attempt in range(ATTEMPTS + 1):  # the last one only asks for the put before
            if attempt:
                documents.pause(pauses.get_next() or 0.0)
            with (
                suppress(ChangedError),
                documents.held(self.thread_id, creates=self.creates) as access,
            ):
                work = partial(self._attempt, access, is_over=attempt == ATTEMPTS)
                return self.threads.read_steadily(work)
        raise BackendError(
            f"{documents.locate(self.thread_id)} is being changed by {documents.rivals}; nothing "
            "was written"
        )

    def _attempt(self, access: Access, *, is_over: bool) -> T | None:
        """Write a changed thread; raise ``ChangedError`` if it was changed meanwhile, or may be."""
        if self.sent and (stored := self._find_stored(access)):
            self.threads.documents.confirm(self.thread_id)
            self._finish(stored[0])
            return stored[1]
        if is_over:
            raise ChangedError
        trusts = self.trusts_cache and self.threads.documents.trusts_cache
        if trusts and (cached := self.threads.get_cached(self.thread_id)):
            return self._attempt_cached(access, cached)
        return self._attempt_on_stored(access)

    def _attempt_on_stored(self, access: Access) -> T | None:
        """Read, change and write the thread."""
        self.trusts_cache, requests = False, len(self.sent)
        answer = self._attempt_on(access, self.threads.read_parsed(access, self.thread_id))
        if len(self.sent) == requests:  # an earlier call may have written what this one finds
            self.threads.documents.confirm(self.thread_id)
        return answer

    def _attempt_cached(self, access: Access, document: Parsed) -> T | None:
        """Change the thread as it is cached; raise ``ChangedError`` unless a put confirms it."""
        try:
            answer = self._attempt_on(access, document)
        except LocusStoreError as exc:
            if self.sent:  # an error of the storage, not of what is cached
                raise
            raise ChangedError from exc
        finally:
            self.trusts_cache = False
        if not self.sent:
            raise ChangedError
        return answer

    def _attempt_on(self, access: Access, old: Parsed | None) -> T | None:
        """Change and write a thread that was read."""
        if old is None and not self.creates:
            return None
        if old is not None and old.thread.outbox is not None and not self.as_is:
            raise _UnsettledError(self.thread_id, old.thread.outbox)
        documents, form = self.threads.documents, self.threads.form
        store = documents.read_identity()
        thread = old.thread if old else None
        context = store or uuid4().hex, self.threads.max_state_bytes, documents.read_clock()
        transaction = ThreadTransaction(self.thread_id, thread, *context)
        answer = self.change(transaction)
        transaction.finish()
        if old is not None and not self.as_is:
            self._require_settled(old.thread, transaction.thread)
        draft: Draft | None = None
        if transaction.thread is not None:
            if old is None and store is None:
                documents.identify(transaction.store)
            draft = form.draft(transaction, old)
        elif old is not None and transaction.drops:
            if self.trusts_cache:  # a refused deletion does not show that there was a thread
                return self._attempt_on_stored(access)
            draft = form.draft_deletion(old)
        if draft is not None:
            self._send(access, old, draft, answer)
        return answer

    def _require_settled(self, old: Thread, new: Thread | None) -> None:
        """Raise for an outbox that was applied here, and would be again without its token."""
        for source, token in old.delivered.items() - (new.delivered if new else {}).items():
            if outbox := find_outbox(self.threads, source, token):
                raise _UnsettledError(source, outbox)

    def _send(self, access: Access, old: Parsed | None, draft: Draft, answer: T) -> None:
        self.threads.form.prepare(draft)
        onto = old.tag if old else None
        self.sent.append((draft, answer, onto))
        try:
            if draft.body is not None and draft.thread is not None:
                tag = access.put(self.thread_id, draft.body, tag=onto)
                self.threads.keep(Parsed(tag, draft.thread, draft.end))
            elif old is not None:
                access.delete(self.thread_id, tag=old.tag)
                self.threads.drop_cached(self.thread_id)
        except StaleTagError:
            self._abandon(self.sent.pop()[0])
            raise
        self._finish(draft)

    def _finish(self, draft: Draft) -> None:
        """Remove what is stored no longer; raise ``BackendError`` if some of it stays."""
        try:
            self.threads.form.finish(self.thread_id, draft)
        except LocusStoreError as exc:
            if self.removes:
                raise BackendError(
                    f"thread {self.thread_id!r} has it no longer, but removed data is still "
                    f"stored: {exc}. Then run `locus-store threads vacuum`, which deletes it once "
                    "it is a day old"
                ) from exc
            report_unremoved(self.thread_id, exc)

    def _find_stored(self, access: Access) -> tuple[Draft, T, Tag | None] | None:
        """Return the put or deletion that was done although its answer was lost."""
        found = access.get(self.thread_id)
        for sent in list(self.sent):
            draft, _, onto = sent
            if draft.body is None:
                now = self.threads.read_parsed(access, self.thread_id) if found else None
                if now is None or now.thread.created_at != draft.began:  # the next of this id
                    return sent
            elif found is not None and self.threads.form.holds(found.content or b"", draft):
                return sent
            if found is not None and onto not in {None, found.tag}:
                self.sent.remove(sent)  # no delayed request can write it any more
                self._abandon(draft)
        return None

    def _abandon(self, draft: Draft) -> None:
        try:
            self.threads.form.abandon(self.thread_id, draft)
        except LocusStoreError as exc:
            report_unremoved(self.thread_id, exc)
