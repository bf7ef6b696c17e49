"""Imports of Locus' documentation from ``locus.memory``, made from ``locus_store``."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

import locus_store
from locus_store.errors import make_install_command

if TYPE_CHECKING:
    from pathlib import Path

IMPORTS = {
    "locus_store.checkpointer": ["BaseCheckpointer"],
    "locus_store.backends": [
        "HTTPCheckpointer",
        "FileCheckpointer",
        "MemoryCheckpointer",
        "OCIBucketBackend",
        "StorageBackendAdapter",
        "oci_bucket_checkpointer",
        "opensearch_checkpointer",
        "redis_checkpointer",
        "sqlite_checkpointer",
    ],
    "locus_store.backends.oracle": [
        "OracleBackend",
        "OracleCheckpointSaver",
        "oracle_checkpointer",
    ],
    "locus_store.backends.postgresql": ["PostgreSQLBackend", "postgresql_checkpointer"],
    "locus_store.backends.redis": ["RedisBackend", "redis_checkpointer"],
    "locus_store.backends.file": ["FileCheckpointer", "file_checkpointer"],
    "locus_store.backends.memory": ["MemoryCheckpointer", "memory_checkpointer"],
    "locus_store.backends.sqlite": ["SQLiteBackend", "sqlite_checkpointer"],
    "locus_store.store": ["BaseStore", "InMemoryStore"],
    "locus_store.store_backends": [
        "InMemoryStore",
        "OracleStore",
        "PostgreSQLStore",
        "RedisStore",
        "SQLiteStore",
    ],
    "locus_store.blocking": ["InMemoryStore", "open_store"],
    # what they take from locus.core.*
    "locus_store": ["AgentState", "Message", "CheckpointerCapabilities"],
}
"""``from locus.memory.X import Y`` of the seeds, of what this part has."""

UNUSED = (
    "alembic", "asyncpg", "numpy", "pydantic", "pydantic_core", "rich", "typer", "sqlalchemy.orm",
    "sqlalchemy.ext.asyncio", "sqlalchemy.dialects.postgresql", "locus_store.backends.documents",
)  # fmt: skip
"""Modules that an existing SQLite database does not need."""

HEAVY = (
    "sqlalchemy", "alembic", "aiosqlite", "asyncpg", "sqlite3", "greenlet", "typer", "rich",
    "numpy", "oci", "opensearchpy", "redis", "oracledb", "httpx", "starlette", "uvicorn",
)  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"), [(it, n) for it, names in IMPORTS.items() for n in names]
)
def test_an_import_of_the_seeds_works(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


KEPT = {
    "locus_store.backend": ["StorageBackend"],
    "locus_store.blocking": ["InMemoryStore"],
    "locus_store.checkpointer": ["BaseCheckpointer"],
    "locus_store.errors": ["LocusStoreError"],
    "locus_store.open": ["open_checkpointer"],
    "locus_store.saver": ["CheckpointSaver"],
    "locus_store.service": ["app"],
    "locus_store.sql.migrate": ["include_object", "excluding"],
    "locus_store.store": ["InMemoryStore"],
    "locus_store.testing": ["CheckpointerContract"],
    "locus_store.types": ["Mark"],
    "locus_store.versions": ["Lines"],
    "locus_store.adapters.langgraph": ["LangGraphSaver", "LangGraphStore"],
    "locus_store.adapters.locus": ["register"],
}
"""Modules whose paths are public, beside those of ``IMPORTS``."""


@pytest.mark.parametrize("module", KEPT)
def test_a_public_path_stays_importable(module: str) -> None:
    assert [it for it in KEPT[module] if not hasattr(import_module(module), it)] == []


def test_every_public_name_is_there() -> None:
    for module in ("locus_store", "locus_store.backends", "locus_store.store_backends"):
        found = import_module(module)
        assert all(getattr(found, name) is not None for name in found.__all__)
        with pytest.raises(AttributeError, match="no attribute"):
            _ = found.no_such_name


def fresh(code: str) -> str:
    """Return the output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "module",
    [
        "locus_store", "locus_store.backends", "locus_store.blocking", "locus_store.open",
        "locus_store.store", "locus_store.store_backends", "locus_store.messages",
        "locus_store.session", "locus_store.transfer.verifying",
    ],
)  # fmt: skip
def test_an_import_loads_no_driver(module: str) -> None:
    loaded = fresh(f"import sys, {module}; print(*(it for it in {HEAVY!r} if it in sys.modules))")
    assert loaded.strip() == ""


