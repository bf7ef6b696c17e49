"""Quotas across processes, of which one is killed and one stands still."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from locus_store import Quota, open_checkpointer

WORKER = Path(__file__).parents[1] / "workers" / "on_quota.py"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'checkpoints.db'}"
    return str(request.getfixturevalue("migrated_database"))


def start(url: str, count: int) -> list[Any]:
    """Start processes, which begin together."""
    command, pipe = [sys.executable, "-W", "error", str(WORKER), url], subprocess.PIPE
    workers: list[Any] = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)
    ]
    for worker in workers:
        worker.stdout.readline()
    for worker in workers:
        worker.stdin.write("begin\n")
        worker.stdin.flush()
    return workers


def finish(workers: list[Any]) -> int:
    """Wait for processes; return the number of their acknowledged saves."""
    told = [it.communicate(timeout=120)[0].split() for it in workers]
    assert all(it[-1] == "full" for it in told)
    return sum(len(it) - 1 for it in told)


async def test_processes_at_once_stop_at_the_quota(url: str) -> None:
    async with open_checkpointer(url, state_type=dict, tenant="acme") as checkpointer:
        await checkpointer.set_quota(Quota(threads=150, bytes=10**7))
        saved = finish(start(url, 4))
        assert saved == (await checkpointer.get_quota()).threads
        assert 120 <= saved <= 150  # a process that ended keeps its lease for a minute


async def test_a_process_that_is_killed_or_stopped_keeps_at_most_its_lease(
    migrated_database: str,
) -> None:
    url = migrated_database  # on SQLite a stopped writer stops all others
    async with open_checkpointer(url, state_type=dict, tenant="acme") as checkpointer:
        await checkpointer.set_quota(Quota(threads=150, bytes=100_000))
        killed, stopped, *others = start(url, 4)
        killed.stdout.readline()
        stopped.stdout.readline()
        killed.kill()
        stopped.send_signal(signal.SIGSTOP)
        finish(others)
        use = await checkpointer.get_quota()
        assert use.threads > 20
        assert use.bytes <= 100_000
        stopped.send_signal(signal.SIGCONT)
        finish([stopped])
        assert (await checkpointer.get_quota()).bytes <= 100_000
        killed.communicate()
