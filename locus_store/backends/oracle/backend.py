"""Oracle Database 23ai and 26ai, over python-oracledb's thin mode.

Not yet run against a live Oracle Database: docs/oracle.md says what was, and how to run the rest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import NullPool, QueuePool

from locus_store.backends.oracle import addresses, dialect
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.saver import CheckpointSaver
from locus_store.sql.backend import SqlBackend
from locus_store.sql.connections.diagnostics import Examination, package_version
from locus_store.sql.connections.lending import ConnectionPool
from locus_store.sql.connections.options import check_count, check_seconds, refuse_ours, require_one
from locus_store.sql.connections.pool import PooledRunner
from locus_store.sql.schema.migrations import locked
from locus_store.sql.schema.tables import prefix_of, tables
from locus_store.sql.threads import copying
from locus_store.types.arguments import check_tenant, check_text
from locus_store.types.facts import Fact
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection
    from typing_extensions import Unpack

    from locus_store.backends.oracle.options import OracleOptions
    from locus_store.sql.migrate import AutoMigrate
    from locus_store.types import Mark, OnConflict, Stored

_OLDEST_ORACLE: Final = 23


class _OracleExamination(Examination):
    """A server, and the driver's thin mode."""

    def software(self) -> Iterator[Fact]:
        """See ``Examination``."""
        yield Fact("SQLAlchemy", sa.__version__)
        yield Fact("oracledb", package_version("oracledb"))
        driver: Any = self.connection.connection.driver_connection
        number = int(str(driver.version).partition(".")[0])
        is_fine = number >= _OLDEST_ORACLE
        yield Fact(
            "server",
            f"Oracle Database {driver.version}",
            "ok" if is_fine else "fail",
            "" if is_fine else f"upgrade the server to {_OLDEST_ORACLE}ai or later",
        )


T = TypeVar("T")

MIN_POOL_SIZE = 1
MAX_POOL_SIZE = 5
STATEMENT_TIMEOUT_SECONDS = 60.0
POOL_TIMEOUT_SECONDS = 30.0


