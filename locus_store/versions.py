"""The rules of a line: when a save conflicts, where it goes, what a deletion leaves.

Written once, over the few primitives of ``Lines``; a backend implements those inside one
transaction that holds the line's lock, so that everything here sees a line nobody else moves.
Rules and their evidence: docs/concepts.md, docs/decisions.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from locus_store import layout
from locus_store.errors import ConflictError, IntegrityError, NotFoundError
from locus_store.types import ArchivedRecord, Mark, Outcome, Save, Stored, Written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from locus_store.types import ArchivedWrite, PendingWrite, Version

CHAIN_FACTOR = 4
"""A chain is closed when its records outgrow the state by this factor (see ``_continues``)."""

CHAIN_ALLOWANCE = 64 * 1024
"""Bytes that any chain may grow to: small states that change often would begin one all the time."""

RECORD_OVERHEAD = 512
"""Bytes that reading one more record costs, counted with its frames."""

HIDDEN_BATCH = 64
"""Versions that ``keep_last`` hides before it removes them in one go."""

CHANNELS = "channel_values"
"""Where a graph runner's state has its channels, by name."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A checkpoint's row without its payload."""

    sequence: int
    chain: int
    parent: int | None
    checkpoint_id: str
    digest: bytes
    metadata: dict[str, Any]
    labels: dict[str, Any]


class Records(Protocol):
    """What finds a record."""

    def record(self, line: Line, sequence: int) -> Record | None:
        """One record by its sequence."""

    def named(self, line: Line, checkpoint_id: str) -> Record | None:
        """One record by its checkpoint id."""


class Lines(Records, Protocol):
    """What a backend gives these rules, within one transaction."""

    store: str
    """Identity of the database."""

    def find(self, thread_id: str, namespace: str) -> Line | None:
        """Lock the line and read it; ``None`` where there is none or its thread has expired."""

    def create(self, save: Save) -> Line:
        """Make the line, and its thread where that is new; an expired thread goes first."""

    def update(self, line: Line) -> None:
        """Write the line's row back."""

    def touch(self, save: Save) -> None:
        """Note the thread's activity, and its new expiry where the save has a time to live."""

    def drop(self, line: Line) -> None:
        """Remove the line with all it owns; its key is never used again."""

    def newest(self, line: Line, nth: int = 1) -> int | None:
        """The sequence of the nth newest record; ``None`` where there are fewer."""

    def below(self, line: Line, sequence: int, limit: int) -> list[int]:
        """Sequences below ``sequence``, ascending, at most ``limit``."""

    def payloads(
        self, line: Line, chain: int, *, upto: int | None = None
    ) -> list[tuple[int, bytes]]:
        """The chain's records as (sequence, payload), ascending; ``upto`` is inclusive."""

    def append(self, line: Line, record: Record, payload: bytes) -> None:
        """Insert a record."""

    def rewrite(self, line: Line, sequence: int, payload: bytes) -> None:
        """Replace a record's payload."""

    def adopt(self, line: Line, parent: int, new_parent: int | None) -> None:
        """Give the children of ``parent`` another parent."""

    def children(self, line: Line, sequences: Collection[int]) -> list[Record]:
        """The records whose parent is one of these."""

    def remove(self, line: Line, sequences: Sequence[int]) -> None:
        """Remove records, with the pending writes of their checkpoints."""

    def writes(self, line: Line, checkpoint_id: str) -> list[PendingWrite]:
        """A checkpoint's pending writes, in any order."""

    def put_writes(self, line: Line, checkpoint_id: str, writes: Sequence[PendingWrite]) -> None:
        """Store pending writes; those of the same task and place are replaced."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a save goes: below ``parent``, as the head or beside it."""

    parent: int | None
    moves_head: bool


def new_checkpoint_id() -> str:
    """24 hexadecimal digits: 96 random bits, unique within a line for all practical purposes."""
    return secrets.token_hex(12)


# --- saving


def save(lines: Lines, request: Save) -> Written:
    """Write one version; the same id with the same content again is the same version.

    Raises:
        ConflictError, NotFoundError: Before anything was written.
    """
    line = lines.find(request.thread_id, request.namespace)
    same = lines.named(line, request.checkpoint_id) if line else None
    if line and same and _is_repeat(lines, line, same, request):
        lines.touch(request)
        return Written(same.checkpoint_id, _mark(lines, line, same), "same")
    place = _place(lines, line, request)
    if same and not place.moves_head:  # a losing save replaces nobody's version
        request, same = replace(request, checkpoint_id=new_checkpoint_id()), None
    if line is None:
        line = lines.create(request)
    else:
        lines.touch(request)
    if same:
        place = _replace(lines, line, same, place)
    return _write(lines, line, request, place)


