"""Whether an archived thread is whole, and the seal on what has no digest of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from locus_store import layout
from locus_store.encoding import digest
from locus_store.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.types import ArchivedLine, ArchivedRecord, ArchivedThread

SEAL_BYTES = 8
"""Length of what a sealed payload begins with: the start of the digest of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something stored that is not as it was saved, or not where it belongs."""

    thread_id: str | None
    """``None``: of the database as a whole."""

    namespace: str = ""
    checkpoint_id: str | None = None
    what: str

    def __str__(self) -> str:
        where = [] if self.thread_id is None else [f"thread {self.thread_id!r}"]
        where += [f"namespace {self.namespace!r}"] if self.namespace else []
        where += [f"checkpoint {self.checkpoint_id!r}"] if self.checkpoint_id else []
        return f"{', '.join(where)}: {self.what}" if where else self.what


def problems(thread: ArchivedThread) -> Iterator[Problem]:
    """What is wrong with a thread: versions that do not fold to their digests, broken links."""
    for line in thread.lines:
        for checkpoint_id, what in _of_line(line):
            yield Problem(
                thread_id=thread.thread_id,
                namespace=line.namespace,
                checkpoint_id=checkpoint_id,
                what=what,
            )


def require_whole(thread: ArchivedThread) -> None:
    """Refuse a thread that is not as it was saved.

    Raises:
        IntegrityError: The first problem found.
    """
    for problem in problems(thread):
        raise IntegrityError(f"{problem}; nothing was written")


def _of_line(line: ArchivedLine) -> Iterator[tuple[str | None, str]]:
    known = {it.sequence: it for it in line.records}
    ids = {it.checkpoint_id for it in line.records}
    if len(known) < len(line.records) or len(ids) < len(line.records):
        yield None, "two of its versions have the same number or id"
    if line.head is None and line.records:
        yield None, "it has versions and no head"
    if line.head is not None and line.head not in known:
        yield None, f"its head is version {line.head}, which is not there"
    if any(it.sequence > line.last_sequence for it in line.records):
        yield None, f"a version is newer than its last one, {line.last_sequence}"
    for record in line.records:
        if record.parent is not None and record.parent not in known:
            yield record.checkpoint_id, f"its parent, version {record.parent}, is not there"
        elif record.parent is not None and record.parent >= record.sequence:
            yield record.checkpoint_id, f"its parent, version {record.parent}, is not older"
        if record.chain > record.sequence:
            yield record.checkpoint_id, f"its chain begins behind it, at {record.chain}"
    yield from _of_states(line.records)


def _of_states(records: list[ArchivedRecord]) -> Iterator[tuple[str, str]]:
    """Fold each chain once; behind a damaged record nothing of its chain can be known."""
    folders: dict[int, layout.Folder] = {}
    damaged: set[int] = set()
    for record in sorted(records, key=lambda it: it.sequence):
        if record.chain in damaged:
            yield record.checkpoint_id, "a version that it is made from is damaged"
            continue
        folder = folders.setdefault(record.chain, layout.Folder())
        try:
            folder.apply(record.payload)
            found = layout.shape_of(folder.state()).digest
        except IntegrityError as exc:
            damaged.add(record.chain)
            yield record.checkpoint_id, str(exc)
            continue
        if found != record.digest:
            yield record.checkpoint_id, "its stored bytes do not give the state that was saved"


# --- pending writes have no digest


def sealed(payload: bytes) -> bytes:
    """The payload with a digest before it."""
    return digest(payload)[:SEAL_BYTES] + payload


def unsealed(stored: bytes | None) -> bytes:
    """The payload of what ``sealed`` gave.

    Raises:
        IntegrityError: It is not what was stored.
    """
    seal, payload = (stored or b"")[:SEAL_BYTES], (stored or b"")[SEAL_BYTES:]
    if seal != digest(payload)[:SEAL_BYTES]:
        raise IntegrityError(
            "the stored bytes of a pending write are not those that were saved; restore the "
            "database from a backup, or delete the thread"
        )
    return payload
