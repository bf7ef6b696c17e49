"""The rules of a save: its conflicts, the chain that it continues, the versions that it hides."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from locus_store.errors import ConflictError, IntegrityError, NotFoundError
from locus_store.runtime import observe
from locus_store.types import Mark, Outcome, Removed, Save, Version, Written
from locus_store.values.encoding import digest
from locus_store.versions.lines import (
    CHAIN_ALLOWANCE,
    CHAIN_FACTOR,
    HIDDEN_BATCH,
    IS_SIDE_BRANCH,
    RECORD_OVERHEAD,
    SIDE_BRANCH,
    Line,
    Lines,
    Record,
    expand_sealed_write,
    find_head,
    is_visible,
    make_mark,
    require_thread,
    select_current,
)
from locus_store.versions.reading import read_state_at
from locus_store.versions.removing import find_unused, forget, require_free


@dataclass(frozen=True, slots=True)
class Placement:
    """The destination of a save: its parent, and whether it becomes the head."""

    parent: int | None
    moves_head: bool


def generate_checkpoint_id() -> str:
    """Return 24 hexadecimal digits (96 random bits), in practice unique within a line."""
    return secrets.token_hex(12)


def save(lines: Lines, request: Save) -> Written:
    """Write one version; repeating an id with the same content returns the same version.

    Raises:
        ConflictError, NotFoundError: Before anything was written.
    """
    line = lines.find(request.thread_id, request.namespace)
    same = lines.named(line, request.checkpoint_id) if line else None
    if line and same and _is_repeat(lines, line, same, request):
        return _confirm(lines, line, same, request)
    if line is None and request.thread_must_exist:
        require_thread(lines, request.thread_id, request.checkpoint_id)
    place = _choose_placement(lines, line, request)
    if line and same and not place.moves_head:  # a side branch replaces no version
        request = request.with_id(_make_side_id(request, place))
        if same := lines.named(line, request.checkpoint_id):
            return _confirm(lines, line, same, request)
    if line is None:
        line = lines.create(request)
        if line.head is not None:  # another save created it since it was looked for
            return save(lines, request)
    else:
        lines.touch(request)
    if same:
        place = _remove_replaced(lines, line, same, place, request)
    return _write(lines, line, request, place, continues=_continues(lines, line, request, place))


def _confirm(lines: Lines, line: Line, same: Record, request: Save) -> Written:
    """Return the version of a save that was done before."""
    lines.touch(request)
    lines.update(line)
    is_side = same.labels.get(SIDE_BRANCH) == IS_SIDE_BRANCH
    mark = make_mark(lines, line, same)
    return Written(same.checkpoint_id, mark, "side" if is_side else "same")


def _make_side_id(request: Save, place: Placement) -> str:
    """Return the id of a side branch whose own id is in use: a repeat of the save has the same."""
    metadata, change = dict(request.metadata), request.change
    save = request.checkpoint_id, change.tree.digest, metadata, request.writer, request.run
    return digest(ascii((*save, place.parent)).encode()).hex()[:24]


def append(lines: Lines, line: Line, request: Save, *, continues: bool) -> Written:
    """Write one version onto the head of a line, for which ``can_append`` is true.

    Args:
        lines: See ``save``.
        line: Locked, as it is stored.
        request: The save.
        continues: It continues the current chain.
    """
    lines.touch(request)
    place = Placement(line.head, moves_head=True)
    return _write(lines, line, request, place, continues=continues)


def _is_repeat(lines: Lines, line: Line, same: Record, request: Save) -> bool:
    """Return whether the save was done before, as in a retry after a lost answer."""
    if same.digest != request.change.tree.digest or same.metadata != dict(request.metadata):
        return False
    expected = request.expected
    made_from = expected.made_from if expected else None
    if not is_visible(line, same.sequence):  # others have saved after it, or its id is used again
        basis = made_from.sequence if made_from else None
        is_known = expected is not None and _exists(lines, line, made_from)
        return is_known and basis == same.parent != line.head and not is_own(line, request)
    if request.parent_id is not None:
        parent = lines.named(line, request.parent_id)
        return parent is None or parent.sequence == same.parent
    rewinds = made_from is not None and made_from.sequence == same.sequence
    return not rewinds or same.sequence == line.head


def _choose_placement(lines: Lines, line: Line | None, request: Save) -> Placement:
    if request.is_root:
        return Placement(None, moves_head=True)
    head = line.head if line else None
    expected = request.expected
    if expected and expected.made_from and expected.made_from.store != lines.store:
        expected = None  # a state from another database says nothing of this one
    if expected is None and request.parent_id is not None:
        return _choose_place_below_parent(lines, line, request)
    if expected is None or (line and is_own(line, request)):
        return Placement(head, moves_head=True)
    if _is_head(lines, line, expected.head) and _exists(lines, line, expected.made_from):
        return Placement(
            expected.made_from.sequence if expected.made_from else None, moves_head=True
        )
    parent = _find_existing(lines, line, request.side_parent) or _find_existing(
        lines, line, expected.made_from
    )
    return _resolve_conflict(lines, line, request, parent, was_there=expected.made_from is not None)


def _choose_place_below_parent(lines: Lines, line: Line | None, request: Save) -> Placement:
    """Return the destination below an explicit parent: any version for a fork, else the head."""
    parent = lines.named(line, str(request.parent_id)) if line else None
    if line is not None and parent is not None and is_visible(line, parent.sequence):
        if request.forks or parent.sequence == line.head:
            return Placement(parent.sequence, moves_head=True)
        return _resolve_conflict(lines, line, request, parent)
    if not request.forks:
        return _resolve_conflict(lines, line, request, None)
    raise NotFoundError(
        f"thread {request.thread_id!r} has no checkpoint {request.parent_id!r} to save onto; "
        "list_checkpoints() shows what there is"
    )


def is_own(line: Line, request: Save) -> bool:
    """Return whether the head is the caller's own work, even if its state has an older mark.

    It is if both descend from the same load. The ``run`` decides only if the load is not known,
    because two edits of one version share their run.
    """
    if line.head is None:
        return False
    if request.writer is not None:
        return line.writer == request.writer
    return request.run is not None and line.run == request.run


def require_head(lines: Lines, line: Line | None, head: Mark, thread_id: str) -> None:
    """Refuse a change whose caller saw another head than the line's."""
    if not _is_head(lines, line, head):
        raise make_head_moved_error(thread_id)


