"""The writes of an append at the head, as two statements on the driver's cursor.

They are faster than ``Compiled``, which converts each value by the type of its column, in the
thread that all saves wait for.
"""

from __future__ import annotations

from functools import lru_cache
from time import time_ns
from typing import Any

from sqlalchemy.engine import Connection

from locus_store.sql.columns.dialect_columns import dump_value
from locus_store.sql.schema.tables import Tables
from locus_store.types import Save
from locus_store.versions import Append, Line


def append_head(
    connection: Connection, tables: Tables, line: Line, save: Save, append: Append
) -> int:
    """Insert a record onto a line's head, which it becomes; return its sequence.

    The rows are those of ``versions.append`` for a save that changes no older version.
    """
    insert, move = _make_statements(tables)
    sequence, chain, size = line.last_sequence + 1, line.open_chain, line.open_bytes
    if append.basis is None:
        chain, size = sequence, 0
    size += append.added_bytes
    at = time_ns() // 1000
    metadata = dump_value(save.metadata) if save.metadata else None
    labels = dump_value(save.labels) if save.labels else None
    place = line.line, sequence, chain, line.head, save.checkpoint_id, save.change.tree.digest
    record = *place, metadata, labels, append.payload, at
    moved = sequence, chain, size, sequence, save.writer, save.run, at, line.line
    driver: Any = connection.connection.dbapi_connection
    cursor = driver.cursor()
    try:  # see Compiled._execute
        cursor.execute(insert, record)
        cursor.execute(move, moved)
    finally:
        cursor.close()
    return sequence


@lru_cache
def _make_statements(tables: Tables) -> tuple[str, str]:
    records, lines = (f'"{it.name}"' for it in (tables.checkpoints, tables.lines))
    place = "line, sequence, chain, parent, checkpoint_id"
    names = f"{place}, digest, metadata, labels, payload, created_at"
    places = ", ".join("?" for _ in names.split())
    insert = f"INSERT INTO {records} ({names}, codec) VALUES ({places}, 0)"  # noqa: S608
    moved = "head = ?, open_chain = ?, open_bytes = ?, last_sequence = ?, writer = ?, run = ?"
    move = f"UPDATE {lines} SET {moved}, updated_at = ? WHERE line = ?"  # noqa: S608
    return insert, move
