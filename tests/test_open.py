"""``open()``: what it finds at once, and on which thread the slow part of it runs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from locus_store import (
    InvalidArgumentError,
    NewMessage,
    SchemaError,
    open_checkpointer,
    open_message_log,
    open_saver,
    open_storage,
    open_store,
)
from locus_store.blocking import BlockingCheckpointer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

RECORDED = """
    import asyncio, sys, threading
    from importlib.abc import MetaPathFinder
    from locus_store import open_checkpointer

    class Finder(MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "alembic":
                seen.add(threading.get_ident())

    seen = set()
    sys.meta_path.insert(0, Finder())

    async def main():
        async with open_checkpointer(sys.argv[1], state_type=dict) as checkpointer:
            await checkpointer.open()
            assert "alembic" in sys.modules or sys.argv[2] == "there"
            await checkpointer.save({"n": 1}, "t")

    asyncio.run(main())
    assert threading.get_ident() not in seen, "imported by the thread of the event loop"
    assert bool(seen) is (sys.argv[2] == "new"), seen
"""


MADE_ON_A_THREAD = """
    import asyncio, sys, threading
    from importlib.abc import MetaPathFinder
    import locus_store

    class Finder(MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            is_loops = threading.current_thread() is threading.main_thread()
            if is_loops and name.partition(".")[0] not in FREE:
                seen.append(name)

    FREE = {*sys.stdlib_module_names, "locus_store"}
    seen = []

    async def main():
        opening = getattr(locus_store, sys.argv[2])
        sys.meta_path.insert(0, Finder())
        made = await asyncio.to_thread(opening, sys.argv[1])
        async with made:
            await made.open()
            assert "sqlalchemy" in sys.modules

    asyncio.run(main())
    assert seen == [], seen
"""


def run(url: str, argument: str, recorded: str = RECORDED) -> None:
    source = "\n".join(line[4:] for line in recorded.splitlines())
    subprocess.run([sys.executable, "-c", source, url, argument], check=True, timeout=120)


def test_sqlite_imports_alembic_off_the_loop_and_only_to_migrate(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    run(url, "new")
    run(url, "there")


@pytest.mark.full
def test_postgresql_imports_alembic_off_the_loop_and_only_to_migrate(database: str) -> None:
    run(database, "new")
    run(database, "there")


@pytest.mark.full
@pytest.mark.parametrize("opened", ["open_checkpointer", "open_saver", "open_store"])
def test_an_object_made_on_a_thread_imports_no_library_in_the_loops_thread(
    opened: str, tmp_path: Path, database: str
) -> None:
    for url in (f"sqlite:///{tmp_path}/a.db", database):
        for _ in ("new", "there"):
            run(url, opened, MADE_ON_A_THREAD)


async def test_open_makes_the_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_checkpointer(url) as checkpointer:
        await checkpointer.open()
    async with open_checkpointer(url, auto_migrate=False) as checkpointer:
        await checkpointer.open()


@pytest.mark.parametrize("opened", [open_checkpointer, open_saver, open_store])
async def test_open_reports_a_missing_schema(opened, tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    it = opened(f"sqlite:///{tmp_path}/a.db", auto_migrate=False)
    with pytest.raises(SchemaError):
        await it.open()
    await it.close()


def test_the_blocking_facade_opens(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with BlockingCheckpointer(open_checkpointer(url, state_type=dict)) as checkpointer:
        checkpointer.open()
        checkpointer.open()
        assert checkpointer.load("t") is None


async def test_a_url_names_a_storage_with_its_options(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db?keep_last=1&tenant=acme"
    async with open_storage(url, on_conflict="branch") as storage:
        checkpointer, saver = storage.checkpointer(state_type=dict), storage.saver(keep_last=3)
        assert (checkpointer.keep_last, checkpointer.on_conflict) == (1, "branch")
        assert (saver.keep_last, saver.on_conflict) == (3, "branch")
        await storage.open()
        await checkpointer.save({"n": 1}, "t")
        await storage.store().put(("a",), "k", 1)
        await storage.messages().append("t", [NewMessage("Hi.")])
    async with open_store(url) as store, open_message_log(url) as log:
        assert await store.get(("a",), "k") == 1
        assert len(await log.contents("t")) == 1
    assert repr(storage) == f"Storage(SQLiteBackend('{tmp_path}/a.db'))"


@pytest.mark.posix
@pytest.mark.parametrize("url", ["sqlite:///a.db", "file:a"])
def test_a_relative_path_in_a_directory_that_was_removed_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(InvalidArgumentError, match="there is no such home or"):
        open_checkpointer(url)


async def test_the_store_in_memory_is_one_for_each_storage() -> None:
    storage, other = open_storage("memory://"), open_storage("memory://")
    await storage.store(dimension=3).put(("a",), "k", 1)
    assert await storage.store().get(("a",), "k") == 1
    assert await other.store().get(("a",), "k") is None
    with pytest.raises(InvalidArgumentError, match="dimension 3"):
        storage.store(dimension=4)


async def test_a_store_may_be_left_before_its_storage(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/a.db") as storage:
        async with storage.store() as store:
            await store.put(("a",), "k", 1)
        assert await storage.store().get(("a",), "k") == 1
