"""Several processes on shared lines, every answer checked: python -m benchmarks.storms.storm.

Each process appends, forks, rewinds, branches, replaces, deletes, prunes and copies on the same
threads, and reads versions back. Before and after each call it writes a line into a journal of its
own; at the end the journals say what every read may have seen and what must still be there. Any
backend: ``--url``, or ``--postgresql``. Without either, a new SQLite file.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.places import add_place, place
from benchmarks.storms import verdict, worker
from locus_store import open_checkpointer


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_place(parser)
    parser.add_argument("--processes", type=int, default=4, help="that write; one more reads")
    parser.add_argument("--saves", type=int, default=5000, help="acknowledged, over all processes")
    parser.add_argument("--tasks", type=int, default=2, help="concurrent ones in each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", action="store_true", help="with the full-text index")
    parser.add_argument("--packs", action="store_true", help="a pack after every second save")
    parser.add_argument("--fault", choices=worker.FAULTS, help="break the store on purpose")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="locus-store-storm-") as directory:
        here = Path(directory)
        with place(options, here) as url:
            if options.index:
                asyncio.run(indexed(url))
            begin = time.monotonic()
            run(options, url, here)
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


def run(options: argparse.Namespace, url: str, here: Path) -> None:
    """Start the processes and wait; a process that ends badly says so in its journal or here."""
    stop = here / "stop"
    common = ["--url", url, "--seed", str(options.seed), "--tasks", str(options.tasks)]
    common += ["--stop", str(stop)]
    if options.fault:
        common += ["--fault", options.fault]
    if options.packs:
        common += ["--packs"]
    each = -(-options.saves // options.processes)
    writers = [start(here, number, each, common) for number in range(options.processes)]
    reader = start(here, options.processes, 0, common)
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
