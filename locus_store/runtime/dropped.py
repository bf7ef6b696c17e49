"""The end of objects that were not closed."""

from __future__ import annotations

import atexit
from _thread import start_new_thread
from typing import TYPE_CHECKING
from weakref import finalize

if TYPE_CHECKING:
    from collections.abc import Callable


class _Process:
    is_noted = False
    is_ending = False


def when_dropped(owner: object, end: Callable[[], None]) -> finalize[[Callable[[], None]], object]:
    """Call ``end`` after an object was dropped, in another thread, or when the process ends.

    The garbage collector may begin within any call, in a thread that holds any lock, even one of
    ``threading``'s own: nothing may wait there.
    """
    made = finalize(owner, _end_apart, end)
    if not _Process.is_noted:
        _Process.is_noted = True
        atexit.register(setattr, _Process, "is_ending", True)  # called before that of `finalize`
    return made


def _end_apart(end: Callable[[], None]) -> None:
    if _Process.is_ending:
        end()
    else:
        start_new_thread(end, ())  # `threading.Thread` waits until it has started
