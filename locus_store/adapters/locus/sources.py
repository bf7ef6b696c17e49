"""Sources of the Locus SDK 3.0.1's checkpoints: files, tables, keys, objects. Read-only."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from locus_store.adapters.locus.records import (
    Content,
    Entry,
    FoundThread,
    KeyRow,
    find_repeated,
    group_rows,
    logger,
    make_changed_error,
    make_content,
    parse_json,
    parse_object,
    parse_time,
    unwrap,
)
from locus_store.adapters.sql_sources import connect_file
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    SchemaError,
)
from locus_store.types.arguments import KEYWORDS

TABLES: Final = ("locus_checkpoints", "checkpoints")
"""The names that the SDK gives its tables by default."""

_OPTIONS: Final = ("table_name", "tenant")
_NAME = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)


class LocusSource(Protocol):
    """The protocol for reading checkpoints as of one point in time."""

    shown: str
    """The source as messages show it, without secrets."""

    async def read_threads(self) -> dict[str, FoundThread]:
        """Return all threads by their ids."""

    async def read(self, entry: Entry) -> Content:
        """Return one checkpoint.

        Raises:
            IntegrityError: It is damaged.
        """


def make_source(
    source: str, *, table_name: str | None, tenant: str | None
) -> AbstractAsyncContextManager[LocusSource]:
    """Return the reader for a URL or directory; see ``import_threads.import_locus``."""
    found = re.match(r"([A-Za-z][\w.+-]*)://|(file):", source)
    name = "postgresql" if KEYWORDS.match(source) else (found[1] or found[2] if found else "file")
    scheme = name.partition("+")[0].lower()
    if scheme not in READERS:
        raise InvalidArgumentError(
            f"the Locus SDK's data is not read from {name}://; pass a directory, "
            + ", ".join(f"{it}://" for it in READERS)
        )
    open_source, what, known = READERS[scheme]
    options = {"table_name": table_name, "tenant": tenant}
    _require_no(what, **{it: options[it] for it in _OPTIONS if it not in known})
    return open_source(source, **{it: options[it] for it in known})


def _choose_tables(table_name: str | None) -> Sequence[str]:
    """Return the tables to look for; a name from the caller becomes part of statements."""
    if table_name is None:
        return TABLES
    if not _NAME.fullmatch(table_name):
        raise InvalidArgumentError(f"table_name={table_name!r} is not a name that the SDK accepts")
    return (table_name,)


def _require_no(reader: str, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidArgumentError(f"{name}= has no effect for {reader}; leave it out")


@asynccontextmanager
async def _open_files(source: str) -> AsyncIterator[LocusSource]:
    path = Path(source)
    if source.startswith("file:"):
        parts = urlsplit(source)
        if parts.netloc not in {"", "localhost"} or parts.query:
            raise InvalidArgumentError("write file:directory or file:///absolute/directory")
        path = Path(unquote(parts.path))
    if not path.is_dir():
        hint = "; a database is sqlite:///file.db" if path.is_file() else ""
        raise ConnectionFailedError(f"{path} is not a directory{hint}")
    yield _Files(path)


@asynccontextmanager
async def _open_sqlite(source: str, table_name: str | None) -> AsyncIterator[LocusSource]:
    parts = urlsplit(source)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := given.keys() - {"table_name"}:
        raise InvalidArgumentError(f"a SQLite source has no option {min(unknown)!r}")
    path = unquote(parts.path.removeprefix("/"))
    with closing(connect_file(Path(path))) as connection:
        connection.text_factory = lambda it: it.decode(errors="surrogateescape")
        yield _SQLite(connection, path, table_name or given.get("table_name"))


class _SQLite:
    """A table of keys as the SDK's PostgreSQL backend has it, in a SQLite file."""

    def __init__(self, connection: sqlite3.Connection, path: str, table_name: str | None) -> None:
        self._connection = connection
        self._path = path
        self._query_rows("BEGIN")
        columns = {it: self._list_columns(it) for it in _choose_tables(table_name)}
        table = _choose_table(columns, f"SQLite {path}")
        self._table = f'"{table}"'
        self.shown = f"SQLite {path}, table {table}"

    def _query_rows(self, query: str, *values: str) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as exc:
            raise BackendError(f"SQLite {self._path}: {exc}") from exc
        except sqlite3.DatabaseError as exc:
            raise ConnectionFailedError(f"SQLite {self._path}: {exc}") from exc

    def _list_columns(self, table: str) -> set[str]:
        return {it[0] for it in self._query_rows("SELECT name FROM pragma_table_info(?)", table)}

    async def read_threads(self) -> dict[str, FoundThread]:
        rows: list[KeyRow] = []
        damaged: dict[str, LocusStoreError] = {}
        for (key,) in self._query_rows(f"SELECT thread_id FROM {self._table} ORDER BY 1"):  # noqa: S608
            try:
                rows.append(self._read_row(key))
            except IntegrityError as exc:
                damaged[str(key)] = exc
        return group_rows(rows, damaged)

    def _read_row(self, key: Any) -> KeyRow:
        where = f"row {key!r}"
        if not isinstance(key, str):
            raise IntegrityError(f"{where} has a key that is not a string")
        data, _ = self._read_data(key, where)
        query = f"SELECT checkpoint_id, updated_at FROM {self._table} WHERE thread_id = ?"  # noqa: S608
        column_id, updated_at = self._query_rows(query, key)[0]
        updated_at = parse_time(updated_at, where)
        return KeyRow.from_data(key, data, column_id=column_id, updated_at=updated_at)

    def _read_data(self, key: str, where: str) -> tuple[dict[str, Any], Any]:
        query = (
            f"SELECT CAST(data AS BLOB), CAST(metadata AS BLOB) FROM {self._table}"  # noqa: S608
            " WHERE thread_id = ?"
        )
        data, metadata = self._query_rows(query, key)[0]
        return parse_object(data or b"", where), parse_json(metadata, where) if metadata else None

    async def read(self, entry: Entry) -> Content:
        return unwrap(*self._read_data(entry.key, entry.where), entry.where)


