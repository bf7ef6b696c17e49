"""Fixtures of servers: one of each kind in each process of the tests, started when first asked for.

OpenSearch has one node for all processes of a run, and an index for each of them.
"""

from __future__ import annotations

import os
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import containers
import pytest
import redis_clusters
import redis_servers
import servers
from oracle_grammar import Grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _running(start):
    try:
        server = start()
    except servers.UnavailableError as error:
        servers.missing(error)
    try:
        yield server
    finally:
        server.stop()


# --- PostgreSQL


@pytest.fixture(scope="session")
def postgresql() -> Iterator[servers.Server]:
    """See ``containers.postgresql``."""
    yield from _running(containers.postgresql)


@pytest.fixture(scope="session")
def postgresql_16() -> Iterator[servers.PostgreSQL]:
    """The oldest that the wheels have."""
    yield from _running(lambda: servers.PostgreSQL("16"))


@pytest.fixture(scope="session")
def postgresql_tls() -> Iterator[servers.PostgreSQL]:
    """Debian's, with TLS and the certificates of its attribute ``tls``."""
    yield from _running(lambda: servers.PostgreSQL("debian", tls=True))


@pytest.fixture(scope="session")
def pgbouncer(postgresql: servers.Server) -> Iterator[servers.PgBouncer]:
    """In transaction mode, in front of ``postgresql``."""
    if not isinstance(postgresql, servers.PostgreSQL):
        pytest.skip("LOCUS_TEST_POSTGRESQL_URL: PgBouncer is put before servers of ours only")
    yield from _running(lambda: servers.PgBouncer(postgresql))


# --- Redis and Valkey


@pytest.fixture(scope="session")
def redis_server() -> Iterator[redis_servers.Server]:
    """See ``containers.redis_server``."""
    yield from _running(containers.redis_server)


@pytest.fixture(scope="session")
def debian_redis() -> Iterator[redis_servers.Redis]:
    """Debian's, which is of an older kind."""
    yield from _running(lambda: redis_servers.Redis("redis"))


@pytest.fixture(scope="session")
def redis_stack() -> Iterator[redis_servers.Redis]:
    """With JSON and search, for LangGraph's stores."""
    if find_spec("langgraph.store.redis") is None:
        pytest.skip("langgraph-checkpoint-redis needs a redis-py below 8: see make langgraph-redis")
    yield from _running(redis_servers.redis_stack)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[redis_clusters.Cluster]:
    """Of Valkey, to be left whole; a test that kills or cuts has one of its own."""
    yield from _running(redis_clusters.Cluster)


@pytest.fixture
def redis_url(redis_server: redis_servers.Server) -> str:
    """URL of an empty database."""
    redis_server.flush()
    return redis_server.url()


# --- HTTP


@pytest.fixture
def service_over(request) -> Iterator[Callable[..., str]]:
    """Starts the service of ``tiers.SERVICES`` over an empty storage, and returns its URL."""
    pytest.importorskip("uvicorn", reason="the extra `service` is not installed")
    from services import Service, parts

    running = []

    def start(kind: str, **options: Any) -> str:
        fixture = {"http-sqlite": "database_file", "http-postgresql": "migrated_database"}.get(kind)
        backend, store, messages = parts(fixture and request.getfixturevalue(fixture), **options)
        running.append(Service(backend, store=store, messages=messages))
        return running[-1].url

    yield start
    for it in running:
        it.stop()


@pytest.fixture
def service_url(service_over) -> str:
    """URL of a service over an empty memory."""
    return service_over("http")


# --- Oracle


@pytest.fixture(scope="session")
def oracle_grammar() -> Iterator[Grammar]:
    """The stricter of the two grammars that there are."""
    yield from _running(Grammar)


# --- databases


@pytest.fixture
def database(postgresql: servers.Server) -> Iterator[str]:
    """URL of an empty database."""
    name = postgresql.new_database()
    yield postgresql.url(name)
    postgresql.drop_database(name)


@pytest.fixture(scope="session")
def shared_database(postgresql: servers.Server) -> Iterator[str]:
    """URL of a database in which each test has a tenant."""
    with postgresql.migrated_database() as name:
        yield postgresql.url(name)


@pytest.fixture(scope="session")
def divided_database(postgresql: servers.Server) -> Iterator[str]:
    """URL of a database with partitions, in which each test has a tenant."""
    from locus_store.backends.postgresql.partitions import partition

    name = postgresql.new_database(template=postgresql.migrated_template())
    partition(postgresql.url(name), 4)
    yield postgresql.url(name)
    postgresql.drop_database(name)


@pytest.fixture(scope="session")
def secured_database(postgresql: servers.Server) -> Iterator[str]:
    """URL of a database that a test puts under row security, in which each test has a tenant."""
    with postgresql.migrated_database() as name:
        yield postgresql.url(name)


@pytest.fixture(scope="session")
def shared_shards(postgresql: servers.Server) -> Iterator[list[str]]:
    """URLs of the databases of a set of shards in which each test has a tenant."""
    names = [postgresql.new_database() for _ in range(2)]
    yield [postgresql.url(it) for it in names]
    for it in names:
        postgresql.drop_database(it)


@pytest.fixture
def migrated_database(postgresql: servers.Server) -> Iterator[str]:
    """URL of a database with our schema and nothing in it."""
    with postgresql.migrated_database() as name:
        yield postgresql.url(name)


# --- OCI: a double of its API


@pytest.fixture(scope="session")
def oci_service() -> Iterator[Any]:
    """A double of OCI's Object Storage; the SDK is an extra."""
    pytest.importorskip("oci")
    from oci_double import running

    with running() as double:
        yield double


@pytest.fixture
def bucket(oci_service, tmp_path) -> Iterator[Any]:
    """An empty bucket of it, and its only one."""
    from buckets import DoubleBucket

    made = DoubleBucket(oci_service, tmp_path)
    oci_service.requests.clear()
    oci_service.log.clear()
    yield made
    oci_service.fault = lambda _kind, _name: None
    oci_service.offset = timedelta(0)
    oci_service.buckets.clear()


# --- OpenSearch: one node for all processes of the run, and an index for each of them


@pytest.fixture(scope="session")
def opensearch_server(tmp_path_factory) -> Iterator[Any]:
    """See ``containers.opensearch``."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    yield from _running(lambda: containers.opensearch(common / "opensearch"))


@pytest.fixture(scope="session")
def worker_index(opensearch_server, worker_id) -> Any:
    """Its index is emptied between tests: creating one costs as much as 15 to 20 saves."""
    pytest.importorskip("opensearchpy")
    from indexes import TestIndex

    return TestIndex(opensearch_server, f"test-{worker_id}")


@pytest.fixture
def index(worker_index) -> Any:
    """An empty index."""
    worker_index.empty()
    return worker_index


# --- S3


@pytest.fixture(scope="session")
def s3_service() -> Iterator[Any]:
    """See ``s3_servers.service``."""
    from s3_servers import service

    yield from _running(service)


@pytest.fixture
def s3_place(s3_service) -> Any:
    """An empty prefix of its bucket."""
    from s3_servers import S3Place

    return S3Place(s3_service)
