"""SQLite's connections: their pools and settings."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool, QueuePool

from locus_store.errors import IntegrityError

MEMORY = ":memory:"


def make_engine(path: str, *, busy_timeout_seconds: float, readers: int = 0) -> Engine:
    """Return an engine on a database file: one connection to write, or several to read.

    WAL lets readers work during a write; ``synchronous=FULL`` makes a commit durable;
    ``secure_delete`` overwrites deleted bytes.
    """
    pool: dict[str, Any] = {"poolclass": NullPool}
    if readers:
        pool = {
            "poolclass": QueuePool,
            "pool_size": readers,
            "max_overflow": 0,
            "pool_timeout": None,
        }
    made = sa.create_engine(
        sa.URL.create("sqlite", database=path),
        connect_args={"check_same_thread": False, "timeout": busy_timeout_seconds},
        hide_parameters=True,  # values in errors would come into logs
        **pool,
    )
    set_up = partial(_set_up, path, busy_timeout_seconds) if path != MEMORY else _set_up_memory
    event.listen(made, "connect", set_up)
    return made


def _set_up_memory(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions are begun by us


def _set_up(
    path: str, busy_timeout_seconds: float, connection: sqlite3.Connection, record: object
) -> None:
    _set_up_memory(connection, record)
    _use_wal(connection, path, busy_timeout_seconds)
    timeout = f"busy_timeout={int(busy_timeout_seconds * 1000)}"
    for pragma in (timeout, "synchronous=FULL", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection, path: str, busy_timeout_seconds: float) -> None:
    """Switch the file to WAL.

    Two connections that do so to a new file wait for each other's lock, so SQLite fails one of them
    without its busy timeout; the caller sets that afterwards. A file that was emptied while it was
    open looks like a new one, and is refused.
    """
    now = time.monotonic()
    end, end_if_emptied = now + busy_timeout_seconds, now + _EMPTIED_SECONDS
    connection.execute("PRAGMA busy_timeout=0")
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            if time.monotonic() >= end_if_emptied and _is_emptied(path):
                raise make_emptied_error(path) from exc
            time.sleep(_WAL_PAUSE_SECONDS)
        else:
            return


def _is_emptied(path: str) -> bool:
    """Return whether the file is empty although a log was begun, which SQLite does after it."""
    return Path(path).stat().st_size == 0 and Path(f"{path}-shm").exists()


def make_emptied_error(where: str) -> IntegrityError:
    """Return the error for a file that was truncated while it was open."""
    return IntegrityError(
        f"SQLite {where}: the file was truncated to 0 bytes while it was open: close it in all "
        "processes, remove its -wal and -shm files, and restore it from a backup"
    )


_WAL_PAUSE_SECONDS: Final = 0.002
_EMPTIED_SECONDS: Final = 0.5
