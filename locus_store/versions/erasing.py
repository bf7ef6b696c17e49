"""Removal of the threads of a user, or of those that metadata names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from locus_store.errors import BackendError, ConflictError, InvalidArgumentError
from locus_store.runtime.progress import steps
from locus_store.values.canonical import canonical
from locus_store.values.filters import check_key
from locus_store.versions.archives import has

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store.types import ArchivedThread, Removed

_PASSES: Final = 2
"""A thread that is saved while it is removed is met again."""


class Erasable(Protocol):
    """The methods of a backend that this module calls."""

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        """Return thread ids, ascending."""

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        """Return all that is stored of a thread."""

    async def remove_thread(self, thread_id: str) -> Removed:
        """Remove a thread with all it owns."""


def check_condition(key: str, value: Any) -> None:
    """Refuse a condition that makes no sense.

    Raises:
        InvalidArgumentError: ``key`` is none, or every list matches ``value``.
        SerializationError: ``value`` is not a JSON value.
    """
    check_key(key)
    if canonical(value, "value") == []:
        raise InvalidArgumentError(
            f"the value of {key!r} is an empty list, which every list contains; name an element"
        )


async def find_threads(
    backend: Erasable, key: str, value: Any, *, user_id: str | None = None
) -> list[str]:
    """Return the live threads that ``archives.has`` is true of."""
    found: list[str] = []
    after: str | None = None
    while page := await backend.scan(after=after):
        for thread_id in page:
            thread = await backend.read_thread(thread_id)
            if thread is not None and has(thread, key, value, user_id=user_id):
                found.append(thread_id)
        after = page[-1]
    return found


async def erase(
    backend: Erasable, find: Callable[[], Awaitable[list[str]]], which: str
) -> dict[str, int]:
    """Remove the threads that ``find`` returns, with all they own; return how much of each kind.

    Args:
        backend: Where they are.
        find: Is called again after each pass.
        which: Says in the error which threads they are.

    Raises:
        BackendError: Data of some threads stays; the others are removed.
        ConflictError: Another caller saves such threads at the same time.
    """
    failed = list[BackendError]()
    counts = dict.fromkeys(("threads", "checkpoints", "writes", "messages"), 0)
    for _ in range(_PASSES):
        for thread_id in steps(await find()):
            thread = await backend.read_thread(thread_id)
            try:
                await backend.remove_thread(thread_id)
            except BackendError as exc:
                failed.append(exc)
                continue
            if thread is not None:
                counts["threads"] += 1
                counts["messages"] += len(thread.messages)
                counts["checkpoints"] += sum(len(it.records) for it in thread.lines)
                counts["writes"] += sum(len(it.writes) for it in thread.lines)
        if failed:
            raise BackendError(
                f"{len(failed)} threads {which} are not removed, or not whole, and "
                f"{counts['threads']} are: {failed[0]}"
            ) from failed[0]
    if left := await find():
        raise ConflictError(
            f"threads {which} are saved while they are removed, {left[0]!r} among them; stop "
            "the agents that save them, and forget again"
        )
    return counts