def _is_repeat(lines: Lines, line: Line, same: Record, request: Save) -> bool:
    """Whether the save was done before, as after an answer that was lost."""
    if same.digest != request.change.shape.digest or same.metadata != dict(request.metadata):
        return False
    if not is_visible(line, same.sequence):
        return False
    if request.parent_id is not None:
        parent = lines.named(line, request.parent_id)
        return parent is None or parent.sequence == same.parent
    made_from = request.expected.made_from if request.expected else None
    rewinds = made_from is not None and made_from.sequence == same.sequence
    return not rewinds or same.sequence == line.head


def _place(lines: Lines, line: Line | None, request: Save) -> Place:
    if request.is_root:
        return Place(None, moves_head=True)
    head = line.head if line else None
    expected = request.expected
    if expected and expected.made_from and expected.made_from.store != lines.store:
        expected = None  # a state from another database says nothing of this one
    if expected is None and request.parent_id is not None:
        return _onto(lines, line, request)
    if expected is None or (line and _is_own(line, request)):
        return Place(head, moves_head=True)
    if _holds(lines, line, expected.head) and _exists(lines, line, expected.made_from):
        return Place(expected.made_from.sequence if expected.made_from else None, moves_head=True)
    parent = _surviving(lines, line, request.side_parent) or _surviving(
        lines, line, expected.made_from
    )
    return _lost(lines, line, request, parent, was_there=expected.made_from is not None)


def _onto(lines: Lines, line: Line | None, request: Save) -> Place:
    """The explicit parent: any version for a fork, else the head."""
    parent = lines.named(line, str(request.parent_id)) if line else None
    if line is not None and parent is not None and is_visible(line, parent.sequence):
        if request.forks or parent.sequence == line.head:
            return Place(parent.sequence, moves_head=True)
        return _lost(lines, line, request, parent)
    if not request.forks:
        return _lost(lines, line, request, None)
    raise NotFoundError(
        f"thread {request.thread_id!r} has no checkpoint {request.parent_id!r} to save onto; "
        "list_checkpoints() shows what there is"
    )


def _is_own(line: Line, request: Save) -> bool:
    """The head is the caller's own work, whatever the mark says that its state still carries.

    By the load that both descend from; by ``run`` only where the caller lost track of its load,
    since two edits of one version share their run.
    """
    if line.head is None:
        return False
    if request.writer is not None:
        return line.writer == request.writer
    return request.run is not None and line.run == request.run


def _holds(lines: Lines, line: Line | None, mark: Mark | None) -> bool:
    if line is None or line.head is None or mark is None:
        return mark is None and (line is None or line.head is None)
    return mark.sequence == line.head and _exists(lines, line, mark)


def _exists(lines: Lines, line: Line | None, mark: Mark | None) -> bool:
    """Whether the version is still there; by its digest too, as a restored backup counts again."""
    if mark is None:
        return True
    if line is None or (mark.store, mark.line) != (lines.store, line.line):
        return False
    found = lines.record(line, mark.sequence)
    return found is not None and found.digest == mark.digest


def _lost(
    lines: Lines,
    line: Line | None,
    request: Save,
    parent: Record | None,
    *,
    was_there: bool = True,
) -> Place:
    """Another writer moved the head: tell, keep beside it, or win, as the caller asked.

    Args:
        lines: See ``save``, as the following two.
        line: The line.
        request: The save.
        parent: What it was made from, if that is there still.
        was_there: It was made from a version, there or not.
    """
    head = head_of(lines, line) if line else None
    if request.on_conflict == "overwrite" or (request.on_conflict == "branch" and head is None):
        under = parent if request.parent_id is not None and parent else head
        return Place(under.sequence if under else None, moves_head=True)
    if request.on_conflict == "branch":
        return Place(parent.sequence if parent else None, moves_head=False)
    now = f"is at {head.checkpoint_id!r}" if head else "is gone"
    was = f"at {parent.checkpoint_id!r}" if parent else "at a version that is gone"
    if not was_there:
        was = "when it was not there"
    raise ConflictError(
        f"thread {request.thread_id!r} {now}, but this state was made from it {was}; nothing was "
        'written. Load the thread and run the step again, or save with on_conflict="branch" to '
        "keep this state beside the head",
        head_id=head.checkpoint_id if head else None,
        parent_id=parent.checkpoint_id if parent else None,
    )


