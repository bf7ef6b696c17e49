"""One thread in memory, and the changes of one write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from locus_store import versions
from locus_store.types import (
    FOREVER,
    ArchivedLog,
    ArchivedMessage,
    ArchivedThread,
    ArchivedWrite,
    Hit,
    Mark,
    PendingWrite,
    Removed,
    Save,
    Version,
)
from locus_store.types.logs import Outbox
from locus_store.types.messages import LogEdit
from locus_store.values.text import Match
from locus_store.versions import Line, Record, turns
from locus_store.versions.archives import (
    compute_idle_since,
    compute_last_active_at,
    cut_to_minute,
    has_versions,
)
from locus_store.versions.histories import History, Row, generate_line_id
from locus_store.versions.renewing import compute_ttl_slack

T = TypeVar("T")
ThreadChange: TypeAlias = "Callable[[ThreadTransaction], T]"
"""Changes a thread, and returns what the caller gets."""

CLAIM_AGE: Final = timedelta(days=1)
"""So long a thread lives that a change claims before its commit, if nothing is put into it."""


@dataclass(slots=True)
class Thread:
    """A thread, as it is stored."""

    thread_id: str
    store: str
    """Identity of the store that created the thread."""

    created_at: datetime
    active_at: datetime
    """The time of the last activity. It may be to the minute if the thread has no version, or was
    restored."""

    user_id: str | None = None
    name: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    expires_at: datetime | None = None
    histories: dict[str, History] = field(default_factory=dict)
    messages: list[ArchivedMessage] = field(default_factory=list)
    """In the order in which they were stored; never changed, only replaced."""

    logs: dict[str, ArchivedLog] = field(default_factory=dict)
    """The message logs by namespace; never changed, only replaced."""

    outbox: Outbox | None = None
    """Changes of other threads' logs that are not applied yet."""

    delivered: dict[str, str] = field(default_factory=dict)
    """The token of the last outbox that was applied here, by its thread; only replaced."""

    is_listed: bool = False
    """The thread exists, although this object may have a part of it only."""

    tickets: Sequence[turns.Ticket] = ()
    """The turn that is held, and those that wait for it; only replaced."""

    is_placeholder: bool = False
    """There is no thread, but tickets for one."""

    def is_live(self, read_clock: Callable[[], datetime]) -> bool:
        """Return whether there is a thread, and it has not expired by the storage's clock."""
        is_over = self.expires_at is not None and self.expires_at <= read_clock()
        return not (self.is_placeholder or is_over)

    @property
    def exists(self) -> bool:
        """True if the thread has more than pending writes."""
        is_named = (self.name, self.user_id) != (None, None)
        return self.is_listed or self.has_versions or bool(self.logs) or is_named

    @property
    def is_empty(self) -> bool:
        """True if nothing would be lost with the thread."""
        return not (self.histories or self.logs or self.name is not None or self.metadata)

    @property
    def is_claim(self) -> bool:
        """True if a change that is not committed yet has only claimed the thread."""
        expires_at = self.expires_at
        return expires_at is not None and expires_at - self.active_at == CLAIM_AGE and self.is_empty

    @property
    def has_versions(self) -> bool:
        """True if the thread has a version in any namespace."""
        return any(it.line.head is not None for it in self.histories.values())

    def copy(self) -> Thread:
        """Return a copy whose lines may be changed."""
        made = Thread(*_list_fields(self))
        made.histories = {name: it.copy() for name, it in self.histories.items()}
        made.is_placeholder = False
        return made

    def dump_turns(self) -> dict[str, Any]:
        """Return the turns as JSON; empty if there are none."""
        if not self.tickets:
            return {}
        kind = {"is_placeholder": True} if self.is_placeholder else {}
        return {"tickets": turns.dump_tickets(self.tickets), **kind}

    def load_turns(self, turns_json: dict[str, Any]) -> None:
        """Set the turns to those of ``dump_turns``."""
        self.tickets = turns.load_tickets(turns_json.get("tickets"))
        self.is_placeholder = turns_json.get("is_placeholder", False)

    def find_history(self, namespace: str) -> History | None:
        """Return the history of a namespace; ``None`` if it has no version."""
        found = self.histories.get(namespace)
        return found if found and found.line.head is not None else None

    def is_older_than(self, limit: datetime) -> bool:
        """Return whether a vacuum removes the thread whole.

        That is by its newest version, log or pending write, else by its last activity.
        """
        times = [it.changed_at for it in self.logs.values()]
        times += [at for it in self.histories.values() if (at := it.find_newest_at())]
        return self.expires_at != FOREVER and max(times, default=self.active_at) < limit

    def count_versions(self) -> int:
        return sum(len(it.list_sequences()) for it in self.histories.values())

    def mark(self, history: History, record: Record) -> Mark:
        """Return the permanent identity of a version."""
        return Mark(self.store, history.line.line, record.sequence, record.digest)

    def get_version(self, history: History, sequence: int) -> Version:
        """Return a version without its state."""
        row = history.get_row(sequence)
        assert row is not None  # noqa: S101  (the line has it)
        parent = history.get_row(row.record.parent or 0)
        return Version(
            mark=self.mark(history, row.record),
            thread_id=self.thread_id,
            namespace=history.namespace,
            checkpoint_id=row.record.checkpoint_id,
            parent_id=parent.record.checkpoint_id if parent else None,
            metadata=deepcopy(row.record.metadata),
            labels=deepcopy(row.record.labels),
            created_at=row.created_at,
        )

    def search(self, history: History, words: list[str], max_state_bytes: int) -> Hit | None:
        """Find a query's words in the visible versions; return ``None`` if one is missing.

        Raises:
            IntegrityError: A version is damaged or exceeds ``max_state_bytes``.
        """
        match = Match(words)
        rows = history.rows.items()
        records = ((sequence, row.record.chain, row.payload) for sequence, row in rows)
        for sequence, text in versions.iterate_visible_texts(
            history.line, records, max_state_bytes
        ):
            match.add(sequence, text)
        if not match.is_complete:
            return None
        version = self.get_version(history, match.best[1])
        return Hit(
            thread_id=self.thread_id,
            checkpoint_id=version.checkpoint_id,
            metadata=version.metadata,
            updated_at=version.created_at,
            score=match.score,
            snippet=match.snippet,
        )

    def archive(self) -> ArchivedThread:
        """Return all data of the thread; the result shares nothing that can be changed."""
        return ArchivedThread(
            thread_id=self.thread_id,
            user_id=self.user_id,
            name=self.name,
            metadata=deepcopy(self.metadata),
            created_at=self.created_at,
            active_at=cut_to_minute(self.active_at),
            expires_at=None if self.is_claim else self.expires_at,
            lines=[self.histories[it].archive() for it in sorted(self.histories)],
            messages=deepcopy(self.list_messages()),
            logs=[*self.logs.values()],
        )

    def list_messages(self) -> list[ArchivedMessage]:
        """Return the messages by namespace and sequence."""
        return sorted(self.messages, key=lambda it: (it.namespace, it.sequence))


