"""Facts of a SQLite database, for ``locus-store doctor``."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from locus_store.sql.connections.diagnostics import Examination, package_version
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator


WORTH_SHRINKING = 1_000_000
"""Bytes of free space from which a remedy is given."""


class SQLiteExamination(Examination):
    """A database file, or a database in memory."""

    def software(self) -> Iterator[Fact]:
        """See ``Examination``, also for the following methods."""
        yield Fact("SQLAlchemy", sa.__version__)
        yield Fact("aiosqlite", package_version("aiosqlite"))
        yield Fact("server", f"SQLite {sqlite3.sqlite_version}")

    def settings(self) -> Iterator[Fact]:
        mode = str(self._pragma("journal_mode")).upper()
        is_fine = mode in {"WAL", "MEMORY"}
        remedy = "readers and writers wait for each other: PRAGMA journal_mode=WAL"
        yield Fact(
            "journal mode", mode, "ok" if is_fine else "warn", "" if is_fine else f"{remedy}, once"
        )

        free = int(self._pragma("freelist_count")) * int(self._pragma("page_size"))
        is_much = free > WORTH_SHRINKING and free > (self.total_bytes() or 0) // 4
        remedy = 'later saves use it; to shrink the file: sqlite3 FILE "VACUUM"' if is_much else ""
        yield Fact("free space in the file", f"{free:,} bytes", "info", remedy)

    def table_bytes(self, table: sa.Table) -> int | None:
        """Return ``None``: SQLite reports only the size of the whole file."""

    def total_bytes(self) -> int | None:
        return int(self._pragma("page_count")) * int(self._pragma("page_size"))

    def _pragma(self, name: str) -> Any:
        return self.connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
