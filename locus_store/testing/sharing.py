"""Copies, hostile ids, concurrent callers, damaged storage."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.errors import (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    SerializationError,
)
from locus_store.testing.kit import (
    HOSTILE_IDS,
    INVALID_IDS,
    Another,
    Kit,
    StorageProbe,
    exact,
    refused,
    requires,
    seam,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@seam("connection", "layout")
@requires("branching")
class Copying(Kit):
    """``copy_thread``."""

    async def test_a_copy_has_every_version(self, checkpointer: Any) -> None:
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
        assert await checkpointer.copy_thread("unknown", "copy") is False
        assert await checkpointer.exists("copy") is False

    async def test_an_existing_destination_is_a_conflict(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")
        await self.grow(checkpointer, "copy", "b")
        for destination in ("copy", "t"):
            with pytest.raises(ConflictError, match=destination):
                await checkpointer.copy_thread("t", destination)
        assert await self.said_in(checkpointer, "copy") == ["b"]
        assert await self.said_in(checkpointer, "t") == ["a"]

    async def test_source_and_copy_continue_separately(self, checkpointer: Any) -> None:
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
        ids = await self.grow(checkpointer, "t", "a", "b", "c", "d")
        await checkpointer.copy_thread("t", "copy")
        assert await checkpointer.list_checkpoints("copy") == ids[:1:-1]
        assert await checkpointer.load("copy", ids[0]) is None
        assert await self.said_in(checkpointer, "copy") == ["a", "b", "c", "d"]


class Arguments(Kit):
    """Ids are data: every string is a valid id, and no other value is."""

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
    """Return every call that takes these ids."""
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


@seam("connection")
class Concurrency(Kit):
    """One object serves many tasks, event loops and threads."""

    @seam("connection", "loop")
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

    @seam("connection", "loop")
    async def test_closing_in_the_middle_breaks_no_save_and_no_load(
        self, checkpointer: Any
    ) -> None:
        async def talk(name: str) -> None:
            for turn in range(5):
                state = await checkpointer.load(name) or self.new()
                await checkpointer.save(self.said(state, str(turn)), name)

        names = [f"t{n}" for n in range(8)]
        talks = asyncio.gather(*map(talk, names))
        while not talks.done():
            await checkpointer.close()
            await asyncio.sleep(0)  # not every storage waits for anything
        await talks
        for name in names:
            assert await self.said_in(checkpointer, name) == list(map(str, range(5)))

    @seam("connection", "loop")
    @requires("list_threads")
    async def test_closing_in_the_middle_breaks_no_list(self, checkpointer: Any) -> None:
        names = [f"t{n:02}" for n in range(40)]
        await asyncio.gather(*(checkpointer.save(self.new(), it) for it in names))
        lists = asyncio.gather(*(checkpointer.list_threads() for _ in range(4)))
        while not lists.done():
            await checkpointer.close()
            await asyncio.sleep(0)
        assert [sorted(it) for it in await lists] == [names] * 4

    @seam("loop")
    async def test_it_works_in_a_second_event_loop(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")

        async def turn() -> None:
            state = self.said(await checkpointer.load("t"), "b")
            await checkpointer.save(state, "t")
            await checkpointer.close()

        for _ in range(2):
            await asyncio.to_thread(lambda: asyncio.run(turn()))
        assert await self.said_in(checkpointer, "t") == ["a", "b", "b"]

    @seam("loop")
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

    @seam("connection", "loop")
    async def test_a_failing_save_harms_no_other(self, checkpointer: Any) -> None:
        saves = [
            checkpointer.save({"n": float("nan")} if n % 3 == 0 else {"n": n}, f"t{n}")
            for n in range(30)
        ]
        results = await asyncio.gather(*saves, return_exceptions=True)
        failed = [n for n, it in enumerate(results) if isinstance(it, SerializationError)]
        assert failed == list(range(0, 30, 3))
        assert [n for n in range(30) if not await checkpointer.exists(f"t{n}")] == failed


@seam("connection", "layout")
class Integrity(Kit):
    """Damaged storage is reported, and never read as something else."""

    @pytest.mark.parametrize(
        "change",
        [lambda it: it[:-1], lambda it: it + b"\0", lambda it: b"", lambda it: it[::-1]],
        ids=["cut", "longer", "empty", "reversed"],
    )
    async def test_damage_is_told(
        self, checkpointer: Any, another: Another, below: StorageProbe, change: Any
    ) -> None:
        await self.grow(checkpointer, "t", "a", "b")
        below.damage(change)
        with pytest.raises(IntegrityError):
            await another().load("t")

    async def test_another_versions_bytes_are_told(
        self, checkpointer: Any, another: Another, below: StorageProbe
    ) -> None:
        seen = list[bytes]()
        await checkpointer.save(self.holding("mine"), "t")
        await checkpointer.save(self.holding("secret of another thread"), "u")
        below.damage(lambda payload: seen.append(payload) or payload)  # type: ignore[func-returns-value]
        below.damage(lambda _: seen[1])
        with pytest.raises(IntegrityError):
            await another().load("t")

    async def test_a_flipped_bit_is_told(
        self, checkpointer: Any, another: Another, below: StorageProbe
    ) -> None:
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
    """Flips one bit of a payload; a second flip restores it."""

    def __init__(self, place: int) -> None:
        self._dice = random.Random(place).random()  # noqa: S311  (test data)

    def __call__(self, payload: bytes) -> bytes:
        bit = int(self._dice * len(payload) * 8)
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)
