"""Sessions: states, messages and threads of users, on every storage that keeps them."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import pickle
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, Field
from session_storage import Storage
from tiers import ALL, first_of

from locus_store import (
    ConflictError,
    InvalidArgumentError,
    MemoryBackend,
    NotOwnerError,
    SerializationError,
    StorageBackend,
    StorageBackendAdapter,
    UnsupportedError,
    open_checkpointer,
)
from locus_store.session import (
    AgentState,
    Block,
    InMemoryCheckpointer,
    LocalCache,
    Message,
    SessionCheckpointer,
    SqliteCheckpointer,
    ThreadInfo,
)
from locus_store.session.config import VERSION_KEY
from locus_store.session.models import MODELS

pytestmark = pytest.mark.anyio
T: dict[str, Any] = {"thread_id": "t"}
ALICE: dict[str, Any] = {"thread_id": "t", "user_id": "alice"}
ODD = timezone(timedelta(seconds=561))
"""The offset of Paris in 1880."""

BOB: dict[str, Any] = {"thread_id": "t", "user_id": "bob"}


class Notes(AgentState):
    """A user's own state."""

    notes: list[str] = Field(default_factory=list)
    due: datetime | None = None


@pytest.fixture(params=["memory", *first_of("sqlite", "postgresql"), *(["oracle"] if ALL else [])])
def place(request):
    return Storage(request.param, request)


@pytest.fixture
async def storage(place):
    yield place
    await place.close()


@pytest.fixture(params=[False, True], ids=["plain", "cached"])
def session(storage, request):
    return storage.open(LocalCache() if request.param else None)


def said(*texts: str) -> AgentState:
    return AgentState(context=[Message.text_message(it) for it in texts])


# --- states


async def test_a_state_comes_back_whole(storage, session) -> None:
    state = AgentState(context_summary="é", extra_field={"n": 1, "f": 1.0, "none": None})
    state.context = [
        Message.text_message("hello", role="user", metadata={"n": 2**60, "f": 0.1}),
        Message(role="tool", content=[Block(type="tool_result", output="42", call_id="c")]),
    ]
    state.execution_meta.step = 3
    assert await session.aput_state(T, state) is state
    for reader in (session, storage.open()):
        for read in (reader.aget_state, reader.aget_state_cache):
            found = await read(T)
            assert found == state
            assert type(found) is AgentState
            assert found.context[0].timestamp == state.context[0].timestamp
            assert found.context[1].text() == "42"


async def test_half_a_character_is_kept_in_values_and_keys(storage) -> None:
    session, other = storage.open(LocalCache()), storage.open()
    cut = {"\ud83d": {"\ude00": "a\ud83d"}}
    message = Message.text_message("a\ud83d", metadata=cut)
    state = AgentState(context=[message], execution_meta={"internal_data": cut}, extra=cut)
    await session.aput_state(T, state)
    for it in (session, other):
        assert await it.aget_state(T) == state
    assert await session.aget_state_cache(T) == state
    state.context_summary = "\ude00"
    await session.aput_state_cache(T, state)
    assert await session.aget_state_cache(T) == state
    await session.aput_messages(T, [message])
    assert await other.alist_messages(T) == [message]


async def test_absence_is_none(session) -> None:
    assert await session.aget_state(ALICE) is None
    assert await session.aget_state_cache(ALICE) is None
    assert await session.aget_message(ALICE, "m") is None
    assert await session.alist_messages(ALICE) == []
    assert await session.aget_thread(ALICE) is None
    assert await session.alist_threads({"user_id": "alice"}) == []
    for write in (session.aclear_state, session.aclean_thread):
        await write(ALICE)
    await session.adelete_message(ALICE, "m")
    assert await session.aget_thread(T) is None


async def test_changing_a_state_does_not_change_what_is_stored(session) -> None:
    state = said("a")
    await session.aput_state(T, state)
    state.context.append(Message.text_message("later"))
    for read in (session.aget_state, session.aget_state_cache):
        found = await read(T)
        assert [it.text() for it in found.context] == ["a"]
        found.context.clear()


async def test_each_save_is_a_version(storage, session) -> None:
    for text in "abc":
        await session.aput_state({**T, "meta": {"k": text}}, said(text))
    found = await session.backend.history("t")
    assert [it.metadata for it in found] == [{"k": "c"}, {"k": "b"}, {"k": "a"}]
    limited = storage.open(keep_last=1)
    await limited.aget_state(T)
    await limited.aput_state(T, said("d"))
    assert len(await limited.backend.history("t")) == 1


async def test_of_two_that_loaded_the_same_version_one_saves(storage, session) -> None:
    await session.aput_state(T, said("a"))
    mine, theirs = await session.aget_state(T), await session.aget_state(T)
    cached = await session.aget_state_cache(T)
    await session.aput_state(T, mine)
    for lost in (theirs, cached):
        with pytest.raises(ConflictError):
            await session.aput_state(T, lost)
        with pytest.raises(ConflictError):
            await storage.open().aput_state(T, lost)
    mine.context_summary = "again"
    await session.aput_state(T, mine)
    assert (await session.aget_state_cache(T)).context_summary == "again"


async def test_a_saved_state_that_another_one_followed_is_lost(storage, session) -> None:
    mine = said("a")
    await session.aput_state(T, mine)
    other = storage.open()
    await other.aget_state(T)
    await other.aput_state(T, said("b"))
    with pytest.raises(ConflictError):
        await session.aput_state(T, mine)
    assert (await session.aget_state(T)).context[0].text() == "b"