class OracleBackend(SqlBackend):
    """Keeps versions in an Oracle database.

    A save is one transaction, which locks the line and decides the conflict. A load is one
    statement. Each event loop has a pool of its own.

    Args:
        dsn: An alias of ``tnsnames.ora``, EZConnect (``host:1521/service``) or a descriptor.
        user: The database user; the tables are in this schema unless ``schema_name`` is given.
        password: The user's password.
        wallet_location: The directory of a wallet (mTLS), as it was unzipped; ``~`` is the home
            directory. ``tnsnames.ora`` is read from there, too.
        wallet_password: Password of an encrypted wallet; ``None`` or ``""``: it is not encrypted.
        host: Instead of ``dsn``, with ``port`` and ``service_name``.
        port: The listener's port; by default 1521.
        service_name: The database's service.
        table_name: As in the Locus SDK: ``x``, ``x_checkpoints`` or ``x_store`` means prefix
            ``x_``.
        schema_name: The schema of the tables; ``None``: the user's own.
        min_pool_size: Connections per event loop that are kept.
        max_pool_size: Connections per event loop at most.
        engine: An async SQLAlchemy engine (``oracle+oracledb_async``) used instead and left open.
        pool: An ``oracledb.AsyncConnectionPool`` used instead and left open.
        config_dir: Where ``tnsnames.ora`` is, if not beside the wallet.
        prefix: Prefix of the table names; excludes ``table_name``.
        tenant: The tenant whose threads this object sees.
        auto_migrate: See ``SqlBackend``.
        pool_timeout_seconds: How long to wait for a connection of the pool.
        connect_timeout_seconds: Time limit for connecting as a whole; ``None``: 20.
        statement_timeout_seconds: Time limit of each round trip except a migration's; ``None``: no
            limit.
        max_state_bytes: The largest state that is saved or read, as compact JSON.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: python-oracledb is not installed.
    """

    factory = "oracle_checkpointer"
    examination = _OracleExamination
    database: ClassVar[type[dialect.OracleDatabase]] = dialect.OracleDatabase

    _database: dialect.OracleDatabase
    _runner: PooledRunner

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        wallet_location: str | None = None,
        wallet_password: str | None = None,
        host: str | None = None,
        port: int | None = None,
        service_name: str | None = None,
        table_name: str | None = None,
        schema_name: str | None = None,
        min_pool_size: int = MIN_POOL_SIZE,
        max_pool_size: int = MAX_POOL_SIZE,
        engine: AsyncEngine | None = None,
        pool: Any = None,
        config_dir: str | None = None,
        prefix: str | None = None,
        tenant: str = "default",
        auto_migrate: AutoMigrate = True,
        pool_timeout_seconds: float = POOL_TIMEOUT_SECONDS,
        connect_timeout_seconds: float | None = None,
        statement_timeout_seconds: float | None = STATEMENT_TIMEOUT_SECONDS,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        addresses.require_oracledb()
        check_tenant(tenant)
        require_one(dsn=dsn, engine=engine, pool=pool)
        if engine is not None or pool is not None:
            names = ("user", "password", "wallet_location", "wallet_password", "host", "port")
            given = (user, password, wallet_location, wallet_password, host, port)
            refuse_ours(
                **{name: (value, None) for name, value in zip(names, given, strict=True)},
                service_name=(service_name, None),
                config_dir=(config_dir, None),
                min_pool_size=(min_pool_size, MIN_POOL_SIZE),
                max_pool_size=(max_pool_size, MAX_POOL_SIZE),
                pool_timeout_seconds=(pool_timeout_seconds, POOL_TIMEOUT_SECONDS),
                connect_timeout_seconds=(connect_timeout_seconds, None),
                statement_timeout_seconds=(statement_timeout_seconds, STATEMENT_TIMEOUT_SECONDS),
            )
            where, runner = _handed_in(engine, pool)
        else:
            place = addresses.place(
                dsn,
                user,
                password,
                wallet_location=wallet_location,
                wallet_password=wallet_password,
                config_dir=config_dir,
                host=host,
                port=port,
                service_name=service_name,
                timeout_seconds=check_seconds("connect_timeout", connect_timeout_seconds),
                call_timeout_seconds=check_seconds("statement_timeout", statement_timeout_seconds),
            )
            where = place.shown
            least = check_count("min_pool_size", min_pool_size, least=1)
            most = check_count("max_pool_size", max_pool_size, least=least)
            runner = partial(
                _own_runner,
                place=place,
                pool_size=least,
                max_overflow=most - least,
                pool_timeout=check_seconds("pool_timeout", pool_timeout_seconds),
            )
        self._where = where
        database = self.database(
            where,
            tables(prefix_of(table_name, prefix, "oracle"), schema_name),
            tenant=tenant,
            auto_migrate=auto_migrate,
        )
        super().__init__(database, runner(database), max_state_bytes=max_state_bytes)

    def __repr__(self) -> str:
        return f"OracleBackend({self._where!r})"

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        ask = self._read if with_writes else self._query  # one statement needs no transaction
        return await ask(
            lambda it: it.fetch(thread_id, namespace, checkpoint_id, with_writes=with_writes)
        )

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        ask = self._read if with_writes else self._query
        return await ask(
            lambda it: it.fetch(thread_id, namespace, known=known, with_writes=with_writes)
        )

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        check_text("source_thread_id", source_thread_id)
        check_text("dest_thread_id", dest_thread_id)
        database = self._database
        with self._translating():
            return await self._runner.write(
                lambda connection: copying.copy_thread(
                    database.on(connection), source_thread_id, dest_thread_id
                ),
                database.begin_copy,
            )

    async def _redefine(self, body: Callable[[Connection], T]) -> T:
        def alone(connection: Connection) -> T:
            with locked(connection, self._database.tables):
                return body(connection)

        with self._translating():
            return await self._runner.define(alone)

    async def create_search_index(self) -> bool:
        """Create the text index (Oracle Text) over all threads; return ``False`` if it exists.

        Saves wait until it is filled. The index makes ``search`` fast and does not change its
        results. Every process that uses the database maintains it from then on.
        """
        database = self._database
        with self._translating():
            return await self._runner.define(database.create_index)


