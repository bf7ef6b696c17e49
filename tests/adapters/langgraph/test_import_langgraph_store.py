"""Items that LangGraph's own stores wrote, imported with their embeddings."""

from __future__ import annotations

import json
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from servers import wait_until
from tiers import first_of

from locus_store import (
    InMemoryStore,
    IntegrityError,
    InvalidArgumentError,
    PostgreSQLStore,
    SchemaError,
    SQLiteStore,
)

if TESTS_RUN:
    from langchain_core.messages import HumanMessage
    from langgraph.store.postgres import PostgresStore
    from langgraph.store.sqlite import SqliteStore
    from typer.testing import CliRunner

    from locus_store.adapters.langgraph import import_items
    from locus_store.adapters.langgraph.import_items import import_langgraph_store
    from locus_store.cli import app

    if find_spec("langgraph.store.redis"):  # it needs a redis-py below 8
        from langgraph.store.redis import AsyncRedisStore, RedisStore
    else:
        AsyncRedisStore = RedisStore = None

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.anyio,
    # of langgraph's SqliteStore, with Python 3.12 and later
    pytest.mark.filterwarnings("ignore:The default datetime adapter is deprecated"),
]

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


@pytest.fixture
def redis_store_url(redis_stack) -> str:
    """URL of an empty database for ``RedisStore``."""
    redis_stack.flush()
    return redis_stack.url()


@pytest.fixture(params=first_of("sqlite", "postgresql", "redis"))
def source(request, tmp_path) -> tuple[str, Callable[..., Any]]:
    """A URL, and LangGraph's store behind it."""
    if request.param == "redis":
        url = request.getfixturevalue("redis_store_url")
        return url, lambda **options: RedisStore.from_conn_string(url, **options)
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
        end(theirs, "over")
        return there


def end(theirs: Any, key: str) -> None:
    """Have the time to live of an item end."""
    if type(theirs) is RedisStore:
        (found,) = theirs.store_index.search(f"@key:{{{key}}}").docs
        theirs._redis.pexpire(found.id, 1)
        wait_until(lambda: not theirs._redis.exists(found.id), "the item's end")
        return
    theirs.conn.execute(f"UPDATE store SET expires_at = '2001-01-01' WHERE key = '{key}'")
    theirs.conn.commit()


