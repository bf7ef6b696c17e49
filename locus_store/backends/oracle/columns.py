"""Oracle's part in our columns: types, values that keep what these would lose, conditions."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.oracle import RAW, TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from locus_store.sql.columns.dialect_columns import (
    FLOAT,
    DialectColumns,
    escape_text,
    unescape_json,
)
from locus_store.sql.columns.types import MOST_FORMS, Condition
from locus_store.values.filters import Clause

_NOW: Final = "FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')"


class OracleColumns(DialectColumns):
    """See ``DialectColumns``."""

    key_mark = "/"
    empty_text = "\x01"
    """``''`` would be NULL; no text is escaped to this."""

    def make_instant_type(self) -> TypeEngine[Any]:
        """With zone and fraction, which DATE drops."""
        return TIMESTAMP(timezone=True)

    def digest_type(self, size: int) -> TypeEngine[Any]:
        """RAW: unlike a LOB it can be compared and indexed."""
        return RAW(size)

    def make_embedding_type(self) -> TypeEngine[Any]:
        """The driver's, which has arrays for vectors."""
        return sa.types.NullType()

    def make_json_type(self, *, none_as_null: bool) -> TypeEngine[Any]:
        return NativeJson()

    def read_json_type(self) -> TypeEngine[Any]:
        """The driver gives objects."""
        return NativeJson()

    def bind_instant(self, value: datetime) -> datetime:
        return value.astimezone(UTC).replace(tzinfo=None)

    def bind_embedding(self, value: bytes) -> array[float]:
        return _swap(array("f", value))

    def read_embedding(self, value: Any) -> bytes:
        return _swap(array("f", value)).tobytes()

    def bind_json(self, value: Any) -> Any:
        return bind_value(orjson.loads(value) if isinstance(value, bytes) else value)

    read_json = staticmethod(unescape_json)

    def render_bound_instant(self, bound: str) -> str:
        """Say that it is UTC: the driver sends no zone, and would mean the session's."""
        return f"FROM_TZ(CAST({bound} AS TIMESTAMP), '+00:00')"

    def render_clock(self, shift: str | None = None) -> str:
        # 'UTC' would be the name of a region, which the driver's thin mode does not read: DPY-3022.
        return _NOW if shift is None else f"({_NOW} + NUMTODSINTERVAL({shift}, 'SECOND'))"

    def render_minute(self) -> str:
        # TRUNC gives a DATE without a zone; UTC is put back.
        return "FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')"


class NativeJson(sa.types.UserDefinedType[Any]):
    """Oracle's JSON, bound as objects: as text, it could not be long."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"

    def get_dbapi_type(self, dbapi: Any) -> Any:
        """Return the driver's type of a parameter; see ``dialect.set_input_sizes``."""
        return dbapi.DB_TYPE_JSON


_LEAST_NUMBER, _MOST_NUMBER = 1e-120, 1e120


def bind_value(value: Any) -> Any:
    """Return a JSON value as it is bound for Oracle's JSON, which keeps numbers as decimals.

    Floats without a fraction, and those beyond a NUMBER, are kept as text that no other text is.
    """
    if isinstance(value, Mapping):
        return {escape_text(name): bind_value(it) for name, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [bind_value(it) for it in value]
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, float):
        is_plain = _LEAST_NUMBER < abs(value) < _MOST_NUMBER and not value.is_integer()
        return value if is_plain else f"{FLOAT}{value!r}"
    return value


def _swap(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


COLUMNS: Final = OracleColumns()

METRICS: Final = {"cosine": "COSINE", "l2": "EUCLIDEAN", "ip": "DOT"}
"""Oracle's names of how embeddings are compared."""


def may_have_value(
    column: sa.ColumnElement[Any], path: Sequence[str], value: Any
) -> sa.ColumnElement[bool]:
    """Return the condition that a JSON column may have a value at a path, or in a list there.

    A value that Oracle could confuse with another one is only required to exist at the path.
    """
    steps = "".join(f".{_quote_step(it)}" for it in path)
    if len(steps.encode()) > _MOST_BYTES:
        return column.is_not(None)
    if isinstance(value, bool):
        return _make_json_exists(column, f"${steps}[*]?(@ == {str(value).lower()})")
    if isinstance(value, str) and value:
        text = escape_text(value)
        if len(text.encode()) <= _MOST_BYTES:
            return _make_json_exists(column, f"${steps}[*]?(@.stringOnly() == $v)", text)
    if isinstance(value, int | float) and abs(value) <= _MOST_NUMBER:
        floats = (float(value), -0.0) if value == 0 else (float(value),)
        texts = [it for it in map(bind_value, floats) if isinstance(it, str)]
        found = [_make_json_exists(column, f"${steps}[*]?(@.numberOnly() == $v)", value)]
        found += (
            _make_json_exists(column, f"${steps}[*]?(@.stringOnly() == $v)", text) for text in texts
        )
        return sa.or_(*found)
    return _make_json_exists(column, f"${steps}")


_MOST_BYTES: Final = 3_000
"""Of a path, which is a literal, and of a text that is passed; Oracle takes 4,000."""


class _Number(sa.types.UserDefinedType[Any]):
    """A number as it is, to the last digit."""

    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Any], Any]:
        """Decimals keep what a text says."""
        return lambda value: Decimal(repr(value))


def filter_json(column: sa.ColumnElement[Any], clause: Clause) -> Condition:
    """Of a JSON column: equality, and whether something is there; the rest is left to Python."""
    if not clause.path:
        return None
    if clause.operator == "$exists" and clause.operand:
        path = "$" + "".join(f".{_quote_step(it)}" for it in clause.path)
        return _make_json_exists(column, path) if len(path.encode()) <= _MOST_BYTES else None
    if clause.operator in {"$eq", "$in"}:
        wanted = clause.operand if clause.operator == "$in" else [clause.operand]
        if 0 < len(wanted) <= MOST_FORMS and None not in wanted:
            return sa.or_(*(may_have_value(column, clause.path, it) for it in wanted))
    return None


def _quote_step(name: str) -> str:
    """Return a key quoted for a path, which is a literal of the statement."""
    escaped = orjson.dumps(escape_text(name)).decode()
    return escaped.replace("'", "\\u0027").replace(":", "\\u003a").replace("\x7f", "\\u007f")


class JsonExists(sa.sql.functions.FunctionElement[bool]):
    """``JSON_EXISTS`` with a literal path, and a value that is passed, if any."""

    type = sa.Boolean()
    name = "json_exists"
    inherit_cache = False

    def __init__(self, path: str, *clauses: Any) -> None:
        super().__init__(*clauses)
        self.path = path


@compiles(JsonExists, "oracle")
def _compile_json_exists(element: JsonExists, compiler: Any, **kw: Any) -> str:
    column, *passed = (compiler.process(it, **kw) for it in element.clauses)
    passing = f' PASSING {passed[0]} AS "v"' if passed else ""
    return f"JSON_EXISTS({column}, '{element.path}'{passing})"


def _make_json_exists(
    column: sa.ColumnElement[Any], path: str, value: Any = None
) -> sa.ColumnElement[bool]:
    kind: Any = sa.String() if isinstance(value, str) else _Number()
    passed = () if value is None else (sa.literal(value, kind),)
    return JsonExists(path, column, *passed)
