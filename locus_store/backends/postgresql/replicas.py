"""Reads from replicas that have replayed the writes which a read must see.

The position in the write-ahead log is compared before the read's snapshot is taken: within one
statement, the snapshot would be older than the position.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy.engine import Connection

from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
from locus_store.backends.postgresql.options import WalPosition, get_read_limits
from locus_store.errors import ConnectionFailedError, InvalidArgumentError, LocusStoreError
from locus_store.runtime import observe
from locus_store.runtime.forks import make_lock
from locus_store.sql.connections.backend import Body
from locus_store.sql.connections.database import ServerDatabase, is_overtime
from locus_store.sql.connections.lending import await_only
from locus_store.sql.connections.pool import LoopPool, PooledRunner

T = TypeVar("T")

STALE_SECONDS: Final = 10.0
"""A replica may be so far behind where ``max_staleness_seconds`` is not given."""

GATHER_SECONDS: Final = 0.005
"""Between a write and the question for its position, which other writes share."""

PATIENCE_SECONDS: Final = 0.02
"""A read waits for a replica at most this long, before it goes to the primary."""

POLL_SECONDS: Final = 0.004
"""Between two looks at a replica that is waited for."""

BEHIND_SECONDS: Final = 0.05
"""A replica that was waited for in vain is not waited for again before."""

TRUSTED_SECONDS: Final = 1.0
"""After this time a replica is asked again whether it still follows the primary."""

ANSWER_SECONDS: Final = 1.0
"""Time limit of the question for the position, and for a free connection to a replica."""

CONNECT_SECONDS: Final = 2.0
"""For a connection to a replica, where the options have no limit."""

RETRY_SECONDS: Final = 5.0
"""Between two attempts to use a replica again, which no read waits for."""

MOST_THREADS: Final = 16_384
"""Threads whose last writes are remembered one by one."""

MOST_STATES: Final = 1_000
"""Positions of the primary that are remembered."""

_ASK: Final = """
SELECT pg_is_in_recovery() AS is_replica, s.system_identifier, current_database() AS database,
  CASE WHEN pg_is_in_recovery() THEN lpad(to_hex(c.timeline_id), 8, '0')
    ELSE pg_walfile_name(pg_current_wal_insert_lsn()) END AS timeline,
  CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
    ELSE pg_current_wal_insert_lsn() END::text AS position
FROM pg_control_system() s, pg_control_checkpoint() c
"""


class ServerState(NamedTuple):
    """A server's position in the write-ahead log."""

    writes: int
    """The number of this object's writes that had ended before the server was asked."""

    asked_at: float
    """By the clock of this process."""

    is_replica: bool
    database: tuple[int, str]
    """The identifier of the cluster, which its replicas share, and the database's name."""

    position: WalPosition
    """The timeline of a replica is that of its last restart point: an older one for a while."""

    def has(self, other: ServerState) -> bool:
        """Return whether this replica follows a primary, and has replayed up to its position."""
        return self.is_replica_of(other) and self.position >= other.position

    def is_replica_of(self, other: ServerState) -> bool:
        """Return whether this is a replica of a primary, on its timeline."""
        is_its = self.database == other.database and self.position.is_comparable(other.position)
        return self.is_replica and is_its


async def ask(driver: Any, writes: int = 0) -> ServerState:
    """Return a server's state; ``writes`` is the number of this object's ended writes."""
    asked_at = time.monotonic()
    row = await driver.fetchrow(_ASK, timeout=ANSWER_SECONDS)
    system, timeline = row["system_identifier"], int(row["timeline"][:8], 16)
    upper, _, lower = row["position"].partition("/")
    position = WalPosition(system, timeline, (int(upper, 16) << 32) + int(lower, 16))
    return ServerState(writes, asked_at, row["is_replica"], (system, row["database"]), position)


async def ask_through(pool: LoopPool, writes: int = 0) -> ServerState:
    """Return the state of a pool's server; see ``ask``."""
    async with pool.lease_driver() as connection:
        return await ask(connection, writes)


