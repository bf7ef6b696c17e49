"""Changes of message logs in SQL, and the log that all SQL databases share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from locus_store.messages import BackendMessageLog
from locus_store.runtime.loops import run_off_loop
from locus_store.sql import log_reads
from locus_store.sql.audit import OF_MESSAGES, READS_OF_MESSAGES, record_calls
from locus_store.sql.columns.dialect_columns import escape_text
from locus_store.sql.connections.backend import ConnectedBackend, make_writing
from locus_store.sql.quotas import limit_calls, measure_change
from locus_store.sql.threads import pending, turns
from locus_store.sql.threads.pending import split_batches
from locus_store.sql.threads.reads import Reads
from locus_store.sql.threads.repository import Repository, settle
from locus_store.sql.threads.statements import is_live
from locus_store.sql.threads.thread_rows import MESSAGE, make_message
from locus_store.types import FOREVER, ArchivedLog, ArchivedMessage
from locus_store.types.logs import LogsWanted, PackedContents, decode_contents
from locus_store.types.messages import (
    Cut,
    LogChange,
    LogChanged,
    LogEdit,
    LogInfo,
    LogRead,
    LogWanted,
    PutMessage,
    compute_message_checksum,
    make_too_short_error,
    require_revision,
)
from locus_store.types.thread_info import require_owner, require_user_id

CHANGED: Final = ("role", "metadata", "text", "payload", "digest")
"""The columns of a message that is put in place of another one."""


def _change(repo: Repository, change: LogChange) -> LogChanged:
    """See ``BaseMessageLog.change``; in a transaction that holds the locks of the threads."""
    edits = change.split()
    puts_into = {edit.thread_id for edit in edits if edit.puts}
    numbers = {edit.thread_id: edit.turn for edit in edits}
    threads = {}
    for name, number in numbers.items():
        repo.guard(name, number)
        threads[name] = _lock_row(repo, name, creates=name in puts_into)
    thread = threads[change.thread_id]
    log = None if thread is None else _Log(repo, thread[0], change)
    revision = log.revision if log else 0
    require_revision((change.thread_id, change.namespace), change.expected_revision, revision)
    for edit in edits:
        if (found := threads[edit.thread_id]) is not None:
            _claim_thread(repo, found, edit)
    for other in change.also:
        its_thread = threads[other.thread_id]
        if its_thread is not None:
            _Log(repo, its_thread[0], other).apply()
    return log.apply() if log and (change.puts or revision) else LogChanged(0)


def _lock_row(repo: Repository, thread_id: str, *, creates: bool) -> Sequence[Any] | None:
    """Lock a thread; return its row, or ``None`` if there is none and it is not created."""
    if creates:
        repo.open_thread(thread_id)
    else:
        repo.lock_thread(thread_id)
    key = {"tenant": repo.tenant, "thread_id": thread_id}
    *row, turn = repo.sql.thread.fetch_rows(repo.connection, key)[0]
    if repo.is_outside_turns:
        turns.require_none(repo, thread_id, turn)
    return row if row[0] is not None and row[1] else None


def _claim_thread(repo: Repository, thread: Sequence[Any], edit: LogEdit) -> None:
    """Make a thread the user's, and keep it, as an edit says.

    Raises:
        NotOwnerError: It is another user's.
    """
    key, _, owner, expires_at = thread
    require_user_id(edit.user_id, repo.tables.user_id_type)
    require_owner(edit.thread_id, owner, edit.user_id)
    if not edit.puts:
        return
    threads, values = repo.tables.threads, dict[str, Any]()
    if owner is None and edit.user_id is not None:
        values["user_id"] = edit.user_id
    if edit.is_kept and expires_at != FOREVER:
        values["expires_at"] = FOREVER
    if values:
        repo.connection.execute(threads.update().where(threads.c.thread == key).values(values))


class _Log:
    """A log whose thread is locked."""

    def __init__(self, repo: Repository, thread: int, edit: LogEdit) -> None:
        self._it = repo
        self._wanted = edit
        self._messages = repo.tables.messages
        self._thread = thread
        name = {"thread": thread, "namespace": edit.namespace}
        row = repo.sql.log.fetch_first(repo.connection, name)
        self.revision, self._count, self._last = row or (0, 0, 0)

    def apply(self) -> LogChanged:
        """Remove and put messages; return the result."""
        removed, count = None, self._count
        if self._wanted.cut is not None:
            removed = self._cut(self._wanted.cut)
        if not self._wanted.puts and self._count == count:
            return LogChanged(self.revision)
        self._put(self._wanted.puts)
        self._store()
        self._it.touch(self._wanted)
        return LogChanged(self.revision, removed)

    def _is_its(self) -> tuple[sa.ColumnElement[bool], ...]:
        c = self._messages.c
        return c.thread == self._thread, c.namespace == self._wanted.namespace

    def _store(self) -> None:
        """Store the revision, which grows, and the count."""
        is_new, sql = self.revision == 0, self._it.sql
        self.revision = self._wanted.first_revision if is_new else self.revision + 1
        values = {
            "revision": self.revision,
            "message_count": self._count,
            "last_sequence": self._last,
        }
        if is_new:
            name = {"thread": self._thread, "namespace": self._wanted.namespace}
            sql.new_log.run(self._it.connection, {**name, **values})
        else:
            name = {"of_thread": self._thread, "of_namespace": self._wanted.namespace}
            sql.changed_log.run(self._it.connection, {**name, **values})

    def _cut(self, cut: Cut) -> ArchivedMessage | None:
        if cut.kind == "newest":
            return self._pop()
        if cut.kind == "all":
            self._delete()
        elif cut.kind == "from":
            self._delete_from(cut.position)
        else:
            for ids in split_batches(cut.message_ids):
                self._delete(self._messages.c.message_id.in_(ids))
        return None

    def _pop(self) -> ArchivedMessage | None:
        c = self._messages.c
        query = sa.select(*(c[name] for name in MESSAGE)).where(*self._is_its())
        row = self._it.connection.execute(query.order_by(c.sequence.desc()).limit(1)).first()
        if row is None:
            return None
        self._delete(c.sequence == row.sequence)
        return make_message(row, self._wanted.thread_id)

    def _delete_from(self, position: int) -> None:
        if position > self._count:
            raise make_too_short_error(self._wanted, self._count)
        if position < self._count:
            sequence = self._messages.c.sequence
            query = sa.select(sequence).where(*self._is_its()).order_by(sequence)
            first = self._it.connection.execute(query.offset(position).limit(1)).scalar_one()
            self._delete(sequence >= first)

    def _delete(self, *conditions: sa.ColumnElement[bool]) -> None:
        gone = self._messages.delete().where(*self._is_its(), *conditions)
        self._count -= self._it.connection.execute(gone).rowcount

    def _put(self, puts: Sequence[PutMessage]) -> None:
        message_id, known = self._messages.c.message_id, set[str]()
        asked = [it.message_id for it in puts if it.may_exist]
        for some in split_batches(asked) if self.revision else ():
            query = sa.select(message_id).where(*self._is_its(), message_id.in_(some))
            known.update(self._it.connection.execute(query).scalars())
        new = [it for it in puts if it.message_id not in known]
        if new:
            columns = make_columns(new)
            columns["namespace"] = [self._wanted.namespace] * len(new)
            columns["thread"] = [self._thread] * len(new)
            columns["sequence"] = range(self._last + 1, self._last + 1 + len(new))
            self._it.sql.new_message.run_all(self._it.connection, columns)
        self._replace([it for it in puts if it.message_id in known])
        self._last += len(new)
        self._count += len(new)

    def _replace(self, puts: Sequence[PutMessage]) -> None:
        c = self._messages.c
        is_it = c.message_id == sa.bindparam("of_id", type_=c.message_id.type)
        values = {name: sa.bindparam(f"new_{name}", type_=c[name].type) for name in CHANGED}
        replaced = self._messages.update().where(*self._is_its(), is_it).values(values)
        columns = make_columns(puts)
        given = {"of_id": columns["message_id"], **{f"new_{it}": columns[it] for it in CHANGED}}
        rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
        for some in split_batches(rows):
            self._it.connection.execute(replaced, some)


def _drop(
    repo: Repository, thread_id: str, namespace: str | None, expected_revision: int | None
) -> bool:
    """See ``BaseMessageLog.drop``."""
    repo.lock(thread_id)
    threads, logs = repo.tables.threads, repo.tables.logs
    query = (
        sa.select(logs)
        .join(threads, threads.c.thread == logs.c.thread)
        .where(*repo.is_thread(thread_id), is_live(repo.tables))
    )
    rows = {row.namespace: row for row in repo.connection.execute(query)}
    name = namespace or ""
    revision = rows[name].revision if name in rows else 0
    require_revision((thread_id, name), expected_revision, revision)
    gone = [row for row in rows.values() if namespace in {None, row.namespace}]
    for row in gone:
        for table in (repo.tables.messages, logs):
            is_its = table.c.thread == row.thread, table.c.namespace == row.namespace
            repo.connection.execute(table.delete().where(*is_its))
    if len(gone) == len(rows) and _has_nothing(repo, thread_id):
        repo.drop_threads([thread_id])
    elif gone:
        settle(repo, thread_id, max(row.changed_at for row in gone))
    return bool(gone)


def _has_nothing(repo: Repository, thread_id: str) -> bool:
    """Return whether a thread without logs has no states, name and metadata; it may have a user."""
    c = repo.tables.threads.c
    row = repo.connection.execute(
        sa.select(c.name, c.metadata).where(*repo.is_thread(thread_id))
    ).first()
    is_bare = row is not None and row.name is None and not row.metadata
    return is_bare and not repo.find_lines_of([thread_id])


def make_columns(puts: Sequence[PutMessage]) -> dict[str, Sequence[Any]]:
    """Return the columns of messages that a caller gives: ``message_id`` and ``CHANGED``."""
    return {
        "message_id": [it.message_id for it in puts],
        "role": [it.role for it in puts],
        "metadata": [it.metadata for it in puts],
        "text": [None if it.text is None else escape_text(it.text) for it in puts],
        "payload": [it.payload for it in puts],
        "digest": [it.digest for it in puts],
    }


def read_thread(reads: Reads, thread: int, thread_id: str) -> list[ArchivedMessage]:
    """Return all messages of a thread, by namespace and sequence."""
    c = reads.tables.messages.c
    query = sa.select(*(c[name] for name in MESSAGE)).where(c.thread == thread)
    rows = reads.connection.execute(query.order_by(c.namespace, c.sequence))
    return [make_message(row, thread_id) for row in rows]


def restore(
    repo: Repository, thread: int, logs: Iterable[ArchivedLog], messages: Sequence[ArchivedMessage]
) -> None:
    """Store the logs and messages of an archived thread."""
    counts: dict[str, int] = {}
    for message in messages:
        counts[message.namespace] = counts.get(message.namespace, 0) + 1
    its_logs = [
        {
            "thread": thread,
            "namespace": log.namespace,
            "revision": log.revision,
            "message_count": counts.get(log.namespace, 0),
            "last_sequence": log.last_sequence,
            "changed_at": log.changed_at,
        }
        for log in logs
    ]
    pending.insert(repo, repo.tables.logs, its_logs)
    pending.insert(repo, repo.tables.messages, [_make_row(thread, entry) for entry in messages])


def rewrite(repo: Repository, thread: int, messages: Sequence[ArchivedMessage]) -> None:
    """Replace the contents of a thread's messages, which keep their numbers."""
    keys = ("thread", "namespace", "sequence")
    rows = [_make_row(thread, entry) for entry in messages]
    changed = [{name: row[name] for name in (*keys, *CHANGED)} for row in rows]
    pending.update_each(repo, repo.tables.messages, keys, changed)


