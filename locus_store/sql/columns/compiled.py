"""A statement that is compiled once and executed on the driver's cursor.

SQLAlchemy's own call adds about 0.05 ms to a statement that takes 0.01 ms; a save sends several.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from operator import attrgetter, itemgetter, methodcaller
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.types import TypeEngine

from locus_store.errors import IntegrityError
from locus_store.runtime.recent import Recent

T = TypeVar("T")
Query: TypeAlias = sa.Select[Any] | sa.CompoundSelect[Any]

_Convert = Callable[[Any], Any]
_Reader = Callable[[Sequence[Any], set[type]], Sequence[Any] | None]
"""Reads the values of a column that a driver returned, of these types; ``None``: one by one."""

GUARD: Final = "locus_store_guard"
"""Execution option of a connection: a function of a statement's text and parameters, which it
changes for a server that keeps tenants apart."""

MOST_SEARCHES: Final = 256
"""Forms of queries with conditions that are kept compiled."""

_MANY_ROWS: Final = 8
"""Rows that are converted by column: a column often has one value in all rows."""

_SHARED: Final = {int, str, bytes, datetime, NoneType}
"""Types of values that several rows may share."""

_FETCH_ALL: Final = methodcaller("fetchall")
_COUNT_ROWS: Final = attrgetter("rowcount")
_NAMES = ("thread_id", "namespace", "line", "sequence", "checkpoint_id")
"""Parameters that say of which thread, line or version a statement is."""


class Compiled:
    """A Core statement for one dialect, which also converts values in both directions.

    Args:
        statement: With a ``bindparam`` of a name for everything that changes; it may have a value,
            for statements that contain this one.
        dialect: Where its driver takes parameters by name, SQLAlchemy executes the statement: it
            tells the driver their types, and a round trip takes longer than all of this.
        literals: Those of its literals that change, too; see ``CompiledSearches``.
    """

    def __init__(
        self,
        statement: Query | sa.UpdateBase,
        dialect: Dialect,
        literals: Sequence[sa.BindParameter[Any]] = (),
    ) -> None:
        self._statement = None if dialect.positional else statement
        compiled: Any = statement.compile(dialect=dialect)
        self._text = str(compiled)
        self._returns_key = bool(compiled.effective_returning)
        """An insert gives the key of its row as a result."""
        self._fixed: dict[str, Any] = {}
        """Parameters that are the same each time, as the driver takes them."""
        self._asked: dict[str, Callable[[], Any]] = {}
        self._converters: dict[str, _Convert] = {}
        self._literals = {it.key: _name_literal(at) for at, it in enumerate(literals)}
        names = [self._add(compiled.binds[it], dialect) for it in compiled.positiontup or ()]
        self._take = _make_getter(names)
        """Returns the driver's parameters, in their order."""
        self._is_given = not (self._fixed or self._asked or self._converters)
        self._columns: list[sa.ColumnElement[Any]] = []
        if not isinstance(statement, sa.UpdateBase):
            self._columns += statement.selected_columns
        kinds: list[Any] = [_get_result_type(it).dialect_impl(dialect) for it in self._columns]
        self._results = [
            None if isinstance(kind, sa.Float) else kind.result_processor(dialect, None)
            for kind in kinds
        ]
        # Of the class: a TypeDecorator has the attributes of the type that it wraps.
        self._readers = [
            kind.read_column if hasattr(type(kind), "read_column") else None for kind in kinds
        ]
        # The types of the values that are read as the driver returns them.
        self._as_stored = [it.as_stored if hasattr(type(it), "as_stored") else () for it in kinds]
        self._steps: dict[tuple[type, ...], list[tuple[int, _Convert]]] = {}
        """The conversions of a row, by the types of its values."""

    def _add(self, bound: sa.BindParameter[Any], dialect: Dialect) -> str:
        """Note a parameter; return its name among the values."""
        name = self._literals.get(bound.key, bound.key)
        convert = bound.type.dialect_impl(dialect).bind_processor(dialect)
        is_named = bound.key.isidentifier() and not bound.unique
        if bound.callable is not None:
            self._asked[name] = bound.callable
        elif not (bound.required or is_named or bound.key in self._literals):
            # The key of a literal is no identifier.
            self._fixed[name] = convert(bound.value) if convert else bound.value
            return name
        if convert:
            self._converters[name] = convert
        return name

    def fetch_rows(
        self, connection: Connection, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Return all rows, in the order of the statement's columns.

        Raises:
            IntegrityError: Names the column that holds what was never written, and where.
        """
        if self._statement is not None:
            return [tuple(row) for row in connection.execute(self._statement, values)]
        found = self._execute(connection, values, _FETCH_ALL)
        try:
            if len(found) < _MANY_ROWS:
                return list(map(self._convert_row, found))
            return list(zip(*self._read_columns(found), strict=True))
        except IntegrityError as exc:
            raise self._locate_error(exc, found, values) from exc

    def fetch_named(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """Return the rows of ``fetch_rows``, with the names of their columns if these differ."""
        return list(map(self._make_row, self.fetch_rows(connection, values)))

    @cached_property
    def _make_row(self) -> Any:
        names = [str(it.key) for it in self._columns]
        row = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
        return partial(tuple.__new__, row)  # the class's own _make is a function in Python

    def fetch_columns(
        self, connection: Connection, values: Mapping[str, Any]
    ) -> list[Sequence[Any]]:
        """Return the columns of ``rows``; none if there is no row."""
        if self._statement is not None:
            return list(zip(*connection.execute(self._statement, values), strict=True))
        found = self._execute(connection, values, _FETCH_ALL)
        try:
            return self._read_columns(found)
        except IntegrityError as exc:
            raise self._locate_error(exc, found, values) from exc

    def _read_columns(self, rows: Sequence[Any]) -> list[Sequence[Any]]:
        if not rows:
            return []
        values = zip(*rows, strict=True)
        columns = zip(self._results, self._as_stored, self._readers, values, strict=True)
        return [_read(*column) for column in columns]

    def _locate_error(
        self, exc: IntegrityError, rows: Sequence[Any], values: Mapping[str, Any]
    ) -> IntegrityError:
        """Return the error of an unreadable value with its place and columns."""
        where = ", ".join(f"{name} {values[name]!r}" for name in _NAMES if name in values)
        damaged = ", ".join(
            dict.fromkeys(str(it) for row in rows for it in self._find_unreadable(row))
        )
        return IntegrityError(": ".join(filter(None, (where, damaged, str(exc)))))

    def fetch_first(
        self, connection: Connection, values: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        """Return the first row, if any; for statements that give one at most."""
        rows = self.fetch_rows(connection, values)
        return rows[0] if rows else None

    def run(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Execute a change; return the number of affected rows."""
        if self._statement is not None:
            return connection.execute(self._statement, values).rowcount
        return int(self._execute(connection, values, _COUNT_ROWS))

    def insert(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Insert a row; return the key that the database has given to it."""
        if self._statement is not None:
            key: Any = connection.execute(self._statement, values).inserted_primary_key
            return int(key[0])
        return int(self._execute(connection, values, self._read_key))

    def run_all(self, connection: Connection, columns: Mapping[str, Sequence[Any]]) -> None:
        """Execute a change once for each row of the columns, which are all of its parameters."""
        if not all(map(len, columns.values())):
            return
        if self._statement is not None:
            rows = zip(*columns.values(), strict=True)
            connection.execute(
                self._statement, [dict(zip(columns, it, strict=True)) for it in rows]
            )
            return
        if self._converters:
            every = self._converters.items()
            columns = {**columns, **{it: _convert(convert, columns[it]) for it, convert in every}}
        rows = zip(*self._take(columns), strict=True)
        driver: Any = connection.connection.dbapi_connection
        cursor = driver.cursor()
        try:  # see _execute
            cursor.executemany(self._text, rows)  # an iterator is enough for it
        finally:
            cursor.close()

    def _execute(
        self, connection: Connection, values: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T:
        """Execute the statement; return what ``read`` makes of its cursor.

        The cursor is closed with an error, too: where it is dropped open, Python 3.11 waits for the
        statement that the connection executes then.
        """
        text, bound = self._text, self._bind(values)
        options = connection.get_execution_options()
        if options and (guard := options.get(GUARD)):
            text, bound = guard(text, bound)
        driver: Any = connection.connection.dbapi_connection
        cursor = driver.cursor()
        try:  # in place of `closing`, as it is on the way of each call
            cursor.execute(text, bound)
            return read(cursor)
        finally:
            cursor.close()

    def _read_key(self, cursor: Any) -> Any:
        return cursor.fetchone()[0] if self._returns_key else cursor.lastrowid

    def _bind(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the driver's parameters."""
        if self._is_given:
            return self._take(values)
        bound = {**values, **self._fixed}
        if self._asked:
            bound.update((name, ask()) for name, ask in self._asked.items())
        for name, convert in self._converters.items():
            bound[name] = convert(bound[name])
        return self._take(bound)

    def _find_unreadable(self, row: Sequence[Any]) -> Iterator[sa.ColumnElement[Any]]:
        """Yield the columns that have unreadable values."""
        for column, value, convert in zip(self._columns, row, self._results, strict=True):
            try:
                if convert:
                    convert(value)
            except IntegrityError:
                yield column

    def _convert_row(self, row: Sequence[Any]) -> tuple[Any, ...]:
        kinds = tuple(map(type, row))
        steps = self._steps.get(kinds)
        if steps is None:
            columns = enumerate(zip(kinds, self._results, self._as_stored, strict=True))
            steps = [
                (at, convert)
                for at, (kind, convert, as_stored) in columns
                if convert and kind not in as_stored
            ]
            self._steps[kinds] = steps
        if not steps:
            return tuple(row)
        read = list(row)
        for at, convert in steps:
            read[at] = convert(row[at])
        return tuple(read)


def _name_literal(at: int) -> str:
    return f"literal_{at}"


class CompiledSearches:
    """Queries with conditions, each compiled once for all that differ in literals only.

    Args:
        dialect: See ``Compiled``.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._kept: Recent[Hashable, Compiled] = Recent(MOST_SEARCHES)

    def fetch(
        self,
        connection: Connection,
        key: Hashable,
        make: Callable[[], Query],
        *,
        conditions: Sequence[sa.ColumnElement[bool]],
        values: Mapping[str, Any],
    ) -> Sequence[Any]:
        """Return the rows of a query.

        Args:
            connection: Where it runs.
            key: Of the query without its conditions.
            make: Returns the query.
            conditions: Those in it, with what is looked for as literals.
            values: The parameters of the rest.
        """
        keys = [it._generate_cache_key() for it in conditions]  # noqa: SLF001  (as SQLAlchemy does)
        literals = [bound for it in keys if it for bound in it.bindparams]
        is_fixed = any(it is None for it in keys) or any(it.expanding for it in literals)
        if is_fixed or not self._dialect.positional:
            return connection.execute(make(), values).all()
        form = key, *(it.key for it in keys if it)
        found = self._kept.get(form)
        if found is None:
            found = Compiled(make(), self._dialect, literals)
            self._kept.put(form, found)
        given = {_name_literal(at): it.effective_value for at, it in enumerate(literals)}
        return found.fetch_named(connection, {**values, **given})


def _get_result_type(column: sa.ColumnElement[Any]) -> TypeEngine[Any]:
    given = column.type.column_expression(column)
    return column.type if given is None else given.type


def _read(
    convert: _Convert | None,
    raw_kinds: Collection[type],
    reader: _Reader | None,
    values: Sequence[Any],
) -> Sequence[Any]:
    """Return a column's values; of equal ones that cannot be changed, one is converted."""
    if convert is None:
        return values
    kinds = set(map(type, values))
    if kinds.issubset(raw_kinds):
        return values
    read = reader(values, kinds) if reader else None
    if read is not None:
        return read
    if kinds <= _SHARED and len(kinds - {NoneType}) <= 1:
        distinct = set(values)
        if 2 * len(distinct) <= len(values):
            converted = {it: convert(it) for it in distinct}
            if {*map(type, converted.values())} <= _SHARED:
                return [converted[it] for it in values]
    return list(map(convert, values))


def _make_getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return a function that returns the values of these names."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple(values[it] for it in names)


def _convert(convert: _Convert, values: Sequence[Any]) -> Sequence[Any]:
    """Return a column's values as the driver takes them; equal neighbours are converted once."""
    converted: list[Any] = []
    last: Any = converted  # no value is this list
    given: Any = None
    for value in values:
        if value is not last:
            last, given = value, convert(value)
        converted.append(given)
    return converted
