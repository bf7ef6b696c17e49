"""PostgreSQL, and every way to it, held to the contract of ``locus_store.testing``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import asyncpg
import pytest
from anyio import to_thread
from oracle_steps import InKindBackend
from servers import run
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from test_contract import LocusStates

from locus_store import InvalidArgumentError, StorageBackendAdapter, postgresql_checkpointer
from locus_store.testing import CheckpointerContract, StorageBackendContract
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames

if TYPE_CHECKING:
    from collections.abc import Callable


class ServerProbe:
    """Below a database, by another connection."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _run(self, statement: str, *values: Any) -> list[Any]:
        async def asked() -> list[Any]:
            connection = await asyncpg.connect(self._url)
            try:
                return await connection.fetch(statement, *values)
            finally:
                await connection.close()

        return run(asked())

    def age(self, seconds: float) -> None:
        self._run(
            "UPDATE locus_checkpoints SET created_at = created_at - make_interval(secs => $1)",
            float(seconds),
        )

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        for table in ("locus_checkpoints", "locus_packs"):
            for row in self._run(f"SELECT line, sequence, payload FROM {table}"):
                self._run(
                    f"UPDATE {table} SET payload = $3 WHERE line = $1 AND sequence = $2",
                    row["line"],
                    row["sequence"],
                    change(row["payload"] or b""),
                )

    def holds(self, text: str) -> bool:
        """Return whether any live row has it; dead rows are not read."""
        rows = [
            row
            for table in ("locus_checkpoints", "locus_packs")
            for row in self._run(f"SELECT c::text AS told, payload FROM {table} c")
        ]
        frames = [
            body for row in rows for body in unpack_frames(row["payload"] or b"", MAX_STATE_BYTES)
        ]
        told = [row["told"].encode() for row in rows]
        return any(text.encode() in it for it in frames + told)

    def rows(self) -> int:
        tables = ("threads", "lines", "checkpoints", "packs", "writes", "messages")
        return sum(self._run(f"SELECT count(*) FROM locus_{it}")[0][0] for it in tables)


class OnServer(CheckpointerContract):
    """A database of the test's own."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def url(self, migrated_database):
        return migrated_database

    @pytest.fixture
    def reopen(self, url):
        return partial(
            postgresql_checkpointer,
            url,
            **{"state_type": self.state_type, "pool_size": 4, **self.options},
        )

    @pytest.fixture
    async def checkpointer(self, reopen):
        async with reopen() as made:
            yield made

    @pytest.fixture
    def storage(self, migrated_database):
        return ServerProbe(migrated_database)


class TestPostgreSQL(OnServer):
    pass


class TestPostgreSQLBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, migrated_database):
        return postgresql_checkpointer(migrated_database, pool_size=4).backend


@pytest.mark.variant
class TestPostgreSQLWithoutGroups(OnServer):
    options: ClassVar = {"group_saves": False}


@pytest.mark.variant
@pytest.mark.usefixtures("packs_of_two")
class TestPostgreSQLWithPacks(OnServer):
    """Packs change no answer, and nothing that was deleted is left in them."""


@pytest.mark.variant
class TestPostgreSQLWithAnIndex(OnServer):
    """The full-text index gives the answers of the scan, whatever is deleted, replaced, copied."""

    @pytest.fixture
    async def checkpointer(self, reopen):
        async with reopen() as made:
            await made.backend.create_search_index()
            yield made


@pytest.mark.variant
class TestPostgreSQLOverAnEngine(OnServer):
    @pytest.fixture
    async def reopen(self, url):
        engine = create_async_engine(
            url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool
        )
        yield lambda **options: postgresql_checkpointer(
            engine=engine, **{"state_type": self.state_type, **options}
        )
        await engine.dispose()


@pytest.mark.variant
class TestPostgreSQLOverAPool(OnServer):
    """With codecs of its owner's, which are no concern of ours."""

    @pytest.fixture
    async def reopen(self, url):
        async def own(connection) -> None:
            import json

            for name in ("json", "jsonb"):
                await connection.set_type_codec(
                    name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
                )

        pool = await asyncpg.create_pool(url, min_size=1, max_size=4, init=own)
        yield lambda **options: postgresql_checkpointer(
            pool=pool, **{"state_type": self.state_type, **options}
        )
        assert not pool.is_closing()
        await pool.close()

    async def refused(self, *_: object) -> None:
        pytest.skip("an asyncpg pool belongs to one event loop; see the test of its refusal")

    test_it_works_in_a_second_event_loop = refused
    test_it_works_in_several_loops_at_once = refused
    test_a_load_is_remembered_whatever_it_came_through = refused
    test_own_saves_go_on_whatever_they_come_through = refused

    async def test_a_second_loop_is_refused_while_the_first_one_runs(self, checkpointer):
        await checkpointer.save(self.new("a"), "t")
        with pytest.raises(InvalidArgumentError, match="one event loop at a time"):
            await to_thread.run_sync(lambda: asyncio.run(checkpointer.load("t")))


@pytest.mark.variant
class TestThroughPgBouncer(OnServer):
    """Transaction mode: each transaction may run on another connection."""

    options: ClassVar = {"pgbouncer": True}

    @pytest.fixture
    def url(self, migrated_database, pgbouncer):
        return pgbouncer.url(urlsplit(migrated_database).path.removeprefix("/"))


@pytest.mark.variant
class TestLocusStateOnPostgreSQL(LocusStates, OnServer):
    pass


# --- options


@pytest.mark.parametrize(
    "option",
    [
        {"password": "x"}, {"pool_size": 3}, {"max_overflow": 1}, {"pgbouncer": True},
        {"pool_timeout_seconds": 1}, {"connect_timeout_seconds": 1},
        {"statement_timeout_seconds": 1}, {"pool_recycle_seconds": 1},
    ],
)  # fmt: skip
def test_options_of_connections_go_with_a_dsn_only(option):
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool)
    with pytest.raises(InvalidArgumentError, match=next(iter(option))):
        postgresql_checkpointer(engine=engine, **option)


@pytest.mark.parametrize(
    "option",
    [
        {"pool_size": 0}, {"pool_size": True}, {"max_overflow": -1}, {"pgbouncer": "yes"},
        {"pool_timeout_seconds": 0}, {"connect_timeout_seconds": "1"}, {"engine": object()},
        {"statement_timeout_seconds": -1}, {"pool": object()}, {"table_name": "a", "prefix": "b_"},
        {"tenant": ""}, {"auto_migrate": "maybe"},
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(option):
    with pytest.raises(InvalidArgumentError):
        postgresql_checkpointer(**option)


def test_only_one_place_may_be_named():
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool)
    with pytest.raises(InvalidArgumentError, match="dsn or engine, not both"):
        postgresql_checkpointer("postgresql://h/d", engine=engine)


@pytest.mark.variant
class TestStatementsOfOracle(OnServer):
    """Executed in kind: what Oracle gets for saves, loads and pending writes, on PostgreSQL."""

    @pytest.fixture
    def reopen(self, url):
        def opened(**options: Any) -> StorageBackendAdapter:
            limits = {it: options.pop(it) for it in ["max_state_bytes"] if it in options}
            backend = InKindBackend(url, pool_size=4, **limits)
            return StorageBackendAdapter(backend, **{"state_type": self.state_type, **options})

        return opened


@pytest.mark.variant
class TestStatementsOfOracleBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, migrated_database):
        return InKindBackend(migrated_database)
