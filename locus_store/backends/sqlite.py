"""SQLite: one file, durable, any number of processes on one host."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import InvalidArgumentError, LocusStoreError
from locus_store.sql import sqlite
from locus_store.sql.backend import SqlBackend
from locus_store.sql.grouping import READERS, AsyncEngineRunner, Runner, ThreadRunner
from locus_store.sql.schema import DEFAULT_PREFIX
from locus_store.state import AgentState

if TYPE_CHECKING:
    from locus_store.sql.migrate import AutoMigrate
    from locus_store.sql.repository import Repository
    from locus_store.types import OnConflict

DEFAULT_PATH = "locus_checkpoints.db"
BUSY_TIMEOUT_SECONDS = 30.0


class SQLiteBackend(SqlBackend):
    """Keeps versions in an SQLite database.

    One thread writes, and commits the saves that wait together; readers go on beside it. Several
    processes may share the file; a network file system may not hold it.

    Args:
        path: Of the file, made where there is none; ``":memory:"`` lives as long as this object.
        table_name: As in the Locus SDK: ``x``, ``x_checkpoints`` or ``x_store`` means prefix
            ``x_``.
        prefix: Of the tables; excludes ``table_name``.
        engine: A SQLAlchemy engine, async (``sqlite+aiosqlite``) or not, used instead of ``path``
            and left open. Its connection settings are its owner's: without WAL readers wait, and
            without ``secure_delete`` deleted bytes stay in the file until they are overwritten.
        tenant: Whose threads this object sees.
        auto_migrate: See ``SqlBackend``.
        busy_timeout_seconds: How long to wait for another process's write.

    Raises:
        InvalidArgumentError: An option makes no sense.
    """

    factory = "sqlite_checkpointer"
    repository: ClassVar[type[Repository]] = sqlite.SQLiteRepository
    driver_errors = (*SqlBackend.driver_errors, sqlite3.Error)

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        table_name: str | None = None,
        *,
        prefix: str | None = None,
        engine: AsyncEngine | Engine | None = None,
        tenant: str = "default",
        auto_migrate: AutoMigrate = True,
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
    ) -> None:
        self._path = _checked_path(path)
        self._engine = _checked_engine(engine)
        self._busy_timeout_seconds = busy_timeout_seconds
        super().__init__(
            prefix=prefix_of(table_name, prefix), tenant=tenant, auto_migrate=auto_migrate
        )

    def __repr__(self) -> str:
        return f"SQLiteBackend({self._where!r})"

    @property
    def _where(self) -> str:
        return str(self._engine.url) if self._engine is not None else self._path

    async def create_search_index(self) -> bool:
        """Make the full-text index over all threads; ``False`` where it was there.

        It multiplies the space (see docs/sqlite.md) and makes ``search`` fast; the answers are the
        same. Every process that uses the database keeps it up from then on.
        """
        return await self._write(_create_index)

    def _make_runner(self) -> Runner:
        engine = self._engine
        if isinstance(engine, AsyncEngine):
            return AsyncEngineRunner(self, engine)
        if engine is not None:
            in_memory = engine.url.database in (None, "", sqlite.MEMORY)
            return ThreadRunner(
                self, lambda: (engine, None if in_memory else engine), owns_engines=False
            )
        return ThreadRunner(self, self._own_engines, keeps_open=self._path == sqlite.MEMORY)

    def _own_engines(self) -> tuple[Engine, Engine | None]:
        timeout = self._busy_timeout_seconds
        writes = sqlite.engine(self._path, busy_timeout_seconds=timeout)
        if self._path == sqlite.MEMORY:
            return writes, None
        return writes, sqlite.engine(self._path, busy_timeout_seconds=timeout, readers=READERS)

    def begin_write(self, connection: Connection) -> None:
        """See ``SqlBackend``, as the following."""
        sqlite.begin_write(connection)

    def begin_read(self, connection: Connection) -> None:
        sqlite.begin_read(connection)

    def identity(self) -> object:
        if self._engine is not None or self._path == sqlite.MEMORY:
            return self._where
        return sqlite.file_identity(self._path)

    def _translated(self, exc: Exception) -> LocusStoreError:
        return sqlite.translated(exc, self._where)


def sqlite_checkpointer(
    path: str | os.PathLike[str] = DEFAULT_PATH,
    table_name: str | None = None,
    *,
    prefix: str | None = None,
    engine: AsyncEngine | Engine | None = None,
    tenant: str = "default",
    auto_migrate: AutoMigrate = True,
    busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
    state_type: type[Any] = AgentState,
    on_conflict: OnConflict = "raise",
    keep_last: int | None = None,
    ttl_seconds: float | None = None,
) -> StorageBackendAdapter:
    """Return a checkpointer over an SQLite file.

    The first options are those of ``SQLiteBackend``, the last four of ``StorageBackendAdapter``.

    Raises:
        InvalidArgumentError: An option makes no sense.
    """
    backend = SQLiteBackend(
        path,
        table_name,
        prefix=prefix,
        engine=engine,
        tenant=tenant,
        auto_migrate=auto_migrate,
        busy_timeout_seconds=busy_timeout_seconds,
    )
    return StorageBackendAdapter(
        backend,
        state_type=state_type,
        on_conflict=on_conflict,
        keep_last=keep_last,
        ttl_seconds=ttl_seconds,
    )


def prefix_of(table_name: str | None, prefix: str | None) -> str:
    """The table prefix that a Locus ``table_name`` means.

    Raises:
        InvalidArgumentError: Both are given.
    """
    if table_name is None:
        return DEFAULT_PREFIX if prefix is None else prefix
    if prefix is not None:
        raise InvalidArgumentError("give table_name or prefix, not both")
    stem = table_name.removesuffix("_checkpoints").removesuffix("_store")
    return f"{stem.rstrip('_')}_"


def _create_index(repository: Repository) -> bool:
    assert isinstance(repository, sqlite.SQLiteRepository)  # noqa: S101  (ours)
    return repository.create_index()


def _checked_path(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise InvalidArgumentError(f"path must name a file or be ':memory:', not {path!r}")
    return str(path) if str(path) == sqlite.MEMORY else str(Path(path).expanduser().absolute())


def _checked_engine(engine: object) -> AsyncEngine | Engine | None:
    if engine is None:
        return None
    if not isinstance(engine, AsyncEngine | Engine) or engine.dialect.name != "sqlite":
        raise InvalidArgumentError(f"engine must be a SQLAlchemy engine for SQLite, not {engine!r}")
    return engine
