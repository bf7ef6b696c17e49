"""Saves in groups: those that arrive while a statement runs share the next one.

Each save of a group is decided by itself, and the caller answered after the commit. What the
statement refuses, and a group that failed whole, is done again one by one, each in a transaction
under the full rules.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any, Final, TypeAlias
from weakref import proxy

from sqlalchemy.engine import Connection

from locus_store import versions
from locus_store.backends.postgresql.columns import dump_jsonb
from locus_store.backends.postgresql.dialect import PostgreSQLDatabase, split_lexemes
from locus_store.backends.postgresql.save_parameters import (
    OF_ROW,
    LoneSave,
    RecordedSave,
    SaveGroup,
    SaveRow,
)
from locus_store.errors import LocusStoreError
from locus_store.runtime import loops, observe
from locus_store.sql.audit import RecordedCall, get_call
from locus_store.sql.connections.backend import GROUP_BYTES
from locus_store.sql.connections.pool import LoopPool
from locus_store.sql.quotas import Charge, charged_call
from locus_store.types import Mark, Save, Written
from locus_store.types.thread_info import UserIdType, is_user_id
from locus_store.values import frames
from locus_store.values.encoding import UNLIMITED
from locus_store.versions.renewing import compute_ttl_slack

Line: TypeAlias = tuple[str, str]
"""A thread and a namespace."""

GROUP: Final = 128
"""Saves in one statement at most."""

WORKERS: Final = 2
"""Statements under way at once: one is worked on while the next is put together."""

DIVIDED: Final = 32
"""Waiting saves that are divided among the workers, so that one statement is worked on while the
callers of the other prepare their next saves. Fewer saves take less time than a commit."""

PATIENCE_SECONDS: Final = 0.05
"""A statement that takes longer is not counted: it waits for another transaction's lock."""

_OF_ROW: Final = {is_indexed: attrgetter(*names) for is_indexed, names in OF_ROW.items()}


def _compute_seconds_left(deadline: float) -> float | None:
    """Return the seconds left, or ``None``: no deadline; raise ``TimeoutError`` if it is over."""
    if deadline == inf:
        return None
    left = deadline - _get_time()
    if left <= 0:
        raise TimeoutError
    return left


def _get_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True, eq=False)
class _Item:
    save: Save
    row: SaveRow | None
    """The statement's fields; ``None``: only the full rules can decide."""

    done: asyncio.Future[Written]
    operation: observe.Operation | None
    call: RecordedCall | None
    """The call, if it is recorded."""

    charge: Charge | None
    """The charge of the call, if its tenant has a quota."""

    deadline: float
    """The end of the statement timeout, by the event loop's clock; ``inf``: there is none."""

    is_refused: bool = False
    """The statement for a single save has refused it."""

    is_answered: bool = False

    was_first: bool = False
    """The statement has refused it as the first save of its line, which others create too."""

    @property
    def line(self) -> Line:
        """The thread and the namespace."""
        return self.save.thread_id, self.save.namespace

    @property
    def is_indexed(self) -> bool:
        """The row has the words for the full-text index."""
        return self.row is not None and self.row.words is not None

    @property
    def keeps_some(self) -> bool:
        """The save limits how many versions the line keeps."""
        return self.save.keep_last is not None

    def make_recorded(self) -> RecordedSave | tuple[()]:
        """Return the parameters that record the save; none if it is not recorded."""
        if self.call is None:
            return ()
        return RecordedSave(**self.call.make_values())

    def answer(self, result: Written | BaseException) -> None:
        """Pass the result to the caller, unless it was cancelled."""
        self.is_answered = True
        if self.done.done():  # cancelled
            return
        if isinstance(result, asyncio.CancelledError):
            self.done.cancel()
        elif isinstance(result, BaseException):
            loops.fail(self.done, result)
        else:
            self.done.set_result(result)


