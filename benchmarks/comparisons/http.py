"""The cost of a service over the backend behind it: CPU, bytes on the wire, saves per second.

The service runs in a thread of this process, so that the CPU of both sides can be told apart.
Rounds over the service and directly take turns; the least of each counts.

    python -m benchmarks.comparisons.http [--rounds 7] [--postgresql URL]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import threading
import time
from typing import Any

import uvicorn

from locus_store import HTTPBackend, MemoryBackend
from locus_store.service import app

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


async def throughput(url: str, seconds: float) -> None:
    """Print the saves per second of 64 clients, in this process, over one worker in another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "locus_store", "serve", "--url", url, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command)
    over = HTTPBackend(f"http://127.0.0.1:{port}", retry_seconds=60)
    await over.open()
    until = time.monotonic() + seconds
    done = 0

    async def talk(number: int) -> None:
        nonlocal done
        turn = 0
        while time.monotonic() < until:
            turn += 1
            await over.save(f"t{number}", {"turn": turn, "text": "x" * 100})
            done += 1

    begun, mine = time.monotonic(), time.process_time()
    await asyncio.gather(*map(talk, range(CLIENTS)))
    took, mine = time.monotonic() - begun, time.process_time() - mine
    print(
        f"{CLIENTS} clients on PostgreSQL: {done / took:,.0f} saves/s; the clients' process used "
        f"{mine / took:.0%} of a core, {mine / done * 1e3:.2f} ms for each save"
    )
    await over.close()
    process.terminate()
    await process.wait()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--postgresql", help="URL of an empty database")
    args = parser.parse_args()
    await compare("tiny save", args.rounds, lambda at: {"n": at, "said": ["hello"]}, None, 100)
    older, newer = states()
    await compare("1,000th save of 1.4 MB", args.rounds, lambda _: newer, older, 3)
    if args.postgresql:
        await throughput(args.postgresql, 5)


if __name__ == "__main__":
    asyncio.run(main())
