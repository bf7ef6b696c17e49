"""Pending writes in SQL; rows in batches and in pages, on the connection of a repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from locus_store.errors import IntegrityError
from locus_store.sql.threads.statements import WRITE, RowAccess
from locus_store.types import PendingWrite
from locus_store.versions.archives import SEAL_BYTES, compute_write_checksum

BATCH = 200
"""Rows that one statement names at most."""

GROWTH: Final = 4
"""Each further page of rows is larger by this factor."""

_SIZES: Final = (1, 16, 64, BATCH)
_NUMBER: Final = sa.BigInteger()


def read_writes(repo: RowAccess, line: int, checkpoint_id: str) -> list[PendingWrite]:
    """Return a checkpoint's writes, in any order."""
    key = {"line": line, "checkpoint_id": checkpoint_id}
    found = repo.sql.writes.fetch_rows(repo.connection, key)
    return [*map(write_of, found)]


def iterate_rows(
    fetch: Callable[[int, Any], Sequence[Any]], size: int, place: Any = None
) -> Iterator[Any]:
    """Yield the rows of pages, of which each is larger than the one before.

    ``fetch`` returns so many rows, behind the last one of the page before if there is one.
    """
    while size:
        rows = fetch(size, place)
        yield from rows
        size, place = (size * GROWTH, rows[-1]) if len(rows) == size else (0, None)


def insert(repo: RowAccess, table: sa.Table, values: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows in batches."""
    for batch in split_batches(values):
        repo.connection.execute(table.insert(), batch)


def update_each(
    repo: RowAccess, table: sa.Table, keys: Sequence[str], values: Sequence[Mapping[str, Any]]
) -> None:
    """Update rows; each of ``values`` has the keys of its row, and its new values."""
    if not values:
        return
    bound = {name: sa.bindparam(f"new_{name}", type_=table.c[name].type) for name in values[0]}
    is_it = [table.c[name] == bound.pop(name) for name in keys]
    rows = [{f"new_{name}": value for name, value in row.items()} for row in values]
    for batch in split_batches(rows):
        repo.connection.execute(table.update().where(*is_it).values(bound), batch)


def write_of(row: Sequence[Any]) -> PendingWrite:
    """Return the pending write in a row of ``WRITE``.

    Raises:
        IntegrityError: It is not what was stored.
    """
    checkpoint_id, task_id, idx, channel, kind, path, basis, payload = row
    seal, payload = (payload[:SEAL_BYTES], payload[SEAL_BYTES:]) if payload else (b"", b"")
    stored = PendingWrite(task_id, idx, channel, kind or "", payload, path or "", basis)
    if compute_write_checksum(checkpoint_id, stored) != seal:
        raise IntegrityError(
            f"a pending write of checkpoint {checkpoint_id!r} is not what was saved; restore the "
            "database from a backup, or delete the thread"
        )
    return stored


def make_columns(
    line: int, checkpoint_id: str, writes: Sequence[PendingWrite]
) -> dict[str, Sequence[Any]]:
    """Return the columns of the rows of pending writes, without their time."""
    place = [line] * len(writes), [checkpoint_id] * len(writes)
    fields = zip(*map(list_fields, writes), strict=True)
    payloads = [compute_write_checksum(checkpoint_id, it) + it.payload for it in writes]
    return dict(zip(("line", *WRITE), (*place, *fields, payloads), strict=True))


list_fields = attrgetter(*WRITE[1:-1])
"""Returns the fields of a pending write that are columns, without its payload."""


def fill_parameters(name: str, values: Sequence[Any]) -> tuple[int, dict[str, Any]]:
    """Return the number of parameters of a statement for these values, and the parameters.

    The last value is repeated: a statement is compiled for each of a few numbers.
    """
    size = next(it for it in _SIZES if it >= len(values))
    last = len(values) - 1
    return size, {f"{name}_{at}": values[min(at, last)] for at in range(size)}


def name_parameters(
    name: str, size: int, kind: TypeEngine[Any] = _NUMBER
) -> list[sa.BindParameter[Any]]:
    """Return the parameters of ``fill_parameters`` for values of a type, integers by default."""
    return [sa.bindparam(f"{name}_{at}", type_=kind) for at in range(size)]


def split_batches(items: Sequence[Any], size: int = BATCH) -> Iterator[Any]:
    """Split a sequence into batches."""
    return (items[at : at + size] for at in range(0, len(items), size))
