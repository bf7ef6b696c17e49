"""Threads in a directory: each is read and written as a whole, and kept as it was parsed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4
from weakref import WeakSet

from locus_store.backends.file import format as file_format
from locus_store.backends.file.directory import ChangedError, Directory
from locus_store.backends.file.names import name_of, shown, thread_of
from locus_store.errors import BackendError, IntegrityError, LocusStoreError
from locus_store.runtime.loops import outlasting
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.versions.threads import Edit, Thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.backends.file.descriptors import Opened, Signature
    from locus_store.backends.file.directory import Held

T = TypeVar("T")
Parsed = tuple[Thread, file_format.End]

KEPT_BYTES = 64 * 1024 * 1024
"""Of files that one object keeps as it parsed them."""

ATTEMPTS = 20
"""To write a file that somebody else changes at the same time, without a lock."""


class ThreadFiles:
    """The threads of a directory; may be used from several threads, and on both sides of a fork."""

    def __init__(
        self,
        directory: Directory,
        *,
        max_state_bytes: int = MAX_STATE_BYTES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.directory = directory
        self.max_state_bytes = max_state_bytes
        self._max_bytes = kept_bytes
        self._start()
        _all_files.add(self)

    def _start(self) -> None:
        """Begin with nothing: in a new object, and in a child process."""
        self._lock = threading.Lock()
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[Signature, Parsed]] = OrderedDict()
        self._lanes: dict[str, deque[_Job]] = {}

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def limit(self, max_bytes: int) -> None:
        """Keep files of so many bytes at most, but the one used last in any case."""
        with self._lock:
            self._max_bytes = max_bytes
            self._shrink()

    # --- reading

    def listed(self) -> tuple[list[str], list[str]]:
        """All thread ids in order, also those whose time is over; what is wrong with other files.

        That is: with those that cannot be a thread's.
        """
        names = {name: thread_of(name) for name in self.directory.names()}
        ids = sorted(it for it in names.values() if it is not None)
        return ids, [self._misnamed(name) for name in sorted(names) if names[name] is None]

    def scan(self, limit: int, after: str | None) -> list[str]:
        """See ``FileBackend``."""
        ids, misnamed = self.listed()
        there = (it for it in ids if (after is None or it > after) and self._is_there(it))
        found = list(islice(there, limit))
        if misnamed and limit and not found:
            raise IntegrityError(misnamed[0])
        return found

    def _is_there(self, thread_id: str) -> bool:
        try:
            return self.read(thread_id) is not None
        except LocusStoreError:
            return True

    def live(self) -> Iterator[Thread]:
        """All threads; nobody may change them.

        Raises:
            IntegrityError: A file is damaged, or cannot be a thread's.
        """
        ids, misnamed = self.listed()
        if misnamed:
            raise IntegrityError(misnamed[0])
        for thread_id in ids:
            thread = self.read(thread_id)
            if thread is not None:
                yield thread

    def read(self, thread_id: str) -> Thread | None:
        """A thread, unless its time is over; nobody may change it."""
        with self.directory.reading(name_of(thread_id)) as opened:
            found = self._parse(thread_id, opened)[0] if opened else None
        return found if found and found.is_live else None

    def damage(self) -> list[str]:
        """What is wrong with the directory itself."""
        try:
            self.directory.identity()
        except IntegrityError as exc:
            return [str(exc)]
        return self.listed()[1]

    def _misnamed(self, name: str) -> str:
        return (
            f"{shown(self.directory.path(name))} is not named as the file of a thread; move it out "
            "of the directory, or give it its name back"
        )

    def _parse(self, thread_id: str, opened: Opened) -> Parsed:
        with self._lock:
            signature, parsed = self._kept.get(thread_id, (None, None))
            if parsed is not None and signature == opened.signature:
                self._kept.move_to_end(thread_id)
                return parsed
        made = file_format.parsed(opened.content(), thread_id, opened.path)
        self._keep(thread_id, opened.signature, made)
        return made

    def _keep(self, thread_id: str, signature: Signature, parsed: Parsed) -> None:
        with self._lock:
            old = self._kept.pop(thread_id, None)
            self._bytes += signature.size - (old[0].size if old else 0)
            self._kept[thread_id] = signature, parsed
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][0].size

    # --- writing

    def write(self, thread_id: str, body: Callable[[Edit], T], *, creates: bool) -> T | None:
        """Do something to a thread; ``None`` where there is none and ``creates`` is off.

        Raises:
            BackendError: It could not be written.
        """
        name = name_of(thread_id)
        for _ in range(ATTEMPTS):
            try:
                with self.directory.holding(name, creates=creates) as held:
                    if held is None:
                        return None
                    answer, is_gone = self._edit(held, thread_id, body)
            except ChangedError:
                continue
            if is_gone:
                self.directory.tidy(name)
            return answer
        raise BackendError(
            f"{self.directory.path(name)} is changed all the time by a program that locks nothing; "
            "nothing was written"
        )

    def _edit(self, held: Held, thread_id: str, body: Callable[[Edit], T]) -> tuple[T, bool]:
        """What ``body`` answers, and whether the file is gone."""
        old, end = self._parse(thread_id, held.file) if held.file else (None, None)
        store = self.directory.identity()
        edit = Edit(thread_id, old, store or uuid4().hex, self.max_state_bytes)
        answer = body(edit)
        edit.finish()
        if edit.thread is not None:
            if held.file is None and store is None:
                self.directory.identify(edit.store)
            self._store(held, edit, edit.thread, end)
        elif held.file is not None and edit.drops:
            self.directory.remove(held)
            return answer, True
        return answer, False

    def _store(self, held: Held, edit: Edit, thread: Thread, end: file_format.End | None) -> None:
        if end is not None and edit.adds_only:
            kept_bytes, (rest, after) = end.kept_bytes, file_format.tail(edit, end)
        else:
            kept_bytes, (rest, after) = 0, file_format.whole(thread)
        if rest:
            signature = self.directory.replace(held, kept_bytes, rest)
            self._keep(thread.thread_id, signature, (thread, after))

    # --- in order

    async def in_order(self, thread_id: str, work: Callable[[], T]) -> T:
        """Do what writes a thread, after all that was handed in before; also when cancelled."""
        job = _Job(work)
        with self._lock:
            lane = self._lanes.setdefault(thread_id, deque())
            lane.append(job)
            is_first = len(lane) == 1
        if is_first:
            try:
                asyncio.get_running_loop().run_in_executor(None, self._drain, thread_id, lane)
            except RuntimeError:  # the loop is ending, and runs nothing beside it any more
                self._drain(thread_id, lane)
        answer: T = await outlasting(asyncio.wrap_future(job.future))
        return answer

    def _drain(self, thread_id: str, lane: deque[_Job]) -> None:
        """Do what waits in a lane; its first job stays in it until it is done."""
        while True:
            lane[0].run()
            with self._lock:
                lane.popleft()
                if not lane:
                    del self._lanes[thread_id]
                    return


class _Job:
    """Something to do in another thread."""

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


_all_files: WeakSet[ThreadFiles] = WeakSet()


def _after_fork() -> None:
    """The parent's threads are not here: what they hold or had begun is theirs."""
    for files in _all_files:
        files._start()  # noqa: SLF001  (of this module)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
