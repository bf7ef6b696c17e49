"""Deletion of versions: the others stay intact, and nothing of the deleted ones is left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby

from locus_store.errors import ConflictError, IntegrityError
from locus_store.values import frames
from locus_store.values.sealing import OpenedRecord, is_sealed_by_client, open_records, reseal
from locus_store.versions.lines import REBUILT, RECORD_OVERHEAD, Line, Lines, Record, is_visible


def remove_named(
    lines: Lines, line: Line, checkpoint_ids: Iterable[str], writer: str | None = None
) -> int:
    """Remove the versions with these ids that exist and are visible; return how many.

    If ``writer`` removes a head that it made, its next save has no conflict.

    Raises:
        ConflictError: A version that stays is rebuilt from one of them; nothing was removed.
        IntegrityError: See ``forget``.
    """
    found = [it for it in (lines.named(line, name) for name in set(checkpoint_ids)) if it]
    shown = [it.sequence for it in found if is_visible(line, it.sequence)]
    require_free(lines, line, shown)
    is_own = writer is not None and line.writer == writer
    forget(lines, line, shown, keep_writer=is_own)
    return len(shown)


def forget(
    lines: Lines,
    line: Line,
    sequences: Collection[int],
    *,
    keep_line: bool = False,
    keep_writer: bool = False,
) -> None:
    """Remove versions; every other version loads as before.

    The frames of a version behind removed ones are computed again, from the state before those:
    joined frames would keep deleted values. Those that a client of a service has sealed are joined,
    until a client with the key replaces them. The line is removed with its last version, unless
    ``keep_line`` keeps it for a save that follows. Without ``keep_writer``, a new head has no
    writer.

    Raises:
        IntegrityError: Frames cannot be computed, because a state is damaged or too large; nothing
            was changed.
    """
    gone = [it for it in (lines.record(line, s) for s in sorted(set(sequences))) if it]
    if not gone:
        return
    for sequence, payload in _make_payloads(lines, line, gone):
        lines.rewrite(line, sequence, payload)
    nearest = _find_remaining_ancestors(gone)
    for child in lines.children(line, nearest.keys()):
        if child.parent is not None and child.sequence not in nearest:
            lines.adopt(line, child.sequence, nearest[child.parent])
    head_gone = any(it.sequence == line.head for it in gone)
    lines.remove(line, [it.sequence for it in gone])
    if head_gone:
        line.head = _find_new_head(lines, line, gone)
    if head_gone and not keep_writer:
        line.writer = line.run = None
    if head_gone or line.head is None or line.open_chain in {it.chain for it in gone}:
        settle(lines, line)
    if line.head is None and not keep_line:
        lines.drop(line)
    else:
        lines.update(line)


def clear(lines: Lines, thread_id: str, namespace: str) -> None:
    """Remove all versions of a line, hidden and damaged ones included, with their writes."""
    line = lines.find(thread_id, namespace)
    if line is not None:
        lines.drop(line)


def prune(lines: Lines, line: Line) -> int:
    """Remove all versions but the head and what it is rebuilt from; return how many."""
    return vacuum(lines, line, lines.below(line, line.last_sequence + 1, line.last_sequence))


def vacuum(lines: Lines, line: Line, old: Collection[int]) -> int:
    """Remove the old versions that no other one needs; return how many."""
    gone = find_unused(lines, line, [it for it in old if it != line.head])
    forget(lines, line, gone)
    return len(gone)


def find_unused(lines: Lines, line: Line, sequences: Collection[int]) -> list[int]:
    """Return the versions that no remaining version is rebuilt from; ascending.

    A version with the label ``REBUILT`` needs its parent, with the pending writes there.
    """
    gone = set(sequences)
    needed = [
        child.parent
        for child in lines.children(line, gone)
        if child.labels.get(REBUILT) and child.sequence not in gone
    ]
    while needed:
        sequence = needed.pop()
        if sequence in gone:
            gone.remove(sequence)
            record = lines.record(line, sequence)
            if record and record.labels.get(REBUILT):
                needed.append(record.parent)
    return sorted(gone)


def require_free(lines: Lines, line: Line, sequences: Collection[int]) -> None:
    """Refuse to remove versions that remaining ones are rebuilt from; name the first."""
    kept = set(sequences).difference(find_unused(lines, line, sequences))
    record = lines.record(line, min(kept)) if kept else None
    if record:
        raise ConflictError(
            f"checkpoint {record.checkpoint_id!r} holds what later ones are rebuilt from, because"
            " one of their channels stores changes only; nothing was removed. Remove these as well,"
            " or the thread, or wait until the graph has saved the channel's whole value again"
        )


def _make_payloads(lines: Lines, line: Line, records: Sequence[Record]) -> list[tuple[int, bytes]]:
    """Return the new payload after each removed run of versions."""
    found: list[tuple[int, bytes]] = []
    by_chain = sorted(records, key=lambda it: (it.chain, it.sequence))
    for chain, members in groupby(by_chain, key=lambda it: it.chain):
        removed = {it.sequence: it.checkpoint_id for it in members}
        try:
            rows = lines.payloads(line, chain)
            if any(is_sealed_by_client(payload) for _, payload in rows):
                found += _join_payloads_of_chain(rows, removed)
            else:
                found += compute_payloads_of_chain(rows, removed, lines.max_state_bytes)
        except IntegrityError as exc:
            raise _make_unreadable_error(next(iter(removed.values())), exc) from exc
    return found


def _join_payloads_of_chain(
    rows: Sequence[tuple[int, bytes]], without: Collection[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield the payloads of one chain that have those of removed versions before their own."""
    before = b""
    for sequence, payload in rows:
        if sequence in without:
            before += payload
        elif before:
            yield sequence, before + payload
            before = b""


