"""Connections to Redis: a client per event loop, and retries after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar

from redis import exceptions as driver
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import PipelineCommand

from locus_store.backends.documents.protocol import ChangedError, StaleTagError
from locus_store.backends.redis import failures
from locus_store.backends.redis.options import RedisOptions
from locus_store.backends.redis.scripts import Script
from locus_store.errors import BackendError, LocusStoreError
from locus_store.runtime import loops, observe
from locus_store.runtime.gathering import Failed, Gathering, GroupLimits
from locus_store.runtime.retries import Pauses

T = TypeVar("T")

_retry_time: ContextVar[RetryTime | None] = ContextVar("retry_time", default=None)
"""The retry time of the write that makes the call."""

_limit: ContextVar[float | None] = ContextVar("limit", default=None)
"""The seconds of an attempt; ``None``: those of any answer."""

DRIVER_ERRORS: Final = (driver.RedisError, driver.RedisClusterException, OSError)
"""The errors that redis-py raises."""
Client = Redis | RedisCluster

PIPELINE: Final = 1000
"""Calls in one round trip at most."""

IDLE_SECONDS: Final = 1.0
"""A connection that was idle for longer is tried before it is used."""

PING_LIMIT_SECONDS: Final = 2.0
"""A connection that does not answer in this time is replaced, and so are the idle ones."""

SILENT_SECONDS: Final = 3.0
"""The first attempt of a call that is safe to repeat: its connection may be forgotten by a
firewall or a host. The next one has the whole time."""

WRITES: Final = GroupLimits(count=100, size=1_000_000)
"""Writes to one server that share a round trip."""

CLOSE_SECONDS: Final = 5.0
"""The time for which ``close`` waits for the server to close the connection."""


class Tried:
    """A connection that is tried within a limit of its own; beside a class of redis-py."""

    async def _send_ping(self) -> None:
        try:
            async with asyncio.timeout(PING_LIMIT_SECONDS):
                await super()._send_ping()  # type: ignore[misc]  # the other class's
        except driver.AuthenticationError:  # an answer, and of redis-py's connection errors
            raise
        except driver.NoPermissionError:  # an answer, too; other calls may be permitted
            return
        except (driver.ConnectionError, driver.TimeoutError, OSError) as exc:
            raise failures.StaleError("no answer to PING; is it Redis?") from exc


class Connections(loops.ResourcesPerLoop["LoopClient"]):
    """Clients for the event loops that use a backend.

    Args:
        settings: All options.
        where: The server, without a password.
        make: Gives the running loop's client, or refuses.
        is_owner: Close them on ``close``; otherwise there is one, and its creator closes it.
    """

    def __init__(
        self, settings: RedisOptions, where: str, make: Callable[[], Client], *, is_owner: bool
    ) -> None:
        self.where = where
        super().__init__(lambda: LoopClient(make(), settings, where, is_owner=is_owner), None)


class ScriptCall(NamedTuple):
    """A call of a script."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Any]
    limit: float | None = None
    """See ``_limit``."""

    def build_by_name(self) -> tuple[Any, ...]:
        """Return the command for a server that has loaded the script."""
        return "EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args

    def build_by_text(self) -> tuple[Any, ...]:
        """Return the command for any server."""
        return "EVAL", self.script.source, len(self.keys), *self.keys, *self.args