async def test_a_first_save_overwrites_nothing_that_was_never_loaded(storage, session) -> None:
    await session.aput_state(T, said("a"))
    await session.aput_state(T, said("b"))  # a new state over what this object has saved
    for other in (storage.open(), storage.open(LocalCache())):
        fresh = said("never loaded")
        with pytest.raises(ConflictError, match="without a version of it"):
            await other.aput_state(T, fresh)
        await other.aput_state_cache(T, fresh)  # a commit outranks it
        assert (await other.aget_state_cache(T)).context[0].text() == "b"
    await other.aput_state(T, said("c"))
    with pytest.raises(ConflictError):
        await session.aput_state(T, said("not seen since"))
    assert (await session.aget_state(T)).context[0].text() == "c"


async def test_the_last_writer_wins_if_it_asks_for_it(storage, session) -> None:
    await session.aput_state(T, said("a"))
    await storage.open(on_conflict="overwrite").aput_state(T, said("b"))
    assert (await session.aget_state(T)).context[0].text() == "b"
    with pytest.raises(InvalidArgumentError, match="on_conflict='branch' must be"):
        storage.open(on_conflict="branch")


async def test_a_thread_that_was_deleted_elsewhere_is_its_users_again(storage) -> None:
    """It had no user, so that any user read it, while the session remembered the user."""
    session, other = storage.open(), storage.open()
    for text in ("deleted", "kept"):
        await session.aput_messages(ALICE, [Message.text_message(text)])
        await other.aclean_thread(ALICE) if text == "deleted" else None
    assert await other.aget_thread_owner("t") == "alice"
    assert await storage.open().alist_messages(BOB) == []


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("on_conflict", ["raise", "overwrite"])
async def test_a_save_to_a_thread_that_was_deleted_elsewhere_is_a_conflict(
    storage, on_conflict, has_state
) -> None:
    """The thread had no user then."""
    session, other = storage.open(on_conflict=on_conflict), storage.open()
    await session.aput_messages(ALICE, [Message.text_message("before")])
    if has_state:
        await session.aput_state(ALICE, said("before"))
    await other.aclean_thread(ALICE)
    with pytest.raises(ConflictError):
        await session.aput_state(ALICE, said("late"))
    assert await other.aget_thread(ALICE) is None
    await session.aget_state(ALICE)
    await session.aput_state(ALICE, said("again"))
    assert await other.aget_thread_owner("t") == "alice"
    assert await storage.open().aget_state(BOB) is None


async def test_a_copy_of_a_state_keeps_its_version(session) -> None:
    await session.aput_state(T, said("a"))
    copies = [(await session.aget_state(T)).model_copy(deep=True) for _ in range(2)]
    await session.aput_state(T, copies[0])
    with pytest.raises(ConflictError):
        await session.aput_state(T, copies[1])


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda it: it.model_copy(deep=True),
        lambda it: pickle.loads(pickle.dumps(it)),  # noqa: S301  (our own bytes)
    ],
    ids=["deepcopy", "model_copy", "pickle"],
)
async def test_of_two_copies_of_one_loaded_state_one_is_saved(session, copied) -> None:
    await session.aput_state(T, said("a"))
    state = await session.aget_state(T)
    one, two = copied(state), copied(state)
    await session.aput_state(T, one)
    for lost in (two, state):
        with pytest.raises(ConflictError):
            await session.aput_state(T, lost)
    one.context_summary = "again"
    await session.aput_state(T, one)
    await session.aput_state(T, one.model_copy(update={"context_summary": "shallow"}))
    assert (await session.aget_state(T)).context_summary == "shallow"


@pytest.mark.parametrize(
    "damage", [lambda it: it[:-8], lambda it: it + "x", lambda it: 5, lambda it: ""]
)
async def test_a_damaged_version_in_a_config_is_refused(session, damage) -> None:
    config = {**T, VERSION_KEY: None}
    await session.aput_state(config, said("a"))
    config[VERSION_KEY] = damage(config[VERSION_KEY])
    with pytest.raises(InvalidArgumentError, match=VERSION_KEY):
        await session.aput_state(config, said("b"))


async def test_a_config_carries_the_version_if_it_has_a_place(session) -> None:
    plain = dict(T)
    await session.aput_state(plain, said("a"))
    assert plain == T
    one, two = {**T, VERSION_KEY: None}, {**T, VERSION_KEY: None}
    await session.aget_state(one)
    await session.aget_state_cache(two)
    assert one[VERSION_KEY]
    assert two[VERSION_KEY]
    await session.aput_state(one, said("b"))
    await session.aput_state(one, said("c"))
    with pytest.raises(ConflictError):
        await session.aput_state(two, said("d"))
    first, second = ({"thread_id": "new", VERSION_KEY: None} for _ in range(2))
    for config in (first, second):
        assert await session.aget_state(config) is None
    await session.aput_state(first, said("a"))
    with pytest.raises(ConflictError):
        await session.aput_state(second, said("b"))


async def test_a_state_may_be_saved_into_another_thread(session) -> None:
    await session.aput_state(T, said("a"))
    state = await session.aget_state(T)
    await session.aput_state({"thread_id": "fork"}, state)
    state.context.append(Message.text_message("b"))
    await session.aput_state({"thread_id": "fork"}, state)
    assert [it.text() for it in (await session.aget_state(T)).context] == ["a"]
    assert len((await session.aget_state_cache({"thread_id": "fork"})).context) == 2


