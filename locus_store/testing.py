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

    @pytest.mark.parametrize("state", [None, [], [1], "text", 7, object()], ids=lambda it: type(it).__name__)
    async def test_what_is_no_state_is_refused(self, checkpointer: Any, state: Any) -> None:
        with pytest.raises(SerializationError):
            await checkpointer.save(state, "t")
        with pytest.raises(SerializationError):
            await checkpointer.save(self.new("a"), "t", metadata=[1])
        assert await checkpointer.exists("t") is False


def _edit(value: dict[str, Any], dice: random.Random, step: int) -> None:
    """One random edit of a document, in place."""
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


class History(Kit):
    """Lists of versions, their limits and cursors."""

    @pytest.mark.parametrize("limit", INVALID_LIMITS)
    async def test_a_limit_that_is_no_count_is_refused(self, checkpointer: Any, limit: Any) -> None:
        listed = checkpointer.capabilities
        with pytest.raises(InvalidArgumentError, match="limit"):
            await checkpointer.list_checkpoints("t", limit=limit)
        if listed.list_threads:
            with pytest.raises(InvalidArgumentError, match="limit"):
                await checkpointer.list_threads(limit=limit)
        if listed.list_with_metadata:
            with pytest.raises(InvalidArgumentError, match="limit"):
                await checkpointer.list_with_metadata(limit=limit)
        if listed.metadata_query:
            with pytest.raises(InvalidArgumentError, match="limit"):
                await checkpointer.query_by_metadata("k", 1, limit=limit)
        if listed.search:
            with pytest.raises(InvalidArgumentError, match="limit"):
                await checkpointer.search("word", limit=limit)

    async def test_a_limit_of_zero_lists_nothing(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("word"), "t", metadata={"k": 1})
        assert await checkpointer.list_checkpoints("t", limit=0) == []
        if checkpointer.capabilities.list_threads:
            assert await checkpointer.list_threads(limit=0) == []
        if checkpointer.capabilities.list_with_metadata:
            assert await checkpointer.list_with_metadata(limit=0) == []
        if checkpointer.capabilities.metadata_query:
            assert await checkpointer.query_by_metadata("k", 1, limit=0) == []
        if checkpointer.capabilities.search:
            assert await checkpointer.search("word", limit=0) == []

    async def test_250_versions_are_listed_through_pages_of_100(self, checkpointer: Any) -> None:
        ids = [await checkpointer.save({"n": n}, "t", f"v{n}") for n in range(250)]
        pages: list[list[str]] = [await checkpointer.list_checkpoints("t", limit=100)]
        while pages[-1]:
            after = pages[-1][-1]
            pages.append(await checkpointer.list_checkpoints("t", limit=100, after=after))
        assert [it for page in pages for it in page] == ids[::-1]
        assert [len(page) for page in pages] == [100, 100, 50, 0]
        assert await checkpointer.list_checkpoints("t", limit=1000) == ids[::-1]

    async def test_a_cursor_that_is_gone_is_told(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a", "b")
        with pytest.raises(NotFoundError, match="gone"):
            await checkpointer.list_checkpoints("t", after="gone")

    async def test_1100_versions_are_deleted_with_their_thread(
        self, checkpointer: Any, storage: StorageProbe | None
    ) -> None:
        await asyncio.gather(*(checkpointer.save({"n": n}, "t", f"v{n}") for n in range(1_100)))
        assert len(await checkpointer.list_checkpoints("t", limit=2_000)) == 1_100
        assert await checkpointer.delete("t") is True
        assert await checkpointer.load("t") is None
        assert await checkpointer.exists("t", "v7") is False
        assert await checkpointer.list_checkpoints("t", limit=2_000) == []
        if storage is not None:
            assert storage.rows() == 0
        await checkpointer.save(self.new("new"), "t", "v7")
        assert await checkpointer.list_checkpoints("t", limit=2_000) == ["v7"]


class Lineage(Kit):
    """Saves that follow a load: own work, rewinds, forks, repeats and replaced ids."""

    async def test_one_load_may_be_saved_again_and_again(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")
        state = await checkpointer.load("t")
        for text in "bcde":
            state = self.said(state, text)
            await checkpointer.save(state, "t")
        assert await self.said_in(checkpointer, "t") == list("abcde")
        assert len(await checkpointer.list_checkpoints("t")) == 5

    async def test_a_first_turn_may_be_saved_again_and_again(self, checkpointer: Any) -> None:
        assert await checkpointer.load("t") is None
        await self.grow(checkpointer, "t", "a", "b", "c")
        assert await self.said_in(checkpointer, "t") == ["a", "b", "c"]

    async def test_turns_follow_each_other_through_two_objects(
        self, checkpointer: Any, another: Another
    ) -> None:
        objects, other = [checkpointer], another()
        objects.append(other)
        await self.grow(checkpointer, "t", "0")
        for turn in range(1, 7):
            mine = objects[turn % 2]
            state = self.said(await mine.load("t"), str(turn))
            await mine.save(state, "t")
        assert await self.said_in(other, "t") == list("0123456")

    async def test_a_save_without_a_load_appends(self, checkpointer: Any, another: Another) -> None:
        await self.grow(checkpointer, "t", "a")
        await another().save(self.new("b"), "t")
        await checkpointer.save(self.new("c"), "t")
        assert await self.said_in(checkpointer, "t") == ["c"]
        assert len(await checkpointer.list_checkpoints("t")) == 3

    async def test_a_named_parent_makes_a_fork_the_head(self, checkpointer: Any) -> None:
        one, two = await self.grow(checkpointer, "t", "a", "b")
        fork = await checkpointer.save(self.new("x"), "t", parent_checkpoint_id=one)
        assert await self.said_in(checkpointer, "t") == ["x"]
        assert await checkpointer.list_checkpoints("t") == [fork, two, one]
        await checkpointer.delete("t", fork)
        assert await self.said_in(checkpointer, "t") == ["a"]

    async def test_a_named_parent_is_no_conflict(
        self, checkpointer: Any, another: Another
    ) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        mine, other = await checkpointer.load("t"), another()
        await other.save(self.said(await other.load("t"), "theirs"), "t")
        await checkpointer.save(self.said(mine, "mine"), "t", parent_checkpoint_id=one)
        assert await self.said_in(other, "t") == ["a", "b", "mine"]

    async def test_a_parent_that_is_not_there_is_told(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", "a")
        for thread_id in ("t", "no thread"):
            with pytest.raises(NotFoundError, match="gone"):
                await checkpointer.save(self.new("x"), thread_id, parent_checkpoint_id="gone")
        assert await checkpointer.list_checkpoints("t") == ids
        assert await checkpointer.exists("no thread") is False

    async def test_a_rewind_becomes_the_head(self, checkpointer: Any) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        old = await checkpointer.load("t", one)
        back = await checkpointer.save(self.said(old, "x"), "t")
        assert await self.told(checkpointer, "t") == {
            back: ["a", "x"], three: ["a", "b", "c"], two: ["a", "b"], one: ["a"],
        }  # fmt: skip
        assert await self.said_in(checkpointer, "t") == ["a", "x"]

    async def test_a_rewind_goes_on(self, checkpointer: Any) -> None:
        one, *_ = await self.grow(checkpointer, "t", "a", "b", "c")
        state = await checkpointer.load("t", one)
        for text in "xyz":
            state = self.said(state, text)
            await checkpointer.save(state, "t")
        assert await self.said_in(checkpointer, "t") == ["a", "x", "y", "z"]
        assert len(await checkpointer.list_checkpoints("t")) == 6

    async def test_a_rewind_is_told_that_the_head_has_moved(
        self, checkpointer: Any, another: Another
    ) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        old, other = await checkpointer.load("t", one), another()
        theirs = await other.save(self.said(await other.load("t"), "c"), "t")
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(old, "x"), "t")
        assert (told.value.head_id, told.value.parent_id) == (theirs, one)

    async def test_the_same_save_again_is_the_same_version(self, checkpointer: Any) -> None:
        state = self.new("a")
        for _ in range(3):
            assert await checkpointer.save(state, "t", "v1", {"k": 1}) == "v1"
        assert await checkpointer.list_checkpoints("t") == ["v1"]

    async def test_a_repeat_is_known_after_the_thread_moved_on(
        self, checkpointer: Any, another: Another
    ) -> None:
        state = self.new("a")
        await checkpointer.save(state, "t", "v1")
        other = another()
        theirs = await other.save(self.said(await other.load("t"), "b"), "t")
        assert await checkpointer.save(state, "t", "v1") == "v1"
        assert await self.said_in(other, "t") == ["a", "b"]
        assert await other.list_checkpoints("t") == [theirs, "v1"]

    async def test_the_same_id_with_another_state_replaces(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("a"), "t", "v1")
        await checkpointer.save(self.new("b"), "t", "v1")
        assert await self.told(checkpointer, "t") == {"v1": ["b"]}
        assert await self.said_in(checkpointer, "t") == ["b"]

    async def test_the_same_id_with_other_metadata_replaces(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        state = self.new("a")
        await checkpointer.save(state, "t", "v1", {"k": 1})
        await checkpointer.save(state, "t", "v1", {"k": 2})
        assert await checkpointer.get_metadata("t", "v1") == {"k": 2}
        assert await checkpointer.list_checkpoints("t") == ["v1"]

    @pytest.mark.parametrize("replaced", ["v0", "v1", "v2"])
    async def test_a_replaced_version_leaves_the_others_exact(
        self, checkpointer: Any, replaced: str
    ) -> None:
        state = self.new()
        for place, text in enumerate("abc"):
            state = self.said(state, text)
            await checkpointer.save(state, "t", f"v{place}")
        await checkpointer.save(self.new("new"), "t", replaced)
        versions = {"v0": ["a"], "v1": ["a", "b"], "v2": ["a", "b", "c"], replaced: ["new"]}
        assert await self.told(checkpointer, "t") == versions
        assert (await checkpointer.list_checkpoints("t"))[0] == replaced
        assert await self.said_in(checkpointer, "t") == ["new"]

    async def test_a_replaced_version_is_noticed_by_whoever_loaded_it(
        self, checkpointer: Any, another: Another
    ) -> None:
        await checkpointer.save(self.new("a"), "t", "v1")
        mine, other = await checkpointer.load("t"), another()
        await other.save(self.new("b"), "t", "v1")
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert told.value.head_id == "v1"
        assert await self.told(other, "t") == {"v1": ["b"]}

    async def test_an_older_version_replaced_by_another_is_noticed(
        self, checkpointer: Any, another: Another
    ) -> None:
        await checkpointer.save(self.new("a"), "t", "v1")
        await checkpointer.save(self.new("b"), "t", "v2")
        mine = await checkpointer.load("t")
        await another().save(self.new("c"), "t", "v1")
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert await self.told(checkpointer, "t") == {"v1": ["c"], "v2": ["b"]}

    async def test_a_loaded_state_may_be_saved_as_another_thread(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")
        state = await checkpointer.load("t")
        await checkpointer.save(self.said(state, "fork"), "fork")
        await checkpointer.save(self.said(state, "b"), "t")
        assert await self.said_in(checkpointer, "fork") == ["a", "fork"]
        assert await self.said_in(checkpointer, "t") == ["a", "b"]

    async def test_a_state_of_another_store_may_be_saved(self, checkpointer: Any) -> None:
        elsewhere = MemoryCheckpointer(state_type=self.state_type)
        await elsewhere.save(self.new("elsewhere"), "t")
        await self.grow(checkpointer, "t", "a")
        state = self.said(await elsewhere.load("t"), "b")
        await checkpointer.save(state, "t")
        await checkpointer.save(state, "new")
        assert await self.said_in(checkpointer, "t") == ["elsewhere", "b"]
        await elsewhere.save(self.said(await checkpointer.load("t"), "c"), "t")
        assert await self.said_in(elsewhere, "t") == ["elsewhere", "b", "c"]


class Conflicts(Kit):
    """No acknowledged save is ever lost silently."""

    async def contested(
        self, checkpointer: Any, another: Another, **options: Any
    ) -> tuple[Any, str, str]:
        """A loaded state whose thread another writer moved on; the head and the parent."""
        (parent,) = await self.grow(checkpointer, "t", "a")
        mine, other = await checkpointer.load("t"), another(**options)
        head = await other.save(self.said(await other.load("t"), "theirs"), "t")
        return mine, head, parent

    async def test_a_second_writer_is_told(self, checkpointer: Any, another: Another) -> None:
        mine, head, parent = await self.contested(checkpointer, another)
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert (told.value.head_id, told.value.parent_id) == (head, parent)
        for hint in ("'t'", "Load the thread", 'on_conflict="branch"'):
            assert hint in str(told.value)

    async def test_a_conflict_writes_nothing(
        self, checkpointer: Any, another: Another, storage: StorageProbe | None
    ) -> None:
        mine, head, parent = await self.contested(checkpointer, another)
        before = storage.rows() if storage else 0
        for _ in range(2):
            with pytest.raises(ConflictError):
                await checkpointer.save(self.said(mine, "mine"), "t", "lost", {"k": "lost"})
        assert await self.told(checkpointer, "t") == {head: ["a", "theirs"], parent: ["a"]}
        assert await self.said_in(checkpointer, "t") == ["a", "theirs"]
        assert await checkpointer.exists("t", "lost") is False
        assert storage is None or storage.rows() == before

    async def test_who_loads_again_may_save(self, checkpointer: Any, another: Another) -> None:
        mine, _, _ = await self.contested(checkpointer, another)
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(mine, "mine"), "t")
        await checkpointer.save(self.said(await checkpointer.load("t"), "mine"), "t")
        assert await self.said_in(checkpointer, "t") == ["a", "theirs", "mine"]

    async def test_branch_keeps_a_losing_state_beside_the_head(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, parent = await self.contested(checkpointer, another)
        side = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
        assert await self.told(checkpointer, "t") == {
            side: ["a", "mine"], head: ["a", "theirs"], parent: ["a"],
        }  # fmt: skip
        assert await self.said_in(checkpointer, "t") == ["a", "theirs"]

    async def test_a_side_branch_grows_and_stays_beside_the_head(
        self, checkpointer: Any, another: Another
    ) -> None:
        state, head, parent = await self.contested(checkpointer, another)
        sides = []
        for text in "xyz":
            state = self.said(state, text)
            sides.append(await checkpointer.save(state, "t", on_conflict="branch"))
        assert await checkpointer.list_checkpoints("t") == [*sides[::-1], head, parent]
        assert await self.said_in(another(), "t") == ["a", "theirs"]
        assert await self.said_in(another(), "t", sides[-1]) == ["a", "x", "y", "z"]

    async def test_a_head_goes_back_past_its_own_ancestors_only(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, parent = await self.contested(checkpointer, another)
        side = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
        await checkpointer.delete("t", head)
        assert await self.said_in(another(), "t") == ["a"]
        assert await self.told(another(), "t") == {side: ["a", "mine"], parent: ["a"]}

    async def test_saving_onto_a_side_branch_makes_it_the_head(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, _ = await self.contested(checkpointer, another)
        side = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
        state = await another().load("t", side)
        await checkpointer.save(self.said(state, "on"), "t", parent_checkpoint_id=side)
        assert await self.said_in(another(), "t") == ["a", "mine", "on"]
        assert await self.said_in(another(), "t", head) == ["a", "theirs"]

    async def test_loading_a_side_branch_declares_that_it_goes_on(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, _, _ = await self.contested(checkpointer, another)
        side = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
        other = another()
        await other.save(self.said(await other.load("t", side), "on"), "t")
        assert await self.said_in(another(), "t") == ["a", "mine", "on"]

    async def test_overwrite_lets_the_last_writer_win(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, parent = await self.contested(checkpointer, another)
        won = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="overwrite")
        assert await self.said_in(another(), "t") == ["a", "mine"]
        assert await self.told(another(), "t") == {
            won: ["a", "mine"], head: ["a", "theirs"], parent: ["a"],
        }  # fmt: skip

    async def test_what_happens_on_conflict_may_be_an_option_of_the_object(
        self, checkpointer: Any, another: Another
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        mine = another(on_conflict="branch")
        state = await mine.load("t")
        await checkpointer.save(self.said(await checkpointer.load("t"), "theirs"), "t")
        await mine.save(self.said(state, "mine"), "t", "side")
        assert await self.said_in(another(), "t") == ["a", "theirs"]
        assert await self.said_in(another(), "t", "side") == ["a", "mine"]

    @pytest.mark.parametrize("choice", ["", "RAISE", "ignore", 1])
    async def test_an_unknown_choice_on_conflict_is_refused(
        self, checkpointer: Any, reopen: Another, choice: Any
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="on_conflict"):
            reopen(on_conflict=choice)
        if choice:
            with pytest.raises(InvalidArgumentError, match="on_conflict"):
                await checkpointer.save(self.new("a"), "t", on_conflict=choice)
        assert await checkpointer.exists("t") is False

    async def test_of_two_first_turns_one_is_told(
        self, checkpointer: Any, another: Another
    ) -> None:
        other = another()
        assert await checkpointer.load("t") is None
        assert await other.load("t") is None
        theirs = await other.save(self.new("theirs"), "t")
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.new("mine"), "t")
        assert (told.value.head_id, told.value.parent_id) == (theirs, None)
        assert await self.told(checkpointer, "t") == {theirs: ["theirs"]}

    async def test_of_racing_writers_exactly_one_wins(
        self, checkpointer: Any, another: Another
    ) -> None:
        await self.grow(checkpointer, "t", "0")
        objects = [checkpointer, another(), another(), another()]
        for turn in range(1, 6):
            states = [self.said(await it.load("t"), str(turn)) for it in objects]
            saves = (it.save(state, "t") for it, state in zip(objects, states, strict=True))
            results = await asyncio.gather(*saves, return_exceptions=True)
            assert sum(isinstance(it, str) for it in results) == 1
            assert sum(isinstance(it, ConflictError) for it in results) == 3
        assert await self.said_in(another(), "t") == list("012345")
        assert len(await checkpointer.list_checkpoints("t")) == 6

    async def test_of_racing_first_turns_exactly_one_wins(
        self, checkpointer: Any, another: Another
    ) -> None:
        objects = [checkpointer, another(), another(), another()]
        assert [await it.load("t") for it in objects] == [None] * 4
        saves = (it.save(self.new(str(place)), "t") for place, it in enumerate(objects))
        results = await asyncio.gather(*saves, return_exceptions=True)
        assert sum(isinstance(it, str) for it in results) == 1
        assert sum(isinstance(it, ConflictError) for it in results) == 3
        assert len(await checkpointer.list_checkpoints("t")) == 1

    async def test_a_deleted_thread_is_a_conflict_for_who_loaded_it(
        self, checkpointer: Any, another: Another
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        mine = await checkpointer.load("t")
        await another().delete("t")
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert told.value.head_id is None
        assert await another().exists("t") is False
        await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
        assert await self.said_in(another(), "t") == ["a", "mine"]

    async def test_a_thread_deleted_and_made_again_is_another_one(
        self, checkpointer: Any, another: Another
    ) -> None:
        state = self.new("a")
        await checkpointer.save(state, "t", "v1", {"k": 1})
        mine, other = await checkpointer.load("t"), another()
        await other.delete("t")
        await other.save(state, "t", "v1", {"k": 1})
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert await self.told(other, "t") == {"v1": ["a"]}

    async def test_a_deleted_head_is_a_conflict_for_who_loaded_it(
        self, checkpointer: Any, another: Another
    ) -> None:
        one, two = await self.grow(checkpointer, "t", "a", "b")
        mine = await checkpointer.load("t")
        await another().delete("t", two)
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert told.value.head_id == one
        assert await self.told(another(), "t") == {one: ["a"]}

    async def test_deleting_an_older_version_conflicts_with_nobody(
        self, checkpointer: Any, another: Another
    ) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        mine, other = await checkpointer.load("t"), another()
        await other.delete("t", one)
        await other.delete("t", two)
        four = await checkpointer.save(self.said(mine, "d"), "t")
        assert await self.told(other, "t") == {four: list("abcd"), three: list("abc")}

    async def test_a_poller_does_not_move_a_callers_mark(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, _ = await self.contested(checkpointer, another)
        for _ in range(3):
            assert await asyncio.create_task(self.said_in(checkpointer, "t")) == ["a", "theirs"]
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert told.value.head_id == head

    async def test_two_runs_of_one_object_are_told_apart(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")

        async def run(text: str, loaded: asyncio.Event, go: asyncio.Event) -> str:
            state = await checkpointer.load("t")
            loaded.set()
            await go.wait()
            return str(await checkpointer.save(self.said(state, text), "t"))

        if not self.carries_marks:
            pytest.skip("a state without a mark: one context, one run")
        go, events = asyncio.Event(), [asyncio.Event(), asyncio.Event()]
        runs = [asyncio.create_task(run(text, it, go)) for text, it in zip("xy", events, strict=True)]
        for it in events:
            await it.wait()
        go.set()
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert sum(isinstance(it, ConflictError) for it in results) == 1
        assert len(await checkpointer.list_checkpoints("t")) == 2

    @pytest.mark.parametrize("way", ["wait_for", "gather", "create_task", "thread"])
    async def test_a_load_is_remembered_whatever_it_came_through(
        self, checkpointer: Any, another: Another, way: str
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        mine, other = await _through(way, lambda: checkpointer.load("t")), another()
        await other.save(self.said(await other.load("t"), "theirs"), "t")
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(mine, "mine"), "t")

    @pytest.mark.parametrize(("loads", "saves"), product(["wait_for", "thread"], repeat=2))
    async def test_own_saves_go_on_whatever_they_come_through(
        self, checkpointer: Any, loads: str, saves: str
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        state = await _through(loads, lambda: checkpointer.load("t"))
        for text in "bcd":
            state = self.said(state, text)
            await _through(saves, lambda it=state: checkpointer.save(it, "t"))  # type: ignore[misc]
        assert await self.said_in(checkpointer, "t") == list("abcd")

    @pytest.mark.parametrize("passes", range(8))
    async def test_a_cancelled_save_does_not_conflict_with_its_own_run(
        self, checkpointer: Any, passes: int
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        state = self.said(await checkpointer.load("t"), "step")
        saving = asyncio.create_task(checkpointer.save(state, "t", "step"))
        for _ in range(passes):
            await asyncio.sleep(0)
        saving.cancel()
        with suppress(asyncio.CancelledError):
            await saving
        await checkpointer.save(self.said(state, "final"), "t", "final")
        assert await self.said_in(checkpointer, "t") == ["a", "step", "final"]
        assert (await checkpointer.list_checkpoints("t"))[0] == "final"

    @pytest.mark.parametrize("passes", range(8))
    async def test_a_cancelled_first_save_does_not_conflict_with_its_own_run(
        self, checkpointer: Any, passes: int
    ) -> None:
        assert await checkpointer.load("t") is None
        state = self.new("step")
        saving = asyncio.create_task(checkpointer.save(state, "t", "step"))
        for _ in range(passes):
            await asyncio.sleep(0)
        saving.cancel()
        with suppress(asyncio.CancelledError):
            await saving
        await checkpointer.save(self.said(state, "final"), "t", "final")
        assert await self.said_in(checkpointer, "t") == ["step", "final"]


async def _through(way: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a call the way that callers lose their context."""

    async def called() -> Any:
        return await call()

    if way == "wait_for":
        return await asyncio.wait_for(called(), timeout=60)
    if way == "gather":
        return (await asyncio.gather(called()))[0]
    if way == "create_task":
        return await asyncio.create_task(called())
    return await asyncio.to_thread(asyncio.run, called())


class Deleting(Kit):
    """A deleted version is gone, and every other one is as it was."""

    async def test_deleting_the_head_uncovers_its_parent(self, checkpointer: Any) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        assert await checkpointer.delete("t", three) is True
        assert await self.said_in(checkpointer, "t") == ["a", "b"]
        assert await checkpointer.load("t", three) is None
        assert await self.told(checkpointer, "t") == {two: ["a", "b"], one: ["a"]}

    async def test_a_deleted_head_stays_deleted_after_a_reopen(
        self, checkpointer: Any, another: Another
    ) -> None:
        *_, newest = await self.grow(checkpointer, "t", "a", "b")
        await checkpointer.delete("t", newest)
        await checkpointer.close()
        assert await self.said_in(another(), "t") == ["a"]

    @pytest.mark.parametrize("order", permutations(range(4)), ids=str)
    async def test_whatever_is_deleted_the_others_stay_exact(
        self, checkpointer: Any, order: tuple[int, ...]
    ) -> None:
        ids = await self.grow(checkpointer, "t", "a", "b", "c", "d")
        left = {name: list("abcd")[: place + 1] for place, name in enumerate(ids)}
        for place in order:
            assert await checkpointer.delete("t", ids[place]) is True
            del left[ids[place]]
            newest = max(left.values(), default=None)
            assert await self.told(checkpointer, "t") == left
            assert await self.said_in(checkpointer, "t") == newest
        assert await checkpointer.exists("t") is False

    @pytest.mark.parametrize("seed", range(4))
    async def test_deletions_among_forks_leave_the_others_exact(
        self, checkpointer: Any, seed: int
    ) -> None:
        dice, left = random.Random(seed), {}  # noqa: S311  (test data)
        for step in range(40):
            if left and dice.random() < 0.35:
                gone = dice.sample(sorted(left), min(len(left), dice.randint(1, 3)))
                for name in gone:
                    assert await checkpointer.delete("t", name) is True
                    del left[name]
            parent = dice.choice([None, *left])
            base = left[parent] if parent else ["root"]
            await checkpointer.save(
                self.new(*base, str(step)), "t", f"v{step}", parent_checkpoint_id=parent
            )
            left[f"v{step}"] = [*base, str(step)]
        assert await self.told(checkpointer, "t") == left

    async def test_a_deletion_is_whether_there_was_something(self, checkpointer: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        assert await checkpointer.delete("t", "unknown") is False
        assert await checkpointer.delete("unknown") is False
        assert await checkpointer.delete("unknown", one) is False
        assert [await checkpointer.delete("t", one) for _ in range(2)] == [True, False]
        assert [await checkpointer.delete("t") for _ in range(2)] == [True, False]

    async def test_a_thread_goes_with_its_last_version(
        self, checkpointer: Any, storage: StorageProbe | None
    ) -> None:
        (only,) = await self.grow(checkpointer, "t", "a")
        await checkpointer.delete("t", only)
        assert await checkpointer.exists("t") is False
        assert await checkpointer.load("t") is None
        if checkpointer.capabilities.list_threads:
            assert await checkpointer.list_threads() == []
        assert storage is None or storage.rows() == 0

    async def test_deleting_a_thread_touches_no_other(self, checkpointer: Any) -> None:
        names = ("a", "a/b", "a:b", "ab", "A", "a%", "a_", "a*")
        for name in names:
            await checkpointer.save(self.new(name), name, "v")
        assert await checkpointer.delete("a") is True
        assert [name for name in names if not await checkpointer.exists(name)] == ["a"]
        assert await checkpointer.delete("a%") is True
        assert await checkpointer.delete("a_") is True
        assert await self.said_in(checkpointer, "ab") == ["ab"]

    async def test_an_agent_may_delete_its_steps_after_its_final_save(
        self, checkpointer: Any
    ) -> None:
        for turn in range(3):
            state, steps = await checkpointer.load("t") or self.new(), []
            for step in range(3):
                state = self.said(state, f"{turn}.{step}")
                steps.append(await checkpointer.save(state, "t", f"step {turn}.{step}"))
            await checkpointer.save(state, "t", f"final {turn}")
            for step_id in steps:
                assert await checkpointer.delete("t", step_id) is True
        said = [f"{turn}.{step}" for turn in range(3) for step in range(3)]
        assert await self.told(checkpointer, "t") == {
            "final 2": said, "final 1": said[:6], "final 0": said[:3],
        }  # fmt: skip

    async def test_a_save_goes_on_after_a_deletion(self, checkpointer: Any) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        await checkpointer.delete("t", two)
        state = await checkpointer.load("t")
        await checkpointer.delete("t", one)
        four = await checkpointer.save(self.said(state, "d"), "t")
        assert await self.told(checkpointer, "t") == {four: list("abcd"), three: list("abc")}

    async def test_no_byte_of_a_deleted_version_remains(
        self, checkpointer: Any, storage: StorageProbe | None
    ) -> None:
        below, secrets = probe(storage), [f"{it:x}" for it in SECRETS]
        await checkpointer.save(self.holding(["kept"]), "t", "v0")
        for place, secret in enumerate(secrets):
            await checkpointer.save(self.holding(["kept", secret]), "t", f"v{place + 1}")
        await checkpointer.save(self.holding(["kept", "end"]), "t", "last")
        await checkpointer.save(self.holding(secrets), "other thread", metadata={"k": secrets[0]})
        for place in range(len(secrets)):
            await checkpointer.delete("t", f"v{place + 1}")
        await checkpointer.delete("other thread")
        await checkpointer.close()
        assert [it for it in secrets if below.holds(it)] == []
        assert self.held(await checkpointer.load("t")) == ["kept", "end"]
        assert self.held(await checkpointer.load("t", "v0")) == ["kept"]


SECRETS = [random.Random(seed).getrandbits(512) for seed in range(5)]  # noqa: S311  (test data)
"""Incompressible, so that a byte of them in storage can be found."""
