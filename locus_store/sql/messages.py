"""Message logs in SQL: each statement once, for all databases."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from locus_store.sql import pending
from locus_store.sql.columns import moment
from locus_store.sql.json_text import escape_text, unescape_text
from locus_store.sql.pending import batches
from locus_store.sql.repository import settle
from locus_store.sql.statements import is_live
from locus_store.types import ArchivedLog, ArchivedMessage
from locus_store.types.messages import (
    LogChanged,
    LogInfo,
    LogRead,
    PutMessage,
    require_revision,
    require_sealed,
    sealed,
    too_short,
    unknown_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from locus_store.sql.reads import Reads
    from locus_store.sql.repository import Repository
    from locus_store.types.messages import Cut, LogChange, LogsWanted, LogWanted

MESSAGE: Final = (
    *("namespace", "sequence", "message_id", "role", "metadata"),
    *("created_at", "text", "payload", "digest"),
)
"""The columns of a message; the last one is not a field of ``ArchivedMessage``."""

CHANGED: Final = ("role", "metadata", "text", "payload", "digest")
"""The columns of a message that is put in place of another one."""

SCANNED: Final = 1000
"""Messages that a search reads at a time."""

LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


# --- changing


def change(it: Repository, wanted: LogChange) -> LogChanged:
    """See ``BaseMessageLog.change``; in a transaction that holds the lock of the thread."""
    if wanted.all_puts():
        it.open_thread(wanted.thread_id)
    else:
        it.lock_thread(wanted.thread_id)
    key = {"tenant": it.scope.tenant, "thread_id": wanted.thread_id}
    found = it.sql.thread.first(it.connection, key)
    log = _Log(it, found[0], wanted) if found and found[1] else None
    revision = log.revision if log else 0
    require_revision((wanted.thread_id, wanted.namespace), wanted.expected_revision, revision)
    if found is None or log is None:
        return LogChanged(0)
    for other in wanted.also:
        _Log(it, found[0], other).changed()
    return log.changed() if wanted.puts or revision else LogChanged(0)


class _Log:
    """A log whose thread is locked."""

    def __init__(self, it: Repository, thread: int, wanted: LogChange) -> None:
        self._it = it
        self._wanted = wanted
        self._log, self._messages = it.tables.logs, it.tables.messages
        self._thread = thread
        row = it.connection.execute(sa.select(self._log).where(*self._of(self._log))).first()
        self.revision = row.revision if row else 0
        self._count = row.message_count if row else 0
        self._last = row.last_sequence if row else 0

    def changed(self) -> LogChanged:
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

    def _of(self, table: sa.Table) -> tuple[sa.ColumnElement[bool], ...]:
        return table.c.thread == self._thread, table.c.namespace == self._wanted.namespace

    def _store(self) -> None:
        """Store the revision, which grows, and the count."""
        is_new, c = self.revision == 0, self._log.c
        self.revision = self._wanted.first_revision if is_new else self.revision + 1
        facts = {
            c.revision: self.revision,
            c.message_count: self._count,
            c.last_sequence: self._last,
        }
        if is_new:
            name = {c.thread: self._thread, c.namespace: self._wanted.namespace}
            made = self._log.insert().values({**name, **facts, c.changed_at: moment()})
            self._it.connection.execute(made)
            return
        at = sa.case((c.changed_at < moment(), moment()), else_=c.changed_at)
        moved = self._log.update().where(*self._of(self._log))
        self._it.connection.execute(moved.values({**facts, c.changed_at: at}))

    # --- what is removed

    def _cut(self, cut: Cut) -> ArchivedMessage | None:
        if cut.kind == "newest":
            return self._pop()
        if cut.kind == "all":
            self._delete()
        elif cut.kind == "from":
            self._delete_from(cut.position)
        else:
            for ids in batches(cut.message_ids):
                self._delete(self._messages.c.message_id.in_(ids))
        return None

    def _pop(self) -> ArchivedMessage | None:
        c = self._messages.c
        query = sa.select(*(c[name] for name in MESSAGE)).where(*self._of(self._messages))
        row = self._it.connection.execute(query.order_by(c.sequence.desc()).limit(1)).first()
        if row is None:
            return None
        self._delete(c.sequence == row.sequence)
        return message_of(row, self._wanted.thread_id)

    def _delete_from(self, position: int) -> None:
        if position > self._count:
            raise too_short(self._wanted, self._count)
        if position < self._count:
            sequence = self._messages.c.sequence
            query = sa.select(sequence).where(*self._of(self._messages)).order_by(sequence)
            first = self._it.connection.execute(query.offset(position).limit(1)).scalar_one()
            self._delete(sequence >= first)

    def _delete(self, *conditions: sa.ColumnElement[bool]) -> None:
        gone = self._messages.delete().where(*self._of(self._messages), *conditions)
        self._count -= self._it.connection.execute(gone).rowcount

    # --- what is put

    def _put(self, puts: Sequence[PutMessage]) -> None:
        known = self._known([it.message_id for it in puts if it.may_exist])
        new = [it for it in puts if it.message_id not in known]
        rows = [
            {"thread": self._thread, "sequence": sequence, **row_of(self._wanted.namespace, it)}
            for sequence, it in enumerate(new, self._last + 1)
        ]
        pending.insert(self._it, self._messages, rows)
        self._replace([it for it in puts if it.message_id in known])
        self._last += len(new)
        self._count += len(new)

    def _known(self, message_ids: Sequence[str]) -> set[str]:
        """Return the ids that the log has."""
        message_id, found = self._messages.c.message_id, set[str]()
        for some in batches(message_ids) if self.revision else ():
            query = sa.select(message_id).where(*self._of(self._messages), message_id.in_(some))
            found.update(self._it.connection.execute(query).scalars())
        return found

    def _replace(self, puts: Sequence[PutMessage]) -> None:
        c = self._messages.c
        is_it = c.message_id == sa.bindparam("of_id", type_=c.message_id.type)
        values = {name: sa.bindparam(f"new_{name}", type_=c[name].type) for name in CHANGED}
        replaced = self._messages.update().where(*self._of(self._messages), is_it).values(values)
        rows = [{"of_id": it.message_id, **_changed(self._wanted.namespace, it)} for it in puts]
        for some in batches(rows):
            self._it.connection.execute(replaced, some)


def drop(
    it: Repository, thread_id: str, namespace: str | None, expected_revision: int | None
) -> bool:
    """See ``BaseMessageLog.drop``."""
    it.lock(thread_id)
    threads, logs = it.tables.threads, it.tables.logs
    query = (
        sa.select(logs)
        .join(threads, threads.c.thread == logs.c.thread)
        .where(*it.is_thread(thread_id), is_live(it.tables))
    )
    rows = {row.namespace: row for row in it.connection.execute(query)}
    name = namespace or ""
    revision = rows[name].revision if name in rows else 0
    require_revision((thread_id, name), expected_revision, revision)
    gone = [row for row in rows.values() if namespace in {None, row.namespace}]
    for row in gone:
        for table in (it.tables.messages, logs):
            is_its = table.c.thread == row.thread, table.c.namespace == row.namespace
            it.connection.execute(table.delete().where(*is_its))
    if gone:
        settle(it, thread_id, max(row.changed_at for row in gone))
    return bool(gone)


# --- reading


def look(it: Reads, wanted: LogWanted) -> LogRead | None:
    """See ``BaseMessageLog.look``; one statement, whose plan reads no other messages."""
    page = _page(it, wanted).subquery("page")
    columns = (column for column in page.c if column.name != "thread")
    query = _logs(it).where(*_is_log(it, wanted)).add_columns(*columns)
    place = _place(it, wanted)
    if place is not None:
        query = query.add_columns(place.label("place"))
    is_its = page.c.thread == it.tables.logs.c.thread
    joined = query.outerjoin(page, is_its).order_by(page.c.sequence)
    rows = it.connection.execute(joined).all()
    if wanted.after is not None and (not rows or rows[0].place is None):
        raise unknown_message(wanted)
    if not rows:
        return None
    messages = (row for row in rows if row.sequence is not None)
    read = [message_of(row, wanted.thread_id, wanted.namespace) for row in messages]
    return LogRead(_info(rows[0]), read)


def search(it: Reads, wanted: LogWanted) -> LogRead | None:
    """Return the messages that match a search, which is compared in Python; on one snapshot."""
    rows = it.connection.execute(_logs(it).where(*_is_log(it, wanted))).all()
    place = _place(it, wanted)
    is_known = place is None or it.connection.execute(sa.select(place)).scalar() is not None
    if not is_known:
        raise unknown_message(wanted)
    if not rows:
        return None
    scanned = _scanned(it, wanted)
    found = (message for message in scanned if wanted.takes(message, it.max_state_bytes))
    end = None if wanted.limit is None else wanted.offset + wanted.limit
    return LogRead(_info(rows[0]), [*islice(found, wanted.offset, end)])


def _scanned(it: Reads, wanted: LogWanted) -> Iterator[ArchivedMessage]:
    query = _messages(it, wanted).order_by(it.tables.messages.c.sequence)
    with it.connection.execute(query, execution_options={"yield_per": SCANNED}) as rows:
        for row in rows:
            yield message_of(row, wanted.thread_id, wanted.namespace)


def _page(it: Reads, wanted: LogWanted) -> sa.Select[Any]:
    sequence = it.tables.messages.c.sequence
    order = sequence.desc() if wanted.newest else sequence
    page = _messages(it, wanted).order_by(order)
    if wanted.limit is None and not wanted.offset:
        return page.order_by(None)
    return page.limit(wanted.limit).offset(wanted.offset)


def _messages(it: Reads, wanted: LogWanted) -> sa.Select[Any]:
    """Return a query for the messages of a log."""
    c, threads = it.tables.messages.c, it.tables.threads
    thread = sa.select(threads.c.thread).where(*it.is_thread(wanted.thread_id)).scalar_subquery()
    query = sa.select(c.thread, *(c[name] for name in MESSAGE if name != "namespace"))
    query = query.where(c.thread == thread, c.namespace == wanted.namespace)
    if wanted.message_id is not None:
        query = query.where(c.message_id == wanted.message_id)
    place = _place(it, wanted)
    return query if place is None else query.where(c.sequence > place)


def _place(it: Reads, wanted: LogWanted) -> sa.ScalarSelect[int] | None:
    """Return the sequence of the message that a page continues behind."""
    if wanted.after is None:
        return None
    threads, messages = it.tables.threads, it.tables.messages.alias("places")
    return (
        sa.select(messages.c.sequence)
        .join(threads, threads.c.thread == messages.c.thread)
        .where(*it.is_thread(wanted.thread_id), is_live(it.tables))
        .where(messages.c.namespace == wanted.namespace, messages.c.message_id == wanted.after)
        .correlate(None)
        .scalar_subquery()
    )


def find_logs(it: Reads, wanted: LogsWanted) -> list[LogInfo]:
    """See ``BaseMessageLog.find_logs``."""
    return [_info(row) for row in it.connection.execute(_matching(it, wanted))]


def find_heads(it: Reads, wanted: LogsWanted) -> list[LogRead]:
    """See ``BaseMessageLog.find_heads``; one statement."""
    logs, messages, others = it.tables.logs, it.tables.messages, it.tables.messages.alias("others")
    page = _matching(it, wanted).add_columns(logs.c.thread).subquery("page")
    is_its = others.c.thread == page.c.thread, others.c.namespace == page.c.log_namespace
    newest = sa.select(sa.func.max(others.c.sequence)).where(*is_its).scalar_subquery()
    is_newest = sa.and_(
        messages.c.thread == page.c.thread,
        messages.c.namespace == page.c.log_namespace,
        messages.c.sequence == newest,
    )
    columns = (messages.c[name] for name in MESSAGE if name != "namespace")
    query = sa.select(page, *columns).select_from(page.outerjoin(messages, is_newest))
    rows = it.connection.execute(query.order_by(page.c.thread_id, page.c.log_namespace))
    return [_head(row) for row in rows]


def _head(row: Any) -> LogRead:
    messages = [message_of(row, row.thread_id, row.log_namespace)] if row.sequence else []
    return LogRead(_info(row), messages)


def _matching(it: Reads, wanted: LogsWanted) -> sa.Select[Any]:
    """Return a query for the logs that match."""
    thread_id, namespace = it.tables.threads.c.thread_id, it.tables.logs.c.namespace
    query = _logs(it).order_by(thread_id, namespace).limit(wanted.limit)
    if wanted.thread_id is not None:
        query = query.where(thread_id == wanted.thread_id)
    if wanted.prefix:
        query = query.where(thread_id >= wanted.prefix)
        beyond = beyond_prefix(wanted.prefix)
        query = query if beyond is None else query.where(thread_id < beyond)
    if wanted.namespace is not None:
        query = query.where(namespace == wanted.namespace)
    if wanted.after is not None:
        thread, name = wanted.after
        is_behind = sa.or_(thread_id > thread, namespace > name)
        query = query.where(thread_id >= thread, is_behind)
    return query


def beyond_prefix(prefix: str) -> str | None:
    """Return the least text above all that begin with the prefix; ``None`` if there is none."""
    kept = prefix.rstrip(chr(LAST_CHARACTER))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _logs(it: Reads) -> sa.Select[Any]:
    """Return a query for the logs of this tenant's live threads."""
    threads, c = it.tables.threads, it.tables.logs.c
    return (
        sa.select(
            threads.c.thread_id,
            c.namespace.label("log_namespace"),
            *(c[name] for name in ("revision", "message_count", "changed_at")),
        )
        .join_from(threads, it.tables.logs, c.thread == threads.c.thread)
        .where(threads.c.tenant == it.scope.tenant, is_live(it.tables))
    )


