"""Table names as users of the Locus SDK choose them: long ones, and ones with capitals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from oracle_twin import TwinServer
from tiers import first_of

from locus_store import open_checkpointer
from locus_store.backends.oracle import oracle_checkpointer
from locus_store.errors import InvalidArgumentError
from locus_store.sql import migrate
from locus_store.sql.schema import status, vectors
from locus_store.sql.schema.tables import parse_prefix

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

NAMES = ["customer_support_agent_state", "MyTable", "a" * 51, "CamelCase_checkpoints"]


async def require_usable(checkpointer: Any) -> None:
    """Save, load, find, copy and delete."""
    await checkpointer.save({"said": "Two tickets to Porto"}, "t", metadata={"stage": "asked"})
    await checkpointer.save({"said": "Booked"}, "t", metadata={"stage": "booked"})
    assert await checkpointer.load("t") == {"said": "Booked"}
    found = await checkpointer.query_by_metadata("stage", "asked")
    assert [it["thread_id"] for it in found] == ["t"]
    assert [it["thread_id"] for it in await checkpointer.search("porto tickets")] == ["t"]
    assert await checkpointer.copy_thread("t", "copy") is True
    assert await checkpointer.delete("t") is True
    assert await checkpointer.list_threads() == ["copy"]


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'names.db'}"
    found: str = request.getfixturevalue("database")
    return found


@pytest.mark.parametrize("name", NAMES)
async def test_a_table_name_of_the_users_is_used(name: str, url: str) -> None:
    async with open_checkpointer(url, table_name=name) as checkpointer:
        await require_usable(checkpointer)
        assert await checkpointer.backend.create_search_index() is True
        assert [it["thread_id"] for it in await checkpointer.search("porto")] == ["copy"]
    async with open_checkpointer(url, table_name=name, auto_migrate=False) as checkpointer:
        assert await checkpointer.load("copy") == {"said": "Booked"}
        assert await checkpointer.backend.create_search_index() is False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("later_release")
def test_its_tables_go_up_and_down(name: str, url: str) -> None:
    prefix = parse_prefix(name, None, "postgresql")
    for _ in range(2):
        assert migrate.upgrade(url, prefix=prefix) == status.HEAD
        assert migrate.check(url, prefix=prefix).state == "ok"
        assert migrate.downgrade(url, "0001", prefix=prefix) == "0001"
        assert migrate.upgrade(url, prefix=prefix) == status.HEAD
        assert migrate.downgrade(url, prefix=prefix) is None
        assert migrate.check(url, prefix=prefix).state == "missing"


@pytest.mark.parametrize("name", NAMES)
def test_its_vector_index_is_made_once(name: str, database: str) -> None:
    prefix = parse_prefix(name, None, "postgresql")
    migrate.upgrade(database, prefix=prefix)
    made = [
        vectors.create_vector_index(database, dimension=3, method="hnsw", prefix=prefix)
        for _ in range(2)
    ]
    assert made[0] != made[1]


def test_a_migration_refuses_a_prefix_that_the_database_would_cut(database: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"52 characters .*postgresql"):
        migrate.upgrade(database, prefix="a" * 53)


@pytest.mark.parametrize("name", [*NAMES, "a" * 116])
async def test_oracle_takes_the_name_too(name: str, tmp_path: Path) -> None:
    path = tmp_path / "twin.db"
    path.touch()
    place: dict[str, Any] = {"dsn": "twin:1521/locus", "user": "locus", "password": "secret"}
    url = "oracle://locus:secret@twin:1521/locus"
    prefix = parse_prefix(name, None, "oracle")
    with TwinServer(path, prefix).in_its_place():
        assert migrate.upgrade(url, prefix=prefix) == status.HEAD
        assert migrate.check(url, prefix=prefix).state == "ok"
        async with oracle_checkpointer(**place, table_name=name) as checkpointer:
            await require_usable(checkpointer)
        assert migrate.downgrade(url, prefix=prefix) is None
