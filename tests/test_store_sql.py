"""The stores in SQL held to the contract, and what only a database can break."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import pytest
import sqlalchemy as sa
from tiers import first_of

from locus_store import (
    BackendError,
    ConnectionFailedError,
    InMemoryStore,
    IntegrityError,
    InvalidArgumentError,
    NewMessage,
    PostgreSQLMessageLog,
    PostgreSQLStore,
    SchemaError,
    SQLiteMessageLog,
    SQLiteStore,
    open_store,
    postgresql_checkpointer,
    sqlite_checkpointer,
)
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.sql import store as sql_store
from locus_store.sql.columns.compiled import Compiled
from locus_store.sql.items import Items
from locus_store.sql.threads import statements
from locus_store.types import PendingWrite, VersionsWanted
from locus_store.types.items import Wanted

NS = ("memory", "u42")


pytestmark = pytest.mark.anyio


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def make(request):
    """Makes a store of each kind, on the same place each time."""
    if request.param == "sqlite":
        path = request.getfixturevalue("database_file")
        return lambda **options: SQLiteStore(path, **options)
    url = request.getfixturevalue("migrated_database")
    return lambda **options: PostgreSQLStore(url, **{"pool_size": 4, **options})


def items_of(n: int) -> list[tuple[Any, ...]]:
    numbers = random.Random(n)
    return [
        (("v", f"u{it % 5}"), f"{it:04}", {"n": it % 100, "even": it % 2 == 0}, None, None, None,
         [numbers.gauss(0, 1) for _ in range(8)])
        for it in range(n)
    ]  # fmt: skip


# --- both


async def test_calls_that_are_repeated_compile_no_statement(make, monkeypatch) -> None:
    compiled: list[str] = []

    class Noted(Compiled):
        def __init__(self, statement: Any, *args: Any) -> None:
            compiled.append(str(statement))
            super().__init__(statement, *args)

    for module in (statements, sys.modules[Compiled.__module__]):
        monkeypatch.setattr(module, "Compiled", Noted)
    async with make() as store:
        threads = StorageBackendAdapter(store.backend, state_type=dict, keep_last=2)
        kind = SQLiteMessageLog if isinstance(store, SQLiteStore) else PostgreSQLMessageLog
        log = kind(backend=store.backend)

        async def call_all(n: int) -> None:
            thread = f"t{n}"
            async with threads.turn(thread):
                for step in range(4):
                    await threads.save({"n": step}, thread, f"v{step}", metadata={"tag": f"{n}"})
                write = PendingWrite("task", 0, "c", "json", b"1")
                await store.backend.put_writes(thread, "v3", [write], seen=[])
                await threads.load(thread)
                await threads.list_threads(limit=5 + n)
                await threads.list_with_metadata(limit=5)
                assert len(await store.backend.query_by_metadata("tag", f"{n}")) == 1
                wanted = VersionsWanted(thread_id=thread, metadata=(("tag", f"{n}"),))
                assert len(await store.backend.newest(wanted, 10 + n)) == 2
                await threads.delete(thread, "v2")
            await threads.delete(thread)
            await store.put(NS, "k", {"n": n, "kind": f"{n}"})
            assert await store.get(NS, "k") == {"n": n, "kind": f"{n}"}
            assert len(await store.search(NS[:1], limit=5 + n)) == 1
            wanted = {"n": {"$gte": n}, "kind": f"{n}"}
            assert len(await store.search(NS[:1], limit=5 + n, filter=wanted)) == 1
            assert await store.search(NS[:1], filter={**wanted, "kind": f"{n + 1}"}) == []
            assert await store.list_namespaces(prefix=NS[:1]) == [NS]
            await store.delete(NS, "k")
            for text in ("a", "b", "c", "d"):
                await log.append(f"l{n}", [NewMessage(f"{text}{n}", message_id=text)])
            assert (await log.pop(f"l{n}")).message.content == f"d{n}"
            await log.remove(f"l{n}", ["a"])
            await log.replace(f"l{n}", 1, [NewMessage(f"e{n}", message_id="e")])
            assert await log.contents(f"l{n}") == [f"b{n}", f"e{n}"]
            await log.delete(f"l{n}")

        for n in range(3):
            await call_all(n)
        compiled.clear()
        await call_all(3)
        assert compiled == []


async def test_many_concurrent_calls_take_few_statements(make, monkeypatch) -> None:
    sent: list[Any] = []

    def note(_connection, _cursor, statement, *_) -> None:
        sent.append(statement)

    def noting(send: Any) -> Any:
        return lambda *args: (sent.append(args), send(*args))[1]

    async with make() as store:
        await store.put(NS, "first", 1)
        for name in ("_execute", "run_all"):  # what compiled statements send
            monkeypatch.setattr(Compiled, name, noting(getattr(Compiled, name)))
        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        try:
            puts = (store.put(NS, f"{n}", n) for n in range(600))
            gets = (store.get(NS, "first") for _ in range(600))
            results = await asyncio.gather(*puts, *gets)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert results == [1] * 1200
    assert len(sent) <= 40


async def test_a_loop_that_ends_in_the_midst_of_calls_says_nothing(make, capfd) -> None:
    store = make()
    await store.setup()

    def other_loop() -> None:
        async def leave() -> None:
            for n in range(50):
                _tasks.add(asyncio.ensure_future(store.put(NS, f"{n}", n)))
                _tasks.add(asyncio.ensure_future(store.get(NS, f"{n}")))
            await asyncio.sleep(0)

        _tasks: set[Any] = set()
        asyncio.run(leave())

    for _ in range(3):
        await asyncio.to_thread(other_loop)
    assert await store.put(NS, "here", 1) == 1
    await store.close()
    assert capfd.readouterr().err == ""


async def test_concurrent_searches_share_connections(make, monkeypatch) -> None:
    groups: list[int] = []
    search = sql_store._search

    def note(items: Any, searches: Any) -> Any:
        groups.append(len(searches))
        return search(items, searches)

    monkeypatch.setattr(sql_store, "_search", note)
    monkeypatch.setattr(sql_store, "SLOW_SECONDS", 60)
    async with make() as store:
        await asyncio.gather(*(store.put((*NS, f"{n}"), "k", {"n": n}) for n in range(40)))
        searches = [store.search(NS, filter={"n": n}) for n in range(40)]
        found = await asyncio.gather(*searches)
        assert [[it.value["n"] for it in page] for page in found] == [[n] for n in range(40)]
        assert sum(groups) == 40
        assert len(groups) < 10
        groups.clear()
        monkeypatch.setattr(sql_store, "SLOW_SECONDS", 0)
        for _ in range(2):
            found = await asyncio.gather(*(store.search(NS, filter={"n": n}) for n in range(4)))
            assert [[it.value["n"] for it in page] for page in found] == [[n] for n in range(4)]
    assert groups[-4:] == [1] * 4  # slow ones wait for no other


async def test_a_search_that_fails_fails_its_own_caller_only(make, monkeypatch) -> None:
    find = Items.find_recent_at_once

    asked: list[Wanted] = []

    def fail(items: Items, wanted: Wanted) -> Any:
        asked.append(wanted)
        if wanted.prefix == ("lost",):
            raise ConnectionFailedError("no server")
        if wanted.prefix == ("damaged",):
            raise IntegrityError("a stored item is damaged")
        return find(items, wanted)

    monkeypatch.setattr(Items, "find_recent_at_once", fail)
    monkeypatch.setattr(sql_store, "SLOW_SECONDS", 60)
    async with make() as store:
        await store.put(NS, "k", 1)
        searches = (store.search(it) for it in (NS, ("damaged",), NS))
        first, damaged, last = await asyncio.gather(*searches, return_exceptions=True)
        asked.clear()
        searches = (store.search(("lost",)) for _ in range(3))
        lost = await asyncio.gather(*searches, return_exceptions=True)
    assert [it.value for it in (*first, *last)] == [1, 1]
    assert type(damaged) is IntegrityError
    assert {*map(type, lost)} == {ConnectionFailedError}
    assert len(asked) == 1  # of no server, each would wait by itself


RULES = {
    SQLiteStore: "CREATE TRIGGER a_rule BEFORE INSERT ON locus_store WHEN NEW.key = 'refused' "
    "BEGIN SELECT RAISE(ABORT, 'a constraint'); END",
    PostgreSQLStore: "ALTER TABLE locus_store ADD CONSTRAINT a_rule CHECK (key <> 'refused')",
}
"""A rule of the database's owner, which refuses one key."""