def _is_log(it: Reads, wanted: LogWanted) -> tuple[sa.ColumnElement[bool], ...]:
    is_namespace = it.tables.logs.c.namespace == wanted.namespace
    return it.tables.threads.c.thread_id == wanted.thread_id, is_namespace


def _info(row: Any) -> LogInfo:
    return LogInfo(
        thread_id=row.thread_id,
        namespace=row.log_namespace,
        revision=row.revision,
        count=row.message_count,
        changed_at=row.changed_at,
    )


# --- rows


def message_of(row: Any, thread_id: str, namespace: str | None = None) -> ArchivedMessage:
    """Return the message of a row.

    Raises:
        IntegrityError: It is not what was stored.
    """
    text = None if row.text is None else unescape_text(row.text)
    found = ArchivedMessage(
        namespace=row.namespace if namespace is None else namespace,
        sequence=row.sequence,
        message_id=row.message_id,
        role=row.role,
        metadata=row.metadata,
        created_at=row.created_at,
        text=text,
        payload=row.payload or None,  # the column reads NULL as b""
    )
    require_sealed(thread_id, found, row.digest)
    return found


def row_of(namespace: str, put: PutMessage) -> dict[str, Any]:
    """Return the columns of a new message, without its thread and sequence."""
    text = None if put.text is None else escape_text(put.text)
    row = {name: getattr(put, name) for name in ("message_id", *CHANGED)}
    return {**row, "namespace": namespace, "text": text}


def _changed(namespace: str, put: PutMessage) -> dict[str, Any]:
    row = row_of(namespace, put)
    return {f"new_{name}": row[name] for name in CHANGED}


def of_thread(it: Reads, thread: int, thread_id: str) -> list[ArchivedMessage]:
    """Return all messages of a thread, by namespace and sequence."""
    c = it.tables.messages.c
    query = sa.select(*(c[name] for name in MESSAGE)).where(c.thread == thread)
    rows = it.connection.execute(query.order_by(c.namespace, c.sequence))
    return [message_of(row, thread_id) for row in rows]


def restore(
    it: Repository, thread: int, logs: Iterable[ArchivedLog], messages: Sequence[ArchivedMessage]
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
    pending.insert(it, it.tables.logs, its_logs)
    pending.insert(it, it.tables.messages, [_archived_row(thread, entry) for entry in messages])


def _archived_row(thread: int, entry: ArchivedMessage) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in MESSAGE[:-1]}
    text = None if entry.text is None else escape_text(entry.text)
    return {"thread": thread, **row, "text": text, "digest": sealed(entry)}
