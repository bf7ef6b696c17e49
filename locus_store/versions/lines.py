"""A line of versions: its rows, and the operations that a backend supplies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Protocol

from locus_store.errors import ConflictError, IntegrityError
from locus_store.types import ArchivedRecord, ArchivedWrite, Mark, MustExist, PendingWrite, Save
from locus_store.values import frames, sealing

CHAIN_FACTOR = 4
"""A chain is closed when its records outgrow the state by this factor (see ``_continues``)."""

CHAIN_ALLOWANCE = 64 * 1024
"""Bytes that any chain may grow to; without this, small states would begin a chain too often."""

RECORD_OVERHEAD = 512
"""Bytes that reading one more record costs, counted with its frames."""

HIDDEN_BATCH = 64
"""Versions that ``keep_last`` hides before it removes them in one go."""

CHANNELS = "channel_values"
"""Key of a graph runner's state under which its channels are, by name."""

JSON_WRITE = "json"
"""Type of a pending write whose payload ``frames.encode_value`` has made of a JSON value."""

REBUILT = "rebuilt"
"""Label of a version whose state is not complete. Its value is the list of the channels that are
rebuilt from the value of an ancestor and the pending writes since then."""

SIDE_BRANCH = "side_branch"
"""Label of a version that was saved beside the head, after a conflict."""

IS_SIDE_BRANCH = "conflict"
"""Its value."""


@dataclass(slots=True)
class Line:
    """The row of a line: its head, the chain that may be continued, and its visible versions."""

    line: int
    """The key of the row."""
    head: int | None = None
    open_chain: int | None = None
    """The chain whose last record is the head, else ``None``."""

    open_bytes: int = 0
    """The sum of payload bytes + ``RECORD_OVERHEAD`` over the records of the current chain."""

    floor: int = 0
    """Versions below this sequence are hidden, but for the head."""

    last_sequence: int = 0
    writer: str | None = None
    """``Save.writer`` of the save that moved the head last."""

    run: str | None = None
    """``Save.run`` of that save."""

    def copy(self) -> Line:
        """Return a copy that may be changed; ``dataclasses.replace`` takes five times as long."""
        return Line(*list_fields(self))


list_fields = attrgetter(*Line.__slots__)
"""Returns all fields of a line in their order, which documents and rows have as well."""


@dataclass(slots=True)  # frozen, it would take three times as long to create
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
        """Give a record another parent."""

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


def make_mark(lines: Lines, line: Line, record: Record) -> Mark:
    """Return the permanent identity of a version."""
    return Mark(lines.store, line.line, record.sequence, record.digest)


def is_visible(line: Line, sequence: int) -> bool:
    """Return whether lists and loads show a version; ``keep_last`` hides before it removes."""
    return sequence >= line.floor or sequence == line.head


def find_head(records: Records, line: Line) -> Record | None:
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


def make_record(record: ArchivedRecord) -> Record:
    """Return an archived version without its payload and time."""
    return Record(**{name: getattr(record, name) for name in Record.__slots__})


def archive_record(record: Record, payload: bytes, created_at: datetime) -> ArchivedRecord:
    """Return a version with payload and time; it shares nothing that can be changed."""
    values = {name: deepcopy(getattr(record, name)) for name in Record.__slots__}
    return ArchivedRecord(**values, payload=payload, created_at=created_at)


@dataclass(slots=True, kw_only=True)  # frozen, it would take twice as long to create
class PutWrites:
    """Pending writes to store; valid, and never changed. See ``StoresWrites.put_writes``."""

    thread_id: str
    namespace: str = ""
    checkpoint_id: str
    writes: list[PendingWrite]
    known: Mark | None = None
    seen: Collection[tuple[str, int]] | None = None
    must_exist: MustExist | None = None
    ttl_seconds: float | None = None
    turn: int | None = None
    """See ``Save.turn``."""


def find_for_writes(lines: Lines, put: PutWrites) -> Line | None:
    """Return the line of pending writes, ``None`` if it has no version.

    Raises:
        ConflictError: What must exist cannot; ``put_writes`` looks for the checkpoint itself.
    """
    line = lines.find(put.thread_id, put.namespace, beside=put.checkpoint_id)
    if line is None and put.must_exist == "checkpoint":
        raise make_deleted_error(put.checkpoint_id)
    if line is None and put.must_exist == "thread":
        require_thread(lines, put.thread_id, put.checkpoint_id)
    return line


def put_writes(lines: Lines, line: Line, put: PutWrites) -> bool:
    """Store a checkpoint's pending writes; see ``StoresWrites.put_writes``.

    Raises:
        ConflictError: Before anything was written.
    """
    checkpoint_id, writes = put.checkpoint_id, put.writes
    is_framed = bool({*map(_get_basis, writes)} - {None})
    is_needed = put.must_exist == "checkpoint"
    record = lines.named(line, checkpoint_id) if is_needed or is_framed else None
    if is_needed and record is None:
        raise make_deleted_error(checkpoint_id)
    if is_framed and (record is None or make_mark(lines, line, record) != put.known):
        return False
    there = lines.written(line, checkpoint_id)
    needs_tasks = put.must_exist == "task"
    if needs_tasks and not {it.task_id for it in writes} <= {name for name, _ in there}:
        raise make_deleted_error(checkpoint_id)
    if there and put.seen is not None and any(key not in put.seen for key in there):
        found = {(it.task_id, it.idx): it for it in lines.writes(line, checkpoint_id)}
        _require_own(found, {(it.task_id, it.idx): it for it in writes}, put.seen, checkpoint_id)
    lines.put_writes(line, checkpoint_id, list(select_winning(there, writes).values()))
    return True


