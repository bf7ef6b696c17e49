"""``locus-store serve`` as a process: killed under load, stopped with requests under way."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from served import Served
from tiers import first_of

from locus_store import ConflictError, HTTPBackend, LocusStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('database_file')}"
    return str(request.getfixturevalue("migrated_database"))


@pytest.fixture
def served(request: pytest.FixtureRequest, url: str) -> Iterator[Served]:
    made = Served(url, *getattr(request, "param", ()))
    yield made
    if made.process.poll() is None:
        made.kill()


@pytest.mark.parametrize("served", [["--workers", "1"], ["--workers", "2"]], indirect=True)
async def test_a_stop_finishes_the_saves_that_are_under_way(served: Served) -> None:
    async with HTTPBackend(served.base_url, retry_seconds=0) as backend:
        await backend.open()
        saves = [
            asyncio.create_task(backend.save(f"t{n}", {"n": n}, checkpoint_id="v"))
            for n in range(30)
        ]
        await asyncio.wait(saves, return_when=asyncio.FIRST_COMPLETED)
        assert await asyncio.to_thread(served.stop) in {0, -signal.SIGTERM}
        done = await asyncio.gather(*saves, return_exceptions=True)
    served.start()
    async with HTTPBackend(served.base_url) as backend:
        for n, it in enumerate(done):
            if it == "v":
                assert await backend.load(f"t{n}") == {"n": n}


async def test_workers_share_a_port_and_see_the_same_threads(url: str) -> None:
    served = Served(url, "--workers", "2")
    try:
        for n in range(6):
            async with HTTPBackend(served.base_url) as backend:
                await backend.save("t", {"n": n}, checkpoint_id=f"v{n}")
        async with HTTPBackend(served.base_url) as backend:
            assert len(await backend.history("t")) == 6
    finally:
        served.stop()


async def test_a_read_only_service_reads(url: str) -> None:
    served = Served(url, "--read-only")
    try:
        async with HTTPBackend(served.base_url) as backend:
            with pytest.raises(LocusStoreError, match="right 'write'"):
                await backend.save("t", {})
            assert await backend.load("t") is None
    finally:
        served.stop()


@pytest.mark.parametrize(
    "options",
    [["--host", "0.0.0.0"], ["--workers", "0"], ["--max-body", "x"]],  # noqa: S104
)
def test_options_that_make_no_sense_are_refused(options: list[str]) -> None:
    command = [str(Path(sys.executable).parent / "locus-store"), "serve", "--url", "memory://"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Error: --" in done.stderr


async def test_a_lost_race_is_a_conflict_between_two_clients(served: Served) -> None:
    from locus_store import http_checkpointer

    one, other = (http_checkpointer(served.base_url, state_type=dict) for _ in range(2))
    await one.save({"n": 0}, "t")
    states = [await it.load("t") for it in (one, other)]
    for state in states:
        state["n"] += 1
    done = await asyncio.gather(
        one.save(states[0], "t"), other.save(states[1], "t"), return_exceptions=True
    )
    assert [type(it) for it in done if not isinstance(it, str)] == [ConflictError]
    await one.close()
    await other.close()