async def test_clearing_leaves_messages_and_facts(session) -> None:
    await session.aput_messages(ALICE, [Message.text_message("m")])
    await session.aput_thread(ALICE, ThreadInfo(thread_id="t", thread_name="n"))
    for text in "abc":
        await session.aput_state(ALICE, said(text))
    await session.aclear_state(ALICE)
    assert await session.aget_state(ALICE) is None
    assert await session.aget_state_cache(ALICE) is None
    assert await session.backend.history("t") == []
    assert len(await session.alist_messages(ALICE)) == 1
    assert (await session.aget_thread(ALICE)).thread_name == "n"
    await session.aput_state(ALICE, said("new"))
    assert (await session.aget_state_cache(ALICE)).context[0].text() == "new"


async def test_clearing_goes_below_what_keep_last_hides(storage) -> None:
    session = storage.open(keep_last=2)
    for n in range(6):
        await session.aput_state(T, said(str(n)))
    await session.aclear_state(T)
    assert await session.aget_state(T) is None


async def test_a_subclass_comes_back(storage, session) -> None:
    state = Notes(notes=["a"], due=datetime(2026, 1, 1, tzinfo=UTC))
    await session.aput_state(T, state)
    for read in (session.aget_state, session.aget_state_cache, storage.open().aget_state):
        found = await read(T)
        assert (type(found), found) == (Notes, state)
    assert (await session.aget_state({**T, "state_class": AgentState})).notes == ["a"]
    session.bind_state_type(AgentState)
    assert type(await session.aget_state(T)) is AgentState
    assert type(await session.aget_state_cache({**T, "state_class": Notes})) is Notes


async def test_a_subclass_of_a_function_comes_back_while_it_is_loaded(session) -> None:
    class Local(AgentState):
        n: int = 0

    await session.aput_state(T, Local(n=7))
    found = await session.aget_state(T)
    assert (type(found), found.n) == (Local, 7)


async def test_nothing_is_imported_by_a_name_from_storage(session) -> None:
    await session.backend.write_state("t", {}, labels={"state_class": "this:d"})
    with pytest.raises(SerializationError, match="this"):
        await session.aget_state(T)
    assert type(await session.aget_state({**T, "state_class": AgentState})) is AgentState


async def test_a_pydantic_state_of_another_library_is_saved_and_bound(session) -> None:
    class Foreign(BaseModel):
        n: int

    config = {**T, "state_class": Foreign, VERSION_KEY: None}
    await session.aput_state(config, Foreign(n=1))
    stale = dict(config)
    assert await session.aget_state(config) == Foreign(n=1)
    await session.aput_state(config, Foreign(n=2))
    await session.aput_state(dict(config), Foreign(n=3))
    session_2 = {**T, "state_class": Foreign, VERSION_KEY: stale[VERSION_KEY]}
    assert (await session.aget_state(session_2)).n == 3


async def test_a_session_is_an_ordinary_thread(session) -> None:
    await session.aput_state(T, said("hello"))
    plain = StorageBackendAdapter(session.backend, state_type=dict)
    assert (await plain.load("t"))["context"][0]["content"][0]["text"] == "hello"
    assert await plain.list_threads() == ["t"]
    assert [it["thread_id"] for it in await plain.search("hello")] == ["t"]
    await plain.copy_thread("t", "copy")
    assert (await session.aget_state({"thread_id": "copy"})).context[0].text() == "hello"


@pytest.mark.parametrize(
    "change",
    [
        lambda it: setattr(it, "context", None),
        lambda it: setattr(it, "context_summary", 5),
        lambda it: setattr(it, "execution_meta", None),
        lambda it: setattr(it.execution_meta, "step", "a"),
        lambda it: it.context.append("text"),
        lambda it: setattr(it.context[0], "content", "text"),
        lambda it: setattr(it.context[0], "timestamp", "yesterday"),
    ],
)
async def test_a_state_that_its_class_would_refuse_is_not_written(session, change) -> None:
    await session.aput_state(T, said("good"))
    bad = said("bad")
    change(bad)
    for put in (session.aput_state, session.aput_state_cache):
        with pytest.raises(SerializationError, match="nothing was written"):
            await put(T, bad)
    for read in (session.aget_state, session.aget_state_cache):
        assert (await read(T)).context[0].text() == "good"


async def test_errors_name_options_of_a_session_only(session) -> None:
    class Strict(AgentState):
        n: int

    await session.aput_state(T, said("a"))
    with pytest.raises(SerializationError, match="bind_state_type") as refused:
        await session.aget_state({**T, "state_class": Strict})
    assert "state_type" not in str(refused.value).replace("bind_state_type", "")


@pytest.mark.parametrize("bad", [{"a": 1}, None, "text", 7], ids=repr)
async def test_what_is_no_state_is_refused(session, bad) -> None:
    for put in (session.aput_state, session.aput_state_cache):
        with pytest.raises(SerializationError, match=r"AgentState"):
            await put(ALICE, bad)
    with pytest.raises(SerializationError):
        await session.aput_state(ALICE, AgentState(x=math.nan))
    assert await session.aget_thread(T) is None


# --- messages


def texts(messages: list[Message]) -> list[str]:
    return [it.text() for it in messages]


async def test_everything_of_a_message_comes_back(storage, session) -> None:
    berlin = timezone(timedelta(hours=2))
    messages = [
        Message(
            message_id="one", role="assistant", delta=True, reasoning="because",
            content=[Block(text="a\0é"), Block(type="image", url="x", n=1, f=1.0)],
            tools_calls=[{"id": "c", "function": {"arguments": "{}"}}],
            timestamp=datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=berlin),
            metadata={"int": 2**62, "float": 1.0, "list": [None, True]},
            usages={"total": 3}, raw={"a": [1, 2.5]}, other={"k": 1},
        ),
        Message(message_id=7, role="user", timestamp=1.7e9),
        Message(message_id="naive", role="user", timestamp=datetime(2024, 1, 1)),  # noqa: DTZ001
        Message(message_id="none", role="user", timestamp=None),
    ]  # fmt: skip
    await session.aput_messages(T, messages)
    found = await storage.open().alist_messages(T)
    assert found == messages
    assert repr(found) == repr([Message.model_validate(it.model_dump(mode="json")) for it in found])
    assert [type(it.timestamp) for it in found] == [datetime, float, datetime, type(None)]
    assert found[0].timestamp.utcoffset() == timedelta(hours=2)
    assert await session.aget_message(T, 7) == messages[1]
    assert await session.aget_message(T, "7") == messages[1]


