from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from shutil import copyfile, disk_usage
from typing import TYPE_CHECKING

import lazily
import pytest
import storages
import tiers
from tiers import TESTS, first_of, is_everyday, is_in_full

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["server_fixtures"]

MEMORY_DISK = "/dev/shm"  # noqa: S108
MEMORY_DISK_BYTES = 8 << 30  # three processes of the tests, with their servers, took 4.5 GiB
MOST = 1000
"""Tests of changed folders that `make changed` takes: about five minutes of two cores."""

# Thousands of commits wait for no disk there, and making and dropping a PostgreSQL database takes
# 35 ms of the server's time in place of 160.
if os.access(MEMORY_DISK, os.W_OK) and disk_usage(MEMORY_DISK).free > MEMORY_DISK_BYTES:
    os.environ.setdefault("TMPDIR", MEMORY_DISK)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell, and all that it starts, would not hear the tests' Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A linter brought it. jsonschema, which frameworks import, imports it too, and it takes 1.5 s to
# build its parser of IRIs.
sys.modules.setdefault("rfc3987_syntax", None)

gc.disable()  # until the tests are collected: half of the time would go into it, for no garbage


def pytest_collection_finish():
    """Garbage collections skip the modules and the tests, which stay until the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A module that imports something heavy when it is collected is an error: see ``lazily``."""
    report = yield
    if imported := lazily.newly_imported(is_full=is_in_full(collector.path)):
        report.outcome = "failed"
        what = f"{collector.nodeid} imports {', '.join(imported)}"
        report.longrepr = f"{what} when it is collected: see tests/lazily.py"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Import the frameworks of the test's module: see ``lazily``."""
    lazily.prepare(item)


def pytest_addoption(parser):
    group = parser.getgroup("tiers of tests")
    group.addoption(
        "--everyday", action="store_true", help="of given paths, too, the tests of `make test`"
    )
    group.addoption(
        "--changed", action="append", default=[], metavar="FOLDER",
        help=f"with --eighth: up to {MOST} tests of these folders that `make test` leaves out",
    )  # fmt: skip
    group.addoption(
        "--eighth", type=int, metavar="N", help="an eighth of the tests that `make test` leaves out"
    )
    group.addoption(
        "--storage", action="append", default=[], metavar="NAME",
        help="the contracts on the rows of tests/storages that are called so or begin so",
    )  # fmt: skip


def pytest_configure(config):
    """Leave parameters of tests to `make test-all`."""
    tiers.choose(config)


def pytest_ignore_collect(collection_path, config):
    """Leave the folders ``full`` to `make test-all`, and look for no tests in golden files."""
    name = collection_path.name
    return True if name == "golden" or (name == "full" and is_everyday(config)) else None


def pytest_collection_modifyitems(config, items):
    """Deselect what is not of the tier: see ``tiers``."""
    rest = [it for it in items if it.get_closest_marker("full") or is_in_full(it.path)]
    if is_everyday(config):
        left_out = {*rest}
    elif config.option.eighth is not None:
        folders = {TESTS.parent / it for it in config.option.changed}
        changed = [it for it in rest if not folders.isdisjoint(folder_of(it).parents)]
        others = [it for it in rest if folders.isdisjoint(folder_of(it).parents)]
        first = config.option.eighth
        left_out = {*items} - {*spread(changed, first)} - {*others[first::8]}
    else:
        return
    config.hook.pytest_deselected(items=left_out)
    items[:] = [it for it in items if it not in left_out]


def spread(items, first):
    """Return all tests, or about ``MOST`` of them, evenly spread."""
    step = len(items) // MOST + 1
    return items[first % step :: step]


def folder_of(item):
    """Return the path of a test; that of a contract's is in the folder of its storage."""
    row = getattr(item, "callspec", None) and item.callspec.params.get("row")
    if row is None:
        return item.path
    technology = storages.STORAGES[row].made_by.partition(".")[0]
    return TESTS / "backends" / technology / item.path.name


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def release(tmp_path):
    """A later release of the library, by its newest revision: see ``later_release``."""
    from later_release import Release

    return partial(Release, tmp_path)


