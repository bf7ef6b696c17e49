"""Lose a save's request or answer on the way: python -m benchmarks.storms.replies --trials 300.

A proxy stands between the writers and PostgreSQL. In turn the answer of a lone save is lost after
its commit, its request never arrives, and the same befalls a group of saves; then the connections
are reset. Nobody is told of it: the saves are asked for again, and each is there once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg

from benchmarks.places import server
from benchmarks.storms.kills import KEPT, digest
from locus_store import open_checkpointer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GROUP = 12
DEADLINE_SECONDS = 60.0
PATIENCE_SECONDS = 0.5
"""A commit that takes longer waits for an answer that was lost before, as of a handshake."""


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Return whether the condition became true in time."""
    limit = time.monotonic() + seconds
    while not (is_true := await condition()) and time.monotonic() < limit:  # noqa: ASYNC110
        await asyncio.sleep(0.0005)
    return is_true


class Trials:
    """Threads by number, and what was saved in each."""

    def __init__(self, saver: Any, proxy: Any, direct: Any) -> None:
        self._saver = saver
        self._proxy = proxy
        self._direct = direct
        self.states: dict[str, dict[str, Any]] = {}
        self.saved: dict[str, dict[str, str]] = {}
        self.found: Counter[str] = Counter()

    async def _count(self) -> int:
        found: int = await self._direct.fetchval("SELECT count(*) FROM locus_checkpoints")
        return found

    async def save(self, thread: str) -> None:
        state = self.states.setdefault(thread, {"log": []})
        saved = self.saved.setdefault(thread, {})
        checkpoint_id = f"v{len(saved)}"
        state["log"] = [*state["log"], {"text": f"{thread} {checkpoint_id} " * 20}][-KEPT:]
        saved[checkpoint_id] = digest(state)
        if await self._saver.save(dict(state), thread, checkpoint_id) != checkpoint_id:
            self.found["wrong id"] += 1

    async def lose(self, size: int, *, answers: bool) -> None:
        """Save on so many threads at once, and lose what goes one way."""
        threads = [f"thread-{it}" for it in range(size)]
        for _ in range(3):  # on connections that are known to be well, with statements prepared
            await asyncio.gather(*map(self.save, threads))
        before = await self._count()
        if answers:
            self._proxy.swallow_replies()
        else:
            self._proxy.hold()
        saves = [asyncio.create_task(self.save(it)) for it in threads]

        async def is_committed() -> bool:
            return await self._count() > before

        async def is_held() -> bool:
            return bool(self._proxy.held_bytes)

        if await until(is_committed if answers else is_held, PATIENCE_SECONDS):
            self.found["answers lost" if answers else "requests lost"] += 1
        else:
            self.found["others"] += 1
        self._proxy.drop()
        self._proxy.release()
        await asyncio.wait_for(asyncio.gather(*saves), DEADLINE_SECONDS)

    async def look(self) -> None:
        """Each save is there once, and as it was."""
        for thread, saved in self.saved.items():
            there = await self._saver.list_checkpoints(thread, 10**6)
            self.found["twice"] += len(there) - len(set(there))
            self.found["lost"] += len(saved.keys() - set(there))
            self.found["unknown"] += len(set(there) - saved.keys())
            for checkpoint_id, expected in saved.items():
                state = await self._saver.load(thread, checkpoint_id)
                self.found["torn"] += digest(state) != expected
        rows = await self._count()
        self.found["twice"] += rows - sum(map(len, self.saved.values()))


def proxied(running: Any) -> Any:
    """A proxy that also tells how much it holds back."""
    import servers

    class Proxy(servers.Proxy):
        @property
        def held_bytes(self) -> int:
            return sum(len(side._kept) for side in list(self._sides))  # noqa: SLF001  (ours)

    return Proxy(running.port, running.host)


async def run(running: Any, database: str, count: int) -> Trials:
    proxy = proxied(running)
    direct = await asyncpg.connect(running.url(database))
    saver = open_checkpointer(proxy.url(running, database), state_type=dict)
    trials = Trials(saver, proxy, direct)
    try:
        await asyncio.gather(*(trials.save(f"thread-{it}") for it in range(GROUP)))
        for trial in range(count):
            await trials.lose(GROUP if trial % 4 > 1 else 1, answers=trial % 2 == 0)
        await trials.look()
    finally:
        await saver.close()
        await direct.close()
        proxy.close()
    return trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    options = parser.parse_args()
    with server() as (running, database):
        trials = asyncio.run(run(running, database, options.trials))
    found, saves = trials.found, sum(map(len, trials.saved.values()))
    print(
        f"{found['answers lost']} times answers lost, {found['requests lost']} times requests, "
        f"{found['others']} times something else, of 1 save or {GROUP}; {saves:,} saves "
        "acknowledged"
    )
    bad = ("lost", "twice", "torn", "unknown", "wrong id")
    print(", ".join(f"{name}: {found[name]}" for name in bad))
    return 1 if any(found[name] for name in bad) else 0


if __name__ == "__main__":
    sys.exit(main())
