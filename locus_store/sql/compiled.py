"""A statement compiled once and executed on the driver's cursor.

SQLAlchemy's own call adds about 0.05 ms to a statement that takes 0.01 ms, and a save has eight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection, Dialect
    from sqlalchemy.engine.interfaces import DBAPICursor


class Compiled:
    """A Core statement for one dialect, with its types' conversions both ways.

    Args:
        statement: With a ``bindparam`` for everything that changes.
        dialect: Any whose driver takes positional parameters.
    """

    def __init__(self, statement: sa.Select[Any] | sa.UpdateBase, dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self._text = str(compiled)
        self._fixed: Mapping[str, Any] = dict(compiled.params)
        self._binds = [
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup or ()
        ]
        columns = statement.selected_columns if isinstance(statement, sa.Select) else ()
        self._results = [
            it.type.dialect_impl(dialect).result_processor(dialect, None) for it in columns
        ]

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return all rows, in the order of the statement's columns."""
        cursor = self._executed(connection, values)
        found = cursor.fetchall()
        cursor.close()
        return [self._converted(row) for row in found]

    def first(self, connection: Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the first row, if any."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def run(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Execute a change; return how many rows it met."""
        cursor = self._executed(connection, values)
        count = cursor.rowcount
        cursor.close()
        return count

    def _executed(self, connection: Connection, values: Mapping[str, Any]) -> DBAPICursor:
        known = {**self._fixed, **values}
        bound = tuple(
            convert(known[name]) if convert else known[name] for name, convert in self._binds
        )
        cursor: DBAPICursor = connection.connection.cursor()
        cursor.execute(self._text, bound)
        return cursor

    def _converted(self, row: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            convert(value) if convert else value
            for value, convert in zip(row, self._results, strict=True)
        )
