"""SQLite's writing connection, which calls that wait share (group commit)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import takewhile
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.engine import Connection, Engine

from locus_store.backends.sqlite.dialect import SQLiteDatabase
from locus_store.runtime import loops, observe
from locus_store.sql.connections.backend import Body

if TYPE_CHECKING:
    _Answer = tuple[object, BaseException | None]

T = TypeVar("T")

GROUP: Final = 256
"""Bodies in one transaction at most."""

BUSY_STEP_SECONDS: Final = 0.01
"""A job whose time ends so soon is not waited for again."""


class _Job:
    """A body of a sync call, whose thread waits.

    Args:
        body: The body.
        promote: Makes another thread than the one that waits the leader.
    """

    __slots__ = ("_changed", "_error", "_result", "at", "body", "is_answered", "promote")

    def __init__(self, body: Body[Any] | None, promote: Callable[[], None] | None = None) -> None:
        self.body = body
        self.at = monotonic()
        self.is_answered = False
        self._changed = threading.Lock()
        self._changed.acquire()
        self.promote = promote or self._changed.release

    def wait(self) -> None:
        """Wait until the job is answered, or its thread is the leader."""
        self._changed.acquire()

    def answer(self, result: object, error: BaseException | None) -> None:
        """Pass the result to the thread that waits."""
        self._result, self._error, self.is_answered = result, error, True
        self._changed.release()

    def get_result(self) -> Any:
        """Return the result, or raise the error."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._result
        finally:
            del error  # its traceback has this frame


class _LoopJob:
    """A body of an async call.

    Args:
        body: The body.
        promote: Makes the writer's thread the leader.
    """

    __slots__ = ("at", "body", "future", "loop", "promote")

    def __init__(self, body: Body[Any] | None, promote: Callable[[], None]) -> None:
        self.body = body
        self.at = monotonic()
        self.promote = promote
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def answer(self, result: object, error: BaseException | None) -> None:
        """Pass the result to the caller, in its event loop."""
        if self.future.done():  # the caller was cancelled
            return
        if error is not None:
            loops.fail(self.future, error)
        else:
            self.future.set_result(result)


def _answer_callers(jobs: list[_Job | _LoopJob], answers: list[_Answer]) -> None:
    """Pass the results to the callers; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_LoopJob, _Answer]]] = {}
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(job, _Job):
            job.answer(*answer)
        else:
            by_loop.setdefault(job.loop, []).append((job, answer))
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed: no caller waits
            loop.call_soon_threadsafe(_answer_all, pairs)


def _answer_all(pairs: list[tuple[_LoopJob, _Answer]]) -> None:
    for job, (result, error) in pairs:
        job.answer(result, error)


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

        self._jobs: deque[_Job | _LoopJob] = deque()
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
        if not self._submit(job):
            job.wait()
        if not job.is_answered:
            self._commit_as_leader()
        result: T = job.get_result()
        return result

    async def run_async(self, body: Body[T] | None) -> T:
        """See ``run``; for a caller in an event loop."""
        job = _LoopJob(body, self._wake_thread.release)
        if self._thread is None:
            self._begin_thread()
        if self._submit(job):
            job.promote()
        result: T = await job.future
        return result

    def stop(self) -> None:
        """Finish what was submitted, close the connection, end the thread."""
        last = _Job(None, self._wake_thread.release if self._thread else None)
        with suppress(StoppedError):
            if self._submit(last, stops=True):
                last.promote()
            last.wait()
            if not last.is_answered:
                self._commit_as_leader()
            if self._thread is not None:
                self._wake_thread.release()
                self._thread.join()
            last.get_result()

    def _submit(self, job: _Job | _LoopJob, *, stops: bool = False) -> bool:
        """Add a job, with ``stops`` the last one; return whether its thread is the leader."""
        with self._gate:
            if self._stop_job is not None:
                raise StoppedError
            if stops:
                assert isinstance(job, _Job)  # noqa: S101  (see stop)
                self._stop_job = job
            self._jobs.append(job)
            leads, self._has_leader = not self._has_leader, True
            return leads

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
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), GROUP))]
        try:
            answers = self._commit([it.body for it in jobs if it is not self._stop_job], jobs[0].at)
            if jobs[-1] is self._stop_job:
                self._close_connection()
                answers.append((None, None))
        except BaseException as exc:  # noqa: BLE001  (raised in every caller of the group)
            if self._is_blocked:
                jobs = self._put_back(jobs)
            answers = [(None, exc)] * len(jobs)
        with self._gate:
            following = self._jobs[0] if self._jobs else None
            self._has_leader = following is not None
        if following is not None:
            following.promote()
        _answer_callers(jobs, answers)

    def _put_back(self, jobs: list[_Job | _LoopJob]) -> list[_Job | _LoopJob]:
        """Return the jobs that have waited for the lock for the whole timeout; keep the others."""
        limit = monotonic() - self._timeout + BUSY_STEP_SECONDS
        late = [*takewhile(lambda it: it.at <= limit, jobs)] or jobs[:1]
        with self._gate:
            self._jobs.extendleft(reversed(jobs[len(late) :]))
        return late

    def _commit(self, bodies: list[Body[Any] | None], since: float) -> list[_Answer]:
        if not bodies:
            return []
        connection = self._open()
        if not any(bodies):  # to read needs no write lock
            return [(None, None)] * len(bodies)
        try:
            self._begin(connection, since)
            if len(bodies) == 1 and bodies[0] is not None:
                answers: list[_Answer] = [(bodies[0](connection), None)]  # fails as a whole
            else:
                answers = [_attempt(connection, it) for it in bodies]
            if self._driver is None or connection.in_transaction():
                connection.commit()
            else:
                self._driver.commit()
        except BaseException:
            connection.rollback()
            if self._driver is not None:
                self._driver.rollback()
            raise
        observe.record_commit(self._database, len(bodies))
        return answers

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


def _attempt(connection: Connection, body: Body[Any] | None) -> _Answer:
    """Run one body of a group under a savepoint, so that it fails alone if SQLite keeps others."""
    if body is None:
        return None, None
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute("SAVEPOINT job")  # begin_nested() takes 0.15 ms, this 0.01
        try:
            result = body(connection)
        except Exception as exc:
            if not cursor.connection.in_transaction:  # SQLite has undone all, as on a full disk
                raise
            cursor.execute("ROLLBACK TO job")
            cursor.execute("RELEASE job")
            return None, exc
        cursor.execute("RELEASE job")
    return result, None