class Positions:
    """The positions that replicas need to have replayed for an object's reads.

    Writes are numbered as they end, and the primary is asked for its position soon after. No
    caller waits for that: a read of what has no position yet goes to the primary.

    Args:
        stale_seconds: A replica may be so far behind the primary; ``None``: ``STALE_SECONDS``.
    """

    def __init__(self, stale_seconds: float | None) -> None:
        self._is_limited = stale_seconds is not None
        self._stale_seconds = STALE_SECONDS if stale_seconds is None else stale_seconds
        self._writes = 0
        """The number of the last write."""
        self._any = 0
        """The number of the last write that may concern any thread."""
        self._threads: OrderedDict[str, int] = OrderedDict()
        """The numbers of the last writes of other threads."""
        self._joined: list[tuple[Any, str | None]] = []
        """Transactions of the caller's that have written a thread, or anything."""
        self._states: list[ServerState] = []
        """Of the primary, in the order of the questions."""
        self._asking: WeakSet[LoopPool] = WeakSet()
        self._lock = make_lock()  # several loops may use one object

    def note(self, pool: LoopPool, thread_id: str | None) -> None:
        """Note that a write has ended; see ``LoopPool.note_write``."""
        with self._lock:
            self._note_number(thread_id)
        self._ask_soon(pool)

    def note_joined(self, connection: Any, thread_id: str | None) -> None:
        """Note a write in a transaction of the caller's, which has not ended."""
        connection = getattr(connection, "sync_connection", connection)
        transaction = getattr(connection, "get_transaction", lambda: None)()
        if transaction is not None:  # else it was refused
            with self._lock:
                self._joined.append((transaction, thread_id))

    def _note_number(self, thread_id: str | None) -> None:
        self._writes += 1
        if thread_id is None:
            self._any = self._writes
            return
        self._threads[thread_id] = self._writes
        self._threads.move_to_end(thread_id)
        if len(self._threads) > MOST_THREADS:
            self._any = max(self._any, self._threads.popitem(last=False)[1])

    def find(
        self, pool: LoopPool, thread_id: str | None, *, may_lack_writes: bool = False
    ) -> ServerState | None:
        """Return the state of the primary that a replica must have reached, if it is known.

        Args:
            pool: Of the primary, which is asked if its known state is old.
            thread_id: The thread that is read; ``None``: what is read may be of any write.
            may_lack_writes: If its age is limited, the read may lack writes of this object.
        """
        limits = get_read_limits()
        sees_writes = not (may_lack_writes and (self._is_limited or limits.seconds < inf))
        with self._lock:
            now, seconds = time.monotonic(), min(self._stale_seconds, limits.seconds)
            for joined in [it for it in self._joined if not it[0].is_active]:
                self._joined.remove(joined)
                self._note_number(joined[1])  # of the caller's transaction, which has ended
            number = max(self._any, self._threads.get(thread_id, 0)) if thread_id else self._writes
            is_open = any(thread_id in {None, it} or it is None for _, it in self._joined)
            states = self._states
            oldest = bisect_left(states, now - seconds, key=attrgetter("asked_at"))
            if sees_writes:
                oldest = max(oldest, bisect_left(states, number, key=attrgetter("writes")))
            is_known = oldest < len(states) and not (sees_writes and is_open)
            found = states[oldest] if is_known else None
            is_old = not states or states[-1].asked_at < now - seconds / 4
            if is_old or states[-1].writes < self._writes:
                self._ask_soon(pool)
        needed = found and limits.raise_position(found.position)
        return found._replace(position=needed) if found and needed else None

    def _ask_soon(self, pool: LoopPool) -> None:
        if pool not in self._asking:
            self._asking.add(pool)
            pool.spawn(self._ask(pool))

    async def _ask(self, pool: LoopPool) -> None:
        try:
            await asyncio.sleep(GATHER_SECONDS)
            state = await ask_through(pool, self._writes)
        except list_errors(pool.database) as exc:
            pool.note(exc)  # the primary answers, or fails with the error
            return
        finally:
            self._asking.discard(pool)
        self.add(state)
        if state.writes < self._writes:
            self._ask_soon(pool)

    def add(self, state: ServerState) -> None:
        if state.is_replica:  # a primary that was demoted
            return
        with self._lock:
            states, by_time = self._states, attrgetter("asked_at")
            insort(states, state, key=by_time)
            del states[: bisect_left(states, state.asked_at - self._stale_seconds, key=by_time)]
            if len(states) > MOST_STATES:
                del states[:-1:2]  # a later one serves as well


