"""Oracle Database 23ai and 26ai, over python-oracledb's thin mode, the store and the log too.

Not yet run against a live Oracle Database: docs/oracle.md says what was, and how to run the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import NullPool, QueuePool

from locus_store.backends.oracle import addresses, dialect
from locus_store.backends.oracle.columns import METRICS, filter_json
from locus_store.backends.oracle.options import (
    OracleCheckpointerOptions,
    OracleConnections,
    OracleOptions,
    UserOptions,
)
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.saver import CheckpointSaver
from locus_store.sql.backend import ServerBackend
from locus_store.sql.columns.types import make_expiry
from locus_store.sql.connections.diagnostics import Examination, get_package_version, judge_release
from locus_store.sql.connections.lending import ConnectionPool
from locus_store.sql.connections.options import refuse_connections, require_one
from locus_store.sql.connections.pool import PooledRunner
from locus_store.sql.item_columns import select_items
from locus_store.sql.items import Items
from locus_store.sql.message_log import SqlMessageLog
from locus_store.sql.schema.migrations import lock
from locus_store.sql.schema.tables import make_tables, parse_prefix
from locus_store.sql.store import ServerStore
from locus_store.sql.threads.pending import split_batches
from locus_store.store import Embed
from locus_store.types.arguments import check_tenant, choose_backend
from locus_store.types.facts import Fact
from locus_store.types.items import Name, StoreItem, Wanted
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options
from locus_store.values.vectors import Metric


class _OracleExamination(Examination):
    """A server, and the driver's thin mode."""

    def iterate_software(self) -> Iterator[Fact]:
        yield Fact("oracledb", get_package_version("oracledb"))
        driver: Any = self.connection.connection.driver_connection
        number = int(str(driver.version).partition(".")[0])
        yield judge_release(f"Oracle Database {driver.version}", number, addresses.RELEASE, "ai")


T = TypeVar("T")


class OracleBackend(ServerBackend):
    """Keeps versions in an Oracle database.

    A save is one transaction, which locks the line and decides the conflict. A load is one
    statement. Each event loop has a pool of its own.

    Args:
        dsn: An alias of ``tnsnames.ora``, EZConnect (``host:1521/service``) or a descriptor.
        user: The database user; the tables are in this schema unless ``schema_name`` is given.
        password: The user's password.
        options: See ``options.OracleOptions``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: python-oracledb is not installed.
    """

    factory = "oracle_checkpointer"
    examination = _OracleExamination
    database: ClassVar[type[dialect.OracleDatabase]] = dialect.OracleDatabase

    _database: dialect.OracleDatabase

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        **options: Unpack[OracleOptions],
    ) -> None:
        addresses.require_oracledb()
        given = fill_defaults(OracleOptions, options, "OracleBackend")
        check_tenant(given["tenant"])
        engine, pool = given["engine"], given["pool"]
        require_one(dsn=dsn, engine=engine, pool=pool)
        require_one(schema=given["schema"], schema_name=given["schema_name"])
        if engine is not None or pool is not None:
            refuse_connections(UserOptions, {"user": user, "password": password})
            refuse_connections(OracleConnections, given)
            where, runner = _adopt_connections(engine, pool)
        else:
            of_connections, _ = split_options(OracleConnections, given)
            place = addresses.make_address(dsn, user, password, **of_connections)
            where = place.shown
            least, most = given["min_pool_size"], given["max_pool_size"]
            if most < least:
                raise InvalidArgumentError(f"max_pool_size={most} must be at least {least}")
            runner = partial(
                _make_own_runner,
                place=place,
                pool_size=least,
                max_overflow=most - least,
                pool_timeout=given["pool_timeout_seconds"],
            )
        self._where = where
        database = self.database(
            where,
            make_tables(
                parse_prefix(given["table_name"], given["prefix"], "oracle"),
                given["schema"] if given["schema_name"] is None else given["schema_name"],
            ),
            tenant=given["tenant"],
            auto_migrate=given["auto_migrate"],
        )
        super().__init__(database, runner(database), given)

    def __repr__(self) -> str:
        return f"OracleBackend({self._where!r})"

    async def _redefine(self, body: Callable[[Connection], T]) -> T:
        def alone(connection: Connection) -> T:
            with lock(connection, self._database.tables):
                return body(connection)

        with self._translating:
            return await self._runner.define(alone)

    async def create_search_index(self) -> bool:
        """Create the text index (Oracle Text) over all threads; return ``False`` if it exists.

        Saves wait until it is filled. The index makes ``search`` fast and does not change its
        results. Every process that uses the database maintains it from then on.
        """
        with self._translating:
            return await self._runner.define(self._database.create_index)


def _make_own_runner(
    database: dialect.OracleDatabase, *, place: addresses.OracleAddress, **pool: Any
) -> PooledRunner:
    opening = replace(place, call_timeout_seconds=None)  # a migration may take long
    return PooledRunner(
        database,
        lambda: dialect.make_engine(place, poolclass=ConnectionPool, **pool),
        make_opening_engine=lambda: dialect.make_engine(opening, poolclass=NullPool),
    )


