"""The migrations with Oracle's dialect, over a double whose definitions commit, as Oracle's do."""

from __future__ import annotations

import asyncio
import os
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from lazily import TESTS_RUN
from oracle_twin import TwinServer, server_error
from storages.oracle import PLACE

from locus_store import OracleBackend, SchemaError
from locus_store.sql import migrate

if TESTS_RUN:
    from later_release.titles import BATCH_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from later_release import Release

STEP = 1 if os.environ.get("LOCUS_TEST_ALL") else 3
"""Each statement fails once in ``make test-all``, every third one in ``make test``."""

URL = "oracle://locus:secret@twin:1521/locus"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[TwinServer]:
    """A database without tables."""
    path = tmp_path / "twin.db"
    path.touch()
    server = TwinServer(path)
    with server.in_its_place():
        yield server


CHANGES = ("CREATE", "ALTER TABLE", "DROP", "INSERT", "UPDATE", "DELETE")


class Failing:
    """Lets the n-th change fail, as where a quota is used up."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, statement: str) -> None:
        if statement.lstrip().startswith(CHANGES):
            self._left -= 1
            if self._left == 0:
                raise server_error(1536, "space quota exceeded")


@pytest.mark.usefixtures("later_release")
def test_the_chain_goes_up_and_down_and_up_again(empty: TwinServer) -> None:
    assert migrate.check(URL).state == "missing"
    assert migrate.upgrade(URL) == "0003"
    assert migrate.check(URL).state == "ok"
    assert migrate.downgrade(URL, "0001") == "0001"
    assert migrate.check(URL).state == "behind"
    assert migrate.upgrade(URL) == "0003"
    assert migrate.downgrade(URL) is None
    assert migrate.check(URL).state == "missing"
    assert migrate.upgrade(URL) == "0003"


@pytest.mark.usefixtures("later_release")
def test_an_upgrade_that_is_cut_short_anywhere_is_gone_on_with(empty: TwinServer) -> None:
    for at in count(1, STEP):
        if not _fails_at(empty, at, migrate.upgrade):
            break
        if at % 2:
            migrate.upgrade(URL)
        else:
            asyncio.run(opened())
        assert migrate.check(URL).state == "ok"
        migrate.downgrade(URL)
    assert at > 20  # the tables, their indexes and rows, the view


@pytest.mark.usefixtures("later_release")
def test_a_downgrade_that_is_cut_short_anywhere_is_gone_on_with(empty: TwinServer) -> None:
    migrate.upgrade(URL)
    for at in count(1, STEP):
        if not _fails_at(empty, at, migrate.downgrade):
            break
        migrate.downgrade(URL)
        assert migrate.check(URL).state == "missing"
        migrate.upgrade(URL)
    assert at > 10


async def saved(*thread_ids: str) -> None:
    async with OracleBackend(**PLACE) as backend:
        for it in thread_ids:
            await backend.save(it, {"n": 1})


def titles(server: TwinServer) -> list[str]:
    engine = sa.create_engine(f"sqlite:///{server.path}")
    with engine.connect() as connection:
        query = "SELECT title FROM locus_threads ORDER BY thread"
        found = list(connection.exec_driver_sql(query).scalars())
    engine.dispose()
    return found


@pytest.mark.parametrize(("at", "filled"), [(3, 0), (4, 3), (5, 6), (6, 7), (7, 7)])
def test_a_migration_of_data_that_is_cut_short_continues_with_the_rest(
    empty: TwinServer, release: Callable[..., Release], at: int, filled: int
) -> None:
    threads = [f"t{number}" for number in range(7)]
    asyncio.run(saved(*threads))
    with release("0002").installed():  # its changes: lock, column, batches, revision
        assert _fails_at(empty, at, migrate.upgrade)
        assert migrate.check(URL).state == "behind"
    assert titles(empty) == [*threads[:filled], *[None] * (7 - filled)]
    asyncio.run(saved("beside"))  # by an old library
    empty.calls.clear()
    with release("0002").installed():
        assert migrate.upgrade(URL) == "0002"
    assert titles(empty) == [*threads, "beside"]
    batches = sum("SET title" in it for it in empty.statements())
    assert batches == ceil((8 - filled) / BATCH_ROWS) + 1  # the last one finds nothing


def test_an_old_library_works_beside_a_newer_one_until_the_floor_is_raised(
    empty: TwinServer, release: Callable[..., Release]
) -> None:
    asyncio.run(saved("before"))
    with release("0002").installed():
        assert migrate.upgrade(URL) == "0002"
    assert migrate.check(URL).state == "newer"
    asyncio.run(saved("beside"))
    with release("0003").installed():
        assert migrate.upgrade(URL) == "0003"
    assert titles(empty) == ["before", "beside"]
    with pytest.raises(SchemaError, match=r"0003 asks for .*0002"):
        asyncio.run(saved("after"))
    with release("0002").installed():
        asyncio.run(saved("after"))


async def opened() -> None:
    """An application that may make the schema begins."""
    async with OracleBackend(**PLACE) as backend:
        assert await backend.load("t") is None


def _fails_at(server: TwinServer, at: int, work: Any) -> bool:
    """Let the n-th change fail; whether there is an n-th one."""
    server.watch = Failing(at)
    try:
        work(URL)
    except SchemaError:
        return True
    finally:
        server.watch = None
    return False


def test_what_an_upgrade_left_is_told_and_an_application_makes_it_anew(empty: TwinServer) -> None:
    assert _fails_at(empty, 12, migrate.upgrade)
    told = migrate.check(URL)
    assert told.state == "missing"
    assert "was cut short" in told.message

    async def used() -> Any:
        async with OracleBackend(**PLACE, auto_migrate=False) as careful:
            with pytest.raises(SchemaError, match="was cut short"):
                await careful.load("t")
        async with OracleBackend(**PLACE) as backend:
            await backend.save("t", {"n": 1})
            return await backend.load("t")

    assert asyncio.run(used()) == {"n": 1}


def test_applications_that_start_at_once_make_one_schema(empty: TwinServer) -> None:
    async def one(n: int) -> Any:
        async with OracleBackend(**PLACE) as backend:
            await backend.save(f"t{n}", {"n": n})
            return await backend.load(f"t{n}")

    async def all_of_them() -> Any:
        return await asyncio.gather(
            *(asyncio.to_thread(asyncio.run, one(n)) for n in range(3)), one(3), one(4)
        )

    assert asyncio.run(all_of_them()) == [{"n": n} for n in range(5)]
    assert sum("CREATE TABLE locus_threads" in it for it in empty.statements()) == 1
    assert not empty.table_locks


def test_a_foreign_table_is_refused_and_nothing_is_made_beside_it(empty: TwinServer) -> None:
    engine = sa.create_engine(f"sqlite:///{empty.path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE locus_threads (theirs INTEGER)")
    before = _dump(engine)
    with pytest.raises(SchemaError, match="not made by locus-store"):
        migrate.upgrade(URL)
    with pytest.raises(SchemaError, match="not made by locus-store"):
        asyncio.run(opened())
    assert _dump(engine) == before
    engine.dispose()


@pytest.mark.usefixtures("later_release")
def test_who_may_not_lock_is_told_that_the_schema_is_behind(empty: TwinServer) -> None:
    def refuse(statement: str) -> None:
        if "locus_lock" in statement:
            raise server_error(1031, "insufficient privileges")

    migrate.upgrade(URL, "0001")
    empty.watch = refuse
    with pytest.raises(SchemaError, match="0001 is behind"):
        asyncio.run(opened())


def test_two_that_make_the_lock_at_once_go_on(empty: TwinServer) -> None:
    def refuse(statement: str) -> None:
        if "IF NOT EXISTS locus_lock" in statement:
            raise server_error(955, "name is already used by an existing object")

    empty.watch = refuse
    assert migrate.upgrade(URL) == "0001"


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO locus_threads VALUES (1, 'a', 'b', NULL, NULL, NULL, 0, 0, NULL)",
        "ALTER TABLE locus_threads ADD theirs INTEGER",
        "ALTER TABLE locus_version ADD theirs INTEGER",
    ],
)
def test_tables_that_somebody_uses_are_refused(change: str, empty: TwinServer) -> None:
    assert _fails_at(empty, 12, migrate.upgrade)
    engine = sa.create_engine(f"sqlite:///{empty.path}")
    with engine.begin() as connection:
        connection.exec_driver_sql(change)
    before = _dump(engine)
    for work in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaError, match="not made by locus-store; nothing was changed"):
            work(URL)
    assert _dump(engine) == before
    engine.dispose()


def _dump(engine: sa.Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT name, sql FROM sqlite_master"))


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (1031, "docs/oracle.md"),
        (1950, "quota"),
        (955, "another prefix"),
        (43853, "segment space management"),
        (16000, "read-only"),
    ],
)
def test_what_the_server_refuses_is_told_with_its_remedy(
    number: int, told: str, empty: TwinServer
) -> None:
    def refuse(statement: str) -> None:
        if "CREATE TABLE locus_threads" in statement:
            raise server_error(number, "the server's words")

    empty.watch = refuse
    with pytest.raises(SchemaError, match=told) as raised:
        migrate.upgrade(URL)
    assert "secret" not in str(raised.value)