def make_deleted_error(checkpoint_id: str) -> ConflictError:
    """Return the error for writes on a checkpoint that existed and does not exist any more."""
    return ConflictError(
        f"checkpoint {checkpoint_id!r} is gone: it, or its thread, was deleted; its pending "
        "writes were not stored. Run the graph again to start from what is stored now",
        head_id=None,
        parent_id=checkpoint_id,
    )


def require_thread(lines: Lines, thread_id: str, checkpoint_id: str) -> None:
    """Refuse, with a ``ConflictError``, what would bring back a thread that was deleted."""
    if not lines.has_thread(thread_id):
        raise ConflictError(
            f"thread {thread_id!r} was deleted since this saver loaded or saved "
            "it; nothing was written. Run the graph again to start from what is stored now",
            head_id=None,
            parent_id=checkpoint_id,
        )


def _require_own(
    there: Mapping[tuple[str, int], PendingWrite],
    mine: Mapping[tuple[str, int], PendingWrite],
    keys: Collection[tuple[str, int]],
    checkpoint_id: str,
) -> None:
    """Refuse writes if another run has stored some; the caller's own may exist, after a retry."""
    for key, write in there.items():
        if key not in keys and mine.get(key) != write:
            raise ConflictError(
                f"another run uses checkpoint {checkpoint_id!r}: task {key[0]!r} wrote "
                "to it since it was loaded; nothing was written. Run the graph again when the "
                "other run is over",
                head_id=checkpoint_id,
                parent_id=checkpoint_id,
            )


def select_current(writes: Iterable[PendingWrite], sequence: int) -> list[PendingWrite]:
    """Return the writes of a version, without those of an older version that had the same id."""
    return [it for it in writes if it.basis in {None, sequence}]


def expand_write(write: PendingWrite, state: Mapping[str, Any], max_bytes: int) -> PendingWrite:
    """Return a pending write with its whole value instead of frames.

    Args:
        write: With frames or without.
        state: The state of its checkpoint, which the frames change.
        max_bytes: The largest frame and value.

    Raises:
        IntegrityError: The frames are not valid for the state, or are too large.
    """
    if write.basis is None:
        return write
    old = find_channel(state, write.channel)
    value = frames.change_value(old, write.payload, max_bytes, packed=True)
    return replace(write, payload=frames.encode_value(value, max_bytes, packed=True), basis=None)


def expand_sealed_write(
    where: tuple[str, str, str], write: PendingWrite, state: Mapping[str, Any], max_bytes: int
) -> PendingWrite:
    """Return ``expand_write`` of a pending write as it is stored, which may be sealed.

    ``where``: its thread, namespace and checkpoint.
    """
    if write.basis is None or not sealing.is_sealed(write.payload):
        return expand_write(write, state, max_bytes)
    key, opened = sealing.open_sealed(write.payload, make_write_place(*where, write))
    whole = expand_write(replace(write, payload=opened), state, max_bytes)
    sealed = sealing.seal(key, whole.payload, make_write_place(*where, whole))
    return replace(whole, payload=sealed)


def make_write_place(
    thread_id: str, namespace: str, checkpoint_id: str, write: PendingWrite
) -> sealing.Place:
    """Return the place of a sealed pending write: all that is stored beside its payload."""
    names = write.task_id, write.idx, write.channel, write.type, write.task_path, write.basis
    return ("write", thread_id, namespace, checkpoint_id, *names)


def find_channel(state: Mapping[str, Any], channel: str) -> Any:
    """Return the value of a channel in a graph runner's state; ``None`` if it has none."""
    channels = state.get(CHANNELS)
    return channels.get(channel) if isinstance(channels, Mapping) else None


def select_winning(
    there: Collection[tuple[str, int]], writes: Sequence[PendingWrite]
) -> dict[tuple[str, int], PendingWrite]:
    """Return the writes to store; existing ones win, except in special channels."""
    kept: dict[tuple[str, int], PendingWrite] = {}
    for key, write in zip(map(_get_key, writes), writes, strict=True):
        if (key not in there and key not in kept) or write.idx < 0:
            kept[key] = write
    return kept


_get_basis: Final[Callable[[PendingWrite], int | None]] = attrgetter("basis")
_get_key: Final[Callable[[PendingWrite], tuple[str, int]]] = attrgetter("task_id", "idx")


def make_archive_sort_key(entry: ArchivedWrite) -> tuple[str, str, int]:
    """Return the sort key of pending writes in an archive."""
    return entry.checkpoint_id, entry.write.task_id, entry.write.idx


def make_write_sort_key(write: PendingWrite) -> tuple[str, str, int]:
    """Return the sort key for the order in which pending writes are applied."""
    return write.task_path, write.task_id, write.idx
