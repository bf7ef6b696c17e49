"""SQLite: one file, durable, any number of processes on one host."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

from sqlalchemy.engine import Engine

from locus_store.backends.sqlite import connecting, dialect
from locus_store.backends.sqlite.options import (
    SQLiteCheckpointerOptions,
    SQLiteConnections,
    SQLiteOptions,
)
from locus_store.backends.sqlite.runners import READERS, AsyncEngineRunner, ThreadRunner
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.saver import CheckpointSaver
from locus_store.sql.backend import SqlBackend
from locus_store.sql.connections.backend import Runner
from locus_store.sql.connections.diagnostics import Examination, get_package_version
from locus_store.sql.connections.options import refuse_connections
from locus_store.sql.schema.tables import make_tables, parse_prefix
from locus_store.types import Mark, Stored
from locus_store.types.arguments import check_tenant, make_absolute
from locus_store.types.facts import Fact
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


_WORTH_SHRINKING = 1_000_000
"""Bytes of free space from which a remedy is given."""


class SQLiteExamination(Examination):
    """A database file, or a database in memory."""

    def iterate_software(self) -> Iterator[Fact]:
        yield Fact("aiosqlite", get_package_version("aiosqlite"))
        yield Fact("server", f"SQLite {sqlite3.sqlite_version}")

    def iterate_settings(self) -> Iterator[Fact]:
        mode = str(self._read_pragma("journal_mode")).upper()
        is_fine = mode in {"WAL", "MEMORY"}
        remedy = "readers and writers wait for each other: PRAGMA journal_mode=WAL"
        yield Fact(
            "journal mode", mode, "ok" if is_fine else "warn", "" if is_fine else f"{remedy}, once"
        )

        path = self.connection.exec_driver_sql("PRAGMA database_list").all()[0].file
        if path and not all(os.access(it, os.W_OK) for it in (path, os.path.dirname(path))):
            remedy = "if this program saves: grant write permission on the file and its directory"
            yield Fact("file", "read-only", "warn", f"{remedy}, on a file system that allows it")

        free = int(self._read_pragma("freelist_count")) * int(self._read_pragma("page_size"))
        is_much = free > _WORTH_SHRINKING and free > (self.measure_total() or 0) // 4
        remedy = 'later saves use it; to shrink the file: sqlite3 FILE "VACUUM"' if is_much else ""
        yield Fact("free space in the file", f"{free:,} bytes", "info", remedy)

    def measure_total(self) -> int | None:
        """See ``Examination``; SQLite reports only the size of the whole file."""
        return int(self._read_pragma("page_count")) * int(self._read_pragma("page_size"))

    def _read_pragma(self, name: str) -> Any:
        return self.connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


DEFAULT_PATH = "locus_checkpoints.db"


class SQLiteBackend(SqlBackend):
    """Keeps versions in an SQLite database.

    One thread at a time writes, and commits waiting saves together. Readers work at the same time.
    Several processes may share the file, but it must not be on a network file system.

    Args:
        path: Path of the file, created if missing; ``":memory:"`` lives as long as this object.
        table_name: As in the Locus SDK: ``x``, ``x_checkpoints`` or ``x_store`` means prefix
            ``x_``.
        options: See ``options.SQLiteOptions``.

    Raises:
        InvalidArgumentError: An option is not valid.
    """

    factory = "sqlite_checkpointer"
    database: ClassVar[type[dialect.SQLiteDatabase]] = dialect.SQLiteDatabase
    examination = SQLiteExamination

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        table_name: str | None = None,
        **options: Unpack[SQLiteOptions],
    ) -> None:
        given = fill_defaults(SQLiteOptions, options, "SQLiteBackend")
        handed_in: Any = _check_engine(given["engine"])
        if handed_in is not None:
            refuse_connections(SQLiteConnections, given)
            if path != DEFAULT_PATH:
                raise InvalidArgumentError("path: an engine has its own database; leave it out")
        file = None
        if handed_in is None:
            file = str(path) if str(path) == connecting.MEMORY else make_absolute("path", path)
        self.path = file
        """Path of the file; ``None`` with ``engine``."""
        self._where = file or handed_in.url.render_as_string(hide_password=True)
        check_tenant(given["tenant"])
        database = self.database(
            file,
            self._where,
            make_tables(parse_prefix(table_name, given["prefix"], "sqlite")),
            tenant=given["tenant"],
            auto_migrate=given["auto_migrate"],
        )
        if file is None:
            runner = _adopt_engine(database, handed_in)
        else:
            engines = partial(_make_engines, database, file, given["busy_timeout_seconds"])
            runner = ThreadRunner(database, engines, keeps_open=file == connecting.MEMORY)
        super().__init__(database, runner, given)
        # An engine's connections may belong to one thread.
        self.moves_between_threads = self.needs_no_loop = file is not None

    def __repr__(self) -> str:
        return f"SQLiteBackend({self._where!r})"

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        """See ``StorageBackend``; a known head is confirmed in the thread of the event loop."""
        if isinstance(self._reader, ThreadRunner):
            make, place = self._database.make_repository, (thread_id, namespace, known)
            with self._translating:
                found = self._reader.peek(lambda it: make(it).confirm(*place, writes=with_writes))
            if found is not None:
                return found
        ask = super().fetch_head
        return await ask(thread_id, namespace=namespace, known=known, with_writes=with_writes)

    async def create_search_index(self) -> bool:
        """Create the full-text index over all threads; return ``False`` if it exists.

        It multiplies the space (see docs/sqlite.md) and makes ``search`` fast; the answers are the
        same. Every process that uses the database keeps it up from then on.
        """
        return await self._write(lambda it: cast("dialect.SQLiteRepository", it).create_index())


def _adopt_engine(database: dialect.SQLiteDatabase, engine: Any) -> Runner:
    shares_connection = dialect.has_one_connection(engine)
    if not isinstance(engine, Engine):
        return AsyncEngineRunner(database, engine, shares_connection=shares_connection)
    engines = (engine, None if shares_connection else engine)
    return ThreadRunner(database, lambda: engines, owns_engines=False, keeps_open=shares_connection)


def _make_engines(
    database: dialect.SQLiteDatabase, path: str, timeout: float
) -> tuple[Engine, Engine | None]:
    database.require_file()
    writes = connecting.make_engine(path, busy_timeout_seconds=timeout)
    if path == connecting.MEMORY:
        return writes, None
    return writes, connecting.make_engine(path, busy_timeout_seconds=timeout, readers=READERS + 1)


def sqlite_checkpointer(
    path: str | os.PathLike[str] = DEFAULT_PATH,
    table_name: str | None = None,
    *,
    state_type: type[S] | None = None,
    **options: Unpack[SQLiteCheckpointerOptions],
) -> StorageBackendAdapter[S, SQLiteBackend]:
    """Return a checkpointer over an SQLite file.

    Arguments and errors are those of ``SQLiteBackend`` and ``StorageBackendAdapter``.
    """
    own, rest = split_options(CheckpointOptions, options)
    backend = SQLiteBackend(path, table_name, **rest)
    return StorageBackendAdapter(backend, state_type=state_type, **own)


class SQLiteCheckpointSaver(CheckpointSaver):
    """A ``CheckpointSaver`` over an SQLite file.

    Arguments and errors are those of ``SQLiteBackend`` and ``CheckpointSaver``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        table_name: str | None = None,
        **options: Unpack[SQLiteCheckpointerOptions],
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        super().__init__(SQLiteBackend(path, table_name, **rest), **own)


def _check_engine(engine: object) -> AsyncEngine | Engine | None:
    if engine is None:
        return None
    from sqlalchemy.ext.asyncio import AsyncEngine  # noqa: PLC0415  (slow: it imports the ORM)

    if not isinstance(engine, AsyncEngine | Engine) or engine.dialect.name != "sqlite":
        raise InvalidArgumentError(f"engine must be a SQLAlchemy engine for SQLite, not {engine!r}")
    return engine