def _make_row(thread: int, entry: ArchivedMessage) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in MESSAGE[:-1]}
    text = None if entry.text is None else escape_text(entry.text)
    return {"thread": thread, **row, "text": text, "digest": compute_message_checksum(entry)}


T = TypeVar("T")


class SqlMessageLog(BackendMessageLog):
    """Runs the statements above, on the connections of a backend that a subclass creates."""

    backend: ConnectedBackend

    def __init__(self, backend: ConnectedBackend, *, owns: bool, **options: Any) -> None:
        super().__init__(backend, owns=owns, **options)
        self._shared = backend.shared
        record_calls(self, self._shared.database.audit, OF_MESSAGES, READS_OF_MESSAGES)

    def _enter(self, tenant: str) -> None:
        self.backend, self.owns = self.backend.for_tenant(tenant), False
        self._shared = self.backend.shared

    async def _write(self, body: Callable[[Repository], T]) -> T:
        with self._shared.translating():
            return await self._shared.runner.write(make_writing(self._shared.database, body))

    async def _query(self, body: Callable[[Reads], T]) -> T:
        """Run a body of one statement."""
        database = self._shared.database
        with self._shared.translating():
            return await self._shared.reader.query(lambda it: body(database.make_repository(it)))

    @limit_calls(measure_change)
    async def change(self, change: LogChange) -> LogChanged:
        return await self._write(lambda it: _change(it, change))

    async def look(self, wanted: LogWanted) -> LogRead | None:
        if not wanted.reads_content:
            return await self._query(lambda it: log_reads.look(it, wanted))
        database = self._shared.database
        with self._shared.translating():
            return await self._shared.reader.read(
                lambda it: log_reads.search(database.make_repository(it), wanted)
            )

    async def look_at_contents(self, request: LogWanted) -> list[Any]:
        log = request.thread_id, request.namespace

        def read(reads: Reads) -> PackedContents:
            return log_reads.look_at_contents(reads, request)

        def decode(contents: PackedContents) -> list[Any]:
            return decode_contents(log, contents, self.max_state_bytes)

        if self._shared.runner.runs_in_threads:
            return await self._query(lambda it: decode(read(it)))
        found = await self._query(read)
        return await run_off_loop(partial(decode, found), found.size)

    async def find_logs(self, wanted: LogsWanted) -> list[LogInfo]:
        return await self._query(lambda it: log_reads.find_logs(it, wanted))

    async def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        return await self._query(lambda it: log_reads.find_heads(it, wanted))

    async def drop(
        self, thread_id: str, namespace: str | None, expected_revision: int | None
    ) -> bool:
        return await self._write(lambda it: _drop(it, thread_id, namespace, expected_revision))
