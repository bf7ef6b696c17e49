"""Whole threads and pending writes in SQL, and rows that belong to no thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from locus_store import versions
from locus_store.sql import message_log
from locus_store.sql.item_columns import is_live_item
from locus_store.sql.quotas import Charge, measure_thread
from locus_store.sql.schema import vectors
from locus_store.sql.threads import pending
from locus_store.sql.threads.reads import Reads
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statements import WRITE, is_live, make_same_thread_condition
from locus_store.sql.threads.thread_rows import make_user_condition
from locus_store.types import (
    ArchivedLine,
    ArchivedLog,
    ArchivedRecord,
    ArchivedThread,
    ArchivedWrite,
    PendingWrite,
    Tenant,
)
from locus_store.types.thread_info import require_user_id
from locus_store.values.filters import has_value, is_found
from locus_store.versions.archives import compute_last_active_at, cut_to_minute, make_occupied_error
from locus_store.versions.segments import fill_payloads

_CONTENT = ("payload", "digest", "metadata", "labels")
"""The columns of a version that ``rewrite_thread`` replaces."""

_LOG = ("namespace", "revision", "last_sequence", "changed_at")
_RECORD = (
    *("sequence", "chain", "parent", "checkpoint_id", "digest", "metadata", "labels"),
    *("created_at", "payload"),
)
_THREAD = ("thread_id", "user_id", "name", "metadata", "created_at", "active_at", "expires_at")


def read_writes(
    repo: Repository, thread_id: str, namespace: str, checkpoint_ids: Sequence[str]
) -> dict[str, list[PendingWrite]]:
    """See ``StoresWrites.writes_of``."""
    found: dict[str, list[PendingWrite]] = {}
    for some in pending.split_batches(checkpoint_ids):
        for entry in list_writes(repo, thread_id, namespace, some):
            found.setdefault(entry.checkpoint_id, []).append(entry.write)
    return {name: sorted(its, key=versions.make_write_sort_key) for name, its in found.items()}


def list_writes(
    reads: Reads, thread_id: str, namespace: str, checkpoint_ids: Sequence[str] | None = None
) -> list[ArchivedWrite]:
    """See ``KeepsEffects.list_writes``; of several checkpoints, or of all."""
    lines, writes = reads.tables.lines, reads.tables.writes
    is_it = lines.c.thread_id == thread_id, lines.c.namespace == namespace
    query = _select_live(reads, *writes.c, of=writes).where(*is_it)
    if checkpoint_ids is not None:
        query = query.where(writes.c.checkpoint_id.in_(checkpoint_ids))
    return _make_archived_writes(reads.connection.execute(query).mappings())


def list_namespaces(repo: Repository, thread_id: str) -> list[str]:
    """See ``StoresThreads.namespaces``."""
    lines = repo.tables.lines
    is_it = lines.c.thread_id == thread_id, lines.c.head.is_not(None)
    query = _select_live(repo, lines.c.namespace).where(*is_it)
    return sorted(repo.connection.execute(query).scalars())


def scan(repo: Repository, limit: int, after: str | None) -> list[str]:
    """See ``StoresThreads.scan``."""
    threads = repo.tables.threads
    query = sa.select(threads.c.thread_id).where(
        threads.c.tenant == repo.tenant, is_live(repo.tables)
    )
    if after is not None:
        query = query.where(threads.c.thread_id > after)
    return list(repo.connection.execute(query.order_by(threads.c.thread_id).limit(limit)).scalars())


def read_thread(repo: Repository, thread_id: str) -> ArchivedThread | None:
    """See ``StoresThreads.read_thread``."""
    thread = read_stored(repo, thread_id)
    return thread and replace(thread, lines=[_divide_segments(it) for it in thread.lines])


def _divide_segments(line: ArchivedLine) -> ArchivedLine:
    """Return a line whose records have their payloads."""
    if not line.segments:
        return replace(line, author=None)
    rows = [(it.sequence, it.payload) for it in line.records]
    payloads = fill_payloads(rows, line.segments)
    records = [replace(it, payload=payloads[it.sequence]) for it in line.records]
    return replace(line, records=records, segments=[], author=None)


def read_stored(repo: Repository, thread_id: str) -> ArchivedThread | None:
    """See ``SqlShard.read_stored``."""
    threads, logs = repo.tables.threads, repo.tables.logs
    row = repo.connection.execute(
        sa.select(threads.c.thread, *(threads.c[name] for name in _THREAD)).where(
            threads.c.tenant == repo.tenant, threads.c.thread_id == thread_id, is_live(repo.tables)
        )
    ).first()
    if row is None:
        return None
    of_thread = sa.select(*(logs.c[name] for name in _LOG)).where(logs.c.thread == row.thread)
    return ArchivedThread(
        **dict(zip(_THREAD, row[1:], strict=True)),
        lines=_read_lines(repo, thread_id),
        messages=message_log.read_thread(repo, row.thread, thread_id),
        logs=[ArchivedLog(**log) for log in repo.connection.execute(of_thread).mappings()],
    )


def _read_lines(repo: Repository, thread_id: str) -> list[ArchivedLine]:
    c = repo.tables.lines.c
    query = sa.select(*c).where(c.tenant == repo.tenant, c.thread_id == thread_id)
    found = [_read_line(repo, row) for row in repo.connection.execute(query).all()]
    return sorted(found, key=lambda line: line.namespace)


def _read_line(repo: Repository, row: sa.Row[Any]) -> ArchivedLine:
    """Return a line; its segments are read only if a record has no payload of its own."""
    records, writes = _read_records(repo, row.line), repo.tables.writes
    its = repo.connection.execute(sa.select(writes).where(writes.c.line == row.line)).mappings()
    is_whole = all(it.payload for it in records)
    return ArchivedLine(
        namespace=row.namespace,
        head=row.head,
        floor=row.floor,
        last_sequence=row.last_sequence,
        records=records,
        segments=[] if is_whole else [one for _, one in repo.read_all_segments(row.line)],
        writes=_make_archived_writes(its),
        author=(row.writer, row.run),
    )


def _read_records(repo: Repository, line: int) -> list[ArchivedRecord]:
    c = repo.tables.checkpoints.c
    query = sa.select(*(c[name] for name in _RECORD)).where(c.line == line).order_by(c.sequence)
    return [ArchivedRecord(**row) for row in repo.connection.execute(query).mappings()]


def _make_archived_writes(rows: Iterable[sa.RowMapping]) -> list[ArchivedWrite]:
    """Return the pending writes of rows in the order of an archive."""
    found = (
        ArchivedWrite(
            checkpoint_id=row["checkpoint_id"],
            write=pending.write_of([row[name] for name in WRITE]),
            created_at=row["created_at"],
        )
        for row in rows
    )
    return sorted(found, key=versions.make_archive_sort_key)


def restore(repo: Repository, thread: ArchivedThread) -> None:
    """See ``StoresThreads.restore``."""
    require_user_id(thread.user_id, repo.tables.user_id_type)
    if not repo.open_thread(thread.thread_id):
        raise make_occupied_error(thread.thread_id, "written")
    threads = repo.tables.threads
    which = threads.c.tenant == repo.tenant, threads.c.thread_id == thread.thread_id
    minute = cut_to_minute(thread.active_at)
    values = {threads.c[name]: getattr(thread, name) for name in _THREAD[1:]}
    values[threads.c.active_at] = minute
    repo.connection.execute(threads.update().where(*which).values(values))
    key = repo.connection.execute(sa.select(threads.c.thread).where(*which)).scalar_one()
    message_log.restore(repo, key, thread.logs, thread.messages)
    for line in thread.lines:
        _restore_line(repo, thread.thread_id, line)
    lines = repo.tables.lines
    repo.connection.execute(
        lines.update()
        .where(lines.c.tenant == repo.tenant, lines.c.thread_id == thread.thread_id)
        .values(updated_at=compute_last_active_at(thread))
    )


def measure_replacement(old: ArchivedThread, thread: ArchivedThread) -> Charge | None:
    """Return the charge of a thread that a client replaces: its growth; ``None``: it has none."""
    growth = measure_thread(thread).need["bytes"] - measure_thread(old).need["bytes"]
    return Charge({"bytes": growth}) if growth > 0 else None


def rewrite_thread(
    repo: Repository, thread_id: str, change: Callable[[ArchivedThread], ArchivedThread]
) -> bool:
    """See ``StoresThreads.rewrite_thread``."""
    old = read_thread(repo, thread_id) if repo.lock(thread_id) else None
    if old is None:
        return False
    made = change(old)
    threads, lines = repo.tables.threads, repo.tables.lines
    key = repo.connection.execute(sa.select(threads.c.thread).where(*repo.is_thread(thread_id)))
    message_log.rewrite(repo, key.scalar_one(), made.messages)
    of_thread = lines.c.tenant == repo.tenant, lines.c.thread_id == thread_id
    keys = dict(
        repo.connection.execute(sa.select(lines.c.namespace, lines.c.line).where(*of_thread)).all()
    )
    for line in made.lines:
        _rewrite_line(repo, keys[line.namespace], line)
        if (stored := repo.find(thread_id, line.namespace)) is not None:
            versions.settle(repo, stored)
            repo.update(stored)
    return True


def _rewrite_line(repo: Repository, line: int, archive: ArchivedLine) -> None:
    """Replace the contents of a line's rows; their payloads leave the segments."""
    t = repo.tables
    repo.unindex([line])
    repo.connection.execute(t.segments.delete().where(t.segments.c.line == line))
    records = [
        {"line": line, "text": None}
        | {name: getattr(one, name) for name in ("sequence", *_CONTENT)}
        for one in archive.records
    ]
    pending.update_each(repo, t.checkpoints, ("line", "sequence"), records)
    names = ("line", "checkpoint_id", "task_id", "idx")
    rows = [_make_write_row(line, one) for one in archive.writes]
    writes = [{name: row[name] for name in (*names, "payload")} for row in rows]
    pending.update_each(repo, t.writes, names, writes)
    repo.seen_records.clear()
    if repo.has_index:
        repo.index_line(line)


