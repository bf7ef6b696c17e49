"""SQLite's runners: writers that commit for each other, and concurrent readers.

A body is a plain function of a connection. A sync call runs its body in its own thread, an async
one hands it to a thread of the runner. Bodies that wait while another thread commits share the next
transaction, each under its own savepoint. Each caller is answered after the commit.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet, finalize

from locus_store.errors import BackendError
from locus_store.runtime import loops, observe
from locus_store.runtime.stepping import in_thread, may_block, now

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

    from locus_store.backends.sqlite.dialect import SQLiteDatabase
    from locus_store.sql.runner import Body

T = TypeVar("T")
B = TypeVar("B")
Release = Callable[[], None]
_Answer = tuple[object, BaseException | None]

GROUP = 256
"""Bodies in one transaction at most."""

READERS = 4
"""Reading threads, for async calls."""

_READER = "locus-store-reader"


class _Job:
    """A body of a sync call, whose thread waits.

    Args:
        body: The body.
        lead: Gives the lead to another thread than the one that waits.
    """

    __slots__ = ("_changed", "_error", "_result", "body", "is_answered", "lead")

    def __init__(self, body: Body[Any] | None, lead: Callable[[], None] | None = None) -> None:
        self.body = body
        self.is_answered = False
        self._changed = threading.Lock()
        self._changed.acquire()
        self.lead = lead or self._changed.release

    def wait(self) -> None:
        """Wait for the answer, or for the lead."""
        self._changed.acquire()

    def answer(self, result: object, error: BaseException | None) -> None:
        """Pass the result to the thread that waits."""
        self._result, self._error, self.is_answered = result, error, True
        self._changed.release()

    def result(self) -> Any:
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
        lead: Gives the lead to the writer's thread.
    """

    __slots__ = ("body", "future", "lead", "loop")

    def __init__(self, body: Body[Any] | None, lead: Callable[[], None]) -> None:
        self.body = body
        self.lead = lead
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def answer(self, result: object, error: BaseException | None) -> None:
        """Pass the result to the caller, in its event loop."""
        if self.future.done():  # its caller was cancelled
            return
        if error is not None:
            loops.fail(self.future, error)
        else:
            self.future.set_result(result)


