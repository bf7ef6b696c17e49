"""States: marks that users cannot forge, the class that was saved, and ``max_state_bytes``."""

from __future__ import annotations

import logging
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from pickle import dumps, loads
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from locus_store.errors import (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    SerializationError,
)
from locus_store.testing.kit import CUT_TEXTS, Another, Kit, StorageProbe, exact, requires, seam
from locus_store.types.marks import MARK_KEY
from locus_store.types.state import AgentState, Message
from locus_store.types.state_classes import make_label
from locus_store.values.encoding import pack_frame

LIMIT = 20_000
LARGE = 50 * LIMIT
BOMB_BYTES = 64 * 1024 * 1024


class RoomyState(BaseModel):
    """A pydantic state whose ``metadata`` has room for a mark, as the Locus SDK's has."""

    texts: list[str] = []
    metadata: dict[str, Any] = {}


@seam("state", "loop")
class Marks(Kit):
    """A mark counts only in a state that ``load`` returned."""

    async def read_token(self, another: Another, thread_id: str) -> str:
        """Return the mark of a load of the thread."""
        loaded = await another(state_type=RoomyState).load(thread_id)
        return str(loaded.metadata[MARK_KEY])

    async def test_a_forged_mark_is_refused(self, checkpointer: Any, another: Another) -> None:
        await another(state_type=RoomyState).save(RoomyState(texts=["a"]), "t", "v1")
        token = await self.read_token(another, "t")
        forged = {"texts": ["forged"], "metadata": {MARK_KEY: token, "k": 1}}
        for writer in (checkpointer, another(state_type=dict)):
            for thread_id in ("t", "new"):
                with pytest.raises(SerializationError, match=MARK_KEY):
                    await writer.save(forged, thread_id)
        assert await checkpointer.list_checkpoints("t") == ["v1"]
        assert await checkpointer.exists("new") is False

    async def test_a_value_in_the_place_of_a_mark_is_refused(self, checkpointer: Any) -> None:
        values: list[Any] = ["nonsense", None, 7, {}]
        for value in values:
            with pytest.raises(SerializationError, match=MARK_KEY):
                await checkpointer.save({"metadata": {MARK_KEY: value}}, "t")
        assert await checkpointer.exists("t") is False

    async def test_the_key_is_an_ordinary_one_anywhere_else(self, another: Another) -> None:
        checkpointer = another(state_type=dict)
        state = {MARK_KEY: 1, "metadata": {"deep": {MARK_KEY: 2}}}
        await checkpointer.save(state, "t", metadata={MARK_KEY: 3})
        assert await checkpointer.load("t") == state
        if checkpointer.capabilities.metadata_query:
            assert await checkpointer.get_metadata("t") == {MARK_KEY: 3}

    async def test_a_loaded_dict_or_state_does_not_take_a_mark_from_its_metadata(
        self, checkpointer: Any, another: Another
    ) -> None:
        writer = another(state_type=AgentState)
        await writer.save(AgentState(), "t", "v1")
        token = await self.read_token(another, "t")
        plain = await another(state_type=dict).load("t")
        plain["metadata"][MARK_KEY] = token
        ours = (await another(state_type=AgentState).load("t")).with_metadata(MARK_KEY, token)
        for state in (plain, ours):
            with pytest.raises(SerializationError, match=MARK_KEY):
                await writer.save(state, "t")
        assert await checkpointer.list_checkpoints("t") == ["v1"]

    async def test_a_pydantic_state_carries_its_mark_between_objects(
        self, another: Another
    ) -> None:
        await another(state_type=RoomyState).save(RoomyState(texts=["a"]), "t")
        stale = await another(state_type=RoomyState).load("t")
        await another(state_type=dict).save({"texts": ["b"], "metadata": {}}, "t")
        with pytest.raises(ConflictError):
            await another(state_type=dict).save(stale, "t")


class OtherState(BaseModel):
    """A pydantic state with no room for a mark."""

    total: int = 0


@dataclass
class PlainPart:
    """A dataclass within a state."""

    values: dict[str, Any]


