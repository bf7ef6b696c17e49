"""Removal of threads: those of a user, those that metadata names, and those that a vacuum finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from locus_store.errors import BackendError, ConflictError, IntegrityError, InvalidArgumentError
from locus_store.runtime import observe
from locus_store.runtime.progress import iterate_steps
from locus_store.types import Vacuumed
from locus_store.values.filters import check_wanted
from locus_store.values.sealing import ForgottenError
from locus_store.versions.archives import has
from locus_store.versions.reading import ThreadStorage, iterate_ids

FindThreads: TypeAlias = Callable[[], Awaitable[list[str]]]

_PASSES: Final = 2
"""A thread that is saved while it is removed is met again."""


def check_condition(key: str, value: Any) -> None:
    """Refuse a condition that makes no sense.

    Raises:
        InvalidArgumentError: ``key`` is none, or every list matches ``value``.
        SerializationError: ``value`` is not a JSON value.
    """
    if check_wanted(key, value) == []:
        raise InvalidArgumentError(
            f"the value of {key!r} is an empty list, which every list contains; name an element"
        )


async def find_threads(
    backend: ThreadStorage, key: str, value: Any, *, user_id: str | None = None
) -> list[str]:
    """Return the live threads that ``archives.has`` is true of."""
    found: list[str] = []
    async for thread_id in iterate_ids(backend.scan):
        try:
            thread = await backend.read_thread(thread_id)
        except ForgottenError:  # of a backup, say: it is removed with the others
            found.append(thread_id)
            continue
        if thread is not None and has(thread, key, value, user_id=user_id):
            found.append(thread_id)
    return found


async def erase(backend: ThreadStorage, find: FindThreads, key: str, value: Any) -> dict[str, int]:
    """Remove the threads that ``find`` returns, with all they own; return how much of each kind.

    Args:
        backend: Where they are.
        find: Is called again after each pass.
        key: Of the metadata, or ``user_id``; the error says which threads they are.
        value: At that key.

    Raises:
        BackendError: Data of some threads stays; the others are removed.
        ConflictError: Another caller saves such threads at the same time.
    """
    user_id = value if key == "user_id" else None
    which = f"of user {value!r}" if key == "user_id" else f"where {key!r} matches"
    failed = list[BackendError]()
    counts = dict.fromkeys(("threads", "checkpoints", "writes", "messages"), 0)
    for _ in range(_PASSES):
        for thread_id in iterate_steps(await find()):
            thread, unreadable = None, 0
            try:
                thread = await backend.read_thread(thread_id)
            except ForgottenError:
                unreadable = 1
            if thread is not None and not has(thread, key, value, user_id=user_id):
                continue  # it was created again meanwhile
            try:
                removed = await backend.remove_thread(thread_id)
            except BackendError as exc:
                failed.append(exc)
                continue
            counts["threads"] += unreadable
            if thread is not None and removed.existed:
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


class Swept(NamedTuple):
    """The amount that was removed of a thread."""

    versions: int
    messages: int = 0
    is_whole: bool = False


class Sweep:
    """Counts the results of a vacuum."""

    def __init__(self) -> None:
        self.removed = 0
        self.threads = 0
        self._messages = 0
        self._held: set[str] = set()
        self._unreadable: set[str] = set()

    @contextmanager
    def sweep_thread(self, thread_id: str) -> Iterator[None]:
        """Sweep a thread or a part of it; record an unreadable one and continue."""
        try:
            yield
        except IntegrityError as exc:
            self._unreadable.add(thread_id)
            observe.report_unswept("vacuum", thread_id, exc)

    def count(self, thread_id: str, swept: Swept | None) -> None:
        """Count what was removed; ``None``: another transaction holds the thread."""
        if swept is None:
            self._held.add(thread_id)
            return
        self.removed += swept.versions
        self._messages += swept.messages
        self.threads += swept.is_whole

    def report(self) -> Vacuumed:
        if self._held:
            observe.report_skipped("vacuum", len(self._held))
        if self._unreadable:
            observe.note(unreadable=len(self._unreadable))
        return Vacuumed(
            removed=self.removed,
            skipped=len(self._held),
            unreadable=len(self._unreadable),
            threads=self.threads,
            messages=self._messages,
        )
