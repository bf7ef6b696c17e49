"""Packs of states that change in awkward ways: python -m benchmarks.micro.packs [--steps N].

No storage: the records and packs are those that a backend would write, one save after the other.
Milliseconds of CPU to fold what a cold load reads, at points of the second half, mean and most;
bytes of all packs that were ever written, over the final state's JSON, beside those of the records.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmarks import machine
from benchmarks.micro import patterns
from benchmarks.workloads import State, chat
from locus_store.types import Mark, Stored, Version
from locus_store.values import frames
from locus_store.values.encoding import MAX_STATE_BYTES, encode
from locus_store.versions import CHAIN_ALLOWANCE, CHAIN_FACTOR, RECORD_OVERHEAD, packing

if TYPE_CHECKING:
    from collections.abc import Iterator

POINTS = 23


@dataclass
class Line:
    """A line's open chain, and what was written of it."""

    packs: list[bytes] = field(default_factory=list)
    packed_to: int | None = None
    behind: list[bytes] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    """The whole chain."""

    packed_bytes: int = 0
    record_bytes: int = 0
    shape: frames.Shape | None = None

    def save(self, state: State, sequence: int) -> None:
        """Write a record, and a pack if it is time."""
        change = frames.change(state, self.shape)
        payload, size, self.shape = change.frames, change.shape.state_bytes, change.shape
        stored = sum(map(len, self.records)) + RECORD_OVERHEAD * (len(self.records) + 1)
        most = CHAIN_FACTOR * size + CHAIN_ALLOWANCE - stored
        if payload is None or len(payload) > min(size // 2, most):
            payload = change.whole()
            self.packs, self.packed_to, self.behind, self.records = [], None, [], []
        self.record_bytes += len(payload)
        self.behind.append(payload)
        self.records.append(payload)
        if packing.is_time(sequence):
            self._pack(sequence, change.shape.digest)

    def _pack(self, sequence: int, digest: bytes) -> None:
        mark = Mark("", 1, sequence, digest)
        version = Version(
            mark=mark, thread_id="t", namespace="", checkpoint_id="v", parent_id=None,
            metadata={}, labels={}, created_at=datetime.now(UTC),
        )  # fmt: skip
        stored = Stored(
            version=version, head=mark, payloads=self.behind, packs=self.packs,
            packed_to=self.packed_to,
        )  # fmt: skip
        pack = packing.pack_of(stored, MAX_STATE_BYTES) if packing.is_due(stored) else None
        if pack is not None:
            self.packs = [*(self.packs if pack.basis is not None else []), pack.payload]
            self.packed_to, self.behind = sequence, []
            self.packed_bytes += len(pack.payload)


def folded(payloads: list[bytes]) -> float:
    """Return the least milliseconds of three folds."""
    took = []
    for _ in range(3):
        begin = time.process_time()
        frames.fold(payloads, MAX_STATE_BYTES)
        took.append((time.process_time() - begin) * 1e3)
    return min(took)


def measure(name: str, states: Iterator[State], steps: int) -> list[object]:
    """Return the row of a pattern."""
    line, with_packs, without, state = Line(), [], [], {}
    for number, state in enumerate(states, 1):
        line.save(state, number)
        if number > steps // 2 and number % (steps // 2 // POINTS) == 0:
            with_packs.append(folded([*line.packs, *line.behind]))
            without.append(folded(line.records))
    final = len(encode(state))
    return [
        name,
        *(f"{statistics.mean(it):.1f}, {max(it):.1f} ms" for it in (without, with_packs)),
        f"{line.packed_bytes / final:.2f} x",
        f"{line.record_bytes / final:.2f} x",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    made = [("chat", chat(steps))]
    made += [(it.name, it.make(steps, random.Random(7))) for it in patterns.CASES]
    rows = [measure(name, states, steps) for name, states in made]
    print(machine.table(["pattern", "records", "packs", "packs written", "records written"], rows))


if __name__ == "__main__":
    main()
