"""Types of columns and of JSON: each database's part, checked reading, text for any database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, partial
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from locus_store.errors import IntegrityError

DIALECTS: Final = ("sqlite", "postgresql", "oracle")
"""Each has the modules ``columns`` and ``definition`` in ``backends.<name>``."""


class DialectColumns(ABC):
    """One database's part; the methods that are not abstract suit most databases."""

    keeps_types: ClassVar[bool] = True
    """A column holds values of its own type only."""

    key_collation: ClassVar[str | None] = None
    """Compares bytes; ``None``: the database's default does."""

    key_mark: ClassVar[str] = ""
    """Stands before keys that are empty or begin with it, where no text can be empty."""

    empty_text: ClassVar[str] = ""
    """The stored form of the empty string in a column of text."""

    greatest: ClassVar[str] = ""
    """Name of the function that gives the greatest value that is not NULL; ``""``: none does."""

    own_transaction: ClassVar[str] = "NULL"
    """The number of the transaction in SQL, ascending in the order of their beginnings."""

    def make_text_type(self, collation: str | None = None) -> TypeEngine[Any] | None:
        """Return the type of all columns and parameters of text; ``None``: the plain ones."""
        return None

    def encode_key(self, value: str) -> str:
        """Return text as a key column holds it; ``removeprefix(key_mark)`` is the inverse."""
        return self.key_mark + value if not value or value[0] == self.key_mark else value

    def make_instant_type(self) -> TypeEngine[Any]:
        return sa.DateTime(timezone=True)

    def digest_type(self, size: int) -> TypeEngine[Any]:
        """Return the type of a few bytes that can be compared and indexed."""
        return sa.LargeBinary(size)

    def make_embedding_type(self) -> TypeEngine[Any]:
        return sa.LargeBinary()

    def make_json_type(self, *, none_as_null: bool) -> TypeEngine[Any]:
        """Return the type of JSON that queries may look into."""
        return self.read_json_type()

    def read_json_type(self) -> TypeEngine[Any]:
        """Return the type of JSON as a query gives it; see ``select_json``."""
        return sa.Text()

    def bind_instant(self, value: datetime) -> Any:
        """Return an aware datetime as the driver takes it."""
        return value.astimezone(UTC)

    def bind_embedding(self, value: bytes) -> Any:
        """Return floats of 32 bits, little-endian, as the driver takes them."""
        return value

    def read_embedding(self, value: Any) -> bytes:
        """Inverse of ``bind_embedding``."""
        return bytes(value)

    def bind_json(self, value: Any) -> Any:
        """Return a JSON value, or the bytes of its JSON, escaped as the driver takes it."""
        return dump_value(value)

    def read_json(self, value: Any) -> Any:
        """Inverse of ``bind_json``, where a query used ``select_json``."""
        return None if value is None else load_value(value.encode())

    def render_bound_instant(self, bound: str) -> str:
        return bound

    def render_bound_json(self, bound: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return the expression of a bound JSON object."""
        return bound

    def select_json(self, column: str) -> str:
        """Return the SQL of a column of JSON in a query's result."""
        return column

    @abstractmethod
    def render_clock(self, shift: str | None = None) -> str:
        """Return the SQL of the server's clock, plus seconds."""

    @abstractmethod
    def render_minute(self) -> str:
        """Return the SQL of the server's clock, cut to the minute."""

    def render_moment(self, here: Callable[[], str]) -> str:
        """Return the SQL of the server's clock in microseconds; ``here`` binds this machine's."""
        return self.render_clock()


def get_columns(dialect: Dialect) -> DialectColumns:
    """Return the part of a database; SQLite's for a statement that is only shown."""
    return _load_columns(dialect.name)


@cache
def _load_columns(dialect: str) -> DialectColumns:
    name = dialect if dialect in DIALECTS else DIALECTS[0]
    module = import_module(f"locus_store.backends.{name}.columns")
    found: DialectColumns = module.COLUMNS
    return found


_ESCAPES: Final = (("\x01", "\x011"), ("\x00", "\x010"))
"""PostgreSQL's JSONB refuses U+0000, so two characters stand for it, and two others for the first
of those: order is kept, and nothing is lost."""

NEGATIVE_ZERO: Final = "\x012"
"""Stands for ``-0.0`` where numbers are decimals; no escaped text."""

FLOAT: Final = "\x013"
"""Begins a float that a database of decimals would give back as an integer, or not at all."""


def escape_text(value: str) -> str:
    """Text without NUL, one to one; also for values that a query compares with stored ones."""
    for plain, escaped in _ESCAPES:
        value = value.replace(plain, escaped)
    return value


def unescape_text(value: str) -> str:
    """Inverse of ``escape_text``."""
    if "\x01" in value:
        for plain, escaped in reversed(_ESCAPES):
            value = value.replace(escaped, plain)
    return value


def escape_json(value: Any) -> Any:
    """Return a JSON value with every string and key escaped, as a ``Json`` column holds it."""
    return _map_strings(value, escape_text)


def unescape_json(value: Any) -> Any:
    """Inverse of ``escape_json``; Decimals become int or float."""
    return _map_strings(value, _unescape)


def _unescape(value: str) -> Any:
    if value == NEGATIVE_ZERO:
        return -0.0
    return float(value[2:]) if value.startswith(FLOAT) else unescape_text(value)


def _map_strings(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def dump_value(value: Any) -> str:
    """Return the text that a ``JsonValue`` column of text holds.

    Args:
        value: A JSON value, or the bytes of its JSON with sorted keys.
    """
    raw = value if isinstance(value, bytes) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if b"\\u000" in raw:
        raw = orjson.dumps(escape_json(orjson.loads(raw)), option=orjson.OPT_SORT_KEYS)
    return raw.decode()


def load_value(raw: bytes) -> Any:
    """Inverse of ``dump_value``."""
    loaded = orjson.loads(raw)
    return unescape_json(loaded) if b"\\u0001" in raw else loaded


T = TypeVar("T")

_WORDS: Final = {int: "a whole number", float: "a number", str: "text", bytes: "bytes"}


def make_damage_error(what: str) -> IntegrityError:
    """Return the error for a value that does not fit its column."""
    return IntegrityError(
        f"a stored row does not hold {what} where there should be; restore the database from a "
        "backup"
    )


class _Checked:
    """Refuses a value of another type where the database keeps such; see ``keeps_types``."""

    if TYPE_CHECKING:

        @property
        def python_type(self) -> type[Any]: ...

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        if get_columns(dialect).keeps_types:
            return super().result_processor(dialect, coltype)  # type: ignore[misc, no-any-return]
        kind = self.python_type

        def checked(value: Any) -> Any:
            if value is None or type(value) is kind:
                return value
            raise make_damage_error(_WORDS[kind])

        return checked

    @property
    def as_stored(self) -> set[type]:
        return {self.python_type, NoneType}


class Integer(_Checked, sa.Integer):
    """32 bits."""


class SmallInteger(_Checked, sa.SmallInteger):
    """16 bits."""


class BigInteger(_Checked, sa.BigInteger):
    """64 bits."""


class Double(_Checked, sa.Double[float]):
    """A float of 64 bits."""


class String(_Checked, sa.String):
    """Text of a limited length."""


class Text(_Checked, sa.Text):
    """Text of any length."""


def make_text_type(
    dialect: Dialect, length: int | None = None, collation: str | None = None
) -> TypeEngine[Any]:
    """Return a database's type of text; ``length`` in characters, where it limits any."""
    plain = Text(collation=collation) if length is None else String(length, collation)
    return get_columns(dialect).make_text_type(collation) or dialect.type_descriptor(plain)


class StoredType(sa.types.TypeDecorator[T]):
    """A type of columns whose attributes are all that its statements are cached by."""

    holds: ClassVar[str] = ""
    """The values, for the error of one that was never written; ``""``: any value is read."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Read values by ``process_result_value``; one that was never written is damage."""
        if not self.holds:
            return super().result_processor(dialect, coltype)
        convert = self.impl_instance.result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                found = value if convert is None else convert(value)
                return self.process_result_value(found, dialect)
            except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as exc:
                raise make_damage_error(self.holds) from exc

        return process


class PlainText(StoredType[str]):
    """Text as it is; see ``DialectColumns.make_text_type``.

    Args:
        length: In characters; ``None``: any.
    """

    impl = sa.Text
    as_stored = frozenset({str, NoneType})

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length)
        self.length = length  # part of SQLAlchemy's cache key

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return make_text_type(dialect, self.length)


class Binary(_Checked, sa.LargeBinary):
    """Bytes, which each driver takes as they are."""

    def bind_processor(self, dialect: Dialect) -> None:
        return None


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
        raise make_damage_error("a JSON object")
    return loaded


def _load_text(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if type(value) is not str:
        raise make_damage_error(_WORDS[str])
    try:
        return load_json(value)
    except ValueError as exc:
        raise make_damage_error("a JSON object") from exc


class Json(StoredType[dict[str, Any]]):
    """A JSON object that queries may look into; empty is NULL in the table and ``{}`` read."""

    impl = sa.JSON
    holds = "a JSON object"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT where the database has no JSON type of its own."""
        return dialect.type_descriptor(get_columns(dialect).make_json_type(none_as_null=True))

    def bind_expression(self, bindparam: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        return _BoundJson(bindparam)

    def process_bind_param(self, value: Mapping[str, Any] | None, dialect: Dialect) -> Any:
        """Escape; serialise where the column is text."""
        return get_columns(dialect).bind_json(value) if value else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Read what is not text as damage, by one call; see ``keeps_types``."""
        if get_columns(dialect).keeps_types:
            return super().result_processor(dialect, coltype)
        return _load_text

    def process_result_value(self, value: Any, dialect: Dialect) -> dict[str, Any]:
        return load_json(value)

    def read_column(self, values: Sequence[Any], kinds: set[type]) -> Sequence[Any] | None:
        return [{} for _ in values] if kinds == {NoneType} else None


class SharedJson(Json):
    """A ``Json`` that is only read: rows with equal objects may share one."""

    def read_column(self, values: Sequence[Any], kinds: set[type]) -> Sequence[Any] | None:
        if not kinds <= {str, NoneType}:
            return None
        try:
            loaded = {value: load_json(value) for value in set(values)}
        except ValueError:
            return None  # the damaged one raises when it is read alone
        if len(loaded) == 1:
            return [*loaded.values()] * len(values)
        return [loaded[value] for value in values]


class _ReadJson(StoredType[Any]):
    """A ``JsonValue`` as a query gives it."""

    impl = sa.Text
    holds = "a JSON value"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Text where the driver decodes nothing."""
        return dialect.type_descriptor(get_columns(dialect).read_json_type())

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return get_columns(dialect).read_json(value)


class JsonValue(StoredType[Any]):
    """Any JSON value, ``None`` too, that queries may look into; read back exactly."""

    impl = sa.JSON
    should_evaluate_none = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT where the database has no JSON type of its own."""
        return dialect.type_descriptor(get_columns(dialect).make_json_type(none_as_null=False))

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.type_coerce(JsonAsText(column), _ReadJson())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Escape; serialise where the column is text."""
        return get_columns(dialect).bind_json(value)


class Rendered(FunctionElement[T]):
    """An expression that each database renders in a way of its own."""

    name: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.inherit_cache = True
        cls.name = cls.__name__.strip("_").lower()  # of a column in a query

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        """Return the SQL; ``process`` renders a clause."""
        raise NotImplementedError


@compiles(Rendered)
def _compile(element: Rendered[Any], compiler: SQLCompiler, **kw: Any) -> str:
    return element.render(get_columns(compiler.dialect), partial(compiler.process, **kw))


class JsonAsText(Rendered[Any]):
    """A JSON column as a query gives it."""

    type = sa.JSON()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        return columns.select_json(process(next(iter(self.clauses))))


class _BoundJson(Rendered[dict[str, Any]]):
    """A bound JSON object."""

    type = sa.JSON()

    def render(self, columns: DialectColumns, process: Callable[[Any], str]) -> str:
        return process(columns.render_bound_json(next(iter(self.clauses))))
