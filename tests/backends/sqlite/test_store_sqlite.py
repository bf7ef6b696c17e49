"""The store in SQLite: its contract, sqlite-vec, an engine."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from test_store_sql import items_of

from locus_store import SQLiteStore
from locus_store.backends.sqlite.store import can_load_vec

pytestmark = pytest.mark.anyio

NS = ("memory", "u42")


@pytest.mark.parametrize("metric", ["cosine", "l2"])
async def test_sqlite_vec_gives_the_same_as_numpy(tmp_path, metric) -> None:
    module = pytest.importorskip("pysqlite3.dbapi2", reason="no SQLite that loads extensions")
    pytest.importorskip("sqlite_vec")
    path = tmp_path / "a.db"
    options = {"dimension": 8, "metric": metric}
    engine = sa.create_engine(f"sqlite:///{path}", module=module, poolclass=NullPool)
    with engine.connect() as connection:
        assert can_load_vec(connection)
    async with SQLiteStore(path, **options) as plain:
        await plain.put_batch(items_of(500))
        async with SQLiteStore(engine=engine, **options) as store:
            for wanted in (None, {"n": {"$lt": 5}}, {"even": False, "n": {"$ne": 7}}):
                for limit in (1, 10, 300):
                    target = items_of(2)[1][-1]
                    found, reference = [
                        await it.search_by_embedding(("v",), target, limit, filter=wanted)
                        for it in (store, plain)
                    ]
                    assert found == reference
    engine.dispose()


async def test_an_async_engine_serves_a_store(tmp_path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}", poolclass=NullPool)
    async with SQLiteStore(engine=engine, dimension=8) as store:
        await store.put_batch(items_of(10))
        assert len(await store.search_by_embedding((), items_of(1)[0][-1], filter={"n": 3})) == 1
        assert len(await store.search((), filter={"even": True})) == 5
    await engine.dispose()
