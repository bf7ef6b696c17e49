"""Saves of a thread that 50 open pages watch: python -m benchmarks.micro.viewers [--postgresql].

``locus-store serve --inspector`` runs in a process of its own, and the viewers in another, which
asks as the script of the page does: once in two seconds each, above the newest version that it has
seen. This process saves 20 times a second, in phases without requests, with as many requests for
the stylesheet, which reads no storage, and with viewers, in turn. The second kind shows what the
processes beside the saves cost on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks import machine, places, report
from benchmarks.micro.timeline import states
from locus_store import open_checkpointer

THREAD: Final = "watched"
PAUSE: Final = 2.0
"""Seconds between two requests of a viewer."""

OVER: Final = -1
STYLESHEET, VIEWERS = "the stylesheet", "viewers"
KINDS: Final = ("nothing beside", STYLESHEET, VIEWERS)

BEFORE: Final = 200
"""Versions that the thread has at first."""


@dataclass(frozen=True)
class Viewing:
    """The arguments of the viewers' process."""

    port: int
    secret: str
    viewers: int
    mode: Any
    """A shared number: the kind of the phase, or ``OVER``."""

    answers: Any
    """A pipe for the number of requests of viewers, and the bytes of their answers."""

    def run(self) -> None:
        """Run the viewers until it is over."""
        self.answers.send(asyncio.run(_view(self)))


async def _view(it: Viewing) -> tuple[int, int]:
    sizes: list[int] = []

    async def one(number: int) -> None:
        await asyncio.sleep(PAUSE * number / it.viewers)
        address = f"live?thread={THREAD}&after={BEFORE}&format=json"
        while it.mode.value != OVER:
            if it.mode.value == KINDS.index(VIEWERS):
                body = await _asked(it, address)
                sizes.append(len(body))
                address = orjson.loads(body)["next"]
            elif it.mode.value == KINDS.index(STYLESHEET):
                await _asked(it, "inspector.css")
            await asyncio.sleep(PAUSE)

    await asyncio.gather(*map(one, range(it.viewers)))
    return len(sizes), sum(sizes)


async def _asked(it: Viewing, address: str) -> bytes:
    """Return the body of a page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
    head = f"GET /inspector/{address} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    writer.write(f"{head}Authorization: Bearer {it.secret}\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    if " 200 " not in head:
        raise SystemExit(f"{address}: {head}")
    return body.encode()


async def save(
    url: str, rate: float, seconds: float, phases: int, mode: Any
) -> list[tuple[int, list[float], float]]:
    """Return for each phase its kind, the seconds of each save, and the CPU of a save."""
    found = []
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        backend: Any = checkpointer.backend
        rows = states(BEFORE + int(rate * seconds * (phases + 1)) + 1)
        for _ in range(BEFORE):
            await backend.save(THREAD, next(rows))
        for phase in range(phases):
            kind = mode.value = phase % len(KINDS)
            await asyncio.sleep(2 * PAUSE)
            took: list[float] = []
            begun, cpu = time.monotonic(), time.process_time()
            while time.monotonic() < begun + seconds:
                due = begun + len(took) / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                state, begin = next(rows), time.perf_counter()
                await backend.save(THREAD, state)
                took.append(time.perf_counter() - begin)
            found.append((kind, took, (time.process_time() - cpu) / len(took)))
    return found


def token(directory: Path) -> tuple[str, Path]:
    """Return the secret of a token, and the file that has it."""
    path = directory / "tokens.json"
    command = [sys.executable, "-m", "locus_store", "tokens", "add", "viewer", "--token-file"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
    digests = path.read_text()
    words = done.stdout.split()
    return next(it for it in words if sha256(it.encode()).hexdigest() in digests), path


def figures(phases: list[tuple[int, list[float], float]]) -> tuple[float, float, float, float]:
    """Return the columns of the table for phases of one kind."""
    took = sorted(it * 1e3 for _, phase, _ in phases for it in phase)
    least = min(statistics.median(phase) for _, phase, _ in phases) * 1e3
    cpu = min(it for *_, it in phases) * 1e3
    return least, statistics.median(took), took[len(took) * 95 // 100], cpu


PAGE = """# Saves of a thread that viewers watch

Machine: {machine}; load average {load}. {place}; {viewers} viewers of one service, {rate:g} saves a
second by another process, {phases} phases of {seconds:g} s in turn, {saves:,} saves. As many
requests for the stylesheet read no storage: they show what the processes beside the saves cost. The
viewers sent {requests:,} requests, whose answers had {size:,} bytes on average.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Saves beside viewers, in ms.")
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--phases", type=int, default=24)
    places.add_place(parser)
    report.add_write(parser)
    options = parser.parse_args()
    spawning = get_context("spawn")
    mode, (ours, theirs) = spawning.Value("i", 0), spawning.Pipe()
    with (
        tempfile.TemporaryDirectory(prefix="locus-store-viewers-") as directory,
        places.place(options, Path(directory)) as url,
    ):
        secret, path = token(Path(directory))
        with places.service(url, "--inspector", "--token-file", str(path)) as service:
            given = Viewing(service.port, secret, options.viewers, mode, theirs)
            viewing = spawning.Process(target=given.run)
            viewing.start()
            found = asyncio.run(save(url, options.rate, options.seconds, options.phases, mode))
            mode.value = OVER
            if not ours.poll(30):
                raise SystemExit("the viewers ended with an error")
            requests, size = ours.recv()
            viewing.join()
    rows: list[tuple[str, float, float, float, float]] = [
        (name, *figures([it for it in found if it[0] == kind])) for kind, name in enumerate(KINDS)
    ]
    for kind, name in enumerate(KINDS[1:], 1):
        pairs = zip(rows[0][1:], rows[kind][1:], strict=True)
        first, second, third, fourth = (many / none for none, many in pairs)
        rows.append((f"ratio, {name}", first, second, third, fourth))
    page = PAGE.format(
        machine=machine.described(),
        load=machine.load_average(),
        place="PostgreSQL" if options.postgresql else "SQLite",
        viewers=options.viewers,
        rate=options.rate,
        phases=options.phases,
        seconds=options.seconds,
        saves=sum(len(took) for _, took, _ in found),
        requests=requests,
        size=round(size / max(requests, 1)),
        table=machine.table(
            ("ms of a save", "least median of a phase", "median", "95 %", "least CPU of a phase"),
            [(name, *(f"{it:.2f}" for it in numbers)) for name, *numbers in rows],
        ),
    )
    name = f"viewers-{'postgresql' if options.postgresql else 'sqlite'}"
    report.publish(name, page, write=options.write)


if __name__ == "__main__":
    main()
