"""Versions, their parents, and the version that a save is made from."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.backends.memory.backend import MemoryCheckpointer
from locus_store.errors import (
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
)
from locus_store.testing.kit import INVALID_LIMITS, Another, Kit, StorageProbe, needs, refused, seam

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class HistoryRules(Kit):
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
        for hundred in range(0, 1_100, 100):
            numbers = range(hundred, hundred + 100)
            await asyncio.gather(*(checkpointer.save({"n": n}, "t", f"v{n}") for n in numbers))
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
    """Return every declared operation that takes a limit."""
    declared = checkpointer.capabilities
    calls = {
        "list_threads": lambda limit: checkpointer.list_threads(limit=limit),
        "list_with_metadata": lambda limit: checkpointer.list_with_metadata(limit=limit),
        "metadata_query": lambda limit: checkpointer.query_by_metadata("k", 1, limit=limit),
        "search": lambda limit: checkpointer.search("word", limit=limit),
    }
    listed = [call for name, call in calls.items() if getattr(declared, name)]
    return [lambda limit: checkpointer.list_checkpoints("t", limit=limit), *listed]


@seam("state")
class LineageRules(Kit):
    """Saves after a load: own work, rewinds, forks, repeats and replaced ids."""

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

    async def test_a_save_made_from_a_replaced_version_is_a_conflict(
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
