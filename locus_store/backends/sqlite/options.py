"""The options of SQLite."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from typing_extensions import TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.sql.connections.options import AsyncEngine, Engine, SqlOptions, TableName
from locus_store.types.options import IN_PYTHON, CheckpointOptions, Option, Patience


class SQLiteConnections(TypedDict, total=False):
    """Of connections; an engine of the caller's has its own."""

    busy_timeout_seconds: Annotated[
        Patience, Option(30.0, "how long to wait for another process's write")
    ]


class SQLiteOptions(SQLiteConnections, SqlOptions, total=False):
    """Of ``SQLiteBackend``, beside ``path`` and ``table_name``."""

    engine: Annotated[
        AsyncEngine | Engine | None,
        Option(
            None,
            "a SQLAlchemy engine, async (`sqlite+aiosqlite`) or not, instead of `path`, left open."
            " Its connection settings are not changed: without WAL, readers wait, and without"
            " `secure_delete`, deleted bytes stay in the file until they are overwritten",
        ),
        IN_PYTHON,
    ]


class SQLiteCheckpointerOptions(SQLiteOptions, CheckpointOptions, total=False):
    """Of ``sqlite_checkpointer`` and ``SQLiteCheckpointSaver``."""


class SQLiteURLOptions(SQLiteOptions, TableName, total=False):
    """Of a URL's query string."""


URL_OPTIONS = SQLiteURLOptions

NO_FILE: Final = "sqlite:/// has no path: write sqlite:///file.db, or sqlite:// for memory"


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the path in a URL, and its query string: three slashes are relative, four absolute.

    Raises:
        InvalidArgumentError: The URL has a host or a fragment, or an empty path.
    """
    parts = urlsplit(url)
    if parts.path == "/":
        raise InvalidArgumentError(NO_FILE)
    if parts.netloc or parts.fragment:
        raise InvalidArgumentError(
            "a sqlite:// URL has no host and no #fragment; write sqlite:///file.db or"
            " sqlite:////absolute.db, and %23 for #"
        )
    return {"path": unquote(parts.path.removeprefix("/")) or ":memory:"}, parts.query
