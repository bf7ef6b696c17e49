"""The records and pending writes of several lines."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from locus_store.types import LineContents
from locus_store.versions.pending import in_order
from locus_store.versions.segments import filled

if TYPE_CHECKING:
    from locus_store.types import PendingWrite
    from locus_store.versions.segments import RecordSegment


class LinesFound:
    """Records and pending writes of several lines, in any order."""

    def __init__(self) -> None:
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
        """Add a pending write of a checkpoint."""
        self._writes[line].setdefault(checkpoint_id, []).append(write)

    def contents(self) -> list[LineContents]:
        """Return what was added, in order."""
        return [
            LineContents(
                line,
                self._filled(line),
                {name: sorted(some, key=in_order) for name, some in self._writes[line].items()},
            )
            for line in {**self._records, **self._writes}
        ]

    def _filled(self, line: int) -> list[tuple[int, int, bytes]]:
        records = sorted(self._records[line])
        if line not in self._segments:
            return records
        payloads = dict(filled([(at, it) for at, _, it in records], self._segments[line]))
        return [(at, chain, payloads[at]) for at, chain, _ in records]
