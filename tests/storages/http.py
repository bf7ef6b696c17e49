"""A real service on loopback: memory, SQLite and PostgreSQL behind it."""

from __future__ import annotations

from typing import Any

from services import Service

from locus_store import InMemoryMessageLog, InMemoryStore, MemoryBackend
from locus_store.backends import (
    PostgreSQLBackend,
    PostgreSQLMessageLog,
    SQLiteBackend,
    SQLiteMessageLog,
    SQLiteStore,
)
from locus_store.backends.http import HTTPBackend, http_checkpointer
from locus_store.backends.http.backend import HTTPMessageLog, HTTPStore
from locus_store.backends.http.connections import HTTPConnections
from locus_store.backends.http.remote import RemoteService
from locus_store.backends.http.transport import ClientOptions
from locus_store.testing.kit import limit_backend
from locus_store.values import vectors
from locus_store.values.encoding import MAX_STATE_BYTES
from storages import Storage
from storages.memory import MemoryProbe


class LimitedRemote(RemoteService):
    """A service to which ``limited`` gives a limit: by another service on the same storage."""

    def __init__(self, storage: OverMemory) -> None:
        connections = HTTPConnections(storage.service().url, ClientOptions())
        super().__init__(connections, max_state_bytes=MAX_STATE_BYTES)
        self._storage = storage

    @property
    def max_state_bytes(self) -> int:
        return MAX_STATE_BYTES

    @max_state_bytes.setter
    def max_state_bytes(self, limit: int) -> None:
        service = self._storage.limited(limit)
        self._connections = HTTPConnections(service.url, ClientOptions())


class OverMemory(Storage):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.behind = self.backend_behind()
        self._running: dict[Any, Service] = {}

    def backend_behind(self) -> Any:
        return MemoryBackend()

    def service(self) -> Service:
        return self._started(None, lambda: Service(self.behind))

    def limited(self, max_state_bytes: int) -> Service:
        return self._started(
            max_state_bytes, lambda: Service(limit_backend(self.behind, max_state_bytes))
        )

    def _started(self, name: Any, start: Any) -> Service:
        if name not in self._running:
            self._running[name] = start()
        return self._running[name]

    async def close(self) -> None:
        for it in self._running.values():
            it.stop()

    def checkpointer(self, **options: Any) -> Any:
        limit = options.get("max_state_bytes")
        is_valid = type(limit) is int and limit > 0
        service = self.limited(limit) if is_valid else self.service()
        return http_checkpointer(service.url, **options)

    def backend(self) -> Any:
        made = HTTPBackend(self.service().url)
        made.service = LimitedRemote(self)
        return made

    def store(self, **options: Any) -> Any:
        metric = options.get("metric", "cosine")
        if metric in vectors.METRICS:
            store = InMemoryStore(dimension=3, metric=metric)
            url = self._started(metric, lambda: Service(MemoryBackend(), store=store)).url
        else:
            url = "http://localhost"
        return HTTPStore(url, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        log = InMemoryMessageLog(backend=self.behind)
        service = self._started("log", lambda: Service(self.behind, messages=log))
        return HTTPMessageLog(service.url, **options)

    def probe(self) -> Any:
        return MemoryProbe(self.behind)


class OverSQLite(OverMemory):
    def backend_behind(self) -> Any:
        return SQLiteBackend(self.fixture("database_file"))

    def store(self, **options: Any) -> Any:
        metric = options.get("metric", "cosine")
        store = SQLiteStore(backend=self.behind, dimension=3, metric=metric)
        service = self._started(metric, lambda: Service(self.behind, store=store))
        return HTTPStore(service.url, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        log = SQLiteMessageLog(backend=self.behind)
        service = self._started("log", lambda: Service(self.behind, messages=log))
        return HTTPMessageLog(service.url, **options)

    def probe(self) -> Any:
        return None


class OverPostgreSQL(OverMemory):
    def backend_behind(self) -> Any:
        return PostgreSQLBackend(self.fixture("migrated_database"))

    def log(self, **options: Any) -> Any:
        log = PostgreSQLMessageLog(backend=self.behind)
        service = self._started("log", lambda: Service(self.behind, messages=log))
        return HTTPMessageLog(service.url, **options)

    def probe(self) -> Any:
        return None
