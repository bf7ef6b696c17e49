"""Heads and segments: a head names the immutable segments that hold the older versions.

A head holds the lines of all namespaces, the newest versions (the tail), the table of segments,
and four bytes of the digest of each checkpoint id in them. A save replaces the head only. A tail
that is full becomes a segment before the head is written, and four neighbours of a size become one.
What no head names is removed by ``sweep`` once it is a day old.
"""

from __future__ import annotations

import hashlib
import operator
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, TypeVar

from locus_store.backends.documents import bundles, deriving
from locus_store.backends.documents.bundles import Bundle
from locus_store.backends.documents.objects import ObjectDocuments, digest
from locus_store.backends.documents.protocol import (
    LAST,
    Body,
    ChangedError,
    DocumentForm,
    Draft,
    Parsed,
)
from locus_store.backends.documents.segments import (
    GoneError,
    MessageSegment,
    Segment,
    SegmentedHistory,
    SegmentReader,
    Source,
    make_segment,
    read_messages,
)
from locus_store.errors import IntegrityError, LocusStoreError, SchemaError
from locus_store.types import ArchivedMessage
from locus_store.types.logs import Outbox
from locus_store.versions import Line
from locus_store.versions.histories import History
from locus_store.versions.threads import Thread, ThreadTransaction, settle

TAIL_BYTES: Final = 32 * 1024
"""A larger tail becomes a segment."""

FAN: Final = 4
"""So many neighbours of a size become one segment."""

TOKENS: Final = 32
"""Writes that a head remembers, so that a lost reply is recognised."""

GARBAGE_AGE: Final = timedelta(days=1)
"""Younger segments may belong to a writer that has not written its head yet."""

_TIMES: Final = ("created_at", "active_at", "expires_at")

Named = TypeVar("Named", Segment, MessageSegment)


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The facts of a head beside its thread."""

    size: int
    table: tuple[Segment, ...] = ()
    messages: tuple[MessageSegment, ...] = ()
    """The segments that hold the older messages, in their order."""

    revision: int = 0
    tokens: tuple[str, ...] = ()
    """Of the last writes, the newest last."""

    is_activity: bool = False
    """The last write was the thread's last activity."""

    digest: bytes = b""
    """Of all that a write may change."""

    awaited: Collection[deriving.Place] = ()
    """Versions whose derived documents are not known to be written."""

    def list_names(self) -> list[str]:
        return [*(it.name for it in self.table), *(it.name for it in self.messages)]