def _surviving(lines: Lines, line: Line | None, mark: Mark | None) -> Record | None:
    if mark is None or line is None or not _exists(lines, line, mark):
        return None
    return lines.record(line, mark.sequence)


def _replace(lines: Lines, line: Line, same: Record, place: Place) -> Place:
    """The id is the caller's and used again: the old version goes, a new sequence comes.

    Its pending writes stay, whole: what their frames are against goes.
    """
    _require_free(lines, line, [same.sequence])
    writes = lines.writes(line, same.checkpoint_id)
    if any(it.basis is not None for it in writes):
        state = _state(lines, line, same)
        writes = [whole_write(it, state) for it in writes]
    forget(lines, line, [same.sequence], keep_line=True)
    lines.put_writes(line, same.checkpoint_id, writes)
    if place.parent == same.sequence:
        return Place(same.parent, place.moves_head)
    return place


def _write(lines: Lines, line: Line, request: Save, place: Place) -> Written:
    sequence = line.last_sequence + 1
    continues = _continues(lines, line, request, place)
    payload = request.change.frames if continues else None
    if payload is None:
        payload = request.change.whole()
    chain = line.open_chain if continues and line.open_chain is not None else sequence
    record = Record(
        sequence=sequence,
        chain=chain,
        parent=place.parent,
        checkpoint_id=request.checkpoint_id,
        digest=request.change.shape.digest,
        metadata=dict(request.metadata),
        labels=dict(request.labels),
    )
    lines.append(line, record, payload)
    line.last_sequence = sequence
    if place.moves_head:
        line.open_bytes = (line.open_bytes if continues else 0) + len(payload) + RECORD_OVERHEAD
        line.head, line.open_chain = sequence, chain
        line.writer, line.run = request.writer, request.run
    _keep_last(lines, line, request.keep_last)
    lines.update(line)
    outcome: Outcome = "head" if place.moves_head else "side"
    return Written(record.checkpoint_id, _mark(lines, line, record), outcome)


def _continues(lines: Lines, line: Line, request: Save, place: Place) -> bool:
    """Whether the frames may follow the open chain's last record, which is the head.

    The bounds keep reading proportional to the state and storage linear: a chain ends when its
    records outgrow the state, and a frame that is half a state gives way to the whole of it.
    """
    frames, size = request.change.frames, request.change.shape.state_bytes
    follows_head = place.moves_head and (request.is_root or place.parent == line.head)
    if frames is None or not follows_head:
        return False
    if line.open_chain is None or request.basis is None or line.head is None:
        return False
    if line.open_bytes + len(frames) + RECORD_OVERHEAD > CHAIN_FACTOR * size + CHAIN_ALLOWANCE:
        return False
    return len(frames) <= size // 2 and _holds(lines, line, request.basis)


def _keep_last(lines: Lines, line: Line, keep_last: int | None) -> None:
    if keep_last is None:
        return
    line.floor = max(line.floor, lines.newest(line, keep_last) or 0)
    batch = max(keep_last, HIDDEN_BATCH)
    hidden = [it for it in lines.below(line, line.floor, batch + 2) if it != line.head]
    if len(hidden) > batch:
        gone = free(lines, line, hidden)
        if not gone:  # the next hidden ones are rebuilt from them, and may go as well
            every = lines.below(line, line.floor, line.last_sequence)
            gone = free(lines, line, [it for it in every if it != line.head])
        forget(lines, line, gone)


def _mark(lines: Lines, line: Line, record: Record) -> Mark:
    return Mark(lines.store, line.line, record.sequence, record.digest)


# --- reading


def is_visible(line: Line, sequence: int) -> bool:
    """Whether lists and loads show a version: ``keep_last`` hides before it removes."""
    return sequence >= line.floor or sequence == line.head


