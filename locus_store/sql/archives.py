"""Whole threads and pending writes in SQL, and what belongs to no thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from locus_store import versions
from locus_store.archives import sealed, unsealed
from locus_store.errors import ConflictError
from locus_store.filters import has_value
from locus_store.sql.columns import escape_text, unescape_text
from locus_store.sql.repository import BATCH, Repository
from locus_store.sql.statements import is_live, same_thread
from locus_store.types import (
    ArchivedLine,
    ArchivedMessage,
    ArchivedRecord,
    ArchivedThread,
    ArchivedWrite,
    PendingWrite,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy.engine import Row

_MESSAGE = ("sequence", "message_id", "role", "metadata", "created_at", "text", "payload")
_RECORD = (
    *("sequence", "chain", "parent", "checkpoint_id", "digest", "metadata", "labels"),
    *("created_at", "payload"),
)
_THREAD = ("thread_id", "user_id", "name", "metadata", "created_at", "active_at", "expires_at")


# --- pending writes


def store_writes(
    it: Repository,
    thread_id: str,
    namespace: str,
    checkpoint_id: str,
    writes: Sequence[PendingWrite],
) -> None:
    """See ``StorageBackend.store_writes``."""
    found = it.find(thread_id, namespace)
    if found is None:
        it.open_thread(thread_id)
        found = it.open_line(thread_id, namespace)
    line = found.line
    there = {(row.task_id, row.idx) for row in _writes(it, line, checkpoint_id)}
    kept = versions.winning(there, writes)
    table = it.tables.writes
    for task_id, idx in there & kept.keys():
        it.connection.execute(
            table.delete().where(
                table.c.line == line,
                table.c.checkpoint_id == checkpoint_id,
                table.c.task_id == task_id,
                table.c.idx == idx,
            )
        )
    _insert(it, table, [_write_row(line, checkpoint_id, write) for write in kept.values()])


def fetch_writes(
    it: Repository, thread_id: str, namespace: str, checkpoint_id: str
) -> list[PendingWrite]:
    """See ``StorageBackend.fetch_writes``."""
    threads, lines = it.tables.threads, it.tables.lines
    line = it.connection.execute(
        sa.select(lines.c.line)
        .join(threads, same_thread(it.tables))
        .where(lines.c.tenant == it.scope.tenant, lines.c.thread_id == thread_id)
        .where(lines.c.namespace == namespace, is_live(it.tables))
    ).scalar()
    rows = [] if line is None else _writes(it, line, checkpoint_id)
    return [_write(row) for row in rows]


def _writes(it: Repository, line: int, checkpoint_id: str | None = None) -> Sequence[Row[Any]]:
    table = it.tables.writes
    query = sa.select(table).where(table.c.line == line)
    if checkpoint_id is not None:
        query = query.where(table.c.checkpoint_id == checkpoint_id)
    return it.connection.execute(query).all()


def _write(row: Row[Any]) -> PendingWrite:
    stored = PendingWrite(
        task_id=row.task_id,
        idx=row.idx,
        channel=row.channel,
        type=row.type or "",
        payload=row.payload or b"",
        task_path=row.task_path or "",
    )
    return unsealed(row.checkpoint_id, stored)


def _write_row(line: int, checkpoint_id: str, write: PendingWrite) -> dict[str, Any]:
    return {
        "line": line,
        "checkpoint_id": checkpoint_id,
        "task_id": write.task_id,
        "idx": write.idx,
        "channel": write.channel,
        "type": write.type,
        "task_path": write.task_path,
        "payload": sealed(checkpoint_id, write),
    }


# --- whole threads


def scan(it: Repository, limit: int, after: str | None) -> list[str]:
    """See ``StorageBackend.scan``."""
    threads = it.tables.threads
    query = sa.select(threads.c.thread_id).where(
        threads.c.tenant == it.scope.tenant, is_live(it.tables)
    )
    if after is not None:
        query = query.where(threads.c.thread_id > after)
    return list(it.connection.execute(query.order_by(threads.c.thread_id).limit(limit)).scalars())


def read_thread(it: Repository, thread_id: str) -> ArchivedThread | None:
    """See ``StorageBackend.read_thread``."""
    threads, messages = it.tables.threads, it.tables.messages
    row = it.connection.execute(
        sa.select(threads.c.thread, *(threads.c[name] for name in _THREAD)).where(
            threads.c.tenant == it.scope.tenant,
            threads.c.thread_id == thread_id,
            is_live(it.tables),
        )
    ).first()
    if row is None:
        return None
    log = (
        sa.select(*(messages.c[name] for name in _MESSAGE))
        .where(messages.c.thread == row.thread)
        .order_by(messages.c.sequence)
    )
    return ArchivedThread(
        **dict(zip(_THREAD, row[1:], strict=True)),
        lines=_lines(it, thread_id),
        messages=[
            _message(dict(zip(_MESSAGE, entry, strict=True)))
            for entry in it.connection.execute(log)
        ],
    )


def _message(row: dict[str, Any]) -> ArchivedMessage:
    text = row["text"]
    return ArchivedMessage(**{**row, "text": None if text is None else unescape_text(text)})


def _message_row(thread: int, entry: ArchivedMessage) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in _MESSAGE}
    text = None if entry.text is None else escape_text(entry.text)
    return {"thread": thread, **row, "text": text}


def _lines(it: Repository, thread_id: str) -> list[ArchivedLine]:
    lines = it.tables.lines
    query = (
        sa.select(lines)
        .where(lines.c.tenant == it.scope.tenant, lines.c.thread_id == thread_id)
        .order_by(lines.c.line)
    )
    found = [
        ArchivedLine(
            namespace=row.namespace,
            head=row.head,
            floor=row.floor,
            last_sequence=row.last_sequence,
            records=_records(it, row.line),
            writes=sorted(_archived_writes(it, row.line), key=versions.archive_order),
        )
        for row in it.connection.execute(query).all()
    ]
    return sorted(found, key=lambda line: line.namespace)


def _records(it: Repository, line: int) -> list[ArchivedRecord]:
    checkpoints = it.tables.checkpoints
    query = (
        sa.select(*(checkpoints.c[name] for name in _RECORD))
        .where(checkpoints.c.line == line)
        .order_by(checkpoints.c.sequence)
    )
    return [
        ArchivedRecord(**dict(zip(_RECORD, row, strict=True)))
        for row in it.connection.execute(query)
    ]


def _archived_writes(it: Repository, line: int) -> Iterable[ArchivedWrite]:
    for row in _writes(it, line):
        yield ArchivedWrite(
            checkpoint_id=row.checkpoint_id, write=_write(row), created_at=row.created_at
        )


def restore(it: Repository, thread: ArchivedThread) -> None:
    """See ``StorageBackend.restore``."""
    if not it.open_thread(thread.thread_id):
        raise ConflictError(f"thread {thread.thread_id!r} is there already; nothing was written")
    threads = it.tables.threads
    which = threads.c.tenant == it.scope.tenant, threads.c.thread_id == thread.thread_id
    values = {threads.c[name]: getattr(thread, name) for name in _THREAD[1:]}
    it.connection.execute(threads.update().where(*which).values(values))
    key = it.connection.execute(sa.select(threads.c.thread).where(*which)).scalar_one()
    _insert(
        it,
        it.tables.messages,
        [_message_row(key, entry) for entry in thread.messages],
    )
    for line in thread.lines:
        _restore_line(it, thread.thread_id, line)


def _restore_line(it: Repository, thread_id: str, archived: ArchivedLine) -> None:
    line = versions.Line(
        line=it.add_line(thread_id, archived.namespace),
        head=archived.head,
        floor=archived.floor,
        last_sequence=archived.last_sequence,
    )
    records = [
        {"line": line.line, **{name: getattr(record, name) for name in _RECORD}}
        for record in archived.records
    ]
    _insert(it, it.tables.checkpoints, records)
    _insert(
        it,
        it.tables.writes,
        [
            {
                **_write_row(line.line, write.checkpoint_id, write.write),
                "created_at": write.created_at,
            }
            for write in archived.writes
        ],
    )
    versions.settle(it, line)
    it.update(line)
    it.reindex(line.line)


def _insert(it: Repository, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    for at in range(0, len(rows), BATCH):
        it.connection.execute(table.insert(), rows[at : at + BATCH])


# --- a user's threads


def threads_of(it: Repository, user_id: str) -> list[str]:
    """See ``StorageBackend.threads_of``; hidden versions and all namespaces are looked at."""
    threads, lines, versions_ = it.tables.threads, it.tables.lines, it.tables.checkpoints
    named = sa.select(threads.c.thread_id, threads.c.user_id, threads.c.metadata).where(
        threads.c.tenant == it.scope.tenant,
        is_live(it.tables),
        sa.or_(threads.c.user_id == user_id, it.may_have(threads.c.metadata, "user_id", user_id)),
    )
    found = [
        row.thread_id
        for row in it.connection.execute(named)
        if row.user_id == user_id or has_value(row.metadata, "user_id", user_id)
    ]
    told = (
        sa.select(lines.c.thread_id, versions_.c.metadata, versions_.c.labels)
        .join(versions_, versions_.c.line == lines.c.line)
        .join(threads, same_thread(it.tables))
        .where(lines.c.tenant == it.scope.tenant, is_live(it.tables))
        .where(
            sa.or_(
                it.may_have(versions_.c.metadata, "user_id", user_id),
                it.may_have(versions_.c.labels, "user_id", user_id),
            )
        )
    )
    found += [
        row.thread_id
        for row in it.connection.execute(told)
        if has_value(row.metadata, "user_id", user_id) or has_value(row.labels, "user_id", user_id)
    ]
    return list(dict.fromkeys(found))


def forget_items(it: Repository, user_id: str) -> int:
    """Remove the store items whose metadata names the user; return how many."""
    store = it.tables.store
    told = sa.select(store.c.item, store.c.metadata).where(
        store.c.tenant == it.scope.tenant, it.may_have(store.c.metadata, "user_id", user_id)
    )
    gone = [
        row.item
        for row in it.connection.execute(told)
        if has_value(row.metadata, "user_id", user_id)
    ]
    for at in range(0, len(gone), BATCH):
        items = gone[at : at + BATCH]
        it.connection.execute(store.delete().where(store.c.item.in_(items)))
    return len(gone)


# --- what belongs to nothing


def damage(it: Repository) -> list[str]:
    """What the database finds, and rows whose thread or line is not there; of any tenant."""
    broken = it.self_check()
    if broken:
        return broken
    t = it.tables
    of_lines = (t.checkpoints, "versions"), (t.writes, "pending writes")
    found = [_orphans(it, table, t.lines, "line", what) for table, what in of_lines]
    found.append(_orphans(it, t.messages, t.threads, "thread", "messages"))
    found += [_headless(it), _misled(it)]
    return [it for it in found if it]


def _orphans(it: Repository, table: sa.Table, owners: sa.Table, key: str, what: str) -> str:
    owned = sa.exists().where(owners.c[key] == table.c[key])
    count = it.connection.execute(
        sa.select(sa.func.count()).select_from(table).where(~owned)
    ).scalar_one()
    return f"{count} {what} belong to no {key}: delete those rows of {table.name}" if count else ""


def _headless(it: Repository) -> str:
    lines = it.tables.lines
    owned = sa.exists().where(same_thread(it.tables)).correlate(lines)
    count = it.connection.execute(
        sa.select(sa.func.count()).select_from(lines).where(~owned)
    ).scalar_one()
    return f"{count} lines belong to no thread: restore {it.tables.threads.name}" if count else ""


def _misled(it: Repository) -> str:
    """Lines whose next save would be read as a change of another version than it is."""
    lines, here = it.tables.lines, it.tables.checkpoints
    newer = here.alias("newer")
    is_heads = sa.exists().where(
        here.c.line == lines.c.line,
        here.c.sequence == lines.c.head,
        here.c.chain == lines.c.open_chain,
    )
    goes_on = sa.exists().where(
        newer.c.line == lines.c.line,
        newer.c.chain == lines.c.open_chain,
        newer.c.sequence > lines.c.head,
    )
    count = it.connection.execute(
        sa.select(sa.func.count())
        .select_from(lines)
        .where(lines.c.open_chain.is_not(None), sa.or_(~is_heads, goes_on))
    ).scalar_one()
    column = f"{lines.name}.open_chain"
    return (
        f"{count} lines go on with a chain that is not their head's: set {column} to NULL"
        if count
        else ""
    )