class SegmentedForm(DocumentForm):
    """Threads as heads and segments.

    Args:
        documents: Where they are stored.
    """

    documents: ObjectDocuments

    derives: ClassVar[bool] = False
    """The storage derives documents from versions; see ``deriving``."""

    def __init__(self, documents: ObjectDocuments) -> None:
        super().__init__(documents)
        self.reader = SegmentReader(documents)

    def clear(self) -> None:
        self.reader.clear()

    def limit(self, max_bytes: int) -> None:
        self.reader.limit(max_bytes)

    def compute_active_at(self, document: Parsed, at: datetime | None) -> datetime:
        active_at = document.thread.active_at
        # Else a list would read all heads that clocks may have in another order.
        return max(at, active_at) if at and document.end.is_activity else active_at

    def share(self, thread: Thread) -> Thread:
        return thread.copy()

    def parse(self, content: bytes, thread_id: str) -> tuple[Thread, HeadFacts]:
        where = self.documents.locate(thread_id)
        try:
            return self._parse_head(content, thread_id)
        except SchemaError as exc:
            raise SchemaError(f"{where}: {exc}") from exc
        except GoneError:  # the head was replaced meanwhile
            raise
        except IntegrityError as exc:
            raise IntegrityError(f"{where} is damaged: {exc}. {self.documents.remedy}") from exc
        except (LookupError, TypeError, ValueError, StopIteration) as exc:
            reason = f"it holds what no save writes ({exc!r:.100})"
            raise IntegrityError(f"{where} is damaged: {reason}") from exc

    def _parse_head(self, content: bytes, thread_id: str) -> tuple[Thread, HeadFacts]:
        parts = bundles.unpack(content)
        facts = parts.describe()
        if facts["thread_id"] != thread_id:
            raise IntegrityError(f"it is of the thread {facts['thread_id']!r}, not {thread_id!r}")
        size = sum(it[3] for it in facts["segments"])
        prints, payloads = parts.payloads[:size], parts.payloads[size:]
        head = HeadFacts(
            size=len(content),
            table=tuple(_parse_table(facts["segments"], prints)),
            messages=tuple(MessageSegment(*it) for it in facts["message_segments"]),
            revision=parts.note["revision"],
            tokens=tuple(parts.note["tokens"]),
            is_activity=parts.note["active"],
            digest=_digest(parts),
            awaited=deriving.parse_places(parts.note.get("awaited", {})),
        )
        return self._make_thread(facts, bundles.parse_bundle(facts, payloads), head), head

    def _make_thread(self, facts: dict[str, Any], tail: Bundle, head: HeadFacts) -> Thread:
        thread = Thread(**{name: facts[name] for name in (*bundles.THREAD, *_TIMES)})
        for name in _TIMES:
            setattr(thread, name, bundles.parse_time(facts[name]))
        thread.logs = {it.namespace: it for it in map(bundles.parse_log, facts["logs"])}
        thread.outbox = Outbox.from_json(facts["outbox"])
        thread.delivered = facts["delivered"]
        thread.load_turns(facts.get("turns", {}))
        lines = map(bundles.parse_line, facts["lines"])
        thread.histories = self._make_histories(thread.thread_id, lines, tail, head)
        older = read_messages(self.reader, thread.thread_id, head.messages)
        thread.messages = [message for it in (*older, tail) for message in it.messages]
        return thread

    def _make_histories(
        self, thread_id: str, lines: Iterable[tuple[str, Line]], tail: Bundle, head: HeadFacts
    ) -> dict[str, History]:
        source = Source(self.reader, thread_id, head.table)
        return {
            name: SegmentedHistory(line, _make_history(name, line, tail), source)
            for name, line in lines
        }

    def draft(self, transaction: ThreadTransaction, old: Parsed | None) -> Draft | None:
        thread, before = transaction.thread, old.end if old else HeadFacts(0)
        assert thread is not None  # noqa: S101  (the caller deletes it else)
        settle(transaction)
        plan = [it for it in (self._keep_segment(thread, one) for one in before.table) if it]
        tail = self._collect_tail(thread)
        beside: deriving.Changes | None = None
        if self.derives:
            beside = deriving.derive_changes(
                old.thread if old else None,
                thread,
                tail,
                before.awaited,
                revision=before.revision + 1,
                adds_only=transaction.adds_only,
            )
        if tail.size > TAIL_BYTES:
            plan.append(_seal(thread, tail))
        self._merge(thread.thread_id, plan)
        made = {secrets.token_hex(8): it for it in plan if isinstance(it, Bundle)}
        table = _list_entries(plan, made, make_segment)
        messages, tail.messages = self._seal_messages(thread, old, made)
        is_activity = thread.active_at == transaction.now
        head = HeadFacts(0, table, messages, is_activity=is_activity)
        return self._draft(thread, tail, head, before, made, beside=beside)

    def _draft(
        self,
        thread: Thread,
        tail: Bundle,
        head: HeadFacts,
        before: HeadFacts,
        output: dict[str, Bundle],
        *,
        beside: deriving.Changes | None,
    ) -> Draft | None:
        token = secrets.token_hex(8)
        tokens = (*before.tokens, token)[-TOKENS:]
        note: dict[str, Any] = {
            "revision": before.revision + 1,
            "tokens": tokens,
            "active": head.is_activity,
        }
        if beside is not None:
            note["awaited"] = deriving.describe_places(beside.written)
        prints = b"".join(it.prints for it in head.table)
        content = bundles.make_content(_describe_head(thread, head), tail, note, prints)
        if _digest(content) == before.digest:
            return None
        packed = bundles.pack(content)
        head = replace(
            head,
            size=len(packed),
            revision=before.revision + 1,
            tokens=tokens,
            digest=_digest(content),
            awaited=beside.written if beside else (),
        )
        lines = ((name, it.line.copy()) for name, it in thread.histories.items())
        histories = self._make_histories(thread.thread_id, lines, tail, head)
        kept = replace(thread, histories=histories)
        dropped = sorted(set(before.list_names()).difference(head.list_names()))
        gone = beside.removed if beside else ()
        now, body = self.documents.read_clock(), Body(0, packed, beside)
        return Draft(body, kept, head, dropped, gone, output, token, now)

    def _keep_segment(self, thread: Thread, segment: Segment) -> Segment | Bundle | None:
        """Return what an edited thread still has of a segment, or its new content, if any."""
        histories = [thread.histories.get(it) for it in segment.spans]
        if all(isinstance(it, SegmentedHistory) and it.opened is None for it in histories):
            return segment
        left, is_whole = Bundle(), True
        for namespace in segment.spans:
            part, all_of_it = self._keep_namespace(thread, segment, namespace)
            left.add(part)
            is_whole = is_whole and all_of_it
        return segment if is_whole else left or None

    def _keep_namespace(
        self, thread: Thread, segment: Segment, namespace: str
    ) -> tuple[Bundle, bool]:
        """Return what is left of a namespace in a segment, and whether that is all."""
        history = thread.histories.get(namespace)
        if not isinstance(history, SegmentedHistory):
            return Bundle(), False
        if history.opened is None:
            bundle = self.reader.read(thread.thread_id, [segment.name])[0]
        else:
            bundle = history.opened[segment.name]
        rows = bundle.rows.get(namespace, {})
        writes = [it for it in bundle.writes if it[0] == namespace]
        if history.opened is None:
            return Bundle({namespace: rows} if rows else {}, writes), True
        left = {n: it for n, it in rows.items() if history.rows.get(n) is it}
        still = [it for it in writes if _is_in(history, it[1])]
        is_all = (len(left), len(still)) == (len(rows), len(writes))
        return Bundle({namespace: left} if left else {}, still), is_all

    def _collect_tail(self, thread: Thread) -> Bundle:
        """Return what no segment holds."""
        tail = Bundle()
        for namespace, history in thread.histories.items():
            own, sealed = history, set[int]()
            if isinstance(history, SegmentedHistory):
                own = history.own
                for bundle in (history.opened or {}).values():
                    sealed |= {id(it) for it in bundle.rows.get(namespace, {}).values()}
                    sealed |= {id(it) for _, it in bundle.writes}
            for row in own.rows.values():
                if id(row) not in sealed:
                    tail.put(namespace, row)
            for of_checkpoint in own.writes.values():
                there = (it for it in of_checkpoint.values() if id(it) not in sealed)
                tail.writes += [(namespace, it) for it in there]
        return tail

    def _seal_messages(
        self, thread: Thread, old: Parsed | None, output: dict[str, Bundle]
    ) -> tuple[tuple[MessageSegment, ...], list[ArchivedMessage]]:
        """Return the table of messages, and those that stay in the head; ``output`` gets segments.

        The segments before the first message that differs stay as they are.
        """
        plan: list[MessageSegment | Bundle] = []
        at, now = 0, thread.messages
        before = old.thread.messages if old else []
        for segment in old.end.messages if old else ():
            end = at + segment.count
            is_same = now is before or (
                end <= len(now) and all(map(operator.is_, now[at:end], before[at:end]))
            )
            if not is_same:
                break
            plan.append(segment)
            at = end
        tail = Bundle(messages=now[at:])
        if tail.size > TAIL_BYTES:
            plan.append(tail)
            tail = Bundle()
        self._merge(thread.thread_id, plan)
        new = {secrets.token_hex(8): it for it in plan if isinstance(it, Bundle)}
        output |= new
        entries = _list_entries(
            plan, new, lambda name, it: MessageSegment(name, len(it.messages), it.size)
        )
        return entries, tail.messages

    def _merge(self, thread_id: str, plan: list[Named | Bundle]) -> None:
        """Replace neighbours of a size by one, until there are fewer than ``FAN`` of each."""
        while (at := _find_mergeable(plan)) is not None:
            some = plan[at : at + FAN]
            stored = [it.name for it in some if not isinstance(it, Bundle)]
            read = dict(zip(stored, self.reader.read(thread_id, stored), strict=True))
            merged = Bundle()
            for part in some:
                merged.add(part if isinstance(part, Bundle) else read[part.name])
            plan[at : at + FAN] = [merged]

    def prepare(self, draft: Draft) -> None:
        self._write_sealed(draft)
        if self._is_late(draft):
            raise ChangedError  # the next attempt writes them again, before they may be removed

    def _is_late(self, draft: Draft) -> bool:
        """Return whether the segments of a draft may soon be removed, unless a head names them."""
        return bool(draft.sealed) and self.documents.read_clock() - draft.began > GARBAGE_AGE / 2

    def _write_sealed(self, draft: Draft) -> None:
        if not draft.sealed:
            return
        assert draft.thread is not None  # noqa: S101  (its head names them)
        written = {
            name: (bundles.pack(bundles.make_content({}, bundle, {})), bundle)
            for name, bundle in draft.sealed.items()
        }
        self.reader.write(draft.thread.thread_id, written)

    def draft_deletion(self, old: Parsed) -> Draft:
        gone = deriving.find_removed(old.thread) if self.derives else ()
        return replace(super().draft_deletion(old), dropped=old.end.list_names(), removed=gone)

    def finish(self, thread_id: str, draft: Draft) -> None:
        if self._is_late(draft):  # this process was suspended, and they may have been removed
            self._write_sealed(draft)
        if draft.dropped:
            self.reader.drop(thread_id, draft.dropped)

    def abandon(self, thread_id: str, draft: Draft) -> None:
        if draft.sealed:
            self.reader.drop(thread_id, draft.sealed)

    def holds(self, content: bytes, draft: Draft) -> bool:
        parts = bundles.unpack(content)
        head = parts.describe()
        named = {it[0] for it in (*head["segments"], *head["message_segments"])}
        return draft.token in parts.note["tokens"] or not named.isdisjoint(draft.sealed)

    def sweep(self, read: Callable[[str], Parsed | None]) -> None:
        """Delete the segments that no head names, once they are a day old by the server's clock."""
        unnamed = self._find_unnamed(read, self.documents.read_clock() - GARBAGE_AGE)
        self.documents.objects.discard(self.documents.list_segment_names(unnamed))

    def find_leftovers(self, read: Callable[[str], Parsed | None]) -> set[str]:
        return set(self.documents.list_segment_names(self._find_unnamed(read, LAST)))

    def _find_unnamed(
        self, read: Callable[[str], Parsed | None], limit: datetime
    ) -> dict[str, set[str]]:
        """Return older segments that no head names, by the digests of their threads."""
        old: dict[str, set[str]] = {}
        for thread, name, modified_at in self.documents.list_segments():
            if modified_at < limit:
                old.setdefault(thread, set()).add(name)
        if not old:
            return {}
        heads = [it for it in self.documents.keys("") if digest(it) in old]
        for thread_id, names in self.documents.run_each(lambda it: _scan(read, it), heads):
            if names is None:
                del old[digest(thread_id)]
            else:
                old[digest(thread_id)] -= names
        return old


