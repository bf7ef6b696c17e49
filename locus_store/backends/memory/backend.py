"""In-memory backend and store: threads and items in dicts, for tests and trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import NamedTuple, TypeVar, Unpack
from uuid import uuid4
from weakref import WeakKeyDictionary

from locus_store.backend import StorageBackend
from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.item_store import ItemStore
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.protocol import Body, Documents, Found, StaleTagError, Tag
from locus_store.backends.memory.options import InMemoryStoreOptions, MemoryCheckpointerOptions
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.runtime.forks import make_lock
from locus_store.types.arguments import choose_backend
from locus_store.types.options import CheckpointOptions, StateOptions, fill_defaults, split_options
from locus_store.versions.threads import ThreadTransaction

T = TypeVar("T")


class _Document(NamedTuple):
    tag: int
    content: bytearray
    """Continued in place: a save takes time with what it adds."""


class MemoryDocuments(Documents):
    """Documents in a dict."""

    blocks = False

    def __init__(self) -> None:
        self._stored: dict[str, _Document] = {}
        self._tags = count(1)
        self._lock = make_lock()
        self._store = uuid4().hex

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        with self._lock:
            found = self._stored.get(key)
            if found is None:
                return None
            return Found(found.tag, None if found.tag == known else bytes(found.content))

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        with self._lock:
            old = self._require(key, tag)
            content = old.content if old else bytearray()
            content[body.kept_bytes :] = body.rest
            self._stored[key] = made = _Document(next(self._tags), content)
            return made.tag

    def delete(self, key: str, *, tag: Tag) -> None:
        with self._lock:
            self._require(key, tag)
            self._stored.pop(key, None)

    def keys(self, after: str = "") -> Iterator[str]:
        with self._lock:
            return iter(sorted(it for it in self._stored if it > after))

    def _require(self, key: str, tag: Tag | None) -> _Document | None:
        found = self._stored.get(key)
        if tag != (found.tag if found else None):
            raise StaleTagError
        return found


class MemoryBackend(DocumentBackend):
    """Keeps versions in this process; they are lost when it ends.

    It may be used from several threads and event loops: writes wait for each other.
    """

    factory = "MemoryCheckpointer"
    persistent_checkpoint_ids = False
    needs_no_loop = moves_between_threads = True

    def __init__(self, **options: Unpack[StateOptions]) -> None:
        given = fill_defaults(StateOptions, options, "MemoryBackend")
        super().__init__(MemoryDocuments(), max_state_bytes=given["max_state_bytes"])

    def __repr__(self) -> str:
        return "MemoryBackend()"

    @property
    def storage_name(self) -> str:
        return f"memory {id(self._documents)}"

    def clear(self) -> None:
        """Remove all threads."""
        threads = self._threads
        for thread_id in self._documents.keys(after=""):
            drop = partial(threads.write, thread_id, ThreadTransaction.drop_thread, creates=False)
            threads.run_at_once(drop)

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads that have a version."""
        return [thread.thread_id for thread, _ in self._iterate_roots()]

    def version_count(self, thread_id: str) -> int:
        """Return how many versions a thread has."""
        thread = self._threads.read(thread_id)
        history = thread.find_history("") if thread else None
        return len(history.list_visible()) if history else 0


class InMemoryMessageLog(DocumentMessageLog):
    """Keeps message logs in this process; usable from any number of threads and event loops.

    Arguments and errors are those of ``MemoryBackend`` and ``BaseMessageLog``, or ``backend``
    alone: the one whose threads have the logs, for example ``checkpointer.backend``.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float | None = None,
        backend: MemoryBackend | None = None,
        **options: Unpack[StateOptions],
    ) -> None:
        chosen = choose_backend(backend, MemoryBackend, **options)
        super().__init__(chosen, owns=False, ttl_seconds=ttl_seconds)

    def __repr__(self) -> str:
        return "InMemoryMessageLog()"


class MemoryCheckpointer(StorageBackendAdapter[S, MemoryBackend]):
    """A checkpointer in this process's memory, for tests and trials; lost when it ends.

    Arguments and errors are those of ``MemoryBackend`` and ``StorageBackendAdapter``.
    """

    def __init__(
        self, *, state_type: type[S] | None = None, **options: Unpack[MemoryCheckpointerOptions]
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        super().__init__(MemoryBackend(**rest), state_type=state_type, **own)

    def clear(self) -> None:
        """Remove all threads."""
        self.backend.clear()
        self._loads.clear()

    def get_thread_ids(self) -> list[str]:
        """Return the ids of all threads."""
        return self.backend.thread_ids()

    def get_checkpoint_count(self, thread_id: str | None = None) -> int:
        """Return how many versions a thread has, or all threads have; 0 where there is none."""
        ids = self.get_thread_ids() if thread_id is None else [thread_id]
        return sum(map(self.backend.version_count, ids))


def memory_checkpointer(
    *, state_type: type[S] | None = None, **options: Unpack[MemoryCheckpointerOptions]
) -> MemoryCheckpointer[S]:
    """Return a checkpointer in this process's memory; options as ``MemoryCheckpointer``."""
    return MemoryCheckpointer(state_type=state_type, **options)


_STORES: WeakKeyDictionary[StorageBackend, InMemoryStore] = WeakKeyDictionary()
"""The store of each backend in memory, which all storages over it share."""


class InMemoryStore(ItemStore):
    """Keeps items in this process; usable from any number of threads and event loops.

    See ``BaseStore`` for the options. Nothing outlives the object.
    """

    def __init__(self, **options: Unpack[InMemoryStoreOptions]) -> None:
        super().__init__(**options)
        self._lock = make_lock()

    def __repr__(self) -> str:
        return f"InMemoryStore({sum(map(len, self._namespaces.values()))} items)"

    async def setup(self) -> None:
        """See ``BaseStore``, also for the following methods."""

    async def _run(self, work: Callable[[], T], *, changes: bool = False) -> T:
        with self._lock:
            return work()

    async def close(self) -> None:
        """Do nothing: no resource is open, and the items stay."""


def find_store(backend: StorageBackend, make: Callable[[], InMemoryStore]) -> InMemoryStore:
    """Return the store of a backend in memory: the first one that was made for it.

    Raises:
        InvalidArgumentError: ``make`` gives another dimension.
    """
    made = make()
    found = _STORES.setdefault(backend, made)
    if made.dimension not in {None, found.dimension}:
        raise InvalidArgumentError(
            f"dimension={made.dimension}: this storage has a store in memory already, of dimension "
            f"{found.dimension}"
        )
    return found
