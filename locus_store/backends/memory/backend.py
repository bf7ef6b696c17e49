"""Process memory: the shortest implementation, and the one without a database."""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from locus_store import versions
from locus_store.backend import StorageBackend
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import NotFoundError
from locus_store.runtime.observe import skips_too_large
from locus_store.types import (
    Active,
    ArchivedLine,
    ArchivedMessage,
    ArchivedThread,
    ArchivedWrite,
    CheckpointerCapabilities,
    Head,
    Hit,
    Mark,
    OnConflict,
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
    thread_pattern,
)
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.values.filters import check_key, has_value, is_found
from locus_store.values.text import Match, query_words
from locus_store.versions import Line, Record
from locus_store.versions.archives import (
    has_versions,
    last_active_at,
    minute_of,
    occupied,
    resting_at,
)
from locus_store.versions.sweeping import Sweep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


@dataclass(slots=True)
class _Row:
    record: Record
    payload: bytes
    created_at: datetime


class _Rows(dict[int, _Row]):
    """A line's rows by ascending sequence, and their sequences by checkpoint id."""

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[str, int] = {}
        self.by_chain: dict[int, list[int]] = {}
        self.writes: dict[str, dict[tuple[str, int], ArchivedWrite]] = {}
        """Pending writes by checkpoint id, task and place."""

    def put(self, row: _Row) -> None:
        self[row.record.sequence] = row
        self.by_chain.setdefault(row.record.chain, []).append(row.record.sequence)
        self.by_id[row.record.checkpoint_id] = row.record.sequence

    def take(self, sequence: int) -> None:
        record = self.pop(sequence).record
        del self.by_id[record.checkpoint_id]
        self.by_chain[record.chain].remove(sequence)
        self.writes.pop(record.checkpoint_id, None)


@dataclass(slots=True)
class _Thread:
    """A thread's lines by namespace."""

    thread_id: str
    number: int
    active_at: datetime
    expires_at: datetime | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    user_id: str | None = None
    name: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    messages: list[ArchivedMessage] = field(default_factory=list)
    lines: dict[str, tuple[Line, _Rows]] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return self.expires_at is None or self.expires_at > _now()

    @property
    def exists(self) -> bool:
        """Whether it is more than pending writes."""
        is_named = (self.name, self.user_id) != (None, None)
        return self.has_versions or bool(self.messages) or is_named

    @property
    def has_versions(self) -> bool:
        """Whether it has a version, in any namespace."""
        return any(line.head is not None for line, _ in self.lines.values())

    @property
    def newest_at(self) -> datetime:
        """The time of the newest version, message or pending write, else of the last activity."""
        times = [it.created_at for it in self.messages]
        for _, rows in self.lines.values():
            times += [it.created_at for it in rows.values()]
            times += [it.created_at for some in rows.writes.values() for it in some.values()]
        return max(times, default=self.active_at)


