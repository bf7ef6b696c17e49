"""Runs LangGraph's own tests on this package's saver and store: a plugin of pytest.

``make langgraph-suite`` unpacks LangGraph's source distribution and runs its tests with
``-p langgraph_suite``. Every test that takes a saver or a store runs once, with ours in place of
LangGraph's; the other tests are deselected. ``LOCUS_SUITE`` names the storage: ``sqlite``,
``postgresql``, ``redis``, ``memory``, or ``official`` for LangGraph's own savers, the baseline.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

STORAGE = os.environ.get("LOCUS_SUITE", "sqlite")

# LangGraph's fixtures then offer these savers only, and the in-memory store only.
os.environ["NO_DOCKER"] = "true"
FIXTURES = {
    "sync_checkpointer": "sqlite",
    "async_checkpointer": "sqlite_aio",
    "sync_store": "in_memory",
    "async_store": "in_memory",
}

_servers = contextlib.ExitStack()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put our saver and store in place of LangGraph's, before its ``conftest.py`` imports them."""
    if STORAGE == "official":
        return
    from tests import conftest_checkpointer, conftest_store

    conftest_checkpointer._checkpointer_sqlite = _saver
    conftest_checkpointer._checkpointer_sqlite_aio = _async_saver
    conftest_store._store_memory = _store


def pytest_unconfigure() -> None:
    """End the servers."""
    _servers.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that take a saver or a store, each with one of them."""
    kept = [item for item in items if _is_chosen(getattr(item, "callspec", None))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _is_chosen(callspec: Any) -> bool:
    params = callspec.params if callspec else {}
    taken = FIXTURES.keys() & params.keys()
    return bool(taken) and all(params[name] == FIXTURES[name] for name in taken)


@contextmanager
def _saver() -> Iterator[Any]:
    from locus_store.adapters.langgraph import LangGraphSaver

    with _url() as url, LangGraphSaver.from_url(url) as saver:
        saver.setup()  # as LangGraph's fixtures do; some tests measure time
        yield saver


@asynccontextmanager
async def _async_saver() -> AsyncIterator[Any]:
    from locus_store.adapters.langgraph import LangGraphSaver

    with _url() as url:
        async with LangGraphSaver.from_url(url) as saver:
            await saver.asetup()
            yield saver


@contextmanager
def _store() -> Iterator[Any]:
    from locus_store.adapters.langgraph import LangGraphStore

    with _url() as url, LangGraphStore.from_url(url) as store:
        yield store


@contextmanager
def _url() -> Iterator[str]:
    """The URL of an empty storage."""
    if STORAGE == "memory":
        yield "memory://"
    elif STORAGE == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'suite.db'}"
    elif STORAGE == "postgresql":
        server = _postgresql()
        yield server.url(server.migrated_template(), tenant=uuid4().hex)
    else:
        server = _redis()
        server.flush()
        yield server.url()


@cache
def _postgresql() -> Any:
    import servers

    server = servers.PostgreSQL()
    _servers.callback(server.stop)
    return server


@cache
def _redis() -> Any:
    import containers

    server = containers.redis_server()
    _servers.callback(server.stop)
    return server