def head_of(records: Records, line: Line) -> Record | None:
    """The head's record; ``None`` for a line that has no version.

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


def target(records: Records, line: Line, checkpoint_id: str | None) -> Record | None:
    """The record to load: the named one, or the head."""
    if checkpoint_id is None:
        return head_of(records, line)
    found = records.named(line, checkpoint_id)
    return found if found and is_visible(line, found.sequence) else None


def state_of(stored: Stored) -> tuple[dict[str, Any], layout.Shape]:
    """The state that stored bytes give, checked against its digest, and its shape.

    Raises:
        IntegrityError: The stored bytes do not give the state that was saved.
    """
    version = stored.version
    try:
        state = layout.fold(stored.payloads)
        shape = layout.shape_of(state)
        _require_digest(version, shape)
    except IntegrityError as exc:
        raise IntegrityError(f"{_where(version)}: {exc}; {_REMEDY}") from exc
    return state, shape


_REMEDY = "restore the database from a backup, or load another version"


def _where(version: Version) -> str:
    return f"thread {version.thread_id!r}, checkpoint {version.checkpoint_id!r}"


def _require_digest(version: Version, shape: layout.Shape) -> None:
    if shape.digest != version.mark.digest:
        raise IntegrityError("the stored bytes do not give the state that was saved")


def replay(
    records: Sequence[tuple[int, int, bytes]], wanted: Iterable[Version]
) -> Iterator[tuple[Version, layout.Folder]]:
    """The states of versions of one line, in one pass.

    Args:
        records: What ``StorageBackend.records`` gave for them.
        wanted: The versions, in any order.

    Yields:
        Each, ascending, with what has folded its state; that goes on with the next, and its
        ``log`` tells what was done since it was cleared.

    Raises:
        IntegrityError: A record is damaged, or the newest of them in a chain is not the state that
            was saved.
    """
    missing = {it.mark.sequence: it for it in wanted}
    newest = {chain: sequence for sequence, chain, _ in records if sequence in missing}
    folders: dict[int, layout.Folder] = {}
    for sequence, chain, payload in records:
        if sequence > newest.get(chain, 0):
            continue
        folder = folders.setdefault(chain, layout.Folder(logs=True))
        version = missing.pop(sequence, None)
        try:
            folder.apply(payload)
            if sequence == newest[chain] and version is not None:
                _require_digest(version, layout.shape_of(folder.state()))
        except IntegrityError as exc:
            where = _where(version) if version else f"version {sequence}"
            raise IntegrityError(f"{where}: {exc}; {_REMEDY}") from exc
        if version is not None:
            yield version, folder
    for version in missing.values():
        raise IntegrityError(f"{_where(version)} is gone: somebody removed it meanwhile")


def visible_texts(
    line: Line, records: Iterable[tuple[int, int, bytes]]
) -> Iterator[tuple[int, str]]:
    """The text that each visible version brings, for a search.

    Args:
        line: The line.
        records: All its (sequence, chain, payload), ascending.

    Yields:
        (sequence, text). Where ``keep_last`` hid what a chain begins with, its first visible
        version brings the whole of its state.
    """
    hidden: dict[int, layout.Folder] = {}
    for sequence, chain, payload in records:
        if not is_visible(line, sequence):
            hidden.setdefault(chain, layout.Folder()).apply(payload)
        elif folder := hidden.pop(chain, None):
            folder.apply(payload)
            yield sequence, layout.text_in(folder.state())
        else:
            yield sequence, layout.text_of(payload)


def made_of(
    records: Iterable[tuple[int, int, bytes]], first: int, last: int
) -> list[tuple[int, int, bytes]]:
    """Of a line's records, ascending, those of ``StorageBackend.records``."""
    until = [it for it in records if it[0] <= last]
    chains = {chain for sequence, chain, _ in until if sequence >= first}
    return [it for it in until if it[1] in chains]


def cursor(records: Records, line: Line, thread_id: str, checkpoint_id: str) -> int:
    """The sequence of the version that a list continues below.

    Raises:
        NotFoundError: There is no such version.
    """
    found = records.named(line, checkpoint_id)
    if found is None:
        raise NotFoundError(
            f"thread {thread_id!r} has no checkpoint {checkpoint_id!r} to list below; begin again "
            "without a cursor"
        )
    return found.sequence


# --- deleting


