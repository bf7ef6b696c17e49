"""The blocking form of every contract, for code without an event loop."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, Self, TypeAlias, TypeVar, Unpack, cast

from locus_store import open as opening
from locus_store.backends.memory import backend as memory
from locus_store.backends.memory.options import InMemoryStoreOptions
from locus_store.backends.options import CheckpointerOptions
from locus_store.checkpointer import BaseCheckpointer, S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.messages import BaseMessageLog
from locus_store.runtime.portals import Portals, make_blocking
from locus_store.store import BaseStore
from locus_store.turns import HasTurns, HeldTurn, ThreadHandle, bind_thread
from locus_store.types import CheckpointerCapabilities
from locus_store.types.items import StoreCapabilities
from locus_store.types.marks import Loads, loaded_here
from locus_store.types.tenants import ForTenants
from locus_store.types.turns import TurnOptions

P = ParamSpec("P")
T = TypeVar("T")
Numbers: TypeAlias = "list[float]"  # in a store, `list` is a method
Wrapped = TypeVar("Wrapped", bound="BaseCheckpointer[Any] | BaseMessageLog | BaseStore")


class _Blocking(ForTenants, Generic[Wrapped]):
    """An object whose calls block; if they need an event loop, the first call makes it."""

    def __init__(self, wrapped: Wrapped) -> None:
        self._async: Wrapped = wrapped
        self._portals = Portals.make_for(self, wrapped)
        self._owns_portals = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._async!r})"

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._portals.run(type(self).__name__, call)

    def _block(self, name: str, *args: Any, **options: Any) -> Any:
        """Run the wrapped object's method of this name."""
        _require_sync(options)
        return self._run(partial(getattr(self._async, name), *args, **options))

    def open(self) -> None:
        """Connect, and verify or create the schema; optional and idempotent."""
        self._run(self._async.open)

    def _enter(self, tenant: str) -> None:
        self._async = cast("Wrapped", self._async.for_tenant(tenant))
        self._owns_portals = False

    def close(self) -> None:
        """Close the wrapped object and end the loop's thread; usable again afterwards."""
        if self._portals.is_open and self._owns_portals:
            self._run(self._async.close)
            self._portals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _require_sync(options: Mapping[str, Any]) -> None:
    """Refuse a connection that belongs to an event loop other than this object's."""
    sqlalchemy = sys.modules.get("sqlalchemy.ext.asyncio")
    if sqlalchemy and isinstance(options.get("connection"), sqlalchemy.AsyncConnection):
        raise InvalidArgumentError(
            "connection= is an AsyncConnection, and this object blocks: pass a Connection of a "
            "sync engine, or use the asynchronous object"
        )


class _BlockingTurns(_Blocking[Wrapped]):
    """The turns of a checkpointer's or message log's threads."""

    def turn(self, thread_id: str, **options: Unpack[TurnOptions]) -> HeldTurn:
        """Return the turn of a thread, to be held within ``with``; see ``turns.HasTurns.turn``."""
        held = cast("HasTurns", self._async).turn(thread_id, **options)
        held.run = self._run
        return held

    busy = make_blocking(HasTurns.busy)
    turns = make_blocking(HasTurns.turns)
    release_turn = make_blocking(HasTurns.release_turn)


class BlockingCheckpointer(_BlockingTurns[BaseCheckpointer[S]], Generic[S]):
    """A checkpointer whose methods block; usable from any number of threads.

    On SQLite, files and memory, the calling thread does the work. Elsewhere the object has an event
    loop and a thread, started by the first call and ended by ``close``. Every method is the one of
    the same name of the checkpointer, with the same arguments, results and errors. What the calling
    thread has loaded is remembered for its next save.

    Args:
        checkpointer: Any checkpointer; closed by ``close``.
    """

    def __init__(self, checkpointer: BaseCheckpointer[S]) -> None:
        super().__init__(checkpointer)

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The capabilities that the checkpointer declares."""
        return self._async.capabilities

    @property
    def deletes_single_checkpoints(self) -> bool:
        """True if ``delete`` can remove one version and leave the rest."""
        return self._async.deletes_single_checkpoints

    save = make_blocking(StorageBackendAdapter.save)
    load = make_blocking(BaseCheckpointer[S].load)
    list_checkpoints = make_blocking(StorageBackendAdapter.list_checkpoints)
    delete = make_blocking(BaseCheckpointer.delete)
    exists = make_blocking(BaseCheckpointer.exists)
    tenants = make_blocking(BaseCheckpointer.tenants)
    get_quota = make_blocking(BaseCheckpointer.get_quota)
    set_quota = make_blocking(BaseCheckpointer.set_quota)
    search = make_blocking(BaseCheckpointer.search)
    query_by_metadata = make_blocking(BaseCheckpointer.query_by_metadata)
    get_metadata = make_blocking(BaseCheckpointer.get_metadata)
    vacuum = make_blocking(BaseCheckpointer.vacuum)
    renewals = make_blocking(BaseCheckpointer.renewals)
    expire = make_blocking(BaseCheckpointer.expire)
    copy_thread = make_blocking(BaseCheckpointer.copy_thread)
    list_threads = make_blocking(StorageBackendAdapter.list_threads)
    list_with_metadata = make_blocking(BaseCheckpointer.list_with_metadata)
    effect = make_blocking(BaseCheckpointer.effect)
    effects = make_blocking(BaseCheckpointer.effects)
    resolve_effect = make_blocking(BaseCheckpointer.resolve_effect)

    def for_thread(self, thread_id: str) -> BlockingThread[S]:
        """Return the methods of this object that take ``thread_id``, for one thread."""
        return BlockingThread(self, thread_id)

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call on the loop, and return its record of loads to the caller's context."""

        async def carried() -> tuple[T, Loads]:
            loaded_here.set(mine)
            return await call(), loaded_here.get()

        mine = loaded_here.get()
        result, noted = super()._run(carried)
        loaded_here.set(noted)
        return result


