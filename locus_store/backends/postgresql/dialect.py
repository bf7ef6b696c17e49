"""PostgreSQL's dialect: its hooks, locks, full-text index, engine and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from locus_store.backends.postgresql import connecting, deletions, failures, policies
from locus_store.backends.postgresql.columns import may_have_value, set_config
from locus_store.backends.postgresql.connecting import connect, make_connection_error
from locus_store.backends.postgresql.dsn import Target
from locus_store.backends.postgresql.row_security import secure, see_all_tenants
from locus_store.backends.postgresql.statements import FastStatements
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    LocusStoreError,
    SchemaError,
)
from locus_store.runtime import retries
from locus_store.runtime.loops import await_to_end
from locus_store.sql.columns.types import bind_text
from locus_store.sql.connections.database import (
    Database,
    LostConnectionError,
    ServerDatabase,
    UnconfirmedError,
    is_overtime,
    is_refused,
    iterate_causes,
)
from locus_store.sql.schema.definition import PLACE, DatabasePlace
from locus_store.sql.schema.migrations import get_reason
from locus_store.sql.schema.status import PARTITIONS_SETTING, Settings, read_setting
from locus_store.sql.schema.tables import Tables, derive_name, make_partition_name
from locus_store.sql.threads.server_repository import IndexedRepository, OtherDatabaseError
from locus_store.values.text import split_words
from locus_store.versions.erasing import Swept

with suppress(ImportError):  # reported when something is opened
    import asyncpg  # type: ignore[import-untyped]  # noqa: F401  (driver_errors looks for it)


CONNECT_TIMEOUT_SECONDS: Final = 10.0

WANTED_SERVER: Final = "locus_store_target_session_attrs"
"""Execution option of our own engines."""

_WORD_CHARACTERS: Final = 255
"""Characters of a word that the index keeps: a lexeme has at most 2,046 bytes."""

_PART_BYTES: Final = 500_000
"""Words of one row of the index: a tsvector has 1 MB at most."""

LONGEST_PAUSE: Final = "10s"
"""Between two statements of a transaction that locks a turn; then the server ends the session."""


class PostgreSQLRepository(IndexedRepository):
    """PostgreSQL's implementations of the hooks."""

    rounding = timedelta()
    measures = sa.func.octet_length

    def make_pause_limit(self) -> Sequence[sa.ColumnElement[Any]]:
        """See ``RowAccess``. In a caller's transaction, the caller limits the pauses."""
        if self.connection.in_nested_transaction():
            return ()
        return (set_config("idle_in_transaction_session_timeout", LONGEST_PAUSE),)

    def match_pattern(self, column: sa.ColumnElement[str], pattern: str) -> sa.ColumnElement[bool]:
        return column.op("LIKE", is_comparison=True)(bind_text(pattern))

    may_have = staticmethod(may_have_value)
    """``@>`` with the value or a list of it, at the key or its path."""

    def make_below_condition(
        self, row: Mapping[sa.ColumnElement[Any], sa.BindParameter[Any]]
    ) -> sa.ColumnElement[bool]:
        """Return the condition as one row comparison, which the index over the columns supports."""
        return sa.tuple_(*row) < sa.tuple_(*row.values())

    def make_any_activity_condition(self) -> sa.ColumnElement[bool]:
        """Return a true condition with bounds: without them the planner sorts all threads."""
        threads = self.tables.threads.c
        least = sa.literal_column("'-infinity'::timestamptz", sa.DateTime())
        most = sa.literal_column("'infinity'::timestamptz", sa.DateTime())
        key = sa.tuple_(threads.active_at, threads.thread)
        is_below = key < sa.tuple_(most, sa.literal_column(str(2**63 - 1)))
        return sa.and_(threads.active_at > least, is_below)

    def see_all_tenants(self) -> None:
        see_all_tenants(self.connection, self.tables)

    def drop_threads(self, thread_ids: Sequence[str]) -> Swept:
        return deletions.drop_threads(self, thread_ids)

    def read_oldest_transaction(self) -> int:
        return self._read_transaction("pg_snapshot_xmin(pg_current_snapshot())")

    def read_own_transaction(self) -> int:
        return self._read_transaction("pg_current_xact_id()")

    def _read_transaction(self, which: str) -> int:
        query = f"SELECT {which}::text::bigint"
        return int(self.connection.exec_driver_sql(query).scalar_one())

    @cached_property
    def index(self) -> sa.TableClause:
        return search_table(self.tables)

    def make_index_rows(self, text: str) -> Iterator[dict[str, Any]]:
        for part, lexemes in enumerate(split_lexemes(text)):
            words = sa.literal(lexemes, sa.ARRAY(sa.Text()))
            yield {"part": part, "words": sa.func.array_to_tsvector(words)}

    def has_word(self, word: str) -> sa.ColumnElement[bool]:
        lexeme = f"'{word[:_WORD_CHARACTERS]}'"  # it has only letters and digits
        return self.index.c.words.op("@@")(sa.cast(bind_text(lexeme), TSQUERY))

    def create_index(self) -> bool:
        """Create and fill the full-text index; return whether it was missing.

        Locks out other writers meanwhile, so that no version is missed.
        """
        checkpoints = self.connection.dialect.identifier_preparer.format_table(
            self.tables.checkpoints
        )
        run = self.connection.exec_driver_sql
        with failures.translate_owner_errors(self.connection):
            run(f"LOCK TABLE {checkpoints} IN SHARE ROW EXCLUSIVE MODE")
            if self.has_index:
                return False
            count = int(read_setting(self.connection, self.tables, PARTITIONS_SETTING) or 1)
            for statement in _create_search_table(self.tables, self.connection.dialect, count):
                run(statement)
            secure(self.connection, self.tables, "search")
        self.see_all_tenants()
        self.index_versions("tsvector")
        return True


