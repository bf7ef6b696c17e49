"""Engines of a process share compiled statements, unless their servers differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from locus_store import SQLiteStore
from locus_store.sql.statement_cache import STATEMENT_CACHE, StatementCache

if TYPE_CHECKING:
    from pathlib import Path

STATEMENT = sa.select(sa.literal(1))


def key_of(dialect: sa.Dialect, version: tuple[int, ...]) -> Any:
    dialect.server_version_info = version
    return dialect, "the statement", (), False, False


def test_dialects_of_one_version_share_a_statement() -> None:
    cache = StatementCache(10)
    cache[key_of(sqlite.dialect(), (3, 40))] = STATEMENT.compile()
    assert cache.get(key_of(sqlite.dialect(), (3, 40))) is not None


def test_other_versions_and_databases_share_none() -> None:
    cache = StatementCache(10)
    cache[key_of(postgresql.dialect(), (18, 0))] = STATEMENT.compile()
    assert cache.get(key_of(postgresql.dialect(), (16, 0))) is None
    assert cache.get(key_of(sqlite.dialect(), (18, 0))) is None


@pytest.mark.anyio
async def test_a_second_object_compiles_nothing(database_file: Path, monkeypatch) -> None:
    compiled, counts = [], []
    put = StatementCache.__setitem__
    monkeypatch.setattr(
        StatementCache, "__setitem__", lambda *given: (compiled.append(given[1]), put(*given))
    )
    STATEMENT_CACHE.clear()
    for key in ("first", "second"):
        async with SQLiteStore(database_file) as store:
            await store.put(("u",), key, 1)
            await store.search(("u",))
        counts.append(len(compiled))
    assert counts[0] == counts[1] > 0
