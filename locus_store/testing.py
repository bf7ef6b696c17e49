"""The contracts as tests: subclass one, give it a fixture, and a backend is held to all of it.

::

    class TestMine(CheckpointerContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return partial(my_checkpointer, tmp_path / "mine", state_type=self.state_type)

        @pytest.fixture
        def checkpointer(self, reopen):
            return reopen()

``MinimalCheckpointerContract`` is for a subclass of ``BaseCheckpointer`` with only its three
abstract methods, ``StorageBackendContract`` for a backend's own, dict-shaped methods. Capabilities
decide which promises are asked for; one that is not declared must be refused. Call
``pytest.register_assert_rewrite("locus_store.testing")`` in ``conftest.py``. A test's name is its
promise.
"""
# ruff: noqa: D102  (a test's name is its promise)

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from itertools import permutations, product
from typing import Any, Protocol

import pytest

from locus_store.backends.memory import MemoryCheckpointer
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    SerializationError,
    UnsupportedError,
)
from locus_store.state import AgentState, Message
from locus_store.types import Expected

HOSTILE_IDS = (
    "latest", "_checkpoints", "a:b", "b:c", "a", "c", "acme_42", "acme/42", "acme%42", "acme*42",
    "/", "//", ":", "|", "%", "_", "'", "''", '"', "\\", "*", "?", "[a]", "..", "../a", ".", " ",
    " a", "a ", "A", "á", "á", "ß", "ss", "日本語", "🎉", "\n", "\t", "\x01", "\ufeff", "\uffff",
    "\U0010ffff", "null", "None", "0", "-1", "'; DROP TABLE locus_threads; --", "${a}", "{a}",
    "x" * 255, "🎉" * 255,
)  # fmt: skip
"""Ids that some backend somewhere took for something else; each names a thread of its own."""

INVALID_IDS = ("", "x" * 256, "a\0b", "\ud800", "a\udfff", None, 7, 1.5, b"t", ["t"], True)
"""What is no id, wherever an id is needed."""

INVALID_LIMITS = (-1, 1.5, "3", None, True)

NUMBERS = (
    0, 0.0, -0.0, 1, 1.0, -1, True, False, None, 2**31, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 1e-7,
    0.1, 1e22, 5e-324, 1.7976931348623157e308, 123456789.123456789,
)  # fmt: skip
TEXTS = ("", "\0", "a\0b", "é", "é", "日本語", "🎉", "'\"\\", "\u2028", "null", "{}", "1" * 5000)

UNSERIALISABLE = (
    float("nan"), float("inf"), float("-inf"), datetime(2026, 1, 1), {1, 2}, b"bytes", 2**64,  # noqa: DTZ001
    -(2**63) - 1, {1: "int key"}, {None: "no key"}, object(), "\ud800", {"\udfff": 1}, 1 + 2j,
)  # fmt: skip

Another = Callable[..., Any]


class StorageProbe(Protocol):
    """What a few tests need to reach below a backend; the ``storage`` fixture may give one."""

    def age(self, seconds: float) -> None:
        """Make every version that is there older."""

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        """Replace the stored payload of every version by ``change(payload)``."""

    def holds(self, text: str) -> bool:
        """Whether any stored byte, packed or not, still tells ``text``; after ``close()``."""

    def rows(self) -> int:
        """Threads, lines and versions that are stored, visible or not."""


def exact(value: Any) -> Any:
    """A form of a JSON value that differs wherever a type, a sign or a character does."""
    if isinstance(value, Mapping):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return type(value).__name__, repr(value)


