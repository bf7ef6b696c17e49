"""The cost of a service over the backend behind it: CPU, bytes on the wire, saves per second.

The service runs in a thread of this process, so that the CPU of both sides can be told apart.
Rounds over the service and directly take turns; the least of each counts.

    python -m benchmarks.comparisons.http [--rounds 7] [--seconds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from benchmarks.places import server
from locus_store import HTTPBackend, MemoryBackend, open_checkpointer
from locus_store.service import app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TURNS = 1_000
TURN_BYTES = 1_050
CLIENTS = 64


class Served:
    """A service over a backend, which counts the bytes of bodies."""

    def __init__(self, backend: Any) -> None:
        self._app = app(backend)
        self.received = self.sent = 0
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._counted, interface="asgi3", lifespan="off", log_config=None, access_log=False
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=[listener], daemon=True)
        self._thread.start()

    def _run(self, listener: socket.socket) -> None:
        asyncio.run(self._server.serve([listener]))

    async def _counted(self, scope: Any, receive: Any, send: Any) -> None:
        async def got() -> Any:
            message = await receive()
            self.received += len(message.get("body", b""))
            return message

        async def gave(message: Any) -> None:
            self.sent += len(message.get("body", b""))
            await send(message)

        await self._app(scope, got, gave)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


def states() -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of the 999th and the 1,000th save of a conversation of 1.4 MB."""
    said = [{"role": "user", "content": os.urandom(TURN_BYTES // 2).hex()} for _ in range(TURNS)]
    return {"messages": said[:-1]}, {"messages": said}


async def cpu(backend: Any, saves: list[tuple[str, dict[str, Any]]]) -> tuple[float, float]:
    """CPU milliseconds of a save: of this thread, and of the others."""
    mine, all_of = time.thread_time(), time.process_time()
    for thread_id, state in saves:
        await backend.save(thread_id, state)
    own = time.thread_time() - mine
    rest = time.process_time() - all_of - own
    return own / len(saves) * 1e3, rest / len(saves) * 1e3


async def compare(name: str, rounds: int, make: Any, before: Any, count: int) -> None:
    """Print the CPU of a save directly, and of one over a service."""
    inner = MemoryBackend()
    direct, served = MemoryBackend(), Served(inner)
    over = HTTPBackend(served.url)
    best: dict[str, tuple[float, float]] = {}
    for turn in range(rounds):
        for kind, backend in (("direct", direct), ("service", over)):
            if before is not None:
                for at in range(count):
                    await backend.save(f"{turn}-{at}", before)
            served.received = served.sent = 0
            found = await cpu(backend, [(f"{turn}-{at}", make(at)) for at in range(count)])
            best[kind] = min(best.get(kind, found), found, key=sum)
    added = sum(best["service"]) - sum(best["direct"])
    client, service = best["service"]
    print(
        f"{name}: direct {sum(best['direct']):.3f} ms, over the service {client:.3f} + "
        f"{service:.3f} ms, added {added:.3f} ms (least of {rounds} rounds of {count})"
    )
    received, sent = served.received / count, served.sent / count
    print(f"  bytes of a request {received:,.0f}, of an answer {sent:,.0f}")
    await over.close()
    served.stop()


async def throughput(rounds: int, seconds: float) -> None:
    """Print the saves per second of 64 clients: directly, and over one worker."""
    with server() as (running, database):
        url = running.url(database)
        direct = open_checkpointer(url).backend
        async with worker(url) as (over, process):
            found: dict[str, list[float]] = {"direct": [], "service": []}
            for _ in range(rounds):
                found["direct"].append(await rate(direct, seconds))
                theirs, mine = of_process(process.pid), time.process_time()
                found["service"].append(await rate(over, seconds))
                saves = found["service"][-1] * seconds
                theirs, mine = of_process(process.pid) - theirs, time.process_time() - mine
                print(
                    f"  CPU of a save: clients {mine / saves * 1e3:.2f} ms, "
                    f"service {theirs / saves * 1e3:.2f} ms"
                )
        await direct.close()
    for name, rates in found.items():
        shown = ", ".join(f"{it:,.0f}" for it in rates)
        print(f"{CLIENTS} clients on PostgreSQL, {name}: {shown} saves/s")


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[tuple[HTTPBackend, Any]]:
    """A service in a process of its own, and its client."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "locus_store", "serve", "--url", url, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command)
    over = HTTPBackend(f"http://127.0.0.1:{port}", retry_seconds=60)
    await over.open()
    yield over, process
    await over.close()
    process.terminate()
    await process.wait()


async def rate(backend: Any, seconds: float) -> float:
    """Return the saves per second of 64 clients in this process."""
    until = time.monotonic() + seconds
    done = 0

    async def talk(number: int) -> None:
        nonlocal done
        turn = 0
        while time.monotonic() < until:
            turn += 1
            await backend.save(f"t{number}", {"turn": turn, "text": "x" * 100})
            done += 1

    begun = time.monotonic()
    await asyncio.gather(*map(talk, range(CLIENTS)))
    return done / (time.monotonic() - begun)


def of_process(pid: int) -> float:
    """Return the CPU seconds of another process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5, help="of each round of 64 clients")
    args = parser.parse_args()
    await compare("tiny save", args.rounds, lambda at: {"n": at, "said": ["hello"]}, None, 100)
    older, newer = states()
    await compare("1,000th save of 1.4 MB", args.rounds, lambda _: newer, older, 3)
    await throughput(3, args.seconds)


if __name__ == "__main__":
    asyncio.run(main())
