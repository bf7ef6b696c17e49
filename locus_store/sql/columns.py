"""Column types and the server's clock: the one place where a *type* differs per dialect."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import oracle, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.functions import FunctionElement

from locus_store.sql.stored import BigInteger, Binary, Integer, String, Text, damage, stored

if TYPE_CHECKING:
    from collections.abc import Callable

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
            return dialect.type_descriptor(oracle.TIMESTAMP(timezone=True))
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


def now() -> Clock:
    """The server's clock when the statement began; on SQLite in milliseconds."""
    return Clock()


def after(seconds: float | sa.ColumnElement[Any]) -> Clock:
    """The server's clock plus ``seconds``: when something expires."""
    return Clock(_seconds(seconds))


def before(seconds: float | sa.ColumnElement[Any]) -> Clock:
    """The server's clock minus ``seconds``: the limit of what is old."""
    return Clock(-_seconds(seconds))


def minute() -> Minute:
    """The server's clock cut to the minute: the coarse step at which activity is indexed."""
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


# --- JSON -----------------------------------------------------------------------------------

# PostgreSQL's JSONB refuses U+0000, so it is written as two characters, and the first of those
# as two others: order is kept, and nothing is lost.
_ESCAPES: Final = (("\x01", "\x011"), ("\x00", "\x010"))


def escape_text(value: str) -> str:
    """Text without NUL, one to one; also for values that a query compares with stored ones."""
    for plain, escaped in _ESCAPES:
        value = value.replace(plain, escaped)
    return value


def unescape_text(value: str) -> str:
    """Inverse of ``escape_text``."""
    for plain, escaped in reversed(_ESCAPES):
        value = value.replace(escaped, plain)
    return value


def escape_json(value: Any) -> Any:
    """A JSON value with every string and key escaped, as a ``Json`` column holds it."""
    return _mapped(value, escape_text)


def unescape_json(value: Any) -> Any:
    """Inverse of ``escape_json``; Oracle's Decimals become int or float."""
    return _mapped(value, _unescaped)


def _unescaped(value: str) -> Any:
    if value == _NEGATIVE_ZERO:
        return -0.0
    return float(value[2:]) if value.startswith(_FLOAT) else unescape_text(value)


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def dump_value(value: Any) -> str:
    """The text that a ``JsonValue`` column holds on SQLite."""
    raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if b"\\u0000" in raw or b"\\u0001" in raw:
        raw = orjson.dumps(escape_json(value), option=orjson.OPT_SORT_KEYS)
    return raw.decode()


def dump_json(value: Mapping[str, Any] | None) -> str | None:
    """The text that a ``Json`` column holds on SQLite; ``None`` for an empty object."""
    return dump_value(value) if value else None


def dump_jsonb(value: Mapping[str, Any] | None) -> str | None:
    """Like ``dump_json``, for JSONB: see ``dump_valueb``."""
    return dump_valueb(value) if value else None


def dump_valueb(value: Any) -> str:
    """Like ``dump_value``, for JSONB: what is read back is the same to the last type.

    JSONB keeps numbers as decimals: ``1e16`` would come back without a point, as an integer, and
    ``-0.0`` without its sign.
    """
    text = dump_value(value)
    if not _INEXACT_IN_JSONB.search(text):
        return text
    return orjson.dumps(_exact(escape_json(value)), option=orjson.OPT_SORT_KEYS).decode()


_INEXACT_IN_JSONB: Final = re.compile(r"\de\+?\d|-0\.0")
_NEGATIVE_ZERO: Final = "\x012"  # no escaped text


_FLOAT: Final = "\x013"
"""Begins a float that Oracle's JSON would give back as an integer, or not at all; see there."""

_LEAST_IN_ORACLE, _MOST_IN_ORACLE = 1e-120, 1e120


def oracle_value(value: Any) -> Any:
    """A JSON value as it is bound for Oracle's JSON, which keeps numbers as decimals.

    Floats without a fraction, and those beyond a NUMBER, are kept as text that no other text is.
    """
    if isinstance(value, Mapping):
        return {escape_text(name): oracle_value(it) for name, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [oracle_value(it) for it in value]
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, float):
        is_plain = _LEAST_IN_ORACLE < abs(value) < _MOST_IN_ORACLE and not value.is_integer()
        return value if is_plain else f"{_FLOAT}{value!r}"
    return value


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if not isinstance(value, float):
        return value
    if value == 0.0 and math.copysign(1.0, value) < 0:
        return _NEGATIVE_ZERO
    return orjson.Fragment(f"{value:.1f}".encode()) if value.is_integer() else value


