"""The start of a process that loads one thread from SQLite: ours beside LangGraph's SqliteSaver.

    python -m benchmarks.comparisons.process_start [--rounds 15] [--write]

Each call runs in a process of its own, on a database that is there; the sides run in turn. Prints
Markdown: the least CPU of the process in milliseconds, its imports included, and the modules that
it has imported. The modules of all sides are compiled before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version

from benchmarks import machine, report

LOADS = {
    "without a saver": "",
    "langgraph": """
from langgraph.checkpoint.sqlite import SqliteSaver
with SqliteSaver.from_conn_string(f"{directory}/theirs.db") as saver:
    saver.get_tuple(config)
""",
    "locus-store": """
from locus_store.adapters.langgraph import LangGraphSaver
with LangGraphSaver.from_url(f"sqlite:///{directory}/ours.db") as saver:
    saver.get_tuple(config)
""",
}
"""Side to what it does beside its imports."""

PROGRAMS = {"a script": "", "a program with a graph": "import langgraph.graph"}
"""Program to what it has imported before."""

CODE = """
import sys, time
directory, config = sys.argv[1], {{"configurable": {{"thread_id": "t", "checkpoint_ns": ""}}}}
{before}
{load}
print(time.process_time() * 1e3, len(sys.modules))
"""


def run(directory: str, before: str, load: str) -> tuple[float, int]:
    """Return the CPU of a process in milliseconds, and the modules that it has imported."""
    code = CODE.format(before=before, load=load)
    done = subprocess.run(
        [sys.executable, "-c", code, directory],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    milliseconds, modules = done.stdout.split()
    return float(milliseconds), int(modules)


TEXT = """# The start of a process that loads one thread from SQLite

Milliseconds of CPU of a process, its imports included, the least of {rounds} rounds, and the
modules that it has imported. *Added* is what a saver adds to the program without one. All sides ran
in turn. Compare the sides, not the times.

Machine: {machine}; load average {load}.
Compared: {packages}.

{table}
"""
HEAD = ("program", "side", "CPU", "added", "modules")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    report.add_write(parser)
    options = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="locus-store-start-") as directory:
        for program, before in PROGRAMS.items():
            for load in LOADS.values():
                run(directory, before, load)  # it makes the database
            found = [
                {side: run(directory, before, load) for side, load in LOADS.items()}
                for _ in range(options.rounds)
            ]
            least = {side: min(it[side] for it in found) for side in LOADS}
            alone = least["without a saver"][0]
            rows += [
                [program, side, f"{took:.0f}", f"{took - alone:.0f}", modules]
                for side, (took, modules) in least.items()
            ]
    page = TEXT.format(
        rounds=options.rounds,
        machine=machine.described(),
        load=machine.load_average(),
        packages=", ".join(
            f"{it} {version(it)}" for it in ("langgraph", "langgraph-checkpoint-sqlite")
        ),
        table=machine.table(HEAD, rows),
    )
    report.publish("process-start", page, write=options.write)


if __name__ == "__main__":
    main()