def _make_write_row(line: int, entry: ArchivedWrite) -> dict[str, Any]:
    columns = pending.make_columns(line, entry.checkpoint_id, [entry.write])
    row = {name: values[0] for name, values in columns.items()}
    return {**row, "created_at": entry.created_at}


def _restore_line(repo: Repository, thread_id: str, archive: ArchivedLine) -> None:
    writer, run = archive.author or (None, None)
    line = versions.Line(
        line=repo.add_line(thread_id, archive.namespace),
        head=archive.head,
        floor=archive.floor,
        last_sequence=archive.last_sequence,
        writer=writer,
        run=run,
    )
    records = [
        {"line": line.line, **{name: getattr(record, name) for name in _RECORD}}
        for record in archive.records
    ]
    pending.insert(repo, repo.tables.checkpoints, records)
    writes = [_make_write_row(line.line, one) for one in archive.writes]
    pending.insert(repo, repo.tables.writes, writes)
    segments = [{"line": line.line, **it._asdict()} for it in archive.segments]
    pending.insert(repo, repo.tables.segments, segments)
    if not segments:  # else the next save begins a chain: the sizes of sealed records are unknown
        versions.settle(repo, line)
    repo.update(line)
    if repo.has_index and not any(it.is_sealed for it in archive.segments):
        repo.index_line(line.line)


