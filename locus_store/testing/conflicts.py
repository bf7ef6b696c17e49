"""Conflicts: the second writer's error, and side branches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import pytest

from locus_store.backend import StorageBackend
from locus_store.errors import ConflictError, InvalidArgumentError
from locus_store.testing.kit import Another, Kit, StorageProbe, refused, seam
from locus_store.types import Expected


class Conflicts(Kit):
    """No acknowledged save is lost silently."""

    async def contest(self, checkpointer: Any, another: Another) -> tuple[Any, str, str]:
        """Return a loaded state whose thread another writer has changed, its head and parent."""
        (parent,) = await self.grow(checkpointer, "t", "a")
        mine, other = await checkpointer.load("t"), another()
        head = await other.save(self.said(await other.load("t"), "theirs"), "t")
        return mine, head, parent

    async def test_a_second_writer_is_told(self, checkpointer: Any, another: Another) -> None:
        mine, head, parent = await self.contest(checkpointer, another)
        with pytest.raises(ConflictError) as conflict:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert (conflict.value.head_id, conflict.value.parent_id) == (head, parent)
        for hint in ("'t'", "Load the thread", 'on_conflict="branch"'):
            assert hint in str(conflict.value)
        await checkpointer.save(self.said(await checkpointer.load("t"), "mine"), "t")
        assert await self.read_texts(another(), "t") == ["a", "theirs", "mine"]

    async def test_a_load_sees_the_save_of_an_abandoned_run(
        self, checkpointer: Any, backend: Any
    ) -> None:
        async def run(text: str) -> AsyncGenerator[None]:
            state = self.said(await checkpointer.load("t") or self.new(), text)
            try:
                yield
            finally:
                await checkpointer.save(state, "t")

        for text in ("first", "second"):
            await run(text).__anext__()
        assert await self.read_texts(checkpointer, "t") == ["first", "second"]

    async def test_a_conflict_writes_nothing(
        self, checkpointer: Any, another: Another, storage: StorageProbe | None
    ) -> None:
        mine, head, parent = await self.contest(checkpointer, another)
        before = storage.rows() if storage else 0
        for _ in range(2):
            with pytest.raises(ConflictError):
                await checkpointer.save(self.said(mine, "mine"), "t", "lost", {"k": "lost"})
        left = {head: ["a", "theirs"], parent: ["a"]}
        assert await self.read_all_texts(checkpointer, "t") == left
        assert await self.read_texts(checkpointer, "t") == ["a", "theirs"]
        assert await checkpointer.exists("t", "lost") is False
        assert storage is None or storage.rows() == before

    async def test_a_thread_with_another_head_than_the_given_one_is_not_deleted(
        self, checkpointer: Any, backend: Any
    ) -> None:
        await self.grow(checkpointer, "t", "a", "b")
        seen = (await backend.version("t")).mark
        await self.grow(checkpointer, "other", "a", "b")
        other = (await backend.version("other")).mark
        await checkpointer.save(self.new("c"), "t")
        before = await self.read_all_texts(checkpointer, "t")
        for head, namespace in ((seen, ""), (other, ""), (seen, "elsewhere")):
            with pytest.raises(ConflictError, match="nothing was changed"):
                await backend.remove_thread("t", head=head, namespace=namespace)
        with pytest.raises(ConflictError, match="nothing was changed"):
            await backend.remove_thread("unknown", head=seen)
        assert await self.read_all_texts(checkpointer, "t") == before
        head = (await backend.version("t")).mark
        assert tuple(await backend.remove_thread("t", head=head)) == (True, 3)
        assert await checkpointer.exists("t") is False

    async def test_no_version_is_lost_that_was_saved_after_the_given_head(
        self, checkpointer: Any, backend: Any, other: Any
    ) -> None:
        if type(backend).remove_thread is StorageBackend.remove_thread:
            pytest.skip("compares the head before the removal")
        for number in range(20):
            await checkpointer.save(self.new("a"), "t", f"first {number}")
            head = (await backend.version("t")).mark
            done: Any = await asyncio.gather(
                other.save(self.new("b"), "t", f"second {number}"),
                backend.remove_thread("t", head=head),
                return_exceptions=True,
            )
            assert isinstance(done[0], str), done
            assert await self.read_texts(checkpointer, "t") == ["b"]

    async def test_a_side_branch_grows_beside_the_head(
        self, checkpointer: Any, another: Another
    ) -> None:
        state, head, parent = await self.contest(checkpointer, another)
        sides = []
        for text in "xyz":
            state = self.said(state, text)
            sides.append(await checkpointer.save(state, "t", on_conflict="branch"))
        assert await checkpointer.list_checkpoints("t") == [*sides[::-1], head, parent]
        assert await self.read_texts(another(), "t") == ["a", "theirs"]
        assert await self.read_texts(another(), "t", sides[-1]) == ["a", "x", "y", "z"]

    async def test_a_head_falls_back_to_an_ancestor(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, parent = await self.contest(checkpointer, another)
        side = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
        await checkpointer.delete("t", head)
        assert await self.read_texts(another(), "t") == ["a"]
        assert await self.read_all_texts(another(), "t") == {side: ["a", "mine"], parent: ["a"]}

    @pytest.mark.parametrize("has_parent", [True, False])
    async def test_a_save_onto_a_side_branch_makes_it_the_head(
        self, checkpointer: Any, another: Another, has_parent: bool
    ) -> None:
        mine, head, _ = await self.contest(checkpointer, another)
        side = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
        other = another()
        state = self.said(await other.load("t", side), "on")
        await other.save(state, "t", parent_checkpoint_id=side if has_parent else None)
        assert await self.read_texts(another(), "t") == ["a", "mine", "on"]
        assert await self.read_texts(another(), "t", head) == ["a", "theirs"]

    async def test_overwrite_makes_a_state_the_head(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, parent = await self.contest(checkpointer, another)
        won = await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="overwrite")
        assert await self.read_texts(another(), "t") == ["a", "mine"]
        assert await self.read_all_texts(another(), "t") == {
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
        assert await self.read_texts(another(), "t") == ["a", "theirs"]
        assert await self.read_texts(another(), "t", "side") == ["a", "mine"]

    async def test_an_unknown_on_conflict_is_refused(
        self, checkpointer: Any, reopen: Another
    ) -> None:
        for choice in ("", "RAISE", "ignore", 1):
            with refused(InvalidArgumentError, choice, match="on_conflict"):
                reopen(on_conflict=choice)
            with refused(InvalidArgumentError, choice, match="on_conflict"):
                await checkpointer.save(self.new("a"), "t", on_conflict=choice)
        assert await checkpointer.exists("t") is False

    async def test_of_two_first_turns_one_fails(self, checkpointer: Any, other: Any) -> None:
        assert await checkpointer.load("t") is None
        assert await other.load("t") is None
        theirs = await other.save(self.new("theirs"), "t")
        with pytest.raises(ConflictError) as conflict:
            await checkpointer.save(self.new("mine"), "t")
        assert (conflict.value.head_id, conflict.value.parent_id) == (theirs, None)
        assert await self.read_all_texts(checkpointer, "t") == {theirs: ["theirs"]}

    async def test_of_racing_writers_one_wins(self, checkpointer: Any, another: Another) -> None:
        """The first turn, and the turns after it."""
        objects = [checkpointer, another(), another(), another()]
        for turn in range(6):
            loaded = [await it.load("t") or self.new() for it in objects]
            states = [self.said(it, str(turn)) for it in loaded]
            saves = (it.save(state, "t") for it, state in zip(objects, states, strict=True))
            results = await asyncio.gather(*saves, return_exceptions=True)
            assert sum(isinstance(it, str) for it in results) == 1
            assert sum(isinstance(it, ConflictError) for it in results) == 3
        assert await self.read_texts(another(), "t") == list("012345")
        assert len(await checkpointer.list_checkpoints("t")) == 6

    @pytest.mark.parametrize(
        "change",
        ["created again", "thread deleted", "head deleted", "head replaced", "parent replaced"],
    )
    async def test_a_save_made_from_a_version_that_is_gone_is_a_conflict(
        self, checkpointer: Any, another: Another, change: str
    ) -> None:
        state, other = self.new("a"), another()
        for name in ("v1", "v2"):
            await checkpointer.save(state, "t", name, {"k": 1})
        mine = await checkpointer.load("t")
        if change in {"created again", "thread deleted"}:
            await other.delete("t")
        if change == "created again":
            for name in ("v1", "v2"):
                await other.save(state, "t", name, {"k": 1})
        elif change == "head deleted":
            await other.delete("t", "v2")
        elif change != "thread deleted":
            await other.save(self.new("b"), "t", "v2" if change == "head replaced" else "v1")
        left = await self.read_all_texts(other, "t")
        with pytest.raises(ConflictError) as conflict:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert conflict.value.head_id == next(iter(left), None)
        assert await self.read_all_texts(another(), "t") == left
        if not left:
            await checkpointer.save(self.said(mine, "mine"), "t", on_conflict="branch")
            assert await self.read_texts(another(), "t") == ["a", "mine"]

    async def test_a_save_after_deleting_ones_own_head_succeeds(self, checkpointer: Any) -> None:
        one, _ = await self.grow(checkpointer, "t", "a", "b")
        state = self.said(await checkpointer.load("t"), "c")
        wrong = await checkpointer.save(state, "t")
        await checkpointer.delete("t", wrong)
        assert await self.read_texts(checkpointer, "t") == ["a", "b"]
        right = await checkpointer.save(self.said(state, "d"), "t")
        told = await self.read_all_texts(checkpointer, "t")
        assert (told[right], told[one]) == (list("abcd"), ["a"])
        assert await self.read_texts(checkpointer, "t") == list("abcd")

    @pytest.mark.parametrize("has_head_id", [True, False])
    async def test_a_losing_save_is_kept_beside_the_head_and_replaces_nothing(
        self, checkpointer: Any, another: Another, has_head_id: bool
    ) -> None:
        mine, head, parent = await self.contest(checkpointer, another)
        name = head if has_head_id else None
        side = await checkpointer.save(self.said(mine, "mine"), "t", name, on_conflict="branch")
        assert side != head
        assert await self.read_all_texts(another(), "t") == {
            side: ["a", "mine"], head: ["a", "theirs"], parent: ["a"],
        }  # fmt: skip
        assert await self.read_texts(another(), "t") == ["a", "theirs"]

    @pytest.mark.parametrize("has_head_id", [True, False])
    async def test_a_losing_save_whose_answer_was_lost_is_kept_once(
        self, backend: Any, has_head_id: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        marks = [
            (await backend.write_state("t", {"n": n}, checkpoint_id=f"v{n}")).mark for n in (1, 2)
        ]
        commit = backend.commit

        async def repeat(save: Any) -> Any:
            await commit(save)
            return await commit(save)

        monkeypatch.setattr(backend, "commit", repeat)
        name = "v2" if has_head_id else "side"
        expected = Expected(made_from=marks[0], head=marks[0])
        options = {"checkpoint_id": name, "expected": expected, "on_conflict": "branch"}
        side = await backend.write_state("t", {"n": 3}, **options)
        assert [it.checkpoint_id for it in await backend.history("t")] == [
            side.checkpoint_id, "v2", "v1",
        ]  # fmt: skip
        assert (await backend.load("t"), side.outcome) == ({"n": 2}, "side")

    @pytest.mark.parametrize("is_own", [False, True])
    async def test_deleting_an_older_version_causes_no_conflict(
        self, checkpointer: Any, other: Any, is_own: bool
    ) -> None:
        one, two, three = await self.grow(checkpointer, "t", "a", "b", "c")
        mine, other = await checkpointer.load("t"), checkpointer if is_own else other
        await other.delete("t", one)
        await other.delete("t", two)
        four = await checkpointer.save(self.said(mine, "d"), "t")
        assert await self.read_all_texts(other, "t") == {four: list("abcd"), three: list("abc")}

    async def test_a_poller_moves_no_callers_mark(
        self, checkpointer: Any, another: Another
    ) -> None:
        mine, head, _ = await self.contest(checkpointer, another)
        for _ in range(3):
            assert await asyncio.create_task(self.read_texts(checkpointer, "t")) == ["a", "theirs"]
        with pytest.raises(ConflictError) as conflict:
            await checkpointer.save(self.said(mine, "mine"), "t")
        assert conflict.value.head_id == head

    async def test_two_runs_of_one_object_are_told_apart(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")

        async def run(text: str, signal: asyncio.Event, go: asyncio.Event) -> str:
            state = await checkpointer.load("t")
            signal.set()
            await go.wait()
            return str(await checkpointer.save(self.said(state, text), "t"))

        if not self.carries_marks:
            pytest.skip("a state without a mark: one context, one run")
        go, events = asyncio.Event(), [asyncio.Event(), asyncio.Event()]
        runs = [
            asyncio.create_task(run(text, event, go))
            for text, event in zip("xy", events, strict=True)
        ]
        for event in events:
            await event.wait()
        go.set()
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert sum(isinstance(it, ConflictError) for it in results) == 1
        assert len(await checkpointer.list_checkpoints("t")) == 2

    @seam("loop", "state")
    @pytest.mark.parametrize("way", ["wait_for", "gather", "create_task", "thread"])
    async def test_a_load_is_remembered_whatever_it_came_through(
        self, checkpointer: Any, other: Any, way: str
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        mine = await _await_through(way, lambda: checkpointer.load("t"))
        await other.save(self.said(await other.load("t"), "theirs"), "t")
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(mine, "mine"), "t")

    @seam("loop", "state")
    async def test_own_saves_go_on_whatever_they_come_through(self, checkpointer: Any) -> None:
        for loads, saves in product(["wait_for", "gather", "thread"], repeat=2):
            name = f"{loads} {saves}"
            await self.grow(checkpointer, name, "a")
            state = await _await_through(loads, lambda it=name: checkpointer.load(it))  # type: ignore[misc]
            for text in "bcd":
                state = self.said(state, text)
                save = partial(checkpointer.save, state, name)
                await _await_through(saves, save)
            assert await self.read_texts(checkpointer, name) == list("abcd")

    @pytest.mark.parametrize("before", [[], ["a"]])
    async def test_a_cancelled_save_does_not_conflict_with_its_own_run(
        self, checkpointer: Any, before: list[str]
    ) -> None:
        for passes in range(10):
            name = f"t{passes}"
            await self.grow(checkpointer, name, *before)
            state = self.said(await checkpointer.load(name) or self.new(), "step")
            saving = asyncio.create_task(checkpointer.save(state, name, "step"))
            for _ in range(passes):
                await asyncio.sleep(0)
            saving.cancel()
            with suppress(asyncio.CancelledError):
                await saving
            await checkpointer.save(self.said(state, "final"), name, "final")
            assert await self.read_texts(checkpointer, name) == [*before, "step", "final"]
            assert (await checkpointer.list_checkpoints(name))[0] == "final"


async def _await_through(way: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a call in a way in which callers lose their context."""

    async def called() -> Any:
        return await call()

    if way == "wait_for":
        return await asyncio.wait_for(called(), timeout=60)
    if way == "gather":
        return (await asyncio.gather(called()))[0]
    if way == "create_task":
        return await asyncio.create_task(called())
    return await asyncio.to_thread(asyncio.run, called())
