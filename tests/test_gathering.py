"""Calls that run in groups: what a group holds, and what becomes of each call."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.runtime.gathering import Failed, Gathering, GroupLimits, Undecided

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Groups:
    """Answers each call with its double, and notes the groups."""

    def __init__(self, names: Sequence[str] = (), **limits: Any) -> None:
        self.seen: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.alone: set[int] = set()
        self.calls: Gathering[int, int] = Gathering(
            self.run,
            GroupLimits(**{"count": 10, "workers": 1, **limits}),
            lambda it: names[it] if names else "",
        )

    async def run(self, group: Sequence[int], is_alone: bool) -> list[Any]:
        self.seen.append(list(group))
        await self.gate.wait()
        if -1 in group:
            raise ValueError("the whole group")
        answers: list[Any] = []
        for it in group:
            if it in self.alone and not is_alone:
                answers.append(Undecided.ALONE)
            else:
                answers.append(Failed(KeyError(it)) if it < -1 else 2 * it)
        return answers

    async def all(self, *calls: int, **options: Any) -> list[Any]:
        return await asyncio.gather(
            *(self.calls.submit(it, **options) for it in calls), return_exceptions=True
        )


async def test_calls_of_one_tick_are_one_group_within_its_bounds() -> None:
    groups = Groups(count=3)
    assert await groups.all(*range(7)) == [0, 2, 4, 6, 8, 10, 12]
    assert groups.seen == [[0, 1, 2], [3, 4, 5], [6]]
    large = Groups(size=10)
    await large.all(1, 2, 3, size=6)
    assert large.seen == [[1], [2], [3]]


async def test_a_failure_is_one_callers_unless_the_group_failed() -> None:
    groups = Groups()
    found = await groups.all(1, -2, 3)
    assert [found[0], type(found[1]), found[2]] == [2, KeyError, 6]
    assert [type(it) for it in await groups.all(1, -1)] == [ValueError, ValueError]
    assert await groups.all(4) == [8]


async def test_calls_with_a_name_in_common_run_one_after_the_other() -> None:
    groups = Groups(names=["", "a", "a"], workers=2)
    await groups.all(1, 2)
    assert groups.seen == [[1], [2]]


async def test_a_call_that_runs_alone_delays_those_behind_it_with_its_name_only() -> None:
    groups = Groups(names=["", "a", "a", "b"])
    groups.alone = {1}
    assert await groups.all(1, 2, 3) == [2, 4, 6]
    assert groups.seen[0] == [1]
    assert [3] in groups.seen
    assert groups.seen.index([2]) > groups.seen.index([1], 1)


async def test_a_cancelled_call_is_left_out_of_the_next_group() -> None:
    groups = Groups()
    groups.gate.clear()
    first = groups.calls.submit(1)
    await asyncio.sleep(0)
    second, third = groups.calls.submit(2), groups.calls.submit(3)
    first.cancel()
    second.cancel()
    groups.gate.set()
    assert await third == 6
    assert groups.seen == [[1], [3]]


async def test_a_cancelled_sender_leaves_no_call_waiting() -> None:
    groups = Groups()
    groups.gate.clear()
    first = groups.calls.submit(1)
    await asyncio.sleep(0)
    second = groups.calls.submit(2)
    for task in list(groups.calls._tasks):
        task.cancel()
    groups.gate.set()
    assert await second == 4
    assert first.cancelled()


async def test_draining_waits_for_all_calls() -> None:
    groups = Groups(count=1)
    calls = [groups.calls.submit(it) for it in range(5)]
    await groups.calls.drain()
    assert [it.result() for it in calls] == [0, 2, 4, 6, 8]
    await groups.calls.drain()


def test_an_error_that_nobody_hears_is_not_printed(capfd) -> None:
    async def leave() -> None:
        groups = Groups()
        for it in (-1, -2, 3):
            groups.calls.submit(it)
        await groups.calls.drain()

    asyncio.run(leave())
    gc.collect()
    assert capfd.readouterr().err == ""
