"""The rules of the audit trail: hashes, seals, and what a check of both finds.

A seal is a Merkle tree (RFC 9162, section 2.1.1) over entries of one tenant, and continues the
former seal. An entry may be committed after the seal of later ones: the next seal has it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from locus_store.errors import IntegrityError

MOST_SEALED: Final = 10_000
"""Entries of a seal."""

PRUNED: Final = "prune_entries"
"""The method of the entry that says up to which one entries were removed."""

LAST: Final = 2**63 - 1
"""No entry has a greater number."""

_ID_BYTES: Final = 8
_LEAF_BYTES: Final = _ID_BYTES + 32


class AuditEntry(NamedTuple):
    """One call."""

    transaction_id: int | None
    """The transaction that wrote it, on PostgreSQL."""

    entry: int
    """In the order in which the database gave them out, which is not that of the commits."""

    tenant: str
    recorded_at: datetime
    who: str
    method: str
    thread_id: str | None
    detail: str | None
    """Ids and counts, as JSON."""

    result: str
    """``done``, ``side`` for a side branch, or the class of the error that refused the call."""

    def compute_hash(self) -> bytes:
        """Return the leaf of the tree."""
        fields = [_format(it) if isinstance(it, datetime) else it for it in self]
        return sha256(b"\x00" + _dump(fields)).digest()


def _format(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def _dump(value: Any) -> bytes:
    """Return JSON in ASCII, which has a form for half of a UTF-16 pair too."""
    return json.dumps(value, separators=(",", ":")).encode()


def compute_tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root of the Merkle tree over hashes of leaves.

    Each level joins neighbours, and a last one without neighbour moves up: the tree of RFC 9162.
    """
    level = [*leaves] or [sha256().digest()]
    while len(level) > 1:
        pairs = (level[at : at + 2] for at in range(0, len(level), 2))
        level = [sha256(b"\x01" + b"".join(it)).digest() if len(it) > 1 else it[0] for it in pairs]
    return level[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A batch of entries that cannot change any more without the root changing."""

    tenant: str
    number: int
    """From 1, without a gap."""

    sealed_at: datetime
    highest: int
    """The greatest entry of this seal and of all before."""

    oldest: int
    """On PostgreSQL, the oldest transaction under way before the entries were read."""

    newest: int
    """A transaction that began after the entries were read; elsewhere both are 0.

    An entry up to ``highest`` that the seal lacks was under way: its transaction is between both.
    """

    leaves: bytes
    """The number of each entry, and its hash."""

    root: bytes = b""
    """Of the tree, the fields and the root of the seal before."""

    def compute_root(self, before: Seal | None) -> bytes:
        """Return the root that continues a seal."""
        leaves = self.read_leaves()
        fields = [self.tenant, self.number, _format(self.sealed_at), self.highest, self.oldest]
        fields += [self.newest, [*leaves], compute_tree_root([*leaves.values()]).hex()]
        return sha256(b"\x02" + (before.root if before else b"") + _dump(fields)).digest()

    def read_leaves(self) -> dict[int, bytes]:
        """Return the hashes of the entries by their numbers."""
        found = (
            self.leaves[at : at + _LEAF_BYTES] for at in range(0, len(self.leaves), _LEAF_BYTES)
        )
        return {int.from_bytes(it[:_ID_BYTES]): it[_ID_BYTES:] for it in found}


def make_leaves(entries: Sequence[AuditEntry]) -> bytes:
    """Return the leaves of a seal over entries."""
    return b"".join(it.entry.to_bytes(_ID_BYTES) + it.compute_hash() for it in entries)


class Window:
    """The last seals, as far as entries before the newest seal may still come in.

    Whatever a seal lacks up to its ``highest`` has ended when no transaction of its time is under
    way any more; a later seal then has it, and no other entry can come in there.
    """

    def __init__(self) -> None:
        self.floor = 0
        """All entries up to here are sealed."""

        self._seals: deque[tuple[Seal, frozenset[int]]] = deque()

    @property
    def last(self) -> Seal | None:
        """The newest seal."""
        return self._seals[-1][0] if self._seals else None

    def add(self, seal: Seal) -> None:
        """Take the next seal."""
        self._seals.append((seal, frozenset(seal.read_leaves())))
        ended = [it for it, _ in self._seals if it.newest <= seal.oldest]
        if ended:
            self.floor = max(self.floor, ended[-1].highest)
            while len(self._seals) > 1 and self._seals[0][0].number <= ended[-1].number:
                self._seals.popleft()

    def has(self, entry: int) -> bool:
        """Return whether one of these seals has an entry."""
        return any(entry in it for _, it in self._seals)


class Audited(NamedTuple):
    """Whose calls a record has."""

    store: str
    """The identity of the database."""

    tenant: str


@runtime_checkable
class AuditLog(Protocol):
    """The entries and seals of one tenant, in a database, behind a service, or in a file."""

    async def read_audited(self) -> Audited:
        """Return the database and the tenant."""

    async def read_last_seal(self) -> Seal | None:
        """Return the newest seal."""

    async def list_seals(self, after: int, limit: int) -> list[Seal]:
        """Return the seals behind a number, in order."""

    async def list_entries(self, after: int, upto: int, limit: int) -> list[AuditEntry]:
        """Return the entries behind one and up to another, in order."""


class Verified(NamedTuple):
    """The result of a check that found no break."""

    entries: int
    seals: int
    unsealed: int
    """Entries that no seal has yet: a change of them would not be found."""

    pruned: int
    """Entries of seals that do not exist any more, as the record says itself."""

    root: str
    """Of the last seal; "" if there is none."""


async def verify(log: AuditLog, anchors: dict[int, str]) -> Verified:
    """Check all seals and entries of a tenant.

    Args:
        log: Where they are.
        anchors: Roots by the number of the seal, kept where the database's administrator cannot
            change them.

    Raises:
        IntegrityError: Names the first break.
    """
    window, pruning, seals, entries, pruned = Window(), Pruning(log), 0, 0, 0
    missing = dict(anchors)
    if added := await log.list_entries(-LAST - 1, 0, 1):
        raise IntegrityError(f"entry {added[0].entry} was inserted: the first one is 1")
    while found := await log.list_seals(seals, 1):
        [seal] = found
        seals += 1
        if seal.number != seals:
            raise IntegrityError(f"seal {seals} was deleted: the next one is {seal.number}")
        if seal.root != seal.compute_root(window.last):
            raise IntegrityError(f"seal {seals} was changed, or one was inserted or exchanged")
        if (root := missing.pop(seals, None)) not in {None, seal.root.hex()}:
            raise IntegrityError(f"seal {seals} is another one than its anchor {root}")
        gone = await _verify_entries(seal, window, log, pruning)
        entries, pruned = entries + len(seal.read_leaves()) - gone, pruned + gone
        window.add(seal)
    if missing:
        raise IntegrityError(
            f"seal {max(missing)} has an anchor and does not exist: the end of the audit was cut"
            f" off behind seal {seals}"
        )
    unsealed = 0
    async for entry in read_entries(log, window.floor):
        unsealed += not window.has(entry.entry)
    root = window.last.root.hex() if window.last else ""
    return Verified(entries, seals, unsealed, pruned, root)


async def _verify_entries(seal: Seal, window: Window, log: AuditLog, pruning: Pruning) -> int:
    """Compare a seal with its entries, naming the first wrong one; return how many were pruned."""
    leaves, pruned = seal.read_leaves(), 0
    expected = deque(sorted(leaves))

    async def skip_pruned(upto: int) -> int:
        count = 0
        while expected and expected[0] < upto:
            if not await pruning.has(expected[0]):
                raise IntegrityError(f"entry {expected[0]} of seal {seal.number} was deleted")
            expected.popleft()
            count += 1
        return count

    async for entry in read_entries(log, window.floor, seal.highest):
        pruned += await skip_pruned(entry.entry)
        if expected and expected[0] == entry.entry:
            expected.popleft()
            if entry.compute_hash() != leaves[entry.entry]:
                raise IntegrityError(
                    f"entry {entry.entry} of seal {seal.number} was changed: {entry.who!r} is said"
                    f" to have called {entry.method!r}"
                )
            continue
        is_late = entry.transaction_id and seal.oldest <= entry.transaction_id < seal.newest
        if not is_late and not window.has(entry.entry):
            raise IntegrityError(
                f"entry {entry.entry} was inserted after seal {seal.number}, which does not have it"
            )
    return pruned + await skip_pruned(LAST + 1)


class Pruning:
    """The entries that were pruned, as the record says itself; it is read if one is missing."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._upto: int | None = None

    async def has(self, entry: int) -> bool:
        """Return whether an entry was pruned."""
        if self._upto is None:
            self._upto = 0
            async for mark in read_entries(self._log):
                if mark.method == PRUNED:
                    self._upto = max(self._upto, min(_read_upto(mark), mark.entry - 1))
        return entry <= self._upto


def _read_upto(entry: AuditEntry) -> int:
    try:
        return int(json.loads(entry.detail or "")["upto"])
    except (ValueError, LookupError, TypeError, OverflowError) as exc:
        raise IntegrityError(
            f"entry {entry.entry} says that entries were pruned, but not which"
        ) from exc


async def read_entries(
    log: AuditLog, after: int = 0, upto: int = LAST
) -> AsyncIterator[AuditEntry]:
    """Yield the entries behind one and up to another, in order."""
    while found := await log.list_entries(after, upto, MOST_SEALED):
        for entry in found:
            yield entry
        after = found[-1].entry
