"""Embeddings, as every store keeps and compares them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from locus_store.errors import ConflictError, UnsupportedError
from locus_store.testing.kit import (
    HOSTILE_NAMESPACES,
    INVALID_LIMITS,
    INVALID_NAMESPACES,
    NS,
    SHORT,
    Another,
    StoreKit,
    expect,
    expect_invalid,
    list_keys,
    requires,
    wait_for_expiry,
)
from locus_store.types.items import Namespace, Put
from locus_store.values import vectors
from locus_store.values.encoding import encode

X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
NEAR_X, BACK_X = [0.8, 0.6, 0.0], [-1.0, 0.0, 0.0]

INVALID_EMBEDDINGS: tuple[Any, ...] = (
    [], [1.0], [1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [float("nan"), 0, 1], [float("inf"), 0, 1],
    [1e39, 0.0, 0.0], [10**400, 0, 0], ["1", 0, 0], [None, 0, 0], [[1.0], 0, 0], "abc", b"abc", 7,
    {"a": 1, "b": 2, "c": 3}, {1.0, 2.0, 3.0},
)  # fmt: skip
"""None of dimension 3."""

WORDS = ("cat", "dog", "car")


def embed_text(text: str) -> list[float]:
    """Return a model double's embedding: the number of occurrences of three words."""
    return [float(text.count(it)) + 0.01 for it in WORDS]


async def embed(texts: list[str]) -> list[list[float]]:
    """Embed strings by the model double, in the form that a store calls."""
    return [embed_text(it) for it in texts]


class EmbeddingKit(StoreKit):
    """The base of tests of a store with embeddings."""

    async def read_scores(
        self, reopen: Another, metric: str, query: Sequence[float], **options: Any
    ) -> list[tuple[str, float]]:
        """Return the keys and scores that a store with this metric returns."""
        async with reopen(metric=metric) as store:
            for key, vector in {"x": X, "near": NEAR_X, "y": Y, "back": BACK_X}.items():
                await store.put_with_embedding(NS, key, key, vector)
            hits = await store.search_by_embedding(NS, query, **options)
            return [(it.item.key, it.score) for it in hits]


