"""PostgreSQL's part in making and finding the schema, and pgvector."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.engine import URL, Connection, Dialect
from sqlalchemy.exc import DBAPIError

from locus_store.backends.postgresql import connecting, dsn, row_security
from locus_store.backends.postgresql.columns import set_config
from locus_store.backends.postgresql.failures import (
    FORBIDDEN,
    NO_SCHEMA,
    REMEDIES,
    get_driver_errors,
    get_sqlstate,
    translate_owner_errors,
)
from locus_store.backends.postgresql.options import URL_OPTIONS, parse_place
from locus_store.errors import SchemaError, UnsupportedError
from locus_store.sql.columns.dialect_columns import PlainText
from locus_store.sql.columns.types import bind_text
from locus_store.sql.schema.definition import (
    DatabasePlace,
    OnTables,
    SchemaDefinition,
    make_column_type,
    make_place,
)
from locus_store.sql.schema.migrations import make_named_tables, run_on_engine
from locus_store.sql.schema.status import UNFINISHED_SETTING, describe_partitions, read_status
from locus_store.sql.schema.tables import Tables, make_tables
from locus_store.sql.schema.vectors import make_index_name
from locus_store.types.options import URL_EXTRAS, read_query
from locus_store.values.vectors import Metric

T = TypeVar("T")

HNSW: Final = "m = 16, ef_construction = 128"
"""Twice pgvector's own care in building: it is done once."""

ROWS_PER_LIST: Final = 1000
"""Of an IVFFlat index; as pgvector's documentation advises."""

_WAITING: Final = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', '0', true)"
UNLIMITED: Final = """
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')
"""


