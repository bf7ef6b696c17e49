"""Several processes on shared lines, every answer checked: python -m benchmarks.storms.storm.

Each process appends, forks, rewinds, branches, replaces, deletes, prunes and copies on the same
threads, and reads versions back. Before and after each call it writes a line into a journal of its
own; at the end the journals say what every read may have seen and what must still be there. Any
backend: ``--url``, or ``--postgresql``. Without either, a new SQLite file. With ``--service`` the
processes are clients of a service over that backend, and ``--kills 50`` kills it so often.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.places import add_place, place, service
from benchmarks.storms import verdict, worker
from locus_store import open_checkpointer

if TYPE_CHECKING:
    from collections.abc import Iterator

RETRY_SECONDS = 60
"""A client waits so long for a service that was killed."""

MOST_SECONDS = 2.0
"""Between the start of a service and its end, at most."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_place(parser)
    parser.add_argument("--processes", type=int, default=4, help="that write; one more reads")
    parser.add_argument("--saves", type=int, default=5000, help="acknowledged, over all processes")
    parser.add_argument("--tasks", type=int, default=2, help="concurrent ones in each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", action="store_true", help="with the full-text index")
    parser.add_argument(
        "--segments", action="store_true", help="records are joined after every second save"
    )
    parser.add_argument("--fault", choices=worker.FAULTS, help="break the store on purpose")
    parser.add_argument("--service", action="store_true", help="by way of a service over it")
    parser.add_argument("--kills", type=int, default=0, help="of the service; ends the storm")
    options = parser.parse_args()
    if options.kills and not options.service:
        parser.error("--kills needs --service")
    return options


def main() -> int:
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="locus-store-storm-") as directory:
        here = Path(directory)
        with place(options, here) as url:
            if options.index:
                asyncio.run(indexed(url))
            begin = time.monotonic()
            with asked(options, url) as (asked_url, killed):
                run(options, asked_url, here, killed)
            seconds = time.monotonic() - begin
            found = asyncio.run(verdict.judge(url, sorted(here.glob("*.journal"))))
    processes = f"{options.processes} processes x {options.tasks} tasks"
    print(f"{processes}, seed {options.seed}, {seconds:.0f} s")
    print(found.report(seconds))
    return 1 if found.violations else 0


async def indexed(url: str) -> None:
    saver = open_checkpointer(url)
    await saver.backend.create_search_index()
    await saver.close()


@contextmanager
def asked(options: argparse.Namespace, url: str) -> Iterator[tuple[str, Any]]:
    """The URL that the processes use, and the service that is killed, if there is one."""
    if not options.service:
        yield url, None
        return
    with service(url) as running:
        yield f"{running.base_url}?retry_seconds={RETRY_SECONDS}", running


def kill(running: Any, kills: int, rng: random.Random) -> None:
    """Kill a service under load so often, and start it again."""
    for _ in range(kills):
        time.sleep(rng.random() * MOST_SECONDS)
        running.kill()
        running.start()
    print(f"the service was killed {kills} times")


def run(options: argparse.Namespace, url: str, here: Path, killed: Any) -> None:
    """Start the processes and wait; a process that ends badly says so in its journal or here."""
    stop = here / "stop"
    common = ["--url", url, "--seed", str(options.seed), "--tasks", str(options.tasks)]
    common += ["--stop", str(stop)]
    if options.fault:
        common += ["--fault", options.fault]
    if options.segments:
        common += ["--segments"]
    if options.kills:
        common += ["--killed"]
    each = 10**9 if options.kills else -(-options.saves // options.processes)
    writers = [start(here, number, each, common) for number in range(options.processes)]
    reader = start(here, options.processes, 0, common)
    if options.kills:
        kill(killed, options.kills, random.Random(options.seed))
        stop.touch()
    codes = [writer.wait() for writer in writers]
    stop.touch()
    codes.append(reader.wait())
    if any(codes):
        (here / "crash.journal").write_text(f'["crash", 0, "exit codes {codes}"]\n')


def start(here: Path, number: int, saves: int, common: list[str]) -> subprocess.Popen[bytes]:
    journal = here / f"{number}.journal"
    command = [sys.executable, "-m", worker.__name__, "--number", str(number)]
    command += ["--saves", str(saves), "--journal", str(journal), *common]
    return subprocess.Popen(command)


if __name__ == "__main__":
    sys.exit(main())
