"""A double of an Oracle server: SQLite executes in kind what is recorded as it was sent.

SQLAlchemy's own dialect for Oracle and the driver's own types are at work; below them, a connection
records statements, parameters, their sizes and each round trip, and runs the same Core statement on
SQLite. Values come back as python-oracledb gives them: without zones, ``''`` as NULL, numbers in
JSON as decimals. What it cannot show: that Oracle takes a statement, and what it makes of it.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from array import array
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4
from weakref import WeakSet

import oracledb
import orjson
import sqlalchemy as sa
from oracledb import errors
from sqlalchemy import event
from sqlalchemy.dialects.oracle.dictionary import DB_LINK_PLACEHOLDER
from sqlalchemy.ext.compiler import compiles

from locus_store.backends.oracle import dialect
from locus_store.backends.oracle.columns import COLUMNS, JsonExists, bind_value
from locus_store.backends.sqlite.columns import SQLiteColumns
from locus_store.sql import migrate
from locus_store.sql.columns import types
from locus_store.sql.columns.dialect_columns import (
    Json,
    JsonValue,
    _ReadJson,
    get_columns,
    load_value,
)
from locus_store.sql.schema.tables import make_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

VERSION = "23.26.0.0.0"


@dataclass
class Call:
    """One round trip, as the driver was asked for it."""

    kind: str
    """``execute``, ``executemany``, ``commit``, ``rollback`` or ``ping``."""

    statement: str = ""
    parameters: Any = None
    sizes: dict[str, Any] = field(default_factory=dict)
    is_autocommit: bool = False
    rows: int = 0
    """The number of rows that were asked for together."""


class TwinServer:
    """The database: one file, and what was asked of it.

    Args:
        path: Of the SQLite file, which gets the newest tables where it is not there.
        prefix: Of the tables.
    """

    def __init__(self, path: Path, prefix: str = "locus_") -> None:
        self.calls: list[Call] = []
        self.failures: deque[BaseException] = deque()
        """Raised by the next statements, before anything is done."""
        self.text_index: tuple[str, str] | None = None
        """The row of the text index in Oracle's data dictionary."""
        self.watch: Callable[[str], None] | None = None
        """Sees each statement before anything is done, and may raise."""
        self.path = path
        self.tables = make_tables(prefix)
        self.lock = threading.Lock()
        self.table_locks: dict[tuple[str, TwinConnection], str] = {}
        """Modes, by table and holder; of ``LOCK TABLE`` alone."""
        self.guard = threading.Lock()
        """Of ``table_locks``."""
        if not path.exists():
            migrate.upgrade(f"sqlite:///{path}", prefix=prefix)

    @contextmanager
    def in_its_place(self) -> Iterator[None]:
        """The driver connects to it, whatever it is asked for."""
        connect, tell = oracledb.connect_async, dialect.tell_types

        def told(made: Any) -> None:
            tell(made)
            watched(made)

        oracledb.connect_async, dialect.tell_types = self.connect, told
        try:
            yield
        finally:
            oracledb.connect_async, dialect.tell_types = connect, tell

    async def connect(self, *_: Any, **__: Any) -> TwinConnection:
        """A connection."""
        return TwinConnection(self)

    def statements(self) -> list[str]:
        """The statements, in their order."""
        return [it.statement for it in self.calls if it.statement]


def watched(made: Any) -> Any:
    """Tell a twin's connection which Core statement is behind the text that it is about to get."""

    def noted(conn: Any, element: Any, many: Any, params: Any, options: Any) -> None:
        del options
        conn.connection.driver_connection.element = element, many or params or {}

    def known(conn: Any, *rest: Any) -> None:
        context = rest[3]
        if context.compiled is None:
            conn.connection.driver_connection.element = None

    event.listen(made, "before_execute", noted)
    event.listen(made, "before_cursor_execute", known)
    return made


