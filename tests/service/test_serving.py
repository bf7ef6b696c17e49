"""``locus-store serve`` as a process: killed under load, stopped with requests under way."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from amounts import ALL
from served import Served

from locus_store import ConflictError, HTTPBackend, LocusStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgresql"])
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


# --- tenants


async def test_a_tenant_never_sees_another_ones_threads(url: str, tmp_path: Path) -> None:
    from services import Service

    from locus_store import open_checkpointer
    from locus_store.service.tokens import TokenFile

    file = TokenFile(tmp_path / "tokens.json")
    tokens = {it: file.add(it, it, ["read", "write", "admin"]) for it in ("acme", "umbrella")}
    service = Service(open_checkpointer(url).backend, token_file=tmp_path / "tokens.json")
    backends = {it: HTTPBackend(service.url, token=token) for it, token in tokens.items()}
    dice, known = random.Random(1), {it: dict[str, Any]() for it in tokens}
    for step in range(10_000 if ALL else 150):
        mine = dice.choice([*tokens])
        name = f"t{dice.randrange(8)}"
        backend, own = backends[mine], known[mine]
        match dice.randrange(6):
            case 0 | 1:
                own[name] = {"of": mine, "step": step}
                await backend.save(name, own[name])
            case 2:
                assert await backend.delete(name) is (own.pop(name, None) is not None)
            case 3:
                assert sorted(await backend.list_threads()) == sorted(own)
            case 4:
                assert {it.thread_id for it in await backend.find(mine)} == own.keys()
            case _:
                assert await backend.load(name) == own.get(name)
    file.revoke("acme")
    with pytest.raises(LocusStoreError, match="valid token"):
        await backends["acme"].load("t0")
    for it in backends.values():
        await it.close()
    service.stop()


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
