"""A line of versions: its rows, and the operations that a backend supplies."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from locus_store.errors import IntegrityError
from locus_store.types import ArchivedRecord, Mark

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from locus_store.types import PendingWrite, Save

CHAIN_FACTOR = 4
"""A chain is closed when its records outgrow the state by this factor (see ``_continues``)."""

CHAIN_ALLOWANCE = 64 * 1024
"""Bytes that any chain may grow to: small states that change often would begin one all the time."""

RECORD_OVERHEAD = 512
"""Bytes that reading one more record costs, counted with its frames."""

HIDDEN_BATCH = 64
"""Versions that ``keep_last`` hides before it removes them in one go."""

CHANNELS = "channel_values"
"""Key of a graph runner's state under which its channels are, by name."""

JSON_WRITE = "json"
"""Type of a pending write whose payload is ``layout``'s form of a JSON value."""

REBUILT = "rebuilt"
"""Label of a version whose state is not whole: the channels that are rebuilt from an ancestor's
value and the pending writes since."""


@dataclass(slots=True, kw_only=True)
class Line:
    """The row of a line: its head, the chain that may be continued, and the visible floor."""

    line: int
    head: int | None = None
    open_chain: int | None = None
    """The chain whose last record is the head, else ``None``."""

    open_bytes: int = 0
    """Sum over the open chain of payload bytes + ``RECORD_OVERHEAD``."""

    floor: int = 0
    """Versions below this sequence are hidden, but for the head."""

    last_sequence: int = 0
    writer: str | None = None
    """The load whose descendant moved the head last."""

    run: str | None = None
    """The run that moved the head last."""

    def copy(self) -> Line:
        """Return a copy that may be changed; ``dataclasses.replace`` takes five times as long."""
        return Line(
            line=self.line,
            head=self.head,
            open_chain=self.open_chain,
            open_bytes=self.open_bytes,
            floor=self.floor,
            last_sequence=self.last_sequence,
            writer=self.writer,
            run=self.run,
        )


@dataclass(slots=True, kw_only=True)  # frozen, it would take three times as long to create
class Record:
    """A checkpoint's row without its payload; it is never changed."""

    sequence: int
    chain: int
    parent: int | None
    checkpoint_id: str
    digest: bytes
    metadata: dict[str, Any]
    labels: dict[str, Any]


class Records(Protocol):
    """The protocol for finding a record."""

    def record(self, line: Line, sequence: int) -> Record | None:
        """Return one record by its sequence."""

    def named(self, line: Line, checkpoint_id: str) -> Record | None:
        """Return one record by its checkpoint id."""


class Lines(Records, Protocol):
    """The operations that a backend supplies to the rules, within one transaction."""

    store: str
    """Identity of the database."""

    max_state_bytes: int
    """The largest state that is folded, as compact JSON."""

    def find(self, thread_id: str, namespace: str, *, beside: str | None = None) -> Line | None:
        """Lock the line and read it; ``None`` if it does not exist or its thread has expired.

        ``beside`` is the id of a checkpoint that is asked for next.
        """

    def has_thread(self, thread_id: str) -> bool:
        """Return whether the thread exists; it does not change until the transaction ends."""

    def create(self, save: Save) -> Line:
        """Create the line, and its thread if needed; an expired thread is removed first."""

    def update(self, line: Line) -> None:
        """Write the line's row; after ``touch``, its time of saving is now."""

    def touch(self, save: Save) -> None:
        """Record the thread's activity, and its new expiry if the save has a time to live."""

    def drop(self, line: Line) -> None:
        """Remove the line with all it owns; its key is never used again."""

    def newest(self, line: Line, nth: int = 1) -> int | None:
        """Return the sequence of the nth newest record; ``None`` if there are fewer."""

    def below(self, line: Line, sequence: int, limit: int) -> list[int]:
        """Return at most ``limit`` sequences below ``sequence``, ascending."""

    def payloads(
        self, line: Line, chain: int, *, upto: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Return the chain's records as (sequence, payload), ascending; ``upto`` is inclusive."""

    def append(self, line: Line, record: Record, payload: bytes) -> None:
        """Insert a record."""

    def rewrite(self, line: Line, sequence: int, payload: bytes) -> None:
        """Replace a record's payload."""

    def adopt(self, line: Line, sequence: int, parent: int | None) -> None:
        """Change a record's parent."""

    def children(self, line: Line, sequences: Collection[int]) -> list[Record]:
        """Return the records whose parent is one of these."""

    def remove(self, line: Line, sequences: Sequence[int]) -> None:
        """Remove records, with the pending writes of their checkpoints."""

    def writes(self, line: Line, checkpoint_id: str) -> list[PendingWrite]:
        """Return a checkpoint's pending writes, in any order."""

    def written(self, line: Line, checkpoint_id: str) -> Collection[tuple[str, int]]:
        """Return the task and index of each pending write of a checkpoint."""

    def put_writes(self, line: Line, checkpoint_id: str, writes: Sequence[PendingWrite]) -> None:
        """Store new pending writes; those of special channels replace existing ones."""


def mark_of(lines: Lines, line: Line, record: Record) -> Mark:
    """Return the permanent identity of a version."""
    return Mark(lines.store, line.line, record.sequence, record.digest)


def is_visible(line: Line, sequence: int) -> bool:
    """Return whether lists and loads show a version; ``keep_last`` hides before it removes."""
    return sequence >= line.floor or sequence == line.head


def head_of(records: Records, line: Line) -> Record | None:
    """Return the head's record; ``None`` if the line has no version.

    Raises:
        IntegrityError: The line's row names a record that is not there.
    """
    found = None if line.head is None else records.record(line, line.head)
    if found is None and line.head is not None:
        raise IntegrityError(
            f"line {line.line} names version {line.head} as its head, and there is no such record; "
            "restore the database from a backup, or load a version by its id"
        )
    return found


def record_of(archived: ArchivedRecord) -> Record:
    """Return an archived version without its payload and time."""
    return Record(**{name: getattr(archived, name) for name in Record.__slots__})


def archived(record: Record, payload: bytes, created_at: datetime) -> ArchivedRecord:
    """Return a version with payload and time; it shares nothing that can be changed."""
    values = {name: deepcopy(getattr(record, name)) for name in Record.__slots__}
    return ArchivedRecord(**values, payload=payload, created_at=created_at)
