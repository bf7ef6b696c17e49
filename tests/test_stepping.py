"""Work that a home begins in the caller's step, and finishes whatever becomes of the caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from locus_store.runtime.loops import LoopResources, is_at_work

pytestmark = pytest.mark.anyio


class Empty(LoopResources):
    """Has nothing to release."""

    async def _release(self) -> None:
        pass


@pytest.fixture
async def home() -> Empty:
    return Empty()


async def waiting(*futures: asyncio.Future[Any]) -> list[Any]:
    return [await it for it in futures]


async def test_work_begins_in_its_callers_step_and_ends_in_the_step_of_its_last_answer(
    home: Empty,
) -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    ended: list[Any] = []
    begun: list[bool] = []

    async def work() -> list[Any]:
        begun.append(True)
        return await waiting(first, second)

    home.step(work(), ended.append)
    assert begun == [True]
    first.set_result(1)
    second.set_result(2)
    await asyncio.sleep(0)
    assert ended == [[1, 2]]


async def test_work_that_waits_for_nothing_ends_at_once(home: Empty) -> None:
    ended: list[Any] = []
    home.step(waiting(), ended.append)
    assert ended == [[]]


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError()])
async def test_an_error_is_passed_on(error: BaseException, home: Empty) -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended: list[Any] = []

    async def work() -> None:
        await answer
        raise error

    home.step(work(), ended.append)
    answer.set_result(None)
    await asyncio.sleep(0)
    assert ended == [error]


async def test_an_interrupt_is_passed_on_and_raised(home: Empty) -> None:
    async def work() -> None:
        raise KeyboardInterrupt

    ended: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        home.step(work(), ended.append)
    assert [type(it) for it in ended] == [KeyboardInterrupt]


async def test_close_waits_for_the_work_and_for_what_it_begins(home: Empty) -> None:
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    home.step(waiting(first), lambda _: home.step(waiting(second), lambda _: None))
    close = asyncio.create_task(home.close())
    for answer in (first, second):
        for _ in range(3):
            await asyncio.sleep(0)
        assert not close.done()
        answer.set_result(None)
    await close
    assert home.was_released


async def test_a_loop_with_such_work_is_at_work(home: Empty) -> None:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[None] = loop.create_future()
    assert not is_at_work(loop)
    home.step(waiting(answer), lambda _: None)
    assert is_at_work(loop)
    answer.set_result(None)
    await home.close()
    assert not is_at_work(loop)