async def test_what_a_message_does_not_have_takes_no_space(session) -> None:
    message = Message.text_message("hello", message_id="m", timestamp=None)
    await session.aput_messages(T, [message, message.model_copy(update={"message_id": 7})])
    logged = await session.log.load(T["thread_id"])
    assert logged[0].content == {
        "content": [{"type": "text", "text": "hello"}], "delta": False, "timestamp": None
    }  # fmt: skip
    assert logged[1].content["message_id"] == 7
    assert await session.aget_message(T, "m") == message


async def test_messages_keep_their_order_over_pages(session) -> None:
    whole = [f"message {n}" for n in range(400)]
    await session.aput_messages(T, [Message.text_message(it) for it in whole])
    assert texts(await session.alist_messages(T)) == whole
    paged = []
    for offset in range(0, 420, 30):
        paged += texts(await session.alist_messages(T, offset=offset, limit=30))
    assert paged == whole
    assert await session.alist_messages(T, limit=0) == []
    assert texts(await session.alist_messages(T, offset=398)) == whole[398:]


async def test_what_is_no_list_of_messages_is_refused(session) -> None:
    for messages in (None, 5, "x"):
        with pytest.raises(InvalidArgumentError, match="messages must be a list"):
            await session.aput_messages(T, messages)
    assert await session.alist_messages(T) == []


async def test_a_message_that_is_put_again_keeps_its_place(session) -> None:
    first, second = Message.text_message("a"), Message.text_message("b")
    await session.aput_messages(T, [first, second], {"node": "x"})
    first.content = [Block(text="changed")]
    await session.aput_messages(T, [first, Message.text_message("c")])
    found = await session.alist_messages(T)
    assert texts(found) == ["changed", "b", "c"]
    assert [it.metadata for it in found] == [{}, {"node": "x"}, {}]
    await session.adelete_message(T, second.message_id)
    await session.adelete_message(T, "unknown")
    assert texts(await session.alist_messages(T)) == ["changed", "c"]


async def test_metadata_of_the_call_is_merged(session) -> None:
    message = Message.text_message("a", metadata={"mine": 1, "both": "mine"})
    await session.aput_messages(T, [message], {"both": "call", "step": 3})
    assert (await session.alist_messages(T))[0].metadata == {"mine": 1, "both": "mine", "step": 3}
    assert message.metadata == {"mine": 1, "both": "mine"}


async def test_a_search_looks_into_the_text_only(session) -> None:
    for text in ("A café", 'it\'s "q"\nx', "100% of_it", "role text content"):
        await session.aput_messages(T, [Message.text_message(text, role="assistant")])
    await session.aput_messages({"thread_id": "u"}, [Message.text_message("café")])
    expected = {
        "CAFÉ": 1, "cafe": 1, "it's": 1, '"q"\nx': 1, "0%": 1, "%": 1, "_": 1, "f_i": 1,
        "assistant": 0, "message_id": 0, "content": 1, "": 4,
    }  # fmt: skip
    for search, count in expected.items():
        assert len(await session.alist_messages(T, search=search)) == count, search
    assert texts(await session.alist_messages(T, "t", 1, 1)) == ["100% of_it"]


async def test_a_search_finds_tools_and_reasoning_and_no_bytes(session) -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "Hel"},
        {"type": "text", "text": "lo"},
        {"type": "image", "media": {"data_base64": "iVBO", "mime_type": "image/png"}},
        {"type": "tool_call", "id": "call-1", "name": "find_flights", "args": {"town": "Lisbon"}},
        {"type": "tool_result", "call_id": "call-2", "output": f"a map {'QUJD' * 100}"},
        {"type": "tool_result", "call_id": "call-3", "output": [{"carrier": "TAP"}]},
    ]
    calls = [{"id": "call-4", "function": {"name": "book", "arguments": '{"seats": "two"}'}}]
    await session.aput_messages(
        T,
        [
            Message(
                role="assistant",
                content=blocks,
                reasoning="Porto",
                tools_calls=calls,
                raw={"x": "raw"},
            )
        ],
    )
    for search in ("hello", "find_flights", "lisbon", "a map", "TAP", "Porto", "book", "two"):
        assert len(await session.alist_messages(T, search=search)) == 1, search
    for search in ("assistant", "iVBO", "QUJD", "call-", "town", "raw", "tool_result", "image/png"):
        assert await session.alist_messages(T, search=search) == [], search


async def test_message_ids_are_unique_in_their_thread_only(session) -> None:
    for name in ("t", "u"):
        message = Message.text_message(name, message_id="same")
        await session.aput_messages({"thread_id": name}, [message])
    assert texts(await session.alist_messages(T)) == ["t"]


