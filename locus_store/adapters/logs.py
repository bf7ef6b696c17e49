"""The base of the adapters over a message log: opening, tenants, closing, names of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from locus_store.blocking import BlockingMessageLog
from locus_store.messages import BaseMessageLog, LogInfo
from locus_store.open import Storage, open_message_log
from locus_store.types.tenants import Closing, ForTenants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from types import TracebackType

    from locus_store.backend import StorageBackend
    from locus_store.messages import LogSnapshot

PAGE: Final = 1000
"""Logs that a list reads at a time."""

MAX_PLACES: Final = 4096
"""Ids of which an adapter remembers the thread."""

T = TypeVar("T")
Log = TypeVar("Log", BaseMessageLog, BlockingMessageLog)
Listed = TypeVar("Listed", "LogInfo", "LogSnapshot")


class _Adapter(ForTenants, Generic[Log]):
    """An adapter that may own its log."""

    log: Log
    _owns = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.log!r})"

    def _enter(self, tenant: str) -> None:
        self.log = self.log.for_tenant(tenant)
        self._owns = False


class BlockingLogAdapter(_Adapter[BlockingMessageLog]):
    """An adapter of a synchronous framework over a message log.

    Args:
        log: A blocking message log, which ``close`` leaves open, or a backend that has message
            logs, which stays open, too.

    Raises:
        UnsupportedError: The backend has no message logs.
    """

    def __init__(self, log: BlockingMessageLog | StorageBackend) -> None:
        self._owns = not isinstance(log, BlockingMessageLog)
        self.log = (
            log
            if isinstance(log, BlockingMessageLog)
            else BlockingMessageLog(Storage(log).messages())
        )

    def close(self) -> None:
        """Close what ``from_url`` opened; idempotent, and usable again afterwards."""
        if self._owns:
            self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class LogAdapter(_Adapter[BaseMessageLog], Closing):
    """An adapter over a message log.

    Args:
        log: A message log, or a backend that has message logs; ``close`` leaves it open.

    Raises:
        UnsupportedError: The backend has no message logs.
    """

    def __init__(self, log: BaseMessageLog | StorageBackend) -> None:
        self.log = log if isinstance(log, BaseMessageLog) else Storage(log).messages()

    async def close(self) -> None:
        """Close what ``from_url`` opened; idempotent, and usable again afterwards."""
        if self._owns:
            await self.log.close()


class OpenedByUrl(LogAdapter):
    """An adapter that a URL opens without further arguments."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return an adapter for a URL; see ``open_message_log`` for URLs and options."""
        opened = cls(open_message_log(url, **options))
        opened._owns = True
        return opened


class Places:
    """The threads of ids that an adapter has met: a hint, whose oldest entries are dropped."""

    def __init__(self) -> None:
        self._threads: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """Return the thread that had an id when it was noted."""
        return self._threads.get(name)

    def note(self, thread_id: str, names: Iterable[str | None]) -> None:
        """Remember the thread of ids."""
        for name in filter(None, names):
            self._threads.pop(name, None)
            self._threads[name] = thread_id
        while len(self._threads) > MAX_PLACES:
            self._threads.pop(next(iter(self._threads)), None)


def thread_of(*names: str) -> str:
    """Return the id of the thread that several names identify; ``/`` separates them."""
    return "/".join(it.replace("%", "%25").replace("/", "%2F") for it in names)


def names_in(thread_id: str) -> list[str]:
    """Return the names of ``thread_of``."""
    return [it.replace("%2F", "/").replace("%25", "%") for it in thread_id.split("/")]


async def all_of(
    call: Callable[..., Awaitable[list[Listed]]], *args: Any, **options: Any
) -> AsyncIterator[Listed]:
    """Give all that ``BaseMessageLog.logs`` or ``heads`` lists, a page at a time."""
    after = None
    while page := await call(*args, limit=PAGE, after=after, **options):
        for it in page:
            yield it
        if len(page) < PAGE:
            return
        last = page[-1]
        info = last if isinstance(last, LogInfo) else last.info
        after = info.thread_id, info.namespace
