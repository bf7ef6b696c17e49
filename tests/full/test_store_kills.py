"""Stores on documents: writers that are killed lose no acknowledged put, and tear no batch."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from test_store_journal import WORKER
from tiers import ALL

from locus_store import open_store

if TYPE_CHECKING:
    from pathlib import Path

TRIALS = 300 if ALL else 15


async def look(url: str, before: int, acknowledged: int) -> int:
    """Check what is stored; return the last number that was put.

    Args:
        url: Of the store.
        before: The last number that was put by the writer before.
        acknowledged: The last number whose item and batch were acknowledged.
    """
    async with open_store(url) as store:
        keys = await store.list_keys(("a",), 10**6)
        last = len(keys) - 1
        assert keys == [f"k{n:06}" for n in range(last + 1)]
        known = max(before, acknowledged)
        if last not in {known, known + 1}:
            await asyncio.sleep(2)
            later = len(await store.list_keys(("a",), 10**6)) - 1
            pytest.fail(f"{last} was stored where {known} was known, and {later} two seconds later")
        ends = [await store.get((name, "last"), "k") for name in ("a", "b")]
        assert ends[0] == ends[1]
        assert acknowledged <= (-1 if ends[0] is None else ends[0]) <= last
        return last


def kill_in_the_middle(url: str) -> int:
    """Kill a writer again and again; return the last number that was put."""
    chance, last, acknowledged = random.Random(1), -1, -1
    command = [sys.executable, str(WORKER), "write", url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as worker:  # type: ignore[call-overload]
        for _ in range(TRIALS):
            print(last + 1, file=worker.stdin, flush=True)
            pid = int(worker.stdout.readline().split()[1])
            told = [worker.stdout.readline() for _ in range(chance.randrange(12))]
            time.sleep(chance.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
            while (line := worker.stdout.readline()) and not line.endswith("ended\n"):
                told.append(line)
            acknowledged = max([acknowledged, *(int(it.split()[1]) for it in told)])
            last = asyncio.run(look(url, last, acknowledged))
        worker.stdin.close()
    return last


@pytest.mark.posix
def test_killed_writers_of_a_directory(tmp_path: Path) -> None:
    assert kill_in_the_middle(f"file://{tmp_path}") > TRIALS
