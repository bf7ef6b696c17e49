"""Clauses of a filter as SQL conditions, with everything bound.

A condition may let through what the clause refuses, never the other way round: what it lets through
is looked at again (``Wanted.takes``). ``None`` stands for no condition.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from locus_store.sql.json_columns import dump_valueb, escape_text, jsonb, oracle_value
from locus_store.values.filters import IS_OBJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from locus_store.values.filters import Clause

    Condition = sa.ColumnElement[bool] | None

ORDERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "$gt": lambda left, right: left > right,
    "$gte": lambda left, right: left >= right,
    "$lt": lambda left, right: left < right,
    "$lte": lambda left, right: left <= right,
}


def _is_there(found: sa.ColumnElement[Any], clause: Clause) -> sa.ColumnElement[bool]:
    return found.is_not(None) if clause.operand else found.is_(None)


MOST_FORMS: Final = 100
"""Values of ``$in`` that a database compares; with more, it looks for any."""


# --- PostgreSQL

_ZEROS: Final = (0, -0.0)
"""The two forms in which JSONB holds it; see ``json_columns.dump_valueb``."""


def on_jsonb(column: sa.ColumnElement[Any], clause: Clause) -> Condition:
    """Of a JSONB column; NULL is an empty object there."""
    from sqlalchemy.dialects.postgresql import JSONPATH  # noqa: PLC0415  (see jsonb)

    empty = sa.literal_column("'{}'::jsonb", jsonb())
    document = sa.func.coalesce(sa.type_coerce(column, jsonb()), empty)
    found: Any = document
    if clause.path:
        # strict: a list is not looked into; an error is NULL.
        path = "strict $" + "".join(
            f".{orjson.dumps(escape_text(it)).decode()}" for it in clause.path
        )
        found = sa.func.jsonb_path_query_first(
            document,
            _once(sa.cast(_text(path), JSONPATH())),
            empty,
            sa.true(),
            type_=jsonb(),
        )
    if clause.operator == IS_OBJECT:
        return sa.func.jsonb_typeof(found, type_=sa.Text()) == _text("object")
    if clause.operator == "$exists":
        return _is_there(found, clause)
    if clause.operator in ORDERS:
        return _ordered_jsonb(found, clause)
    wanted = clause.operand if clause.operator == "$in" else [clause.operand]
    if len(wanted) > MOST_FORMS or any(map(_has_inner_zero, wanted)):
        return None if clause.operator == "$ne" else sa.and_(found.is_not(None))
    forms = [_jsonb(it) for value in wanted for it in (_ZEROS if _is_zero(value) else (value,))]
    if not forms:
        return sa.false()
    is_one = sa.or_(*(found == it for it in forms))
    return sa.func.coalesce(~is_one, sa.true()) if clause.operator == "$ne" else is_one


def _ordered_jsonb(found: Any, clause: Clause) -> Condition:
    kind = sa.func.jsonb_typeof(found, type_=sa.Text())
    compare = ORDERS[clause.operator]
    if isinstance(clause.operand, str):
        text = found.op("#>>", return_type=sa.Text())(
            sa.cast(sa.literal([], sa.ARRAY(sa.Text())), sa.ARRAY(sa.Text()))
        )
        is_less = compare(sa.collate(text, "C"), _text(escape_text(clause.operand)))
        return sa.and_(kind == _text("string"), is_less)
    is_less = sa.and_(kind == _text("number"), compare(found, _jsonb(clause.operand)))
    return sa.or_(is_less, found == _jsonb(-0.0)) if compare(0, clause.operand) else is_less


def _jsonb(value: Any) -> sa.ColumnElement[Any]:
    return _once(sa.cast(_text(dump_valueb(value)), jsonb()))


def _once(value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Compute a value once per statement; a cached plan would read a bound value for every row."""
    return sa.select(value).scalar_subquery()


def _text(value: str) -> sa.ColumnElement[str]:
    return sa.literal(value, sa.Text())


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def _has_inner_zero(value: Any) -> bool:
    """Return whether a list or object contains a number that has two forms."""
    return isinstance(value, dict | list) and any(map(_is_zero, _numbers(value)))


