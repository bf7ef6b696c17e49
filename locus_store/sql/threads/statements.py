"""Statements of the hot path, compiled once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy import bindparam as bind
from sqlalchemy.engine import Connection, Dialect

from locus_store.sql.columns.compiled import Compiled, CompiledSearches, Query
from locus_store.sql.columns.dialect_columns import Binary, Json, JsonAsText, JsonValue
from locus_store.sql.columns.types import (
    Minute,
    OwnTransaction,
    make_clock,
    make_expiry,
    make_moment,
)
from locus_store.sql.schema.status import ONE_SHARD, SEARCH_SETTING, SHARDS_SETTING
from locus_store.sql.schema.tables import Tables
from locus_store.versions import Record
from locus_store.versions.segments import RecordSegment

LINE_STATE = ("head", "open_chain", "open_bytes", "floor", "last_sequence", "writer", "run")
"""Columns of a line's row that a save changes: of ``versions.Line``, in order, all but its key."""

WRITE = ("checkpoint_id", "task_id", "idx", "channel", "type", "task_path", "basis", "payload")
"""Columns of a pending write."""

VERSION = ("sequence", "checkpoint_id", "digest", "metadata", "labels", "created_at")
"""Columns of a version, without its parent's id."""

RECORD = ("sequence", "chain", "parent", "checkpoint_id", "digest", "metadata", "labels")
"""Columns of a record: all of ``versions.Record``, in order."""

LOG_STATE = ("revision", "message_count", "last_sequence")
"""Columns of a log's row that a change of its messages changes."""

ITEM = ("value", "metadata", "ttl_seconds", "expires_at", "updated_at", "version", "created_at")
"""Columns of an item that a put writes."""


def compile_once(make: Callable[[Statements], Query | sa.UpdateBase]) -> cached_property[Compiled]:
    """Compile the statement that a method returns, at its first use."""
    return cached_property(lambda statements: Compiled(make(statements), statements.dialect))


