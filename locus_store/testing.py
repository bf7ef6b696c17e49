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

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from itertools import permutations, product
from typing import Any, Protocol

import pytest

from locus_store.backends.memory import MemoryBackend, MemoryCheckpointer
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
from locus_store.types import Expected, PendingWrite

HOSTILE_IDS = (
    "latest", "_checkpoints", "a:b", "b:c", "a", "c", "acme_42", "acme/42", "acme%42", "acme*42",
    "/", "//", ":", "|", "%", "_", "'", "''", '"', "\\", "*", "?", "[a]", "..", "../a", ".", " ",
    " a", "a ", "A", "\u00e1", "a\u0301", "ß", "ss", "日本語", "🎉", "\n", "\t", "\x01", "\ufeff",
    "\uffff",
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
TEXTS = (
    "",
    "\0",
    "a\0b",
    "\u00e9",
    "e\u0301",
    "日本語",
    "🎉",
    "'\"\\",
    "\u2028",
    "null",
    "{}",
    "1" * 5000,
)

UNSERIALISABLE = (
    float("nan"), float("inf"), float("-inf"), date(2026, 1, 1), {1, 2}, b"bytes", 2**64,
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


@contextmanager
def refused(
    error: type[Exception] | tuple[type[Exception], ...], case: object, *, match: str = ""
) -> Iterator[None]:
    """As ``pytest.raises``, and names the case of a loop that was not refused."""
    try:
        yield
    except error as exc:
        if match not in str(exc):
            pytest.fail(f"{exc} does not name {match!r}")
    else:
        pytest.fail(f"{ascii(case)[:60]} was not refused")


async def tick(checkpointer: Any) -> None:
    """Wait, without sleeping, until the server's clock has moved on."""
    needs(checkpointer, "list_with_metadata")
    seen: set[str] = set()
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
        declared = checkpointer.capabilities
        for name, call in _optional_calls(checkpointer).items():
            if not getattr(declared, name.partition(" ")[0]):
                with pytest.raises(UnsupportedError, match=name.partition(" ")[0]):
                    await call()
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
        "list_threads": checkpointer.list_threads,
        "list_with_metadata": checkpointer.list_with_metadata,
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
        value: dict[str, Any] = {"dict": {}, "list": [], "text": "", "none": None}
        value["nested"] = [[], {}, [[]], [{}]]
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
        for state in (None, [], [1], "text", 7, object()):
            with refused(SerializationError, state):
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

    async def test_a_limit_that_is_no_count_is_refused(self, checkpointer: Any) -> None:
        for limit, call in product(INVALID_LIMITS, _limited_calls(checkpointer)):
            with refused(InvalidArgumentError, limit, match="limit"):
                await call(limit)

    async def test_a_limit_of_zero_lists_nothing(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("word"), "t", metadata={"k": 1})
        for call in _limited_calls(checkpointer):
            assert await call(0) == []

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


def _limited_calls(checkpointer: Any) -> list[Callable[[Any], Awaitable[Any]]]:
    """Every declared operation that takes a limit."""
    declared = checkpointer.capabilities
    calls = {
        "list_threads": lambda limit: checkpointer.list_threads(limit=limit),
        "list_with_metadata": lambda limit: checkpointer.list_with_metadata(limit=limit),
        "metadata_query": lambda limit: checkpointer.query_by_metadata("k", 1, limit=limit),
        "search": lambda limit: checkpointer.search("word", limit=limit),
    }
    listed = [call for name, call in calls.items() if getattr(declared, name)]
    return [lambda limit: checkpointer.list_checkpoints("t", limit=limit), *listed]


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

    async def test_a_named_parent_is_no_conflict(self, checkpointer: Any, another: Another) -> None:
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

    async def test_a_replaced_version_leaves_the_others_exact(self, checkpointer: Any) -> None:
        for replaced in ("v0", "v1", "v2"):
            name, state = f"t{replaced}", self.new()
            for place, text in enumerate("abc"):
                state = self.said(state, text)
                await checkpointer.save(state, name, f"v{place}")
            await checkpointer.save(self.new("new"), name, replaced)
            versions = {"v0": ["a"], "v1": ["a", "b"], "v2": ["a", "b", "c"], replaced: ["new"]}
            assert await self.told(checkpointer, name) == versions
            assert (await checkpointer.list_checkpoints(name))[0] == replaced
            assert await self.said_in(checkpointer, name) == ["new"]

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

    async def test_an_unknown_choice_on_conflict_is_refused(
        self, checkpointer: Any, reopen: Another
    ) -> None:
        for choice in ("", "RAISE", "ignore", 1):
            with refused(InvalidArgumentError, choice, match="on_conflict"):
                reopen(on_conflict=choice)
            with refused(InvalidArgumentError, choice, match="on_conflict"):
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

    async def test_who_deletes_its_own_head_goes_on(self, checkpointer: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        state = self.said(await checkpointer.load("t"), "c")
        wrong = await checkpointer.save(state, "t")
        await checkpointer.delete("t", wrong)
        assert await self.said_in(checkpointer, "t") == ["a", "b"]
        right = await checkpointer.save(self.said(state, "d"), "t")
        told = await self.told(checkpointer, "t")
        assert (told[right], told[one]) == (list("abcd"), ["a"])
        assert await self.said_in(checkpointer, "t") == list("abcd")

    async def test_a_losing_save_replaces_nobodys_version(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, parent = await self.contested(checkpointer, another)
        side = await checkpointer.save(self.said(mine, "mine"), "t", head, on_conflict="branch")
        assert side != head
        assert await self.told(another(), "t") == {
            side: ["a", "mine"], head: ["a", "theirs"], parent: ["a"],
        }  # fmt: skip
        assert await self.said_in(another(), "t") == ["a", "theirs"]

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
        runs = [
            asyncio.create_task(run(text, it, go)) for text, it in zip("xy", events, strict=True)
        ]
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

    async def test_own_saves_go_on_whatever_they_come_through(self, checkpointer: Any) -> None:
        for loads, saves in product(["wait_for", "gather", "thread"], repeat=2):
            name = f"{loads} {saves}"
            await self.grow(checkpointer, name, "a")
            state = await _through(loads, lambda it=name: checkpointer.load(it))  # type: ignore[misc]
            for text in "bcd":
                state = self.said(state, text)
                save = partial(checkpointer.save, state, name)
                await _through(saves, save)
            assert await self.said_in(checkpointer, name) == list("abcd")

    async def test_a_cancelled_save_does_not_conflict_with_its_own_run(
        self, checkpointer: Any
    ) -> None:
        for passes in range(10):
            name = f"t{passes}"
            await self.grow(checkpointer, name, "a")
            state = self.said(await checkpointer.load(name), "step")
            await _cancelled(checkpointer.save(state, name, "step"), passes)
            await checkpointer.save(self.said(state, "final"), name, "final")
            assert await self.said_in(checkpointer, name) == ["a", "step", "final"]
            assert (await checkpointer.list_checkpoints(name))[0] == "final"

    async def test_a_cancelled_first_save_does_not_conflict_with_its_own_run(
        self, checkpointer: Any
    ) -> None:
        for passes in range(10):
            name, state = f"t{passes}", self.new("step")
            assert await checkpointer.load(name) is None
            await _cancelled(checkpointer.save(state, name, "step"), passes)
            await checkpointer.save(self.said(state, "final"), name, "final")
            assert await self.said_in(checkpointer, name) == ["step", "final"]


async def _cancelled(call: Coroutine[Any, Any, Any], passes: int) -> None:
    """Cancel a call after so many passes of the loop."""
    task = asyncio.create_task(call)
    for _ in range(passes):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


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

    async def test_whatever_is_deleted_the_others_stay_exact(self, checkpointer: Any) -> None:
        for order in permutations(range(4)):
            name = f"t{order}"
            ids = await self.grow(checkpointer, name, "a", "b", "c", "d")
            left = {it: list("abcd")[: place + 1] for place, it in enumerate(ids)}
            for place in order:
                assert await checkpointer.delete(name, ids[place]) is True
                del left[ids[place]]
                assert await self.told(checkpointer, name) == left, order
                newest = max(left.values(), default=None)
                assert await self.said_in(checkpointer, name) == newest, order
            assert await checkpointer.exists(name) is False

    @pytest.mark.parametrize("seed", range(3))
    async def test_deletions_among_forks_leave_the_others_exact(
        self, checkpointer: Any, seed: int
    ) -> None:
        dice = random.Random(seed)  # noqa: S311  (test data)
        left: dict[str, list[str]] = {}
        for step in range(40):
            if left and dice.random() < 0.35:
                for name in dice.sample(sorted(left), min(len(left), dice.randint(1, 3))):
                    assert await checkpointer.delete("t", name) is True
                    del left[name]
            parent = dice.choice([None, *left])
            said = [*(left[parent] if parent else ["root"]), str(step)]
            state = self.new(*said)
            await checkpointer.save(state, "t", f"v{step}", parent_checkpoint_id=parent)
            left[f"v{step}"] = said
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
        kept = [f"line {n} of what is kept" for n in range(200)]
        await checkpointer.save(self.holding(kept), "t", "v0")
        for place, secret in enumerate(secrets):
            await checkpointer.save(self.holding([*kept, secret]), "t", f"v{place + 1}")
        await checkpointer.save(self.holding([*kept, "end"]), "t", "last")
        await checkpointer.save(self.holding(secrets), "other thread", metadata={"k": secrets[0]})
        for place in range(len(secrets)):
            await checkpointer.delete("t", f"v{place + 1}")
        await checkpointer.delete("other thread")
        await checkpointer.close()
        assert [it for it in secrets if below.holds(it)] == []
        assert self.held(await checkpointer.load("t")) == [*kept, "end"]
        assert self.held(await checkpointer.load("t", "v0")) == kept

    async def test_no_byte_of_a_replaced_version_remains(
        self, checkpointer: Any, storage: StorageProbe | None
    ) -> None:
        below, secret = probe(storage), f"{SECRETS[0]:x}"
        kept = [f"line {n} of what is kept" for n in range(200)]
        for name, end in (("v0", "a"), ("v1", secret), ("v2", "b"), ("v1", "c")):
            await checkpointer.save(self.holding([*kept, end]), "t", name, {"k": end})
        await checkpointer.close()
        assert not below.holds(secret)
        assert self.held(await checkpointer.load("t", "v2")) == [*kept, "b"]


SECRETS = [random.Random(seed).getrandbits(512) for seed in range(5)]  # noqa: S311  (test data)
"""Incompressible, so that a byte of them in storage can be found."""


class Retention(Kit):
    """``keep_last`` and ``vacuum``."""

    @pytest.mark.parametrize("keep", [1, 3])
    async def test_keep_last_keeps_the_newest_versions(
        self, reopen: Another, another: Another, keep: int
    ) -> None:
        checkpointer = another(keep_last=keep)
        ids = await self.grow(checkpointer, "t", *map(str, range(10)))
        said = list(map(str, range(10)))
        assert await self.told(checkpointer, "t") == {
            ids[place]: said[: place + 1] for place in range(9, 9 - keep, -1)
        }
        assert await self.said_in(checkpointer, "t", ids[0]) is None
        assert await checkpointer.exists("t", ids[0]) is False
        assert await checkpointer.delete("t", ids[0]) is False
        assert await self.said_in(another(), "t", ids[0]) is None

    @pytest.mark.parametrize("keep", [1, 3])
    async def test_keep_last_bounds_what_is_stored(
        self, another: Another, storage: StorageProbe | None, keep: int
    ) -> None:
        checkpointer, state = another(keep_last=keep), self.new()
        for step in range(210):
            state = self.said(state, f"{step}")
            await checkpointer.save(state, "t", f"v{step}")
            if step % 30 == 0:
                assert await self.said_in(another(), "t") == list(map(str, range(step + 1)))
        expected = {f"v{n}": list(map(str, range(n + 1))) for n in range(209, 209 - keep, -1)}
        assert await self.told(another(), "t") == expected
        assert storage is None or storage.rows() < 100

    async def test_keep_last_never_hides_the_head(self, another: Another) -> None:
        checkpointer, losing = another(keep_last=1), another(keep_last=1)
        await self.grow(checkpointer, "t", "a")
        mine = await losing.load("t")
        head = await checkpointer.save(self.said(await checkpointer.load("t"), "b"), "t")
        for step in range(80):
            mine = self.said(mine, str(step))
            await losing.save(mine, "t", on_conflict="branch")
        assert await self.said_in(another(), "t") == ["a", "b"]
        assert head in await checkpointer.list_checkpoints("t")
        assert len(await checkpointer.list_checkpoints("t")) == 2

    async def test_a_hidden_version_never_comes_back(self, another: Another) -> None:
        checkpointer = another(keep_last=2)
        *_, shown, head = await self.grow(checkpointer, "t", "a", "b", "c", "d")
        await checkpointer.delete("t", head)
        assert await checkpointer.list_checkpoints("t") == [shown]
        assert await self.said_in(checkpointer, "t") == ["a", "b", "c"]
        await checkpointer.delete("t", shown)
        assert await checkpointer.list_checkpoints("t") == []
        assert await checkpointer.load("t") is None

    async def test_a_hidden_version_is_no_parent(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        old, head = await self.grow(checkpointer, "t", "a", "b")
        with pytest.raises(NotFoundError):
            await checkpointer.save(self.new("x"), "t", parent_checkpoint_id=old)
        assert await checkpointer.list_checkpoints("t") == [head]

    async def test_a_hidden_versions_id_may_be_used_again(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        state = self.new("a")
        await checkpointer.save(state, "t", "v1")
        await checkpointer.save(self.new("b"), "t", "v2")
        await checkpointer.save(state, "t", "v1")
        assert await self.told(checkpointer, "t") == {"v1": ["a"]}

    async def test_keep_last_does_not_conflict_with_who_loaded(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        await self.grow(checkpointer, "t", *"abc")
        state = self.said(await checkpointer.load("t"), "d")
        await checkpointer.save(state, "t")
        await checkpointer.save(self.said(state, "e"), "t")
        assert await self.said_in(another(), "t") == list("abcde")

    async def test_keeping_nothing_is_refused(self, reopen: Another) -> None:
        for keep in (0, -1, 1.5, "3", True):
            with refused(InvalidArgumentError, keep, match="keep_last"):
                reopen(keep_last=keep)

    async def test_vacuum_removes_a_thread_whose_newest_version_is_old(
        self, checkpointer: Any
    ) -> None:
        needs(checkpointer, "vacuum")
        await self.grow(checkpointer, "t1", "a", "b")
        await self.grow(checkpointer, "t2", "c")
        await tick(checkpointer)
        assert await checkpointer.vacuum(older_than_days=0) == 3
        assert await checkpointer.exists("t1") is False
        assert await checkpointer.load("t2") is None
        assert await checkpointer.vacuum(older_than_days=0) == 0

    async def test_vacuum_leaves_what_is_young(self, checkpointer: Any) -> None:
        needs(checkpointer, "vacuum")
        ids = await self.grow(checkpointer, "t", "a", "b")
        for days in (30, 1, 0.5, 10_000, 1_000_000, float("inf")):
            assert await checkpointer.vacuum(older_than_days=days) == 0
        assert await checkpointer.vacuum() == 0
        assert await checkpointer.list_checkpoints("t") == ids[::-1]

    async def test_vacuum_keeps_what_a_young_thread_needs(
        self, checkpointer: Any, another: Another, storage: StorageProbe | None
    ) -> None:
        needs(checkpointer, "vacuum")
        below = probe(storage)
        await self.grow(checkpointer, "old", "a", "b")
        await self.grow(checkpointer, "t", "a", "b")
        below.age(40 * 86_400)
        state = await checkpointer.load("t")
        below.age(0)
        young = await checkpointer.save(self.said(state, "c"), "t")
        assert await checkpointer.vacuum(older_than_days=41) == 0
        assert await checkpointer.vacuum(older_than_days=39) == 4
        assert await self.told(another(), "t") == {young: ["a", "b", "c"]}
        assert await checkpointer.exists("old") is False

    async def test_vacuum_keeps_an_old_head_under_a_young_side_branch(
        self, checkpointer: Any, another: Another, storage: StorageProbe | None
    ) -> None:
        needs(checkpointer, "vacuum")
        below = probe(storage)
        await self.grow(checkpointer, "t", "a")
        mine, other = await checkpointer.load("t"), another()
        await other.save(self.said(await other.load("t"), "head"), "t", "head")
        below.age(40 * 86_400)
        await checkpointer.save(self.said(mine, "side"), "t", "side", on_conflict="branch")
        assert await checkpointer.vacuum(older_than_days=39) == 1
        assert await self.told(another(), "t") == {"side": ["a", "side"], "head": ["a", "head"]}
        assert await self.said_in(another(), "t") == ["a", "head"]

    async def test_an_age_that_is_none_is_refused(self, checkpointer: Any) -> None:
        needs(checkpointer, "vacuum")
        for days in (-1, -0.1, float("nan"), "30", None, True):
            with refused(InvalidArgumentError, days, match="older_than_days"):
                await checkpointer.vacuum(older_than_days=days)


class Expiry(Kit):
    """Threads with a time to live."""

    async def expired(self, another: Another) -> Any:
        """Thread ``t``, expired; ``u``, which is not. An object without a time to live."""
        checkpointer = another()
        needs(checkpointer, "ttl")
        short = another(ttl_seconds=0.000001)
        await another(ttl_seconds=3_600).save(self.new("word"), "u", "v", {"k": 1})
        await short.save(self.new("word"), "t", "v", {"k": 1})
        await tick(checkpointer)
        return checkpointer

    async def test_an_expired_thread_is_gone_for_everybody(self, another: Another) -> None:
        checkpointer = await self.expired(another)
        assert await checkpointer.load("t") is None
        assert await checkpointer.load("t", "v") is None
        assert await checkpointer.list_checkpoints("t") == []
        assert await checkpointer.exists("t") is False
        assert await checkpointer.exists("t", "v") is False
        assert await checkpointer.delete("t", "v") is False
        assert await self.said_in(checkpointer, "u") == ["word"]

    async def test_an_expired_thread_is_in_no_list(self, another: Another) -> None:
        checkpointer = await self.expired(another)
        listed = checkpointer.capabilities
        assert not listed.list_threads or await checkpointer.list_threads() == ["u"]
        answers = [await checkpointer.list_with_metadata()]
        if listed.metadata_query:
            answers.append(await checkpointer.query_by_metadata("k", 1))
            assert await checkpointer.get_metadata("t") is None
        if listed.search:
            answers.append(await checkpointer.search("word"))
        assert [[row["thread_id"] for row in rows] for rows in answers] == [["u"]] * len(answers)

    async def test_an_expired_thread_is_neither_copied_nor_in_the_way(
        self, another: Another
    ) -> None:
        checkpointer = await self.expired(another)
        needs(checkpointer, "branching")
        assert await checkpointer.copy_thread("t", "copy") is False
        assert await checkpointer.copy_thread("u", "t") is True
        assert await self.said_in(checkpointer, "t") == ["word"]

    async def test_an_expired_thread_may_be_made_again(self, another: Another) -> None:
        checkpointer = await self.expired(another)
        await checkpointer.save(self.new("new"), "t")
        assert len(await checkpointer.list_checkpoints("t")) == 1
        assert await self.said_in(another(), "t") == ["new"]

    async def test_an_expired_thread_is_a_conflict_for_who_loaded_it(
        self, another: Another
    ) -> None:
        checkpointer = another()
        needs(checkpointer, "ttl")
        short = another(ttl_seconds=0.000001)
        await self.grow(checkpointer, "t", "a")
        mine = await checkpointer.load("t")
        await short.save(self.said(await short.load("t"), "b"), "t")
        await tick(another())
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert told.value.head_id is None
        await another().save(self.new("new"), "t")
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(mine, "mine"), "t")

    async def test_expire_removes_what_is_over_and_nothing_else(
        self, another: Another, storage: StorageProbe | None
    ) -> None:
        checkpointer = await self.expired(another)
        await self.grow(checkpointer, "forever", "a")
        assert await checkpointer.expire() == 1
        assert await checkpointer.expire() == 0
        assert await self.said_in(checkpointer, "u") == ["word"]
        assert await self.said_in(checkpointer, "forever") == ["a"]
        assert storage is None or storage.rows() == 6

    async def test_a_save_prolongs_a_threads_life(self, another: Another) -> None:
        needs(another(), "ttl")
        checkpointer, short = another(ttl_seconds=3_600), another(ttl_seconds=0.000001)
        await short.save(self.new("a"), "t")
        await tick(another())
        await checkpointer.save(self.new("b"), "t")
        await tick(another())
        assert await self.said_in(another(), "t") == ["b"]

    async def test_a_time_to_live_that_is_none_is_refused(self, reopen: Another) -> None:
        for ttl in (0, -1, float("nan"), float("inf"), "60", True):
            with refused(InvalidArgumentError, ttl, match="ttl_seconds"):
                reopen(ttl_seconds=ttl)

    async def test_a_time_to_live_is_refused_where_it_is_not_declared(
        self, checkpointer: Any, reopen: Another
    ) -> None:
        if checkpointer.capabilities.ttl:
            pytest.skip("declared")
        with pytest.raises(UnsupportedError, match="ttl"):
            reopen(ttl_seconds=60)


class Threads(Kit):
    """``list_threads`` and ``list_with_metadata``."""

    async def test_threads_are_listed_the_newest_first(self, checkpointer: Any) -> None:
        needs(checkpointer, "list_threads")
        for name in ("b", "c", "a"):
            await checkpointer.save(self.new(name), name)
        assert await checkpointer.list_threads() == ["a", "c", "b"]
        assert await checkpointer.list_threads(limit=2) == ["a", "c"]
        await checkpointer.delete("c")
        assert await checkpointer.list_threads() == ["a", "b"]

    async def test_a_pattern_is_shell_style(self, checkpointer: Any) -> None:
        needs(checkpointer, "list_threads")
        names = ("a", "A", "ab", "abc", "a/b", "/x", "a%b", "a_b", "[a]", "a\\b", "a*b", "a\nb")
        odd = {"a/b", "a%b", "a_b", "a\\b", "a*b", "a\nb"}
        for name in names:
            await checkpointer.save({"n": 1}, name)
        for pattern, expected in {
            "*": set(names), "a": {"a"}, "a?": {"ab"}, "a*b": {"ab"} | odd, "a%b": {"a%b"},
            "a_b": {"a_b"}, "a\\b": {"a\\b"}, "a[*]b": {"a*b"}, "[aA]": {"a", "A"}, "[!A]": {"a"},
            "a[!b-z]b": odd, "/*": {"/x"}, "*x": {"/x"}, "[/]x": {"/x"}, "?x": {"/x"},
            "[[]a]": {"[a]"}, "A*": {"A"}, "none*": set(), "": set(), "'; --": set(), "[": set(),
        }.items():  # fmt: skip
            assert set(await checkpointer.list_threads(pattern=pattern)) == expected, pattern

    async def test_a_limit_counts_matches_only(self, checkpointer: Any) -> None:
        needs(checkpointer, "list_threads")
        for n in range(6):
            await checkpointer.save({"n": n}, f"{'yes' if n % 2 else 'no'}:{n}")
        assert await checkpointer.list_threads(2, "yes:*") == ["yes:5", "yes:3"]
        assert await checkpointer.list_threads(2, "[y]es:*") == ["yes:5", "yes:3"]

    async def test_250_threads_are_listed_through_pages_of_100(self, checkpointer: Any) -> None:
        needs(checkpointer, "list_threads")
        names = [f"t/{n}" for n in range(250)]
        await asyncio.gather(*(checkpointer.save({"n": 1}, name) for name in names))
        found: list[str] = await checkpointer.list_threads(limit=100)
        sizes = [len(found)]
        while page := await checkpointer.list_threads(limit=100, after=found[-1]):
            sizes.append(len(page))
            found += page
        assert sizes == [100, 100, 50]
        assert sorted(found) == sorted(names)
        assert await checkpointer.list_threads(limit=1000, pattern="t/*") == found
        after = found[found.index("t/15") + 1 :]
        teens = [name for name in after if len(name) == 4 and name.startswith("t/1")]
        assert await checkpointer.list_threads(5, "[t]/1?", after="t/15") == teens[:5]

    async def test_a_thread_cursor_that_is_gone_is_told(self, checkpointer: Any) -> None:
        needs(checkpointer, "list_threads")
        with pytest.raises(NotFoundError, match="gone"):
            await checkpointer.list_threads(after="gone")

    async def test_a_pattern_that_is_no_text_is_refused(self, checkpointer: Any) -> None:
        needs(checkpointer, "list_threads")
        for pattern in (None, 7, b"*"):
            with refused(InvalidArgumentError, pattern, match="pattern"):
                await checkpointer.list_threads(pattern=pattern)

    async def test_threads_are_listed_with_their_heads_metadata(self, checkpointer: Any) -> None:
        needs(checkpointer, "list_with_metadata")
        for name in ("t1", "t2", "t3"):
            await checkpointer.save(self.new("a"), name, "v1", {"of": "old"})
            await checkpointer.save(self.new("b"), name, "v2", {"of": name, "n": [1.0, {}]})
        rows = await checkpointer.list_with_metadata()
        assert [row["thread_id"] for row in rows] == ["t3", "t2", "t1"]
        for row in rows:
            assert set(row) == {"thread_id", "checkpoint_id", "metadata", "updated_at"}
            assert row["checkpoint_id"] == "v2"
            assert exact(row["metadata"]) == exact({"of": row["thread_id"], "n": [1.0, {}]})
            assert datetime.fromisoformat(row["updated_at"]).utcoffset() is not None
        assert len(await checkpointer.list_with_metadata(limit=2)) == 2


class Metadata(Kit):
    """``get_metadata`` and ``query_by_metadata``."""

    async def test_metadata_comes_back_as_it_was_given(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        given = {"n": list(NUMBERS), "t": list(TEXTS), "": {"a.b": {"$": None}}, "a\0b": "\0"}
        state = self.new("a")
        await checkpointer.save(state, "t", "v1", deepcopy(given))
        await checkpointer.save(self.said(state, "b"), "t", "v2")
        assert exact(await checkpointer.get_metadata("t", "v1")) == exact(given)
        assert await checkpointer.get_metadata("t", "v2") == {}
        assert await checkpointer.get_metadata("t") == {}
        assert await checkpointer.get_metadata("t", "v3") is None
        assert await checkpointer.get_metadata("unknown") is None

    async def test_the_heads_metadata_is_the_one_that_was_given(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        await checkpointer.save(self.new("a"), "t", "v1", {"k": 1})
        await checkpointer.save(self.new("b"), "t", "v2", {"k": 2})
        assert await checkpointer.get_metadata("t") == {"k": 2}
        await checkpointer.delete("t", "v2")
        assert await checkpointer.get_metadata("t") == {"k": 1}

    async def test_changing_metadata_changes_nothing_stored(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        given = {"list": [1]}
        await checkpointer.save(self.new("a"), "t", metadata=given)
        given["list"].append(2)
        (await checkpointer.get_metadata("t"))["list"].append(3)
        (await checkpointer.query_by_metadata("list", 1))[0]["metadata"]["list"].append(4)
        assert await checkpointer.get_metadata("t") == {"list": [1]}

    async def test_a_value_is_found_by_its_type(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        stored = {
            "int": 1, "float": 1.0, "true": True, "text": "1", "null": None, "false": False,
            "zero": 0,
            "empty": "", "list0": [], "list": ["a", "b"], "object0": {}, "object": {"in": 1},
        }  # fmt: skip
        for name, it in stored.items():
            await checkpointer.save({"n": 1}, name, metadata={"k": it})
            await checkpointer.save({"n": 1}, f"not {name}", metadata={"other": it})
        for value, matches in (
            (1, {"int", "float"}), (1.0, {"int", "float"}), (True, {"true"}), ("1", {"text"}),
            (None, {"null"}), (False, {"false"}), (0, {"zero"}), ("", {"empty"}), ({}, {"object0"}),
            ([], {"list0", "list"}), ("a", {"list"}), (["b", "a"], {"list"}), (["a", "c"], set()),
            ({"in": 1}, {"object"}), ("true", set()), ("null", set()), ("[]", set()), (2, set()),
        ):  # fmt: skip
            found = await checkpointer.query_by_metadata("k", value)
            assert {row["thread_id"] for row in found} == matches, value

    async def test_a_key_is_a_path_and_never_a_statement(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        user = {"name": "ann", "tags": ["x"], "deep": {"er": 1}}
        plain = {
            "a.b": "dotted", '"': 1, "'": 2, "$": 3, "$.user": 4, "[0]": 5, "a\0b": 6, "%": 8,
            "é": 9, "') OR 1=1 --": 7, "a\\": 10, "a\\.b": 11, "?": 12, ":k": 13, "{}": 14,
            ".": 15, "a..b": 16,
        }  # fmt: skip
        paths = {"user.name": "ann", "user.tags": "x", "user.deep.er": 1, "user": user}
        await checkpointer.save({"n": 1}, "t", metadata={"user": user, **plain})
        await checkpointer.save({"n": 1}, "other", metadata={"x": list(plain.values())})
        for key, value in {**plain, **paths}.items():
            found = await checkpointer.query_by_metadata(key, value)
            assert [row["thread_id"] for row in found] == ["t"], key
            assert await checkpointer.query_by_metadata(key, "another value") == []
            assert await checkpointer.query_by_metadata(key + "'", value) == []

    async def test_a_key_that_names_nothing_is_refused(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        for key in ("", None, 7, b"k", ["k"]):
            with refused(InvalidArgumentError, key, match="key"):
                await checkpointer.query_by_metadata(key, 1)

    async def test_every_version_is_found_the_newest_first(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        for n in range(4):
            await checkpointer.save({"n": n}, "t", f"v{n}", {"k": "x", "n": n})
        await checkpointer.save({"n": 9}, "u", "v9", {"k": "x", "n": 9})
        await checkpointer.save({"n": 10}, "u", "v10", {"k": "y"})
        rows = await checkpointer.query_by_metadata("k", "x")
        assert [row["checkpoint_id"] for row in rows] == ["v9", "v3", "v2", "v1", "v0"]
        for row in rows:
            assert set(row) == {"thread_id", "checkpoint_id", "metadata", "updated_at"}
            assert f"v{row['metadata']['n']}" == row["checkpoint_id"]
            assert datetime.fromisoformat(row["updated_at"]).utcoffset() is not None
        assert await checkpointer.query_by_metadata("k", "x", limit=2) == rows[:2]

    async def test_a_deleted_version_is_not_found(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        await checkpointer.save({"n": 1}, "t", "v1", {"k": "x"})
        await checkpointer.save({"n": 2}, "t", "v2", {"k": "y"})
        await checkpointer.save({"n": 3}, "t", "v2", {"k": "z"})
        await checkpointer.delete("t", "v1")
        assert await checkpointer.query_by_metadata("k", "x") == []
        assert await checkpointer.query_by_metadata("k", "y") == []
        assert len(await checkpointer.query_by_metadata("k", "z")) == 1

    async def test_agents_and_tags_of_the_state_are_found(self, checkpointer: Any) -> None:
        needs(checkpointer, "metadata_query")
        await checkpointer.save({"agent_id": "a1", "metadata": {"tags": ["x", "y"]}}, "t1")
        await checkpointer.save({"agent_id": "a2", "tags": ["y", "z"]}, "t2", metadata={"k": 1})
        for key, value, expected in (
            ("agent_id", "a1", ["t1"]), ("agent_id", "a2", ["t2"]), ("tags", "x", ["t1"]),
            ("tags", "y", ["t2", "t1"]), ("tags", ["x", "y"], ["t1"]), ("tags", "none", []),
        ):  # fmt: skip
            found = await checkpointer.query_by_metadata(key, value)
            assert [row["thread_id"] for row in found] == expected
        assert await checkpointer.get_metadata("t1") == {}
        assert await checkpointer.get_metadata("t2") == {"k": 1}


class Search(Kit):
    """``search``: all words, no operators, the same on every backend."""

    async def found(self, checkpointer: Any, query: str, limit: int = 10) -> list[str]:
        """Thread ids in the order of the answer."""
        needs(checkpointer, "search")
        return [hit["thread_id"] for hit in await checkpointer.search(query, limit)]

    async def test_all_words_must_be_there(self, checkpointer: Any) -> None:
        needs(checkpointer, "search")
        await self.grow(checkpointer, "t1", "the quick brown fox", "jumps over the lazy dog")
        await self.grow(checkpointer, "t2", "a quick dog")
        assert set(await self.found(checkpointer, "quick dog")) == {"t1", "t2"}
        assert await self.found(checkpointer, "dog fox") == ["t1"]
        assert await self.found(checkpointer, "dog zebra") == []
        assert await self.found(checkpointer, "fo") == []

    async def test_neither_case_nor_accents_matter(self, checkpointer: Any) -> None:
        needs(checkpointer, "search")
        await self.grow(
            checkpointer, "t", "Crème BRÛLÉE in der Straße, Ångström, ΣΊΣΥΦΟΣ, 東京タワー"
        )
        for query in (
            "creme brulee",
            "CRÈME",
            "strasse",
            "STRASSE",
            "angstrom",
            "σίσυφος",
            "東京",
            "京",
        ):
            assert await self.found(checkpointer, query) == ["t"], query
        assert await self.found(checkpointer, "大阪") == []

    async def test_there_are_no_operators(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "alpha beta")
        for query in (
            "alpha OR gamma", "alpha AND gamma", "NOT gamma", "alpha NEAR gamma", "alph*",
            '"alpha gamma',
            "al%", "alph_", "messages:alpha gamma", "^gamma", "alpha -beta gamma", "al?ha",
            "/al.*/", "(alpha gamma", "alpha'; DROP TABLE locus_threads; -- ", "{alpha gamma}",
            "alpha + gamma",
        ):  # fmt: skip
            assert await self.found(checkpointer, query) == [], query

    async def test_signs_between_words_mean_nothing(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "alpha beta")
        for query in (
            '"alpha"', "beta-alpha", "alpha%", "(beta)", "alpha*", "-alpha", "'beta' alpha;",
            '"alpha beta',
        ):  # fmt: skip
            assert await self.found(checkpointer, query) == ["t"], query

    async def test_names_of_fields_never_match(self, checkpointer: Any) -> None:
        await checkpointer.save({"secretkey": {"innerkey": "value"}, "list": [{"rowkey": 1}]}, "t")
        await checkpointer.save({"secretkey": {"innerkey": "value", "laterkey": 2}}, "t")
        for query in ("secretkey", "innerkey", "rowkey", "laterkey", "list"):
            assert await self.found(checkpointer, query) == []
        assert await self.found(checkpointer, "value") == ["t"]

    async def test_text_of_every_version_is_found(self, checkpointer: Any) -> None:
        needs(checkpointer, "search")
        await checkpointer.save({"text": "first alpha"}, "t", "v1")
        await checkpointer.save({"text": "then beta"}, "t", "v2")
        hits = await checkpointer.search("alpha")
        assert [(it["thread_id"], it["checkpoint_id"]) for it in hits] == [("t", "v1")]
        hits = await checkpointer.search("beta")
        assert [(it["thread_id"], it["checkpoint_id"]) for it in hits] == [("t", "v2")]

    async def test_a_word_that_grew_over_several_saves_is_found(self, checkpointer: Any) -> None:
        long = "word " * 400
        await checkpointer.save({"text": long + "zebra"}, "t")
        await checkpointer.save({"text": long + "zebracrossing"}, "t")
        assert await self.found(checkpointer, "zebracrossing") == ["t"]
        assert await self.found(checkpointer, "crossing") == []

    async def test_text_of_a_deleted_version_is_not_found(self, checkpointer: Any) -> None:
        await checkpointer.save({"text": "alpha"}, "t", "v1")
        await checkpointer.save({"text": "beta"}, "t", "v2")
        await checkpointer.save({"text": "gamma"}, "t", "v3")
        assert await self.found(checkpointer, "beta") == ["t"]
        await checkpointer.delete("t", "v2")
        assert await self.found(checkpointer, "beta") == []
        await checkpointer.delete("t", "v1")
        assert await self.found(checkpointer, "alpha") == []
        assert await self.found(checkpointer, "gamma") == ["t"]
        await checkpointer.delete("t")
        assert await self.found(checkpointer, "gamma") == []

    async def test_what_a_deleted_version_added_is_found_where_it_remains(
        self, checkpointer: Any
    ) -> None:
        needs(checkpointer, "search")
        one, two, _ = await self.grow(checkpointer, "t", "alpha", "beta", "gamma")
        await checkpointer.delete("t", one)
        await checkpointer.delete("t", two)
        for word in ("alpha", "beta", "gamma"):
            assert await self.found(checkpointer, word) == ["t"]

    async def test_text_of_a_replaced_version_is_not_found(self, checkpointer: Any) -> None:
        await checkpointer.save({"text": "alpha"}, "t", "v1")
        await checkpointer.save({"text": "beta"}, "t", "v1")
        assert await self.found(checkpointer, "alpha") == []
        assert await self.found(checkpointer, "beta") == ["t"]

    async def test_text_of_a_hidden_version_is_not_found(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        await checkpointer.save({"text": "alpha", "kept": "gamma"}, "t", "v1")
        await checkpointer.save({"text": "beta", "kept": "gamma"}, "t", "v2")
        assert await self.found(checkpointer, "beta gamma") == ["t"]
        assert await self.found(checkpointer, "alpha") == []

    async def test_a_copys_text_is_its_own(self, checkpointer: Any) -> None:
        needs(checkpointer, "search", "branching")
        await self.grow(checkpointer, "t", "alpha", "beta")
        await checkpointer.copy_thread("t", "copy")
        assert set(await self.found(checkpointer, "alpha beta")) == {"t", "copy"}
        await checkpointer.delete("t")
        assert await self.found(checkpointer, "alpha beta") == ["copy"]

    async def test_the_best_match_comes_first(self, checkpointer: Any) -> None:
        needs(checkpointer, "search")
        await checkpointer.save({"text": ["alpha", "alpha beta", "beta alpha"]}, "often")
        await checkpointer.save({"text": ["alpha", "beta", "gamma"]}, "once")
        assert await self.found(checkpointer, "alpha beta") == ["often", "once"]
        assert await self.found(checkpointer, "alpha beta", limit=1) == ["often"]

    async def test_a_hit_says_where_and_what(self, checkpointer: Any) -> None:
        needs(checkpointer, "search")
        state = self.new("nothing here")
        await checkpointer.save(state, "t", "v1", {"k": 1})
        state = self.said(state, "x" * 500 + " the Needle in the haystack " + "y" * 500)
        await checkpointer.save(state, "t", "v2", {"k": 2})
        await checkpointer.save(self.said(state, "more"), "t", "v3", {"k": 3})
        (hit,) = await checkpointer.search("needle")
        assert set(hit) == {
            "thread_id", "checkpoint_id", "metadata", "updated_at", "score", "snippet",
        }  # fmt: skip
        assert (hit["thread_id"], hit["checkpoint_id"], hit["metadata"]) == ("t", "v2", {"k": 2})
        assert hit["score"] > 0
        assert "Needle" in hit["snippet"]
        assert len(hit["snippet"]) <= 160
        assert datetime.fromisoformat(hit["updated_at"]).utcoffset() is not None

    async def test_a_query_without_a_word_is_refused(self, checkpointer: Any) -> None:
        needs(checkpointer, "search")
        for query in ("", " ", "%", "*", "'\"", "\0", None, 7):
            with refused(InvalidArgumentError, query, match="word"):
                await checkpointer.search(query)


class Copying(Kit):
    """``copy_thread``."""

    async def test_a_copy_has_every_version(self, checkpointer: Any) -> None:
        needs(checkpointer, "branching")
        ids = await self.grow(checkpointer, "t", "a", "b", "c")
        await checkpointer.save(self.new("x"), "t", "x", {"k": 1}, parent_checkpoint_id=ids[0])
        assert await checkpointer.copy_thread("t", "copy") is True
        assert await self.told(checkpointer, "copy") == await self.told(checkpointer, "t")
        assert await self.said_in(checkpointer, "copy") == ["x"]
        if checkpointer.capabilities.metadata_query:
            assert await checkpointer.get_metadata("copy") == {"k": 1}
        await checkpointer.delete("copy", "x")
        assert await self.said_in(checkpointer, "copy") == ["a"]

    async def test_a_missing_source_is_false(self, checkpointer: Any) -> None:
        needs(checkpointer, "branching")
        assert await checkpointer.copy_thread("unknown", "copy") is False
        assert await checkpointer.exists("copy") is False

    async def test_an_existing_destination_is_a_conflict(self, checkpointer: Any) -> None:
        needs(checkpointer, "branching")
        await self.grow(checkpointer, "t", "a")
        await self.grow(checkpointer, "copy", "b")
        for destination in ("copy", "t"):
            with pytest.raises(ConflictError, match=destination):
                await checkpointer.copy_thread("t", destination)
        assert await self.said_in(checkpointer, "copy") == ["b"]
        assert await self.said_in(checkpointer, "t") == ["a"]

    async def test_either_goes_on_alone(self, checkpointer: Any) -> None:
        needs(checkpointer, "branching")
        await self.grow(checkpointer, "t", "a", "b")
        await checkpointer.copy_thread("t", "copy")
        for name in ("t", "copy"):
            await checkpointer.save(self.said(await checkpointer.load(name), name), name)
        assert await self.said_in(checkpointer, "t") == ["a", "b", "t"]
        assert await self.said_in(checkpointer, "copy") == ["a", "b", "copy"]

    @pytest.mark.parametrize(("gone", "left"), [("t", "copy"), ("copy", "t")])
    async def test_deleting_either_leaves_the_other_whole(
        self, checkpointer: Any, gone: str, left: str
    ) -> None:
        needs(checkpointer, "branching")
        ids = await self.grow(checkpointer, "t", "a", "b", "c")
        await checkpointer.copy_thread("t", "copy")
        before = await self.told(checkpointer, left)
        await checkpointer.delete(gone, ids[1])
        assert await self.told(checkpointer, left) == before
        await checkpointer.delete(gone)
        assert await self.told(checkpointer, left) == before
        assert await self.said_in(checkpointer, left) == ["a", "b", "c"]

    async def test_a_copy_keeps_what_its_source_may_not_show(self, another: Another) -> None:
        checkpointer = another(keep_last=2)
        needs(checkpointer, "branching")
        ids = await self.grow(checkpointer, "t", "a", "b", "c", "d")
        await checkpointer.copy_thread("t", "copy")
        assert await checkpointer.list_checkpoints("copy") == ids[:1:-1]
        assert await checkpointer.load("copy", ids[0]) is None
        assert await self.said_in(checkpointer, "copy") == ["a", "b", "c", "d"]


class Arguments(Kit):
    """Ids are data: any text is one, and nothing else is."""

    async def test_hostile_thread_ids_name_threads_of_their_own(self, checkpointer: Any) -> None:
        for name in HOSTILE_IDS:
            await checkpointer.save(self.new(f"of {name}"), name, "v")
        for name in HOSTILE_IDS:
            assert await self.said_in(checkpointer, name) == [f"of {name}"]
            assert await checkpointer.list_checkpoints(name) == ["v"]
        if checkpointer.capabilities.list_threads:
            assert await checkpointer.list_threads(limit=1000) == list(HOSTILE_IDS[::-1])
        for name in HOSTILE_IDS[::2]:
            assert await checkpointer.delete(name) is True
        left = [it for it in HOSTILE_IDS if await checkpointer.exists(it)]
        assert left == list(HOSTILE_IDS[1::2])

    async def test_hostile_checkpoint_ids_name_versions_of_their_own(
        self, checkpointer: Any
    ) -> None:
        for name in HOSTILE_IDS:
            await checkpointer.save(self.new(f"of {name}"), "t", name)
        assert await checkpointer.list_checkpoints("t", limit=1000) == list(HOSTILE_IDS[::-1])
        for name in HOSTILE_IDS:
            assert await self.said_in(checkpointer, "t", name) == [f"of {name}"]
        for name in HOSTILE_IDS[::2]:
            assert await checkpointer.delete("t", name) is True
        assert await checkpointer.list_checkpoints("t", limit=1000) == list(HOSTILE_IDS[1::2][::-1])

    async def test_thread_and_checkpoint_ids_are_not_joined(self, checkpointer: Any) -> None:
        for sign in ":/|%_. ":
            await checkpointer.save(self.new("1"), f"a{sign}b", "c")
            await checkpointer.save(self.new("2"), "a", f"b{sign}c")
            assert await self.said_in(checkpointer, f"a{sign}b", "c") == ["1"]
            assert await self.said_in(checkpointer, "a", f"b{sign}c") == ["2"]

    async def test_what_is_no_id_is_refused(self, checkpointer: Any) -> None:
        declared = checkpointer.capabilities
        for bad in INVALID_IDS:
            calls = _calls_with_ids(checkpointer, self.new("a"), bad, None)
            if bad is not None:
                calls += _calls_with_ids(checkpointer, self.new("a"), "t", bad)
            if declared.metadata_query:
                calls.append(lambda it=bad: checkpointer.get_metadata(it))  # type: ignore[misc]
            if declared.branching:
                calls.append(lambda it=bad: checkpointer.copy_thread("t", it))  # type: ignore[misc]
                calls.append(lambda it=bad: checkpointer.copy_thread(it, "t"))  # type: ignore[misc]
            for call in calls:
                with refused(InvalidArgumentError, bad):
                    await call()
        assert await checkpointer.exists("t") is False

    async def test_what_is_no_cursor_is_refused(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("a"), "t")
        for bad in INVALID_IDS:
            if bad is None:
                continue
            with refused((InvalidArgumentError, NotFoundError), bad):
                await checkpointer.list_checkpoints("t", after=bad)
            if checkpointer.capabilities.list_threads:
                with refused((InvalidArgumentError, NotFoundError), bad):
                    await checkpointer.list_threads(after=bad)

    async def test_an_id_of_255_characters_is_the_longest(self, checkpointer: Any) -> None:
        for sign in ("x", "é", "🎉"):
            await checkpointer.save(self.new(sign), sign * 255, sign * 255)
            assert await self.said_in(checkpointer, sign * 255, sign * 255) == [sign]
            with pytest.raises(InvalidArgumentError, match="255"):
                await checkpointer.load(sign * 256)


def _calls_with_ids(
    checkpointer: Any, state: Any, thread_id: Any, checkpoint_id: Any
) -> list[Callable[[], Awaitable[Any]]]:
    """Every call that takes these ids."""
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: checkpointer.save(state, thread_id, checkpoint_id),
        lambda: checkpointer.save(state, thread_id, parent_checkpoint_id=checkpoint_id),
        lambda: checkpointer.load(thread_id, checkpoint_id),
        lambda: checkpointer.delete(thread_id, checkpoint_id),
        lambda: checkpointer.exists(thread_id, checkpoint_id),
    ]
    if checkpoint_id is None:
        calls.append(lambda: checkpointer.list_checkpoints(thread_id))
    return calls


class Concurrency(Kit):
    """One object serves many tasks, event loops and threads."""

    async def test_64_savers_on_threads_of_their_own(self, checkpointer: Any) -> None:
        async def talk(name: str) -> None:
            for turn in range(3):
                state = await checkpointer.load(name) or self.new()
                await checkpointer.save(self.said(state, f"{name} {turn}"), name)

        await asyncio.gather(*(talk(f"t{n}") for n in range(64)))
        for n in range(64):
            expected = [f"t{n} {turn}" for turn in range(3)]
            assert await self.said_in(checkpointer, f"t{n}") == expected
            assert len(await checkpointer.list_checkpoints(f"t{n}")) == 3

    async def test_saves_without_a_load_are_all_kept(self, checkpointer: Any) -> None:
        saves = (checkpointer.save(self.new(str(n)), "t", f"v{n}") for n in range(50))
        assert await asyncio.gather(*saves) == [f"v{n}" for n in range(50)]
        told = await self.told(checkpointer, "t")
        assert told == {f"v{n}": [str(n)] for n in range(50)}

    async def test_the_same_new_thread_may_be_made_by_many_at_once(self, another: Another) -> None:
        objects = [another() for _ in range(4)]
        saves = (it.save(self.new("a"), "t", f"v{n}") for n, it in enumerate(objects))
        assert len(await asyncio.gather(*saves)) == 4
        assert len(await objects[0].list_checkpoints("t")) == 4

    async def test_it_works_in_a_second_event_loop(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")

        async def turn() -> None:
            state = self.said(await checkpointer.load("t"), "b")
            await checkpointer.save(state, "t")
            await checkpointer.close()

        for _ in range(2):
            await asyncio.to_thread(lambda: asyncio.run(turn()))
        assert await self.said_in(checkpointer, "t") == ["a", "b", "b"]

    async def test_it_works_in_several_loops_at_once(self, checkpointer: Any) -> None:
        async def talk(name: str) -> None:
            assert await checkpointer.load(name) is None
            state = self.new()
            for turn in range(10):
                state = self.said(state, str(turn))
                await checkpointer.save(state, name)
                assert len(self.texts(await checkpointer.load(name))) == turn + 1

        names = [f"t{n}" for n in range(6)]
        calls = (asyncio.to_thread(lambda it=it: asyncio.run(talk(it))) for it in names)  # type: ignore[misc]
        await asyncio.gather(*calls, talk("here"))
        for name in (*names, "here"):
            assert await self.said_in(checkpointer, name) == list(map(str, range(10)))

    async def test_a_reader_sees_a_version_whole(self, checkpointer: Any, another: Another) -> None:
        other, done = another(), asyncio.Event()
        await checkpointer.save(self.holding([0] * 50), "t")

        async def read() -> int:
            reads = 0
            while not done.is_set() or not reads:
                assert len(set(self.held(await other.load("t")))) == 1
                reads += 1
            return reads

        reader = asyncio.create_task(read())
        for n in range(1, 40):
            await checkpointer.save(self.holding([n] * 50), "t")
        done.set()
        assert await reader > 0

    async def test_a_failing_save_harms_no_other(self, checkpointer: Any) -> None:
        saves = [
            checkpointer.save({"n": float("nan")} if n % 3 == 0 else {"n": n}, f"t{n}")
            for n in range(30)
        ]
        results = await asyncio.gather(*saves, return_exceptions=True)
        failed = [n for n, it in enumerate(results) if isinstance(it, SerializationError)]
        assert failed == list(range(0, 30, 3))
        assert [n for n in range(30) if not await checkpointer.exists(f"t{n}")] == failed


class Integrity(Kit):
    """Damaged storage is told, never read as something else."""

    @pytest.mark.parametrize(
        "change",
        [lambda it: it[:-1], lambda it: it + b"\0", lambda it: b"", lambda it: it[::-1]],
        ids=["cut", "longer", "empty", "reversed"],
    )
    async def test_damage_is_told(
        self, checkpointer: Any, another: Another, storage: StorageProbe | None, change: Any
    ) -> None:
        below = probe(storage)
        await self.grow(checkpointer, "t", "a", "b")
        below.damage(change)
        with pytest.raises(IntegrityError):
            await another().load("t")

    async def test_another_versions_bytes_are_told(
        self, checkpointer: Any, another: Another, storage: StorageProbe | None
    ) -> None:
        below, seen = probe(storage), list[bytes]()
        await checkpointer.save(self.holding("mine"), "t")
        await checkpointer.save(self.holding("secret of another thread"), "u")
        below.damage(lambda payload: seen.append(payload) or payload)  # type: ignore[func-returns-value]
        below.damage(lambda _: seen[1])
        with pytest.raises(IntegrityError):
            await another().load("t")

    async def test_a_flipped_bit_is_told(
        self, checkpointer: Any, another: Another, storage: StorageProbe | None
    ) -> None:
        below = probe(storage)
        await checkpointer.save(self.holding(["text " * 100, 1, 2.5]), "t")
        saved, other = self.held(await checkpointer.load("t")), another()
        for place in range(12):
            flip = _Flip(place)
            below.damage(flip)
            with refused(IntegrityError, place):
                await other.load("t")
            below.damage(flip)
        assert exact(self.held(await other.load("t"))) == exact(saved)


class _Flip:
    """Flips one bit of a payload; twice gives it back."""

    def __init__(self, place: int) -> None:
        self._dice = random.Random(place).random()  # noqa: S311  (test data)

    def __call__(self, payload: bytes) -> bytes:
        bit = int(self._dice * len(payload) * 8)
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


class MinimalCheckpointerContract(Minimal):
    """What a ``BaseCheckpointer`` with only the three abstract methods is held to."""


class CheckpointerContract(
    Minimal, RoundTrip, History, Lineage, Conflicts, Deleting, Retention, Expiry, Threads, Metadata,
    Search, Copying, Arguments, Concurrency, Integrity,
):  # fmt: skip
    """Everything that a checkpointer of this package promises; see the module's docstring."""


class BackendKit:
    """Fixtures of the contracts of a backend."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def backend(self) -> Any:
        """The object under test, on empty storage; override this."""
        raise NotImplementedError("give the contract a `backend` fixture")

    @pytest.fixture(autouse=True)
    async def closing(self, backend: Any) -> AsyncIterator[None]:
        yield
        await backend.close()


class PendingWrites(BackendKit):
    """``put_writes`` and ``get_writes``."""

    async def test_writes_come_back_in_the_order_of_their_tasks(self, backend: Any) -> None:
        needs(backend, "branching")
        payloads = [b"", b"\0\xff", b"x" * 100_000]
        writes = [
            PendingWrite("b", 1, "c", "t", payloads[0], "2"),
            PendingWrite("b", 0, "c", "t", payloads[1], "2"),
            PendingWrite("z", 0, "日本語", "", payloads[2], "1"),
            PendingWrite("a", -1, "__error__", "t", b"e", "2"),
        ]
        await backend.put_writes("t", "v", writes)
        assert await backend.get_writes("t", "v") == [writes[2], writes[3], writes[1], writes[0]]
        assert await backend.get_writes("t", "other") == []
        assert await backend.get_writes("t", "v", namespace="other") == []
        assert await backend.get_writes("other", "v") == []

    async def test_writes_that_are_there_stay_and_special_ones_are_replaced(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        old, new = (
            [PendingWrite("a", idx, "c", "t", payload) for idx in (-2, -1, 0, 1)]
            for payload in (b"old", b"new")
        )
        await backend.put_writes("t", "v", old)
        await backend.put_writes("t", "v", [*new, *new])
        payloads = [it.payload for it in await backend.get_writes("t", "v")]
        assert payloads == [b"new", b"new", b"old", b"old"]

    async def test_writes_may_come_before_their_thread_and_are_no_version(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        await backend.put_writes("t", "v", [PendingWrite("a", 0, "c", "t", b"1")])
        assert await backend.load("t") is None
        assert await backend.exists("t") is False
        assert await backend.history("t") == []
        if backend.capabilities.list_threads:
            assert await backend.list_threads() == []
            assert await backend.scan() == ["t"]
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend.save("t", {"n": 2}, checkpoint_id="w")
        assert [it.payload for it in await backend.get_writes("t", "v")] == [b"1"]
        assert await backend.load("t") == {"n": 2}
        assert [it.checkpoint_id for it in await backend.history("t")] == ["w", "v"]

    async def test_writes_go_with_their_checkpoint_and_their_thread(self, backend: Any) -> None:
        needs(backend, "branching")
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend.save("t", {"n": 2}, checkpoint_id="w")
        for name in ("v", "w"):
            await backend.put_writes("t", name, [PendingWrite("a", 0, "c", "t", b"1")])
        await backend.delete("t", "v")
        assert await backend.get_writes("t", "v") == []
        assert len(await backend.get_writes("t", "w")) == 1
        await backend.delete("t")
        await backend.save("t", {"n": 2}, checkpoint_id="w")
        assert await backend.get_writes("t", "w") == []

    async def test_what_is_no_write_is_refused_and_nothing_is_written(self, backend: Any) -> None:
        needs(backend, "branching")
        good = PendingWrite("a", 0, "c", "t", b"1")
        for change in ({"task_id": ""}, {"channel": "\0"}, {"idx": 2**31}, {"task_path": "\ud800"}):
            with refused(InvalidArgumentError, change):
                await backend.put_writes("t", "v", [good, replace(good, **change)])
        for bad in INVALID_IDS:
            with refused(InvalidArgumentError, bad):
                await backend.put_writes(bad, "v", [good])
            with refused(InvalidArgumentError, bad):
                await backend.put_writes("t", bad, [good])
        assert await backend.get_writes("t", "v") == []


class WholeThreads(BackendKit):
    """``scan``, ``read_thread``, ``write_thread``, ``forget_user``."""

    async def grow(self, backend: Any, thread_id: str = "t") -> dict[tuple[str, str], Any]:
        """A thread with forks, namespaces, hidden versions and pending writes; its states."""
        said = [f"text {n}" for n in range(12)]
        states: dict[tuple[str, str], Any] = {}
        for n in range(12):
            name, data = f"v{n}", {"said": said[: n + 1], "n": n}
            await backend.write_state(
                thread_id, data, checkpoint_id=name, metadata={"n": n, "f": 1.0}, labels={"l": [n]}
            )
            states["", name] = data
        states["", "fork"] = {"said": said[:2], "é": None}
        await backend.write_state(
            thread_id, states["", "fork"], checkpoint_id="fork", parent_id="v1"
        )
        for n in range(4):
            await backend.write_state(
                thread_id, {"n": n}, namespace="a:b", checkpoint_id=f"v{n}", keep_last=2
            )
        states |= {("a:b", f"v{n}"): {"n": n} for n in (2, 3)}
        for name, namespace in product(("v3", "later"), ("", "c")):
            write = PendingWrite("a", 0, "c", "t", b"\0" + name.encode(), "path")
            await backend.put_writes(thread_id, name, [write], namespace=namespace)
        return states

    async def test_a_thread_that_was_read_is_written_as_it_was(self, backend: Any) -> None:
        needs(backend, "branching")
        states = await self.grow(backend)
        thread = await backend.read_thread("t")
        before = await backend.history("t", limit=100)
        assert await backend.delete("t") is True
        assert await backend.read_thread("t") is None
        assert await backend.write_thread(thread) is True
        assert await backend.read_thread("t") == thread
        for (namespace, name), data in states.items():
            found = await backend.read_state("t", name, namespace=namespace)
            assert exact(found.state) == exact(data)
        names = [it.checkpoint_id for it in await backend.history("t", namespace="a:b")]
        assert names == ["v3", "v2"]
        after = await backend.history("t", limit=100)
        shown = [(it.checkpoint_id, it.parent_id, it.metadata, it.created_at) for it in after]
        assert shown == [
            (it.checkpoint_id, it.parent_id, it.metadata, it.created_at) for it in before
        ]

    async def test_another_kind_of_backend_takes_a_thread_and_gives_it_back(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        await self.grow(backend)
        memory, thread = MemoryBackend(), await backend.read_thread("t")
        assert await memory.write_thread(thread) is True
        assert await memory.read_thread("t") == thread
        assert await backend.write_thread(replace(thread, thread_id="u")) is True
        assert await backend.read_thread("u") == replace(thread, thread_id="u")

    async def test_a_thread_that_is_there_is_not_written_again(self, backend: Any) -> None:
        needs(backend, "branching")
        await self.grow(backend)
        thread = await backend.read_thread("t")
        assert await backend.write_thread(thread) is False
        await backend.save("t", {"n": "newer"})
        with pytest.raises(ConflictError, match="'t'"):
            await backend.write_thread(thread)
        assert await backend.load("t") == {"n": "newer"}

    async def test_saves_go_on_from_a_thread_that_was_written(self, backend: Any) -> None:
        needs(backend, "branching")
        await self.grow(backend)
        thread, old = await backend.read_thread("t"), await backend.read_state("t")
        await backend.delete("t")
        await backend.write_thread(thread)
        found = await backend.read_state("t")
        stale = Expected(made_from=old.version.mark, head=old.head)
        with pytest.raises(ConflictError):
            await backend.write_state("t", {"n": "stale"}, expected=stale)
        fresh = Expected(made_from=found.version.mark, head=found.head)
        await backend.write_state("t", {**found.state, "n": 99}, expected=fresh)
        assert await backend.load("t") == {**found.state, "n": 99}
        assert await backend.damage() == []

    async def test_a_damaged_thread_is_refused(self, backend: Any) -> None:
        needs(backend, "branching")
        await self.grow(backend)
        thread = await backend.read_thread("t")
        await backend.delete("t")
        root = thread.lines[0]
        last = root.records[-1]
        flipped = last.payload[:-1] + bytes([last.payload[-1] ^ 1])
        for record in (
            replace(last, payload=flipped),
            replace(last, digest=bytes(16)),
            replace(last, parent=77),
            replace(last, checkpoint_id="v1"),
            replace(last, sequence=99),
        ):
            damaged = replace(root, records=[*root.records[:-1], record])
            with refused(IntegrityError, record):
                await backend.write_thread(replace(thread, lines=[damaged, *thread.lines[1:]]))
        assert await backend.scan() == []

    async def test_all_threads_are_scanned_in_the_order_of_their_ids(self, backend: Any) -> None:
        needs(backend, "list_threads")
        ids = sorted(HOSTILE_IDS)
        for name in HOSTILE_IDS:
            await backend.write_state(name, {"n": 1}, namespace="a" if len(name) == 1 else "")
        assert await backend.scan(len(ids) + 1) == ids
        found: list[str] = []
        after = None
        while page := await backend.scan(7, after=after):
            found, after = [*found, *page], page[-1]
        assert found == ids
        assert await backend.scan(0) == []

    async def test_what_expired_is_neither_scanned_nor_read(self, backend: Any) -> None:
        needs(backend, "branching", "ttl")
        await backend.write_state("t", {"n": 1}, ttl_seconds=1e-6)
        assert await backend.scan() == []
        assert await backend.read_thread("t") is None
        await backend.put_writes("t", "v", [PendingWrite("a", 0, "c", "t", b"1")])
        assert await backend.scan() == ["t"]
        assert await backend.load("t") is None

    async def test_a_user_is_forgotten_and_nobody_else(self, backend: Any) -> None:
        needs(backend, "branching", "metadata_query")
        await self.grow(backend, "by label")
        await backend.write_state("by label", {"n": 1}, labels={"user_id": "u"})
        await backend.save("by metadata", {"n": 1}, metadata={"user_id": "u"})
        await backend.save("by metadata", {"n": 2})
        await backend.save("other", {"n": 1}, metadata={"user_id": "U"})
        assert sorted(await backend.threads_of("u")) == ["by label", "by metadata"]
        counts = await backend.forget_user("u")
        assert counts["threads"] == 2
        assert counts["checkpoints"] >= 17
        assert counts["writes"] == 4
        assert await backend.scan() == ["other"]
        assert await backend.damage() == []
        again = await backend.forget_user("u")
        assert set(again.values()) == {0}


class StorageBackendContract(PendingWrites, WholeThreads):
    """The dict-shaped methods of a ``StorageBackend``, and what lies under the adapter."""

    async def test_a_dict_is_saved_and_loaded(self, backend: Any) -> None:
        data = {"list": list(NUMBERS), "text": list(TEXTS)}
        assert isinstance(await backend.save("t", data), str)
        found = await backend.load("t")
        assert type(found) is dict
        assert exact(found) == exact(data)
        assert await backend.load("unknown") is None

    async def test_saving_again_adds_a_version(self, backend: Any) -> None:
        one = await backend.save("t", {"n": 1})
        await backend.save("t", {"n": 2}, checkpoint_id="two", metadata={"k": 1})
        assert await backend.load("t") == {"n": 2}
        assert await backend.load("t", one) == {"n": 1}
        assert [it.checkpoint_id for it in await backend.history("t")] == ["two", one]

    async def test_delete_and_exists_answer_true_or_false(self, backend: Any) -> None:
        await backend.save("t", {"n": 1})
        assert await backend.exists("t") is True
        assert await backend.delete("t") is True
        assert await backend.exists("t") is False
        assert await backend.delete("t") is False

    async def test_threads_are_listed(self, backend: Any) -> None:
        needs(backend, "list_threads")
        await backend.save("t1", {"n": 1})
        await backend.save("t2", {"n": 1})
        assert await backend.list_threads() == ["t2", "t1"]
        assert await backend.list_threads(pattern="*1") == ["t1"]

    async def test_search_gives_thread_ids(self, backend: Any) -> None:
        needs(backend, "search")
        await backend.save("t1", {"text": "alpha beta"})
        await backend.save("t2", {"text": "alpha"})
        assert await backend.search("alpha beta") == ["t1"]
        assert set(await backend.search("alpha", limit=5)) == {"t1", "t2"}

    async def test_vacuum_counts_versions(self, backend: Any) -> None:
        needs(backend, "vacuum")
        await backend.save("t", {"n": 1})
        assert await backend.vacuum(older_than_days=30) == 0
        assert await backend.exists("t") is True

    async def test_an_agent_that_was_given_a_backend_is_told_the_factory(
        self, backend: Any
    ) -> None:
        state = AgentState()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: backend.save(state, "t"),
            lambda: backend.save(state, "t", "v1"),
            lambda: backend.save(state, "t", "v1", {"k": 1}),
            lambda: backend.save(state=state, thread_id="t"),
            lambda: backend.save(state=state, thread_id="t", metadata={}),
            lambda: backend.save({"n": 1}, "t"),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=backend.factory):
                await call()
        assert await backend.exists("t") is False

    async def test_namespaces_are_lines_of_their_own(self, backend: Any) -> None:
        names = ("", "a", "/", "//", "a:b", "%", "_", "'", "日本語", "x" * 255)
        for name in names:
            await backend.write_state("t", {"of": name}, namespace=name, checkpoint_id="v")
        for name in names:
            found = await backend.read_state("t", namespace=name)
            assert found.state == {"of": name}
            assert [it.namespace for it in await backend.history("t", namespace=name)] == [name]
        assert await backend.remove("t", ["v"], namespace="a") == 1
        left = [it for it in names if await backend.read_state("t", namespace=it)]
        assert left == [it for it in names if it != "a"]
        assert await backend.delete("t") is True
        assert [it for it in names if await backend.read_state("t", namespace=it)] == []

    async def test_a_line_without_the_root_namespace_is_no_thread(self, backend: Any) -> None:
        await backend.write_state("t", {"n": 1}, namespace="sub")
        assert await backend.load("t") is None
        assert await backend.exists("t") is False
        if backend.capabilities.list_threads:
            assert await backend.list_threads() == []
        assert await backend.delete("t") is True
        assert await backend.read_state("t", namespace="sub") is None

    async def test_parents_are_known(self, backend: Any) -> None:
        for n in range(3):
            await backend.save("t", {"n": n}, checkpoint_id=f"v{n}")
        await backend.write_state("t", {"n": 9}, checkpoint_id="fork", parent_id="v0")
        parents = {it.checkpoint_id: it.parent_id for it in await backend.history("t")}
        assert parents == {"fork": "v0", "v2": "v1", "v1": "v0", "v0": None}
        assert await backend.remove("t", ["v0", "v1"]) == 2
        parents = {it.checkpoint_id: it.parent_id for it in await backend.history("t")}
        assert parents == {"fork": None, "v2": None}

    async def test_versions_are_counted_by_the_server_and_never_again(self, backend: Any) -> None:
        marks = []
        for n in range(3):
            written = await backend.write_state("t", {"n": n}, checkpoint_id="v")
            marks.append(written.mark)
        assert marks == sorted(marks, key=lambda it: it.sequence)
        await backend.delete("t")
        written = await backend.write_state("t", {"n": 2}, checkpoint_id="v")
        assert written.mark.line not in {it.line for it in marks}
        assert written.mark.store == marks[0].store

    async def test_a_mark_of_another_incarnation_is_a_conflict(self, backend: Any) -> None:
        await backend.write_state("t", {"n": 1}, checkpoint_id="v")
        found = await backend.read_state("t")
        expected = Expected(made_from=found.version.mark, head=found.head)
        await backend.delete("t")
        await backend.write_state("t", {"n": 1}, checkpoint_id="v")
        with pytest.raises(ConflictError):
            await backend.write_state("t", {"n": 2}, expected=expected)

    async def test_times_are_the_servers_and_aware(self, backend: Any) -> None:
        for n in range(3):
            await backend.save("t", {"n": n})
        times = [it.created_at for it in await backend.history("t")]
        assert times == sorted(times, reverse=True)
        assert all(it.utcoffset() is not None for it in times)

    async def test_what_is_no_namespace_is_refused(self, backend: Any) -> None:
        for bad in filter(None, INVALID_IDS):
            with refused(InvalidArgumentError, bad, match="namespace"):
                await backend.write_state("t", {"n": 1}, namespace=bad)
            with refused(InvalidArgumentError, bad, match="namespace"):
                await backend.read_state("t", namespace=bad)
            with refused(InvalidArgumentError, bad, match="namespace"):
                await backend.history("t", namespace=bad)
