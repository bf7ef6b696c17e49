"""Column types and the server's clock; the types of JSON are in ``dialect_columns``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from types import NoneType
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.types import TypeEngine

from locus_store.sql.columns.dialect_columns import (
    BigInteger,
    Binary,
    DialectColumns,
    Integer,
    PlainText,
    Rendered,
    StoredType,
    escape_text,
    get_columns,
    make_text_type,
    unescape_text,
)
from locus_store.types.items import NAMESPACES
from locus_store.types.thread_info import UserIdType
from locus_store.values.filters import Clause
from locus_store.values.times import from_microseconds


class Instant(StoredType[datetime]):
    """An aware datetime, read back in UTC with microseconds."""

    impl = sa.DateTime
    as_stored = frozenset({NoneType})
    holds = "an instant"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(get_columns(dialect).make_instant_type())

    def bind_expression(self, bindparam: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        return _BoundInstant(bindparam)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Give the driver what the column holds."""
        return None if value is None else get_columns(dialect).bind_instant(value)

    def process_literal_param(self, value: datetime | None, dialect: Dialect) -> str:
        """Render for offline SQL, where nothing is bound."""
        return str(self.process_bind_param(value, dialect))

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Give an aware UTC datetime back."""
        if value is None:
            return None
        if isinstance(value, datetime):
            # Oracle's driver drops the zone; `now()` stores UTC there for this reason.
            aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
            return aware.astimezone(UTC)
        return from_microseconds(value)


class _BoundInstant(Rendered[datetime]):
    """A bound instant."""

    type = sa.DateTime()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        return columns.render_bound_instant(process(next(iter(self.clauses))))


class Clock(Rendered[datetime]):
    """The server's clock in SQL, plus the seconds given as its one clause, if any."""

    type = Instant()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        return columns.render_clock(*(process(sa.cast(it, sa.Double())) for it in self.clauses))


class Minute(Rendered[datetime]):
    """The server's clock in SQL, cut to the minute: the step at which activity is indexed."""

    type = Instant()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        return columns.render_minute()


class Moment(Rendered[datetime]):
    """The server's clock in microseconds, on SQLite too, where it is this machine's."""

    type = Instant()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        return columns.render_moment(partial(process, next(iter(self.clauses))))


def make_moment() -> Moment:
    """Return the server's clock when the statement began: two saves have different ones."""
    own_clock = sa.bindparam("moment", callable_=lambda: datetime.now(UTC), type_=Instant())
    return Moment(own_clock)


class Later(Rendered[datetime]):
    """The later of two times in SQL; NULL if both are."""

    type = Instant()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        one, other = self.clauses
        if columns.greatest:
            return f"{columns.greatest}({process(one)}, {process(other)})"
        return process(sa.case((other.is_(None), one), (one > other, one), else_=other))


class OwnTransaction(Rendered[int]):
    """The number of the transaction in SQL; NULL where the database has none."""

    type = BigInteger()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        return columns.own_transaction


def make_clock() -> Clock:
    """Return the server's clock when the statement began; on SQLite in milliseconds."""
    return Clock()


def make_expiry(seconds: float | sa.ColumnElement[Any]) -> Clock:
    """Return the server's clock plus ``seconds``: when something expires."""
    return Clock(_bind_seconds(seconds))


def make_cutoff(seconds: float | sa.ColumnElement[Any]) -> Clock:
    """Return the server's clock minus ``seconds``: the limit of what is old."""
    return Clock(-_bind_seconds(seconds))


