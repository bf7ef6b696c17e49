"""The history of a namespace in memory: its versions and pending writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from locus_store import versions
from locus_store.types import FOREVER, ArchivedLine, ArchivedWrite
from locus_store.versions import Line, Record

KEY_BITS: Final = 52
"""Bits of a line's key, which is random; every JSON library represents it exactly."""


@dataclass(slots=True)
class History:
    """The history of a namespace: a line, and the versions and pending writes that it owns."""

    namespace: str
    line: Line
    rows: dict[int, Row] = field(default_factory=dict)
    """Ascending."""

    by_id: dict[str, int] = field(default_factory=dict)
    by_chain: dict[int, list[int]] = field(default_factory=dict)
    """Ascending."""

    writes: dict[str, dict[tuple[str, int], ArchivedWrite]] = field(default_factory=dict)
    """Pending writes by checkpoint id, task and place."""

    is_settled: bool = False
    """The current chain of ``line`` is known: not stored, but computed at the first change."""

    unshared: set[int | str] = field(default_factory=set)
    """The chains whose sequences, and the checkpoint ids whose writes, no copy shares."""

    def copy(self) -> History:
        """Return a copy that may be changed; both share chains and writes that neither changed."""
        self.unshared = set()
        return History(
            namespace=self.namespace,
            line=self.line.copy(),
            rows=self.rows.copy(),
            by_id=self.by_id.copy(),
            by_chain=self.by_chain.copy(),
            writes=self.writes.copy(),
            is_settled=self.is_settled,
        )

    def put(self, row: Row) -> None:
        """Add a version that is newer than all others."""
        record = row.record
        self.add(row, record.sequence, record.chain, record.checkpoint_id)

    def add(self, row: Row, sequence: int, chain: int, checkpoint_id: str) -> None:
        """Add a version as ``put`` does, without reading its record."""
        ours = self.by_chain[chain] if chain in self.unshared else self._get_own_chain(chain)
        ours.append(sequence)
        self.rows[sequence] = row
        self.by_id[checkpoint_id] = sequence

    def put_write(self, write: ArchivedWrite) -> None:
        """Add or replace a pending write."""
        name = write.checkpoint_id
        if name not in self.unshared:
            self.unshared.add(name)
            self.writes[name] = dict(self.writes.get(name, ()))
        self.writes[name][write.write.task_id, write.write.idx] = write

    def remove(self, sequence: int) -> None:
        """Remove a version and its pending writes."""
        record = self.rows.pop(sequence).record
        del self.by_id[record.checkpoint_id]
        self._get_own_chain(record.chain).remove(sequence)
        self.writes.pop(record.checkpoint_id, None)
        self.unshared.discard(record.checkpoint_id)

    def _get_own_chain(self, chain: int) -> list[int]:
        """Return the sequences of a chain, to be changed."""
        if chain not in self.unshared:
            self.unshared.add(chain)
            self.by_chain[chain] = list(self.by_chain.get(chain, ()))
        return self.by_chain[chain]

    def get_row(self, sequence: int) -> Row | None:
        """Return a version; ``None`` if it does not exist."""
        return self.rows.get(sequence)

    def list_sequences(self) -> list[int]:
        """Return the sequences of all versions, ascending."""
        return list(self.rows)

    def get_writes(self, checkpoint_id: str) -> dict[tuple[str, int], ArchivedWrite]:
        """Return a checkpoint's pending writes by task and place."""
        return self.writes.get(checkpoint_id, {})

    def record(self, line: Line, sequence: int) -> Record | None:
        row = self.get_row(sequence)
        return row.record if row else None

    def named(self, line: Line, checkpoint_id: str) -> Record | None:
        sequence = self.by_id.get(checkpoint_id)
        return None if sequence is None else self.record(line, sequence)

    def payloads(
        self, chain: int, upto: int | None = None, after: int = 0
    ) -> list[tuple[int, bytes]]:
        """Return a chain's (sequence, payload) pairs, ascending; ``upto`` is inclusive."""
        some = [it for it in self.by_chain.get(chain, ()) if after < it <= (upto or it)]
        return [(it, self.rows[it].payload) for it in some]

    def iterate_parts(self) -> Iterator[tuple[datetime, Callable[[], Mapping[int, Row]]]]:
        """Yield the versions in parts, which are read when they are called.

        Each has a time that none of its versions is newer than; ``FOREVER``: nothing is read.
        """
        yield FOREVER, lambda: self.rows

    def measure(self) -> int:
        """Return about how many bytes the versions have, without reading any."""
        return sum(len(it.payload) for it in self.rows.values())

    def find_newest_at(self) -> datetime | None:
        """Return the time of the newest version or pending write; ``None`` if there is none."""
        times = [it.created_at for it in self.rows.values()]
        times += [it.created_at for some in self.writes.values() for it in some.values()]
        return max(times, default=None)

    def find_older_than(self, limit: datetime) -> list[int]:
        """Return the sequences of the versions from before a time."""
        return [it for it, row in self.rows.items() if row.created_at < limit]

    def list_visible(self) -> list[int]:
        """Return the sequences of the visible versions, newest first."""
        return [it for it in reversed(self.list_sequences()) if versions.is_visible(self.line, it)]

    def archive(self) -> ArchivedLine:
        """Return all data of the namespace."""
        writes = (it for of_checkpoint in self.writes.values() for it in of_checkpoint.values())
        return ArchivedLine(
            namespace=self.namespace,
            head=self.line.head,
            floor=self.line.floor,
            last_sequence=self.line.last_sequence,
            records=[
                versions.archive_record(row.record, row.payload, row.created_at)
                for row in self.rows.values()
            ],
            writes=sorted(writes, key=versions.make_archive_sort_key),
        )


def generate_line_id() -> int:
    """Return a random id for a line; none was used before."""
    return 1 + secrets.randbelow(2**KEY_BITS)


@dataclass(slots=True, eq=False)
class Row:
    """A version."""

    record: Record
    created_at: datetime
    payload: bytes
    line_changes: dict[str, Any] = field(default_factory=dict)
    """The changes of the line by the save, in the form of an entry of the file."""