class PostgreSQLDefinition(SchemaDefinition):
    """See ``SchemaDefinition``."""

    def run_on_url(self, url: str | URL, body: OnTables[T], prefix: str, schema: str | None) -> T:
        from locus_store.backends.postgresql import dialect  # noqa: PLC0415 - it imports this module

        connecting.require_asyncpg()
        text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
        named, query = parse_place(text)
        given = read_query((URL_OPTIONS, *URL_EXTRAS), query)
        target = dsn.parse(named["dsn"], ours=dsn.OURS)
        ours = make_named_tables(given, prefix, schema, "postgresql")
        make_engine = partial(
            dialect.make_engine,
            target,
            connect_timeout_seconds=None,
            statement_timeout_seconds=None,
            statement_cache_size=0,  # a pooler may stand between
            has_partitions=bool,
            poolclass=sa.NullPool,
        )
        return run_on_engine(
            make_engine,
            lambda connection: body(connection, ours),
            DatabasePlace(target.shown, is_whole=str(url) == target.shown),
            errors=get_driver_errors,
            translate=connecting.make_connection_error,
        )

    @contextmanager
    def lock(self, connection: Connection, ours: Tables) -> Iterator[None]:
        with isolate(connection), connection.begin():
            place = self.find_schema(connection, ours)
            # The application's limits would cut a migration short every time. All settings end
            # with the transaction, and so does the lock: a pooler may then give the connection to
            # others.
            connection.exec_driver_sql(UNLIMITED)
            connection.exec_driver_sql(row_security.ALL_NAMED)
            lock_timeout = connection.exec_driver_sql(_WAITING).scalar_one()
            _lock(connection, f"{place} {ours.prefix}")
            if ours.schema is None:
                _search_in(connection, place)
            else:
                _make_schema(connection, ours.schema)
            # How long a migration may keep others waiting for a table is the user's to say.
            _set_local(connection, "lock_timeout", lock_timeout)
            yield

    @contextmanager
    def qualify(self, connection: Connection, ours: Tables) -> Iterator[Tables]:
        """Search PostgreSQL's own schema only.

        Alembic compares names with VARCHAR, and would run the operators of every role that may
        create some in the schema of the tables.
        """
        place, dialect = self.find_schema(connection, ours), connection.dialect
        settings = read_status(connection, ours).settings
        if settings and UNFINISHED_SETTING in settings.raw:
            shown = make_place(connection).shown
            raise SchemaError(f"{shown}{describe_partitions(settings)}")
        if settings:
            row_security.see_all_tenants(connection, ours)
        _search_in(connection, "pg_catalog")
        # Alembic's comparison leaves out the schema of what it finds there.
        default, dialect.default_schema_name = dialect.default_schema_name, "pg_catalog"
        try:
            yield make_tables(ours.prefix, place, ours.user_id_type)
        finally:
            dialect.default_schema_name = default
        if ours.schema is None:
            _search_in(connection, place)

    translate_owner_errors = staticmethod(translate_owner_errors)
    secure = staticmethod(row_security.secure)

    def find_remedy(self, error: DBAPIError) -> str | None:
        state = get_sqlstate(error)
        is_of_schema = state == FORBIDDEN and (error.statement or "").startswith("CREATE SCHEMA")
        return NO_SCHEMA if is_of_schema else REMEDIES.get(state)

    def find_schema(self, connection: Connection, ours: Tables) -> str:
        """Return the schema where the version table is found, else where tables are made."""
        if ours.schema is not None:
            return ours.schema
        query = sa.text("""
            SELECT coalesce((
                SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE c.relname = :version AND pg_table_is_visible(c.oid)
                AND c.relpersistence <> 't'
            ), current_schema())
        """)
        found = connection.scalar(_bind_texts(query, version=ours.version))
        if found is None:
            raise SchemaError(
                f"{make_place(connection).shown}: the role's search_path names no schema that "
                "exists; name one: schema='locus' (locus-store db upgrade --schema locus)"
            )
        return str(found)

    def find_taken(
        self, connection: Connection, schema: str | None, table_names: frozenset[str]
    ) -> set[str]:
        """Tables, views, indexes and sequences share one namespace."""
        query = sa.text("""
            SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = :schema AND c.relname IN :names
        """).bindparams(sa.bindparam("names", sorted(table_names), PlainText(), expanding=True))
        return set(connection.execute(_bind_texts(query, schema=schema)).scalars())

    def list_columns(self, connection: Connection, schema: str | None, table: str) -> set[str]:
        query = sa.text("""
            SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = :schema AND c.relname = :table
              AND a.attnum > 0 AND NOT a.attisdropped
        """)
        return set(connection.execute(_bind_texts(query, schema=schema, table=table)).scalars())

    def make_hidden_queries(self, ours: Tables) -> list[Any]:
        """Return a name of ours found elsewhere on the search path than the version table."""
        if ours.schema is not None:
            return []
        relations = sa.table(
            "pg_class",
            sa.column("oid", OID()),
            sa.column("relname", PlainText()),
            sa.column("relnamespace", OID()),
        )
        versions = relations.alias("versions")
        schema_of_ours = sa.select(versions.c.relnamespace).where(
            versions.c.oid == sa.cast(sa.func.to_regclass(bind_text(ours.version)), OID())
        )
        return [
            sa.select(
                sa.literal_column("'hidden'").label("name"),
                sa.func.min(sa.cast(relations.c.relname, sa.Text)),
            ).where(
                relations.c.relname.in_(sorted(ours.names)),
                sa.func.pg_table_is_visible(relations.c.oid),
                relations.c.relnamespace != schema_of_ours.scalar_subquery(),
            )
        ]

    def lock_threads(self, connection: Connection, ours: Tables) -> None:
        table = connection.dialect.identifier_preparer.format_table(ours.threads)
        connection.exec_driver_sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")

    def change_user_column(
        self, dialect: Dialect, ours: Tables, columns: Collection[str]
    ) -> list[str]:
        """The server rewrites the table and its indexes."""
        kind, text = make_column_type(dialect, ours), "user_id::text"
        if ours.user_id_type != "string":
            text = (
                f"CASE WHEN {text} ~ '^(0|-?[1-9][0-9]*)$' THEN {text}::{kind} "
                f"ELSE ('not a number: ' || {text})::{kind} END"
            )
        table = dialect.identifier_preparer.format_table(ours.threads)
        return [f"ALTER TABLE {table} ALTER COLUMN user_id TYPE {kind} USING {text}"]

    def find_vector_schema(self, connection: Connection) -> str:
        found = connection.exec_driver_sql(
            "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
            "WHERE e.extname = 'vector'"
        ).scalar()
        return str(found) if found else ""

    def require_vectors(self, connection: Connection) -> None:
        available = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"
        ).scalar_one()
        if not available:
            raise UnsupportedError(
                "the extension pgvector ('vector') is not installed on this server; install it, "
                "for example Debian's package postgresql-<version>-pgvector"
            )

    def render_embedding_columns(self, connection: Connection, ours: Tables, dimension: int) -> str:
        name = connection.dialect.identifier_preparer.quote(self._ensure_vector(connection, ours))
        return (
            "item bigint NOT NULL, part smallint NOT NULL, "
            f"embedding {name}.vector({dimension}) NOT NULL"
        )

    def _ensure_vector(self, connection: Connection, ours: Tables) -> str:
        """Return the schema that pgvector is in; it is created where that is possible."""
        if schema := self.find_vector_schema(connection):
            return schema
        self.require_vectors(connection)
        quote = connection.dialect.identifier_preparer.quote
        into = f" WITH SCHEMA {quote(ours.schema)}" if ours.schema else ""
        try:
            connection.exec_driver_sql(f"CREATE EXTENSION IF NOT EXISTS vector{into}")
        except DBAPIError as exc:
            raise UnsupportedError(
                "this role may not create the extension pgvector; let an administrator run, in "
                "this database: CREATE EXTENSION vector"
            ) from exc
        return self.find_vector_schema(connection)

    def make_vector_index(
        self, connection: Connection, ours: Tables, metric: Metric, method: str
    ) -> bool:
        plain = make_index_name(ours, metric, method)
        if self.find_taken(connection, self.find_schema(connection, ours), frozenset({plain})):
            return False
        quote = connection.dialect.identifier_preparer
        name = quote.quote(plain)
        table = quote.format_table(ours.embeddings)
        options = HNSW
        if method == "ivfflat":
            count = connection.execute(sa.select(sa.func.count()).select_from(ours.embeddings))
            options = f"lists = {min(max(count.scalar_one() // ROWS_PER_LIST, 10), 32_768)}"
        operators = f"{quote.quote(self.find_vector_schema(connection))}.vector_{metric}_ops"
        with translate_owner_errors(connection):
            connection.exec_driver_sql(
                f"CREATE INDEX {name} ON {table} USING {method} (embedding {operators}) "
                f"WITH ({options})"
            )
            connection.exec_driver_sql(f"ANALYZE {table}, {quote.format_table(ours.store)}")
        return True


