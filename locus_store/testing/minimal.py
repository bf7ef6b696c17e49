"""The three methods of every checkpointer, and exact states."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

import pytest

from locus_store.errors import SerializationError, UnsupportedError
from locus_store.testing.kit import (
    CUT_TEXTS,
    NUMBERS,
    TEXTS,
    UNSERIALISABLE,
    Another,
    Kit,
    exact,
    expect,
    refused,
    seam,
)
from locus_store.types.tenants import Quota


class Minimal(Kit):
    """The promises of any checkpointer, even one with only the three abstract methods."""

    async def test_a_saved_state_is_loaded_again(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("hello", "world"), "t")
        found = await checkpointer.load("t")
        assert isinstance(found, self.state_type)
        assert self.texts(found) == ["hello", "world"]

    async def test_a_state_survives_a_reopen(self, checkpointer: Any, another: Another) -> None:
        saved = await checkpointer.save(self.new("hello"), "t")
        await checkpointer.close()
        other = another()
        assert await self.read_texts(other, "t") == ["hello"]
        assert await other.list_checkpoints("t") == [saved]

    async def test_open_is_optional_and_repeatable(
        self, checkpointer: Any, another: Another
    ) -> None:
        for _ in range(2):
            await checkpointer.open()
        await checkpointer.save(self.new("hello"), "t")
        await checkpointer.open()
        other = another()
        await other.open()
        assert await self.read_texts(other, "t") == ["hello"]
        await other.close()
        await other.open()
        assert await self.read_texts(other, "t") == ["hello"]

    async def test_an_unknown_thread_is_absent_not_an_error(self, checkpointer: Any) -> None:
        assert await checkpointer.load("t") is None
        assert await checkpointer.load("t", "v") is None
        assert await checkpointer.list_checkpoints("t") == []
        assert await checkpointer.exists("t") is False
        assert await checkpointer.exists("t", "v") is False

    async def test_an_unknown_checkpoint_is_absent_not_the_head(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("hello"), "t", "v1")
        assert await checkpointer.load("t", "v2") is None
        assert await checkpointer.exists("t", "v2") is False
        assert await checkpointer.exists("t", "v1") is True
        assert await checkpointer.exists("t") is True

    async def test_save_takes_everything_by_keyword(self, checkpointer: Any) -> None:
        saved = await checkpointer.save(
            state=self.new("hello"), thread_id="t", checkpoint_id="v1", metadata={"k": 1}
        )
        assert saved == "v1"
        assert self.texts(await checkpointer.load(thread_id="t", checkpoint_id="v1")) == ["hello"]

    async def test_a_handle_of_one_thread_takes_no_thread_id(self, checkpointer: Any) -> None:
        thread = checkpointer.for_thread("t")
        await thread.save(self.new("hello"), "v1", {"k": 1})
        await thread.save(state=await thread.load(), checkpoint_id="v2")
        assert await thread.list_checkpoints(limit=1) == ["v2"]
        assert self.texts(await thread.load("v1")) == await self.read_texts(checkpointer, "t") != []

    async def test_versions_are_listed_newest_first(self, checkpointer: Any) -> None:
        for name in ("z", "a", "m", "1", "B"):
            await checkpointer.save(self.new(name), "t", name)
        assert await checkpointer.list_checkpoints("t") == ["B", "1", "m", "a", "z"]

    async def test_every_version_is_kept_below_the_newest_one(self, checkpointer: Any) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        told = await self.read_all_texts(checkpointer, "t")
        assert [*told.items()] == [(three, ["a", "b", "c"]), (two, ["a", "b"]), (one, ["a"])]
        assert await self.read_texts(checkpointer, "t") == ["a", "b", "c"]

    async def test_a_list_is_cut_at_its_limit(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", *map(str, range(12)))
        assert len({it for it in ids if it and isinstance(it, str)}) == 12
        assert await checkpointer.list_checkpoints("t") == ids[:1:-1]
        assert await checkpointer.list_checkpoints("t", 1) == ids[-1:]
        assert await checkpointer.list_checkpoints("t", limit=100) == ids[::-1]

    async def test_threads_know_nothing_of_each_other(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("one"), "t1", "v")
        await checkpointer.save(self.new("two"), "t2", "v")
        assert await self.read_texts(checkpointer, "t1", "v") == ["one"]
        assert await self.read_texts(checkpointer, "t2", "v") == ["two"]

    @seam("connection")
    async def test_what_is_not_declared_is_refused(self, checkpointer: Any) -> None:
        calls = {**_list_optional_calls(checkpointer), **_list_more_calls(checkpointer)}
        for name, call in calls.items():
            capability = name.partition(" ")[0]
            if not getattr(checkpointer.capabilities, capability):
                await expect(UnsupportedError, [call], lambda it: it(), match=capability)
        if not checkpointer.capabilities.effects:
            with pytest.raises(UnsupportedError, match="declare"):
                await checkpointer.effect("t", "k", pytest.fail)
        assert isinstance(UnsupportedError(), NotImplementedError)

    async def test_what_is_declared_works(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("hello"), "t")
        for name, call in _list_optional_calls(checkpointer).items():
            if getattr(checkpointer.capabilities, name.partition(" ")[0]):
                assert await call() is not None

    async def test_one_version_is_deleted_only_where_that_is_said(self, checkpointer: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        if checkpointer.deletes_single_checkpoints:
            assert await checkpointer.delete("t", one) is True
        else:
            with pytest.raises(UnsupportedError, match="delete"):
                await checkpointer.delete("t", one)

    async def test_close_is_idempotent_and_the_object_may_be_used_again(
        self, checkpointer: Any
    ) -> None:
        async with checkpointer as entered:
            assert entered is checkpointer
            await checkpointer.save(self.new("hello"), "t")
        await checkpointer.close()
        assert await self.read_texts(checkpointer, "t") == ["hello"]
        await checkpointer.save(self.said(await checkpointer.load("t"), "again"), "t")
        assert await self.read_texts(checkpointer, "t") == ["hello", "again"]

    async def test_an_unknown_argument_is_a_type_error(self, checkpointer: Any) -> None:
        with pytest.raises(TypeError):
            await checkpointer.save(self.new("a"), "t", no_such_option=1)
        with pytest.raises(TypeError):
            await checkpointer.load("t", no_such_option=1)
        assert await checkpointer.exists("t") is False

    async def test_changing_what_was_saved_changes_nothing_stored(self, checkpointer: Any) -> None:
        value = {"list": [1, {"deep": [2]}]}
        state = self.holding(value)
        await checkpointer.save(state, "t")
        value["list"][1]["deep"].append(3)  # type: ignore[index]
        self.held(state)["list"].append(4)
        assert self.held(await checkpointer.load("t")) == {"list": [1, {"deep": [2]}]}

    async def test_changing_what_was_loaded_changes_nothing_stored(self, checkpointer: Any) -> None:
        await checkpointer.save(self.holding({"list": [1]}), "t", "v")
        self.held(await checkpointer.load("t"))["list"].append(2)
        self.held(await checkpointer.load("t", "v"))["list"].append(3)
        assert self.held(await checkpointer.load("t")) == {"list": [1]}


def _list_optional_calls(checkpointer: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return one call per optional operation, by its capability and name."""
    return {
        "search": lambda: checkpointer.search("hello"),
        "metadata_query query": lambda: checkpointer.query_by_metadata("k", 1),
        "metadata_query get": lambda: checkpointer.get_metadata("t"),
        "vacuum": lambda: checkpointer.vacuum(older_than_days=30),
        "branching": lambda: checkpointer.copy_thread("t", "copy"),
        "list_threads": checkpointer.list_threads,
        "list_with_metadata": checkpointer.list_with_metadata,
        "turns": checkpointer.turns,
        "tenants": checkpointer.tenants,
        "quotas": checkpointer.get_quota,
    }


