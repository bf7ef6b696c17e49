"""CPU of comparing a state with its basis: python -m benchmarks.micro.changes [--against CHECKOUT].

With ``--against`` the same steps run in turn on the package of another checkout.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import machine
from benchmarks.workloads import State, chat, prose

Steps = Callable[[random.Random], Iterator[State]]


def tiny(rng: random.Random) -> Iterator[State]:
    """One value of one of twelve elements changes, 1.4 KB."""
    state: State = {"step": 0, "messages": [{"id": n, "text": prose(rng, 80)} for n in range(12)]}
    while True:
        state["messages"][5]["id"] += 100
        yield state


def replaced(rng: random.Random) -> Iterator[State]:
    """A list of two messages is replaced, 1.4 KB, as by a LangGraph channel without a reducer."""
    state: State = {"channel_versions": {"messages": "0" * 32}, "channel_values": {}}
    while True:
        texts = prose(rng, 400), prose(rng, 1000)
        state["channel_versions"]["messages"] = f"{rng.getrandbits(64):032}"
        state["channel_values"]["messages"] = [{"role": "user", "content": it} for it in texts]
        yield state


def _of_chat(turns: int, step: Callable[[list[State], random.Random], None]) -> Steps:
    def steps(rng: random.Random) -> Iterator[State]:
        *_, state = chat(turns)
        while True:
            step(state["messages"], rng)
            yield state

    return steps


def _append(messages: list[State], rng: random.Random) -> None:
    messages.append({"role": "user", "content": prose(rng, 300)})


def _edit(messages: list[State], rng: random.Random) -> None:
    message = messages[len(messages) // 2]
    message["content"] = prose(rng, 7) + message["content"][7:]


def _slide(messages: list[State], rng: random.Random) -> None:
    del messages[0]
    _append(messages, rng)


CASES: dict[str, tuple[Steps, int]] = {
    "one value of 1.4 KB": (tiny, 40),
    "1.4 KB replaced": (replaced, 40),
    "100 turns, append": (_of_chat(100, _append), 5),
    "100 turns, edit in the middle": (_of_chat(100, _edit), 5),
    "100 turns, sliding window": (_of_chat(100, _slide), 5),
    "1,000 turns, append": (_of_chat(1000, _append), 2),
    "1,000 turns, edit in the middle": (_of_chat(1000, _edit), 2),
}
"""States, and the steps of a round."""


class Side:
    """One package that compares the states."""

    def __init__(self, steps: Steps, change: Callable[..., Any]) -> None:
        self._steps = steps(random.Random(7))
        self._change = change
        self._tree = change(next(self._steps), None).tree
        self.took: list[float] = []

    def run(self, count: int) -> None:
        took = 0.0
        for _ in range(count):
            state = next(self._steps)
            begin = time.thread_time()
            self._tree = self._change(state, self._tree).tree
            took += time.thread_time() - begin
        self.took.append(took / count * 1e6)

    def row(self) -> list[str]:
        return [f"{min(self.took):,.1f}", f"{statistics.median(self.took):,.1f}"]


def change_of(checkout: str | None) -> Callable[..., Any]:
    """Return ``compare_states`` of this package, or of the one in another checkout."""
    for name in [it for it in sys.modules if it.partition(".")[0] == "locus_store"]:
        del sys.modules[name]
    sys.path[:0] = [checkout] if checkout else []
    change: Callable[..., Any] = importlib.import_module("locus_store.values.frames").compare_states
    del sys.path[: 1 if checkout else 0]
    return change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", help="another checkout")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    packages = {"this": change_of(None)}
    if options.against:
        packages = {"other": change_of(options.against), **packages}
    rows = []
    for name, (steps, count) in CASES.items():
        sides = [Side(steps, change) for change in packages.values()]
        for _ in range(options.rounds):
            for side in sides:
                side.run(count)
        rows.append([name, *(it for side in sides for it in side.row())])
    head = [f"{name}: {it}, µs" for name in packages for it in ("least", "median")]
    print(machine.table(["change", *head], rows))


if __name__ == "__main__":
    main()