class LoopClient(loops.LoopResources):
    """The client of one event loop; arguments as for ``Connections``."""

    def __init__(
        self, client: Client, settings: RedisOptions, where: str, *, is_owner: bool
    ) -> None:
        super().__init__()
        self.client: Any = client
        self.where = where
        self._retry_seconds = settings["retry_seconds"]
        self._answer_seconds = settings["timeout_seconds"]
        self.replicas = settings["wait_replicas"]
        self._wait = round(settings["wait_timeout_seconds"] * 1000)
        self._is_owner = is_owner
        self.is_cluster = isinstance(client, RedisCluster)
        self.was_reached = False
        self._places = asyncio.Semaphore(settings["pool_size"])
        self._finding = asyncio.Lock()
        self._found = 0
        self._calls = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_over = False
        self._writing = 0
        self._groups: dict[str, Gathering[ScriptCall, Any]] = {}

    async def read(self, script: Script, keys: Sequence[str], *args: Any) -> Any:
        """Run a script that only reads."""
        return await self.retry(lambda: self._call(ScriptCall(script, keys, args)))

    async def write(self, script: Script, keys: Sequence[str], *args: Any) -> Any:
        """Run a script once; wait for the requested number of replicas.

        Writes that are made while another one is under way share round trips.

        Raises:
            BackendError: It was done, and too few replicas said that they have it.
        """
        call = ScriptCall(script, keys, args, _limit.get())
        self._writing += 1
        try:
            if self._writing > 1:
                size = sum(len(it) for it in args if isinstance(it, bytes))
                return await self._find_group(keys[0]).submit(call, size=size)
            [answer] = await self._write([call])
        finally:
            self._writing -= 1
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def _find_group(self, key: str) -> Gathering[ScriptCall, Any]:
        """Return the waiting writes to the server of a key."""
        node = ""
        if self.is_cluster:
            with suppress(driver.SlotNotCoveredError):  # not connected yet
                node = self.client.get_node_from_key(key).name
        if node not in self._groups:
            self._groups[node] = Gathering(self._write_group, WRITES, spawn=self.spawn)
        return self._groups[node]

    async def _write_group(self, calls: Sequence[ScriptCall], is_alone: bool) -> list[Any]:
        _limit.set(None if any(it.limit is None for it in calls) else calls[0].limit)
        return await self._write(calls)

    async def _write(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts once, in one round trip; return an answer or a ``Failed`` for each."""
        if self.replicas:
            return await self._write_to_replicas(calls)
        if len(calls) == 1:
            return [await self._call(calls[0])]
        answers = await self._run_in_slot(self._run_pipeline, [it.build_by_name() for it in calls])
        unknown = [n for n, it in enumerate(answers) if isinstance(it, driver.NoScriptError)]
        if unknown:
            texts = [calls[n].build_by_text() for n in unknown]
            try:
                found = await self._run_in_slot(self._run_pipeline, texts)
            except DRIVER_ERRORS as exc:  # the others have their answers
                found = [exc] * len(unknown)
            for n, answer in zip(unknown, found, strict=True):
                answers[n] = answer
        return [Failed(it) if isinstance(it, Exception) else it for it in answers]

    async def _write_to_replicas(self, calls: Sequence[ScriptCall]) -> list[Any]:
        # By their text: were a name not known, WAIT would wait for nothing.
        commands = [*(it.build_by_text() for it in calls), ("WAIT", self.replicas, self._wait)]
        sent, waiting = self._run_on_one_connection, self._wait / 1000
        *answers, reached = await self._run_in_slot(sent, commands, more_seconds=waiting)
        return [self._confirm(it, reached) for it in answers]

    def _confirm(self, answer: Any, count: Any) -> Any:
        """Return the answer of a write, or why it is not known to be on enough replicas."""
        for reply in (answer, count):
            if isinstance(reply, Exception):
                return Failed(reply)
        # A script that writes nothing answers with nothing, or with the reason.
        has_word = isinstance(answer, list) and answer and isinstance(answer[0], bytes)
        has_no_write = answer is None or (has_word and answer[0] != b"done")
        if count >= self.replicas or has_no_write:
            return answer
        error = BackendError(
            f"written to Redis {self.where}, but only {count} of {self.replicas} replicas had it "
            f"after {self._wait} ms: a failover now may lose it. Saving again is safe"
        )
        return Failed(error)

    async def run_script_and_commands(
        self,
        script: Script,
        calls: Sequence[tuple[Sequence[str], Sequence[Any]]],
        *others: tuple[Any, ...],
    ) -> list[Any]:
        """Run a script that is safe to repeat many times, and then other commands.

        In as few round trips as there are servers.
        """
        commands = [*(ScriptCall(script, *it).build_by_name() for it in calls), *others]

        async def run() -> list[Any]:
            answers: list[Any] = []
            for at in range(0, len(commands), PIPELINE):
                part = commands[at : at + PIPELINE]
                answers += await self._run_in_slot(self._run_pipeline, part)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

        async def load_and_run() -> list[Any]:
            try:
                return await run()
            except driver.NoScriptError:
                await self.client.script_load(script.source)
                return await run()

        return await self.retry(load_and_run) if commands else []

    async def run_command(self, *command: Any) -> Any:
        """Run a command that is safe to repeat."""
        return await self.retry(lambda: self._run(command))

    async def _run(self, command: Sequence[Any]) -> Any:
        return await self._run_in_slot(self.client.execute_command, *command)

    async def _run_in_slot(
        self, call: Callable[..., Awaitable[Any]], *args: Any, more_seconds: float = 0
    ) -> Any:
        """Await a call while holding one of the slots for concurrent calls.

        A time limit of redis-py would begin a task for each command that it sends.
        """
        try:
            async with asyncio.timeout(self._answer_seconds if self._places.locked() else None):
                await self._places.acquire()
        except TimeoutError as exc:
            raise failures.CrowdedError("all connections are waiting for answers") from exc
        try:
            async with asyncio.timeout((_limit.get() or self._answer_seconds) + more_seconds):
                return await call(*args)
        except TimeoutError as exc:
            raise failures.SilentError("no answer") from exc
        except (AttributeError, TypeError) as exc:
            # On CLUSTERDOWN redis-py 8.1 closes all connections of a cluster, those too that
            # others are just opening: their writer is None then.
            is_without_writer = self.is_cluster and isinstance(exc, AttributeError)
            if not is_without_writer and not failures.is_of_closed_transport(exc):
                raise
            raise driver.ConnectionError("closed by another call") from exc
        finally:
            self._places.release()

    async def _call(self, call: ScriptCall) -> Any:
        try:
            return await self._run(call.build_by_name())
        except driver.NoScriptError:  # a new server, or its cache was emptied
            return await self._run(call.build_by_text())

    async def _run_pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run commands in one round trip; return their answers and errors."""
        pipe = self.client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        found: list[Any] = await pipe.execute(raise_on_error=False)
        return found

    async def _run_on_one_connection(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run scripts and then a ``WAIT``, which covers its own connection's writes."""
        if not self.is_cluster:
            return await self._run_pipeline(commands)
        await self.client.initialize()
        node = self.client.get_node_from_key(commands[0][3])
        sent = [PipelineCommand(n, *it) for n, it in enumerate(commands)]
        await node.execute_pipeline(sent)
        for command in sent:
            if isinstance(command.result, driver.MovedError):
                await self.client.nodes_manager.move_slot(command.result)
        return [it.result for it in sent]

    @property
    def knows_server(self) -> bool:
        """True if a server has answered, of a cluster perhaps only with a list of its nodes."""
        return self.was_reached or (self.is_cluster and bool(self.client.get_nodes()))

    async def find_masters(self) -> None:
        """Ask a cluster which node serves which slot; redis-py does not do so behind a pipeline.

        Connections of other calls stay.
        """
        if not self.is_cluster:
            return
        found = self._found
        async with self._finding:
            if found == self._found:  # else another call was faster
                with suppress(*DRIVER_ERRORS):
                    await self.client.nodes_manager.initialize()
                self._found += 1

    async def drop_idle(self) -> None:
        """Close the idle connections: after such an error they are of no use either."""
        nodes = self.client.get_nodes() if self.is_cluster else [self.client.connection_pool]
        for node in nodes:
            idle = node._free if self.is_cluster else node._available_connections  # noqa: SLF001
            for connection in list(idle):
                with suppress(*DRIVER_ERRORS):
                    await connection.disconnect(nowait=True)

    async def retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work that is safe to repeat until it succeeds or its time is over."""
        return await self._run_with_retries(work, failures.is_lost)

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a conditional write; retry only until the server accepts it.

        Raises:
            StaleTagError: The server refused it.
            ChangedError: Its outcome is unknown, and there is time to check it.
        """
        answer = await self._run_with_retries(work, failures.is_lost, repeats=False)
        if answer is None:  # to a caller's client perhaps because it repeated the write
            raise StaleTagError if self._is_owner else ChangedError
        return answer

    async def run_once(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work that must not be repeated; retry only until the server accepts it."""
        return await self._run_with_retries(work, lambda _: False)

    async def run_within_one_time(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work of several calls, which share the retry time of one."""
        before = _retry_time.set(RetryTime(self, self._retry_seconds))
        try:
            return await work()
        finally:
            _retry_time.reset(before)

    async def _run_with_retries(
        self,
        work: Callable[[], Awaitable[T]],
        may_again: Callable[[BaseException], bool],
        *,
        repeats: bool = True,
    ) -> T:
        retry_time = _retry_time.get() or RetryTime(self, self._retry_seconds)
        caller = asyncio.current_task()
        asked = caller.cancelling() if caller else 0
        is_first = may_again is failures.is_lost and not retry_time.has_waited
        before = _limit.set(min(SILENT_SECONDS, self._answer_seconds) if is_first else None)
        self._calls += 1
        self._is_idle.clear()
        try:
            while True:
                try:
                    answer = await work()
                except DRIVER_ERRORS as exc:
                    _limit.set(None)
                    is_asking = not repeats and failures.is_lost(exc)
                    await retry_time.wait_after(exc, may_again, is_asking=is_asking)
                    if is_asking:
                        raise ChangedError from exc
                else:
                    if not self.was_reached:
                        self.was_reached = True
                        observe.report_opened(f"redis {self.where}")
                    if caller and caller.cancelling() > asked:
                        # asyncio.wait_for of Python 3.11, by which redis-py sends, swallows it
                        raise asyncio.CancelledError
                    return answer
        finally:
            _limit.reset(before)
            self._calls -= 1
            if not self._calls:
                self._is_idle.set()  # close waits for it
                if self._is_over:  # it was begun before the end, and went on behind it
                    await self._close_client()

    async def _release(self) -> None:
        await self._is_idle.wait()
        self._is_over = True
        await self._close_client()

    async def _close_client(self) -> None:
        if not self._is_owner:
            return
        with suppress(TimeoutError, driver.RedisError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.client.aclose()
        if self.was_reached:
            self.was_reached = False
            observe.report_closed(f"redis {self.where}")


class RetryTime:
    """The time for which a call is retried.

    Args:
        client: The client that makes the call.
        seconds: In all.
    """

    def __init__(self, client: LoopClient, seconds: float) -> None:
        self._client = client
        self._pauses = Pauses(0.04, 2.0, seconds)
        self.is_unsure = False
        self.has_waited = False

    async def wait_after(
        self, exc: Exception, may_again: Callable[[BaseException], bool], *, is_asking: bool
    ) -> None:
        """Wait before the next attempt; raise if there is none.

        A caller that ``is_asking`` whether a write was done does not wait: others write meanwhile.
        """
        if isinstance(exc, LocusStoreError):  # raised by a call that has retried
            raise exc
        client = self._client
        if not client.is_cluster:
            failures.require_no_cluster(exc, client.where)
        self.is_unsure = self.is_unsure or failures.may_be_done(exc)
        is_better_soon = failures.is_transient(exc) or (
            client.knows_server and may_again(exc)  # else a wrong address is reported at once
        )
        pause = self._pauses.get_next() if is_better_soon else None
        if pause is None:
            raise failures.translate_error(exc, client.where, is_unsure=self.is_unsure) from exc
        observe.report_retry("connection", exc)
        self.has_waited = True
        await asyncio.sleep(0 if is_asking else pause)
        if isinstance(exc, failures.REPLACING):
            await client.drop_idle()
        if failures.is_lost(exc):
            await client.find_masters()
