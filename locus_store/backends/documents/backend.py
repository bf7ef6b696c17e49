"""The engine: a storage backend over documents, each of which holds a whole thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from locus_store import versions
from locus_store.backend import FullBackend
from locus_store.backends.documents.listing import (
    DocumentThreadInfo,
    DocumentTurns,
    DocumentVersionLists,
    claim_and_save,
    list_writes,
)
from locus_store.backends.documents.protocol import DocumentForm, Documents
from locus_store.backends.documents.threads import DocumentThreads
from locus_store.backends.documents.workers import move_off_loop
from locus_store.errors import IntegrityError, LocusStoreError, NotFoundError
from locus_store.runtime.notebooks import Table
from locus_store.runtime.observe import skip_too_large
from locus_store.runtime.progress import iterate_steps
from locus_store.types import (
    Active,
    ArchivedThread,
    Head,
    Hit,
    Mark,
    PendingWrite,
    Removed,
    Save,
    Stored,
    Vacuumed,
    Version,
    Written,
)
from locus_store.types.arguments import (
    check_days,
    check_limit,
    check_names,
    check_scan,
    check_text,
    compile_thread_pattern,
)
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.values.filters import check_wanted, has_value, is_found
from locus_store.values.text import query_words
from locus_store.versions import PutWrites, turns
from locus_store.versions.archives import make_occupied_error
from locus_store.versions.erasing import Sweep, Swept
from locus_store.versions.histories import History
from locus_store.versions.threads import Thread, ThreadChange, ThreadTransaction, rewrite_thread


class DocumentBackend(DocumentVersionLists, DocumentTurns, FullBackend, DocumentThreadInfo):
    """Keeps each thread in a document that is replaced by a conditional put.

    Args:
        documents: Where they are stored.
        form: The form of the documents; ``None``: packs.
        max_state_bytes: The largest state that is saved or read, as compact JSON.
    """

    messages = True
    persistent_checkpoint_ids = True

    def __init__(
        self,
        documents: Documents,
        *,
        form: DocumentForm | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        super().__init__(max_state_bytes=max_state_bytes)
        self._documents = documents
        self._threads = DocumentThreads(documents, form=form, max_state_bytes=self.max_state_bytes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._documents!r})"

    async def open(self) -> None:
        await self._threads.look(self._documents.read_identity)

    async def close(self) -> None:
        """Forget the threads in memory; stored threads remain."""
        self._threads.clear()

    async def _sweep(self, sweep: Sweep, body: ThreadChange[Swept]) -> None:
        """Remove something from every thread that can be read; raise for the others at the end."""
        ids = await self._threads.look(lambda: list(self._documents.keys()))
        strays = await self._threads.look(self._documents.list_strays)
        failed: list[LocusStoreError] = [IntegrityError(it) for it in strays]
        for thread_id in iterate_steps(ids):
            try:
                sweep.count(thread_id, await self._threads.change(thread_id, body) or Swept(0))
            except LocusStoreError as exc:
                failed.append(exc)
        failed += await self._threads.look(self._threads.sweep)
        for first in failed:
            done = f"removed from the others: threads {sweep.threads}, versions {sweep.removed}"
            others = f"; {len(failed) - 1} more, which `locus-store verify` names"
            raise type(first)(f"{first} ({done}{others if failed[1:] else ''})") from first

    async def commit(self, save: Save) -> Written:
        return await self._threads.make(save.thread_id, lambda it: claim_and_save(it, save))

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        return await self._fetch(thread_id, namespace, checkpoint_id, with_writes=with_writes)

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        return await self._fetch(thread_id, namespace, None, known, with_writes=with_writes)

    @move_off_loop
    def _fetch(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        mark: Mark | None = None,
        *,
        with_writes: bool,
    ) -> Stored | None:
        thread = self._threads.read(thread_id)
        history = thread.find_history(namespace) if thread else None
        if thread is None or history is None:
            return None
        record = versions.target(history, history.line, checkpoint_id)
        head = versions.find_head(history, history.line)
        if record is None or head is None:
            return None
        version = thread.get_version(history, record.sequence)
        basis = versions.find_basis(history, history.line, record, mark, thread.store)
        rows = history.payloads(record.chain, record.sequence, basis.sequence if basis else 0)
        payloads = [payload for _, payload in rows]
        return Stored(
            version=version,
            head=thread.mark(history, head),
            payloads=payloads,
            basis=basis,
            writes=list_writes(history, record.checkpoint_id) if with_writes else None,
        )

    @move_off_loop
    def history(
        self, thread_id: str, *, namespace: str = "", limit: int = 10, before: str | None = None
    ) -> list[Version]:
        check_names(thread_id, namespace, before)
        check_limit(limit)
        thread = self._threads.read(thread_id)
        history = thread.find_history(namespace) if thread else None
        if thread is None or history is None:
            return []
        shown = history.list_visible()
        if before is not None:
            end = versions.cursor(history, history.line, thread_id, before)
            shown = [it for it in shown if it < end]
        return Table(thread.get_version(history, it) for it in shown[:limit])

    async def remove(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str] | None = None,
        *,
        namespace: str = "",
        writer: str | None = None,
    ) -> int:
        if checkpoint_ids is None:
            return (await self.remove_thread(thread_id)).versions
        names = list(checkpoint_ids)
        check_names(thread_id, namespace, *names)

        def remove(transaction: ThreadTransaction) -> int:
            line = transaction.find(thread_id, namespace)
            return versions.remove_named(transaction, line, names, writer) if line else 0

        return await self._threads.change(thread_id, remove) or 0

    async def has_thread(self, thread_id: str) -> bool:
        check_text("thread_id", thread_id)
        found = await self._threads.look(self._threads.read, thread_id)
        return found is not None and found.exists

    async def remove_thread(
        self, thread_id: str, *, head: Mark | None = None, namespace: str = ""
    ) -> Removed:
        check_names(thread_id, namespace)
        removed = await self._threads.change(
            thread_id, lambda it: it.remove_thread(head, namespace)
        )
        return removed or versions.make_no_thread_result(thread_id, head)

    @move_off_loop
    def recent(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[Active]:
        check_limit(limit)
        matches = compile_thread_pattern(pattern).match
        threads = self._documents.list_active(limit, after)
        if threads is None:
            threads = (Active(it.thread_id, it.active_at) for it in self._iterate_recent())
            if after is not None and all(it.thread_id != after for it in threads):
                raise NotFoundError(f"there is no thread {after!r} to list after")
        return list(islice((it for it in threads if matches(it.thread_id)), limit))

    def _iterate_recent(self, size: int = 0) -> Iterator[Thread]:
        """Yield the threads that exist; see ``DocumentThreads.iterate_by_activity``."""
        return (it for _, it in self._threads.iterate_by_activity(size) if it.exists)

    def _iterate_roots(self, size: int = 0) -> Iterator[tuple[Thread, History]]:
        """Yield the threads whose root has a version, the most recently active first."""
        for thread in self._iterate_recent(size):
            if history := thread.find_history(""):
                yield thread, history

    @move_off_loop
    def heads(self, limit: int = 100) -> list[Head]:
        check_limit(limit)
        roots = islice(self._iterate_roots(limit), limit)
        return [it.get_version(root, root.line.head or 0).as_head() for it, root in roots]

    @move_off_loop
    def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        value = check_wanted(key, value)
        check_limit(limit)
        return self._query(key, value, limit)

    def _query(self, key: str, value: Any, limit: int) -> list[Head]:
        found = [
            (history.rows[sequence].created_at, history.line.line, sequence, thread, history)
            for thread, history in self._iterate_roots()
            for sequence in history.list_visible()
            if _has(history, sequence, key, value)
        ]
        found.sort(key=lambda it: it[:3], reverse=True)
        return [thread.get_version(of, it).as_head() for _, _, it, thread, of in found[:limit]]

    @move_off_loop
    def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        wanted, hits = query_words(query), list[Hit]()
        for some in self._find_with_words(wanted, limit):
            found = (self._make_hit(it.thread_id, it, wanted) for it in some)
            hits += [hit for hit in found if hit]
            if len(hits) >= limit:
                break
        return sorted(hits, key=lambda it: (it.score, it.updated_at), reverse=True)[:limit]

    def _find_with_words(self, words: list[str], limit: int) -> Iterator[Iterable[Thread]]:
        """Yield all threads that may have the words; the best first, if they are more."""
        yield self._iterate_recent()

    @skip_too_large
    def _make_hit(self, thread_id: str, thread: Thread, words: list[str]) -> Hit | None:
        history = thread.find_history("")
        return thread.search(history, words, self.max_state_bytes) if history else None

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        check_text("source_thread_id", source_thread_id)
        check_text("dest_thread_id", dest_thread_id)
        copy = await self._archive(source_thread_id, only_existing=True)
        if copy is None:
            return False
        await self._restore(replace(copy, thread_id=dest_thread_id), is_copy=True)
        return True

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        """See ``StorageBackend``. A thread with a damaged document is listed; reading it raises.

        Raises:
            IntegrityError: A document cannot be a thread's, and there are no more threads.
        """
        check_scan(limit, after)
        return await self._threads.look(self._threads.scan, limit, after)

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        check_text("thread_id", thread_id)
        return await self._archive(thread_id)

    @move_off_loop
    def _archive(self, thread_id: str, *, only_existing: bool = False) -> ArchivedThread | None:
        found = self._threads.read(thread_id)
        return found.archive() if found and (found.exists or not only_existing) else None

    async def restore(self, thread: ArchivedThread) -> None:
        await self._restore(thread, is_copy=False)

    async def _restore(self, thread: ArchivedThread, *, is_copy: bool) -> None:
        def restore(transaction: ThreadTransaction) -> None:
            if transaction.thread is not None:
                raise make_occupied_error(thread.thread_id, "copied" if is_copy else "written")
            transaction.restore(thread, is_copy=is_copy)

        await self._threads.make(thread.thread_id, restore)

    async def store_writes(self, put: PutWrites) -> bool:
        def store(transaction: ThreadTransaction) -> bool:
            turns.require_turn(transaction, put.turn)
            versions.find_for_writes(transaction, put)
            line = replace(transaction.open_history(put.namespace).line)
            stored = versions.put_writes(transaction, line, put)
            if stored and put.ttl_seconds is not None:
                transaction.prolong(put.ttl_seconds)
            return stored

        return await self._threads.make(put.thread_id, store)

    @move_off_loop
    def writes_of(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, namespace: str = ""
    ) -> dict[str, list[PendingWrite]]:
        check_names(thread_id, namespace, *checkpoint_ids)
        thread = self._threads.read(thread_id)
        history = thread.histories.get(namespace) if thread else None
        found = {it: list_writes(history, it) for it in checkpoint_ids} if history else {}
        return {name: writes for name, writes in found.items() if writes}

    async def namespaces(self, thread_id: str) -> list[str]:
        check_text("thread_id", thread_id)
        thread = await self._threads.look(self._threads.read, thread_id)
        histories = thread.histories.values() if thread else ()
        return sorted(it.namespace for it in histories if it.line.head is not None)

    @move_off_loop
    def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        check_names(thread_id, namespace)
        thread = self._threads.read(thread_id)
        history = thread.find_history(namespace) if thread else None
        rows = history.rows.items() if history else ()
        found = [(it, row.record.chain, row.payload) for it, row in rows if it <= last]
        return versions.select_records(found, first, last)

    @move_off_loop
    def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        value = check_wanted(key, value)
        return [
            (thread.thread_id, history.namespace, row.record.checkpoint_id)
            for thread in self._threads.iterate_live()
            for history in thread.histories.values()
            for row in history.rows.values()
            if has_value(row.record.metadata, key, value)
        ]

    async def rewrite_thread(
        self, thread_id: str, change: Callable[[ArchivedThread], ArchivedThread]
    ) -> bool:
        check_text("thread_id", thread_id)
        changed = await self._threads.change(thread_id, lambda it: rewrite_thread(it, change))
        return changed or False

    async def prune(self, thread_id: str) -> int:
        check_text("thread_id", thread_id)
        return await self._threads.change(thread_id, _prune) or 0

    async def damage(self) -> list[str]:
        """See ``StorageBackend``; reports stray documents and a damaged identity."""
        return await self._threads.look(self._threads.find_damage)

    async def vacuum_report(self, older_than_days: float = 30) -> Vacuumed:
        age, sweep = timedelta(days=check_days(older_than_days)), Sweep()
        await self._sweep(sweep, lambda it: _vacuum(it, it.now - age, sweep))
        return sweep.report()

    async def renew(self, thread_id: str, ttl_seconds: float) -> bool:
        def renew(transaction: ThreadTransaction) -> bool:
            thread, until = transaction.thread, transaction.now + timedelta(seconds=ttl_seconds)
            if thread is None or thread.expires_at is None:
                return False
            is_late = thread.expires_at < until
            thread.expires_at = max(thread.expires_at, until)
            return is_late

        check_text("thread_id", thread_id)
        return bool(await self._threads.change(thread_id, renew))

    async def expire(self) -> int:
        await self._sweep(sweep := Sweep(), _expire)
        return sweep.threads

    def limit_cache(self, max_bytes: int) -> None:
        """See ``StorageBackend``; half of the bytes are for parsed documents."""
        of_documents = max_bytes // 2
        super().limit_cache(max_bytes - of_documents)
        self._threads.limit(of_documents)


def _has(history: History, sequence: int, key: str, value: Any) -> bool:
    record = history.rows[sequence].record
    return is_found(record.metadata, record.labels, key, value)


def _prune(transaction: ThreadTransaction) -> int:
    names = list(transaction.thread.histories) if transaction.thread else []
    lines = [transaction.find(transaction.thread_id, it) for it in names]
    return sum(versions.prune(transaction, it) for it in lines if it)


def _vacuum(transaction: ThreadTransaction, limit: datetime, sweep: Sweep) -> Swept:
    """Remove a thread's older versions, or all of it; return how much."""
    thread = transaction.thread
    if thread is None:
        return Swept(0)
    if thread.is_older_than(limit):
        return Swept(transaction.drop_thread().versions, len(thread.messages), is_whole=True)
    removed = 0
    for history in list(thread.histories.values()):
        line = transaction.find(thread.thread_id, history.namespace)
        old = history.find_older_than(limit)
        if line is not None and old:
            with sweep.sweep_thread(thread.thread_id):
                removed += versions.vacuum(transaction, line, old)
    return Swept(removed)


def _expire(transaction: ThreadTransaction) -> Swept:
    """Remove a thread whose time to live is over, and the place of turns that have ended."""
    if transaction.old is None or transaction.thread is not None:
        return Swept(0)
    transaction.drop_thread()
    return Swept(0, is_whole=not transaction.old.is_placeholder)
