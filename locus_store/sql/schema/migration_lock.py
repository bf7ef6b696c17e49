"""The lock of a migration: one at a time in this process and in the database."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy.util import await_only

from locus_store.errors import InvalidArgumentError
from locus_store.sql.schema.definition import definition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

    from locus_store.sql.schema.tables import Tables

_POLL_SECONDS: Final = 0.01


class _Process:
    """A lock per process: without it, 16 of 16 concurrent upgrades failed in Alembic's globals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work: list[int] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Record that this thread, or a task of its event loop, migrates."""
        thread = threading.get_ident()
        self._at_work.append(thread)
        try:
            yield
        finally:
            self._at_work.remove(thread)

    def refuse_beneath_another(self) -> None:
        """Refuse a migration that would wait for one on the same thread, which never ends."""
        if threading.get_ident() in self._at_work:
            raise InvalidArgumentError(
                "a migration is under way on this thread's event loop; run another one there too"
                " (await connection.run_sync(...)), or on another thread (asyncio.to_thread)"
            )

    @contextmanager
    def alone(self, *, is_async: bool = False) -> Iterator[None]:
        """Hold the lock.

        Args:
            is_async: True beneath an event loop. The loop keeps running while this waits, and so
                does the migration that holds the lock.
        """
        if is_async:
            while not self._lock.acquire(blocking=False):
                await_only(asyncio.sleep(_POLL_SECONDS))
        else:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()


process: Final = _Process()


@contextmanager
def locked(connection: Connection, ours: Tables) -> Iterator[None]:
    """Begin a transaction, the only migration in database and process; commit at the end."""
    is_async = connection.dialect.is_async
    if not is_async:
        process.refuse_beneath_another()
    with process.at_work():
        refuse_transaction(connection)
        # Lock the database first: waiting for it then blocks no migration of another database.
        database = definition_of(connection)
        with database.locked(connection, ours), process.alone(is_async=is_async):
            yield


def refuse_transaction(connection: Connection) -> None:
    """Refuse a connection in a transaction: the migration would commit or lose it."""
    if connection.in_transaction():
        raise InvalidArgumentError("a migration needs a connection without a transaction begun")
