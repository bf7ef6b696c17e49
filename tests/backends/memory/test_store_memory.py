"""The store in memory and its blocking facade; what embeds; names."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from properties import given

from locus_store import BaseStore, InMemoryStore, InvalidArgumentError, UnsupportedError, blocking
from locus_store.blocking import BlockingStore
from locus_store.types.items import check_name, decode_namespace, encode_namespace

if TYPE_CHECKING:
    from collections.abc import Callable

NS = ("memory", "u42")


def test_seed_001_works_without_await() -> None:
    store = blocking.InMemoryStore()
    store.put(("locus_memory", "user"), "role", {"content": "Senior Python engineer"})
    assert store.get(("locus_memory", "user"), "role") == {"content": "Senior Python engineer"}
    assert [it.key for it in store.list(("locus_memory", "user"))] == ["role"]
    assert store.delete(("locus_memory", "user"), "role") is True
    store.close()


def test_the_facade_has_every_method_with_the_same_arguments() -> None:
    backends = {*BaseStore.__abstractmethods__, "apply_on"} - {"setup", "close"}
    for name, method in inspect.getmembers(BaseStore, inspect.iscoroutinefunction):
        if name.startswith("_") or name in backends:
            continue
        theirs = inspect.signature(method).parameters
        ours = inspect.signature(getattr(BlockingStore, name)).parameters
        for parameter in theirs.values():
            mine = ours.get(parameter.name, ours.get("options"))
            assert mine, (name, parameter)
            assert mine.default in {parameter.default, inspect.Parameter.empty}
        shared = [it for it in ours if it in theirs]
        assert shared == [*theirs][: len(shared)]


def test_every_method_of_the_facade_is_documented() -> None:
    for name, method in inspect.getmembers(BlockingStore, inspect.isfunction):
        assert name.startswith("_") or method.__doc__, name


def test_many_threads_share_a_facade() -> None:
    def talk(n: int) -> list[int]:
        return [store.put(NS, f"{n % 4}", [n, turn]) for turn in range(10)]

    with blocking.InMemoryStore() as store, ThreadPoolExecutor(8) as pool:
        versions = sorted(it for found in pool.map(talk, range(8)) for it in found)
        assert versions == sorted([*range(1, 21)] * 4)


def test_it_begins_no_thread_and_may_be_used_after_close(
    begun_threads: Callable[[], set[threading.Thread]],
) -> None:
    store = BlockingStore(InMemoryStore())
    store.close()
    for n in range(3):
        store.put(NS, "k", n)
        assert not begun_threads()
        store.close()
        store.close()
    assert store.get(NS, "k") == 2
    store.close()


def test_errors_come_as_they_are() -> None:
    with blocking.InMemoryStore() as store:
        with pytest.raises(ValueError, match="key"):
            store.get(NS, "")
        with pytest.raises(UnsupportedError, match="InMemoryStore"):
            store.search_by_embedding(NS, query_embedding=[1.0])
        with pytest.raises(TypeError):
            store.put(NS, "k", 1, colour="red")


def test_a_store_is_opened_by_its_url() -> None:
    with blocking.open_store("memory://", dimension=3) as store:
        store.put_with_embedding(NS, "k", 1, [1, 0, 0])
        assert store.get_embedding(NS, "k") == [1.0, 0.0, 0.0]


# --- options, and what makes embeddings


@pytest.mark.parametrize(
    "wrong",
    [
        {"dimension": 0}, {"dimension": 2001}, {"dimension": True}, {"dimension": "3"},
        {"dimension": 3.0}, {"metric": "hamming"}, {"metric": None}, {"embed": len},
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        InMemoryStore(**wrong)


class Model:
    """A model double: an object that is called, asynchronously."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def __call__(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return [[len(it), 1.0, 0.0] for it in texts]


@pytest.mark.anyio
async def test_a_batch_is_embedded_at_once_and_only_where_there_is_text() -> None:
    model = Model()
    store = InMemoryStore(dimension=3, embed=model)
    await store.put_batch([
        (NS, "a", {"x": "one", "y": ["two", 3]}), (NS, "b", 7), (NS, "c", " "), (NS, "d", "four"),
        (NS, "e", "given", None, None, None, [1.0, 0.0, 0.0]),
    ])  # fmt: skip
    assert model.asked == [["one\ntwo", "four"]]
    assert await store.get_embedding(NS, "d") == [4.0, 1.0, 0.0]
    assert await store.get_embedding(NS, "e") == [1.0, 0.0, 0.0]
    assert await store.get_embedding(NS, "b") is await store.get_embedding(NS, "c") is None


@pytest.mark.anyio
async def test_a_model_may_be_called_without_await_and_give_an_array() -> None:
    import numpy as np

    asked = []

    def embed(texts: list[str]) -> Any:
        asked.append(threading.current_thread())
        return np.ones((len(texts), 3), dtype="float32")

    store = InMemoryStore(dimension=3, embed=embed)
    await store.put(NS, "k", "text")
    assert await store.get_embedding(NS, "k") == [1.0, 1.0, 1.0]
    assert asked[0] is not threading.current_thread()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "given_", [[], [[1.0, 0, 0]] * 2, [[1.0]], [[float("nan"), 0, 0]], None, 7, ["abc"]], ids=repr
)
async def test_a_model_that_gives_something_else_writes_nothing(given_: Any) -> None:
    store = InMemoryStore(dimension=3, embed=lambda _: given_)
    with pytest.raises(InvalidArgumentError, match="embed"):
        await store.put_batch([(NS, "n", 1), (NS, "k", "text")])
    with pytest.raises(InvalidArgumentError, match="embed"):
        await store.search(NS, "text")
    assert await store.list(NS) == []


@pytest.mark.anyio
async def test_a_query_of_a_model_may_have_no_word_but_must_be_a_text() -> None:
    store = InMemoryStore(dimension=3, embed=Model())
    await store.put(NS, "k", "text")
    assert len(await store.search(NS, "?!")) == 1
    for bad in ("", " ", 7, ["a"]):
        with pytest.raises(InvalidArgumentError, match="query"):
            await store.search(NS, bad)


# --- names

segments = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
namespaces = st.lists(segments, max_size=4).map(tuple)


def is_name(namespace: tuple[str, ...], key: str = "k") -> bool:
    try:
        check_name(namespace, key)
    except InvalidArgumentError:
        return False
    return True


@given(namespaces, namespaces)
def test_an_encoded_namespace_begins_another_only_where_it_is_above(one, other) -> None:
    assert decode_namespace(encode_namespace(one)) == one
    begins = encode_namespace(other).startswith(encode_namespace(one))
    assert begins == (other[: len(one)] == one)
    assert (encode_namespace(one) < encode_namespace(other)) == (one < other)


@given(st.dictionaries(st.tuples(namespaces, segments), st.integers(0, 9), max_size=12), namespaces)
def test_any_names_are_kept_apart(items, prefix) -> None:
    items = {name: value for name, value in items.items() if is_name(*name)}

    async def kept() -> None:
        store = InMemoryStore()
        await store.put_batch([(*name, value) for name, value in items.items()])
        assert await store.get_batch(list(items)) == items
        for wanted in {prefix, *(namespace[:1] for namespace, _ in items)}:
            if is_name(wanted):
                found = await store.search(wanted, limit=100)
                below = {name for name in items if name[0][: len(wanted)] == wanted}
                assert {(it.namespace, it.key) for it in found} == below

    asyncio.run(kept())