@pytest.fixture
def later_release(release):
    """The newest of them runs in the package's place."""
    with release().installed():
        yield


@pytest.fixture(scope="session")
def migrated(tmp_path_factory) -> Path:
    """An empty database with our schema, to be copied: making one takes 80 ms."""
    from locus_store.blocking import open_checkpointer

    path = tmp_path_factory.mktemp("migrated") / "empty.db"
    with open_checkpointer(f"sqlite:///{path}") as checkpointer:
        checkpointer.exists("t")
    return path


@pytest.fixture
def database_file(tmp_path, migrated) -> Path:
    """An SQLite database of the test's own, with our schema and nothing in it."""
    return Path(copyfile(migrated, tmp_path / "migrated.db"))


@pytest.fixture(scope="session")
def shared_file(tmp_path_factory, migrated) -> Path:
    """An SQLite database in which each test has a tenant."""
    return Path(copyfile(migrated, tmp_path_factory.mktemp("shared") / "tenants.db"))


@pytest.fixture
def begun_threads() -> Callable[[], set[threading.Thread]]:
    """Returns the library's threads that have begun since the start of the test, and run.

    Those of Python are more: one that ends an object that an earlier test dropped is listed, too.
    """
    before = set(threading.enumerate())

    def list_begun() -> set[threading.Thread]:
        return {it for it in threading.enumerate() if it.name.startswith("locus-store")} - before

    return list_begun


@pytest.fixture
def unhurried(monkeypatch):
    """No connection is tried, and no cache is left alone, since a slow machine took a second."""
    for limit in (
        "backends.redis.addresses.IDLE_SECONDS", "session.cache.ANSWER_SECONDS",
        "sql.connections.lending.PING_SECONDS", "sql.connections.lending.SILENT_SECONDS",
    ):  # fmt: skip
        monkeypatch.setattr(f"locus_store.{limit}", 600.0)


@pytest.fixture
def own_heartbeats(monkeypatch):
    """Renewals of turns that a test does not end stop with it: those of broken doubles."""
    from locus_store import turns
    from locus_store.runtime.holding import Heartbeats

    heartbeats = Heartbeats()
    monkeypatch.setattr(turns, "_heartbeats", heartbeats)
    yield
    for beat in [*heartbeats._beats]:
        heartbeats.discard(beat)


@pytest.fixture
def failed_joins(monkeypatch):
    """The thread and the error of each join that failed."""
    from locus_store.sql.threads import segments as joining

    failed = []

    def not_joined(thread_id, exc):
        # A join that an earlier test left may be collected now, in any thread.
        ends = "Event loop is closed", "coroutine ignored GeneratorExit", "Cannot switch to a diff"
        if not str(exc).startswith(ends):
            failed.append((thread_id, exc))

    monkeypatch.setattr(joining, "report_not_joined", not_joined)
    return failed


@pytest.fixture
def segments_of_two(monkeypatch, failed_joins):
    """Each second save joins two records, and returns when they are joined."""
    from locus_store.sql.backend import SqlBackend
    from locus_store.versions import segments

    monkeypatch.setattr(segments, "RECORDS", 2)
    write_state = SqlBackend.write_state

    async def joined(self, *args, **options):
        written = await write_state(self, *args, **options)
        await self._background.get().finish(60)
        return written

    monkeypatch.setattr(SqlBackend, "write_state", joined)
    yield
    assert failed_joins == []


# --- what a test with real graphs runs on

PAIRS = ("sync", "sqlite"), ("async", "sqlite"), ("async", "postgresql")
ANY_PAIRS = (
    ("async", "sqlite"), ("sync", "sqlite"), ("async", "postgresql"), ("async", "memory"),
    ("sync", "file"), ("async", "redis"), ("sync", "http"), ("sync", "oci"),
    ("async", "opensearch"),
)  # fmt: skip


def pytest_generate_tests(metafunc):
    """Sync and async, on several storages."""
    for name, pairs in (("storage", PAIRS), ("any_storage", ANY_PAIRS)):
        if {"call", name} <= set(metafunc.fixturenames):
            metafunc.parametrize(("call", name), first_of(*pairs), indirect=True)


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
