"""The store and the message log in PostgreSQL; an append is one statement for each log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.compiler import IdentifierPreparer

from locus_store.backends.postgresql.backend import PostgreSQLBackend
from locus_store.backends.postgresql.columns import dump_jsonb
from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
from locus_store.backends.postgresql.items import PostgreSQLItems, VectorsChangedError
from locus_store.backends.postgresql.options import PostgreSQLOptions
from locus_store.backends.postgresql.policies import MARK
from locus_store.backends.postgresql.statements import render_audited, render_turn_condition
from locus_store.sql.audit import RecordedCall, get_call
from locus_store.sql.columns.dialect_columns import PlainText
from locus_store.sql.connections.pool import PooledRunner
from locus_store.sql.items import Items
from locus_store.sql.message_log import SqlMessageLog, make_columns
from locus_store.sql.quotas import charged_call, limit_calls, measure_change
from locus_store.sql.schema.status import ONE_SHARD
from locus_store.sql.schema.tables import Tables
from locus_store.sql.store import ServerStore
from locus_store.sql.threads.statements import Tenancy
from locus_store.store import Embed
from locus_store.types import FOREVER
from locus_store.types.arguments import choose_backend
from locus_store.types.items import StoreCapabilities
from locus_store.types.messages import LogChange, LogChanged, LogEdit, require_revision
from locus_store.types.thread_info import require_user_id
from locus_store.values.vectors import Metric
from locus_store.versions.renewing import compute_ttl_slack

T = TypeVar("T")

OF_STORE: Final = ""
"""Instead of a thread's id in ``LoopPool.note_write``: no read of a thread sees the write."""


class PostgreSQLStore(ServerStore):
    """Keeps items in a PostgreSQL database.

    A call is one statement, and so one round trip; ``clear_namespace`` and ``expire`` are
    transactions. A put whose connection is lost is not repeated: it may have been done. The item's
    version shows whether it was.

    Embeddings need the extension pgvector; without it everything else works. Their dimension cannot
    be changed later.

    Arguments and errors are those of ``PostgreSQLBackend`` and ``BaseStore``. With ``backend``, for
    example ``checkpointer.backend``, its connections are used instead, and it is left open.
    """

    items = PostgreSQLItems
    backend: PostgreSQLBackend

    def __init__(
        self,
        dsn: str | None = None,
        table_name: str | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: PostgreSQLBackend | None = None,
        **options: Unpack[PostgreSQLOptions],
    ) -> None:
        super().__init__(
            choose_backend(backend, PostgreSQLBackend, dsn, table_name, **options),
            owns=backend is None,
            dimension=dimension,
            metric=metric,
            embed=embed,
        )

    @property
    def capabilities(self) -> StoreCapabilities:
        """The capabilities of this store; pgvector's presence is known once the store is open."""
        return (
            super().capabilities if self._context is not None else StoreCapabilities(tenants=True)
        )

    async def _change(self, body: Callable[[Connection], T], *, is_one: bool = False) -> T:
        runner: PooledRunner = self._shared.runner  # type: ignore[assignment]  # its backend's
        database: PostgreSQLDatabase = self._shared.database  # type: ignore[assignment]
        if is_one:
            return await runner.write_once(body, thread_id=OF_STORE)

        def begin(connection: Connection) -> None:
            database.begin_bare(connection)
            database.make_repository(connection).look_for_index()  # in the opened database

        return await runner.write(body, begin, thread_id=OF_STORE)

    async def _write_items(self, body: Callable[[Items], T], *, is_one: bool = True) -> T:
        try:
            return await super()._write_items(body, is_one=is_one)
        except VectorsChangedError:  # nothing was written
            self._context = None
        return await super()._write_items(body, is_one=is_one)

    async def _write_on(self, connection: object, body: Callable[[Items], T]) -> T:
        try:
            return await super()._write_on(connection, body)
        except VectorsChangedError:  # nothing was written
            self._context = None
            return await super()._write_on(connection, body)
        finally:
            self.backend.note_joined(connection, OF_STORE)


class PostgreSQLMessageLog(SqlMessageLog):
    """Keeps message logs in a PostgreSQL database.

    Arguments and errors are those of ``PostgreSQLBackend`` and ``BaseMessageLog``; for ``backend``
    see ``PostgreSQLStore``.
    """

    backend: PostgreSQLBackend

    def __init__(
        self,
        dsn: str | None = None,
        table_name: str | None = None,
        *,
        ttl_seconds: float | None = None,
        backend: PostgreSQLBackend | None = None,
        **options: Unpack[PostgreSQLOptions],
    ) -> None:
        super().__init__(
            choose_backend(backend, PostgreSQLBackend, dsn, table_name, **options),
            owns=backend is None,
            ttl_seconds=ttl_seconds,
        )

    @limit_calls(measure_change)
    async def change(self, change: LogChange) -> LogChanged:
        change.also = [it for it in change.also if it.puts]
        if change.puts and change.cut is None:
            with suppress(_NotPlainError):
                return LogChanged(await self._append_once(change))
        return await super().change(change)

    async def _append_once(self, change: LogChange) -> int:
        """Append to each log in one statement, or raise ``_NotPlainError``: nothing was written."""
        runner: PooledRunner = self._shared.runner  # type: ignore[assignment]  # its backend's
        database = self._shared.database
        write = runner.write if change.also else runner.write_once
        thread_id = None if change.also else change.thread_id
        call, charge = get_call(database.audit), charged_call.get()
        with self._shared.translating:

            def append(connection: Connection) -> int:
                database.enter_tenant(connection)
                revision, opened = _append(connection, database.tenancy, change, call)
                if charge is not None and change.also:
                    charge.note_written(opened)
                elif charge is not None:  # one statement may be committed already
                    charge.opened = opened
                return revision

            return await write(append, thread_id=thread_id)