def search_table(tables: Tables) -> sa.TableClause:
    """Return the full-text index's table; a text of many words takes several rows."""
    names = ("line", "sequence", "part", "words")
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in names]
    return sa.table(f"{tables.prefix}search", *columns, schema=tables.schema)


def _create_search_table(tables: Tables, dialect: Dialect, count: int) -> Iterator[str]:
    name = dialect.identifier_preparer.format_table(search_table(tables))
    index = dialect.identifier_preparer.quote(derive_name(f"{tables.prefix}search_words"))
    clause = " PARTITION BY HASH (line)" if count > 1 else ""
    yield f"""CREATE TABLE {name} (line bigint, sequence bigint, part integer,
      words tsvector NOT NULL, PRIMARY KEY (line, sequence, part)){clause}"""
    yield f"CREATE INDEX {index} ON {name} USING gin (words)"
    if clause:
        table = search_table(tables)
        yield from create_partitions(dialect, table, count, table.name)


def create_partitions(
    dialect: Dialect, table: sa.TableClause, count: int, name: str
) -> Iterator[str]:
    """Yield the statements that create the hash partitions of a table.

    Args:
        dialect: PostgreSQL's.
        table: It is divided by hash.
        count: How many there are.
        name: What their names begin with.
    """
    words = dialect.identifier_preparer
    for number in range(count):
        part = sa.table(make_partition_name(name, count, number), schema=table.schema)
        yield (
            f"CREATE TABLE {words.format_table(part)} PARTITION OF {words.format_table(table)} "
            f"FOR VALUES WITH (MODULUS {count}, REMAINDER {number})"
        )


def split_lexemes(text: str) -> Iterator[list[str]]:
    """Yield the distinct words of a text, in parts that a tsvector can hold."""
    part: list[str] = []
    size = 0
    for word in dict.fromkeys(it[:_WORD_CHARACTERS] for it in split_words(text)):
        size += len(word.encode())
        if size > _PART_BYTES:
            yield part
            part, size = [], len(word.encode())
        part.append(word)
    if part:
        yield part


@lru_cache(maxsize=64)
def _make_statements(tables: Tables, **has: bool) -> FastStatements:
    dialect = PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]  # SQLAlchemy's
    return FastStatements(tables, dialect, **has)


