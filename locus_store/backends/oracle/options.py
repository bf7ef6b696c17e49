"""The options of Oracle."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from typing_extensions import TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.sql.connections.options import AsyncEngine, SqlOptions, TableName
from locus_store.types.options import IN_PYTHON, Bounds, CheckpointOptions, Count, Option, Seconds


class UserOptions(TypedDict, total=False):
    """The second and third argument."""

    user: Annotated[str | None, Option(None, "the database user")]
    password: Annotated[str | None, Option(None, "the user's password")]


class OracleConnections(TypedDict, total=False):
    """Of connections; an engine or a pool of the caller's has its own."""

    wallet_location: Annotated[
        str | None,
        Option(
            None,
            "the directory of a wallet (mTLS), as it was unzipped; `tnsnames.ora` is read from"
            " there, too. `SYSTEM`: TLS with the operating system's certificates",
        ),
    ]
    wallet_password: Annotated[
        str | None, Option(None, "of an encrypted wallet; `None` or empty: it is not encrypted")
    ]
    config_dir: Annotated[
        str | None, Option(None, "where `tnsnames.ora` is, if not beside the wallet")
    ]
    host: Annotated[str | None, Option(None, "instead of `dsn`, with `port` and `service_name`")]
    port: Annotated[Annotated[int, Bounds(ge=1, le=65535)] | None, Option(None, "by default 1521")]
    service_name: Annotated[
        str | None, Option(None, "the database's service; with `dsn`, what follows its `/`")
    ]
    min_pool_size: Annotated[Count, Option(1, "connections kept open, for each event loop")]
    max_pool_size: Annotated[Count, Option(5, "connections at most, for each event loop")]
    pool_timeout_seconds: Annotated[
        Seconds, Option(30.0, "how long a call waits for a free connection")
    ]
    connect_timeout_seconds: Annotated[
        Seconds | None, Option(None, "time limit for connecting as a whole; by default 20")
    ]
    statement_timeout_seconds: Annotated[
        Seconds | None,
        Option(60.0, "time limit for each round trip except a migration's; `None`: no limit"),
    ]


class OracleOptions(OracleConnections, SqlOptions, TableName, total=False):
    """Of ``OracleBackend``, beside ``dsn``, ``user`` and ``password``."""

    schema_name: Annotated[
        str | None,
        Option(
            None,
            "the owner of the tables, by default the user. In lower case it means Oracle's upper"
            " case, as in SQL; anything else is quoted",
        ),
    ]
    schema: Annotated[str | None, Option(None, "another name for `schema_name`")]
    engine: Annotated[
        AsyncEngine | None,
        Option(None, "an async SQLAlchemy engine (`oracle+oracledb_async`) instead, left open"),
        IN_PYTHON,
    ]
    pool: Annotated[
        Any,
        Option(
            None,
            "an `oracledb.AsyncConnectionPool` with `max=2` or more instead (one connection"
            " creates the tables, one holds the lock), left open. A URL beside `engine` or `pool`"
            " is `oracle://`. Set NLS and the time limits yourself",
        ),
        IN_PYTHON,
    ]


class OracleCheckpointerOptions(OracleOptions, CheckpointOptions, total=False):
    """Of ``oracle_checkpointer`` and ``OracleCheckpointSaver``."""


class OracleURLOptions(OracleOptions, UserOptions, total=False):
    """Of a URL's query string."""


URL_OPTIONS = OracleURLOptions


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the options that a URL names before its query string, and the query string.

    ``oracle://user:password@…``, then what the driver takes as ``dsn``: an alias, or
    ``host:1521/service``.

    Raises:
        InvalidArgumentError: The URL has another form.
    """
    before, _, query = url.partition("://")[2].partition("?")
    if "@" in query:
        raise InvalidArgumentError(
            "the Oracle URL has an @ after its ?; write %40 for it, and in a password %3F for ?"
        )
    login, _, dsn = before.rpartition("@")
    user, _, password = login.partition(":")
    found = {"user": unquote(user), "password": unquote(password), "dsn": unquote(dsn)}
    return {name: value for name, value in found.items() if value}, query
