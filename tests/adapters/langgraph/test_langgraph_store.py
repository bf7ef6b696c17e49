"""LangGraph's store over ours, and LangGraph's InMemoryStore beside it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import random
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest
from lazily import TESTS_RUN, Later
from servers import wait_until
from tiers import SERVICES, first_of, full
from typing_extensions import TypedDict

from locus_store import InvalidArgumentError, SerializationError
from locus_store.backends import InMemoryStore
from locus_store.errors import BackendError

if TESTS_RUN:
    from langchain_core.embeddings import Embeddings
    from langgraph.config import get_store
    from langgraph.graph import END, START, StateGraph
    from langgraph.store import base
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        InvalidNamespaceError,
        ListNamespacesOp,
        MatchCondition,
        PutOp,
        SearchOp,
    )
    from langgraph.store.memory import InMemoryStore as Oracle
    from workers.on_graph import Caller

    from locus_store.adapters.langgraph import LangGraphStore

DIMENSION = 8
ROUNDS = 125


def vector(text: str) -> list[float]:
    """The same for the same text, and near no other's."""
    numbers = random.Random(hashlib.sha256(text.encode()).digest())
    return [numbers.uniform(-1, 1) for _ in range(DIMENSION)]


def embed(texts):
    return [vector(it) for it in texts]


async def aembed(texts):
    return embed(texts)


if TESTS_RUN:

    class Model(Embeddings):
        def embed_documents(self, texts):
            return embed(texts)

        def embed_query(self, text):
            return vector(text)


INDEX: Any = {"dims": DIMENSION, "embed": embed}


@pytest.fixture(params=["sync", "async"])
def call(request):
    caller = Caller(request.param)
    yield caller
    caller.close()


def place(request, tmp_path):
    if request.param in SERVICES:
        return request.getfixturevalue("service_over")(request.param, dimension=DIMENSION)
    if request.param == "opensearch":
        return request.getfixturevalue("index").url()
    if request.param == "s3":
        return request.getfixturevalue("s3_place").url()
    if request.param == "file":
        return f"file://{tmp_path / 'items'}"
    names = {"postgresql": "migrated_database", "redis": "redis_url"}
    found = names.get(request.param)
    return request.getfixturevalue(found) if found else f"sqlite:///{tmp_path / 'store.db'}"


STORAGES = [
    "memory",
    "sqlite",
    *full("file", "s3", "postgresql", "redis", "opensearch", *SERVICES),
]


@pytest.fixture(params=STORAGES)
def opened(request, tmp_path):
    """Opens stores on one empty place; all are closed in the end."""
    made, shared = [], InMemoryStore(dimension=DIMENSION)
    url = place(request, tmp_path)

    def new(**options):
        if request.param == "memory":
            made.append(LangGraphStore(shared, **options))
        else:
            made.append(LangGraphStore.from_url(url, **options))
        return made[-1]

    yield new
    for store in made:
        store.close()


@pytest.fixture
def memory():
    """A store on nothing but memory, with embeddings."""
    with LangGraphStore(InMemoryStore(dimension=DIMENSION), index=INDEX) as store:
        yield store


def keys(items):
    return [it.key for it in items]


# --- graphs


class Said(TypedDict):
    user: str
    found: list[str]


def remembering(state: Said, *, store: BaseStore) -> dict[str, Any]:
    store.put(("memory", state["user"]), f"k{len(state['found'])}", {"text": "likes tea"})
    return {"found": [it.value["text"] for it in store.search(("memory", state["user"]))]}


async def aremembering(state: Said, *, store: BaseStore) -> dict[str, Any]:
    await store.aput(("memory", state["user"]), "k0", {"text": "likes tea"})
    return {"found": [it.value["text"] for it in await store.asearch(("memory", state["user"]))]}


def recalling(state: Said) -> dict[str, Any]:
    item = get_store().get(("memory", state["user"]), "k0")
    return {"found": [*state["found"], item.value["text"]]}


async def arecalling(state: Said) -> dict[str, Any]:
    item = await get_store().aget(("memory", state["user"]), "k0")
    return {"found": [*state["found"], item.value["text"]]}