async def test_a_bad_message_writes_nothing(session) -> None:
    good = Message.text_message("a")
    now = datetime.now(UTC)
    bad = ({"role": "user"}, Message.text_message("b", metadata={"at": now}), "text")
    for it in bad:
        with pytest.raises((InvalidArgumentError, SerializationError)):
            await session.aput_messages(ALICE, [good, it])
    with pytest.raises(InvalidArgumentError):
        await session.aput_messages({}, [good])
    assert await session.alist_messages(T) == []
    await session.aput_messages(ALICE, [])
    assert await session.alist_messages(T) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("content", it) for it in ("text", None, ["text"])],
        *[("timestamp", it) for it in ("yesterday", datetime(1880, 1, 1, tzinfo=ODD))],
        *[("message_id", it) for it in (None, 1.5)],
        *[("usages", [1]), ("reasoning", 5), ("tools_calls", {}), ("tools_calls", [5])],
        *[("metadata", None), ("delta", None), ("role", None)],
    ],
)
async def test_a_message_that_its_class_would_refuse_is_not_written(session, field, value) -> None:
    await session.aput_messages(T, [Message.text_message("good")])
    bad = Message.text_message("bad")
    setattr(bad, field, value)
    with pytest.raises((InvalidArgumentError, SerializationError), match=field):
        await session.aput_messages(T, [Message.text_message("too"), bad])
    assert texts(await session.alist_messages(T)) == ["good"]


async def test_blocks_that_were_assigned_as_dicts_are_stored(session) -> None:
    message = Message.text_message("a")
    message.content = [{"type": "text", "text": "b"}]
    await session.aput_messages(T, [message])
    assert texts(await session.alist_messages(T, search="b")) == ["b"]