@contextmanager
def isolate(connection: Connection, level: str = "READ COMMITTED") -> Iterator[None]:
    """Set the isolation level of a transaction, whatever the connection's own setting.

    By default, what waited for a lock sees news.
    """
    dialect: Any = connection.dialect
    dialect.set_isolation_level(connection.connection.dbapi_connection, level)
    try:
        yield
    finally:
        if not connection.invalidated and not connection.closed:
            own = connection.get_execution_options().get("isolation_level")
            driver = connection.connection.dbapi_connection
            if own is None:
                dialect.reset_isolation_level(driver)
            else:
                dialect.set_isolation_level(driver, own)


def _set_local(connection: Connection, name: str, value: str) -> None:
    connection.execute(sa.select(set_config(name, value)))


def _search_in(connection: Connection, schema: str) -> None:
    quoted = connection.dialect.identifier_preparer.quote_schema(schema)
    _set_local(connection, "search_path", quoted)


def _bind_texts(query: sa.TextClause, **values: str | None) -> sa.TextClause:
    """Return a query with values of the type TEXT; see ``columns.BoundText``."""
    return query.bindparams(
        *(sa.bindparam(name, value, PlainText()) for name, value in values.items())
    )


def _lock(connection: Connection, what: str) -> None:
    key = sa.cast(sa.literal(compute_advisory_key(what)), sa.BigInteger)
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def compute_advisory_key(what: str) -> int:
    """Return the key of the lock of ``schema prefix``, or of a schema that is being made."""
    digest = hashlib.blake2b(f"locus-store {what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _make_schema(connection: Connection, schema: str) -> None:
    """Create the schema if it is missing; creating one that exists needs a right few roles have."""
    query = sa.text("SELECT count(*) FROM pg_namespace WHERE nspname = :schema")
    if connection.scalar(_bind_texts(query, schema=schema)):
        return
    # IF NOT EXISTS does not wait for who is making it, for another prefix.
    _lock(connection, schema)
    connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))


DEFINITION: Final = PostgreSQLDefinition()
