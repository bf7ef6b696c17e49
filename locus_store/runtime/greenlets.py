"""Plain calls that wait for coroutines, each in a greenlet on the event loop.

A thread is not changed, as it is for a call in a worker thread. SQLAlchemy has greenlets of its
own (``sql/connections/lending.py``); these need none of its modules.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")

MOST_IDLE: Final = 64
"""Greenlets that a thread keeps: a new one takes four times as long, since it gets memory."""

_ENDED: Final = object()


class _Runner(greenlet):  # type: ignore[misc]  # its wheel has no types
    """Runs calls one after another, and switches to its parent at the end of each."""

    call: Callable[[], Any] | None = None
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        while self.call is not None and self.parent is not None:
            try:
                self.result = self.call()
            except GreenletExit:  # the thread ends
                raise
            except BaseException as exc:  # noqa: BLE001  (raised by the caller)
                self.error = exc
            self.parent.switch(_ENDED)

    def take(self) -> tuple[Any, BaseException | None]:
        """Return the result and the error of a call, and forget the call."""
        ended = self.result, self.error
        self.call = self.result = self.error = self.gr_context = None
        return ended


class _Idle(threading.local):
    """The greenlets of a thread that run no call."""

    def __init__(self) -> None:
        self.runners: list[_Runner] = []


_idle = _Idle()


async def run(call: Callable[[], T]) -> T:
    """Run a plain call that may ``wait``; it cannot continue in another thread."""
    idle, here = _idle.runners, getcurrent()
    runner = idle.pop() if idle else _Runner()
    runner.call, runner.parent, runner.gr_context = call, here, here.gr_context
    asked: Any = runner.switch()
    while asked is not _ENDED:
        try:
            answer = await asked
        except BaseException as exc:  # noqa: BLE001  (raised in the call)
            asked = runner.throw(exc)
        else:
            asked = runner.switch(answer)
    result, error = runner.take()
    if len(idle) < MOST_IDLE:
        idle.append(runner)
    if error is not None:
        raise error
    ended: T = result
    return ended


def wait(work: Awaitable[T]) -> T:
    """Wait for a coroutine within a call of ``run``."""
    caller = getcurrent().parent
    assert caller is not None  # noqa: S101  (the one of ``run``)
    answer: T = caller.switch(work)
    return answer
