"""The end of objects that were not closed."""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock, start_new_thread
from typing import TYPE_CHECKING, Final
from weakref import finalize

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Lock

LAST_SECONDS: Final = 10.0
"""A process that ends waits for each of its threads no longer than this."""


class _Process:
    is_noted = False
    is_ending = False


_under_way: list[tuple[int, Lock]] = []
"""The process of each thread that ends an object, and a lock that it has until it is done."""


def when_dropped(owner: object, end: Callable[[], None]) -> finalize[[Callable[[], None]], object]:
    """Call ``end`` after an object was dropped, in another thread, or when the process ends.

    The garbage collector may begin within any call, in a thread that holds any lock, even one of
    ``threading``'s own: nothing may wait there. The end of the process waits for such threads.
    """
    made = finalize(owner, _end_apart, end)
    if not _Process.is_noted:
        _Process.is_noted = True
        atexit.register(_finish)  # after that of `finalize`, so it is called before
    return made


def _end_apart(end: Callable[[], None]) -> None:
    if _Process.is_ending:
        end()
        return
    over = os.getpid(), allocate_lock()
    over[1].acquire()
    _under_way.append(over)
    start_new_thread(_end, (end, over))  # `threading.Thread` waits until it has started


def _end(end: Callable[[], None], over: tuple[int, Lock]) -> None:
    try:
        end()
    finally:
        _under_way.remove(over)
        over[1].release()


def _finish() -> None:
    _Process.is_ending = True
    for pid, lock in _under_way.copy():
        if pid == os.getpid():
            lock.acquire(timeout=LAST_SECONDS)
