"""Plain calls that wait for coroutines on the event loop."""

from __future__ import annotations

import asyncio
import threading
from weakref import ref

import pytest

from locus_store.runtime.greenlets import run, wait

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Thing:
    """Has weak references."""


async def answer(number: int) -> int:
    await asyncio.sleep(0)
    if number < 0:
        raise ValueError(number)
    return number


def call(*numbers: int) -> int:
    return sum(wait(answer(it)) for it in numbers)


async def test_calls_at_once_have_their_own_answers() -> None:
    for _ in range(3):
        found = await asyncio.gather(*(run(lambda n=n: call(n, n)) for n in range(200)))
        assert found == [2 * n for n in range(200)]


async def test_an_error_is_the_calls_and_can_be_caught_in_it() -> None:
    def caught() -> int:
        try:
            return call(1, -2)
        except ValueError:
            return call(3)

    for _ in range(2):
        with pytest.raises(ValueError, match="-1"):
            await run(lambda: call(-1))
        assert await run(caught) == 3


async def test_a_cancelled_call_ends_and_the_next_one_begins_anew() -> None:
    ended: list[str] = []

    def waiting() -> None:
        try:
            wait(asyncio.sleep(60))
        finally:
            ended.append("cancelled")

    for _ in range(2):
        task = asyncio.ensure_future(run(waiting))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await run(lambda: call(1)) == 1
    assert ended == ["cancelled"] * 2


async def test_nothing_of_a_call_is_kept() -> None:
    given, made = Thing(), Thing()
    seen = [ref(given), ref(made)]

    def of_two(given: Thing = given, made: list[Thing] = [made]) -> Thing:  # noqa: B006
        wait(answer(id(given)))
        return made.pop()

    await run(of_two)
    del given, made, of_two
    assert [it() for it in seen] == [None, None]


def test_each_thread_has_greenlets_of_its_own() -> None:
    found: list[int] = []

    def in_thread() -> None:
        found.append(asyncio.run(run(lambda: call(1, 2))))

    for _ in range(3):
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    assert found == [3] * 3
