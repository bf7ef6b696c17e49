"""SQLite's part in making and finding the schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect, make_url
from sqlalchemy.exc import DBAPIError

from locus_store.backends.sqlite.dialect import make_error
from locus_store.backends.sqlite.options import NO_FILE, URL_OPTIONS
from locus_store.errors import InvalidArgumentError, MissingExtraError, make_install_command
from locus_store.sql.schema.definition import (
    OLD_USERS,
    DatabasePlace,
    OnTables,
    SchemaDefinition,
    make_column_type,
    make_place,
    make_user_index,
    mask_url,
)
from locus_store.sql.schema.migrations import make_named_tables
from locus_store.sql.schema.tables import Tables
from locus_store.types.arguments import make_absolute
from locus_store.types.options import URL_EXTRAS, read_options, suggest_option

T = TypeVar("T")

BUSY_MILLISECONDS: Final = 60_000
"""The time that a migration waits for another process."""

_DRIVER_OPTIONS: Final = frozenset(
    {*("cached_statements", "check_same_thread", "detect_types", "isolation_level", "timeout")}
)
"""Options of ``sqlite3.connect``, as SQLAlchemy takes them in a URL."""


class SQLiteDefinition(SchemaDefinition):
    """See ``SchemaDefinition``."""

    by_owner = ""  # there are no roles

    def run_on_url(self, url: str | URL, body: OnTables[T], prefix: str, schema: str | None) -> T:
        theirs, ours = _split_options(_parse_url(url))
        wanted = make_named_tables(ours, prefix, schema, "sqlite")
        self.refuse_schema(wanted.schema)
        with _open_connection(theirs) as connection:
            return body(connection, wanted)

    def find_absent(self, url: str | URL, schema: str | None) -> DatabasePlace | None:
        parsed = _parse_url(url)
        if not parsed.database or "mode" in parsed.query:
            return None
        is_file = parsed.database != ":memory:" and not parsed.database.startswith("file:")
        if not is_file or Path(parsed.database).exists():
            return None
        _split_options(parsed)
        self.refuse_schema(schema)
        return make_place(parsed)

    def refuse_schema(self, schema: str | None) -> None:
        if schema not in {None, "main"}:
            raise InvalidArgumentError(
                "SQLite has no schemas; name a prefix instead: --prefix app_"
            )

    @contextmanager
    def lock(self, connection: Connection, ours: Tables) -> Iterator[None]:
        # Python's sqlite3 begins no transaction for DDL, so it is begun and ended in SQL; this also
        # holds for a connection in autocommit and for engines that emit a BEGIN of their own.
        run = connection.exec_driver_sql
        with closing(connection.begin()):
            driver: Any = connection.connection.driver_connection
            if driver.in_transaction:
                run("COMMIT")
            with _set_pragmas(connection, busy_timeout=BUSY_MILLISECONDS, legacy_alter_table=1):
                run("BEGIN IMMEDIATE")
                try:
                    yield
                    run("COMMIT")
                finally:
                    if not connection.invalidated and driver.in_transaction:
                        run("ROLLBACK")

    def find_taken(
        self, connection: Connection, schema: str | None, table_names: frozenset[str]
    ) -> set[str]:
        lower = {it.lower(): it for it in table_names}  # a name's case does not matter
        inspector = sa.inspect(connection)
        names = inspector.get_view_names(schema) + inspector.get_table_names(schema)
        return {lower[it.lower()] for it in names if it.lower() in lower}

    def change_user_column(
        self, dialect: Dialect, ours: Tables, columns: Collection[str]
    ) -> list[str]:
        """A type is never changed: the ids are copied into a new column.

        ``OR ROLLBACK`` undoes all where a client continues after an error. No type converts a BLOB,
        so the new column refuses what is not a number.
        """
        quote = dialect.identifier_preparer
        table, index = quote.format_table(ours.threads), make_user_index(ours)
        kind = make_column_type(dialect, ours)
        update = f"UPDATE OR ROLLBACK {table} SET user_id = {_render_converted(ours)}"  # noqa: S608  (our names)
        return [
            f"DROP INDEX {quote.format_index(index)}",
            f"ALTER TABLE {table} RENAME COLUMN user_id TO {OLD_USERS}",
            f"ALTER TABLE {table} ADD COLUMN user_id {kind}{_CHECKS[ours.user_id_type]}",
            f"{update} WHERE {OLD_USERS} IS NOT NULL",
            f"ALTER TABLE {table} DROP COLUMN {OLD_USERS}",
            str(sa.schema.CreateIndex(index).compile(dialect=dialect)),
        ]

    def render_embedding_columns(self, connection: Connection, ours: Tables, dimension: int) -> str:
        return "item INTEGER NOT NULL, part INTEGER NOT NULL, embedding BLOB NOT NULL"


_CHECKS: Final = {
    "string": "",
    "bigint": " CHECK (user_id IS NULL OR typeof(user_id) = 'integer')",
    "int": " CHECK (user_id IS NULL OR typeof(user_id) = 'integer'"
    " AND user_id BETWEEN -2147483648 AND 2147483647)",
}
"""Of the column for users' ids: without them, it would keep any text."""