@pytest.mark.parametrize("opened", ["open_checkpointer", "open_saver", "open_store"])
def test_opening_sqlite_imports_only_what_it_needs(opened: str, tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from locus_store import {opened}

async def main():
    async with {opened}("sqlite:///{tmp_path}/x.db") as it:
        await it.open()

asyncio.run(main())
print(*(it for it in {UNUSED!r} if it in sys.modules))
"""
    fresh(code)  # creates the database
    assert fresh(code).strip() == ""


def test_the_adapter_of_langgraph_loads_no_tools() -> None:
    code = "import sys, locus_store.adapters.langgraph; print(*sys.modules)"
    assert "langchain_core.tools" not in fresh(code).split()


SAVE_AND_LOAD = """
import asyncio, sys
from locus_store import open_checkpointer{also}

async def main():
    async with open_checkpointer("sqlite:///{directory}/x.db") as it:
        if {state}:
            await it.save({state}, "t")
        print(type(await it.load("t")).__qualname__, "pydantic" in sys.modules)

asyncio.run(main())
"""


def test_plain_states_need_no_pydantic(tmp_path: Path) -> None:
    code = SAVE_AND_LOAD.format(directory=tmp_path, also="", state="{'n': 1}")
    assert fresh(code) == "LoadedDict False\n"


@pytest.mark.parametrize("name", ["AgentState", "Message"])
def test_a_process_that_did_not_import_our_models_loads_them(name: str, tmp_path: Path) -> None:
    state = {"AgentState": "AgentState()", "Message": "Message.user('hello')"}[name]
    fresh(SAVE_AND_LOAD.format(directory=tmp_path, also=f", {name}", state=state))
    code = SAVE_AND_LOAD.format(directory=tmp_path, also="", state=None)
    assert fresh(code) == f"{name} True\n"


def test_memory_and_files_need_no_database_library(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
for name in {HEAVY!r}:
    sys.modules[name] = None  # an import raises ImportError
from locus_store import AgentState, InMemoryStore, MemoryCheckpointer, Message, open_checkpointer

async def main():
    async with InMemoryStore() as store:
        await store.put(("memory",), "k", "hello")
        print(await store.get(("memory",), "k"), len(await store.search((), "hello")) + 1)
    urls = ["memory://?keep_last=3", {f"file:{tmp_path}"!r}]
    for checkpointer in (MemoryCheckpointer(), *map(open_checkpointer, urls)):
        await checkpointer.save(AgentState().with_message(Message.user("hello")), "t")
        await checkpointer.copy_thread("t", "copy")
        found = await checkpointer.search("hello")
        print((await checkpointer.load("copy")).messages[0].content, len(found))

asyncio.run(main())
"""
    assert fresh(code) == "hello 2\n" * 4


def test_the_shipped_contract_is_the_only_module_that_needs_pytest() -> None:
    code = """
import sys
sys.modules["pytest"] = None
import locus_store, locus_store.backends.sqlite, locus_store.blocking, locus_store.cli
try:
    import locus_store.testing
except ImportError:
    print("needs it")
"""
    assert fresh(code) == "needs it\n"


def test_a_store_comes_from_the_same_place_by_every_name() -> None:
    from locus_store import store, store_backends
    from locus_store.backends.memory.backend import InMemoryStore

    assert locus_store.InMemoryStore is store.InMemoryStore is store_backends.InMemoryStore
    assert store.InMemoryStore is InMemoryStore
    with pytest.raises(AttributeError, match="no attribute"):
        _ = store.no_such_name


def test_the_adapter_for_pyagenity_names_what_is_missing() -> None:
    for version, needed in (((3, 11), "Python 3.12"), ((3, 12), make_install_command("agentflow"))):
        code = (
            f"import sys, locus_store.session; sys.version_info = {version}\n"
            "sys.modules['agentflow'] = sys.modules['pyagenity'] = None\n"
            "import locus_store.adapters.pyagenity"
        )
        run = [sys.executable, "-c", code]
        found = subprocess.run(run, check=False, capture_output=True, text=True)
        assert "MissingExtraError" in found.stderr
        assert needed in found.stderr


def test_names_whose_extra_is_missing_are_absent() -> None:
    code = """
import sys
sys.modules["redis"] = sys.modules["aiohttp"] = None  # as if they were not installed
import locus_store, locus_store.backends
from locus_store import *
from locus_store.backends import *

MemoryBackend, PostgreSQLBackend
for package in (locus_store, locus_store.backends):
    for name in ("HTTPBackend", "http_checkpointer", "RedisStore"):
        assert not hasattr(package, name)
        assert name not in package.__all__
    try:
        package.HTTPBackend
    except AttributeError as exc:
        print(exc)
try:
    from locus_store import redis_checkpointer
except MissingExtraError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("HTTP needs aiohttp: pip install") == 2
    assert "Redis needs redis-py: pip install" in done.stdout
