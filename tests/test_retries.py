"""The pauses between attempts."""

from __future__ import annotations

import asyncio

import pytest

from locus_store.runtime import retries
from locus_store.runtime.retries import RACES, Pauses, retry_lost_races


def test_pauses_grow_up_to_the_longest() -> None:
    rows = [
        [pauses.get_next() for _ in range(8)] for pauses in (Pauses(0.1, 1.0) for _ in range(500))
    ]
    longest = [max(column) for column in zip(*rows, strict=True)]
    for pause, most in zip(longest, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert most / 2 < pause <= most


def test_a_pause_is_at_least_as_long_as_the_server_asks_for() -> None:
    assert Pauses(0.1, 1.0).get_next(5) >= 5


def test_no_pause_ends_behind_the_time_for_all() -> None:
    assert Pauses(0.1, 1.0, 4.0).get_next(5) is None
    assert Pauses(0.1, 1.0, 60.0).get_next(5) is not None


def test_work_that_loses_each_race_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RACING_SECONDS", 0.0)
    attempts = []

    async def work() -> None:
        attempts.append(1)
        raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(retry_lost_races(work, lambda exc, _: isinstance(exc, KeyError)))
    assert len(attempts) == RACES
    attempts.clear()
    with pytest.raises(KeyError):
        asyncio.run(retry_lost_races(work, lambda exc, _: isinstance(exc, ValueError)))
    assert len(attempts) == 1


def test_work_that_loses_races_quickly_is_attempted_more_often() -> None:
    attempts = []

    async def work() -> None:
        attempts.append(1)
        if len(attempts) <= RACES:
            raise KeyError

    asyncio.run(retry_lost_races(work, lambda exc, _: isinstance(exc, KeyError)))
    assert len(attempts) == RACES + 1
