"""Single items, batches and times to live in every store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest

from locus_store.errors import ConflictError, InvalidArgumentError, SerializationError
from locus_store.testing.kit import (
    CUT_TEXTS,
    HOSTILE_IDS,
    INVALID_IDS,
    LONG,
    NS,
    NUMBERS,
    SHORT,
    TEXTS,
    UNSERIALISABLE,
    StoreKit,
    exact,
    expect,
    expect_invalid,
    list_keys,
    put_over,
    refused,
    seam,
    wait_for_expiry,
)
from locus_store.types.items import LAST_TIME, MOST_VERSION, PutItem, Stamp, check_stamp
from locus_store.values.times import EPOCH


class ValueRules(StoreKit):
    """``put``, ``get``, ``get_item``, ``exists`` and ``delete``."""

    async def test_what_is_not_there_is_none(self, store: Any) -> None:
        await store.put(NS, "k", 1)
        for namespace, key in ((NS, "K"), (NS[:1], "k"), ((), "k"), ((*NS, "x"), "k")):
            assert await store.get(namespace, key) is None
            assert await store.get_item(namespace, key) is None
            assert await store.exists(namespace, key) is False
            assert await store.delete(namespace, key) is False

    async def test_an_item_tells_everything(self, store: Any) -> None:
        await store.put(NS, "k", "v1", {"by": "a"})
        first = await store.get_item(NS, "k")
        await store.put(NS, "k", "v2", {"to": "b"})
        item = await store.get_item(NS, "k")
        assert (item.namespace, item.key, item.value) == (NS, "k", "v2")
        assert (item.metadata, item.version, item.score) == ({"to": "b"}, 2, None)
        assert (item.ttl_seconds, item.expires_at) == (None, None)
        assert first.created_at == first.updated_at == item.created_at <= item.updated_at
        assert item.created_at.utcoffset() == timedelta(0)

    async def test_metadata_is_an_object_that_a_put_replaces(self, store: Any) -> None:
        metadata = {"a": [1.0, None, {"b": "\0"}]}
        await store.put(NS, "k", 1, metadata)
        assert exact((await store.get_item(NS, "k")).metadata) == exact(metadata)
        await store.put(NS, "k", 1)
        assert (await store.get_item(NS, "k")).metadata == {}

    @pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
    async def test_an_empty_value_is_there(self, store: Any, value: Any) -> None:
        await store.put(NS, "k", value)
        assert await store.exists(NS, "k") is True
        item = await store.get_item(NS, "k")
        assert exact(item.value) == exact(value)
        assert await store.get_batch([(NS, "k"), (NS, "other")]) == {(NS, "k"): value}
        assert list_keys(await store.list(NS)) == list_keys(await store.search(NS)) == ["k"]
        assert await store.delete(NS, "k") is True
        assert await store.get_item(NS, "k") is None

    async def test_every_number_and_text_comes_back_exactly(self, store: Any) -> None:
        numbers = [*NUMBERS, 1e16, 10**16, -1.0, 100.0, 1e-5, 123456789012345678.0]
        values = [*TEXTS, *CUT_TEXTS, *numbers]
        whole = {"values": values, **{f"k{n}\0'\"$.": it for n, it in enumerate(values)}}
        await store.put_batch([(NS, f"{n}", it) for n, it in enumerate(values)])
        await store.put(NS, "whole", whole)
        for n, value in enumerate(values):
            assert exact(await store.get(NS, f"{n}")) == exact(value)
        assert exact(await store.get(NS, "whole")) == exact(whole)
        assert exact((await store.search(NS, limit=1))[0].value) == exact(whole)
        assert exact((await store.list(NS, after="9"))[-1].value) == exact(whole)

    async def test_a_deep_and_a_big_value_come_back(self, store: Any) -> None:
        deep: Any = "bottom"
        for depth in range(200):
            deep = {"d": deep} if depth % 2 else [deep]
        big = {"text": "é\0🎉x" * 250_000, "rows": [{"n": n / 2, "t": str(n)} for n in range(5000)]}
        await store.put(NS, "deep", deep)
        await store.put(NS, "big", big)
        assert await store.get(NS, "deep") == deep
        assert await store.get(NS, "big") == big
        assert len(await store.search(NS)) == 2
        with pytest.raises(SerializationError, match="deep"):
            await store.put(NS, "deep", [deep])
        assert (await store.get_item(NS, "deep")).version == 1

    async def test_a_tuple_becomes_a_list(self, store: Any) -> None:
        await store.put(NS, "k", (1, (2,)))
        assert exact(await store.get(NS, "k")) == exact([1, [2]])

    async def test_what_json_cannot_hold_is_refused_by_its_path(self, store: Any) -> None:
        await store.put(NS, "k", "old")
        for match, call in (
            ("value.deep[1]", lambda it: store.put(NS, "k", {"deep": [0, it]})),
            ("metadata.deep[1]", lambda it: store.put(NS, "k", 1, {"deep": [0, it]})),
            ("value", lambda it: store.put(NS, "new", it)),
        ):
            await expect(SerializationError, UNSERIALISABLE, call, match=match)
        bad: tuple[Any, ...] = ([], "text", 7, [("k", 1)], "")
        await expect_invalid(bad, lambda it: store.put(NS, "new", 1, it), match="metadata")
        assert (await store.get_item(NS, "k")).version == 1
        assert await store.list_keys(NS) == ["k"]

    async def test_what_a_caller_changes_later_does_not_show(self, store: Any) -> None:
        value, metadata = {"list": [1]}, {"tags": ["a"]}
        await store.put(NS, "k", value, metadata)
        await store.put_batch([(NS, "b", value, metadata)])
        value["list"].append(2)
        metadata["tags"].append("b")
        for key in ("k", "b"):
            item = await store.get_item(NS, key)
            assert (item.value, item.metadata) == ({"list": [1]}, {"tags": ["a"]})

    async def test_results_are_the_callers_own(self, store: Any) -> None:
        await store.put(NS, "k", {"list": [1]}, {"tags": ["a"]})

        async def items() -> list[Any]:
            [several] = await store.search_many([NS])
            listed = [*await store.list(NS), *await store.search(NS)]
            return [await store.get_item(NS, "k"), *listed, *several]

        for item in await items():
            item.value["list"].append(2)
            item.metadata["tags"].append("b")
        (await store.get(NS, "k"))["list"].clear()
        (await store.get_batch([(NS, "k")]))[NS, "k"]["list"].clear()
        assert [(it.value, it.metadata) for it in await items()] == [
            ({"list": [1]}, {"tags": ["a"]})
        ] * 4
        assert await store.get(NS, "k") == {"list": [1]}

    async def test_a_key_is_any_text_of_255_characters(self, store: Any) -> None:
        keys = {*HOSTILE_IDS, "é" * 255, "日" * 255, "\x01" * 255}
        values = {(NS, it): f"of {it}" for it in keys}
        for name, value in values.items():
            await store.put(*name, value)
        assert await store.get_batch([*values]) == values
        assert await store.list_keys(NS, limit=1000) == sorted(keys)
        for key in HOSTILE_IDS[::2]:
            assert await store.delete(NS, key) is True
        assert await store.list_keys(NS, limit=1000) == sorted(keys - {*HOSTILE_IDS[::2]})

    async def test_what_is_no_key_is_refused(self, store: Any) -> None:
        await expect_invalid(
            INVALID_IDS,
            lambda it: store.put(NS, it, 1),
            lambda it: store.get(NS, it),
            lambda it: store.get_item(NS, it),
            lambda it: store.exists(NS, it),
            lambda it: store.delete(NS, it),
            lambda it: store.touch(NS, it),
            lambda it: store.get_batch([(NS, "k"), (NS, it)]),
            lambda it: store.put_batch([(NS, "k", 1), (NS, it, 1)]),
            lambda it: store.list(NS, after="" if it is None else it),
            lambda it: store.list_keys(NS, after="" if it is None else it),
        )
        await expect_invalid((5, None, "items", [(NS, "k")]), store.put_batch)
        assert await store.list_namespaces() == []

    async def test_another_object_has_the_same_items(self, store: Any, other: Any) -> None:
        await store.put(NS, "k", [1.0, "\0"], {"m": None}, LONG)
        assert await other.get_item(NS, "k") == await store.get_item(NS, "k")
        assert await other.put(NS, "k", 2) == 2
        assert await store.get(NS, "k") == 2
        await store.close()
        assert await store.get(NS, "k") == 2


class Versions(StoreKit):
    """Versions, and puts that expect a version."""

    async def test_versions_count_puts_until_a_delete(self, store: Any) -> None:
        for key, values in (("k", [0, 1, 2]), ("same", [{"same": 1}] * 3)):
            assert [await store.put(NS, key, it) for it in values] == [1, 2, 3]
            assert (await store.get_item(NS, key)).version == 3
        assert await store.put(NS, "other", 0) == await store.put((), "k", 0) == 1
        await store.delete(NS, "k")
        assert await store.put(NS, "k", 3) == 1

    async def test_the_expected_version_is_replaced(self, store: Any) -> None:
        assert await store.put(NS, "k", "a", expected_version=0) == 1
        assert await store.put(NS, "k", "b", expected_version=1) == 2
        assert await store.put(NS, "k", "c", None, None, 2) == 3
        assert await store.get(NS, "k") == "c"

    async def test_another_version_is_a_conflict_that_writes_nothing(self, store: Any) -> None:
        await store.put(NS, "k", "a", {"m": 1})
        await store.put(NS, "k", "b", {"m": 2})
        before = await store.get_item(NS, "k")
        for expected in (0, 1, 3, 2**31):
            with refused(ConflictError, expected, match="version 2 is stored"):
                await store.put(NS, "k", "c", expected_version=expected)
        assert await store.get_item(NS, "k") == before

    async def test_an_expected_item_that_is_gone_is_a_conflict(self, store: Any) -> None:
        await store.put(NS, "k", "a")
        await store.delete(NS, "k")
        for key in ("k", "never"):
            with pytest.raises(ConflictError, match="no such item"):
                await store.put(NS, key, "b", expected_version=1)
        assert await store.list(NS) == []

    async def test_what_is_no_version_is_refused(self, store: Any) -> None:
        bad = (-1, 1.0, "1", True, [1])
        await expect_invalid(bad, lambda it: store.put(NS, "k", 1, None, None, it), match="version")
        assert await store.exists(NS, "k") is False


@seam("connection", "loop", "layout")
class Batches(StoreKit):
    """``put_batch`` and ``get_batch``: all or nothing."""

    async def test_a_batch_is_written_whole(self, store: Any) -> None:
        await store.put(NS, "b", 0)
        versions = await store.put_batch([
            (NS, "a", 1),
            PutItem(NS, "b", 2, {"m": 1}, expected_version=1),
            ((), "a", None),
            (("x", "y"), "a", [3], None, LONG, 0),
        ])  # fmt: skip
        assert versions == [1, 2, 1, 1]
        names = [((), "a"), (NS, "b"), (NS, "none"), (("x", "y"), "a"), (NS, "a"), ((), "a")]
        found = await store.get_batch(names)
        assert found == {((), "a"): None, (NS, "b"): 2, (("x", "y"), "a"): [3], (NS, "a"): 1}
        assert (await store.get_item(NS, "b")).metadata == {"m": 1}
        assert (await store.get_item(("x", "y"), "a")).expires_at is not None

    async def test_an_empty_batch_is_nothing(self, store: Any) -> None:
        assert await store.put_batch([]) == []
        assert await store.get_batch([]) == {}

    async def test_a_batch_is_a_list_of_tuples(self, store: Any) -> None:
        await store.put(NS, "k", 1)
        assert await store.get_batch(it for it in [(NS, "k")]) == {(NS, "k"): 1}
        await expect_invalid((None, 7, "ab", [7], [()], [(NS,)]), store.get_batch, store.put_batch)

    async def test_a_thousand_items_at_once(self, store: Any) -> None:
        names = [((f"n{n % 7}",), f"{n}") for n in range(1000)]
        items = [(*name, {"n": n}) for n, name in enumerate(names)]
        assert await store.put_batch(items) == [1] * 1000
        assert await store.get_batch(names) == {name: {"n": n} for n, name in enumerate(names)}

    async def test_of_two_with_the_same_name_the_later_counts(self, store: Any) -> None:
        versions = await store.put_batch([(NS, "k", "a"), (NS, "o", 0), (NS, "k", "b", {"m": 1})])
        assert versions == [1, 1, 1]
        item = await store.get_item(NS, "k")
        assert (item.value, item.metadata, item.version) == ("b", {"m": 1}, 1)

    async def test_one_conflict_leaves_the_whole_batch_out(self, store: Any) -> None:
        await store.put(NS, "b", "old")
        before = await store.get_item(NS, "b")
        for expected in (0, 2):
            items = [(NS, "a", 1), (NS, "b", 2, None, None, expected), (NS, "c", 3)]
            with pytest.raises(ConflictError, match="'b'"):
                await store.put_batch(items)
        assert await store.list(NS) == [before]

    async def test_one_bad_item_leaves_the_whole_batch_out(self, store: Any) -> None:
        errors = (SerializationError, InvalidArgumentError)
        for bad in (
            (NS, "b", float("nan")), (NS, "", 1), (("",), "b", 1), (NS, "b"), [NS, "b", 1], None,
            (NS, "b", 1, "no object"), (NS, "b", 1, None, -1), (NS, "b", 1, None, None, -1),
            (NS, "b", 1, None, None, None, [1.0]), (NS, "b", 1, None, None, None, [1.0, 0, 0], 8),
        ):  # fmt: skip
            if store.dimension is None and bad is not None and len(bad) == len(PutItem._fields):
                continue
            with refused(errors, bad):
                await store.put_batch([(NS, "a", 1), bad, (NS, "c", 3)])
        assert await store.list_namespaces() == []


class Copies(StoreKit):
    """Puts that keep the version and the times of an item."""

    async def test_a_copy_keeps_its_version_and_times(self, store: Any) -> None:
        await store.put(NS, "new", 0)
        until = (await store.get_item(NS, "new")).updated_at + timedelta(seconds=LONG)
        stamp = Stamp(version=7, created_at=_OLD, updated_at=_OLD + _HOUR, expires_at=until)
        assert await _put_copy(store, "k", {"n": 1}, stamp, 0) == [7]
        item = await store.get_item(NS, "k")
        assert (item.value, item.metadata, item.version) == ({"n": 1}, {"by": "a"}, 7)
        assert (item.created_at, item.updated_at) == (_OLD, _OLD + _HOUR)
        assert (item.expires_at, item.ttl_seconds) == (until, LONG)
        assert list_keys(await store.search(())) == ["new", "k"]
        with pytest.raises(ConflictError, match="'k'"):
            await _put_copy(store, "k", {"n": 2}, stamp, 0)
        assert await _put_copy(store, "k", {"n": 2}, stamp, 7) == [7]
        assert (await store.get_item(NS, "k")) == replace(item, value={"n": 2})
        assert await store.put(NS, "k", 3, expected_version=7) == 8
        item = await store.get_item(NS, "k")
        assert (item.created_at, item.expires_at) == (_OLD, None)
        assert item.updated_at > _OLD + _HOUR
        assert list_keys(await store.search(())) == ["k", "new"]

    async def test_copies_of_one_time_are_all_listed(self, store: Any) -> None:
        stamp = Stamp(version=1, created_at=_OLD, updated_at=_OLD, expires_at=None)
        for number in range(12):
            await _put_copy(store, str(number), {"n": number}, stamp, 0)
        pages = [await store.search((), limit=5, offset=at) for at in (0, 5, 10)]
        assert sorted(it.value["n"] for page in pages for it in page) == [*range(12)]
        assert len(await store.search((), filter={"n": {"$gte": 0}}, limit=20)) == 12

    async def test_no_copy_is_newer_than_now(self, store: Any) -> None:
        later = _OLD.replace(year=9000)
        await store.put(NS, "before", 1)
        stamp = Stamp(version=1, created_at=_OLD, updated_at=later, expires_at=None)
        await _put_copy(store, "k", 1, stamp, 0)
        await store.put(NS, "after", 1)
        assert list_keys(await store.search(())) == ["after", "k", "before"]

    async def test_copies_and_puts_of_one_moment_are_all_listed(self, store: Any) -> None:
        stamp = Stamp(version=1, created_at=_OLD, updated_at=LAST_TIME, expires_at=None)
        changes = []
        for number in range(12):
            put = store.checked(PutItem(NS, str(number), {"n": number}))
            changes.append(replace(put, stamp=stamp if number % 3 else None))
        await store.apply(changes)
        pages = [await store.search((), limit=1, offset=at) for at in range(12)]
        assert sorted(it.value["n"] for page in pages for it in page) == [*range(12)]

    async def test_the_first_and_the_last_of_all_stamps_can_be_kept(self, store: Any) -> None:
        first = Stamp(version=1, created_at=EPOCH, updated_at=EPOCH, expires_at=None)
        last = Stamp(
            version=MOST_VERSION, created_at=LAST_TIME, updated_at=_OLD, expires_at=LAST_TIME
        )
        for key, stamp in (("first", first), ("last", last)):
            check_stamp(stamp, None if stamp is first else LONG)
            await _put_copy(store, key, 1, stamp, 0)
            assert (await store.get_item(NS, key)).version == stamp.version
        await _put_copy(store, "over", 1, replace(first, expires_at=EPOCH), 0)
        assert list_keys(await store.list(NS)) == ["first", "last"]
        assert list_keys(await store.search(NS)) == ["last", "first"]
        for number in (1, 2):
            assert await store.put(NS, "last", number) == MOST_VERSION + number


_OLD, _HOUR = datetime(2020, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC), timedelta(hours=1)


async def _put_copy(store: Any, key: str, value: Any, stamp: Stamp, version: int) -> Any:
    ttl = None if stamp.expires_at is None else LONG
    put = store.checked(PutItem(NS, key, value, {"by": "a"}, ttl, version))
    return await store.apply([replace(put, stamp=stamp)])


class ItemExpiry(StoreKit):
    """Times to live, by the server's clock."""

    async def test_an_item_tells_until_when_it_lives(self, store: Any) -> None:
        await store.put(NS, "k", 1, ttl_seconds=LONG)
        item = await store.get_item(NS, "k")
        assert item.ttl_seconds == LONG
        assert item.expires_at.astimezone(UTC) - item.updated_at == timedelta(seconds=LONG)
        await store.put(NS, "k", 2)
        item = await store.get_item(NS, "k")
        assert (item.value, item.ttl_seconds, item.expires_at) == (2, None, None)

    async def test_nothing_shows_an_expired_item(self, store: Any) -> None:
        await store.put(NS, "live", {"t": "word"}, ttl_seconds=LONG)
        await store.put_batch(
            [(NS, "k", {"t": "word"}, None, SHORT), (("gone",), "k", 1, None, SHORT)]
        )
        await wait_for_expiry(store.get_item, NS, "k")
        await wait_for_expiry(store.get_item, ("gone",), "k")
        assert await store.get(NS, "k") is None
        assert await store.get_item(NS, "k") is None
        assert await store.get_batch([(NS, "k"), (NS, "live")]) == {(NS, "live"): {"t": "word"}}
        assert await store.list_keys(NS) == list_keys(await store.list(NS)) == ["live"]
        assert list_keys(await store.search(())) == ["live"]
        assert list_keys(await store.search(NS, "word", {"t": "word"})) == ["live"]
        assert await store.search_many([("gone",)]) == [[]]
        assert await store.list_namespaces() == [NS]

    async def test_a_page_that_is_not_full_is_the_last(self, store: Any) -> None:
        """Expired and removed items take no place in it."""
        names = [f"k{number:02}" for number in range(24)]
        await store.put_batch(
            [(NS, it, 1, None, (SHORT, LONG)[at % 2]) for at, it in enumerate(names)]
        )
        for name in names[1::4]:
            await store.delete(NS, name)
        await wait_for_expiry(store.get_item, NS, names[-2])
        first = await store.page(NS, 4, None)
        last = await store.page(NS, 4, first[-1].key)
        assert list_keys([*first, *last]) == names[3::4]
        assert len(first) == 4

    async def test_a_removal_counts_no_expired_item(self, store: Any) -> None:
        await put_over(store, NS, "k")
        await store.put(NS, "live", 1)
        assert await store.delete(NS, "k") is False
        await put_over(store, NS, "k")
        assert await store.clear_namespace(NS) == 1
        await put_over(store, NS, "k")
        assert await store.clear_namespace((), recursive=True) == 0

    async def test_a_put_over_an_expired_item_is_the_first(self, store: Any) -> None:
        await store.put(NS, "k", 0)
        await put_over(store, NS, "k", "old")
        with pytest.raises(ConflictError, match="no such item"):
            await store.put(NS, "k", "new", expected_version=2)
        assert await store.put(NS, "k", "new", expected_version=0) == 1
        item = await store.get_item(NS, "k")
        assert (item.value, item.version, item.metadata) == ("new", 1, {})
        assert item.created_at == item.updated_at
        await put_over(store, NS, "k")
        assert await store.put_batch([(NS, "k", "again")]) == [1]

    async def test_touch_gives_the_whole_time_again(self, store: Any) -> None:
        await store.put(NS, "k", 1, {"m": 1}, LONG)
        await store.put(NS, "other", 2, ttl_seconds=LONG)
        before = await store.get_item(NS, "k")
        other = await store.get_item(NS, "other")
        deadline = monotonic() + 20
        while (item := await store.get_item(NS, "k")).expires_at <= before.expires_at:
            assert monotonic() < deadline
            await store.touch(NS, "k")
        assert (item.value, item.metadata, item.version) == (1, {"m": 1}, 1)
        assert (item.updated_at, item.ttl_seconds) == (before.updated_at, LONG)
        assert await store.get_item(NS, "other") == other
        assert list_keys(await store.search(NS)) == ["other", "k"]

    async def test_touch_of_what_lives_for_good_or_not_at_all_is_nothing(self, store: Any) -> None:
        await store.put(NS, "good", 1)
        before = await store.get_item(NS, "good")
        await put_over(store, NS, "k")
        for key in ("good", "k", "never"):
            assert await store.touch(NS, key) is None
        assert await store.list(NS) == [before]

    async def test_expire_gives_back_what_is_over_and_nothing_else(self, store: Any) -> None:
        await store.put(NS, "live", 1, ttl_seconds=LONG)
        await store.put(NS, "good", 1)
        await store.put_batch([(NS, f"k{n:04}", n, None, SHORT) for n in range(1100)])
        for n in (0, 1099):
            await wait_for_expiry(store.get_item, NS, f"k{n:04}")
        assert await store.list_keys(NS, limit=10_000) == ["good", "live"]
        assert await store.expire() == 1100
        assert await store.expire() == 0
        assert await store.list_keys(NS) == ["good", "live"]

    async def test_what_is_no_time_to_live_is_refused(self, store: Any) -> None:
        bad = (0, -1, float("nan"), float("inf"), 10**12, 10**400, "1", True, timedelta(1))
        await expect_invalid(
            bad, lambda it: store.put(NS, "k", 1, ttl_seconds=it), match="ttl_seconds"
        )
        await store.put(NS, "longest", 1, ttl_seconds=10**11)
        assert await store.list_keys(NS) == ["longest"]

    async def test_racing_puts_over_an_expired_item_are_counted(self, store: Any) -> None:
        await put_over(store, NS, "k")
        versions = await asyncio.gather(*(store.put(NS, "k", n) for n in range(8)))
        assert sorted(versions) == list(range(1, 9))
