"""Generated metadata queries and hostile searches answer as in memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tiers import LONG

from locus_store.backends.memory import MemoryBackend
from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from indexes import TestIndex

    from locus_store.backends.documents.backend import DocumentBackend

pytestmark = pytest.mark.anyio

THREADS = 120 if LONG else 15
FILTERS = 20_000 if LONG else 50
QUERIES = 10_000 if LONG else 50
MOST = 10_000
KEYS = ("k", "u", "u.name", "a.b", "a", "é", "t", ".", "a..b", "deep.er.est", "k.0", "[]", "k=1")
SCALARS: tuple[Any, ...] = (
    0, 1, 1.0, -0.0, 7, "7", True, False, None, "", "x", "X", "é", 'a"b', "a=b", 0.1, 1e308, 2**63,
    2**53, 2**53 + 1, float(2**53), "x" * 300, "x" * 299 + "y", "\0", "*", "null", "true", -1, "[]",
)  # fmt: skip
TEXTS = (
    "Crème brûlée", "STRASSE Straße", "東京タワー", "AND OR NOT", "alpha*", "wor\u0301d", "ﬁne ﬁ",
    "x" * 120, "x" * 400, "a_b a-b a.b", "{}[]()", "1e5 1.5 ٣", "ΣΊΣΥΦΟΣ σίσυφος",
    "İstanbul \u0131", "<em>fox</em>", "foo\nbar\r\n\tbaz", "\ud7ff\ue000 \U0001f600", "名前 name",
    "OR", "_id name:t",
)  # fmt: skip


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if kind < 0.6 or depth > 2:
        return chance.choice(SCALARS)
    if kind < 0.8:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = ("name", "er", "est", "b", "0", "x.y", "")
    return {chance.choice(names): value(chance, depth + 1) for _ in range(chance.randrange(3))}


def metadata(chance: random.Random) -> dict[str, Any]:
    names = ("k", "u", "a", "a.b", "é", "t", ".", "deep", "[]", "k=1")
    return {chance.choice(names): value(chance) for _ in range(chance.randrange(5))}


def text(chance: random.Random) -> str:
    letters = "".join(chance.choices("ab _*\"'\\/:^~?()[]{}éß京0\0\t-", k=chance.randrange(12)))
    return " ".join([*chance.sample(TEXTS, chance.randrange(3)), letters])


async def fill(chance: random.Random, backends: list[DocumentBackend]) -> None:
    """Do the same to all: saves, deletions, hidden versions, namespaces and long threads."""
    for n in range(THREADS):
        said: list[str] = []
        for at in range(chance.randrange(1, 6)):
            said = [*said, text(chance)] if chance.random() < 0.8 else [text(chance)]
            state = {"said": list(said), "agent_id": chance.choice(["a1", "a2"]), "n": at}
            options: dict[str, Any] = {
                "checkpoint_id": f"v{chance.choice([at, at, 0])}",
                "metadata": metadata(chance),
                "namespace": chance.choice(["", "", "", "sub"]),
                "keep_last": 2 if n % 5 == 0 else None,
            }
            for it in backends:
                await it.write_state(f"t{n}", state, **options)
        if n % 7 == 0:
            for it in backends:
                await it.remove(f"t{n}", ["v0"])
        if n % 11 == 0:
            for it in backends:
                await it.copy_thread(f"t{n}", f"copy{n}")
                await it.remove(f"t{n}")


async def test_filters_and_searches_answer_as_in_memory(index: TestIndex) -> None:
    seed = random.randrange(2**32) if LONG else 7
    chance, memory = random.Random(seed), MemoryBackend()
    async with index.backend(refresh="interval") as backend:
        await fill(chance, [memory, backend])
        index.refresh()
        for _ in range(FILTERS):
            key, wanted = chance.choice(KEYS), value(chance)
            one, two = [await it.query(key, wanted, MOST) for it in (memory, backend)]
            assert set(map(named, one)) == set(map(named, two)), (seed, key, wanted)
            tags = [sorted(await it.tagged(key, wanted)) for it in (memory, backend)]
            assert tags[0] == tags[1], (seed, key, wanted)
        for _ in range(QUERIES):
            query = text(chance)
            one, two = [await answer(it, query) for it in (memory, backend)]
            assert one == two, (seed, query)


def named(head: Any) -> tuple[str, str]:
    return head.thread_id, head.checkpoint_id


async def answer(backend: Any, query: str) -> Any:
    try:
        hits = await backend.find(query, MOST)
    except InvalidArgumentError:
        return None
    return {(it.thread_id, it.checkpoint_id, it.score, it.snippet) for it in hits}