def compute_payloads_of_chain(
    rows: Sequence[tuple[int, bytes]],
    without: Collection[int],
    max_bytes: int,
    open_each: Callable[[Iterable[bytes]], Iterable[OpenedRecord]] = open_records,
) -> Iterator[tuple[int, bytes]]:
    """Yield the new payload after each removed run of versions of one chain.

    Args:
        rows: The versions of the chain, as (sequence, payload), ascending.
        without: The sequences of those that are removed.
        max_bytes: The largest state.
        open_each: Returns the records of payloads.
    """
    is_gone = [sequence in without for sequence, _ in rows]
    behind = [at for at, it in enumerate(is_gone) if at and is_gone[at - 1] and not it]
    folder, before = frames.Folder(max_bytes), None
    until = rows[: max(behind, default=-1) + 1]
    for place, record in enumerate(open_each(payload for _, payload in until)):
        if is_gone[place] and place and not is_gone[place - 1]:
            before = frames.build_digest_tree(folder.get_state())
        folder.apply(record.payload)
        if place in behind:
            change = frames.compare_states(folder.get_state(), before, packed=True)
            basis = None if before is None else before.digest
            made, most = change.frames, change.tree.state_bytes // 2
            made = change.to_payload() if made is None or len(made) > most else made
            yield until[place][0], reseal(record, made, basis, change.tree.digest)


def _make_unreadable_error(checkpoint_id: str, exc: IntegrityError) -> IntegrityError:
    """Return the error for a removal that needs an unreadable state."""
    message = (
        f"checkpoint {checkpoint_id!r} cannot be removed alone, because a later version is stored"
        f" as a change of it: {exc}. Nothing was removed; deleting the whole thread is possible"
    )
    return type(exc)(message)


def _find_remaining_ancestors(records: Sequence[Record]) -> dict[int, int | None]:
    """Return each removed version's nearest remaining ancestor."""
    nearest: dict[int, int | None] = {}
    for record in sorted(records, key=lambda it: it.sequence):
        parent = record.parent
        nearest[record.sequence] = nearest.get(parent, parent) if parent is not None else None
    return nearest


def _find_new_head(lines: Lines, line: Line, records: Sequence[Record]) -> int | None:
    """Return the head's nearest remaining ancestor, else the newest remaining version.

    What ``keep_last`` hid stays hidden.
    """
    nearest = _find_remaining_ancestors(records).get(line.head or 0)
    if nearest is not None and nearest >= line.floor:
        return nearest
    newest = lines.newest(line) or 0
    return newest if newest >= max(line.floor, 1) else None


def settle(lines: Lines, line: Line) -> None:
    """Restore the line's fields about its current chain from the stored versions."""
    head = None if line.head is None else lines.record(line, line.head)
    rows = lines.payloads(line, head.chain) if head else []
    if head is None or not rows or rows[-1][0] != line.head:
        line.open_chain, line.open_bytes = None, 0
    else:
        line.open_chain = head.chain
        line.open_bytes = sum(len(payload) + RECORD_OVERHEAD for _, payload in rows)