@pytest.mark.parametrize("digits", [300, 5000])
async def test_a_number_that_is_too_long_for_an_id_is_refused(storage, session, digits) -> None:
    number, numbers = 10**digits, storage.open(user_id_type="bigint")
    for call in (
        session.aget_state({"thread_id": number}),
        session.aget_state({"thread_id": "t", "user_id": number}),
        numbers.alist_threads({"user_id": number}),
        session.aget_message(T, number),
        session.aput_messages(T, [Message.text_message("a", message_id=number)]),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


async def test_deleting_without_an_id_deletes_nothing(session) -> None:
    await session.aput_messages(T, [Message.text_message("a", message_id="None")])
    for method in (session.adelete_message, session.aget_message):
        with pytest.raises(InvalidArgumentError, match="message_id"):
            await method(T, None)
    assert len(await session.alist_messages(T)) == 1


# --- threads and users


async def test_all_facts_of_a_thread_come_back(session) -> None:
    info = ThreadInfo(
        thread_id="t", thread_name="Weather", user_id="alice", run_id="r",
        metadata={"tags": ["a"], "n": 1}, updated_at="2024-10-01T12:30:00Z",
    )  # fmt: skip
    await session.aput_state(ALICE, said("a"))
    await session.aput_messages(ALICE, [Message.text_message("m")])
    await session.aput_thread(ALICE, info)
    assert await session.aget_thread(ALICE) == info
    assert await session.alist_threads({"user_id": "alice"}) == [info]
    await session.aput_messages(ALICE, [Message.text_message("n")])
    assert (await session.aget_thread(ALICE)).updated_at > info.updated_at
    await session.aput_thread(ALICE, info.model_dump())
    await session.aput_state(ALICE, said("b"))
    assert (await session.aget_thread(ALICE)).updated_at > info.updated_at


async def test_a_list_is_ordered_by_activity(session) -> None:
    for name in "zam":
        await session.aput_state({"thread_id": name, "user_id": "alice"}, said(name))
    await session.aput_messages({"thread_id": "z", "user_id": "alice"}, [Message.text_message("m")])
    await session.aput_state({"thread_id": "b", "user_id": "bob"}, said("b"))
    listed = [it.thread_id for it in await session.alist_threads({"user_id": "alice"})]
    assert listed == ["z", "m", "a"]
    assert len(await session.alist_threads({})) == 4
    assert [
        it.thread_id for it in await session.alist_threads({"user_id": "alice"}, None, 1, 1)
    ] == ["m"]
    assert await session.alist_threads({"user_id": "alice"}, limit=0) == []


async def test_a_new_thread_takes_name_and_metadata_of_the_config(session) -> None:
    config = {**ALICE, "thread_name": "First", "thread_meta": {"tags": ["x"]}}
    await session.aput_messages(config, [Message.text_message("m")])
    await session.aput_state({**config, "thread_name": "Second"}, said("a"))
    info = await session.aget_thread(ALICE)
    assert (info.thread_name, info.metadata) == ("First", {"tags": ["x"]})
    found = await session.alist_threads({"user_id": "alice"}, search="first")
    assert [it.thread_id for it in found] == ["t"]


@pytest.mark.parametrize("seconds", [0, 1000])
async def test_another_user_finds_nothing_and_writes_nothing(storage, seconds) -> None:
    options: dict[str, Any] = {"cache": LocalCache(), "cache_verify_seconds": seconds}
    hers, his = storage.open(**options), storage.open(**options)
    message = Message.text_message("secret")
    await hers.aput_state(ALICE, said("secret"))
    await hers.aput_messages(ALICE, [message])
    await hers.aput_thread(ALICE, {"thread_id": "t", "thread_name": "hers"})
    for session in (hers, his):
        for read in (session.aget_state, session.aget_state_cache, session.aget_thread):
            assert await read(BOB) is None
            assert await read(ALICE) is not None
        assert await session.aget_message(BOB, message.message_id) is None
        assert await session.alist_messages(BOB) == []
        assert await session.alist_threads({"user_id": "bob"}) == []
        stolen = await session.aget_state(T)
        for write in (
            session.aput_state(BOB, stolen), session.aput_state_cache(BOB, stolen),
            session.aclear_state(BOB), session.aput_messages(BOB, [message]),
            session.adelete_message(BOB, message.message_id), session.aclean_thread(BOB),
            session.aput_thread(BOB, ThreadInfo(thread_id="t", thread_name="his")),
            session.aput_thread(T, ThreadInfo(thread_id="t", user_id="bob")),
        ):  # fmt: skip
            with pytest.raises(NotOwnerError):
                await write
    assert (await his.aget_state(ALICE)).context[0].text() == "secret"
    assert texts(await his.alist_messages(ALICE)) == ["secret"]
    assert (await his.aget_thread(T)).thread_name == "hers"


async def test_a_thread_without_a_user_is_its_first_claimers(session) -> None:
    await session.aput_state(T, said("a"))
    assert (await session.aget_state(BOB)).context[0].text() == "a"
    await session.aput_messages(ALICE, [Message.text_message("m")])
    assert await session.aget_state(BOB) is None
    assert (await session.aget_state(ALICE)).context[0].text() == "a"


async def test_cleaning_removes_everything(storage, session) -> None:
    await session.aput_state(ALICE, said("a"))
    await session.aput_messages(ALICE, [Message.text_message("m")])
    await session.aput_thread(ALICE, ThreadInfo(thread_id="t", thread_name="n"))
    await session.aclean_thread(ALICE)
    for it in (session, storage.open()):
        assert await it.aget_state(ALICE) is None
        assert await it.aget_state_cache(ALICE) is None
        assert await it.alist_messages(ALICE) == []
        assert await it.aget_thread(ALICE) is None
    await session.aput_state(BOB, said("new"))
    assert (await session.aget_state_cache(BOB)).context[0].text() == "new"


async def test_a_state_is_cleared_as_a_whole(storage) -> None:
    session, reader = storage.open(), storage.open()
    state, count = said("a"), 30 if storage.kind == "oracle" else 1100
    for _ in range(count):
        await session.aput_state(ALICE, state)
    await session.aput_messages(ALICE, [Message.text_message("m")])
    await reader.asetup()
    clearing, seen = asyncio.create_task(session.aclear_state(ALICE)), {count}
    while 0 not in seen:
        await asyncio.sleep(0)  # memory answers without giving way
        seen.add(len(await reader.backend.history("t", limit=2000)))
    await clearing
    assert seen == {0, count}
    assert len(await session.alist_messages(ALICE)) == 1


async def test_of_two_users_first_saves_one_is_written(storage) -> None:
    users = ["alice", "bob"]
    sessions = [storage.open() for _ in users]
    for n in range(10):
        results = await asyncio.gather(
            *(
                session.aput_state({"thread_id": f"t{n}", "user_id": user}, said(user))
                for session, user in zip(sessions, users, strict=True)
            ),
            return_exceptions=True,
        )
        lost = [at for at, it in enumerate(results) if isinstance(it, NotOwnerError)]
        assert len(lost) == 1, results
        winner = users[1 - lost[0]]
        assert (await sessions[0].aget_thread({"thread_id": f"t{n}"})).user_id == winner
        found = await sessions[0].aget_state({"thread_id": f"t{n}"})
        assert found.context[0].text() == winner
        assert len(await sessions[0].backend.history(f"t{n}")) == 1


async def test_of_a_users_two_first_saves_one_is_written(storage) -> None:
    sessions = [storage.open() for _ in range(2)]
    for n in range(10):
        config = {"thread_id": f"t{n}", "user_id": "alice"}
        saves = (it.aput_state(config, said(str(at))) for at, it in enumerate(sessions))
        results = await asyncio.gather(*saves, return_exceptions=True)
        (lost,) = [at for at, it in enumerate(results) if isinstance(it, ConflictError)]
        found = await sessions[lost].aget_state(config)
        assert found.context[0].text() == str(1 - lost)
        assert len(await sessions[0].backend.history(f"t{n}")) == 1


async def test_a_save_whose_claim_fails_is_not_written(storage, monkeypatch) -> None:
    session = storage.open()
    await session.aput_messages(T, [Message.text_message("m")])

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    place = "documents.listing" if storage.kind == "memory" else ""
    module = f"locus_store.backends.{place}" if place else "locus_store.sql.threads.repository"
    monkeypatch.setattr(f"{module}.put_facts", broken)
    with pytest.raises(ZeroDivisionError):
        await session.aput_state(ALICE, said("a"))
    monkeypatch.undo()
    assert await session.aget_state(T) is None
    await session.aput_state(BOB, said("b"))
    assert (await session.aget_thread(T)).user_id == "bob"


async def test_forgetting_a_user_removes_the_users_sessions(session) -> None:
    await session.aput_messages(ALICE, [Message.text_message("m")])
    await session.aput_state({"thread_id": "u", "user_id": "alice"}, said("a"))
    await session.aput_state({"thread_id": "v", "user_id": "bob"}, said("b"))
    await session.backend.forget_user("alice")
    assert [it.thread_id for it in await session.alist_threads({})] == ["v"]


@pytest.mark.parametrize(("kind", "most"), [("int", 2**31 - 1), ("bigint", 2**63 - 1)])
async def test_ids_of_users_may_be_numbers(storage, kind, most) -> None:
    if storage.kind == "oracle":
        pytest.skip("the double changes no column")
    session = storage.open(user_id_type=kind)
    config = {"thread_id": "t", "user_id": most}
    await session.aput_state(config, said("a"))
    assert (await session.aget_thread({**T, "user_id": str(most)})).user_id == most
    assert await session.aget_state({**T, "user_id": 7}) is None
    for bad in (most + 1, -most - 2, 1.5, True, "x", "", b"1"):
        with pytest.raises(InvalidArgumentError):
            await session.aput_state({**T, "user_id": bad}, said("b"))
    with pytest.raises(InvalidArgumentError, match="user_id"):
        await storage.open().aput_state({**T, "user_id": 7}, said("b"))


async def test_configs_that_make_no_sense_are_refused(session) -> None:
    for bad in (
        {},
        {"thread_id": ""},
        {"thread_id": "a\0"},
        {"thread_id": 1.5},
        None,
        "t",
        {**T, "state_class": dict},
    ):
        with pytest.raises(InvalidArgumentError):
            await session.aget_state(bad)
    for config, info in (
        (T, {"thread_id": "u"}), (ALICE, {"thread_id": "t", "user_id": "bob"}),
        (T, {"thread_id": "t", "unknown": 1}), (T, {}), (T, None),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            await session.aput_thread(config, info)
    await session.aput_state({"thread_id": 7}, said("a"))
    assert await session.aget_state({"thread_id": "7"}) is not None


async def test_what_is_no_cache_is_refused(storage) -> None:
    for bad in ("redis://x", 5, {}):
        with pytest.raises(InvalidArgumentError, match="cache"):
            storage.open(bad)


async def test_threads_that_expire_take_their_messages_along(storage) -> None:
    session = storage.open(ttl_seconds=1000)
    await session.aput_messages(T, [Message.text_message("m")])
    archived = await session.backend.read_thread("t")
    assert archived.expires_at is not None
    await session.aput_state(T, said("a"))
    assert (await session.backend.read_thread("t")).expires_at >= archived.expires_at


# --- life


async def test_a_release_waits_for_writes_that_tasks_have_begun(storage) -> None:
    session = storage.open()
    messages = [Message.text_message(str(n)) for n in range(20)]
    tasks = [asyncio.create_task(session.aput_messages(T, [it])) for it in messages]
    await session.arelease()
    assert sorted(texts(await storage.open().alist_messages(T)), key=int) == texts(messages)
    await asyncio.gather(*tasks)
    await session.arelease()
    await session.arelease()
    assert len(await session.alist_messages(T)) == 20


async def test_a_write_continues_when_its_caller_is_cancelled(storage, session) -> None:
    for call in (
        session.aput_state(ALICE, said("a")),
        session.aput_messages(ALICE, [Message.text_message("m")]),
    ):
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await session.arelease()
    other = storage.open()
    assert await other.aget_state(ALICE) is not None
    assert len(await other.alist_messages(ALICE)) == 1


def test_every_method_has_a_blocking_twin() -> None:
    names = [it for it, _ in inspect.getmembers(SessionCheckpointer, inspect.iscoroutinefunction)]
    names = [it for it in names if not it.startswith("_") and it != "arelease"]
    assert len(names) == 28
    for name in names:
        twin, method = getattr(SessionCheckpointer, name[1:]), getattr(SessionCheckpointer, name)
        assert twin.__name__ == name[1:]
        assert inspect.signature(twin) == inspect.signature(method)


def run_blocking(session: SessionCheckpointer) -> None:
    session.setup()
    session.put_state(ALICE, said("a"))
    assert session.get_state(ALICE) == session.get_state_cache(ALICE)
    session.put_state_cache(ALICE, session.get_state(ALICE))
    session.put_messages(ALICE, [Message.text_message("m", message_id="m")], {"k": 1})
    assert session.get_message(ALICE, "m").metadata == {"k": 1}
    assert texts(session.list_messages(ALICE)) == ["m"]
    session.delete_message(ALICE, "m")
    session.put_thread(ALICE, ThreadInfo(thread_id="t", thread_name="n"))
    assert session.get_thread(ALICE).thread_name == "n"
    assert [it.thread_id for it in session.list_threads({"user_id": "alice"})] == ["t"]
    session.clear_state(ALICE)
    assert session.get_state(ALICE) is None
    session.clean_thread(ALICE)
    assert session.get_thread(ALICE) is None
    session.release()


async def test_the_blocking_twins_work_again_and_again(storage) -> None:
    session = storage.open(LocalCache())
    for _ in range(2):
        await asyncio.to_thread(run_blocking, session)
    thread = threading.Thread(target=run_blocking, args=(session,))
    thread.start()
    await asyncio.to_thread(thread.join)


async def test_one_session_serves_several_event_loops(storage) -> None:
    session = storage.open(LocalCache())

    async def talk(name: str) -> None:
        state = AgentState()
        for n in range(5):
            state.context.append(Message.text_message(str(n)))
            await session.aput_state({"thread_id": name}, state)
            assert len((await session.aget_state_cache({"thread_id": name})).context) == n + 1
        await session.arelease()

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, talk(f"t{n}")) for n in range(4)))
    assert len(await session.alist_threads({})) == 4


