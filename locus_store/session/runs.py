"""Methods for runs of graphs, values beside the versions, and writes that outlive their caller."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from hashlib import sha256
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from locus_store.backend import StorageBackend
from locus_store.effects import EffectLog
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.loops import await_to_end
from locus_store.runtime.portals import SyncWrappers, make_sync_wrapper
from locus_store.runtime.stepping import may_block, wait_for_end
from locus_store.session.cache import CACHE_TTL_SECONDS
from locus_store.session.config import Call
from locus_store.session.models import Message
from locus_store.session.owners import Owners
from locus_store.store import BaseStore
from locus_store.types.arguments import MAX_ID_CHARACTERS, check_id, copy_json_object
from locus_store.types.items import Namespace
from locus_store.types.thread_info import UserIdType, parse_user

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


W = TypeVar("W", bound="RunMethods")


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


class RunMethods(SyncWrappers, ABC):
    """Methods that AgentFlow's graphs call beside those of PyAgenity.

    Stop requests and results of tools belong to a thread, and to its user, and are removed with it.
    Stop requests are kept in the backend's store, and expire.
    """

    ttl_seconds: float | None
    user_id_type: UserIdType
    _owners: Owners
    _writes: Writes

    @property
    @abstractmethod
    def _values(self) -> Values: ...

    @property
    @abstractmethod
    def backend(self) -> StorageBackend:
        """See ``SessionCheckpointer``."""

    @property
    def _effects(self) -> EffectLog:
        return EffectLog(self.backend, ttl_seconds=self.ttl_seconds)

    @abstractmethod
    def _parse(self, config: Mapping[str, Any]) -> Call: ...

    @abstractmethod
    async def aput_state(self, config: Mapping[str, Any], state: Any) -> Any:
        """See ``SessionCheckpointer``, also for the following method."""

    @abstractmethod
    async def aput_messages(
        self,
        config: Mapping[str, Any],
        messages: Sequence[Message],
        metadata: Mapping[str, Any] | None = None,
    ) -> None: ...

    @make_writer
    async def aput_checkpoint(
        self,
        config: Mapping[str, Any],
        state: Any,
        messages: Sequence[Message] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        """Append messages, then save the state that has them; return the state.

        These are two transactions: a process that ends between them leaves messages that no state
        has, never a state without its messages.

        Raises:
            ConflictError: The thread was moved on since the state was loaded. The messages were
                appended, and the state was not saved.
            InvalidArgumentError, NotOwnerError, SerializationError: See ``aput_messages`` and
                ``aput_state``.
        """
        if messages:
            await self.aput_messages(config, messages, metadata)
        return await self.aput_state(config, state)

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
        await self._values.put(await self._make_namespace(call, "stop"), STOP, True, STOP_SECONDS)

    async def ais_stop_requested(self, config: Mapping[str, Any]) -> bool:
        """Return whether a stop was requested and not yet cleared."""
        call = self._parse(config)
        is_requested = await self._values.get(await self._make_namespace(call, "stop"), STOP)
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
            await self._values.drop(await self._make_namespace(call, "stop"), STOP)

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

    async def _make_namespace(self, call: Call, kind: str) -> Namespace:
        """Return the namespace of the values of a thread and its user."""
        user = call.user_id
        if user is None:
            user = await self._owners.find_owner(call.thread_id)
        return make_namespace(call.thread_id, kind, user)

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

    put_checkpoint = make_sync_wrapper(aput_checkpoint)
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


def make_namespace(thread_id: str, kind: str, user_id: str | None) -> Namespace:
    """Return the namespace of a user's values of a thread; another user of its id sees none."""
    whose = () if user_id is None else (user_id,)
    return ROOT, "threads", thread_id, kind, *whose


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
        await self._store.clear_namespace(make_namespace(thread_id, "", None)[:-1], recursive=True)


def shorten_key(key: str) -> str:
    """Return the key that is stored: a long one as its digest."""
    is_digest = len(key) > MAX_ID_CHARACTERS
    return f"sha256:{sha256(key.encode()).hexdigest()}" if is_digest else key