def graph_of(store, *nodes):
    graph = StateGraph(Said)
    for before, node in zip([START, "0", "1"], nodes, strict=False):
        name = str(len(graph.nodes))
        graph.add_node(name, node)
        graph.add_edge(before, name)
    graph.add_edge(str(len(nodes) - 1), END)
    return graph.compile(store=store)


def test_a_graphs_nodes_remember_by_their_argument_and_by_get_store(opened, call):
    nodes = (remembering, recalling) if call.form == "sync" else (aremembering, arecalling)
    found = call.invoke(graph_of(opened(), *nodes), {"user": "u", "found": []})
    assert found["found"] == ["likes tea", "likes tea"]
    other = graph_of(opened(), nodes[1])  # another thread, another store on the same place
    assert call.invoke(other, {"user": "u", "found": []})["found"] == ["likes tea"]


def test_sync_nodes_of_a_graph_that_runs_async_remember_too(opened):
    graph = graph_of(opened(), remembering, recalling)
    found = asyncio.run(graph.ainvoke({"user": "u", "found": []}))
    assert found["found"] == ["likes tea", "likes tea"]


def test_a_sync_method_works_in_a_running_loop(memory):
    async def within():
        await memory.setup()
        memory.put(("a",), "k", {"n": 1})
        return await memory.aget(("a",), "k"), memory.get(("a",), "k")

    first, second = asyncio.run(within())
    assert first == second
    assert first.value == {"n": 1}


def test_any_thread_may_call(memory):
    def put(number):
        memory.put(("a",), str(number), {"n": number})

    threads = [threading.Thread(target=put, args=(it,)) for it in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(it.value["n"] for it in memory.search(("a",))) == [*range(8)]


# --- life


def test_a_store_is_used_in_with_in_async_with_and_in_neither(opened):
    async def within():
        async with opened() as store:
            await store.asetup()
            await store.aput(("a",), "async", {})

    with opened() as store:
        store.setup()
        store.setup()
        store.put(("a",), "with", {})
    asyncio.run(within())
    store.put(("a",), "closed before", {})
    store.close()
    store.close()
    assert sorted(keys(opened().search(("a",)))) == ["async", "closed before", "with"]


def test_the_url_names_the_store_and_the_index_its_dimension(opened):
    store = opened(index=INDEX)
    assert store.store.dimension == DIMENSION
    assert repr(store).startswith("LangGraphStore(")


def test_a_store_and_an_index_that_do_not_fit_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"dims=8.*embeddings of no numbers"):
        LangGraphStore(InMemoryStore(), index=INDEX)
    with pytest.raises(InvalidArgumentError, match=r"dims=8.*embeddings of 3 numbers"):
        LangGraphStore(InMemoryStore(dimension=3), index=INDEX)
    with pytest.raises(InvalidArgumentError, match="needs dims"):
        LangGraphStore.from_url("memory://", index={"embed": embed})
    with pytest.raises(ValueError, match="embed must be provided"):
        LangGraphStore(InMemoryStore(dimension=3), index={"dims": 3})
    with pytest.raises(TypeError, match="not InMemoryStore"):
        LangGraphStore(Oracle())


# --- batches


def test_reads_of_a_batch_see_the_state_before_its_writes(opened, call):
    store = opened()
    call(store, "put", ("a",), "k", {"n": 1})
    ops = [
        PutOp(("a",), "k", {"n": 2}),
        GetOp(("a",), "k"),
        PutOp(("b",), "k", {"n": 3}),
        SearchOp(("a",)),
        ListNamespacesOp(),
        PutOp(("a",), "gone", None),
    ]
    _, got, _, found, namespaces, _ = call(store, "batch", ops)
    assert (got.value, [it.value for it in found]) == ({"n": 1}, [{"n": 1}])
    assert namespaces == [("a",)]
    assert call(store, "get", ("a",), "k").value == {"n": 2}
    assert call(store, "get", ("b",), "k").value == {"n": 3}


def test_of_two_puts_with_one_name_the_later_counts(opened, call):
    store = opened(index=INDEX)
    ops = [
        PutOp(("a",), "k", {"n": 1}),
        PutOp(("a",), "other", {"n": 2}),
        PutOp(("a",), "k", {"n": 3}),
        PutOp(("a",), "no", {"n": 4}),
        PutOp(("a",), "no", None),
    ]
    assert call(store, "batch", ops) == [None] * 5
    assert [it.value["n"] for it in call(store, "search", ("a",))] == [3, 2]
    found = call(store, "search", ("a",), query='{"n": 1}')
    assert [it.score for it in found if it.key == "k"] != [pytest.approx(1.0)]


