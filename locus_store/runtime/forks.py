"""Objects that start again in a forked child, which has no threads of its parent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable

_starts: set[WeakMethod[Callable[[], None]]] = set()


def start_in_each_process(start: Callable[[], None]) -> None:
    """Call a method of an object now, and in each forked child as long as the object exists."""
    _starts.add(WeakMethod(start, _starts.discard))
    start()


def _start_all() -> None:
    for it in _starts.copy():
        if start := it():
            start()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_all)