_NEEDED: Final = {"thread_id", "checkpoint_id", "data", "updated_at", "metadata"}


def _choose_table(columns: Mapping[str, set[str]], where: str) -> str:
    """Return the table to read, given the columns of each; refuse none, and two, of the SDK's."""
    kept = [it for it, names in columns.items() if names >= _NEEDED]
    if len(kept) == 1:
        return kept[0]
    if kept:
        raise InvalidArgumentError(f"{where} has {' and '.join(kept)}; choose by table_name=")
    there = [it for it, names in columns.items() if names]
    found = f"{there[0]} is not one" if there else f"there is no {' or '.join(columns)}"
    raise SchemaError(
        f"{where}: {found} of the Locus SDK's tables ({', '.join(sorted(_NEEDED))}); name its table"
        " by table_name="
    )


@asynccontextmanager
async def _open_postgresql(
    source: str, table_name: str | None, tenant: str | None
) -> AsyncIterator[LocusSource]:
    from locus_store.backends.postgresql import connecting, dsn  # noqa: PLC0415  (files need no SQLAlchemy)

    target = dsn.parse(source, ours=_OPTIONS)
    given = {name: unquote(it) for name, it in target.options.items()}
    connection = await connecting.connect(target, statement_cache_size=0)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            reader = _PostgreSQL(connection, target.shown, tenant or given.get("tenant"))
            await reader.choose(table_name or given.get("table_name"))
            yield reader
    finally:
        await connection.close()


_COLUMNS: Final = """
    SELECT attname, atttypid::regtype::text FROM pg_catalog.pg_attribute
    WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped"""
_OF_KEYS: Final = """
    SELECT thread_id AS key, checkpoint_id AS column_id, updated_at,
        data ->> '_checkpoint_id' AS saved_as, data ->> '_checkpoint_timestamp' AS saved_at,
        pg_catalog.md5(data::text) AS fingerprint,
        pg_catalog.jsonb_typeof(data) = 'object' AS is_object,
        thread_id LIKE '%:\\_checkpoints' AND COALESCE(
            pg_catalog.jsonb_typeof(data -> 'checkpoints') = 'array', false) AS is_index
    FROM {} ORDER BY thread_id"""
