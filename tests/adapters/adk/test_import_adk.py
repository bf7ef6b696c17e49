"""The import of Google ADK's own sessions, from databases that the framework wrote."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from tiers import first_of

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    IntegrityError,
    NotFoundError,
    SchemaError,
    open_checkpointer,
)
from locus_store.transfer.counts import Counts

if TESTS_RUN:
    from google.adk.events import Event, EventActions
    from google.adk.sessions.database_session_service import DatabaseSessionService
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from google.genai import types

    from locus_store.adapters.adk import LocusSessionService
    from locus_store.adapters.adk.import_threads import import_adk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio
NAMES = {"app_name": "app", "user_id": "u"}


def event(n: int) -> Event:
    parts = [types.Part(text=f"ß%_'{n}"), types.Part(text=None)]
    return Event(
        author="user",
        invocation_id=f"i{n}",
        timestamp=1_700_000_000.25 + n // 2,
        content=types.Content(role="user", parts=parts),
        actions=EventActions(state_delta={"n": n, "user:n": n, "none": None}),
    )


async def filled(service: Any, events: int = 3) -> list[Any]:
    """Create two sessions of an app; return what the framework reads of them."""
    state = {"app:a": {"x": 1}, "user:b": 2, "c": [3]}
    one = await service.create_session(**NAMES, session_id="s/1", state=state)
    await service.create_session(app_name="app", user_id="v%", session_id="s2")
    for n in range(events):
        await service.append_event(one, event(n))
    found = await sessions(service)
    await service.close()
    return found


async def sessions(service: Any) -> list[Any]:
    names = (("u", "s/1"), ("v%", "s2"))
    return [
        (await service.get_session(app_name="app", user_id=user, session_id=name)).model_dump()
        for user, name in names
    ]


@pytest.fixture(params=["Sqlite", *first_of("Database", "PostgreSQL")])
def source(request: Any, tmp_path: Path) -> tuple[str, Any]:
    """Return the URL of a database, and the framework's service on it."""
    path = tmp_path / "theirs.db"
    if request.param == "Sqlite":
        return f"sqlite:///{path}", SqliteSessionService(str(path))
    url = f"sqlite+aiosqlite:///{path}"
    if request.param == "PostgreSQL":
        url = request.getfixturevalue("database").replace("postgresql", "postgresql+asyncpg", 1)
    return url, DatabaseSessionService(url)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Any]:
    url = f"sqlite:///{tmp_path / 'ours.db'}"
    async with open_checkpointer(url, state_type=dict) as opened:
        yield opened.backend


async def test_sessions_become_threads_with_their_events_states_and_times(
    source: Any, backend: Any
) -> None:
    url, service = source
    before = await filled(service, events=1)
    assert await import_adk(backend, url) == Counts(4, 0)
    ours = LocusSessionService(backend)
    assert await sessions(ours) == before
    assert await ours.get_user_state(**NAMES) == {"b": 2, "n": 0}
    (message,) = await ours.log.load("app/u/s%2F1") or []
    assert message.created_at == datetime.fromtimestamp(1_700_000_000.25, UTC)
    assert await import_adk(backend, url) == Counts(0, 4)
    (listed, _) = (await ours.list_sessions(app_name="app")).sessions
    await ours.append_event(listed, event(9))
    with pytest.raises(ConflictError, match="s%2F1"):
        await import_adk(backend, url)


async def test_cut_strings_and_long_integers_are_imported_exactly(
    tmp_path: Path, backend: Any
) -> None:
    path = tmp_path / "theirs.db"
    odd = {"a\ud83e": ["\udd8a", 2**70]}
    await filled(SqliteSessionService(str(path)))
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("app_states", "user_states", "sessions"):
            connection.execute(f"UPDATE {table} SET state = ?", (json.dumps({"odd": odd}),))
        connection.execute(
            "UPDATE events SET event_data = json_set(event_data, '$.custom_metadata', json(?))",
            (json.dumps(odd),),
        )
    url = f"sqlite:///{path}"
    assert await import_adk(backend, url) == Counts(4, 0)
    assert await import_adk(backend, url) == Counts(0, 4)
    found, _ = await sessions(LocusSessionService(backend))
    assert found["state"] == {"odd": odd, "app:odd": odd, "user:odd": odd}
    assert [it["custom_metadata"] for it in found["events"]] == [odd] * 3


async def test_events_of_one_time_keep_their_order(tmp_path: Path, backend: Any) -> None:
    path = tmp_path / "theirs.db"
    before = await filled(SqliteSessionService(str(path)), events=8)
    await import_adk(backend, f"sqlite:///{path}")
    assert await sessions(LocusSessionService(backend)) == before


async def test_chosen_threads_are_imported(tmp_path: Path, backend: Any) -> None:
    path = tmp_path / "theirs.db"
    await filled(SqliteSessionService(str(path)))
    url = f"sqlite:///{path}"
    with pytest.raises(NotFoundError, match="no thread 'app/u/none'"):
        await import_adk(backend, url, thread_ids=["app/v%25/s2", "app/u/none"])
    assert await import_adk(backend, url, thread_ids=["app/v%25/s2"]) == Counts(1, 0)
    (found,) = (await LocusSessionService(backend).list_sessions(app_name="app")).sessions
    assert (found.user_id, found.id) == ("v%", "s2")


@pytest.mark.parametrize("damage", ["{", "[1]", '{"author": 7}'])
async def test_a_damaged_event_is_named_and_other_sessions_are_imported(
    damage: str, tmp_path: Path, backend: Any
) -> None:
    path = tmp_path / "theirs.db"
    await filled(SqliteSessionService(str(path)))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET event_data = ? WHERE rowid = 2", (damage,))
    with pytest.raises((IntegrityError, ValueError), match="s%2F1"):
        await import_adk(backend, f"sqlite:///{path}")
    (found,) = (await LocusSessionService(backend).list_sessions(app_name="app")).sessions
    assert found.id == "s2"


async def test_what_is_no_source_is_refused(tmp_path: Path, backend: Any) -> None:
    path = tmp_path / "other.db"
    url = f"sqlite:///{path}"
    with closing(sqlite3.connect(path)) as connection:
        with pytest.raises(SchemaError, match="no tables of Google ADK"):
            await import_adk(backend, url)
        connection.execute("CREATE TABLE events (id TEXT, actions BLOB)")
        connection.execute("CREATE TABLE user_states (app_name TEXT)")
    with pytest.raises(SchemaError, match="adk migrate session"):
        await import_adk(backend, url)
    with pytest.raises(ConnectionFailedError):
        await import_adk(backend, f"sqlite:///{tmp_path / 'absent.db'}")
