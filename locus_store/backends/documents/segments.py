"""Segments: immutable objects with the older versions of a thread, and the histories over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.documents.bundles import Bundle, unpack_segment
from locus_store.errors import IntegrityError, SchemaError
from locus_store.runtime.recent import Recent
from locus_store.types import FOREVER, ArchivedWrite
from locus_store.versions import Line, Record
from locus_store.versions.histories import History, Row

if TYPE_CHECKING:
    from locus_store.backends.documents.objects import ObjectDocuments

PRINT_BYTES: Final = 4
"""The part of a checkpoint id's digest that the head keeps."""

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of segments that one object keeps."""


class GoneError(IntegrityError):
    """A segment does not exist: the head that named it was replaced, or the storage lost it."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class Segment:
    """An entry of the table in a head."""

    name: str
    size: int
    """See ``Bundle.size``."""

    spans: dict[str, list[list[int]]]
    """The first and last sequence of each run of versions, by namespace."""

    prints: bytes
    """The digests of the checkpoint ids that it has a version or a write of."""

    oldest: datetime
    newest: datetime

    def iterate_sequences(self, namespace: str) -> Iterator[int]:
        for first, last in self.spans.get(namespace, ()):
            yield from range(first, last + 1)

    def measure(self, namespace: str) -> int:
        """Return about how many bytes the versions of a namespace have."""
        counts = {name: len([*self.iterate_sequences(name)]) for name in self.spans}
        return self.size * counts[namespace] // (sum(counts.values()) or 1)

    def has_versions(self, namespace: str, first: int, last: int) -> bool:
        """Return whether it has versions from ``first`` to ``last``."""
        return any(begin <= last and first <= end for begin, end in self.spans.get(namespace, ()))

    def may_name(self, namespace: str, checkpoint_id: str) -> bool:
        """Return whether it may have a version or a write of a checkpoint."""
        wanted, at = make_print(namespace, checkpoint_id), -1
        while (at := self.prints.find(wanted, at + 1)) >= 0:
            if at % PRINT_BYTES == 0:
                return True
        return False

    def to_json(self) -> list[Any]:
        """Return the entry without the digests, for JSON."""
        times = self.oldest, self.newest
        return [self.name, self.size, self.spans, len(self.prints), *times]


@dataclass(frozen=True, slots=True)
class MessageSegment:
    """An entry of the table of messages in a head."""

    name: str
    count: int
    size: int


def make_print(namespace: str, checkpoint_id: str) -> bytes:
    """Return the part of a checkpoint id's digest that the head keeps."""
    text = f"{namespace}\0{checkpoint_id}".encode()
    return hashlib.sha256(text).digest()[:PRINT_BYTES]


def make_segment(name: str, bundle: Bundle) -> Segment:
    """Return the entry of a segment that holds versions or writes."""
    spans = {namespace: find_runs(sorted(rows)) for namespace, rows in bundle.rows.items()}
    spans |= {namespace: [] for namespace, _ in bundle.writes if namespace not in spans}
    ids = {(namespace, row.record.checkpoint_id) for namespace, row in bundle.iterate_rows()}
    ids |= {(namespace, it.checkpoint_id) for namespace, it in bundle.writes}
    times = [row.created_at for _, row in bundle.iterate_rows()]
    times += [it.created_at for _, it in bundle.writes]
    prints = b"".join(sorted({make_print(*it) for it in ids}))
    return Segment(name, bundle.size, spans, prints, min(times), max(times))


def find_runs(sequences: Sequence[int]) -> list[list[int]]:
    """Return the first and last number of each run in ascending numbers."""
    found = []
    for _, group in groupby(enumerate(sequences), key=lambda it: it[1] - it[0]):
        members = [sequence for _, sequence in group]
        found.append([members[0], members[-1]])
    return found