class Kit:
    """Fixtures and states that every contract builds on.

    For another ``state_type`` override the five methods below; for storage that outlives an object
    override ``reopen``.
    """

    pytestmark = pytest.mark.anyio

    state_type: type[Any] = AgentState
    """What ``load`` returns."""

    carries_marks = True
    """Whether a loaded state has room for its mark; else loads are told apart by their caller."""

    def new(self, *texts: str) -> Any:
        """A state that was loaded from nowhere."""
        return AgentState(messages=tuple(map(Message.user, texts)))

    def said(self, state: Any, text: str) -> Any:
        """A state made from ``state``, with one more text."""
        return state.with_message(Message.user(text))

    def texts(self, state: Any) -> list[str]:
        """The texts of a state."""
        return [message.content for message in state.messages]

    def holding(self, value: Any) -> Any:
        """A state that holds a JSON value."""
        return AgentState(metadata={"value": value})

    def held(self, state: Any) -> Any:
        """The value of ``holding``."""
        return state.metadata["value"]

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def checkpointer(self) -> Any:
        """The object under test, on empty storage; override this."""
        raise NotImplementedError("give the contract a `checkpointer` fixture")

    @pytest.fixture
    def reopen(self, checkpointer: Any) -> Another:
        """Makes another object on the same storage, from a factory's options."""

        def adapter(**options: Any) -> StorageBackendAdapter:
            options = {"state_type": self.state_type, **options}
            return StorageBackendAdapter(checkpointer.backend, **options)

        return adapter

    @pytest.fixture
    def storage(self) -> StorageProbe | None:
        """Reaches below the backend; without one its few tests are skipped."""
        return None

    @pytest.fixture
    async def another(self, reopen: Another) -> AsyncIterator[Another]:
        """``reopen``, and everything it made is closed at the end."""
        opened: list[Any] = []

        def open_one(**options: Any) -> Any:
            opened.append(reopen(**options))
            return opened[-1]

        yield open_one
        for it in opened:
            await it.close()

    @pytest.fixture(autouse=True)
    async def closing(self, checkpointer: Any) -> AsyncIterator[None]:
        yield
        await checkpointer.close()

    async def grow(self, checkpointer: Any, thread_id: str, *texts: str) -> list[str]:
        """Save a thread with one more text each time; the checkpoint ids."""
        state, ids = self.new(), []
        for text in texts:
            state = self.said(state, text)
            ids.append(await checkpointer.save(state, thread_id))
        return ids

    async def said_in(
        self, checkpointer: Any, thread_id: str, checkpoint_id: str | None = None
    ) -> list[str] | None:
        """The texts of a version; ``None`` where there is none."""
        state = await checkpointer.load(thread_id, checkpoint_id)
        return None if state is None else self.texts(state)

    async def told(self, checkpointer: Any, thread_id: str) -> dict[str, list[str] | None]:
        """The texts of every version, by id, newest first."""
        ids = await checkpointer.list_checkpoints(thread_id, limit=10_000)
        return {it: await self.said_in(checkpointer, thread_id, it) for it in ids}


def needs(checkpointer: Any, *capabilities: str) -> None:
    """Skip a test of what is not declared; that it is refused is tested once."""
    for name in capabilities:
        if not getattr(checkpointer.capabilities, name):
            pytest.skip(f"{type(checkpointer).__name__} does not declare {name}")


def probe(storage: StorageProbe | None) -> StorageProbe:
    """Skip a test that reaches below the backend where no ``storage`` fixture is given."""
    if storage is None:
        pytest.skip("no `storage` fixture")
    return storage


async def tick(checkpointer: Any) -> None:
    """Wait, without sleeping, until the server's clock has moved on."""
    needs(checkpointer, "list_with_metadata")
    seen = set()
    while len(seen) < 3:  # so that a whole unit of the clock lies between
        await checkpointer.save({}, "a clock")
        rows = await checkpointer.list_with_metadata(limit=10_000)
        seen |= {row["updated_at"] for row in rows if row["thread_id"] == "a clock"}
    await checkpointer.delete("a clock")


