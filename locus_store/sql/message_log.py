"""Changes of message logs in SQL, and the log that all SQL databases share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Literal, TypeVar

import sqlalchemy as sa

from locus_store.messages import BackendMessageLog
from locus_store.runtime.loops import run_off_loop
from locus_store.sql import log_reads
from locus_store.sql.audit import OF_MESSAGES, READS_OF_MESSAGES, record_calls
from locus_store.sql.columns.dialect_columns import escape_text
from locus_store.sql.connections.backend import ConnectedBackend, make_writing
from locus_store.sql.quotas import limit_calls, measure_change
from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads import pending
from locus_store.sql.threads.pending import fill_parameters, name_parameters, split_batches
from locus_store.sql.threads.reads import Reads
from locus_store.sql.threads.repository import Repository, settle
from locus_store.sql.threads.statements import compile_form, is_live
from locus_store.sql.threads.thread_rows import MESSAGE, is_of_threads, make_message
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
        if creates := name in puts_into:
            repo.open_thread(name)
        found = repo.read_row(name) if creates else repo.lock_thread(name)
        threads[name] = found if found and found.live else None
    thread = threads[change.thread_id]
    log = None if thread is None else _Log(repo, thread.thread, change)
    revision = log.revision if log else 0
    require_revision((change.thread_id, change.namespace), change.expected_revision, revision)
    for edit in edits:
        if (its_thread := threads[edit.thread_id]) is not None:
            _claim_thread(repo, its_thread, edit)
    for other in change.also:
        its_thread = threads[other.thread_id]
        if its_thread is not None:
            _Log(repo, its_thread.thread, other).apply()
    return log.apply() if log and (change.puts or revision) else LogChanged(0)


def _claim_thread(repo: Repository, thread: Any, edit: LogEdit) -> None:
    """Make a thread the user's, and keep it, as an edit says; refuse another user's."""
    require_user_id(edit.user_id, repo.tables.user_id_type)
    require_owner(edit.thread_id, thread.user_id, edit.user_id)
    if not edit.puts:
        return
    threads, values = repo.tables.threads, dict[str, Any]()
    if thread.user_id is None and edit.user_id is not None:
        values["user_id"] = edit.user_id
    if edit.is_kept and thread.expires_at != FOREVER:
        values["expires_at"] = FOREVER
    if values:
        is_it = threads.c.thread == thread.thread
        repo.connection.execute(threads.update().where(is_it).values(values))


class _Log:
    """A log whose thread is locked."""

    def __init__(self, repo: Repository, thread: int, edit: LogEdit) -> None:
        self._it = repo
        self._wanted = edit
        self._name = {"thread": thread, "namespace": edit.namespace}
        row = repo.sql.log.fetch_first(repo.connection, self._name)
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

    def _store(self) -> None:
        """Store the revision, which grows, and the count."""
        is_new, sql = self.revision == 0, self._it.sql
        self.revision = max(self.revision + 1, self._wanted.first_revision)
        counts = {"message_count": self._count, "last_sequence": self._last}
        values = {"revision": self.revision, **counts}
        name = {key if is_new else f"of_{key}": value for key, value in self._name.items()}
        (sql.new_log if is_new else sql.changed_log).run(self._it.connection, {**name, **values})

    def _cut(self, cut: Cut) -> ArchivedMessage | None:
        if cut.kind == "newest":
            if rows := self._it.ask(_select_newest, **self._name):
                self._delete("from", sequence=rows[0].sequence)
            return make_message(rows[0], self._wanted.thread_id) if rows else None
        if cut.kind == "all":
            self._delete("all")
        elif cut.kind == "from":
            if cut.position > self._count:
                raise make_too_short_error(self._wanted, self._count)
            if cut.position < self._count:
                [(first,)] = self._it.ask(_select_sequence, **self._name, offset=cut.position)
                self._delete("from", sequence=first)
        else:
            for ids in split_batches(cut.message_ids):
                size, named = fill_parameters("message_id", ids)
                self._delete("ids", size, **named)
        return None

    def _delete(self, *form: Hashable, **values: Any) -> None:
        self._count -= self._it.change(_delete_messages, *form, **self._name, **values)

    def _put(self, puts: Sequence[PutMessage]) -> None:
        known = set[str]()
        asked = [it.message_id for it in puts if it.may_exist]
        for some in split_batches(asked) if self.revision else ():
            size, named = fill_parameters("message_id", some)
            known.update(it for (it,) in self._it.ask(_select_known, size, **self._name, **named))
        new = [it for it in puts if it.message_id not in known]
        if new:
            columns = make_columns(new)
            columns |= {key: [value] * len(new) for key, value in self._name.items()}
            columns["sequence"] = range(self._last + 1, self._last + 1 + len(new))
            self._it.sql.new_message.run_all(self._it.connection, columns)
        self._replace([it for it in puts if it.message_id in known])
        self._last += len(new)
        self._count += len(new)

    def _replace(self, puts: Sequence[PutMessage]) -> None:
        columns = make_columns(puts)
        columns |= {key: [value] * len(puts) for key, value in self._name.items()}
        given = {f"new_{name}": column for name, column in columns.items()}
        compile_form(self._it.sql, _replace_message).run_all(self._it.connection, given)


def _are_its(table: sa.Table, prefix: str = "") -> list[sa.ColumnElement[bool]]:
    """Return the conditions of the rows of a log; parameters are its key."""
    return [table.c[name] == _bind(table.c[name], prefix) for name in ("thread", "namespace")]


def _bind(column: sa.Column[Any], prefix: str = "") -> sa.BindParameter[Any]:
    return sa.bindparam(prefix + column.name, type_=column.type)


def _select_newest(t: Tables) -> sa.Select[Any]:
    c = t.messages.c
    query = sa.select(*(c[name] for name in MESSAGE)).where(*_are_its(t.messages))
    return query.order_by(c.sequence.desc()).limit(1)


def _select_sequence(t: Tables) -> sa.Select[Any]:
    """Return the query for the sequence of the message at a position."""
    sequence = t.messages.c.sequence
    query = sa.select(sequence).where(*_are_its(t.messages)).order_by(sequence)
    return query.limit(1).offset(sa.bindparam("offset", type_=sa.Integer()))


def _select_known(t: Tables, size: int) -> sa.Select[Any]:
    """Return the query for those of some ids that a log has."""
    message_id = t.messages.c.message_id
    some = name_parameters("message_id", size, message_id.type)
    return sa.select(message_id).where(*_are_its(t.messages), message_id.in_(some))


def _delete_messages(t: Tables, kind: Literal["all", "from", "ids"], size: int = 0) -> sa.Delete:
    """Return the deletion of messages of a log: all, from a sequence on, or of some ids."""
    c, its = t.messages.c, _are_its(t.messages)
    if kind == "from":
        its.append(c.sequence >= _bind(c.sequence))
    elif kind == "ids":
        its.append(c.message_id.in_(name_parameters("message_id", size, c.message_id.type)))
    return t.messages.delete().where(*its)


def _replace_message(t: Tables) -> sa.Update:
    c = t.messages.c
    is_it = c.message_id == _bind(c.message_id, "new_")
    values = {name: _bind(c[name], "new_") for name in CHANGED}
    return t.messages.update().where(*_are_its(t.messages, "new_"), is_it).values(values)


def _drop(
    repo: Repository, thread_id: str, namespace: str | None, expected_revision: int | None
) -> bool:
    """See ``BaseMessageLog.drop``."""
    is_locked = repo.lock(thread_id)
    found = repo.ask(_select_logs, tenant=repo.tenant, thread_0=thread_id) if is_locked else []
    rows = {row.namespace: row for row in found}
    name = namespace or ""
    revision = rows[name].revision if name in rows else 0
    require_revision((thread_id, name), expected_revision, revision)
    gone = [row for row in rows.values() if namespace in {None, row.namespace}]
    if not gone:
        return False
    if len(gone) == len(rows) and _has_nothing(repo, thread_id):
        repo.drop_threads([thread_id])
        return True
    for row in gone:
        log = {"thread": row.thread, "namespace": row.namespace}
        repo.change(_delete_messages, "all", **log)
        repo.change(_delete_log, **log)
    settle(repo, thread_id, max(row.changed_at for row in gone))
    return True


def _has_nothing(repo: Repository, thread_id: str) -> bool:
    """Return whether a thread without logs has no states, name and metadata; it may have a user."""
    rows = repo.ask(_select_names, tenant=repo.tenant, thread_0=thread_id)
    is_bare = any(row.name is None and not row.metadata for row in rows)
    return is_bare and not repo.find_lines_of([thread_id])


def _select_logs(t: Tables) -> sa.Select[Any]:
    """Return the query for the logs of a live thread."""
    c = t.logs.c
    query = sa.select(c.thread, c.namespace, c.revision, c.changed_at)
    joined = query.join(t.threads, t.threads.c.thread == c.thread)
    return joined.where(is_of_threads(t.threads, 1), is_live(t))


def _delete_log(t: Tables) -> sa.Delete:
    return t.logs.delete().where(*_are_its(t.logs))


def _select_names(t: Tables) -> sa.Select[Any]:
    """Return the query for the name and the metadata of a thread."""
    return sa.select(t.threads.c.name, t.threads.c.metadata).where(is_of_threads(t.threads, 1))


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
    counts = Counter(it.namespace for it in messages)
    its_logs = [
        {"thread": thread, "message_count": counts[log.namespace], **asdict(log)} for log in logs
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
        with self._shared.translating:
            return await self._shared.runner.write(make_writing(self._shared.database, body))

    async def _query(self, body: Callable[[Reads], T]) -> T:
        """Run a body of one statement."""
        database = self._shared.database
        with self._shared.translating:
            return await self._shared.reader.query(lambda it: body(database.make_repository(it)))

    @limit_calls(measure_change)
    async def change(self, change: LogChange) -> LogChanged:
        return await self._write(lambda it: _change(it, change))

    async def look(self, wanted: LogWanted) -> LogRead | None:
        if not wanted.reads_content:
            return await self._query(lambda it: log_reads.look(it, wanted))
        database = self._shared.database
        with self._shared.translating:
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
