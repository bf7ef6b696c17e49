"""Cut strings, long integers, NaN and infinities in the adapters over message logs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.adapters.logs import tag_numbers, untag_numbers
from locus_store.errors import IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

ODD: dict[str, Any] = {
    "cut": "a\ud83d", "halves": "\ud83d\ude00", "long": 2**70, "below": [-(2**70)], "$": 1,
    "nan": float("nan"), "all": [float("inf"), {"v": float("-inf"), "none": None}],
    "\ud83d": "key", "type": ["string", "null"],
}  # fmt: skip


def needs(module: str) -> Any:
    is_there = find_spec(module.partition(".")[0]) is not None and find_spec(module) is not None
    return pytest.mark.skipif(not is_there, reason=f"{module} is not installed")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


def same(found: Any, given: Any) -> None:
    def exact(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: exact(value[key]) for key in sorted(value)}
        return [exact(it) for it in value] if isinstance(value, list) else repr(value)

    assert exact(found) == exact(given)


def test_a_text_that_only_looks_like_a_tag_stays_as_it_is() -> None:
    for text in ("¡$5 de descuento!", "á$"):
        value = {"z": text, "a": [{"y": 1, "b": text}]}
        assert tag_numbers(value) is value
        assert untag_numbers(value) is value


def test_numbers_have_a_form_and_data_passes_for_none() -> None:
    plain = {"a": [1, None, "x"]}
    assert tag_numbers(plain) is plain
    for given in (
        ODD,
        [ODD],
        {"$": {"$": "x", "c": 100, "v": ["int", "5"]}},
        {"t": (1, float("nan"))},
    ):
        made = tag_numbers(given)
        same(untag_numbers(made), given if "t" not in given else {"t": [1, float("nan")]})
    for forged in (
        {"$": "x", "c": 100, "v": ["int", "x"]},
        {"$": "x", "c": 100, "v": ["object", {}]},
        {"$": "d", "k": ["a"]},
        {"$": "none"},
    ):
        with pytest.raises(IntegrityError):
            untag_numbers(forged)


@needs("agents")
async def test_openai_agents_keeps_them(url: str) -> None:
    from locus_store.adapters.openai_agents import LocusSession

    async with LocusSession.from_url("s", url) as session:
        await session.add_items([{"role": "user", "content": "x", **ODD}])
        (found,) = await session.get_items()
        same(found, {"role": "user", "content": "x", **ODD})
        same(await session.pop_item(), found)


@needs("claude_agent_sdk")
async def test_claude_keeps_them(url: str) -> None:
    from locus_store.adapters.claude_agent import LocusSessionStore

    key: Any = {"project_key": "p", "session_id": "s"}
    entry: Any = {"type": "user", "uuid": "u", "message": {"role": "user", "content": ODD}}
    async with LocusSessionStore.from_url(url) as store:
        await store.append(key, [entry])
        (found,) = await store.load(key) or ()
        same(found, entry)


@needs("google.adk")
async def test_adk_keeps_them(url: str) -> None:
    from google.adk.events import Event, EventActions
    from google.genai import types

    from locus_store.adapters.adk import LocusSessionService

    answer = types.Part(function_response=types.FunctionResponse(name="f", response=ODD))
    content = types.Content(role="user", parts=[types.Part(text=ODD["cut"]), answer])
    names = {"app_name": "a", "user_id": "u"}
    async with LocusSessionService.from_url(url) as service:
        state = {"own": ODD, "user:his": float("nan")}
        session = await service.create_session(**names, state=state)
        delta = {"new": ODD, "app:all": 2**70, "a\ud83d": {"\ufffd": float("nan")}}
        event = Event(author="u", content=content, actions=EventActions(state_delta=delta))
        await service.append_event(session, event)
        found = await service.get_session(**names, session_id=session.id)
        assert found is not None
        same(found.state, {**state, **delta})
        (stored,) = found.events
        same(stored.content.parts[1].function_response.response, ODD)
        assert stored.content.parts[0].text == ODD["cut"]
        same(stored.actions.state_delta, delta)
        (listed,) = (await service.list_sessions(**names)).sessions
        same(listed.state, {**state, **delta})
        halves = Event(author="u", custom_metadata=dict.fromkeys(["\ud83d", "\ude00"], 1))
        await service.append_event(session, halves)
        inner = Event(author="u", actions=EventActions(state_delta={"a": {"\ud83d": float("inf")}}))
        await service.append_event(session, inner)
        found = await service.get_session(**names, session_id=session.id)
        assert found is not None
        assert found.events[1].custom_metadata == halves.custom_metadata
        assert found.state["a"] == {"\ud83d": float("inf")}


@needs("pydantic_ai")
async def test_pydantic_ai_keeps_them(url: str) -> None:
    from pydantic_ai.conversation_store import ConversationEntry
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    from locus_store import open_message_log
    from locus_store.adapters.pydantic_ai import make_entries, make_messages

    given = ModelRequest(parts=[UserPromptPart(ODD["cut"]), ToolReturnPart("t", ODD, "id")])
    async with open_message_log(url) as log:
        entry = ConversationEntry(id="1", message=given, parent_id=None)
        await log.append("t", make_messages([entry]))
        (found,) = make_entries(await log.load("t") or [])
    assert found.message.parts[0].content == ODD["cut"]
    same(found.message.parts[1].content, ODD)


@needs("strands")
def test_strands_keeps_them(url: str) -> None:
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

    from locus_store.adapters.strands import LocusSessionRepository

    with LocusSessionRepository.from_url(url) as repository:
        repository.create_session(Session("s", SessionType.AGENT))
        agent = SessionAgent("a", state=ODD, conversation_manager_state={})
        repository.create_agent("s", agent)
        message: Any = {"role": "user", "content": [{"text": ODD["cut"]}, {"json": ODD}]}
        repository.create_message("s", "a", SessionMessage(message, 0))
        read = repository.read_agent("s", "a")
        assert read is not None
        same(read.state, ODD)
        same(repository.list_messages("s", "a")[0].message, message)


@needs("agent_framework")
async def test_agent_framework_keeps_them(url: str) -> None:
    import agent_framework

    from locus_store.adapters.agent_framework import LocusHistoryProvider

    message = agent_framework.Message("user", [ODD["cut"]], additional_properties=dict(ODD))
    async with LocusHistoryProvider.from_url(url) as provider:
        await provider.save_messages("s", [message])
        (found,) = await provider.get_messages("s")
    assert found.text == ODD["cut"]
    same(found.additional_properties, ODD)