def find_threads(repo: Repository, key: str, value: Any, user_id: str | None) -> list[str]:
    """See ``ErasesThreads.find_threads``; hidden versions and all namespaces count."""
    threads, lines, versions_ = (repo.tables.threads, repo.tables.lines, repo.tables.checkpoints)
    may_match = repo.may_have(threads.c.metadata, key, value)
    if user_id is not None:
        may_match = sa.or_(make_user_condition(repo, user_id), may_match)
    named = sa.select(threads.c.thread_id, threads.c.user_id, threads.c.metadata).where(
        threads.c.tenant == repo.tenant, is_live(repo.tables), may_match
    )
    found = [
        row.thread_id
        for row in repo.connection.execute(named)
        if (user_id is not None and row.user_id == user_id) or has_value(row.metadata, key, value)
    ]
    columns = lines.c.thread_id, versions_.c.metadata, versions_.c.labels
    may_match = sa.or_(*(repo.may_have(it, key, value) for it in columns[1:]))
    query = _select_live(repo, *columns, of=versions_).where(may_match)
    found += [
        row.thread_id
        for row in repo.connection.execute(query)
        if is_found(row.metadata, row.labels, key, value)
    ]
    return list(dict.fromkeys(found))


def find_tagged(repo: Repository, key: str, value: Any) -> list[tuple[str, str, str]]:
    """See ``QueriesMetadata.tagged``."""
    lines, versions_ = repo.tables.lines, repo.tables.checkpoints
    columns = lines.c.thread_id, lines.c.namespace, versions_.c.checkpoint_id, versions_.c.metadata
    may_match = repo.may_have(versions_.c.metadata, key, value)
    query = _select_live(repo, *columns, of=versions_).where(may_match)
    return [
        (thread_id, namespace, checkpoint_id)
        for thread_id, namespace, checkpoint_id, metadata in repo.connection.execute(query)
        if has_value(metadata, key, value)
    ]


def _select_live(
    reads: Reads, *columns: sa.ColumnElement[Any], of: sa.Table | None = None
) -> sa.Select[Any]:
    """Return a query over the lines of live threads, and over the rows of a table that has them."""
    t = reads.tables
    rows = t.lines if of is None else t.lines.join(of, of.c.line == t.lines.c.line)
    found = rows.join(t.threads, make_same_thread_condition(t))
    query = sa.select(*columns).select_from(found)
    return query.where(t.lines.c.tenant == reads.tenant, is_live(t))


