"""The interface of runners, which execute a database's transactions for their callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy.engine import Connection

T = TypeVar("T")
Body = Callable[[Connection], T]

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Payload of a group of saves or changes at most, but for a single larger one."""


class Runner(Protocol):
    """Runs bodies in transactions; the caller translates errors."""

    runs_in_threads: bool
    """Bodies run in threads, where long work delays no other task of the caller's loop."""

    async def write(self, body: Body[T]) -> T:
        """Run ``body`` and commit; it continues after its caller is cancelled."""

    async def read(self, body: Body[T]) -> T:
        """Run ``body`` on one snapshot."""

    async def query(self, body: Body[T]) -> T:
        """Run ``body``, which is one statement and so its own snapshot."""

    async def ready(self) -> None:
        """Make sure that the database is open, and its schema verified."""

    async def close(self) -> None:
        """Finish what was submitted and release what was opened; usable again after."""
