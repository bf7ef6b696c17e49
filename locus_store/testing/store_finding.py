"""Namespaces, pages and word searches of every store."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from locus_store.errors import InvalidArgumentError
from locus_store.testing.kit import (
    HOSTILE_IDS,
    HOSTILE_NAMESPACES,
    INVALID_LIMITS,
    INVALID_NAMESPACES,
    NS,
    StoreKit,
    expect_invalid,
    list_keys,
)
from locus_store.types.items import Namespace

MOST = 2**31 - 1


class Namespaces(StoreKit):
    """A namespace is its segments, whatever characters they contain."""

    async def test_hostile_namespaces_are_each_one_of_its_own(self, store: Any) -> None:
        await store.put_batch([(it, "k", list(it)) for it in HOSTILE_NAMESPACES])
        for namespace in HOSTILE_NAMESPACES:
            assert await store.get(namespace, "k") == list(namespace)
            assert [it.namespace for it in await store.list(namespace)] == [namespace]
        assert await store.list_namespaces(limit=1000) == sorted(HOSTILE_NAMESPACES)
        for namespace in HOSTILE_NAMESPACES[::2]:
            assert await store.clear_namespace(namespace) == 1
        left = sorted(HOSTILE_NAMESPACES[1::2])
        assert await store.list_namespaces(limit=1000) == left

    async def test_a_prefix_ends_where_a_segment_does(self, store: Any) -> None:
        await store.put_batch([(it, "k", list(it)) for it in HOSTILE_NAMESPACES])
        for prefix in HOSTILE_NAMESPACES:
            below = {it for it in HOSTILE_NAMESPACES if it[: len(prefix)] == prefix}
            found = await store.search(prefix, limit=1000)
            assert len(found) == len(below), prefix
            assert {it.namespace for it in found} == below, prefix
            if "*" not in prefix:
                assert set(await store.list_namespaces(prefix, limit=1000)) == below, prefix

    async def test_items_with_generated_names_are_kept_apart(self, store: Any) -> None:
        """500 items have namespaces and keys built from the same few characters."""
        dice = random.Random(0)  # noqa: S311  (test data)
        signs = ["a", "b", "/", "%", "_", "*", "\x01", "\\", "'", '"', ".", "é", "🎉", " "]

        def text() -> str:
            return "".join(dice.choices(signs, k=dice.randint(1, 3)))

        names = {(tuple(text() for _ in range(dice.randint(0, 3))), text()) for _ in range(500)}
        values = {name: repr(name) for name in names}
        await store.put_batch([(*name, value) for name, value in values.items()])
        assert await store.get_batch(list(names)) == values
        for prefix in dice.sample(sorted({namespace for namespace, _ in names}), 25):
            here = sorted(key for namespace, key in names if namespace == prefix)
            assert await store.list_keys(prefix, limit=1000) == here
            below = {it for it in names if it[0][: len(prefix)] == prefix}
            found = await store.search(prefix, limit=1000)
            assert {(it.namespace, it.key) for it in found} == below

    async def test_the_root_is_a_namespace(self, store: Any) -> None:
        await store.put((), "k", "root")
        await store.put(("a",), "k", "a")
        assert await store.get((), "k") == "root"
        assert [it.value for it in await store.list(())] == ["root"]
        assert [it.value for it in await store.search(())] == ["a", "root"]
        assert await store.list_namespaces() == await store.list_namespaces(()) == [(), ("a",)]
        assert await store.clear_namespace(()) == 1
        assert await store.list_namespaces() == [("a",)]
        assert await store.clear_namespace((), recursive=True) == 1
        assert await store.list_namespaces() == []

    async def test_300_characters_are_the_most(self, store: Any) -> None:
        longest = (("x" * 255, "é" * 43), ("🎉",) * 150, ("a" * 149, "b" * 149))
        for namespace in longest:
            await store.put(namespace, "k" * 255, 1)
            assert await store.get(namespace, "k" * 255) == 1
            with pytest.raises(InvalidArgumentError, match="300"):
                await store.put((*namespace, "x"), "k", 1)

    async def test_what_is_no_namespace_is_refused(self, store: Any) -> None:
        await expect_invalid(
            INVALID_NAMESPACES,
            lambda it: store.put(it, "k", 1),
            lambda it: store.get(it, "k"),
            lambda it: store.delete(it, "k"),
            lambda it: store.touch(it, "k"),
            lambda it: store.put_batch([(NS, "k", 1), (it, "k", 1)]),
            lambda it: store.get_batch([(NS, "k"), (it, "k")]),
            store.list,
            store.list_keys,
            store.search,
            lambda it: store.search_many([NS, it]),
            store.clear_namespace,
            lambda it: store.list_namespaces(it or ("",)),
            lambda it: store.list_namespaces(suffix=it or ("",)),
        )
        assert await store.list_namespaces() == []

    async def test_namespaces_are_listed_in_order_once_each(self, store: Any) -> None:
        names = [("b",), ("a", "c"), ("a", "b", "c"), (), ("a\x01",), ("a", "b")]
        for namespace in names:
            await store.put_batch([(namespace, f"{n}", n) for n in range(3)])
        listed = sorted(names)
        assert await store.list_namespaces() == listed
        assert await store.list_namespaces(limit=2, offset=1) == listed[1:3]
        assert await store.list_namespaces(limit=0) == []
        assert await store.list_namespaces(offset=6) == []
        assert await store.list_namespaces(limit=MOST, offset=5) == listed[5:]

    async def test_namespaces_by_prefix_suffix_and_depth(self, store: Any) -> None:
        names: list[Namespace] = [
            ("a",), ("a", "b"), ("a", "b", "c"), ("a", "x", "c"), ("b", "b", "c"), ("ab", "c"),
            ("c",),
        ]  # fmt: skip
        await store.put_batch([(it, "k", 1) for it in names])
        cases: list[tuple[Any, Any, int | None, list[Namespace]]] = [
            (("a",), None, None, names[:4]),
            (None, ("c",), None, [names[2], names[3], names[5], names[4], names[6]]),
            (("a",), ("c",), None, [names[2], names[3]]),
            (("*", "b"), None, None, [names[1], names[2], names[4]]),
            (("a", "*", "c"), None, None, [names[2], names[3]]),
            (None, ("*", "c"), None, [names[2], names[3], names[5], names[4]]),
            (("*",), ("b", "c"), None, [names[2], names[4]]),
            (("a", "b", "c"), ("a", "b", "c"), None, [names[2]]),
            (("a",), None, 1, [("a",)]),
            (("a",), None, 2, [("a",), ("a", "b"), ("a", "x")]),
            (None, None, 1, [("a",), ("ab",), ("b",), ("c",)]),
            (None, ("c",), 1, [("a",), ("ab",), ("b",), ("c",)]),
            (("nothing",), None, None, []),
            (("a", "b", "c", "d"), None, None, []),
        ]
        for prefix, suffix, depth, expected in cases:
            found = await store.list_namespaces(prefix, suffix, depth)
            assert found == expected, (prefix, suffix, depth)
        assert await store.list_namespaces(max_depth=1, limit=2, offset=1) == [("ab",), ("b",)]

    async def test_a_namespace_is_cleared_alone_or_with_those_below(self, store: Any) -> None:
        names = [("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("a\x01",), ("%",), ()]
        await store.put_batch([(it, key, 1) for it in names for key in "xy"])
        assert await store.clear_namespace(("%",)) == 2
        assert await store.clear_namespace(("a", "b")) == 2
        assert await store.list_namespaces() == [(), ("a",), ("a", "b", "c"), ("a\x01",), ("ab",)]
        assert await store.clear_namespace(("a",), recursive=True) == 4
        assert await store.list_namespaces() == [(), ("a\x01",), ("ab",)]
        assert await store.clear_namespace(("none",), recursive=True) == 0

    async def test_a_depth_or_number_that_makes_no_sense_is_refused(self, store: Any) -> None:
        bad = (0, -1, 1.0, "1", True)
        await expect_invalid(bad, lambda it: store.list_namespaces(max_depth=it), match="depth")
        await expect_invalid(
            INVALID_LIMITS,
            lambda it: store.list(NS, limit=it),
            lambda it: store.list_keys(NS, limit=it),
            lambda it: store.search(NS, limit=it),
            lambda it: store.search(NS, offset=it),
            lambda it: store.list_namespaces(limit=it),
            lambda it: store.list_namespaces(offset=it),
        )


async def fill(store: Any, count: int) -> list[str]:
    """Put ``count`` items, one after the other; return their keys, which are in order."""
    keys = [f"k{n:04}" for n in range(count)]
    for n, key in enumerate(keys):
        await store.put(NS, key, {"n": n})
    return keys


class Listing(StoreKit):
    """``list`` and ``list_keys`` return one namespace, by key."""

    async def read_pages(self, store: Any, limit: int) -> list[str]:
        """Return all keys, page by page; no key is returned twice."""
        keys: list[str] = []
        while page := await store.list_keys(NS, limit, keys[-1] if keys else None):
            keys += page
            assert keys == sorted(set(keys))
            await asyncio.sleep(0)  # so that others may write
        return keys

    async def test_only_the_namespace_itself_is_listed_by_key(self, store: Any) -> None:
        for key in ("b", "B", "a", "é", "Z", "10", "9", "🎉", "\uffff", "_", "%"):
            await store.put(NS, key, key)
        await store.put(NS[:1], "above", 1)
        await store.put((*NS, "x"), "below", 1)
        keys = sorted(["b", "B", "a", "é", "Z", "10", "9", "🎉", "\uffff", "_", "%"])
        assert await store.list_keys(NS) == list_keys(await store.list(NS)) == keys
        assert [it.value for it in await store.list(NS)] == keys

    async def test_pages_are_the_whole(self, store: Any) -> None:
        await store.put_batch([(NS, f"{n}", n) for n in range(250)])
        assert await self.read_pages(store, 100) == sorted(map(str, range(250)))
        assert await store.list(NS, limit=0) == []
        assert len(await store.list(NS)) == 100
        assert len(await store.list(NS, limit=MOST)) == 250

    async def test_a_page_begins_after_any_text(self, store: Any) -> None:
        for key in ("a", "c", "e"):
            await store.put(NS, key, 1)
        await store.delete(NS, "c")
        for key in ("c", "b", "a", "A", "e", *HOSTILE_IDS):
            assert await store.list_keys(NS, after=key) == [it for it in "ae" if it > key]

    async def test_pages_lose_and_repeat_nothing_while_others_write(self, store: Any) -> None:
        kept = [f"k{n:03}" for n in range(60)]
        await store.put_batch([(NS, it, "kept") for it in kept])
        done = asyncio.Event()

        async def write() -> None:
            n = 0
            while not done.is_set():
                await store.put_batch([
                    (NS, f"a{n}", 0), (NS, kept[n % 60], "kept"), (NS, f"k{n % 60:03}x", 0),
                ])  # fmt: skip
                await store.delete(NS, f"a{n}")
                n += 1
                await asyncio.sleep(0)

        writer = asyncio.create_task(write())
        try:
            for _ in range(4):
                seen = await self.read_pages(store, 7)
                assert [it for it in seen if it in set(kept)] == kept
        finally:
            done.set()
            await writer


class Searching(StoreKit):
    """``search`` without embeddings, and ``search_many``."""

    async def test_the_last_updated_comes_first(self, store: Any) -> None:
        keys = await fill(store, 20)
        assert list_keys(await store.search(NS, limit=100)) == keys[::-1]
        for key in keys[::3]:
            await store.put(NS, key, "again")
        others = [it for it in keys if it not in keys[::3]]
        expected = keys[::3][::-1] + others[::-1]
        assert list_keys(await store.search(NS, limit=100)) == expected
        await store.delete(NS, expected[5])
        await store.put(NS, expected[5], "anew")
        expected.insert(0, expected.pop(5))
        assert list_keys(await store.search((), limit=100)) == expected

    async def test_the_last_of_a_batch_is_the_most_recent(self, store: Any) -> None:
        await store.put(NS, "b", 0)
        await store.put_batch([(NS, it, 1) for it in "zab"])
        assert list_keys(await store.search(NS)) == ["b", "a", "z"]

    async def test_limit_and_offset_cut_one_order(self, store: Any) -> None:
        keys = (await fill(store, 25))[::-1]
        assert list_keys(await store.search(NS)) == keys[:10]
        assert list_keys(await store.search(NS, limit=4, offset=9)) == keys[9:13]
        assert list_keys(await store.search(NS, limit=MOST, offset=20)) == keys[20:]
        assert await store.search(NS, offset=25) == await store.search(NS, limit=0) == []
        assert await store.search(NS, limit=MOST, offset=MOST) == []

    async def test_few_among_many_are_all_found(self, store: Any) -> None:
        """The matching items are older than a thousand others."""
        wanted = {"kind": "rare", "text": "needle"}
        await store.put_batch([(NS, f"r{n}", wanted, {"rare": 1}) for n in range(7)])
        rest = {"kind": "common", "text": "hay"}
        await store.put_batch([(NS, f"c{n}", rest, {"rare": 0}) for n in range(1000)])
        keys = [f"r{n}" for n in range(6, -1, -1)]
        assert list_keys(await store.search(NS, filter={"kind": "rare"}, limit=7)) == keys
        assert list_keys(await store.search(NS, metadata_filter={"rare": {"$gt": 0}})) == keys
        assert list_keys(await store.search(NS, "needle", limit=3, offset=2)) == keys[2:5]

    async def test_all_words_of_a_query_must_be_there(self, store: Any) -> None:
        await store.put(NS, "a", {"title": "The quick brown fox", "tags": ["jumps", 7]})
        await store.put(NS, "b", ["a quick dog", {"x": {"y": "lazy Straße, crème brûlée"}}])
        await store.put(NS, "c", "quick 東京タワー")
        for query, keys in {
            "quick": "cba", "fox JUMPS": "a", "quick strasse CREME": "b", "京": "c", "fox dog": "",
            "qui": "", "title": "", "7": "", "quick%": "cba", "quick OR fox": "",
        }.items():  # fmt: skip
            assert list_keys(await store.search(NS, query)) == [*keys], query
        assert list_keys(await store.search(NS, "quick", limit=1, offset=1)) == ["b"]
        assert list_keys(await store.search(NS, "quick", {"title": {"$exists": True}})) == ["a"]

    async def test_words_of_a_replaced_value_are_not_found(self, store: Any) -> None:
        await store.put(NS, "k", "alpha")
        await store.put(NS, "k", "beta")
        assert await store.search(NS, "alpha") == []
        assert list_keys(await store.search(NS, "beta")) == ["k"]

    async def test_a_query_without_a_word_is_refused(self, store: Any) -> None:
        bad = ("", " ", "%", "\0", "'\"", 7, ["a"], b"a")
        await expect_invalid(bad, lambda it: store.search(NS, it), match="word")

    async def test_several_namespaces_give_a_list_each(self, store: Any) -> None:
        await store.put(("a",), "1", "one word")
        await store.put(("a", "b"), "2", "two word")
        await store.put(("c",), "3", "three")
        histories = [("a",), ("none",), ("c",), ("a", "b"), ("a",)]
        found = await store.search_many(histories)
        assert [list_keys(it) for it in found] == [["2", "1"], [], ["3"], ["2"], ["2", "1"]]
        found = await store.search_many(histories, "word", limit=1)
        assert [list_keys(it) for it in found] == [["2"], [], [], ["2"], ["2"]]
        assert await store.search_many([]) == []
