"""``max_state_bytes``: states above it are refused, skipped and reported, and no others."""

from __future__ import annotations

import logging
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from locus_store.errors import IntegrityError, InvalidArgumentError, SerializationError
from locus_store.saver import CheckpointSaver
from locus_store.testing.kit import Another, Kit, StorageProbe, exact, limited, refused, requires
from locus_store.testing.steps import BackendKit, problems
from locus_store.types import PendingWrite, Vacuumed
from locus_store.values import frames
from locus_store.values.encoding import pack_frame
from locus_store.versions import JSON_WRITE

LIMIT = 20_000
LARGE = 50 * LIMIT
BOMB_BYTES = 64 * 1024 * 1024


class LimitRules(Kit):
    """A state above ``max_state_bytes`` is neither saved nor read; any other state is both."""

    async def plant(self, another: Another, thread_id: str = "large") -> Any:
        """Save a state above the limit by an object with a larger one; it compresses well."""
        generous = another(max_state_bytes=2 * LARGE)
        await generous.save(self.holding("needle " + "a" * LARGE), thread_id, "v")
        return generous

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", None, True])
    async def test_max_state_bytes_is_checked(self, another: Another, wrong: Any) -> None:
        with refused(InvalidArgumentError, wrong, match="max_state_bytes"):
            another(max_state_bytes=wrong)

    async def test_a_state_above_the_limit_is_not_saved(self, another: Another) -> None:
        limited = another(max_state_bytes=LIMIT)
        await limited.save(self.new("small"), "t", "v1")
        for thread_id in ("t", "new"):
            with pytest.raises(SerializationError, match="max_state_bytes=20000"):
                await limited.save(self.holding("a" * LIMIT), thread_id, "v2")
        assert await limited.list_checkpoints("t") == ["v1"]
        assert await self.said_in(limited, "t") == ["small"]
        assert not await limited.exists("new")

    async def test_what_save_accepts_is_loaded(self, another: Another) -> None:
        limited = another(max_state_bytes=LIMIT)
        dice = random.Random(11)  # noqa: S311  (test data)
        accepted = dict[str, Any]()
        value: Any = _value(dice)
        for number in range(60):
            value = _value(dice) if dice.random() < 0.3 else _changed(dice, value)
            try:
                await limited.save(self.holding(value), "t", f"v{number}")
            except SerializationError:
                value = _value(dice)
            else:
                accepted[f"v{number}"] = exact(value)
        assert 20 < len(accepted) < 60
        other = another(max_state_bytes=LIMIT)
        for name, expected in accepted.items():
            assert exact(self.held(await other.load("t", name))) == expected

    async def test_a_stored_state_above_the_limit_is_not_loaded(self, another: Another) -> None:
        generous = await self.plant(another)
        limited = another(max_state_bytes=LIMIT)
        with pytest.raises(IntegrityError, match="max_state_bytes=20000"):
            await limited.load("large")
        with pytest.raises(IntegrityError, match="max_state_bytes=20000"):
            await limited.load("large", "v")
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
        with _peak() as peak, pytest.raises(IntegrityError):
            await limited.load("t")
        assert peak[0] < BOMB_BYTES // 8