class PostgreSQLDatabase(ServerDatabase):
    """A database behind a DSN, an engine or a pool."""

    dialect = "postgresql"
    repository = PostgreSQLRepository
    driver_errors = (
        *Database.driver_errors,
        LostConnectionError,
        AsyncAdapt_asyncpg_dbapi.Error,
        *failures.get_driver_errors(),
    )

    @property
    def fast(self) -> FastStatements:
        opened = self.opened
        return _make_statements(
            self.tables,
            has_partitions=opened.has_partitions,
            has_row_security=opened.has_row_security,
            has_audit=self.audit is not None,
        )

    def list_open_transactions(self, connection: Connection) -> set[str]:
        """See ``Database``; who reads a table keeps a lock of it until its transaction ends."""
        table = connection.dialect.identifier_preparer.format_table(self.tables.settings)
        query = sa.text(
            "SELECT DISTINCT l.virtualtransaction FROM pg_catalog.pg_locks l"
            " WHERE l.relation = to_regclass(:table)::oid AND l.locktype = 'relation'"
            " AND l.pid IS DISTINCT FROM pg_backend_pid()"
        )
        return set(connection.execute(query, {"table": table}).scalars())

    def make_repository(self, connection: Connection) -> PostgreSQLRepository:
        self.enter_tenant(connection)
        return PostgreSQLRepository(connection, self.tenancy)

    def read_settings(self, settings: Settings) -> None:
        self.opened.has_partitions = PARTITIONS_SETTING in settings.raw
        self.opened.has_row_security = policies.ROW_SECURITY_SETTING in settings.raw

    def guard(self, text: str) -> str:
        """Return a statement that reads, with its tenant if the server has to know it."""
        is_done = f"'{policies.TENANT}'" in text or not self.opened.has_row_security
        return text if is_done else policies.guard(text)

    def enter_tenant(self, connection: Connection) -> None:
        """Name the tenant of what follows, in the statement itself where each one commits."""
        if self.opened.has_row_security:
            policies.name_tenant(connection, self.tenant)

    def begin_write(self, connection: Connection, seconds: float | None = None) -> None:
        """Begin to write. Each statement sees earlier commits, so lock first, then read.

        With ``seconds``, no statement takes longer, waiting for locks included.
        """
        self.begin_bare(connection)
        if seconds is not None:  # until the transaction ends; 0 would be no limit
            limit = f"{max(1, round(seconds * 1000))}ms"
            connection.execute(sa.select(set_config("statement_timeout", limit)))
        self.keep_index(connection)

    def begin_bare(self, connection: Connection) -> None:
        """Begin to write; the statements themselves decide whether the text index is known."""
        connection.execution_options(isolation_level="READ COMMITTED")
        connection.begin()

    def begin_read(self, connection: Connection) -> None:
        connection.execution_options(isolation_level="REPEATABLE READ")
        connection.begin()

    def begin_copy(self, connection: Connection) -> None:
        self.begin_read(connection)
        self.keep_index(connection)

    def ping(self, driver: Any) -> Coroutine[Any, Any, Any]:
        return driver.fetchrow(";")  # type: ignore[no-any-return]

    def is_lost_primary(self, exc: BaseException) -> bool:
        return failures.get_sqlstate(exc) == failures.READ_ONLY

    is_unconfirmed = staticmethod(connecting.is_unconfirmed)
    is_reader = staticmethod(failures.is_reader)
    find_forgotten = staticmethod(failures.find_forgotten)

    def is_lost_race(self, exc: BaseException, attempts: int) -> bool:
        state = failures.get_sqlstate(exc)
        return state in failures.RACES and (attempts < retries.RACES or state != failures.DUPLICATE)

    def is_lost_connection(self, exc: BaseException) -> bool:
        return not isinstance(exc, LocusStoreError) and failures.is_lost(exc)

    def is_lost_schema(self, exc: BaseException) -> bool:
        is_other = isinstance(exc, OtherDatabaseError)
        return is_other or failures.get_sqlstate(exc) in failures.MISSING or policies.is_unset(exc)

    def translate_error(self, exc: Exception) -> LocusStoreError:
        """Return the error to raise, chosen by class and SQLSTATE."""
        state = failures.get_sqlstate(exc)
        where = f"PostgreSQL {self._where}"
        if failures.is_lost(exc) and not is_refused(exc) and state != failures.READ_ONLY:
            setting = failures.LIMITS.get(state)
            limit = f"{state}, by the server's {setting}" if setting else state
            reason = f"the connection was lost ({limit or failures.CLOSED})"
            if any(isinstance(it, UnconfirmedError) for it in iterate_causes(exc)):
                reason = "the wait for the synchronous standby was cancelled"
            return ConnectionFailedError(
                f"{where}: {reason}; the outcome of a save is unknown, and saving again is safe"
            )
        if self.is_lost_schema(exc):
            return policies.make_unset_error(exc, where) or SchemaError(
                f"{where}: the tables of locus-store do not exist any more"
                f" ({state}); restore a backup, or make "
                "new ones: locus-store db upgrade"
            )
        if isinstance(exc, sa.exc.TimeoutError):
            return BackendError(
                f"{where}: no connection became free; check that the server responds, or raise "
                "pool_size"
            )
        if is_overtime(exc):
            state = TimeoutError.__name__
        if state in failures.DAMAGED:
            return IntegrityError(
                f"{where}: {state}: stored data is damaged ({get_reason(exc)}); restore a backup"
            )
        remedies = failures.STATEMENT_REMEDIES
        remedy = remedies.get(state) or remedies.get(state[:2])
        if remedy is None and (error := make_connection_error(exc, self._where)):
            return error
        if remedy is None or state == failures.FORBIDDEN:
            reason = get_reason(exc) or type(exc).__name__
            remedy = f"{remedy} ({reason})" if remedy else reason
        return BackendError(f"{where}: {state or type(exc).__name__}: {remedy}")