class TwinConnection:
    """The part of ``oracledb.AsyncConnection`` that SQLAlchemy uses."""

    thin = True
    version = VERSION
    max_identifier_length = 128

    def __init__(self, server: TwinServer) -> None:
        self.server = server
        self.autocommit = False
        self.outputtypehandler: Any = None
        self.stmtcachesize = 20
        self.call_timeout = 0
        self.element: Any = None
        self._is_healthy = True
        self._begun = False
        self._is_set = False
        """``SET TRANSACTION`` was sent."""
        self._sqlite = sqlite(server.path)

    def cursor(self) -> TwinCursor:
        """A cursor."""
        return TwinCursor(self)

    def is_healthy(self) -> bool:
        """The connection still works."""
        return self._is_healthy

    def lose(self) -> None:
        """As if the server were gone; what was begun is undone."""
        self._is_healthy = False
        self._end("ROLLBACK")

    async def ping(self) -> None:
        """A round trip, told of no call: only a slow machine leaves a connection idle."""
        self._require_healthy()

    async def commit(self) -> None:
        """A round trip."""
        self.server.calls.append(Call("commit"))
        self._require_healthy()
        self._end("COMMIT")

    async def rollback(self) -> None:
        """A round trip."""
        self.server.calls.append(Call("rollback"))
        self._end("ROLLBACK")

    async def close(self) -> None:
        """Undo what was begun."""
        self.terminate()

    def terminate(self) -> None:
        """The same without a farewell."""
        self._is_healthy = False
        self._end("ROLLBACK")
        self._sqlite.close()

    def _require_healthy(self) -> None:
        if not self._is_healthy:
            raise lost()

    async def run(self, call: Call) -> Result:
        """Record a statement, and execute it in kind."""
        self.server.calls.append(call)
        call.is_autocommit = self.autocommit
        self._require_healthy()
        if self.server.failures:
            raise self.server.failures.popleft()
        if self.server.watch is not None:
            self.server.watch(call.statement)
        if "TIME ZONE '" in call.statement and "TIME ZONE '+" not in call.statement:
            raise driver_error("DPY-3022", "named time zones are not supported in thin mode")
        if found := canned(call.statement, self.server):
            return found
        if _DEFINES.match(call.statement):
            return await self._define(call.statement)
        await asyncio.sleep(0)
        if not (self.autocommit and call.statement.startswith("SELECT")):
            await self._begin()
        try:
            result = self._execute(call)
        except (sqlite3.IntegrityError, sa.exc.IntegrityError) as exc:
            self._fail()
            raise server_error(1, "unique constraint violated") from exc
        except BaseException:
            self._fail()
            raise
        if self.autocommit:
            self._end("COMMIT")
        return result

    def _fail(self) -> None:
        """A statement that fails leaves nothing behind."""
        if self.autocommit:
            self._end("ROLLBACK")

    @property
    def transaction_in_progress(self) -> bool:
        """Return whether a transaction is open."""
        return self._begun or self._is_set or any(it[1] is self for it in self.server.table_locks)

    async def _begin(self) -> None:
        if self._begun:
            return
        while not self.server.lock.acquire(blocking=False):  # noqa: ASYNC110  (of threads)
            await asyncio.sleep(0.0005)
        self._begun = True
        self._sqlite.exec_driver_sql("BEGIN IMMEDIATE")

    def _end(self, how: str) -> None:
        if self._begun:
            self._sqlite.exec_driver_sql(how)
            self._begun = False
            self.server.lock.release()
        self._is_set = False
        with self.server.guard:
            for it in [it for it in self.server.table_locks if it[1] is self]:
                del self.server.table_locks[it]

    def _execute(self, call: Call) -> Result:
        element, params = self.element
        found = self._sqlite.execute(element, params)
        if not found.returns_rows:
            keys = None
            if element.is_insert and isinstance(params, dict) and call.kind == "execute":
                keys = found.inserted_primary_key if not found.context.executemany else None
            return Result([], None, found.rowcount, keys)
        types = (
            [it.type for it in element.selected_columns]
            if hasattr(element, "selected_columns")
            else [sa.types.NullType()] * len(found.keys())
        )
        rows = [tuple(map(fetched, types, row)) for row in found]
        return Result(list(found.keys()), rows, len(rows))

    async def _lock(self, table: str, mode: str) -> None:
        """Until this transaction ends; two may be ``ROW EXCLUSIVE`` at once, as writers are."""
        held = self.server.table_locks
        while True:
            with self.server.guard:
                others = {it for (name, who), it in held.items() if name == table and who != self}
                if not others or {*others, mode} == {"ROW EXCLUSIVE"}:
                    held[table, self] = mode
                    return
            await asyncio.sleep(0.0005)

    async def _define(self, statement: str) -> Result:
        """DDL, which commits before and after; what SQLite need not know of is not done there."""
        if statement.startswith("SET TRANSACTION"):
            if self.transaction_in_progress:
                raise server_error(1453, "SET TRANSACTION must be first statement of transaction")
            self._is_set = True
            return Result([], None, 0)
        if lock := _LOCK.match(statement):
            await self._lock(lock[1], lock[2])
            return Result([], None, 0)
        self._end("COMMIT")
        if "INDEXTYPE" in statement:
            self.server.text_index = self.server.text_index or ("VALID", "VALID")
            return Result([], None, 0)
        if statement.startswith("DROP INDEX"):
            self.server.text_index = None
            return Result([], None, 0)
        if statement.startswith("CREATE VECTOR INDEX"):
            return Result([], None, 0)
        await self._begin()
        try:
            self._sqlite.exec_driver_sql(_defining(statement))
        except sa.exc.OperationalError as exc:
            self._end("ROLLBACK")
            raise _refused(exc) from exc
        self._end("COMMIT")
        return Result([], None, 0)