def in_utc(moment: datetime) -> datetime:
    """A time of SqliteStore's has no zone."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


INDEX: Any = {"dims": 3, "embed": embed, "fields": ["text"], "text_fields": ["text"]}
"""SqliteStore has another name for the fields."""


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
    assert 3_000 < short.ttl_seconds <= 3_600  # Redis tells the rest of it
    assert short.expires_at - short.updated_at == timedelta(seconds=short.ttl_seconds)
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


async def test_embeddings_of_sqlite_are_imported_without_its_extension(tmp_path) -> None:
    path = tmp_path / "theirs.db"
    fill(lambda **options: SqliteStore.from_conn_string(str(path), **options))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE store_vectors (prefix, key, field_name, embedding)")
        connection.execute(
            "INSERT INTO store_vectors SELECT prefix, key, 'text', ? FROM store",
            (struct.pack("<3f", 3, 1, 0.5),),
        )
    await _has_embeddings(f"sqlite:///{path}")


async def test_embeddings_of_postgresql_are_imported(postgresql) -> None:
    url = postgresql.url(postgresql.new_database())
    fill(lambda **options: PostgresStore.from_conn_string(url, **options), index=INDEX)
    await _has_embeddings(url)
    async with PostgreSQLStore(url, dimension=3) as beside:
        await import_langgraph_store(beside, url)
        assert await beside.get_embedding(("users", "u1"), "a") == [3.0, 1.0, 0.5]


@pytest.mark.parametrize("storage", ["json", "hash"])
async def test_embeddings_of_redis_are_imported(redis_store_url, storage) -> None:
    index = INDEX | {"vector_storage_type": storage}
    fill(lambda **options: RedisStore.from_conn_string(redis_store_url, **options), index=index)
    await _has_embeddings(redis_store_url)


async def _has_embeddings(url: str) -> None:
    store = InMemoryStore(dimension=3)
    counts = await import_langgraph_store(store, url)
    assert (counts.written, counts.without_embeddings) == (4, 0)
    assert await store.get_embedding(("users", "u1"), "a") == [3.0, 1.0, 0.5]
    other = await import_langgraph_store(InMemoryStore(dimension=4), url)
    assert (other.written, other.without_embeddings) == (4, 4)
    assert (await import_langgraph_store(InMemoryStore(), url)).without_embeddings == 4


async def test_cut_strings_are_imported_exactly(tmp_path) -> None:
    path = tmp_path / "theirs.db"
    fill(lambda **options: SqliteStore.from_conn_string(str(path), **options))
    cut = {"a\ud83e": ["\udd8a"]}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE store SET value = ?", (json.dumps(cut),))
    store = InMemoryStore()
    first = await import_langgraph_store(store, f"sqlite:///{path}")
    again = await import_langgraph_store(store, f"sqlite:///{path}")
    assert (first.written, again.written, again.same) == (4, 0, 4)
    assert await store.get(("users", "u1"), "a") == cut


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


@pytest.mark.filterwarnings("ignore:get_async_redis_connection")  # called by AsyncRedisStore
async def test_items_of_the_async_store_in_redis_are_imported(redis_store_url) -> None:
    async with AsyncRedisStore.from_conn_string(redis_store_url) as theirs:
        await theirs.setup()
        for (namespace, key), value in VALUES.items():
            await theirs.aput(namespace, key, value)
    store = InMemoryStore()
    assert (await import_langgraph_store(store, redis_store_url)).written == len(VALUES)
    found = {(it.namespace, it.key): it.value for it in await store.search(())}
    assert found == VALUES


async def test_prefixes_of_redis_may_stand_in_the_url(redis_store_url) -> None:
    named = {"store_prefix": "my store", "vector_prefix": "v"}
    with RedisStore.from_conn_string(redis_store_url, index=INDEX, **named) as theirs:
        theirs.setup()
        theirs.put(("n",), "k", {"text": "red"})
    store = InMemoryStore(dimension=3)
    with pytest.raises(SchemaError, match=r"no keys store:…"):
        await import_langgraph_store(store, redis_store_url)
    url = f"{redis_store_url}?store_prefix=my%20store&socket_timeout=9&vector_prefix=v"
    assert (await import_langgraph_store(store, url)).written == 1
    assert await store.get_embedding(("n",), "k") == [3.0, 1.0, 0.5]


async def test_what_redis_keeps_beside_json_is_named_and_stops_no_other(
    redis_store_url, redis_stack
) -> None:
    with RedisStore.from_conn_string(redis_store_url) as theirs:
        theirs.setup()
        theirs.put(("n",), "said", {"message": HumanMessage("hi")})
        theirs.put(("n",), "k", {"text": "red"})
    redis_stack.ask("JSON.SET", f"store:{'0' * 26}", "$", '{"prefix": "n", "key": "x"}')
    store = InMemoryStore()
    with pytest.raises(IntegrityError, match=r"not a document of RedisStore.*1 were written") as it:
        await import_langgraph_store(store, redis_store_url)
    assert "'said' of ('n',)" in str(it.value)
    assert await store.get(("n",), "k") == {"text": "red"}


async def test_of_two_documents_of_an_item_in_redis_the_newer_counts(
    redis_store_url, redis_stack
) -> None:
    with RedisStore.from_conn_string(redis_store_url) as theirs:
        theirs.setup()
        theirs.put(("n",), "k", {"text": "older"})
        theirs.put(("n",), "last", {})
    there = [json.loads(redis_stack.ask("JSON.GET", it)) for it in redis_stack.ask("KEYS", "*")]
    (older,) = (it for it in there if it["key"] == "k")
    newer = older | {"value": {"text": "newer"}, "updated_at": older["updated_at"] + 60_000_000}
    redis_stack.ask("JSON.SET", f"store:{'0' * 26}", "$", json.dumps(newer))
    store = InMemoryStore()
    assert (await import_langgraph_store(store, redis_store_url)).written == 2
    assert [it.key for it in await store.search(())] == ["k", "last"]
    assert await store.get(("n",), "k") == {"text": "newer"}


async def test_a_path_that_is_no_url_is_told_its_url() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'x.db' is not a URL.*sqlite:///x.db"):
        await import_langgraph_store(InMemoryStore(), "x.db")


async def test_the_password_of_a_source_that_is_no_url_is_not_shown() -> None:
    with pytest.raises(InvalidArgumentError, match="read from postgresql://,") as refused:
        await import_langgraph_store(InMemoryStore(), "host=db password=secret")
    assert "secret" not in str(refused.value)


async def test_what_is_no_store_of_langgraphs_is_refused(tmp_path, postgresql, redis_url) -> None:
    path = tmp_path / "other.db"
    async with SQLiteStore(path) as other:
        await other.setup()
    urls = (f"sqlite:///{path}", postgresql.url(postgresql.new_database()))
    for url in urls:
        with pytest.raises(SchemaError, match="PostgresStore or SqliteStore"):
            await import_langgraph_store(InMemoryStore(), url)
    with pytest.raises(SchemaError, match="RedisStore"):
        await import_langgraph_store(InMemoryStore(), redis_url)
    with pytest.raises(InvalidArgumentError, match=r"LangGraph's stores are read .* not 'mysql'"):
        await import_langgraph_store(InMemoryStore(), "mysql://localhost/shop")


def test_items_of_sqlite_are_imported_without_redis_py(tmp_path) -> None:
    path = tmp_path / "theirs.db"
    fill(lambda **options: SqliteStore.from_conn_string(str(path), **options))
    code = f"""
import asyncio, sys
sys.modules["redis"] = None
from locus_store import InMemoryStore
from locus_store.adapters.langgraph.import_items import import_langgraph_store
print(asyncio.run(import_langgraph_store(InMemoryStore(), {f"sqlite:///{path}"!r})).written)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("4\n", "")


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