def make_engine(
    target: Target,
    *,
    connect_timeout_seconds: float | None,
    statement_timeout_seconds: float | None,
    statement_cache_size: int,
    has_partitions: Callable[[], bool],
    **pool: Any,
) -> AsyncEngine:
    """Return an engine in autocommit on asyncpg connections to ``target``.

    Args:
        target: Where.
        connect_timeout_seconds: For each host; ``None``: the DSN's, else ten.
        statement_timeout_seconds: For each statement; ``None``: as long as it takes.
        statement_cache_size: Prepared statements that a connection keeps; 0 where the server
            behind it may change between two transactions (PgBouncer).
        has_partitions: Returns whether tables are divided: a plan for the values of each call then
            costs more than the call.
        pool: Options of SQLAlchemy's pool.
    """
    timeout = connect_timeout_seconds or target.arguments.get("timeout", CONNECT_TIMEOUT_SECONDS)

    async def opening() -> Any:
        connection = await connect(
            target,
            timeout=timeout,
            command_timeout=statement_timeout_seconds,
            statement_cache_size=statement_cache_size,
        )
        if has_partitions():
            await connection.execute("SET plan_cache_mode = force_generic_plan")
        return connection

    async def connecting(*_: Any, **__: Any) -> Any:
        made = asyncio.ensure_future(opening())
        try:
            return await await_to_end(made)  # asyncpg does not like to be cancelled here
        except asyncio.CancelledError:
            made.add_done_callback(_close_unwanted)
            raise

    place = {
        PLACE: DatabasePlace(target.shown, is_whole=False),
        WANTED_SERVER: target.wanted or "any",
    }
    return _make_engine(connecting, statement_cache_size, execution_options=place, **pool)


def _close_unwanted(task: asyncio.Future[Any]) -> None:
    """Close a connection whose caller was cancelled."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def make_engine_of_pool(pool: Any) -> AsyncEngine:
    """Return an engine that borrows the connections of an asyncpg pool unchanged."""

    async def borrowing(*_: Any, **__: Any) -> Any:
        return BorrowedConnection(pool, await pool.acquire())

    place = {PLACE: DatabasePlace("the asyncpg pool's database", is_whole=False)}
    return _make_engine(borrowing, 0, execution_options=place, poolclass=NullPool)


def _make_engine(creator: Any, cache_size: int, **options: Any) -> AsyncEngine:
    made = create_async_engine(
        "postgresql+asyncpg://",
        isolation_level="AUTOCOMMIT",
        connect_args={"async_creator_fn": creator, "prepared_statement_cache_size": cache_size},
        json_deserializer=_from_json,
        hide_parameters=True,  # values in errors would come into logs
        **options,
    )
    # A borrowed connection's codecs are its owner's, and to set them takes two round trips.
    for name in ("setup_asyncpg_json_codec", "setup_asyncpg_jsonb_codec"):
        setattr(made.dialect, name, _leave)
    made.dialect.supports_native_json_deserialization = False
    return made


async def _leave(connection: Any) -> None:
    del connection


def _from_json(value: Any) -> Any:
    """Decode JSON from asyncpg, unless the connection's owner has set a decoder."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value  # damage, which the column's type reports


class BorrowedConnection:
    """A pool's connection, adapted for SQLAlchemy; closing it returns it to the pool."""

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109  (asyncpg's)
        """Return the connection to the pool."""
        await self._pool.release(self._connection, timeout=timeout)
