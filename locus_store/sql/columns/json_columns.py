"""Columns of JSON: read back exactly, whatever the database makes of numbers and NUL."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from locus_store.sql.columns.dialect_columns import (
    columns_of,
    damage,
    load_value,
    stored,
    unescape_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Dialect
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.types import TypeEngine


def load_json(value: Any) -> dict[str, Any]:
    """Return the object that ``dump_value`` was given, from text or from a driver's conversion.

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


class Json(sa.types.TypeDecorator[dict[str, Any]]):
    """A JSON object that queries may look into; empty is NULL in the table and ``{}`` read."""

    impl = sa.JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT where the database has no JSON type of its own."""
        return dialect.type_descriptor(columns_of(dialect).json_type(none_as_null=True))

    def bind_expression(self, bindparam: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        """See ``DialectColumns.bound_json``."""
        return _BoundJson(bindparam)

    def process_bind_param(self, value: Mapping[str, Any] | None, dialect: Dialect) -> Any:
        """Escape; serialise where the column is text."""
        return columns_of(dialect).bind_json(value) if value else None

    @stored("a JSON object")
    def process_result_value(self, value: Any, dialect: Dialect) -> dict[str, Any]:
        """Give the object back."""
        return load_json(value)

    def read_column(self, values: Sequence[Any], kinds: set[type]) -> Sequence[Any] | None:
        """See ``ReadsColumn``."""
        return [{} for _ in values] if kinds == {NoneType} else None


class SharedJson(Json):
    """A ``Json`` that is only read: rows with equal objects may share one."""

    cache_ok = True

    def read_column(self, values: Sequence[Any], kinds: set[type]) -> Sequence[Any] | None:
        """See ``ReadsColumn``."""
        if not kinds <= {str, NoneType}:
            return None
        try:
            loaded = {value: load_json(value) for value in set(values)}
        except ValueError:
            return None  # the damaged one raises when it is read alone
        if len(loaded) == 1:
            return [*loaded.values()] * len(values)
        return [loaded[value] for value in values]


class _ReadJson(sa.types.TypeDecorator[Any]):
    """A ``JsonValue`` as a query gives it."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Text where the driver decodes nothing."""
        return dialect.type_descriptor(columns_of(dialect).read_json_type())

    @stored("a JSON value")
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Give the value back."""
        return columns_of(dialect).read_json(value)


class JsonValue(sa.types.TypeDecorator[Any]):
    """Any JSON value, ``None`` too, that queries may look into; read back exactly."""

    impl = sa.JSON
    cache_ok = True
    should_evaluate_none = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT where the database has no JSON type of its own."""
        return dialect.type_descriptor(columns_of(dialect).json_type(none_as_null=False))

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """See ``DialectColumns.json_as_read``."""
        return sa.type_coerce(_JsonAsText(column), _ReadJson())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Escape; serialise where the column is text."""
        return columns_of(dialect).bind_json(value)


class _JsonAsText(FunctionElement[Any]):
    """A JSON column as a query gives it."""

    type = sa.JSON()
    name = "json_as_text"
    inherit_cache = True


@compiles(_JsonAsText)
def _json_as_text(element: _JsonAsText, compiler: SQLCompiler, **kw: Any) -> str:
    column = compiler.process(next(iter(element.clauses)), **kw)
    return columns_of(compiler.dialect).json_as_read(column)


class _BoundJson(FunctionElement[dict[str, Any]]):
    """A bound JSON object."""

    type = sa.JSON()
    name = "bound_json"
    inherit_cache = True


@compiles(_BoundJson)
def _bound_json(element: _BoundJson, compiler: SQLCompiler, **kw: Any) -> str:
    bound = columns_of(compiler.dialect).bound_json(next(iter(element.clauses)))
    return compiler.process(bound, **kw)