_OF_TENANT: Final = """
    SELECT thread_id, checkpoint_id, updated_at FROM {} WHERE tenant = $1 ORDER BY thread_id, seq"""
_ROW: Final = tuple(it.name for it in fields(KeyRow))
_OTHERS: Final = "SELECT DISTINCT tenant FROM {} WHERE tenant <> $1 ORDER BY 1 LIMIT 5"


class _PostgreSQL:
    """A table of the SDK's ``PostgreSQLBackend`` (keys), or of its ``PgCheckpointer`` (tenants)."""

    def __init__(self, connection: Any, database: str, tenant: str | None) -> None:
        self._connection = connection
        self._database = database
        self._asked, self._tenant = tenant, tenant or "default"
        self.shown = f"PostgreSQL {database}"

    async def _fetch(self, query: str, *values: object) -> list[Any]:
        from locus_store.backends.postgresql import connecting, failures  # noqa: PLC0415

        errors: tuple[type[Exception], ...] = (*failures.get_driver_errors(), OSError)
        try:
            rows: list[Any] = await self._connection.fetch(query, *values)
        except errors as exc:
            error = connecting.make_connection_error(exc, self._database)
            raise error or BackendError(f"{self.shown}: {exc}") from exc
        return rows

    async def choose(self, table_name: str | None) -> None:
        """Find the table and its layout."""
        columns: dict[str, set[str]] = {}
        for name in _choose_tables(table_name):
            ((found,),) = await self._fetch("SELECT pg_catalog.to_regclass($1)::text", name)
            pairs = await self._fetch(_COLUMNS, found) if found else []
            columns[found or name] = {it[0] for it in pairs if it[0] != "data" or it[1] == "jsonb"}
        self._table = _choose_table(columns, self.shown)
        self._by_tenant = {"tenant", "seq"} <= columns[self._table]
        self.shown = f"{self.shown}, table {self._table}"
        if self._by_tenant:
            # The setting that PgCheckpointer's row-level security reads.
            await self._fetch(
                "SELECT pg_catalog.set_config('locus.tenant', $1, true)", self._tenant
            )
        else:
            _require_no(f"table {self._table}", tenant=self._asked)
        await self._fetch("SET LOCAL idle_in_transaction_session_timeout = 0")

    async def read_threads(self) -> dict[str, FoundThread]:
        if self._by_tenant:
            return await self._list_of_tenant()
        rows = await self._fetch(_OF_KEYS.format(self._table))
        damaged: dict[str, LocusStoreError] = {
            row["key"]: IntegrityError(f"row {row['key']!r} is not a JSON object")
            for row in rows
            if not row["is_object"]
        }
        kept = ({name: it[name] for name in _ROW} for it in rows if it["is_object"])
        return group_rows((KeyRow(**it) for it in kept), damaged)

    async def _list_of_tenant(self) -> dict[str, FoundThread]:
        found: dict[str, FoundThread] = {}
        for row in await self._fetch(_OF_TENANT.format(self._table), self._tenant):
            entry = Entry(
                checkpoint_id=row["checkpoint_id"],
                created_at=row["updated_at"],
                key=(row["thread_id"], row["checkpoint_id"]),
                where=f"row {row['checkpoint_id']!r}",
            )
            found.setdefault(row["thread_id"], FoundThread()).entries.append(entry)
        rows = await self._fetch(_OTHERS.format(self._table), self._tenant)
        others = ", ".join(repr(it[0]) for it in rows)
        if others and not found:
            raise InvalidArgumentError(
                f"{self.shown}: nothing of tenant {self._tenant!r}, but of {others}; choose by "
                "tenant="
            )
        if others:
            logger.warning("import: of other tenants, not imported: %s", others)
        return found

    async def read(self, entry: Entry) -> Content:
        query = f"SELECT data::text, metadata::text FROM {self._table} WHERE "  # noqa: S608
        if self._by_tenant:
            values = (self._tenant, *entry.key)
            query += "tenant = $1 AND thread_id = $2 AND checkpoint_id = $3"
        else:
            values = (entry.key,)
            query += "thread_id = $1"
        ((data, metadata),) = await self._fetch(query, *values)
        parsed = parse_json(metadata, entry.where) if metadata else None
        made = make_content if self._by_tenant else unwrap
        return made(parse_json(data, entry.where), parsed, entry.where)


