"""The progress of long work, for a caller that watches: its number of steps, and each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

C = TypeVar("C", bound="Collection[Any]")
T = TypeVar("T")


class Watcher(Protocol):
    """Shows progress."""

    def expect(self, steps: int) -> None:
        """So many more steps will come."""

    def step(self) -> None:
        """One step was done."""


_watcher: ContextVar[Watcher | None] = ContextVar("locus_store_progress", default=None)


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Report the progress of the calls within the block to ``watcher``."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def is_watched() -> bool:
    """Return whether counting the steps has a use."""
    return _watcher.get() is not None


def expect(steps: int) -> None:
    """Report that so many more steps will come."""
    if watcher := _watcher.get():
        watcher.expect(steps)


def expect_steps(things: C) -> C:
    """Return ``things``, each of which will be a step."""
    expect(len(things))
    return things


def iterate_steps(things: Collection[T]) -> Iterator[T]:
    """Yield ``things``; each is a step, which ends when the next one begins."""
    for thing in expect_steps(things):
        yield thing
        step()


def step() -> None:
    """Report that one step was done."""
    if watcher := _watcher.get():
        watcher.step()