class _NotPlainError(Exception):
    """The thread has expired or is not the user's, or the schema is another one."""


def _append(
    connection: Connection, tenancy: Tenancy, change: LogChange, call: RecordedCall | None
) -> tuple[int, int]:
    """Return the revision, and the number of created threads."""
    tables, quote = tenancy.tables, connection.dialect.identifier_preparer
    statement = _make_statement(tables, quote, has_audit=call is not None)
    revision = opened = 0
    for edit in change.split():
        require_user_id(edit.user_id, tables.user_id_type)
        recorded = call.make_values() if call else {}
        row = connection.execute(statement, {**_bind(tenancy, edit, change), **recorded}).one()
        if not row.is_plain:
            raise _NotPlainError
        if edit is change:
            name = change.thread_id, change.namespace
            require_revision(name, change.expected_revision, row.found)
            revision = int(row.revision)
        opened += row.is_new
    return revision, opened


def _bind(tenancy: Tenancy, edit: LogEdit, change: LogChange) -> dict[str, Any]:
    """Return the parameters of one log: one list for each column."""
    columns = make_columns(edit.puts)
    ttl = edit.ttl_seconds
    return {
        "tenant": tenancy.tenant,
        "store_id": tenancy.store,
        "layout": tenancy.layout,
        "thread_id": edit.thread_id,
        "namespace": edit.namespace,
        "expected": change.expected_revision if edit is change else None,
        "first_revision": edit.first_revision,
        "user_id": edit.user_id,
        "kept_until": FOREVER if edit.is_kept else None,
        "turn": edit.turn,
        "ttl": ttl,
        "ttl_and_slack": None if ttl is None else ttl + compute_ttl_slack(ttl),
        "ids": [*columns["message_id"]],
        "roles": [*columns["role"]],
        "metadata": [*map(dump_jsonb, columns["metadata"])],
        "digests": columns["digest"],
        "texts": columns["text"],
        "payloads": columns["payload"],
    }


