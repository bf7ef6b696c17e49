"""Cost of encryption: python -m benchmarks.micro.encryption [--rounds N].

Storages in clear and that encrypt, on SQLite, in turn: saves of a growing conversation, without and
with the metadata of a LangGraph step, loads of its 1,000 turns by an object that knows nothing of
it, and the bytes of its records with their metadata.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report
from locus_store import Encryption, InMemoryStore, LocalKeyRing, open_storage

if TYPE_CHECKING:
    from locus_store import Storage

TURNS = 1000
LOADS = 5
COLUMNS = (
    *(("checkpoints", it) for it in ("payload", "metadata", "labels")),
    ("segments", "payload"),
)
SIDES = ("clear", "encrypted", "clear, with metadata", "encrypted, with metadata")
WORDS = "the quick brown fox jumps over the lazy dog and asks for the weather in Lisbon again "


def _turn(number: int) -> list[dict[str, Any]]:
    said = f"{number}: {WORDS * 2}"
    return [{"role": "user", "content": said}, {"role": "assistant", "content": said[::-1]}]


class Side:
    """A storage, and the times of its calls."""

    def __init__(self, url: str, encryption: Encryption | None, *, has_metadata: bool) -> None:
        self._url, self._encryption, self._has_metadata = url, encryption, has_metadata
        self.storage = self._open()
        self.saves: list[float] = []
        self.loads: list[float] = []
        self.messages: list[dict[str, Any]] = []

    def _open(self) -> Storage:
        return open_storage(self._url, encryption=self._encryption)

    async def save(self, thread_id: str, number: int) -> None:
        self.messages += _turn(number)
        state = {"messages": self.messages, "step": number}
        step = {"source": "loop", "step": number, "parents": {}} if self._has_metadata else None
        began = time.perf_counter()
        await self.storage.backend.write_state(thread_id, state, metadata=step)
        self.saves.append(time.perf_counter() - began)

    async def load(self, thread_id: str) -> None:
        async with self._open() as storage:
            await storage.backend.exists("none")
            began = time.perf_counter()
            found = await storage.backend.read_kept(thread_id)
            self.loads.append(time.perf_counter() - began)
            assert found is not None  # noqa: S101

    def count_bytes(self) -> float:
        """Return the stored bytes of a record."""
        with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as connection:
            sizes = [
                connection.execute(f"SELECT coalesce(sum(length({column})), 0) FROM locus_{table}")
                for table, column in COLUMNS
            ]
            count = connection.execute("SELECT count(*) FROM locus_checkpoints").fetchone()[0]
            return float(sum(it.fetchone()[0] for it in sizes) / count)


async def measure(rounds: int) -> list[list[str]]:
    """Return the rows of the table."""
    found: dict[str, list[tuple[float, float, float]]] = {it: [] for it in SIDES}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="locus-store-encryption-") as directory:
            ring = LocalKeyRing({"a": os.urandom(32)}, "a")
            sides = {
                name: Side(
                    f"sqlite:///{Path(directory)}/{at}.db",
                    Encryption(ring, InMemoryStore()) if at % 2 else None,
                    has_metadata=at > 1,
                )
                for at, name in enumerate(SIDES)
            }
            order = list(sides.values())[:: 1 if number % 2 else -1]
            for turn in range(TURNS):
                for side in order:
                    await side.save("t", turn)
            for side in order:
                await side.storage.close()
            for _ in range(LOADS):
                for side in order:
                    await side.load("t")
            for name, side in sides.items():
                row = median(side.saves), median(side.loads), side.count_bytes()
                found[name].append(row)
    rows = []
    for name, figures in found.items():
        pairs = list(zip(figures, found[name.replace("encrypted", "clear")], strict=True))
        ratios = [median(mine[at] / clear[at] for mine, clear in pairs) for at in range(2)]
        added = median(mine[2] - clear[2] for mine, clear in pairs)
        save, load, size = (median(it[at] for it in figures) for at in range(3))
        rows.append(
            [
                name,
                f"{save * 1000:.2f}",
                f"{ratios[0]:.2f}",
                f"{load * 1000:.2f}",
                f"{ratios[1]:.2f}",
                f"{size:,.0f}",
                f"{added:,.0f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    report.add_write(parser)
    options = parser.parse_args()
    rows = asyncio.run(measure(options.rounds))
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    page = f"""# Cost of encryption on SQLite

Machine: {machine.described()}; load average {machine.load_average()}.
A thread of {TURNS:,} turns of two messages of 170 bytes. {options.rounds} rounds in turn, medians;
ratios and added bytes are medians of those of the rounds. A load is the first one of a new object.

| side | save, p50 ms | ratio | load, p50 ms | ratio | bytes of a record | added |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{lines}
"""
    report.publish("encryption", page, write=options.write)


if __name__ == "__main__":
    main()
