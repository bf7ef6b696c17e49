"""The suites on a real Oracle Database: ``make test-oracle``. Not part of ``make test``.

``LOCUS_TEST_ORACLE_DSN``, ``LOCUS_TEST_ORACLE_USER`` and ``LOCUS_TEST_ORACLE_PASSWORD`` name one;
``LOCUS_TEST_ORACLE_WALLET`` and ``LOCUS_TEST_ORACLE_WALLET_PASSWORD`` its wallet, where it needs
one. Its user's tables of prefixes ``live_`` and ``livetwo_`` are made anew, and those of the first
emptied by every test. With
``LOCUS_TEST_ORACLE_CONTAINER=1`` and Docker a container of Oracle Database Free is started instead.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import containers
import pytest
import servers
import sqlalchemy as sa
from conformance import COUNTS, conforms

from locus_store import OracleBackend, OracleStore, oracle_checkpointer
from locus_store.backends.oracle import addresses, dialect
from locus_store.sql import migrate
from locus_store.sql.schema.tables import make_tables
from locus_store.sql.schema.vectors import create_vector_index
from locus_store.testing import CheckpointerContract, StorageBackendContract, StoreContract
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("DSN", "USER", "PASSWORD", "WALLET", "WALLET_PASSWORD")
GIVEN = {it: os.environ.get(f"LOCUS_TEST_ORACLE_{it}") for it in NAMES}
CONTAINER = os.environ.get("LOCUS_TEST_ORACLE_CONTAINER") == "1"
PREFIX, OTHER = "live_", "livetwo_"

if not GIVEN["DSN"] and not CONTAINER:
    pytest.skip("no LOCUS_TEST_ORACLE_DSN: see make test-oracle", allow_module_level=True)


@pytest.fixture(scope="session")
def place() -> Iterator[dict[str, Any]]:
    """Return the options that reach the database."""
    if GIVEN["DSN"]:
        found = {"dsn": GIVEN["DSN"], "user": GIVEN["USER"], "password": GIVEN["PASSWORD"]}
        if GIVEN["WALLET"]:
            found |= {
                "wallet_location": GIVEN["WALLET"],
                "wallet_password": GIVEN["WALLET_PASSWORD"],
            }
        yield found
        return
    with servers.started(containers.Oracle) as container:
        yield container.place


def run(place: dict[str, Any], body: Callable[[Any], Any]) -> Any:
    """Run a body on a synchronous connection of SQLAlchemy's, and commit."""

    async def done() -> Any:
        engine = dialect.make_engine(addresses.make_address(**place))
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(body)
        finally:
            await engine.dispose()

    return asyncio.run(done())


@pytest.fixture(scope="session")
def migrated(place: dict[str, Any]) -> dict[str, Any]:
    """The newest schema, without what an earlier run left."""
    for prefix in (PREFIX, OTHER):
        if run(place, partial(migrate.check, prefix=prefix)).state != "missing":
            run(place, partial(migrate.downgrade, revision="base", prefix=prefix))
    run(place, partial(migrate.upgrade, prefix=PREFIX))
    return place


@pytest.fixture
def empty(migrated: dict[str, Any]) -> dict[str, Any]:
    """No rows but those that say what the database is, and nothing that is made on request."""
    ours = make_tables(PREFIX)
    made = ("full_text_index", "vector_dimension")

    def cleared(connection: Any) -> None:
        for name in ("search", "embeddings"):  # their indexes go with them
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {PREFIX}{name}")
        connection.execute(ours.settings.delete().where(ours.settings.c.name.in_(made)))
        for table in ours.metadata.sorted_tables:
            if table is not ours.settings:
                connection.execute(table.delete())

    run(migrated, cleared)
    return {**migrated, "prefix": PREFIX}


