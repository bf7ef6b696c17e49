"""SQLite's part in our columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from locus_store.sql.columns.dialect_columns import (
    BigInteger,
    Binary,
    DialectColumns,
    Text,
    escape_text,
)
from locus_store.sql.columns.types import (
    MOST_FORMS,
    MOST_LOOK_UPS,
    ORDERS,
    Condition,
    bind_text,
    is_there,
)
from locus_store.values.filters import IS_OBJECT, Clause
from locus_store.values.times import to_microseconds

# Milliseconds are multiplied after rounding: a double of microseconds since 1970 is not exact.
_NOW: Final = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"

_CLASSES: Final = {int: "integer", float: "real", str: "text", bytes: "blob"}


class SQLiteColumns(DialectColumns):
    """See ``DialectColumns``."""

    keeps_types = False

    def make_instant_type(self) -> TypeEngine[Any]:
        """Microseconds since 1970 UTC: SQLite has no time type."""
        return BigInteger()

    def digest_type(self, size: int) -> TypeEngine[Any]:
        return Binary(size)

    def read_json_type(self) -> TypeEngine[Any]:
        return Text()

    def bind_instant(self, value: datetime) -> int:
        return to_microseconds(value)

    def render_clock(self, shift: str | None = None) -> str:
        """In whole milliseconds, so that what lasts for less is over at once."""
        if shift is None:
            return f"({_NOW} * 1000)"
        return f"(({_NOW} + CAST(ROUND({shift} * 1000.0) AS INTEGER)) * 1000)"

    def render_minute(self) -> str:
        return f"({_NOW} / 60000 * 60000000)"

    def render_moment(self, here: Callable[[], str]) -> str:
        return here()


def list_storage_classes(column: sa.Column[Any], dialect: Dialect) -> list[str]:
    """Return the names that ``typeof`` gives to a column's values, as they are written."""
    found = column.type.dialect_impl(dialect)
    impl = found.impl_instance if isinstance(found, sa.types.TypeDecorator) else found
    return [_CLASSES[impl.python_type], *(["null"] if column.nullable else [])]


COLUMNS: Final = SQLiteColumns()

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_NUMBERS: Final = "integer", "real"
_EXACT: Final = 2**53
_SLACK: Final = 1e-9
"""SQLite reads decimals almost exactly."""


def make_text_condition(column: sa.ColumnElement[Any], clause: Clause) -> Condition:
    """Of JSON as SQLite keeps it; keys that its paths cannot name are left to Python."""
    if not all(map(_PLAIN_KEY.fullmatch, clause.path)):
        return None
    kind, found = _look_up(column, clause.path)
    if clause.operator == IS_OBJECT:
        return _is_kind(kind, "object")
    if clause.operator == "$exists":
        return is_there(kind, clause)
    if clause.operator in {"$eq", "$in"}:
        wanted = clause.operand if clause.operator == "$in" else [clause.operand]
        forms = (_match_equal(kind, found, it) for it in wanted)
        return sa.or_(sa.false(), *forms) if len(wanted) <= MOST_FORMS else kind.is_not(None)
    if clause.operator in ORDERS and isinstance(clause.operand, int | float):
        return _match_ordered(kind, found, clause)
    return None


@lru_cache(MOST_LOOK_UPS)
def _look_up(
    column: sa.ColumnElement[Any], path: tuple[str, ...]
) -> tuple[sa.ColumnElement[str], Any]:
    """Return the type and the value at a path."""
    document = sa.func.coalesce(sa.type_coerce(column, sa.Text()), bind_text("{}"))
    place = bind_text("$" + "".join(f'."{it}"' for it in path))
    kind = sa.func.json_type(document, place, type_=sa.Text())
    return kind, sa.func.json_extract(document, place, type_=sa.types.NullType())


@lru_cache(MOST_LOOK_UPS)
def _is_kind(kind: sa.ColumnElement[str], *names: str) -> sa.ColumnElement[bool]:
    bound = list(map(bind_text, names))
    return kind.in_(bound) if len(bound) > 1 else kind == bound[0]


def _match_equal(kind: sa.ColumnElement[str], value: Any, operand: Any) -> sa.ColumnElement[bool]:
    if operand is None or isinstance(operand, bool):
        return _is_kind(kind, {None: "null", True: "true", False: "false"}[operand])
    if isinstance(operand, str):
        return sa.and_(_is_kind(kind, "text"), value == bind_text(escape_text(operand)))
    if isinstance(operand, dict | list):
        return _is_kind(kind, "array" if isinstance(operand, list) else "object")
    is_number = _is_kind(kind, *_NUMBERS)
    if abs(operand) >= _EXACT:
        return is_number
    least, most = operand - _compute_slack(operand), operand + _compute_slack(operand)
    return sa.and_(is_number, value.between(_bind_number(least), _bind_number(most)))


def _match_ordered(
    kind: sa.ColumnElement[str], value: Any, clause: Clause
) -> sa.ColumnElement[bool]:
    is_number, number = _is_kind(kind, *_NUMBERS), clause.operand
    if abs(number) >= _EXACT:
        return is_number
    if clause.operator in {"$gt", "$gte"}:
        return sa.and_(is_number, value >= _bind_number(number - _compute_slack(number)))
    return sa.and_(is_number, value <= _bind_number(number + _compute_slack(number)))


def _compute_slack(number: float) -> float:
    return _SLACK * max(1.0, abs(number))


def _bind_number(value: float) -> sa.ColumnElement[Any]:
    return sa.literal(float(value), sa.Double())


def make_word_condition(column: sa.ColumnElement[Any], word: str) -> sa.ColumnElement[bool]:
    """Return the condition that a value may have a folded word; text beyond ASCII always may."""
    text = sa.type_coerce(column, sa.Text())
    is_hard: sa.ColumnElement[bool] = text.op("GLOB", is_comparison=True)(
        bind_text("*[^\x01-\x7f]*")
    )
    if not word.isascii():
        return is_hard
    return sa.or_(sa.func.instr(sa.func.lower(text), bind_text(word)) > 0, is_hard)
