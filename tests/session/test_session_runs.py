"""Runs of graphs in a session: checkpoints, stop requests, results of tools, other classes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model
from session_storage import Storage
from tiers import first_of

from locus_store import (
    ConflictError,
    InvalidArgumentError,
    NotOwnerError,
    SerializationError,
    StorageBackendAdapter,
)
from locus_store.session import AgentState, LocalCache, Message, SessionCheckpointer
from locus_store.session.config import VERSION_KEY
from locus_store.session.models import Models
from locus_store.session.runs import make_stop_place

pytestmark = pytest.mark.anyio
ALICE: dict[str, Any] = {"thread_id": "t", "user_id": "alice"}
BOB: dict[str, Any] = {"thread_id": "t", "user_id": "bob"}
ODD = ["_", "a:b", "a/b", "%", "é'|", "x" * 255]


@pytest.fixture(params=["memory", *first_of("sqlite", "postgresql")])
def place(request):
    return Storage(request.param, request)


@pytest.fixture
async def storage(place):
    yield place
    await place.close()


@pytest.fixture
def session(storage):
    return storage.open(LocalCache())


def said(text: str) -> AgentState:
    return AgentState(context=[Message.text_message(text)])


# --- checkpoints


async def test_a_checkpoint_has_state_and_messages(session) -> None:
    state = said("a")
    assert await session.aput_checkpoint(ALICE, state, state.context, {"node": "n"}) is state
    assert await session.aget_state(ALICE) == state
    found = await session.alist_messages(ALICE)
    assert [(it.text(), it.metadata) for it in found] == [("a", {"node": "n"})]
    await session.aput_checkpoint(ALICE, state)
    assert len(await session.alist_messages(ALICE)) == 1
    assert len(await session.backend.history("t")) == 2


async def test_a_checkpoint_that_is_refused_writes_no_state(session) -> None:
    await session.aput_checkpoint(ALICE, said("a"))
    lost = await session.aget_state(ALICE)
    await session.aput_checkpoint(ALICE, await session.aget_state(ALICE))
    with pytest.raises(ConflictError):
        await session.aput_checkpoint(ALICE, lost, lost.context)
    with pytest.raises(NotOwnerError):
        await session.aput_checkpoint(BOB, said("b"), said("b").context)
    assert len(await session.backend.history("t")) == 2


async def test_the_owner_of_a_thread_is_told_to_anyone(storage, session) -> None:
    assert await session.aget_thread_owner("t") is None
    await session.aput_state(ALICE, said("a"))
    await session.aput_state({"thread_id": "free"}, said("a"))
    assert await session.aget_thread_owner("t") == "alice"
    assert await session.aget_thread_owner("free") is None


async def test_the_owner_of_a_thread_may_be_a_number(storage) -> None:
    numbered = storage.open(user_id_type="int")
    await numbered.aput_state({"thread_id": 1, "user_id": 7}, said("a"))
    assert await numbered.aget_thread_owner(1) == 7


# --- stop requests


@pytest.mark.parametrize("thread", ODD)
async def test_a_stop_request_is_seen_until_it_is_cleared(storage, session, thread) -> None:
    config, other = {"thread_id": thread, "user_id": "u"}, storage.open()
    assert not await session.ais_stop_requested(config)
    await session.aclear_stop_request(config)
    await other.arequest_stop(config)
    assert await session.ais_stop_requested(config) is True
    assert not await session.ais_stop_requested({**config, "thread_id": f"{thread}2"[-255:]})
    await session.aclear_stop_request(config)
    assert not await other.ais_stop_requested(config)


async def test_another_user_stops_nothing(session) -> None:
    await session.aput_state(ALICE, said("a"))
    for refused in (session.arequest_stop, session.aclear_stop_request):
        with pytest.raises(NotOwnerError):
            await refused(BOB)
    await session.arequest_stop(ALICE)
    assert not await session.ais_stop_requested(BOB)
    assert await session.ais_stop_requested({"thread_id": "t"})


# --- results of tools


async def test_the_first_result_of_a_tool_stays(storage, session) -> None:
    assert await session.aget_tool_result(ALICE, "call") is None
    for n in (1, 2):
        await session.aput_tool_result(ALICE, "call", {"n": n, "é": [None, 1.0]})
    for it in (session, storage.open()):
        assert await it.aget_tool_result(ALICE, "call") == {"n": 1, "é": [None, 1.0]}
        assert await it.aget_tool_result({**ALICE, "thread_id": "other"}, "call") is None
    assert await session.aget_tool_result(BOB, "call") is None
    with pytest.raises(NotOwnerError):
        await session.aput_tool_result(BOB, "second", {})


async def test_a_refused_result_claims_no_thread(session) -> None:
    with pytest.raises(SerializationError):
        await session.aput_tool_result(ALICE, "call", {"n": float("nan")})
    assert await session.aget_thread(ALICE) is None


async def test_the_next_user_of_an_id_has_nothing_of_an_earlier_one(storage, session) -> None:
    await session.aput_tool_result(ALICE, "call", {"secret": 1})
    await session.arequest_stop({**ALICE, "thread_id": "planted"})
    await session.backend.remove_thread("t")
    other = storage.open()
    await other.aput_tool_result(BOB, "call", {"mine": 2})
    await other.aput_state({**BOB, "thread_id": "planted"}, said("a"))
    assert await other.aget_tool_result(BOB, "call") == {"mine": 2}
    assert not await other.ais_stop_requested({**BOB, "thread_id": "planted"})


async def test_a_call_without_a_user_reaches_the_run_of_the_threads_user(session) -> None:
    anyone = {"thread_id": "t"}
    await session.aput_state(ALICE, said("a"))
    await session.arequest_stop(anyone)
    assert await session.ais_stop_requested(ALICE)
    await session.aput_tool_result(ALICE, "call", {"n": 1})
    assert await session.aget_tool_result(anyone, "call") == {"n": 1}
    await session.aclear_stop_request(anyone)
    assert not await session.ais_stop_requested(ALICE)


async def test_what_a_run_leaves_expires_and_goes_with_the_thread(session) -> None:
    await session.aput_tool_result(ALICE, "call", {"n": 1})
    await session.arequest_stop(ALICE)
    stop = await session._values._store.get_item(make_stop_place("t", "alice"), "requested")
    assert stop.ttl_seconds == 3600
    await session.aput_tool_result({"thread_id": "t2"}, "call", {"n": 2})
    await session.aclean_thread(ALICE)
    assert await session.aget_tool_result(ALICE, "call") is None
    assert not await session.ais_stop_requested(ALICE)
    assert await session.aget_tool_result({"thread_id": "t2"}, "call") == {"n": 2}


async def test_a_tools_result_is_an_effect_of_the_thread(session) -> None:
    checkpointer = StorageBackendAdapter(session.backend)
    await session.aput_tool_result(ALICE, "call", {"n": 1})
    await session.aput_tool_result(ALICE, "long" * 100, {"n": 2})
    assert [(it.status, it.result) for it in await checkpointer.effects("t")] == [
        ("finished", {"n": 1}),
        ("finished", {"n": 2}),
    ]
    assert await session.aget_tool_result(ALICE, "long" * 100) == {"n": 2}
    await checkpointer.effect("t", "other", lambda _: {"n": 3})
    assert await session.aget_tool_result(ALICE, "other") == {"n": 3}
    assert (await session.backend.forget_user("alice"))["threads"] == 1
    assert await session.aget_tool_result(ALICE, "call") is None


# --- cached values


async def test_cached_values(storage, session) -> None:
    keys = ["a:1", "a:2", "b", "long" * 100]
    for key in keys:
        await session.aput_cache_value("media", key, {"key": key}, 60)
    await session.aput_cache_value("other", "a:1", None)
    other = storage.open()
    assert [await other.aget_cache_value("media", it) for it in keys] == [
        {"key": it} for it in keys
    ]
    assert sorted(await other.alist_cache_keys("media")) == keys
    assert sorted(await other.alist_cache_keys("media", "a:")) == ["a:1", "a:2"]
    await other.aclear_cache_value("media", keys[-1])
    await other.aclear_cache_value("media", "unknown")
    assert await session.aget_cache_value("media", keys[-1]) is None
    assert await session.alist_cache_keys("unknown") == []
    items = await session._values._store.list(("locus.session", "values", "media"))
    assert {it.ttl_seconds for it in items} == {60}
    with pytest.raises(InvalidArgumentError):
        await session.aput_cache_value("media", "a", 1, -1)


def test_the_twins(place) -> None:
    session = place.open()
    state = said("a")
    session.put_checkpoint(ALICE, state, state.context)
    assert session.get_thread_owner("t") == "alice"
    session.request_stop(ALICE)
    assert session.is_stop_requested(ALICE) is True
    session.clear_stop_request(ALICE)
    assert session.is_stop_requested(ALICE) is False
    session.put_tool_result(ALICE, "c", {"n": 1})
    assert session.get_tool_result(ALICE, "c") == {"n": 1}
    session.put_cache_value("n", "k", [1])
    assert (session.get_cache_value("n", "k"), session.list_cache_keys("n")) == ([1], ["k"])
    session.clear_cache_value("n", "k")
    assert session.get_cache_value("n", "k") is None
    session.release()


# --- the classes of a framework


class Part(BaseModel):
    type: Literal["text", "ref"] = "text"
    text: str = ""
    span: tuple[int, int] | None = None


class Said(BaseModel):
    message_id: str | int
    role: str
    content: list[Part]
    timestamp: datetime | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    parsed: dict[str, Any] | BaseModel | None = None

    def text(self) -> str:
        return "".join(it.text for it in self.content)


class Memory(BaseModel):
    context: list[Said] = Field(default_factory=list)


class Planning(Memory):
    plan: list[str] = Field(default_factory=list)


class Facts(BaseModel):
    thread_id: str | int
    thread_name: str | None = None
    user_id: str | int | None = None


class Framework(SessionCheckpointer):
    models = Models(Memory, Said, Facts)


@pytest.fixture
def framework(storage):
    return Framework(storage.backend(), LocalCache())


async def test_a_framework_has_its_own_classes_back(framework) -> None:
    message = Said(
        message_id=7, role="user", content=[Part(text="Café", span=(0, 4))],
        timestamp=datetime(2026, 1, 1, tzinfo=UTC), parsed=Part(text="p"),
    )  # fmt: skip
    state = Planning(context=[message], plan=["a"])
    await framework.aput_checkpoint(ALICE, state, [message], {"node": "n"})
    for read in (framework.aget_state, framework.aget_state_cache):
        found = await read(ALICE)
        assert type(found) is Planning
        assert found.model_dump(mode="json", serialize_as_any=True) == state.model_dump(
            mode="json", serialize_as_any=True
        )
    assert type(await framework.aget_state({**ALICE, "state_class": Memory})) is Memory
    [logged] = await framework.alist_messages(ALICE, search="cafe")
    assert type(logged) is Said
    assert (logged.message_id, logged.content, logged.timestamp, logged.metadata) == (
        *(7, message.content, message.timestamp, {"node": "n"}),
    )
    assert logged.parsed == {"type": "text", "text": "p", "span": None}
    await framework.aput_thread(ALICE, Facts(thread_id="t", thread_name="n"))
    assert await framework.aget_thread(ALICE) == Facts(
        thread_id="t", thread_name="n", user_id="alice"
    )
    await framework.arelease()


async def test_a_framework_refuses_other_classes(framework) -> None:
    with pytest.raises(InvalidArgumentError, match="Said"):
        await framework.aput_messages(ALICE, [Message.text_message("a")])
    await framework.aput_state(ALICE, AgentState())
    with pytest.raises(SerializationError, match="subclass of Memory"):
        await framework.aget_state(ALICE)
    await framework.arelease()


async def test_a_config_with_room_has_a_version_for_any_class(framework) -> None:
    config, rival = ({**ALICE, VERSION_KEY: None} for _ in range(2))
    await framework.aget_state(rival)
    await framework.aput_state(config, Memory())
    with pytest.raises(ConflictError):
        await framework.aput_checkpoint(rival, Memory())
    await framework.arelease()


class Position(BaseModel):
    internal_data: dict[str, Any] = Field(default_factory=dict)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)

    internal_data: dict[str, Any] = Field(default_factory=dict)


class Strict(BaseModel):
    model_config = ConfigDict(validate_assignment=True)

    internal_data: dict[str, Any] = Field(default_factory=dict)


@pytest.mark.parametrize("position", [Frozen, Strict])
async def test_a_framework_state_of_any_settings_remembers_its_version(framework, position) -> None:
    state_class = create_model("State", __base__=Memory, execution_meta=(position, ...))
    config = {**ALICE, "state_class": state_class}
    await framework.aput_state(config, state_class(execution_meta=position()))
    first, second = [await framework.aget_state(config) for _ in range(2)]
    await framework.aput_state(config, first)
    with pytest.raises(ConflictError):
        await framework.aput_state(config, second)
    await framework.arelease()


class Running(Memory):
    execution_meta: Position = Field(default_factory=Position)
    metadata: dict[str, Any] = Field(default_factory=dict)


async def test_a_framework_state_remembers_its_version_in_copies(framework) -> None:
    state = Running()
    await framework.aput_state(ALICE, state)
    mine, other = await framework.aget_state(ALICE), await framework.aget_state_cache(ALICE)
    assert mine == other == Running()
    assert mine.model_dump() == Running().model_dump()
    copies = [mine.model_copy(deep=True) for _ in range(2)]
    for copied in copies:  # of one run
        await framework.aput_state(ALICE, copied)
    mine.metadata["n"] = 1
    await framework.aput_state_cache(ALICE, mine)
    assert (await framework.aget_state_cache(ALICE)).metadata == {"n": 1}
    with pytest.raises(ConflictError):
        await framework.aput_state(ALICE, other)
    await framework.aput_state({**ALICE, "thread_id": "branch"}, other)
    await framework.arelease()
