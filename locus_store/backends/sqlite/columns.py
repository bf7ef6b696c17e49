"""SQLite's part in our columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from locus_store.sql.columns.dialect_columns import BigInteger, Binary, DialectColumns, Text
from locus_store.sql.columns.types import to_microseconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy.engine import Dialect
    from sqlalchemy.types import TypeEngine

# Milliseconds are multiplied after rounding: a double of microseconds since 1970 is not exact.
_NOW: Final = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"

_CLASSES: Final = {int: "integer", float: "real", str: "text", bytes: "blob"}


class SQLiteColumns(DialectColumns):
    """See ``DialectColumns``."""

    keeps_types = False

    def instant_type(self) -> TypeEngine[Any]:
        """Microseconds since 1970 UTC: SQLite has no time type."""
        return BigInteger()

    def digest_type(self, size: int) -> TypeEngine[Any]:
        return Binary(size)

    def read_json_type(self) -> TypeEngine[Any]:
        return Text()

    def bind_instant(self, value: datetime) -> int:
        return to_microseconds(value)

    def clock(self, shift: str | None = None) -> str:
        """In milliseconds."""
        if shift is None:
            return f"({_NOW})"
        return f"({_NOW} + CAST(ROUND({shift} * 1000000.0) AS INTEGER))"

    def minute(self) -> str:
        return f"({_NOW} / 60000000 * 60000000)"

    def moment(self, here: Callable[[], str]) -> str:
        return here()


def storage_classes(column: sa.Column[Any], dialect: Dialect) -> list[str]:
    """Return the names that ``typeof`` gives to a column's values, as they are written."""
    found = column.type.dialect_impl(dialect)
    impl = found.impl_instance if isinstance(found, sa.types.TypeDecorator) else found
    return [_CLASSES[impl.python_type], *(["null"] if column.nullable else [])]


COLUMNS: Final = SQLiteColumns()
