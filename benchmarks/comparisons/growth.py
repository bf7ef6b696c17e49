"""Growth of the storage over 1,000 turns with every version kept.

    python -m benchmarks.comparisons.growth

Prints Markdown; ``--write`` keeps it in benchmarks/results, and draws the plot. The peer,
langgraph-checkpoint-sqlite, is measured in the same run; ``--only`` picks states or patterns.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report, workloads
from benchmarks.comparisons.peer import Peer
from benchmarks.micro import patterns
from locus_store import MemoryCheckpointer, sqlite_checkpointer
from locus_store.types.codec import StateCodec
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

THREAD = "conversation"
LAST = 20
"""Saves at the end whose median is "the 1,000th save"; loads as many."""


@dataclass
class Grown:
    """One system, one kind of state."""

    system: str
    bytes_at: dict[int, int] = field(default_factory=dict)
    save_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    load_seconds: float = 0.0
    load_cpu: float = 0.0
    final_bytes: int = 0

    @property
    def total(self) -> int:
        return self.bytes_at[max(self.bytes_at)]

    @property
    def ratio(self) -> float:
        """Bytes on disk over the final state's canonical JSON."""
        return self.total / self.final_bytes

    @property
    def last_save(self) -> float:
        return statistics.median(self.save_seconds[-LAST:])

    @property
    def last_cpu(self) -> float:
        """The least of the last saves: other things on the machine only add to it."""
        return min(self.cpu_seconds[-LAST:])


def plain(state: Any) -> dict[str, Any]:
    """The JSON object that is kept: sets in order, without a mark."""
    return dict(state) if isinstance(state, dict) else StateCodec(type(state)).dump(state)[0]


async def grow(
    grown: Grown,
    states: Iterator[Any],
    saver: Any,
    *,
    marks: list[int],
    size: Callable[[], int],
    prepared: Callable[[Any], Any],
) -> None:
    """Save each state; close the saver at each mark and look at the size."""
    state: Any = None
    for turn, state in enumerate(states, 1):
        begin, cpu = time.perf_counter(), time.process_time()
        await saver.save(prepared(state), THREAD)
        grown.save_seconds.append(time.perf_counter() - begin)
        grown.cpu_seconds.append(time.process_time() - cpu)
        if turn in marks:
            await saver.close()
            grown.bytes_at[turn] = size()
    grown.final_bytes = len(encode(plain(state)))
    grown.load_seconds, grown.load_cpu = await timed(lambda: saver.load(THREAD), plain(state))


async def timed(
    load: Callable[[], Awaitable[Any]], expected: dict[str, Any]
) -> tuple[float, float]:
    """Median seconds of a load, and its least CPU seconds."""
    found, cpus = [], []
    for _ in range(LAST + 1):
        begin, cpu = time.perf_counter(), time.process_time()
        loaded = await load()
        found.append(time.perf_counter() - begin)
        cpus.append(time.process_time() - cpu)
    if encode(plain(loaded)) != encode(expected):
        raise SystemExit("what was loaded is not what was saved")
    return statistics.median(found[1:]), min(cpus)


def state_types() -> dict[str, tuple[Callable[[int], Iterator[Any]], type[Any]]]:
    from locus.core.state import AgentState

    return {
        "chat": (workloads.chat, dict),
        "chat, incompressible": (partial(workloads.chat, text=workloads.noise), dict),
        "locus": (workloads.locus, AgentState),
    }


async def ours(name: str, turns: int, marks: list[int], directory: Path) -> Grown:
    make, state_type = state_types()[name]
    path = directory / "ours.db"
    grown = Grown("locus-store")
    saver = sqlite_checkpointer(path, state_type=state_type)
    size = partial(machine.disk_bytes, path)
    await grow(grown, make(turns), saver, marks=marks, size=size, prepared=lambda it: it)
    versions = len(await saver.list_checkpoints(THREAD, limit=turns + 1))
    await saver.close()
    if versions != turns:
        raise SystemExit(f"{versions} of {turns} versions are there")
    print_pages(path, grown)
    return grown