@pytest.mark.full
async def test_50_users_at_once(session) -> None:
    async def talk(n: int) -> None:
        config = {"thread_id": f"t{n}", "user_id": f"u{n % 5}"}
        state = await session.aget_state_cache(config) or AgentState()
        for turn in range(3):
            state.context.append(Message.text_message(str(turn)))
            await session.aput_messages(config, state.context)
            await session.aput_state(config, state)

    await asyncio.gather(*map(talk, range(50)))
    for user in range(5):
        assert len(await session.alist_threads({"user_id": f"u{user}"})) == 10
    for n in range(50):
        assert texts(await session.alist_messages({"thread_id": f"t{n}"})) == ["0", "1", "2"]


@pytest.mark.parametrize("kind", ["file", *first_of("redis", "s3")])
async def test_a_session_may_be_over_each_storage_with_message_logs(kind, request) -> None:
    if kind == "file":
        url = f"file:{request.getfixturevalue('tmp_path')}/agents"
    else:
        found = request.getfixturevalue({"redis": "redis_url", "s3": "s3_place"}[kind])
        url = found if kind == "redis" else found.url()
    async with open_checkpointer(url) as checkpointer:
        session = SessionCheckpointer(checkpointer.backend, LocalCache())
        await session.aput_messages(ALICE, [Message.text_message("m")])
        await session.aput_state(ALICE, said("a"))
        await session.aput_tool_result(ALICE, "call", {"found": 1})
        await session.aput_thread(ALICE, ThreadInfo(thread_id="t", thread_name="Porto"))
        assert texts((await session.aget_state(T)).context) == ["a"]
        assert texts(await session.alist_messages(T)) == ["m"]
        assert [it.thread_name for it in await session.alist_threads(ALICE)] == ["Porto"]
        with pytest.raises(NotOwnerError):
            await session.aput_state(BOB, said("b"))
        await session.aclean_thread(ALICE)
        assert await session.alist_threads(ALICE) == []


