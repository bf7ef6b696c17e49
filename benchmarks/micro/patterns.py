"""States that change in awkward ways, saved on SQLite: python -m benchmarks.micro.patterns.

Per pattern: frame bytes over the final state's JSON, against the figures of the design; bytes of
the file; CPU time of a save, all threads counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.workloads import State, prose
from locus_store import sqlite_checkpointer
from locus_store.values.encoding import MAX_STATE_BYTES, encode, unpack_frames
from locus_store.values.frames import compare_states

Pattern = Callable[[int, random.Random], Iterator[State]]
TOLERANCE = 1.5
"""A figure may be this many times the one it is held to."""


def _message(rng: random.Random, characters: int) -> State:
    return {"role": "user", "content": prose(rng, characters), "id": f"{rng.getrandbits(64):016x}"}


def window(steps: int, rng: random.Random) -> Iterator[State]:
    """The first of 36 messages goes, a new one comes."""
    state: State = {"step": 0, "messages": [_message(rng, 2000) for _ in range(36)]}
    for state["step"] in range(steps):
        state["messages"] = [*state["messages"][1:], _message(rng, 2000)]
        yield state


def edit_near_front(steps: int, rng: random.Random) -> Iterator[State]:
    """A message is appended, and a counter in the second one goes up."""
    state: State = {"messages": []}
    for step in range(steps):
        state["messages"].append(_message(rng, 500))
        state["messages"][min(step, 1)]["uses"] = step
        yield state


def streamed_tokens(steps: int, rng: random.Random) -> Iterator[State]:
    """Six characters at a time go onto the only long message."""
    state: State = {"messages": [{"role": "assistant", "content": prose(rng, 1100)}]}
    for _ in range(steps):
        state["messages"][0]["content"] += prose(rng, 12)[:5] + " "
        yield state


def edited_document(steps: int, rng: random.Random) -> Iterator[State]:
    """Forty characters of 200,000 are replaced."""
    state: State = {"document": prose(rng, 200_000), "step": 0}
    for state["step"] in range(steps):
        at, text = rng.randrange(199_000), state["document"]
        state["document"] = text[:at] + prose(rng, 40) + text[at + 40 :]
        yield state


def lists_in_elements(steps: int, rng: random.Random) -> Iterator[State]:
    """Four tasks in a list, each with a log that grows."""
    state: State = {"tasks": [{"name": prose(rng, 30), "log": []} for _ in range(4)]}
    for step in range(steps):
        state["tasks"][step % 4]["log"].append({"at": step, "text": prose(rng, 400)})
        yield state


def large_dict(steps: int, rng: random.Random) -> Iterator[State]:
    """One of 5,000 keys changes."""
    state: State = {f"key{n:04}": prose(rng, 20) for n in range(5000)}
    for step in range(steps):
        state[f"key{rng.randrange(5000):04}"] = f"{step} {prose(rng, 16)}"
        yield state


def tiny_steps(steps: int, rng: random.Random) -> Iterator[State]:
    """A counter and a name change in a state of 150 bytes."""
    state: State = {"step": 0, "node": "plan", "seen": [1, 2, 3], "note": prose(rng, 90)}
    for state["step"] in range(steps):
        state["node"] = rng.choice(["plan", "act", "look"])
        yield state


@dataclass(frozen=True)
class Case:
    """A pattern, and what its frames are held to."""

    name: str
    make: Pattern
    steps: int
    target: float | None
    per_step: bool = False
    """The target counts bytes a step, not times the final state."""


CASES = [
    Case("sliding window of 36 messages", window, 1000, 28),
    Case("edit near the front", edit_near_front, 1000, 1.5),
    Case("streamed tokens", streamed_tokens, 1000, 8),
    Case("200 KB document, edited", edited_document, 1000, 1.1),
    Case("lists in elements", lists_in_elements, 1000, 1.3),
    Case("5,000 keys, one changes", large_dict, 1000, None),
    Case("tiny steps", tiny_steps, 20_000, 217, per_step=True),
]


@dataclass
class Found:
    """One pattern, measured."""

    case: Case
    steps: int
    difference: int
    """Bytes of the frames between neighbours alone."""
    bodies: int
    """Bytes of all frames stored, whole states at the start of chains included."""
    packed: int
    file: int
    final: int
    chains: int
    cpu: list[float]

    @property
    def figure(self) -> float:
        return self.bodies / (self.steps if self.case.per_step else self.final)

    def row(self) -> list[object]:
        p50, p99 = (statistics.quantiles(self.cpu, n=100)[at] * 1e3 for at in (49, 98))
        unit = " B a step" if self.case.per_step else " x"
        over = self.case.target and self.figure > TOLERANCE * self.case.target
        difference = self.difference / (self.steps if self.case.per_step else self.final)
        return [
            self.case.name,
            f"{self.steps:,}",
            f"{self.final / 1e3:.1f} KB",
            f"{difference:.2f}{unit}",
            f"{self.figure:.2f}{unit}" + (" (over)" if over else ""),
            f"{self.packed / self.steps:,.0f}",
            f"{self.file / self.steps:,.0f}",
            f"{self.file / self.final:.2f} x",
            f"{self.chains:,}",
            f"{p50:.2f} ms",
            f"{p99:.2f} ms",
        ]


HEAD = (
    "pattern", "steps", "final JSON", "frames of the changes", "frames stored",
    "packed B/step", "file B/step", "file", "chains", "CPU p50", "CPU p99",
)  # fmt: skip
EXPLAINED = """## Other patterns of change

