"""Processes that are killed in the middle of effects: no call is made twice that must not be.

As a program, with a URL, a mode and a number, this is what kills: each process is a fork that makes
the effects of the process before it again, and then new ones, until ``kill -9`` ends it. Behind the
tool is a server in the program, which counts. As a program, with the word ``same``, a URL, a mode
and a file, this is one of two processes that make the same effects at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socketserver
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from locus_store import OutcomeUnknownError, open_checkpointer

KILLS = int(os.environ.get("LOCUS_TEST_KILLS", "40"))
LEASE_SECONDS = 0.2
AGAIN = 4
"""Effects of the process before that each process asks for again."""

SAME = 20
"""Effects that two processes make at the same time."""

THREAD = "t"
MOST_SECONDS = 0.06
"""The latest kill after a process has begun its first effect."""


class Counter:
    """The calls that reached the tool, and the effects that each process knows as finished."""

    def __init__(self) -> None:
        self.keys: dict[str, list[str]] = defaultdict(list)
        self.finished: set[str] = set()
        self.unknown: set[str] = set()
        self.faults: list[str] = []
        self.begun = threading.Event()
        self.newest = -1

    def note(self, what: str, name: str, key: str) -> None:
        if what == "call":
            self.begun.set()
            if name in self.finished:
                self.faults.append(f"{name} was called after it was finished")
            self.keys[name].append(key)
            self.newest = max(self.newest, int(name))
        elif what == "finished":
            self.finished.add(name)
        else:
            self.unknown.add(name)

    def check(self, mode: str) -> None:
        for name, keys in self.keys.items():
            if mode == "raise" and len(keys) > 1:
                self.faults.append(f"{name} was called {len(keys)} times")
            if len(set(keys)) > 1:
                self.faults.append(f"{name} was called with several idempotency keys")


async def tell(port: int, *words: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(" ".join(words).encode() + b"\n")
    await reader.readline()
    writer.close()


async def make_effects(url: str, mode: str, port: int, first: int) -> None:
    checkpointer = open_checkpointer(url)
    number = max(0, first - AGAIN)
    while True:
        name = str(number)

        async def call(key: str, name: str = name) -> str:
            await tell(port, "call", name, key)
            await asyncio.sleep(random.uniform(0, 0.004))
            return key

        try:
            await checkpointer.effect(
                THREAD, name, call, on_unknown=mode, lease_seconds=LEASE_SECONDS
            )
            await tell(port, "finished", name, "-")
        except OutcomeUnknownError:
            await tell(port, "unknown", name, "-")
        number += 1


def main(url: str, mode: str, trials: int) -> None:
    counter = Counter()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                if words := self.rfile.readline().decode().split():  # else it was killed
                    counter.note(*words)
                self.wfile.write(b"ok\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    port = server.server_address[1]
    read, write = os.pipe()
    forker = os.fork()  # before there are threads
    if forker == 0:
        os.close(write)
        fork_on_request(read, url, mode, port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kill_at = random.Random(trials)
    for _ in range(trials):
        counter.begun.clear()
        os.write(write, f"{counter.newest + 1}\n".encode())
        if not counter.begun.wait(60):
            counter.faults.append("a process began no effect")
            break
        threading.Event().wait(kill_at.uniform(0, MOST_SECONDS))
        os.write(write, b"kill\n")
    os.close(write)
    os.waitpid(forker, 0)
    counter.check(mode)
    found = {
        "kills": trials,
        "effects": len(counter.keys),
        "calls": sum(map(len, counter.keys.values())),
        "unknown": len(counter.unknown),
        "finished": len(counter.finished),
        "faults": counter.faults[:10],
    }
    print(json.dumps(found))


async def load_modules(url: str) -> None:
    """Import what a checkpointer imports, so that a fork begins at once."""
    async with open_checkpointer(url) as checkpointer:
        await checkpointer.effects(THREAD)


def fork_on_request(read: int, url: str, mode: str, port: int) -> None:
    """Fork a process for each number that is read, and kill it at the next line."""
    asyncio.run(load_modules(url))
    with os.fdopen(read) as requests:
        for first in iter(requests.readline, ""):
            child = os.fork()
            if child == 0:
                asyncio.run(make_effects(url, mode, port, int(first)))
            requests.readline()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    os._exit(0)


def note_call(calls: str, number: int) -> None:
    with Path(calls).open("a") as file:
        file.write(f"{number}\n")


async def make_same_effects(url: str, mode: str, calls: str) -> None:
    """Make effects that another process makes at the same time; print what each returned."""
    async with open_checkpointer(url) as checkpointer:
        for number in range(SAME):

            async def call(key: str, number: int = number) -> str:
                note_call(calls, number)
                await asyncio.sleep(0.005)
                return key

            try:
                print(await checkpointer.effect("same", str(number), call, on_unknown=mode))
            except OutcomeUnknownError:
                print("refused")


def meet(url: str, mode: str, calls: Path) -> None:
    """Have two processes make the same effects: one calls, the other waits or is refused."""
    command = [sys.executable, __file__, "same", url, mode, str(calls)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (it.communicate()[0].split() for it in both)
    assert [it.returncode for it in both] == [0, 0]
    # A process that is refused goes on, and may be ahead of the other one.
    assert sorted(map(int, calls.read_text().split())) == [*range(SAME)]
    assert len(first) == len(second) == SAME
    told = [{*it} - {"refused"} for it in zip(first, second, strict=True)]
    assert {*map(len, told)} == {1}
    if mode == "repeat":
        assert "refused" not in first + second


def kill(url: str, mode: str) -> None:
    """Run the program; check what its server saw."""
    command = [sys.executable, __file__, url, mode, str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(url, mode, done.stdout)
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["calls"] >= KILLS
    if mode == "repeat":
        assert found["unknown"] == 0


MODES = pytest.mark.parametrize("mode", ["raise", "repeat"])


@MODES
@pytest.mark.parametrize("storage", ["sqlite", "migrated_database", "redis_url", "service_url"])
def test_of_two_processes_one_calls(
    request: pytest.FixtureRequest, tmp_path: Path, storage: str, mode: str
) -> None:
    if storage == "sqlite":
        url = f"sqlite:///{tmp_path / 'effects.db'}"
    else:
        url = request.getfixturevalue(storage)
    meet(url, mode, tmp_path / "calls")


@pytest.mark.posix
@MODES
def test_killed_effects_on_sqlite(tmp_path: Path, mode: str) -> None:
    kill(f"sqlite:///{tmp_path / 'effects.db'}", mode)


@pytest.mark.posix
@MODES
def test_killed_effects_on_postgresql(migrated_database: str, mode: str) -> None:
    kill(migrated_database, mode)


@pytest.mark.posix
@MODES
def test_killed_effects_on_redis(redis_url: str, mode: str) -> None:
    kill(redis_url, mode)


@pytest.mark.posix
@MODES
def test_killed_effects_over_http(service_url: str, mode: str) -> None:
    kill(service_url, mode)


if __name__ == "__main__" and sys.argv[1] == "same":
    asyncio.run(make_same_effects(*sys.argv[2:]))
elif __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
