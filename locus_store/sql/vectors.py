"""The table of embeddings, made by an explicit step: its dimension is the user's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from locus_store.errors import (
    BackendError,
    InvalidArgumentError,
    SchemaError,
    UnsupportedError,
)
from locus_store.sql.failures import owner_only
from locus_store.sql.locks import locked
from locus_store.sql.schema import DEFAULT_PREFIX
from locus_store.sql.status import read_status
from locus_store.sql.targets import run_on

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from locus_store.sql.schema import Tables
    from locus_store.sql.targets import Target

Metric = Literal["cosine", "l2", "ip"]
Method = Literal["hnsw", "ivfflat"]

MAX_DIMENSION: Final = 2000
"""What pgvector's indexes take of a ``vector``."""

DIMENSION_SETTING: Final = "vector_dimension"


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

    Needs PostgreSQL with pgvector, whose extension is created where the role may do so.

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
        UnsupportedError: It is not PostgreSQL, or has no pgvector.
    """
    _check(dimension, metric, method)
    make = partial(_create, dimension=dimension, metric=metric, method=method)
    return run_on(target, make, prefix=prefix, schema=schema)


def _check(dimension: object, metric: object, method: object) -> None:
    is_number = isinstance(dimension, int) and not isinstance(dimension, bool)
    if not is_number or not 1 <= dimension <= MAX_DIMENSION:  # type: ignore[operator]  # a number
        raise InvalidArgumentError(
            f"dimension={dimension!r} must be a whole number from 1 to {MAX_DIMENSION}"
        )
    for name, value, known in (
        ("metric", metric, get_args(Metric)),
        ("method", method, get_args(Method)),
    ):
        if value not in known:
            raise InvalidArgumentError(f"{name}={value!r} must be one of {', '.join(known)}")


def _create(
    connection: Connection, ours: Tables, *, dimension: int, metric: Metric, method: Method
) -> bool:
    if connection.dialect.name != "postgresql":
        raise UnsupportedError("a vector index needs PostgreSQL with the extension pgvector")
    with locked(connection, ours):
        status = read_status(connection, ours)
        if not status.usable:
            raise SchemaError(status.message)
        _require_dimension(connection, ours, dimension)
        home = _require_extension(connection, ours)
        quote = connection.dialect.identifier_preparer
        table = quote.format_table(sa.table(f"{ours.prefix}embeddings", schema=ours.schema))
        index = f"{ours.prefix}embeddings_{metric}_{method}"
        was_there = _has_index(connection, ours, index)
        run = connection.exec_driver_sql
        with owner_only(connection):
            run(
                f"CREATE TABLE IF NOT EXISTS {table} (item bigint PRIMARY KEY,"
                f" embedding {quote.quote(home)}.vector({dimension}) NOT NULL)"
            )
            run(
                f"CREATE INDEX IF NOT EXISTS {index} ON {table} "
                f"USING {method} (embedding {quote.quote(home)}.vector_{metric}_ops)"
            )
        if DIMENSION_SETTING not in _settings(connection, ours):
            connection.execute(
                ours.settings.insert().values(name=DIMENSION_SETTING, value=str(dimension))
            )
        return not was_there


def _settings(connection: Connection, ours: Tables) -> dict[str, str]:
    rows = connection.execute(sa.select(ours.settings.c.name, ours.settings.c.value))
    return {name: value for name, value in rows}  # noqa: C416  (rows are not pairs)


def _require_dimension(connection: Connection, ours: Tables, dimension: int) -> None:
    known = _settings(connection, ours).get(DIMENSION_SETTING, str(dimension))
    if known != str(dimension):
        raise SchemaError(
            f"this database keeps embeddings of {known} numbers, not {dimension}; use a model of "
            "that dimension, or another prefix"
        )


def _require_extension(connection: Connection, ours: Tables) -> str:
    """The schema that pgvector is in; it is created where that is possible."""
    if not _home(connection):
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
            raise BackendError(
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


def _has_index(connection: Connection, ours: Tables, index: str) -> bool:
    table = f"{ours.prefix}embeddings"
    inspector = sa.inspect(connection)
    if not inspector.has_table(table, ours.schema):
        return False
    return any(it["name"] == index for it in inspector.get_indexes(table, ours.schema))