def _open_by(module: str, source: str) -> AbstractAsyncContextManager[LocusSource]:
    """Open a source by a module, whose library the others do not need."""
    found: Any = import_module(f"locus_store.adapters.locus.{module}")
    opened: AbstractAsyncContextManager[LocusSource] = found.open_source(source)
    return opened


_Reader: TypeAlias = (
    "tuple[Callable[..., AbstractAsyncContextManager[LocusSource]], str, tuple[str, ...]]"
)
_POSTGRESQL: Final[_Reader] = _open_postgresql, "PostgreSQL", _OPTIONS
_REDIS: Final[_Reader] = partial(_open_by, "source_redis"), "Redis", ()

READERS: Final[dict[str, _Reader]] = {
    "file": (_open_files, "files", ()),
    "sqlite": (_open_sqlite, "SQLite", ("table_name",)),
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL,
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix"), _REDIS),
    "oci": (partial(_open_by, "source_oci"), "OCI", ()),
}
"""Readers by the scheme of the URL, with their names in errors, and the options that they take."""


class _Files:
    """Checkpoints sorted by their contents: the SDK puts ``a/b`` and ``a_b`` in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.shown = f"directory {directory}"
        self._seen: dict[Path, tuple[int, ...]] = {}

    async def read_threads(self) -> dict[str, FoundThread]:
        found: defaultdict[str, FoundThread] = defaultdict(FoundThread)
        inside = sorted(it for it in self._directory.iterdir() if it.is_dir())
        for directory in (self._directory, *inside):
            self._add(directory, found)
        for thread in found.values():
            thread.entries.sort(key=lambda entry: (entry.created_at, str(entry.key)))
            for checkpoint_id in find_repeated(thread.entries):
                files = [e.where for e in thread.entries if e.checkpoint_id == checkpoint_id]
                what = f"{' and '.join(files)} are both checkpoint {checkpoint_id!r}"
                thread.problem = thread.problem or IntegrityError(f"{what}; remove one of them")
        return dict(found)

    def _add(self, directory: Path, threads: defaultdict[str, FoundThread]) -> None:
        """Add a directory's files; one that cannot be read blocks every thread of the directory."""
        problem: IntegrityError | None = None
        here: set[str] = set()
        for path in sorted(directory.glob("*.json")):
            try:
                thread_id, entry = self._read_entry(path)
            except FileNotFoundError:  # deleted meanwhile
                continue
            except IntegrityError as exc:
                problem = problem or exc
                continue
            threads[thread_id].entries.append(entry)
            here.add(thread_id)
        if problem:
            for thread_id in here or {directory.name}:
                threads[thread_id].problem = problem

    def _read_entry(self, path: Path) -> tuple[str, Entry]:
        where = f"file {path.relative_to(self._directory)}"
        self._seen[path] = _get_file_stamp(path)
        data = _parse_file(path, where)
        checkpoint_id, thread_id = data.get("checkpoint_id"), data.get("thread_id")
        if not isinstance(checkpoint_id, str) or not isinstance(thread_id, str):
            raise IntegrityError(
                f"{where} is not a checkpoint of the Locus SDK; move it to another directory"
            )
        created_at = parse_time(data.get("created_at"), where)
        return thread_id, Entry(
            checkpoint_id=checkpoint_id, created_at=created_at, key=path, where=where
        )

    async def read(self, entry: Entry) -> Content:
        try:
            data = _parse_file(entry.key, entry.where)
            is_same = _get_file_stamp(entry.key) == self._seen[entry.key]
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise make_changed_error(entry)
        return make_content(data.get("state"), data.get("metadata"), entry.where)


def _get_file_stamp(path: Path) -> tuple[int, int, int]:
    """Return a value that changes when the file is changed or replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _parse_file(path: Path, where: str) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise BackendError(f"{where} cannot be read: {exc.strerror}") from exc
    return parse_object(raw, where)