def forget_items(repo: Repository, key: str, value: Any) -> int:
    """Remove the store's items with ``value`` at ``key`` in their metadata; return how many.

    Their embeddings are removed with them.
    """
    store = repo.tables.store
    query = sa.select(store.c.item, store.c.metadata).where(
        store.c.tenant == repo.tenant, repo.may_have(store.c.metadata, key, value)
    )
    # Locked: an item that another client replaces after it was looked at stays.
    rows = repo.connection.execute(query.with_for_update())
    gone = [row.item for row in rows if has_value(row.metadata, key, value)]
    embeddings = repo.tables.embeddings
    has_embeddings = vectors.find(repo.connection, repo.tables).dimension is not None
    for items in pending.split_batches(gone):
        repo.connection.execute(store.delete().where(store.c.item.in_(items)))
        if has_embeddings:
            repo.connection.execute(sa.delete(embeddings).where(embeddings.c.item.in_(items)))
    return len(gone)


def list_tenants(repo: Repository) -> list[Tenant]:
    """See ``SharedByTenants.tenants``."""
    repo.see_all_tenants()
    threads = _count_by_tenant(repo, repo.tables.threads, is_live(repo.tables))
    items = _count_by_tenant(repo, repo.tables.store, is_live_item(repo.tables))
    names = sorted(threads.keys() | items.keys())
    return [Tenant(name, threads.get(name, 0), items.get(name, 0)) for name in names]


def _count_by_tenant(
    repo: Repository, table: sa.Table, condition: sa.ColumnElement[bool]
) -> dict[str, int]:
    """Return each tenant's row count; 0 for a tenant that has only other rows."""
    count = sa.func.sum(sa.case((condition, 1), else_=0))
    query = sa.select(table.c.tenant, count).group_by(table.c.tenant)
    return {row[0]: row[1] for row in repo.connection.execute(query)}


def find_damage(repo: Repository) -> list[str]:
    """Return the damage of all tenants: the database's findings, and rows without a parent row."""
    repo.see_all_tenants()
    broken = repo.find_faults()
    if broken:
        return broken
    t = repo.tables
    of_lines = (t.checkpoints, "versions"), (t.segments, "segments"), (t.writes, "pending writes")
    found = [_find_orphans(repo, table, t.lines, "line", what) for table, what in of_lines]
    of_threads = (t.messages, "messages"), (t.logs, "message logs")
    found += [_find_orphans(repo, table, t.threads, "thread", what) for table, what in of_threads]
    found += [_find_headless(repo), _find_misled(repo), _find_miscounted(repo)]
    return [it for it in found if it]


def _count(repo: Repository, rows: sa.FromClause, condition: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(rows).where(condition)
    return int(repo.connection.execute(query).scalar_one())


def _find_orphans(repo: Repository, table: sa.Table, owners: sa.Table, key: str, what: str) -> str:
    count = _count(repo, table, ~sa.exists().where(owners.c[key] == table.c[key]))
    return f"{count} {what} belong to no {key}: delete those rows of {table.name}" if count else ""


def _find_headless(repo: Repository) -> str:
    lines = repo.tables.lines
    has_thread = sa.exists().where(make_same_thread_condition(repo.tables)).correlate(lines)
    count = _count(repo, lines, ~has_thread)
    return f"{count} lines belong to no thread: restore {repo.tables.threads.name}" if count else ""


def _find_miscounted(repo: Repository) -> str:
    """Return a message on logs that do not count their messages, if any."""
    logs, c = repo.tables.logs, repo.tables.messages.c
    count, last = sa.func.count(), sa.func.max(c.sequence)
    owned = (
        sa.select(c.thread, c.namespace, count.label("count"), last.label("last"))
        .group_by(c.thread, c.namespace)
        .subquery("owned")
    )
    is_its = sa.and_(owned.c.thread == logs.c.thread, owned.c.namespace == logs.c.namespace)
    is_wrong = sa.or_(
        logs.c.message_count != sa.func.coalesce(owned.c["count"], 0),
        logs.c.last_sequence < sa.func.coalesce(owned.c["last"], 0),
    )
    wrong = _count(repo, logs.outerjoin(owned, is_its), is_wrong)
    return f"{wrong} message logs do not count their messages: restore {logs.name}" if wrong else ""


def _find_misled(repo: Repository) -> str:
    """Return a message on lines whose current chain would misread the next save, if any."""
    lines, here = repo.tables.lines, repo.tables.checkpoints
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
    is_misled = sa.and_(lines.c.open_chain.is_not(None), sa.or_(~is_heads, goes_on))
    count = _count(repo, lines, is_misled)
    column = f"{lines.name}.open_chain"
    message = f"{count} lines go on with a chain that is not their head's: set {column} to NULL"
    return message if count else ""