def require_same(version: Version | None, head: Mark, thread_id: str) -> None:
    """Refuse a change whose caller saw another head than the version that was found."""
    if version is None or version.mark != head:
        raise make_head_moved_error(thread_id)


def make_head_moved_error(thread_id: str) -> ConflictError:
    """Return the error of a change whose caller saw another head."""
    return ConflictError(
        f"thread {thread_id!r} has another head than the one that was given; nothing was changed. "
        "Look at the newer versions first"
    )


def make_no_thread_result(thread_id: str, head: Mark | None) -> Removed:
    """Return the result of removing a thread that does not exist.

    Raises:
        ConflictError: The caller saw a head of it.
    """
    if head is not None:
        raise make_head_moved_error(thread_id)
    return Removed(existed=False, versions=0)


def _is_head(lines: Lines, line: Line | None, mark: Mark | None) -> bool:
    if line is None or line.head is None or mark is None:
        return mark is None and (line is None or line.head is None)
    return mark.sequence == line.head and _exists(lines, line, mark)


def _exists(lines: Lines, line: Line | None, mark: Mark | None) -> bool:
    """Return whether the version exists with its digest: a restored backup reuses numbers."""
    if mark is None:
        return True
    if line is None or (mark.store, mark.line) != (lines.store, line.line):
        return False
    found = lines.record(line, mark.sequence)
    return found is not None and found.digest == mark.digest