def test_a_put_keeps_the_time_of_creation_and_none_deletes(opened, call):
    store = opened()
    call(store, "put", ("a",), "k", {"n": 1})
    first = call(store, "get", ("a",), "k")
    call(store, "put", ("a",), "k", {"n": 2})
    second = call(store, "get", ("a",), "k")
    assert second.created_at == first.created_at
    assert second.updated_at >= first.updated_at
    call(store, "delete", ("a",), "k")
    assert call(store, "get", ("a",), "k") is None
    assert call(store, "list_namespaces") == []


def broken_embed(texts):
    raise ConnectionError("the model is away")


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (InvalidArgumentError, Later(lambda: PutOp(("a",), "", {}))),
        (InvalidArgumentError, Later(lambda: PutOp(("a",), "k", [1]))),  # type: ignore[arg-type]
        (InvalidArgumentError, Later(lambda: PutOp(("",), "k", None))),
        (InvalidArgumentError, Later(lambda: PutOp(("a",), "k", {}, ttl=0))),
        (SerializationError, Later(lambda: PutOp(("a",), "k", {"n": math.nan}))),
        (SerializationError, Later(lambda: PutOp(("a",), "k", {"n": object()}))),
        (InvalidArgumentError, Later(lambda: SearchOp(("a",), filter={"n": {"$regex": "x"}}))),
        (InvalidArgumentError, Later(lambda: SearchOp(("a",), limit=-1))),
        (InvalidArgumentError, Later(lambda: GetOp(("a",), ""))),
        (InvalidArgumentError, Later(lambda: ListNamespacesOp((MatchCondition("infix", ("a",)),)))),  # type: ignore[arg-type]
        (InvalidArgumentError, "an operation"),
    ],
    ids=lambda it: it.__name__ if isinstance(it, type) else type(it).__name__,
)
def test_a_batch_that_makes_no_sense_does_nothing(memory, error, bad):
    with pytest.raises(error):
        memory.batch([PutOp(("a",), "good", {}), bad, PutOp(("a",), "good too", {})])
    assert memory.search(()) == []


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (ConnectionError, broken_embed),
        (InvalidArgumentError, lambda texts: embed(texts)[1:]),
        (InvalidArgumentError, lambda texts: [[1.0] for _ in texts]),
        (InvalidArgumentError, lambda texts: [[math.nan] * DIMENSION for _ in texts]),
    ],
    ids=["away", "too few", "too short", "no numbers"],
)
def test_a_batch_whose_texts_cannot_be_embedded_does_nothing(error, broken):
    inner = InMemoryStore(dimension=DIMENSION)
    with LangGraphStore(inner, index={"dims": DIMENSION, "embed": broken}) as store:
        with pytest.raises(error):
            store.batch([PutOp(("a",), "plain", {}, index=False), PutOp(("a",), "k", {"n": 1})])
        assert store.search(()) == []


# --- names


def test_put_keeps_langgraphs_rules_of_namespaces(memory):
    for namespace in ((), ("langgraph", "x"), ("a.b",), ("",), ("a", 1)):
        with pytest.raises(InvalidNamespaceError):
            memory.put(namespace, "k", {})
    memory.put(("a", "langgraph"), "k", {})
    assert memory.list_namespaces() == [("a", "langgraph")]


def test_a_namespace_may_be_a_list(opened, call):
    store: Any = opened()
    call(store, "put", ["test", "sub"], "k", {"n": 1})
    assert call(store, "get", ["test", "sub"], "k").namespace == ("test", "sub")
    assert keys(call(store, "search", ["test"], filter={"n": {"$lt": float("inf")}})) == ["k"]
    call(store, "delete", ["test", "sub"], "k")
    assert call(store, "search", ["test"]) == []


