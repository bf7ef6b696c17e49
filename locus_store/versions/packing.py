"""Packs: redundant copies of what the beginning of a chain folds to.

The records stay the truth. A load of many records spends its time on the frames of each, and a pack
is one frame. The first pack of a chain holds the whole state of its version; each further one holds
the difference between its version and that of the pack before. So a pack holds no text that neither
of these two versions has, and it is dropped with either of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from locus_store.errors import IntegrityError
from locus_store.types import Pack
from locus_store.values import frames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.types import Stored

PACK_SAVES: Final = 64
"""A save whose sequence is a multiple of this looks for records to pack."""

PACK_BYTES: Final = 16 * 1024
"""Fewer bytes of records are not packed: they are read as fast as a pack."""

RECORD_BYTES: Final = 4 * 1024
"""Records that are longer on average are not packed: their frames take little of a load."""


class KeepsPacks(ABC):
    """A backend that keeps packs."""

    @abstractmethod
    async def faulty_packs(self, thread_id: str, namespace: str) -> list[int]:
        """Return the sequences of a line's packs that no load can use."""

    @abstractmethod
    async def drop_packs(self, thread_id: str, namespace: str) -> None:
        """Remove the packs of a line; loads read its records."""


def is_time(sequence: int) -> bool:
    """Return whether the save of this sequence looks for records to pack."""
    return sequence % PACK_SAVES == 0


def is_due(stored: Stored) -> bool:
    """Return whether the records of a loaded version are to be packed.

    They are when they reach half the bytes of the packs before them, so that a chain has few packs
    and few bytes are written twice.
    """
    packed, behind = (sum(map(len, it)) for it in (stored.packs, stored.payloads))
    count = len(stored.payloads)
    is_slow = count > PACK_SAVES // 2 and behind <= count * RECORD_BYTES
    return is_slow and behind >= max(PACK_BYTES, packed // 2)


def pack_of(stored: Stored, max_bytes: int) -> Pack | None:
    """Return the pack of a loaded version; ``None`` if it would not be worth its bytes.

    Args:
        stored: Its packs, and each record after them.
        max_bytes: The largest state, as compact JSON.

    Raises:
        IntegrityError: The stored bytes do not give the state that was saved.
    """
    folder = frames.Folder(max_bytes)
    for payload in stored.packs:
        folder.apply(payload)
    before = frames.shape_of(folder.state()) if stored.packs else None
    for payload in stored.payloads:
        folder.apply(payload)
    change = frames.change(folder.state(), before)
    pack = _smallest(stored, change)
    if pack is not None:
        _prove(stored, pack, change.shape, max_bytes)
    return pack


def _smallest(stored: Stored, change: frames.Change) -> Pack | None:
    """Return a pack that continues the others, or one that replaces them, if either is small."""
    at, packed = stored.version.mark, sum(map(len, stored.packs))
    added = change.frames
    if added is not None and packed + len(added) <= change.shape.state_bytes:
        return Pack(at, stored.packed_to, added)
    whole = change.whole()
    is_small = len(whole) <= sum(map(len, stored.payloads))
    return Pack(at, None, whole) if is_small else None


def _prove(stored: Stored, pack: Pack, shape: frames.Shape, max_bytes: int) -> None:
    """Read the pack as a load reads it, and compare the state; ``shape`` is the one expected.

    Raises:
        IntegrityError: It does not give the state that was saved.
    """
    before = [] if pack.basis is None else stored.packs
    state = frames.fold([*before, pack.payload], max_bytes)
    if frames.shape_of(state, shape).digest != pack.version.digest:
        raise IntegrityError("the stored bytes do not give the state that was saved")


def faults(
    packs: Sequence[tuple[int, int | None, bytes, bytes]],
    digests: Mapping[int, bytes],
    max_bytes: int,
) -> list[int]:
    """Return the sequences of the packs that no load can use.

    Args:
        packs: The packs of one line as (sequence, basis, digest, payload), ascending.
        digests: Those of its versions, by sequence.
        max_bytes: The largest state, as compact JSON.
    """
    found: list[int] = []
    folder, last = frames.Folder(max_bytes), None
    for sequence, basis, digest, payload in packs:
        if basis is None:
            folder = frames.Folder(max_bytes)
        is_linked = basis in (None, last)
        is_records = digest == digests.get(sequence)
        if is_linked and is_records and _gives(folder, payload, digest):
            last = sequence
        else:
            found.append(sequence)
    return found


def _gives(folder: frames.Folder, payload: bytes, digest: bytes | None) -> bool:
    """Apply a pack; return whether that gives the state of the digest."""
    try:
        folder.apply(payload)
        return frames.shape_of(folder.state()).digest == digest
    except IntegrityError:
        return False