def load_json(value: Any) -> dict[str, Any]:
    """What ``dump_json`` was given, from text or from what a driver made of it.

    Raises:
        IntegrityError: It is no JSON object.
    """
    if value is None:
        return {}
    raw = value.encode() if isinstance(value, str) else value
    loaded = load_value(raw) if isinstance(raw, bytes) else unescape_json(raw)
    if not isinstance(loaded, dict):
        raise damage("a JSON object")
    return loaded


def load_value(raw: bytes) -> Any:
    """Inverse of ``dump_value`` and ``dump_valueb``."""
    loaded = orjson.loads(raw)
    return unescape_json(loaded) if b"\\u0001" in raw else loaded


class Json(sa.types.TypeDecorator[dict[str, Any]]):
    """A JSON object that queries may look into; empty is NULL in the table and ``{}`` read."""

    impl = sa.JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT where the database has no JSON type of its own."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.JSONB(none_as_null=True))
        if dialect.name == "oracle":
            return dialect.type_descriptor(NativeJson())
        return dialect.type_descriptor(Text())

    def bind_expression(self, bindparam: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        """Cast from text on PostgreSQL: how JSON is bound there is up to a connection's owner."""
        return _BoundJson(bindparam)

    def process_bind_param(self, value: Mapping[str, Any] | None, dialect: Dialect) -> Any:
        """Escape; serialise where the column is text."""
        if dialect.name == "oracle":
            return oracle_value(value) if value else None
        return dump_json(value)

    @stored("a JSON object")
    def process_result_value(self, value: Any, dialect: Dialect) -> dict[str, Any]:
        """Give the object back."""
        return load_json(value)


class _ReadJson(sa.types.TypeDecorator[Any]):
    """A ``JsonValue`` as a query gives it: text, but on Oracle."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Oracle's driver gives objects."""
        return dialect.type_descriptor(NativeJson() if dialect.name == "oracle" else Text())

    @stored("a JSON value")
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Give the value back."""
        is_text = dialect.name != "oracle" and value is not None
        return load_value(value.encode()) if is_text else unescape_json(value)


class JsonValue(sa.types.TypeDecorator[Any]):
    """Any JSON value, ``None`` too, that queries may look into; read back exactly."""

    impl = sa.JSON
    cache_ok = True
    should_evaluate_none = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT where the database has no JSON type of its own."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.JSONB())
        return dialect.type_descriptor(NativeJson() if dialect.name == "oracle" else Text())

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Read as text on PostgreSQL: how JSON is decoded there is up to a connection's owner."""
        return sa.type_coerce(_JsonAsText(column), _ReadJson())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Escape; serialise where the column is text."""
        return oracle_value(value) if dialect.name == "oracle" else dump_value(value)


class NativeJson(sa.types.UserDefinedType[Any]):
    """Oracle's JSON, bound as objects: as text, it could not be long."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Its name."""
        return "JSON"

    def get_dbapi_type(self, dbapi: Any) -> Any:
        """What the driver is told of a parameter; see ``oracle.sized``."""
        return dbapi.DB_TYPE_JSON


class _JsonAsText(FunctionElement[Any]):
    """A JSON column as a query gives it."""

    type = sa.JSON()
    name = "json_as_text"
    inherit_cache = True


@compiles(_JsonAsText)
def _json_as_text(element: _JsonAsText, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(next(iter(element.clauses)), **kw)


@compiles(_JsonAsText, "postgresql")
def _json_as_text_postgresql(element: _JsonAsText, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{_json_as_text(element, compiler, **kw)}::text"


class _JsonText(sa.types.TypeDecorator[str]):
    """A JSON object on its way to a cast."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return dump_jsonb(value)


class _BoundJson(FunctionElement[dict[str, Any]]):
    """A bound JSON object."""

    type = sa.JSON()
    name = "bound_json"
    inherit_cache = True


@compiles(_BoundJson)
def _bound_json(element: _BoundJson, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(next(iter(element.clauses)), **kw)


@compiles(_BoundJson, "postgresql")
def _bound_json_postgresql(element: _BoundJson, compiler: SQLCompiler, **kw: Any) -> str:
    text = sa.type_coerce(next(iter(element.clauses)), _JsonText())
    return compiler.process(sa.cast(text, postgresql.JSONB()), **kw)


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
        """The driver knows arrays for vectors."""
        return sa.types.NullType() if dialect.name == "oracle" else sa.LargeBinary()

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        """An array of floats for Oracle."""
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

Digest: Final = Binary(16).with_variant(oracle.RAW(16), "oracle")
"""Sixteen bytes."""