class Statements:
    """The hot statements of one set of tables, compiled for one dialect."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self.tables = tables
        self.dialect = dialect
        self.others: dict[Hashable, Compiled] = {}
        """See ``compile_other``."""
        self.searches = CompiledSearches(dialect)

    @compile_once
    def line(self) -> sa.Select[Any]:
        return select_live_line(self.tables)

    @compile_once
    def payloads(self) -> sa.Select[Any]:
        """The payloads of a chain between two sequences; a chain's number is its first one."""
        return _select_payloads(self.tables)

    @compile_once
    def new_item(self) -> sa.Insert:
        """The insert of an item; parameters are ``ITEM`` and its name."""
        return _insert(self.tables.store, *ITEM, "tenant", "namespace", "key")

    @compile_once
    def changed_item(self) -> sa.Update:
        """The update of an item; parameters are ``ITEM`` and ``of_item``, its row number."""
        store = self.tables.store
        changed = store.update().where(store.c.item == bind("of_item", type_=sa.BigInteger()))
        return changed.values({it: bind(it) for it in ITEM})

    @compile_once
    def log(self) -> sa.Select[Any]:
        """``LOG_STATE`` of a message log."""
        logs = self.tables.logs
        is_log = logs.c.thread == bind("thread"), logs.c.namespace == bind("namespace")
        return sa.select(*(logs.c[it] for it in LOG_STATE)).where(*is_log)

    @compile_once
    def new_log(self) -> sa.Insert:
        """The insert of a log; parameters are its name and ``LOG_STATE``."""
        return _insert(
            self.tables.logs, "thread", "namespace", *LOG_STATE, changed_at=make_moment()
        )

    @compile_once
    def changed_log(self) -> sa.Update:
        """The update of a log; its name is ``of_thread`` and ``of_namespace``."""
        logs = self.tables.logs  # its time never goes back
        at = sa.case((logs.c.changed_at < make_moment(), make_moment()), else_=logs.c.changed_at)
        is_log = logs.c.thread == bind("of_thread"), logs.c.namespace == bind("of_namespace")
        values: dict[str, Any] = {it: bind(it) for it in LOG_STATE}
        return logs.update().where(*is_log).values(**values, changed_at=at)

    @compile_once
    def new_message(self) -> sa.Insert:
        """The insert of a message; parameters are its columns without the time."""
        messages = self.tables.messages
        return _insert(messages, *(it.name for it in messages.c), created_at=make_clock())

    @compile_once
    def drop_write(self) -> sa.Delete:
        """The deletion of a pending write by its key."""
        writes = self.tables.writes
        is_it = (it == bind(it.name, type_=it.type) for it in writes.primary_key)
        return writes.delete().where(*is_it)

    @compile_once
    def segments(self) -> sa.Select[Any]:
        """The segments of a chain that have records after one sequence and up to another."""
        c = self.tables.segments.c
        is_its = c.line == bind("line"), c.chain == bind("chain"), c.last > bind("after")
        found = sa.select(*list_segment_columns(c)).where(*is_its, c.first <= bind("upto"))
        return found.order_by(c.last)

    @compile_once
    def own_payloads(self) -> sa.Select[Any]:
        """``payloads`` of the records that are in no segment."""
        has_own = self.tables.checkpoints.c.payload.is_not(None)
        return _select_payloads(self.tables).where(has_own)

    @compile_once
    def append_columns(self) -> sa.Select[Any]:
        """The columns that decide an append at the head.

        The columns of ``line``, the digest of its head, whether a version has the checkpoint id,
        and whether there is a search index.
        """
        t, heads, others = self.tables, self.tables.checkpoints, self.tables.checkpoints.alias()
        is_named = sa.exists().where(
            others.c.line == t.lines.c.line, others.c.checkpoint_id == bind("checkpoint_id")
        )
        has_index = sa.exists().where(t.settings.c.name == SEARCH_SETTING)
        return (
            select_live_line(t)
            .join(heads, is_head(t, heads))
            .add_columns(heads.c.digest, is_named, has_index.correlate(None))
        )

    @compile_once
    def lock_line(self) -> sa.Select[Any]:
        """The lock of a line with a head, for databases with concurrent writers."""
        lines = self.tables.lines
        is_it = *_is_line(self.tables), lines.c.head.is_not(None)
        return sa.select(lines.c.line).where(*is_it).with_for_update()

    @compile_once
    def any_line(self) -> sa.Select[Any]:
        """A line of a locked thread, with a head or not; waits for no lock."""
        columns = (self.tables.lines.c[name] for name in ("line", *LINE_STATE))
        return sa.select(*columns).where(*_is_line(self.tables)).with_for_update(nowait=True)

    @compile_once
    def new_line(self) -> sa.Insert:
        return _insert(
            self.tables.lines, "tenant", "thread_id", "namespace", updated_at=make_clock()
        )

    @compile_once
    def save_line(self) -> sa.Update:
        lines = self.tables.lines
        values: dict[str, Any] = {
            name: bind(f"new_{name}", type_=lines.c[name].type) for name in LINE_STATE
        }
        is_save = bind("is_save", type_=sa.Integer()) == 1  # else a deletion
        return (
            lines.update()
            .where(lines.c.line == bind("of_line"))
            .values(
                **values, updated_at=sa.case((is_save, make_moment()), else_=lines.c.updated_at)
            )
        )

    @compile_once
    def touch(self) -> sa.Update:
        """The update of a thread's activity, at most once a minute."""
        threads = self.tables.threads
        is_due = threads.c.active_at != Minute()
        return threads.update().where(*is_of_thread(threads), is_due).values(active_at=Minute())

    @compile_once
    def prolong(self) -> sa.Update:
        """The update of a thread's activity and expiry, if either is due."""
        threads = self.tables.threads
        is_late, most = _is_expiry_late(self.tables)
        return (
            threads.update()
            .where(*is_of_thread(threads))
            .where(sa.or_(threads.c.active_at != Minute(), is_late))
            .values(
                active_at=Minute(), expires_at=sa.case((is_late, most), else_=threads.c.expires_at)
            )
        )

    @compile_once
    def record(self) -> sa.Select[Any]:
        checkpoints = self.tables.checkpoints
        return sa.select(*record_columns(checkpoints)).where(
            checkpoints.c.line == bind("line"), checkpoints.c.sequence == bind("sequence")
        )

    @compile_once
    def named(self) -> sa.Select[Any]:
        checkpoints = self.tables.checkpoints
        return sa.select(*record_columns(checkpoints)).where(
            checkpoints.c.line == bind("line"), checkpoints.c.checkpoint_id == bind("checkpoint_id")
        )

    @compile_once
    def new_record(self) -> sa.Insert:
        names = ("line", *RECORD, "codec", "text", "payload")
        return _insert(self.tables.checkpoints, *names, created_at=make_moment())

    @compile_once
    def versions(self) -> sa.Select[Any]:
        """The visible versions below a sequence, newest first, with their parents' ids."""
        mine = self.tables.checkpoints
        parents = mine.alias("parents")
        return (
            sa.select(
                *(mine.c[name] for name in VERSION), parents.c.checkpoint_id.label("parent_id")
            )
            .outerjoin(
                parents, sa.and_(parents.c.line == mine.c.line, parents.c.sequence == mine.c.parent)
            )
            .where(mine.c.line == bind("line"))
            .where(sa.or_(mine.c.sequence >= bind("floor"), mine.c.sequence == bind("head")))
            .where(mine.c.sequence < bind("end"))
            .order_by(mine.c.sequence.desc())
            .limit(bind("limit"))
        )

    @compile_once
    def written(self) -> sa.Select[Any]:
        """The task and index of each pending write of a checkpoint."""
        return self._select_writes("task_id", "idx")

    @compile_once
    def writes(self) -> sa.Select[Any]:
        """The pending writes of a checkpoint."""
        return self._select_writes(*WRITE)

    def _select_writes(self, *names: str) -> sa.Select[Any]:
        writes = self.tables.writes
        return sa.select(*(writes.c[name] for name in names)).where(
            writes.c.line == bind("line"), writes.c.checkpoint_id == bind("checkpoint_id")
        )

    @compile_once
    def new_write(self) -> sa.Insert:
        """The insert of a pending write, whose payload has a checksum and so is not empty."""
        values = {"payload": bind("payload", type_=Binary()), "created_at": make_clock()}
        return _insert(self.tables.writes, "line", *WRITE[:-1], **values)

    @compile_once
    def thread(self) -> sa.Select[Any]:
        """One row: the facts of a thread, if it exists, and its turn that is held.

        The facts are its key, whether it is live, its user, and the end of its time to live.
        """
        threads, of_turns = self.tables.threads, self.tables.turns
        is_its = [
            sa.and_(table.c.tenant == bind("tenant"), table.c.thread_id == bind("thread_id"))
            for table in (threads, of_turns)
        ]
        one = sa.select(sa.literal(1).label("one")).subquery()
        is_held = sa.and_(is_its[1], of_turns.c.expires_at > make_clock())
        return sa.select(
            threads.c.thread,
            sa.case((is_live(self.tables), 1), else_=0).label("live"),
            threads.c.user_id,
            threads.c.expires_at,
            of_turns.c.turn,
        ).select_from(one.outerjoin(threads, is_its[0]).outerjoin(of_turns, is_held))

    @compile_once
    def new_thread(self) -> sa.Insert:
        """The insert of a thread, unless the layout of shards is another one than is known."""
        threads = self.tables.threads
        values = {it: bind(it, type_=threads.c[it].type) for it in ("tenant", "thread_id")}
        times = {"created_at": make_clock(), "active_at": Minute()}
        row = sa.select(*values.values(), *times.values())
        row = row.where(~has_other_layout(self.tables, bind("layout")))
        return threads.insert().from_select([*values, *times], row, include_defaults=False)

    @compile_once
    def new_entry(self) -> sa.Insert:
        """The insert of an entry of the audit."""
        names = ("tenant", "who", "method", "thread_id", "detail", "result")
        values = {"transaction_id": OwnTransaction(), "recorded_at": make_moment()}
        return _insert(self.tables.audit, *names, **values)

    @compile_once
    def setting(self) -> sa.Select[Any]:
        settings = self.tables.settings
        return sa.select(settings.c.value).where(settings.c.name == bind("name"))