async def theirs(name: str, turns: int, marks: list[int], directory: Path) -> Grown:
    make, _ = state_types()[name]
    path = directory / "theirs.db"
    grown = Grown("langgraph-checkpoint-sqlite")
    peer = Peer(path)
    size = partial(machine.disk_bytes, path)
    await grow(grown, make(turns), peer, marks=marks, size=size, prepared=plain)
    await peer.close()
    path.unlink()
    return grown


async def in_memory(name: str, turns: int, marks: list[int]) -> Grown:
    make, state_type = state_types()[name]
    grown = Grown("memory")
    saver = MemoryCheckpointer(state_type=state_type)

    def document_bytes() -> int:
        documents = saver.backend._documents  # type: ignore[attr-defined]  # noqa: SLF001
        return sum(len(documents.get(key).content) for key in documents.keys(after=""))

    await grow(grown, make(turns), saver, marks=marks, size=document_bytes, prepared=lambda it: it)
    return grown


def print_pages(path: Path, grown: Grown) -> None:
    """Return the bytes of each table and index."""
    database = sqlite3.connect(path)
    final = grown.final_bytes
    for table in ("locus_checkpoints", "locus_segments"):
        size = database.execute(f"SELECT sum(length(payload)) FROM {table}").fetchone()[0]
        print(f"  payloads in {table} {(size or 0) / final:.3f} x the final state")
    try:
        found = database.execute(
            "SELECT name, sum(pgsize) AS bytes, sum(payload), sum(unused), count(*) FROM dbstat "
            "GROUP BY name ORDER BY bytes DESC"
        ).fetchall()
    except sqlite3.OperationalError:
        return  # this SQLite was built without dbstat
    for name, size, payload, unused, pages in found:
        if size / final > 0.004:
            use = f"payload {payload / size:.2f}, unused {unused / size:.2f}"
            print(f"  {name:36} {size / final:6.3f} x {pages:6} pages, {use}")
    rest = sum(it[1] for it in found if it[1] / final <= 0.004)
    print(f"  {'everything else':36} {rest / final:6.3f} x")
    database.close()


@dataclass
class Growth:
    """All systems, one kind of state."""

    name: str
    ours: Grown
    theirs: Grown
    memory: Grown

    def row(self) -> list[object]:
        ours, theirs = self.ours, self.theirs
        return [
            self.name,
            f"{ours.final_bytes / 1e6:.2f} MB",
            f"{ours.total / 1e6:.2f} MB",
            f"**{ours.ratio:.2f} x**",
            f"{theirs.total / 1e6:.0f} MB",
            f"{theirs.ratio:.0f} x",
            f"{theirs.total / ours.total:.0f}",
        ]

    def times(self) -> list[object]:
        ours, theirs = self.ours, self.theirs
        return [
            self.name,
            f"{ours.last_save * 1e3:.1f} ms ({ours.last_cpu * 1e3:.1f})",
            f"{theirs.last_save * 1e3:.1f} ms ({theirs.last_cpu * 1e3:.1f})",
            f"{theirs.last_save / ours.last_save:.2f}",
            f"{ours.load_seconds * 1e3:.1f} ms ({ours.load_cpu * 1e3:.1f})",
            f"{theirs.load_seconds * 1e3:.1f} ms ({theirs.load_cpu * 1e3:.1f})",
            f"{theirs.load_seconds / ours.load_seconds:.2f}",
        ]

    def linearity(self) -> list[object]:
        def factor(grown: Grown) -> str:
            low, high = sorted(grown.bytes_at)[-2:]
            return f"{grown.bytes_at[high] / grown.bytes_at[low]:.2f}"

        return [self.name, factor(self.ours), factor(self.memory), factor(self.theirs)]


