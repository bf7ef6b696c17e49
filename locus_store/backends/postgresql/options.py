"""The options of PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Annotated, Any, Final, NamedTuple

from sqlalchemy.engine import URL
from typing_extensions import TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.sql.connections.options import AsyncEngine, SqlOptions, TableName, require_one
from locus_store.types.arguments import MAX_COUNT, check_number
from locus_store.types.options import (
    IN_PYTHON,
    Bounds,
    CheckpointOptions,
    Count,
    Option,
    Seconds,
    split_url,
)

Text = Annotated[str, Bounds(min_length=1)]


class ServerOptions(TypedDict, total=False):
    """The server by its parts, as in the Locus SDK; a query string of a DSN has its own."""

    host: Annotated[
        Text | None,
        Option(
            None,
            "the server instead of a DSN, with the next three, as in the"
            " [Locus SDK](quickstart.md#an-agent-of-the-locus-sdk); by default `localhost`",
        ),
        IN_PYTHON,
    ]
    port: Annotated[
        Annotated[int, Bounds(ge=1, le=65535)] | None, Option(None, "by default 5432"), IN_PYTHON
    ]
    database: Annotated[Text | None, Option(None, "by default `locus`"), IN_PYTHON]
    user: Annotated[Text | None, Option(None, "by default `postgres`"), IN_PYTHON]
    password: Annotated[
        str | Callable[[], str | Awaitable[str]] | None,
        Option(
            None,
            "instead of the DSN's: a string or a callable, see"
            " [changing passwords](#changing-passwords)",
        ),
        IN_PYTHON,
    ]


class PoolOptions(TypedDict, total=False):
    """Of the connections."""

    pool_size: Annotated[Count, Option(10, "connections kept open, for each event loop")]
    max_overflow: Annotated[
        Annotated[int, Bounds(ge=0, le=MAX_COUNT)],
        Option(0, "additional connections when all are in use"),
    ]
    min_pool_size: Annotated[
        Count | None,
        Option(None, "the Locus SDK's name for `pool_size`; given alone, up to 10 connections"),
    ]
    max_pool_size: Annotated[
        Count | None,
        Option(
            None,
            "the Locus SDK's name for `pool_size` and `max_overflow` together; given"
            " alone, all of them are kept",
        ),
    ]
    pool_timeout_seconds: Annotated[
        Seconds, Option(30.0, "how long a call waits for a free connection")
    ]
    pool_recycle_seconds: Annotated[
        Seconds | None, Option(None, "age at which a connection is replaced")
    ]
    connect_timeout_seconds: Annotated[
        Seconds | None,
        Option(
            None,
            "time limit for connecting to each host; by default `connect_timeout` of"
            " the DSN, else 10",
        ),
    ]
    statement_timeout_seconds: Annotated[
        Seconds | None,
        Option(
            60.0,
            "time limit for each statement except a migration's; for a save it starts"
            " when the save is submitted. `None`: no limit",
        ),
    ]
    pgbouncer: Annotated[
        bool,
        Option(
            False,
            "the server is reached through a pooler in transaction mode: see"
            " [PgBouncer](#pgbouncer)",
        ),
    ]


class ReplicaOptions(TypedDict, total=False):
    """Of reads from replicas."""

    replicas: Annotated[
        Text | None, Option(None, "`host:port,…`: [standbys that answer reads](#replicas)")
    ]
    max_staleness_seconds: Annotated[
        Seconds | None,
        Option(
            None,
            "how far a replica may be behind, by default 10; given, lists of threads and"
            " searches may lack own writes",
        ),
    ]


class PostgreSQLTables(SqlOptions, total=False):
    """Of the tables and of saves."""

    schema: Annotated[
        str | None,
        Option(
            None,
            "database schema of the tables, created with them if it is missing; by"
            " default the role's first one",
        ),
    ]
    schema_name: Annotated[str | None, Option(None, "the Locus SDK's name for `schema`")]
    engine: Annotated[
        AsyncEngine | None,
        Option(
            None,
            "an async SQLAlchemy engine on asyncpg instead of `dsn`, left open: see"
            " [your engine or pool](#your-engine-or-pool)",
        ),
        IN_PYTHON,
    ]
    pool: Annotated[Any, Option(None, "an asyncpg pool instead of `dsn`, left open"), IN_PYTHON]
    group_saves: Annotated[bool, Option(True, "`False`: each save is a statement of its own")]


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


def parse_place(url: str) -> tuple[dict[str, Any], str]:
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


class WalPosition(NamedTuple):
    """A position in the write-ahead log of a cluster."""

    system: int
    timeline: int
    number: int

    def is_comparable(self, other: WalPosition) -> bool:
        """Return whether both are in the same log."""
        return self[:2] == other[:2]

    def to_token(self) -> str:
        """Return the position as a string for other processes."""
        return "-".join(map(str, self))

    @classmethod
    def from_token(cls, token: str) -> WalPosition | None:
        """Return the position in a token; ``None``: of a storage whose reads are current.

        Raises:
            InvalidArgumentError: It is not a token.
        """
        if not token:
            return None
        try:
            system, timeline, number = map(int, token.split("-"))
        except (ValueError, AttributeError):
            raise InvalidArgumentError(
                f"at_least={token!r:.80} is not a token; pass what backend.read_token() returned"
            ) from None
        return cls(system, timeline, number)


class ReadLimits(NamedTuple):
    """The limits of reads from replicas."""

    seconds: float = inf
    """An answer may be so old; lists of threads and searches then may lack own writes."""

    position: WalPosition | None = None
    """All that was committed before."""

    def raise_position(self, position: WalPosition) -> WalPosition | None:
        """Return the later of the two positions; ``None``: they are in different logs."""
        if self.position is None:
            return position
        return max(self.position, position) if position.is_comparable(self.position) else None


_limits: ContextVar[ReadLimits] = ContextVar("locus_store_staleness", default=ReadLimits())  # noqa: B039  (a tuple)
get_read_limits = _limits.get


@contextmanager
def limit_staleness(
    max_staleness_seconds: float | None = None, *, at_least: str | None = None
) -> Iterator[None]:
    """Limit how old the answers of replicas are in a block; the primary answers otherwise.

    It holds for calls on any object, in this thread or task. Storages whose reads are current, and
    services, ignore it.

    Args:
        max_staleness_seconds: As the option of the same name, which may be lower: lists of threads
            and searches may lack own writes.
        at_least: A token of ``PostgreSQLBackend.read_token``, which may come from another process:
            reads see all that was committed before.

    Raises:
        InvalidArgumentError: A value is not valid.
    """
    seconds = inf if max_staleness_seconds is None else max_staleness_seconds
    check_number("max_staleness_seconds", seconds, maximum=inf)
    token = _limits.set(ReadLimits(seconds, WalPosition.from_token(at_least or "")))
    try:
        yield
    finally:
        _limits.reset(token)