def _bind_seconds(value: float | sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    if isinstance(value, sa.ColumnElement):
        return value
    return sa.bindparam(None, float(value), sa.Double())


_COMPARISONS: Final = frozenset(
    {
        operators.eq,
        operators.ne,
        operators.lt,
        operators.le,
        operators.gt,
        operators.ge,
        operators.in_op,
        operators.not_in_op,
        operators.is_distinct_from,
        operators.is_not_distinct_from,
    }
)


class Key(StoredType[str]):
    """Text compared byte for byte, the empty string included; ``length`` in characters.

    A value compared with ``=``, ``<``, ``IN`` … is bound as ``DialectColumns.encode_key`` has it; a
    pattern (``LIKE``, ``GLOB``) is bound as it is, and sees the encoded text.
    """

    impl = sa.String
    as_stored = frozenset({str, NoneType})
    holds = "a key"

    def __init__(self, length: int) -> None:
        super().__init__(length + 1)  # one more for the encoding
        self.length = length  # part of SQLAlchemy's cache key

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """One more character for the encoding; compared by its bytes."""
        return make_text_type(dialect, self.length + 1, get_columns(dialect).key_collation)

    def coerce_compared_value(self, op: operators.OperatorType | None, value: Any) -> Any:
        """Encode only what is compared whole."""
        return self if op is None or op in _COMPARISONS else sa.String()

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """Bind text as it is where the database has the empty one."""
        if get_columns(dialect).key_mark:
            return super().bind_processor(dialect)
        return self.impl_instance.bind_processor(dialect)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else get_columns(dialect).encode_key(value)

    def process_literal_param(self, value: str | None, dialect: Dialect) -> str:
        """Encode; the implementation quotes."""
        return self.process_bind_param(value, dialect) or ""

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.removeprefix(get_columns(dialect).key_mark)


encode_path: Final = lru_cache(NAMESPACES)(escape_text)
"""Returns text as a ``Path`` column holds it, before ``DialectColumns.encode_key``."""


class Path(Key):
    """Text of parts that are each ended by NUL, compared as ``Key`` is; NUL takes two characters.

    So does U+0001. Bytes do not grow: each of the two is one.
    """

    as_stored = frozenset({NoneType})
    holds = "a namespace"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Room for what is escaped."""
        return make_text_type(dialect, 2 * self.length + 1, get_columns(dialect).key_collation)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        return StoredType.bind_processor(self, dialect)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else super().process_bind_param(encode_path(value), dialect)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        found = super().process_result_value(value, dialect)
        return None if found is None else unescape_text(found)

    def read_column(self, values: Sequence[Any], kinds: set[type]) -> Sequence[Any] | None:
        """Read a column of ``Compiled``, where keys are stored as they are."""
        return [*map(unescape_text, values)] if kinds == {str} else None


class UserId(StoredType[str]):
    """A user's id that is a number in the table and text elsewhere; see ``sql.schema.user_ids``."""

    impl = BigInteger
    holds = "a number"

    def __init__(self, users: UserIdType) -> None:
        super().__init__()
        self.users = users  # part of SQLAlchemy's cache key

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return an integer of 32 or 64 bits."""
        return dialect.type_descriptor(Integer() if self.users == "int" else BigInteger())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)


class LongText(PlainText):
    """Text of any length; the empty one is kept, which Oracle would read as NULL."""

    as_stored = frozenset({NoneType})

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Store what no text is where the database has no empty one."""
        return get_columns(dialect).empty_text if value == "" else value

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return "" if value == get_columns(dialect).empty_text else value


class Blob(StoredType[bytes]):
    """Bytes; empty ones are NULL in the table, as Oracle has it, and ``b""`` read."""

    impl = Binary
    as_stored = frozenset({bytes})
    holds = "bytes"

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Store nothing for nothing."""
        return value or None

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes:
        """Give bytes back, whatever the driver's type."""
        return b"" if value is None else bytes(value)


class Embedding(StoredType[bytes]):
    """Numbers of 32 bits, little-endian, or the database's own vector."""

    impl = sa.LargeBinary

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return get_columns(dialect).make_embedding_type()

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        """Give the driver what it takes."""
        return None if value is None else get_columns(dialect).bind_embedding(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        """Bytes, whatever the driver gives."""
        return None if value is None else get_columns(dialect).read_embedding(value)


BigKey: Final = BigInteger().with_variant(Integer(), "sqlite")
"""A surrogate that the server counts; SQLite's AUTOINCREMENT wants exactly INTEGER."""


class _Digest(StoredType[bytes]):
    """A few bytes that can be compared and indexed."""

    impl = Binary
    as_stored = frozenset({bytes, NoneType})

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the database's type for them."""
        return dialect.type_descriptor(get_columns(dialect).digest_type(_DIGEST_BYTES))


_DIGEST_BYTES: Final = 16
Digest: Final = _Digest(_DIGEST_BYTES)
"""Sixteen bytes."""

Condition: TypeAlias = "sa.ColumnElement[bool] | None"

ORDERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "$gt": lambda left, right: left > right,
    "$gte": lambda left, right: left >= right,
    "$lt": lambda left, right: left < right,
    "$lte": lambda left, right: left <= right,
}


def is_there(value: sa.ColumnElement[Any], clause: Clause) -> sa.ColumnElement[bool]:
    """Return the condition of ``$exists``."""
    return value.is_not(None) if clause.operand else value.is_(None)


MOST_FORMS: Final = 100
"""Values of ``$in`` that a database compares; with more, it looks for any."""


MOST_LOOK_UPS: Final = 256
"""Expressions of values at a path that are kept: SQLAlchemy makes them in about 0.1 ms."""


def bind_text(value: str) -> sa.ColumnElement[str]:
    """Return a bound text."""
    return sa.literal(value, PlainText())
