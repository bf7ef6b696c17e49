"""The store over documents: items in memory, and each group of changes a line of a journal."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from secrets import token_hex
from typing import Any, Generic, TypeVar

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.item_journal import HEAD, ItemChanges, ItemJournal, make_item
from locus_store.backends.documents.item_store import ItemStore, KeptItem
from locus_store.backends.documents.protocol import Access, ChangedError, Documents, StaleTagError
from locus_store.backends.documents.threads import ATTEMPTS, LONGEST_PAUSE_SECONDS
from locus_store.backends.documents.workers import WriteQueues
from locus_store.errors import BackendError, SchemaError
from locus_store.runtime.forks import start_in_each_process
from locus_store.runtime.retries import Pauses
from locus_store.types.items import Name

T = TypeVar("T")


class _Job(Generic[T]):
    """Work on the items, and its outcome."""

    def __init__(self, work: Callable[[], T], *, changes: bool) -> None:
        self.changes = changes
        self.error: BaseException | None = None
        self._work = work
        self._result: T | None = None

    def run(self) -> None:
        self.error = None
        try:
            self._result = self._work()
        except Exception as exc:  # noqa: BLE001  (it is the caller's)
            self.error = exc

    def get_result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]  # it was run


class DocumentStore(ItemStore):
    """Keeps items in a journal of documents; each process has all of them in memory.

    Calls that wait for each other are carried out together: they share a look for changes of other
    processes, and a put of the journal's head.

    Args:
        documents: Where the journal is kept; no threads are.
        own_backend: The backend whose connections are used and closed with the store, if it is the
            store's own.
        options: See ``BaseStore``.
    """

    def __init__(
        self, documents: Documents, *, own_backend: DocumentBackend | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._documents = documents
        self._own_backend = own_backend
        start_in_each_process(self._start)

    def _start(self) -> None:
        """Begin without items."""
        self._lock = threading.Lock()
        self._queues = WriteQueues()
        self._waiting: deque[_Job[Any]] = deque()
        self._before: dict[Name, KeptItem | None] = {}
        self._journal = ItemJournal(self._documents, self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._documents.locate(HEAD)!r})"

    async def setup(self) -> None:
        await self._run(lambda: None)

    async def close(self) -> None:
        await self._run_in_order(self._journal.forget)
        if self._own_backend is not None:
            await self._own_backend.close()

    def _get_time(self) -> datetime:
        return self._documents.read_clock()

    async def _run(self, work: Callable[[], T], *, changes: bool = False) -> T:
        job = _Job(work, changes=changes)
        self._waiting.append(job)
        await self._run_in_order(self._carry_out_waiting)
        return job.get_result()

    async def _run_in_order(self, work: Callable[[], T]) -> T:
        if self._documents.blocks:
            return await self._queues.run(HEAD, work, self._documents.pool)
        with self._lock:
            return work()

    def _carry_out_waiting(self) -> None:
        """Carry out the calls that wait now; an earlier one has done so for some."""
        jobs = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            if jobs:
                self._carry_out(jobs)
        except BaseException as exc:
            for job in jobs:
                job.error = exc
            if not isinstance(exc, Exception):
                raise

    def _carry_out(self, jobs: list[_Job[Any]]) -> None:
        changes = any(it.changes for it in jobs)
        group = _Group(jobs)
        trusts = changes and self._documents.trusts_cache and self._journal.is_known
        pauses = Pauses(0.002, LONGEST_PAUSE_SECONDS)
        for attempt in range(ATTEMPTS + 1):  # the last one only asks for the put before
            if attempt:
                pauses.sleep()
            number = group.number
            try:
                held = self._documents.held(HEAD, creates=True) if changes else None
                with held or nullcontext(self._documents) as access:
                    return self._attempt(access, group, trusts, is_over=attempt == ATTEMPTS)
            except StaleTagError:  # an earlier put may still have been done
                trusts, group.number = False, number
            except ChangedError:
                trusts = False
        raise BackendError(
            f"{self._documents.locate(HEAD)} is being changed by {self._documents.rivals}; nothing "
            "was written"
        )

    def _attempt(self, access: Access, group: _Group, trusts: bool, *, is_over: bool) -> None:
        """Do a group's work on the newest items, and write its changes.

        Args:
            access: To the journal.
            group: The calls.
            trusts: Do it on the items as they are known; the put shows whether they are stored so.
            is_over: Only ask for the last put.

        Raises:
            ChangedError: They were changed meanwhile, or the outcome is unknown.
        """
        if not trusts:
            self._journal.refresh(access)
            if group.number is not None and self._journal.has(group.number, group.token):
                if group.erases:
                    self._journal.clean(erases=True)
                return
            if is_over:
                raise ChangedError
        is_written = is_sealed = False
        try:
            failed, changed = group.run(), self._collect_changes()
            if trusts and (failed or not changed):
                raise ChangedError  # the work may end otherwise on the newest items
            if changed:
                group.number = group.number or self._journal.next_number
                group.erases = bool(changed.removed)
                row = changed.to_line(self.dimension)
                is_sealed = self._journal.append(access, group.token, row)
            is_written = True
        finally:
            if not is_written:
                before, self._before = self._before, {}
                for name, kept in before.items():
                    super()._set(name, kept)
        self._before = {}
        if is_sealed:
            self._journal.clean(erases=group.erases)

    def _set(self, name: Name, entry: KeptItem | None) -> None:
        self._before.setdefault(name, self._find(name))
        super()._set(name, entry)

    def _collect_changes(self) -> ItemChanges:
        """Return what was changed since the last line."""
        found = ItemChanges()
        for name, before in self._before.items():
            kept = self._find(name)
            if kept is None:
                if before is not None:
                    found.removed.append(name)
            elif before is None or before.order != kept.order:
                found.put.append(kept)
            elif before is not kept:
                found.renewed.append(kept)
        return found

    def reset(self) -> None:
        self._namespaces, self._before = {}, {}

    def replay(self, row: dict[str, Any]) -> None:
        """Apply the changes of a line.

        Raises:
            SchemaError: The store's dimension is another one.
        """
        dimension: int | None = row.get("dimension")
        if dimension is not None:
            self.stored_dimension = dimension
            if self.dimension not in {None, dimension}:
                raise SchemaError(
                    f"the store in {self._documents.locate(HEAD)} has embeddings of {dimension} "
                    f"dimensions; open it with dimension={dimension}, not {self.dimension}"
                )
        for item in row.get("put", ()):
            kept = make_item(item, next(self._orders))
            super()._set((kept.item.namespace, kept.item.key), kept)
        for item in row.get("renewed", ()):
            name = (tuple(item[0]), item[1])
            if (found := self._find(name)) is not None:
                super()._set(name, make_item(item, found.order))
        for namespace, key in row.get("removed", ()):
            super()._set((tuple(namespace), key), None)

    def encode_all(self) -> dict[str, Any]:
        """Return one line's changes that put all items."""
        return ItemChanges(put=[*self._iterate_items()]).to_line(self.dimension)


class _Group:
    """Calls that are carried out together."""

    def __init__(self, jobs: list[_Job[Any]]) -> None:
        self.token = token_hex(6)
        self.number: int | None = None
        """The number of the first line that was sent and may still be done."""

        self.erases = False
        """The last of them removes items."""

        self._jobs = jobs

    def run(self) -> bool:
        """Do the work; return whether some failed."""
        for job in self._jobs:
            job.run()
        return any(it.error for it in self._jobs)
