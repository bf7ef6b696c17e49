"""Bytes and CPU time per save, by how a state changes: python -m benchmarks.micro.diff_patterns.

With ``--prototype PATH`` the same states also go through that file (``diff2, shape2, dumps``).
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from locus_store.values.encoding import MAX_STATE_BYTES, encode, unpack_frames
from locus_store.values.frames import compare_states, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

State = dict[str, Any]
WORDS = [
    f"{stem}{end}"
    for stem in ("agent", "memo", "tool", "plan", "re", "st")
    for end in ("", "s", "ing", "ory", "ate", "ed", "able", "ion")
]


def prose(rng: random.Random, size: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(size // 6))[:size]


def message(rng: random.Random, size: int) -> State:
    return {"role": "user", "content": prose(rng, size), "id": f"{rng.getrandbits(64):x}"}


def append(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {"step": 0, "messages": []}
    for state["step"] in range(steps):
        state["messages"].append(message(rng, 1400))
        yield state


def window(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {"step": 0, "messages": [message(rng, 2000) for _ in range(36)]}
    for state["step"] in range(steps):
        state["messages"] = [*state["messages"][1:], message(rng, 2000)]
        yield state


def edit_front(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {"messages": []}
    for step in range(steps):
        state["messages"].append(message(rng, 1400))
        state["messages"][min(step, 1)]["uses"] = step
        yield state


def stream(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {"messages": [message(rng, 1400) for _ in range(20)]}
    for step in range(steps):
        if step % 100 == 0:
            state["messages"].append({"role": "assistant", "content": prose(rng, 1100)})
        state["messages"][-1]["content"] += prose(rng, 12)
        yield state


def document(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {"document": prose(rng, 200_000), "step": 0}
    for state["step"] in range(steps):
        at = rng.randrange(200_000)
        text = state["document"]
        state["document"] = text[:at] + prose(rng, 40) + text[at + 40 :]
        yield state


def nested_lists(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {"tasks": [{"name": prose(rng, 30), "log": []} for _ in range(4)]}
    for step in range(steps):
        state["tasks"][step % 4]["log"].append({"at": step, "text": prose(rng, 400)})
        yield state


def counters(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {f"key{n:04}": prose(rng, 20) for n in range(5000)}
    for step in range(steps):
        state[f"key{rng.randrange(5000):04}"] = f"{step} {prose(rng, 16)}"
        yield state


def tiny(steps: int, rng: random.Random) -> Iterator[State]:
    state: State = {"step": 0, "node": "plan", "seen": [1, 2, 3], "note": prose(rng, 200)}
    for state["step"] in range(steps):
        state["node"] = rng.choice(["plan", "act", "look"])
        yield state


PATTERNS: list[tuple[str, Callable[[int, random.Random], Iterator[State]], int]] = [
    ("append 1.4 KB", append, 1000),
    ("window of 36", window, 1000),
    ("edit near the front", edit_front, 1000),
    ("streamed tokens", stream, 1000),
    ("200 KB document", document, 1000),
    ("lists in elements", nested_lists, 1000),
    ("5,000 keys, one changes", counters, 300),
    ("tiny", tiny, 20_000),
]


class Result(NamedTuple):
    """One pattern, one implementation."""

    plain: int
    stored: int
    final: int
    times: list[float]

    def row(self, name: str) -> str:
        """A line of the table."""
        p50, p99 = (statistics.quantiles(self.times, n=100)[at] * 1e3 for at in (49, 98))
        ratios = f"{self.plain / self.final:9.2f} {self.stored / self.final:9.2f}"
        return f"{name:32} {len(self.times) + 1:6} {ratios} {p50:9.3f} {p99:9.3f}"


def ours(states: Iterator[State]) -> Result:
    payloads, times, shape, state = [], [], None, {}
    for state in states:
        begin = time.process_time()
        done = compare_states(state, shape)
        took = time.process_time() - begin
        payloads.append(done.to_payload() if shape is None else done.frames or b"")
        times.append(took)
        shape = done.tree
    if encode(fold(payloads, MAX_STATE_BYTES)) != encode(state):
        raise SystemExit("the chain does not give the last state")
    plain = sum(
        len(body) for payload in payloads for body in unpack_frames(payload, MAX_STATE_BYTES)
    )
    return Result(plain, sum(map(len, payloads)), len(encode(state)), times[1:])


def theirs(states: Iterator[State], prototype: ModuleType) -> Result:
    shape, size, times, state = None, 0, [], {}
    for state in states:
        begin = time.process_time()
        if shape is None:
            operations, shape = [["=", [], state]], prototype.shape2(state)
        else:
            operations, shape = prototype.diff2(shape, state)
        size += len(prototype.dumps(operations))
        times.append(time.process_time() - begin)
    return Result(size, size, len(encode(state)), times[1:])


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prototype", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alignment() -> Iterator[tuple[str, bytes, bytes]]:
    for count in (2_000, 20_000):
        packed = random.Random(3).randbytes(16 * (count + 1))
        old, half = packed[:-16], 8 * count
        yield f"align {count}: append", old, packed
        yield f"align {count}: window", old, packed[16:]
        yield (
            f"align {count}: two edits",
            old,
            bytes(16) + old[16:half] + bytes(range(16)) + (old[half + 16 :]),
        )
        items = [old[at : at + 16] for at in range(0, len(old), 16)]
        random.Random(4).shuffle(items)
        yield f"align {count}: shuffle", old, b"".join(items)


def print_alignment() -> None:
    from locus_store.values.frames.alignment import align as _align

    for name, old, new in alignment():
        times = []
        for _ in range(15):
            begin = time.process_time()
            _align(old, new)
            times.append(time.process_time() - begin)
        print(f"{name:32} {statistics.median(times) * 1e3:9.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prototype", type=Path, help="a file with diff2, shape2 and dumps")
    parser.add_argument("--steps", type=int, help="fewer steps")
    options = parser.parse_args()
    runs: list[tuple[str, Callable[[Iterator[State]], Result]]] = [("", ours)]
    if options.prototype:
        runs.append((" (prototype)", partial(theirs, prototype=load(options.prototype))))
    print(f"{'pattern':32} {'steps':>6} {'plain x':>9} {'stored x':>9} {'p50 ms':>9} {'p99 ms':>9}")
    for name, pattern, steps in PATTERNS:
        for suffix, run in runs:
            states = pattern(min(options.steps or steps, steps), random.Random(7))
            print(run(states).row(name + suffix), flush=True)
    print_alignment()


if __name__ == "__main__":
    main()
