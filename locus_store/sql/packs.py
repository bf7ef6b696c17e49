"""Packs in the tables, and the part of a backend that writes and reads them.

The rules are in ``versions.packing``.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import sqlalchemy as sa

from locus_store.backend import StorageBackend
from locus_store.errors import IntegrityError
from locus_store.runtime.background import Background
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.loops import off_loop
from locus_store.runtime.observe import damaged_packs, observed, unpacked
from locus_store.sql.reads import Reads
from locus_store.types import Kept
from locus_store.values import frames
from locus_store.versions import packing, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from locus_store.sql.repository import Repository
    from locus_store.types import Pack, Stored, Written

T = TypeVar("T")

_read_packed = inspect.unwrap(StorageBackend.read_kept)
"""Reports no damage, because the records may be whole."""

PACKING_SECONDS: Final = 5.0
"""``close`` waits no longer than this for packs that are being written."""


def add(it: Repository, thread_id: str, namespace: str, pack: Pack) -> bool:
    """Store a pack if its version and the pack that it continues are there; return whether.

    One that continues no other replaces all packs of the line. It waits for no lock: the caller
    of a transaction that has the line may wait for this object's connection, or for ``close``.
    """
    is_locked, at = it.lock_unheld(thread_id, namespace), pack.version
    line = it.line_of(thread_id, namespace) if is_locked else None
    record = it.record(line, at.sequence) if line else None
    if line is None or line.line != at.line or record is None or record.digest != at.digest:
        return False
    packs, is_lines = it.tables.packs, it.tables.packs.c.line == at.line
    last = it.connection.execute(sa.select(sa.func.max(packs.c.sequence)).where(is_lines)).scalar()
    if (last or 0) >= at.sequence or pack.basis not in (None, last):
        return False
    if pack.basis is None:
        it.connection.execute(packs.delete().where(is_lines))
    values = {"basis": pack.basis, "digest": at.digest, "payload": pack.payload}
    it.connection.execute(packs.insert().values(line=at.line, sequence=at.sequence, **values))
    return True


def drop(it: Repository, thread_id: str, namespace: str) -> None:
    """Remove all packs of a line."""
    line, packs = it.find(thread_id, namespace), it.tables.packs
    if line is not None:
        it.connection.execute(packs.delete().where(packs.c.line == line.line))


def faults(it: Repository, thread_id: str, namespace: str) -> list[int]:
    """Return the sequences of a line's packs that no load can use."""
    line, packs, records = it.line_of(thread_id, namespace), it.tables.packs, it.tables.checkpoints
    if line is None:
        return []
    columns = packs.c.sequence, packs.c.basis, packs.c.digest, packs.c.payload
    of_line = sa.select(*columns).where(packs.c.line == line.line).order_by(packs.c.sequence)
    rows = [(row[0], row[1], row[2], row[3]) for row in it.connection.execute(of_line)]
    is_record = records.c.line == packs.c.line, records.c.sequence == packs.c.sequence
    digests = sa.select(records.c.sequence, records.c.digest).join(packs, sa.and_(*is_record))
    found = it.connection.execute(digests.where(packs.c.line == line.line))
    return packing.faults(rows, {row[0]: row[1] for row in found}, it.max_state_bytes)


class Packing(packing.KeepsPacks, StorageBackend):
    """Packs a thread's records from time to time, and reads the records if packs are damaged.

    A save does not wait for it. One thread is packed at a time, in each event loop.
    """

    def _prepare_packing(self) -> None:
        self._background = PerLoop(Background)
        """Shared by the objects of all tenants."""

    @abstractmethod
    async def _read(self, body: Callable[[Repository], T]) -> T:
        """Run ``body`` on one snapshot."""

    @abstractmethod
    async def _write(self, body: Callable[[Repository], T]) -> T:
        """Run ``body`` and commit."""

    async def write_state(
        self, thread_id: str, data: Mapping[str, Any], *, namespace: str = "", **options: Any
    ) -> Written:
        """See ``StorageBackend.write_state``."""
        written = await super().write_state(thread_id, data, namespace=namespace, **options)
        is_head = written.outcome == "head" and options.get("connection") is None
        if is_head and packing.is_time(written.mark.sequence):
            name = self.tenant, thread_id, namespace
            self._background.here().submit(name, partial(self._pack, thread_id, namespace))
        return written

    @observed("load")
    async def read_kept(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        namespace: str = "",
        with_writes: bool = False,
    ) -> Kept | None:
        """See ``StorageBackend.read_kept``."""
        which: dict[str, Any] = {"namespace": namespace, "with_writes": with_writes}
        try:
            return cast("Kept | None", await _read_packed(self, thread_id, checkpoint_id, **which))
        except IntegrityError:
            stored = await self._records(thread_id, namespace, checkpoint_id, with_writes)
            found = await self._kept(stored) if stored else None
        damaged_packs(thread_id)
        return found

    async def _records(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, with_writes: bool
    ) -> Stored | None:
        """Return a version without packs."""
        return await self._read(
            lambda it: it.fetch(
                thread_id, namespace, checkpoint_id, with_writes=with_writes, packed=False
            )
        )

    async def _kept(self, stored: Stored) -> Kept:
        """Return a version that was read without packs.

        Raises:
            IntegrityError: The records are damaged.
        """
        work = partial(state_of, stored, self.max_state_bytes)
        state, shape = await off_loop(work, sum(map(len, stored.payloads)))
        return Kept(
            version=stored.version,
            snapshot=frames.snapshot_of(shape),
            head=stored.head,
            writes=stored.writes,
            state=state,
        )

    async def _pack(self, thread_id: str, namespace: str) -> None:
        """Pack the records of a thread's head, if that is due."""
        try:
            stored = await self._read(lambda it: Reads.fetch(it, thread_id, namespace))
            pack = await self._pack_of(stored) if stored and packing.is_due(stored) else None
            if pack is not None:
                await self._write(lambda it: add(it, thread_id, namespace, pack))
        except Exception as exc:  # noqa: BLE001  (the save is done, and loads read the records)
            unpacked(thread_id, exc)

    async def _pack_of(self, stored: Stored) -> Pack | None:
        """Return the pack of a version; damaged packs are replaced."""
        work, at = partial(packing.pack_of, stored, self.max_state_bytes), stored.version
        try:
            return await asyncio.to_thread(work)
        except IntegrityError:
            if not stored.packs:
                raise
        again = await self._records(at.thread_id, at.namespace, at.checkpoint_id, False)
        return await self._pack_of(again) if again else None

    async def faulty_packs(self, thread_id: str, namespace: str) -> list[int]:
        """See ``KeepsPacks``, also for the following methods."""
        return await self._read(lambda it: faults(it, thread_id, namespace))

    async def drop_packs(self, thread_id: str, namespace: str) -> None:
        await self._write(lambda it: drop(it, thread_id, namespace))

    async def _end_packing(self) -> None:
        await self._background.here().finish(PACKING_SECONDS)
