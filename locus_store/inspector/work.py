"""Heavy work: in threads, two jobs at a time, within a time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from locus_store.errors import BackendError
from locus_store.service.exchange import RefusalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Step: TypeAlias = Callable[[], None]

T = TypeVar("T")

AT_ONCE: Final = 2
SECONDS: Final = 30.0


class Pace:
    """The time of one job; ``step`` ends the job once it is over.

    Args:
        seconds: The limit.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = monotonic() + seconds
        self._is_cancelled = Event()

    def cancel(self) -> None:
        """End the job at its next step."""
        self._is_cancelled.set()

    def step(self) -> None:
        """Continue the job.

        Raises:
            RefusalError: Its time is over, or its caller has left.
        """
        if self._is_cancelled.is_set() or monotonic() > self._end:
            told = f"this page took longer than {self.seconds:g} seconds and was stopped; "
            raise RefusalError(503, BackendError(told + "the command line has no limit of time"))


class Jobs:
    """Runs heavy work.

    Args:
        seconds: The time of one job, without the wait for its turn.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._gate = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def paced(self) -> AsyncIterator[Pace]:
        """Wait for a turn; yield the time of the job, which ends with the caller."""
        async with self._gate, self._timed() as pace:
            yield pace

    @asynccontextmanager
    async def _timed(self) -> AsyncIterator[Pace]:
        pace = Pace(self._seconds)
        try:
            async with asyncio.timeout(self._seconds + 1):
                yield pace
        except TimeoutError:
            pace.cancel()
            pace.step()
        finally:
            pace.cancel()

    async def run(self, work: Callable[[Step], T]) -> T:
        """Return the result of work in a thread; the turn ends with the thread.

        Args:
            work: Calls the function that it is given often: it ends the work of a caller who left.
        """
        await self._gate.acquire()
        async with self._timed() as pace:
            thread = asyncio.get_running_loop().run_in_executor(None, work, pace.step)
            thread.add_done_callback(self._ended)
            await asyncio.wait({thread})
            return thread.result()

    def _ended(self, thread: asyncio.Future[Any]) -> None:
        self._gate.release()
        if not thread.cancelled():
            thread.exception()  # read here: the caller may have left
