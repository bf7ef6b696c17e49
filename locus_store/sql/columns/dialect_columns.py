"""The part of each database in our columns: their types, the form of values, expressions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa

from locus_store.sql.columns.json_text import dump_value, load_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy.engine import Dialect
    from sqlalchemy.types import TypeEngine

DIALECTS: Final = ("sqlite", "postgresql", "oracle")
"""Each has the modules ``columns`` and ``definition`` in ``backends.<name>``."""


class DialectColumns(ABC):
    """One database's part; the methods that are not abstract suit most databases."""

    keeps_types: ClassVar[bool] = True
    """A column holds values of its own type only."""

    key_collation: ClassVar[str | None] = None
    """Compares bytes; ``None``: the database's default does."""

    empty_text: ClassVar[str] = ""
    """The stored form of the empty string in a column of text."""

    no_table: ClassVar[str] = ""
    """Stands behind the columns of a query that reads no table."""

    greatest: ClassVar[str] = ""
    """Name of the function that gives the greatest value that is not NULL; ``""``: none does."""

    # --- types

    def text_type(self, collation: str | None = None) -> TypeEngine[Any] | None:
        """Return the type of all columns and parameters of text; ``None``: the plain ones."""
        del collation
        return None

    def instant_type(self) -> TypeEngine[Any]:
        """Return the type of an instant."""
        return sa.DateTime(timezone=True)

    def digest_type(self, size: int) -> TypeEngine[Any]:
        """Return the type of a few bytes that can be compared and indexed."""
        return sa.LargeBinary(size)

    def embedding_type(self) -> TypeEngine[Any]:
        """Return the type of an embedding."""
        return sa.LargeBinary()

    def json_type(self, *, none_as_null: bool) -> TypeEngine[Any]:
        """Return the type of JSON that queries may look into."""
        del none_as_null
        return self.read_json_type()

    def read_json_type(self) -> TypeEngine[Any]:
        """Return the type of JSON as a query gives it; see ``json_as_read``."""
        return sa.Text()

    # --- values

    def bind_instant(self, value: datetime) -> Any:
        """Return an aware datetime as the driver takes it."""
        return value.astimezone(UTC)

    def bind_embedding(self, value: bytes) -> Any:
        """Return floats of 32 bits, little-endian, as the driver takes them."""
        return value

    def read_embedding(self, value: Any) -> bytes:
        """Inverse of ``bind_embedding``."""
        return bytes(value)

    def bind_json(self, value: Any) -> Any:
        """Return a JSON value, or the bytes of its JSON, escaped as the driver takes it."""
        return dump_value(value)

    def read_json(self, value: Any) -> Any:
        """Inverse of ``bind_json``, where a query used ``json_as_read``."""
        return None if value is None else load_value(value.encode())

    # --- expressions

    def bound_instant(self, bound: str) -> str:
        """Return the SQL of a bound instant."""
        return bound

    def bound_json(self, bound: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return the expression of a bound JSON object."""
        return bound

    def json_as_read(self, column: str) -> str:
        """Return the SQL of a column of JSON in a query's result."""
        return column

    @abstractmethod
    def clock(self, shift: str | None = None) -> str:
        """Return the SQL of the server's clock, plus seconds."""

    @abstractmethod
    def minute(self) -> str:
        """Return the SQL of the server's clock, cut to the minute."""

    def moment(self, here: Callable[[], str]) -> str:
        """Return the SQL of the server's clock in microseconds; ``here`` binds this machine's."""
        del here
        return self.clock()


def columns_of(dialect: Dialect) -> DialectColumns:
    """Return the part of a database; SQLite's for a statement that is only shown."""
    return _named(dialect.name)


@cache
def _named(dialect: str) -> DialectColumns:
    name = dialect if dialect in DIALECTS else DIALECTS[0]
    module = import_module(f"locus_store.backends.{name}.columns")
    found: DialectColumns = module.COLUMNS
    return found
