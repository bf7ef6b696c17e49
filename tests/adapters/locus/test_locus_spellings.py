"""The calls of the Locus SDK's own checkpointers, as its users write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from locus_store import FileCheckpointer, MemoryCheckpointer, open_checkpointer
from locus_store.backends import PostgreSQLBackend, PostgreSQLStore, postgresql_checkpointer
from locus_store.backends.postgresql.options import PostgreSQLOptions, make_dsn, make_pool_size
from locus_store.errors import InvalidArgumentError
from locus_store.types.options import fill_defaults

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


def chosen(**options: Any) -> PostgreSQLOptions:
    return fill_defaults(PostgreSQLOptions, options, "chosen")


async def test_a_postgresql_database_is_named_by_its_parts(database: str) -> None:
    url = make_url(database)
    parts: dict[str, Any] = {
        "host": url.host or str(url.query["host"]),
        "port": url.port or int(str(url.query.get("port", 5432))),
        "database": url.database,
        "user": url.username,
        "password": url.password or "",
    }
    async with postgresql_checkpointer(
        **parts, min_pool_size=1, max_pool_size=2, schema_name="agents", table_name="Customers"
    ) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
    async with open_checkpointer(database, schema="agents", prefix="Customers_") as checkpointer:
        assert await checkpointer.load("t") == {"n": 1}
    async with PostgreSQLStore(**parts, schema_name="agents", table_name="Customers") as store:
        await store.put(("a",), "k", 1)


def test_parts_that_are_missing_have_the_sdks_defaults() -> None:
    assert make_dsn(None, chosen()) is None
    found = make_dsn(None, chosen(database="myapp"))
    assert str(found) == "postgresql://postgres@localhost:5432/myapp"
    found = make_dsn(None, chosen(host="db", port=6432, user="me"))
    assert str(found) == "postgresql://me@db:6432/locus"
    backend = PostgreSQLBackend(database="myapp", password="secret")  # noqa: S106  (a test's)
    assert "myapp" in repr(backend)
    assert "secret" not in repr(backend)


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [(None, None, (10, 0)), (2, 20, (2, 18)), (None, 5, (5, 0)), (3, None, (3, 7)),
     (12, None, (12, 0)), (4, 4, (4, 0))],
)  # fmt: skip
def test_the_sdks_pool_sizes_are_kept_and_at_most(
    least: int | None, most: int | None, expected: tuple[int, int]
) -> None:
    assert make_pool_size(chosen(min_pool_size=least, max_pool_size=most)) == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dsn": "postgresql://h/d", "host": "h"}, "dsn or host"),
        ({"dsn": "postgresql://h/d", "database": "d", "user": "u"}, "dsn or database or user"),
        ({"schema": "a", "schema_name": "b"}, "schema or schema_name"),
        ({"pool_size": 3, "max_pool_size": 5}, "not both"),
        ({"max_overflow": 3, "min_pool_size": 5}, "not both"),
        ({"min_pool_size": 5, "max_pool_size": 3}, "max_pool_size"),
        ({"min_pool_size": 0}, "min_pool_size"),
        ({"max_pool_size": 0}, "max_pool_size"),
        ({"max_pool_size": "9"}, "max_pool_size"),
        ({"host": ""}, "host"),
        ({"host": "h", "port": "5432"}, "port"),
        ({"port": 0}, "port"),
        ({"port": 65_536}, "port"),
        ({"user": 7}, "user"),
        ({"pool": object(), "host": "h"}, "not both"),
        ({"table_name": "no-table"}, "table_name"),
        ({"host": "h", "table_name": "x" * 64}, "table_name"),
    ],
)
def test_postgresql_options_that_contradict_or_make_no_sense(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        postgresql_checkpointer(**options)


def test_host_and_port_in_the_query_of_a_dsn_are_the_dsns() -> None:
    shown = repr(open_checkpointer("postgresql:///d?host=db.example.com&port=6432&user=me"))
    assert "me@db.example.com:6432/d" in shown


async def test_a_file_checkpointer_needs_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await FileCheckpointer().save({"n": 1}, "t")
    assert (tmp_path / ".locus_checkpoints").is_dir()
    assert await FileCheckpointer(base_dir=".locus_checkpoints").load("t") == {"n": 1}
    assert await FileCheckpointer(".locus_checkpoints").load("t") == {"n": 1}
    with pytest.raises(InvalidArgumentError, match="directory or base_dir"):
        FileCheckpointer("a", base_dir="b")
    with pytest.raises(InvalidArgumentError, match="directory"):
        FileCheckpointer("")


async def test_a_memory_checkpointer_counts_and_clears_without_await() -> None:
    checkpointer = MemoryCheckpointer()
    assert checkpointer.get_thread_ids() == []
    assert checkpointer.get_checkpoint_count() == checkpointer.get_checkpoint_count("a") == 0
    for n in range(3):
        await checkpointer.save({"n": n}, "a")
    await checkpointer.save({"n": 0}, "b")
    assert sorted(checkpointer.get_thread_ids()) == ["a", "b"]
    assert checkpointer.get_checkpoint_count() == 4
    assert checkpointer.get_checkpoint_count("a") == 3
    loaded = await checkpointer.load("a")
    checkpointer.clear()
    assert checkpointer.get_thread_ids() == []
    assert await checkpointer.load("a") is None
    await checkpointer.save({"n": 9}, "a")
    assert checkpointer.get_checkpoint_count() == 1
    assert loaded == {"n": 2}
