"""The writes of each thread of a storage, in the order in which they were begun."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from locus_store.runtime.loops import await_to_end
from locus_store.runtime.stepping import may_block, run_now

T = TypeVar("T")


class _Job:
    """Work to run in another thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work

    def run(self) -> None:
        self.future.set_running_or_notify_cancel()
        try:
            answer = self._work()
        except BaseException as exc:  # noqa: BLE001  (it is the caller's)
            self.future.set_exception(exc)
        else:
            self.future.set_result(answer)


class WriteQueues:
    """The writes that wait, by thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Job]] = {}

    async def run(self, name: str, work: Callable[[], T], pool: Executor | None) -> T:
        """Run a write after all earlier ones of its queue, even if the caller is cancelled.

        Args:
            name: The queue's.
            work: The write.
            pool: Its thread, unless that of a sync call; ``None``: one of the event loop's.
        """
        job = _Job(work)
        if may_block():
            return await run_now(self._run_here, name, job)
        if queue := self._added(name, job):
            try:
                if pool is not None:  # its end need not wake the event loop
                    pool.submit(self._drain, name, queue)
                else:
                    asyncio.get_running_loop().run_in_executor(None, self._drain, name, queue)
            except RuntimeError:  # the loop is ending, and runs nothing beside it any more
                self._drain(name, queue)
        answer: T = await await_to_end(asyncio.wrap_future(job.future))
        return answer

    def _run_here(self, name: str, job: _Job) -> Any:
        """Run a job in this thread, and leave those that came meanwhile to another."""
        if queue := self._added(name, job):
            job.run()
            if self._has_more(name, queue):
                threading.Thread(target=self._drain, args=(name, queue), daemon=True).start()
        return job.future.result()

    def _added(self, name: str, job: _Job) -> deque[_Job] | None:
        """Add a job; return its queue if it is the first one there."""
        with self._lock:
            queue = self._queues.setdefault(name, deque())
            queue.append(job)
            return queue if len(queue) == 1 else None

    def _drain(self, name: str, queue: deque[_Job]) -> None:
        """Run a queue's jobs; the first one stays in it until it is finished."""
        queue[0].run()
        while self._has_more(name, queue):
            queue[0].run()

    def _has_more(self, name: str, queue: deque[_Job]) -> bool:
        """Remove a queue's first job; return whether it has another one."""
        with self._lock:
            queue.popleft()
            if not queue:
                del self._queues[name]
            return bool(queue)