def test_namespaces_are_no_texts_with_dots(opened):
    store = opened()
    store.batch([PutOp(("a.b",), "k", {"n": 1}), PutOp(("a", "b"), "k", {"n": 2})])
    assert store.batch([GetOp(("a.b",), "k")])[0].value == {"n": 1}
    assert [it.value["n"] for it in store.search(("a",))] == [2]
    store.put(("ab",), "k", {"n": 3})
    assert [it.value["n"] for it in store.search(("a",))] == [2]


def test_conditions_on_namespaces_add_up(opened):
    store = opened()
    for namespace in (("a", "x", "v1"), ("a", "y", "v1"), ("a", "x", "v2"), ("b", "x", "v1")):
        store.put(namespace, "k", {})

    def found(*conditions, **options):
        made = tuple(MatchCondition(*it) for it in conditions)
        return store.batch([ListNamespacesOp(made, **options)])[0]

    assert found(("prefix", ("a",)), ("suffix", ("v1",))) == [("a", "x", "v1"), ("a", "y", "v1")]
    assert found(("prefix", ("a",)), ("prefix", ("*", "x"))) == [("a", "x", "v1"), ("a", "x", "v2")]
    assert found(("suffix", ("x", "*")), ("suffix", ("v1",))) == [
        ("a", "x", "v1"),
        ("b", "x", "v1"),
    ]
    assert found(("prefix", ("a",)), ("prefix", ("b",))) == []
    assert found(("suffix", ("v1",)), ("suffix", ("*", "v2"))) == []
    assert found(("prefix", ()), max_depth=1) == [("a",), ("b",)]
    assert found(max_depth=2, limit=2, offset=1) == [("a", "y"), ("b", "x")]
    assert store.list_namespaces(prefix=("*", "x"), suffix=("v1",)) == [
        ("a", "x", "v1"),
        ("b", "x", "v1"),
    ]


# --- searches


def test_without_a_query_the_last_updated_comes_first(opened, call):
    store = opened()
    for key in ("a", "b", "c", "a"):
        call(store, "put", ("n",), key, {"k": key})
    assert keys(call(store, "search", ("n",))) == ["a", "c", "b"]
    assert keys(call(store, "search", ("n",), limit=1, offset=1)) == ["c"]
    assert call(store, "search", ("n",), limit=0) == []
    assert [it.score for it in call(store, "search", ("n",))] == [None] * 3


def test_a_query_without_an_index_is_not_looked_at(opened):
    store = opened()
    store.put(("n",), "k", {"text": "tea"}, index=["text"])
    assert keys(store.search(("n",), query="something else")) == ["k"]


def test_a_filter_is_typed(opened):
    store = opened()
    values: list[Any] = [1, 1.0, True, "1", None, "10", "9", 9, 10, [1], {"at": 1}]
    for number, value in enumerate(values):
        store.put(("n",), str(number), {"v": value})
    store.put(("n",), "missing", {})

    def found(wanted):
        return {
            it.key if it.key == "missing" else repr(values[int(it.key)])
            for it in store.search(("n",), filter={"v": wanted}, limit=99)
        }

    assert found(1) == {"1", "1.0"}
    assert found(True) == {"True"}
    assert found(None) == {"None"}
    assert found({"$gt": 9}) == {"10"}
    assert found({"$gte": 9, "$lt": 10}) == {"9"}
    assert found({"$lte": "10"}) == {"'1'", "'10'"}
    assert found({"at": {"$gte": 1}}) == {"{'at': 1}"}
    assert "missing" in found({"$ne": 1})
    assert found({"$eq": [1]}) == {"[1]"}


@pytest.mark.parametrize(
    "form",
    [embed, aembed, Later(lambda: Model())],  # noqa: PLW0108  (there is no Model yet)
    ids=["sync", "async", "object"],
)
def test_each_form_of_embed_ranks_by_meaning(form, call):
    store = LangGraphStore(
        InMemoryStore(dimension=DIMENSION),
        index={"dims": DIMENSION, "embed": form, "fields": ["text"]},
    )
    for text in ("tea", "coffee", "milk"):
        call(store, "put", ("n",), text, {"text": text})
    found = call(store, "search", ("n",), query="coffee", limit=1)
    assert keys(found) == ["coffee"]
    assert found[0].score == pytest.approx(1.0)
    store.close() if call.form == "sync" else asyncio.run(store.aclose())