def remove_named(
    lines: Lines, line: Line, checkpoint_ids: Iterable[str], writer: str | None = None
) -> int:
    """Remove the versions of these ids that are there and visible; return how many.

    A head that ``writer`` made and removes leaves the line its own.

    Raises:
        ConflictError: A version that stays is rebuilt from one of them; nothing was removed.
    """
    found = [it for it in (lines.named(line, name) for name in set(checkpoint_ids)) if it]
    shown = [it.sequence for it in found if is_visible(line, it.sequence)]
    _require_free(lines, line, shown)
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
    """Remove versions and leave every other one as it was.

    The frames between the versions before and after a run of removed neighbours are computed
    anew: joined bytes would keep what was deleted. The caller writes the line's row back unless
    the line itself goes, which it does with its last version;
    ``keep_line`` leaves the line even when it is empty, for a save that follows. Without
    ``keep_writer`` a head that moves is nobody's own work.
    """
    gone = [it for it in (lines.record(line, s) for s in sorted(set(sequences))) if it]
    if not gone:
        return
    by_chain = sorted(gone, key=lambda it: (it.chain, it.sequence))
    for chain, members in groupby(by_chain, key=lambda it: it.chain):
        _rewrite_chain(lines, line, chain, {it.sequence for it in members})
    _reparent(lines, line, gone)
    head_gone = any(it.sequence == line.head for it in gone)
    if head_gone:
        line.head = _ancestor(lines, line, gone)
    lines.remove(line, [it.sequence for it in gone])
    if head_gone and not keep_writer:
        line.writer = line.run = None
    _settle(lines, line, head_moved=head_gone, chains={it.chain for it in gone})
    if line.head is None and not keep_line:
        lines.drop(line)
    else:
        lines.update(line)


def prune(lines: Lines, line: Line) -> int:
    """Remove all versions but the head and what it is rebuilt from; return how many."""
    return vacuum(lines, line, lines.below(line, line.last_sequence + 1, line.last_sequence))


def vacuum(lines: Lines, line: Line, old: Collection[int]) -> int:
    """Remove those of the old versions that nothing needs; return how many."""
    gone = free(lines, line, [it for it in old if it != line.head])
    forget(lines, line, gone)
    return len(gone)


def free(lines: Lines, line: Line, sequences: Collection[int]) -> list[int]:
    """Those that no other version is rebuilt from, once they are gone; ascending.

    A version with the label ``REBUILT`` needs its parent, with the pending writes there.
    """
    gone = set(sequences)
    needed = [
        it.parent
        for it in lines.children(line, gone)
        if it.labels.get(REBUILT) and it.sequence not in gone
    ]
    while needed:
        sequence = needed.pop()
        if sequence in gone:
            gone.remove(sequence)
            record = lines.record(line, sequence)
            if record and record.labels.get(REBUILT):
                needed.append(record.parent)
    return sorted(gone)


def _require_free(lines: Lines, line: Line, sequences: Collection[int]) -> None:
    kept = set(sequences).difference(free(lines, line, sequences))
    record = lines.record(line, min(kept)) if kept else None
    if record:
        raise ConflictError(
            f"checkpoint {record.checkpoint_id!r} holds what later ones are rebuilt from, as a"
            " channel of theirs keeps changes only; nothing was removed. Remove these as well, or"
            " the thread, or wait until the graph has saved the channel's whole value again"
        )


def _rewrite_chain(lines: Lines, line: Line, chain: int, gone: set[int]) -> None:
    """Give the record after each removed run the frames from the state before the run."""
    rows = lines.payloads(line, chain)
    last_gone = max(i for i, (sequence, _) in enumerate(rows) if sequence in gone)
    folder, before, in_run = layout.Folder(), None, False
    for place, (sequence, payload) in enumerate(rows[: last_gone + 2]):
        if sequence in gone and not in_run:
            in_run, before = True, layout.shape_of(folder.state()) if place else None
        folder.apply(payload)
        if sequence not in gone and in_run:
            in_run = False
            lines.rewrite(line, sequence, _smallest(layout.change(folder.state(), before)))


def _smallest(change: layout.Change) -> bytes:
    if change.frames is None or len(change.frames) > change.shape.state_bytes // 2:
        return change.whole()
    return change.frames


def _ancestry(gone: Sequence[Record]) -> dict[int, int | None]:
    """Per removed version, its nearest remaining ancestor; parents have lower sequences."""
    nearest: dict[int, int | None] = {}
    for record in sorted(gone, key=lambda it: it.sequence):
        parent = record.parent
        nearest[record.sequence] = nearest.get(parent, parent) if parent is not None else None
    return nearest


def _reparent(lines: Lines, line: Line, gone: Sequence[Record]) -> None:
    for sequence, ancestor in _ancestry(gone).items():
        lines.adopt(line, sequence, ancestor)


def _ancestor(lines: Lines, line: Line, gone: Sequence[Record]) -> int | None:
    """The nearest ancestor of the head that remains, else the newest version that does.

    What ``keep_last`` hid stays hidden.
    """
    nearest = _ancestry(gone).get(line.head or 0)
    if nearest is not None and nearest >= line.floor:
        return nearest
    removed = {it.sequence for it in gone}
    newest = next((it for it in _newest_first(lines, line) if it not in removed), 0)
    return newest if newest >= max(line.floor, 1) else None


