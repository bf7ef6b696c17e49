"""The contract of a store: subclass it and give it a fixture to test a store completely.

::

    class TestMine(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda **options: MyStore(tmp_path / "mine", **{"dimension": 3, **options})
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from sys import float_info
from typing import Any

import pytest

from locus_store.errors import ConflictError, SerializationError
from locus_store.testing.kit import (
    HOSTILE_IDS,
    LOOPS,
    NS,
    StoreKit,
    expect,
    expect_invalid,
    fail_one_in_three,
    list_keys,
    run_in_loops,
    run_while_closing,
    seam,
)
from locus_store.testing.store_finding import Listing, Namespaces, Searching
from locus_store.testing.store_items import Batches, Copies, ItemExpiry, ValueRules, Versions
from locus_store.testing.store_vectors import Embeddings, Nearness
from locus_store.testing.tenants import StoreTenants
from locus_store.values.filters import Filter

ORDERS = ("$gt", "$gte", "$lt", "$lte")
OPERATORS = ("$eq", "$ne", *ORDERS, "$in", "$exists")

_INFINITE, GREATEST = float("inf"), float_info.max

MISSING: Any = ...
"""Marks a missing key in ``EXAMPLES``."""

EXAMPLES: tuple[tuple[Any, list[Any], list[Any]], ...] = (
    # the condition on a key; what it takes there; what it does not
    (1, [1, 1.0], [True, "1", [1], 0, 1.5, None, {"a": 1}, MISSING]),
    (0, [0, 0.0, -0.0], [False, None, "", [], {}, "0", MISSING]),
    (True, [True], [1, 1.0, "true", False, None, [True], MISSING]),
    (False, [False], [0, 0.0, "", None, [], MISSING]),
    (None, [None], [0, False, "", "null", [], {}, MISSING]),
    ("a", ["a"], ["A", "a ", "á", "ab", "", ["a"], None, MISSING]),
    ("é", ["é"], ["e\u0301", "e", "É"]),
    ("a\0b", ["a\0b"], ["a", "ab", "a\0", "a\\u0000b"]),
    ("", [""], [None, False, 0, [], {}, " ", "\0", MISSING]),
    (0.1, [0.1], [0.10000000000000002, "0.1"]),
    (2**53, [2**53, 2.0**53], [2**53 + 1, 2**53 - 1]),
    (2**53 + 1, [2**53 + 1], [2**53, 2.0**53, 2**53 + 2]),
    (2**63, [2**63, 2.0**63], [2**63 - 1, 2**63 + 1, -(2**63), str(2**63)]),
    (2**64 - 1, [2**64 - 1], [2**64 - 2, 2.0**64, 2**63]),
    (1e16, [1e16, 10**16], [10**16 + 1, "1e16"]),
    (5e-324, [5e-324], [0, 0.0, 1e-323]),
    ([], [[]], [None, {}, "", [[]], MISSING]),
    ([1, "a"], [[1, "a"], [1.0, "a"]], [["a", 1], [1], [1, "a", None], [True, "a"], 1, "a"]),
    ([{"a": 1}], [[{"a": 1.0}]], [[{"a": 1, "b": 2}], {"a": 1}, [{"a": True}]]),
    ({}, [{}, {"a": 1}], [None, [], "", 0, MISSING]),
    ({"a": 1}, [{"a": 1}, {"a": 1.0, "b": 2}], [{"a": 2}, {}, [{"a": 1}], 1, {"b": 1}, MISSING]),
    ({"a": {"b": None}}, [{"a": {"b": None}}], [{"a": {}}, {"a": None}, {"a": {"b": 0}}, {}]),
    ({"a": {}}, [{"a": {}}, {"a": {"b": 1}}], [{"a": None}, {"a": []}, {}]),
    ({"$eq": {"a": 1}}, [{"a": 1}, {"a": 1.0}], [{"a": 1, "b": 2}, {}, {"a": True}, MISSING]),
    ({"$eq": {"$gt": 1}}, [{"$gt": 1}], [{"$gt": 2}, 2, {}]),
    ({"$eq": {}}, [{}], [{"a": 1}, None, [], MISSING]),
    ({"$eq": None}, [None], [MISSING, 0, {}]),
    ({"$ne": 1}, [MISSING, 2, True, "1", None, [1], {}], [1, 1.0]),
    ({"$ne": None}, [MISSING, 0, False, "", [], {}], [None]),
    ({"$ne": "a"}, [MISSING, "b", "A", None, 1, ["a"]], ["a"]),
    ({"$ne": {"a": 1}}, [MISSING, {"a": 1, "b": 1}, {"a": True}, {}], [{"a": 1}, {"a": 1.0}]),
    ({"$gt": 9}, [10, 9.5, 2**64 - 1, 1e300], [9, 9.0, 8, "10", True, None, [10], {}, MISSING]),
    ({"$gte": 9}, [9, 9.0, 10], [8.999999, "9", True, None, [9], MISSING]),
    ({"$lt": 2}, [1, 1.999, -5, -(2**63), 0], [2, 2.0, True, False, None, "1", "", [], MISSING]),
    ({"$lte": 0}, [0, 0.0, -0.0, -1], [False, None, "", 5e-324, MISSING]),
    ({"$gt": 2**53}, [2**53 + 1, 2**63], [2**53, 2.0**53, 0]),
    ({"$lt": 2**53 + 1}, [2**53, 2.0**53], [2**53 + 1, 2**53 + 2]),
    ({"$gt": 2.0**63}, [2**63 + 1, 2.0**64], [2**63, 2**63 - 1]),
    ({"$gte": -(2**63)}, [-(2**63), 0, -(2.0**63)], [-1e19, "0"]),
    ({"$lt": _INFINITE}, [1, -1e308, GREATEST, 2**64 - 1], ["1", True, None, [1], {}, MISSING]),
    ({"$lte": _INFINITE, "$lt": 2}, [1, -GREATEST], [2, GREATEST, "1", None, MISSING]),
    ({"$gt": -_INFINITE}, [1, -GREATEST, 0], ["1", False, None, MISSING]),
    ({"$gte": -_INFINITE}, [1, -GREATEST, -(2**63)], ["", None, {}, MISSING]),
    ({"$gt": _INFINITE}, [], [GREATEST, 0, "z", None, MISSING]),
    ({"$gte": _INFINITE}, [], [GREATEST, 0, "z", None, MISSING]),
    ({"$lt": -_INFINITE}, [], [-GREATEST, 0, "", None, MISSING]),
    ({"$lte": -_INFINITE}, [], [-GREATEST, 0, "", None, MISSING]),
    ({"$gt": "9"}, ["91", "a", "é", "🎉"], ["9", "10", 10, True, None, ["a"], "", MISSING]),
    ({"$lt": "B"}, ["A", "", "1", "AZ", "\0"], ["B", "a", "b", "é", 1, None, MISSING]),
    ({"$gt": "\uffff"}, ["🎉", "\U0010ffff", "\uffff\0"], ["\uffff", "é", "z", "\ufffe"]),
    ({"$lte": "a\0"}, ["a", "a\0", "", "A"], ["a\0a", "a\x01", "aa", "b"]),
    ({"$gte": ""}, ["", "a", "\0"], [0, None, [], MISSING]),
    ({"$in": [1, "a", None]}, [1, 1.0, "a", None], [True, "1", "A", [1], ["a"], 0, MISSING]),
    ({"$in": [True, [1], {"a": 1}]}, [True, [1.0], {"a": 1}], [1, {"a": 1, "b": 1}, [], MISSING]),
    ({"$in": []}, [], [None, 1, [], "", MISSING]),
    ({"$exists": True}, [None, False, 0, "", [], {}, 1], [MISSING]),
    ({"$exists": False}, [MISSING], [None, False, 0, "", [], {}, 1]),
    ({"$gt": 1, "$lte": 3, "$ne": 2}, [1.5, 3, 3.0], [1, 2, 2.0, 4, "2", None, MISSING]),
    ({"$gt": 1, "$lt": "b"}, [], [2, "a", MISSING]),
    ({"x": {"$gt": 1}, "y": {"$exists": False}}, [{"x": 2}], [{"x": 2, "y": 1}, {"x": 1}, {}, 2]),
    ({"x": {"$ne": 1}}, [{}, {"x": 2}, None, 1, [], MISSING], [{"x": 1}]),
    ({"x": {"$exists": False}}, [{}, None, "x", MISSING], [{"x": None}]),
)

INVALID_FILTERS: tuple[Any, ...] = (
    [], "a", 7, [("a", 1)], {"a": {"$regex": "x"}}, {"a": {"$eq": 1, "b": 2}}, {"$or": []},
    {"a": {"$": 1}}, {"$where": "1"}, {"a": {"$in": 1}}, {"a": {"$in": "ab"}}, {"a": {"$in": None}},
    {"a": {"$exists": 1}}, {"a": {"$exists": None}}, {"a": {"$gt": None}}, {"a": {"$gt": True}},
    {"a": {"$lt": [1]}}, {"a": {"$lte": {"b": 1}}}, {"a": {"$GT": 1}}, {"a": {"$gt ": 1}},
    {"a": {"b": {"$eq'; DROP TABLE locus_store; --": 1}}}, {"{}": {"$nin": [1]}},
)  # fmt: skip
_UNKEPT_FILTERS: tuple[Any, ...] = (
    {"a": float("nan")}, {"a": {"$gt": float("nan")}}, {"a": float("inf")}, {"a": 2**64}, {1: 2},
    {"a": {1, 2}}, {"a": {"$in": [object()]}}, {"a": b"x"},
)  # fmt: skip

_HOSTILE_KEYS = (
    *(it for it in HOSTILE_IDS if not it.startswith("$")), "", "a.b", "a[0]", "a[*]", "[0]", "#",
    "a\0", "\0", "\0a", "') OR 1=1 --", "\" || true || \"", "'\"'", "\\\"", "\\u0061", "{a,b}",
    "a->>'b'", "$.a"[1:], "a,b", "?", ":a", "%(a)s", "%s", "@", "a'", "*.*", "key with spaces",
)  # fmt: skip


class _Filters(StoreKit):
    """``filter`` and ``metadata_filter``, as ``locus_store.values.filters.Filter`` defines them."""

    async def test_every_operator_takes_what_its_examples_say(self, store: Any) -> None:
        """On values, within values, and on metadata."""
        items = []
        for n, (_, taken, left) in enumerate(EXAMPLES):
            for m, value in enumerate([*taken, *left]):
                found = {} if value is MISSING else {"k": value}
                items.append((("e", f"{n}"), f"{m:02}", {**found, "in": {"k": found}}, found))
        await store.put_batch(items)
        for n, (condition, taken, left) in enumerate(EXAMPLES):
            expected = [f"{m:02}" for m in range(len(taken))]
            for wanted in (
                {"filter": {"k": condition}},
                {"filter": {"in": {"k": {"k": condition}}}},
                {"metadata_filter": {"k": condition}},
            ):
                found = await store.search(("e", f"{n}"), limit=100, **wanted)
                assert sorted(list_keys(found)) == expected, (wanted, taken, left)

    async def test_a_filter_may_be_on_the_value_itself(self, store: Any) -> None:
        examples = [it for it in EXAMPLES if isinstance(it[0], dict) and it[0]]
        for n, (condition, taken, left) in enumerate(examples):
            values = [it for it in [*taken, *left] if it is not MISSING]
            there = len([it for it in taken if it is not MISSING])
            namespace = ("r", f"{n}")
            await store.put_batch([(namespace, f"{m:02}", it) for m, it in enumerate(values)])
            found = await store.search(namespace, filter=condition, limit=100)
            assert sorted(list_keys(found)) == [f"{m:02}" for m in range(there)], condition

    async def test_no_filter_takes_everything(self, store: Any) -> None:
        values: list[Any] = [None, 1, "a", [], {}, {"a": 1}]
        await store.put_batch([(NS, f"{n}", it) for n, it in enumerate(values)])
        assert len(await store.search(NS, filter={}, metadata_filter={})) == len(values)
        assert len(await store.search(NS, filter=None, metadata_filter=None)) == len(values)

    async def test_a_key_is_one_key_and_never_part_of_a_statement(self, store: Any) -> None:
        keys = list(dict.fromkeys(_HOSTILE_KEYS))
        items = [(NS, f"{n:03}", {it: 1, "o": {it: 2}}, {it: 3}) for n, it in enumerate(keys)]
        await store.put_batch(items)
        for n, key in enumerate(keys):
            for wanted in (
                {"filter": {key: 1}},
                {"filter": {"o": {key: {"$gt": 1}}}},
                {"metadata_filter": {key: {"$exists": True}}},
            ):
                found = list_keys(await store.search(NS, limit=1000, **wanted))
                assert found == [f"{n:03}"], (wanted, [keys[int(it)] for it in found])

    async def test_a_text_is_a_text_and_never_part_of_a_statement(self, store: Any) -> None:
        texts = list(dict.fromkeys([*_HOSTILE_KEYS, "$a", "$gt", "1", "true", "null", "[1]", "{}"]))
        await store.put_batch([(NS, f"{n:03}", {"k": it}) for n, it in enumerate(texts)])
        for n, text in enumerate(texts):
            for condition in (text, {"$in": [text]}, {"$gte": text, "$lte": text}):
                found = await store.search(NS, filter={"k": condition}, limit=1000)
                assert list_keys(found) == [f"{n:03}"], condition

    async def test_a_filter_may_be_as_long_as_it_likes(self, store: Any) -> None:
        await store.put_batch([(NS, f"k{it}", {"n": it}) for it in range(3)])
        many = [*range(1, 3000), *map(str, range(3000))]
        found = await store.search(NS, filter={"n": {"$in": many}})
        assert sorted(list_keys(found)) == ["k1", "k2"]
        missing = {f"no {it}": {"$exists": False} for it in range(1200)}
        assert len(await store.search(NS, filter=missing)) == 3
        assert await store.search(NS, query=" ".join(f"word{it}" for it in range(1200))) == []

    async def test_what_is_no_filter_is_refused(self, store: Any) -> None:
        calls: list[Any] = [
            lambda it: store.search(NS, filter=it),
            lambda it: store.search(NS, metadata_filter=it),
        ]
        await expect(SerializationError, _UNKEPT_FILTERS, *calls, match="filter")
        if store.capabilities.semantic_search:
            calls.append(lambda it: store.search_by_embedding(NS, [1, 0, 0], filter=it))
        await expect_invalid(INVALID_FILTERS, *calls, match="filter")

    @pytest.mark.parametrize("seed", range(2))
    async def test_generated_filters_match_the_reference(self, store: Any, seed: int) -> None:
        """100 items by 100 filters for each seed: 20,000 cases in all, some of them paged."""
        cases = Cases(seed)
        items = cases.make_items(100)
        await store.put_batch([(NS, *it) for it in items])
        for n in range(100):
            wanted = cases.make_filters(items)
            values, metadata = Filter(wanted["filter"]), Filter(wanted["metadata_filter"])
            expected = [it for it in items if values.takes(it[1]) and metadata.takes(it[2])][::-1]
            found = list_keys(await store.search(NS, limit=1000, **wanted))
            for item in items:
                assert (item[0] in found) == (item in expected), (wanted, item)
            assert found == [it[0] for it in expected], wanted
            if n % 5 == 0:
                page = await store.search(NS, limit=3, offset=2, **wanted)
                assert list_keys(page) == found[2:5], wanted


Generated = tuple[str, Any, dict[str, Any]]


class Cases:
    """Values and filters from a seed; most filters match some of the values."""

    keys = ("a", "b", "a.b", "", "é", "'", '"', "*", "0", "a\0")
    scalars = (
        None, True, False, 0, 1, -1, 1.0, 0.0, -0.0, 2, 9, 10, 1.5, 0.1, 2**53, 2**53 + 1, 2.0**53,
        2**63, 2.0**63, 2**63 + 1, 2**64 - 1, -(2**63), 1e16, 10**16, 1e300, 5e-324, "", "a", "b",
        "B", "9", "10", "1", "é", "e\u0301", "🎉", "\uffff", "a\0b", "a\0", "null", "true", "%",
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)  # noqa: S311  (test data)

    def make_items(self, count: int) -> list[Generated]:
        """Return keys with values and metadata."""
        return [(f"{n:03}", self.make_value(), self.make_mapping(1)) for n in range(count)]

    def make_value(self, depth: int = 0) -> Any:
        """Return a value; most top-level values are objects."""
        turn = self._dice.random() * (0.8 if depth else 5)
        if depth < 3 and turn > 0.5:
            return self.make_mapping(depth)
        if depth < 3 and turn > 0.4:
            return [self.make_value(depth + 1) for _ in range(self._dice.randint(0, 2))]
        return self._dice.choice(self.scalars)

    def make_mapping(self, depth: int) -> dict[str, Any]:
        """Return an object with few keys, of which the first are the most frequent."""
        picked = {self.make_key() for _ in range(self._dice.randint(0, 4))}
        return {key: self.make_value(depth + 1) for key in sorted(picked)}

    def make_key(self) -> str:
        """Return one of the keys; the first are the most frequent."""
        return self.keys[min(self._dice.randrange(len(self.keys)) for _ in range(3))]

    def make_filters(self, items: Sequence[Generated]) -> dict[str, dict[str, Any] | None]:
        """Return the arguments of a search, based on one of the items."""
        _, value, metadata = self._dice.choice(items)
        by_metadata = self._dice.random() < 0.3
        return {
            "filter": self.make_filter(value)
            if not by_metadata or self._dice.random() < 0.3
            else None,
            "metadata_filter": self.make_filter(metadata) if by_metadata else None,
        }

    def make_filter(self, value: Any) -> dict[str, Any]:
        """Return a filter that is likely to match this value."""
        if not isinstance(value, dict) or self._dice.random() < 0.05:
            return self.make_operators(value)
        picked = [it for it in value if self._dice.random() < 0.25]
        if self._dice.random() < 0.1 or not picked:
            picked.append(self.make_key())
        return {key: self.make_condition(value.get(key, MISSING)) for key in picked}

    def make_condition(self, value: Any) -> Any:
        """Return a random condition for a key that has this value."""
        turn = self._dice.random()
        if turn > 0.95:
            return {}
        if isinstance(value, dict) and turn < 0.6:
            return self.make_filter(value)
        if value is not MISSING and turn < 0.3 and not isinstance(value, dict):
            return value
        return self.make_operators(value)

    def make_operators(self, value: Any) -> dict[str, Any]:
        """Return one or two operators about this value."""
        picked = self._dice.sample(OPERATORS, 1 if self._dice.random() < 0.8 else 2)
        return {it: self.make_operand(it, value) for it in picked}

    def make_operand(self, operator: str, value: Any) -> Any:
        """Return a random operand for an operator, near this value."""
        if operator == "$exists":
            return self._dice.random() < 0.5
        if operator == "$in":
            return [self.make_near_value(value) for _ in range(self._dice.randint(0, 3))]
        if operator not in ORDERS:
            return self.make_near_value(value)
        ordered = [it for it in self.scalars if isinstance(it, str | int | float)]
        is_ordered = isinstance(value, str | int | float) and not isinstance(value, bool)
        if not is_ordered or self._dice.random() < 0.4:
            return self._dice.choice([it for it in ordered if not isinstance(it, bool)])
        return value

    def make_near_value(self, value: Any) -> Any:
        """Return the value, the same number of the other type, or something else."""
        turn = self._dice.random()
        if value is MISSING or turn < 0.25:
            return self.make_value(1)
        if type(value) is int and turn < 0.5:
            return float(value)
        return value


@seam("connection", "loop")
class StoreConcurrency(StoreKit):
    """One store serves many tasks, event loops and threads; several stores share a storage."""

    async def test_of_20_racing_puts_one_wins(self, store: Any, several: list[Any]) -> None:
        for version in range(3):
            puts = [several[n].put(NS, "k", n, expected_version=version) for n in range(20)]
            results = await asyncio.gather(*puts, return_exceptions=True)
            won = [n for n, it in enumerate(results) if not isinstance(it, BaseException)]
            assert [results[n] for n in won] == [version + 1]
            assert sum(isinstance(it, ConflictError) for it in results) == 19
            assert await store.get(NS, "k") == won[0]

    async def test_racing_puts_leave_no_gap(self, store: Any, several: list[Any]) -> None:
        seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}

        async def put(n: int) -> None:
            for turn in range(5):
                for key, versions in seen.items():
                    versions.append(await several[n].put(NS, key, [n, turn]))

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
        put = await fail_one_in_three(lambda n: store.put(NS, f"{n}", n))
        assert sorted(map(int, await store.list_keys(NS))) == put

    async def test_closing_in_the_middle_breaks_no_put_and_no_get(self, store: Any) -> None:
        async def put_turns(key: str) -> None:
            for turn in range(5):
                await store.put(NS, key, turn)
                assert await store.get(NS, key) == turn

        await run_while_closing(store, *(put_turns(f"k{n}") for n in range(6)))
        assert [it.version for it in await store.list(NS)] == [5] * 6

    async def test_it_works_in_a_second_event_loop(self, store: Any) -> None:
        await store.put(NS, "k", 0)

        async def turn() -> None:
            await store.put(NS, "k", await store.get(NS, "k") + 1)
            await store.close()

        for _ in range(2):
            await asyncio.to_thread(asyncio.run, turn())
        assert await store.get(NS, "k") == 2

    async def test_it_works_in_several_loops_at_once(self, store: Any) -> None:
        async def put_turns(key: str) -> None:
            for turn in range(8):
                assert await store.put(NS, key, turn) == turn + 1
                assert await store.get(NS, key) == turn
                await store.put(NS, "shared", turn)

        await run_in_loops(put_turns)
        versions = {it.key: it.version for it in await store.list(NS)}
        assert versions == {**dict.fromkeys(LOOPS, 8), "shared": 8 * len(LOOPS)}


class StoreContract(
    ValueRules, Versions, Batches, Copies, ItemExpiry, Namespaces, Listing, Searching, _Filters,
    Embeddings, Nearness, StoreConcurrency, StoreTenants,
):  # fmt: skip
    """Everything that a ``BaseStore`` promises; see the module's docstring."""
