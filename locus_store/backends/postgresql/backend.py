"""PostgreSQL 15 and later: any number of hosts, over asyncpg."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack, cast
from weakref import WeakKeyDictionary

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import NullPool, QueuePool

from locus_store.backends.postgresql import contents, deletions, dialect, dsn as dsns
from locus_store.backends.postgresql.connecting import check_pool, require_asyncpg
from locus_store.backends.postgresql.diagnostics import PostgreSQLExamination
from locus_store.backends.postgresql.options import (
    PostgreSQLCheckpointerOptions,
    PostgreSQLConnections,
    PostgreSQLOptions,
    make_dsn,
    make_pool_size,
)
from locus_store.backends.postgresql.pending_writes import WriteBatches
from locus_store.backends.postgresql.policies import is_unset
from locus_store.backends.postgresql.replicas import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    PrimaryRunner,
    Replica,
    ReplicaReader,
    ask_through,
)
from locus_store.backends.postgresql.row_security import see_all_tenants
from locus_store.backends.postgresql.save_groups import GROUP, WORKERS, Saves
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.runtime.retries import retry_lost_races
from locus_store.saver import CheckpointSaver
from locus_store.sql.backend import ServerBackend
from locus_store.sql.connections.backend import make_writing
from locus_store.sql.connections.lending import ConnectionPool
from locus_store.sql.connections.options import refuse_connections, require_one
from locus_store.sql.connections.pool import LoopPool, PooledRunner
from locus_store.sql.quotas import limit_calls, measure_save, measure_writes
from locus_store.sql.schema.tables import make_tables, parse_prefix
from locus_store.sql.threads.repository import Repository
from locus_store.types import LineContents, Mark, Removed, Save, Stored, Version, Written
from locus_store.types.arguments import check_limit, check_names, check_tenant
from locus_store.types.facts import Fact, Verdict
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options
from locus_store.versions import PutWrites


class PostgreSQLBackend(ServerBackend):
    """Keeps versions in a PostgreSQL database.

    Saves that are under way at once share statements and commits. Each event loop has a pool of
    its own.

    Args:
        dsn: As your provider issues it: a URL or ``host=… dbname=…``; see ``dsn.parse``. ``None``:
            the one of the environment (``PGHOST`` and so on).
        table_name: As in the Locus SDK: ``x``, ``x_checkpoints`` or ``x_store`` means prefix
            ``x_``.
        options: See ``options.PostgreSQLOptions``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: asyncpg is not installed.
    """

    factory = "postgresql_checkpointer"
    database: ClassVar[type[dialect.PostgreSQLDatabase]] = dialect.PostgreSQLDatabase
    examination = PostgreSQLExamination

    _database: dialect.PostgreSQLDatabase

    def __init__(
        self,
        dsn: str | None = None,
        table_name: str | None = None,
        **options: Unpack[PostgreSQLOptions],
    ) -> None:
        require_asyncpg()
        given = fill_defaults(PostgreSQLOptions, options, "PostgreSQLBackend")
        check_tenant(given["tenant"])
        engine, pool = given["engine"], given["pool"]
        require_one(schema=given["schema"], schema_name=given["schema_name"])
        place = make_dsn(dsn, given)
        require_one(dsn=place, engine=engine, pool=pool)
        kept, overflow = make_pool_size(given)
        is_ours = engine is None and pool is None
        if is_ours:
            target = dsns.parse(
                place or "postgresql://", password=given["password"], ours=dsns.OURS
            )
            where = target.shown
            runner: Callable[[dialect.PostgreSQLDatabase], PooledRunner] = partial(
                _make_own_runner,
                target,
                given,
                pool_size=kept,
                max_overflow=overflow,
                pool_timeout=given["pool_timeout_seconds"],
                pool_recycle=given["pool_recycle_seconds"] or -1,
            )
        else:
            refuse_connections(PostgreSQLConnections, given)
            where, runner = _adopt_connections(engine, pool)
        self._where = where
        self._save_timeout_seconds = given["statement_timeout_seconds"] if is_ours else None
        schema = given["schema"] if given["schema_name"] is None else given["schema_name"]
        made = self.database(
            where,
            make_tables(parse_prefix(table_name, given["prefix"], "postgresql"), schema),
            tenant=given["tenant"],
            auto_migrate=given["auto_migrate"],
        )
        super().__init__(made, runner(made), given)
        self._replicas: ReplicaReader | None = None
        if isinstance(self._runner, PrimaryRunner):
            self._reader = self._replicas = ReplicaReader(self._runner)
            self._lists = ReplicaReader(self._runner, may_lack_writes=True)
        self.moves_between_threads = is_ours
        self._calls: WeakKeyDictionary[LoopPool, tuple[Saves, WriteBatches]] = WeakKeyDictionary()
        is_grouped = given["group_saves"]
        self._group, self._workers = (GROUP, WORKERS) if is_grouped else (1, kept + overflow)

    def _enter(self, tenant: str) -> None:
        super()._enter(tenant)
        self._calls = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"PostgreSQLBackend({self._where!r})"

    @limit_calls(measure_save)
    async def commit(self, save: Save) -> Written:
        with self._translating:
            _pool, saves, _ = await self._get_calls()
            return self._join_soon(save, await saves.submit(save))

    async def _get_calls(self) -> tuple[LoopPool, Saves, WriteBatches]:
        """Return the pool of the running loop, which only the caller keeps if ``close`` drops it.

        Beside it, the tenant's saves and pending writes of this loop, which are grouped.
        """
        pool = await self._runner.get_pool()
        found = self._calls.get(pool)
        if found is None:
            where, size, workers = (pool, self._database), self._group, self._workers
            limit = self._save_timeout_seconds
            saves = Saves(*where, size=size, workers=workers, timeout_seconds=limit)
            found = saves, WriteBatches(*where, size=size, workers=workers)
            self._calls[pool] = found
        return pool, *found

    async def read_token(self) -> str:
        """Return a token of all that is committed now, for ``limit_staleness(at_least=…)``."""
        with self._translating:
            pool = await self._runner.get_pool()
            return (await pool.retry(lambda: ask_through(pool))).position.to_token()

    async def commit_on(self, save: Save, connection: object) -> Written:
        try:
            return await super().commit_on(save, connection)
        finally:
            self.note_joined(connection, save.thread_id)

    def note_joined(self, connection: object, thread_id: str) -> None:
        """Note a write in a transaction of the caller's; see ``LoopPool.note_write``."""
        if self._replicas:
            self._replicas.note_joined(connection, thread_id)

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        fast = self._database.fast
        text = (fast.head if checkpoint_id is None else fast.named)[with_writes]
        key = thread_id, namespace, *([] if checkpoint_id is None else [checkpoint_id])
        rows = await self._ask_line(text, key, thread_id)
        if not rows:
            return None
        if rows[0]["sequence"] is None and checkpoint_id is None:  # raises the error
            return await super().fetch(thread_id, namespace=namespace)
        return fast.make_stored(rows[0], self._database.opened.store, thread_id, namespace)

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        fast, store = self._database.fast, self._database.opened.store
        key = (thread_id, namespace, known.line, known.sequence, known.digest)
        text = fast.head_after[with_writes]
        rows = await self._ask(text, key, thread_id, known) if known.store == store else []
        found = fast.make_stored(rows[0], store, thread_id, namespace, known) if rows else None
        if found is not None:
            return found
        which: dict[str, Any] = {"namespace": namespace, "with_writes": with_writes}
        return await PostgreSQLBackend.fetch(self, thread_id, **which)  # sealed, as here

    async def version(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: str = ""
    ) -> Version | None:
        check_names(thread_id, namespace, checkpoint_id)
        fast = self._database.fast
        text = fast.head_version if checkpoint_id is None else fast.named_version
        key = thread_id, namespace, *([] if checkpoint_id is None else [checkpoint_id])
        rows = await self._ask_line(text, key, thread_id)
        store = self._database.opened.store  # known once the database was opened
        return next(iter(fast.make_versions(rows, store, thread_id, namespace)), None)

    async def history(
        self, thread_id: str, *, namespace: str = "", limit: int = 10, before: str | None = None
    ) -> list[Version]:
        check_names(thread_id, namespace, before)
        check_limit(limit)
        fast = self._database.fast
        key = (thread_id, namespace, before, limit)
        rows = await self._ask_line(fast.history, key, thread_id)
        if rows and before is not None and rows[0]["before"] is None:
            raise NotFoundError(
                f"thread {thread_id!r} has no checkpoint {before!r} to list below; begin again "
                "without a cursor"
            )
        return fast.make_versions(rows, self._database.opened.store, thread_id, namespace)

    async def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        text = self._database.fast.contents
        rows = await self._ask(text, contents.make_parameters(versions))
        return contents.parse_contents(rows, versions)

    @limit_calls(measure_writes)
    async def store_writes(self, put: PutWrites) -> bool:
        places = {(it.task_id, it.idx) for it in put.writes}
        is_ours = put.known is None or put.known.store == self._database.opened.store
        is_plain = put.seen is None and put.must_exist != "task" and self._database.audit is None
        is_fast = is_plain and is_ours and len(places) == len(put.writes)
        # Once more: a line may be created by another call at the same time.
        if is_fast and (await self._store_batch(put) or await self._store_batch(put)):
            return True
        return await super().store_writes(put)

    async def _store_batch(self, put: PutWrites) -> bool:
        with self._translating:
            _pool, _, batches = await self._get_calls()
            return await batches.submit(put)

    async def _ask_line(self, text: str, key: tuple[Any, ...], thread_id: str) -> list[Any]:
        """Run a statement that reads a line; where tables have partitions, find the line first.

        Args:
            text: It reads.
            key: Its parameters behind the tenant: the thread, the namespace, and others.
            thread_id: The thread.
        """
        find_line = self._database.fast.find_line
        if find_line is None:
            return await self._ask(text, key, thread_id)
        rows: list[Any] = []
        for _ in range(2):  # a line may be replaced by another one meanwhile
            lines = await self._ask(find_line, key[:2], thread_id)
            rows = await self._ask(text, (*key, lines[0]["line"]), thread_id) if lines else []
            if rows or not lines:
                break
        return rows

    async def _ask(
        self,
        text: str,
        values: tuple[Any, ...],
        thread_id: str | None = None,
        last_head: Mark | None = None,
    ) -> list[Any]:
        """Run a statement on the driver's connection; after a lost connection it may run again.

        Args:
            text: It reads.
            values: Its parameters behind the tenant.
            thread_id: The thread that it reads, if it is one.
            last_head: Its newest version that was read or written before.
        """
        values = (self._database.tenant, *values)
        with self._translating:
            pool = await self._runner.get_pool()
            text = self._database.guard(text)  # it may be older than what was just opened
            rows = await self._replicas.fetch(thread_id, text, values) if self._replicas else None
            if rows and (thread_id is None or _is_recent(rows[0], last_head)):
                return rows

            async def asked() -> list[Any]:
                async with pool.lease_driver() as connection:
                    return await connection.fetch(text, *values)  # type: ignore[no-any-return]

            try:
                return await pool.retry(
                    lambda: retry_lost_races(asked, self._database.is_lost_race)
                )
            except self._database.driver_errors as exc:
                if is_unset(exc):  # the next call has other statements
                    await self._runner.open()
                raise

    async def may_see_all_tenants(self) -> bool:
        return await self._read(lambda it: see_all_tenants(it.connection, it.tables), self._runner)

    async def facts(self) -> list[Fact]:
        found = await super().facts()
        replicas = self._runner.replicas if isinstance(self._runner, PrimaryRunner) else ()
        for replica in replicas:
            verdict: Verdict = "warn" if replica.problem else "info"
            found.append(Fact(f"replica {replica.where}", replica.problem or "is read", verdict))
        return found

    async def remove_thread(
        self, thread_id: str, *, head: Mark | None = None, namespace: str = ""
    ) -> Removed:
        check_names(thread_id, namespace)
        database = self._database
        if head is None and database.audit is None:

            def delete(repo: Repository) -> Removed | None:
                own = cast("dialect.PostgreSQLRepository", repo)
                return deletions.delete_thread(own, thread_id, has_index=database.opened.has_index)

            work = make_writing(database, delete)
            with self._translating:
                removed = await self._runner.write(work, database.begin_bare, thread_id=thread_id)
            if removed is not None:
                return removed
        return await super().remove_thread(thread_id, head=head, namespace=namespace)

    async def create_search_index(self) -> bool:
        """Create the full-text index over all threads; return ``False`` if it exists.

        Saves wait until it is built. The index multiplies the space (see docs/postgresql.md), makes
        ``search`` fast and does not change its results. Every process that uses the database
        maintains it from then on.
        """
        return await self._write(lambda it: cast("dialect.PostgreSQLRepository", it).create_index())