def _scan(read: Callable[[str], Parsed | None], thread_id: str) -> tuple[str, set[str] | None]:
    """Return the segments that a thread's head names; ``None`` if it cannot be read."""
    try:
        found = read(thread_id)
    except LocusStoreError:
        return thread_id, None
    return thread_id, set(found.end.list_names()) if found else set()


def _parse_table(rows: list[list[Any]], prints: bytes) -> Iterator[Segment]:
    for name, size, spans, length, oldest, newest in rows:
        ours, prints = prints[:length], prints[length:]
        times = datetime.fromisoformat(oldest), datetime.fromisoformat(newest)
        yield Segment(name, size, spans, ours, *times)


def _make_history(namespace: str, line: Line, tail: Bundle) -> History:
    """Return the part of a namespace that is in the head."""
    history = History(namespace, line, is_settled=True)
    rows = tail.rows.get(namespace, {})
    for sequence in sorted(rows):
        history.put(rows[sequence])
    for name, write in tail.writes:
        if name == namespace:
            history.put_write(write)
    return history


def _describe_head(thread: Thread, head: HeadFacts) -> dict[str, Any]:
    return {
        **{name: getattr(thread, name) for name in (*bundles.THREAD, *_TIMES)},
        "logs": [bundles.describe_log(it) for it in thread.logs.values()],
        "lines": [bundles.describe_line(it) for it in thread.histories.values()],
        "segments": [it.to_json() for it in head.table],
        "message_segments": [[it.name, it.count, it.size] for it in head.messages],
        "outbox": thread.outbox and thread.outbox.to_json(),
        "delivered": thread.delivered,
        **({"turns": thread.dump_turns()} if thread.tickets else {}),
    }


