"""Rotations of keys that are killed beside a writer: no value is lost, and none is unreadable.

As a program, with a URL, a number and ``rotate`` or ``migrate``, this is what kills. Each trial is
a fork that runs ``locus-store db keys rotate``, with or without another data key, until SIGKILL
ends it; after it, all that the writer has acknowledged is read. The last run ends, and leaves one
data key. With ``migrate``, each trial has threads in clear to encrypt, and the last run leaves
none.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import Array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import Encryption, open_storage
from locus_store.encryption import keys
from locus_store.encryption.values import CLEAR, count_keys

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

KILLS = int(os.environ.get("LOCUS_TEST_KILLS", "50"))
THREADS = 12
CLEAR_THREADS = 40
FILE = Path("keys.json")
REFRESH_SECONDS = 3.0
MOST_SECONDS = 1.5
"""The latest kill after a fork has begun."""


def write_ring(current: str, *, required: bool = True) -> None:
    ring = {name: base64.b64encode(name.encode() * 32).decode() for name in "ab"}
    place = "sqlite:///keys.db"
    document = {"keys": ring, "current": current, "data_keys": place, "required": required}
    beside = FILE.with_suffix(".new")
    beside.write_text(json.dumps(document))
    beside.replace(FILE)


def open_encrypted(url: str) -> Any:
    return open_storage(url, encryption=Encryption.read(str(FILE)))


async def write(url: str, acknowledged: Any) -> None:
    """Add a message to each thread, its state and its item, again and again."""
    async with open_encrypted(url) as storage:
        log, store, number = storage.messages(), storage.store(), 0
        while True:
            number += 1
            for thread in range(THREADS):
                name = f"t{thread}"
                state = {"said": [f"word {it}" for it in range(number)]}
                await storage.backend.save(name, state, metadata={"n": number})
                await store.put((name,), "k", {"n": number})
                await log.append(name, [(f"word {number}", "user")])
                acknowledged[thread] = number


async def check(url: str, acknowledged: list[int]) -> None:
    """Read all that was acknowledged before."""
    async with open_encrypted(url) as storage:
        log, store = storage.messages(), storage.store()
        for thread, number in enumerate(acknowledged):
            name = f"t{thread}"
            found = (await storage.backend.load(name) or {"said": []})["said"]
            assert found == [f"word {it}" for it in range(len(found))]
            item = await store.get((name,), "k") or {"n": 0}
            count = len(await log.load(name))
            assert min(len(found), item["n"], count) >= number, (name, number)
            await storage.backend.history(name)


@contextmanager
def fork(body: Callable[[], object]) -> Iterator[int]:
    """Run a body in a fork, and kill it."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def rotate(url: str, *options: str) -> None:
    sys.argv = ["locus-store", "db", "keys", "rotate", *options, "--url", url]
    try:
        import_module("locus_store.cli").main()
    except SystemExit as stop:
        os._exit(int(stop.code or 0))


def run_to_end(url: str, *options: str) -> None:
    child = os.fork()
    if child == 0:
        rotate(url, *options)
    assert os.waitpid(child, 0)[1] == 0


async def count(url: str) -> tuple[set[str], set[str]]:
    async with open_encrypted(url) as storage:
        counted = await storage.backend.count_keys() + await storage.store().count_keys()
        known, tenant = await storage.backend.encryption.list_keys(), storage.backend.tenant or ""
        return set(counted), {it.key_id for it in known if it.tenant == tenant}


async def write_clear(url: str, trial: int) -> None:
    async with open_storage(url) as storage:
        for thread in range(CLEAR_THREADS):
            for number in range(4):
                state = {"said": [f"word {it}" for it in range(number)]}
                await storage.backend.save(f"clear {trial} {thread}", state)


async def check_clear(url: str, trials: int) -> None:
    async with open_encrypted(url) as storage:
        for trial in range(trials):
            for thread in range(CLEAR_THREADS):
                found = await storage.backend.load(f"clear {trial} {thread}")
                assert found == {"said": ["word 0", "word 1", "word 2"]}


async def load_modules(url: str) -> None:
    """Import what the forks import, so that they begin at once."""
    import_module("locus_store.cli")
    open_encrypted(url)
    async with open_encrypted("sqlite:///modules.db") as storage:
        await storage.store().put(("a",), "k", 1)
        await storage.messages().append("t", [("word", "user")])
        await storage.backend.count_keys()