@requires("semantic_search")
class Embeddings(EmbeddingKit):
    """``put_with_embedding`` and ``get_embedding``."""

    async def test_an_item_with_an_embedding_is_an_item(self, store: Any) -> None:
        assert store.capabilities.embedding_dimension == 3
        assert await store.put_with_embedding(NS, "k", {"n": 1}, X, {"m": 1}, 3600, 0) == 1
        item = await store.get_item(NS, "k")
        assert (item.value, item.metadata, item.ttl_seconds) == ({"n": 1}, {"m": 1}, 3600)
        assert await store.put_with_embedding(NS, "k", 2, Y, expected_version=1) == 2
        assert list_keys(await store.search(NS)) == await store.list_keys(NS) == ["k"]

    async def test_an_embedding_is_kept_as_float32(self, store: Any) -> None:
        numbers = [0.1, -1 / 3, 1e-40]
        await store.put_with_embedding(NS, "k", 1, numbers)
        kept = await store.get_embedding(NS, "k")
        assert kept == list(struct.unpack("<3f", struct.pack("<3f", *numbers)))
        assert all(type(it) is float for it in kept)
        await store.put_with_embedding(NS, "ints", 1, (1, 2, 3))
        assert await store.get_embedding(NS, "ints") == [1.0, 2.0, 3.0]

    async def test_an_array_is_an_embedding(self, store: Any) -> None:
        numpy = pytest.importorskip("numpy")
        for kind in ("float32", "float64", "float16", "int64"):
            await store.put_with_embedding(NS, kind, 1, numpy.array([1, 2, 4], dtype=kind))
            assert await store.get_embedding(NS, kind) == [1.0, 2.0, 4.0]
        hits = await store.search_by_embedding(NS, numpy.array([1.0, 2.0, 4.0]))
        assert [it.score for it in hits] == [pytest.approx(1.0)] * 4

    async def test_an_item_without_an_embedding_has_none(self, store: Any) -> None:
        await store.put(NS, "k", 1)
        for key in ("k", "never"):
            assert await store.get_embedding(NS, key) is None
        assert await store.search_by_embedding(NS, X) == []

    async def test_an_item_put_without_an_embedding_loses_its_old_one(self, store: Any) -> None:
        for key in "abcd":
            await store.put_with_embedding(NS, key, "old", X)
        await store.put(NS, "a", "new")
        await store.put_batch([(NS, "b", "new"), (NS, "c", "new", None, None, None, Y)])
        await store.delete(NS, "d")
        await store.put(NS, "d", "new")
        found = {it: await store.get_embedding(NS, it) for it in "abcd"}
        assert found == {"a": None, "b": None, "c": Y, "d": None}
        assert list_keys(await store.search_by_embedding(NS, X)) == ["c"]

    async def test_a_conflict_leaves_the_old_embedding(self, store: Any) -> None:
        await store.put_with_embedding(NS, "k", "old", X)
        with pytest.raises(ConflictError):
            await store.put_with_embedding(NS, "k", "new", Y, expected_version=0)
        with pytest.raises(ConflictError):
            await store.put_batch([(NS, "k", "new"), (NS, "o", 1, None, None, 3)])
        [hit] = await store.search_by_embedding(NS, X)
        assert (hit.item.value, hit.score) == ("old", pytest.approx(1.0))
        assert await store.get_embedding(NS, "k") == X

    async def test_nothing_shows_the_embedding_of_what_is_gone(self, store: Any) -> None:
        for key in ("deleted", "expired", "over"):
            await store.put_with_embedding(NS, key, 1, X)
        await store.put_with_embedding(("gone",), "cleared", 1, X)
        await store.delete(NS, "deleted")
        await store.clear_namespace(("gone",))
        for key in ("expired", "over"):
            await store.put_with_embedding(NS, key, 1, X, ttl_seconds=SHORT)
            await wait_for_expiry(store.get_item, NS, key)
        await store.put(NS, "over", 2)
        assert await store.search_by_embedding((), X) == []
        for key in ("deleted", "expired", "over"):
            assert await store.get_embedding(NS, key) is None
        assert await store.expire() == 1
        await store.put(NS, "expired", 1)
        assert await store.get_embedding(NS, "expired") is None

    async def test_what_is_no_embedding_is_refused_and_writes_nothing(self, store: Any) -> None:
        await store.put_with_embedding(NS, "k", "old", X)
        await expect_invalid(
            (*INVALID_EMBEDDINGS, [0.0, 0.0, 0.0], [-0.0, 0, 1e-46]),
            lambda it: store.put_with_embedding(NS, "k", "new", it),
            lambda it: store.put_batch([(NS, "n", 1), (NS, "m", 1, None, None, None, it)]),
            lambda it: store.search_by_embedding(NS, it),
            lambda it: store.search_by_embedding(NS, query_embedding=it),
            match="embedding",
        )
        assert [it.version for it in await store.list(NS)] == [1]

    async def test_a_store_without_a_dimension_says_so(self, reopen: Another) -> None:
        async with reopen(dimension=None) as store:
            assert store.capabilities.semantic_search is False
            assert store.capabilities.embedding_dimension is None
            await expect(
                UnsupportedError,
                [X],
                lambda it: store.put_with_embedding(NS, "k", 1, it),
                lambda it: store.put_batch([(NS, "o", 1), (NS, "k", 1, None, None, None, it)]),
                lambda it: store.search_by_embedding(NS, it),
                lambda _: store.get_embedding(NS, "k"),
                match="dimension",
            )
            assert await store.list(NS) == []


