from __future__ import annotations

import asyncio
import gc
import os
import signal
from datetime import timedelta
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from shutil import copyfile, disk_usage
from typing import TYPE_CHECKING, Any
from zlib import crc32

import containers
import pytest
import redis_clusters
import redis_servers
import servers
from amounts import ALL, SERVICES, one_of
from oracle_grammar import Grammar
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.register_assert_rewrite("locus_store.testing")

MEMORY_DISK = "/dev/shm"  # noqa: S108
MEMORY_DISK_BYTES = 8 << 30  # three processes of the tests, with their servers, took 4.5 GiB

# Thousands of commits wait for no disk there, and making and dropping a PostgreSQL database takes
# 35 ms of the server's time in place of 160.
if os.access(MEMORY_DISK, os.W_OK) and disk_usage(MEMORY_DISK).free > MEMORY_DISK_BYTES:
    os.environ.setdefault("TMPDIR", MEMORY_DISK)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell, and all that it starts, would not hear the tests' Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # until the tests are collected: half of the time would go into it, for no garbage


def pytest_collection_finish():
    """Garbage collections skip the modules and the tests, which stay until the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """A class with the mark ``variant`` has a sixth of its tests, each variant another one.

    The others are not collected at all: that would take seconds in each process of the tests.
    """
    is_variant = name.startswith("test") and collector.get_closest_marker("variant")
    return [] if is_variant and is_left_out(f"{collector.name}::{name}") else None


def is_left_out(name):
    return not ALL and crc32(name.encode()) % 6


def pytest_collection_modifyitems(items):
    """Keep a sixth of the parameters that are variants, and one of ``one_of``; long tests go first.

    A long test that is the last to run leaves the other processes idle.
    """
    items[:] = [it for it in items if not is_left_out_variant(it) and is_chosen(it)]
    items.sort(key=_duration)


def is_left_out_variant(item):
    is_variant = any(it.name == "variant" for it in item.own_markers)
    return is_variant and is_left_out(f"{item.module.__name__}::{item.name}")


def is_chosen(item):
    marks = [it for it in item.own_markers if it.name == "one_of"]
    if ALL or not marks:
        return True
    ours = [value for it in marks for value in it.args[0]]
    others = sorted(
        (name, at)
        for name, at in item.callspec.indices.items()
        if not any(item.callspec.params[name] is it for it in ours)
    )
    test = f"{item.module.__name__}::{item.parent.name}::{item.originalname}{others}"
    return all(
        crc32(f"{test}{number}".encode()) % count == at
        for number, (_, at, count) in enumerate(it.args for it in marks)
    )


@pytest.hookimpl(optionalhook=True)  # pytest -p no:xdist
def pytest_xdist_make_scheduler(config, log):
    """Keep tests with a costly set-up in one process: xdist 3.8 finds no group under pytest 9.2."""
    return Grouped(config, log)


class Grouped(LoadScopeScheduling):
    """Sends the tests of a group to one process, and each other one where there is room."""

    def _split_scope(self, nodeid):
        if "test_plans.py" in nodeid and nodeid.endswith("]"):
            state = nodeid[:-1].rpartition("[")[2].rpartition("-")[2]
            return f"plans {state}"  # a database of a million rows each
        if "test_oracle_grammar.py" in nodeid or "recorded_statement" in nodeid:
            return "Oracle's grammar"  # a Java process, slow until it has seen some statements
        return nodeid

    def mark_test_complete(self, node, item_index, duration=0):
        """Forget a group that is done: the scheduler counts through all groups after each test."""
        super().mark_test_complete(node, item_index, duration)
        assigned = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(assigned[scope].values()):
            del assigned[scope]


def _duration(item):
    return LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)


LONG = ["test_plans", "test_storm", "test_site", "test_docs", "test_processes"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def migrated(tmp_path_factory) -> Path:
    """An empty database with our schema, to be copied: making one takes 80 ms."""
    from locus_store import sqlite_checkpointer

    path = tmp_path_factory.mktemp("migrated") / "empty.db"

    async def make() -> None:
        async with sqlite_checkpointer(path) as checkpointer:
            await checkpointer.exists("t")

    asyncio.run(make())
    return path


@pytest.fixture
def database_file(tmp_path, migrated) -> Path:
    """An SQLite database of the test's own, with our schema and nothing in it."""
    return Path(copyfile(migrated, tmp_path / "migrated.db"))


@pytest.fixture
def packs_of_two(monkeypatch) -> None:
    """Each second save is packed, and returns after its pack was written."""
    from locus_store.sql import packs
    from locus_store.sql.backend import SqlBackend
    from locus_store.versions import packing

    def unusable(thread_id):
        raise AssertionError(f"the packs of {thread_id!r} do not give its state")

    monkeypatch.setattr(packing, "PACK_SAVES", 2)
    monkeypatch.setattr(packing, "is_due", lambda stored: bool(stored.payloads))
    write_state = SqlBackend.write_state

    async def packed(self, *args, **options):
        written = await write_state(self, *args, **options)
        await self._background.here().finish(60)
        return written

    monkeypatch.setattr(SqlBackend, "write_state", packed)
    monkeypatch.setattr(packs, "damaged_packs", unusable)


# --- what a test with real graphs runs on

PAIRS = one_of(("sync", "sqlite"), ("async", "postgresql"))
ANY_PAIRS = [
    *PAIRS,
    *one_of(
        *(("async", "memory"), ("sync", "file"), ("async", "redis")),
        *(("sync", "http"), ("sync", "oci")),
    ),
]
if ALL:
    PAIRS = [*product(["sync", "async"], ["sqlite", "postgresql"])]
    everywhere = ["memory", "file", "sqlite", "postgresql", "redis", "oci", "opensearch", *SERVICES]
    ANY_PAIRS = [*product(["sync", "async"], everywhere)]


def pytest_generate_tests(metafunc):
    """Sync and async, and every storage, but not each test with each of them."""
    for name, pairs in (("storage", PAIRS), ("any_storage", ANY_PAIRS)):
        if {"call", name} <= set(metafunc.fixturenames):
            metafunc.parametrize(("call", name), pairs, indirect=True)


@pytest.fixture
def call(request):
    from workers.on_graph import Caller

    caller = Caller(request.param)
    yield caller
    caller.close()


def _storage(request, call, tmp_path):
    from workers.on_graph import Storage

    made = Storage(request, tmp_path)
    yield made
    made.close()


storage = pytest.fixture(_storage, name="storage")
any_storage = pytest.fixture(_storage, name="any_storage")


# --- PostgreSQL: one server of each kind in each process of the tests, started when first asked for


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


def _running(start):
    try:
        server = start()
    except servers.UnavailableError as error:
        servers.missing(error)
    try:
        yield server
    finally:
        server.stop()


# --- Redis and Valkey, in the same way


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
    """Starts the service of ``amounts.SERVICES`` over an empty storage, and returns its URL."""
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
