"""PostgreSQL's part in our columns: JSONB, and its clock."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.asyncpg import AsyncpgString

from locus_store.sql.columns.dialect_columns import (
    NEGATIVE_ZERO,
    DialectColumns,
    PlainText,
    dump_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Dialect
    from sqlalchemy.types import TypeEngine


class PostgreSQLColumns(DialectColumns):
    """See ``DialectColumns``."""

    key_collation = "C"
    """The default one is the cluster's."""

    greatest = "GREATEST"

    def text_type(self, collation: str | None = None) -> TypeEngine[Any]:
        return BoundText(collation=collation)

    def json_type(self, *, none_as_null: bool) -> TypeEngine[Any]:
        return JSONB(none_as_null=none_as_null)

    def bound_json(self, bound: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Cast from text: how JSON is bound is up to a connection's owner."""
        return sa.cast(sa.type_coerce(bound, _JsonText()), JSONB())

    def json_as_read(self, column: str) -> str:
        """Text: how JSON is decoded is up to a connection's owner."""
        return f"{column}::text"

    def clock(self, shift: str | None = None) -> str:
        # statement_timestamp() is stable, so comparisons with it use an index; clock_timestamp()
        # is volatile and does not, and now() stands still in a long transaction.
        if shift is None:
            return "statement_timestamp()"
        return f"(statement_timestamp() + make_interval(secs => {shift}))"

    def minute(self) -> str:
        return "date_trunc('minute', statement_timestamp())"


class BoundText(AsyncpgString):
    """TEXT, also where it is bound.

    SQLAlchemy binds strings as VARCHAR, of which PostgreSQL itself has no operators and hardly a
    function: one that another role makes in a schema of the search path would be preferred.
    """

    __visit_name__ = "TEXT"


class _JsonText(PlainText):
    """A JSON object on its way to a cast."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return dump_jsonb(value)


def dump_jsonb(value: Mapping[str, Any] | None) -> str | None:
    """Return the text of an object for JSONB, see ``dump_valueb``; ``None`` for an empty one."""
    return dump_valueb(value) if value else None


def dump_valueb(value: Any) -> str:
    """Like ``dump_value``, for JSONB: what is read back is the same to the last type.

    JSONB keeps numbers as decimals: ``1e16`` would come back without a point, as an integer, and
    ``-0.0`` without its sign.
    """
    text = dump_value(value)
    if not _INEXACT.search(text):
        return text
    return orjson.dumps(_exact(orjson.loads(text)), option=orjson.OPT_SORT_KEYS).decode()


_INEXACT: Final = re.compile(r"\de\+?\d|-0\.0")


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if not isinstance(value, float):
        return value
    if value == 0.0 and math.copysign(1.0, value) < 0:
        return NEGATIVE_ZERO
    return orjson.Fragment(f"{value:.1f}".encode()) if value.is_integer() else value


COLUMNS: Final = PostgreSQLColumns()
