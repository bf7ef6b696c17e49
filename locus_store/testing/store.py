"""The contract of a store: subclass it and give it a fixture to test a store completely.

::

    class TestMine(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda **options: MyStore(tmp_path / "mine", **{"dimension": 3, **options})
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.errors import ConflictError, SerializationError
from locus_store.testing.kit import seam
from locus_store.testing.store_filters import Filters
from locus_store.testing.store_finding import Listing, Namespaces, Searching
from locus_store.testing.store_items import Batches, ItemExpiry, ValueRules, Versions
from locus_store.testing.store_kit import NS, StoreKit
from locus_store.testing.store_vectors import Embeddings, Nearness
from locus_store.testing.tenants import StoreTenants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from locus_store.testing.kit import Another


@seam("connection", "loop")
class StoreConcurrency(StoreKit):
    """One store serves many tasks, event loops and threads; several stores share a storage."""

    @pytest.fixture
    async def stores(self, store: Any, reopen: Another) -> AsyncIterator[list[Any]]:
        """Three objects on one storage, or one object if the storage ends with it."""
        async with AsyncExitStack() as opened:
            others = [reopen() for _ in range(2)] if self.persists else []
            yield [store, *[await opened.enter_async_context(it) for it in others]]

    async def test_of_20_racing_puts_one_wins(self, store: Any, stores: list[Any]) -> None:
        for version in range(3):
            puts = [
                stores[n % len(stores)].put(NS, "k", n, expected_version=version) for n in range(20)
            ]
            results = await asyncio.gather(*puts, return_exceptions=True)
            won = [n for n, it in enumerate(results) if not isinstance(it, BaseException)]
            assert [results[n] for n in won] == [version + 1]
            assert sum(isinstance(it, ConflictError) for it in results) == 19
            assert await store.get(NS, "k") == won[0]

    async def test_versions_of_racing_puts_have_no_gaps(
        self, store: Any, stores: list[Any]
    ) -> None:
        seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}

        async def put(n: int) -> None:
            for turn in range(5):
                for key, versions in seen.items():
                    versions.append(await stores[n % len(stores)].put(NS, key, [n, turn]))

        await asyncio.gather(*map(put, range(8)))
        assert [sorted(it) for it in seen.values()] == [[*range(1, 41)]] * 3
        assert [it.version for it in await store.list(NS)] == [40] * 3

    async def test_a_counter_that_expects_versions_loses_no_step(self, store: Any) -> None:
        await store.put(NS, "n", 0)

        async def count() -> None:
            steps = 0
            while steps < 5:
                item = await store.get_item(NS, "n")
                try:
                    await store.put(NS, "n", item.value + 1, expected_version=item.version)
                    steps += 1
                except ConflictError:
                    await asyncio.sleep(0)

        await asyncio.gather(*(count() for _ in range(6)))
        assert await store.get(NS, "n") == 30

    async def test_racing_batches_are_all_written(self, store: Any) -> None:
        """In any order of their items, batches neither wait for ever nor are torn."""
        keys = [f"k{n}" for n in range(12)]

        async def write(n: int) -> None:
            for turn in range(3):
                order = keys[n:] + keys[:n] if n % 2 else keys[::-1]
                await store.put_batch([(NS, it, [n, turn]) for it in order])

        async def read() -> None:
            for _ in range(10):
                found = await store.get_batch([(NS, it) for it in keys])
                assert len(found) in {0, len(keys)}
                assert len({tuple(it) for it in found.values()}) <= 1

        await asyncio.gather(*map(write, range(6)), read(), read())
        items = await store.list(NS)
        assert [it.version for it in items] == [18] * 12
        assert len({tuple(it.value) for it in items}) == 1

    async def test_puts_and_removals_race_without_harm(self, store: Any) -> None:
        async def put(n: int) -> None:
            for turn in range(5):
                await store.put((*NS, f"{turn % 2}"), f"k{n % 3}", turn)

        async def remove() -> None:
            for turn in range(5):
                await store.delete((*NS, "0"), "k0")
                await store.clear_namespace((*NS, f"{turn % 2}"))
                await store.clear_namespace(NS, recursive=True)

        await asyncio.gather(*map(put, range(6)), remove(), remove())
        await store.clear_namespace(NS, recursive=True)
        assert await store.list_namespaces() == []
        assert await store.put((*NS, "0"), "k0", 1) == 1

    async def test_a_failing_put_harms_no_other(self, store: Any) -> None:
        puts = [store.put(NS, f"{n}", float("nan") if n % 3 == 0 else n) for n in range(30)]
        results = await asyncio.gather(*puts, return_exceptions=True)
        failed = [n for n, it in enumerate(results) if isinstance(it, SerializationError)]
        assert failed == [*range(0, 30, 3)]
        assert sorted(await store.list_keys(NS), key=int) == [f"{n}" for n in range(30) if n % 3]

    async def test_closing_in_the_middle_breaks_no_put_and_no_get(self, store: Any) -> None:
        async def talk(key: str) -> None:
            for turn in range(5):
                await store.put(NS, key, turn)
                assert await store.get(NS, key) == turn

        keys = [f"k{n}" for n in range(6)]
        talks = asyncio.gather(*map(talk, keys))
        while not talks.done():
            await store.close()
            await asyncio.sleep(0)  # not every storage waits for anything
        await talks
        assert [it.version for it in await store.list(NS)] == [5] * 6

    async def test_it_works_in_a_second_event_loop(self, store: Any) -> None:
        await store.put(NS, "k", 0)

        async def turn() -> None:
            await store.put(NS, "k", await store.get(NS, "k") + 1)
            await store.close()

        for _ in range(2):
            await asyncio.to_thread(lambda: asyncio.run(turn()))
        assert await store.get(NS, "k") == 2

    async def test_it_works_in_several_loops_at_once(self, store: Any) -> None:
        async def talk(key: str) -> None:
            for turn in range(8):
                assert await store.put(NS, key, turn) == turn + 1
                assert await store.get(NS, key) == turn
                await store.put(NS, "shared", turn)

        keys = [f"k{n}" for n in range(4)]
        calls = [asyncio.to_thread(lambda it=it: asyncio.run(talk(it))) for it in keys]  # type: ignore[misc]
        await asyncio.gather(*calls, talk("here"))
        assert [it.version for it in await store.list(NS)] == [8] * 5 + [40]


class StoreContract(
    ValueRules, Versions, Batches, ItemExpiry, Namespaces, Listing, Searching, Filters, Embeddings,
    Nearness, StoreConcurrency, StoreTenants,
):  # fmt: skip
    """Everything that a ``BaseStore`` promises; see the module's docstring."""
