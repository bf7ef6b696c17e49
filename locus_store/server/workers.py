"""Processes that serve on one socket; one that ends is started again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from multiprocessing.connection import wait
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from locus_store.server.listener import GRACE_SECONDS
from locus_store.service.metrics import WORKERS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

log: Final = logging.getLogger("locus_store.server")

STEADY_SECONDS: Final = 10.0
MOST_SECONDS: Final = 30.0
"""A worker that ends before it ran steadily is started again after a pause, which grows."""


def supervise(number_of_workers: int, run: Callable[..., None], *arguments: Any) -> None:
    """Run workers until a signal; one that ends is started again.

    Args:
        number_of_workers: At least 1.
        run: What each worker runs until a signal; a function of a module.
        arguments: Of ``run``.
    """
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: stopping.append(got))
    with TemporaryDirectory(prefix="locus-store-") as folder:
        os.environ[WORKERS_FOLDER] = folder
        workers = [_Worker(run, arguments) for _ in range(number_of_workers)]
        while not stopping:
            wait([it.process.sentinel for it in workers if it.process.is_alive()], timeout=0.2)
            for it in () if stopping else workers:
                it.revive()
        for it in workers:
            it.process.terminate()
        for it in workers:
            it.end()


class _Worker:
    """A process that serves, and the one after it."""

    def __init__(self, run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._run = run
        self._arguments = arguments
        self._pause = 0.0
        self._start()

    def _start(self) -> None:
        self._begun, self._ended = monotonic(), 0.0
        context = multiprocessing.get_context("spawn")
        self.process: BaseProcess = context.Process(target=self._run, args=self._arguments)
        self.process.start()

    def revive(self) -> None:
        """Start another process if this one has ended, after a pause if it did not run long."""
        if self.process.is_alive():
            return
        if not self._ended:
            self._ended = monotonic()
            ran = self._ended - self._begun
            self._pause = 0.0 if ran > STEADY_SECONDS else min(2 * self._pause + 0.5, MOST_SECONDS)
            log.error(
                "a worker ended with %s; another one starts in %.1f s",
                self.process.exitcode,
                self._pause,
            )
        if monotonic() - self._ended >= self._pause:
            self._start()

    def end(self) -> None:
        """Wait for the end of the process."""
        self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            log.error("a worker did not end in %s s; it is killed", GRACE_SECONDS)
            self.process.kill()
            self.process.join()
