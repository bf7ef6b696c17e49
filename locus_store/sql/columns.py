"""Column types and the server's clock: where a *type* differs per dialect; JSON's are beside."""

from __future__ import annotations

import sys
from array import array
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.functions import FunctionElement

from locus_store.sql.column_types import BigInteger, Binary, Integer, String, Text, stored
from locus_store.sql.json_columns import escape_text, unescape_text

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.sql.operators import OperatorType
    from sqlalchemy.types import TypeEngine

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


# --- instants -------------------------------------------------------------------------------


def to_microseconds(moment: datetime) -> int:
    """Microseconds since 1970 UTC, as SQLite keeps an instant."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return (moment - EPOCH) // _MICROSECOND


def from_microseconds(count: int) -> datetime:
    """Inverse of ``to_microseconds``; in UTC."""
    return EPOCH + timedelta(microseconds=count)


class Instant(sa.types.TypeDecorator[datetime]):
    """An aware datetime, read back in UTC with microseconds."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """SQLite has no time type and Oracle's DATE drops zone and fraction."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        if dialect.name == "oracle":
            # Slow to import, and other databases do not need it.
            from sqlalchemy.dialects.oracle import TIMESTAMP  # noqa: PLC0415

            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def bind_expression(self, bindparam: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        """Say on Oracle that it is UTC: the driver sends no zone, and would mean the session's."""
        return _BoundInstant(bindparam)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Give the driver what the column holds."""
        if value is None:
            return None
        if dialect.name == "sqlite":
            return to_microseconds(value)
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "oracle" else moment

    def process_literal_param(self, value: datetime | None, dialect: Dialect) -> str:
        """Render for offline SQL, where nothing is bound."""
        return str(self.process_bind_param(value, dialect))

    @stored("an instant")
    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Give an aware UTC datetime back."""
        if value is None:
            return None
        if isinstance(value, datetime):
            # Oracle's driver drops the zone; `now()` stores UTC there for this reason.
            aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
            return aware.astimezone(UTC)
        return from_microseconds(value)


class _BoundInstant(FunctionElement[datetime]):
    """A bound instant."""

    type = sa.DateTime()
    name = "bound_instant"
    inherit_cache = True


@compiles(_BoundInstant)
def _bound_instant(element: _BoundInstant, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(next(iter(element.clauses)), **kw)


@compiles(_BoundInstant, "oracle")
def _bound_instant_oracle(element: _BoundInstant, compiler: SQLCompiler, **kw: Any) -> str:
    return f"FROM_TZ(CAST({_bound_instant(element, compiler, **kw)} AS TIMESTAMP), '+00:00')"


class Clock(FunctionElement[datetime]):
    """The server's clock in SQL, plus the seconds given as its one clause, if any."""

    type = Instant()
    name = "clock"
    inherit_cache = True


class Minute(FunctionElement[datetime]):
    """The server's clock in SQL, cut to the minute."""

    type = Instant()
    name = "minute"
    inherit_cache = True


class Moment(FunctionElement[datetime]):
    """The server's clock in microseconds, on SQLite too, where it is this machine's."""

    type = Instant()
    name = "moment"
    inherit_cache = True


def moment() -> Moment:
    """Return the server's clock when the statement began: two saves have different ones."""
    return Moment(sa.bindparam("moment", callable_=_here, type_=Instant()))


def _here() -> datetime:
    return datetime.now(UTC)


def now() -> Clock:
    """Return the server's clock when the statement began; on SQLite in milliseconds."""
    return Clock()


def after(seconds: float | sa.ColumnElement[Any]) -> Clock:
    """Return the server's clock plus ``seconds``: when something expires."""
    return Clock(_seconds(seconds))


def before(seconds: float | sa.ColumnElement[Any]) -> Clock:
    """Return the server's clock minus ``seconds``: the limit of what is old."""
    return Clock(-_seconds(seconds))


def minute() -> Minute:
    """Return the server's clock cut to the minute: the coarse step at which activity is indexed."""
    return Minute()


def _seconds(value: float | sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    if isinstance(value, sa.ColumnElement):
        return value
    return sa.bindparam(None, float(value), sa.Double())


def _shift(element: Clock, compiler: SQLCompiler, **kw: Any) -> str | None:
    clauses = list(element.clauses)
    return compiler.process(sa.cast(clauses[0], sa.Double()), **kw) if clauses else None


# Milliseconds are multiplied after rounding: a double of microseconds since 1970 is not exact.
_SQLITE_NOW: Final = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"


@compiles(Clock, "sqlite")
def _clock_sqlite(element: Clock, compiler: SQLCompiler, **kw: Any) -> str:
    shift = _shift(element, compiler, **kw)
    if shift is None:
        return f"({_SQLITE_NOW})"
    return f"({_SQLITE_NOW} + CAST(ROUND({shift} * 1000000.0) AS INTEGER))"


@compiles(Moment, "sqlite")
def _moment_sqlite(element: Moment, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(next(iter(element.clauses)), **kw)


@compiles(Moment)
def _moment(element: Moment, compiler: SQLCompiler, **kw: Any) -> str:
    del element
    return compiler.process(now(), **kw)


@compiles(Clock)
def _clock(element: Clock, compiler: SQLCompiler, **kw: Any) -> str:
    # statement_timestamp() is stable, so comparisons with it use an index; clock_timestamp()
    # is volatile and does not, and now() stands still in a long transaction.
    shift = _shift(element, compiler, **kw)
    if shift is None:
        return "statement_timestamp()"
    return f"(statement_timestamp() + make_interval(secs => {shift}))"


_ORACLE_NOW: Final = "FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')"


@compiles(Clock, "oracle")
def _clock_oracle(element: Clock, compiler: SQLCompiler, **kw: Any) -> str:
    # 'UTC' would be the name of a region, which the driver's thin mode does not read (DPY-3022).
    shift = _shift(element, compiler, **kw)
    if shift is None:
        return _ORACLE_NOW
    return f"({_ORACLE_NOW} + NUMTODSINTERVAL({shift}, 'SECOND'))"


@compiles(Minute, "sqlite")
def _minute_sqlite(element: Minute, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({_SQLITE_NOW} / 60000000 * 60000000)"


@compiles(Minute)
def _minute(element: Minute, compiler: SQLCompiler, **kw: Any) -> str:
    return "date_trunc('minute', statement_timestamp())"


@compiles(Minute, "oracle")
def _minute_oracle(element: Minute, compiler: SQLCompiler, **kw: Any) -> str:
    # TRUNC gives a DATE without a zone; UTC is put back.
    return "FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')"


# --- keys -----------------------------------------------------------------------------------


def encode_key(value: str) -> str:
    """Text as a key column holds it: Oracle reads ``''`` as NULL, so it becomes ``'/'``."""
    return f"/{value}" if not value or value[0] == "/" else value


def decode_key(value: str) -> str:
    """Inverse of ``encode_key``."""
    return value[1:] if value[0] == "/" else value


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


class Key(sa.types.TypeDecorator[str]):
    """Text compared byte for byte, the empty string included; ``length`` in characters.

    A value compared with ``=``, ``<``, ``IN`` … is encoded; a pattern (``LIKE``, ``GLOB``) is
    bound as it is, and sees the encoded text.
    """

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length + 1)  # one more for the encoding
        self.length = length  # part of SQLAlchemy's cache key

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """PostgreSQL's default collation is the cluster's; the others compare bytes."""
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(String(self.length + 1, collation))

    def coerce_compared_value(self, op: OperatorType | None, value: Any) -> Any:
        """Encode only what is compared whole."""
        return self if op is None or op in _COMPARISONS else sa.String()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Encode."""
        return None if value is None else encode_key(value)

    def process_literal_param(self, value: str | None, dialect: Dialect) -> str:
        """Encode; the implementation quotes."""
        return "" if value is None else encode_key(value)

    @stored("a key")
    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Decode."""
        return None if value is None else decode_key(value)


class Path(Key):
    """Text of parts that are each ended by NUL, compared as ``Key`` is; NUL takes two characters.

    So does U+0001. Bytes do not grow: each of the two is one.
    """

    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Room for what is escaped."""
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(String(2 * self.length + 1, collation))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape and encode."""
        return None if value is None else encode_path(value)

    def process_literal_param(self, value: str | None, dialect: Dialect) -> str:
        """Escape and encode; the implementation quotes."""
        return "" if value is None else encode_path(value)

    @stored("a namespace")
    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Decode."""
        return None if value is None else unescape_text(decode_key(value))


def encode_path(value: str) -> str:
    """Text as a ``Path`` column holds it."""
    return encode_key(escape_text(value))


# --- long text ---------------------------------------------------------------------------------


class LongText(sa.types.TypeDecorator[str]):
    """Text of any length; the empty one is kept, which Oracle would read as NULL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Store what no text is."""
        return _EMPTY if value == "" and dialect.name == "oracle" else value

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Give it back."""
        return "" if value == _EMPTY and dialect.name == "oracle" else value


_EMPTY: Final = "\x01"
"""No escaped text."""

# --- bytes and surrogates -------------------------------------------------------------------


class Blob(sa.types.TypeDecorator[bytes]):
    """Bytes; empty ones are NULL in the table, as Oracle has it, and ``b""`` read."""

    impl = Binary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Store nothing for nothing."""
        return value or None

    @stored("bytes")
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes:
        """Give bytes back, whatever the driver's type."""
        return b"" if value is None else bytes(value)


class Embedding(sa.types.TypeDecorator[bytes]):
    """Numbers of 32 bits, little-endian; a vector on Oracle."""

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the driver, which has arrays for vectors."""
        return sa.types.NullType() if dialect.name == "oracle" else sa.LargeBinary()

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        """Return an array of floats for Oracle."""
        if value is None or dialect.name != "oracle":
            return value
        return _swapped(array("f", value))

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        """Bytes, whatever the driver gives."""
        if value is None:
            return None
        return bytes(value) if dialect.name != "oracle" else _swapped(array("f", value)).tobytes()


def _swapped(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


BigKey: Final = BigInteger().with_variant(Integer(), "sqlite")
"""A surrogate that the server counts; SQLite's AUTOINCREMENT wants exactly INTEGER."""


class _Digest(sa.types.TypeDecorator[bytes]):
    """Sixteen bytes: RAW on Oracle."""

    impl = Binary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return RAW on Oracle: unlike a LOB it can be compared and indexed."""
        if dialect.name == "oracle":
            from sqlalchemy.dialects.oracle import RAW  # noqa: PLC0415 - as above

            return dialect.type_descriptor(RAW(16))
        return dialect.type_descriptor(Binary(16))


Digest: Final = _Digest(16)
"""Sixteen bytes."""
