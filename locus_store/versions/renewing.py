"""Times to live that restart when a thread is read."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import Final, Protocol

from locus_store.errors import InvalidArgumentError, LocusStoreError
from locus_store.runtime.background import Background
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.recent import Recent
from locus_store.runtime.stepping import may_block
from locus_store.types.acting import acting_as, get_actor

MOST_THREADS: Final = 10_000
"""Threads whose last renewal is remembered."""

logger = logging.getLogger(__name__)


def compute_ttl_slack(ttl_seconds: float) -> float:
    """Return the delay allowed for a thread's expiry, in seconds: a twentieth, at most a minute.

    An expiry that every save rewrites disables HOT updates; with the delay, few saves rewrite it.
    """
    return min(ttl_seconds / 20, 60.0)


class Renewable(Protocol):
    """The methods of a backend that renew threads."""

    @property
    def tenant(self) -> str | None:
        """The backend's tenant."""

    async def renew(self, thread_id: str, ttl_seconds: float) -> bool:
        """Set a thread's remaining time to live, if it has one."""


class Renewing:
    """Renews threads concurrently with the reads, which neither wait for it nor fail with it.

    A thread is renewed at most once per slack by one object and all that its ``for_tenant``
    returned. A failure, as of a database that is read-only, is logged once.

    Args:
        ttl_seconds: Their time to live after a read.
    """

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds = ttl_seconds
        self._renewed: Recent[tuple[str | None, str], float] = Recent(MOST_THREADS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._beside = PerLoop(partial(Background, MOST_THREADS))
        """Renews for sync calls without an event loop."""

        self._has_failed = False

    def note(self, backend: Renewable, thread_id: str) -> None:
        """Renew a thread that was read, if a renewal is due."""
        now, key = monotonic(), (backend.tenant, thread_id)
        renewed = self._renewed.get(key)
        if renewed is not None and now - renewed < compute_ttl_slack(self._ttl_seconds):
            return
        self._renewed.put(key, now)
        renew = partial(self._renew, backend, thread_id, get_actor())
        if may_block():
            self._beside.get().submit(key, renew)
            return
        task = asyncio.ensure_future(renew())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, backend: Renewable, thread_id: str, who: str | None) -> None:
        try:
            with acting_as(who) if who else nullcontext():
                await backend.renew(thread_id, self._ttl_seconds)
        except LocusStoreError as exc:
            if not self._has_failed:
                self._has_failed = True
                logger.warning("the time to live of a thread was not renewed: %s", exc)

    async def drain(self) -> None:
        """Wait for the renewals of the running loop."""
        if may_block():
            await self._beside.get().finish()
            return
        loop = asyncio.get_running_loop()
        while mine := [it for it in self._tasks if it.get_loop() is loop]:
            await asyncio.wait(mine)


def make_renewing(ttl_seconds: float | None, *, refresh_on_read: bool) -> Renewing | None:
    """Return the renewing of threads that are read; ``None`` if it was not asked for.

    Raises:
        InvalidArgumentError: There is no time to live to renew.
    """
    if not isinstance(refresh_on_read, bool):
        raise InvalidArgumentError(
            f"refresh_on_read must be True or False, not {refresh_on_read!r}"
        )
    if not refresh_on_read:
        return None
    if ttl_seconds is None:
        raise InvalidArgumentError("refresh_on_read=True needs ttl_seconds: the time to renew")
    return Renewing(ttl_seconds)