class _Nothing:
    def __await__(self) -> Iterator[None]:
        yield from ()


class TwinCursor:
    """The part of ``oracledb.AsyncCursor`` that SQLAlchemy uses."""

    def __init__(self, connection: TwinConnection) -> None:
        self.connection = connection
        self.arraysize = 100
        self.prefetchrows = 2
        self.outputtypehandler: Any = None
        self.description: Any = None
        self.rowcount = -1
        self._rows: deque[Any] = deque()
        self._sizes: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def setinputsizes(self, *_: Any, **sizes: Any) -> None:
        """Set the types of the next statement's parameters."""
        self._sizes = sizes

    def var(self, kind: Any, *_: Any, arraysize: int = 1, **__: Any) -> TwinVar:
        """An output parameter."""
        return TwinVar(kind, arraysize)

    async def execute(self, statement: str, parameters: Any = None) -> None:
        """One round trip."""
        await self._run("execute", statement, parameters or {})

    async def executemany(self, statement: str, parameters: Any) -> None:
        """One round trip for all."""
        await self._run("executemany", statement, parameters)

    async def _run(self, kind: str, statement: str, parameters: Any) -> None:
        call = Call(kind, statement, parameters, self._sizes, rows=self.prefetchrows)
        self._sizes = {}
        result = await self.connection.run(call)
        names = result.names
        self.description = [(it, None, None, None, None, None, None) for it in names] or None
        self.rowcount = result.rowcount
        self._rows = deque(result.rows or ())
        if result.keys is not None and isinstance(parameters, dict):
            for at, key in enumerate(result.keys):
                if f"ret_{at}" in parameters:
                    parameters[f"ret_{at}"].values = [[key]]

    async def fetchall(self) -> list[Any]:
        """All rows; they came with the statement."""
        found, self._rows = list(self._rows), deque()
        return found

    async def fetchone(self) -> Any:
        """The next row."""
        return self._rows.popleft() if self._rows else None

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """Some rows."""
        return [self._rows.popleft() for _ in range(min(size or 100, len(self._rows)))]

    def close(self) -> _Nothing:
        """No round trip; may be awaited, as some callers do."""
        return _Nothing()


@dataclass
class TwinVar:
    """An output parameter."""

    kind: Any
    arraysize: int
    value: Any = None
    values: list[Any] = field(default_factory=list)

    def getvalue(self, _: int = 0) -> Any:
        """The value that was set."""
        return self.value


@dataclass
class Result:
    """The values that a statement returned."""

    names: list[str]
    rows: list[Any] | None
    rowcount: int
    keys: Any = None


# --- values


ORACLE = dialect._make_engine(None).dialect