def _own_runner(
    database: dialect.OracleDatabase, *, place: addresses.OracleAddress, **pool: Any
) -> PooledRunner:
    opening = place.without_call_timeout()
    return PooledRunner(
        database,
        lambda: dialect.engine(place, poolclass=ConnectionPool, **pool),
        make_opening_engine=lambda: dialect.engine(opening, poolclass=NullPool),
    )


def _handed_in(
    engine: AsyncEngine | None, pool: Any
) -> tuple[str, Callable[[dialect.OracleDatabase], PooledRunner]]:
    if pool is not None:
        made, where = dialect.engine_of_pool(_checked_pool(pool)), "of the pool"
    else:
        made = _checked_engine(engine)
        dialect.tell_types(made.sync_engine)
        where = made.url.render_as_string(hide_password=True)
    is_one_loops = pool is not None or isinstance(made.pool, QueuePool)

    def runner(database: dialect.OracleDatabase) -> PooledRunner:
        return PooledRunner(database, lambda: made, owns_engines=False, is_one_loops=is_one_loops)

    return where, runner


def _checked_engine(engine: object) -> AsyncEngine:
    if not isinstance(engine, AsyncEngine) or engine.dialect.name != "oracle":
        raise InvalidArgumentError(
            "engine must be an async SQLAlchemy engine for Oracle "
            f"(create_async_engine('oracle+oracledb_async://…')), not {engine!r}"
        )
    return engine


def _checked_pool(pool: Any) -> Any:
    has_both = all(callable(getattr(pool, it, None)) for it in ("acquire", "release"))
    if not has_both or addresses.blocks(pool):
        raise InvalidArgumentError(
            f"pool must be an oracledb.AsyncConnectionPool (create_pool_async(…)), not {pool!r}"
        )
    if getattr(pool, "max", 2) < 2:  # noqa: PLR2004
        raise InvalidArgumentError(
            "pool needs max=2 or more: while one connection makes the tables, another one holds "
            "the lock"
        )
    return pool


def oracle_checkpointer(
    dsn: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *,
    table_name: str | None = None,
    state_type: type[S] | None = None,
    on_conflict: OnConflict = "raise",
    keep_last: int | None = None,
    ttl_seconds: float | None = None,
    refresh_on_read: bool = False,
    **options: Unpack[OracleOptions],
) -> StorageBackendAdapter[S]:
    """Return a checkpointer over an Oracle database.

    Options are those of ``OracleBackend``, and five of ``StorageBackendAdapter``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: python-oracledb is not installed.
    """
    return StorageBackendAdapter(
        OracleBackend(dsn, user, password, table_name=table_name, **options),
        state_type=state_type,
        on_conflict=on_conflict,
        keep_last=keep_last,
        ttl_seconds=ttl_seconds,
        refresh_on_read=refresh_on_read,
    )


class OracleCheckpointSaver(CheckpointSaver):
    """A ``CheckpointSaver`` over an Oracle database.

    Args:
        dsn: See ``OracleBackend``, as ``user``, ``password`` and ``options``.
        user: The database user.
        password: The user's password.
        table_name: Selects the prefix of the table names.
        on_conflict: See ``CheckpointSaver``, as the two others.
        keep_last: Versions to keep of each namespace.
        ttl_seconds: A thread's time to live.
        refresh_on_read: A load renews that time.
        options: Of ``OracleBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: python-oracledb is not installed.
    """

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        table_name: str | None = None,
        on_conflict: OnConflict = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        refresh_on_read: bool = False,
        **options: Unpack[OracleOptions],
    ) -> None:
        super().__init__(
            OracleBackend(dsn, user, password, table_name=table_name, **options),
            on_conflict=on_conflict,
            keep_last=keep_last,
            ttl_seconds=ttl_seconds,
            refresh_on_read=refresh_on_read,
        )
