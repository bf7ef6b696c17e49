"""Columns of JSON: read back exactly, whatever the database makes of numbers and NUL."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from locus_store.sql.column_types import Text, damage, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Dialect
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.types import TypeEngine


# PostgreSQL's JSONB refuses U+0000, so it is written as two characters, and the first of those
# as two others: order is kept, and nothing is lost.
_ESCAPES: Final = (("\x01", "\x011"), ("\x00", "\x010"))


def jsonb(**options: Any) -> TypeEngine[Any]:
    """PostgreSQL's JSONB."""
    # SQLAlchemy's PostgreSQL dialects are slow to import, and other databases need none of them.
    from sqlalchemy.dialects.postgresql import JSONB  # noqa: PLC0415

    return JSONB(**options)


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
    """Return a JSON value with every string and key escaped, as a ``Json`` column holds it."""
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
    """Return the text that a ``JsonValue`` column holds on SQLite."""
    raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if b"\\u0000" in raw or b"\\u0001" in raw:
        raw = orjson.dumps(escape_json(value), option=orjson.OPT_SORT_KEYS)
    return raw.decode()


def dump_json(value: Mapping[str, Any] | None) -> str | None:
    """Return the text that a ``Json`` column holds on SQLite; ``None`` for an empty object."""
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
    """Return a JSON value as it is bound for Oracle's JSON, which keeps numbers as decimals.

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
    """Return the object that ``dump_json`` was given, from text or from a driver's conversion.

    Raises:
        IntegrityError: The value is not a JSON object.
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
            return dialect.type_descriptor(jsonb(none_as_null=True))
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
            return dialect.type_descriptor(jsonb())
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
        """Return its name."""
        return "JSON"

    def get_dbapi_type(self, dbapi: Any) -> Any:
        """Return the driver's type of a parameter; see ``backends.oracle.dialect.sized``."""
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
    return compiler.process(sa.cast(text, jsonb()), **kw)
