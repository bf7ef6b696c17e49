"""Segments: payloads of a chain's records joined into one, which takes half of their bytes.

A segment replaces the payloads of its records. It also has what they change together, which a load
reads in their place. Where records are sealed, both are sealed again: the records in one piece,
which compresses as records in clear do. Records that have payloads of their own
are behind all segments of their chain: a change of a record puts back those of its segment and of
the later ones.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

from locus_store.errors import IntegrityError
from locus_store.types import LineContents, PendingWrite, Version
from locus_store.values import frames
from locus_store.values.encoding import (
    UNLIMITED,
    TooLargeError,
    join_frames,
    make_frame,
    pack_frame,
    unpack_record,
)
from locus_store.values.sealing import (
    RECORD,
    Place,
    RecordOpener,
    SubjectKey,
    is_sealed,
    open_records,
    open_sealed,
    reseal,
    seal,
)
from locus_store.versions.lines import make_write_sort_key

RECORDS: Final = 64
"""A segment has so many records, unless they are large, or the first of their chain."""

FEWEST_RECORDS: Final = 16
"""The first segment of a chain, which may begin between two looks, has at least so many."""

RECORD_BYTES: Final = 16 * 1024 * 1024
"""A segment's records take no more than this, uncompressed."""

MOST_BYTES: Final = 2 * RECORD_BYTES + 4096
"""A segment is not longer, uncompressed."""

_ENTRY: Final = struct.Struct("<QI")
"""A record's sequence and the length of its payload; the first is the chain, all together."""


class UnjoinedRecord(NamedTuple):
    """A record with a payload of its own."""

    sequence: int
    digest: bytes
    payload: bytes


class RecordSegment(NamedTuple):
    """A stored segment, which may be damaged: the records of a chain from ``first`` to ``last``."""

    chain: int
    first: int
    last: int
    payload: bytes

    def split_records(self) -> dict[int, bytes]:
        """Return the payload of each record, by its sequence, ascending.

        Raises:
            IntegrityError: The segment is damaged.
        """
        body, begin, names, lengths = self._unpack_body()
        records, key = body[begin + lengths[0] :], None
        if is_sealed(body[begin : begin + 1]):
            place: Place = ("segment", self.chain, self.first, self.last)
            key, records = open_sealed(records, place)
            records = join_frames(records, MOST_BYTES)
        if sum(lengths[1:]) != len(records):
            raise self._make_error("is damaged")
        ends = list(accumulate(lengths[1:], initial=0))
        found = {at: records[ends[nth] : ends[nth + 1]] for nth, at in enumerate(names[1:])}
        return found if key is None else {at: seal(key, it, RECORD) for at, it in found.items()}

    def split_payloads(self, after: int, upto: int) -> list[tuple[int, bytes]]:
        """Return the payloads from one version to another, as (sequence, payload), ascending."""
        if after >= self.first or upto < self.last:
            return [it for it in self.split_records().items() if after < it[0] <= upto]
        return [(self.last, self.join_payloads()[0])]

    def join_payloads(self) -> tuple[bytes, Sequence[int]]:
        """Return what the records change together, and their sequences."""
        body, begin, names, lengths = self._unpack_body()
        return body[begin : begin + lengths[0]], names[1:]

    @property
    def is_sealed(self) -> bool:
        """Its records are sealed: only with keys are they divided, and they have no text."""
        body, begin, *_ = self._unpack_body()
        return is_sealed(body[begin : begin + 1])

    def _make_error(self, what: str) -> IntegrityError:
        return IntegrityError(f"segment {self.first} to {self.last} of a thread's versions {what}")

    def _unpack_body(self) -> tuple[bytes, int, tuple[int, ...], tuple[int, ...]]:
        """Return the body, where its payloads begin, and the names and lengths of its entries.

        A load of a long thread has no object for each record.
        """
        try:
            body = join_frames(self.payload, MOST_BYTES)
        except TooLargeError:
            raise self._make_error("is larger than any that is written") from None
        count = int.from_bytes(body[:4], "little")
        begin = 4 + count * _ENTRY.size
        if not 1 < count <= len(body) // _ENTRY.size or begin > len(body):
            raise self._make_error("is damaged")
        entries = struct.unpack_from("<" + "QI" * count, body, 4)
        names, lengths = entries[::2], entries[1::2]
        size = len(body) - begin
        is_whole = lengths[0] < size if is_sealed(body[begin:]) else sum(lengths) == size
        if not is_whole or (names[0], names[1], names[-1]) != self[:3]:
            raise self._make_error("is damaged")
        return body, begin, names, lengths


def is_time(sequence: int) -> bool:
    """Return whether the save of this sequence looks for records to join."""
    return sequence % RECORDS == 0


