"""SQLite's writing connection, which calls that wait share (group commit)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from operator import attrgetter
from time import monotonic
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Connection, Engine

from locus_store.backends.sqlite.dialect import SQLiteDatabase
from locus_store.runtime import loops, observe
from locus_store.sql.connections.backend import Body

T = TypeVar("T")

GROUP: Final = 256
"""Bodies in one transaction at most."""

BUSY_STEP_SECONDS: Final = 0.01
"""A job whose time ends so soon is not waited for again."""


class _Job:
    """A body of a sync call, whose thread waits unless it is the leader."""

    result: Any = None
    error: BaseException | None = None
    is_answered = False
    wake: Any = None
    """A lock that is free when the job is answered, or its thread is the leader."""

    def __init__(self, body: Body[Any] | None) -> None:
        self.body = body
        self.at = monotonic()


class _LoopJob(_Job):
    """A body of an async call; ``wake`` makes the writer's thread the leader."""

    def __init__(self, body: Body[Any] | None, wake: threading.Lock) -> None:
        super().__init__(body)
        self.wake = wake
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


def _answer_callers(jobs: list[_Job]) -> None:
    """Pass the results to the callers; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_LoopJob]] = {}
    for job in jobs:
        if isinstance(job, _LoopJob):
            by_loop.setdefault(job.loop, []).append(job)
        else:
            job.is_answered = True
            if job.wake is not None:
                job.wake.release()
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed: no caller waits
            loop.call_soon_threadsafe(_answer_all, some)


def _answer_all(jobs: list[_LoopJob]) -> None:
    for job in jobs:
        error, job.error = job.error, None  # its traceback has frames that have the job
        if job.future.done():  # the caller was cancelled
            continue
        if error is not None:
            loops.fail(job.future, error)
        else:
            job.future.set_result(job.result)


class StoppedError(Exception):
    """The writer stopped before it took the job; another writer may take it."""


class SQLiteWriter:
    """The writing connection, which one thread at a time uses: the *leader*.

    The thread of a job that is submitted while there is no leader becomes the leader. It commits
    all waiting jobs, and makes the thread of the next job, if there is one, the leader. For async
    calls this is the writer's own thread.
    """

    def __init__(
        self, engine: Engine, database: SQLiteDatabase, release_readers: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._database = database
        self._release_readers = release_readers
        self._gate = threading.Lock()
        """Guards the four below."""

        self._jobs: list[_Job] = []
        self._has_leader = False
        self._stop_job: _Job | None = None
        """The job that stops the writer."""

        self._thread: threading.Thread | None = None
        """The leader for async calls, which the first of them starts."""

        self._wake_thread = threading.Lock()
        """Locked until the writer's thread is the leader, or has to end."""

        self._wake_thread.acquire()
        self._connection: Connection | None = None
        self._driver: sqlite3.Connection | None = None
        """The driver's connection, unless the engine's owner handles its transactions."""

        self._timeout = 0.0
        """SQLite's busy timeout in seconds."""

        self._is_blocked = False
        """The last transaction did not get the lock."""

        self._identity: object = None
        """Another one of the database means that it was replaced while it was open."""

    def run(self, body: Body[T] | None) -> T:
        """Run a body in a transaction; without a body, only make sure that the database is open.

        Raises:
            StoppedError: Nothing was run.
        """
        job = _Job(body)
        result: T = self._get_result(job, leads=self._submit(job))
        return result

    def _get_result(self, job: _Job, *, leads: bool) -> Any:
        """Return the result of a job that was submitted, or raise its error."""
        if not leads:
            job.wake.acquire()
        if not job.is_answered:
            self._commit_as_leader()
        if job.error is None:
            return job.result
        try:
            raise job.error
        finally:
            job.error = None  # its traceback has this frame

    async def run_async(self, body: Body[T] | None) -> T:
        """See ``run``; for a caller in an event loop."""
        job = _LoopJob(body, self._wake_thread)
        if self._thread is None:
            self._begin_thread()
        if self._submit(job):
            job.wake.release()
        result: T = await job.future
        return result

    def stop(self) -> None:
        """Finish what was submitted, close the connection, end the thread."""
        last = _Job(None)
        with suppress(StoppedError):
            leads = self._submit(last, stops=True)
            try:
                self._get_result(last, leads=leads)
            finally:  # there is no leader any more
                self._close_connection()
                if self._thread is not None:
                    self._wake_thread.release()
                    self._thread.join()

    def _submit(self, job: _Job, *, stops: bool = False) -> bool:
        """Add a job, with ``stops`` the last one; return whether its thread is the leader."""
        with self._gate:
            if self._stop_job is not None:
                raise StoppedError
            if stops:
                self._stop_job = job
            self._jobs.append(job)
            if not self._has_leader:
                self._has_leader = True
                return True
            if job.wake is None:
                job.wake = threading.Lock()
                job.wake.acquire()
            return False

    def _begin_thread(self) -> None:
        with self._gate:
            if self._thread is None and self._stop_job is None:
                thread = threading.Thread(target=self._run_thread, name="locus-store-writer")
                thread.daemon = True
                thread.start()  # fails where the process may have no more threads
                self._thread = thread

    def _run_thread(self) -> None:
        while self._wake_thread.acquire() and self._has_leader:
            self._commit_as_leader()

    def _commit_as_leader(self) -> None:
        """Commit the waiting jobs, choose the next leader, and answer the callers."""
        with self._gate:
            jobs, self._jobs = self._jobs[:GROUP], self._jobs[GROUP:]
        try:
            self._commit(jobs)
        except BaseException as exc:  # noqa: BLE001  (raised in every caller of the group)
            if self._is_blocked:
                jobs = self._put_back(jobs)
            for job in jobs:
                job.error = exc
        with self._gate:
            following = self._jobs[0] if self._jobs else None
            self._has_leader = following is not None
        if following is not None:
            following.wake.release()
        _answer_callers(jobs)

    def _put_back(self, jobs: list[_Job]) -> list[_Job]:
        """Return the jobs that have waited for the lock for the whole timeout; keep the others."""
        limit = monotonic() - self._timeout + BUSY_STEP_SECONDS
        late = [*takewhile(lambda it: it.at <= limit, jobs)] or jobs[:1]
        with self._gate:
            self._jobs[:0] = jobs[len(late) :]
        return late

    def _commit(self, jobs: list[_Job]) -> None:
        job = jobs[0]
        if job is self._stop_job:
            return
        connection = self._open()
        if job.body is None and not any(map(_get_body, jobs)):  # to read needs no write lock
            return
        try:
            self._begin(connection, job.at)
            if len(jobs) == 1 and job.body is not None:
                job.result = job.body(connection)  # fails as a whole
            else:
                for job in jobs:
                    _attempt(connection, job)
            if self._driver is None or connection.in_transaction():
                connection.commit()
            else:
                self._driver.commit()
        except BaseException:
            connection.rollback()
            if self._driver is not None:
                self._driver.rollback()
            raise
        observe.record_commit(self._database, len(jobs))

    def _begin(self, connection: Connection, since: float) -> None:
        """Take the write lock; jobs that wait since a time have waited for it, if it was not free.

        SQLite would wait for the whole timeout again.
        """
        if self._driver is None:
            return self._database.begin_write(connection)
        was_blocked, self._is_blocked = self._is_blocked, False
        if was_blocked:
            self._set_timeout(since + self._timeout - monotonic())
        try:
            self._database.begin_write(connection, self._driver)
        except sqlite3.OperationalError as exc:
            self._is_blocked = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            raise
        finally:
            if was_blocked:
                self._set_timeout(self._timeout)

    def _set_timeout(self, seconds: float) -> None:
        assert self._driver is not None  # noqa: S101  (the callers use it)
        self._driver.execute(f"PRAGMA busy_timeout={max(0, round(1000 * seconds))}")

    def _open(self) -> Connection:
        if self._connection is not None:
            is_same = self._database.identify() == self._identity
            if is_same and self._database.has_log():
                return self._connection
            self._release_readers()  # the last connection takes its log with it
            if is_same:
                self._database.fold_log(self._connection)
                observe.report_replaced("the log of the database was removed")
            else:
                observe.report_replaced("another database was put in the place of the open one")
            self._close_connection()
        self._database.check_replaced()
        connection = self._engine.connect()
        try:
            self._database.open(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, self._database.identify()
        self._driver = find_driver(connection)
        if self._driver is not None:
            self._timeout = self._driver.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
        observe.report_opened(self._database)
        return connection

    def _close_connection(self) -> None:
        connection, self._connection, self._driver = self._connection, None, None
        if connection is not None:
            connection.close()
            observe.report_closed(self._database)


def find_driver(connection: Connection) -> Any:
    """Return the driver's connection; ``None``: the engine's owner handles its transactions."""
    handlers = connection.dispatch
    is_handled = handlers.begin or handlers.commit or handlers.rollback
    return None if is_handled else connection.connection.driver_connection


def _attempt(connection: Connection, job: _Job) -> None:
    """Run one job of a group under a savepoint, so that it fails alone if SQLite keeps others."""
    if job.body is None:
        return
    driver: Any = connection.connection.driver_connection
    driver.execute("SAVEPOINT job")  # begin_nested() takes 0.15 ms, this 0.01
    try:
        job.result = job.body(connection)
    except Exception as exc:
        if not driver.in_transaction:  # SQLite has undone all, as on a full disk
            raise
        driver.execute("ROLLBACK TO job")
        job.error = exc
    driver.execute("RELEASE job")


_get_body: Any = attrgetter("body")
