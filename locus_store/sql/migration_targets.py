"""What a migration runs on: a connection, an engine, or a URL that is opened for it."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    LocusStoreError,
    MissingExtraError,
)
from locus_store.sql.failures import driver_errors
from locus_store.sql.migration_lock import process
from locus_store.sql.names import DEFAULT_PREFIX, check_prefix
from locus_store.sql.options import check_seconds
from locus_store.sql.schema import Tables, tables
from locus_store.sql.status import PLACE, Place, masked
from locus_store.types.arguments import is_path, not_a_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy.ext.asyncio import AsyncEngine

    from locus_store.backends.postgresql import dsn

T = TypeVar("T")
Target = Engine | Connection | URL | str

OPTIONS: Final = frozenset(
    {
        *("auto_migrate", "connect_timeout_seconds", "group_saves", "keep_last", "max_overflow"),
        *("on_conflict", "pgbouncer", "pool_recycle_seconds", "pool_size", "pool_timeout_seconds"),
        *("prefix", "prepared_statement_cache_size", "schema", "statement_cache_size"),
        *("busy_timeout_seconds", "statement_timeout_seconds", "table_name", "tenant"),
        *("ttl_seconds", "refresh_on_read", "max_state_bytes"),
        *("min_pool_size", "max_pool_size", "schema_name"),
    }
)
"""Of the factories, for a URL may hold them; most mean nothing to a migration."""


def _failures() -> tuple[type[Exception], ...]:
    from locus_store.backends.postgresql import dsn  # noqa: PLC0415 - only servers need it

    return (DBAPIError, OSError, dsn.ConnectingError, *driver_errors())


_CONNECT_SECONDS: Final = 30.0


def run_on(
    target: Target, body: Callable[[Connection, Tables], T], *, prefix: str, schema: str | None
) -> T:
    """What the body gives on a connection of the target; what was opened here is closed.

    Raises:
        InvalidArgumentError: The target makes no sense, or is asynchronous.
        ConnectionFailedError: It cannot be reached.
        MissingExtraError: Its driver is not installed.
        BackendError: The database failed, and the target is a URL.
    """
    if hasattr(target, "sync_engine"):  # of AsyncEngine and AsyncConnection, slow to import
        raise _asynchronous()
    if isinstance(target, Engine) and target.dialect.is_async:
        raise _asynchronous()
    if isinstance(target, URL | str):
        served = _SERVED.get(dialect_name(target))
        if served is not None:
            found: T = served(target, body, prefix, schema)
            return found
        url = _read(target)
        ours = {name: str(url.query[name]) for name in OPTIONS & url.query.keys()}
        theirs = url.difference_update_query(ours)
        _require_known(theirs)
        wanted = _named(ours, prefix, schema, theirs.get_backend_name())
        refuse_schema(theirs.get_backend_name(), wanted.schema)
        with _opened(theirs) as connection:
            return body(connection, wanted)
    if isinstance(target, Connection):
        return body(target, _tables(prefix, schema, target.dialect.name))
    with target.connect() as connection:
        return body(connection, _tables(prefix, schema, target.dialect.name))


def _asynchronous() -> InvalidArgumentError:
    return InvalidArgumentError(
        "this function blocks, and the engine or connection is asynchronous; write:"
        " async with engine.connect() as connection: await connection.run_sync(migrate.upgrade)"
    )


def reason(error: BaseException) -> str:
    """What the database says."""
    driver = getattr(error, "orig", None) or error
    told = str(driver.__cause__ or driver)  # SQLAlchemy's asyncpg puts a class name before it
    return told.partition("\nHelp: http")[0]  # python-oracledb's second line


def absent_file(target: Target) -> URL | None:
    """The URL of a SQLite file that is not there: connecting would make it."""
    if not isinstance(target, URL | str) or dialect_name(target) != "sqlite":
        return None
    url = _read(target)
    if not url.database or "mode" in url.query:
        return None
    is_file = url.database != ":memory:" and not url.database.startswith("file:")
    return url if is_file and not Path(url.database).exists() else None


# --- URLs -----------------------------------------------------------------------------------

_WITHOUT_SCHEMA: Final = frozenset({"redis", "rediss", "valkey", "valkeys", "unix"})
_DIALECTS: Final = ("sqlite", "postgresql", "oracle")
_KEYWORDS: Final = re.compile(r"\s*\w+\s*=")
_SYNCHRONOUS: Final = {
    "sqlite+aiosqlite": "sqlite",
}
_DRIVER_OPTIONS: Final = frozenset(
    {
        *("cached_statements", "check_same_thread", "detect_types", "isolation_level", "timeout"),
    }
)
"""Of ``sqlite3.connect``, as SQLAlchemy takes them in a URL."""
_EXTRAS: Final = {"postgresql": "[postgres]"}


def dialect_name(url: str | URL) -> str:
    """The dialect of a URL or of a bare scheme, whether or not its driver is installed."""
    text = url.drivername if isinstance(url, URL) else url
    if _KEYWORDS.match(text):
        return "postgresql"  # libpq's "host=… dbname=…"
    scheme = text.partition(":")[0].partition("+")[0].lower()
    name = {"postgres": "postgresql"}.get(scheme, scheme)
    if name in _WITHOUT_SCHEMA:
        raise InvalidArgumentError("Redis has no schema; nothing to make")
    if name not in _DIALECTS:
        if is_path(text):
            raise not_a_url(text)
        raise InvalidArgumentError(f"dialect {name!r}: choose one of {', '.join(_DIALECTS)}")
    return name


def _read(url: str | URL) -> URL:
    """With the driver that blocks."""
    try:
        made = make_url(url)
    except sa.exc.ArgumentError as error:
        # The text is not repeated: it may hold a password.
        raise InvalidArgumentError(
            "the database URL cannot be read; expected for example sqlite:///file.db or"
            " postgresql://user@host/database"
        ) from error
    made = made.set(drivername=_SYNCHRONOUS.get(made.drivername, made.drivername))
    if made.drivername == "sqlite" and made.database:
        return made.set(database=str(Path(made.database).expanduser()))
    return made


def refuse_schema(dialect: str, schema: str | None) -> None:
    """Where there are none."""
    if dialect == "sqlite" and schema not in {None, "main"}:
        raise InvalidArgumentError("SQLite has no schemas; name a prefix instead: --prefix app_")


def _require_known(url: URL) -> None:
    """That SQLite's driver takes all options of the URL: it would leave the others aside."""
    is_plain = url.get_backend_name() == "sqlite" and "uri" not in url.query
    if is_plain and (unknown := url.query.keys() - _DRIVER_OPTIONS):
        raise InvalidArgumentError(f"no option {min(unknown)!r} for a database URL of SQLite")