class BackendLimits(BackendKit):
    """The limit below a checkpointer: whole threads, pending writes, verification."""

    async def plant(self, backend: Any) -> None:
        """Save a state and a pending write above the limit."""
        await backend.write_state("large", {"value": "a" * LARGE}, checkpoint_id="v")
        payload = frames.encode_value("a" * LARGE, 2 * LARGE)
        await backend.put_writes("large", "v", [PendingWrite("task", 0, "c", JSON_WRITE, payload)])

    @requires("branching")
    async def test_an_archived_state_above_the_limit_is_not_restored(self, backend: Any) -> None:
        await self.plant(backend)
        archived = replace(await backend.read_thread("large"), thread_id="copy")
        (line,) = archived.lines
        for name, it in {
            "checkpoint": replace(line, writes=[]),
            "pending write": replace(line, records=[], head=None),
        }.items():
            with refused(IntegrityError, name, match="max_state_bytes=20000"):
                await limited(backend, LIMIT).write_thread(replace(archived, lines=[it]))
        assert await backend.read_thread("copy") is None

    @requires("branching")
    async def test_a_check_reports_what_is_above_the_limit(self, backend: Any) -> None:
        await self.plant(backend)
        found = await problems(limited(backend, LIMIT))
        assert len(found) == 2
        assert all("max_state_bytes=20000" in it for it in found)

    async def sized(self, backend: Any, thread_id: str, versions: int = 4) -> Any:
        """Save ``v0`` above the limit, and smaller versions that are stored as changes.

        Returns:
            A backend with the limit.
        """
        for n in range(versions):
            state = {"body": "b" * 1000, "value": n or "a" * LARGE}
            await backend.write_state(thread_id, state, checkpoint_id=f"v{n}")
        return limited(backend, LIMIT)

    async def numbers(self, backend: Any, thread_id: str) -> list[int]:
        """Return the values of the thread's versions below the limit, newest first."""
        ids = [it.checkpoint_id for it in await backend.history(thread_id, limit=1_000)]
        found = [await backend.load(thread_id, it) for it in ids if it != "v0"]
        return [state["value"] for state in found]

    async def test_a_save_is_not_failed_by_its_sweep(
        self, backend: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        small = await self.sized(backend, "large", 90)
        await backend.delete("large", "v3")
        with caplog.at_level(logging.WARNING, "locus_store.operations"):
            for n in range(90, 93):
                await small.write_state("large", {"value": n}, checkpoint_id=f"v{n}", keep_last=20)
        assert "thread 'large'" in caplog.text
        assert "max_state_bytes=20000" in caplog.text
        assert await self.numbers(backend, "large") == list(range(92, 72, -1))
        assert await small.load("large") == {"value": 92}
        assert await problems(backend) == []

    async def test_a_later_save_sweeps_what_an_earlier_one_left(
        self, backend: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        small = await self.sized(backend, "large", 90)
        for n in range(90, 95):
            await small.write_state("large", {"value": n}, checkpoint_id=f"v{n}", keep_last=20)
        caplog.clear()
        for n in range(95, 113):
            await small.write_state("large", {"value": n}, checkpoint_id=f"v{n}", keep_last=2)
        if backend.capabilities.branching:
            (line,) = (await backend.read_thread("large")).lines
            assert line.records[0].sequence > 90
        assert not caplog.records
        assert await problems(small) == []

    async def test_a_version_above_the_limit_without_children_is_deleted(
        self, backend: Any
    ) -> None:
        small = await self.sized(backend, "large", 1)
        await small.write_state("large", {"value": 1}, checkpoint_id="v1")
        assert await small.delete("large", "v0") is True
        assert await problems(small) == []

    async def test_deleting_beside_a_version_above_the_limit_names_it(self, backend: Any) -> None:
        small = await self.sized(backend, "large")
        for name in ("v0", "v1", "v2"):
            with refused(IntegrityError, name, match="max_state_bytes=20000"):
                await small.delete("large", name)
        assert await self.numbers(backend, "large") == [3, 2, 1]
        assert await problems(backend) == []
        assert await small.delete("large", "v3") is True
        assert await small.delete("large") is True
        assert await small.exists("large") is False

    @requires("branching", "vacuum")
    async def test_vacuum_goes_on_behind_a_thread_above_the_limit(
        self, backend: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("a large one", "t"):
            small = await self.sized(backend, name)
            if name == "t":
                await backend.delete(name, "v0")
            await self.make_old(backend, name)
        with caplog.at_level(logging.WARNING, "locus_store.operations"):
            report = await small.vacuum_report(30)
        assert report == Vacuumed(removed=1, skipped=0, unreadable=1)
        assert "thread 'a large one'" in caplog.text
        assert await self.numbers(backend, "t") == [3, 2]
        assert await self.numbers(backend, "a large one") == [3, 2, 1]
        assert await small.vacuum(30) == 0
        assert await problems(backend) == []

    async def make_old(self, backend: Any, thread_id: str) -> None:
        """Make the first version of a thread older."""
        thread = await backend.read_thread(thread_id)
        (line,) = thread.lines
        first, *rest = line.records
        old = replace(first, created_at=first.created_at - timedelta(days=40))
        await backend.delete(thread_id)
        await backend.write_thread(replace(thread, lines=[replace(line, records=[old, *rest])]))

    @requires("branching")
    async def test_a_write_above_the_limit_is_neither_saved_nor_read(self, backend: Any) -> None:
        saver = CheckpointSaver(limited(backend, LIMIT))
        of: dict[str, Any] = {"thread_id": "t"}
        await saver.put(**of, checkpoint_id="v", checkpoint_data={"channel_values": {"c": "a"}})
        of["checkpoint_id"] = "v"
        for large in ("a" * LARGE, ["a" * 1000] * 30):
            with pytest.raises(SerializationError, match="max_state_bytes=20000"):
                await saver.put_writes(**of, task_id="task", writes=[("c", large)])
        assert await backend.get_writes("t", "v") == []
        writes = [("c", "a" * LARGE)]
        await CheckpointSaver(backend).put_writes(**of, task_id="task", writes=writes)
        with pytest.raises(IntegrityError, match="max_state_bytes=20000"):
            await saver.get_writes(**of)


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Return the peak memory in bytes, above that at the start."""
    peak = [0]
    tracemalloc.start()
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _value(dice: random.Random) -> Any:
    """Return a value about as large as the limit, of a different form each time."""
    size = dice.randrange(LIMIT * 9 // 10, LIMIT)
    forms: Any = ("a" * size, "\x01" * (size // 6), ["b" * 90] * (size // 93), [[]] * (size // 3))
    if dice.random() < 0.2:  # a long key, which every change below it repeats
        return {"k" * (size // 2): {str(it): 0 for it in range(size // 20)}}
    return dice.choice(forms)


def _changed(dice: random.Random, value: Any) -> Any:
    if isinstance(value, str):
        at = dice.randrange(len(value) + 1)
        return value[:at] + dice.choice(("", "\x01é", "c" * 40)) + value[at + dice.randrange(60) :]
    if isinstance(value, list):
        at = dice.randrange(len(value) + 1)
        gone = dice.randrange(40)
        return [*value[:at], *([f"{dice.random()}"] * dice.randrange(40)), *value[at + gone :]]
    ((key, below),) = value.items()
    return {key: {it: below[it] + 1 for it in below}}
