"""Segments in the tables, and the part of a backend that joins records.

The rules are in ``versions.segments``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from locus_store.backend import StorageBackend
from locus_store.runtime.observe import report_not_joined
from locus_store.runtime.stepping import run_in_thread
from locus_store.sql.threads.listing import RunsQueries
from locus_store.sql.threads.repository import Repository
from locus_store.types import Save, Written
from locus_store.versions import segments
from locus_store.versions.segments import RecordSegment, UnjoinedRecord

STORED_BYTES: Final = 512 * 1024
"""Records of a segment take about so much as they are stored."""


class Unjoined(NamedTuple):
    """Records that may be joined."""

    line: int
    chain: int
    before: list[bytes]
    """The payloads of the chain before them."""

    records: list[UnjoinedRecord]


def find_unjoined(repo: Repository, thread_id: str, namespace: str) -> Unjoined | None:
    """Return the next records of the head's chain to be joined; ``None`` if they are too few."""
    line = repo.find_line(thread_id, namespace)
    head = repo.record(line, line.head) if line and line.head is not None else None
    if line is None or head is None:
        return None
    records = _read_unjoined(repo, line.line, head.chain)
    sizes = accumulate(len(one.payload) for one in records)
    count = next((at for at, size in enumerate(sizes, 1) if at > 1 and size > STORED_BYTES), None)
    is_first = bool(records) and records[0].sequence == head.chain
    fewest = min(segments.FEWEST_RECORDS, segments.RECORDS) if is_first else segments.RECORDS
    if count is None and len(records) < fewest:
        return None
    last = records[0].sequence - 1
    joined = repo.read_segments(line.line, head.chain, upto=last)
    before = segments.collect_payloads((), joined, after=0, upto=last)
    return Unjoined(line.line, head.chain, before, records[:count])


def _read_unjoined(repo: Repository, line: int, chain: int) -> list[UnjoinedRecord]:
    """Return the first records of a chain that have payloads of their own."""
    c = repo.tables.checkpoints.c
    query = (
        sa.select(*(c[name] for name in UnjoinedRecord._fields))
        .where(c.line == line, c.chain == chain, c.payload.is_not(None))
        .order_by(c.sequence)
        .limit(segments.RECORDS)
    )
    return [UnjoinedRecord(*row) for row in repo.connection.execute(query)]


def join(
    repo: Repository, *, thread_id: str, namespace: str, records: Unjoined, segment: RecordSegment
) -> bool:
    """Put a segment in the place of its records' payloads, if these are as they were.

    It waits for no lock: the caller of a transaction that has the line may wait for this object's
    connection, or for ``close``.
    """
    if not repo.lock_unheld(thread_id, namespace):
        return False
    line = repo.find_line(thread_id, namespace)
    if line is None or line.line != records.line:
        return False
    joined = [one for one in records.records if one.sequence <= segment.last]
    if _read_unjoined(repo, records.line, records.chain)[: len(joined)] != joined:
        return False
    values = {"line": records.line, **segment._asdict()}
    repo.connection.execute(repo.tables.segments.insert().values(**values))
    repo.remove_payloads(records.line, [one.sequence for one in joined])
    return True


class SqlSegments(RunsQueries, StorageBackend):
    """Joins a thread's records from time to time.

    A save does not wait for it. The records of one thread are joined at a time, in each event loop.
    """

    _write: Callable[..., Awaitable[Any]]

    def _join_soon(self, save: Save, result: Written) -> Written:
        """Join records in the background after a save, from time to time; return the result."""
        if result.outcome == "head" and segments.is_time(result.mark.sequence):
            name = self.tenant, save.thread_id, save.namespace
            self._background.get().submit(name, partial(self._join, *name[1:]))
        return result

    async def _join(self, thread_id: str, namespace: str) -> None:
        """Join the records of a thread's head, as long as there are enough."""
        try:
            find = partial(find_unjoined, thread_id=thread_id, namespace=namespace)
            while found := await self._read(find, self._runner):
                made = await run_in_thread(
                    partial(segments.join_records, *found[1:], self.max_state_bytes)
                )
                put = partial(join, thread_id=thread_id, namespace=namespace, records=found)
                replace = partial(put, segment=made)
                if made is None or not await self._write(replace, thread_id=thread_id):
                    return
        except Exception as exc:  # noqa: BLE001  (the save is done, and the records are there)
            report_not_joined(thread_id, exc)
