"""Writers that are killed between two requests, and a collector beside slow writers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from oci_double import Fault
from tiers import ALL

from locus_store.backends.documents import segmented
from locus_store.backends.oci.options import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from buckets import DoubleBucket

TRIALS = 300 if ALL else 8
MOST_REQUESTS = 30
ROOT = Path(__file__).resolve().parents[4]


def killing(pid: int, at: int, *, is_done: bool) -> Callable[[str, str], Fault | None]:
    """Kill a process at its request with a number, before or after that is done."""
    numbers = iter(range(1, 10**9))

    def fault(_kind: str, _name: str) -> Fault | None:
        if next(numbers) != at:
            return None
        os.kill(pid, signal.SIGKILL)
        return Fault("reset", is_done)

    return fault


def segments(bucket: DoubleBucket) -> set[str]:
    return {it.rpartition("/")[2] for it in bucket.stored.objects if "/segments/" in it}


def named(bucket: DoubleBucket) -> set[str]:
    """The segments that heads name."""
    contents = bucket.probe().contents()
    heads = [it.describe() for name, it in contents.items() if "/heads/" in name]
    return {entry[0] for it in heads for entry in it["segments"]}


def test_a_killed_writer_loses_no_acknowledged_save(bucket: DoubleBucket) -> None:
    chance = random.Random(1)
    command = [sys.executable, str(ROOT / "tests" / "workers" / "on_bucket.py"), bucket.url()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    saved, removed = set[int](), set[int]()
    with subprocess.Popen(command, cwd=ROOT, **pipes) as worker:  # type: ignore[call-overload]
        for _ in range(TRIALS):
            worker.stdin.write("\n")
            worker.stdin.flush()
            pid = int(worker.stdout.readline().split()[1])
            at, is_done = chance.randrange(1, MOST_REQUESTS), chance.random() < 0.5
            bucket.double.fault = killing(pid, at, is_done=is_done)
            while (line := worker.stdout.readline().split())[0] != "ended":
                (saved if line[0] == "saved" else removed).add(int(line[1]))
            bucket.double.fault = lambda *_: None
            asyncio.run(looked(bucket, saved, removed))
        worker.stdin.close()
    assert saved
    bucket.double.age(86_401, matching="/segments/")
    asyncio.run(vacuumed(bucket))
    asyncio.run(looked(bucket, saved, removed))
    assert segments(bucket) == named(bucket)


async def looked(bucket: DoubleBucket, saved: set[int], removed: set[int]) -> None:
    """Every acknowledged version loads; at most one more save or removal was done."""
    backend = bucket.backend()
    versions = await backend.history("t", limit=10_000)
    there = {int(it.checkpoint_id[1:]) for it in versions}
    newest = max(saved, default=0)
    pending = {newest - 3} if newest % 5 == 4 else set[int]()  # a removal may not be told yet
    assert not (saved - removed) - there - pending
    for it in there - saved:  # done, but not acknowledged before the kill
        saved.add(it)
    removed |= saved - there
    for it in versions[:3]:
        state = await backend.load("t", it.checkpoint_id)
        assert state is not None
        assert f"v{state['n']}" == it.checkpoint_id
    await backend.close()


async def vacuumed(bucket: DoubleBucket) -> None:
    backend = bucket.backend()
    await backend.vacuum_report(30)
    await backend.close()


@pytest.mark.anyio
async def test_the_collector_leaves_the_segments_of_a_slow_writer(
    bucket: DoubleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the segment and the head of a save, another process collects."""
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    writer, collector = bucket.backend(), bucket.backend()
    await writer.write_state("t", {"n": 0})
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def fault(kind: str, name: str) -> Fault | None:
        if kind == "put" and "/heads/" in name and not asked.is_set():
            loop.call_soon_threadsafe(asked.set)
            return Fault("503")
        return None

    bucket.double.fault = fault
    saving = asyncio.ensure_future(writer.write_state("t", {"n": 1}))
    await asked.wait()
    await collector.vacuum_report(30)
    await saving
    assert await collector.load("t") == {"n": 1}
    await writer.close()
    await collector.close()


@pytest.mark.anyio
async def test_segments_of_an_expired_head_go_with_the_next_vacuum(
    bucket: DoubleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a lifecycle rule removes the head of an idle thread."""
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    backend = bucket.backend()
    for name in ("idle", "live"):
        await backend.write_state(name, {"of": name})
    del bucket.stored.objects[f"{DEFAULT_PREFIX}v1/heads/idle"]
    bucket.stored.names = None
    await backend.vacuum_report(30)
    assert len(segments(bucket)) == 2
    bucket.double.age(86_401)
    await backend.vacuum_report(30)
    assert segments(bucket) == named(bucket)
    assert await backend.load("idle") is None
    assert await backend.load("live") == {"of": "live"}
    await backend.close()
