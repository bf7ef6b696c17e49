"""Tests of the full-text index of SQLite, with the SQLite of Python and a newer one."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from locus_store import SQLiteBackend

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite3", "pysqlite3.dbapi2"])
def engine(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    module = pytest.importorskip(request.param, reason="no newer SQLite")
    made = sa.create_engine(f"sqlite:///{tmp_path}/a.db", module=module)
    yield made
    made.dispose()


async def test_deleted_words_leave_the_index(engine: sa.Engine) -> None:
    """SQLite 3.44 to 3.53 keep them after ``optimize``, if a deletion is as large as the rest."""

    def has_word(word: str) -> bool:
        with closing(engine.raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT block FROM locus_search_data")
            return any(word.encode() in block for (block,) in cursor.fetchall())

    async with SQLiteBackend(engine=engine) as backend:
        await backend.create_search_index()
        for name, count in (("large", 1000), ("first", 1), ("second", 1), ("last", 1)):
            await backend.save(name, {"said": " ".join(f"{name}{it}" for it in range(count))})
        for name in ("first", "second", "large", "last"):
            assert has_word(f"{name}0")
            assert await backend.search(f"{name}0") == [name]
            await backend.delete(name)
            assert not has_word(f"{name}0")
            assert await backend.damage() == []
