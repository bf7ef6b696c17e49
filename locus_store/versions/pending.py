"""Pending writes: which of them are stored, and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from locus_store.errors import ConflictError
from locus_store.values import frames
from locus_store.versions.lines import CHANNELS, Line, Lines, mark_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from locus_store.types import ArchivedWrite, Mark, MustExist, PendingWrite


def find_for_writes(
    lines: Lines,
    thread_id: str,
    namespace: str,
    checkpoint_id: str,
    must_exist: MustExist | None,
) -> Line | None:
    """Return the line of pending writes, ``None`` if it has no version.

    Raises:
        ConflictError: What must exist cannot; ``put_writes`` looks for the checkpoint itself.
    """
    line = lines.find(thread_id, namespace, beside=checkpoint_id)
    if line is None and must_exist == "checkpoint":
        raise gone(checkpoint_id)
    if line is None and must_exist == "thread":
        require_thread(lines, thread_id, checkpoint_id)
    return line


def put_writes(
    lines: Lines,
    line: Line,
    checkpoint_id: str,
    writes: Sequence[PendingWrite],
    *,
    known: Mark | None,
    seen: Collection[tuple[str, int]] | None,
    must_exist: MustExist | None,
) -> bool:
    """Store a checkpoint's pending writes; see ``StorageBackend.put_writes``.

    Raises:
        ConflictError: Before anything was written.
    """
    is_framed = any(it.basis is not None for it in writes)
    is_needed = must_exist == "checkpoint"
    record = lines.named(line, checkpoint_id) if is_needed or is_framed else None
    if is_needed and record is None:
        raise gone(checkpoint_id)
    if is_framed and (record is None or mark_of(lines, line, record) != known):
        return False
    there = lines.written(line, checkpoint_id)
    if seen is not None and any(key not in seen for key in there):
        found = {(it.task_id, it.idx): it for it in lines.writes(line, checkpoint_id)}
        _require_own(found, {(it.task_id, it.idx): it for it in writes}, seen, checkpoint_id)
    lines.put_writes(line, checkpoint_id, list(winning(there, writes).values()))
    return True


def gone(checkpoint_id: str) -> ConflictError:
    """Return the error for writes on a checkpoint that existed and does not exist any more."""
    return ConflictError(
        f"checkpoint {checkpoint_id!r} is gone: it, or its thread, was deleted; its pending "
        "writes were not stored. Run the graph again to start from what is stored now",
        head_id=None,
        parent_id=checkpoint_id,
    )


def require_thread(lines: Lines, thread_id: str, checkpoint_id: str) -> None:
    """Refuse what would bring back a thread that was deleted.

    Raises:
        ConflictError: The thread does not exist.
    """
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
    seen: Collection[tuple[str, int]],
    checkpoint_id: str,
) -> None:
    """Refuse writes where another run's exist; the caller's own may, after a retry."""
    for key, write in there.items():
        if key not in seen and mine.get(key) != write:
            raise ConflictError(
                f"another run uses checkpoint {checkpoint_id!r}: task {key[0]!r} wrote "
                "to it since it was loaded; nothing was written. Run the graph again when the "
                "other run is over",
                head_id=checkpoint_id,
                parent_id=checkpoint_id,
            )


def current(writes: Iterable[PendingWrite], sequence: int) -> list[PendingWrite]:
    """Return a version's writes, without those left behind by an older one of the same id."""
    return [it for it in writes if it.basis in {None, sequence}]


def whole_write(write: PendingWrite, state: Mapping[str, Any], max_bytes: int) -> PendingWrite:
    """Return the write without frames.

    Args:
        write: Any.
        state: Of its checkpoint.
        max_bytes: The largest frame and value.

    Raises:
        IntegrityError: The frames make no sense, or are too large.
    """
    if write.basis is None:
        return write
    value = frames.value_of(write.payload, max_bytes, channel_in(state, write.channel), packed=True)
    return replace(write, payload=frames.value_payload(value, max_bytes, packed=True), basis=None)


def channel_in(state: Mapping[str, Any], channel: str) -> Any:
    """Return the value of a channel in a graph runner's state; ``None`` if it has none."""
    channels = state.get(CHANNELS)
    return channels.get(channel) if isinstance(channels, Mapping) else None


def winning(
    there: Collection[tuple[str, int]], writes: Sequence[PendingWrite]
) -> dict[tuple[str, int], PendingWrite]:
    """Return the writes to store; existing ones win, except in special channels."""
    kept: dict[tuple[str, int], PendingWrite] = {}
    for write in writes:
        key = (write.task_id, write.idx)
        if write.idx < 0 or (key not in there and key not in kept):
            kept[key] = write
    return kept


def archive_order(it: ArchivedWrite) -> tuple[str, str, int]:
    """Return the sort key of pending writes in an archive."""
    return it.checkpoint_id, it.write.task_id, it.write.idx


def in_order(write: PendingWrite) -> tuple[str, str, int]:
    """Return the sort key for the order in which pending writes are applied."""
    return write.task_path, write.task_id, write.idx
