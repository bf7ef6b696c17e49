"""Conditions on Oracle's JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from locus_store.backends.oracle.columns import json_value
from locus_store.sql.columns.dialect_columns import escape_text
from locus_store.sql.columns.types import MOST_FORMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from locus_store.sql.columns.types import Condition
    from locus_store.values.filters import Clause


def may_have_value(
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
        texts = [it for it in map(json_value, floats) if isinstance(it, str)]
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


def on_json(column: sa.ColumnElement[Any], clause: Clause) -> Condition:
    """Of a JSON column: equality, and whether something is there; the rest is left to Python."""
    if not clause.path:
        return None
    if clause.operator == "$exists" and clause.operand:
        path = "$" + "".join(f".{_quoted_step(it)}" for it in clause.path)
        return _json_exists(column, path) if len(path.encode()) <= _MOST_BYTES else None
    if clause.operator in {"$eq", "$in"}:
        wanted = clause.operand if clause.operator == "$in" else [clause.operand]
        if 0 < len(wanted) <= MOST_FORMS and None not in wanted:
            return sa.or_(*(may_have_value(column, clause.path, it) for it in wanted))
    return None


def _quoted_step(name: str) -> str:
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
def _json_exists_oracle(element: JsonExists, compiler: Any, **kw: Any) -> str:
    column, *passed = (compiler.process(it, **kw) for it in element.clauses)
    passing = f' PASSING {passed[0]} AS "v"' if passed else ""
    return f"JSON_EXISTS({column}, '{element.path}'{passing})"


def _json_exists(
    column: sa.ColumnElement[Any], path: str, value: Any = None
) -> sa.ColumnElement[bool]:
    kind: Any = sa.String() if isinstance(value, str) else _Number()
    passed = () if value is None else (sa.literal(value, kind),)
    return JsonExists(path, column, *passed)
