"""Oracle's dialect: its hooks, text index, engine and errors.

Not yet run against a live Oracle Database: see docs/oracle.md for what was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Iterator
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from locus_store.backends.oracle.addresses import (
    DRIVER_ERRORS,
    OracleAddress,
    list_codes,
    make_connection_error,
)
from locus_store.backends.oracle.columns import may_have_value
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    LocusStoreError,
    SchemaError,
)
from locus_store.sql.columns.dialect_columns import Json, JsonValue
from locus_store.sql.columns.types import Instant
from locus_store.sql.connections.database import (
    Database,
    LostConnectionError,
    ServerDatabase,
    iterate_causes,
)
from locus_store.sql.schema.definition import PLACE, DatabasePlace, quote
from locus_store.sql.schema.migrations import lock
from locus_store.sql.schema.tables import Tables, derive_name
from locus_store.sql.threads.server_repository import IndexedRepository, OtherDatabaseError
from locus_store.values.text import split_words


class OracleRepository(IndexedRepository):
    """Oracle's implementations of the hooks."""

    def measure_column(self, column: sa.Column[Any]) -> sa.ColumnElement[int]:
        """Return the bytes of a value; JSON has a length as text only."""
        if isinstance(column.type, (Json, JsonValue)):
            text = column.op("RETURNING")(sa.literal_column("CLOB"))
            return sa.func.length(sa.func.json_serialize(text))
        return sa.func.length(column)

    def read_oldest_transaction(self) -> int:
        """Wait for the transactions that write entries; see ``Repository``."""
        table = self.connection.dialect.identifier_preparer.format_table(self.tables.audit)
        self.connection.exec_driver_sql(f"LOCK TABLE {table} IN SHARE MODE")
        return 0

    def match_pattern(self, column: sa.ColumnElement[str], pattern: str) -> sa.ColumnElement[bool]:
        return column.like(sa.literal(pattern, sa.String()), escape="\\")

    def may_have(
        self, column: sa.ColumnElement[Any], key: str, value: Any
    ) -> sa.ColumnElement[bool]:
        """See ``Reads.may_have``; ``JSON_EXISTS`` with the value, at the key or along its path."""
        paths = [[key], key.split(".")] if "." in key else [[key]]
        return sa.or_(*(may_have_value(column, path, value) for path in paths))

    @cached_property
    def index(self) -> sa.TableClause:
        return search_table(self.tables)

    def make_index_rows(self, text: str) -> Iterator[dict[str, Any]]:
        tokens = " ".join(dict.fromkeys(map(make_token, split_words(text))))
        yield {"tokens": tokens or None}

    def has_word(self, word: str) -> sa.ColumnElement[bool]:
        return sa.func.contains(self.index.c.tokens, sa.literal(make_token(word), sa.String())) > 0

    def fill_index(self) -> bool:
        """Index all versions while other writers are locked out; ``False`` if they were indexed."""
        table = self.connection.dialect.identifier_preparer.format_table(self.tables.checkpoints)
        self.connection.exec_driver_sql(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        if self.has_index:
            return False
        # So that a copy whose snapshot is older than this starts again: see begin_copy.
        facts = self.tables.settings
        self.connection.execute(
            facts.update().values(value=facts.c.value).where(facts.c.name == "store_id")
        )
        self.connection.execute(self.index.delete())  # of a run that was cut short
        self.index_versions("context")
        return True


def make_token(word: str) -> str:
    """Return a word's token: letters and digits, of fixed length, on no stop list."""
    return "w" + hashlib.blake2b(word.encode(), digest_size=10).hexdigest()


def search_table(tables: Tables) -> sa.TableClause:
    """Return the table of the text index."""
    return sa.table(
        f"{tables.prefix}search",
        sa.column("line", sa.BigInteger()),
        sa.column("sequence", sa.BigInteger()),
        sa.column("tokens", sa.Text()),
        schema=tables.schema,
    )


def search_ddl(tables: Tables, dialect: Dialect) -> tuple[str, str]:
    """Return the statements that create the table and its index if they are missing."""
    name = dialect.identifier_preparer.format_table(search_table(tables))
    key = dialect.identifier_preparer.quote(derive_name(f"{tables.prefix}search_pk"))
    index = quote(dialect, derive_name(f"{tables.prefix}search_tokens"), tables.schema)
    return (
        (
            f"CREATE TABLE IF NOT EXISTS {name} (line NUMBER(19) NOT NULL, sequence NUMBER(19)"
            f" NOT NULL, tokens CLOB, CONSTRAINT {key} PRIMARY KEY"
            " (line, sequence))"
        ),
        (
            f"CREATE INDEX IF NOT EXISTS {index} ON {name} (tokens) INDEXTYPE IS CTXSYS.CONTEXT"
            " PARAMETERS ('SYNC (ON COMMIT) STOPLIST CTXSYS.EMPTY_STOPLIST')"
        ),
    )


class OracleDatabase(ServerDatabase):
    """A database behind this library's connections, an engine or a pool."""

    dialect = "oracle"
    repository = OracleRepository
    driver_errors = (*Database.driver_errors, LostConnectionError, *DRIVER_ERRORS)

    def create_index(self, connection: Connection) -> bool:
        """Create and fill the text index; return whether it was missing."""
        table, index = search_ddl(self.tables, connection.dialect)
        with lock(connection, self.tables):
            connection.exec_driver_sql(table)
            self._drop_failed(connection)
            connection.exec_driver_sql(index)
        self.begin_write(connection)
        was_made = OracleRepository(connection, self.tenancy).fill_index()
        connection.commit()
        return was_made

    def _drop_failed(self, connection: Connection) -> None:
        """Drop an index whose creation failed: it exists and would be mistaken for a usable one."""
        prepare: Any = connection.dialect
        name = derive_name(f"{self.tables.prefix}search_tokens")
        query = sa.text("""
            SELECT i.status, i.domidx_opstatus FROM all_indexes i
            WHERE i.owner = COALESCE(:owner, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'))
            AND i.index_name = :name
        """)
        names = {
            "owner": prepare.denormalize_name(self.tables.schema),
            "name": prepare.denormalize_name(name),
        }
        found = connection.execute(query, names).first()
        if found is not None and tuple(found) != ("VALID", "VALID"):
            shown = quote(connection.dialect, name, self.tables.schema)
            connection.exec_driver_sql(f"DROP INDEX {shown} FORCE")

    def join(self, connection: Connection) -> None:
        tell_types(connection.engine)

    def begin_statement(self, connection: Connection) -> None:
        """Turn on autocommit: the driver commits in the same round trip."""
        _set_autocommit(connection, is_on=True)

    def begin_write(self, connection: Connection) -> None:
        """Begin to write. Each statement sees earlier commits, so lock first, then read."""
        _set_autocommit(connection, is_on=False)
        connection.begin()
        self.keep_index(connection)

    def begin_read(self, connection: Connection) -> None:
        _set_autocommit(connection, is_on=False)
        connection.begin()
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    def begin_copy(self, connection: Connection) -> None:
        _set_autocommit(connection, is_on=False)
        connection.begin()
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        self.keep_index(connection)
        # A transaction that waited while an index was created gets ORA-08177 here.
        facts = self.tables.settings.c
        connection.execute(sa.select(facts.name).where(facts.name == "store_id").with_for_update())

    def leave(self, connection: Connection) -> None:
        """Return the connection in its original condition.

        Open work is rolled back first: SQLAlchemy leaves a connection in autocommit alone.
        """
        if connection.in_transaction():
            connection.rollback()
        used: Any = connection.connection
        if used.driver_connection.transaction_in_progress:  # of a cursor of our own
            used.dbapi_connection.rollback()
        before = connection.info.pop(_BEFORE, None)
        if before is not None:
            driver: Any = connection.connection.dbapi_connection
            driver.autocommit = before

    def ping(self, driver: Any) -> Coroutine[Any, Any, Any]:
        pinged: Coroutine[Any, Any, Any] = driver.ping()
        return pinged

    def is_lost_primary(self, exc: BaseException) -> bool:
        return _READ_ONLY in list_codes(exc)

    def is_closed(self, driver: Any) -> bool:
        return not driver.is_healthy()

    def is_lost_race(self, exc: BaseException, attempts: int) -> bool:
        return any(it in _RACES for it in list_codes(exc))

    def is_lost_connection(self, exc: BaseException) -> bool:
        return not isinstance(exc, LocusStoreError) and is_lost(exc)

    def is_lost_schema(self, exc: BaseException) -> bool:
        return isinstance(exc, OtherDatabaseError) or any(it in _MISSING for it in list_codes(exc))

    def translate_error(self, exc: Exception) -> LocusStoreError:
        """Return the error to raise, chosen by the driver's code."""
        where = f"Oracle {self._where}"
        found = list_codes(exc)
        code = found[0] if found else type(exc).__name__
        if _NOT_MADE in found:
            return make_connection_error(exc, self._where)
        if is_lost(exc) and _READ_ONLY not in found:
            return ConnectionFailedError(
                f"{where}: the connection was lost ({code}); the outcome of a save is unknown, "
                "and saving again is safe"
            )
        if self.is_lost_schema(exc):
            return SchemaError(
                f"{where}: the tables of locus-store do not exist any more"
                f", or this user may not see them "
                f"({code}); grant it SELECT, INSERT, UPDATE and DELETE on them, name schema_name=, "
                "restore a backup, or create new ones: locus-store db upgrade"
            )
        if isinstance(exc, sa.exc.TimeoutError):
            return BackendError(
                f"{where}: no connection became free; check that the server responds, or raise "
                "max_pool_size"
            )
        kind = IntegrityError if code in _DAMAGED else BackendError
        return kind(f"{where}: {code}: {_REMEDIES.get(code, 'see __cause__')}")


ROWS: Final = 1000
"""Fetched in a round trip; python-oracledb's own numbers are 2 and 100."""

_BEFORE: Final = "locus_store_autocommit"
"""Key in ``Connection.info`` of the setting before it was changed."""


def _set_autocommit(connection: Connection, *, is_on: bool) -> None:
    """Set the driver's own autocommit switch: SQLAlchemy's needs two round trips."""
    driver: Any = connection.connection.dbapi_connection
    connection.info.setdefault(_BEFORE, driver.autocommit)
    driver.autocommit = is_on


def is_lost(exc: BaseException) -> bool:
    """Return whether the driver reports that a connection was lost."""
    return any(
        isinstance(cause, (LostConnectionError, ConnectionError))
        or any(getattr(arg, "is_session_dead", False) for arg in cause.args[:1])
        for cause in iterate_causes(exc)
    ) or any(it in _LOST for it in list_codes(exc))


_LOST: Final = frozenset(
    {
        *("DPY-4011", "DPY-1001", "ORA-03113", "ORA-03114", "ORA-00028", "ORA-01012"),
        *("ORA-02396", "ORA-03135", "ORA-03138", "ORA-03146", "ORA-12152", "ORA-12153"),
    }
)
_NOT_MADE: Final = "DPY-6005"
_READ_ONLY: Final = "ORA-16000"
_RACES: Final = frozenset(
    {
        "ORA-00001",  # two made the same row
        "ORA-00054",  # a row or table is locked, and we do not wait
        "ORA-00060",  # a deadlock
        "ORA-08177",  # what a copy reads was changed
        "ORA-00955",  # another process made the table meanwhile
        "ORA-01453",  # a transaction was left open
        "ORA-01466",  # a snapshot is older than a table
        "ORA-01555",  # or than what the server remembers
        "ORA-30006",
        "ORA-51815",  # the same of a vector index
    }
)
_MISSING: Final = frozenset({"ORA-00942", "ORA-00904", "ORA-01918"})
_DAMAGED: Final = frozenset({"ORA-01578", "ORA-26040"})
_QUOTA: Final = "the user has no room in the tablespace: ALTER USER … QUOTA … ON …"
_REMEDIES: Final = {
    "ORA-01031": "the user may not do this: grant it what docs/oracle.md lists",
    "ORA-01950": _QUOTA,
    "ORA-01536": _QUOTA,
    **dict.fromkeys(
        ("ORA-01652", "ORA-01653", "ORA-01654", "ORA-01658", "ORA-01691", "ORA-30036"),
        "the tablespace is full: extend it and save again",
    ),
    "ORA-04031": "the server is out of shared memory: save again later",
    "ORA-28001": "the password has expired; set a new one",
    "ORA-29833": "the database has no Oracle Text; without it a search reads every thread",
    "ORA-29855": "the text index could not be made; its cause is in __cause__",
    "ORA-29861": "the text index is damaged: drop it, and make it again",
    "ORA-51962": "the vector pool is too small: raise VECTOR_MEMORY_SIZE, or use method ivfflat",
    _READ_ONLY: "the database is read-only: connect to the primary",
    "ORA-12899": "a value is longer than its column takes",
    "ORA-43853": "JSON and vectors need a tablespace with automatic segment space management",
    "ORA-51928": "this release takes no writes beside an HNSW index: use method ivfflat",
    "ORA-51929": "this release has no HNSW index on RAC: use method ivfflat",
    "DPY-4024": "a round trip took longer than statement_timeout_seconds; the outcome of a save is "
    "unknown, and saving again is safe",
    **dict.fromkeys(_RACES, "other transactions held the locks several times over: try again"),
    **dict.fromkeys(_DAMAGED, "a block is damaged: restore a backup"),
}


def make_engine(place: OracleAddress, **pool: Any) -> AsyncEngine:
    """Return an engine in autocommit on connections to ``place``."""
    shown = {PLACE: DatabasePlace(place.shown, is_whole=False)}
    return _make_engine(place.connect, execution_options=shown, **pool)


def make_engine_of_pool(pool: Any) -> AsyncEngine:
    """Return an engine that borrows the connections of a ``oracledb.AsyncConnectionPool``."""

    async def borrowing(*_: Any, **__: Any) -> Any:
        return BorrowedOracleConnection(await pool.acquire())

    shown = {PLACE: DatabasePlace("the pool's database", is_whole=False)}
    return _make_engine(borrowing, execution_options=shown, poolclass=sa.NullPool)


class BorrowedOracleConnection:
    """A pool's connection, adapted for SQLAlchemy; its settings are restored at the end."""

    def __init__(self, connection: Any) -> None:
        kept = {it: getattr(connection, it) for it in ("autocommit", "outputtypehandler")}
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_kept", kept)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._connection, name, value)

    async def close(self) -> None:
        """Return the connection in its original condition."""
        for name, value in self._kept.items():
            setattr(self._connection, name, value)
        await self._connection.close()


def _make_engine(creator: Any, **options: Any) -> AsyncEngine:
    made = create_async_engine(
        "oracle+oracledb_async://",
        connect_args={"async_creator_fn": creator},
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
        hide_parameters=True,  # values in errors would come into logs
        arraysize=ROWS,
        **options,
    )
    event.listen(made.sync_engine, "before_cursor_execute", _set_prefetch_rows)
    made.dialect.do_commit = _commit  # type: ignore[assignment]  # else it is a round trip
    tell_types(made.sync_engine)
    return made


def _set_prefetch_rows(_: object, cursor: Any, *__: object) -> None:
    """Fetch as many rows as possible with the statement's round trip, except rows with a LOB."""
    cursor._cursor.prefetchrows = ROWS  # noqa: SLF001  (SQLAlchemy's cursor hands this on to nobody)


def _commit(connection: Any) -> None:
    if not connection.autocommit:
        connection.commit()


def tell_types(engine: Engine) -> None:
    """Declare the types of parameters that the driver would guess wrongly."""
    if not event.contains(engine, "do_setinputsizes", set_input_sizes):
        event.listen(engine, "do_setinputsizes", set_input_sizes)


def set_input_sizes(
    sizes: dict[Any, Any], cursor: Any, statement: str, parameters: Any, context: Any
) -> None:
    """SQLAlchemy's hook: bind JSON as objects, long values as LOBs, and times with fractions.

    Outside of a plain ``INSERT``, Oracle refuses a long value that is not a LOB (ORA-01461).
    """
    dbapi = context.dialect.dbapi
    lobs = ((dbapi.DB_TYPE_RAW, dbapi.DB_TYPE_BLOB), (dbapi.DB_TYPE_NVARCHAR, dbapi.DB_TYPE_CLOB))
    for bound, name in context.compiled.bind_names.items():
        if isinstance(bound.type, (Json, JsonValue)):
            sizes[bound] = dbapi.DB_TYPE_JSON
        elif isinstance(bound.type, Instant):
            sizes[bound] = dbapi.DB_TYPE_TIMESTAMP
        lob = next((lob for plain, lob in lobs if sizes.get(bound) is plain), None)
        if lob is not None and any(_is_long(it[name]) for it in parameters):
            sizes[bound] = lob


MOST_INLINE: Final = 4_000
"""Bytes of a value that Oracle takes in any statement."""


def _is_long(value: str | bytes | None) -> bool:
    if isinstance(value, str):
        return 4 * len(value) > MOST_INLINE and len(value.encode()) > MOST_INLINE
    return value is not None and len(value) > MOST_INLINE
