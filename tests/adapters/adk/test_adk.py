"""Google ADK's session service beside the framework's own ones."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from log_urls import EACH, OURS, url_of
from storages.memory import BareBackend
from tiers import full

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    NewMessage,
    NotFoundError,
    SerializationError,
    UnsupportedError,
    open_checkpointer,
    open_message_log,
)
from locus_store.testing.kit import HOSTILE_IDS

if TESTS_RUN:
    from google.adk.agents import LlmAgent, RunConfig
    from google.adk.agents.run_config import StreamingMode
    from google.adk.cli.service_registry import load_services_module
    from google.adk.cli.utils.service_factory import create_session_service_from_options
    from google.adk.errors import StaleSessionError as AdkStaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.events import Event, EventActions
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService, Session
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.adk.sessions.database_session_service import DatabaseSessionService
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from google.genai import types

    from locus_store.adapters.adk import LocusSessionService, StaleSessionError
    from locus_store.adapters.adk.records import STATE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio
THEIRS = ("InMemory", "Database", "Sqlite")
DIFFERENT = {
    "test_events_of_one_time_keep_their_order": {"Database"},  # ordered by their ids
    "test_an_event_that_is_sent_again_is_stored_once": {"Database", "Sqlite"},  # a unique key
    "test_a_stale_session_is_refused": {"InMemory"},  # the last writer wins
}
"""Behaviours in which one of the framework's services differs from this contract."""


def theirs(kind: str, path: Path) -> Any:
    if kind == "InMemory":
        return InMemorySessionService()
    if kind == "Sqlite":
        return SqliteSessionService(str(path / "theirs.db"))
    return DatabaseSessionService(f"sqlite+aiosqlite:///{path / 'theirs.db'}")