`state_type=dict` on SQLite. *Frames of the changes* is the JSON of the changes alone, over the
final state's JSON; *frames stored* adds the whole states that start a chain; *packed* is after
compression; *file* is the database after `close()`, including its empty schema. CPU is a whole save
on all threads, including the commit.

{table}"""


async def measure(case: Case, steps: int) -> Found:
    """Save every step, and look at what is stored."""
    cpu, difference, state, shape = [], 0, {}, None
    with tempfile.TemporaryDirectory(prefix="locus-store-patterns-") as directory:
        path = Path(directory) / "pattern.db"
        saver = sqlite_checkpointer(path, state_type=dict)
        for state in case.make(steps, random.Random(7)):
            begin = time.process_time()
            await saver.save(state, "thread")
            cpu.append(time.process_time() - begin)
            done = compare_states(state, shape)
            frames = done.to_payload() if shape is None else done.frames or b""
            difference += sum(map(len, unpack_frames(frames, MAX_STATE_BYTES)))
            shape = done.tree
        loaded = await saver.load("thread")
        stored = await saver.backend.read_thread("thread")
        records = stored.lines[0].records
        await saver.close()
        if loaded != state:
            raise SystemExit(f"{case.name}: what was loaded is not what was saved")
        with sqlite3.connect(path) as database:
            sizes = [
                database.execute(f"SELECT sum(length(payload)) FROM locus_{it}").fetchone()[0]
                for it in ("checkpoints", "segments")
            ]
        database.close()
        return Found(
            case,
            steps,
            difference,
            sum(len(it) for one in records for it in unpack_frames(one.payload, MAX_STATE_BYTES)),
            sum(size or 0 for size in sizes),
            machine.disk_bytes(path),
            len(encode(state)),
            len({it.chain for it in records}),
            cpu,
        )


def measure_all(most: int | None = None) -> list[Found]:
    """Every pattern, in at most so many steps."""
    found = []
    for case in CASES:
        found.append(asyncio.run(measure(case, min(most or case.steps, case.steps))))
        print("  " + "  ".join(map(str, found[-1].row())), flush=True)
    return found


def table(found: list[Found]) -> str:
    """As Markdown."""
    return machine.table(HEAD, (it.row() for it in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="at most")
    print(table(measure_all(parser.parse_args().steps)))


if __name__ == "__main__":
    main()
