"""AgentState, Message, and states of any type as JSON objects and back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from lazily import TESTS_RUN
from pydantic import BaseModel, ValidationError

from locus_store import AgentState, MemoryCheckpointer, Message, Role, ToolCall
from locus_store.errors import InvalidArgumentError, SerializationError
from locus_store.types import Mark
from locus_store.types.codec import StateCodec, get_labels
from locus_store.types.marks import MARK_KEY, LoadedDict, LoadedVersion, make_thread_key

if TESTS_RUN:
    from locus.core.state import AgentState as LocusState

pytestmark = pytest.mark.anyio


def mark(sequence: int = 1) -> Mark:
    return Mark("store", 7, sequence, bytes(range(16)))


# --- AgentState and Message


def test_a_state_is_never_changed_but_made_anew() -> None:
    state = AgentState(agent_id="a")
    longer = state.with_message(Message.user("hello")).with_iteration(3).with_metadata("k", 1)
    assert state.messages == ()
    assert (longer.iteration, longer.metadata, longer.run_id) == (3, {"k": 1}, state.run_id)
    with pytest.raises(ValidationError):
        state.agent_id = "b"


def test_messages_are_made_by_who_speaks() -> None:
    call = ToolCall(name="search", arguments={"q": "x"})
    messages = (
        Message.system("be brief"), Message.user("hi"), Message.assistant("searching", [call]),
        Message.tool("found", tool_call_id=call.id, name="search"), Message.assistant(),
    )  # fmt: skip
    assert [it.role for it in messages] == [
        Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT,
    ]  # fmt: skip
    state = AgentState().with_messages(messages)
    assert AgentState.from_checkpoint(state.to_checkpoint()) == state


def test_a_checkpoint_has_keys_with_half_a_character() -> None:
    state = AgentState(metadata={"\ud83d": {"\ude00": 1}})
    assert state.to_checkpoint()["metadata"] == {"\ud83d": {"\ude00": 1}}
    assert AgentState.from_checkpoint(state.to_checkpoint()) == state


@pytest.mark.parametrize("code", [0xD83D, 0xFFFD, 0xFDD0])
async def test_a_state_of_the_sdk_keeps_any_key(code: int) -> None:
    """pydantic writes U+FFFD in place of half a character in some keys, without an error."""
    key = chr(code)
    state = LocusState(agent_id="a", metadata={key: 1, "b": {key: "a\ud83d"}, key * 2: "plain"})
    async with MemoryCheckpointer() as checkpointer:
        await checkpointer.save(state, "t")
        found = (await checkpointer.load("t")).metadata
    assert {name: it for name, it in found.items() if name != MARK_KEY} == state.metadata


def test_a_checkpoint_is_plain_json_data() -> None:
    state = AgentState(messages=(Message.user("hi"),), created_at=datetime(2026, 1, 1, tzinfo=UTC))
    data = state.to_checkpoint()
    assert data["messages"][0] == {
        "role": "user", "content": "hi", "tool_calls": [], "tool_call_id": None, "name": None,
        "metadata": {},
    }  # fmt: skip
    assert data["created_at"].startswith("2026-01-01T00:00:00")


async def test_fields_of_a_newer_model_survive_an_older_one() -> None:
    newer = {"agent_id": "a", "plan": {"steps": [1]}, "messages": [
        {"role": "user", "content": "hi", "reaction": "👍"}]}  # fmt: skip
    checkpointer = MemoryCheckpointer(state_type=AgentState)
    await checkpointer.save(newer, "t")
    await checkpointer.save((await checkpointer.load("t")).with_message(Message.user("x")), "t")
    data = (await checkpointer.load("t")).to_checkpoint()
    assert data["plan"] == {"steps": [1]}
    assert data["messages"][0]["reaction"] == "👍"


async def test_loaded_states_compare_by_content() -> None:
    checkpointer, state = MemoryCheckpointer(), AgentState(messages=(Message.user("hi"),))
    await checkpointer.save(state, "t")
    one, two = await checkpointer.load("t"), await checkpointer.load("t")
    assert one == two == state
    assert one.to_checkpoint() == state.to_checkpoint()


async def test_a_mark_is_never_stored() -> None:
    for state_type in (AgentState, LocusState, dict):
        checkpointer, state = MemoryCheckpointer(state_type=state_type), state_type()
        for _ in range(3):
            await checkpointer.save(state, "t")
            state = await checkpointer.load("t")
        assert MARK_KEY not in str(await checkpointer.backend.load("t"))


async def test_a_mark_survives_what_callers_do_with_a_state() -> None:
    codec, origin = (
        StateCodec(),
        LoadedVersion(thread=make_thread_key("t"), made_from=mark(), head=mark()),
    )
    state = codec.restore(AgentState().to_checkpoint(), origin)
    for made in (state.with_message(Message.user("x")), state.model_copy(), copy.deepcopy(state)):
        assert codec.dump(made)[1] == origin
    loaded = StateCodec(dict).restore({"a": [1]}, origin)
    for made in (loaded.copy(), copy.copy(loaded), copy.deepcopy(loaded)):
        assert isinstance(made, LoadedDict)
        assert StateCodec(dict).dump(made)[1] == origin


def test_a_loaded_dict_is_a_dict_and_its_mark_survives_pickling() -> None:
    origin = LoadedVersion(thread="x", made_from=mark(), head=mark())
    loaded = StateCodec(dict).restore({"a": 1}, origin)
    assert loaded == {"a": 1}
    assert isinstance(loaded, dict)
    sent = pickle.loads(pickle.dumps(loaded))  # noqa: S301  (our own bytes)
    assert (sent, StateCodec(dict).dump(sent)[1]) == ({"a": 1}, origin)


# --- marks as text

NONCE = "0123456789abcdef"


@pytest.mark.parametrize("nonce", ["", "None", "a\0b", NONCE[1:], NONCE + "0", NONCE.upper()])
def test_a_token_with_a_writer_that_no_load_minted_is_not_ours(nonce: str) -> None:
    origin = LoadedVersion(thread="a", made_from=mark(), head=mark(), load_id=NONCE)
    assert LoadedVersion.from_token(origin.to_token()) == origin
    assert LoadedVersion.from_token(origin.to_token().replace(NONCE, nonce)) is None


@pytest.mark.parametrize("head", [None, mark(1), mark(2)])
@pytest.mark.parametrize("made_from", [None, mark(1)])
def test_a_lineage_comes_back_from_its_token(made_from: Mark | None, head: Mark | None) -> None:
    origin = LoadedVersion(thread=make_thread_key("t"), made_from=made_from, head=head or made_from)
    assert LoadedVersion.from_token(origin.to_token()) == origin


@pytest.mark.parametrize(
    "token", ["", "1", f"1.a.{NONCE}.!!", f"2.a.{NONCE}.AAAA", f"1.a.{NONCE}.", None, 7, {}]
)
def test_what_is_no_token_of_ours_is_no_lineage(token: Any) -> None:
    assert LoadedVersion.from_token(token) is None


async def test_a_forged_mark_is_ignored_or_conflicts_but_never_breaks_a_save() -> None:
    checkpointer = MemoryCheckpointer(state_type=LocusState)
    await checkpointer.save(LocusState(metadata={MARK_KEY: "nonsense", "k": 1}), "t")
    loaded = await checkpointer.load("t")
    assert loaded.metadata["k"] == 1
    assert MARK_KEY not in (await checkpointer.backend.load("t"))["metadata"]


# --- state types


class Item(BaseModel):
    tags: set[str] = set()


class Bag(BaseModel):
    tags: frozenset[str] = frozenset()
    items: list[Item] = []
    by_name: dict[str, set[int]] = {}
    one: Item | None = None


def test_sets_are_stored_in_one_order() -> None:
    names = [f"tag{n}" for n in range(50)]
    bag = Bag(tags=frozenset(names), items=[Item(tags=set(names))], by_name={"x": {3, 1, 2}},
              one=Item(tags={"b", "a"}))  # fmt: skip
    data, *_ = StateCodec(Bag).dump(bag)
    assert data["tags"] == data["items"][0]["tags"] == sorted(names)
    assert data["by_name"]["x"] == [1, 2, 3]
    assert data["one"]["tags"] == ["a", "b"]


async def test_the_order_of_a_set_makes_no_new_content() -> None:
    checkpointer = MemoryCheckpointer(state_type=LocusState)
    state = LocusState(terminal_tools=frozenset({"a", "b", "c"}))
    other = state.model_copy(update={"terminal_tools": frozenset(["c", "b", "a"])})
    await checkpointer.save(state, "t", "v1")
    await checkpointer.save(other, "t", "v1")
    assert (await checkpointer.load("t")).terminal_tools == {"a", "b", "c"}


@pytest.mark.parametrize("state_type", [int, object, str, list, "dict", Mapping, AgentState()])
def test_a_state_type_must_be_able_to_give_and_take_json(state_type: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="state_type"):
        StateCodec(state_type)


def test_a_checkpoint_that_is_no_object_is_refused() -> None:
    class Wrong:
        def to_checkpoint(self) -> Any:
            return [1]

        @classmethod
        def from_checkpoint(cls, data: Any) -> Wrong:
            return cls()

    with pytest.raises(SerializationError, match="JSON object"):
        StateCodec(Wrong).dump(Wrong())


async def test_a_state_of_another_class_is_saved_if_it_can_give_json() -> None:
    checkpointer = MemoryCheckpointer(state_type=dict)
    await checkpointer.save(AgentState(agent_id="a"), "t")
    assert (await checkpointer.load("t"))["agent_id"] == "a"


def test_labels_are_what_a_state_says_of_itself() -> None:
    assert get_labels({}) == {}
    assert get_labels({"agent_id": "a", "tags": ["x"]}) == {"agent_id": "a", "tags": ["x"]}
    assert get_labels({"metadata": {"tags": ("x",)}}) == {"tags": ["x"]}
    for odd in ({"agent_id": 7}, {"tags": "x"}, {"tags": [1]}, {"metadata": []}, {"tags": None}):
        assert get_labels(odd) == {}
