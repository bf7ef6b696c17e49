"""The table of embeddings, made on request: its dimension is the user's."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from locus_store.errors import InvalidArgumentError, SchemaError, UnsupportedError
from locus_store.sql.failures import owner_only
from locus_store.sql.migration_lock import locked
from locus_store.sql.migration_targets import run_on
from locus_store.sql.names import DEFAULT_PREFIX, derived
from locus_store.sql.status import commits_each, in_dictionary, place_of, read_status
from locus_store.values.vectors import Metric, check_dimension, check_metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection, Dialect

    from locus_store.sql.migration_targets import Target
    from locus_store.sql.schema import Tables

Method = Literal["hnsw", "ivfflat"]

DIMENSION_SETTING: Final = "vector_dimension"
"""Row of ``settings`` that says that the table was made, and for what."""

HNSW: Final = "m = 16, ef_construction = 128"
"""Twice pgvector's own care in building: it is done once."""

ROWS_PER_LIST: Final = 1000
"""Of an IVFFlat index; as pgvector's documentation advises."""


class Found(NamedTuple):
    """What a database has for embeddings."""

    dimension: int | None
    """Numbers in each; ``None``: there is no table of them."""

    home: str
    """PostgreSQL: the database schema that pgvector is in; ``""``: it is not there."""


