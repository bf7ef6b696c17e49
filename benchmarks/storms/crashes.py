"""Kill a PostgreSQL server under its writers: python -m benchmarks.storms.crashes --trials 20.

Writers in one process, which is never restarted, save for ever, each on a thread of its own, and
save again what failed. In turn the server process of a connection that is saving gets `kill -9`
(PostgreSQL then ends all sessions and recovers), and the whole server (which is started again on
its data). After each trial every acknowledged save loads and is what was submitted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.places import server
from benchmarks.storms.kills import KEPT, digest
from benchmarks.workloads import prose
from locus_store import BackendError, ConnectionFailedError, open_checkpointer

PAUSE_SECONDS = 0.02
"""Between a failed call and the next try."""

DEADLINE_SECONDS = 60.0
SAVING = """SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
  AND pid <> pg_backend_pid() AND datname = $1 ORDER BY state = 'active' AND query LIKE '%INSERT%'
  DESC, backend_start LIMIT 1"""


class Writer:
    """Saves version after version of one thread, and remembers what was acknowledged."""

    def __init__(
        self, saver: Any, number: int, counts: Counter[str], may_go: asyncio.Event
    ) -> None:
        self.thread = f"thread-{number}"
        self.acknowledged: dict[str, str] = {}
        self.tried: dict[str, str] = {}
        self._saver = saver
        self._counts = counts
        self._may_go = may_go
        self._rng = random.Random(number)
        self._loads = number % 2 == 1
        """Every other one begins each step with a load."""

    async def work(self) -> None:
        state: dict[str, Any] = {"log": []}
        while await self._may_go.wait():
            if self._loads:
                state = await self._until_done(self._saver.load, self.thread) or state
            text = prose(self._rng, self._rng.choice([30, 400, 4000]))
            state["log"] = [*state["log"], {"text": text}][-KEPT:]
            checkpoint_id = f"v{len(self.tried)}"
            self.tried[checkpoint_id] = digest(state)
            await self._until_done(self._saver.save, state, self.thread, checkpoint_id)
            self.acknowledged[checkpoint_id] = self.tried[checkpoint_id]

    async def _until_done(self, call: Any, *arguments: Any) -> Any:
        while True:
            try:
                return await call(*arguments)
            except (ConnectionFailedError, BackendError) as exc:
                self._counts[type(exc).__name__] += 1
                await asyncio.sleep(PAUSE_SECONDS)


class Trials:
    """A server, its writers, and what went wrong."""

    def __init__(self, running: Any, database: str, options: argparse.Namespace) -> None:
        self._server = running
        self._database = database
        self._url = running.url(database)
        self._rng = random.Random(options.seed)
        self._count = options.trials
        self.errors: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.recovered: list[float] = []
        self._saver = open_checkpointer(self._url, state_type=dict)
        self._may_go = asyncio.Event()
        self.writers = [
            Writer(self._saver, it, self.errors, self._may_go) for it in range(options.writers)
        ]

    async def run(self) -> None:
        tasks = [asyncio.create_task(it.work()) for it in self.writers]
        looked_at: set[tuple[str, str]] = set()
        try:
            for trial in range(self._count):
                self._may_go.set()
                await self._everybody_saves(tasks)
                await asyncio.sleep(self._rng.random() * 0.1)
                await (self._kill_server() if trial % 2 else self._kill_backend())
                begin = time.monotonic()
                await self._everybody_saves(tasks)
                self.recovered.append(time.monotonic() - begin)
                self._may_go.clear()
                await self._look(looked_at)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._saver.close()
        await self._look(set())

    async def _everybody_saves(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for one more acknowledged save of each writer; what ended one of them is raised."""
        before = [len(it.acknowledged) for it in self.writers]
        async with asyncio.timeout(DEADLINE_SECONDS):
            while any(
                len(it.acknowledged) <= n for it, n in zip(self.writers, before, strict=True)
            ):
                for task in tasks:
                    if task.done():
                        await task
                await asyncio.sleep(0.002)

    async def _kill_backend(self) -> None:
        """And come back when the server takes connections again."""
        asked = self._server.ask(self._database, self._saving)
        self._server.kill_backend(await asked)
        self.found["killed connections"] += 1
        while True:
            with contextlib.suppress(OSError, *self._down):
                await self._server.ask(self._database, lambda it: it.fetchval("SELECT 1"))
                return
            await asyncio.sleep(0.01)

    @property
    def _down(self) -> tuple[type[Exception], ...]:
        import asyncpg

        return (asyncpg.PostgresError, asyncpg.InterfaceError)

    async def _saving(self, connection: Any) -> int:
        found: int = await connection.fetchval(SAVING, self._database)
        return found

    async def _kill_server(self) -> None:
        await asyncio.to_thread(self._server.kill)
        self.found["killed servers"] += 1
        await asyncio.sleep(self._rng.random())
        await asyncio.to_thread(self._server.start)

    async def _look(self, looked_at: set[tuple[str, str]]) -> None:
        """Through an object of its own: what was acknowledged before is there, and as it was."""
        known = [(it, dict(it.acknowledged)) for it in self.writers]
        async with open_checkpointer(self._url, state_type=dict, pool_size=2) as saver:
            for writer, acknowledged in known:
                there = set(await saver.list_checkpoints(writer.thread, 10**6))
                self.found["lost"] += len(acknowledged.keys() - there)
                self.found["unknown"] += len(there - writer.tried.keys())
                for checkpoint_id in acknowledged.keys() & there:
                    key = writer.thread, checkpoint_id
                    if key not in looked_at:
                        looked_at.add(key)
                        state = await saver.load(*key)
                        self.found["loaded"] += 1
                        self.found["torn"] += digest(state) != acknowledged[checkpoint_id]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with server() as (running, database):
        trials = Trials(running, database, options)
        asyncio.run(trials.run())
    found = trials.found
    saves = sum(len(it.acknowledged) for it in trials.writers)
    print(
        f"{found['killed connections']} connections and {found['killed servers']} servers killed "
        f"under {options.writers} writers: {saves:,} saves acknowledged, {found['loaded']:,} "
        "versions loaded"
    )
    print("errors meanwhile: " + (", ".join(f"{n:,} {it}" for it, n in trials.errors.items())))
    print(
        f"all saving again after {statistics.median(trials.recovered):.2f} s (median), "
        f"{max(trials.recovered):.2f} s (most)"
    )
    print(", ".join(f"{name}: {found[name]}" for name in ("lost", "torn", "unknown")))
    return 1 if any(found[name] for name in ("lost", "torn", "unknown")) else 0


if __name__ == "__main__":
    sys.exit(main())
