"""A loop that ends in the middle of a call: nothing is printed on standard error."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORST_TICK = """
import asyncio, gc, sys
from locus_store import open_checkpointer
from sqlalchemy.ext.asyncio import create_async_engine

async def cancelled_when_answered(work):
    # As asyncio.run cancels its tasks: here in the tick between the answer and the caller's turn.
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def look():
        waits_for = task._fut_waiter
        if waits_for is not None and waits_for.done() and not waits_for.cancelled():
            task.cancel()
        elif not task.done():
            loop.call_soon(look)

    loop.call_soon(look)
    await asyncio.wait([task])
    assert task.cancelled(), task

def opened(url):
    if not url.startswith("engine:"):
        return open_checkpointer(url, state_type=dict)
    from locus_store import sqlite_checkpointer
    engine = create_async_engine(url.removeprefix("engine:"))
    return sqlite_checkpointer(engine=engine, state_type=dict)

async def main(url):
    checkpointer = opened(url)
    for number in range(3):
        thread = f"t{number}"
        await checkpointer.save({"n": 0}, thread, "v0")
        mine = await checkpointer.load(thread)
        await checkpointer.save({"n": 1}, thread, "v1", on_conflict="overwrite")
        mine["n"] = 2
        await cancelled_when_answered(checkpointer.save(mine, thread))
        await cancelled_when_answered(checkpointer.copy_thread(thread, "t0"))

asyncio.run(main(sys.argv[1]))
gc.collect()
"""

EACH_TICK = """
import asyncio, gc, sys
from locus_store import open_checkpointer

async def main(url):
    ours = asyncio.all_tasks()
    for ticks in range(60 if url.startswith("postgresql") else 8):  # SQLite opens slowly
        checkpointer = open_checkpointer(url, state_type=dict)
        asyncio.ensure_future(checkpointer.save({"n": ticks}, "t"))
        for _ in range(ticks):
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - ours
        for task in others:  # as asyncio.run does at its end
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await checkpointer.close()

asyncio.run(main(sys.argv[1]))
gc.collect()
"""

NEVER_CLOSED = """
import asyncio, gc, sys
from locus_store import open_checkpointer

async def main(url):
    for number in range(3):
        await open_checkpointer(url, state_type=dict).save({"n": 0}, f"t{number}")

asyncio.run(main(sys.argv[1]))
gc.collect()
"""

UNANSWERED = """
import asyncio, sys
from locus_store import open_checkpointer

async def main(url):
    checkpointer = open_checkpointer(url, state_type=dict)
    await checkpointer.save({"n": 0}, "t", "v0")
    print("held?", flush=True)
    sys.stdin.readline()
    calls = [checkpointer.save({"n": it}, f"t{it % 3}", f"w{it}") for it in range(9)]
    calls += [checkpointer.load("t"), checkpointer.delete("t"), checkpointer.search("a")]
    tasks = [asyncio.ensure_future(it) for it in calls]
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'x.db'}"
    if request.param == "engine":
        return f"engine:sqlite+aiosqlite:///{tmp_path / 'x.db'}"
    if request.param == "file":
        return f"file://{tmp_path / 'x'}"
    fixture = {"postgresql": "migrated_database", "redis": "redis_url"}[request.param]
    found: str = request.getfixturevalue(fixture)
    return found


KINDS = ("sqlite", "engine", "postgresql", "redis", "file")
PROGRAMS = [
    *(pytest.param(WORST_TICK, kind, id=f"worst tick-{kind}") for kind in KINDS),
    # Without the engine: its connections are its owner's to close.
    *(pytest.param(NEVER_CLOSED, kind, id=f"never closed-{kind}") for kind in KINDS[2:4]),
    *(pytest.param(EACH_TICK, kind, id=f"each tick-{kind}") for kind in KINDS if kind != "engine"),
]


@pytest.mark.parametrize(("program", "url"), PROGRAMS, indirect=["url"])
def test_a_loop_that_ends_leaves_nothing_on_stderr(program: str, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, url],
        capture_output=True,
        text=True,
        timeout=servers.DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def proxy(postgresql: servers.Server) -> Iterator[servers.Proxy]:
    made = servers.Proxy(postgresql.port, postgresql.host)
    yield made
    made.close()


@pytest.mark.parametrize("attempt", range(3))
def test_a_loop_that_ends_while_the_server_does_not_answer_prints_nothing(
    attempt: int, proxy: servers.Proxy, postgresql: servers.Server, migrated_database: str
) -> None:
    del attempt
    name = migrated_database.partition("?")[0].rpartition("/")[2]
    url = proxy.url(postgresql, name, sslmode="disable")
    command = [sys.executable, "-c", UNANSWERED, url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held?\n"
        proxy.hold()
        _, errors = process.communicate("yes\n", servers.DEADLINE_SECONDS)
    assert (process.returncode, errors) == (0, "")