async def test_a_value_that_the_database_refuses_fails_its_own_caller_only(make) -> None:
    async with make() as store:
        await store.setup()
        await store._change(lambda it: it.exec_driver_sql(RULES[type(store)]))
        keys = ["one", "refused", "two"]
        puts = [store.put(NS, key, key) for key in keys]
        first, refused, second = await asyncio.gather(*puts, return_exceptions=True)
        assert (first, second) == (1, 1)
        assert type(refused) is BackendError
        assert "a constraint" in str(refused)
        with pytest.raises(BackendError, match="a constraint"):
            await store.put(NS, "refused", "alone")
        assert [await store.get(NS, key) for key in keys] == ["one", None, "two"]


async def test_tenants_never_see_each_others_items(make) -> None:
    async with make(dimension=3) as ours, make(dimension=3, tenant="other") as theirs:
        await ours.put_with_embedding(NS, "k", "ours", [1, 0, 0], {"user_id": "u"})
        assert await theirs.get(NS, "k") is None
        assert await theirs.get_batch([(NS, "k"), (NS, "j")]) == {}
        assert await theirs.list(NS) == await theirs.search(()) == []
        assert await theirs.search_by_embedding((), [1, 0, 0]) == []
        assert await theirs.list_namespaces() == []
        assert await theirs.get_embedding(NS, "k") is None
        assert not await theirs.delete(NS, "k")
        assert await theirs.clear_namespace((), recursive=True) == 0
        assert (await theirs.backend.forget_user("u"))["store"] == 0
        assert await theirs.put(NS, "k", "theirs") == 1
        assert await ours.get_embedding(NS, "k") == [1.0, 0.0, 0.0]