def main(url: str, trials: int) -> None:
    chance, shared = random.Random(trials), Array("L", THREADS, lock=False)
    write_ring("a")
    asyncio.run(load_modules(url))
    at_url = f"{url}{'&' if '?' in url else '?'}encryption={FILE}"
    with fork(lambda: asyncio.run(write(url, shared))):
        while not shared[-1]:
            time.sleep(0.05)
        for trial in range(trials):
            write_ring("ab"[trial // 2 % 2])
            options = chance.choice([(), ("--data",), ("--new-key", "--data")])
            with fork(lambda it=options: rotate(at_url, *it)):  # type: ignore[misc]
                time.sleep(chance.uniform(0, MOST_SECONDS))
            read_in_fork(url, list(shared))
    run_to_end(at_url, "--new-key", "--data")
    time.sleep(2 * REFRESH_SECONDS + 0.5)
    run_to_end(at_url, "--data")
    used, left = asyncio.run(count(url))
    asyncio.run(check(url, list(shared)))
    assert used == left
    assert len(used) == 1
    print(json.dumps({"kills": trials, "writes": sum(shared)}))


def migrate(url: str, trials: int) -> None:
    chance, shared = random.Random(trials), Array("L", THREADS, lock=False)
    write_ring("a", required=False)
    asyncio.run(load_modules(url))
    at_url = f"{url}{'&' if '?' in url else '?'}encryption={FILE}"
    halfway = 0
    with fork(lambda: asyncio.run(write(url, shared))):
        for trial in range(trials):
            asyncio.run(write_clear(url, trial))
            with fork(lambda: rotate(at_url, "--data")):
                while asyncio.run(is_clear(url, f"clear {trial} 0")):
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, MOST_SECONDS / 10))
            halfway += asyncio.run(is_clear(url, f"clear {trial} 9"))
            read_in_fork(url, list(shared))
            run_in_fork(check_clear(url, trial + 1))
    run_to_end(at_url, "--data")
    assert asyncio.run(count_clear(url)) == 0
    write_ring("a")
    asyncio.run(check(url, list(shared)))
    asyncio.run(check_clear(url, trials))
    print(json.dumps({"kills": trials, "halfway": halfway, "writes": sum(shared)}))


async def is_clear(url: str, thread_id: str) -> bool:
    async with open_storage(url) as storage:
        return CLEAR in count_keys(await storage.backend.read_thread(thread_id))


async def count_clear(url: str) -> int:
    async with open_encrypted(url) as storage:
        return (await storage.backend.count_keys())["clear"]


def read_in_fork(url: str, acknowledged: list[int]) -> None:
    run_in_fork(check(url, acknowledged))


def run_in_fork(work: Coroutine[Any, Any, None]) -> None:
    """Run in a process that has no keys."""
    child = os.fork()
    if child == 0:
        asyncio.run(work)
        os._exit(0)
    work.close()
    assert os.waitpid(child, 0)[1] == 0


def kill(url: str, directory: Path, way: str = "rotate") -> None:
    command = [sys.executable, __file__, url, str(KILLS), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    assert done.returncode == 0, done.stderr
    print(url, done.stdout)
    assert json.loads(done.stdout.splitlines()[-1])["writes"] > KILLS


@pytest.mark.posix
def test_killed_rotations_on_sqlite(tmp_path: Path) -> None:
    kill(f"sqlite:///{tmp_path / 'data.db'}", tmp_path)


@pytest.mark.posix
def test_killed_rotations_on_postgresql(migrated_database: str, tmp_path: Path) -> None:
    kill(migrated_database, tmp_path)


@pytest.mark.posix
def test_killed_migrations_on_sqlite(tmp_path: Path) -> None:
    kill(f"sqlite:///{tmp_path / 'data.db'}", tmp_path, "migrate")


@pytest.mark.posix
def test_killed_migrations_on_postgresql(migrated_database: str, tmp_path: Path) -> None:
    kill(migrated_database, tmp_path, "migrate")


@pytest.mark.posix
def test_killed_rotations_on_redis(redis_url: str, tmp_path: Path) -> None:
    kill(redis_url, tmp_path)


if __name__ == "__main__":
    keys.REFRESH_SECONDS = REFRESH_SECONDS  # type: ignore[misc]
    {"rotate": main, "migrate": migrate}[sys.argv[3]](sys.argv[1], int(sys.argv[2]))
