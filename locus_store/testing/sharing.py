"""Copies, hostile ids, concurrent callers, damaged storage."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from locus_store.errors import ConflictError, IntegrityError, InvalidArgumentError, NotFoundError
from locus_store.testing.kit import (
    HOSTILE_IDS,
    INVALID_IDS,
    INVALID_OPTIONAL_IDS,
    LOOPS,
    Another,
    Kit,
    StorageProbe,
    exact,
    expect,
    expect_invalid,
    fail_one_in_three,
    refused,
    requires,
    run_in_loops,
    run_while_closing,
    seam,
)


@seam("connection", "layout")
@requires("branching")
class Copying(Kit):
    """``copy_thread``."""

    async def test_a_copy_has_every_version(self, checkpointer: Any) -> None:
        ids = await self.grow(checkpointer, "t", "a", "b", "c")
        await checkpointer.save(self.new("x"), "t", "x", {"k": 1}, parent_checkpoint_id=ids[0])
        assert await checkpointer.copy_thread("t", "copy") is True
        assert await self.read_all_texts(checkpointer, "copy") == await self.read_all_texts(
            checkpointer, "t"
        )
        assert await self.read_texts(checkpointer, "copy") == ["x"]
        if checkpointer.capabilities.metadata_query:
            assert await checkpointer.get_metadata("copy") == {"k": 1}
        await checkpointer.delete("copy", "x")
        assert await self.read_texts(checkpointer, "copy") == ["a"]

    async def test_a_missing_source_is_false(self, checkpointer: Any) -> None:
        assert await checkpointer.copy_thread("unknown", "copy") is False
        assert await checkpointer.exists("copy") is False

    async def test_an_existing_destination_is_a_conflict(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")
        await self.grow(checkpointer, "copy", "b")
        for destination in ("copy", "t"):
            with pytest.raises(ConflictError, match=destination):
                await checkpointer.copy_thread("t", destination)
        assert await self.read_texts(checkpointer, "copy") == ["b"]
        assert await self.read_texts(checkpointer, "t") == ["a"]

    async def test_source_and_copy_continue_separately(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a", "b")
        await checkpointer.copy_thread("t", "copy")
        for name in ("t", "copy"):
            await checkpointer.save(self.said(await checkpointer.load(name), name), name)
        assert await self.read_texts(checkpointer, "t") == ["a", "b", "t"]
        assert await self.read_texts(checkpointer, "copy") == ["a", "b", "copy"]

    @pytest.mark.parametrize(("victim", "survivor"), [("t", "copy"), ("copy", "t")])
    async def test_deleting_either_leaves_the_other_whole(
        self, checkpointer: Any, victim: str, survivor: str
    ) -> None:
        ids = await self.grow(checkpointer, "t", "a", "b", "c")
        await checkpointer.copy_thread("t", "copy")
        before = await self.read_all_texts(checkpointer, survivor)
        await checkpointer.delete(victim, ids[1])
        assert await self.read_all_texts(checkpointer, survivor) == before
        await checkpointer.delete(victim)
        assert await self.read_all_texts(checkpointer, survivor) == before
        assert await self.read_texts(checkpointer, survivor) == ["a", "b", "c"]

    async def test_a_copy_keeps_what_its_source_may_not_show(self, another: Another) -> None:
        checkpointer = another(keep_last=2)
        ids = await self.grow(checkpointer, "t", "a", "b", "c", "d")
        await checkpointer.copy_thread("t", "copy")
        assert await checkpointer.list_checkpoints("copy") == ids[:1:-1]
        assert await checkpointer.load("copy", ids[0]) is None
        assert await self.read_texts(checkpointer, "copy") == ["a", "b", "c", "d"]


class Arguments(Kit):
    """Ids are data: every string is a valid id, and no other value is."""

    async def test_hostile_thread_ids_name_different_threads(self, checkpointer: Any) -> None:
        """An id of 255 characters is the longest."""
        names = (*HOSTILE_IDS, "é" * 255)
        for name in names:
            await checkpointer.save(self.new(f"of {name}"), name, "v")
        for name in names:
            assert await self.read_texts(checkpointer, name) == [f"of {name}"]
            assert await checkpointer.list_checkpoints(name) == ["v"]
        if checkpointer.capabilities.list_threads:
            assert await checkpointer.list_threads(limit=1000) == list(names[::-1])
        for name in names[::2]:
            assert await checkpointer.delete(name) is True
        assert [it for it in names if await checkpointer.exists(it)] == list(names[1::2])
        with refused(InvalidArgumentError, "é" * 256, match="255"):
            await checkpointer.load("é" * 256)

    async def test_hostile_checkpoint_ids_name_different_versions(self, checkpointer: Any) -> None:
        names = (*HOSTILE_IDS, "é" * 255)
        for name in names:
            await checkpointer.save(self.new(f"of {name}"), "t", name)
        told = {it: [f"of {it}"] for it in names[::-1]}
        assert [*(await self.read_all_texts(checkpointer, "t")).items()] == [*told.items()]
        for name in names[::2]:
            assert await checkpointer.delete("t", name) is True
            del told[name]
        assert await checkpointer.list_checkpoints("t", limit=1000) == [*told]

    async def test_thread_and_checkpoint_ids_are_not_joined(self, checkpointer: Any) -> None:
        for sign in ":/|%_. ":
            await checkpointer.save(self.new("1"), f"a{sign}b", "c")
            await checkpointer.save(self.new("2"), "a", f"b{sign}c")
            assert await self.read_texts(checkpointer, f"a{sign}b", "c") == ["1"]
            assert await self.read_texts(checkpointer, "a", f"b{sign}c") == ["2"]

    async def test_what_is_no_id_is_refused(self, checkpointer: Any) -> None:
        declared, state = checkpointer.capabilities, self.new("a")
        calls: list[Any] = [
            lambda it: checkpointer.save(state, it),
            checkpointer.load,
            checkpointer.delete,
            checkpointer.exists,
            checkpointer.list_checkpoints,
        ]
        if declared.metadata_query:
            calls.append(checkpointer.get_metadata)
        if declared.branching:
            calls.append(lambda it: checkpointer.copy_thread("t", it))
            calls.append(lambda it: checkpointer.copy_thread(it, "t"))
        await expect_invalid(INVALID_IDS, *calls)
        await expect_invalid(
            INVALID_OPTIONAL_IDS,
            lambda it: checkpointer.save(state, "t", it),
            lambda it: checkpointer.save(state, "t", parent_checkpoint_id=it),
            lambda it: checkpointer.load("t", it),
            lambda it: checkpointer.delete("t", it),
            lambda it: checkpointer.exists("t", it),
        )
        assert await checkpointer.exists("t") is False

    async def test_what_is_no_cursor_is_refused(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("a"), "t")
        calls: list[Any] = [lambda it: checkpointer.list_checkpoints("t", after=it)]
        if checkpointer.capabilities.list_threads:
            calls.append(lambda it: checkpointer.list_threads(after=it))
        bad = INVALID_OPTIONAL_IDS
        await expect((InvalidArgumentError, NotFoundError), bad, *calls)


@seam("connection")
class Concurrency(Kit):
    """One object serves many tasks, event loops and threads."""

    async def save_turns(self, checkpointer: Any, name: str) -> None:
        """Load and save a thread three times."""
        for turn in range(3):
            state = await checkpointer.load(name) or self.new()
            await checkpointer.save(self.said(state, f"{name} {turn}"), name)

    @seam("connection", "loop")
    async def test_64_savers_on_threads_of_their_own(self, checkpointer: Any) -> None:
        await asyncio.gather(*(self.save_turns(checkpointer, f"t{n}") for n in range(64)))
        for n in range(64):
            expected = [f"t{n} {turn}" for turn in range(3)]
            assert await self.read_texts(checkpointer, f"t{n}") == expected
            assert len(await checkpointer.list_checkpoints(f"t{n}")) == 3

    async def test_saves_without_a_load_are_all_kept(self, another: Another) -> None:
        """Of one object, and of several that make the same new thread at once."""
        objects = [another() for _ in range(4)]
        saves = [objects[n % 4].save(self.new(str(n)), "t", f"v{n}") for n in range(50)]
        assert await asyncio.gather(*saves) == [f"v{n}" for n in range(50)]
        told = await self.read_all_texts(objects[0], "t")
        assert told == {f"v{n}": [str(n)] for n in range(50)}

    @requires("branching")
    async def test_an_unused_object_reads_a_mark(self, backend: Any, another: Another) -> None:
        written = await backend.write_state("t", {"n": 1})
        assert (await another().backend.version("t")).mark == written.mark

    @seam("connection", "loop")
    async def test_closing_in_the_middle_breaks_no_save_or_load(self, checkpointer: Any) -> None:
        names = [f"t{n}" for n in range(12)]
        saves = [self.save_turns(checkpointer, it) for it in names]
        await run_while_closing(checkpointer, *saves)
        for name in names:
            expected = [f"{name} {turn}" for turn in range(3)]
            assert await self.read_texts(checkpointer, name) == expected

    @requires("list_threads")
    @seam("connection", "loop")
    async def test_closing_in_the_middle_breaks_no_list(self, checkpointer: Any) -> None:
        names = [f"t{n:02}" for n in range(40)]
        await asyncio.gather(*(checkpointer.save(self.new(), it) for it in names))
        lists = [checkpointer.list_threads() for _ in range(4)]
        assert [sorted(it) for it in await run_while_closing(checkpointer, *lists)] == [names] * 4

    @seam("loop")
    async def test_it_works_in_a_second_event_loop(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")

        async def turn() -> None:
            state = self.said(await checkpointer.load("t"), "b")
            await checkpointer.save(state, "t")
            await checkpointer.close()

        for _ in range(2):
            await asyncio.to_thread(asyncio.run, turn())
        assert await self.read_texts(checkpointer, "t") == ["a", "b", "b"]

    @seam("loop")
    async def test_it_works_in_several_loops_at_once(self, checkpointer: Any) -> None:
        async def save_turns(name: str) -> None:
            assert await checkpointer.load(name) is None
            state = self.new()
            for turn in range(10):
                state = self.said(state, str(turn))
                await checkpointer.save(state, name)
                assert len(self.texts(await checkpointer.load(name))) == turn + 1

        await run_in_loops(save_turns)
        for name in LOOPS:
            assert await self.read_texts(checkpointer, name) == list(map(str, range(10)))

    async def test_a_reader_sees_a_version_whole(self, checkpointer: Any, other: Any) -> None:
        done = asyncio.Event()
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
        saved = await fail_one_in_three(lambda n: checkpointer.save({"n": n}, f"t{n}"))
        assert [n for n in range(30) if await checkpointer.exists(f"t{n}")] == saved


@seam("connection", "layout")
class Integrity(Kit):
    """Damaged storage is reported, and never read as something else."""

    @pytest.mark.parametrize(
        "change",
        [lambda it: it[:-1], lambda it: it + b"\0", lambda it: b"", lambda it: it[::-1]],
        ids=["cut", "longer", "empty", "reversed"],
    )
    async def test_damage_is_told(
        self, checkpointer: Any, other: Any, below: StorageProbe, change: Any
    ) -> None:
        await self.grow(checkpointer, "t", "a", "b")
        below.damage(change)
        with pytest.raises(IntegrityError):
            await other.load("t")

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
        self, checkpointer: Any, other: Any, below: StorageProbe
    ) -> None:
        await checkpointer.save(self.holding(["text " * 100, 1, 2.5]), "t")
        saved = self.held(await checkpointer.load("t"))
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
