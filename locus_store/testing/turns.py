"""Turns: one holder of a thread at a time, and no write of those who do not hold it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

import pytest

from locus_store.backend import StoresWrites
from locus_store.errors import InvalidArgumentError, TurnError
from locus_store.runtime import holding
from locus_store.testing.kit import (
    HOSTILE_IDS,
    LOOPS,
    SHORT,
    Another,
    Kit,
    MessageLogKit,
    make_new,
    requires,
    run_in_loops,
    seam,
    wait_for_expiry,
)
from locus_store.testing.steps import make_write
from locus_store.types.turns import TurnStep

LONG = 600
"""A lease that outlives the test."""


def run_outside(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run a coroutine as another client does: in no turn of this context."""
    return asyncio.get_running_loop().create_task(work, context=Context())


async def wait_for_turns(checkpointer: Any, count: int) -> None:
    """Wait until so many turns are held or wait."""
    while len(await checkpointer.turns()) != count:
        await asyncio.to_thread(bool)  # not every storage waits for anything


async def take(backend: Any, thread_id: str, key: str = "dead", *, seconds: float = SHORT) -> int:
    """Take a turn, or wait for one, as a process does that is killed then; return its number."""
    step = TurnStep(
        thread_id=thread_id, turn_key=key, owner="dead", lease_seconds=seconds, entry="queue"
    )
    found = await backend.step_turn(step)
    [number] = [it.number for it in found if it.turn_key == key]
    return int(number)


async def run_within(backend: Any, turn: int, work: Coroutine[Any, Any, Any]) -> None:
    """Run a write to the thread "t" that belongs to a turn of this number."""
    place = holding.make_place(backend, "t")
    holding.hold(place, turn)
    try:
        await work
    finally:
        holding.release(place)