def test_a_model_may_be_named(monkeypatch):
    named = []
    monkeypatch.setattr(
        base.embed, "_get_init_embeddings", lambda: lambda it: named.append(it) or Model()
    )
    store = LangGraphStore(
        InMemoryStore(dimension=DIMENSION), index={"dims": DIMENSION, "embed": "fake:model"}
    )
    with store:
        store.put(("n",), "k", {"n": 1})
        assert store.search(("n",), query='{"n": 1}')[0].score == pytest.approx(1.0)
    assert named == ["fake:model"]


def test_each_text_of_each_field_has_an_embedding_of_its_own(opened, call):
    store = opened(index={**INDEX, "fields": ["title", "parts[*].text"]})
    value = {"title": "tea", "parts": [{"text": "green"}, {"text": "black"}, {"n": 1}]}
    call(store, "put", ("n",), "k", value)
    call(store, "put", ("n",), "other", {"title": "milk"})
    for text in ("tea", "green", "black"):
        found = call(store, "search", ("n",), query=text)
        assert keys(found) == ["k", "other"]
        assert found[0].score == pytest.approx(1.0)


def test_a_put_chooses_its_own_fields(opened):
    store = opened(index={**INDEX, "fields": ["title"]})
    value = {"title": "tea", "text": "green"}
    store.put(("n",), "no", value, index=False)
    store.put(("n",), "none", {"title": None, "text": " "}, index=["title", "text"])
    store.put(("n",), "empty", value, index=[])
    store.put(("n",), "text", value, index=["text"])
    store.put(("n",), "all", value, index=["$"])
    store.put(("n",), "default", value)
    by_key = {it.key: it.score for it in store.search(("n",), query="green")}
    assert by_key["text"] == pytest.approx(1.0)
    assert (by_key["no"], by_key["none"], by_key["empty"]) == (None, None, None)
    by_key = {it.key: it.score for it in store.search(("n",), query="tea")}
    assert by_key["default"] == pytest.approx(1.0)
    whole = '{"text": "green", "title": "tea"}'
    assert store.search(("n",), query=whole)[0].key == "all"


def test_an_item_put_again_loses_its_old_embeddings(opened):
    store = opened(index={**INDEX, "fields": ["texts[*]"]})
    store.put(("n",), "k", {"texts": ["one", "two", "three"]})
    store.put(("n",), "k", {"texts": ["four"]})
    assert store.search(("n",), query="two")[0].score < 0.99
    store.put(("n",), "k", {"texts": ["four"]}, index=False)
    assert store.search(("n",), query="four")[0].score is None


def test_items_without_an_embedding_follow_and_are_paged_with_the_others(opened, call):
    store = opened(index={**INDEX, "fields": ["text"]})
    for key in ("x", "y", "z"):
        call(store, "put", ("n",), key, {"n": 1}, index=False)
    for key in ("a", "b", "c"):
        call(store, "put", ("n",), key, {"text": key})
    whole = keys(call(store, "search", ("n",), query="b", limit=10))
    assert whole[0] == "b"
    assert set(whole[:3]) == {"a", "b", "c"}
    assert whole[3:] == ["z", "y", "x"]
    for limit in (1, 2, 4, 5):
        pages = [
            keys(call(store, "search", ("n",), query="b", limit=limit, offset=it))
            for it in range(0, 8, limit)
        ]
        assert [it for page in pages for it in page] == whole


# --- time to live


def minutes(seconds):
    return seconds / 60


def test_what_expired_is_never_shown_and_swept(opened, call):
    store = opened(index=INDEX, ttl={"default_ttl": minutes(0.05), "refresh_on_read": False})
    assert store.supports_ttl
    call(store, "put", ("n",), "k", {"n": 1})
    call(store, "put", ("n",), "for good", {"n": 2}, ttl=None)
    wait_until(lambda: call(store, "get", ("n",), "k") is None, "the item's end")
    assert keys(call(store, "search", ("n",))) == ["for good"]
    assert keys(call(store, "search", ("n",), query="k")) == ["for good"]
    assert call(store, "sweep_ttl") == 1
    assert call(store, "sweep_ttl") == 0


