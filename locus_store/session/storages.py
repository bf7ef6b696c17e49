"""The message log and the store on the connections of a session's backend."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from locus_store.backend import StorageBackend
from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.memory.backend import MemoryBackend
from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.open import MESSAGE_LOGS, STORES
from locus_store.session.cache import StateCache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.messages import BaseMessageLog
    from locus_store.store import BaseStore

_IN_MEMORY: WeakKeyDictionary[StorageBackend, BaseStore] = WeakKeyDictionary()
"""The store of each backend in memory, which all sessions over it share."""


def check_parts(backend: object, cache: object, release_resources: object) -> None:
    """Refuse arguments of a session that are of another type."""
    if not isinstance(backend, StorageBackend) and not callable(backend):
        raise TypeError(
            f"a session keeps its data in a StorageBackend, not a {type(backend).__name__}"
        )
    if not (cache is None or isinstance(cache, StateCache) or callable(cache)):
        raise InvalidArgumentError(
            f"cache must be a LocalCache, RedisCache or other StateCache, not {cache!r:.80}"
        )
    if not isinstance(release_resources, bool):
        raise InvalidArgumentError(
            f"release_resources must be True or False, not {release_resources!r:.80}"
        )


def message_log_of(backend: StorageBackend, ttl_seconds: float | None) -> BaseMessageLog:
    """Return the message log on a backend's connections.

    Raises:
        UnsupportedError: The backend keeps no message logs.
    """
    if isinstance(backend, DocumentBackend):
        return DocumentMessageLog(backend, owns=False, ttl_seconds=ttl_seconds)
    kind = _class_beside(backend, MESSAGE_LOGS)
    if kind is None:
        raise UnsupportedError(f"{type(backend).__name__} keeps no message logs")
    log: BaseMessageLog = kind(backend=backend, ttl_seconds=ttl_seconds)
    return log


def store_of(backend: StorageBackend) -> BaseStore:
    """Return the store on a backend's connections.

    Raises:
        UnsupportedError: There is none for this backend.
    """
    kind = _class_beside(backend, STORES)
    if kind is None:
        raise UnsupportedError(f"there is no store beside a {type(backend).__name__}")
    if isinstance(backend, MemoryBackend):
        return _IN_MEMORY.setdefault(backend, kind())
    store: BaseStore = kind(backend=backend)
    return store


def _class_beside(backend: StorageBackend, classes: Mapping[str, str]) -> Any:
    """Return the class of these for the technology of a backend, or of one that it extends."""
    for kind in type(backend).__mro__:
        folder = kind.__module__.removeprefix("locus_store.backends.").partition(".")[0]
        if folder in classes:
            return getattr(import_module("locus_store.backends"), classes[folder])
    return None
