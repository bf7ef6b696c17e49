"""The cost of a service over the backend behind it: CPU, bytes on the wire, saves per second.

The service runs in a thread of this process, so that the CPU of both sides can be told apart.
Rounds over the service and directly take turns.

    python -m benchmarks.comparisons.http [--rounds 7] [--seconds 5] [--write]
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
from statistics import median
from typing import TYPE_CHECKING, Any

import uvicorn

from benchmarks import machine, report
from benchmarks.places import server
from locus_store import HTTPBackend, MemoryBackend, open_checkpointer
from locus_store.service import app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TURNS = 1_000
TURN_BYTES = 1_050
CLIENTS = 64
ROUNDS = 3
"""Of 64 clients."""


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


async def compare(name: str, rounds: int, make: Any, before: Any, count: int) -> list[str]:
    """Return a row: the CPU of a save directly, and of one over a service."""
    direct, served = MemoryBackend(), Served(MemoryBackend())
    over = HTTPBackend(served.url)
    found: dict[str, list[tuple[float, float]]] = {"direct": [], "service": []}
    for turn in range(rounds):
        for kind, backend in (("direct", direct), ("service", over)):
            if before is not None:
                for at in range(count):
                    await backend.save(f"{turn}-{at}", before)
            served.received = served.sent = 0
            found[kind].append(
                await cpu(backend, [(f"{turn}-{at}", make(at)) for at in range(count)])
            )
    await over.close()
    served.stop()
    return [
        name,
        *(least_and_median([sum(it) for it in found[kind]]) for kind in found),
        *(least_and_median([it[at] for it in found["service"]]) for at in (0, 1)),
        f"{min(map(sum, found['service'])) - min(map(sum, found['direct'])):.2f}",
        f"{served.received / count:,.0f} + {served.sent / count:,.0f}",
    ]


def least_and_median(values: list[float]) -> str:
    """Return both as text."""
    return f"{min(values):.2f} / {median(values):.2f}"


async def frames() -> int:
    """Return the bytes of the frames that the 1,000th save of the conversation makes."""
    older, newer = states()
    backend = MemoryBackend()
    await backend.save("t", older)
    sizes: list[int] = []
    commit = backend.commit

    async def measured(save: Any) -> Any:
        sizes.append(len(save.change.frames))
        return await commit(save)

    backend.commit = measured  # type: ignore[method-assign]
    await backend.save("t", newer)
    return sizes[0]


async def throughput(name: str, url: str, rounds: int, seconds: float) -> list[str]:
    """Return a row: the saves per second of 64 clients directly, and over one worker."""
    direct = open_checkpointer(url).backend
    found: dict[str, list[float]] = {"direct": [], "service": []}
    spent: list[tuple[float, float]] = []
    async with worker(url) as (over, process):
        for _ in range(rounds):
            found["direct"].append(await rate(direct, seconds))
            theirs, mine = of_process(process.pid), time.process_time()
            found["service"].append(await rate(over, seconds))
            saves = found["service"][-1] * seconds
            theirs, mine = of_process(process.pid) - theirs, time.process_time() - mine
            spent.append((mine / saves * 1e3, theirs / saves * 1e3))
    await direct.close()
    return [
        name,
        *(", ".join(f"{it:,.0f}" for it in rates) for rates in found.values()),
        *(least_and_median([it[at] for it in spent]) for at in (0, 1)),
    ]


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


HEAD = """# A service over HTTP

Machine: {machine}; load average {load}.
Both sides run in turn, in one process run. CPU in ms per save,
the least and the median of {rounds} rounds.

## One caller, memory

Rounds have 100 tiny saves, or 3 of the others. *Client* and *service* are the two threads of
a save over the service; *added* is the least of both together without the least of a direct save.
*Bytes* are the bodies of a request and of its answer."""

CLIENTS_HEAD = """## 64 clients, one worker

Tiny saves per second in each of {count} rounds of {seconds:g} s. The clients are tasks of one
process; the service is another, on the same cores as the clients and the database. *Clients*
and *service* are the CPU of a save over the service in these processes."""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5, help="of each round of 64 clients")
    report.add_write(parser)
    args = parser.parse_args()
    older, newer = states()
    ones = [
        await compare("tiny save", args.rounds, lambda at: {"n": at, "said": ["hello"]}, None, 100),
        await compare("1,000th save of 1.4 MB", args.rounds, lambda _: newer, older, 3),
    ]
    with server() as (running, database):
        many = [
            await throughput(name, url, ROUNDS, args.seconds)
            for name, url in (("memory", "memory://"), ("PostgreSQL", running.url(database)))
        ]
    about = {"machine": machine.described(), "load": machine.load_average(), "rounds": args.rounds}
    parts = [
        HEAD.format(**about),
        machine.table(
            ("", "direct", "over the service", "client", "service", "added", "bytes"), ones
        ),
        f"The frames of the 1,000th save have {await frames():,} bytes.",
        CLIENTS_HEAD.format(count=ROUNDS, seconds=args.seconds),
        machine.table(("", "saves/s, direct", "saves/s, service", "clients", "service"), many),
    ]
    report.publish("http", "\n\n".join(parts), write=args.write)


if __name__ == "__main__":
    asyncio.run(main())