async def test_what_keeps_no_messages_is_refused() -> None:
    bare = type("Bare", (StorageBackend,), dict.fromkeys(StorageBackend.__abstractmethods__))
    with pytest.raises(UnsupportedError, match="Bare keeps no message logs"):
        SessionCheckpointer(bare())
    with pytest.raises(TypeError):
        SessionCheckpointer({})
    for options in (
        {"user_id_type": "uuid"}, {"cache_verify_seconds": -1}, {"keep_last": 0},
        {"ttl_seconds": 0},
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            SessionCheckpointer(MemoryBackend(), **options)


async def test_ready_sessions(tmp_path) -> None:
    async with SqliteCheckpointer(tmp_path / "s.db") as first:
        await first.aput_state(ALICE, said("a"))
    async with SqliteCheckpointer(tmp_path / "s.db", keep_last=1, user_id_type="string") as second:
        assert (await second.aget_state_cache(ALICE)).context[0].text() == "a"
    async with InMemoryCheckpointer() as memory:
        await memory.aput_state(ALICE, said("a"))
        assert await memory.aget_state(ALICE) is not None
    for bad in ({}, {"path": "x", "engine": object()}):
        with pytest.raises(InvalidArgumentError):
            SqliteCheckpointer(**bad)
    with pytest.raises(TypeError):
        InMemoryCheckpointer(unknown=1)


async def test_tenants_share_a_cache_and_nothing_else(storage) -> None:
    if not storage.backend().capabilities.tenants:
        pytest.skip("no tenants")
    cache, backend = LocalCache(), storage.backend()
    acme, globex = (SessionCheckpointer(backend.for_tenant(it), cache) for it in ("a", "g"))
    for session, text in ((acme, "acme"), (globex, "globex")):
        await session.aput_state(ALICE, said(text))
        await session.aput_messages(ALICE, [Message.text_message(text)])
    for session, text in ((acme, "acme"), (globex, "globex")):
        assert (await session.aget_state_cache(ALICE)).context[0].text() == text
        assert texts(await session.alist_messages(ALICE)) == [text]
        assert len(await session.alist_threads({})) == 1
    await backend.close()


async def test_a_session_travels_to_another_database_and_back(tmp_path) -> None:
    first, second = (SqliteCheckpointer(tmp_path / f"{n}.db") for n in range(2))
    memory = InMemoryCheckpointer()
    for text in "ab":
        await first.aput_state(ALICE, said(text))
        await first.aput_messages(ALICE, [Message.text_message(text)])
    await first.aput_thread(ALICE, ThreadInfo(thread_id="t", thread_name="n", run_id="r"))
    archive = await first.backend.read_thread("t")
    await memory.backend.write_thread(archive)
    await second.backend.write_thread(await memory.backend.read_thread("t"))
    assert await second.backend.read_thread("t") == archive
    for it in (memory, second):
        assert await it.aget_state(ALICE) == await first.aget_state(ALICE)
        assert await it.alist_messages(ALICE) == await first.alist_messages(ALICE)
        assert (await it.aget_thread(ALICE)).run_id == "r"
        assert await it.aget_state(BOB) is None
    for it in (first, memory, second):
        await it.arelease()


async def test_many_first_messages_at_once_claim_their_thread_once(storage, monkeypatch) -> None:
    session, puts = storage.open(), []
    put_facts = type(session.backend).put_facts

    async def counted(self, put):
        puts.append(put)
        await put_facts(self, put)

    monkeypatch.setattr(type(session.backend), "put_facts", counted)
    calls = [session.aput_messages(ALICE, [Message.text_message(str(n))]) for n in range(300)]
    await asyncio.gather(*calls)
    assert len(puts) == 1
    assert len(await session.alist_messages(ALICE)) == 300


class Image(Block):
    url: str = ""


async def test_a_block_of_a_subclass_keeps_its_fields(session) -> None:
    message = Message(role="user", content=[Image(type="image", url="http://x")])
    await session.aput_messages(T, [message])
    (found,) = await session.alist_messages(T)
    assert found.content[0].model_dump() == {"type": "image", "url": "http://x"}


class Scored(Message):
    score: float = Field(0.0, alias="confidence")


async def test_a_field_with_an_alias_comes_back(storage) -> None:
    class Session(SessionCheckpointer):
        models = MODELS._replace(message=Scored)

    session = Session(storage.backend())
    await session.aput_messages(T, [Scored(role="user", confidence=0.5)])
    (found,) = await session.alist_messages(T)
    assert (found.score, found.model_extra) == (0.5, {})
    await session.arelease()
