"""The contracts over a real service on loopback: memory, SQLite and PostgreSQL behind it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from services import Service
from test_contract_memory import MemoryProbe

from locus_store import (
    InMemoryMessageLog,
    InMemoryStore,
    MemoryBackend,
)
from locus_store.backends import (
    PostgreSQLBackend,
    PostgreSQLMessageLog,
    SQLiteBackend,
    SQLiteStore,
)
from locus_store.backends.http import HTTPBackend, http_checkpointer
from locus_store.backends.http.connections import ClientOptions, HTTPConnections
from locus_store.backends.http.messages import HTTPMessageLog
from locus_store.backends.http.remote import RemoteService
from locus_store.backends.http.store import HTTPStore
from locus_store.testing import (
    CheckpointerContract,
    MessageLogContract,
    StorageBackendContract,
    StoreContract,
)
from locus_store.testing.kit import limited
from locus_store.values import vectors
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator


class Services:
    """Services over one storage, each with a limit of its own."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._running: list[Service] = []
        self.main = self._start(backend)

    def _start(self, backend: Any) -> Service:
        self._running.append(Service(backend))
        return self._running[-1]

    def limited(self, max_state_bytes: int) -> Service:
        return self._start(limited(self.backend, max_state_bytes))

    def stop(self) -> None:
        for it in self._running:
            it.stop()


class OverService(CheckpointerContract):
    """A checkpointer whose backend is a service over ``behind``."""

    @pytest.fixture
    def behind(self) -> Any:
        return MemoryBackend()

    @pytest.fixture
    def services(self, behind: Any) -> Iterator[Services]:
        made = Services(behind)
        yield made
        made.stop()

    @pytest.fixture
    def reopen(self, services: Services) -> Any:
        def reopen(**options: Any) -> Any:
            limit = options.get("max_state_bytes")
            is_valid = type(limit) is int and limit > 0
            service = services.limited(limit) if is_valid else services.main
            return http_checkpointer(service.url, **{"state_type": self.state_type, **options})

        return reopen

    @pytest.fixture
    def checkpointer(self, reopen: Any) -> Any:
        return reopen()


class TestOverMemory(OverService):
    @pytest.fixture
    def storage(self, behind: Any) -> Any:
        return MemoryProbe(behind)


class LimitedRemote(RemoteService):
    """A service to which ``limited`` gives a limit: by another service on the same storage."""

    def __init__(self, services: Services) -> None:
        connections = HTTPConnections(services.main.url, ClientOptions())
        super().__init__(connections, max_state_bytes=MAX_STATE_BYTES)
        self._services = services

    @property
    def max_state_bytes(self) -> int:
        return MAX_STATE_BYTES

    @max_state_bytes.setter
    def max_state_bytes(self, limit: int) -> None:
        service = self._services.limited(limit)
        self._connections = HTTPConnections(service.url, ClientOptions())


class OverServiceBackend(StorageBackendContract):
    """A backend that is a service over ``behind``."""

    @pytest.fixture
    def behind(self) -> Any:
        return MemoryBackend()

    @pytest.fixture
    def backend(self, behind: Any) -> Iterator[HTTPBackend]:
        services = Services(behind)
        made = HTTPBackend(services.main.url)
        made.service = LimitedRemote(services)
        yield made
        services.stop()


class TestBackendOverMemory(OverServiceBackend):
    pass


@pytest.mark.variant
class TestOverSQLite(OverService):
    @pytest.fixture
    def behind(self, database_file: Any) -> Any:
        return SQLiteBackend(database_file)


@pytest.mark.variant
class TestBackendOverSQLite(OverServiceBackend):
    @pytest.fixture
    def behind(self, database_file: Any) -> Any:
        return SQLiteBackend(database_file)


@pytest.mark.variant
class TestOverPostgreSQL(OverService):
    @pytest.fixture
    def behind(self, migrated_database: str) -> Any:
        return PostgreSQLBackend(migrated_database)


@pytest.mark.variant
class TestBackendOverPostgreSQL(OverServiceBackend):
    @pytest.fixture
    def behind(self, migrated_database: str) -> Any:
        return PostgreSQLBackend(migrated_database)


class TestStoreOverMemory(StoreContract):
    @pytest.fixture
    def reopen(self) -> Iterator[Any]:
        running: dict[str, Service] = {}

        def reopen(**options: Any) -> HTTPStore:
            metric = options.get("metric", "cosine")
            if metric not in running and metric in vectors.METRICS:
                store = InMemoryStore(dimension=3, metric=metric)
                running[metric] = Service(MemoryBackend(), store=store)
            url = running[metric].url if metric in running else "http://localhost"
            return HTTPStore(url, **{"dimension": 3, **options})

        yield reopen
        for it in running.values():
            it.stop()


class TestLogOverMemory(MessageLogContract):
    @pytest.fixture
    def reopen(self) -> Iterator[Any]:
        backend = MemoryBackend()
        service = Service(backend, messages=InMemoryMessageLog(backend=backend))
        yield partial(HTTPMessageLog, service.url)
        service.stop()


@pytest.mark.variant
class TestStoreOverSQLite(StoreContract):
    @pytest.fixture
    def reopen(self, database_file: Any) -> Iterator[Any]:
        backend = SQLiteBackend(database_file)
        service = Service(backend, store=SQLiteStore(backend=backend, dimension=3))
        yield lambda **options: HTTPStore(service.url, **{"dimension": 3, **options})
        service.stop()

    async def other_metric(self) -> None:
        pytest.skip("the store of a service has one metric")

    test_the_nearest_comes_first_by_product = other_metric
    test_the_nearest_comes_first_by_distance = other_metric
    test_zeros_have_a_distance_but_no_direction = other_metric
    test_a_threshold_is_the_least_score = other_metric


@pytest.mark.variant
class TestLogOverPostgreSQL(MessageLogContract):
    @pytest.fixture
    def reopen(self, migrated_database: str) -> Iterator[Any]:
        backend = PostgreSQLBackend(migrated_database)
        service = Service(backend, messages=PostgreSQLMessageLog(backend=backend))
        yield partial(HTTPMessageLog, service.url)
        service.stop()
