"""The import of the OpenAI Agents SDK's own sessions, from databases that the SDK wrote."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from sqlalchemy.ext.asyncio import create_async_engine
from tiers import first_of

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    SchemaError,
    open_checkpointer,
)
from locus_store.transfer.counts import Counts

if TESTS_RUN:
    from agents.extensions.memory import AsyncSQLiteSession, SQLAlchemySession
    from agents.memory import SQLiteSession

    from locus_store.adapters.openai_agents import LocusSession
    from locus_store.adapters.openai_agents.import_threads import import_openai_agents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


def user(text: str) -> Any:
    return {"role": "user", "content": text}


ITEMS = [
    user("Two tickets to Porto."),
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"n": 2}'},
    {"type": "function_call_output", "call_id": "c", "output": "ß%_'"},
]


@pytest.fixture(
    params=["SQLiteSession", "AsyncSQLiteSession", *first_of("SQLAlchemySession", "PostgreSQL")]
)
async def source(request: Any, tmp_path: Path) -> str:
    """Return the URL of a database in which the SDK keeps the sessions a and b."""
    path = tmp_path / "theirs.db"
    url = f"sqlite:///{path}"
    if request.param == "SQLiteSession":
        for name, items in (("a", ITEMS), ("b", ITEMS[:1])):
            session = SQLiteSession(name, path)
            await session.add_items(items)
            session.close()
    elif request.param == "AsyncSQLiteSession":
        for name, items in (("a", ITEMS), ("b", ITEMS[:1])):
            other = AsyncSQLiteSession(name, path)
            await other.add_items(items)
            await other.close()
    else:
        driven = f"sqlite+aiosqlite:///{path}"
        if request.param == "PostgreSQL":
            url = request.getfixturevalue("database")
            driven = url.replace("postgresql://", "postgresql+asyncpg://", 1)
        engine = create_async_engine(driven)
        for name, items in (("a", ITEMS), ("b", ITEMS[:1])):
            await SQLAlchemySession(name, engine=engine, create_tables=True).add_items(items)
        await engine.dispose()
    return url


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Any]:
    url = f"sqlite:///{tmp_path / 'ours.db'}"
    async with open_checkpointer(url, state_type=dict) as opened:
        yield opened.backend


async def test_sessions_become_threads_with_their_items_and_times(
    source: str, backend: Any
) -> None:
    assert await import_openai_agents(backend, source) == Counts(2, 0)
    assert await LocusSession("a", backend).get_items() == ITEMS
    assert await LocusSession("b", backend).get_items() == ITEMS[:1]
    first = (await LocusSession("a", backend).log.load("a") or [])[0]
    assert abs(datetime.now(UTC) - first.created_at) < timedelta(days=2)
    assert first.role == "user"
    assert await import_openai_agents(backend, source) == Counts(0, 2)
    await LocusSession("a", backend).add_items([user("more")])
    assert len(await LocusSession("a", backend).get_items()) == 4


async def test_chosen_sessions_are_imported(source: str, backend: Any) -> None:
    with pytest.raises(NotFoundError, match="no session 'c'"):
        await import_openai_agents(backend, source, thread_ids=["b", "c"])
    assert await backend.list_threads() == []
    assert await import_openai_agents(backend, source, thread_ids=["b"]) == Counts(1, 0)
    assert await LocusSession("a", backend).get_items() == []


async def test_a_session_that_was_continued_here_stays(tmp_path: Path, backend: Any) -> None:
    old = SQLiteSession("a", tmp_path / "theirs.db", messages_table="mine")
    await old.add_items(ITEMS)
    old.close()
    url = f"sqlite+aiosqlite:///{tmp_path / 'theirs.db'}"
    await import_openai_agents(backend, url, messages_table="mine")
    await LocusSession("a", backend).add_items([user("more")])
    with pytest.raises(ConflictError, match="'a'"):
        await import_openai_agents(backend, url, messages_table="mine")
    assert len(await LocusSession("a", backend).get_items()) == 4


async def test_a_damaged_item_is_named_and_other_sessions_are_imported(
    tmp_path: Path, backend: Any
) -> None:
    path = tmp_path / "theirs.db"
    for name in ("a", "b"):
        old = SQLiteSession(name, path)
        await old.add_items(ITEMS)
        old.close()
    for damage in ("{", json.dumps([1])):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE agent_messages SET message_data = ? WHERE id = 2", (damage,))
        with pytest.raises(IntegrityError, match="item 2 is not a JSON object"):
            await import_openai_agents(backend, f"sqlite:///{path}")
        assert await LocusSession("a", backend).get_items() == []
        assert await LocusSession("b", backend).get_items() == ITEMS


async def test_cut_strings_and_any_numbers_are_imported_exactly(
    tmp_path: Path, backend: Any
) -> None:
    item: Any = {"role": "user", "content": "a\ud83e", "n": [2**70, float("inf")], "\udd8a": None}
    path = tmp_path / "theirs.db"
    old = SQLiteSession("a", path)
    await old.add_items([item])
    assert await old.get_items() == [item]
    old.close()
    assert await import_openai_agents(backend, f"sqlite:///{path}") == Counts(1, 0)
    assert await import_openai_agents(backend, f"sqlite:///{path}") == Counts(0, 1)
    assert await LocusSession("a", backend).get_items() == [item]


async def test_what_is_no_source_is_refused(tmp_path: Path, backend: Any) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    with pytest.raises(SchemaError, match="no table 'agent_messages'"):
        await import_openai_agents(backend, url)
    with pytest.raises(ConnectionFailedError):
        await import_openai_agents(backend, f"sqlite:///{tmp_path / 'absent.db'}")
    with pytest.raises(InvalidArgumentError, match="is not a name"):
        await import_openai_agents(backend, url, messages_table='x" --')
    with pytest.raises(InvalidArgumentError, match="not 'redis'"):
        await import_openai_agents(backend, "redis://x")
    with pytest.raises(InvalidArgumentError, match=r"'x.db' is not a URL.*sqlite:///x.db"):
        await import_openai_agents(backend, "x.db")
