"""Alembic around a connection: create, upgrade, verify.

Alembic itself is imported only where something is migrated, so that opening a database that is
in order costs one SELECT.
"""

from __future__ import annotations

import io
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    SchemaError,
)
from locus_store.sql.schema import DEFAULT_PREFIX, Tables, tables
from locus_store.sql.status import (
    Settings,
    Status,
    is_usable,
    masked,
    missing,
    read_settings,
    read_status,
)

if TYPE_CHECKING:
    from alembic.config import Config

AutoMigrate = bool | Literal["upgrade"]
Target = Engine | Connection | URL | str

DEFAULT_URL: Final = "sqlite:///locus_checkpoints.db"
"""What ``sqlite_checkpointer()`` opens."""

_WHEEL = Path(__file__).parents[1] / "_alembic"
SCRIPTS: Final = _WHEEL if _WHEEL.is_dir() else Path(__file__).parents[2] / "alembic"
"""The migrations: what the wheel carries, else the checkout's."""

_BUSY_MILLISECONDS: Final = 60_000
# Alembic's context is a global of the process: 16 of 16 concurrent upgrades failed without this.
_process_lock = threading.RLock()


# --- opening --------------------------------------------------------------------------------


def ensure(
    connection: Connection,
    *,
    auto_migrate: AutoMigrate = True,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> Settings:
    """Verify the schema, and create it where none exists.

    Args:
        connection: Without a transaction begun; it has none afterwards either.
        auto_migrate: ``True`` creates and never upgrades; ``"upgrade"`` does both; ``False``
            only verifies.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.

    Raises:
        SchemaError: behind, too new, foreign, damaged, or missing with ``auto_migrate=False``.
    """
    ours = tables(prefix, schema)
    with _ended(connection):
        settings = read_settings(connection, ours)
    if settings is not None and is_usable(settings):
        return settings
    status = check(connection, prefix=prefix, schema=schema)
    if status.state == "missing" and auto_migrate:
        status = _create(connection, ours)
    elif status.state == "behind" and auto_migrate == "upgrade":
        upgrade(connection, prefix=prefix, schema=schema)
        status = check(connection, prefix=prefix, schema=schema)
    if status.settings is None or not status.usable:
        raise SchemaError(status.message)
    return status.settings


def check(target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> Status:
    """What stands in the database under our names; changes nothing."""
    ours = tables(prefix, schema)
    absent = _absent(target)
    if absent is not None:
        return missing(absent, ours)
    with connected(target) as connection, _ended(connection):
        return read_status(connection, ours)


def _create(connection: Connection, ours: Tables) -> Status:
    with locked(connection, ours):
        # Another process may have made it while this one waited for the lock.
        status = read_status(connection, ours)
        if status.state == "missing":
            _run(connection, ours, lambda config: _command().upgrade(config, "head"))
            status = read_status(connection, ours)
    return status


def refuse_foreign(connection: Connection, ours: Tables) -> None:
    """``SchemaError`` where a migration would meet what it did not make or does not know."""
    status = read_status(connection, ours)
    if status.state in {"foreign", "damaged", "newer", "too new"}:
        raise SchemaError(status.message)


# --- commands -------------------------------------------------------------------------------


def upgrade(
    target: Target,
    revision: str = "head",
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> str | None:
    """Migrate up; gives the revision reached.

    Raises:
        SchemaError: tables of our names are not ours, or the database is newer than this library.
    """
    ours = tables(prefix, schema)
    with connected(target) as connection, locked(connection, ours):
        status = read_status(connection, ours)
        if status.state in {"foreign", "damaged", "too new"}:
            raise SchemaError(status.message)
        if status.state in {"missing", "behind"}:
            _run(connection, ours, lambda config: _command().upgrade(config, revision))
        return read_status(connection, ours).revision


def downgrade(
    target: Target,
    revision: str = "base",
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> str | None:
    """Migrate down; ``base`` drops every table and what is in them. Gives the revision reached.

    Raises:
        SchemaError: there is nothing of ours, or the database is newer than this library.
    """
    ours = tables(prefix, schema)
    absent = _absent(target)
    if absent is not None:
        raise SchemaError(missing(absent, ours).message)
    with connected(target) as connection, locked(connection, ours):
        status = read_status(connection, ours)
        if status.state not in {"ok", "behind"}:
            raise SchemaError(status.message)
        _run(connection, ours, lambda config: _command().downgrade(config, revision))
        return read_status(connection, ours).revision


def current(
    target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> str | None:
    """The database's revision; ``None`` where there is no schema of ours."""
    return check(target, prefix=prefix, schema=schema).revision


def history() -> list[tuple[str, str]]:
    """Revisions this library knows, oldest first, each with its first line."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - slow, not needed to open

    with _process_lock:
        scripts = ScriptDirectory(str(SCRIPTS))
        found = [(script.revision, script.doc) for script in scripts.walk_revisions()]
    return found[::-1]


def offline_sql(
    dialect: str,
    revision: str = "head",
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> str:
    """The statements that an upgrade would run, as text; needs no driver and no database.

    Args:
        dialect: ``sqlite``, ``postgresql`` or ``oracle``.
        revision: To where, or ``from:to``.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.
    """
    output = io.StringIO()
    config = _config(tables(prefix, schema), output)
    config.attributes["dialect"] = dialect_name(dialect)
    with _process_lock, _translated():
        _command().upgrade(config, revision, sql=True)
    return output.getvalue()


def _command() -> Any:
    from alembic import command  # noqa: PLC0415 - as above

    return command


def _config(ours: Tables, output: io.StringIO | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes.update(prefix=ours.prefix, schema=ours.schema)
    return config


def _run(connection: Connection, ours: Tables, action: Callable[[Config], object]) -> None:
    config = _config(ours)
    config.attributes["connection"] = connection
    with _translated():
        action(config)


@contextmanager
def _translated() -> Iterator[None]:
    from alembic.util import CommandError  # noqa: PLC0415 - as above

    try:
        yield
    except CommandError as error:
        raise SchemaError(str(error)) from error


# --- connections ----------------------------------------------------------------------------

_SYNCHRONOUS: Final = {
    "sqlite+aiosqlite": "sqlite",
    "postgresql+asyncpg": "postgresql+psycopg",
    "oracle": "oracle+oracledb",
    "oracle+oracledb_async": "oracle+oracledb",
}
_DIALECTS: Final = ("sqlite", "postgresql", "oracle")
_EXTRAS: Final = {"postgresql": "postgres", "oracle": "oracle"}


def dialect_name(url: str) -> str:
    """The dialect of a URL or of a bare scheme, whether or not its driver is installed."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    name = {"postgres": "postgresql"}.get(scheme, scheme)
    if name not in _DIALECTS:
        raise InvalidArgumentError(f"dialect {name!r}: choose one of {', '.join(_DIALECTS)}")
    return name


def synchronous_url(url: str | URL) -> URL:
    """The URL with a driver that blocks, which is what migrations run on."""
    if isinstance(url, str) and url.startswith("postgres://"):
        url = url.replace("postgres://", "postgresql://", 1)
    try:
        made = make_url(url)
    except sa.exc.ArgumentError as error:
        # The text is not repeated: it may hold a password.
        raise InvalidArgumentError(
            "the database URL cannot be read; expected for example sqlite:///file.db or"
            " postgresql://user@host/database"
        ) from error
    dialect_name(made.drivername)
    return made.set(drivername=_SYNCHRONOUS.get(made.drivername, made.drivername))


@contextmanager
def connected(target: Target) -> Iterator[Connection]:
    """A connection of the target; closed afterwards unless it was the target."""
    if isinstance(target, Connection):
        yield target
    elif isinstance(target, Engine):
        with target.connect() as connection:
            yield connection
    else:
        with _opened(synchronous_url(target)) as connection:
            yield connection


@contextmanager
def _opened(url: URL) -> Iterator[Connection]:
    shown = masked(url)
    try:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    except ImportError as error:
        name = dialect_name(url.drivername)
        extra = f"[{_EXTRAS[name]}]" if name in _EXTRAS else ""
        raise MissingExtraError(
            f"{shown}: no module {error.name}; pip install 'locus-store{extra}'"
        ) from error
    except sa.exc.ArgumentError as error:
        raise InvalidArgumentError(f"{shown}: {error}") from error
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise ConnectionFailedError(f"{shown}: cannot be opened: {error.orig}") from error
    try:
        with connection:
            yield connection
    except DBAPIError as error:
        raise BackendError(f"{shown}: {error.orig}") from error


def _absent(target: Target) -> URL | None:
    """The URL of a SQLite file that is not there: connecting would make it."""
    if isinstance(target, (Connection, Engine)):
        return None
    url = synchronous_url(target)
    if url.get_backend_name() != "sqlite" or not url.database or "mode" in url.query:
        return None
    is_file = url.database != ":memory:" and not url.database.startswith("file:")
    return url if is_file and not Path(url.database).exists() else None


@contextmanager
def _ended(connection: Connection) -> Iterator[None]:
    """Leaves no transaction behind, and so refuses to start in one."""
    _refuse_transaction(connection)
    try:
        yield
    finally:
        connection.rollback()


def _refuse_transaction(connection: Connection) -> None:
    if connection.in_transaction():
        raise InvalidArgumentError("a migration needs a connection without a transaction begun")


# --- locks ----------------------------------------------------------------------------------


@contextmanager
def locked(connection: Connection, ours: Tables) -> Iterator[None]:
    """One transaction, alone in this process and in this database; committed at the end."""
    lock = _LOCKS.get(connection.dialect.name, _lock_table)
    with _process_lock:
        _refuse_transaction(connection)
        with lock(connection, ours):
            yield


@contextmanager
def _begin_immediate(connection: Connection, ours: Tables) -> Iterator[None]:
    # Python's sqlite3 begins no transaction for DDL, so it is begun and ended in SQL; this also
    # holds for a connection in autocommit and for engines that emit a BEGIN of their own.
    run = connection.exec_driver_sql
    with closing(connection.begin()):
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:
            run("COMMIT")
        with _pragmas(connection, busy_timeout=_BUSY_MILLISECONDS, legacy_alter_table=1):
            run("BEGIN IMMEDIATE")
            try:
                yield
                run("COMMIT")
            finally:
                if not connection.invalidated and driver.in_transaction:
                    run("ROLLBACK")


@contextmanager
def _pragmas(connection: Connection, **values: int) -> Iterator[None]:
    """Pragmas of the connection while it migrates; legacy_alter_table: views outlive a rename."""
    run = connection.exec_driver_sql
    previous = {name: run(f"PRAGMA {name}").scalar_one() for name in values}
    for name, value in values.items():
        run(f"PRAGMA {name} = {value}")
    try:
        yield
    finally:
        # An interrupt closes the connection, and takes its pragmas with it.
        for name, value in previous.items() if not connection.invalidated else ():
            run(f"PRAGMA {name} = {value}")


@contextmanager
def _advisory_lock(connection: Connection, ours: Tables) -> Iterator[None]:
    key = zlib.crc32(f"locus-store {ours.schema} {ours.prefix}".encode())
    # A connection in autocommit would free the lock at once.
    connection.execution_options(isolation_level="READ COMMITTED")
    with connection.begin():
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
        yield


@contextmanager
def _lock_table(connection: Connection, ours: Tables) -> Iterator[None]:
    # Where DDL commits (Oracle), a lock on the same connection would not outlive a statement.
    name = connection.dialect.identifier_preparer.format_table(
        sa.table(f"{ours.prefix}lock", schema=ours.schema)
    )
    with connection.engine.connect() as keeper:
        keeper.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {name} (held INTEGER)")
        keeper.exec_driver_sql(f"LOCK TABLE {name} IN EXCLUSIVE MODE")
        try:
            with connection.begin():
                yield
        finally:
            keeper.rollback()


_LOCKS: Final[dict[str, Callable[[Connection, Tables], AbstractContextManager[None]]]] = {
    "sqlite": _begin_immediate,
    "postgresql": _advisory_lock,
}


# --- other people's Alembic, and ours -------------------------------------------------------

IncludeObject = Callable[[Any, Any, str, bool, Any], bool]


def excluding(prefix: str = DEFAULT_PREFIX, *, then: IncludeObject | None = None) -> IncludeObject:
    """An ``include_object`` for your ``env.py`` that leaves the tables of ``prefix`` alone.

    Args:
        prefix: As the store is opened.
        then: Your own hook, asked about everything else.
    """
    names = tables(prefix).names
    grown = (f"{prefix}search", f"{prefix}embeddings", f"{prefix}lock")  # made on request

    def include(item: Any, name: Any, kind: str, reflected: bool, other: Any) -> bool:
        if kind == "table" and (name in names or str(name).startswith(grown)):
            return False
        return then is None or then(item, name, kind, reflected, other)

    return include


include_object: Final = excluding()
"""``context.configure(..., include_object=include_object)``: for the default prefix."""


def only_ours(ours: Tables, dialect: str) -> IncludeObject:
    """The ``include_object`` of our own ``env.py``: our tables, and this dialect's indexes."""

    def include(item: Any, name: Any, kind: str, reflected: bool, other: Any) -> bool:
        if kind == "table":
            return name in ours.names
        if kind == "index" and not reflected:
            return dialect in item.info.get("dialects", (dialect,))
        return True

    return include