def fetched(kind: Any, value: Any) -> Any:
    """A value as it is stored for Oracle, and as its driver gives it back."""
    bind = kind.dialect_impl(ORACLE).bind_processor(ORACLE)
    stored = bind(value) if bind and value is not None else value
    if isinstance(kind, Json | JsonValue | _ReadJson):
        return as_decimals(stored)
    if isinstance(stored, str | bytes) and not stored:
        return None
    if isinstance(stored, datetime):
        return stored.replace(tzinfo=None)
    return bytes(stored) if isinstance(stored, memoryview) else stored


def as_decimals(value: Any) -> Any:
    """JSON as the driver decodes Oracle's own."""
    if isinstance(value, dict):
        return {name: as_decimals(it) for name, it in value.items()}
    if isinstance(value, list):
        return [as_decimals(it) for it in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Decimal(repr(value)) if is_number else value


# --- errors


def server_error(number: int, text: str) -> oracledb.Error:
    """An error of the server's, as the driver raises it: of some it makes one of its own."""
    told = errors._Error(message=f"ORA-{number:05}: {text}", code=number)
    return told.exc_type(told)


def driver_error(code: str, text: str) -> oracledb.Error:
    """An error of the driver's own."""
    told = errors._Error(message=f"{code}: {text}")
    return told.exc_type(told)


def lost() -> oracledb.Error:
    """The driver's error of a connection that is gone."""
    return driver_error("DPY-4011", "the database or network closed the connection")


# --- SQLite in kind

_opening = ContextVar[Path]("_opening")


def canned(statement: str, server: TwinServer) -> Result | None:
    """Return the answer to a question of SQLAlchemy, or about the text index."""
    text = statement.strip().lower()
    if "i.domidx_opstatus" in text:
        rows = [server.text_index] if server.text_index else []
        return Result(["S", "O"], rows, len(rows))
    if text.startswith("select sys_context"):
        return Result(["S"], [("LOCUS",)], 1)
    if text == "select 1.1 from dual":
        return Result(["N"], [("1.1",)], 1)
    if text.startswith("alter session"):
        return Result([], None, 0)
    if "local_transaction_id" in text:
        raise server_error(1031, "insufficient privileges")
    return None


def sqlite(path: Path) -> sa.Connection:
    """A connection that knows the functions that are Oracle's."""
    token = _opening.set(path)
    try:
        return _make_engine().connect()
    finally:
        _opening.reset(token)


class _Columns(SQLiteColumns):
    """SQLite's, with the mark that Oracle's keys have: patterns are sent with it."""

    key_mark = COLUMNS.key_mark


def _get_columns(dialect: sa.Dialect) -> Any:
    return _Columns() if dialect in _twins else get_columns(dialect)


_twins: WeakSet[sa.Dialect] = WeakSet()
types.get_columns = _get_columns


@cache
def _make_engine() -> sa.Engine:
    """One for all files: it remembers the statements that it has compiled."""

    def opened() -> sqlite3.Connection:
        return sqlite3.connect(_opening.get(), timeout=30, check_same_thread=False)

    made = sa.create_engine("sqlite://", poolclass=sa.NullPool, creator=opened)
    _twins.add(made.dialect)
    event.listen(made, "connect", _teach)
    event.listen(made, "before_cursor_execute", _translated, retval=True)
    return made


def _teach(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA case_sensitive_like = ON")
    connection.create_function("contains", 2, lambda text, word: int(word in (text or "").split()))
    connection.create_function("json_exists", 3, json_exists)
    connection.create_function("vector_distance", 3, vector_distance)
    connection.create_function("sys_context", 2, lambda *_: "LOCUS")
    connection.create_function("sys_guid", 0, lambda: uuid4().bytes)
    connection.create_function("rawtohex", 1, lambda raw: raw.hex().upper())
    for name, kind in (("tables", "table"), ("views", "view")):
        connection.execute(
            f"CREATE TEMP VIEW all_{name}{DB_LINK_PLACEHOLDER} AS SELECT CASE WHEN name = "
            f"lower(name) THEN upper(name) ELSE name END AS "
            f"{kind}_name, 'LOCUS' AS owner FROM main.sqlite_master WHERE type = '{kind}'"
        )
    connection.execute(
        "CREATE TEMP VIEW all_tab_columns AS SELECT CASE WHEN t.name = lower(t.name) THEN "
        "upper(t.name) ELSE t.name END AS table_name, upper(c.name) AS "
        "column_name, c.type AS data_type, 'LOCUS' AS owner "
        "FROM main.sqlite_master t, pragma_table_info(t.name) c WHERE t.type IN ('table', 'view')"
    )


_LOCK = re.compile(r"LOCK TABLE (\S+) IN (EXCLUSIVE|ROW EXCLUSIVE) MODE$")
_DEFINES = re.compile(r"\s*(CREATE|ALTER|DROP|LOCK|SET TRANSACTION)\b")


def _defining(statement: str) -> str:
    """A definition in SQLite's words."""
    for theirs, ours in (
        (r"NUMBER\(19\) GENERATED BY DEFAULT AS IDENTITY", "INTEGER"),
        (r"\((\d+) CHAR\)", r"(\1)"),
        (r"VECTOR\([^)]*\)", "BLOB"),
        (r"JSON_VALUE\(", "json_extract("),
        (r"SYSTIMESTAMP", "CURRENT_TIMESTAMP"),
    ):
        statement = re.sub(theirs, ours, statement)
    return statement


def _refused(exc: Exception) -> oracledb.Error:
    """Return Oracle's error for an object that exists already, or is missing."""
    told = {"already exists": 955, "no such table": 942, "no such view": 942, "duplicate": 1430}
    number = next(it for words, it in told.items() if words in str(exc))
    return server_error(number, str(exc))


_FETCH = re.compile(r"FETCH (?:APPROX )?FIRST (\S+) ROWS ONLY")


def _translated(_: Any, __: Any, text: str, params: Any, *___: Any) -> tuple[str, Any]:
    text = _FETCH.sub(r"LIMIT \1", text)
    text = re.sub(r", (COSINE|EUCLIDEAN|DOT)\)", r", '\1')", text)
    text = re.sub(r"json_serialize\((\S+) RETURNING CLOB\)", r"\1", text)
    if isinstance(params, tuple):
        params = tuple(str(it) if isinstance(it, Decimal) else it for it in params)
    return text, params


@compiles(JsonExists, "sqlite")
def _json_exists_sqlite(element: JsonExists, compiler: Any, **kw: Any) -> str:
    column, *passed = (compiler.process(it, **kw) for it in element.clauses)
    path = element.path.replace("'", "''")
    return f"json_exists({column}, '{path}', {passed[0] if passed else 'NULL'})"


_STEP = re.compile(r'\.("(?:[^"\\]|\\.)*")')
_TAIL = re.compile(r"(\[\*\])?(\?\(@(?:\.(\w+)\(\))? == (\$v|true|false)\))?$")


def json_exists(text: str | None, path: str, passed: Any) -> int:
    """The few forms of paths that are used, lax: a list is looked into."""
    if text is None:
        return 0
    at, found = 1, [bind_value(load_value(text.encode()))]
    while step := _STEP.match(path, at):
        name, at = orjson.loads(step[1]), step.end()
        found = [it[name] for it in _unwrapped(found) if isinstance(it, dict) and name in it]
    tail = _TAIL.match(path, at)
    assert tail, path
    if tail[1]:
        found = list(_unwrapped(found))
    if not tail[2]:
        return int(bool(found))
    return int(any(_passes(it, tail[3], tail[4], passed) for it in found))


def _unwrapped(values: Sequence[Any]) -> Iterator[Any]:
    for it in values:
        yield from it if isinstance(it, list) else [it]


def _passes(value: Any, kind: str | None, wanted: str, passed: Any) -> bool:
    if wanted != "$v":
        return value is (wanted == "true")
    if kind == "numberOnly":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and Decimal(repr(value)) == Decimal(str(passed))
    return isinstance(value, str) and value == passed


def vector_distance(left: bytes, right: bytes, metric: str) -> float:
    """As Oracle's: the less, the nearer."""
    one, other = array("f", left), array("f", right)
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    if metric == "DOT":
        return -dot
    if metric == "EUCLIDEAN":
        return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
    lengths = (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5
    return 1 - dot / lengths if lengths else 1.0