class SegmentReader:
    """Reads segments, several at once, and keeps those that were used last.

    Args:
        documents: Where they are stored.
    """

    def __init__(self, documents: ObjectDocuments) -> None:
        self._documents = documents
        self._max_bytes = KEPT_BYTES
        self.clear()

    def clear(self) -> None:
        self._kept: Recent[str, Bundle] = Recent(self._max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Keep at most this many bytes."""
        self._max_bytes = max_bytes
        self._kept.limit(max_bytes)

    def read(self, thread_id: str, names: Iterable[str]) -> list[Bundle]:
        """Return the bundles of segments; do not change them.

        Raises:
            GoneError: A segment does not exist.
            IntegrityError: A segment is damaged.
        """
        wanted = {it: self._documents.name_segment(thread_id, it) for it in names}
        found = {name: self._kept.get(where) for name, where in wanted.items()}
        missing = [wanted[name] for name, bundle in found.items() if bundle is None]
        fetched = self._documents.run_each(self._fetch, missing) if missing else ()
        read = dict(zip(missing, fetched, strict=True))
        return [bundle or read[wanted[name]] for name, bundle in found.items()]

    def _fetch(self, where: str) -> Bundle:
        found = self._documents.objects.get(where)
        place = self._documents.objects.locate(where)
        if found is None:
            raise GoneError(
                f"{place} does not exist, but the head of its thread names it; restore the object "
                "from a backup, or delete the thread",
                where,
            )
        content = found.content or b""
        try:
            bundle = unpack_segment(content)
        except (IntegrityError, SchemaError) as exc:
            raise type(exc)(f"{place}: {exc}") from exc
        self._kept.put(where, bundle, len(content))
        return bundle

    def write(self, thread_id: str, segments: dict[str, tuple[bytes, Bundle]]) -> None:
        """Put segments, several at once."""
        named = [(self._documents.name_segment(thread_id, it), *segments[it]) for it in segments]
        for where, content, bundle in self._documents.run_each(self._store, named):
            self._kept.put(where, bundle, len(content))

    def _store(self, segment: tuple[str, bytes, Bundle]) -> tuple[str, bytes, Bundle]:
        self._documents.objects.store(segment[0], segment[1])
        return segment

    def drop(self, thread_id: str, names: Iterable[str]) -> None:
        """Delete segments that no head names any more."""
        gone = [self._documents.name_segment(thread_id, it) for it in names]
        for where in gone:
            self._kept.drop(where)
        self._documents.objects.discard(gone)


def read_messages(
    reader: SegmentReader, thread_id: str, segments: Sequence[MessageSegment]
) -> list[Bundle]:
    """Return the bundles of a thread's messages; do not change them.

    Raises:
        IntegrityError: See ``SegmentReader.read``; also, a segment has more or fewer messages.
    """
    bundles = reader.read(thread_id, [it.name for it in segments])
    for segment, bundle in zip(segments, bundles, strict=True):
        if len(bundle.messages) != segment.count:
            raise IntegrityError(
                f"segment {segment.name!r} of thread {thread_id!r} has other messages than its "
                "head says"
            )
    return bundles


@dataclass(frozen=True, slots=True)
class Source:
    """The segments of a thread."""

    reader: SegmentReader
    thread_id: str
    table: tuple[Segment, ...]

    def select(self, namespace: str) -> list[Segment]:
        """Return the segments that have something of a namespace, the oldest first."""
        return [it for it in self.table if namespace in it.spans]

    def read(self, segments: Sequence[Segment]) -> list[Bundle]:
        bundles = self.reader.read(self.thread_id, [it.name for it in segments])
        for segment, bundle in zip(segments, bundles, strict=True):
            for namespace, runs in segment.spans.items():
                if not {at for run in runs for at in run} <= bundle.rows.get(namespace, {}).keys():
                    raise IntegrityError(
                        f"segment {segment.name!r} of thread {self.thread_id!r} has other versions "
                        "than its head says; restore it from a backup, or delete the thread"
                    )
        return bundles


class SegmentedHistory(History):
    """A namespace whose older versions are in segments.

    A version, or the writes of a checkpoint, are read when they are asked for. Everything is read
    when ``rows`` or another dict of all is asked for.
    """

    __slots__ = ("_source", "opened", "own")

    def __init__(self, line: Line, own: History, source: Source) -> None:
        self.namespace = own.namespace
        self.line = line
        self.is_settled = True
        self.own = own
        """The versions and writes that are in memory."""

        self._source = source
        self.opened: dict[str, Bundle] | None = None
        """The segments by name, if all were read; ``own`` has their versions then."""

    def copy(self) -> SegmentedHistory:
        copy = SegmentedHistory(self.line.copy(), self.own.copy(), self._source)
        copy.opened = self.opened
        return copy

    def measure(self) -> int:
        """See ``History``; a segment is divided by the number of versions of each namespace."""
        shares = (it.measure(self.namespace) for it in self._list_sealed())
        return self.own.measure() + sum(shares)

    def _read_whole(self) -> History:
        if self.opened is None:
            segments = self._source.select(self.namespace)
            bundles = self._source.read(segments)
            self.own = self._join(bundles)
            self.opened = {it.name: one for it, one in zip(segments, bundles, strict=True)}
        return self.own

    def _join(self, bundles: Sequence[Bundle]) -> History:
        whole = History(self.namespace, self.line)
        rows: dict[int, Row] = {}
        for bundle in bundles:
            rows |= bundle.rows.get(self.namespace, {})
        rows |= self.own.rows
        for sequence in sorted(rows):
            whole.put(rows[sequence])
        for write in self._iterate_sealed_writes(bundles):
            whole.put_write(write)
        for of_checkpoint in self.own.writes.values():
            for write in of_checkpoint.values():
                whole.put_write(write)
        return whole

    def _iterate_sealed_writes(self, bundles: Iterable[Bundle]) -> Iterator[ArchivedWrite]:
        for bundle in bundles:
            yield from (it for name, it in bundle.writes if name == self.namespace)

    @property
    def rows(self) -> dict[int, Row]:  # type: ignore[override]  # others have a field
        return self._read_whole().rows

    @property
    def by_id(self) -> dict[str, int]:  # type: ignore[override]  # others have a field
        return self._read_whole().by_id

    @property
    def by_chain(self) -> dict[int, list[int]]:  # type: ignore[override]  # others have a field
        return self._read_whole().by_chain

    @property
    def writes(self) -> dict[str, dict[tuple[str, int], ArchivedWrite]]:  # type: ignore[override]  # others have a field
        return self._read_whole().writes

    def put(self, row: Row) -> None:
        self.own.put(row)

    def put_write(self, write: ArchivedWrite) -> None:
        self.own.put_write(write)

    def _list_sealed(self) -> list[Segment]:
        """Return the segments that were not read into ``own``."""
        return self._source.select(self.namespace) if self.opened is None else []

    def get_row(self, sequence: int) -> Row | None:
        own = self.own.get_row(sequence)
        sealed, name = self._list_sealed(), self.namespace
        holding = [it for it in sealed if it.has_versions(name, sequence, sequence)]
        if own is not None or not holding:
            return own
        return self._source.read(holding[-1:])[0].rows[self.namespace][sequence]

    def list_sequences(self) -> list[int]:
        sealed = {n for it in self._list_sealed() for n in it.iterate_sequences(self.namespace)}
        return sorted(sealed.union(self.own.rows))

    def get_writes(self, checkpoint_id: str) -> dict[tuple[str, int], ArchivedWrite]:
        there = {}
        bundles = self._source.read(self._find_naming(checkpoint_id))
        for entry in self._iterate_sealed_writes(bundles):
            if entry.checkpoint_id == checkpoint_id:
                there[entry.write.task_id, entry.write.idx] = entry
        return there | self.own.get_writes(checkpoint_id)

    def _find_naming(self, checkpoint_id: str) -> list[Segment]:
        return [it for it in self._list_sealed() if it.may_name(self.namespace, checkpoint_id)]

    def named(self, line: Line, checkpoint_id: str) -> Record | None:
        own = self.own.named(line, checkpoint_id)
        if own is not None:
            return own
        for bundle in self._source.read(self._find_naming(checkpoint_id)):
            for row in bundle.rows.get(self.namespace, {}).values():
                if row.record.checkpoint_id == checkpoint_id:
                    return row.record
        return None

    def payloads(
        self, chain: int, upto: int | None = None, after: int = 0
    ) -> list[tuple[int, bytes]]:
        first, last = max(chain, after + 1), upto or self.line.last_sequence
        met = [it for it in self._list_sealed() if it.has_versions(self.namespace, first, last)]
        rows = [it.rows[self.namespace] for it in self._source.read(met)]
        found = [
            (sequence, row.payload)
            for some in rows
            for sequence, row in some.items()
            if row.record.chain == chain and first <= sequence <= last
        ]
        return sorted(found + self.own.payloads(chain, upto, after))

    def remove(self, sequence: int) -> None:
        self._read_whole().remove(sequence)

    def iterate_parts(self) -> Iterator[tuple[datetime, Callable[[], Mapping[int, Row]]]]:
        yield FOREVER, lambda: self.own.rows
        for segment in self._list_sealed():
            yield segment.newest, partial(self._get_rows, segment)

    def _get_rows(self, segment: Segment) -> Mapping[int, Row]:
        return self._source.read([segment])[0].rows.get(self.namespace, {})

    def find_newest_at(self) -> datetime | None:
        times = [it.newest for it in self._list_sealed()]
        own = self.own.find_newest_at()
        return max([*times, own] if own else times, default=None)

    def find_older_than(self, limit: datetime) -> list[int]:
        if any(it.oldest < limit for it in self._list_sealed()):
            return self._read_whole().find_older_than(limit)
        return self.own.find_older_than(limit)