async def test_another_dimension_is_refused_when_it_is_opened(make) -> None:
    async with make(dimension=3) as store:
        await store.put(NS, "k", 1)
    with pytest.raises(SchemaError, match="embeddings of 3 numbers, not 4"):
        await make(dimension=4).get(NS, "k")


async def test_a_table_that_may_not_be_made_is_asked_for(make) -> None:
    async with make():
        pass
    with pytest.raises(SchemaError, match="locus-store db vector-index --dimension 3"):
        await make(dimension=3, auto_migrate=False).setup()


async def test_who_has_no_embeddings_still_removes_old_ones(make) -> None:
    async with make() as plain:
        await plain.put(NS, "a", 1)
        async with make(dimension=3) as store:  # makes the table meanwhile
            for key in "abc":
                await store.put_with_embedding(NS, key, 1, [1, 0, 0])
            await plain.put(NS, "a", 2)
            await plain.delete(NS, "b")
            assert await store.get_embedding(NS, "a") is None
            assert [it.item.key for it in await store.search_by_embedding((), [1, 0, 0])] == ["c"]
            assert await plain.clear_namespace(NS) == 2
            assert await store.search_by_embedding((), [1, 0, 0]) == []


async def test_a_store_shares_the_connections_of_a_checkpointer(
    tmp_path, migrated_database
) -> None:
    made = (
        (sqlite_checkpointer(tmp_path / "a.db"), SQLiteStore),
        (postgresql_checkpointer(migrated_database), PostgreSQLStore),
    )
    for checkpointer, kind in made:
        async with checkpointer:
            store = kind(backend=checkpointer.backend, dimension=3)
            async with store:
                await store.put_with_embedding(NS, "k", 1, [1, 0, 0], {"user_id": "u"})
            assert await checkpointer.exists("t") is False
            assert (await checkpointer.backend.forget_user("u"))["store"] == 1
            assert await store.get(NS, "k") is None
            assert await store.search_by_embedding((), [1, 0, 0]) == []
        with pytest.raises(InvalidArgumentError, match="alone"):
            kind("place", backend=checkpointer.backend)
        with pytest.raises(InvalidArgumentError, match="must be of class "):
            kind(backend=checkpointer)


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
async def test_scores_are_those_of_the_store_in_memory(make, metric) -> None:
    memory = InMemoryStore(dimension=8, metric=metric)
    async with make(dimension=8, metric=metric) as store:
        for it in (memory, store):
            await it.put_batch(items_of(300))
        for wanted in (None, {"n": {"$lt": 5}}, {"n": 1000}):
            target = items_of(1)[0][-1]
            found, reference = [
                [
                    (hit.item.key, hit.score)
                    for hit in await it.search_by_embedding(("v",), target, 20, filter=wanted)
                ]
                for it in (store, memory)
            ]
            assert found == reference


# --- a URL


async def test_a_url_names_a_store(tmp_path, migrated_database) -> None:
    path = tmp_path / "a.db"
    for url in (f"sqlite:///{path}?keep_last=3&tenant=t", f"{migrated_database}?keep_last=3"):
        async with open_store(url, dimension=3) as store:
            await store.put_with_embedding(NS, "k", 1, [1, 0, 0])
    async with open_store(f"sqlite:///{path}", tenant="t") as store:
        assert await store.get(NS, "k") == 1
    assert isinstance(open_store("memory://?keep_last=2", dimension=3), InMemoryStore)
    async with open_store(f"file://{tmp_path}/threads?keep_last=3", dimension=3) as store:
        assert await store.put(NS, "k", 1) == 1
    with pytest.raises(InvalidArgumentError, match="colour"):
        open_store("sqlite:///a.db?colour=red")


# --- PostgreSQL


async def test_overlapping_changes_wait_in_one_order(make) -> None:
    """Batches, clears and renewals of the same names: nobody is told of a deadlock."""
    names = [(NS, f"k{it}") for it in range(20)]

    async def work(store: Any, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6):
            chance.shuffle(names)
            await store.put_batch([(*it, seed, None, 60.0) for it in names])
            await store.renew(names)
            if chance.random() < 0.3:
                await store.clear_namespace(NS)

    async with make() as store:
        await asyncio.gather(*(work(store, seed) for seed in range(8)))