# The row of the thread is locked first, and all that is counted on is in rows that this lock
# guards and that are read behind it. Of what is not there, nothing can be locked: a thread or log
# that is created meanwhile is a race, to be run again.
_APPEND: Final = """
WITH fact AS MATERIALIZED (
  SELECT count(*) AS count FROM {settings} s WHERE (s.name = 'store_id' AND s.value = :store_id)
    OR (s.name = 'shards' AND s.value <> :layout AND s.value NOT LIKE '{one_shard}')),
there AS MATERIALIZED (
  SELECT t.thread, (t.expires_at IS NULL OR t.expires_at > statement_timestamp())
    AND (CAST(:user_id AS text) IS NULL OR t.user_id IS NOT DISTINCT FROM CAST(:user_id AS {users}))
    AND (CAST(:kept_until AS timestamptz) IS NULL
      OR t.expires_at IS NOT DISTINCT FROM :kept_until) AS is_plain
  FROM {threads} t WHERE t.tenant = :tenant AND t.thread_id = :thread_id
    AND (SELECT count FROM fact) = 1
  FOR UPDATE),
log AS MATERIALIZED (
  SELECT l.thread, l.revision, l.last_sequence FROM there t
  CROSS JOIN LATERAL (
    SELECT * FROM {logs} l WHERE l.thread = t.thread AND l.namespace = :namespace FOR UPDATE) l),
look AS MATERIALIZED (
  SELECT is_plain, found, is_plain AND (CAST(:expected AS bigint) IS NULL OR :expected = found)
    AS does
  FROM (SELECT (SELECT count FROM fact) = 1 AND coalesce((SELECT is_plain FROM there), true)
    AND {is_turn} AS is_plain, coalesce((SELECT revision FROM log), 0) AS found) f),
thread AS (
  INSERT INTO {threads} (tenant, thread_id, user_id, created_at, active_at, expires_at)
  SELECT :tenant, :thread_id, CAST(:user_id AS {users}), statement_timestamp(),
    date_trunc('minute', statement_timestamp()),
    coalesce(:kept_until, statement_timestamp() + make_interval(secs => :ttl_and_slack))
  FROM look WHERE does AND NOT EXISTS (SELECT FROM there)
  RETURNING thread),
owner AS MATERIALIZED (
  SELECT thread, coalesce((SELECT last_sequence FROM log), 0) AS last_sequence
  FROM (SELECT thread FROM there UNION ALL SELECT thread FROM thread) o, look WHERE does),
put AS (
  INSERT INTO {messages} (thread, namespace, sequence, message_id, role, metadata, created_at,
    digest, text, payload)
  SELECT o.thread, :namespace, o.last_sequence + i.position, i.message_id, i.role,
    i.metadata::jsonb, statement_timestamp(), i.digest, i.text, i.payload
  FROM owner o, unnest(:ids, :roles, :metadata, :digests, :texts, :payloads) WITH ORDINALITY
    i (message_id, role, metadata, digest, text, payload, position)
  ORDER BY i.position
  ON CONFLICT (thread, namespace, message_id) DO UPDATE SET role = excluded.role,
    metadata = excluded.metadata, digest = excluded.digest, text = excluded.text,
    payload = excluded.payload
  RETURNING (xmax = 0) AS is_new),
counted AS MATERIALIZED (
  SELECT count(*) AS given, count(*) FILTER (WHERE is_new) AS new FROM put),
changed AS (
  UPDATE {logs} l SET revision = greatest(l.revision + 1, :first_revision),
    message_count = l.message_count + c.new, last_sequence = l.last_sequence + c.given,
    changed_at = greatest(l.changed_at, clock_timestamp())
  -- One thread, and no join: a plan made when the table was small would read the whole table.
  FROM counted c, look
  WHERE l.thread = (SELECT thread FROM log) AND l.namespace = :namespace AND does
  RETURNING l.revision),
made AS (
  INSERT INTO {logs} (thread, namespace, revision, message_count, last_sequence, changed_at)
  SELECT o.thread, :namespace, :first_revision, c.new, c.given, clock_timestamp()
  FROM owner o, counted c WHERE NOT EXISTS (SELECT FROM log)
  RETURNING revision),
touched AS (
  -- Mostly without a new entry in an index: the minute has changed, or the expiry is due.
  UPDATE {threads} t SET active_at = date_trunc('minute', statement_timestamp()),
    expires_at = CASE WHEN {is_late}
      THEN statement_timestamp() + make_interval(secs => :ttl_and_slack) ELSE t.expires_at END
  FROM look
  WHERE t.thread = (SELECT thread FROM there) AND does
    AND (t.active_at <> date_trunc('minute', statement_timestamp()) OR {is_late})){audited}
SELECT l.is_plain, l.found, coalesce((SELECT revision FROM changed), (SELECT revision FROM made))
  AS revision, EXISTS (SELECT FROM thread) AS is_new
FROM look l WHERE {mark}
"""

_IS_LATE: Final = """(CAST(:ttl AS double precision) IS NOT NULL AND (t.expires_at IS NULL
      OR t.expires_at NOT BETWEEN statement_timestamp() + make_interval(secs => :ttl)
        AND statement_timestamp() + make_interval(secs => :ttl_and_slack)))"""


_TABLES: Final = ("threads", "logs", "messages", "turns", "settings", "audit")
_USERS: Final = {"string": "text", "int": "integer", "bigint": "bigint"}


@lru_cache(maxsize=64)
def _make_statement(tables: Tables, quote: IdentifierPreparer, *, has_audit: bool) -> sa.TextClause:
    """Return the statement that appends a batch, and records the call."""
    names = {it: quote.format_table(getattr(tables, it)) for it in _TABLES}
    users = _USERS[tables.user_id_type]
    texts, blobs = sa.ARRAY(sa.Text()), sa.ARRAY(sa.LargeBinary())
    kinds: dict[str, Any] = {
        **dict.fromkeys(("ids", "roles", "metadata", "texts"), texts),
        **dict.fromkeys(("digests", "payloads"), blobs),
        **dict.fromkeys(("tenant", "thread_id", "namespace", "user_id"), PlainText()),
        **dict.fromkeys(("store_id", "layout"), PlainText()),
        "kept_until": sa.DateTime(timezone=True),
        **dict.fromkeys(("expected", "first_revision", "turn"), sa.BigInteger()),
        **dict.fromkeys(("ttl", "ttl_and_slack"), sa.Double()),
    }
    audited = ""
    if has_audit:
        parts = {it: f":{it}" for it in ("tenant", "who", "thread_id", "detail")}
        audited = render_audited(names["audit"], "'change'", "look WHERE does", **parts)
        kinds |= dict.fromkeys(("who", "detail"), PlainText())
    text = _APPEND.format(
        **names,
        audited=audited,
        one_shard=ONE_SHARD,
        mark=MARK,
        users=users,
        is_late=_IS_LATE,
        is_turn=render_turn_condition(names["turns"], ":thread_id", ":turn", ":tenant"),
    )
    return sa.text(text.strip()).bindparams(
        *(sa.bindparam(name, type_=kind) for name, kind in kinds.items())
    )