def _resolve_conflict(
    lines: Lines, line: Line | None, request: Save, parent: Record | None, *, was_there: bool = True
) -> Placement:
    """Resolve a conflict as the caller asked: raise, save a side branch, or overwrite.

    Args:
        lines: See ``save``, as the following two.
        line: The line.
        request: The save.
        parent: The version that it was made from, if it still exists.
        was_there: It was made from a version, which may not exist any more.
    """
    head = find_head(lines, line) if line else None
    if request.on_conflict == "overwrite" or (request.on_conflict == "branch" and head is None):
        under = parent if request.parent_id is not None and parent else head
        return Placement(under.sequence if under else None, moves_head=True)
    if request.on_conflict == "branch":
        return Placement(parent.sequence if parent else None, moves_head=False)
    if request.parent_id is not None and not (line and lines.named(line, request.parent_id)):
        raise _make_unknown_parent_error(request, head)
    now = f"is at {head.checkpoint_id!r}" if head else "is gone"
    was = f"at {parent.checkpoint_id!r}" if parent else "at a version that is gone"
    if not was_there:
        was = "without a version of it"
    raise ConflictError(
        f"thread {request.thread_id!r} {now}, but this state was made from it {was}; nothing was "
        "written. Load the thread and run the step again; the save of a checkpointer also has "
        'on_conflict="branch", which keeps this state beside the head',
        head_id=head.checkpoint_id if head else None,
        parent_id=parent.checkpoint_id if parent else None,
    )


def _make_unknown_parent_error(request: Save, head: Record | None) -> ConflictError:
    """Return the error for a save whose explicit parent does not exist."""
    where = f"thread {request.thread_id!r}"
    if request.namespace:
        where += f" (namespace {request.namespace!r})"
    has = f"its newest one is {head.checkpoint_id!r}" if head else "it has none at all"
    return ConflictError(
        f"{where} has no checkpoint {request.parent_id!r}, which this state names as its parent; "
        f"{has}. The parent was deleted, expired, or was saved elsewhere. Nothing was written: "
        "load the thread and run the step again, or save without a parent",
        head_id=head.checkpoint_id if head else None,
    )


def _find_existing(lines: Lines, line: Line | None, mark: Mark | None) -> Record | None:
    if mark is None or line is None or not _exists(lines, line, mark):
        return None
    return lines.record(line, mark.sequence)


def _remove_replaced(
    lines: Lines, line: Line, same: Record, place: Placement, request: Save
) -> Placement:
    """Remove the version whose id the caller reuses; return the destination of the new one.

    The pending writes stay. They are stored whole, because the basis of their frames is removed.
    """
    require_free(lines, line, [same.sequence])
    writes = select_current(lines.writes(line, same.checkpoint_id), same.sequence)
    if any(it.basis is not None for it in writes):
        state = read_state_at(lines, line, same)
        where = request.thread_id, request.namespace, same.checkpoint_id
        writes = [expand_sealed_write(where, it, state, lines.max_state_bytes) for it in writes]
    forget(lines, line, [same.sequence], keep_line=True)
    lines.put_writes(line, same.checkpoint_id, writes)
    if place.parent == same.sequence:
        return Placement(same.parent, place.moves_head)
    return place


def _write(
    lines: Lines, line: Line, request: Save, place: Placement, *, continues: bool
) -> Written:
    sequence = line.last_sequence + 1
    payload = request.change.frames if continues else None
    if payload is None:
        payload = request.change.to_payload()
    chain = line.open_chain if continues and line.open_chain is not None else sequence
    record = Record(
        sequence=sequence,
        chain=chain,
        parent=place.parent,
        checkpoint_id=request.checkpoint_id,
        digest=request.change.tree.digest,
        metadata=dict(request.metadata),
        labels={name: it for name, it in request.labels.items() if name != SIDE_BRANCH}
        | ({} if place.moves_head else {SIDE_BRANCH: IS_SIDE_BRANCH}),
    )
    lines.append(line, record, payload)
    line.last_sequence = sequence
    if place.moves_head:
        line.open_bytes = (line.open_bytes if continues else 0) + len(payload) + RECORD_OVERHEAD
        line.head, line.open_chain = sequence, chain
        line.writer, line.run = request.writer, request.run
    _keep_last(lines, line, request)
    lines.update(line)
    outcome: Outcome = "head" if place.moves_head else "side"
    return Written(record.checkpoint_id, make_mark(lines, line, record), outcome)


def _continues(lines: Lines, line: Line, request: Save, place: Placement) -> bool:
    """Return whether the frames may follow the last record of the current chain, which is the head.

    The bounds keep reading proportional to the state and storage linear. A chain ends when its
    records outgrow the state. Frames of more than half of the state are replaced by the whole.
    """
    frames, size = request.change.frames, request.change.tree.state_bytes
    follows_head = place.moves_head and (request.is_root or place.parent == line.head)
    if frames is None or not follows_head:
        return False
    if line.open_chain is None or request.basis is None or line.head is None:
        return False
    if line.open_bytes + len(frames) + RECORD_OVERHEAD > CHAIN_FACTOR * size + CHAIN_ALLOWANCE:
        return False
    return is_small(frames, size) and _is_head(lines, line, request.basis)