def test_reading_begins_the_time_to_live_anew_where_it_is_wished(memory):
    def left(key):
        return asyncio.run(memory.store.get_item(("n",), key)).expires_at

    memory.put(("n",), "k", {"n": 1}, ttl=5)
    memory.put(("n",), "for good", {"n": 1})
    before = left("k")
    memory.get(("n",), "k", refresh_ttl=False)
    memory.search(("n",), refresh_ttl=False)
    assert left("k") == before
    memory.get(("n",), "k")
    after = left("k")
    assert after > before
    memory.search(("n",))
    assert left("k") > after
    assert left("for good") is None


def test_the_configuration_says_what_reading_does():
    inner = InMemoryStore()
    with LangGraphStore(inner, ttl={"refresh_on_read": False, "default_ttl": 5}) as store:
        store.put(("n",), "k", {})
        before = asyncio.run(inner.get_item(("n",), "k"))
        store.get(("n",), "k")
        store.search(("n",))
        assert asyncio.run(inner.get_item(("n",), "k")).expires_at == before.expires_at
        assert before.ttl_seconds == 300


class Swept(InMemoryStore):
    """Tells how often it was swept; fails at first."""

    times = 0

    async def expire(self):
        self.times += 1
        if self.times == 1:
            raise BackendError("away")
        return await super().expire()


def test_a_sweeper_goes_on_after_a_failure_and_stops_when_asked(caplog):
    inner = Swept()
    store = LangGraphStore(inner, ttl={"sweep_interval_minutes": 1})
    future = store.start_ttl_sweeper(minutes(0.01))
    assert store.start_ttl_sweeper() is future
    wait_until(lambda: inner.times >= 3, "three sweeps")
    assert store.stop_ttl_sweeper()
    assert future.result() is None
    assert store.stop_ttl_sweeper(timeout=0)
    assert "were not removed" in caplog.text
    again = store.start_ttl_sweeper(minutes(0.01))
    times = inner.times
    wait_until(lambda: inner.times > times, "another sweep")
    store.close()
    assert again.done()


def test_a_sweeper_stops_when_its_future_is_cancelled():
    with LangGraphStore(InMemoryStore(), ttl={"default_ttl": 1}) as store:
        future = store.start_ttl_sweeper()
        assert future.cancel()
        wait_until(lambda: not store._sweeper.is_alive(), "the sweeper's end")
        assert store.stop_ttl_sweeper()
        with pytest.raises(CancelledError):
            future.result()


def test_a_sweeper_is_started_and_stopped_within_a_loop():
    async def within():
        inner = Swept()
        async with LangGraphStore(inner, ttl={"default_ttl": 1}) as store:
            future = await store.astart_ttl_sweeper(minutes(0.01))
            await asyncio.to_thread(wait_until, lambda: inner.times >= 2, "two sweeps")
            assert await store.astop_ttl_sweeper()
            await future
            cancelled = await store.astart_ttl_sweeper()
            cancelled.cancel()
        assert await store.astop_ttl_sweeper()

    asyncio.run(asyncio.wait_for(within(), 30))


def test_without_a_configuration_there_is_nothing_to_sweep():
    with LangGraphStore(InMemoryStore()) as store:
        assert store.start_ttl_sweeper().done()
        assert store.stop_ttl_sweeper()


# --- LangGraph's InMemoryStore as an oracle


