"""Objects of a forked child, which has no threads of its parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

_starts: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


inherited: Final[list[object]] = []
"""Keeps a parent process's loops and connections from being closed by a child's collector."""


def start_in_each_process(start: Callable[[], None]) -> None:
    """Call a method of an object now, and in each forked child as long as the object exists."""
    method: Any = start
    _starts[method.__self__] = method.__func__
    start()


def _start_all() -> None:
    for owner, start in list(_starts.items()):
        start(owner)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_all)