def _is_recent(row: Mapping[str, Any], last_head: Mark | None) -> bool:
    """Return whether a replica has a version, and its head is not older than the last one."""
    if row["sequence"] is None:
        return False
    return last_head is None or row["line"] != last_head.line or row["head"] >= last_head.sequence


def _make_own_runner(
    target: dsns.Target,
    options: PostgreSQLOptions,
    database: dialect.PostgreSQLDatabase,
    **pool: Any,
) -> PooledRunner:
    size = dsns.compute_cache_size(target.options, pgbouncer=options["pgbouncer"])

    def make_engines(target: dsns.Target, timeout: float | None, **pool: Any) -> dict[str, Any]:
        engine = partial(
            dialect.make_engine,
            target,
            connect_timeout_seconds=timeout,
            statement_cache_size=size,
            has_partitions=lambda: size > 0 and database.opened.has_partitions,
        )
        limit = options["statement_timeout_seconds"]
        return {
            "make_engine": partial(
                engine, statement_timeout_seconds=limit, poolclass=ConnectionPool, **pool
            ),
            "make_opening_engine": partial(
                engine, statement_timeout_seconds=None, poolclass=NullPool
            ),
        }

    timeout = options["connect_timeout_seconds"]
    engines = make_engines(target, timeout, **pool)
    if options["replicas"] is None:
        if options["max_staleness_seconds"] is not None:
            raise InvalidArgumentError("max_staleness_seconds needs replicas=: name some standbys")
        return PooledRunner(database, **engines)
    timeout = timeout or target.arguments.get("timeout", CONNECT_SECONDS)
    pool["pool_timeout"] = min(pool["pool_timeout"], ANSWER_SECONDS)
    replicas = [
        Replica(
            database, one.shown, is_behind_pooler=size == 0, **make_engines(one, timeout, **pool)
        )
        for one in dsns.parse_replicas(options["replicas"], target)
    ]
    return PrimaryRunner(
        database, replicas=replicas, stale_seconds=options["max_staleness_seconds"], **engines
    )


