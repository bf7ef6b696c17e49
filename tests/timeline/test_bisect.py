"""Bisect answers as the evaluation of the condition on every version does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import histories
import pytest

from locus_store import InvalidArgumentError
from locus_store.backends.memory import MemoryBackend
from locus_store.timeline import bisect as bisecting
from locus_store.timeline.bisect import bisect
from locus_store.timeline.paths import find_value, parse_path

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

NOTHING: Any = object()


def at(path: str, test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def judge(state: Any) -> bool:
        found = find_value(state, parse_path(path))
        return test(NOTHING if found is None else found.value)

    return judge


def strings(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [text for it in items for text in strings(it)]
    return [value] if isinstance(value, str) else []


def questions(choose: random.Random) -> list[tuple[Any, Callable[[Any], bool]]]:
    """Conditions, each beside a plain function that says the same."""
    word, name = choose.choice(histories.WORDS), f"m{choose.randint(1, 25)}"
    role, last = f'messages[id="{name}"].role', "messages[-1].content"
    sized = (str, list, dict)
    return [
        (bisecting.exists(parse_path(role)), at(role, lambda it: it is not NOTHING)),
        (bisecting.equals(parse_path(role), word), at(role, lambda it: it == word)),
        (
            bisecting.exists(parse_path("messages[role=red].usage.tokens")),
            at("messages[role=red].usage.tokens", lambda it: it is not NOTHING),
        ),
        (
            bisecting.contains(parse_path(last), word),
            at(last, lambda it: isinstance(it, str) and word in it),
        ),
        (
            bisecting.is_longer_than(parse_path("messages"), 3),
            at("messages", lambda it: isinstance(it, sized) and len(it) > 3),
        ),
        (
            bisecting.is_type(parse_path("plan.red"), "number"),
            at("plan.red", lambda it: type(it) in {int, float}),
        ),
        (
            bisecting.is_type(parse_path("messages[0].content"), "text"),
            at("messages[0].content", lambda it: isinstance(it, str)),
        ),
        (
            bisecting.matches(parse_path("plan.green"), {"$in": [None, "1"]}),
            at("plan.green", lambda it: it is None or it == "1"),
        ),
        (
            bisecting.contains(parse_path("plan"), word),
            at("plan", lambda it: isinstance(it, dict) and word in it),
        ),
        (
            bisecting.contains(parse_path("plan.deep.a"), 1),
            at("plan.deep.a", lambda it: isinstance(it, list) and 1 in it),
        ),
        (
            bisecting.HasText(f"{word} {word}"),
            lambda state: any(f"{word} {word}" in it for it in strings(state)),
        ),
        (bisecting.HasText("total"), lambda state: "total" in strings(state)),
    ]


async def differing(seed: int) -> int:
    """The number of questions that are answered wrongly about one generated history."""
    choose = random.Random(seed)
    backend = MemoryBackend()
    history = histories.History(backend, choose, choose.choice([None, None, None, 4]))
    await history.grow(choose.randint(3, 14))
    head = await backend.version("t")
    assert head is not None
    way = await histories.ancestry(backend, head)
    wrong = 0
    for condition, judge in questions(choose):
        found = await bisect(backend, "t", condition)
        assert found is not None
        told = [(it.version, it.holds, it.is_exact) for it in found.turns]
        expected: list[Any] = []
        for version, is_exact in way:
            answer = judge(history.saved[version.checkpoint_id])
            if not expected or expected[-1][1] != answer:
                expected.append((version, answer, is_exact))
        first = next((it[0] for it in expected if it[1]), None)
        wrong += told != expected or (found.first and found.first.version) != first
    return wrong


@pytest.mark.full
async def test_bisect_answers_as_the_evaluation_of_every_version() -> None:
    for seed in range(250):
        assert await differing(seed) == 0, f"history {seed}"


async def test_an_answer_that_is_repeated_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bisecting, "is_near", lambda operation, place: False)
    assert sum([await differing(seed) for seed in range(40)]) > 0


class _Judging:
    """Answers that are given by hand."""

    def __init__(self, answers: list[bool | None]) -> None:
        self._answers = iter(answers)

    def answer(self, version: Any, folder: Any, operations: Any) -> bool | None:
        return next(self._answers)


async def test_a_version_that_cannot_be_judged_changes_no_answer() -> None:
    backend = MemoryBackend()
    for number in range(5):
        await backend.save("t", {"n": number}, checkpoint_id=f"v{number}")
    found = await bisect(backend, "t", _Judging([False, None, True, None, True]))
    assert found is not None
    assert [(it.version.checkpoint_id, it.holds, it.is_exact) for it in found.turns] == [
        ("v0", False, True),
        ("v2", True, False),
    ]
    assert (found.asked, found.skipped) == (5, 2)


async def test_a_thread_that_is_not_there_has_no_answers() -> None:
    assert await bisect(MemoryBackend(), "t", bisecting.HasText("a")) is None


async def test_a_path_may_be_its_text() -> None:
    backend = MemoryBackend()
    for number, city in enumerate(["Bern", "Graz"]):
        state = {"city": city, "stops": [{"n": number}]}
        await backend.save("t", state, checkpoint_id=f"v{number}")
    for text, value in (("city", "Graz"), ("stops[-1].n", 1)):
        found = await bisect(backend, "t", bisecting.equals(text, value))
        assert found is not None
        assert found.first is not None
        assert found.first.version.checkpoint_id == "v1"
    with pytest.raises(InvalidArgumentError, match="is not a path"):
        bisecting.exists("stops[")


@pytest.mark.parametrize("condition", [lambda state: True, {"city": "Graz"}, "city", None])
async def test_what_is_not_a_condition_is_refused(condition: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a condition; make one with equals"):
        await bisect(MemoryBackend(), "t", condition)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="is not a type; the types are object"):
        bisecting.is_type((), "string?")


async def test_an_element_that_gets_another_id_is_not_the_chosen_one_any_more() -> None:
    backend = MemoryBackend()
    content = "x" * 3000
    for number, name in enumerate(["a", "a", "b", "a"]):
        message = {"id": name, "content": content, "role": "user"}
        await backend.save("t", {"messages": [message], "n": number}, checkpoint_id=f"v{number}")
    found = await bisect(backend, "t", bisecting.exists(parse_path("messages[id=a].role")))
    assert found is not None
    turns = [(it.version.checkpoint_id, it.holds) for it in found.turns]
    assert turns == [("v0", True), ("v2", False), ("v3", True)]