def _tell(jobs: list[_Job | _LoopJob], answers: list[_Answer]) -> None:
    """Pass the results to the callers; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_LoopJob, _Answer]]] = {}
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(job, _Job):
            job.answer(*answer)
        else:
            by_loop.setdefault(job.loop, []).append((job, answer))
    for loop, told in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(_answer_all, told)


def _answer_all(told: list[tuple[_LoopJob, _Answer]]) -> None:
    for job, (result, error) in told:
        job.answer(result, error)


class _Stopped(Exception):  # noqa: N818  (never leaves this module)
    """The writer stopped before it took the job; another writer may take it."""


class _Writer:
    """The writing connection, which the thread that has the *lead* uses.

    A job that finds the lead free takes it. Its thread commits for all jobs that wait, and leaves
    the lead to the next one that came meanwhile.
    """

    def __init__(self, engine: Engine, database: SQLiteDatabase, release_readers: Release) -> None:
        self._engine = engine
        self._database = database
        self._release_readers = release_readers
        self._gate = threading.Lock()
        """Guards the four below."""

        self._jobs: deque[_Job | _LoopJob] = deque()
        self._is_led = False
        self._last: _Job | None = None
        """Stops the writer."""

        self._thread: threading.Thread | None = None
        """Leads for async calls; begun by the first one."""

        self._wanted = threading.Lock()
        """Locked until the writer's thread has the lead, or has to end."""

        self._wanted.acquire()
        self._connection: Connection | None = None
        self._identity: object = None

    def run(self, body: Body[T] | None) -> T:
        """Run a body in a transaction; without a body, only make sure that the database is open.

        Raises:
            _Stopped: Nothing was run.
        """
        job = _Job(body)
        if not self._submit(job):
            job.wait()
        if not job.is_answered:
            self._lead()
        result: T = job.result()
        return result

    async def run_apart(self, body: Body[T] | None) -> T:
        """See ``run``; for a caller that an event loop runs."""
        job = _LoopJob(body, self._wanted.release)
        if self._thread is None:
            self._begin_thread()
        if self._submit(job):
            job.lead()
        result: T = await job.future
        return result

    def stop(self) -> None:
        """Finish what was submitted, close the connection, end the thread."""
        last = _Job(None, self._wanted.release if self._thread else None)
        with suppress(_Stopped):
            if self._submit(last, stops=True):
                last.lead()
            last.wait()
            if not last.is_answered:
                self._lead()
            if self._thread is not None:
                self._wanted.release()
                self._thread.join()
            last.result()

    @property
    def is_here(self) -> bool:
        """True in the writer's thread."""
        return threading.current_thread() is self._thread

    def _submit(self, job: _Job | _LoopJob, *, stops: bool = False) -> bool:
        """Add a job, and with ``stops`` the last one; return whether it has the lead."""
        with self._gate:
            if self._last is not None:
                raise _Stopped
            if stops:
                assert isinstance(job, _Job)  # noqa: S101  (see stop)
                self._last = job
            self._jobs.append(job)
            leads, self._is_led = not self._is_led, True
            return leads

    def _begin_thread(self) -> None:
        with self._gate:
            if self._thread is None and self._last is None:
                self._thread = threading.Thread(
                    target=self._work, name="locus-store-writer", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while self._wanted.acquire() and self._is_led:
            self._lead()

    def _lead(self) -> None:
        """Commit the bodies that wait, pass the lead on, and answer the callers."""
        with self._gate:
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), GROUP))]
        try:
            answers = self._commit([it.body for it in jobs if it is not self._last])
            if jobs[-1] is self._last:
                self._release()
                answers.append((None, None))
        except BaseException as exc:  # noqa: BLE001  (told to every caller of the group)
            answers = [(None, exc)] * len(jobs)
        with self._gate:
            following = self._jobs[0] if self._jobs else None
            self._is_led = following is not None
        if following is not None:
            following.lead()
        _tell(jobs, answers)

    def _commit(self, bodies: list[Body[Any] | None]) -> list[_Answer]:
        if not bodies:
            return []
        connection = self._opened()
        if not any(bodies):  # to read needs no write lock
            return [(None, None)] * len(bodies)
        try:
            self._database.begin_write(connection)
            if len(bodies) == 1 and bodies[0] is not None:
                answers: list[_Answer] = [(bodies[0](connection), None)]  # fails as a whole
            else:
                answers = [_attempt(connection, it) for it in bodies]
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        observe.committed(self._database, len(bodies))
        return answers

    def _opened(self) -> Connection:
        if self._connection is not None:
            is_same = self._database.identity() == self._identity
            if is_same and self._database.has_log():
                return self._connection
            self._release_readers()  # the last connection takes its log with it
            if is_same:
                self._database.fold_log(self._connection)
                observe.replaced("the log of the database was removed")
            else:
                observe.replaced("another database stands in the place of the opened one")
            self._release()
        self._database.left()
        connection = self._engine.connect()
        try:
            self._database.opened(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, self._database.identity()
        observe.opened(self._database)
        return connection

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            observe.closed(self._database)


def _attempt(connection: Connection, body: Body[Any] | None) -> _Answer:
    """Run one body of a group under a savepoint, so that it fails alone."""
    if body is None:
        return None, None
    cursor = connection.connection.cursor()  # begin_nested() takes 0.15 ms, this 0.01
    cursor.execute("SAVEPOINT job")
    try:
        result = body(connection)
    except Exception as exc:  # noqa: BLE001  (told to its caller)
        cursor.execute("ROLLBACK TO job")
        return None, exc
    finally:
        cursor.execute("RELEASE job")
        cursor.close()
    return result, None


class ThreadRunner:
    """Runs bodies on synchronous engines, in threads.

    Args:
        database: What differs per database.
        make_engines: Gives (the writing engine, the reading engine or ``None`` to read on the
            writer's connection). It must not hold on to the runner.
        owns_engines: Dispose of them on ``close``.
        keeps_open: ``close`` leaves the database open: one in memory would be lost. It ends with
            this object.
    """

    runs_in_threads = True

    def __init__(
        self,
        database: SQLiteDatabase,
        make_engines: Callable[[], tuple[Engine, Engine | None]],
        *,
        owns_engines: bool = True,
        keeps_open: bool = False,
    ) -> None:
        self._database = database
        self._make_engines = make_engines
        self._owns_engines = owns_engines
        self._keeps_open = keeps_open
        self._lock = threading.Lock()
        self._open: _Open | None = None
        if not keeps_open:
            _runners.add(self)

    async def write(self, body: Body[T]) -> T:
        """See ``Runner``."""
        if may_block():
            return await now(self._here, _Open.write, body)
        return await self._apart(_Open.write_apart, body)

    async def read(self, body: Body[T]) -> T:
        """See ``Runner``."""
        if may_block():
            return await now(self._here, _Open.read, body)
        return await self._apart(_Open.read_apart, body)

    async def ready(self) -> None:
        """See ``Runner``."""
        if may_block():
            await now(self._here, _Open.write, None)
        else:
            await self._apart(_Open.write_apart, None)

    def _here(self, run: Callable[[_Open, B], T], body: B) -> T:
        while True:
            with suppress(_Stopped):  # closed by another thread in between: open anew
                return run(self._opened(), body)

    async def _apart(self, run: Callable[[_Open, B], Awaitable[T]], body: B) -> T:
        while True:
            with suppress(_Stopped):
                return await run(self._opened(), body)

    async def query(self, body: Body[T]) -> T:
        """See ``Runner``."""
        return await self.read(body)

    def _opened(self) -> _Open:
        with self._lock:
            if self._open is not None and self._open.pid != os.getpid():
                _inherited.append(self._open)  # the parent's: neither used nor closed here
                self._open.forget()
                self._open = None
            if self._open is not None and self._open.is_closed:
                raise BackendError("this process is ending; nothing more was read or written")
            if self._open is None:
                writes, reads = self._make_engines()
                self._open = _Open(self._database, writes, reads, owned=self._owns_engines)
                self._open.finalizer = finalize(self, self._open.close)
            return self._open

    def hold(self) -> None:
        """Close all connections, and open none until ``go_on``."""
        self._lock.acquire()
        here, self._open = self._open, None
        if here is not None:
            here.close()

    def go_on(self) -> None:
        """Undo ``hold``: the next call opens the database again."""
        self._lock.release()

    async def close(self) -> None:
        """See ``Runner``."""
        if self._keeps_open:
            return
        with self._lock:
            here, self._open = self._open, None
        if here is not None and here.pid == os.getpid():
            try:
                await in_thread(here.close)
            except RuntimeError:  # a function of `atexit`: Python begins no more threads
                here.close()


_inherited: list[object] = []
"""Keeps a parent process's connections from being closed by a child's garbage collector."""

_runners: WeakSet[ThreadRunner] = WeakSet()
_held: list[ThreadRunner] = []


def _before_fork() -> None:
    """Close the database: SQLite's locks are per process, and an inherited file has none.

    Its parent would then close as the last one and take the log away from under it.
    """
    for runner in list(_runners):
        runner.hold()
        _held.append(runner)


def _after_fork() -> None:
    while _held:
        _held.pop().go_on()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


class _Open:
    """The resources of one process, held apart from the runner for its finalizer."""

    def __init__(
        self, database: SQLiteDatabase, writes: Engine, reads: Engine | None, *, owned: bool
    ) -> None:
        self.pid = os.getpid()
        self.finalizer: Any = None
        self._database = database
        self._reads = reads
        self._engines = [it for it in (writes, reads) if it is not None] if owned else []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix=_READER)
        self._gate = threading.Condition()
        """Guards the two below."""

        self._reading = 0
        """Sync calls that read."""

        self.is_closed = False
        self._identity: object = None
        self._writer = _Writer(writes, database, self._release_readers)

    def write(self, body: Body[T] | None) -> T:
        """Run a body in a transaction, in this thread."""
        return self._writer.run(body)

    async def write_apart(self, body: Body[T] | None) -> T:
        """Run a body in a transaction, for a caller that an event loop runs."""
        return await self._writer.run_apart(body)

    def read(self, body: Body[T]) -> T:
        """Run a body on one snapshot, in this thread."""
        if self._reads is None:
            return self._writer.run(body)
        if self._is_new():
            self._writer.run(None)  # verifies the schema, or opens the database anew
            self._identity = self._database.identity()
        with self._gate:
            self._require_open()
            self._reading += 1
        try:
            return self._read(self._reads, body)
        finally:
            with self._gate:
                self._reading -= 1
                if self.is_closed:
                    self._gate.notify_all()

    async def read_apart(self, body: Body[T]) -> T:
        """Run a body on one snapshot, for a caller that an event loop runs."""
        if self._reads is None:
            return await self._writer.run_apart(body)
        if self._is_new():
            await self._writer.run_apart(None)
            self._identity = self._database.identity()
        loop = asyncio.get_running_loop()
        with self._gate:
            self._require_open()
            reading = loop.run_in_executor(self._readers, self._read, self._reads, body)
        return await reading

    def _is_new(self) -> bool:
        """Return whether the database is not the one that was read last."""
        return self._identity is None or self._identity != self._database.identity()

    def _require_open(self) -> None:
        if self.is_closed:
            raise _Stopped

    def _read(self, engine: Engine, body: Body[T]) -> T:
        with engine.connect() as connection:
            self._database.begin_read(connection)
            try:
                return body(connection)
            finally:
                connection.rollback()

    def _release_readers(self) -> None:
        """Close the connections to a database that is no longer there."""
        if self._reads is not None and self._reads in self._engines:
            self._reads.dispose()

    def forget(self) -> None:
        """Detach the finalizer: a forked child leaves the parent's resources open."""
        if self.finalizer is not None:
            self.finalizer.detach()

    def close(self) -> None:
        """Answer what was submitted, then release everything."""
        if self.pid != os.getpid():
            return
        self.forget()
        if self._writer.is_here:  # it runs the finalizer
            threading.Thread(target=self._close, daemon=True).start()
        else:
            self._close()

    def _close(self) -> None:
        with self._gate:
            self.is_closed = True
        self._writer.stop()
        is_reader = threading.current_thread().name.startswith(_READER)  # it runs the finalizer
        self._readers.shutdown(wait=not is_reader)
        with self._gate:
            self._gate.wait_for(lambda: not self._reading)
        for engine in self._engines:
            engine.dispose()
