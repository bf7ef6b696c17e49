"""Oracle's part in our columns: its types, and values that keep what its types would lose."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.oracle import RAW, TIMESTAMP

from locus_store.sql.columns.dialect_columns import (
    FLOAT,
    DialectColumns,
    escape_text,
    unescape_json,
)

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.types import TypeEngine

_NOW: Final = "FROM_TZ(SYS_EXTRACT_UTC(SYSTIMESTAMP), '+00:00')"


class OracleColumns(DialectColumns):
    """See ``DialectColumns``."""

    empty_text = "\x01"
    """``''`` would be NULL; this is no escaped text."""

    no_table = " FROM dual"

    def instant_type(self) -> TypeEngine[Any]:
        """With zone and fraction, which DATE drops."""
        return TIMESTAMP(timezone=True)

    def digest_type(self, size: int) -> TypeEngine[Any]:
        """RAW: unlike a LOB it can be compared and indexed."""
        return RAW(size)

    def embedding_type(self) -> TypeEngine[Any]:
        """The driver's, which has arrays for vectors."""
        return sa.types.NullType()

    def json_type(self, *, none_as_null: bool) -> TypeEngine[Any]:
        del none_as_null
        return NativeJson()

    def read_json_type(self) -> TypeEngine[Any]:
        """The driver gives objects."""
        return NativeJson()

    def bind_instant(self, value: datetime) -> datetime:
        return value.astimezone(UTC).replace(tzinfo=None)

    def bind_embedding(self, value: bytes) -> array[float]:
        return _swapped(array("f", value))

    def read_embedding(self, value: Any) -> bytes:
        return _swapped(array("f", value)).tobytes()

    def bind_json(self, value: Any) -> Any:
        return json_value(orjson.loads(value) if isinstance(value, bytes) else value)

    def read_json(self, value: Any) -> Any:
        return unescape_json(value)

    def bound_instant(self, bound: str) -> str:
        """Say that it is UTC: the driver sends no zone, and would mean the session's."""
        return f"FROM_TZ(CAST({bound} AS TIMESTAMP), '+00:00')"

    def clock(self, shift: str | None = None) -> str:
        # 'UTC' would be the name of a region, which the driver's thin mode does not read: DPY-3022.
        return _NOW if shift is None else f"({_NOW} + NUMTODSINTERVAL({shift}, 'SECOND'))"

    def minute(self) -> str:
        # TRUNC gives a DATE without a zone; UTC is put back.
        return "FROM_TZ(CAST(TRUNC(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'MI') AS TIMESTAMP), '+00:00')"


class NativeJson(sa.types.UserDefinedType[Any]):
    """Oracle's JSON, bound as objects: as text, it could not be long."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return its name."""
        return "JSON"

    def get_dbapi_type(self, dbapi: Any) -> Any:
        """Return the driver's type of a parameter; see ``backends.oracle.dialect.sized``."""
        return dbapi.DB_TYPE_JSON


_LEAST_NUMBER, _MOST_NUMBER = 1e-120, 1e120


def json_value(value: Any) -> Any:
    """Return a JSON value as it is bound for Oracle's JSON, which keeps numbers as decimals.

    Floats without a fraction, and those beyond a NUMBER, are kept as text that no other text is.
    """
    if isinstance(value, Mapping):
        return {escape_text(name): json_value(it) for name, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(it) for it in value]
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, float):
        is_plain = _LEAST_NUMBER < abs(value) < _MOST_NUMBER and not value.is_integer()
        return value if is_plain else f"{FLOAT}{value!r}"
    return value


def _swapped(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


COLUMNS: Final = OracleColumns()
