"""An in-memory store for tests and notebooks; its items live as long as the object."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Unpack
from weakref import WeakKeyDictionary

from locus_store.backend import StorageBackend
from locus_store.backends.documents.item_store import ItemStore
from locus_store.backends.memory.options import InMemoryStoreOptions
from locus_store.errors import InvalidArgumentError
from locus_store.runtime.forks import make_lock

T = TypeVar("T")

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
