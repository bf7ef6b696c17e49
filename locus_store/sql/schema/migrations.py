"""Migrations: their targets (a connection, an engine, or a URL), and one at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from locus_store.errors import BackendError, InvalidArgumentError, LocusStoreError
from locus_store.runtime.forks import make_lock
from locus_store.runtime.stepping import may_block
from locus_store.sql.schema.definition import (
    PLACE,
    DatabasePlace,
    OnTables,
    load_definition,
    load_definition_of,
)
from locus_store.sql.schema.tables import DEFAULT_PREFIX, Tables, check_prefix, make_tables
from locus_store.types.arguments import KEYWORDS, check_url

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


T = TypeVar("T")
Target = Engine | Connection | URL | str

_WITHOUT_SCHEMA: Final = frozenset(
    {"redis", "rediss", "valkey", "valkeys", "unix", "file", "memory", "s3", "oci", "http", "https"}
)


def run_on(target: Target, body: OnTables[T], *, prefix: str, schema: str | None) -> T:
    """Run ``body`` on a connection of the target; close it if it was opened here.

    Raises:
        InvalidArgumentError: The target is not valid, or is asynchronous.
        ConnectionFailedError: It cannot be reached.
        MissingExtraError: Its driver is not installed.
        BackendError: The database failed, and the target is a URL.
    """
    if hasattr(target, "sync_engine"):  # of AsyncEngine and AsyncConnection, slow to import
        raise _make_async_error()
    if isinstance(target, Engine) and target.dialect.is_async:
        raise _make_async_error()
    if isinstance(target, URL | str):
        return load_definition(get_dialect_name(target)).run_on_url(target, body, prefix, schema)
    if isinstance(target, Connection):
        return body(target, make_tables(check_prefix(prefix, target.dialect.name), schema))
    with target.connect() as connection:
        return body(connection, make_tables(check_prefix(prefix, target.dialect.name), schema))


def _make_async_error() -> InvalidArgumentError:
    return InvalidArgumentError(
        "this function blocks, and the engine or connection is asynchronous; write:"
        " async with engine.connect() as connection: await connection.run_sync(migrate.upgrade)"
    )


def get_reason(error: BaseException) -> str:
    """Return the text of the database's own error."""
    driver = getattr(error, "orig", None) or error
    message = str(driver.__cause__ or driver)  # SQLAlchemy's asyncpg puts a class name before it
    return message.partition("\nHelp: http")[0]  # python-oracledb's second line


def get_dialect_name(target: Target) -> str:
    """Return the dialect of a target, or of a bare scheme, whether or not its driver is there."""
    if not isinstance(target, URL | str):
        return target.dialect.name
    text = target.drivername if isinstance(target, URL) else target
    if KEYWORDS.match(text):
        return "postgresql"  # libpq's "host=… dbname=…"
    scheme = text.partition(":")[0].partition("+")[0].lower()
    name = {"postgres": "postgresql"}.get(scheme, scheme)
    if name in _WITHOUT_SCHEMA:
        raise InvalidArgumentError(f"what {name}: URLs name has no schema; nothing to make")
    if name == "sharded":
        raise InvalidArgumentError(
            "a set of shards has no schema; give the URL of each shard in turn"
        )
    check_url(text)
    load_definition(name)
    return name


def run_on_engine(
    make: Callable[[], AsyncEngine],
    body: Callable[[Connection], T],
    place: DatabasePlace,
    errors: Callable[[], tuple[type[Exception], ...]] = tuple,
    translate: Callable[[BaseException, str], LocusStoreError | None] = lambda *_: None,
) -> T:
    """Run ``body`` on a connection of a new asynchronous engine.

    Args:
        make: Makes the engine.
        body: What to run.
        place: The database, for messages.
        errors: Return the driver's classes of errors, once it is imported.
        translate: Turns an error into ours; ``None`` where it has nothing to say.
    """

    async def run() -> T:
        engine = make()
        try:
            async with engine.connect() as connection:
                await connection.execution_options(**{PLACE: place})
                return await connection.run_sync(body)
        finally:
            await engine.dispose()

    try:
        result: T = _run_in_loop(run)
    except Exception as error:
        kinds = (DBAPIError, OSError, *errors())
        if isinstance(error, LocusStoreError) or not isinstance(error, kinds):
            raise
        message = translate(error, place.shown)
        raise message or BackendError(f"{place.shown}: {get_reason(error)}") from error
    return result


def make_named_tables(
    options: Mapping[str, str], prefix: str, schema: str | None, dialect: str
) -> Tables:
    """Return the tables that the URL's options name, unless the call itself names others."""
    if "table_name" in options:
        raise InvalidArgumentError("for a migration name the prefix: --prefix x_, not ?table_name=")
    if prefix == DEFAULT_PREFIX:
        prefix = options.get("prefix", prefix)
    named = options.get("schema") or options.get("schema_name")
    return make_tables(check_prefix(prefix, dialect), named if schema is None else schema)


def _run_in_loop(work: Callable[[], Any]) -> Any:
    """Run the coroutine on a new event loop, even if another one is running."""
    if may_block():
        return asyncio.run(work())
    process.refuse_beneath_another()
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(lambda: asyncio.run(work())).result()


_POLL_SECONDS: Final = 0.01


class _Process:
    """A lock per process: without it, 16 of 16 concurrent upgrades failed in Alembic's globals."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._at_work: list[int] = []

    @contextmanager
    def record_work(self) -> Iterator[None]:
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
    def lock(self, *, is_async: bool = False) -> Iterator[None]:
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
def lock(connection: Connection, ours: Tables) -> Iterator[None]:
    """Begin a transaction, the only migration in database and process; commit at the end."""
    is_async = connection.dialect.is_async
    if not is_async:
        process.refuse_beneath_another()
    with process.record_work():
        refuse_transaction(connection)
        # Lock the database first: waiting for it then blocks no migration of another database.
        database = load_definition_of(connection)
        with database.lock(connection, ours), process.lock(is_async=is_async):
            yield


def refuse_transaction(connection: Connection) -> None:
    """Refuse a connection in a transaction: the migration would commit or lose it."""
    if connection.in_transaction():
        raise InvalidArgumentError("a migration needs a connection without a transaction begun")