def _list_more_calls(checkpointer: Any) -> dict[str, Callable[[], object]]:
    """Return the calls that do more than read, or return nothing, in the same way."""
    return {
        "tenants one": lambda: checkpointer.for_tenant("acme"),
        "quotas set": lambda: checkpointer.set_quota(Quota(threads=1)),
        "turns begin": lambda: checkpointer.turn("t"),
        "turns busy": lambda: checkpointer.busy("t"),
        "turns release": lambda: checkpointer.release_turn("t"),
        "ttl": checkpointer.expire,
    }


DEEP: Any = "bottom"
for _depth in range(120):
    DEEP = {"d": DEEP} if _depth % 2 else [DEEP]


@seam("state", "loop")
class RoundTrip(Kit):
    """States are loaded exactly as they were saved."""

    @pytest.mark.parametrize(
        "value",
        [
            list(NUMBERS),
            [*TEXTS, *CUT_TEXTS],
            {text: {text: [text]} for text in (*TEXTS, "a.b", "__class__", "$ref", "0")},
            {"dict": {}, "list": [], "text": "", "none": None, "nested": [[], {}, [[]], [{}]]},
            DEEP,
        ],
        ids=["numbers", "texts", "keys", "empty values", "deep value"],
    )
    async def test_a_value_comes_back_exactly(self, checkpointer: Any, value: Any) -> None:
        await checkpointer.save(self.holding(value), "t")
        assert exact(self.held(await checkpointer.load("t"))) == exact(value)

    async def test_a_change_of_type_or_sign_alone_is_kept(self, checkpointer: Any) -> None:
        values = [1, 1.0, True, "1", None, False, 0, 0.0, -0.0, "", [], {}]
        ids = [
            await checkpointer.save(self.holding({"a": value, "b": [value]}), "t", str(place))
            for place, value in enumerate(values)
        ]
        for name, value in zip(ids, values, strict=True):
            found = self.held(await checkpointer.load("t", name))
            assert exact(found) == exact({"a": value, "b": [value]})

    @pytest.mark.parametrize("size", [4_000, 5_000, 300_000, 1_500_000])
    async def test_a_large_text_comes_back(self, checkpointer: Any, size: int) -> None:
        text = random.Random(size).randbytes(size // 2).hex()  # noqa: S311  (test data)
        await checkpointer.save(self.holding(text), "t", "whole")
        await checkpointer.save(self.holding(text[:-7] + "é" + text[:7]), "t", "edited")
        assert self.held(await checkpointer.load("t", "whole")) == text
        assert self.held(await checkpointer.load("t", "edited")) == text[:-7] + "é" + text[:7]

    async def test_a_large_list_and_its_edits_come_back(self, checkpointer: Any) -> None:
        value = [{"n": n, "text": f"{n} " * 50} for n in range(3_000)]
        await checkpointer.save(self.holding(value), "t", "whole")
        edited = [{"n": -1}, *value[5:1_000], {"n": "new"}, *value[1_000:2_900]]
        await checkpointer.save(self.holding(edited), "t", "edited")
        assert self.held(await checkpointer.load("t", "whole")) == value
        assert self.held(await checkpointer.load("t", "edited")) == edited

    @pytest.mark.parametrize("seed", range(3))
    async def test_any_edits_leave_every_version_exact(self, checkpointer: Any, seed: int) -> None:
        dice = random.Random(seed)  # noqa: S311  (test data)
        value: dict[str, Any] = {"list": [], "map": {}, "text": ""}
        versions = {}
        for step in range(60):
            _edit(value, dice, step)
            versions[str(step)] = deepcopy(value)
            await checkpointer.save(self.holding(deepcopy(value)), "t", str(step))
        for name, expected in versions.items():
            assert exact(self.held(await checkpointer.load("t", name))) == exact(expected)

    async def test_what_was_changed_in_place_is_saved(self, checkpointer: Any) -> None:
        await checkpointer.save(self.holding({"list": [{"n": 1}]}), "t")
        state = await checkpointer.load("t")
        self.held(state)["list"][0]["n"] = 2
        await checkpointer.save(state, "t")
        self.held(state)["list"].append({"n": 3})
        await checkpointer.save(state, "t")
        assert self.held(await checkpointer.load("t")) == {"list": [{"n": 2}, {"n": 3}]}

    async def test_what_json_cannot_hold_is_refused(self, checkpointer: Any) -> None:
        await checkpointer.save({"ok": 1}, "t", "v1")
        for value in UNSERIALISABLE:
            for state in ({"deep": [{"value": value}]}, {"value": value}):
                with refused(SerializationError, value, match="value"):
                    await checkpointer.save(state, "t", "v2")
                with refused(SerializationError, value, match="value"):
                    await checkpointer.save({"ok": 2}, "t", "v2", metadata=state)
        assert await checkpointer.list_checkpoints("t") == ["v1"]

    async def test_what_is_no_state_is_refused(self, checkpointer: Any) -> None:
        bad: tuple[Any, ...] = (None, [], [1], "text", 7, object())
        await expect(SerializationError, bad, lambda it: checkpointer.save(it, "t"))
        await expect(
            SerializationError, ([], [1], "text", 7, _Incomparable()),
            lambda it: checkpointer.save(self.new("a"), "t", metadata=it),
            match="metadata must be a JSON object",
        )  # fmt: skip
        assert await checkpointer.exists("t") is False


class _Incomparable:
    """Raises when it is compared or used as a condition, as an array of NumPy does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def _edit(value: dict[str, Any], dice: random.Random, step: int) -> None:
    """Make one random edit of a document, in place."""
    items, table = value["list"], value["map"]
    match dice.randrange(8):
        case 0 | 1:
            items.append({"step": step, "text": f"line {step}", "tags": []})
        case 2 if items:
            del items[dice.randrange(len(items))]
        case 3 if items:
            dice.choice(items)["tags"].append(dice.choice(NUMBERS))
        case 4:
            table[str(dice.randrange(6))] = dice.choice([step, str(step), [], {"in": {}}, None])
        case 5:
            table.pop(str(dice.randrange(6)), None)
        case 6:
            dice.shuffle(items)
        case _:
            at = dice.randrange(len(value["text"]) + 1)
            value["text"] = value["text"][:at] + "né" * 400 + value["text"][at + 3 :]