def _newest_first(lines: Lines, line: Line) -> Iterator[int]:
    nth = 1
    while (sequence := lines.newest(line, nth)) is not None:
        yield sequence
        nth += 1


def _settle(lines: Lines, line: Line, *, head_moved: bool, chains: set[int]) -> None:
    if head_moved or line.head is None or line.open_chain in chains:
        settle(lines, line)


def settle(lines: Lines, line: Line) -> None:
    """Re-establish what the line's row says of its open chain."""
    head = None if line.head is None else lines.record(line, line.head)
    rows = lines.payloads(line, head.chain) if head else []
    if head is None or not rows or rows[-1][0] != line.head:
        line.open_chain, line.open_bytes = None, 0
    else:
        line.open_chain = head.chain
        line.open_bytes = sum(len(payload) + RECORD_OVERHEAD for _, payload in rows)


# --- pending writes


def put_writes(
    lines: Lines,
    line: Line,
    checkpoint_id: str,
    writes: Sequence[PendingWrite],
    *,
    known: Mark | None,
    seen: Collection[tuple[str, int]] | None,
) -> bool:
    """Store a checkpoint's pending writes; see ``StorageBackend.put_writes``.

    Raises:
        ConflictError: Before anything was written.
    """
    if any(it.basis is not None for it in writes):
        record = lines.named(line, checkpoint_id)
        if record is None or _mark(lines, line, record) != known:
            return False
    there = {(it.task_id, it.idx): it for it in lines.writes(line, checkpoint_id)}
    if seen is not None:
        _require_own(there, {(it.task_id, it.idx): it for it in writes}, seen, checkpoint_id)
    lines.put_writes(line, checkpoint_id, list(winning(there, writes).values()))
    return True


def _require_own(
    there: Mapping[tuple[str, int], PendingWrite],
    mine: Mapping[tuple[str, int], PendingWrite],
    seen: Collection[tuple[str, int]],
    checkpoint_id: str,
) -> None:
    """Refuse to write among the writes of somebody else; one's own may be there from a retry."""
    for key, write in there.items():
        if key not in seen and mine.get(key) != write:
            raise ConflictError(
                f"somebody else is at work on checkpoint {checkpoint_id!r}: task {key[0]!r} wrote "
                "to it since it was loaded; nothing was written. Run the graph again when the "
                "other run is over",
                head_id=checkpoint_id,
                parent_id=checkpoint_id,
            )


def whole_write(write: PendingWrite, state: Mapping[str, Any]) -> PendingWrite:
    """The write without frames.

    Args:
        write: Any.
        state: Of its checkpoint.

    Raises:
        IntegrityError: The frames make no sense.
    """
    if write.basis is None:
        return write
    value = layout.value_of(write.payload, channel_in(state, write.channel))
    return replace(write, payload=layout.value_payload(value), basis=None)


def channel_in(state: Mapping[str, Any], channel: str) -> Any:
    """The value that a channel has in a graph runner's state; ``None`` where it has none."""
    channels = state.get(CHANNELS)
    return channels.get(channel) if isinstance(channels, Mapping) else None


def _state(lines: Lines, line: Line, record: Record) -> dict[str, Any]:
    return layout.fold(it for _, it in lines.payloads(line, record.chain, upto=record.sequence))


def winning(
    there: Collection[tuple[str, int]], writes: Sequence[PendingWrite]
) -> dict[tuple[str, int], PendingWrite]:
    """The writes to store, by task and place: what is there stays, but for special channels."""
    kept: dict[tuple[str, int], PendingWrite] = {}
    for write in writes:
        key = (write.task_id, write.idx)
        if write.idx < 0 or (key not in there and key not in kept):
            kept[key] = write
    return kept


def record_of(archived: ArchivedRecord) -> Record:
    """An archived version without its payload and time."""
    return Record(**{name: getattr(archived, name) for name in Record.__slots__})


def archived(record: Record, payload: bytes, created_at: datetime) -> ArchivedRecord:
    """A version with its payload and time; shares nothing that can be changed."""
    values = {name: deepcopy(getattr(record, name)) for name in Record.__slots__}
    return ArchivedRecord(**values, payload=payload, created_at=created_at)


def archive_order(it: ArchivedWrite) -> tuple[str, str, int]:
    """The order in which an archive has pending writes."""
    return it.checkpoint_id, it.write.task_id, it.write.idx


def in_order(write: PendingWrite) -> tuple[str, str, int]:
    """The order in which pending writes are applied."""
    return write.task_path, write.task_id, write.idx
