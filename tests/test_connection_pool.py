"""The queue of idle connections serves the caller that has waited longest first."""

from __future__ import annotations

import asyncio

import pytest

from locus_store.sql.connections.lending import FairQueue

pytestmark = pytest.mark.anyio


async def waiting_on(queue: FairQueue) -> asyncio.Task[object]:
    task = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    return task


async def test_an_item_goes_to_the_caller_that_waits_longest() -> None:
    queue = FairQueue(2)
    first, second = await waiting_on(queue), await waiting_on(queue)
    queue.put_nowait("a")
    assert queue.empty()
    queue.put_nowait("b")
    assert await asyncio.gather(first, second) == ["a", "b"]


async def test_the_last_item_is_the_first_that_is_taken() -> None:
    queue = FairQueue(2)
    queue.put_nowait("a")
    queue.put_nowait("b")
    assert [await queue.get(), queue.get_nowait()] == ["b", "a"]


async def test_a_cancelled_caller_is_passed_over() -> None:
    queue = FairQueue(1)
    first, second = await waiting_on(queue), await waiting_on(queue)
    first.cancel()
    await asyncio.wait([first])
    queue.put_nowait("a")
    assert await second == "a"


async def test_an_item_handed_to_a_caller_that_is_cancelled_goes_to_the_next() -> None:
    queue = FairQueue(1)
    first, second = await waiting_on(queue), await waiting_on(queue)
    queue.put_nowait("a")
    first.cancel()
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first
