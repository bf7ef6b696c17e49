"""The parts of a session, its methods for runs of graphs, and writes that outlive their caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import cached_property, wraps
from hashlib import sha256
from typing import Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar

from pydantic import BaseModel

from locus_store.backend import StorageBackend
from locus_store.effects import EffectLog
from locus_store.errors import UnsupportedError
from locus_store.messages import BaseMessageLog
from locus_store.open import Storage
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.loops import await_to_end
from locus_store.runtime.portals import Portals, make_sync_wrapper
from locus_store.runtime.stepping import may_block, wait_for_end
from locus_store.session.cache import CACHE_TTL_SECONDS, StateCache
from locus_store.session.config import Call, check_options, check_state_class, to_call
from locus_store.session.owners import Owners
from locus_store.session.reads import StateReads
from locus_store.store import BaseStore
from locus_store.turns import HasSyncTurns
from locus_store.types.arguments import (
    MAX_ID_CHARACTERS,
    check_id,
    check_keep_last,
    check_ttl,
    copy_json_object,
)
from locus_store.types.items import Namespace
from locus_store.types.thread_info import UserIdType, check_user_id_type, parse_user

P = ParamSpec("P")
T = TypeVar("T")


class Writes:
    """The writes that are under way, by event loop."""

    def __init__(self) -> None:
        self._tasks: PerLoop[set[asyncio.Task[Any]]] = PerLoop(set)
        self._without_loop: PerLoop[set[Future[None]]] = PerLoop(set)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a write, which continues when the caller is cancelled."""
        if may_block():
            return await self._await(work)
        tasks, task = self._tasks.get(), asyncio.create_task(work, name="locus-store")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return await await_to_end(task)

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        mine: Future[None] = Future()
        writes = self._without_loop.get()
        writes.add(mine)
        try:
            return await work
        finally:
            writes.discard(mine)
            mine.set_result(None)

    async def drain(self) -> None:
        """Wait for the writes of this loop, also of tasks that were created but not yet begun."""
        if may_block():
            for future in list(self._without_loop.get()):
                await wait_for_end(future)
            return
        await asyncio.sleep(0)
        while tasks := self._tasks.get():
            await asyncio.wait(tasks)


W = TypeVar("W", bound="BaseSession")


