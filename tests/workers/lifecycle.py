"""Life cycles of a separate process: ``lifecycle.py WHAT URL [ARGUMENT ...]``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from locus_store import BackendError, ConflictError, open_checkpointer
from locus_store.blocking import BlockingCheckpointer
from locus_store.runtime import portals

TURNS = 15

# Below: slow steps, of a busy machine. A spawned process imports this module as well.
logging.getLogger("asyncio").setLevel(logging.ERROR)


def told(what: object) -> None:
    print(json.dumps(what), flush=True)


class Forked:
    """An object that was in use before the fork, async or blocking."""

    def __init__(self, url: str, form: str) -> None:
        self._async = open_checkpointer(url, state_type=dict)
        self._blocking = BlockingCheckpointer(self._async) if form == "blocking" else None

    def append(self, text: str) -> None:
        """One turn, run again whenever somebody else was faster."""
        while True:
            with suppress(ConflictError):
                if self._blocking:
                    state = self._blocking.load("t")
                    state["said"].append(text)
                    self._blocking.save(state, "t")
                else:
                    asyncio.run(self._turn(text))
                return

    async def _turn(self, text: str) -> None:
        state = await self._async.load("t")
        state["said"].append(text)
        await self._async.save(state, "t")

    def begin(self) -> None:
        if self._blocking:
            self._blocking.save({"said": []}, "t")
        else:
            asyncio.run(self._async.save({"said": []}, "t"))

    def said(self) -> list[str]:
        state = self._blocking.load("t") if self._blocking else asyncio.run(self._async.load("t"))
        return list(state["said"])

    def close(self) -> None:
        if self._blocking:
            self._blocking.close()
        else:
            asyncio.run(self._async.close())


def fork(url: str, form: str) -> None:
    """Parent and child take turns on one thread at once, with one object; tell what each sees."""
    forked = Forked(url, form)
    forked.begin()
    reading, writing = os.pipe()
    child = os.fork()
    me = "parent" if child else "child"
    for turn in range(TURNS):
        forked.append(f"{me} {turn}")
    if not child:
        os.write(writing, json.dumps(forked.said()).encode())
        forked.close()
        return
    status = os.waitpid(child, 0)[1]
    of_child = json.loads(os.read(reading, 65_536))
    told([os.waitstatus_to_exitcode(status), forked.said(), of_child])
    forked.close()


def _end_of(child: int) -> int:
    """Return the exit code of a child, which is killed after a while."""
    limit, ended = time.monotonic() + 20, 0
    while not ended and time.monotonic() < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


def fork_and_leave(url: str) -> None:
    """A child that never uses what its parent opened, and ends; tells how."""
    blocking = BlockingCheckpointer(open_checkpointer(url, state_type=dict))
    blocking.save({"said": []}, "t")
    child = os.fork()
    if not child:
        sys.exit(0)
    ended = _end_of(child)
    blocking.close()
    told(ended)


def fork_beside_a_first_call(url: str) -> None:
    """A child uses what another thread of its parent was opening, and ends; tells how."""
    opened = open_checkpointer(url, state_type=dict)
    opened.needs_no_loop = False
    blocking = BlockingCheckpointer(opened)
    begun, may_go_on, make = threading.Event(), threading.Event(), portals.DrivenLoop

    def make_late(**options: Any) -> Any:
        begun.set()
        may_go_on.wait()
        return make(**options)

    portals.DrivenLoop = make_late  # type: ignore[assignment,misc]
    first = threading.Thread(target=blocking.save, args=({"said": []}, "t"))
    first.start()
    begun.wait()
    portals.DrivenLoop = make  # type: ignore[misc]
    child = os.fork()
    if not child:
        blocking.save({"said": []}, "of-child")
        blocking.close()
        os._exit(0)
    ended = _end_of(child)
    may_go_on.set()
    first.join()
    blocking.close()
    told(ended)


# --- ends without a close


async def _saved(checkpointer: Any) -> None:
    for step in range(5):
        await checkpointer.save({"step": step}, "t", f"v{step}")
        told(step)


async def exit_inside_the_loop(url: str) -> None:
    checkpointer = open_checkpointer(url, state_type=dict)
    await _saved(checkpointer)
    _kept.append(asyncio.create_task(checkpointer.save({"more": 1}, "u")))
    await asyncio.sleep(0)
    sys.exit(0)


async def error_inside_the_loop(url: str) -> None:
    checkpointer = open_checkpointer(url, state_type=dict)
    await _saved(checkpointer)
    _kept.append(asyncio.create_task(checkpointer.save({"more": 1}, "u")))
    raise SystemExit


def exit_with_daemon_threads(url: str) -> None:
    """Threads of the application's that save on and on, with a loop of their own or none."""
    blocking = BlockingCheckpointer(open_checkpointer(url, state_type=dict))

    def save_on(thread_id: str) -> None:
        for number in range(1_000_000):
            with suppress(RuntimeError, BackendError):  # of an interpreter that ends
                blocking.save({"n": number}, thread_id, on_conflict="overwrite")

    for step in range(5):
        blocking.save({"step": step}, "t", f"v{step}")
        told(step)
    for number in range(4):
        threading.Thread(target=save_on, args=(f"u{number}",), daemon=True).start()
    limit = time.monotonic() + 30
    while not blocking.exists("u3") and time.monotonic() < limit:
        time.sleep(0.01)
    _kept.append(blocking)


def exit_without_a_word(url: str) -> None:
    """As ``os._exit`` and a crash do: no finalizer runs."""
    asyncio.run(_saved(open_checkpointer(url, state_type=dict)))
    os._exit(0)


def exit_while_told_of(url: str) -> None:
    """With every record of ours on standard output, to the last one."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format='"%(name)s"')
    for name in ("asyncio", "alembic", "aiosqlite", "redis"):
        logging.getLogger(name).setLevel(logging.ERROR)
    checkpointer = open_checkpointer(url, state_type=dict)
    asyncio.run(_saved(checkpointer))
    _kept.append(checkpointer)


async def exit_with_telemetry(url: str) -> None:
    """With the SDK's own thread, which exports when the interpreter ends."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)
    checkpointer = open_checkpointer(url, state_type=dict)
    await _saved(checkpointer)
    _kept.append(checkpointer)


def in_a_worker(url: str, method: str) -> None:
    """A process of ``multiprocessing`` that is told the URL."""
    import multiprocessing

    process = multiprocessing.get_context(method).Process(target=_save_by_url, args=(url,))
    process.start()
    process.join()
    told(process.exitcode)


def _save_by_url(url: str) -> None:
    asyncio.run(open_checkpointer(url, state_type=dict).save({"step": 0}, "t", "v0"))


_kept: list[Any] = []

if __name__ == "__main__":
    done = globals()[sys.argv[1]](*sys.argv[2:])
    if asyncio.iscoroutine(done):
        asyncio.run(done)
