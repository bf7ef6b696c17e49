"""PostgreSQL's part in our columns: JSONB, and its clock."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.dialects.postgresql.asyncpg import AsyncpgString
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from locus_store.sql.columns.dialect_columns import (
    NEGATIVE_ZERO,
    DialectColumns,
    PlainText,
    dump_value,
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


class PostgreSQLColumns(DialectColumns):
    """See ``DialectColumns``."""

    key_collation = "C"
    """The default one is the cluster's."""

    greatest = "GREATEST"
    own_transaction = "pg_current_xact_id()::text::bigint"

    def make_text_type(self, collation: str | None = None) -> TypeEngine[Any]:
        return BoundText(collation=collation)

    def make_json_type(self, *, none_as_null: bool) -> TypeEngine[Any]:
        return JSONB(none_as_null=none_as_null)

    def render_bound_json(self, bound: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Cast from text: how JSON is bound is up to a connection's owner."""
        return sa.cast(sa.type_coerce(bound, _JsonText()), JSONB())

    def select_json(self, column: str) -> str:
        """Text: how JSON is decoded is up to a connection's owner."""
        return f"{column}::text"

    def render_clock(self, shift: str | None = None) -> str:
        # statement_timestamp() is stable, so comparisons with it use an index; clock_timestamp()
        # is volatile and does not, and now() stands still in a long transaction.
        if shift is None:
            return "statement_timestamp()"
        return f"(statement_timestamp() + make_interval(secs => {shift}))"

    def render_minute(self) -> str:
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
    return orjson.dumps(_make_exact(orjson.loads(text)), option=orjson.OPT_SORT_KEYS).decode()


_INEXACT: Final = re.compile(r"\de\+?\d|-0\.0")


def _make_exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _make_exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_exact(item) for item in value]
    if not isinstance(value, float):
        return value
    if value == 0.0 and math.copysign(1.0, value) < 0:
        return NEGATIVE_ZERO
    return orjson.Fragment(f"{value:.1f}".encode()) if value.is_integer() else value


COLUMNS: Final = PostgreSQLColumns()

_ZEROS: Final = (0, -0.0)
"""The two forms in which JSONB holds it; see ``columns.dump_valueb``."""


def make_jsonb_condition(column: sa.ColumnElement[Any], clause: Clause) -> Condition:
    """Of a JSONB column; NULL is an empty object there."""
    found = _look_up(column, clause.path)
    if clause.operator == IS_OBJECT:
        return sa.func.jsonb_typeof(found, type_=sa.Text()) == bind_text("object")
    if clause.operator == "$exists":
        return is_there(found, clause)
    if clause.operator in ORDERS:
        return _compare_jsonb(found, clause)
    wanted = clause.operand if clause.operator == "$in" else [clause.operand]
    inner = (it for value in wanted if isinstance(value, dict | list) for it in _iterate(value))
    if len(wanted) > MOST_FORMS or any(map(_is_zero, inner)):
        return None if clause.operator == "$ne" else sa.and_(found.is_not(None))
    forms = [_bind(it) for value in wanted for it in (_ZEROS if _is_zero(value) else (value,))]
    if not forms:
        return sa.false()
    is_one = sa.or_(*(found == it for it in forms))
    return sa.func.coalesce(~is_one, sa.true()) if clause.operator == "$ne" else is_one


@lru_cache(MOST_LOOK_UPS)
def _look_up(column: sa.ColumnElement[Any], path: tuple[str, ...]) -> Any:
    empty = sa.literal_column("'{}'::jsonb", JSONB())
    document = sa.func.coalesce(sa.type_coerce(column, JSONB()), empty)
    if not path:
        return document
    steps = "".join(f".{orjson.dumps(escape_text(name)).decode()}" for name in path)
    return sa.func.jsonb_path_query_first(
        document,
        # strict: a list is not looked into; an error is NULL.
        _compute_once(sa.cast(bind_text(f"strict ${steps}"), JSONPATH())),
        empty,
        sa.true(),
        type_=JSONB(),
    )


def _compare_jsonb(value: Any, clause: Clause) -> Condition:
    kind = sa.func.jsonb_typeof(value, type_=sa.Text())
    compare = ORDERS[clause.operator]
    if isinstance(clause.operand, str):
        text = value.op("#>>", return_type=sa.Text())(
            sa.cast(sa.literal([], sa.ARRAY(sa.Text())), sa.ARRAY(sa.Text()))
        )
        is_less = compare(sa.collate(text, "C"), bind_text(escape_text(clause.operand)))
        return sa.and_(kind == bind_text("string"), is_less)
    is_less = sa.and_(kind == bind_text("number"), compare(value, _bind(clause.operand)))
    return sa.or_(is_less, value == _bind(-0.0)) if compare(0, clause.operand) else is_less


def _bind(value: Any) -> sa.ColumnElement[Any]:
    return _compute_once(sa.cast(bind_text(dump_valueb(value)), JSONB()))


def set_config(name: str, value: str) -> sa.ColumnElement[str]:
    """Return the expression that sets a parameter until the transaction ends."""
    both = bind_text(name), bind_text(value)
    return sa.func.set_config(*both, sa.true(), type_=sa.Text())


def _compute_once(value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Compute a value once per statement; a cached plan would read a bound value for every row."""
    return sa.select(value).scalar_subquery()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_zero(value: Any) -> bool:
    return _is_number(value) and value == 0


def _iterate(value: Any) -> Iterator[Any]:
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _iterate(item)
        else:
            yield item


_EXACT: Final = 2**53


def may_have_value(column: sa.ColumnElement[Any], key: str, value: Any) -> sa.ColumnElement[bool]:
    """Return a condition that rows with the value at a key, or along its path, meet."""
    is_zero = _is_zero(value)
    if not is_zero and _has_many_forms(value):
        return column.is_not(None)
    wanted = [it for form in (_ZEROS if is_zero else (value,)) for it in (form, [form])]
    paths = [[key], key.split(".")] if "." in key else [[key]]
    texts = {text for it in wanted for path in paths if (text := _dump_at_path(path, it))}
    if not texts:  # no JSON: nothing stored is equal to it
        return sa.false()
    documents = (sa.cast(bind_text(it), JSONB) for it in sorted(texts))
    return sa.or_(*(column.op("@>")(it) for it in documents))


def _has_many_forms(value: Any) -> bool:
    """Return whether a number in the value has several stored forms: -0.0, large whole floats."""
    if isinstance(value, Mapping):
        return any(map(_has_many_forms, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_many_forms, value))
    return _is_number(value) and (value == 0 or abs(value) >= _EXACT)


def _dump_at_path(path: list[str], value: Any) -> str | None:
    """Return the JSON of an object with the value at the path; ``None`` if there is none."""
    try:
        for name in reversed(path):
            value = {name: value}
        return dump_jsonb(value)
    except TypeError:
        return None


def make_word_condition(column: sa.ColumnElement[Any], word: str) -> sa.ColumnElement[bool]:
    """Return the condition that a value may have a folded word; text beyond ASCII always may."""
    text = sa.collate(sa.cast(column, sa.Text()), "C")
    is_hard: sa.ColumnElement[bool] = text.op("~", is_comparison=True)(bind_text("[^\x01-\x7f]"))
    if not word.isascii():
        return is_hard
    return sa.or_(sa.func.strpos(sa.func.lower(text), bind_text(word)) > 0, is_hard)
