"""Oracle's part in making and finding the schema, and its vectors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final, TypeVar, get_args

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect
from sqlalchemy.exc import DBAPIError

from locus_store.backends.oracle import addresses
from locus_store.backends.oracle.columns import METRICS
from locus_store.backends.oracle.options import URL_OPTIONS, OracleConnections, parse_place
from locus_store.errors import UnsupportedError
from locus_store.sql.schema.definition import (
    OLD_USERS,
    DatabasePlace,
    OnTables,
    SchemaDefinition,
    make_column_type,
    make_user_index,
    quote,
)
from locus_store.sql.schema.migrations import make_named_tables, run_on_engine
from locus_store.sql.schema.tables import Tables
from locus_store.sql.schema.vectors import Method, make_index_name
from locus_store.types.options import URL_EXTRAS, read_options as options_of, read_query
from locus_store.values.vectors import Metric

T = TypeVar("T")

_TAKEN: Final = "ORA-00955"

_ORGANIZATIONS: Final = {
    "hnsw": "ORGANIZATION INMEMORY NEIGHBOR GRAPH",
    "ivfflat": "ORGANIZATION NEIGHBOR PARTITIONS",
}


class OracleDefinition(SchemaDefinition):
    """See ``SchemaDefinition``."""

    commits_each = True

    offline_preface = "WHENEVER SQLERROR EXIT FAILURE ROLLBACK\nSET DEFINE OFF"
    """Tell SQL*Plus and SQLcl to stop at the first error; by default they continue."""

    def run_on_url(self, url: str | URL, body: OnTables[T], prefix: str, schema: str | None) -> T:
        from locus_store.backends.oracle import dialect  # noqa: PLC0415 - it imports migrations

        text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
        named, query = parse_place(text)
        given = read_query((URL_OPTIONS, *URL_EXTRAS), query)
        where: dict[str, Any] = {"dsn": None, "user": None, "password": None} | named
        where |= {
            name: value
            for name, value in given.items()
            if name in {*where, *options_of(OracleConnections)}
        }
        target = addresses.make_address(**where | {"statement_timeout_seconds": None})
        tables_of = make_named_tables(given, prefix, schema, "oracle")
        return run_on_engine(
            lambda: dialect.make_engine(target, poolclass=sa.NullPool),
            lambda connection: body(connection, tables_of),
            DatabasePlace(target.shown, is_whole=False),
        )

    @contextmanager
    def lock(self, connection: Connection, ours: Tables) -> Iterator[None]:
        # DDL commits, so a lock on the same connection would not outlive a statement.
        name = quote(connection.dialect, f"{ours.prefix}lock", ours.schema)
        with connection.engine.connect() as lock_connection:
            driver: Any = lock_connection.connection.dbapi_connection
            before, driver.autocommit = driver.autocommit, False  # in autocommit no lock is kept
            try:
                try:
                    create = f"CREATE TABLE IF NOT EXISTS {name} (held INTEGER)"
                    lock_connection.exec_driver_sql(create)
                except DBAPIError as error:  # another process made it meanwhile
                    if _TAKEN not in addresses.list_codes(error):
                        raise
                lock_connection.exec_driver_sql(f"LOCK TABLE {name} IN EXCLUSIVE MODE")
                with connection.begin():
                    yield
            finally:
                if not lock_connection.invalidated:
                    driver.rollback()
                    driver.autocommit = before

    def find_remedy(self, error: DBAPIError) -> str | None:
        remedies, codes = addresses.MIGRATION_REMEDIES, addresses.list_codes(error)
        return next((remedies[it] for it in codes if it in remedies), None)

    def find_taken(
        self, connection: Connection, schema: str | None, table_names: frozenset[str]
    ) -> set[str]:
        return set(_read_dictionary(connection, schema, table_names))

    def list_columns(self, connection: Connection, schema: str | None, table: str) -> set[str]:
        return _read_dictionary(connection, schema, frozenset({table})).get(table, set())

    def may_be_under_way(self, connection: Connection, ours: Tables) -> bool:
        """Return whether the lock's table was made."""
        return bool(self.list_columns(connection, ours.schema, f"{ours.prefix}lock"))

    def change_user_column(
        self, dialect: Dialect, ours: Tables, columns: Collection[str]
    ) -> list[str]:
        """A type is changed in an empty column only: the ids are copied into a new one.

        Each definition commits; another run continues with the column that the first one left.
        """
        table = dialect.identifier_preparer.format_table(ours.threads)
        index = make_user_index(ours)
        shown = quote(dialect, str(index.name), ours.schema)
        rename = f"ALTER TABLE {table} RENAME COLUMN user_id TO {OLD_USERS}"
        add = f"ALTER TABLE {table} ADD (user_id {make_column_type(dialect, ours)})"
        update = f"UPDATE {table} SET user_id = {_render_converted(ours)}"  # noqa: S608  (our names)
        return [
            f"DROP INDEX IF EXISTS {shown}",
            *([] if OLD_USERS in columns else [rename]),
            *([] if {OLD_USERS, "user_id"} <= {*columns} else [add]),
            f"{update} WHERE {OLD_USERS} IS NOT NULL",
            f"ALTER TABLE {table} DROP COLUMN {OLD_USERS}",
            str(sa.schema.CreateIndex(index).compile(dialect=dialect)),
        ]

    def render_embedding_columns(self, connection: Connection, ours: Tables, dimension: int) -> str:
        return (
            "item NUMBER(19) NOT NULL, part NUMBER(5) NOT NULL, "
            f"embedding VECTOR({dimension}, FLOAT32) NOT NULL"
        )

    def drop_unfinished(self, connection: Connection, ours: Tables) -> None:
        table = ours.embeddings
        is_ours = self.list_columns(connection, ours.schema, table.name) == {
            column.name for column in table.columns
        }
        if is_ours and not connection.execute(sa.select(table.c.item).limit(1)).first():
            shown = connection.dialect.identifier_preparer.format_table(table)
            connection.exec_driver_sql(f"DROP TABLE {shown}")

    def make_vector_index(
        self, connection: Connection, ours: Tables, metric: Metric, method: str
    ) -> bool:
        inspector: Any = sa.inspect(connection)
        found = [it["name"] for it in inspector.get_indexes(ours.embeddings.name, ours.schema)]
        if make_index_name(ours, metric, method) in found:
            return False
        made = {make_index_name(ours, *it) for it in product(get_args(Metric), get_args(Method))}
        if others := [it for it in found if it in made]:
            raise UnsupportedError(
                f"Oracle takes one index on a column, and there is {others[0]}: drop it first"
            )
        connection.exec_driver_sql(define_vector_index(ours, metric, method, connection.dialect))
        return True


