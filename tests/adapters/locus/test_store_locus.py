"""The Locus SDK's memory manager as it is, on our stores; only its model is a script."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from tiers import first_of

from locus_store import open as opening
from locus_store.adapters.locus import LocusStore
from locus_store.backends import InMemoryStore

if TESTS_RUN:
    from locus import Agent
    from locus.memory.manager import LLMMemoryManager, Memory, MemoryScope, MemoryType
    from locus.memory.store import NamespacedStore, StoreContext
    from locus.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

TEXTS = ("tea", "coffee", "milk")


@pytest.fixture(params=["memory", *first_of("sqlite", "postgresql", "redis")])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocusStore]:
    if request.param == "memory":
        made = LocusStore(InMemoryStore(dimension=len(TEXTS)))
    else:
        url = f"sqlite:///{tmp_path / 'store.db'}"
        if request.param == "postgresql":
            url = request.getfixturevalue("migrated_database")
        elif request.param == "redis":
            url = request.getfixturevalue("redis_url")
        made = LocusStore(opening.open_store(url, dimension=len(TEXTS)))
    yield made
    await made.close()


def embed(texts: list[str]) -> list[list[float]]:
    """Return the number of times that each word occurs."""
    return [[1e-3 + it.lower().count(word) for word in TEXTS] for it in texts]


if TESTS_RUN:

    def memory(key: str, content: str, kind: MemoryType = MemoryType.USER) -> Memory:
        return Memory(type=kind, key=key, content=content, metadata={"source": "test"})


async def extract(messages: list[Any]) -> list[Memory]:
    """Return the facts that a model would extract: each thing that the user said."""
    said = [it.content for it in messages if it.role == "user"]
    return [memory(f"said_{at}", text) for at, text in enumerate(said)]


def agent_of(manager: LLMMemoryManager, *turns: str) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel([*turns])
    return Agent(agent_id="a", model=model, memory_manager=manager, tools=[]), model


async def run(agent: Agent, prompt: str, **options: Any) -> None:
    async for _ in agent.run(prompt, **options):
        pass


def contents(memories: list[Memory]) -> list[str]:
    return [it.content for it in memories]


async def test_an_agent_recalls_what_was_said_in_an_earlier_run(store: LocusStore) -> None:
    manager = LLMMemoryManager(store=store, extract_fn=extract)
    agent, _ = agent_of(manager, "noted")
    await run(agent, "I like tea")
    assert contents(await manager.retrieve()) == ["I like tea"]
    later = LLMMemoryManager(store=store, extract_fn=extract)
    agent, model = agent_of(later, "tea, then")
    await run(agent, "What do I drink?")
    assert any("I like tea" in str(it) for it in model.received_messages)


async def test_the_same_key_is_the_same_memory(store: LocusStore) -> None:
    manager = LLMMemoryManager(store=store)
    await manager.save([memory("drink", "tea"), memory("city", "Zürich")])
    await manager.save([memory("drink", "coffee")])
    assert sorted(contents(await manager.retrieve())) == ["Zürich", "coffee"]
    item = await store.get_item(("locus_memory", "user"), "drink")
    assert (item.version, item.metadata["type"]) == (2, "user")


async def test_the_most_recent_come_first_without_a_query(store: LocusStore) -> None:
    manager = LLMMemoryManager(store=store)
    for key in ("a", "b", "c", "a"):
        await manager.save([memory(key, key)])
    assert contents(await manager.retrieve(2)) == ["a", "c"]
    found = await store.search(("locus_memory", "user"), query=None, limit=2)
    assert [it.key for it in found] == ["a", "c"]
    assert sorted(await store.list_keys(("locus_memory", "user"))) == ["a", "b", "c"]


async def test_a_query_ranks_by_words_and_recency_fills_up(store: LocusStore) -> None:
    manager = LLMMemoryManager(store=store)
    for text in ("drinks tea", "has a dog", "has a cat"):
        await manager.save([memory(text, text)])
    assert contents(await manager.retrieve(2, query="tea")) == ["drinks tea", "has a cat"]
    assert contents(await manager.retrieve(2, query="?!")) == ["has a cat", "has a dog"]


async def test_with_embed_a_query_ranks_by_meaning() -> None:
    inner = InMemoryStore(dimension=len(TEXTS), embed=embed)
    manager = LLMMemoryManager(store=LocusStore(inner))
    for text in TEXTS:
        await manager.save([memory(text, f"drinks {text}")])
    found = await manager.retrieve(2, query="How about coffee?")
    assert contents(found)[0] == "drinks coffee"


async def test_the_oldest_go_beyond_the_most_that_are_kept(store: LocusStore) -> None:
    manager = LLMMemoryManager(store=store, max_memories=2)
    for key in ("a", "b", "c"):
        await manager.save([memory(key, key)])
    assert sorted(await store.list_keys(("locus_memory", "user"))) == ["b", "c"]


async def test_namespaces_below_are_neither_recalled_nor_counted(store: LocusStore) -> None:
    shared = LLMMemoryManager(store=store, namespace_prefix=("users",), max_memories=1)
    of_one = LLMMemoryManager(store=store, namespace_prefix=("users", "project"))
    project = memory("plan", "shared plan", MemoryType.PROJECT)
    await shared.save([project])
    await of_one.save([memory(str(it), f"secret {it}") for it in range(20)])
    assert contents(await shared.retrieve()) == ["shared plan"]
    await shared.save([project])
    assert contents(await shared.retrieve()) == ["shared plan"]
    assert len(await of_one.retrieve(100)) == 20
    assert contents(await shared.retrieve(query="secret")) == ["shared plan"]


async def test_one_manager_serves_many_users(store: LocusStore) -> None:
    def scope(run: Any) -> MemoryScope:
        user = run.metadata["user_id"]
        return MemoryScope(namespace=("t", "users", user), recall=(("t", "team"),))

    manager = LLMMemoryManager(store=store, extract_fn=extract, namespace_resolver=scope)
    with manager.scoped(("t", "team")):
        await manager.save([memory("rule", "team rule")])
    for user in ("ann", "bob"):
        agent, _ = agent_of(manager, "ok")
        await run(agent, f"I am {user}", metadata={"user_id": user})
    with manager.scoped(("t", "users", "ann"), recall=[("t", "team")]):
        assert sorted(contents(await manager.retrieve())) == ["I am ann", "team rule"]


async def test_extraction_in_the_background_is_drained(store: LocusStore) -> None:
    manager = LLMMemoryManager(store=store, extract_fn=extract, extract_mode="background")
    agent, _ = agent_of(manager, "ok")
    await run(agent, "remember this")
    await manager.drain()
    assert contents(await manager.retrieve()) == ["remember this"]


async def test_search_many_gives_a_list_for_each_namespace(store: LocusStore) -> None:
    for name in ("a", "b"):
        await store.put((name,), "k", {"in": name})
        await store.put((name, "below"), "k", {"in": "below"})
    found = await store.search_many([("b",), ("none",), ("a",)], query=None, limit=5)
    assert [[it.value["in"] for it in items] for items in found] == [["b"], [], ["a"]]
    assert await store.search_many([]) == []


async def test_a_page_is_full_however_many_items_are_below(store: LocusStore) -> None:
    for number in range(3):
        await store.put(("a",), str(number), number)
    for number in range(40):
        await store.put(("a", "below"), str(number), number)
    assert [it.value for it in await store.search(("a",), limit=2)] == [2, 1]
    assert await store.search(("a",), limit=0) == []


async def test_the_sdks_own_wrappers_work_on_it(store: LocusStore) -> None:
    context = StoreContext(store, user_id="u")
    await context.remember_with_embedding("drink", {"likes": "tea"}, [1.0, 0.0, 0.0])
    await store.put_with_embedding(
        ("users", "u", "memories", "below"), "k", "hidden", [1.0, 0.0, 0.0]
    )
    found = await context.search_memories_semantic([1.0, 0.1, 0.0], limit=5, threshold=0.5)
    assert [it.item.value for it in found] == [{"likes": "tea"}]
    assert found[0].score == pytest.approx(0.995, abs=1e-3)
    assert [it.key for it in await context.search_memories("tea")] == ["drink"]
    scoped = NamespacedStore(store, ("users", "u")).scoped("memories")
    assert await scoped.get("drink") == {"likes": "tea"}
    assert await scoped.clear() == 1
    assert await store.get(("users", "u", "memories", "below"), "k") == "hidden"
    assert await context.forget("drink") is False


def test_it_is_the_store_in_all_else() -> None:
    inner = InMemoryStore(dimension=3)
    store = LocusStore(inner)
    assert store.capabilities == inner.capabilities
    assert store.capabilities.semantic_search
    assert copy.copy(store).store is inner
    assert repr(store) == "LocusStore(InMemoryStore(0 items))"
    with pytest.raises(AttributeError):
        _ = store.no_such_thing