def _numbers(value: Any) -> Iterator[Any]:
    inner = value.values() if isinstance(value, dict) else value
    for it in inner:
        if isinstance(it, dict | list):
            yield from _numbers(it)
        else:
            yield it


def word_in_jsonb(column: sa.ColumnElement[Any], word: str) -> sa.ColumnElement[bool]:
    """Return the condition that a value may have a folded word; text beyond ASCII always may."""
    text = sa.collate(sa.cast(column, sa.Text()), "C")
    is_hard: sa.ColumnElement[bool] = text.op("~", is_comparison=True)(_text("[^\x01-\x7f]"))
    if not word.isascii():
        return is_hard
    return sa.or_(sa.func.strpos(sa.func.lower(text), _text(word)) > 0, is_hard)


# --- SQLite

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_EXACT: Final = 2**53
_SLACK: Final = 1e-9
"""SQLite reads decimals almost exactly."""


def on_text(column: sa.ColumnElement[Any], clause: Clause) -> Condition:
    """Of JSON as SQLite keeps it; keys that its paths cannot name are left to Python."""
    if not all(map(_PLAIN_KEY.fullmatch, clause.path)):
        return None
    document = sa.func.coalesce(sa.type_coerce(column, sa.Text()), _text("{}"))
    path = _text("$" + "".join(f'."{it}"' for it in clause.path))
    kind = sa.func.json_type(document, path, type_=sa.Text())
    found: Any = sa.func.json_extract(document, path, type_=sa.types.NullType())
    if clause.operator == IS_OBJECT:
        return kind == _text("object")
    if clause.operator == "$exists":
        return _is_there(kind, clause)
    if clause.operator in {"$eq", "$in"}:
        wanted = clause.operand if clause.operator == "$in" else [clause.operand]
        return _one_of_texts(kind, found, wanted)
    if clause.operator in ORDERS and isinstance(clause.operand, int | float):
        return _ordered_text(kind, found, clause)
    return None


def _one_of_texts(
    kind: sa.ColumnElement[str], found: Any, wanted: Sequence[Any]
) -> sa.ColumnElement[bool]:
    if len(wanted) > MOST_FORMS:
        return kind.is_not(None)
    return sa.or_(sa.false(), *(_equal_text(kind, found, it) for it in wanted))


def _equal_text(kind: sa.ColumnElement[str], found: Any, operand: Any) -> sa.ColumnElement[bool]:
    if operand is None or isinstance(operand, bool):
        return kind == _text({None: "null", True: "true", False: "false"}[operand])
    if isinstance(operand, str):
        return sa.and_(kind == _text("text"), found == _text(escape_text(operand)))
    if isinstance(operand, dict | list):
        return kind == _text("array" if isinstance(operand, list) else "object")
    is_number = kind.in_(["integer", "real"])
    if abs(operand) >= _EXACT:
        return is_number
    least, most = operand - _slack(operand), operand + _slack(operand)
    return sa.and_(is_number, found.between(_number(least), _number(most)))


def _ordered_text(
    kind: sa.ColumnElement[str], found: Any, clause: Clause
) -> sa.ColumnElement[bool]:
    is_number, number = kind.in_(["integer", "real"]), clause.operand
    if abs(number) >= _EXACT:
        return is_number
    if clause.operator in {"$gt", "$gte"}:
        return sa.and_(is_number, found >= _number(number - _slack(number)))
    return sa.and_(is_number, found <= _number(number + _slack(number)))


def _slack(number: float) -> float:
    return _SLACK * max(1.0, abs(number))


def _number(value: float) -> sa.ColumnElement[Any]:
    return sa.literal(float(value), sa.Double())


def word_in_text(column: sa.ColumnElement[Any], word: str) -> sa.ColumnElement[bool]:
    """See ``word_in_jsonb``."""
    text = sa.type_coerce(column, sa.Text())
    is_hard: sa.ColumnElement[bool] = text.op("GLOB", is_comparison=True)(_text("*[^\x01-\x7f]*"))
    if not word.isascii():
        return is_hard
    return sa.or_(sa.func.instr(sa.func.lower(text), _text(word)) > 0, is_hard)