class Minimal(Kit):
    """What any checkpointer promises, were it only the three abstract methods."""

    async def test_a_saved_state_is_loaded_again(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("hello", "world"), "t")
        assert await self.said_in(checkpointer, "t") == ["hello", "world"]

    async def test_a_loaded_state_is_of_the_state_type(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("hello"), "t")
        assert isinstance(await checkpointer.load("t"), self.state_type)

    async def test_a_state_survives_a_reopen(self, checkpointer: Any, another: Another) -> None:
        saved = await checkpointer.save(self.new("hello"), "t")
        await checkpointer.close()
        other = another()
        assert await self.said_in(other, "t") == ["hello"]
        assert await other.list_checkpoints("t") == [saved]

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

    async def test_a_given_checkpoint_id_is_used(self, checkpointer: Any) -> None:
        assert await checkpointer.save(self.new("hello"), "t", "v1") == "v1"
        assert await self.said_in(checkpointer, "t", "v1") == ["hello"]

    async def test_made_up_checkpoint_ids_differ(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", *map(str, range(20)))
        assert len(set(ids)) == 20
        assert all(isinstance(it, str) and it for it in ids)

    async def test_save_takes_everything_by_keyword(self, checkpointer: Any) -> None:
        saved = await checkpointer.save(
            state=self.new("hello"), thread_id="t", checkpoint_id="v1", metadata={"k": 1}
        )
        assert saved == "v1"
        assert self.texts(await checkpointer.load(thread_id="t", checkpoint_id="v1")) == ["hello"]

    async def test_versions_are_listed_newest_first(self, checkpointer: Any) -> None:
        for name in ("z", "a", "m", "1", "B"):
            await checkpointer.save(self.new(name), "t", name)
        assert await checkpointer.list_checkpoints("t") == ["B", "1", "m", "a", "z"]

    async def test_the_newest_version_is_the_head(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", "a", "b", "c")
        assert await self.said_in(checkpointer, "t") == ["a", "b", "c"]
        assert (await checkpointer.list_checkpoints("t"))[0] == ids[-1]

    async def test_every_version_is_kept_as_it_was(self, checkpointer: Any) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        assert await self.told(checkpointer, "t") == {
            three: ["a", "b", "c"], two: ["a", "b"], one: ["a"],
        }  # fmt: skip

    async def test_a_list_is_cut_at_its_limit(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", *map(str, range(12)))
        assert await checkpointer.list_checkpoints("t") == ids[:1:-1]
        assert await checkpointer.list_checkpoints("t", 1) == ids[-1:]
        assert await checkpointer.list_checkpoints("t", limit=100) == ids[::-1]

    async def test_threads_know_nothing_of_each_other(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("one"), "t1", "v")
        await checkpointer.save(self.new("two"), "t2", "v")
        assert await self.said_in(checkpointer, "t1", "v") == ["one"]
        assert await self.said_in(checkpointer, "t2", "v") == ["two"]

    async def test_what_is_not_declared_is_refused(self, checkpointer: Any) -> None:
        declared, refused = checkpointer.capabilities, set()
        for name, call in _optional_calls(checkpointer).items():
            if not getattr(declared, name.partition(" ")[0]):
                with pytest.raises(UnsupportedError, match=name.partition(" ")[0]):
                    await call()
                refused.add(name)
        if not declared.ttl and hasattr(checkpointer, "expire"):
            with pytest.raises(UnsupportedError, match="ttl"):
                await checkpointer.expire()
        assert isinstance(UnsupportedError(), NotImplementedError)

    async def test_what_is_declared_works(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("hello"), "t")
        for name, call in _optional_calls(checkpointer).items():
            if getattr(checkpointer.capabilities, name.partition(" ")[0]):
                assert await call() is not None

    async def test_one_version_is_deleted_only_where_that_is_said(self, checkpointer: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        if checkpointer.deletes_single_checkpoints:
            assert await checkpointer.delete("t", one) is True
        else:
            with pytest.raises(UnsupportedError, match="delete"):
                await checkpointer.delete("t", one)

    async def test_close_may_be_called_twice_and_the_object_used_again(
        self, checkpointer: Any
    ) -> None:
        await checkpointer.save(self.new("hello"), "t")
        await checkpointer.close()
        await checkpointer.close()
        assert await self.said_in(checkpointer, "t") == ["hello"]
        await checkpointer.save(self.said(await checkpointer.load("t"), "again"), "t")
        assert await self.said_in(checkpointer, "t") == ["hello", "again"]

    async def test_it_is_a_context_manager(self, checkpointer: Any) -> None:
        async with checkpointer as entered:
            assert entered is checkpointer
            await checkpointer.save(self.new("hello"), "t")
        assert await self.said_in(checkpointer, "t") == ["hello"]

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


def _optional_calls(checkpointer: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    """One call per optional operation, by its capability and name."""
    return {
        "search": lambda: checkpointer.search("hello"),
        "metadata_query query": lambda: checkpointer.query_by_metadata("k", 1),
        "metadata_query get": lambda: checkpointer.get_metadata("t"),
        "vacuum": lambda: checkpointer.vacuum(older_than_days=30),
        "branching": lambda: checkpointer.copy_thread("t", "copy"),
        "list_threads": lambda: checkpointer.list_threads(),
        "list_with_metadata": lambda: checkpointer.list_with_metadata(),
    }


class RoundTrip(Kit):
    """States come back exactly."""

    async def test_numbers_keep_type_and_sign(self, checkpointer: Any) -> None:
        await checkpointer.save(self.holding(list(NUMBERS)), "t")
        assert exact(self.held(await checkpointer.load("t"))) == exact(NUMBERS)

    async def test_texts_keep_every_character(self, checkpointer: Any) -> None:
        await checkpointer.save(self.holding(list(TEXTS)), "t")
        assert self.held(await checkpointer.load("t")) == list(TEXTS)

    async def test_keys_may_be_any_text(self, checkpointer: Any) -> None:
        value = {text: {text: [text]} for text in (*TEXTS, "a.b", "__class__", "$ref", "0")}
        await checkpointer.save(self.holding(value), "t")
        assert self.held(await checkpointer.load("t")) == value

    async def test_empty_values_stay_what_they_are(self, checkpointer: Any) -> None:
        value = {"dict": {}, "list": [], "text": "", "none": None, "nested": [[], {}, [[]], [{}]]}
        await checkpointer.save(self.holding(value), "t")
        assert exact(self.held(await checkpointer.load("t"))) == exact(value)

    async def test_a_change_of_type_or_sign_alone_is_kept(self, checkpointer: Any) -> None:
        values = [1, 1.0, True, "1", None, False, 0, 0.0, -0.0, "", [], {}]
        ids = [
            await checkpointer.save(self.holding({"a": it, "b": [it]}), "t", str(place))
            for place, it in enumerate(values)
        ]
        for name, it in zip(ids, values, strict=True):
            found = self.held(await checkpointer.load("t", name))
            assert exact(found) == exact({"a": it, "b": [it]})

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

    async def test_a_deep_value_comes_back(self, checkpointer: Any) -> None:
        value: Any = "bottom"
        for depth in range(120):
            value = {"d": value} if depth % 2 else [value]
        await checkpointer.save(self.holding(value), "t")
        assert self.held(await checkpointer.load("t")) == value

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

    @pytest.mark.parametrize("value", UNSERIALISABLE, ids=lambda it: ascii(it)[:20])
    async def test_what_json_cannot_hold_is_refused(self, checkpointer: Any, value: Any) -> None:
        await checkpointer.save({"ok": 1}, "t", "v1")
        for state in ({"deep": [{"value": value}]}, {"value": value}):
            with pytest.raises(SerializationError, match="value"):
                await checkpointer.save(state, "t", "v2")
            with pytest.raises(SerializationError, match="value"):
                await checkpointer.save({"ok": 2}, "t", "v2", metadata=state)
        assert await checkpointer.list_checkpoints("t") == ["v1"]

    @pytest.mark.parametrize("state", [None, [], [1], "text", 7, object()], ids=str_type)
    async def test_what_is_no_state_is_refused(self, checkpointer: Any, state: Any) -> None:
        with pytest.raises(SerializationError):
            await checkpointer.save(state, "t")
        with pytest.raises(SerializationError):
            await checkpointer.save(self.new("a"), "t", metadata=[1])
        assert await checkpointer.exists("t") is False