def _digest(content: bundles.ObjectContent) -> bytes:
    return hashlib.sha256(content.facts + content.payloads).digest()


def _is_in(history: History, write: Any) -> bool:
    return (
        history.get_writes(write.checkpoint_id).get((write.write.task_id, write.write.idx)) is write
    )


def _seal(thread: Thread, tail: Bundle) -> Bundle:
    """Move what becomes a segment out of the tail: all but each head, its parent and its writes.

    The next save looks at those. They are moved as well if they fill half of the tail.
    """
    kept = Bundle()
    for namespace, rows in tail.rows.items():
        head = rows.get(thread.histories[namespace].line.head or 0)
        for row in (rows.get(head.record.parent or 0), head) if head else ():
            if row is not None:
                kept.put(namespace, row)
    ids = {(namespace, row.record.checkpoint_id) for namespace, row in kept.iterate_rows()}
    kept.writes = [it for it in tail.writes if (it[0], it[1].checkpoint_id) in ids]
    if kept.size > TAIL_BYTES // 2:
        kept = Bundle()
    moved = Bundle()
    for namespace, row in tail.iterate_rows():
        if row.record.sequence not in kept.rows.get(namespace, ()):
            moved.put(namespace, row)
    staying = {id(it) for _, it in kept.writes}
    moved.writes = [it for it in tail.writes if id(it[1]) not in staying]
    tail.rows, tail.writes = kept.rows, kept.writes
    return moved


def _compute_level(size: int) -> int:
    level = 0
    while size >= TAIL_BYTES * FAN:
        size //= FAN
        level += 1
    return level


def _find_mergeable(plan: Sequence[Named | Bundle]) -> int | None:
    """Return where ``FAN`` neighbours begin that are no larger than the last of them."""
    levels = [_compute_level(it.size) for it in plan]
    for at in range(len(plan) - FAN + 1):
        some = levels[at : at + FAN]
        if max(some) <= some[-1]:
            return at
    return None


def _list_entries(
    plan: Sequence[Named | Bundle], output: dict[str, Bundle], make: Callable[[str, Bundle], Named]
) -> tuple[Named, ...]:
    """Return the entries of the segments of a plan; ``output`` has the new ones by name."""
    names = {id(it): name for name, it in output.items()}
    return tuple(make(names[id(it)], it) if isinstance(it, Bundle) else it for it in plan)