@dataclass(eq=False)
class Saves:
    """The saves of one event loop."""

    pool: LoopPool
    """Its connections."""
    database: PostgreSQLDatabase
    size: int
    """Saves in one statement at most; 1 sends each by itself."""
    workers: int
    """Statements under way at once."""
    timeout_seconds: float | None
    """A save fails so long after its submission; ``None``: never for that."""
    _slow: set[object] = field(default_factory=set, init=False)
    """Workers that gave way; each ends after its statement."""
    _at_work: set[object] = field(default_factory=set, init=False)
    """Workers whose statement is under way, except those that gave way."""
    _last_size: int = field(default=1, init=False)
    """Saves of the last statement."""
    _ready: deque[_Item] = field(default_factory=deque, init=False)
    _queued: dict[Line, deque[_Item]] = field(default_factory=dict, init=False)
    """Waiting saves in order, by line that has a save ready or in progress."""

    def __post_init__(self) -> None:
        self.pool = proxy(self.pool)  # it would never go: these are kept by it
        self._idle_workers = self.workers

    async def submit(self, save: Save) -> Written:
        """Write a save, which continues if the caller is cancelled."""
        database = self.database
        indexed, users = database.opened.has_index, database.opened.user_id_type
        row = make_row(save, database.opened.store, has_index=indexed, users=users)
        done: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        seconds, call = self.timeout_seconds, get_call(database.audit)
        deadline = inf if seconds is None else _get_time() + seconds
        item = _Item(save, row, done, observe.get_current(), call, charged_call.get(), deadline)
        queued = self._queued.get(item.line)
        if queued is not None:
            queued.append(item)
        else:
            self._queued[item.line] = deque()
            if not self._send_at_once(item):
                self._ready.append(item)
                self._wake()
        return await item.done

    def _send_at_once(self, item: _Item) -> bool:
        """Send a save in the caller's step, if no other save is there to share a statement."""
        is_lone = self._last_size == 1 and self._idle_workers and not self._ready
        values = self._make_lone_values(item) if is_lone else None
        if values is None:
            return False
        over = self._start_timer(item)
        answered = partial(self._answer, item, over)
        append = self.database.fast.append[item.is_indexed][False, item.keeps_some]
        limit = self.timeout_seconds
        self._idle_workers -= 1
        self._at_work.add(item)
        is_sent = self.pool.send(append, values, answered, timeout_seconds=limit)
        if not is_sent:
            over.cancel()
            self._at_work.discard(item)
            self._release_worker(item)
        return is_sent

    def _answer(
        self, item: _Item, over: asyncio.TimerHandle, rows: list[Any] | BaseException
    ) -> None:
        """Answer a save that was sent in the caller's step."""
        over.cancel()
        self._at_work.discard(item)
        self._release_worker(item)
        if isinstance(rows, BaseException):
            self._report_failure([item], rows)
            self._run_by_rules(item)
        elif rows:
            observe.record_commit(self.database, 1)
            self._finish_written(item, rows[0]["line"], rows[0]["sequence"])
        else:
            item.is_refused = True
            self._ready.appendleft(item)
        self._wake()

    def _wake(self) -> None:
        if self._ready and self._idle_workers:
            self._idle_workers -= 1
            self.pool.spawn(self._send_all()).add_done_callback(self._end_worker)

    def _release_worker(self, worker: object) -> None:
        if worker in self._slow:
            self._slow.remove(worker)
        else:
            self._idle_workers += 1

    def _end_worker(self, worker: asyncio.Task[None]) -> None:
        # Not in a `finally` of the task: one that is cancelled before its first step has none.
        self._release_worker(worker)
        if worker.cancelled():
            self._leave_undone()
        self._wake()

    def _leave_undone(self) -> None:
        """Drop the saves that no caller awaits, after all tasks of the loop were cancelled."""
        ready = self._ready
        self._ready = _select_awaited(ready)
        self._queued = {line: _select_awaited(it) for line, it in self._queued.items()}
        for item in ready:
            if item.done.done():
                self._finish(item, asyncio.CancelledError())

    def _finish(self, item: _Item, result: Written | BaseException) -> None:
        """Answer a save, and queue the next one of its line."""
        self.pool.note_write(item.save.thread_id)
        item.answer(result)
        queued = self._queued[item.line]
        if queued:
            self._ready.append(queued.popleft())
            self._wake()
        else:
            del self._queued[item.line]

    async def _send_all(self) -> None:
        worker = asyncio.current_task()
        while worker not in self._slow and (group := self._take()):
            try:
                await self._send(group)
            except BaseException:  # cancelled, or a defect: neither says anything of the saves
                self._leave_undone()
                for item in [it for it in group if not it.is_answered]:
                    if item.done.done():
                        self._finish(item, asyncio.CancelledError())
                    else:
                        self._run_by_rules(item)
                raise

    def _give_way(self, worker: object) -> None:
        """Let another worker start: this one's statement waits, perhaps for a lock."""
        self._slow.add(worker)
        self._at_work.discard(worker)
        self._idle_workers += 1
        self._wake()

    def _take(self) -> list[_Item]:
        """Return the next group; its saves are of different lines."""
        group: list[_Item] = []
        size, waiting = 0, len(self._ready)
        free = max(1, self.workers - len(self._at_work))
        most = self.size if waiting < DIVIDED else min(self.size, -(-waiting // free))
        while self._ready and len(group) < most:
            if self._ready[0].deadline <= _get_time():
                self._finish(self._ready.popleft(), TimeoutError())
                continue
            row = self._ready[0].row
            size += len(row.payload) if row else 0
            if group and size > GROUP_BYTES:
                break
            group.append(self._ready.popleft())
        return group

    async def _send(self, group: list[_Item]) -> None:
        self._last_size = len(group)
        # An index that was made since a save was submitted has no words of it.
        is_indexed = self.database.opened.has_index
        plain = [it for it in group if it.row and it.is_indexed == is_indexed]
        deadline = min(it.deadline for it in group)
        try:
            won = await self._run(plain, deadline) if plain else {}
        except Exception as exc:
            if not self._report_failure(group, exc):
                raise
            won = {}  # the faulty one is found by running each alone
        else:
            if won:
                observe.record_commit(self.database, len(won))
        refused = []
        for item in group:
            mark = won.get(item.line)
            if mark is None:
                refused.append(item)
                continue
            self._finish_written(item, *mark)
        for item in refused:
            if item.row and item.row.line is None and not item.was_first:
                item.was_first = True
                self._ready.append(item)
            else:
                self._run_by_rules(item)

    def _report_failure(self, group: list[_Item], exc: BaseException) -> bool:
        """Report a statement that failed; return whether the database or the way to it did."""
        if not isinstance(exc, (LocusStoreError, *self.database.driver_errors)):
            return False
        self.pool.note(exc)
        observe.report_divided([it.operation for it in group], exc)
        return True

    def _finish_written(self, item: _Item, line: int, sequence: int) -> None:
        """Answer a save that the statement wrote."""
        mark = Mark(self.database.opened.store, line, sequence, item.save.change.tree.digest)
        self._finish(item, Written(item.save.checkpoint_id, mark, "head"))

    def _run_by_rules(self, item: _Item) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or task.exception():
                self._leave_undone()
                self._finish(item, asyncio.CancelledError())

        self.pool.spawn(self._decide_by_rules(item)).add_done_callback(ended)

    async def _run(self, items: Sequence[_Item], deadline: float) -> dict[Line, tuple[int, int]]:
        """Run the statement; return each written save's place, with its line's key and sequence."""
        database, is_indexed = self.database, items[0].is_indexed
        fast = database.fast
        lone: dict[_Item, tuple[Any, ...]] = {}
        # The statement of a group opens every partition; that of one save touches its line's.
        if database.opened.has_partitions or len(items) == 1:
            ordered = sorted(items, key=lambda one: one.save.thread_id)  # as they lock
            made = ((item, self._make_lone_values(item)) for item in ordered)
            lone = {item: values for item, values in made if values is not None}
        won: dict[Line, tuple[int, int]] = {}
        async with self.pool.lease_driver() as connection:
            with self._watch_duration():
                for (touches, keeps), append in fast.append[is_indexed].items():
                    some = [
                        item
                        for item in lone
                        if item.keeps_some == keeps
                        and (item.line not in won if touches else not item.is_refused)
                    ]
                    if not some:
                        continue
                    appended = [lone[it] for it in some]
                    left = _compute_seconds_left(deadline)
                    found = await connection.fetchmany(append, appended, timeout=left)
                    lines = {it.row.line: it.line for it in some if it.row}
                    won |= {lines[it["line"]]: (it["line"], it["sequence"]) for it in found}
                others = [(it.row, it) for it in items if it.row and it.line not in won]
                if others:
                    rows = [(*row, *item.make_recorded()) for row, item in others]
                    are_first = all(row.line is None for row, _ in others)
                    group = fast.group[is_indexed, database.opened.user_id_type, are_first]
                    of = database.tenancy
                    common = SaveGroup(of.tenant, of.store, 1 + is_indexed, of.layout)
                    columns = zip(*rows, strict=True)
                    left = _compute_seconds_left(deadline)
                    for row in await connection.fetch(group, *common, *columns, timeout=left):
                        line = row["thread_id"], row["namespace"]
                        won[line] = row["line"], row["sequence"]
        return won

    def _make_lone_values(self, item: _Item) -> tuple[Any, ...] | None:
        """Return the parameters of the lone save's statement; ``None`` if it takes no such save."""
        row = item.row
        if row is None:
            return None
        is_frames = row.basis is not None
        known, digest = row.basis, row.basis_digest
        if not is_frames:
            known, digest = row.expected, row.expected_digest
        if row.line is None or known is None or digest is None:
            return None
        is_held = row.is_free or (row.expected, row.expected_digest) == (known, digest)
        tenant, store = self.database.tenant, self.database.opened.store
        lone = LoneSave(tenant, store, known, digest, is_held, is_frames)
        return (*lone, *_OF_ROW[item.is_indexed](row), *item.make_recorded())

    @contextmanager
    def _watch_duration(self) -> Iterator[None]:
        worker = asyncio.current_task()
        over = self._start_timer(worker)
        self._at_work.add(worker)
        try:
            yield
        finally:
            over.cancel()
            self._at_work.discard(worker)

    def _start_timer(self, worker: object) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._give_way, worker)

    async def _decide_by_rules(self, item: _Item) -> None:
        """Write a save in a transaction under the full rules."""
        database = self.database

        def body(connection: Connection) -> Written:
            repository = database.make_repository(connection)
            database.opened.has_index = repository.has_index
            written = repository.save(item.save)
            if item.charge is not None:
                item.charge.note_written(repository.opened_threads, repository.appended_bytes)
            if item.call is not None:
                item.call.record(connection, repository.tenancy, written)
            return written

        def begin(connection: Connection) -> None:
            database.begin_write(connection, _compute_seconds_left(item.deadline))

        result: Written | Exception
        try:
            _compute_seconds_left(item.deadline)  # before it waits for a connection
            with observe.enter(item.operation):
                result = await self.pool.retry(lambda: self.pool.run_transaction(body, begin))
        except Exception as exc:  # noqa: BLE001  (raised in the caller)
            result = exc
        self._finish(item, result)


def _select_awaited(items: deque[_Item]) -> deque[_Item]:
    return deque(it for it in items if not it.done.done())


def make_row(save: Save, store: str, *, has_index: bool, users: UserIdType) -> SaveRow | None:
    """Return a save's fields for the statement; ``None`` if it is not an append at the head."""
    append = versions.make_append(save, store)
    if append is None:
        return None
    claim = save.claim
    if claim and not (append.line is None and is_user_id(str(claim.user_id), users)):
        return None
    head, basis, payload = append.head, append.basis, append.payload
    added, words = None, None
    if has_index:
        added = frames.extract_text(payload, UNLIMITED).replace("\0", " ")
        parts = list(split_lexemes(added))
        if len(parts) > 1:
            return None
        words = " ".join(parts[0]) if parts else ""
    return SaveRow(
        save.thread_id,
        save.namespace,
        append.line,
        head.sequence if head else None,
        head.digest if head else None,
        append.accepts_any_head,
        save.thread_must_exist,
        basis.sequence if basis else None,
        basis.digest if basis else None,
        save.writer,
        save.run,
        save.checkpoint_id,
        save.change.tree.digest,
        save.change.tree.state_bytes,
        payload,
        dump_jsonb(save.metadata),
        dump_jsonb(save.labels),
        added,
        words,
        save.keep_last,
        save.ttl_seconds,
        None if save.ttl_seconds is None else compute_ttl_slack(save.ttl_seconds),
        save.turn,
        claim.user_id if claim else None,
        claim.name if claim else None,
        dump_jsonb(claim.metadata if claim else None),
    )
