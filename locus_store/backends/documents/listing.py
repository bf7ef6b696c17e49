"""Lists of versions by their time, and the facts of threads, over documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import TypeAlias

from locus_store import versions
from locus_store.backend import KeepsEffects, ListsVersions, TakesTurns
from locus_store.backends.documents.protocol import Documents
from locus_store.backends.documents.threads import OverThreads
from locus_store.backends.documents.workers import move_off_loop
from locus_store.types import (
    FOREVER,
    ArchivedWrite,
    Hit,
    LineContents,
    PendingWrite,
    Save,
    Version,
    VersionsWanted,
    Written,
)
from locus_store.types.arguments import check_limit, check_names, check_text
from locus_store.types.thread_info import (
    DescribesThreads,
    PutThread,
    StoredFacts,
    ThreadFacts,
    ThreadsWanted,
    make_facts,
    require_owner,
)
from locus_store.types.turns import ThreadTurn, TurnStep
from locus_store.values.text import query_words
from locus_store.versions import turns
from locus_store.versions.histories import History, Row
from locus_store.versions.reading import Newest, is_plain
from locus_store.versions.sizes import (
    ListsStatuses,
    StatusesWanted,
    ThreadStatus,
    make_status,
    measure_message,
    parse_place,
)
from locus_store.versions.threads import Thread, ThreadTransaction

FindsText: TypeAlias = Callable[[Thread], "Hit | None"]


class DocumentVersionLists(OverThreads, ListsVersions, KeepsEffects):
    """Reads the documents of a backend."""

    @move_off_loop
    def list_writes(
        self, thread_id: str, namespace: str, checkpoint_id: str | None = None
    ) -> list[ArchivedWrite]:
        check_names(thread_id, namespace, checkpoint_id)
        thread = self._threads.read(thread_id)
        history = thread.histories.get(namespace) if thread else None
        if history is None:
            return []
        if checkpoint_id is None:
            found = history.archive().writes
        else:
            found = [*history.get_writes(checkpoint_id).values()]
        return sorted(found, key=versions.make_archive_sort_key)

    @move_off_loop
    def newest(self, wanted: VersionsWanted, limit: int) -> list[Version]:
        check_limit(limit)
        newest = Newest[tuple["Thread", "History"]](wanted, limit)
        for active_at, thread in self._iterate_candidates(wanted.thread_id):
            # A clock that went back may have left versions that are newer than the activity.
            if not (wanted.may_continue or newest.may_take(active_at)):
                break
            _add(newest, thread, wanted, limit)
        return [
            thread.get_version(history, sequence)
            for (_, _, sequence), (thread, history) in newest.get_newest()
        ]

    def _iterate_candidates(self, thread_id: str | None) -> Iterable[tuple[datetime, Thread]]:
        if thread_id is None:
            return self._threads.iterate_by_activity()
        thread = self._threads.read(thread_id)
        return [(FOREVER, thread)] if thread else []

    @move_off_loop
    def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        found = self._threads.read_all(it.thread_id for it in versions)
        threads = {it.thread_id: it for it in found}
        lines: dict[tuple[str, str, int], list[Version]] = {}
        for version in versions:
            name = version.thread_id, version.namespace, version.mark.line
            lines.setdefault(name, []).append(version)
        histories = (
            (threads[name].find_history(namespace), line, some)
            for (name, namespace, line), some in lines.items()
            if name in threads
        )
        return [
            _collect_contents(history, some)
            for history, line, some in histories
            if history and history.line.line == line
        ]


def skip_to_place(threads: Iterable[Thread], place: str | None) -> Iterator[Thread]:
    """Yield the threads behind a place: a time and an id.

    Threads of one time are in no order that the place knows, so those behind its own follow, or all
    of them if it was deleted or has new activity.

    Raises:
        InvalidArgumentError: It is none.
    """
    if place is None:
        yield from threads
        return
    at, thread_id = parse_place(place)
    later = [it for it in threads if it.active_at <= at]
    names = [it.thread_id for it in later]
    yield from later[names.index(thread_id) + 1 if thread_id in names else 0 :]


def _measure(thread: Thread) -> int:
    versions = sum(it.measure() for it in thread.histories.values())
    return versions + sum(map(measure_message, thread.messages))


def _add(
    newest: Newest[tuple[Thread, History]], thread: Thread, criteria: VersionsWanted, limit: int
) -> None:
    """Add the versions of a thread; those of segments only if they may be among the newest."""
    names = thread.histories if criteria.namespace is None else [criteria.namespace]
    histories = [history for it in names if (history := thread.find_history(it))]
    parts = [(at, history, read) for history in histories for at, read in history.iterate_parts()]
    for at, history, read in sorted(parts, key=lambda it: it[0], reverse=True):
        if not newest.may_take(at):
            break
        shown = (
            candidate
            for candidate in _iterate_visible(history, read(), criteria.before)
            if newest.takes(candidate.record.checkpoint_id, candidate.record.metadata)
        )
        for row in islice(shown, limit) if is_plain(criteria) else shown:
            place = row.created_at, history.line.line, row.record.sequence
            newest.add(place, (thread, history))


def _iterate_visible(
    history: History, rows: Mapping[int, Row], before: str | None
) -> Iterator[Row]:
    """Yield the visible versions below the one of an id, the newest first."""
    end = None if before is None else history.named(history.line, before)
    for sequence in sorted(rows, reverse=True):
        name = rows[sequence].record.checkpoint_id
        is_below = before is None or (sequence < end.sequence if end else name < before)
        if is_below and versions.is_visible(history.line, sequence):
            yield rows[sequence]


def list_writes(history: History, checkpoint_id: str) -> list[PendingWrite]:
    """Return the pending writes of a checkpoint, in the order of their tasks."""
    found = (it.write for it in history.get_writes(checkpoint_id).values())
    return sorted(found, key=versions.make_write_sort_key)


def _collect_contents(history: History, some: Sequence[Version]) -> LineContents:
    """Return what the states of versions of a namespace are made of."""
    ends: dict[int, int] = {}
    for version in some:
        if row := history.get_row(version.mark.sequence):
            ends[row.record.chain] = max(version.mark.sequence, ends.get(row.record.chain, 0))
    records = [
        (sequence, chain, payload)
        for chain, last in ends.items()
        for sequence, payload in history.payloads(chain, last)
    ]
    return LineContents(
        history.line.line,
        sorted(records),
        {
            version.checkpoint_id: writes
            for version in some
            if (writes := list_writes(history, version.checkpoint_id))
        },
    )


class DocumentThreadInfo(OverThreads, DescribesThreads, ListsStatuses):
    """Reads and changes the documents of a backend."""

    _iterate_recent: Callable[[int], Iterator[Thread]]
    _make_hit: Callable[[str, Thread, list[str]], Hit | None]

    @move_off_loop
    def find_statuses(self, criteria: StatusesWanted) -> list[ThreadStatus]:
        """See ``ListsStatuses``; each document is read once, and segments only for a text."""
        ids, search = self._make_search(criteria.text)
        ids = ids if criteria.thread_ids is None else criteria.thread_ids
        threads = (
            self._iterate_recent(criteria.limit + 1)
            if ids is None
            else sorted(
                (it for it in self._threads.read_all(ids) if it.exists),
                key=lambda it: it.active_at,
                reverse=True,
            )
        )
        statuses = ((it, make_status(it)) for it in skip_to_place(threads, criteria.place))
        others = replace(criteria, text=None)
        looked = ((it, one.with_hit(search(it))) for it, one in statuses if others.takes(one))
        taken = (it for it in looked if criteria.takes(it[1]))
        return [
            replace(status, stored_bytes=_measure(thread))
            for thread, status in islice(taken, criteria.limit)
        ]

    def _make_search(self, text: str | None) -> tuple[Collection[str] | None, FindsText]:
        """Return the ids of the threads that may have a text, ``None``: many, and its search."""
        words = query_words(text) if text is not None else []
        return None, lambda it: self._make_hit(it.thread_id, it, words) if words else None

    async def put_facts(self, put: PutThread) -> None:
        await self._threads.make(put.thread_id, lambda it: put_facts(it, put))

    async def facts_of(self, thread_id: str) -> ThreadFacts | None:
        found = await self._threads.look(self._threads.read, thread_id)
        return _make_facts(found) if found and found.exists else None

    async def clear_versions(self, thread_id: str) -> None:
        check_text("thread_id", thread_id)
        await self._threads.make(
            thread_id, lambda it: versions.clear(it, thread_id, ""), removes=True
        )

    @move_off_loop
    def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        size = wanted.offset + wanted.limit
        threads = self._iterate_recent(size)
        own = (it for it in threads if wanted.user_id in {None, it.user_id})
        found = (it for it in own if wanted.takes(it.name, it.metadata))
        return [_make_facts(it) for it in islice(found, wanted.offset, size)]


class DocumentTurns(OverThreads, TakesTurns):
    """Keeps the turns of a thread in its document, so that they decide each put of it."""

    _documents: Documents

    async def step_turn(self, step: TurnStep) -> list[ThreadTurn]:
        if step.entry == "none":  # mostly without effect
            guard = await self._threads.look(self._read_guard, step.thread_id)
            if turns.take_step(guard.tickets, step, guard.now) == [*guard.tickets]:
                return turns.describe_tickets(*guard)

        def take(transaction: ThreadTransaction) -> list[ThreadTurn]:
            tickets = turns.take_step(transaction.tickets, step, transaction.now)
            transaction.tickets = tickets
            return turns.describe_tickets(step.thread_id, tickets, transaction.now)

        return await self._threads.make(step.thread_id, take)

    async def end_turn(self, thread_id: str, turn_key: str | None = None) -> bool:
        check_text("thread_id", thread_id)

        def end(transaction: ThreadTransaction) -> bool:
            found = turns.end_tickets(transaction.tickets, turn_key, transaction.now)
            transaction.tickets, is_ended = found
            return is_ended

        return bool(await self._threads.change(thread_id, end))

    @move_off_loop
    def list_turns(self, thread_id: str | None = None, limit: int = 100) -> list[ThreadTurn]:
        check_limit(limit)
        ids = self._documents.keys() if thread_id is None else iter([thread_id])
        found = (
            turn
            for guard in self._documents.run_each(self._read_guard, ids)
            for turn in turns.describe_tickets(*guard)
        )
        return list(islice(found, limit))

    def require_turn(self, thread_id: str, number: int | None) -> None:
        """Refuse a write that the turn of a thread does not permit; see ``turns.require_turn``."""
        turns.require_turn(self._read_guard(thread_id), number)

    def _read_guard(self, thread_id: str) -> turns.ReadGuard:
        """Return the tickets of a thread, which need not be live."""
        found = self._threads.read_parsed(self._documents, thread_id)
        tickets = found.thread.tickets if found else ()
        return turns.ReadGuard(thread_id, tickets, self._documents.read_clock())


def require_its_owner(transaction: ThreadTransaction, put: PutThread) -> None:
    """Refuse a put into another user's thread, which ``put_facts`` refuses too."""
    owner = transaction.thread.user_id if transaction.thread else None
    require_owner(put.thread_id, owner, put.user_id)


def claim_and_save(transaction: ThreadTransaction, save: Save) -> Written:
    """Save a version, and claim its thread if the save says so; see ``StorageBackend.commit``."""
    turns.require_turn(transaction, save.turn)
    if save.claim is None:
        return versions.save(transaction, save)
    require_its_owner(transaction, save.claim)
    written = versions.save(transaction, save)
    put_facts(transaction, save.claim)
    return written


def put_facts(transaction: ThreadTransaction, put: PutThread) -> None:
    """Store a thread's facts; see ``DescribesThreads.put_facts``."""
    thread = transaction.thread or transaction.begin()
    stored = put.apply_to(
        StoredFacts(thread.user_id, thread.name, thread.metadata), thread.active_at
    )
    transaction.adds_only = False  # the document's first line changes
    thread.user_id, thread.name, thread.metadata = stored


def _make_facts(thread: Thread) -> ThreadFacts:
    stored = deepcopy(thread.metadata)
    times = {"created_at": thread.created_at, "active_at": thread.active_at}
    return make_facts(thread.thread_id, thread.user_id, thread.name, stored, **times)