def is_of_thread(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a thread's rows; an update may have no parameter like a column."""
    names = ("tenant", "thread_id")
    return [table.c[it] == bind(f"of_{it}", type_=table.c[it].type) for it in names]


def _insert(table: sa.Table, *names: str, **values: Any) -> sa.Insert:
    """Return the insert of a row: values, and a parameter for each other column that is named."""
    bound = {it: bind(it, type_=table.c[it].type) for it in names}
    return table.insert().values({**bound, **values})


def _select_payloads(t: Tables) -> sa.Select[Any]:
    c = t.checkpoints.c
    return (
        sa.select(c.sequence, c.payload)
        .where(c.line == bind("line"), c.chain == bind("chain"))
        .where(c.sequence >= bind("first"), c.sequence <= bind("upto"))
        .order_by(c.sequence)
    )


def has_other_layout(t: Tables, layout: Any) -> sa.ColumnElement[bool]:
    """Return the condition that threads are created by another layout of shards than this one."""
    c = t.settings.c
    is_other = c.name == SHARDS_SETTING, c.value != layout, c.value.not_like(ONE_SHARD)
    return sa.exists().where(*is_other).correlate(None)


def is_head(t: Tables, heads: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that joins a line to its head."""
    return sa.and_(heads.c.line == t.lines.c.line, heads.c.sequence == t.lines.c.head)


def _is_line(t: Tables) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for a line; parameters are its key."""
    return tuple(t.lines.c[name] == bind(name) for name in ("tenant", "thread_id", "namespace"))


def select_live_line(t: Tables) -> sa.Select[Any]:
    """Return a query for a live line.

    Behind it are whether the activity of its thread is of this minute, and the number of the
    turn that is held.
    """
    lines, of_turns = t.lines, t.turns
    is_active = sa.case((t.threads.c.active_at == Minute(), 1), else_=0).label("is_active")
    is_its = (of_turns.c[name] == lines.c[name] for name in ("tenant", "thread_id"))
    held = sa.select(of_turns.c.turn).where(*is_its, of_turns.c.expires_at > make_clock())
    turn = held.correlate(lines).scalar_subquery()
    return (
        sa.select(lines.c.line, *(lines.c[name] for name in LINE_STATE), is_active, turn)
        .join(t.threads, make_same_thread_condition(t))
        .where(*is_live_line(t))
    )


def is_live_line(t: Tables) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for a line of a live thread."""
    return (*_is_line(t), is_live(t))


def list_segment_columns(segments: Any) -> list[sa.ColumnElement[Any]]:
    """Return the columns of ``versions.segments.RecordSegment``, of a table's columns."""
    return [segments[name] for name in RecordSegment._fields]


_cache: dict[tuple[Tables, type[Dialect]], Statements] = {}


def compile_statements(tables: Tables, dialect: Dialect) -> Statements:
    """Return the statements of ``tables``, compiled once per process and dialect."""
    try:
        return _cache[tables, type(dialect)]
    except KeyError:
        return _cache.setdefault((tables, type(dialect)), Statements(tables, dialect))


def make_same_thread_condition(tables: Tables) -> sa.ColumnElement[bool]:
    """Return the condition that joins a line to its thread."""
    lines, threads = tables.lines, tables.threads
    return sa.and_(threads.c.tenant == lines.c.tenant, threads.c.thread_id == lines.c.thread_id)


def select_clock(_: Tables) -> sa.Select[Any]:
    """Return the query for the server's clock."""
    return sa.select(make_clock())


def compile_other(
    sql: Statements, key: Hashable, statement: Callable[[], Query | sa.UpdateBase]
) -> Compiled:
    """Return a statement that another module makes, compiled the first time."""
    if key not in sql.others:
        sql.others[key] = Compiled(statement(), sql.dialect)
    return sql.others[key]


def compile_form(sql: Statements, make: Callable[..., Any], *form: Hashable) -> Compiled:
    """Return the statement that ``make`` returns for the tables and a form, compiled once."""
    found = sql.others.get((make, form))
    return found or compile_other(sql, (make, form), partial(make, sql.tables, *form))


def is_live(tables: Tables) -> sa.ColumnElement[bool]:
    """Return the condition that the thread has not expired, by the server's clock."""
    expires_at = tables.threads.c.expires_at
    return sa.or_(expires_at.is_(None), expires_at > make_clock())


def _is_expiry_late(tables: Tables) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[Any]]:
    """Return whether the thread's expiry must be rewritten, and the new expiry.

    The parameters are ``ttl`` and ``ttl_and_slack``.
    """
    expires_at = tables.threads.c.expires_at
    least, most = (make_expiry(bind(it, type_=sa.Double())) for it in ("ttl", "ttl_and_slack"))
    return sa.or_(expires_at.is_(None), ~expires_at.between(least, most)), most


def record_columns(checkpoints: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    """Return the columns of ``versions.Record``."""
    return [checkpoints.c[name] for name in RECORD]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """The tables, the tenant and the limits of one opened backend."""

    tables: Tables
    tenant: str
    store: str
    """``store_id`` of the database: marks carry it."""

    layout: str
    """The layout of the database's set of shards, as far as is known, or ``NO_LAYOUT``."""

    max_state_bytes: int
    """The largest state that is folded."""


class RowAccess:
    """A synchronous connection in a transaction, with the tables and the tenant of its backend."""

    measures: ClassVar[Any] = sa.func.length
    """The function that ``measure_column`` uses."""

    def __init__(self, connection: Connection, tenancy: Tenancy) -> None:
        self.connection = connection
        self.tenancy = tenancy
        self.tenant = tenancy.tenant
        self.tables = tenancy.tables
        self.store = tenancy.store
        self.max_state_bytes = tenancy.max_state_bytes
        self.sql = compile_statements(tenancy.tables, connection.dialect)
        self.seen_records: dict[tuple[int, int | str], Record] = {}
        """A cache of records, by line and sequence; a change of any record empties it.

        A record that ``Reads.find_line`` read beside its line is also found by its checkpoint id.
        """

    def ask(self, make: Callable[..., Query], *form: Hashable, **values: Any) -> list[Any]:
        """Return the rows of a query; see ``compile_form``. The values are its parameters."""
        return compile_form(self.sql, make, *form).fetch_named(self.connection, values)

    def change(self, make: Callable[..., sa.UpdateBase], *form: Hashable, **values: Any) -> int:
        """Run a change as ``ask`` runs a query; return the number of rows."""
        return compile_form(self.sql, make, *form).run(self.connection, values)

    def bind_tenant(self) -> sa.BindParameter[str]:
        """Return the tenant as a parameter of its name."""
        return sa.bindparam("tenant", self.tenant, type_=self.tables.threads.c.tenant.type)

    def make_pause_limit(self) -> Sequence[sa.ColumnElement[Any]]:
        """Dialect hook: return what a query selects so that a stopped client keeps no lock."""
        return ()

    def measure_column(self, column: sa.Column[Any]) -> sa.ColumnElement[int]:
        """Dialect hook: return the bytes of a value, or the characters of a text."""
        is_json = isinstance(column.type, (Json, JsonValue))
        size: sa.ColumnElement[int] = self.measures(JsonAsText(column) if is_json else column)
        return size

    def is_thread(self, *thread_ids: str) -> tuple[sa.ColumnElement[bool], ...]:
        """Return conditions of the rows of ``threads`` of these ids."""
        threads = self.tables.threads
        return threads.c.tenant == self.tenant, threads.c.thread_id.in_(thread_ids)