@pytest.fixture(params=EACH)
async def log(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    url = url_of(request.param, request, tmp_path)
    async with open_message_log(url) as opened:
        yield opened


@pytest.fixture(params=[*EACH, *full(*THEIRS)])
async def either(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param in OURS:
        url = url_of(request.param, request, tmp_path)
        async with LocusSessionService.from_url(url) as service:
            yield service
        return
    if request.param in DIFFERENT.get(request.node.originalname, ()):
        request.applymarker(pytest.mark.xfail(strict=True))
    service = theirs(request.param, tmp_path)
    yield service
    if request.param != "InMemory":
        await service.close()


def made(service: Any, user: str = "u", **options: Any) -> Any:
    return service.create_session(app_name="app", user_id=user, **options)


def got(service: Any, session: Session, **options: Any) -> Any:
    config = GetSessionConfig(**options) if options else None
    names = {"app_name": session.app_name, "user_id": session.user_id, "session_id": session.id}
    return service.get_session(**names, config=config)


def said(text: str = "", *, author: str = "user", **options: Any) -> Event:
    content = types.Content(role=author, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="i", content=content, **options)


def delta(state: dict[str, Any]) -> Event:
    return Event(author="a", invocation_id="i", actions=EventActions(state_delta=state))


def texts(session: Session) -> list[str]:
    return [it.content.parts[0].text for it in session.events]


class TestEitherService:
    async def test_a_session_comes_back(self, either: Any) -> None:
        first = await made(either, state={"n": 1, "deep": {"l": [None, 1.5, "ß"]}}, session_id="s")
        assert (first.app_name, first.user_id, first.id, first.events) == ("app", "u", "s", [])
        assert first.state == {"n": 1, "deep": {"l": [None, 1.5, "ß"]}}
        assert await got(either, first) == first
        other = await made(either)
        assert other.id
        assert other.state == {}
        assert await got(either, first.model_copy(update={"id": "none"})) is None
        assert await got(either, first.model_copy(update={"user_id": "v"})) is None
        assert await got(either, first.model_copy(update={"app_name": "b"})) is None

    async def test_an_id_is_given_once(self, either: Any) -> None:
        await made(either, session_id="s", state={"n": 1})
        with pytest.raises(AlreadyExistsError):
            await made(either, session_id="s", state={"n": 2})
        found = await made(either, "v", session_id="s")
        assert found.state == {}

    async def test_of_racing_creations_one_wins(self, either: Any) -> None:
        calls = (made(either, session_id="s", state={"user:n": n}) for n in range(6))
        results = await asyncio.gather(*calls, return_exceptions=True)
        won = [it for it in results if isinstance(it, Session)]
        assert len(won) == 1
        assert sum(isinstance(it, AlreadyExistsError) for it in results) == 5
        assert (await got(either, won[0])).state == won[0].state

    async def test_first_sessions_of_a_user_race_without_harm(self, either: Any) -> None:
        await asyncio.gather(*(made(either, state={f"user:{n}": n, "app:n": n}) for n in range(6)))
        found = await either.get_user_state(app_name="app", user_id="u")
        assert found == {str(n): n for n in range(6)}

    async def test_a_state_is_shared_by_its_scope(self, either: Any) -> None:
        first = await made(either, state={"app:a": 1, "user:b": 2, "c": 3, "temp:d": 4})
        assert first.state == {"app:a": 1, "user:b": 2, "c": 3}
        assert (await made(either)).state == {"app:a": 1, "user:b": 2}
        assert (await made(either, "v")).state == {"app:a": 1}
        other = await either.create_session(app_name="b", user_id="u")
        assert other.state == {}

    async def test_an_event_changes_the_states(self, either: Any) -> None:
        first = await made(either, state={"app:a": 1, "user:b": 1, "c": 1, "kept": 1})
        given = {"app:a": 2, "user:b": {"x": None}, "c": None, "temp:d": 4, "new": [1]}
        event = await either.append_event(first, delta(given))
        stored = {"app:a": 2, "user:b": {"x": None}, "c": None, "kept": 1, "new": [1]}
        assert first.state == {**stored, "temp:d": 4}
        assert "temp:d" not in event.actions.state_delta
        found = await got(either, first)
        assert found.state == stored
        assert found.events == first.events == [event]
        assert (await made(either, "v")).state == {"app:a": 2}

    async def test_the_state_of_a_user_needs_no_session(self, either: Any) -> None:
        names = {"app_name": "app", "user_id": "u"}
        assert await either.get_user_state(**names) == {}
        first = await made(either, state={"user:a": {"x": 1}, "user:b": 2})
        await either.append_event(first, delta({"user:b": 3, "b": 4}))
        found = await either.get_user_state(**names)
        assert found == {"a": {"x": 1}, "b": 3}
        found["a"]["x"] = 9
        await either.delete_session(**names, session_id=first.id)
        assert await either.get_user_state(**names) == {"a": {"x": 1}, "b": 3}

    async def test_an_event_comes_back_whole(self, either: Any) -> None:
        first = await made(either)
        call = types.FunctionCall(id="c", name="seats", args={"n": 1, "of": None})
        parts = [
            types.Part(text="ß%_'\u0000😀"),
            types.Part(inline_data=types.Blob(data=b"\xff\x00", mime_type="image/png")),
            types.Part(function_call=call),
        ]
        event = Event(
            author="model",
            invocation_id="i",
            branch="a.b",
            content=types.Content(role="model", parts=parts),
            actions=EventActions(artifact_delta={"f": 1}, transfer_to_agent="b", escalate=True),
            long_running_tool_ids={"c"},
            error_code="E",
            turn_complete=True,
            custom_metadata={"k": [1]},
            grounding_metadata=types.GroundingMetadata(web_search_queries=["q"]),
        )
        await either.append_event(first, event)
        (found,) = (await got(either, first)).events
        assert found == event

    async def test_an_author_may_be_any_text(self, either: Any) -> None:
        first = await made(either)
        for author in ("", "x" * 300, "\0"):
            await either.append_event(first, said(author=author))
        authors = [it.author for it in (await got(either, first)).events]
        assert authors == ["", "x" * 300, "\0"]

    async def test_a_part_of_an_event_is_not_stored(self, either: Any) -> None:
        first = await made(either)
        event = said("Hel", partial=True)
        assert await either.append_event(first, event) is event
        assert first.events == (await got(either, first)).events == []

    async def test_the_newest_events_are_read(self, either: Any) -> None:
        first = await made(either)
        for n in range(1, 6):
            await either.append_event(first, said(str(n), timestamp=float(n)))
        assert texts(await got(either, first)) == ["1", "2", "3", "4", "5"]
        assert texts(await got(either, first, num_recent_events=2)) == ["4", "5"]
        assert texts(await got(either, first, num_recent_events=9)) == ["1", "2", "3", "4", "5"]
        assert texts(await got(either, first, num_recent_events=0)) == []
        assert texts(await got(either, first, after_timestamp=4.0)) == ["4", "5"]
        assert texts(await got(either, first, after_timestamp=9.0)) == []
        found = await got(either, first, after_timestamp=2.0, num_recent_events=3)
        assert texts(found) == ["3", "4", "5"]

    async def test_a_session_that_was_read_in_part_is_continued(self, either: Any) -> None:
        first = await made(either)
        for n in range(4):
            await either.append_event(first, said(str(n)))
        part = await got(either, first, num_recent_events=1)
        await either.append_event(part, said("4"))
        assert texts(part) == ["3", "4"]
        assert texts(await got(either, first)) == ["0", "1", "2", "3", "4"]

    async def test_the_time_of_a_session_is_that_of_its_newest_event(self, either: Any) -> None:
        first = await made(either)
        assert first.last_update_time > 1e9
        await either.append_event(first, said(timestamp=1234.5))
        assert first.last_update_time == 1234.5
        assert (await got(either, first)).last_update_time == 1234.5

    async def test_sessions_are_listed_by_time(self, either: Any) -> None:
        assert (await either.list_sessions(app_name="app")).sessions == []
        users = {"a": "u", "b": "v", "c": "u"}
        for name, user in users.items():
            one = await made(either, user, session_id=name, state={"n": name, "user:x": user})
            times = {"a": 30.0, "b": 10.0, "c": 20.0}
            await either.append_event(one, said(timestamp=times[name]))
        await either.create_session(app_name="app2", user_id="u", state={"app:z": 1})
        found = (await either.list_sessions(app_name="app")).sessions
        assert [it.id for it in found] == ["b", "c", "a"]
        assert [it.state for it in found] == [
            {"n": it, "user:x": users[it]} for it in ("b", "c", "a")
        ]
        assert all(it.events == [] for it in found)
        mine = (await either.list_sessions(app_name="app", user_id="u")).sessions
        assert [it.id for it in mine] == ["c", "a"]
        assert (await either.list_sessions(app_name="app", user_id="w")).sessions == []
        assert (await either.list_sessions(app_name="none")).sessions == []

    async def test_a_listed_session_is_continued(self, either: Any) -> None:
        await made(either, state={"user:a": {"x": 1}})
        (listed,) = (await either.list_sessions(app_name="app")).sessions
        await either.append_event(listed, said("1"))
        assert texts(await got(either, listed)) == ["1"]

    async def test_a_deleted_session_is_gone(self, either: Any) -> None:
        first, other = await made(either), await made(either)
        await either.append_event(first, said("1"))
        names = {"app_name": "app", "user_id": "u"}
        await either.delete_session(**names, session_id=first.id)
        await either.delete_session(**names, session_id="none")
        assert await got(either, first) is None
        assert [it.id for it in (await either.list_sessions(**names)).sessions] == [other.id]
        with pytest.raises(ValueError, match=first.id):
            await either.append_event(first, said("2"))
        again = await made(either, session_id=first.id)
        assert (await got(either, again)).events == []

    @pytest.mark.parametrize("names", [("u", " "), ("u", ""), ("", "")])
    async def test_a_blank_id_is_that_of_no_session(
        self, either: Any, names: tuple[str, str]
    ) -> None:
        await either.create_session(
            app_name="app", user_id="u", session_id="s", state={"user:lang": "de", "app:x": 1}
        )
        user_id, session_id = names
        place = {"app_name": "app", "user_id": user_id, "session_id": session_id}
        assert await either.get_session(**place) is None
        await either.delete_session(**place)
        found = await either.get_session(app_name="app", user_id="u", session_id="s")
        assert found.state == {"user:lang": "de", "app:x": 1}

    async def test_sessions_are_copies(self, either: Any) -> None:
        shared = {"app:b": {"x": 1}, "user:c": {"x": 1}}
        first = await made(either, state={"a": {"x": 1}, **shared})
        await either.append_event(first, said("1"))
        for found in (
            first,
            await got(either, first),
            *(await either.list_sessions(app_name="app")).sessions,
        ):
            for key in ("a", "app:b", "user:c"):
                found.state[key]["x"] = 9
            found.events.clear()
        found = await got(either, first)
        assert found.state == {"a": {"x": 1}, **shared}
        assert texts(found) == ["1"]

    async def test_a_stale_session_is_refused(self, either: Any) -> None:
        first = await made(either)
        other = await got(either, first)
        await either.append_event(other, said("1"))
        with pytest.raises(AdkStaleSessionError):
            await either.append_event(first, delta({"n": 1, "user:n": 1, "app:n": 1}))
        found = await got(either, first)
        assert (texts(found), found.state) == (["1"], {})
        await either.append_event(found, said("2"))
        assert texts(await got(either, first)) == ["1", "2"]

    async def test_branches_of_a_run_share_the_session(self, either: Any) -> None:
        first = await made(either)
        events = [said(str(n)) for n in range(12)]
        await asyncio.gather(*(either.append_event(first, it) for it in events))
        assert sorted(texts(first)) == sorted(str(n) for n in range(12))
        assert len((await got(either, first)).events) == 12

    async def test_events_of_one_time_keep_their_order(self, either: Any) -> None:
        first = await made(either)
        for n in range(12):
            await either.append_event(first, said(str(n), timestamp=100.0))
        assert texts(await got(either, first)) == [str(n) for n in range(12)]
        newest = await got(either, first, num_recent_events=3)
        assert texts(newest) == ["9", "10", "11"]

    async def test_an_event_that_is_sent_again_is_stored_once(self, either: Any) -> None:
        first = await made(either)
        event = said("1")
        for _ in range(2):
            await either.append_event(first, event)
        assert texts(await got(either, first)) == ["1"]

    async def test_values_of_python_become_json(self, either: Any) -> None:
        at = datetime(2026, 11, 23, tzinfo=UTC)
        first = await made(either, state={"at": at, "user:of": {1}})
        await either.append_event(first, delta({"new": at, "app:of": {2}}))
        found = await got(either, first)
        if not isinstance(either, InMemorySessionService):
            assert found.state["at"] == found.state["new"] == "2026-11-23T00:00:00Z"
            assert (found.state["user:of"], found.state["app:of"]) == ([1], [2])

    async def test_ids_of_any_characters_are_kept_apart(self, either: Any) -> None:
        ids = [it for it in HOSTILE_IDS if it.strip() == it and "\0" not in it and len(it) < 40]
        for name in ids:
            names = {"app_name": name, "user_id": name, "session_id": name}
            await either.create_session(**names, state={"n": name, "user:n": name})
        for name in ids:
            names = {"app_name": name, "user_id": name}
            (found,) = (await either.list_sessions(**names)).sessions
            assert (found.id, found.state) == (name, {"n": name, "user:n": name})
            assert (await either.get_session(**names, session_id=name)).id == name


class TestOurService:
    async def test_its_errors_are_of_both_kinds(self, log: Any) -> None:
        service = LocusSessionService(log)
        first = await made(service)
        for kind in (ConflictError, AlreadyExistsError):
            with pytest.raises(kind, match=first.id):
                await made(service, session_id=first.id)
        await service.append_event(await got(service, first), said())
        for kind in (ConflictError, AdkStaleSessionError, StaleSessionError):
            with pytest.raises(kind, match=first.id):
                await service.append_event(first, said())
        await service.delete_session(app_name="app", user_id="u", session_id=first.id)
        for kind in (NotFoundError, ValueError):
            with pytest.raises(kind, match=first.id):
                await service.append_event(first, said())

    async def test_an_id_that_no_log_keeps_is_kept_in_the_event(self, log: Any) -> None:
        service = LocusSessionService(log)
        first = await made(service)
        ids = ["x" * 300, "\0", "\ud83d"]
        for name in ids:
            await service.append_event(first, said(id=name))
        assert [it.id for it in (await got(service, first)).events] == ids

    async def test_keys_with_half_a_character_are_kept(self, log: Any) -> None:
        service, state = LocusSessionService(log), {"\ud800": {"\udc00": 1}, "user:\ud83d": 2}
        first = await made(service, state=state)
        assert first.state == (await got(service, first)).state == state

    async def test_a_creation_that_fails_stores_no_session(self, log: Any) -> None:
        service = LocusSessionService(log)
        await log.append("app//", [NewMessage("no object")], namespace="adk-app")
        names: Any = {"app_name": "app", "user_id": "u", "session_id": "s"}
        with pytest.raises(IntegrityError):
            await service.create_session(**names)
        await log.delete("app//")
        with pytest.raises(SerializationError):
            await service.create_session(**names, state={"deep": json.loads("[" * 210 + "]" * 210)})
        assert (await service.create_session(**names)).id == "s"

    async def test_a_refused_event_changes_nothing(self, log: Any) -> None:
        service = LocusSessionService(log)
        first = await made(service)
        before = await got(service, first)
        deep = json.loads("[" * 210 + "]" * 210)
        with pytest.raises(LocusStoreError):
            await service.append_event(first, delta({"temp:a": 1, "b": 2, "user:deep": deep}))
        assert first == before == await got(service, first)

    async def test_a_session_that_was_deleted_and_created_again_is_another_one(
        self, log: Any
    ) -> None:
        service = LocusSessionService(log)
        first = await made(service)
        await service.delete_session(app_name="app", user_id="u", session_id=first.id)
        await made(service, session_id=first.id)
        with pytest.raises(StaleSessionError):
            await service.append_event(first, said())

    async def test_a_session_of_the_caller_is_compared_by_time_and_event(self, log: Any) -> None:
        service = LocusSessionService(log)
        stored = await made(service)
        await service.append_event(stored, said("1"))
        copied = Session(**{**stored.model_dump(), "last_update_time": 0.0})
        await service.append_event(copied, said("2"))
        for it in (stored.model_dump(), {**stored.model_dump(), "events": []}):
            with pytest.raises(StaleSessionError):
                await service.append_event(Session(**it), said("3"))
        assert texts(await got(service, stored)) == ["1", "2"]

    async def test_an_event_whose_reply_was_lost_is_stored_once(
        self, log: Any, monkeypatch: Any
    ) -> None:
        service, append = LocusSessionService(log), log.append
        first = await made(service)
        event = delta({"user:n": 1, "n": 1})

        async def lost(*args: Any, **options: Any) -> int:
            await append(*args, **options)
            raise ConnectionFailedError("the reply is lost")

        with monkeypatch.context() as patch:
            patch.setattr(log, "append", lost)
            with pytest.raises(ConnectionFailedError):
                await service.append_event(first, event)
        assert first.events == []
        await service.append_event(first, event)
        await service.append_event(first, said("2"))
        found = await got(service, first)
        assert (found.events, found.state) == (first.events, first.state)
        assert len(found.events) == 2

    async def test_a_cancelled_append_completes(self, log: Any) -> None:
        service = LocusSessionService(log)
        first = await made(service)
        task = asyncio.ensure_future(service.append_event(first, said("1")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await service.append_event(first, said("2"))
        assert texts(first) == texts(await got(service, first)) == ["1", "2"]

    async def test_sessions_that_share_a_state_lose_no_change(self, log: Any) -> None:
        service = LocusSessionService(log)
        sessions = [await made(service) for _ in range(4)]

        async def write(name: int, session: Session) -> None:
            for n in range(5):
                await service.append_event(session, delta({f"user:{name}": n, f"app:{name}": n}))

        await asyncio.gather(*(write(n, it) for n, it in enumerate(sessions)))
        scopes = {f"{scope}:{n}": 4 for scope in ("user", "app") for n in range(4)}
        assert (await got(service, sessions[0])).state == scopes

    async def test_state_and_events_are_read_as_of_one_time(self, log: Any) -> None:
        service = LocusSessionService(log)
        first = await made(service, state={"n": 0})

        async def write() -> None:
            for n in range(1, 13):
                await service.append_event(first, delta({"n": n}))

        writing = asyncio.ensure_future(write())
        while not writing.done():
            found = await got(service, first)
            assert found.state["n"] == len(found.events)
        await writing

    @pytest.mark.parametrize("content", ["text", {"author": ["m"]}, {"content": 7}])
    async def test_a_damaged_event_raises(self, content: Any) -> None:
        async with LocusSessionService.from_url("memory://") as service:
            first = await made(service)
            await service.log.append(f"app/u/{first.id}", [NewMessage(content, "user", "m7")])
            with pytest.raises(IntegrityError, match="m7"):
                await got(service, first)

    @pytest.mark.parametrize("content", [7, {"state": 1, "updated": 1}, {"state": {}}])
    async def test_a_damaged_state_raises(self, content: Any) -> None:
        async with LocusSessionService.from_url("memory://") as service:
            first = await made(service)
            damaged = [NewMessage(content, "state", "session")]
            await service.log.append(f"app/u/{first.id}", damaged, namespace=STATE)
            for call in (got(service, first), service.list_sessions(app_name="app")):
                with pytest.raises(IntegrityError, match=first.id):
                    await call
            await service.log.append("app/u/", [NewMessage(7)], namespace=STATE)
            with pytest.raises(IntegrityError):
                await service.get_user_state(app_name="app", user_id="u")

    async def test_a_session_is_a_thread(self, log: Any) -> None:
        service = LocusSessionService(log)
        first = await made(service, session_id="  s ", state={"n": 1, "user:a": 2, "app:b": 3})
        await service.append_event(first, said("Porto"))
        names = [(it.thread_id, it.namespace) for it in await log.logs()]
        assert names == [
            ("app//", "adk-app"),
            ("app/u/", "adk-state"),
            ("app/u/s", ""),
            ("app/u/s", "adk-state"),
        ]
        (found,) = await log.page("app/u/s", search="porto")
        assert (found.role, found.message_id) == ("user", first.events[0].id)
        assert await service.get_session(app_name="app", user_id="u", session_id=" s") == first

    async def test_shared_states_outlive_sessions_and_vacuums(self, log: Any) -> None:
        log.ttl_seconds = 1e-6
        service = LocusSessionService(log)
        state = {"app:plan": "gold", "user:lang": "pt", "seat": 1}
        first = await made(service, state=state, session_id="s")
        assert await got(service, first) is None
        again = await made(service, session_id="s")
        shared = {"app:plan": "gold", "user:lang": "pt"}
        assert again.state == shared
        await log.backend.expire()
        await log.backend.vacuum(0)
        assert await log.backend.scan() == ["app//", "app/u/"]
        assert (await made(service)).state == shared

    async def test_threads_belong_to_the_user_of_the_session(self, log: Any) -> None:
        service = LocusSessionService(log)
        for user in ("u", "u2"):
            state = {"app:n": 1, "user:n": 1}
            session = await made(service, user, state=state, session_id="s")
            await service.append_event(session, said("Porto"))
        backend = log.backend
        assert sorted(await backend.threads_of("u")) == ["app/u/", "app/u/s"]
        assert (await backend.forget_user("u"))["threads"] == 2
        assert await backend.scan() == ["app//", "app/u2/", "app/u2/s"]

    async def test_a_user_is_deleted_with_sessions_and_state(self, log: Any) -> None:
        service = LocusSessionService(log)
        for user in ("u", "u2", "a/b"):
            for n in range(2):
                await made(service, user, state={"app:n": 1, "user:n": 1}, session_id=f"s{n}")
        assert await service.delete_user(app_name="app", user_id="u") == 2
        assert await service.delete_user(app_name="app", user_id="a/b") == 2
        assert await service.delete_user(app_name="app", user_id="u") == 0
        assert await log.backend.scan() == ["app//", "app/u2/", "app/u2/s0", "app/u2/s1"]
        assert (await made(service)).state == {"app:n": 1}
        with pytest.raises(InvalidArgumentError, match="user_id is empty"):
            await service.delete_user(app_name="app", user_id="")
        assert await service.get_user_state(app_name="app", user_id="u2") == {"n": 1}

    async def test_a_session_without_a_user_id_belongs_to_nobody(self, log: Any) -> None:
        first = await made(LocusSessionService(log), "", state={"user:n": 1, "app:n": 2})
        assert (await got(LocusSessionService(log), first)).state == first.state

    async def test_services_yaml_opens_a_service(self, tmp_path: Path) -> None:
        (tmp_path / "services.yaml").write_text(
            "services:\n"
            "  - scheme: locus+sqlite\n"
            "    type: session\n"
            "    class: locus_store.adapters.adk.LocusSessionService\n"
        )
        load_services_module(str(tmp_path))
        service: Any = create_session_service_from_options(
            base_dir=tmp_path, session_service_uri=f"locus+sqlite:///{tmp_path / 'a.db'}"
        )
        assert isinstance(service, LocusSessionService)
        await made(service, session_id="s")
        await service.close()
        async with LocusSessionService(uri=f"sqlite:///{tmp_path / 'a.db'}", tenant="b") as other:
            assert (await other.list_sessions(app_name="app")).sessions == []

    def test_a_log_or_a_uri_is_needed(self) -> None:
        for options in ({}, {"log": open_message_log("memory://"), "uri": "memory://"}):
            with pytest.raises(InvalidArgumentError, match="uri="):
                LocusSessionService(**options)

    async def test_tenants_have_sessions_of_their_own(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'a.db'}"
        async with LocusSessionService.from_url(url, tenant="a") as service:
            await made(service, state={"app:n": 1})
            other = service.for_tenant("b")
            assert (await other.list_sessions(app_name="app")).sessions == []
            assert (await made(other)).state == {}

    async def test_the_caller_closes_what_it_opened(self) -> None:
        async with open_checkpointer("memory://") as checkpointer:
            service = LocusSessionService(checkpointer.backend)
            first = await made(service)
            await service.close()
            assert await got(service, first) == first
        assert "LocusSessionService(" in repr(service)

    def test_a_backend_without_logs_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedError):
            LocusSessionService(BareBackend())


# --- in the framework's runner


if TESTS_RUN:

    class Scripted(BaseLlm):
        """A model that gives the answers of a list, and keeps how much it was asked."""

        model: str = "scripted"
        answers: list[Any] = []  # noqa: RUF012  (a field)
        asked: list[list[str]] = []  # noqa: RUF012

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            parts = [part for it in llm_request.contents for part in it.parts]
            self.asked.append([it.text or "tool" for it in parts])
            answer = self.answers.pop(0)
            if isinstance(answer, str) and stream:
                half = types.Content(role="model", parts=[types.Part(text=answer[:2])])
                yield LlmResponse(content=half, partial=True)
            part = types.Part(text=answer) if isinstance(answer, str) else types.Part(**answer)
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    SEATS = {"function_call": types.FunctionCall(name="seats", args={})}


def seats(tool_context: Any) -> str:
    """Return the free seats."""
    tool_context.state.update({"seat": "12A", "user:seat": "12A", "temp:seat": "12A"})
    return "12A"


def runner(service: Any, *answers: Any) -> tuple[Runner, Scripted]:
    model = Scripted(answers=list(answers), asked=[])
    agent = LlmAgent(name="clerk", model=model, tools=[seats], output_key="answer")
    made = Runner(app_name="app", agent=agent, session_service=service, auto_create_session=True)
    return made, model


async def turn(running: Runner, text: str, **options: Any) -> list[Event]:
    message = types.Content(role="user", parts=[types.Part(text=text)])
    run = running.run_async(user_id="u", session_id="s", new_message=message, **options)
    return [it async for it in run]


async def found_in(service: Any) -> Session:
    session = await service.get_session(app_name="app", user_id="u", session_id="s")
    assert session is not None
    return session


class TestRunner:
    async def test_turns_and_tool_calls_are_kept(self, either: Any) -> None:
        first, model = runner(either, SEATS, "12A is free.")
        await turn(first, "A seat?")
        assert model.asked == [["A seat?"], ["A seat?", "tool", "tool"]]
        found = await found_in(either)
        seat = {"seat": "12A", "user:seat": "12A"}
        assert found.state == {"answer": "12A is free.", **seat}
        assert [it.author for it in found.events] == ["user", "clerk", "clerk", "clerk"]
        second, model = runner(either, "Booked.")
        await turn(second, "Take it.")
        assert model.asked == [["A seat?", "tool", "tool", "12A is free.", "Take it."]]

    async def test_a_stream_stores_whole_answers(self, either: Any) -> None:
        first, _ = runner(either, "12A is free.")
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        events = await turn(first, "A seat?", run_config=config)
        assert [it.partial for it in events].count(True) == 1
        assert texts(await found_in(either)) == ["A seat?", "12A is free."]

    async def test_an_interrupted_run_is_continued(self, either: Any) -> None:
        first, _ = runner(either, SEATS, "12A is free.")
        message = types.Content(role="user", parts=[types.Part(text="A seat?")])
        run = first.run_async(user_id="u", session_id="s", new_message=message)
        await anext(run)
        await run.aclose()
        stored = (await found_in(either)).events
        second, model = runner(either, "Again.")
        await turn(second, "Go on.")
        found = await found_in(either)
        assert found.events[: len(stored)] == stored
        assert texts(found)[-2:] == ["Go on.", "Again."]
        assert "A seat?" in model.asked[0]

    async def test_a_turn_is_rewound(self, either: Any) -> None:
        running, model = runner(either, "One.", "Two.", "Three.")
        await turn(running, "1")
        (*_, last) = await turn(running, "2")
        await running.rewind_async(
            user_id="u", session_id="s", rewind_before_invocation_id=last.invocation_id
        )
        assert (await found_in(either)).state == {"answer": "One."}
        await turn(running, "3")
        assert model.asked[-1] == ["1", "One.", "3"]
        assert len((await found_in(either)).events) == 7

    @pytest.mark.full
    async def test_another_process_continues_a_session(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'a.db'}"
        async with LocusSessionService.from_url(url) as service:
            await turn(runner(service, SEATS, "12A is free.")[0], "A seat?")
            before = await found_in(service)
        worker = Path(__file__).parents[2] / "workers" / "on_adk.py"
        arguments = [sys.executable, str(worker), url, "Take it."]
        done = await asyncio.to_thread(
            subprocess.run, arguments, capture_output=True, text=True, check=True
        )
        assert done.stdout.split("|")[0] == "5 contents"
        async with LocusSessionService.from_url(url) as service:
            found = await found_in(service)
        assert found.events[:4] == before.events
        assert texts(found)[4:] == ["Take it.", "Booked."]


async def test_a_search_finds_what_a_person_reads(log: Any) -> None:
    service = LocusSessionService(log)
    session = await service.create_session(app_name="a", user_id="u", session_id="s")
    png = types.Blob(data=b"picture", mime_type="image/png", display_name="map.png")
    call = types.FunctionCall(id="call-1", name="find_flights", args={"town": "Lisbon"})
    answer = types.FunctionResponse(
        id="call-1",
        name="find_flights",
        response={"content": [{"type": "image", "data": "iVBO", "mimeType": "image/png"}, "TAP"]},
    )
    thought = types.Part(text="Porto is far", thought=True, thought_signature=b"signed")
    for author, parts in {
        "user": [types.Part(text="Look at this"), types.Part(inline_data=png)],
        "travel_agent": [thought, types.Part(function_call=call)],
        "tool": [types.Part(function_response=answer)],
    }.items():
        event = Event(
            author=author,
            content=types.Content(role="user", parts=parts),
            actions=EventActions(state_delta={"key": "kept"}),
        )
        await service.append_event(session, event)
    expected = {"look": 1, "map.png": 1, "porto": 1, "find_flights": 2, "Lisbon": 1, "TAP": 1}
    for text, count in expected.items():
        assert len(await log.page("a/u/s", search=text)) == count, text
    hidden = ["user", "travel_agent", "cGljdHVyZQ", "c2lnbmVk", "iVBO", "image/png", "call-1"]
    for text in (*hidden, "town", "kept", event.id):
        assert await log.page("a/u/s", search=text) == [], text