class _Memory:
    """``versions.Lines`` over dicts; every call holds the backend's lock."""

    def __init__(self, max_state_bytes: int) -> None:
        self.store = uuid4().hex
        self.max_state_bytes = max_state_bytes
        self.threads: dict[str, _Thread] = {}
        self._numbers = count(1)
        self._places: dict[int, tuple[str, str]] = {}

    def thread(self, thread_id: str) -> _Thread | None:
        found = self.threads.get(thread_id)
        return found if found and found.is_live else None

    def find(self, thread_id: str, namespace: str) -> Line | None:
        found = self.thread(thread_id)
        pair = found.lines.get(namespace) if found else None
        return replace(pair[0]) if pair and pair[0].head is not None else None

    def create(self, save: Save) -> Line:
        line = self.open_line(save.thread_id, save.namespace)
        self.touch(save)
        return line

    def open_line(self, thread_id: str, namespace: str) -> Line:
        """The line, which is made where it is not there; it may hold pending writes only."""
        found = self.thread(thread_id) or self.add_thread(thread_id)
        pair = found.lines.get(namespace)
        return replace(pair[0]) if pair else self.add_line(found, namespace)

    def add_thread(self, thread_id: str) -> _Thread:
        self.drop_thread(thread_id)
        self.threads[thread_id] = _Thread(thread_id, next(self._numbers), _now())
        return self.threads[thread_id]

    def add_line(self, thread: _Thread, namespace: str) -> Line:
        line = Line(line=next(self._numbers))
        thread.lines[namespace] = (line, _Rows())
        self._places[line.line] = (thread.thread_id, namespace)
        return replace(line)

    def update(self, line: Line) -> None:
        thread_id, namespace = self._places[line.line]
        self.threads[thread_id].lines[namespace] = (replace(line), self.rows(line))

    def touch(self, save: Save) -> None:
        thread = self.threads[save.thread_id]
        thread.active_at = _now()
        if save.ttl_seconds is not None:
            thread.expires_at = _now() + timedelta(seconds=save.ttl_seconds)

    def drop(self, line: Line) -> None:
        thread_id, namespace = self._places.pop(line.line)
        thread = self.threads[thread_id]
        del thread.lines[namespace]
        if not thread.lines and not thread.exists:
            del self.threads[thread_id]
        elif not thread.has_versions:
            thread.active_at = resting_at(thread.active_at, thread.messages)

    def drop_thread(self, thread_id: str) -> Removed:
        thread = self.threads.pop(thread_id, None)
        if thread is None:
            return Removed(existed=False, versions=0)
        for line, _ in thread.lines.values():
            self._places.pop(line.line)
        return Removed(thread.exists, sum(len(rows) for _, rows in thread.lines.values()))

    def rows(self, line: Line) -> _Rows:
        thread_id, namespace = self._places[line.line]
        return self.threads[thread_id].lines[namespace][1]

    def record(self, line: Line, sequence: int) -> Record | None:
        row = self.rows(line).get(sequence)
        return row.record if row else None

    def named(self, line: Line, checkpoint_id: str) -> Record | None:
        sequence = self.rows(line).by_id.get(checkpoint_id)
        return None if sequence is None else self.record(line, sequence)

    def newest(self, line: Line, nth: int = 1) -> int | None:
        return next(islice(reversed(self.rows(line)), nth - 1, None), None)

    def below(self, line: Line, sequence: int, limit: int) -> list[int]:
        return list(islice(takewhile(lambda it: it < sequence, self.rows(line)), limit))

    def payloads(
        self, line: Line, chain: int, *, upto: int | None = None
    ) -> list[tuple[int, bytes]]:
        rows = self.rows(line)
        return [
            (sequence, rows[sequence].payload)
            for sequence in rows.by_chain.get(chain, ())
            if upto is None or sequence <= upto
        ]

    def append(self, line: Line, record: Record, payload: bytes) -> None:
        self.rows(line).put(_Row(record, payload, _now()))

    def rewrite(self, line: Line, sequence: int, payload: bytes) -> None:
        self.rows(line)[sequence].payload = payload

    def adopt(self, line: Line, sequence: int, parent: int | None) -> None:
        row = self.rows(line)[sequence]
        row.record = replace(row.record, parent=parent)

    def children(self, line: Line, sequences: Collection[int]) -> list[Record]:
        records = (row.record for row in self.rows(line).values())
        return [it for it in records if it.parent in sequences]

    def remove(self, line: Line, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self.rows(line).take(sequence)

    def writes(self, line: Line, checkpoint_id: str) -> list[PendingWrite]:
        return [it.write for it in self.rows(line).writes.get(checkpoint_id, {}).values()]

    def written(self, line: Line, checkpoint_id: str) -> Collection[tuple[str, int]]:
        return self.rows(line).writes.get(checkpoint_id, {}).keys()

    def put_writes(self, line: Line, checkpoint_id: str, writes: Sequence[PendingWrite]) -> None:
        there = self.rows(line).writes.setdefault(checkpoint_id, {})
        for it in writes:
            there[it.task_id, it.idx] = ArchivedWrite(
                checkpoint_id=checkpoint_id, write=it, created_at=_now()
            )


class MemoryBackend(StorageBackend):
    """Keeps versions in this process; gone when it ends.

    One lock guards everything, so that it may be used from several threads and event loops.
    """

    factory = "MemoryCheckpointer"
    capabilities = CheckpointerCapabilities(
        search=True,
        metadata_query=True,
        vacuum=True,
        branching=True,
        ttl=True,
        list_threads=True,
        list_with_metadata=True,
        persistent_checkpoint_ids=False,
    )

    def __init__(self, *, max_state_bytes: int = MAX_STATE_BYTES) -> None:
        super().__init__(max_state_bytes=max_state_bytes)
        self._memory = _Memory(self.max_state_bytes)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "MemoryBackend()"

    async def commit(self, save: Save) -> Written:
        with self._lock:
            return versions.save(self._memory, save)

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        with self._lock:
            line = self._memory.find(thread_id, namespace)
            record = versions.target(self._memory, line, checkpoint_id) if line else None
            if line is None or record is None or line.head is None:
                return None
            head = self._version(thread_id, namespace, line, line.head).mark
            rows = self._memory.payloads(line, record.chain, upto=record.sequence)
            return Stored(
                version=self._version(thread_id, namespace, line, record.sequence),
                head=head,
                payloads=[payload for _, payload in rows],
                writes=self._writes(line, record.checkpoint_id) if with_writes else None,
            )

    def _writes(self, line: Line, checkpoint_id: str) -> list[PendingWrite]:
        return sorted(self._memory.writes(line, checkpoint_id), key=versions.in_order)

    def _version(self, thread_id: str, namespace: str, line: Line, sequence: int) -> Version:
        row = self._memory.rows(line)[sequence]
        parent = self._memory.record(line, row.record.parent) if row.record.parent else None
        return Version(
            mark=Mark(self._memory.store, line.line, sequence, row.record.digest),
            thread_id=thread_id,
            namespace=namespace,
            checkpoint_id=row.record.checkpoint_id,
            parent_id=parent.checkpoint_id if parent else None,
            metadata=deepcopy(row.record.metadata),
            labels=deepcopy(row.record.labels),
            created_at=row.created_at,
        )

    async def history(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        limit: int = 10,
        before: str | None = None,
    ) -> list[Version]:
        check_names(thread_id, namespace, before)
        check_limit(limit)
        with self._lock:
            line = self._memory.find(thread_id, namespace)
            if line is None:
                return []
            end = line.last_sequence + 1
            if before is not None:
                end = versions.cursor(self._memory, line, thread_id, before)
            shown = (it for it in self._visible(line) if it < end)
            return [self._version(thread_id, namespace, line, it) for it in islice(shown, limit)]

    def _visible(self, line: Line) -> Iterator[int]:
        """Newest first."""
        rows = reversed(self._memory.rows(line))
        return (it for it in rows if versions.is_visible(line, it))

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
        check_names(thread_id, namespace, *checkpoint_ids)
        with self._lock:
            line = self._memory.find(thread_id, namespace)
            if line is None:
                return 0
            return versions.remove_named(self._memory, line, checkpoint_ids, writer)

    async def has_thread(self, thread_id: str) -> bool:
        check_text("thread_id", thread_id)
        with self._lock:
            found = self._memory.thread(thread_id)
            return found is not None and found.exists

    async def remove_thread(self, thread_id: str) -> Removed:
        check_text("thread_id", thread_id)
        with self._lock:
            if self._memory.thread(thread_id) is None:
                return Removed(existed=False, versions=0)
            return self._memory.drop_thread(thread_id)

    async def recent(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[Active]:
        check_limit(limit)
        matches = thread_pattern(pattern).match
        with self._lock:
            threads = self._recent()
            if after is not None:
                places = [it.thread_id for it in threads]
                if after not in places:
                    raise NotFoundError(f"there is no thread {after!r} to list after")
                threads = threads[places.index(after) + 1 :]
            found = (Active(it.thread_id, it.active_at) for it in threads if matches(it.thread_id))
            return list(islice(found, limit))

    def _recent(self) -> list[_Thread]:
        live = (it for it in self._memory.threads.values() if it.is_live and it.exists)
        return sorted(live, key=lambda it: (it.active_at, it.number), reverse=True)

    def _roots(self) -> Iterator[tuple[str, Line]]:
        """The root lines of live threads that have a head, the most recently active first."""
        for thread in self._recent():
            line = self._memory.find(thread.thread_id, "")
            if line is not None:
                yield thread.thread_id, line

    async def heads(self, limit: int = 100) -> list[Head]:
        check_limit(limit)
        with self._lock:
            pairs = [(thread_id, line) for thread_id, line in self._roots()][:limit]
            return [self._head(thread_id, line, line.head or 0) for thread_id, line in pairs]

    def _head(self, thread_id: str, line: Line, sequence: int) -> Head:
        return self._version(thread_id, "", line, sequence).as_head()

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        check_key(key)
        check_limit(limit)
        with self._lock:
            found = [
                (self._memory.rows(line)[sequence].created_at, line.line, sequence, thread_id, line)
                for thread_id, line in self._roots()
                for sequence in self._visible(line)
                if self._has(line, sequence, key, value)
            ]
            found.sort(key=lambda it: it[:3], reverse=True)
            return [self._head(it[3], it[4], it[2]) for it in found[:limit]]

    def _has(self, line: Line, sequence: int, key: str, value: Any) -> bool:
        record = self._memory.rows(line)[sequence].record
        return is_found(record.metadata, record.labels, key, value)

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        wanted = query_words(query)
        with self._lock:
            hits = [
                hit
                for thread_id, line in self._roots()
                if (hit := self._hit(thread_id, line, wanted))
            ]
        return sorted(hits, key=lambda it: (it.score, it.updated_at), reverse=True)[:limit]

    @skips_too_large
    def _hit(self, thread_id: str, line: Line, wanted: list[str]) -> Hit | None:
        match = Match(wanted)
        rows = self._memory.rows(line).items()
        records = ((sequence, row.record.chain, row.payload) for sequence, row in rows)
        for sequence, text in versions.visible_texts(line, records, self.max_state_bytes):
            match.add(sequence, text)
        if not match.is_complete:
            return None
        head = self._head(thread_id, line, match.best[1])
        return Hit(
            thread_id=thread_id,
            checkpoint_id=head.checkpoint_id,
            metadata=head.metadata,
            updated_at=head.updated_at,
            score=match.score,
            snippet=match.snippet,
        )

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        check_text("source_thread_id", source_thread_id)
        check_text("dest_thread_id", dest_thread_id)
        with self._lock:
            source = self._memory.thread(source_thread_id)
            if source is None or not source.exists:
                return False
            self._require_free(dest_thread_id, "copied")
            copy = replace(self._archived(source), thread_id=dest_thread_id)
            self._restore(copy)
            if has_versions(copy):
                self._memory.threads[dest_thread_id].active_at = _now()
            return True

    def _require_free(self, thread_id: str, done: str) -> None:
        if self._memory.thread(thread_id) is not None:
            raise occupied(thread_id, done)

    # --- whole threads

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        check_scan(limit, after)
        with self._lock:
            live = (it.thread_id for it in self._memory.threads.values() if it.is_live)
            return sorted(it for it in live if after is None or it > after)[:limit]

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        check_text("thread_id", thread_id)
        with self._lock:
            found = self._memory.thread(thread_id)
            return self._archived(found) if found else None

    def _archived(self, thread: _Thread) -> ArchivedThread:
        return ArchivedThread(
            thread_id=thread.thread_id,
            user_id=thread.user_id,
            name=thread.name,
            metadata=deepcopy(thread.metadata),
            created_at=thread.created_at,
            active_at=minute_of(thread.active_at),
            expires_at=thread.expires_at,
            lines=[
                _archived_line(namespace, *thread.lines[namespace])
                for namespace in sorted(thread.lines)
            ],
            messages=list(thread.messages),
        )

    async def restore(self, thread: ArchivedThread) -> None:
        with self._lock:
            self._require_free(thread.thread_id, "written")
            self._restore(thread)

    def _restore(self, thread: ArchivedThread) -> None:
        made = self._memory.add_thread(thread.thread_id)
        for name in ("user_id", "name", "created_at", "expires_at"):
            setattr(made, name, getattr(thread, name))
        made.active_at = last_active_at(thread)
        made.metadata, made.messages = deepcopy(thread.metadata), list(thread.messages)
        for old in thread.lines:
            line = self._memory.add_line(made, old.namespace)
            rows = self._memory.rows(line)
            for it in old.records:
                rows.put(_Row(versions.record_of(it), it.payload, it.created_at))
            for write in old.writes:
                key = (write.write.task_id, write.write.idx)
                rows.writes.setdefault(write.checkpoint_id, {})[key] = write
            line.head, line.floor, line.last_sequence = old.head, old.floor, old.last_sequence
            versions.settle(self._memory, line)
            self._memory.update(line)

    async def store_writes(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        writes: list[PendingWrite],
        *,
        known: Mark | None,
        seen: Collection[tuple[str, int]] | None,
    ) -> bool:
        with self._lock:
            line = self._memory.open_line(thread_id, namespace)
            return versions.put_writes(
                self._memory, line, checkpoint_id, writes, known=known, seen=seen
            )

    async def writes_of(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, namespace: str = ""
    ) -> dict[str, list[PendingWrite]]:
        check_names(thread_id, namespace, *checkpoint_ids)
        with self._lock:
            found = self._memory.thread(thread_id)
            pair = found.lines.get(namespace) if found else None
            if pair is None:
                return {}
            each = {it: self._writes(pair[0], it) for it in checkpoint_ids}
            return {name: writes for name, writes in each.items() if writes}

    async def namespaces(self, thread_id: str) -> list[str]:
        check_text("thread_id", thread_id)
        with self._lock:
            found = self._memory.thread(thread_id)
            lines = found.lines.items() if found else ()
            return sorted(name for name, (line, _) in lines if line.head is not None)

    async def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        check_names(thread_id, namespace)
        with self._lock:
            line = self._memory.find(thread_id, namespace)
            rows = self._memory.rows(line).items() if line else ()
            found = [(it, row.record.chain, row.payload) for it, row in rows]
        return versions.made_of(found, first, last)

    async def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        check_key(key)
        with self._lock:
            return [
                (thread.thread_id, namespace, row.record.checkpoint_id)
                for thread in self._memory.threads.values()
                for namespace, (_, rows) in thread.lines.items()
                for row in rows.values()
                if thread.is_live and has_value(row.record.metadata, key, value)
            ]

    async def prune(self, thread_id: str) -> int:
        check_text("thread_id", thread_id)
        with self._lock:
            found = self._memory.thread(thread_id)
            lines = [self._memory.find(thread_id, it) for it in found.lines] if found else []
            return sum(versions.prune(self._memory, it) for it in lines if it)

    async def vacuum_report(self, older_than_days: float = 30) -> Vacuumed:
        limit = _now() - timedelta(days=check_days(older_than_days))
        sweep = Sweep()
        with self._lock:
            for thread in list(self._memory.threads.values()):
                self._vacuum(thread, limit, sweep)
        return sweep.report()

    def _vacuum(self, thread: _Thread, limit: datetime, sweep: Sweep) -> None:
        if thread.newest_at < limit:
            sweep.count(thread.thread_id, self._memory.drop_thread(thread.thread_id).versions)
            return
        for line, of_line in list(thread.lines.values()):
            old = [it for it, row in of_line.items() if row.created_at < limit]
            with sweep.of(thread.thread_id):
                removed = versions.vacuum(self._memory, replace(line), old)
                sweep.count(thread.thread_id, removed)

    def clear(self) -> None:
        """Remove all threads."""
        with self._lock:
            for thread_id in list(self._memory.threads):
                self._memory.drop_thread(thread_id)

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads that have a version."""
        with self._lock:
            return [thread_id for thread_id, _ in self._roots()]

    def version_count(self, thread_id: str) -> int:
        """Return how many versions a thread has."""
        with self._lock:
            line = self._memory.find(thread_id, "")
            if line is None:
                return 0
            return sum(versions.is_visible(line, it) for it in self._memory.rows(line))

    async def renew(self, thread_id: str, ttl_seconds: float) -> bool:
        check_text("thread_id", thread_id)
        until = _now() + timedelta(seconds=ttl_seconds)
        with self._lock:
            thread = self._memory.thread(thread_id)
            if thread is None or thread.expires_at is None or thread.expires_at >= until:
                return False
            thread.expires_at = until
        return True

    async def expire(self) -> int:
        with self._lock:
            over = [it.thread_id for it in self._memory.threads.values() if not it.is_live]
            for thread_id in over:
                self._memory.drop_thread(thread_id)
            return len(over)


class MemoryCheckpointer(StorageBackendAdapter[S]):
    """A checkpointer in this process's memory, for tests and trials; gone when it ends.

    Args:
        state_type: See ``StorageBackendAdapter``, as the other options.
        on_conflict: What a losing save does.
        keep_last: Versions to keep per thread.
        ttl_seconds: A thread's time to live after its last save.
        max_state_bytes: See ``MemoryBackend``.
        refresh_on_read: A load renews that time.
    """

    def __init__(
        self,
        *,
        state_type: type[S] | None = None,
        on_conflict: OnConflict = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        refresh_on_read: bool = False,
    ) -> None:
        self._memory_backend = MemoryBackend(max_state_bytes=max_state_bytes)
        super().__init__(
            self._memory_backend,
            state_type=state_type,
            on_conflict=on_conflict,
            keep_last=keep_last,
            ttl_seconds=ttl_seconds,
            refresh_on_read=refresh_on_read,
        )

    # --- as the Locus SDK's, which block

    def clear(self) -> None:
        """Remove all threads."""
        self._memory_backend.clear()
        self._loads.clear()

    def get_thread_ids(self) -> list[str]:
        """Return the ids of all threads."""
        return self._memory_backend.thread_ids()

    def get_checkpoint_count(self, thread_id: str | None = None) -> int:
        """Return how many versions a thread has, or all threads have; 0 where there is none."""
        ids = self.get_thread_ids() if thread_id is None else [thread_id]
        return sum(map(self._memory_backend.version_count, ids))


def memory_checkpointer(
    *,
    state_type: type[S] | None = None,
    on_conflict: OnConflict = "raise",
    keep_last: int | None = None,
    ttl_seconds: float | None = None,
    max_state_bytes: int = MAX_STATE_BYTES,
    refresh_on_read: bool = False,
) -> MemoryCheckpointer[S]:
    """Return a checkpointer in this process's memory; options as ``MemoryCheckpointer``."""
    return MemoryCheckpointer(
        state_type=state_type,
        on_conflict=on_conflict,
        keep_last=keep_last,
        ttl_seconds=ttl_seconds,
        max_state_bytes=max_state_bytes,
        refresh_on_read=refresh_on_read,
    )


def _archived_line(namespace: str, line: Line, rows: _Rows) -> ArchivedLine:
    writes = (it for of_checkpoint in rows.writes.values() for it in of_checkpoint.values())
    return ArchivedLine(
        namespace=namespace,
        head=line.head,
        floor=line.floor,
        last_sequence=line.last_sequence,
        records=[versions.archived(it.record, it.payload, it.created_at) for it in rows.values()],
        writes=sorted(writes, key=versions.archive_order),
    )


def _now() -> datetime:
    return datetime.now(UTC)