# --- Oracle


def in_oracle_json(
    column: sa.ColumnElement[Any], path: Sequence[str], value: Any
) -> sa.ColumnElement[bool]:
    """Return the condition that a JSON column may have a value at a path, or in a list there.

    A value that Oracle could confuse with another one is only required to exist at the path.
    """
    steps = "".join(f".{_quoted_step(it)}" for it in path)
    if len(steps.encode()) > _MOST_BYTES:
        return column.is_not(None)
    if isinstance(value, bool):
        return _json_exists(column, f"${steps}[*]?(@ == {str(value).lower()})")
    if isinstance(value, str) and value:
        text = escape_text(value)
        if len(text.encode()) <= _MOST_BYTES:
            return _json_exists(column, f"${steps}[*]?(@.stringOnly() == $v)", text)
    if isinstance(value, int | float) and abs(value) <= _MOST_NUMBER:
        floats = (float(value), -0.0) if value == 0 else (float(value),)
        texts = [it for it in map(oracle_value, floats) if isinstance(it, str)]
        found = [_json_exists(column, f"${steps}[*]?(@.numberOnly() == $v)", value)]
        found += (_json_exists(column, f"${steps}[*]?(@.stringOnly() == $v)", it) for it in texts)
        return sa.or_(*found)
    return _json_exists(column, f"${steps}")


_MOST_NUMBER: Final = 1e120
_MOST_BYTES: Final = 3_000
"""Of a path, which is a literal, and of a text that is passed; Oracle takes 4,000."""


class _Number(sa.types.UserDefinedType[Any]):
    """A number as it is, to the last digit."""

    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Any], Any]:
        """Decimals keep what a text says."""
        del dialect
        return lambda value: Decimal(repr(value))


def on_oracle_json(column: sa.ColumnElement[Any], clause: Clause) -> Condition:
    """Of a JSON column: equality, and whether something is there; the rest is left to Python."""
    if not clause.path:
        return None
    if clause.operator == "$exists" and clause.operand:
        path = "$" + "".join(f".{_quoted_step(it)}" for it in clause.path)
        return _json_exists(column, path) if len(path.encode()) <= _MOST_BYTES else None
    if clause.operator in {"$eq", "$in"}:
        wanted = clause.operand if clause.operator == "$in" else [clause.operand]
        if 0 < len(wanted) <= MOST_FORMS and None not in wanted:
            return sa.or_(*(in_oracle_json(column, clause.path, it) for it in wanted))
    return None


def _quoted_step(name: str) -> str:
    """Return a key quoted for a path, which is a literal of the statement."""
    escaped = orjson.dumps(escape_text(name)).decode()
    return escaped.replace("'", "\\u0027").replace(":", "\\u003a").replace("\x7f", "\\u007f")


class _JsonExists(sa.sql.functions.FunctionElement[bool]):
    """``JSON_EXISTS`` with a literal path, and a value that is passed, if any."""

    type = sa.Boolean()
    name = "json_exists"
    inherit_cache = False

    def __init__(self, path: str, *clauses: Any) -> None:
        super().__init__(*clauses)
        self.path = path


@compiles(_JsonExists, "oracle")
def _json_exists_oracle(element: _JsonExists, compiler: Any, **kw: Any) -> str:
    column, *passed = (compiler.process(it, **kw) for it in element.clauses)
    passing = f' PASSING {passed[0]} AS "v"' if passed else ""
    return f"JSON_EXISTS({column}, '{element.path}'{passing})"


def _json_exists(
    column: sa.ColumnElement[Any], path: str, value: Any = None
) -> sa.ColumnElement[bool]:
    kind: Any = sa.String() if isinstance(value, str) else _Number()
    passed = () if value is None else (sa.literal(value, kind),)
    return _JsonExists(path, column, *passed)
