"""Saves that append to the head: nearly all, and possible in one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from locus_store.versions.lines import CHAIN_ALLOWANCE, CHAIN_FACTOR, RECORD_OVERHEAD
from locus_store.versions.saving import is_own, is_small

if TYPE_CHECKING:
    from locus_store.types import Mark, Save
    from locus_store.versions.lines import Line


class Append(NamedTuple):
    """A plain append: it continues or begins a chain at the head.

    ``save`` decides all other cases: another head, an id in use, a chain that is closed.
    """

    line: int | None
    """The line, if it is known."""

    head: Mark | None
    """The expected head; ``None``: there is none, unless ``is_free``."""

    is_free: bool
    """The save appends to any head."""

    basis: Mark | None
    """The version that the payload is against, which must be the head; ``None``: a whole state."""

    payload: bytes
    state_bytes: int
    """Size of the whole state."""

    @property
    def added(self) -> int:
        """The number of bytes that it adds to ``Line.open_bytes``."""
        return len(self.payload) + RECORD_OVERHEAD

    @property
    def most(self) -> int:
        """The largest ``Line.open_bytes`` of a chain that it may continue."""
        return CHAIN_FACTOR * self.state_bytes + CHAIN_ALLOWANCE - self.added


def append_of(save: Save, store: str) -> Append | None:
    """Return a save as an append to the database ``store``; ``None`` if it is not one."""
    expected = save.expected
    if expected is not None and expected.made_from and expected.made_from.store != store:
        expected = None  # a state from another database says nothing of this one
    if expected is None and save.parent_id is not None:
        return None
    if expected is not None and expected.made_from != expected.head:
        return None
    if save.is_root and (save.basis is not None or expected is not None):
        return None
    head = expected.head if expected else None
    known = save.basis if save.basis and save.basis.store == store else None
    lines = {it.line for it in (known, head) if it is not None}
    if len(lines) > 1:
        return None
    size, frames = save.change.shape.state_bytes, save.change.frames
    line = lines.pop() if lines else None
    if known is None or frames is None or not is_small(frames, size):
        return Append(line, head, expected is None, None, save.change.whole(), size)
    return Append(line, head, expected is None, known, frames, size)


def takes(line: Line, head_digest: bytes, save: Save, append: Append) -> bool:
    """Return whether a line takes the append that a save is; else the full rules decide.

    PostgreSQL, Oracle and Redis ask the same on the server.

    Args:
        line: Locked, and as it stands: it has a head, and no version with the save's id.
        head_digest: Of the head's record.
        save: The save.
        append: Its ``append_of``.
    """

    def is_head(mark: Mark | None) -> bool:
        return mark is not None and (mark.sequence, mark.digest) == (line.head, head_digest)

    if append.line != line.line:
        return False
    if not (append.is_free or is_own(line, save) or is_head(append.head)):
        return False
    if append.basis is None:
        return True
    is_open = line.open_chain is not None and line.open_bytes <= append.most
    return is_open and is_head(append.basis)
