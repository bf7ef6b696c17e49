"""SQLite's dialect: its hooks, full-text index, connections and errors."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from locus_store import versions
from locus_store.backends.sqlite import appends
from locus_store.backends.sqlite.columns import list_storage_classes
from locus_store.backends.sqlite.connecting import MEMORY, make_emptied_error
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    SchemaError,
)
from locus_store.sql.columns.dialect_columns import dump_value, escape_text
from locus_store.sql.columns.types import Blob
from locus_store.sql.connections.backend import make_autocommit_error
from locus_store.sql.connections.database import Database, iterate_causes
from locus_store.sql.migrate import check
from locus_store.sql.schema.status import SEARCH_SETTING
from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads.pending import BATCH
from locus_store.sql.threads.repository import Copied, Repository
from locus_store.types import Mark, Save, Written
from locus_store.values import frames
from locus_store.values.text import split_words

_INDEX = "INSERT INTO {0}(rowid, words) VALUES (?, ?)"
_UNINDEX = "INSERT INTO {0}({0}, rowid, words) VALUES ('delete', ?, ?)"

_IS_MERGED_LOW = """
SELECT 1 FROM {0} WHERE id = 10 AND substr(block, -2) = x'0000'
AND EXISTS (SELECT 1 FROM {0} WHERE id > 10)
"""
"""Finds an index whose only segment is not on the last level: the record 10 lists the levels, and
an empty one takes two bytes 0."""

_SEQUENCE_BITS = 32
"""A row of the index is numbered ``line << 32 | sequence``."""


class SQLiteRepository(Repository):
    """SQLite's implementations of the hooks."""

    _has_tombstones = False

    def measure_column(self, column: sa.Column[Any]) -> sa.ColumnElement[int]:
        """Return the bytes of a value."""
        is_blob = isinstance(column.type, Blob)
        return sa.func.length(column if is_blob else sa.cast(column, sa.LargeBinary))

    def make_pattern_condition(
        self, column: sa.ColumnElement[str], pattern: str
    ) -> sa.ColumnElement[bool] | None:
        """See ``Reads.make_pattern_condition``; ``GLOB`` differs in negated sets only."""
        if "[" in pattern:
            return None
        return column.op("GLOB", is_comparison=True)(sa.literal(pattern, sa.Text()))

    def may_have(
        self, column: sa.ColumnElement[Any], key: str, value: Any
    ) -> sa.ColumnElement[bool]:
        """Return the condition that the key, or its first part, exists; the key is bound.

        If a string is wanted, it must stand there, or a list, an object or null. The column's text
        is searched for the string first, because parsing takes longer.
        """
        each = sa.func.json_each(column).table_valued("key", "value", "atom")
        names = [
            sa.literal(escape_text(name), sa.Text())
            for name in dict.fromkeys((key, key.split(".", maxsplit=1)[0]))
        ]
        found = sa.exists().select_from(each).where(each.c.key.in_(names))
        if not isinstance(value, str):
            return sa.and_(column.is_not(None), found)
        text = sa.literal(escape_text(value), sa.Text())
        found = found.where(sa.or_(each.c.value == text, each.c.atom.is_(None)))
        json = sa.literal(dump_value(value), sa.Text())
        return sa.and_(sa.func.instr(sa.type_coerce(column, sa.Text()), json) > 0, found)

    def remove_payloads(self, line: int, sequences: Sequence[int]) -> None:
        """See ``Repository``; an update would leave the payloads' room in the pages unused."""
        table = self.tables.checkpoints
        which = table.c.line == line, table.c.sequence.in_(sequences)
        rows = self.connection.execute(sa.select(table).where(*which)).mappings().all()
        self.connection.execute(table.delete().where(*which))
        self.connection.execute(table.insert(), [{**it, "payload": None} for it in rows])

    def save(self, save: Save) -> Written:
        """An append at the head looks at its line once; the full rules decide all other saves."""
        appended = self._append_at_head(save) if save.claim is None else None
        return appended or super().save(save)

    def _append_at_head(self, save: Save) -> Written | None:
        append = versions.make_append(save, self.store)
        if append is None or append.line is None:
            return None
        row = self.sql.append_columns.fetch_first(
            self.connection,
            {
                "tenant": self.tenant,
                "thread_id": save.thread_id,
                "namespace": save.namespace,
                "checkpoint_id": save.checkpoint_id,
            },
        )
        if row is None:
            return None
        *state, is_active, turn, head_digest, is_named, has_index = row
        line = versions.Line(*state)
        if is_named or turn != save.turn:
            return None
        if not versions.can_append(line, head_digest, save, append):
            return None
        changes_others = save.keep_last is not None or save.ttl_seconds is not None
        if is_active and not has_index and not changes_others:
            sequence = appends.append_head(self.connection, self.tables, line, save, append)
            mark = Mark(self.store, line.line, sequence, save.change.tree.digest)
            return Written(save.checkpoint_id, mark, "head")
        self.active_thread = save.thread_id if is_active else None
        self._has_index = bool(has_index)
        return versions.append(self, line, save, continues=append.basis is not None)

    def look_for_index(self) -> bool:
        return self.sql.setting.fetch_first(self.connection, {"name": SEARCH_SETTING}) is not None

    @property
    def _index(self) -> str:
        return f'"{self.tables.prefix}search"'

    def index_record(self, line: int, sequence: int, payload: bytes) -> str | None:
        """Index a record; return its text, which FTS5 needs again for a deletion."""
        if not self.has_index:
            return None
        text = frames.extract_text(payload, self.max_state_bytes)
        self._index_rows(_INDEX, [(line, sequence, text)])
        return text

    def copy_index(self, source: Copied) -> None:
        """See ``Repository``; the words come from the text that is stored for deletions."""
        c = self.tables.checkpoints.c
        texts = source(self.tables.checkpoints, ("sequence", "text")).where(c.text.is_not(None))
        self._index_texts(texts)

    def unindex(self, lines: Sequence[int], sequences: Sequence[int] | None = None) -> None:
        """See ``Repository``; FTS5 needs the exact words that were indexed."""
        if not self.has_index:
            return
        checkpoints = self.tables.checkpoints
        columns = (checkpoints.c[name] for name in ("line", "sequence", "text"))
        query = sa.select(*columns).where(
            checkpoints.c.line.in_(lines), checkpoints.c.text.is_not(None)
        )
        if sequences is not None:
            query = query.where(checkpoints.c.sequence.in_(sequences))
        rows = [(it.line, it.sequence, it.text) for it in self.connection.execute(query)]
        if rows:
            self._has_tombstones = True
            self._index_rows(_UNINDEX, rows)

    def finish(self) -> None:
        """Merge all segments after a deletion, which only marks words: no byte of them is left.

        Since SQLite 3.44, deleted words stay unless the last level gets the merged segment. Such an
        index is filled again.
        """
        if not self._has_tombstones:
            return
        command = f"INSERT INTO {self._index}({self._index}) VALUES (?)"  # noqa: S608
        self.connection.exec_driver_sql(command, ("optimize",))
        levels = _IS_MERGED_LOW.format(f'"{self.tables.prefix}search_data"')
        if self.connection.exec_driver_sql(levels).first():
            self.connection.exec_driver_sql(command, ("delete-all",))
            c = self.tables.checkpoints.c
            self._index_texts(sa.select(c.line, c.sequence, c.text).where(c.text.is_not(None)))

    def _index_texts(self, texts: sa.Select[Any]) -> None:
        for some in self.connection.execute(texts).partitions(BATCH):
            self._index_rows(_INDEX, some)

    def _index_rows(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        values = [
            (line << _SEQUENCE_BITS | sequence, " ".join(split_words(text)))
            for line, sequence, text in rows
        ]
        self.connection.exec_driver_sql(statement.format(self._index), values)

    def select_lines(self, word: str) -> sa.Select[Any]:
        index = sa.table(f"{self.tables.prefix}search", sa.column("words"), sa.column("rowid"))
        line = index.c.rowid.op(">>", return_type=sa.BigInteger())(_SEQUENCE_BITS)
        return sa.select(line).where(index.c.words.op("MATCH")(f'"{word}"'))

    def find_faults(self) -> list[str]:
        """Run ``PRAGMA integrity_check`` on pages and indexes, then check each value's type.

        A search comes first: until one, SQLite 3.46 to 3.53 check the index as this connection last
        read it, and report the segments that others have merged since.
        """
        if self.has_index:
            with suppress(sa.exc.DatabaseError):  # a damaged index: the check says so
                self.connection.execute(self.select_lines("word")).first()
        found = self.connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars()
        broken = [it for it in found if it != "ok"]
        tables = [] if broken else self.tables.metadata.sorted_tables
        return broken + [it for table in tables for it in self._find_mistyped(table)]

    def _find_mistyped(self, table: sa.Table) -> Iterator[str]:
        classes = {it: list_storage_classes(it, self.connection.dialect) for it in table.columns}
        is_other = [
            sa.func.typeof(column, type_=sa.Text()).not_in(known)
            for column, known in classes.items()
        ]
        query = sa.select(*(sa.func.count(sa.case((it, 1))) for it in is_other))
        counts = self.connection.execute(query.select_from(table)).one()
        for column, known, count in zip(classes, classes.values(), counts, strict=True):
            if count:
                yield f"{count} values of {column} are not {known[0]}: restore a backup"

    def create_index(self) -> bool:
        """Create and fill the full-text index; return whether it was missing."""
        if self.has_index:
            return False
        self.connection.exec_driver_sql(
            f"CREATE VIRTUAL TABLE {self._index} USING fts5(words, content='', "
            'tokenize="unicode61 remove_diacritics 0")'
        )
        self.index_versions("fts5")
        return True


class SQLiteDatabase(Database):
    """A database in a file, in memory, or behind a caller's engine.

    Args:
        path: Path of the file; ``None`` for a caller's engine.
        where: See ``Database``, as the rest.
    """

    dialect = "sqlite"
    has_one_writer = True
    repository = SQLiteRepository
    driver_errors = (*Database.driver_errors, sqlite3.Error, UnicodeDecodeError)

    def __init__(self, path: str | None, where: str, tables: Tables, **options: Any) -> None:
        super().__init__(where, tables, **options)
        self._path = path if path != MEMORY else None
        self._log_path = f"{path}-wal"
        self._known: tuple[int, int] | None = None
        """The file, while it is open."""
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        """The file that was opened last, and its log."""

    def begin_write(self, connection: Connection, driver: sqlite3.Connection | None = None) -> None:
        """Take the write lock first, so that nothing read before it can be stale.

        With the driver's connection, SQLAlchemy's transaction begins with its first statement.
        """
        if driver is not None:
            driver.execute("BEGIN IMMEDIATE")
        elif _begin(connection, "BEGIN IMMEDIATE"):  # by a handler of the engine's owner
            connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE 0")

    def begin_read(self, connection: Connection, driver: sqlite3.Connection | None = None) -> None:
        if driver is not None:  # as in begin_write
            driver.execute("BEGIN")
        else:
            _begin(connection, "BEGIN")

    def require_joinable(self, connection: object) -> None:
        engine = getattr(connection, "engine", None)
        if engine is not None and has_one_connection(engine):
            raise InvalidArgumentError(
                "connection= is of an engine whose users share one connection (in memory, or a "
                "StaticPool): any other call would end its transaction. Use a database file"
            )

    def join(self, connection: Connection) -> None:
        """Begin: a savepoint that begins the transaction would commit it when it is released."""
        if not connection.in_transaction():
            connection.begin()
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:
            return
        if driver.isolation_level is None:  # autocommit, and no transaction has begun
            raise make_autocommit_error()
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def is_refused_value(self, exc: BaseException) -> bool:
        """See ``Database``; precompiled statements raise the driver's own errors."""
        if isinstance(exc, sqlite3.Error):
            return not isinstance(exc, sqlite3.OperationalError)
        return super().is_refused_value(exc)

    def is_lost_schema(self, exc: BaseException) -> bool:
        """See ``Database``; SQLite has a single code for all errors in a statement."""
        return find_code(exc) == "SQLITE_ERROR"

    def require_file(self) -> None:
        """Refuse a file that does not exist, unless opening may create it."""
        if self._path is not None and not self.may_create and not Path(self._path).exists():
            url = sa.URL.create("sqlite", database=self._path)
            raise SchemaError(check(url, prefix=self.tables.prefix).message)

    def open(self, connection: Connection) -> None:
        super().open(connection)
        if self._path is not None:
            self._known = self._file = _read_identity(self._path)
            self._log = _read_identity(self._log_path)

    def identify(self) -> object:
        if self._path is None:
            return self._where
        try:
            found = os.stat(self._path)  # before each call: Path's takes three times as long
        except OSError as exc:
            if self._known is None:
                return None
            raise ConnectionFailedError(
                f"SQLite {self._where}: the file does not exist any more; restore it, or close() "
                "this object to start a new one"
            ) from exc
        identity = found.st_dev, found.st_ino
        if found.st_size == 0 and self._known == identity:
            raise make_emptied_error(self._where)
        return identity

    def has_log(self) -> bool:
        """Return whether commits go into the log that other connections read."""
        return self._log is None or _read_identity(self._log_path) == self._log

    def fold_log(self, connection: Connection) -> None:
        """Write the commits in a log that was removed into the file, and end the use of the log.

        Raises:
            BackendError: Another connection still uses the removed log, or a new one.
        """
        driver: Any = connection.connection.driver_connection
        try:
            driver.execute("PRAGMA journal_mode=DELETE")  # needs the file for itself
        except sqlite3.OperationalError as exc:
            if _read_identity(self._log_path) is None:  # there is no new one
                driver.execute("PRAGMA wal_checkpoint")
            raise BackendError(
                f"SQLite {self._where}: its log {self._path}-wal was removed or replaced while it "
                "was open, and other connections have the file open, too; nothing was written. "
                "close() all objects and processes that use the file, then open it again. Remove "
                "-wal and -shm files never, or with the file and while nothing has it open"
            ) from exc

    def check_replaced(self) -> None:
        """Refuse a replaced file that has the old one's log: SQLite finds the log by name."""
        self._known = None
        if self._path is None or self._log is None or _read_identity(self._path) == self._file:
            return
        if _read_identity(self._log_path) == self._log:
            raise BackendError(
                f"SQLite {self._where}: the file was replaced while other connections had it "
                f"open, and their log {self._path}-wal is still there; close them, remove the log "
                "and restore again, or restore with SQLite's backup API, which needs none of this"
            )

    def translate_error(self, exc: Exception) -> LocusStoreError:
        return make_error(f"SQLite {self._where}", exc)


def make_error(where: str, exc: Exception) -> LocusStoreError:
    """Return the error to raise, chosen by the driver's code."""
    is_no_text = isinstance(exc, UnicodeDecodeError)  # what SQLite says of a damaged file
    code = "SQLITE_CORRUPT" if is_no_text else find_code(exc)
    kind = _KINDS.get(code, BackendError)
    remedy = _REMEDIES.get(code, str(getattr(exc, "orig", exc)))
    return kind(f"{where}: {code or type(exc).__name__}: {remedy}")


def _begin(connection: Connection, statement: str) -> bool:
    """Begin with ``statement``, unless the engine's handler did; return whether it did."""
    connection.begin()
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        return True
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute(statement)
    return False


_CANNOT_OPEN = ("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_PERM", "SQLITE_AUTH")
_KINDS: dict[str, type[LocusStoreError]] = {
    **dict.fromkeys(_CANNOT_OPEN, ConnectionFailedError),
    "SQLITE_CORRUPT": IntegrityError,
}
_REMEDIES = {
    "SQLITE_CANTOPEN": "check that its directory exists, that both may be written, and ulimit -n",
    "SQLITE_NOTADB": "the file is no SQLite database: name another path",
    "SQLITE_READONLY": "the file or its directory is read-only: grant write permission",
    "SQLITE_FULL": "the disk is full: free some space and save again",
    "SQLITE_BUSY": "a transaction, yours or another process's, held the write lock for the whole"
    " busy timeout: save again when it has ended",
    "SQLITE_BUSY_SNAPSHOT": "the transaction of this connection has read what another one has"
    " changed since: roll it back and run it again",
    "SQLITE_LOCKED": "another connection of this process holds a lock: save again",
    "SQLITE_CORRUPT": "the file is damaged: restore it from a backup",
    "SQLITE_IOERR": "the file system failed: look at the system's log",
}


def find_code(exc: BaseException) -> str:
    """Return the name of the primary error code: ``SQLITE_IOERR`` of ``SQLITE_IOERR_WRITE``."""
    number = next(
        (it.sqlite_errorcode for it in iterate_causes(exc) if hasattr(it, "sqlite_errorcode")), None
    )
    if number is None:
        return ""
    return _CODES.get(number) or _CODES.get(number & 0xFF, "")


_CODES = {
    number: name
    for name, number in vars(sqlite3).items()
    if name.startswith("SQLITE_") and name in {*_REMEDIES, *_KINDS, "SQLITE_ERROR"}
}


def _read_identity(path: str) -> tuple[int, int] | None:
    """Return the file's identity, which changes if it is replaced; ``None`` if it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def has_one_connection(engine: Any) -> bool:
    """Return whether all users of the engine share one connection, as for a database in memory."""
    database = engine.url.database or ""
    in_memory = database in {"", MEMORY} or database.startswith("file::memory:")
    return in_memory or isinstance(engine.pool, StaticPool | SingletonThreadPool)
