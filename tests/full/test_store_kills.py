"""Stores on documents: writers that are killed lose no acknowledged put, and tear no batch."""

from __future__ import annotations

import asyncio
import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from test_store_journal import run_worker
from tiers import ALL

from locus_store import open_store

if TYPE_CHECKING:
    from pathlib import Path

TRIALS = 300 if ALL else 15


async def look(url: str, acknowledged: int) -> int:
    """Check what is stored; return the last number that was put."""
    async with open_store(url) as store:
        keys = await store.list_keys(("a",), 10**6)
        last = len(keys) - 1
        assert keys == [f"k{n:06}" for n in range(last + 1)]
        assert last in {acknowledged, acknowledged + 1}
        ends = [await store.get((name, "last"), "k") for name in ("a", "b")]
        assert ends[0] == ends[1]
        assert (-1 if ends[0] is None else ends[0]) in {last, last - 1}
        return last


def kill_in_the_middle(url: str) -> int:
    """Kill a writer again and again; return the number of acknowledged puts."""
    chance, last = random.Random(1), -1
    for _ in range(TRIALS):
        with run_worker("write", url, last + 1) as worker:
            told = [worker.stdout.readline() for _ in range(chance.randrange(1, 15))]
            timer = chance.random() * 0.01
            try:
                worker.wait(timer)
            except subprocess.TimeoutExpired:
                worker.kill()
            told += worker.stdout.read().splitlines()
        # A killed process may have written half of its last line.
        numbers = [int(it.split()[1]) for it in told if it.startswith("put ")]
        last = asyncio.run(look(url, max([last, *numbers])))
    return last


@pytest.mark.posix
def test_killed_writers_of_a_directory(tmp_path: Path) -> None:
    assert kill_in_the_middle(f"file://{tmp_path}") > TRIALS