class BlockingThread(ThreadHandle, Generic[S]):
    """One thread of a blocking checkpointer: its methods that take ``thread_id``, without it."""

    save = bind_thread(BlockingCheckpointer.save, 1)
    load = bind_thread(make_blocking(BaseCheckpointer[S].load))
    list_checkpoints = bind_thread(BlockingCheckpointer.list_checkpoints)
    delete = bind_thread(BlockingCheckpointer.delete)
    exists = bind_thread(BlockingCheckpointer.exists)
    get_metadata = bind_thread(BlockingCheckpointer.get_metadata)
    effect = bind_thread(BlockingCheckpointer.effect)
    effects = bind_thread(BlockingCheckpointer.effects)
    resolve_effect = bind_thread(BlockingCheckpointer.resolve_effect)
    turn = bind_thread(BlockingCheckpointer.turn)
    busy = bind_thread(BlockingCheckpointer.busy)
    release_turn = bind_thread(BlockingCheckpointer.release_turn)


class BlockingStore(_Blocking[BaseStore]):
    """A store whose methods block; usable from any number of threads.

    The threads are those of ``BlockingCheckpointer``. Every method is the one of the same name of
    the store, with the same arguments, results and errors.

    Args:
        store: Any store; closed by ``close``.
    """

    def __init__(self, store: BaseStore) -> None:
        super().__init__(store)

    @property
    def capabilities(self) -> StoreCapabilities:
        """The capabilities that the store declares."""
        return self._async.capabilities

    setup = make_blocking(BaseStore.setup)
    put = make_blocking(BaseStore.put)
    put_with_embedding = make_blocking(BaseStore.put_with_embedding)
    get = make_blocking(BaseStore.get)
    get_item = make_blocking(BaseStore.get_item)
    exists = make_blocking(BaseStore.exists)
    get_embedding = make_blocking(BaseStore.get_embedding)
    delete = make_blocking(BaseStore.delete)
    touch = make_blocking(BaseStore.touch)
    put_batch = make_blocking(BaseStore.put_batch)
    get_batch = make_blocking(BaseStore.get_batch)
    list = make_blocking(BaseStore.list)
    list_keys = make_blocking(BaseStore.list_keys)
    search = make_blocking(BaseStore.search)
    search_many = make_blocking(BaseStore.search_many)
    search_by_embedding = make_blocking(BaseStore.search_by_embedding)
    list_namespaces = make_blocking(BaseStore.list_namespaces)
    clear_namespace = make_blocking(BaseStore.clear_namespace)
    expire = make_blocking(BaseStore.expire)

    def __enter__(self) -> Self:
        self.setup()
        return self


class InMemoryStore(BlockingStore):
    """The blocking form of the store for tests and notebooks; see ``BaseStore`` for the options."""

    def __init__(self, **options: Unpack[InMemoryStoreOptions]) -> None:
        super().__init__(memory.InMemoryStore(**options))


class BlockingMessageLog(_BlockingTurns[BaseMessageLog]):
    """A message log whose methods block; usable from any number of threads.

    The threads are those of ``BlockingCheckpointer``. Each method has the arguments, results and
    errors of the message log's.

    Args:
        log: Any message log; closed by ``close``.
    """

    def __init__(self, log: BaseMessageLog) -> None:
        super().__init__(log)

    append = make_blocking(BaseMessageLog.append)
    replace = make_blocking(BaseMessageLog.replace)
    pop = make_blocking(BaseMessageLog.pop)
    remove = make_blocking(BaseMessageLog.remove)
    clear = make_blocking(BaseMessageLog.clear)
    delete = make_blocking(BaseMessageLog.delete)
    load = make_blocking(BaseMessageLog.load)
    contents = make_blocking(BaseMessageLog.contents)
    read = make_blocking(BaseMessageLog.read)
    page = make_blocking(BaseMessageLog.page)
    get = make_blocking(BaseMessageLog.get)
    info = make_blocking(BaseMessageLog.info)
    logs = make_blocking(BaseMessageLog.logs)
    heads = make_blocking(BaseMessageLog.heads)


def open_checkpointer(
    url: str, *, state_type: type[S] | None = None, **options: Unpack[CheckpointerOptions]
) -> BlockingCheckpointer[S]:
    """Return the blocking form of the checkpointer that ``url`` names; see ``locus_store.open``."""
    return BlockingCheckpointer(opening.open_checkpointer(url, state_type=state_type, **options))


def _make_opening(function: Callable[P, Any], blocking: Callable[[Any], T]) -> Callable[P, T]:
    """Return a function with the arguments of ``function``, which returns the blocking form."""

    @wraps(function)
    def open_blocking(*args: P.args, **kwargs: P.kwargs) -> T:
        return blocking(function(*args, **kwargs))

    return open_blocking


open_store = _make_opening(opening.open_store, BlockingStore)
open_message_log = _make_opening(opening.open_message_log, BlockingMessageLog)