def is_small(frames: bytes, state_bytes: int) -> bool:
    """Return whether frames are worth a record of their own; else the whole state is one."""
    return len(frames) <= state_bytes // 2


def _keep_last(lines: Lines, line: Line, request: Save) -> None:
    """Hide versions beyond ``keep_last``, and sweep them in batches; a sweep fails no save."""
    if request.keep_last is None:
        return
    line.floor = max(line.floor, lines.newest(line, request.keep_last) or 0)
    batch = max(request.keep_last, HIDDEN_BATCH)
    hidden = _list_hidden(lines, line, batch + 2)
    if len(hidden) <= batch:
        return
    try:
        _sweep(lines, line, hidden)
    except IntegrityError as exc:
        observe.report_unswept("keep_last", request.thread_id, exc)


def _sweep(lines: Lines, line: Line, hidden: list[int]) -> None:
    """Remove hidden versions, or all of them if some cannot be removed alone."""
    gone = find_unused(lines, line, hidden)
    if gone:
        with suppress(IntegrityError):
            forget(lines, line, gone)
            return
    forget(lines, line, find_unused(lines, line, _list_hidden(lines, line, line.last_sequence)))


def _list_hidden(lines: Lines, line: Line, limit: int) -> list[int]:
    return [it for it in lines.below(line, line.floor, limit) if it != line.head]


class Append(NamedTuple):
    """An append at the head: it continues or begins a chain there.

    ``save`` decides all other cases: another head, an id in use, a chain that is closed.
    """

    line: int | None
    """The line, if it is known."""

    head: Mark | None
    """The expected head; ``None``: there is none, unless ``accepts_any_head``."""

    accepts_any_head: bool
    """The save appends to any head."""

    basis: Mark | None
    """The version that the payload is against, which must be the head; ``None``: a whole state."""

    payload: bytes
    state_bytes: int
    """Size of the whole state."""

    @property
    def added_bytes(self) -> int:
        """The number of bytes that it adds to ``Line.open_bytes``."""
        return len(self.payload) + RECORD_OVERHEAD

    @property
    def max_open_bytes(self) -> int:
        """The largest ``Line.open_bytes`` of a chain that it may continue."""
        return CHAIN_FACTOR * self.state_bytes + CHAIN_ALLOWANCE - self.added_bytes


def make_append(save: Save, store: str) -> Append | None:
    """Return a save as an append at the head, in the database ``store``; ``None``: it is none."""
    expected, basis, head = save.expected, save.basis, None
    if expected is not None:
        origin, head = expected.made_from, expected.head
        if origin is not None and origin.store != store:
            expected = head = None  # a state from another database says nothing of this one
        elif origin is not head and origin != head:
            return None
    if expected is None and save.parent_id is not None:
        return None
    if save.is_root and (basis is not None or expected is not None):
        return None
    line = None if head is None else head.line
    if basis is not None and basis.store != store:
        basis = None
    if basis is not None:
        if head is not None and line != basis.line:
            return None
        line = basis.line
    size, frames = save.change.tree.state_bytes, save.change.frames
    if basis is None or frames is None or not is_small(frames, size):
        return Append(line, head, expected is None, None, save.change.to_payload(), size)
    return Append(line, head, expected is None, basis, frames, size)


def can_append(line: Line, head_digest: bytes, save: Save, append: Append) -> bool:
    """Return whether an append at the head of a line has no conflict; else the full rules decide.

    A statement of PostgreSQL checks the same on the server.

    Args:
        line: Locked, as it is stored: it has a head, and no version with the id of the save.
        head_digest: The digest of the head.
        save: The save.
        append: What ``make_append`` returns for it.
    """
    if append.line != line.line:
        return False
    head, basis = append.head, append.basis
    known = line.head, head_digest
    is_head = head is not None and (head.sequence, head.digest) == known
    if not (append.accepts_any_head or is_head or is_own(line, save)):
        return False
    if basis is None:
        return True
    is_open = line.open_chain is not None and line.open_bytes <= append.max_open_bytes
    return is_open and (basis.sequence, basis.digest) == known