@contextmanager
def _opened(url: URL) -> Iterator[Connection]:
    shown = masked(url)
    try:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    except ImportError as error:
        raise _missing(shown, dialect_name(url), error) from error
    except sa.exc.ArgumentError as error:
        raise InvalidArgumentError(f"{shown}: {error}") from error
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise ConnectionFailedError(f"{shown}: cannot be opened: {reason(error)}") from error
    try:
        with connection:
            yield connection
    except DBAPIError as error:
        raise BackendError(f"{shown}: {reason(error)}") from error


def _missing(shown: str, dialect: str, error: ImportError) -> MissingExtraError:
    extra = _EXTRAS.get(dialect, "")
    return MissingExtraError(f"{shown}: no module {error.name}; pip install 'locus-store{extra}'")


# --- servers --------------------------------------------------------------------------------


def _on_engine(
    make: Callable[[], AsyncEngine],
    body: Callable[[Connection], T],
    place: Place,
    connection_error: Callable[[BaseException, str], LocusStoreError | None],
) -> T:
    async def run() -> T:
        engine = make()
        try:
            async with engine.connect() as connection:
                await connection.execution_options(**{PLACE: place})
                return await connection.run_sync(body)
        finally:
            await engine.dispose()

    try:
        result: T = _finished(run)
    except LocusStoreError:
        raise
    except _failures() as error:
        told = connection_error(error, place.shown)
        raise told or BackendError(f"{place.shown}: {reason(error)}") from error
    return result


# --- Oracle ---------------------------------------------------------------------------------


def _on_oracle(
    url: str | URL, body: Callable[[Connection, Tables], T], prefix: str, schema: str | None
) -> T:
    from locus_store.backends.oracle import addresses  # noqa: PLC0415
    from locus_store.backends.oracle import dialect as oracle  # noqa: PLC0415 - they import this

    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    options, ours = addresses.read_url(text, OPTIONS)
    limit = _seconds(ours.get("connect_timeout_seconds"))
    target = addresses.place(**options, timeout_seconds=check_seconds("connect_timeout", limit))
    tables_of = _named(ours, prefix, schema, "oracle")
    return _on_engine(
        lambda: oracle.engine(target, poolclass=sa.NullPool),
        lambda connection: body(connection, tables_of),
        Place(target.shown, is_whole=False),
        lambda *_: None,
    )


def _seconds(text: str | None) -> object:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


# --- PostgreSQL -----------------------------------------------------------------------------


def _on_postgresql(
    url: str | URL, body: Callable[[Connection, Tables], T], prefix: str, schema: str | None
) -> T:
    from locus_store.backends.postgresql import dsn  # noqa: PLC0415 - as above

    target = dsn.parse(url, ours=OPTIONS)
    ours = _named(target.options, prefix, schema, "postgresql")
    place = Place(target.shown, is_whole=str(url) == target.shown)

    return _on_engine(
        lambda: _postgresql_engine(target),
        lambda connection: body(connection, ours),
        place,
        dsn.connection_error,
    )


def _postgresql_engine(target: dsn.Target) -> AsyncEngine:
    from locus_store.backends.postgresql import dsn  # noqa: PLC0415 - as above

    async def connect(*_: Any, **__: Any) -> Any:
        limit = target.arguments.get("timeout", _CONNECT_SECONDS)
        return await dsn.connect(target, timeout=limit, statement_cache_size=0)

    # A pooler may stand between: no statement is prepared for longer than its own run.
    options = {
        "async_creator_fn": connect,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": str,
    }
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - as above

    try:
        return create_async_engine(
            "postgresql+asyncpg://", poolclass=sa.NullPool, connect_args=options
        )
    except ImportError as error:
        raise _missing(target.shown, "postgresql", error) from error


def _named(options: Mapping[str, str], prefix: str, schema: str | None, dialect: str) -> Tables:
    """The tables that the DSN means, where the call itself says nothing else."""
    if "table_name" in options:
        raise InvalidArgumentError("for a migration name the prefix: --prefix x_, not ?table_name=")
    if prefix == DEFAULT_PREFIX:
        prefix = options.get("prefix", prefix)
    named = options.get("schema") or options.get("schema_name")
    return _tables(prefix, named if schema is None else schema, dialect)


def _tables(prefix: str, schema: str | None, dialect: str) -> Tables:
    return tables(check_prefix(prefix, dialect), schema)


def _finished(work: Callable[[], Any]) -> Any:
    """The coroutine's result, on a loop of its own; a running one waits for it."""
    if not _is_in_loop():
        return asyncio.run(work())
    process.refuse_beneath_another()
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(lambda: asyncio.run(work())).result()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_SERVED: Final[dict[str, Callable[..., Any]]] = {
    "postgresql": _on_postgresql,
    "oracle": _on_oracle,
}
