"""Backups taken while others write, and what a restore does to those that are still there."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import servers
from test_processes import Worker

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    LocusStoreError,
    SchemaError,
    open_checkpointer,
)
from locus_store.sql import migrate
from locus_store.transfer.verifying import Checked, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TENANTS = ("one", "two")
"""Of two processes that write, each on its own."""

WRITTEN = 15


class Writers:
    """Two processes that save without end, and what each of them was acknowledged."""

    def __init__(self, url: str) -> None:
        self._stack = ExitStack()
        self._workers = [
            self._stack.enter_context(Worker("write", f"{url}?tenant={it}", "0")) for it in TENANTS
        ]

    def more(self, count: int = WRITTEN) -> list[int]:
        """Wait for so many more versions of each; the number of the newest acknowledged."""
        return [[it.tells() for _ in range(count)][-1] for it in self._workers]

    def kill(self) -> None:
        self._stack.close()


@pytest.fixture
def writing() -> Iterator[Callable[[str], Writers]]:
    started: list[Writers] = []

    def start(url: str) -> Writers:
        started.append(Writers(url))
        return started[-1]

    yield start
    for it in started:
        it.kill()


async def assert_whole(url: str, told: list[int]) -> None:
    """A restored database is in order, and has all that was acknowledged before its backup."""
    assert (await asyncio.to_thread(migrate.check, url)).state == "ok"
    for tenant, newest in zip(TENANTS, told, strict=True):
        async with open_checkpointer(f"{url}?tenant={tenant}", state_type=dict) as restored:
            ids = await restored.list_checkpoints("t", limit=100_000)
            assert ids == [f"v{n}" for n in range(len(ids) - 1, -1, -1)]
            assert len(ids) > newest
            for n in range(len(ids)):
                assert await restored.load("t", f"v{n}") == grown(n)
            found = [it async for it in verify(restored.backend)]
            assert found == [Checked("t", len(ids))]
            await assert_goes_on(restored, len(ids))


async def assert_goes_on(restored: Any, count: int) -> None:
    """Numbers go on where they were: of versions, and of lines."""
    state = await restored.load("t")
    state["more"] = count
    await restored.save(state, "t")
    assert await restored.load("t") == {**grown(count - 1), "more": count}
    for n in range(3):
        await restored.save({"n": n}, f"new {n}")
        assert await restored.copy_thread("t", f"copy {n}")
    assert len(await restored.list_threads()) == 7
    assert await restored.load("new 2") == {"n": 2}


def grown(n: int) -> dict[str, Any]:
    return {"lines": [f"line {it}" for it in range(n + 1)]}


# --- SQLite


def by_backup(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy, pages=20)


def by_vacuum_into(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as live:
        live.execute("VACUUM INTO ?", (str(target),))


def by_command(source: Path, target: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("no sqlite3 command")
    subprocess.run(["sqlite3", source, ".timeout 30000", f".backup '{target}'"], check=True)


@pytest.mark.parametrize("way", [by_backup, by_vacuum_into, by_command])
async def test_a_file_backed_up_while_two_processes_write_is_whole(
    tmp_path: Path, writing: Callable[[str], Writers], way: Callable[[Path, Path], None]
) -> None:
    live, backup = tmp_path / "live.db", tmp_path / "backup.db"
    writers = writing(f"sqlite:///{live}")
    told = writers.more()
    way(live, backup)
    writers.more(3)  # they went on
    writers.kill()
    await assert_whole(f"sqlite:///{backup}", told)


async def overtaken(path: Path, backup: Path) -> tuple[Any, Any]:
    """An open object, and a state of a version that the backup does not have."""
    checkpointer = open_checkpointer(f"sqlite:///{path}", state_type=dict)
    for n in range(20):
        await checkpointer.save(noise(n), f"t{n}", "v1")
    by_backup(path, backup)
    for _ in range(20):
        for n in range(40):
            await checkpointer.save(noise(n), f"t{n}", on_conflict="overwrite")
    return checkpointer, await checkpointer.load("t1")


def noise(n: int) -> dict[str, Any]:
    return {"n": n, "said": [os.urandom(40).hex() for _ in range(60)]}


async def test_a_file_renamed_over_a_live_one_with_its_log_left_is_told(tmp_path: Path) -> None:
    checkpointer, held = await overtaken(tmp_path / "live.db", tmp_path / "backup.db")
    (tmp_path / "backup.db").replace(tmp_path / "live.db")
    with pytest.raises(BackendError, match=r"their log .* is still there"):
        await checkpointer.save(held, "t1")
    await checkpointer.close()


async def test_a_file_renamed_over_a_live_one_with_its_log_left_is_not_damaged(
    tmp_path: Path,
) -> None:
    live = tmp_path / "live.db"
    checkpointer, held = await overtaken(live, tmp_path / "backup.db")
    (tmp_path / "backup.db").replace(live)
    acknowledged = []
    for number in range(3):
        with suppress(LocusStoreError):
            await checkpointer.load("t1")
        with suppress(LocusStoreError):
            await checkpointer.save(held, f"new{number}")
            acknowledged.append(f"new{number}")
    await checkpointer.close()
    for log in ("-wal", "-shm"):
        Path(f"{live}{log}").unlink(missing_ok=True)  # noqa: ASYNC240
    async with open_checkpointer(f"sqlite:///{live}", state_type=dict) as restored:
        assert await restored.backend.damage() == []
        assert await restored.list_checkpoints("t1") == ["v1"]
        assert set(acknowledged) <= set(await restored.list_threads())


async def test_a_restore_in_place_is_seen_by_objects_that_are_open(tmp_path: Path) -> None:
    """As the page shows it; what an agent still held is refused, and nothing is mixed."""
    live, backup = tmp_path / "live.db", tmp_path / "backup.db"
    checkpointer, held = await overtaken(live, backup)
    by_backup(backup, live)
    held["mine"] = 1
    with pytest.raises(ConflictError) as told:
        await checkpointer.save(held, "t1")
    assert told.value.head_id == "v1"
    assert await checkpointer.list_checkpoints("t1") == ["v1"]
    assert await checkpointer.load("t30") is None
    async with checkpointer:
        found = [it async for it in verify(checkpointer.backend)]
    assert all(isinstance(it, Checked) for it in found)
    assert len(found) == 20


# --- PostgreSQL


class Recipe:
    """The commands of a section of the page, for a database of the tests."""

    def __init__(self, server: servers.PostgreSQL, name: str) -> None:
        self.server, self.name = server, name
        self.restored = f"{name}_restored"
        self.before = f"{name}_before"
        self.dump = server.directory / f"{name}.dump"

    def run(self, heading: str) -> None:
        section = PAGE.read_text("utf-8").partition(f"\n### {heading}\n")[2].partition("\n#")[0]
        (commands,) = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for command in commands.replace("\\\n", "").splitlines():
            self._run_one(command)

    def _run_one(self, command: str) -> None:
        for shown, name in (
            ("agents_restored", self.restored),
            ("agents_before", self.before),
            ("agents.dump", str(self.dump)),
            ("--owner=app", "--owner=postgres"),
        ):
            command = command.replace(shown, name)
        command = re.sub(r"\bagents\b", self.name, command)
        where = f"PGHOST={self.server.socket_directory} PGPORT={self.server.port} PGUSER=postgres"
        script = f"export {where}; cd /; PATH='{self.server.binaries}':$PATH; {command}"
        done = subprocess.run(
            ["/bin/sh", "-ec", script], capture_output=True, text=True, check=False,
            **servers.nobody(),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), command

    def drop(self) -> None:
        for name in (self.restored, self.before):
            self.server.drop_database(name)


@pytest.fixture
def recipe(migrated_database: str, postgresql: servers.Server) -> Iterator[Recipe]:
    if not isinstance(postgresql, servers.PostgreSQL):
        pytest.skip("LOCUS_TEST_POSTGRESQL_URL: its pg_dump may be of another version")
    made = Recipe(postgresql, migrated_database.partition("?")[0].rpartition("/")[2])
    yield made
    made.drop()


async def test_a_database_dumped_while_two_processes_write_is_whole(
    migrated_database: str, recipe: Recipe, writing: Callable[[str], Writers]
) -> None:
    writers = writing(migrated_database)
    told = writers.more()
    recipe.run("PostgreSQL: back up")
    writers.more(3)
    writers.kill()
    recipe.run("PostgreSQL: restore beside")
    await assert_whole(recipe.server.url(recipe.restored), told)


async def test_a_database_put_in_the_place_of_a_live_one_is_noticed(
    migrated_database: str, recipe: Recipe
) -> None:
    async with open_checkpointer(migrated_database, state_type=dict) as checkpointer:
        await checkpointer.save({"said": ["a"]}, "t", "v1")
        await asyncio.to_thread(recipe.run, "PostgreSQL: back up")
        state = await checkpointer.load("t")
        state["said"].append("b")
        await checkpointer.save(state, "t", "v2")
        await checkpointer.save({"n": 1}, "later")
        held = await checkpointer.load("t")
        await asyncio.to_thread(recipe.run, "PostgreSQL: restore beside")
        await asyncio.to_thread(recipe.run, "PostgreSQL: swap")
        await asyncio.to_thread(recipe.run, "PostgreSQL: the old database")
        held["said"].append("c")
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(held, "t", "v3")
        assert told.value.head_id == "v1"
        assert await checkpointer.load("later") is None
        again = await checkpointer.load("t")
        again["said"].append("d")
        await checkpointer.save(again, "t", "v2")  # its number was given before, and means another
        with pytest.raises(ConflictError):
            await checkpointer.save(held, "t", "v3")
        assert await checkpointer.load("t") == {"said": ["a", "d"]}
        await checkpointer.save({"n": 2}, "later")
        assert await checkpointer.list_checkpoints("later", 10) != []
        found = [it async for it in verify(checkpointer.backend)]
        assert sorted(found, key=str) == [Checked("later", 1), Checked("t", 2)]
    async with open_checkpointer(recipe.server.url(recipe.before), state_type=dict) as old:
        assert await old.load("later") == {"n": 1}


async def test_who_writes_while_databases_are_swapped_is_told_or_kept(
    migrated_database: str, recipe: Recipe
) -> None:
    """Every save that was acknowledged after the swap is there; every other one was told."""
    kept: list[int] = []
    errors: list[LocusStoreError] = []
    is_over = asyncio.Event()

    async def write() -> None:
        async with open_checkpointer(migrated_database, state_type=dict) as checkpointer:
            number = 0
            while not is_over.is_set() or len(kept) < 10:
                number += 1
                try:
                    state = await checkpointer.load("t") or {"numbers": []}
                    state["numbers"].append(number)
                    await checkpointer.save(state, "t")
                except LocusStoreError as exc:
                    errors.append(exc)
                    continue
                if is_over.is_set():
                    kept.append(number)

    async with open_checkpointer(migrated_database, state_type=dict) as checkpointer:
        await checkpointer.save({"numbers": [0]}, "t")
    await asyncio.to_thread(recipe.run, "PostgreSQL: back up")
    await asyncio.to_thread(recipe.run, "PostgreSQL: restore beside")
    writer = asyncio.create_task(write())
    await asyncio.to_thread(recipe.run, "PostgreSQL: swap")
    is_over.set()
    await writer
    expected = (ConflictError, ConnectionFailedError, SchemaError, BackendError)
    assert all(isinstance(it, expected) for it in errors)
    async with open_checkpointer(migrated_database, state_type=dict) as checkpointer:
        numbers = (await checkpointer.load("t"))["numbers"]
        assert numbers[0] == 0
        assert set(kept) <= set(numbers)
        assert len(await checkpointer.list_checkpoints("t", 10_000)) == len(numbers)
        found = [it async for it in verify(checkpointer.backend)]
        assert found == [Checked("t", len(numbers))]