class Beside:
    """Does every operation on both, and compares.

    Where ``InMemoryStore`` is known to do otherwise (see ``LangGraphStore``), it is helped: old
    embeddings and empty namespaces are taken away, its items are put in the order of their last
    update, and what is scored is asked for without limits and paged here.
    """

    def __init__(self, store, call, random_numbers):
        self.store, self.call, self.random = store, call, random_numbers
        self.oracle = Oracle(index={**INDEX, "fields": ["text", "parts[*]"]})
        self.order: dict[Any, int] = {}
        self.count = itertools.count()
        self.texts = 0

    def text(self):
        self.texts += 1
        return f"text {self.texts}"

    def namespace(self):
        return self.random.choice([("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("d", "b")])

    def value(self):
        pick = self.random.choice
        value = {
            "n": pick([1, 2, 3.5, -1]),
            "kind": pick(["x", "y", "z"]),
            "in": {"m": pick([1, 2])},
        }
        if self.random.random() < 0.6:
            value["text"] = self.text()
        if self.random.random() < 0.4:
            value["parts"] = [self.text() for _ in range(self.random.randrange(3))]
        return value

    def put(self):
        name = (self.namespace(), f"k{self.random.randrange(6)}")
        if self.random.random() < 0.2:
            return PutOp(*name, None)
        index = self.random.choice([None, None, None, False, ["text"]])
        return PutOp(*name, self.value(), index=index)

    def filter(self):
        pick = self.random.choice
        return pick(
            [
                None,
                None,
                {"kind": pick(["x", "y"])},
                {"kind": {"$ne": "x"}, "n": {"$lt": 3}},
                {"n": {pick(["$gt", "$gte", "$lt", "$lte", "$eq"]): pick([1, 2, 3.5])}},
                {"in": {"m": pick([1, 2])}},
                {"in": {"m": {"$gte": 2}}, "kind": "y"},
                {"in": {}},
                {"none": {"$ne": 1}},
            ]
        )

    def search(self):
        prefix = self.random.choice([(), ("a",), ("a", "b"), ("ab",), ("d",), ("none",)])
        limit, offset = self.random.randrange(1, 8), self.random.choice([0, 0, 1, 3, 9])
        query = self.random.choice([None, f"text {self.random.randrange(1, self.texts + 2)}"])
        return SearchOp(prefix, self.filter(), limit, offset, query)

    def namespaces(self):
        paths = [("a",), ("*", "b"), ("*",), ("b",), ("a", "b", "*", "d")]
        conditions = tuple(
            MatchCondition(self.random.choice(["prefix", "suffix"]), self.random.choice(paths))
            for _ in range(self.random.randrange(3))
        )
        depth = self.random.choice([None, 1, 2])
        return ListNamespacesOp(
            conditions, depth, self.random.randrange(1, 5), self.random.randrange(2)
        )

    def step(self):
        kinds = [self.put, self.put, self.search, self.search, self.namespaces]
        ops = [self.random.choice(kinds)() for _ in range(self.random.randrange(1, 6))]
        ops += [GetOp(self.namespace(), f"k{self.random.randrange(6)}")]
        self.random.shuffle(ops)
        expected = [self.expected(it) for it in ops]
        found = self.call(self.store, "batch", ops)
        for op, wanted, got in zip(ops, expected, found, strict=True):
            assert [*map(shown, many(got))] == [*map(shown, many(wanted))], op
        self.write([it for it in ops if isinstance(it, PutOp)])

    def write(self, puts):
        last = {}
        for op in puts:
            last.pop((op.namespace, op.key), None)
            last[op.namespace, op.key] = op
        for (namespace, key), op in last.items():
            self.oracle._vectors[namespace].pop(key, None)
            self.oracle.batch([op])
            self.order[namespace, key] = next(self.count)
        for namespace in [it for it, items in self.oracle._data.items() if not items]:
            del self.oracle._data[namespace]

    def expected(self, op):
        if isinstance(op, PutOp):
            return None
        if isinstance(op, GetOp):
            return self.oracle._data.get(op.namespace, {}).get(op.key)
        if not isinstance(op, SearchOp):
            return self.oracle.batch([op])[0]
        whole = self.oracle.batch([op._replace(limit=10**6, offset=0)])[0]
        scored = [it for it in whole if it.score is not None]
        others = [it for it in whole if it.score is None]
        others.sort(key=lambda it: self.order[it.namespace, it.key], reverse=True)
        return [*scored, *others][op.offset : op.offset + op.limit]


def many(result):
    return result if isinstance(result, list) else [result]


def shown(it):
    if it is None or isinstance(it, tuple):
        return it
    score = getattr(it, "score", None)
    return it.namespace, it.key, it.value, None if score is None else pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("seed", first_of(1, 2))
def test_random_batches_give_what_langgraphs_own_store_gives(opened, seed):
    caller = Caller("async" if seed % 2 else "sync")
    store = opened(index={**INDEX, "fields": ["text", "parts[*]"]})
    beside = Beside(store, caller, random.Random(seed))
    for _ in range(ROUNDS):
        beside.step()
    caller.close()
    assert len(beside.order) > 20
