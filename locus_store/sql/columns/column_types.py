"""Types of columns that check each value they read where any column keeps any value."""

from __future__ import annotations

from functools import wraps
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import sqlalchemy as sa

from locus_store.errors import IntegrityError
from locus_store.sql.columns.dialect_columns import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Dialect
    from sqlalchemy.types import TypeEngine

T = TypeVar("T")

_WORDS: Final = {int: "a whole number", float: "a number", str: "text", bytes: "bytes"}


def stored(what: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate the reading of a column's value: a value that was never written is damage."""

    def guarded(read: Callable[..., T]) -> Callable[..., T]:
        @wraps(read)
        def checked(self: Any, value: Any, dialect: Dialect) -> T:
            try:
                return read(self, value, dialect)
            except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as exc:
                raise damage(what) from exc

        return checked

    return guarded


def damage(what: str) -> IntegrityError:
    """Return the error for a value that does not fit its column."""
    return IntegrityError(
        f"a stored row does not hold {what} where there should be; restore the database from a "
        "backup"
    )


class ReadsColumn(Protocol):
    """A type that reads a column of many rows at once.

    Types may also have ``as_stored``: the types of values that are read as the driver returns them.
    """

    def read_column(self, values: Sequence[Any], kinds: set[type]) -> Sequence[Any] | None:
        """Return the values as they are read one by one, or ``None``: read them one by one.

        Args:
            values: As the driver returns them.
            kinds: Their types.
        """


class _Checked:
    """Refuses a value of another type where the database keeps such; see ``keeps_types``."""

    if TYPE_CHECKING:

        @property
        def python_type(self) -> type[Any]: ...

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        if columns_of(dialect).keeps_types:
            return super().result_processor(dialect, coltype)  # type: ignore[misc, no-any-return]
        kind = self.python_type

        def checked(value: Any) -> Any:
            if value is None or type(value) is kind:
                return value
            raise damage(_WORDS[kind])

        return checked

    @property
    def as_stored(self) -> set[type]:
        """See ``ReadsColumn``."""
        return {self.python_type, NoneType}


class Integer(_Checked, sa.Integer):
    """32 bits."""


class SmallInteger(_Checked, sa.SmallInteger):
    """16 bits."""


class BigInteger(_Checked, sa.BigInteger):
    """64 bits."""


class Double(_Checked, sa.Double[float]):
    """A float of 64 bits."""


class String(_Checked, sa.String):
    """Text of a limited length."""


class Text(_Checked, sa.Text):
    """Text of any length."""


def text_type(
    dialect: Dialect, length: int | None = None, collation: str | None = None
) -> TypeEngine[Any]:
    """Return a database's type of text; ``length`` in characters, where it limits any."""
    plain = Text(collation=collation) if length is None else String(length, collation)
    return columns_of(dialect).text_type(collation) or dialect.type_descriptor(plain)


class PlainText(sa.types.TypeDecorator[str]):
    """Text as it is; see ``DialectColumns.text_type``.

    Args:
        length: In characters; ``None``: any.
    """

    impl = sa.Text
    cache_ok = True
    as_stored = frozenset({str, NoneType})

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length)
        self.length = length  # part of SQLAlchemy's cache key

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the database's type for it."""
        return text_type(dialect, self.length)


class Binary(_Checked, sa.LargeBinary):
    """Bytes."""