def join_records(
    chain: int, before: Sequence[bytes], records: Sequence[UnjoinedRecord], max_bytes: int
) -> RecordSegment | None:
    """Return a segment of the first of records; ``None`` if one of them is too large for it.

    Args:
        chain: Their chain.
        before: The payloads of the chain before them.
        records: With their payloads, ascending; at least one.
        max_bytes: The largest state, as compact JSON.

    Raises:
        IntegrityError: The stored bytes do not give the state that was saved.
    """
    folder, opener = frames.Folder(max_bytes), RecordOpener()
    for payload in before:
        folder.apply(opener.open(payload).payload)
    basis = frames.build_digest_tree(folder.get_state()) if before else None
    parts: list[tuple[int, bytes]] = []
    payloads: list[bytes] = []
    room = RECORD_BYTES
    for sequence, digest, payload in records:
        opened = opener.open(payload)
        plain = opened.link + decompress_payload(opened.payload, max_bytes)
        room -= len(plain)
        if room < 0:
            break
        folder.apply(opened.payload)
        parts.append((sequence, plain))
        payloads.append(opened.payload)
        last, expected = opened, opened.digest or digest
    if not parts:
        return None
    change = frames.compare_states(folder.get_state(), basis, packed=True)
    together = change.to_payload() if change.frames is None else change.frames
    # Edits all over a text are one large difference: the edits themselves are shorter.
    together = min(together, b"".join(payloads), key=len)
    plain = decompress_payload(together, UNLIMITED)
    if len(plain) > RECORD_BYTES:
        return None
    of_basis = None if basis is None else basis.digest
    if last.key is None:  # compressed with the records
        together = plain
    together = reseal(last, together, of_basis, change.tree.digest)
    names = chain, parts[0][0], parts[-1][0]
    made = RecordSegment(*names, _pack_segment([(chain, together), *parts], last.key, names))
    _prove(made, before, expected, max_bytes)
    return made


def decompress_payload(payload: bytes, max_bytes: int) -> bytes:
    """Return a record's payload with no frame compressed."""
    return b"".join(map(make_frame, unpack_record(payload, max_bytes)))


def _pack_segment(
    parts: Sequence[tuple[int, bytes]], key: SubjectKey | None, names: tuple[int, int, int]
) -> bytes:
    """Return the payload of a segment; with a key, its records are compressed and then sealed."""
    head = b"".join(_ENTRY.pack(sequence, len(payload)) for sequence, payload in parts)
    together, records = parts[0][1], b"".join(payload for _, payload in parts[1:])
    if key is not None:
        records = seal(key, pack_frame(records, dense=True), ("segment", *names))
    body = b"".join((len(parts).to_bytes(4, "little"), head, together, records))
    return pack_frame(body, dense=True)


def _prove(segment: RecordSegment, before: Sequence[bytes], digest: bytes, max_bytes: int) -> None:
    """Read a segment as loads do; raise ``IntegrityError`` if it gives another state."""
    payloads = [it for _, it in segment.split_payloads(0, segment.last)]
    for way in (payloads, segment.split_records().values()):
        opened = open_records([*before, *way])
        state = frames.fold((it.payload for it in opened), max_bytes)
        if frames.build_digest_tree(state, keeps=False).digest != digest:
            raise IntegrityError("the stored bytes do not give the state that was saved")


def fill_payloads(
    rows: Iterable[tuple[int, bytes]], segments: Iterable[RecordSegment], first: int = 0
) -> dict[int, bytes]:
    """Return the payloads of records by their sequences, with those that segments have.

    A record that has none changed nothing: empty bytes are not stored. The records of a segment
    that ends before ``first`` are one, with what they change together.
    """
    filled = dict(rows)
    for segment in segments:
        if segment.last >= first:
            found = segment.split_records()
        else:
            together, joined = segment.join_payloads()
            for sequence in joined[:-1]:
                filled.pop(sequence, None)
            found = {segment.last: together}
        filled |= {at: payload for at, payload in found.items() if not filled.get(at, True)}
    return filled


def collect_payloads(
    raw: Iterable[tuple[int, bytes]], segments: Iterable[RecordSegment], *, after: int, upto: int
) -> list[bytes]:
    """Return the payloads that lead from one version of a chain to another, in order."""
    found = [it for it in raw if after < it[0] <= upto]
    for segment in segments:
        found += segment.split_payloads(after, upto)
    return [payload for _, payload in sorted(found)]


class LinesFound:
    """Records and pending writes of several lines, in any order.

    Args:
        versions: Whose states are read: what comes before them may be joined.
    """

    def __init__(self, versions: Iterable[Version]) -> None:
        self._first: dict[int, int] = {}
        for mark in sorted((it.mark for it in versions), key=attrgetter("sequence"), reverse=True):
            self._first[mark.line] = mark.sequence
        self._records: defaultdict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
        self._segments: defaultdict[int, list[RecordSegment]] = defaultdict(list)
        self._writes: defaultdict[int, dict[str, list[PendingWrite]]] = defaultdict(dict)

    def add_record(self, line: int, sequence: int, chain: int, payload: bytes | None) -> None:
        """Add a record, each once; its payload may be in a segment."""
        self._records[line].append((sequence, chain, payload or b""))

    def add_segment(self, line: int, segment: RecordSegment) -> None:
        """Add a segment, each once."""
        self._segments[line].append(segment)

    def add_write(self, line: int, checkpoint_id: str, write: PendingWrite) -> None:
        self._writes[line].setdefault(checkpoint_id, []).append(write)

    def build_contents(self) -> list[LineContents]:
        """Return what was added, in order."""
        return [
            LineContents(
                line,
                self._fill_line(line),
                {
                    name: sorted(some, key=make_write_sort_key)
                    for name, some in self._writes[line].items()
                },
            )
            for line in {**self._records, **self._writes}
        ]

    def _fill_line(self, line: int) -> list[tuple[int, int, bytes]]:
        records = sorted(self._records[line])
        if line not in self._segments:
            return records
        rows = ((at, payload) for at, _, payload in records)
        payloads = fill_payloads(rows, self._segments[line], self._first[line])
        return [(at, chain, payloads[at]) for at, chain, _ in records if at in payloads]