@requires("turns")
class Turns(Kit):
    """``turn``, ``busy``, ``turns`` and ``release_turn``, and what they mean for writes."""

    async def refuse_outside(self, checkpointer: Any, thread_id: str = "t") -> None:
        """Check that a save in no turn is refused."""
        with pytest.raises(TurnError, match="belongs to no turn"):
            await run_outside(checkpointer.save(self.new("outside"), thread_id))

    async def test_a_turn_has_one_holder(self, checkpointer: Any, other: Any) -> None:
        async with checkpointer.turn("t", owner="me") as turn:
            held = await other.busy("t")
            assert (held.number, held.owner, held.position) == (turn.number, "me", 0)
            assert 0 < held.seconds_left <= 30
            with pytest.raises(TurnError, match=f"turn {turn.number} of 'me'"):
                await run_outside(other.turn("t", wait="reject").begin())
            async with other.turn("u", wait="reject"):
                assert [it.thread_id for it in await checkpointer.turns()] == ["t", "u"]
        assert await checkpointer.turns() == []
        async with other.turn("t", wait="reject") as later:
            assert later.number > turn.number

    @seam("connection")
    async def test_only_the_holder_saves(self, checkpointer: Any, another: Another) -> None:
        other = another()
        async with checkpointer.turn("t"):
            await self.refuse_outside(other)  # the thread is not there yet
            assert await checkpointer.exists("t") is False
            await checkpointer.save(self.new("a"), "t")
            await self.refuse_outside(other)
            state = self.said(await checkpointer.load("t"), "b")
            await asyncio.get_running_loop().create_task(other.save(state, "t"))
            await self.refuse_outside(checkpointer)
            await run_outside(other.save(self.new("of another thread"), "u"))
        assert await self.read_texts(other, "t") == ["a", "b"]
        await other.save(self.said(await other.load("t"), "c"), "t")
        assert await self.read_texts(other, "t") == ["a", "b", "c"]

    async def test_saves_of_every_kind_carry_the_turn(self, checkpointer: Any) -> None:
        async with checkpointer.turn("t"):
            one, *_ = await self.grow(checkpointer, "t", "a", "b", "c")
            await checkpointer.save(self.new("fork"), "t", parent_checkpoint_id=one)
            await checkpointer.save(self.new("again"), "t", one)
            await checkpointer.save(self.new("lost"), "t", on_conflict="overwrite")
        assert len(await checkpointer.list_checkpoints("t")) == 5

    @requires("turns", StoresWrites)
    @seam("connection")
    async def test_only_the_holder_stores_pending_writes(self, backend: Any) -> None:
        async def put(task: str) -> None:
            await backend.put_writes("t", "v", [make_write(task)])

        number = await take(backend, "t", seconds=LONG)
        with pytest.raises(TurnError, match="belongs to no turn"):
            await run_outside(put("outside"))
        for wrong in (number - 1, number + 1):
            with pytest.raises(TurnError, match=f"turn {wrong} of thread 't' is over"):
                await run_within(backend, wrong, put("task"))
        await run_within(backend, number, put("task"))
        assert [it.task_id for it in await backend.get_writes("t", "v")] == ["task"]
        await backend.end_turn("t")
        await put("after")
        assert len(await backend.get_writes("t", "v")) == 2

    @requires("turns", "effects")
    async def test_only_the_holder_has_effects(self, checkpointer: Any, other: Any) -> None:
        calls: list[str] = []
        async with checkpointer.turn("t"):
            with pytest.raises(TurnError, match="belongs to no turn"):
                await run_outside(other.effect("t", "k", calls.append))
            assert await checkpointer.effect("t", "k", lambda _: "done") == "done"
            await checkpointer.release_turn("t")
            with pytest.raises(TurnError, match="is over"):
                await checkpointer.effect("t", "late", calls.append)
        assert calls == []

    @seam("connection")
    async def test_a_turn_that_was_not_renewed_is_over(self, backend: Any) -> None:
        await backend.write_state("t", {"n": 1})
        number = await take(backend, "t")
        while await backend.list_turns("t"):
            await asyncio.to_thread(bool)
        before = await backend.version("t")
        with pytest.raises(TurnError, match=f"turn {number} of thread 't' is over"):
            await run_within(backend, number, backend.write_state("t", {"n": 1}))
        assert await backend.version("t") == before
        after = await take(backend, "t", seconds=LONG)
        assert after > number
        with pytest.raises(TurnError, match=f"turn {number} .*is now taken by turn {after}"):
            await run_within(backend, number, backend.write_state("t", {"n": 1}))
        await run_within(backend, after, backend.write_state("t", {"n": 1}))

    async def test_a_turn_that_was_replaced_is_over(self, checkpointer: Any, other: Any) -> None:
        async with checkpointer.turn("t") as turn:
            newer = other.turn("t", wait="replace")
            await run_outside(newer.begin())
            assert newer.number > turn.number
            with pytest.raises(TurnError, match=f"is now taken by turn {newer.number}"):
                await checkpointer.save(self.new("late"), "t")
            await newer.end()
            with pytest.raises(TurnError, match=f"turn {turn.number} of thread 't' is over"):
                await checkpointer.save(self.new("late"), "t")
        assert await checkpointer.exists("t") is False

    async def test_a_turn_that_was_released_is_over(self, checkpointer: Any, other: Any) -> None:
        assert await checkpointer.release_turn("t") is False
        async with checkpointer.turn("t") as turn:
            assert await other.release_turn("t") is True
            with pytest.raises(TurnError, match=f"turn {turn.number} of thread 't' is over"):
                await checkpointer.save(self.new("late"), "t")
            await run_outside(checkpointer.save(self.new("free"), "t"))
        assert await self.read_texts(checkpointer, "t") == ["free"]

    @seam("connection", "loop")
    @requires("ttl")
    async def test_a_turn_whose_thread_expires_ends_with_its_block(
        self, checkpointer: Any, another: Another
    ) -> None:
        async with checkpointer.turn("t"):
            await another(ttl_seconds=0.000001).save(self.new("a"), "t")
            await wait_for_expiry(checkpointer.load, "t")
        assert await checkpointer.turns() == []
        await checkpointer.save(self.new("b"), "t")

    async def test_turns_come_in_the_order_of_their_requests(
        self, checkpointer: Any, another: Another
    ) -> None:
        order: list[int] = []

        async def take(of: Any, n: int) -> None:
            async with of.turn("t", owner=str(n)):
                order.append(n)

        objects, tasks = (checkpointer, another()), []
        async with checkpointer.turn("t", owner="first"):
            for n in range(4):
                tasks.append(run_outside(take(objects[n % 2], n)))
                await wait_for_turns(checkpointer, n + 2)
            _, *found = await checkpointer.turns()
            assert [(it.owner, it.position) for it in found] == [(str(n), n + 1) for n in range(4)]
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3]

    @seam("loop")
    async def test_racing_holders_lose_no_save(self, checkpointer: Any) -> None:
        async def run(name: str) -> None:
            for n in range(3):
                async with checkpointer.turn("t"):
                    state = await checkpointer.load("t") or self.new()
                    await checkpointer.save(self.said(state, f"{name}{n}"), "t")

        await run_in_loops(run)
        said = await self.read_texts(checkpointer, "t")
        assert said is not None
        assert sorted(said) == sorted(f"{name}{n}" for name in LOOPS for n in range(3))

    async def test_a_wait_has_limits(self, checkpointer: Any) -> None:
        async with checkpointer.turn("t", owner="me"):
            short = checkpointer.turn("t", wait="wait", timeout_seconds=SHORT)
            with pytest.raises(TurnError, match=r"is still taken .*by turn .*'me'"):
                await run_outside(short.begin())
            waiting = run_outside(checkpointer.turn("t").begin())
            await wait_for_turns(checkpointer, 2)
            with pytest.raises(TurnError, match="and 1 wait for it"):
                await checkpointer.turn("t", most_waiting=1).begin()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert len(await checkpointer.turns()) == 1

    async def test_a_waiter_that_died_is_passed_over(self, checkpointer: Any, backend: Any) -> None:
        await take(backend, "t", "holder")
        for n in range(2):
            await take(backend, "t", f"waiter {n}")
        async with checkpointer.turn("t", timeout_seconds=20):
            await checkpointer.save(self.new("alive"), "t")

    @seam("layout")
    async def test_a_turn_is_no_part_of_a_thread(self, checkpointer: Any, backend: Any) -> None:
        async with checkpointer.turn("t"):
            assert await checkpointer.exists("t") is False
            assert await checkpointer.load("t") is None
            assert await checkpointer.list_threads() == await backend.scan() == []
            await checkpointer.save(self.new("a"), "t")
            assert await checkpointer.copy_thread("t", "copy") is True
            await run_outside(checkpointer.save(self.new("b"), "copy"))
            assert await checkpointer.delete("t") is True
            assert await checkpointer.exists("t") is False
            await self.refuse_outside(checkpointer)
            await checkpointer.save(self.new("again"), "t")
            await checkpointer.delete("t")
            await checkpointer.delete("copy")
            await checkpointer.expire()
            assert await checkpointer.busy("t") is not None
        assert await checkpointer.turns() == []
        assert await backend.scan() == []

    async def test_an_expired_turn_is_removed(self, checkpointer: Any, backend: Any) -> None:
        await checkpointer.save(self.new("a"), "t")
        for thread_id in ("t", "u"):
            await take(backend, thread_id)
        await wait_for_turns(checkpointer, 0)
        assert await checkpointer.expire() <= 1  # on Redis, the place of a thread counts
        assert await backend.scan() == ["t"]
        await checkpointer.save(self.said(await checkpointer.load("t"), "b"), "t")

    async def test_every_thread_id_has_a_turn(self, backend: Any) -> None:
        for thread_id in HOSTILE_IDS[:24]:
            await take(backend, thread_id, seconds=LONG)
        found = await backend.list_turns()
        assert sorted(it.thread_id for it in found) == sorted(HOSTILE_IDS[:24])
        assert len(await backend.list_turns(limit=3)) == 3
        for thread_id in HOSTILE_IDS[:24]:
            assert await backend.end_turn(thread_id) is True

    async def test_arguments_that_make_no_sense_are_refused(self, checkpointer: Any) -> None:
        wrong: tuple[dict[str, Any], ...] = (
            *({"wait": it} for it in ("no", None, 1)),
            *({"lease_seconds": it} for it in (0, -1, 0.4, 3601, "1", float("nan"), True)),
            *({"timeout_seconds": it} for it in (-1, "1", float("inf"))),
            *({"most_waiting": it} for it in (0, 1.5, None)),
            {"wait": "wait"},
            {"owner": ""},
            {"leese": 1},
        )
        for options in wrong:
            with pytest.raises(InvalidArgumentError, match=next(iter(options))):
                checkpointer.turn("t", **options)
        with pytest.raises(InvalidArgumentError, match="thread_id"):
            checkpointer.turn("")

    @requires("turns", "tenants")
    async def test_tenants_have_turns_of_their_own(self, checkpointer: Any) -> None:
        acme, globex = (checkpointer.for_tenant(it) for it in ("acme", "globex"))
        async with acme.turn("t"):
            assert await globex.turns() == []
            await globex.save(self.new("free"), "t")
            async with globex.turn("t", wait="reject"):
                await acme.save(self.new("a"), "t")