def _render_converted(ours: Tables) -> str:
    text = f"CAST({OLD_USERS} AS TEXT)"
    if ours.user_id_type == "string":
        return text
    number = f"CAST({text} AS INTEGER)"
    return f"CASE WHEN CAST({number} AS TEXT) = {text} THEN {number} ELSE CAST({text} AS BLOB) END"


def _parse_url(url: str | URL) -> URL:
    """With the driver that blocks."""
    try:
        made = make_url(url)
    except sa.exc.ArgumentError as error:
        # The text is not repeated: it may hold a password.
        raise InvalidArgumentError(
            "the database URL cannot be read; expected for example sqlite:///file.db or"
            " postgresql://user@host/database"
        ) from error
    if made.database == "":
        raise InvalidArgumentError(NO_FILE)
    if made.drivername == "sqlite+aiosqlite":
        made = made.set(drivername="sqlite")
    if made.drivername == "sqlite" and made.database and made.database.startswith("~"):
        return made.set(database=make_absolute("path", made.database))
    return made


def _split_options(url: URL) -> tuple[URL, dict[str, str]]:
    """Return a URL without this library's options, and those; refuse what no driver knows."""
    known = {name for kind in (URL_OPTIONS, *URL_EXTRAS) for name in read_options(kind)}
    ours = {name: str(url.query[name]) for name in known & url.query.keys()}
    theirs = url.difference_update_query(ours)
    if "uri" not in theirs.query and (unknown := theirs.query.keys() - _DRIVER_OPTIONS):
        name = min(unknown)
        similar = suggest_option(name, known | _DRIVER_OPTIONS)
        raise InvalidArgumentError(f"no option {name!r} for a database URL of SQLite{similar}")
    return theirs, ours


@contextmanager
def _open_connection(url: URL) -> Iterator[Connection]:
    shown = mask_url(url)
    try:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    except ImportError as error:
        remedy = make_install_command()
        raise MissingExtraError(f"{shown}: no module {error.name}; {remedy}") from error
    except sa.exc.ArgumentError as error:
        raise InvalidArgumentError(f"{shown}: {error}") from error
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise make_error(shown, error) from error


@contextmanager
def _set_pragmas(connection: Connection, **values: int) -> Iterator[None]:
    """Pragmas of the connection while it migrates; legacy_alter_table: views outlive a rename."""
    run = connection.exec_driver_sql
    previous = {name: run(f"PRAGMA {name}").scalar_one() for name in values}
    for name, value in values.items():
        run(f"PRAGMA {name} = {value}")
    try:
        yield
    finally:
        # An interrupt closes the connection, and takes its pragmas with it.
        for name, value in previous.items() if not connection.invalidated else ():
            run(f"PRAGMA {name} = {value}")


DEFINITION: Final = SQLiteDefinition()
