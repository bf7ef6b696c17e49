"""The records and pending writes of several lines."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from locus_store.types import LineContents
from locus_store.versions.pending import in_order

if TYPE_CHECKING:
    from locus_store.types import PendingWrite


class LinesFound:
    """Records and pending writes of several lines, in any order."""

    def __init__(self) -> None:
        self._records: defaultdict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
        self._writes: defaultdict[int, dict[str, list[PendingWrite]]] = defaultdict(dict)

    def add_record(self, line: int, sequence: int, chain: int, payload: bytes) -> None:
        """Add a record; each once."""
        self._records[line].append((sequence, chain, payload))

    def add_write(self, line: int, checkpoint_id: str, write: PendingWrite) -> None:
        """Add a pending write of a checkpoint."""
        self._writes[line].setdefault(checkpoint_id, []).append(write)

    def contents(self) -> list[LineContents]:
        """Return what was added, in order."""
        return [
            LineContents(
                line,
                sorted(self._records[line]),
                {name: sorted(some, key=in_order) for name, some in self._writes[line].items()},
            )
            for line in {**self._records, **self._writes}
        ]