def make_writer(
    method: Callable[Concatenate[W, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """Make a method a write."""

    @wraps(method)
    async def run(self: W, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writes.run(method(self, *args, **kwargs))

    return run  # type: ignore[return-value]  # of the same signature


STOP_SECONDS: Final = 3600
"""A stop request that no run has seen by then is dropped."""

STOP: Final = "requested"


class BaseSession(HasSyncTurns):
    """The parts of a session, and methods that AgentFlow's graphs call beside those of PyAgenity.

    Stop requests and results of tools belong to a thread, and to its user, and are removed with it.
    Stop requests are kept in the backend's store, and expire. See ``SessionCheckpointer`` for the
    arguments.
    """

    turns_part = "log"

    def __init__(
        self,
        backend: StorageBackend | Callable[[], StorageBackend],
        cache: StateCache | Callable[[], StateCache | None] | None = None,
        *,
        cache_verify_seconds: float = 1.0,
        user_id_type: UserIdType = "string",
        on_conflict: Literal["raise", "overwrite"] = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        release_resources: bool = True,
    ) -> None:
        check_options(backend, cache, on_conflict, release_resources)
        self._given = backend, cache
        self.user_id_type = check_user_id_type(user_id_type)
        self.on_conflict: Final = on_conflict
        self.keep_last = check_keep_last(keep_last)
        self.ttl_seconds = check_ttl(ttl_seconds)
        self.release_resources = release_resources
        self._state_class: type[BaseModel] | None = None
        self._writes = Writes()
        self._reads = StateReads(lambda: self.backend, lambda: self.cache, cache_verify_seconds)
        self._owners = Owners(lambda: self.backend, self._reads.verify_seconds, self.user_id_type)
        if isinstance(backend, StorageBackend):
            _ = self.log, self._owners.threads  # refused if it keeps no messages or users
            _ = None if callable(cache) else self.cache  # refused if it would hold states in clear

    @cached_property
    def backend(self) -> StorageBackend:
        """The backend that keeps states, messages and facts of threads."""
        backend, _ = self._given
        return backend if isinstance(backend, StorageBackend) else backend()

    @cached_property
    def cache(self) -> StateCache | None:
        """The cache of states, if there is one."""
        _, cache = self._given
        found = cache() if callable(cache) else cache
        if found is not None and found.leaves_process and hasattr(self.backend, "encryption"):
            raise UnsupportedError(
                f"{type(found).__name__} would hold the states of an encrypted storage in clear; "
                "use a LocalCache, or none"
            )
        return found

    @cached_property
    def log(self) -> BaseMessageLog:
        """The message log of all threads, on the backend's connections."""
        return Storage(self.backend).messages(ttl_seconds=self.ttl_seconds)

    @cached_property
    def _values(self) -> Values:
        return Values(Storage(self.backend).store())

    @cached_property
    def _portals(self) -> Portals:  # type: ignore[override]
        caches = () if self.cache is None else (self.cache,)
        return Portals.make_for(self, self.backend, *caches)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.backend!r}, {self.cache!r})"

    async def __aenter__(self) -> Self:
        await self.asetup()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.arelease()

    def bind_state_type(self, state_type: type[BaseModel] | None) -> None:
        """Return states as this class, unless a config has a ``state_class``."""
        self._state_class = check_state_class(state_type)

    async def asetup(self) -> None:
        """Connect, and create or migrate the schema; idempotent. The first call does it, too.

        Raises:
            ConnectionFailedError, SchemaError: See ``StorageBackend.open``.
            SchemaError: The database's user ids are of another type than ``user_id_type``.
            InvalidArgumentError: No database is configured; the message names the setting.
        """
        _ = self.log, self._owners.threads
        await self.backend.open()
        await self._owners.open()

    async def arelease(self) -> None:
        """Wait for the writes that have begun, and release what this object opened.

        Idempotent; the object may be used again afterwards.
        """
        await self._writes.drain()
        self._reads.close()
        if not self.release_resources or "backend" not in vars(self):
            return
        await self.backend.close()
        if (cache := vars(self).get("cache")) is not None:
            await cache.close()

    @property
    def _effects(self) -> EffectLog:
        return EffectLog(self.backend, ttl_seconds=self.ttl_seconds)

    def _parse(self, config: Mapping[str, Any]) -> Call:
        _ = self.backend, self.cache  # a wrong option fails before anything is written
        return to_call(config, self.user_id_type)

    async def aget_thread_owner(self, thread_id: str | int) -> str | int | None:
        """Return the user of a thread to any caller; ``None``: no such thread, or no user."""
        found = await self._owners.threads.thread_facts(check_id("thread_id", thread_id))
        return None if found is None else parse_user(found.user_id, self.user_id_type)

    @make_writer
    async def arequest_stop(self, config: Mapping[str, Any]) -> None:
        """Ask the run of a thread to stop; the request expires after an hour.

        Raises:
            NotOwnerError: The thread is another user's; nothing was written.
        """
        call = self._parse(config)
        await self._owners.require(call)
        await self._values.put(await self._find_place(call), STOP, True, STOP_SECONDS)

    async def ais_stop_requested(self, config: Mapping[str, Any]) -> bool:
        """Return whether a stop was requested and not yet cleared."""
        call = self._parse(config)
        is_requested = await self._values.get(await self._find_place(call), STOP)
        return bool(is_requested) and await self._owners.may_read(call)

    @make_writer
    async def aclear_stop_request(self, config: Mapping[str, Any]) -> None:
        """Drop the stop request of a thread, if there is one.

        Raises:
            NotOwnerError: The thread is another user's; nothing was written.
        """
        call = self._parse(config)
        await self._owners.require(call)
        if await self.ais_stop_requested(config):
            await self._values.drop(await self._find_place(call), STOP)

    @make_writer
    async def aput_tool_result(
        self, config: Mapping[str, Any], tool_call_id: str, result: Mapping[str, Any]
    ) -> None:
        """Record the result of a tool's call as an effect of the thread; the first one stays.

        Raises:
            NotOwnerError: The thread is another user's; nothing was written.
            SerializationError: JSON cannot keep the result; nothing was written.
        """
        call = self._parse(config)
        kept = copy_json_object("result", result)
        await self._owners.claim(call)
        await self._effects.record(call.thread_id, shorten_key(str(tool_call_id)), kept)

    async def aget_tool_result(
        self, config: Mapping[str, Any], tool_call_id: str
    ) -> dict[str, Any] | None:
        """Return the recorded result of a tool's call; ``None`` if there is none."""
        call, key = self._parse(config), shorten_key(str(tool_call_id))
        found: dict[str, Any] | None = await self._effects.find_result(call.thread_id, key)
        return found if found is not None and await self._owners.may_read(call) else None

    async def _find_place(self, call: Call) -> Namespace:
        """Return the namespace of the stop requests of a thread and its user."""
        return make_stop_place(
            call.thread_id, call.user_id or await self._owners.find_owner(call.thread_id)
        )

    @make_writer
    async def aput_cache_value(
        self, namespace: str, key: str, value: Any, ttl_seconds: float | None = None
    ) -> None:
        """Keep a JSON value for a time, a day by default; any user may read it.

        Raises:
            InvalidArgumentError: A name or the time is not valid.
            SerializationError: JSON cannot keep the value.
        """
        ttl_seconds = CACHE_TTL_SECONDS if ttl_seconds is None else ttl_seconds
        await self._values.put(_make_place(namespace), key, value, ttl_seconds)

    async def aget_cache_value(self, namespace: str, key: str) -> Any:
        """Return a value; ``None`` if there is none."""
        return await self._values.get(_make_place(namespace), key)

    @make_writer
    async def aclear_cache_value(self, namespace: str, key: str) -> None:
        """Remove a value, if there is one."""
        await self._values.drop(_make_place(namespace), key)

    async def alist_cache_keys(self, namespace: str, prefix: str | None = None) -> list[str]:
        """Return the keys of a namespace that begin with a prefix."""
        keys = self._values.iterate_keys(_make_place(namespace))
        return [it async for it in keys if it.startswith(prefix or "")]

    def release(self) -> None:
        """Release as ``arelease`` does, and end the loop of the blocking methods."""
        if self._portals.is_open:
            self._block("arelease")
            self._portals.close()

    setup = make_sync_wrapper(asetup)
    get_thread_owner = make_sync_wrapper(aget_thread_owner)
    request_stop = make_sync_wrapper(arequest_stop)
    is_stop_requested = make_sync_wrapper(ais_stop_requested)
    clear_stop_request = make_sync_wrapper(aclear_stop_request)
    put_tool_result = make_sync_wrapper(aput_tool_result)
    get_tool_result = make_sync_wrapper(aget_tool_result)
    put_cache_value = make_sync_wrapper(aput_cache_value)
    get_cache_value = make_sync_wrapper(aget_cache_value)
    clear_cache_value = make_sync_wrapper(aclear_cache_value)
    list_cache_keys = make_sync_wrapper(alist_cache_keys)


def _make_place(namespace: str) -> Namespace:
    return ROOT, "values", namespace


ROOT: Final = "locus.session"
"""First segment of the namespaces in the store."""

PAGE: Final = 1000


def make_stop_place(thread_id: str, user_id: str | None) -> Namespace:
    """Return the namespace of a user's stop requests; another user of the thread sees none."""
    whose = () if user_id is None else (user_id,)
    return ROOT, "threads", thread_id, "stop", *whose


class Values:
    """Keeps JSON values by namespace and key; the key may have any length.

    Args:
        store: The store.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    async def put(self, place: Namespace, key: str, value: Any, ttl_seconds: float) -> None:
        whole = {"key": key, "value": value}
        await self._store.put(place, shorten_key(key), whole, ttl_seconds=ttl_seconds)

    async def get(self, place: Namespace, key: str) -> Any:
        """Return a value; ``None`` if there is none."""
        found = await self._store.get(place, shorten_key(key))
        return None if found is None else found["value"]

    async def drop(self, place: Namespace, key: str) -> None:
        """Remove a value, if there is one."""
        await self._store.delete(place, shorten_key(key))

    async def iterate_keys(self, place: Namespace) -> AsyncIterator[str]:
        after: str | None = None
        while items := await self._store.list(place, limit=PAGE, after=after):
            for item in items:
                yield item.value["key"]
            after = items[-1].key

    async def clear_thread(self, thread_id: str) -> None:
        await self._store.clear_namespace((ROOT, "threads", thread_id), recursive=True)


def shorten_key(key: str) -> str:
    """Return the key that is stored: a long one as its digest."""
    is_digest = len(key) > MAX_ID_CHARACTERS
    return f"sha256:{sha256(key.encode()).hexdigest()}" if is_digest else key