def _adopt_connections(
    engine: AsyncEngine | None, pool: Any
) -> tuple[str, Callable[[dialect.PostgreSQLDatabase], PooledRunner]]:
    if pool is not None:
        made, where = dialect.make_engine_of_pool(check_pool(pool)), "of the asyncpg pool"
    else:
        made = _check_engine(engine)
        where = made.url.render_as_string(hide_password=True)
    is_one_loops = pool is not None or isinstance(made.pool, QueuePool)
    return where, partial(
        PooledRunner, make_engine=lambda: made, owns_engines=False, is_one_loops=is_one_loops
    )


def postgresql_checkpointer(
    dsn: str | None = None,
    table_name: str | None = None,
    *,
    state_type: type[S] | None = None,
    **options: Unpack[PostgreSQLCheckpointerOptions],
) -> StorageBackendAdapter[S, PostgreSQLBackend]:
    """Return a checkpointer over a PostgreSQL database.

    Arguments and errors are those of ``PostgreSQLBackend`` and ``StorageBackendAdapter``.
    """
    own, rest = split_options(CheckpointOptions, options)
    backend = PostgreSQLBackend(dsn, table_name, **rest)
    return StorageBackendAdapter(backend, state_type=state_type, **own)


class PostgreSQLCheckpointSaver(CheckpointSaver):
    """A ``CheckpointSaver`` over a PostgreSQL database.

    Arguments and errors are those of ``PostgreSQLBackend`` and ``CheckpointSaver``.
    """

    def __init__(
        self,
        dsn: str | None = None,
        table_name: str | None = None,
        **options: Unpack[PostgreSQLCheckpointerOptions],
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        super().__init__(PostgreSQLBackend(dsn, table_name, **rest), **own)


def _check_engine(engine: object) -> AsyncEngine:
    if not isinstance(engine, AsyncEngine) or engine.dialect.driver != "asyncpg":
        raise InvalidArgumentError(
            "engine must be an async SQLAlchemy engine for PostgreSQL on asyncpg "
            f"(create_async_engine('postgresql+asyncpg://…')), not {engine!r}"
        )
    return engine
