"""The options of PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from sqlalchemy.engine import URL
from typing_extensions import TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.sql.connections.options import AsyncEngine, SqlOptions, TableName, require_one
from locus_store.types.arguments import MAX_COUNT
from locus_store.types.options import (
    IN_PYTHON,
    CheckpointOptions,
    Count,
    Seconds,
    annotate_bounds,
    annotate_option,
    split_url,
)

Text = Annotated[str, annotate_bounds(min_length=1)]


class ServerOptions(TypedDict, total=False):
    """The server by its parts, as in the Locus SDK; a query string of a DSN has its own."""

    host: Annotated[
        Text | None,
        annotate_option(
            None,
            "the server instead of a DSN, with the next three, as in the"
            " [Locus SDK](quickstart.md#an-agent-of-the-locus-sdk); by default `localhost`",
        ),
        IN_PYTHON,
    ]
    port: Annotated[
        Annotated[int, annotate_bounds(ge=1, le=65535)] | None,
        annotate_option(None, "by default 5432"),
        IN_PYTHON,
    ]
    database: Annotated[Text | None, annotate_option(None, "by default `locus`"), IN_PYTHON]
    user: Annotated[Text | None, annotate_option(None, "by default `postgres`"), IN_PYTHON]
    password: Annotated[
        str | Callable[[], str | Awaitable[str]] | None,
        annotate_option(
            None,
            "instead of the DSN's: a string or a callable, see"
            " [changing passwords](#changing-passwords)",
        ),
        IN_PYTHON,
    ]


class PoolOptions(TypedDict, total=False):
    """Of the connections."""

    pool_size: Annotated[Count, annotate_option(10, "connections kept open, for each event loop")]
    max_overflow: Annotated[
        Annotated[int, annotate_bounds(ge=0, le=MAX_COUNT)],
        annotate_option(0, "additional connections when all are in use"),
    ]
    min_pool_size: Annotated[
        Count | None,
        annotate_option(
            None, "the Locus SDK's name for `pool_size`; given alone, up to 10 connections"
        ),
    ]
    max_pool_size: Annotated[
        Count | None,
        annotate_option(
            None,
            "the Locus SDK's name for `pool_size` and `max_overflow` together; given"
            " alone, all of them are kept",
        ),
    ]
    pool_timeout_seconds: Annotated[
        Seconds, annotate_option(30.0, "how long a call waits for a free connection")
    ]
    pool_recycle_seconds: Annotated[
        Seconds | None, annotate_option(None, "age at which a connection is replaced")
    ]
    connect_timeout_seconds: Annotated[
        Seconds | None,
        annotate_option(
            None,
            "time limit for connecting to each host; by default `connect_timeout` of"
            " the DSN, else 10",
        ),
    ]
    statement_timeout_seconds: Annotated[
        Seconds | None,
        annotate_option(
            60.0,
            "time limit for each statement except a migration's; for a save it starts"
            " when the save is submitted. `None`: no limit",
        ),
    ]
    pgbouncer: Annotated[
        bool,
        annotate_option(
            False,
            "the server is reached through a pooler in transaction mode: see"
            " [PgBouncer](#pgbouncer)",
        ),
    ]


class ReplicaOptions(TypedDict, total=False):
    """Of reads from replicas."""

    replicas: Annotated[
        Text | None,
        annotate_option(None, "`host:port,…`: [standbys that answer reads](#replicas)"),
    ]
    max_staleness_seconds: Annotated[
        Seconds | None,
        annotate_option(
            None,
            "how far a replica may be behind, by default 10; given, lists of threads and"
            " searches may lack own writes",
        ),
    ]


class PostgreSQLTables(SqlOptions, total=False):
    """Of the tables and of saves."""

    schema: Annotated[
        str | None,
        annotate_option(
            None,
            "database schema of the tables, created with them if it is missing; by"
            " default the role's first one",
        ),
    ]
    schema_name: Annotated[str | None, annotate_option(None, "the Locus SDK's name for `schema`")]
    engine: Annotated[
        AsyncEngine | None,
        annotate_option(
            None,
            "an async SQLAlchemy engine on asyncpg instead of `dsn`, left open: see"
            " [your engine or pool](#your-engine-or-pool)",
        ),
        IN_PYTHON,
    ]
    pool: Annotated[
        Any, annotate_option(None, "an asyncpg pool instead of `dsn`, left open"), IN_PYTHON
    ]
    group_saves: Annotated[
        bool, annotate_option(True, "`False`: each save is a statement of its own")
    ]


class PostgreSQLConnections(ServerOptions, PoolOptions, ReplicaOptions, total=False):
    """Of connections; an engine or a pool of the caller's has its own."""


class PostgreSQLOptions(PostgreSQLConnections, PostgreSQLTables, total=False):
    """Of ``PostgreSQLBackend``, beside ``dsn`` and ``table_name``."""


class PostgreSQLCheckpointerOptions(PostgreSQLOptions, CheckpointOptions, total=False):
    """Of ``postgresql_checkpointer`` and ``PostgreSQLCheckpointSaver``."""


class PostgreSQLURLOptions(PostgreSQLOptions, TableName, total=False):
    """All options; those of a DSN's parts are read from the DSN."""


URL_OPTIONS = PostgreSQLURLOptions


MAX_POOL_SIZE: Final = 10


def place(url: str) -> tuple[dict[str, Any], str]:
    """Return the DSN in a URL, and this library's part of its query string."""
    dsn, query = split_url(url, URL_OPTIONS)
    return {"dsn": dsn}, query


def make_dsn(dsn: str | None, options: PostgreSQLOptions) -> str | URL | None:
    """Return the DSN, or a URL of the server's parts.

    Raises:
        InvalidArgumentError: Both are given.
    """
    names = ("host", "port", "database", "user")
    parts = {name: value for name, value in options.items() if name in names and value is not None}
    if not parts:
        return dsn
    require_one(dsn=dsn, **parts if dsn is not None else {})
    return URL.create(
        "postgresql",
        username=options["user"] or "postgres",
        host=options["host"] or "localhost",
        port=options["port"] or 5432,
        database=options["database"] or "locus",
    )


def make_pool_size(options: PostgreSQLOptions) -> tuple[int, int]:
    """Return the pool's size and overflow; the SDK's spelling is minimum and maximum.

    Raises:
        InvalidArgumentError: Both spellings are given, or the maximum is less than the minimum.
    """
    size, overflow = options["pool_size"], options["max_overflow"]
    least, most = options["min_pool_size"], options["max_pool_size"]
    if least is None and most is None:
        return size, overflow
    if (size, overflow) != (10, 0):
        raise InvalidArgumentError(
            "give pool_size and max_overflow, or min_pool_size and max_pool_size, not both"
        )
    kept = least or most or 1
    whole = most or max(MAX_POOL_SIZE, kept)
    if whole < kept:
        raise InvalidArgumentError(f"max_pool_size={whole} must be at least min_pool_size={kept}")
    return kept, whole - kept