class LiveProbe:
    """Below the database, by another connection."""

    def __init__(self, place: dict[str, Any]) -> None:
        self._place = {name: it for name, it in place.items() if name != "prefix"}

    def _run(self, statement: str, **values: Any) -> list[Any]:
        def asked(connection: Any) -> list[Any]:
            found = connection.exec_driver_sql(statement, values)
            return list(found) if found.returns_rows else []

        return run(self._place, asked)

    def age(self, seconds: float) -> None:
        self._run(
            f"UPDATE {PREFIX}checkpoints SET created_at = created_at - "
            "NUMTODSINTERVAL(:seconds, 'SECOND')",
            seconds=seconds,
        )

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        for line, sequence, payload in self._run(
            f"SELECT line, sequence, payload FROM {PREFIX}checkpoints"
        ):
            self._run(
                f"UPDATE {PREFIX}checkpoints SET payload = :payload "
                "WHERE line = :line AND sequence = :sequence",
                line=line,
                sequence=sequence,
                payload=change(payload or b""),
            )

    def holds(self, text: str) -> bool:
        rows = self._run(
            "SELECT payload, JSON_SERIALIZE(metadata), JSON_SERIALIZE(labels) "
            f"FROM {PREFIX}checkpoints"
        )
        frames = [body for row in rows for body in unpack_frames(row[0] or b"", MAX_STATE_BYTES)]
        told = [str(it).encode() for row in rows for it in row[1:]]
        return any(text.encode() in it for it in frames + told)

    def rows(self) -> int:
        names = ("threads", "lines", "checkpoints", "writes", "messages")
        return sum(self._run(f"SELECT count(*) FROM {PREFIX}{it}")[0][0] for it in names)


class TestOracle(CheckpointerContract):
    @pytest.fixture
    def reopen(self, empty: dict[str, Any]) -> Any:
        return partial(oracle_checkpointer, **empty, state_type=self.state_type)

    @pytest.fixture
    async def checkpointer(self, reopen: Any) -> Any:
        async with reopen() as made:
            yield made

    @pytest.fixture
    def storage(self, empty: dict[str, Any]) -> LiveProbe:
        return LiveProbe(empty)


class TestOracleBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, empty: dict[str, Any]) -> OracleBackend:
        return OracleBackend(**empty)


class TestOracleStore(StoreContract):
    @pytest.fixture
    def reopen(self, empty: dict[str, Any]) -> Any:
        return lambda **options: OracleStore(**empty, **{"dimension": 3, **options})


@pytest.mark.anyio
@pytest.mark.parametrize("capability", COUNTS)
async def test_the_conformance_suite_passes(capability: str, empty: dict[str, Any]) -> None:
    await conforms(lambda: OracleBackend(**empty), capability)


@pytest.mark.anyio
async def test_a_text_index_finds_what_a_scan_finds(empty: dict[str, Any]) -> None:
    async with OracleBackend(**empty) as backend:
        for n in range(8):
            await backend.save(f"t{n}", {"text": f"word{n % 3} Straße {n}"})
        plain = [sorted(await backend.search(it)) for it in ("word1", "strasse", "absent")]
        await backend.create_search_index()
        found = [sorted(await backend.search(it)) for it in ("word1", "strasse", "absent")]
        assert found == plain


# --- migrations


def test_the_chain_goes_up_and_down_and_a_second_time(place: dict[str, Any]) -> None:
    for step in ("head", "base", "head"):
        change = migrate.downgrade if step == "base" else migrate.upgrade
        run(
            place, partial(change, prefix=OTHER, **({"revision": "base"} if step == "base" else {}))
        )
        state = run(place, partial(migrate.check, prefix=OTHER)).state
        assert state == ("missing" if step == "base" else "ok")
    run(place, partial(migrate.downgrade, revision="base", prefix=OTHER))


def test_processes_that_start_at_once_make_one_schema(place: dict[str, Any]) -> None:
    async def started() -> None:
        async def one() -> None:
            async with OracleBackend(**place, prefix=OTHER) as backend:
                await backend.save("t", {"n": 1})

        await asyncio.gather(*(asyncio.to_thread(asyncio.run, one()) for _ in range(4)))

    asyncio.run(started())
    run(place, partial(migrate.downgrade, revision="base", prefix=OTHER))


@pytest.mark.parametrize("method", ["hnsw", "ivfflat"])
def test_a_vector_index_is_made_and_used(method: Any, empty: dict[str, Any]) -> None:
    place = {name: it for name, it in empty.items() if name != "prefix"}
    make = partial(create_vector_index, dimension=3, method=method, prefix=PREFIX)
    try:
        assert run(place, make) is True
    except sa.exc.DBAPIError as exc:
        if method == "hnsw" and "ORA-51962" in str(exc):
            pytest.skip("the server's VECTOR_MEMORY_SIZE has no room for an HNSW index")
        raise
    assert run(place, make) is False

    async def found() -> list[str]:
        async with OracleStore(**empty, dimension=3) as store:
            for n in range(50):
                await store.put_with_embedding(("v",), f"{n:02}", n, [1.0, n, 0.0])
            return [it.key for it in await store.search_by_embedding(("v",), [1.0, 0.0, 0.0], 3)]

    assert asyncio.run(found()) == ["00", "01", "02"]
