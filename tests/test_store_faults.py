"""Each promise of a store is worth what it catches: doubles that break one, each caught by name."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import InMemoryStore, LocusStoreError
from locus_store.testing import StoreContract
from locus_store.types.items import Put
from locus_store.values.encoding import encode
from locus_store.values.filters import Filter
from locus_store.values.vectors import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

DOUBLES: dict[type[InMemoryStore], str] = {}


def caught_by(test: str) -> Callable[[type[InMemoryStore]], type[InMemoryStore]]:
    def noted(double: type[InMemoryStore]) -> type[InMemoryStore]:
        DOUBLES[double] = test
        return double

    return noted


@caught_by("test_an_empty_value_is_there")
class TakesNoneForMissing(InMemoryStore):
    async def read(self, names):
        return [it if it and it.value is not None else None for it in await super().read(names)]


@caught_by("test_results_are_the_callers_own")
class SharesWhatItKeeps(InMemoryStore):
    async def recent(self, wanted):
        found = await super().recent(wanted)
        return [self._find((it.namespace, it.key)).item for it in found]


@caught_by("test_every_number_and_text_comes_back_exactly")
class KeepsWholeFloatsAsInts(InMemoryStore):
    async def apply(self, changes):
        def whole(put):
            value = put.value
            is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
            return replace(put, json=encode(int(value))) if is_whole else put

        return await super().apply([whole(it) if isinstance(it, Put) else it for it in changes])


@caught_by("test_an_item_tells_everything")
class ForgetsWhenItWasCreated(InMemoryStore):
    def _put(self, change):
        version = super()._put(change)
        kept = self._find(change.name)
        item = replace(kept.item, created_at=kept.item.updated_at)
        self._set(change.name, replace(kept, item=item))
        return version


@caught_by("test_another_version_is_a_conflict_that_writes_nothing")
class ChecksNoVersion(InMemoryStore):
    def _require(self, change):
        pass


@caught_by("test_of_20_racing_puts_one_wins")
class ChecksAndThenActs(InMemoryStore):
    async def apply(self, changes):
        for change in changes:
            self._require(change)
        await asyncio.sleep(0)
        return [self._put(it) for it in changes]


@caught_by("test_one_conflict_leaves_the_whole_batch_out")
class WritesItemByItem(InMemoryStore):
    async def apply(self, changes):
        return [
            version for it in changes for version in await super(WritesItemByItem, self).apply([it])
        ]


@caught_by("test_nothing_shows_an_expired_item")
class ListsNamespacesOfTheExpired(InMemoryStore):
    async def namespaces(self, match, limit, offset):
        return sorted({match.cut(it) for it in self._namespaces} - {None})[offset : offset + limit]


@caught_by("test_a_removal_counts_no_expired_item")
class CountsTheExpired(InMemoryStore):
    def _remove(self, change):
        was_there = self._find(change.name) is not None
        self._set(change.name, None)
        return int(was_there)


@caught_by("test_a_put_over_an_expired_item_is_the_first")
class CountsOnAfterExpiry(InMemoryStore):
    def _put(self, change):
        old = self._find(change.name)
        version = super()._put(change)
        kept = self._find(change.name)
        item = replace(kept.item, version=old.item.version + 1 if old else version)
        self._set(change.name, replace(kept, item=item))
        return item.version


@caught_by("test_touch_gives_the_whole_time_again")
class TouchesNothing(InMemoryStore):
    async def renew(self, names):
        async def write(name):
            it = await self.get_item(*name)
            await self.put(*name, it.value, it.metadata, it.ttl_seconds)

        for name in names:
            await write(name)


@caught_by("test_expire_gives_back_what_is_over_and_nothing_else")
class SweepsWhatLives(InMemoryStore):
    async def sweep(self, limit):
        gone = [it.item for it in self._iterate_items() if it.item.expires_at][:limit]
        for it in gone:
            self._set((it.namespace, it.key), None)
        return len(gone)


@caught_by("test_a_prefix_ends_where_a_segment_does")
class JoinsSegments(InMemoryStore):
    def _list_live(self, namespace, *, recursive):
        text, found = "/".join(namespace), super()._list_live((), recursive=True)
        return [it for it in found if "/".join(it.item.namespace).startswith(text)]


@caught_by("test_hostile_namespaces_are_each_one_of_its_own")
class TakesAListForAPrefix(InMemoryStore):
    async def page(self, namespace, limit, after):
        found = self._list_live(namespace, recursive=True)
        return sorted((it.item for it in found), key=lambda it: it.key)[:limit]


@caught_by("test_a_namespace_is_cleared_alone_or_with_those_below")
class ClearsWhatIsBelow(InMemoryStore):
    async def clear(self, namespace, *, recursive):
        return await super().clear(namespace, recursive=True)


@caught_by("test_namespaces_by_prefix_suffix_and_depth")
class CutsBeforeItMatches(InMemoryStore):
    async def namespaces(self, match, limit, offset):
        found = self._list_live(match.fixed, recursive=True)
        cut = {it.item.namespace[: match.max_depth] for it in found}
        return sorted({match.cut(it) for it in cut} - {None})[offset : offset + limit]


@caught_by("test_only_the_namespace_itself_is_listed_by_key")
class SortsAsPeopleDo(InMemoryStore):
    async def page(self, namespace, limit, after):
        found = await super().page(namespace, 10_000, after)
        return sorted(found, key=lambda it: it.key.casefold())[:limit]


@caught_by("test_pages_are_the_whole")
class RepeatsTheLastKey(InMemoryStore):
    async def page(self, namespace, limit, after):
        found = await super().page(namespace, limit, after)
        return [*await self.read([(namespace, after)] if after else []), *found][:limit]


@caught_by("test_pages_lose_and_repeat_nothing_while_others_write")
class PagesByPosition(InMemoryStore):
    async def page(self, namespace, limit, after):
        self._at = 0 if after is None else self._at + limit
        return (await super().page(namespace, 10_000, None))[self._at : self._at + limit]


@caught_by("test_the_last_updated_comes_first")
class OrdersByCreation(InMemoryStore):
    async def recent(self, wanted):
        found = await super().recent(replace(wanted, limit=10_000, offset=0))
        found.sort(key=lambda it: it.created_at, reverse=True)
        return found[wanted.offset : wanted.offset + wanted.limit]


@caught_by("test_few_among_many_are_all_found")
class FiltersAfterTheLimit(InMemoryStore):
    async def recent(self, wanted):
        everything = replace(wanted, filter=Filter(), metadata_filter=Filter(), words=())
        found = await super().recent(everything)
        return [it for it in found if wanted.takes(it.value, it.metadata)]


@caught_by("test_every_operator_takes_what_its_examples_say")
class TakesTrueForOne(InMemoryStore):
    async def recent(self, wanted):
        def loose(value):
            if isinstance(value, dict):
                return {key: loose(it) for key, it in value.items()}
            return int(value) if isinstance(value, bool) else value

        found = await super().recent(replace(wanted, filter=Filter(), limit=10_000, offset=0))
        found = [it for it in found if wanted.filter.takes(loose(it.value))]
        return found[wanted.offset : wanted.offset + wanted.limit]


@caught_by("test_generated_filters_match_the_reference")
class KeepsNumbersAsDoubles(InMemoryStore):
    async def recent(self, wanted):
        def rough(value):
            if isinstance(value, dict):
                return {key: rough(it) for key, it in value.items()}
            return float(value) if type(value) is int else value

        found = await super().recent(replace(wanted, filter=Filter(), limit=10_000, offset=0))
        found = [it for it in found if wanted.filter.takes(rough(it.value))]
        return found[wanted.offset : wanted.offset + wanted.limit]


@caught_by("test_a_key_is_one_key_and_never_part_of_a_statement")
class SplitsKeysAtDots(InMemoryStore):
    async def recent(self, wanted):
        split = [
            it._replace(path=tuple(part for key in it.path for part in key.split(".")))
            for it in wanted.filter.clauses
        ]
        wanted.filter.clauses = tuple(split)
        return await super().recent(wanted)


@caught_by("test_all_words_of_a_query_must_be_there")
class FindsPartsOfWords(InMemoryStore):
    async def recent(self, wanted):
        found = await super().recent(replace(wanted, words=()))
        return [it for it in found if all(word in str(it.value) for word in wanted.words)]


@caught_by("test_an_item_put_without_an_embedding_loses_its_old_one")
class KeepsOldEmbeddings(InMemoryStore):
    def _put(self, change):
        old = self._find(change.name)
        kept = change.vectors or (old.vectors if old else ())
        return super()._put(replace(change, vectors=kept))


@caught_by("test_an_embedding_is_kept_as_float32")
class RoundsEmbeddings(InMemoryStore):
    async def vectors_of(self, namespace, key):
        rounded = [
            [round(n, 4) for n in unpack(it)] for it in await super().vectors_of(namespace, key)
        ]
        return [pack(it, 3, "l2") for it in rounded]


@caught_by("test_the_nearest_comes_first")
class GivesDistancesForScores(InMemoryStore):
    async def nearest(self, wanted, vector, threshold):
        found = await super().nearest(wanted, vector, threshold)
        return [replace(it, score=-it.score) for it in found]


@caught_by("test_a_threshold_is_the_least_score")
class TakesMoreThanTheThreshold(InMemoryStore):
    async def nearest(self, wanted, vector, threshold):
        found = await super().nearest(wanted, vector, threshold)
        return [it for it in found if threshold is None or it.score > threshold]


@caught_by("test_ties_are_ordered_by_namespace_and_key")
class OrdersTiesByAge(InMemoryStore):
    async def nearest(self, wanted, vector, threshold):
        found = await super().nearest(replace(wanted, limit=10_000), vector, threshold)
        found.sort(key=lambda it: (-it.score, it.updated_at))
        return found[: wanted.limit]


@caught_by("test_filtered_searches_return_the_requested_number")
class FiltersTheNearest(InMemoryStore):
    async def nearest(self, wanted, vector, threshold):
        everything = replace(wanted, filter=Filter(), metadata_filter=Filter())
        found = await super().nearest(everything, vector, threshold)
        return [it for it in found if wanted.takes(it.value, it.metadata)]


@caught_by("test_an_items_score_is_that_of_its_best_embedding")
class ScoresTheFirstEmbedding(InMemoryStore):
    async def nearest(self, wanted, vector, threshold):
        for kept in [*self._iterate_items()]:
            name = (kept.item.namespace, kept.item.key)
            self._set(name, replace(kept, vectors=kept.vectors[:1]))
        return await super().nearest(wanted, vector, threshold)


@caught_by("test_a_query_is_ranked_by_meaning")
class LeavesTheOffsetOut(InMemoryStore):
    async def nearest(self, wanted, vector, threshold):
        return await super().nearest(replace(wanted, offset=0), vector, threshold)


@caught_by("test_racing_batches_are_all_written")
class ShowsHalfABatch(InMemoryStore):
    async def apply(self, changes):
        made = []
        for change in changes:
            made += await super().apply([change])
            await asyncio.sleep(0)
        return made


async def keeps(promise: str, double: type[InMemoryStore]) -> None:
    """Run a test of the contract, its first case, on a store of this class; raises if it fails."""
    test = getattr(StoreContract(), promise)

    def reopen(**options: Any) -> InMemoryStore:
        return double(**{"dimension": 3, **options})

    store = reopen()
    given_: dict[str, Any] = {"store": store, "reopen": reopen, "several": [store] * 20}
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names, case = mark.args[0], mark.args[1][0]
            given_ |= (
                dict(zip(names, case, strict=True)) if isinstance(names, tuple) else {names: case}
            )
    await test(**{it: given_[it] for it in inspect.signature(test).parameters})


@pytest.mark.anyio
@pytest.mark.parametrize("double", DOUBLES, ids=lambda it: it.__name__)
async def test_a_broken_promise_is_caught_by_its_own_test(double: type[InMemoryStore]) -> None:
    await keeps(DOUBLES[double], InMemoryStore)
    with pytest.raises((AssertionError, pytest.fail.Exception, LocusStoreError)):
        await keeps(DOUBLES[double], double)


def test_each_double_breaks_a_promise_of_its_own() -> None:
    assert len(set(DOUBLES.values())) == len(DOUBLES) >= 30
