"""The table of embeddings, created on request, with the user's number of dimensions."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal, NamedTuple, get_args

from sqlalchemy.engine import Connection

from locus_store.errors import InvalidArgumentError, SchemaError
from locus_store.sql.schema.definition import load_definition_of, make_place, write_options
from locus_store.sql.schema.migrations import Target, lock, run_on
from locus_store.sql.schema.status import read_setting, read_status
from locus_store.sql.schema.tables import DEFAULT_PREFIX, Tables, derive_name
from locus_store.values.vectors import Metric, check_dimension, check_metric

Method = Literal["hnsw", "ivfflat"]

DIMENSION_SETTING: Final = "vector_dimension"
"""Row of ``settings`` that says that the table was made, and for what."""


class FoundVectors(NamedTuple):
    """A database's support for embeddings."""

    dimension: int | None
    """Numbers in each; ``None``: there is no table of them."""

    home: str
    """The database schema of the extension for vectors; ``""``: there is none."""


def create_vector_index(
    target: Target,
    *,
    dimension: int,
    metric: Metric = "cosine",
    method: Method = "hnsw",
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> bool:
    """Create the table of embeddings and an index for a metric; ``False`` if both exist.

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
        InvalidArgumentError: An option is not valid.
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
    with lock(connection, ours):
        status = read_status(connection, ours)
        if not status.usable:
            raise SchemaError(status.message)
        was_there = make_table(connection, ours, dimension)
        database = load_definition_of(connection)
        made = database.make_vector_index(connection, ours, metric, method)
        return not was_there if made is None else made


def find(connection: Connection, ours: Tables) -> FoundVectors:
    """Return the database's support for embeddings."""
    said = read_setting(connection, ours, DIMENSION_SETTING)
    home = load_definition_of(connection).find_vector_schema(connection)
    return FoundVectors(int(said) if said else None, home)


def require_dimension(table: FoundVectors, dimension: int) -> None:
    """Refuse a number of dimensions other than the recorded one."""
    if table.dimension not in {None, dimension}:
        raise SchemaError(
            f"this database keeps embeddings of {table.dimension} numbers, not {dimension}; use a "
            "model of that dimension, or another prefix"
        )


def make_missing_table_error(connection: Connection, ours: Tables, dimension: int) -> SchemaError:
    """Return the error for a missing table that may not be created.

    Raises:
        UnsupportedError: The server has no pgvector.
    """
    load_definition_of(connection).require_vectors(connection)
    return SchemaError(
        f"{make_place(connection).with_schema(ours.schema)}: there is no table for embeddings; "
        f"create it: locus-store db vector-index --dimension {dimension} --url "
        f"'…'{write_options(ours)}"
    )


def make_table(connection: Connection, ours: Tables, dimension: int) -> bool:
    """Create the table if missing, under the caller's lock; return whether it existed.

    Raises:
        SchemaError: There is one of another dimension.
        UnsupportedError: The server has no pgvector.
    """
    found = find(connection, ours)
    require_dimension(found, dimension)
    if found.dimension is not None:
        return True
    table = connection.dialect.identifier_preparer.format_table(ours.embeddings)
    key = connection.dialect.identifier_preparer.quote(derive_name(f"{ours.prefix}embeddings_pk"))
    database = load_definition_of(connection)
    columns = database.render_embedding_columns(connection, ours, dimension)
    database.drop_unfinished(connection, ours)
    with database.translate_owner_errors(connection):
        connection.exec_driver_sql(
            f"CREATE TABLE {table} ({columns}, CONSTRAINT {key} PRIMARY KEY (item, part))"
        )
        database.secure(connection, ours, "embeddings")
    connection.execute(ours.settings.insert().values(name=DIMENSION_SETTING, value=str(dimension)))
    return False


def make_index_name(ours: Tables, metric: Metric, method: str) -> str:
    """Return the name of an index of embeddings."""
    return derive_name(f"{ours.prefix}embeddings_{metric}_{method}")
