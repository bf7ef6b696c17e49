"""Items that LangGraph's own stores wrote, imported with their embeddings."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from typer.testing import CliRunner

from locus_store import (
    InMemoryStore,
    IntegrityError,
    InvalidArgumentError,
    PostgreSQLStore,
    SchemaError,
    SQLiteStore,
)
from locus_store.adapters.langgraph import import_items
from locus_store.adapters.langgraph.import_items import import_langgraph_store
from locus_store.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

VALUES: dict[tuple[tuple[str, ...], str], dict[str, Any]] = {
    (("users", "u1"), "a"): {"text": "red", "n": 1.0, "none": None},
    (("users", "u1", "deep"), "a"): {"text": "green \u65e5\u672c", "list": [1, {"a": []}]},
    (("users", "u2"), "k' %_"): {"text": "blue"},
}


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(it)), 1.0, 0.5] for it in texts]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
def source(request, tmp_path) -> tuple[str, Callable[..., Any]]:
    """A URL, and LangGraph's store behind it."""
    if request.param == "sqlite":
        path = str(tmp_path / "theirs.db")
        return f"sqlite:///{path}", lambda **options: SqliteStore.from_conn_string(path, **options)
    server = request.getfixturevalue("postgresql")
    url = server.url(server.new_database())
    return url, lambda **options: PostgresStore.from_conn_string(url, **options)


def fill(make: Callable[..., Any], **options: Any) -> dict[Any, Any]:
    """Put ``VALUES`` as LangGraph does; what it then has."""
    with make(**options) as theirs:
        theirs.setup()
        for (namespace, key), value in VALUES.items():
            theirs.put(namespace, key, value)
        theirs.put(("users", "u1"), "short", {"text": "lives"}, ttl=60)
        theirs.put(("users", "u1"), "over", {"text": "is over"}, ttl=60)
        there = {(it.namespace, it.key): it for it in theirs.search(("users",), limit=99)}
        theirs.conn.execute("UPDATE store SET expires_at = '2001-01-01' WHERE key = 'over'")
        theirs.conn.commit()
        return there


def in_utc(moment: datetime) -> datetime:
    """A time of SqliteStore's has no zone."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


INDEX: Any = {"dims": 3, "embed": embed, "fields": ["text"]}


async def test_items_are_imported_with_values_times_and_order(source) -> None:
    url, make = source
    there = fill(make)
    store = InMemoryStore()
    counts = await import_langgraph_store(store, url)
    assert (counts.written, counts.same, counts.newer, counts.without_embeddings) == (4, 0, 0, 0)
    items = {(it.namespace, it.key): it for it in await store.search(())}
    assert {name: items[name].value for name in VALUES} == VALUES
    for name in VALUES:
        told = {it: datetime.fromisoformat(at) for it, at in items[name].metadata.items()}
        assert told["langgraph_created_at"] == in_utc(there[name].created_at)
        assert told["langgraph_updated_at"] == in_utc(there[name].updated_at)
        assert items[name].ttl_seconds is None
    short = items[("users", "u1"), "short"]
    assert short.ttl_seconds == 3_600
    assert short.expires_at - short.updated_at == timedelta(hours=1)
    assert [it.key for it in await store.search((), limit=1)] == ["short"]


async def test_a_second_import_overwrites_nothing_and_goes_on(source, monkeypatch) -> None:
    url, make = source
    fill(make)
    monkeypatch.setattr(import_items, "PAGE", 2)
    store = InMemoryStore()
    await store.put(("users", "u1"), "a", {"text": "newer"})
    await store.put(("users", "u2"), "k' %_", {"text": "blue"})
    first = await import_langgraph_store(store, url)
    assert (first.written, first.same, first.newer) == (2, 1, 1)
    second = await import_langgraph_store(store, url)
    assert (second.written, second.same, second.newer) == (0, 3, 1)
    assert await store.get(("users", "u1"), "a") == {"text": "newer"}


async def test_an_item_that_is_put_meanwhile_stays(source) -> None:
    class Busy(InMemoryStore):
        async def read(self, names):
            found = await super().read(names)
            await self.put(("users", "u1"), "a", "faster")
            return found

    url, make = source
    fill(make)
    store = Busy()
    counts = await import_langgraph_store(store, url)
    assert (counts.written, counts.newer) == (3, 1)
    assert await store.get(("users", "u1"), "a") == "faster"


async def test_embeddings_are_imported_where_the_dimension_is_the_same(tmp_path) -> None:
    path = str(tmp_path / "theirs.db")
    pytest.importorskip("sqlite_vec")
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        pytest.skip("this Python's SQLite loads no extension")
    fill(lambda **options: SqliteStore.from_conn_string(path, **options), index=INDEX)
    await _has_embeddings(f"sqlite:///{path}")


async def test_embeddings_of_postgresql_are_imported(postgresql) -> None:
    url = postgresql.url(postgresql.new_database())
    fill(lambda **options: PostgresStore.from_conn_string(url, **options), index=INDEX)
    await _has_embeddings(url)
    async with PostgreSQLStore(url, dimension=3) as beside:
        await import_langgraph_store(beside, url)
        assert await beside.get_embedding(("users", "u1"), "a") == [3.0, 1.0, 0.5]


async def _has_embeddings(url: str) -> None:
    store = InMemoryStore(dimension=3)
    counts = await import_langgraph_store(store, url)
    assert (counts.written, counts.without_embeddings) == (4, 0)
    assert await store.get_embedding(("users", "u1"), "a") == [3.0, 1.0, 0.5]
    other = await import_langgraph_store(InMemoryStore(dimension=4), url)
    assert (other.written, other.without_embeddings) == (4, 4)
    assert (await import_langgraph_store(InMemoryStore(), url)).without_embeddings == 4


async def test_a_damaged_item_stops_no_other(tmp_path) -> None:
    path = tmp_path / "theirs.db"
    fill(lambda **options: SqliteStore.from_conn_string(str(path), **options))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE store SET value = '{' WHERE key = 'a' AND prefix = 'users.u1'")
    connection.close()
    store = InMemoryStore()
    with pytest.raises(IntegrityError, match=r"'a' of \('users', 'u1'\).* 3 were written"):
        await import_langgraph_store(store, f"sqlite:///{path}")
    assert len(await store.search(())) == 3


async def test_what_is_no_store_of_langgraphs_is_refused(tmp_path, postgresql) -> None:
    path = tmp_path / "other.db"
    async with SQLiteStore(path) as other:
        await other.setup()
    urls = (f"sqlite:///{path}", postgresql.url(postgresql.new_database()))
    for url in urls:
        with pytest.raises(SchemaError, match="PostgresStore or SqliteStore"):
            await import_langgraph_store(InMemoryStore(), url)
    with pytest.raises(InvalidArgumentError, match="redis"):
        await import_langgraph_store(InMemoryStore(), "redis://localhost")


def test_the_command_imports_and_tells(tmp_path) -> None:
    path, ours = tmp_path / "theirs.db", f"sqlite:///{tmp_path / 'ours.db'}"
    fill(lambda **options: SqliteStore.from_conn_string(str(path), **options))
    arguments = ["import", "langgraph-store", f"sqlite:///{path}", "--url", ours]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert "4 items imported, 0 there already, 0 there with another value" in told.output
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert '"same": 4' in again.output or '"same":4' in again.output

    with open_store_of(ours) as store:
        assert store.get(("users", "u2"), "k' %_") == {"text": "blue"}


def open_store_of(url: str) -> Any:
    from locus_store import blocking

    return blocking.open_store(url)