class MessageTurns(MessageLogKit):
    """Changes of message logs, and turns of their threads."""

    async def test_only_the_holder_changes_the_logs(self, log: Any, backend: Any) -> None:
        if not backend.capabilities.turns:
            pytest.skip(f"{type(backend).__name__} has no turns")
        async with log.turn("t"):
            for n in range(3):
                await log.append("t", make_new(n))
            with pytest.raises(TurnError, match="belongs to no turn"):
                await run_outside(log.append("t", make_new("outside")))
            with pytest.raises(TurnError, match="belongs to no turn"):
                await run_outside(log.clear("t"))
            with pytest.raises(TurnError, match="belongs to no turn"):
                await run_outside(log.append("t", make_new("outside"), namespace="sub"))
            await run_outside(log.append("u", make_new("free")))
            if log.changes_several_threads:
                for name, other in (("u", "t"), ("t", "new")):
                    call = log.append(name, [], user_id="v", also={(other, ""): make_new("x")})
                    with pytest.raises(TurnError, match="thread 't' is taken"):
                        await run_outside(call)
                assert await backend.scan() == ["t", "u"]
            await backend.end_turn("t")
            for call in (log.append("t", make_new("late")), log.clear("t")):
                with pytest.raises(TurnError, match="of thread 't' is over"):
                    await call
        await log.append("t", make_new("after"))
        assert [it.content for it in await log.load("t")] == [0, 1, 2, "after"]
        assert len(await log.load("u")) == 1