def _adopt_connections(
    engine: AsyncEngine | None, pool: Any
) -> tuple[str, Callable[[dialect.OracleDatabase], PooledRunner]]:
    if pool is not None:
        made, where = dialect.make_engine_of_pool(_check_pool(pool)), "of the pool"
    else:
        made = _check_engine(engine)
        dialect.tell_types(made.sync_engine)
        where = made.url.render_as_string(hide_password=True)
    is_one_loops = pool is not None or isinstance(made.pool, QueuePool)
    return where, partial(
        PooledRunner, make_engine=lambda: made, owns_engines=False, is_one_loops=is_one_loops
    )


def _check_engine(engine: object) -> AsyncEngine:
    if not isinstance(engine, AsyncEngine) or engine.dialect.name != "oracle":
        raise InvalidArgumentError(
            "engine must be an async SQLAlchemy engine for Oracle "
            f"(create_async_engine('oracle+oracledb_async://…')), not {engine!r}"
        )
    return engine


def _check_pool(pool: Any) -> Any:
    has_both = all(callable(getattr(pool, it, None)) for it in ("acquire", "release"))
    if not has_both or addresses.is_blocking(pool):
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
    state_type: type[S] | None = None,
    **options: Unpack[OracleCheckpointerOptions],
) -> StorageBackendAdapter[S, OracleBackend]:
    """Return a checkpointer over an Oracle database.

    Options are those of ``OracleBackend`` and of ``StorageBackendAdapter``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: python-oracledb is not installed.
    """
    own, rest = split_options(CheckpointOptions, options)
    backend = OracleBackend(dsn, user, password, **rest)
    return StorageBackendAdapter(backend, state_type=state_type, **own)


class OracleCheckpointSaver(CheckpointSaver):
    """A ``CheckpointSaver`` over an Oracle database.

    Arguments and errors are those of ``OracleBackend`` and ``CheckpointSaver``.
    """

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        **options: Unpack[OracleCheckpointerOptions],
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        super().__init__(OracleBackend(dsn, user, password, **rest), **own)


class OracleItems(Items):
    """Oracle's implementations of the hooks."""

    make_condition = staticmethod(filter_json)

    def renew(self, names: Sequence[Name]) -> None:
        """See ``Items``; Oracle takes no lock in a subquery."""
        c = self.store.c
        for some in split_batches(sorted(names)):
            items = list(self.connection.execute(self.select_renewable(some)).scalars())
            renewed = self.store.update().where(c.item.in_(items))
            self.connection.execute(renewed.values(expires_at=make_expiry(c.ttl_seconds)))

    def rank(self, search: Wanted, vector: bytes) -> Iterator[tuple[StoreItem, float]]:
        """Rank by the index if there is one; exactly if it found too few. Scores are recomputed."""

        def select(size: int) -> Sequence[Any]:
            near = partial(self._select_nearest, search, vector, size)
            rows = self.connection.execute(near()).all()
            if len(rows) < size:  # an index may give up, or miss some
                rows = self.connection.execute(near(is_exact=True)).all()
            return rows

        return self.rank_widening(search, vector, select)

    def _select_nearest(
        self, search: Wanted, vector: bytes, size: int, *, is_exact: bool = False
    ) -> sa.Select[Any]:
        c, e = self.store.c, self.embeddings.c
        metric: Any = sa.literal_column(METRICS[self.context.metric])
        target = sa.literal(vector, e.embedding.type)
        distance = sa.func.vector_distance(e.embedding, target, metric, type_=sa.Float())
        query = select_items(self.tables).add_columns(e.embedding)
        query = query.join_from(self.store, self.embeddings, e.item == c.item)
        query = query.where(*self.are_wanted(search)).order_by(distance)
        return query.fetch(size, oracle_fetch_approximate=not is_exact)


class OracleStore(ServerStore):
    """Keeps items in an Oracle database.

    Embeddings are of type ``VECTOR(n, FLOAT32)``; ``locus-store db vector-index`` creates an index.
    Their dimension cannot be changed later.

    Arguments and errors are those of ``OracleBackend`` and ``BaseStore``. With ``backend``, for
    example ``checkpointer.backend``, its connections are used instead, and it is left open.
    """

    items = OracleItems
    backend: OracleBackend

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: OracleBackend | None = None,
        **options: Unpack[OracleOptions],
    ) -> None:
        super().__init__(
            choose_backend(backend, OracleBackend, dsn, user, password, **options),
            owns=backend is None,
            dimension=dimension,
            metric=metric,
            embed=embed,
        )


class OracleMessageLog(SqlMessageLog):
    """Keeps message logs in an Oracle database.

    Arguments and errors are those of ``OracleBackend`` and ``BaseMessageLog``; for ``backend`` see
    ``OracleStore``.
    """

    backend: OracleBackend

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        ttl_seconds: float | None = None,
        backend: OracleBackend | None = None,
        **options: Unpack[OracleOptions],
    ) -> None:
        super().__init__(
            choose_backend(backend, OracleBackend, dsn, user, password, **options),
            owns=backend is None,
            ttl_seconds=ttl_seconds,
        )
