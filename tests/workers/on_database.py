"""Work of a separate process on a database: ``on_database.py WHAT URL [ARGUMENT ...]``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

from locus_store import ConflictError, open_checkpointer
from locus_store.blocking import BlockingCheckpointer


def told(what: object) -> None:
    print(json.dumps(what), flush=True)


async def waited() -> None:
    """Until the parent process says so."""
    await asyncio.to_thread(sys.stdin.readline)


async def read(url: str, thread_id: str) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        ids = await checkpointer.list_checkpoints(thread_id, limit=1000)
        told({it: await checkpointer.load(thread_id, it) for it in ids})


async def turn(url: str, thread_id: str, text: str) -> None:
    """Load, wait, save."""
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        state = await checkpointer.load(thread_id)
        told("loaded")
        await waited()
        state = {**(state or {}), "said": [*(state or {"said": []})["said"], text]}
        try:
            told(await checkpointer.save(state, thread_id))
        except ConflictError as exc:
            told({"conflict": exc.head_id})


async def begin(url: str, thread_id: str) -> None:
    """Wait, then be among the first to open the database."""
    told("ready")
    await waited()
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        told(await checkpointer.save({"said": [thread_id]}, thread_id))


async def write(url: str, first: str) -> None:
    """Save versions without end; tell each that was acknowledged."""
    checkpointer, step = open_checkpointer(url, state_type=dict), int(first)
    lines = [f"line {n}" for n in range(step)]
    while True:
        lines.append(f"line {step}")
        await checkpointer.save({"lines": lines}, "t", f"v{step}")
        told(step)
        step += 1


async def remake(url: str) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.delete("t")
        told(await checkpointer.save({"said": ["a"]}, "t", "v1"))


async def leave(url: str) -> None:
    """End without a close, with saves that nobody waits for."""
    checkpointer = open_checkpointer(url, state_type=dict)
    for step in range(5):
        await checkpointer.save({"step": step}, "t", f"v{step}")
        told(step)
    _kept.append(checkpointer)


def leave_blocking(url: str) -> None:
    checkpointer = BlockingCheckpointer(open_checkpointer(url, state_type=dict))
    for step in range(5):
        checkpointer.save({"step": step}, "t", f"v{step}")
        told(step)
    _kept.append(checkpointer)


def leave_one_per_loop(url: str) -> None:
    """As an agent's ``run_sync`` without its ``close()``."""
    checkpointer = open_checkpointer(url, state_type=dict)
    for step in range(5):
        asyncio.run(checkpointer.save({"step": step}, "t", f"v{step}"))
        told(step)


async def leave_in_the_middle(url: str) -> None:
    """End while saves, first ones too, and loads are under way."""
    checkpointer = open_checkpointer(url, state_type=dict)
    for step in range(5):
        await checkpointer.save({"step": step}, "t", f"v{step}")
        told(step)
    for step in range(200):
        _kept.append(asyncio.create_task(checkpointer.save({"step": step}, f"t{step % 40}")))
        _kept.append(asyncio.create_task(checkpointer.load(f"t{step}")))
    await asyncio.wait(_kept[:2])
    _kept.append(checkpointer)


def leave_and_come_back(url: str) -> None:
    """Loops that end in the middle, one after another; then a loop that waits for its saves."""
    checkpointer = open_checkpointer(url, state_type=dict)

    async def begin() -> None:
        saves = [
            checkpointer.save({"n": n}, f"t{n % 9}", on_conflict="overwrite") for n in range(60)
        ]
        await asyncio.wait(
            [asyncio.create_task(it) for it in saves], return_when=asyncio.FIRST_COMPLETED
        )

    async def go_on() -> None:
        for step in range(5):
            await checkpointer.save({"step": step}, "t", f"v{step}")
            told(step)

    for _ in range(5):
        asyncio.run(begin())
    asyncio.run(go_on())


def fork(url: str, closes_first: str) -> None:
    """A child process of an object in use; both go on with it, and one closes it before."""
    checkpointer = open_checkpointer(url, state_type=dict)
    asyncio.run(checkpointer.save({"said": ["parent"]}, "t"))
    assert asyncio.run(checkpointer.load("t"))
    pipes = {"parent": os.pipe(), "child": os.pipe()}  # each reads what the other tells it
    child = os.fork()
    me, other = ("parent", "child") if child else ("child", "parent")

    def meet() -> None:
        os.write(pipes[other][1], b".")
        os.read(pipes[me][0], 1)

    for step in range(3):
        asyncio.run(checkpointer.save({"said": [me, step]}, me, f"v{step}"))
        assert asyncio.run(checkpointer.load(me)) == {"said": [me, step]}
        meet()
        if step == 1 and me == closes_first:
            asyncio.run(checkpointer.close())
        meet()
    assert asyncio.run(checkpointer.load("t")) == {"said": ["parent"]}
    asyncio.run(checkpointer.close())
    if child:
        told(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


_kept: list[Any] = []

if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # below: slow steps, of a busy machine
    done = globals()[sys.argv[1]](*sys.argv[2:])
    if asyncio.iscoroutine(done):
        asyncio.run(done)