def list_errors(database: ServerDatabase) -> tuple[type[Exception], ...]:
    """Return the errors after which the primary is asked."""
    return LocusStoreError, *database.driver_errors


class ReplicaPool(LoopPool):
    """A replica's connections of one event loop."""

    is_dispensable = True


class Replica(PooledRunner):
    """The connections to one replica.

    Args:
        database: Of the primary.
        where: The server, for a person.
        is_behind_pooler: A connection may lead to another session in each transaction.
        options: See ``PooledRunner``.
    """

    database: PostgreSQLDatabase

    def __init__(
        self, database: PostgreSQLDatabase, where: str, *, is_behind_pooler: bool, **options: Any
    ) -> None:
        super().__init__(database, make_pool=ReplicaPool, **options)
        self.where = where
        self._trusted_seconds = 0.0 if is_behind_pooler else TRUSTED_SECONDS
        self.problem: str | None = "not compared yet"
        self._tried_at = -inf
        self._states: WeakKeyDictionary[Any, ServerState] = WeakKeyDictionary()
        """By connection of the driver: a name may lead to several servers."""
        self._behind: ServerState | None = None
        """As it was when it was waited for in vain."""

    @property
    def is_usable(self) -> bool:
        """True if it followed the primary when it was asked last."""
        return self.problem is None

    def _judge(self, problem: str | None) -> None:
        if problem != self.problem and problem is None:
            observe.connections.info("%s: reading from this replica", self.where)
        elif problem != self.problem:
            observe.connections.warning(
                "%s: not reading from this replica: %s", self.where, problem
            )
        self.problem, self._tried_at = problem, time.monotonic()

    def _judge_state(self, state: ServerState, primary: ServerState) -> None:
        is_its = state.is_replica_of(primary)
        self._judge(None if is_its else "it does not follow the primary")

    async def get_pool(self) -> LoopPool:
        """Return the running loop's connections; the schema is the primary's."""
        return await self._pools.get()

    async def compare(self, primary: ServerState) -> None:
        """Use this replica from now on if it follows the primary.

        Raises:
            InvalidArgumentError: It is a server of another cluster or database.
        """
        pool = await self.get_pool()
        try:
            state = await ask_through(pool)
        except list_errors(self.database) as exc:
            self.fail(pool, exc)
            return
        if state.database != primary.database:
            self._judge("it is another database")
            raise InvalidArgumentError(
                f"replicas={self.where}: this server is not a replica of the primary; nothing was"
                " written. Name servers that replicate it physically, and hold the same database"
            )
        self._judge_state(state, primary)

    def fail(self, pool: LoopPool, exc: Exception) -> None:
        """Note the error of a read; a server that cannot be reached is left alone for a while."""
        pool.note(exc)
        is_lost = self.database.is_lost_connection(exc) or is_overtime(exc)
        if is_lost or isinstance(exc, ConnectionFailedError):
            self._judge("it cannot be reached")

    def try_again(self, pool: LoopPool, primary: ServerState) -> None:
        """Compare this replica again from time to time; ``close`` of the primary's pool waits."""
        if self._tried_at < time.monotonic() - RETRY_SECONDS:
            self._tried_at = time.monotonic()
            pool.spawn(self.compare(primary))

    async def has(self, driver: Any, primary: ServerState) -> bool:
        """Return whether the replica behind a connection has reached a state of the primary.

        Waits a little for it. From then on, new snapshots see what had been committed by then.
        """
        began = time.monotonic()
        state = self._states.get(driver)
        if state and state.has(primary) and state.asked_at > began - self._trusted_seconds:
            return True
        behind = self._behind
        if behind and began < behind.asked_at + BEHIND_SECONDS and not behind.has(primary):
            return False
        while True:
            state = self._states[driver] = await ask(driver)
            if state.has(primary):
                return True
            self._judge_state(state, primary)
            if not self.is_usable:
                return False
            if time.monotonic() > began + PATIENCE_SECONDS:
                self._behind = state
                return False
            await asyncio.sleep(POLL_SECONDS)