@requires("semantic_search")
class Nearness(EmbeddingKit):
    """``search_by_embedding``, and ``search`` by meaning."""

    @pytest.mark.parametrize(
        ("metric", "scores"),
        [
            ("l2", [-4.0, -(18**0.5), -(26**0.5), -6.0]),
            ("cosine", [1.0, 0.8, 0.0, -1.0]),
            ("ip", [5.0, 4.0, 0.0, -5.0]),
        ],
    )
    async def test_the_nearest_comes_first(
        self, store: Any, reopen: Another, metric: str, scores: list[float]
    ) -> None:
        expected = [*zip(("x", "near", "y", "back"), scores, strict=True)]
        assert await self.read_scores(reopen, metric, [5.0, 0, 0]) == _approximate_scores(expected)

    @pytest.mark.parametrize(("metric", "least"), [("cosine", 0.0), ("l2", -4.0), ("ip", 5.0)])
    async def test_a_threshold_is_the_least_score(
        self, store: Any, reopen: Another, metric: str, least: float
    ) -> None:
        found = await self.read_scores(reopen, metric, [5.0, 0, 0], threshold=least)
        assert found
        assert found[-1][1] == least
        above = found[0][1] + 1e-3
        assert await self.read_scores(reopen, metric, [5.0, 0, 0], threshold=above) == []

    async def test_zeros_have_a_distance_only(self, store: Any, reopen: Another) -> None:
        for metric in ("l2", "ip"):
            found = await self.read_scores(reopen, metric, [0, 0, 0])
            assert {round(score, 6) for _, score in found} == ({-1.0} if metric == "l2" else {0.0})

    async def test_ties_are_ordered_by_namespace_and_key(self, store: Any) -> None:
        names = [(it, key) for it in HOSTILE_NAMESPACES[:12] for key in ("b", "B", "é", "10", "9")]
        await store.put_batch([(*it, 1, None, None, None, [0.1, 0.2, 0.3]) for it in names[::-1]])
        hits = await store.search_by_embedding((), [0.3, 0.2, 0.1], limit=100)
        assert [(it.item.namespace, it.item.key) for it in hits] == sorted(names)
        hits = await store.search_by_embedding((), [0.3, 0.2, 0.1], limit=7)
        assert [(it.item.namespace, it.item.key) for it in hits] == sorted(names)[:7]

    async def test_near_ties_are_ordered_by_the_exact_scores(self, store: Any) -> None:
        """Some differences vanish in float32, and more items tie than the first query reads."""
        numbers = random.Random(1)  # noqa: S311  (a test)
        near = [[1.0, 1.0 + numbers.random() * 1e-6, 0.5] for _ in range(200)]
        await store.put_batch(
            [(NS, f"{at:03}", at, None, None, None, it) for at, it in enumerate(near)]
        )
        await store.put_batch(
            [(("ties",), f"{at:03}", at, None, None, None, X) for at in range(200)]
        )
        kept = [vectors.pack(it, 3, "cosine") for it in near]
        scores = vectors.compute_scores(vectors.pack(near[7], 3, "cosine"), kept, "cosine")
        wanted = sorted(range(200), key=lambda it: (-scores[it], it))[:5]
        found = await store.search_by_embedding(NS, near[7], 5)
        assert [it.item.value for it in found] == wanted
        found = await store.search_by_embedding(("ties",), X, 5)
        assert [it.item.value for it in found] == [0, 1, 2, 3, 4]

    async def test_a_hit_is_an_item_with_its_score(self, store: Any) -> None:
        await store.put_with_embedding(NS, "k", {"n": 1}, NEAR_X, {"m": 1}, 3600)
        [hit] = await store.search_by_embedding(NS, X)
        assert hit.score == hit.item.score == pytest.approx(0.8)
        item = await store.get_item(NS, "k")
        told = ("namespace", "key", "value", "metadata", "version", "created_at", "expires_at")
        assert all(getattr(hit.item, it) == getattr(item, it) for it in told)
        hit.item.value["n"] = 2
        assert await store.get(NS, "k") == {"n": 1}

    async def test_a_search_stays_below_its_namespace(self, store: Any) -> None:
        histories: list[Namespace] = [
            ("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("a/b",), ("%",), ("*",), ("_",), (),
        ]  # fmt: skip
        await store.put_batch([(it, "k", list(it), None, None, None, X) for it in histories])
        for prefix in histories:
            hits = await store.search_by_embedding(prefix, X, limit=100)
            below = sorted(it for it in histories if it[: len(prefix)] == prefix)
            assert [it.item.namespace for it in hits] == below

    async def test_filtered_searches_return_the_requested_number(self, store: Any) -> None:
        """Few items match, and hundreds that do not are nearer."""
        await store.put_batch([
            (NS, f"n{n:03}", {"kind": "common"}, {"rare": 0}, None, None, [1.0, n / 1000, 0.0])
            for n in range(500)
        ])  # fmt: skip
        await store.put_batch([
            (NS, f"r{n}", {"kind": "rare"}, {"rare": 1}, None, None, [0.1, 1.0, n / 10])
            for n in range(7)
        ])  # fmt: skip
        keys = [f"r{n}" for n in range(7)]
        hits = await store.search_by_embedding(NS, X, limit=5, filter={"kind": "rare"})
        assert list_keys(hits) == keys[:5]
        rare = {"rare": {"$gte": 1}}
        hits = await store.search_by_embedding(NS, X, limit=100, metadata_filter=rare)
        assert list_keys(hits) == keys
        hits = await store.search_by_embedding(NS, X, limit=3)
        assert list_keys(hits) == ["n000", "n001", "n002"]
        assert await store.search_by_embedding(NS, X, limit=0) == []

    async def test_an_items_score_is_that_of_its_best_embedding(self, store: Any) -> None:
        if not hasattr(store, "apply"):
            pytest.skip("several embeddings of an item are for adapters")

        def put(key: str, *vectors: list[float]) -> Put:
            packed = tuple(struct.pack("<3f", *it) for it in vectors)
            return Put(namespace=NS, key=key, json=encode(key), metadata={}, vectors=packed)

        await store.apply([put("far", Y, Z), put("best", BACK_X, X), put("good", Z, NEAR_X)])
        hits = await store.search_by_embedding(NS, X)
        scores = [(it.item.key, it.score) for it in hits]
        assert scores == _approximate_scores([("best", 1.0), ("good", 0.8), ("far", 0.0)])
        assert list_keys(await store.search_by_embedding(NS, X, limit=2)) == ["best", "good"]
        assert await store.get_embedding(NS, "best") == BACK_X
        await store.apply([put("best", Y)])
        hits = await store.search_by_embedding(NS, X, threshold=0.5)
        assert list_keys(hits) == ["good"]

    async def test_a_search_that_makes_no_sense_is_refused(self, store: Any) -> None:
        search = store.search_by_embedding
        await expect_invalid(INVALID_NAMESPACES, lambda it: search(it, X))
        await expect_invalid(INVALID_LIMITS, lambda it: search(NS, X, limit=it))
        bad = (float("nan"), float("inf"), "1", True, 10**400)
        await expect_invalid(bad, lambda it: search(NS, X, threshold=it), match="threshold")
        queries: tuple[dict[str, Any], ...] = ({}, {"query": X, "query_embedding": X})
        await expect_invalid(queries, lambda it: search(NS, **it), match="query")

    async def test_a_query_is_ranked_by_meaning(self, store: Any, reopen: Another) -> None:
        async with reopen(embed=embed) as meaning:
            await meaning.put(NS, "cats", {"text": "a cat and a cat"})
            await meaning.put(NS, "both", ["cat", {"x": "dog"}])
            await meaning.put_batch([(NS, "dogs", "dog dog"), (NS, "cars", "car", {"m": 1})])
            await meaning.put(NS, "number", 7)
            await meaning.put_with_embedding(NS, "given", "dog", embed_text("cat"))
            found = await meaning.search(NS, "my cat")
            assert list_keys(found)[:3] == ["given", "cats", "both"]
            assert {*list_keys(found)} == {"cats", "given", "both", "dogs", "cars"}
            assert list_keys(await meaning.search(NS, "my cat", limit=2, offset=1)) == [
                "cats", "both",
            ]  # fmt: skip
            assert await meaning.search(NS, "my cat", offset=5) == []
            assert list_keys(await meaning.search(NS, "cat", metadata_filter={"m": 1})) == ["cars"]
            assert found[0].score == pytest.approx(1.0)
            await meaning.put(NS, "cats", "now a car")
            assert list_keys(await meaning.search(NS, "car"))[:2] == ["cars", "cats"]
            assert list_keys(await meaning.search(NS))[0] == "cats"


def _approximate_scores(scores: list[tuple[str, float]]) -> list[tuple[str, Any]]:
    return [(key, pytest.approx(score, abs=1e-6)) for key, score in scores]