class NestedState(BaseModel):
    """A pydantic state with dicts in many places; it is frozen, and keeps unknown fields."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    held: PlainPart
    inner: list[RoomyState] = []
    more: dict[str, dict[str, Any]] = {}
    pairs: tuple[dict[str, Any], ...] = ()
    names: set[str] = set()


@seam("state")
class StateClasses(Kit):
    """Without ``state_type=``, ``load`` returns the class that was saved."""

    async def test_each_version_is_loaded_as_the_class_that_was_saved(
        self, another: Another
    ) -> None:
        states: list[Any] = [
            {"total": 1},
            AgentState(agent_id="a"),
            RoomyState(texts=["a"]),
            OtherState(total=1),
        ]
        ids = [await another(state_type=None).save(it, "t") for it in states]
        for checkpoint_id, state in zip(ids, states, strict=True):
            found = await another(state_type=None).load("t", checkpoint_id)
            assert isinstance(found, type(state))
            assert found == state or isinstance(state, RoomyState)
            await another(state_type=None).save(found, "t")
            assert isinstance(await another(state_type=None).load("t"), type(state))

    async def test_keys_with_half_a_character_come_back(self, another: Another) -> None:
        cut = {it: {it: [it]} for it in CUT_TEXTS}
        message = Message.user("a\ud83d", metadata=cut)
        states: list[Any] = [
            {"metadata": cut},
            AgentState(metadata=cut, messages=(message,), unknown=cut),
            RoomyState(metadata=cut),
            NestedState(
                held=PlainPart(cut),
                inner=[RoomyState(metadata=cut)],
                more=cut,
                pairs=(cut, cut),
                names={*cut},
                unknown=cut,
            ),
        ]
        for number, state in enumerate(states):
            await another(state_type=None).save(state, f"t{number}")
            found = await another(state_type=None).load(f"t{number}")
            if isinstance(state, RoomyState):
                del found.metadata[MARK_KEY]
            assert found == state

    async def test_a_state_type_wins_over_the_recorded_class(self, another: Another) -> None:
        for saving in (None, dict):  # both record the class
            await another(state_type=saving).save(OtherState(total=1), f"{saving}")
            assert await another(state_type=None).load(f"{saving}") == OtherState(total=1)
            assert await another(state_type=dict).load(f"{saving}") == {"total": 1}
            loaded = await another(state_type=AgentState).load(f"{saving}")
            assert loaded.model_extra == {"total": 1}

    async def test_a_state_loaded_as_a_dict_keeps_the_recorded_class(
        self, another: Another
    ) -> None:
        await another(state_type=None).save(OtherState(total=0), "t")
        plain = another(state_type=dict)
        changes: list[Callable[[Any], Any]] = [
            *(copy, deepcopy, lambda it: it.copy(), lambda it: it | {}),
            lambda it: loads(dumps(it)),  # noqa: S301  (our own)
        ]
        for total, change in enumerate(changes, 1):
            state = change(await another(state_type=dict).load("t"))
            state["total"] = total
            await plain.save(state, "t", on_conflict="overwrite")
        await plain.save(await plain.load("t"), "t")
        assert await another(state_type=None).load("t") == OtherState(total=5)
        await plain.save({"total": 6}, "t")
        assert await another(state_type=None).load("t") == {"total": 6}

    @requires("branching")
    async def test_a_copied_thread_keeps_the_class(self, another: Another) -> None:
        checkpointer = another(state_type=None)
        await checkpointer.save(OtherState(total=1), "t")
        assert await checkpointer.copy_thread("t", "copy") is True
        assert await another(state_type=None).load("copy") == OtherState(total=1)

    @requires("metadata_query")
    async def test_no_metadata_query_finds_the_recorded_class(self, another: Another) -> None:
        checkpointer = another(state_type=None)
        await checkpointer.save(OtherState(), "t")
        (label, name), *_ = make_label(OtherState()).items()
        assert await checkpointer.query_by_metadata(label, name) == []
        assert await checkpointer.get_metadata("t") == {}
        await checkpointer.save(OtherState(), "mine", metadata={label: name})
        found = await checkpointer.query_by_metadata(label, name)
        assert [it["thread_id"] for it in found] == ["mine"]

    async def test_a_class_that_is_not_imported_is_an_error_that_names_the_import(
        self, another: Another, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = ModuleType("shop_states")
        order = type("Order", (OtherState,), {"__module__": "shop_states"})
        vars(module)["Order"] = order
        monkeypatch.setitem(sys.modules, "shop_states", module)
        await another(state_type=None).save(order(total=1), "t")
        assert type(await another(state_type=None).load("t")) is order
        monkeypatch.delitem(sys.modules, "shop_states")
        with pytest.raises(SerializationError, match="import shop_states"):
            await another(state_type=None).load("t")
        assert await another(state_type=dict).load("t") == {"total": 1}

    async def test_a_class_that_load_could_not_find_is_refused(self, another: Another) -> None:
        class Hidden(OtherState):
            pass

        with pytest.raises(SerializationError, match="state_type=Hidden"):
            await another(state_type=None).save(Hidden(), "t")
        assert await another(state_type=None).exists("t") is False
        await another(state_type=Hidden).save(Hidden(total=1), "t")
        assert await another(state_type=Hidden).load("t") == Hidden(total=1)


class LimitRules(Kit):
    """A state above ``max_state_bytes`` is neither saved nor read; any other state is both."""

    async def plant(self, another: Another, thread_id: str = "large") -> Any:
        """Save a state above the limit by an object with a larger one; it compresses well."""
        generous = another(max_state_bytes=2 * LARGE)
        await generous.save(self.holding("needle " + "a" * LARGE), thread_id, "v")
        return generous

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", None, True])
    async def test_max_state_bytes_is_checked(self, another: Another, wrong: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="max_state_bytes"):
            another(max_state_bytes=wrong)

    async def test_a_state_above_the_limit_is_not_saved(self, another: Another) -> None:
        limited = another(max_state_bytes=LIMIT)
        await limited.save(self.new("small"), "t", "v1")
        for thread_id in ("t", "new"):
            with pytest.raises(SerializationError, match="max_state_bytes=20000"):
                await limited.save(self.holding("a" * LIMIT), thread_id, "v2")
        assert await limited.list_checkpoints("t") == ["v1"]
        assert await self.read_texts(limited, "t") == ["small"]
        assert not await limited.exists("new")

    async def test_what_save_accepts_is_loaded(self, another: Another) -> None:
        limited = another(max_state_bytes=LIMIT)
        dice = random.Random(11)  # noqa: S311  (test data)
        accepted = dict[str, Any]()
        value: Any = _make_value(dice)
        for number in range(60):
            value = _make_value(dice) if dice.random() < 0.3 else _change_value(dice, value)
            try:
                await limited.save(self.holding(value), "t", f"v{number}")
            except SerializationError:
                value = _make_value(dice)
            else:
                accepted[f"v{number}"] = exact(value)
        assert 20 < len(accepted) < 60
        other = another(max_state_bytes=LIMIT)
        for name, expected in accepted.items():
            assert exact(self.held(await other.load("t", name))) == expected

    async def test_a_stored_state_above_the_limit_is_not_loaded(self, another: Another) -> None:
        generous = await self.plant(another)
        limited = another(max_state_bytes=LIMIT)
        for name in (None, "v"):
            with pytest.raises(IntegrityError, match="max_state_bytes=20000"):
                await limited.load("large", name)
        assert await limited.list_checkpoints("large") == ["v"]
        assert len(self.held(await generous.load("large"))) > LARGE
        assert await limited.delete("large") is True

    async def test_changes_that_fold_above_the_limit_are_not_loaded(self, another: Another) -> None:
        generous = another(max_state_bytes=2 * LARGE)
        value = list[str]()
        for number in range(8):
            value = [*value, *(f"{number} " + "a" * 1000,) * 8]  # each change is below the limit
            await generous.save(self.holding(value), "t", f"v{number}")
        limited = another(max_state_bytes=LIMIT)
        assert len(self.held(await limited.load("t", "v1"))) == 16
        with pytest.raises(IntegrityError, match="max_state_bytes=20000"):
            await limited.load("t")

    @requires("search")
    async def test_search_skips_a_thread_above_the_limit(
        self, checkpointer: Any, another: Another, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.plant(another)
        limited = another(max_state_bytes=LIMIT)
        await limited.save(self.new("a needle"), "small")
        with caplog.at_level(logging.WARNING, "locus_store.operations"):
            assert [it["thread_id"] for it in await limited.search("needle")] == ["small"]
        assert "skipped thread 'large'" in caplog.text
        assert "max_state_bytes" in caplog.text

    async def test_a_bomb_takes_no_memory(
        self, checkpointer: Any, another: Another, below: StorageProbe
    ) -> None:
        await checkpointer.save(self.new("a"), "t")
        bomb = pack_frame(b'[["=",[],{"a":"%b"}]]' % (b"a" * BOMB_BYTES))
        below.damage(lambda _: bomb)
        limited = another(max_state_bytes=LIMIT)
        with _measure_peak() as peak, pytest.raises(IntegrityError):
            await limited.load("t")
        assert peak[0] < BOMB_BYTES // 8


@contextmanager
def _measure_peak() -> Iterator[list[int]]:
    """Return the peak memory in bytes, above that at the start."""
    peak = [0]
    tracemalloc.start()
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _make_value(dice: random.Random) -> Any:
    """Return a value about as large as the limit, of a different form each time."""
    size = dice.randrange(LIMIT * 9 // 10, LIMIT)
    forms: Any = ("a" * size, "\x01" * (size // 6), ["b" * 90] * (size // 93), [[]] * (size // 3))
    if dice.random() < 0.2:  # a long key, which every change below it repeats
        return {"k" * (size // 2): {str(it): 0 for it in range(size // 20)}}
    return dice.choice(forms)


def _change_value(dice: random.Random, value: Any) -> Any:
    if isinstance(value, str):
        at = dice.randrange(len(value) + 1)
        return value[:at] + dice.choice(("", "\x01é", "c" * 40)) + value[at + dice.randrange(60) :]
    if isinstance(value, list):
        at = dice.randrange(len(value) + 1)
        gone = dice.randrange(40)
        return [*value[:at], *([f"{dice.random()}"] * dice.randrange(40)), *value[at + gone :]]
    ((key, below),) = value.items()
    return {key: {it: below[it] + 1 for it in below}}