async def measure(name: str, turns: int) -> Growth:
    marks = [turns // 4, turns // 2, turns]
    with tempfile.TemporaryDirectory(prefix="locus-store-growth-") as directory:
        here = Path(directory)
        print(f"{name}: {turns} turns", flush=True)
        found = Growth(
            name,
            await ours(name, turns, marks, here),
            await theirs(name, turns, marks, here),
            await in_memory(name, turns, marks),
        )
    for grown in (found.ours, found.theirs, found.memory):
        sizes = ", ".join(f"{turn}: {size:,}" for turn, size in grown.bytes_at.items())
        print(
            f"  {grown.system:28} {grown.ratio:8.3f} x  save {grown.last_save * 1e3:7.2f} ms  "
            f"load {grown.load_seconds * 1e3:7.2f} ms  bytes at {sizes}",
            flush=True,
        )
    return found


def plot(results: list[Growth], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    chosen = [it for it in results if "incompressible" not in it.name]
    figure, axes = plt.subplots(1, len(chosen), figsize=(5.2 * len(chosen), 4.2), squeeze=False)
    for axis, growth in zip(axes[0], chosen, strict=True):
        for grown, style in ((growth.theirs, "s--"), (growth.ours, "o-")):
            turns = sorted(grown.bytes_at)
            sizes = [grown.bytes_at[it] / 1e6 for it in turns]
            axis.plot(turns, sizes, style, label=f"{grown.system}: {grown.ratio:,.2f} x")
        axis.axhline(growth.ours.final_bytes / 1e6, color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=f"{growth.name}, all versions kept", xlabel="turns", ylabel="MB on disk")
        axis.set_yscale("log")
        axis.legend(title="bytes on disk / final state", loc="center right")
        axis.grid(visible=True, which="major", alpha=0.3)
    figure.suptitle("SQLite: storage of a conversation (dotted: the final state's JSON)")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


GROWTH_HEAD = (
    "state", "final JSON", "locus-store", "x final", "langgraph", "x final", "times smaller",
)  # fmt: skip
LINEARITY_HEAD = ("state", "SQLite", "Memory", "langgraph")
TIMES_HEAD = (
    "state", "locus-store, save", "langgraph, save", "times faster",
    "locus-store, load", "langgraph, load", "times faster",
)  # fmt: skip


INTRODUCTION = """# Growth

Machine: {machine}; load average {load}.
Compared: {peers}."""

STATES = """## A conversation of {turns:,} turns, all versions kept

![Bytes on disk over turns](../../docs/images/growth.png)

Bytes on disk are the database and its log after `close()`; *x final* is those over the canonical
JSON of the last state. `chat` is `{{"messages": [...]}}`, two messages
a turn, 1.4 KB of words drawn evenly from a vocabulary of a few thousand; *incompressible* the same
with random base64 for words; `locus` the Locus SDK's `AgentState`: four messages a turn, a tool
execution and a reasoning step. langgraph saves once a turn here, without the input checkpoints and
pending writes that a graph adds.

{growth}

The last save and a load of the newest version, through the public `await` interface: the median of
{last} calls, which includes waiting for the disk and for other programs, and in brackets the
lowest CPU time of one call, all threads. Both use their default commit settings (locus-store:
`synchronous=FULL`). Both saves start from the state object. A load of the state `locus` by
locus-store creates and validates the pydantic state; langgraph's returns dicts.

{times}

Bytes at {turns:,} turns over bytes at {half:,}: 2 is linear, 4 quadratic. For Memory, the bytes of
its payloads.

{linearity}"""


def page(results: list[Growth], found: list[patterns.Found], turns: int) -> str:
    parts = [
        INTRODUCTION.format(
            machine=machine.described(), load=machine.load_average(), peers=machine.peers()
        )
    ]
    if results:
        parts.append(
            STATES.format(
                turns=turns,
                half=turns // 2,
                last=LAST,
                growth=machine.table(GROWTH_HEAD, (it.row() for it in results)),
                times=machine.table(TIMES_HEAD, (it.times() for it in results)),
                linearity=machine.table(LINEARITY_HEAD, (it.linearity() for it in results)),
            )
        )
    if found:
        parts.append(patterns.EXPLAINED.format(table=patterns.table(found)))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--only", choices=("states", "patterns"))
    report.add_write(parser)
    options = parser.parse_args()
    results: list[Growth] = []
    if options.only != "patterns":
        results = [asyncio.run(measure(name, options.turns)) for name in state_types()]
    found = [] if options.only == "states" else patterns.measure_all()
    report.publish("growth", page(results, found, options.turns), write=options.write)
    if options.write and results:
        plot(results, report.ROOT / "docs" / "images" / "growth.png")


if __name__ == "__main__":
    main()