def create_vector_index(
    target: Target,
    *,
    dimension: int,
    metric: Metric = "cosine",
    method: Method = "hnsw",
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> bool:
    """Make the table of embeddings and an index for one metric; ``False`` where both were there.

    On PostgreSQL it needs pgvector, whose extension is created where the role may do so. SQLite has
    no such index: there the table is made only.

    Args:
        target: The database; its schema is up to date.
        dimension: Numbers in an embedding, 1 to 2,000; the same for good.
        metric: ``cosine``, ``l2`` (Euclidean) or ``ip`` (inner product).
        method: ``hnsw``, or ``ivfflat``, which is smaller, and better made when there are rows.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.

    Raises:
        InvalidArgumentError: An option makes no sense.
        SchemaError: The database is not up to date, or its dimension is another one.
        UnsupportedError: It has no vectors, or no pgvector.
    """
    check_dimension(dimension)
    check_metric(metric)
    if method not in get_args(Method):
        raise InvalidArgumentError(
            f"method={method!r} must be one of {', '.join(get_args(Method))}"
        )
    make = partial(_create, dimension=dimension, metric=metric, method=method)
    return run_on(target, make, prefix=prefix, schema=schema)


def _create(
    connection: Connection, ours: Tables, *, dimension: int, metric: Metric, method: Method
) -> bool:
    _require_dialect(connection)
    with locked(connection, ours):
        status = read_status(connection, ours)
        if not status.usable:
            raise SchemaError(status.message)
        was_there = make_table(connection, ours, dimension)
        make = _INDEXES.get(connection.dialect.name)
        return make(connection, ours, metric, method) if make else not was_there


def _require_dialect(connection: Connection) -> None:
    if connection.dialect.name not in {"postgresql", "sqlite", "oracle"}:
        raise UnsupportedError(
            "embeddings need SQLite, Oracle, or PostgreSQL with the extension pgvector"
        )


# --- the table


def find(connection: Connection, ours: Tables) -> Found:
    """What is there."""
    said = connection.execute(
        sa.select(ours.settings.c.value).where(ours.settings.c.name == DIMENSION_SETTING)
    ).scalar()
    is_postgresql = connection.dialect.name == "postgresql"
    return Found(int(said) if said else None, _home(connection) if is_postgresql else "")


def require_dimension(found: Found, dimension: int) -> None:
    """Refuse another dimension than the recorded one.

    Raises:
        SchemaError: Says which it is.
    """
    if found.dimension not in {None, dimension}:
        raise SchemaError(
            f"this database keeps embeddings of {found.dimension} numbers, not {dimension}; use a "
            "model of that dimension, or another prefix"
        )


def missing_table(connection: Connection, ours: Tables, dimension: int) -> SchemaError:
    """The error where the table may not be made."""
    only = "" if ours.prefix == DEFAULT_PREFIX else f" --prefix {ours.prefix}"
    only += f" --schema {ours.schema}" if ours.schema else ""
    return SchemaError(
        f"{place_of(connection).within(ours.schema)}: there is no table for embeddings; make it: "
        f"locus-store db vector-index --dimension {dimension} --url '…'{only}"
    )


def make_table(connection: Connection, ours: Tables, dimension: int) -> bool:
    """Make the table where it is not there; whether it was. Nobody else makes one meanwhile.

    Raises:
        SchemaError: There is one of another dimension.
        UnsupportedError: The server has no pgvector.
    """
    _require_dialect(connection)
    found = find(connection, ours)
    require_dimension(found, dimension)
    if found.dimension is not None:
        return True
    table = connection.dialect.identifier_preparer.format_table(ours.embeddings)
    key = connection.dialect.identifier_preparer.quote(derived(f"{ours.prefix}embeddings_pk"))
    columns = "item INTEGER NOT NULL, part INTEGER NOT NULL, embedding BLOB NOT NULL"
    if connection.dialect.name == "postgresql":
        home = connection.dialect.identifier_preparer.quote(_made_extension(connection, ours))
        columns = (
            "item bigint NOT NULL, part smallint NOT NULL, "
            f"embedding {home}.vector({dimension}) NOT NULL"
        )
    elif connection.dialect.name == "oracle":
        columns = (
            "item NUMBER(19) NOT NULL, part NUMBER(5) NOT NULL, "
            f"embedding VECTOR({dimension}, FLOAT32) NOT NULL"
        )
    if commits_each(connection):
        _drop_unfinished(connection, ours)
    with owner_only(connection):
        connection.exec_driver_sql(
            f"CREATE TABLE {table} ({columns}, CONSTRAINT {key} PRIMARY KEY (item, part))"
        )
    connection.execute(ours.settings.insert().values(name=DIMENSION_SETTING, value=str(dimension)))
    return False


def _drop_unfinished(connection: Connection, ours: Tables) -> None:
    """A table that was made, and whose setting was not written behind it."""
    table = ours.embeddings
    there = in_dictionary(connection, ours.schema, frozenset({table.name}))
    is_ours = there.get(table.name) == {it.name for it in table.columns}
    if is_ours and not connection.execute(sa.select(table.c.item).limit(1)).first():
        shown = connection.dialect.identifier_preparer.format_table(table)
        connection.exec_driver_sql(f"DROP TABLE {shown}")


def _made_extension(connection: Connection, ours: Tables) -> str:
    """The schema that pgvector is in; it is created where that is possible."""
    if home := _home(connection):
        return home
    available = connection.exec_driver_sql(
        "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"
    ).scalar_one()
    if not available:
        raise UnsupportedError(
            "the extension pgvector ('vector') is not installed on this server; install it, "
            "for example Debian's package postgresql-<version>-pgvector"
        )
    quote = connection.dialect.identifier_preparer.quote
    into = f" WITH SCHEMA {quote(ours.schema)}" if ours.schema else ""
    try:
        connection.exec_driver_sql(f"CREATE EXTENSION IF NOT EXISTS vector{into}")
    except DBAPIError as exc:
        raise UnsupportedError(
            "this role may not create the extension pgvector; let an administrator run, in "
            "this database: CREATE EXTENSION vector"
        ) from exc
    return _home(connection)


def _home(connection: Connection) -> str:
    found = connection.exec_driver_sql(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
        "WHERE e.extname = 'vector'"
    ).scalar()
    return str(found) if found else ""


# --- indexes


def _index_name(ours: Tables, metric: Metric, method: Method) -> str:
    return derived(f"{ours.prefix}embeddings_{metric}_{method}")


def _has_index(connection: Connection, ours: Tables, metric: Metric, method: Method) -> bool:
    inspector: Any = sa.inspect(connection)
    indexes = inspector.get_indexes(ours.embeddings.name, ours.schema)
    return any(it["name"] == _index_name(ours, metric, method) for it in indexes)


# --- PostgreSQL's indexes


def _make_index(connection: Connection, ours: Tables, metric: Metric, method: Method) -> bool:
    """Make an index of the table; whether it was not there."""
    if _has_index(connection, ours, metric, method):
        return False
    name = _index_name(ours, metric, method)
    quote = connection.dialect.identifier_preparer
    table = quote.format_table(ours.embeddings)
    options = HNSW
    if method == "ivfflat":
        count = connection.execute(sa.select(sa.func.count()).select_from(ours.embeddings))
        options = f"lists = {min(max(count.scalar_one() // ROWS_PER_LIST, 10), 32_768)}"
    operators = f"{quote.quote(_home(connection))}.vector_{metric}_ops"
    with owner_only(connection):
        connection.exec_driver_sql(
            f"CREATE INDEX {quote.quote(name)} ON {table} USING {method} (embedding {operators}) "
            f"WITH ({options})"
        )
        connection.exec_driver_sql(f"ANALYZE {table}, {quote.format_table(ours.store)}")
    return True


# --- Oracle's indexes

_ORACLE_METRICS: Final = {"cosine": "COSINE", "l2": "EUCLIDEAN", "ip": "DOT"}
_ORGANIZATIONS: Final = {
    "hnsw": "ORGANIZATION INMEMORY NEIGHBOR GRAPH",
    "ivfflat": "ORGANIZATION NEIGHBOR PARTITIONS",
}


def oracle_index(ours: Tables, metric: Metric, method: Method, dialect: Dialect) -> str:
    """The statement that makes an index: HNSW, which has to fit in memory, or IVF."""
    table = dialect.identifier_preparer.format_table(ours.embeddings)
    index = dialect.identifier_preparer.format_table(
        sa.table(_index_name(ours, metric, method), schema=ours.schema)
    )
    return (
        f"CREATE VECTOR INDEX {index} ON {table} (embedding) {_ORGANIZATIONS[method]} "
        f"DISTANCE {_ORACLE_METRICS[metric]} WITH TARGET ACCURACY 95"
    )


def _make_oracle_index(
    connection: Connection, ours: Tables, metric: Metric, method: Method
) -> bool:
    if _has_index(connection, ours, metric, method):
        return False
    inspector: Any = sa.inspect(connection)
    others = [it["name"] for it in inspector.get_indexes(ours.embeddings.name, ours.schema)]
    made = {_index_name(ours, *it) for it in product(get_args(Metric), get_args(Method))}
    others = [it for it in others if it in made]
    if others:
        raise UnsupportedError(
            f"Oracle takes one index on a column, and there is {others[0]}: drop it first"
        )
    connection.exec_driver_sql(oracle_index(ours, metric, method, connection.dialect))
    return True


_INDEXES: Final[dict[str, Callable[[Connection, Tables, Metric, Method], bool]]] = {
    "postgresql": _make_index,
    "oracle": _make_oracle_index,
}