_list_fields = attrgetter(*Thread.__slots__)


class ThreadTransaction:
    """``versions.Lines`` over one thread: a copy, and the list of additions to it.

    Args:
        thread_id: The thread.
        old: What is stored of it.
        store: Identity of where it is stored.
        max_state_bytes: The largest state that is folded.
        now: The time of the transaction; ``None``: by this host's clock.
    """

    def __init__(
        self,
        thread_id: str,
        old: Thread | None,
        store: str,
        max_state_bytes: int,
        now: datetime | None = None,
    ) -> None:
        self.store = old.store if old else store
        self.max_state_bytes = max_state_bytes
        self.old = old
        self.thread_id = thread_id
        self.now: Final = now or datetime.now(UTC)
        """The time of the transaction."""

        self.was_live = old is not None and old.is_live(lambda: self.now)
        self.thread = old.copy() if old and self.was_live else None
        """The thread after the transaction; ``None``: removed."""

        self.is_new = self.thread is None or self.thread.is_claim
        """The thread did not exist, or was only claimed: its time to live is that of the claim."""

        if self.thread and self.is_new:
            self.thread.expires_at = None

        self.adds_only = self.thread is not None
        """The transaction adds to stored data and changes none of it."""

        self.drops = False
        """The transaction removed a thread that existed."""

        self.added: list[tuple[History, Row | ArchivedWrite | None]] = []
        """Additions in order; a history without an addition was created."""

        self.tickets: Sequence[turns.Ticket] = old.tickets if old else ()
        """Of the thread's turns after the transaction. They outlive the thread."""

    def find(self, thread_id: str, namespace: str, *, beside: str | None = None) -> Line | None:
        history = self.thread.find_history(namespace) if self.thread else None
        if history is None:
            return None
        if not history.is_settled:
            versions.settle(self, history.line)
            history.is_settled = True
        return history.line.copy()

    def has_thread(self, thread_id: str) -> bool:
        return self.thread is not None and self.thread.exists

    def create(self, save: Save) -> Line:
        line = self.open_history(save.namespace).line
        self.touch(save)
        return line.copy()

    def open_history(self, namespace: str) -> History:
        """Return a namespace's history, created if missing; it may have pending writes only."""
        thread = self.thread or self.begin()
        return thread.histories.get(namespace) or self.add_history(thread, namespace)

    def begin(self) -> Thread:
        """Create an empty thread."""
        self.thread = Thread(self.thread_id, self.store, self.now, self.now)
        self.adds_only = False
        return self.thread

    def add_history(self, thread: Thread, namespace: str) -> History:
        """Create the empty history of a namespace."""
        line = Line(line=generate_line_id())
        history = thread.histories[namespace] = History(namespace, line, is_settled=True)
        self.added.append((history, None))
        return history

    def _get_history(self, line: Line) -> History:
        for history in self.thread.histories.values() if self.thread else ():
            if history.line.line == line.line:
                return history
        raise LookupError(f"line {line.line} is not of thread {self.thread_id!r}")

    def update(self, line: Line) -> None:
        self._get_history(line).line = line.copy()

    def touch(self, save: Save | LogEdit) -> None:
        assert self.thread is not None  # noqa: S101  (made, or found)
        self.thread.active_at = self.now
        if save.ttl_seconds is not None:
            self.thread.expires_at = self.now + timedelta(seconds=save.ttl_seconds)

    def prolong(self, ttl_seconds: float) -> None:
        """Let a thread that is new here, or has a time to live, live at least so long.

        An expiry that is earlier by no more than the slack stays: else more writes would rewrite a
        document to which they only append.
        """
        assert self.thread is not None  # noqa: S101  (made, or found)
        thread, until = self.thread, self.now + timedelta(seconds=ttl_seconds)
        slack = timedelta(seconds=compute_ttl_slack(ttl_seconds))
        expires_at = thread.expires_at
        if (self.is_new and expires_at is None) or (expires_at and expires_at < until - slack):
            self.adds_only = False
            thread.expires_at = until

    def drop(self, line: Line) -> None:
        assert self.thread is not None  # noqa: S101  (it had a line)
        self.adds_only = False
        del self.thread.histories[self._get_history(line).namespace]
        if not self.thread.histories and not self.thread.exists:
            self.drop_thread()
        elif not self.thread.has_versions:
            self.thread.active_at = compute_idle_since(
                self.thread.active_at, self.thread.logs.values()
            )

    def drop_thread(self) -> Removed:
        old, self.thread, self.drops = self.thread, None, True
        return Removed(old is not None and old.exists, old.count_versions() if old else 0)

    def remove_thread(self, head: Mark | None, namespace: str) -> Removed:
        """Remove the thread as ``StorageBackend.remove_thread`` does."""
        if self.thread is None:
            return versions.make_no_thread_result(self.thread_id, head)
        if head is not None:
            line = self.find(self.thread_id, namespace)
            versions.require_head(self, line, head, self.thread_id)
        return self.drop_thread()

    def record(self, line: Line, sequence: int) -> Record | None:
        return self._get_history(line).record(line, sequence)

    def named(self, line: Line, checkpoint_id: str) -> Record | None:
        return self._get_history(line).named(line, checkpoint_id)

    def newest(self, line: Line, nth: int = 1) -> int | None:
        return next(islice(reversed(self._get_history(line).list_sequences()), nth - 1, None), None)

    def below(self, line: Line, sequence: int, limit: int) -> list[int]:
        some = takewhile(lambda it: it < sequence, self._get_history(line).list_sequences())
        return list(islice(some, limit))

    def payloads(
        self, line: Line, chain: int, *, upto: int | None = None
    ) -> list[tuple[int, bytes]]:
        return self._get_history(line).payloads(chain, upto)

    def append(self, line: Line, record: Record, payload: bytes) -> None:
        history, row = self._get_history(line), Row(record, self.now, payload)
        history.put(row)
        self.added.append((history, row))

    def rewrite(self, line: Line, sequence: int, payload: bytes) -> None:
        self.adds_only = False
        rows = self._get_history(line).rows
        old = rows[sequence]
        rows[sequence] = Row(old.record, old.created_at, payload, old.line_changes)

    def adopt(self, line: Line, sequence: int, parent: int | None) -> None:
        self.adds_only = False
        rows = self._get_history(line).rows
        old = rows[sequence]
        record = replace(old.record, parent=parent)
        rows[sequence] = Row(record, old.created_at, old.payload, old.line_changes)

    def children(self, line: Line, sequences: Collection[int]) -> list[Record]:
        records = (row.record for row in self._get_history(line).rows.values())
        return [it for it in records if it.parent in sequences]

    def remove(self, line: Line, sequences: Sequence[int]) -> None:
        self.adds_only = False
        history = self._get_history(line)
        for sequence in sequences:
            history.remove(sequence)

    def writes(self, line: Line, checkpoint_id: str) -> list[PendingWrite]:
        there = self._get_history(line).get_writes(checkpoint_id)
        return [it.write for it in there.values()]

    def written(self, line: Line, checkpoint_id: str) -> Collection[tuple[str, int]]:
        return self._get_history(line).get_writes(checkpoint_id).keys()

    def put_writes(self, line: Line, checkpoint_id: str, writes: Sequence[PendingWrite]) -> None:
        history = self._get_history(line)
        there = history.get_writes(checkpoint_id)
        for write in writes:
            if (write.task_id, write.idx) in there:
                self.adds_only = False
            made = ArchivedWrite(checkpoint_id=checkpoint_id, write=write, created_at=self.now)
            history.put_write(made)
            self.added.append((history, made))

    def restore(self, source: ArchivedThread, *, is_copy: bool = False) -> Thread:
        """Restore an archived thread, and return it; a copy with versions counts as active now."""
        thread = self.begin()
        for name in ("user_id", "name", "created_at", "expires_at"):
            setattr(thread, name, getattr(source, name))
        is_active = is_copy and has_versions(source)
        thread.active_at = self.now if is_active else compute_last_active_at(source)
        thread.metadata, thread.messages = deepcopy(source.metadata), deepcopy(source.messages)
        thread.logs = {it.namespace: it for it in source.logs}
        for old in source.lines:
            history = self.add_history(thread, old.namespace)
            history.is_settled = False
            for one in old.records:
                record = versions.make_record(one)
                history.put(Row(record, one.created_at, one.payload))
            for write in old.writes:
                history.put_write(write)
            line = history.line
            line.head, line.floor, line.last_sequence = old.head, old.floor, old.last_sequence
        return thread

    def finish(self) -> None:
        """Keep the turns; without a thread, a placeholder has them until the last one ends."""
        if self.thread and self.old and self.was_live and self.is_new and self.thread.is_empty:
            self.thread.expires_at = self.thread.expires_at or self.old.expires_at  # of the claim
        live = [it for it in self.tickets if it.until > self.now]
        if self.thread is None and live:
            place = self.begin()
            place.is_placeholder, place.expires_at = True, max(it.until for it in live)
        if self.thread is not None:
            self.thread.tickets = self.tickets if live else turns.keep_number((), self.tickets)
            if self.old is not None and self.old.tickets != self.thread.tickets:
                # Without tickets, and once in so many changes of them, a document is rewritten.
                is_time = not live or self.now.microsecond % turns.KEPT_CHANGES == 0
                self.adds_only = self.adds_only and not is_time
        elif (old := self.old) is not None and (old.is_placeholder or old.tickets != self.tickets):
            self.drops = True  # also an expired thread, whose turn has ended


def load_archive(source: ArchivedThread) -> Thread:
    """Return an archived thread in memory."""
    return ThreadTransaction(source.thread_id, None, "", 0).restore(source)


def rewrite_thread(
    transaction: ThreadTransaction, change: Callable[[ArchivedThread], ArchivedThread]
) -> bool:
    """Replace what a thread holds; see ``StoresThreads.rewrite_thread``."""
    thread = transaction.thread
    if thread is None:
        return False
    transaction.adds_only, made = False, change(thread.archive())
    thread.messages = made.messages
    for line in made.lines:
        history = thread.histories[line.namespace]
        for record in line.records:
            old = history.rows[record.sequence]
            made_of = versions.make_record(record), old.created_at, record.payload
            history.rows[record.sequence] = Row(*made_of, old.line_changes)
        for write in line.writes:
            history.put_write(write)
        versions.settle(transaction, history.line)
    return True


def settle(transaction: ThreadTransaction) -> None:
    """Compute the current chains of lines that were restored."""
    for history in transaction.thread.histories.values() if transaction.thread else ():
        if not history.is_settled:
            versions.settle(transaction, history.line)
            history.is_settled = True