class PrimaryPool(LoopPool):
    """The primary's connections of one event loop, whose writes are noted.

    Args:
        options: See ``LoopPool``.
        positions: Where they are noted.
        replicas: Compared with the primary before the schema is verified.
    """

    def __init__(
        self, *options: Any, positions: Positions, replicas: Sequence[Replica], **more: Any
    ) -> None:
        super().__init__(*options, **more)
        self._positions = positions
        self._replicas = WeakSet(replicas)  # a dropped runner closes its replicas' connections

    def note_write(self, thread_id: str | None = None) -> None:
        self._positions.note(self, thread_id)

    async def prepare(self) -> None:
        """Refuse servers that are no replicas of the primary; those that are away are tried later.

        Raises:
            InvalidArgumentError: One is of another cluster or database; nothing was written.
        """
        primary = await self.retry(partial(ask_through, self))
        if not primary.is_replica:
            await asyncio.gather(*(it.compare(primary) for it in self._replicas))


class PrimaryRunner(PooledRunner):
    """Runs on a primary, and with ``reader`` on its replicas.

    Args:
        database: Of the primary.
        replicas: Its replicas.
        stale_seconds: See ``Positions``.
        options: See ``PooledRunner``.
    """

    def __init__(
        self,
        database: PostgreSQLDatabase,
        *,
        replicas: Sequence[Replica],
        stale_seconds: float | None,
        **options: Any,
    ) -> None:
        self.positions = Positions(stale_seconds)
        self.replicas = replicas
        make_pool = partial(PrimaryPool, positions=self.positions, replicas=replicas)
        super().__init__(database, make_pool=make_pool, **options)

    async def close(self) -> None:
        await super().close()
        for replica in self.replicas:
            await replica.close()


class ReplicaReader:
    """Reads from replicas where they have what is needed, else from the primary.

    An empty answer of a replica is asked of the primary again: another process may have just
    written what is looked for. So is what fails on a replica.

    Args:
        runner: Of the primary.
        may_lack_writes: Reads of a limited age may lack writes of this object.
    """

    def __init__(self, runner: PrimaryRunner, *, may_lack_writes: bool = False) -> None:
        self._runner = runner
        self._may_lack_writes = may_lack_writes
        self._turns = count()
        self.note_joined = runner.positions.note_joined

    async def read(self, body: Body[T]) -> T:
        return await self._run(self._runner.database.begin_read, body, self._runner.read)

    async def query(self, body: Body[T]) -> T:
        return await self._run(self._runner.database.begin_statement, body, self._runner.query)

    async def _run(
        self, begin: Body[None], body: Body[T], on_primary: Callable[[Body[T]], Awaitable[T]]
    ) -> T:
        async def on_replica(replica: Replica, pool: LoopPool, primary: ServerState) -> T:
            def begin_there(connection: Connection) -> None:
                driver = connection.connection.driver_connection
                if not await_only(replica.has(driver, primary)):
                    raise _BehindError
                begin(connection)

            return await pool.run(begin_there, body)

        found = await self._try(None, on_replica, may_lack_writes=self._may_lack_writes)
        return found or await on_primary(body)

    async def fetch(
        self, thread_id: str | None, text: str, values: tuple[Any, ...]
    ) -> list[Any] | None:
        """Return a replica's answer to a statement; ``None``: the primary has to answer."""

        async def on_replica(replica: Replica, pool: LoopPool, primary: ServerState) -> Any:
            async with pool.lease_driver() as connection:
                if not await replica.has(connection, primary):
                    return None
                return await connection.fetch(text, *values)

        return await self._try(thread_id, on_replica)

    async def _try(
        self,
        thread_id: str | None,
        on_replica: Callable[[Replica, LoopPool, ServerState], Awaitable[T]],
        *,
        may_lack_writes: bool = False,
    ) -> T | None:
        """Return the answer of a replica; ``None`` if none may or can answer."""
        primary_pool = await self._runner.get_pool()
        positions = self._runner.positions
        primary = positions.find(primary_pool, thread_id, may_lack_writes=may_lack_writes)
        if primary is None:
            return None
        usable = []
        for replica in self._runner.replicas:
            if replica.is_usable:
                usable.append(replica)
            else:
                replica.try_again(primary_pool, primary)
        if not usable:
            return None
        replica = usable[next(self._turns) % len(usable)]
        pool = await replica.get_pool()
        try:
            return await on_replica(replica, pool, primary)
        except list_errors(self._runner.database) as exc:
            replica.fail(pool, exc)
            return None


class _BehindError(LocusStoreError):
    """A replica has not replayed enough."""
