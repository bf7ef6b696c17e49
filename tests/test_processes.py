"""Several operating-system processes on one database."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any, Self

import pytest
from tiers import ALL, first_of

from locus_store import ConflictError, open_checkpointer

WORKER = Path(__file__).parent / "workers" / "on_database.py"
HANGS_SECONDS = 60
"""A process that takes longer has hung: it is killed, and its test fails."""

pytestmark = pytest.mark.anyio


class Worker:
    """One process; told what to do on its standard input, and tells in JSON lines."""

    def __init__(self, *arguments: str, flags: tuple[str, ...] = ("-W", "error")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *flags, str(WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._limit = Timer(HANGS_SECONDS, self.process.kill)
        self._limit.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()

    def tells(self) -> Any:
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def told(self) -> list[Any]:
        """Everything else until its end; a line that was cut off was not told."""
        output = self.process.stdout.read()
        return [json.loads(it) for it in output.splitlines(keepends=True) if it.endswith("\n")]

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def ends(self) -> list[Any]:
        """Return the rest of the output of a process that succeeded and wrote nothing to stderr."""
        told, complaints = self.told(), self.process.stderr.read()
        assert (self.process.wait(), complaints) == (0, "")
        return told


def ran(*arguments: str, **options: Any) -> list[Any]:
    with Worker(*arguments, **options) as worker:
        return worker.ends()


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'checkpoints.db'}"
    return request.getfixturevalue("migrated_database")


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'checkpoints.db'}"
    return request.getfixturevalue("database")


@pytest.mark.full
async def test_another_process_reads_every_version(url: str) -> None:
    state = {"said": ["Zürich\0", 1, 1.0, True, None, -0.0, 2**63]}
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        one = await checkpointer.save(state, "t")
        two = await checkpointer.save({**state, "more": []}, "t")
        assert ran("read", url, "t") == [{two: {**state, "more": []}, one: state}]
    assert repr(ran("read", url, "t")[0][one]) == repr(state)


async def test_a_conversation_goes_from_process_to_process(url: str) -> None:
    for text in "abc":
        with Worker("turn", url, "t", text) as worker:
            worker.go()
            worker.ends()
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        assert await checkpointer.load("t") == {"said": ["a", "b", "c"]}


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.full
async def test_of_two_racing_processes_one_is_told(url: str, exists: bool) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        if exists:
            await checkpointer.save({"said": ["a"]}, "t")
    with Worker("turn", url, "t", "x") as x, Worker("turn", url, "t", "y") as y:
        assert [x.tells(), y.tells()] == ["loaded", "loaded"]
        x.go()
        y.go()
        answers = x.ends() + y.ends()
    (saved,) = [it for it in answers if isinstance(it, str)]
    assert {"conflict": saved} in answers
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        assert len(await checkpointer.list_checkpoints("t")) == 1 + exists
        assert (await checkpointer.load("t"))["said"][-1] in {"x", "y"}


@pytest.mark.full
async def test_8_cold_processes_may_make_the_tables_at_once(empty_url: str) -> None:
    workers = [Worker("begin", empty_url, f"t{n}") for n in range(8)]
    try:
        assert [it.tells() for it in workers] == ["ready"] * 8
        for it in workers:
            it.go()
        assert all(len(it.ends()) == 1 for it in workers)
    finally:
        for it in workers:
            it.__exit__()
    async with open_checkpointer(empty_url, state_type=dict) as checkpointer:
        assert set(await checkpointer.list_threads()) == {f"t{n}" for n in range(8)}


async def test_a_killed_writer_loses_no_acknowledged_save(url: str) -> None:
    told = -1
    for trial in range(10 if ALL else 3):
        with Worker("write", url, str(told + 1)) as worker:
            for _ in range(1 + 3 * trial):
                told = worker.tells()
            worker.process.kill()
            told = max([told, *worker.told()])
        async with open_checkpointer(url, state_type=dict) as checkpointer:
            ids = await checkpointer.list_checkpoints("t", limit=100_000)
            newest = len(ids) - 1
            assert ids == [f"v{n}" for n in range(newest, -1, -1)]
            assert newest in {told, told + 1}  # the last one may have gone unacknowledged
            for n in {0, told, newest, newest // 2}:
                expected = {"lines": [f"line {it}" for it in range(n + 1)]}
                assert await checkpointer.load("t", f"v{n}") == expected
        told = newest


@pytest.mark.full
async def test_a_version_deleted_and_put_again_by_another_process_is_noticed(url: str) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.save({"said": ["a"]}, "t", "v1")
        state = await checkpointer.load("t")
        assert ran("remake", url) == ["v1"]
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(_said(state, "b"), "t", "v2")
        assert told.value.head_id == "v1"
        assert await checkpointer.list_checkpoints("t") == ["v1"]


def _said(state: Any, text: str) -> Any:
    state = state.copy()
    state["said"] = [*state["said"], text]
    return state


@pytest.mark.parametrize("closes_first", ["parent", "child"])
@pytest.mark.full
def test_a_forked_child_and_its_parent_lose_nothing(url: str, closes_first: str) -> None:
    # Python 3.12 warns of any fork in a process that has threads.
    flags = ("-W", "error", "-W", "ignore::DeprecationWarning")
    assert ran("fork", url, closes_first, flags=flags) == [0]
    for name in ("parent", "child"):
        (versions,) = ran("read", url, name)
        assert versions == {f"v{n}": {"said": [name, n]} for n in range(3)}


WAYS_TO_LEAVE = [
    "leave",
    "leave_blocking",
    "leave_one_per_loop",
    "leave_in_the_middle",
    "leave_and_come_back",
]


@pytest.mark.parametrize("how", WAYS_TO_LEAVE)
@pytest.mark.full
def test_an_object_that_nobody_closed_ends_with_its_process(url: str, how: str) -> None:
    if url.startswith("postgresql"):
        # asyncpg asks for TLS when it cancels a statement; a loop that ends just then says so.
        url += "?sslmode=disable"
    assert ran(how, url, flags=("-X", "dev", "-W", "error")) == list(range(5))
    (versions,) = ran("read", url, "t")
    assert versions == {f"v{n}": {"step": n} for n in range(5)}