def _render_converted(ours: Tables) -> str:
    text = f"TO_CHAR({OLD_USERS})"
    if ours.user_id_type == "string":
        return text
    return (
        f"CASE WHEN REGEXP_LIKE({text}, '^(0|-?[1-9][0-9]*)$') THEN TO_NUMBER({text}) "
        f"ELSE TO_NUMBER('not a number: ' || {text}) END"
    )


def define_vector_index(ours: Tables, metric: Metric, method: str, dialect: Dialect) -> str:
    """Return the statement that makes an index: HNSW, which has to fit in memory, or IVF."""
    table = dialect.identifier_preparer.format_table(ours.embeddings)
    index = quote(dialect, make_index_name(ours, metric, method), ours.schema)
    return (
        f"CREATE VECTOR INDEX {index} ON {table} (embedding) {_ORGANIZATIONS[method]} "
        f"DISTANCE {METRICS[metric]} WITH TARGET ACCURACY 95"
    )


def _read_dictionary(
    connection: Connection, schema: str | None, tables: frozenset[str]
) -> dict[str, set[str]]:
    """Return the columns of tables and views; the inspector asks much more, which takes long."""
    prepare: Any = connection.dialect
    query = sa.text("""
        SELECT c.table_name, c.column_name FROM all_tab_columns c
        WHERE c.owner = COALESCE(:owner, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'))
        AND c.table_name IN :names
    """).bindparams(sa.bindparam("names", expanding=True))
    names = {prepare.denormalize_name(it): it for it in sorted(tables)}
    owner = prepare.denormalize_name(schema)
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(query, {"owner": owner, "names": list(names)}):
        found.setdefault(names[table], set()).add(str(prepare.normalize_name(column)))
    return found


DEFINITION: Final = OracleDefinition()
