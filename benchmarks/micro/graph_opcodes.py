"""The opcodes of Python that an ``invoke`` executes, with LangGraph's saver and with ours.

    python -m benchmarks.micro.graph_opcodes [--graph 1] [--shown 40]

Other work on the machine changes a count by 3 %, as threads meet in another order, where it doubles
a time. The machine executes about 120 instructions for each opcode on both sides, and more where a
function of C does more work: compare times, or instructions (``valgrind --tool=cachegrind``), too.
SQLite, in memory of the machine if it has ``/dev/shm``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.comparisons import langgraph_sides as sides
from benchmarks.comparisons.graphs import GRAPHS

if TYPE_CHECKING:
    from types import CodeType, FrameType

RUNS = 2
WARM = 3
ROOT = f"{Path(__file__).parents[2]}/"


class Tracer:
    """Counts the opcodes and calls of all threads that begin after it was started."""

    def __init__(self) -> None:
        self.opcodes: Counter[CodeType] = Counter()
        self.calls: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code = frame.f_code
        self.calls[code] += 1

        def note(frame: FrameType, event: str, arg: object) -> Any:
            if event == "opcode":
                self.opcodes[code] += 1
            return note

        return note

    def start(self) -> None:
        threading.settrace(self)
        sys.settrace(self)

    @staticmethod
    def stop() -> None:
        sys.settrace(None)
        threading.settrace(None)


def trace(side: str, number: int, directory: Path) -> Tracer:
    """Trace ``invoke`` of a graph on an open saver."""
    place, tracer = sides.SQLite(directory), Tracer()
    builder, given = GRAPHS[number].make()
    with sides.opened_in_threads(place, side, place.new()) as saver:
        graph = builder.compile(checkpointer=saver)
        for nth in range(WARM + RUNS):
            if nth == WARM:
                tracer.start()
            config = {"configurable": {"thread_id": f"t{nth}"}, "recursion_limit": 10_000}
            graph.invoke(given, config)
        tracer.stop()
    return tracer


def shorten(code: CodeType) -> str:
    """Return where a function stands."""
    path = code.co_filename.removeprefix(ROOT).rpartition("site-packages/")[2]
    return f"{path}:{code.co_qualname}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=int, default=0, help="its place in GRAPHS")
    parser.add_argument("--shown", type=int, default=40, help="functions that are shown")
    options = parser.parse_args()
    memory = Path("/dev/shm")  # noqa: S108  (if there is one)
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        for side in sides.SIDES:
            tracer = trace(side, options.graph, Path(directory))
            count, calls = tracer.opcodes.total() // RUNS, tracer.calls.total() // RUNS
            print(f"{side}: {count:,} opcodes and {calls:,} calls for each invoke")
        mine = Counter({it: n for it, n in tracer.opcodes.items() if "locus_store/" in shorten(it)})
        print(f"of them in locus_store: {mine.total() // RUNS:,}\n\nopcodes  calls  function")
        for code, opcodes in mine.most_common(options.shown):
            print(f"{opcodes // RUNS:7,} {tracer.calls[code] // RUNS:6,}  {shorten(code)}")


if __name__ == "__main__":
    main()
