"""Tasks that save to Redis while servers fail, and the verdict on what was acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Self

from locus_store import BackendError, ConflictError, ConnectionFailedError, redis_checkpointer

if TYPE_CHECKING:
    from collections.abc import Sequence

DEADLINE_SECONDS = 60.0
ON_ITS_WAY_SECONDS = 0.1
"""An answer that comes so soon after a fault was sent before it."""


class Writers:
    """Tasks that each append numbers to a thread of their own, until they are stopped.

    Args:
        names: The threads.
        url: Of the server.
        pause_seconds: Between the saves of a task.
        options: Of the checkpointer.
    """

    def __init__(
        self, names: Sequence[str], url: str, *, pause_seconds: float = 0.0, **options: Any
    ) -> None:
        self._pause = pause_seconds
        self._options = {"state_type": dict, "retry_seconds": 30, **options}
        self._url = url
        self._is_over = False
        self.acknowledged: dict[str, list[int]] = {it: [] for it in names}
        self.replicated: dict[str, set[int]] = {it: set() for it in names}
        """Acknowledged numbers that all replicas had before a fault."""
        self.unseen: dict[str, set[int]] = {it: set() for it in names}
        """Acknowledged numbers that a later load did not have."""
        self._times: dict[str, list[float]] = {it: [] for it in names}
        self.errors: list[Exception] = []

    async def __aenter__(self) -> Self:
        self._checkpointer = redis_checkpointer(self._url, **self._options)
        self._tasks = [asyncio.create_task(self._write(it)) for it in self.acknowledged]
        await self.until_each_has(3)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self._checkpointer.close()

    async def _write(self, name: str) -> None:
        number = 0
        while not self._is_over:
            await asyncio.sleep(self._pause)
            number += 1
            try:
                numbers = (await self._checkpointer.load(name) or {"n": []})["n"]
                self.unseen[name].update(set(self.acknowledged[name]) - set(numbers))
                await self._checkpointer.save({"n": [*numbers, number]}, name)
            except (ConflictError, ConnectionFailedError, BackendError) as exc:
                self.errors.append(exc)
            else:
                self.acknowledged[name].append(number)
                self._times[name].append(time.monotonic())

    async def until_each_has(self, more: int) -> None:
        """Wait for so many more acknowledged saves of each."""
        goals = {name: len(it) + more for name, it in self.acknowledged.items()}
        until = time.monotonic() + DEADLINE_SECONDS
        while any(len(self.acknowledged[name]) < goal for name, goal in goals.items()):
            assert time.monotonic() < until, self.errors[-3:]
            await asyncio.sleep(0.02)

    def waits_since(self, begun: float) -> list[float]:
        """The seconds from a fault to the next acknowledged save of each writer."""
        late = begun + ON_ITS_WAY_SECONDS
        return [next(it for it in times if it > late) - begun for times in self._times.values()]

    async def lost(self) -> dict[str, set[int]]:
        """Acknowledged numbers that are not there; all versions are read, and must be whole."""
        found: dict[str, set[int]] = {}
        async with redis_checkpointer(self._url, **self._options) as fresh:
            for name, numbers in self.acknowledged.items():
                ids = await fresh.list_checkpoints(name, limit=10_000)
                states = [(await fresh.load(name, it))["n"] for it in ids]
                for newer, older in itertools.pairwise(states):
                    assert newer[:-1] == older, "a version is not made of the one before"
                if missing := set(numbers) - set(states[0]):
                    found[name] = missing
        return found
