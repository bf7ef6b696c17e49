"""Plain calls that wait for coroutines, each in a greenlet on the event loop.

A thread is not changed, as it is for a call in a worker thread. SQLAlchemy has greenlets of its
own (``sql/greenlets.py``); these need none of its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def run(call: Callable[[], T]) -> T:
    """Run a plain call that may ``wait``; it cannot continue in another thread."""
    running = greenlet(call)
    running.gr_context = getcurrent().gr_context
    asked: Any = running.switch()
    while not running.dead:
        try:
            answer = await asked
        except BaseException as exc:  # noqa: BLE001  (raised in the call)
            asked = running.throw(exc)
        else:
            asked = running.switch(answer)
    result: T = asked
    return result


def wait(work: Awaitable[T]) -> T:
    """Wait for a coroutine within a call of ``run``."""
    caller = getcurrent().parent
    assert caller is not None  # noqa: S101  (the one of ``run``)
    answer: T = caller.switch(work)
    return answer
