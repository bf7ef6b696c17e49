"""Effects: calls that are made once, their outcomes, and their threads."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from locus_store.effects import NAMESPACE, Done, Effect
from locus_store.errors import (
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    OutcomeUnknownError,
    SerializationError,
)
from locus_store.testing.kit import (
    HOSTILE_IDS,
    INVALID_IDS,
    Another,
    Kit,
    exact,
    expect_invalid,
    requires,
    seam,
    tick,
)

VALUES: tuple[Any, ...] = (None, 0, -0.0, "é\0'\"%_:|", [], {"": [2**63 - 1, None]}, "x" * 100_000)
QUICK = 0.04
"""A lease in seconds for calls that are not made any more."""


class Tool:
    """A tool that counts its calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.keys: list[str] = []

    def __call__(self, idempotency_key: str) -> Any:
        """Raise the next error, or return the number of the call."""
        self.keys.append(idempotency_key)
        if self.errors:
            raise self.errors.pop(0)
        return len(self.keys)


@seam("connection")
@requires("effects")
class EffectRules(Kit):
    """``effect``, ``effects`` and ``resolve_effect``."""

    @seam("connection", "loop")
    async def test_a_finished_effect_is_not_called_again(self, checkpointer: Any) -> None:
        tool = Tool()
        for thread_id, key in (("t", "k"), ("t", "other"), ("u", "k")):
            for _ in range(2):
                found = await checkpointer.effect(thread_id, key, tool, arguments={"a": [1]})
                assert found == len(tool.keys)
        assert len(set(tool.keys)) == 3
        effects = await checkpointer.effects("t")
        assert [(it.key, it.status, it.calls, it.result) for it in effects] == [
            ("k", "finished", 1, 1),
            ("other", "finished", 1, 2),
        ]
        assert [it.idempotency_key for it in effects] == tool.keys[:2]

    async def test_a_result_comes_back_exactly(self, checkpointer: Any, another: Another) -> None:
        for number, value in enumerate(VALUES):
            first = await checkpointer.effect("t", f"k{number}", lambda _, it=value: it)
            again = await another().effect("t", f"k{number}", Tool())
            assert exact(first) == exact(again) == exact(value)

    async def test_every_string_is_a_key_and_no_other_value(self, checkpointer: Any) -> None:
        for key in HOSTILE_IDS:
            assert await checkpointer.effect(key, key, lambda _, it=key: it) == key
        for key in HOSTILE_IDS:
            assert await checkpointer.effect(key, key, Tool()) == key
        tool = Tool()
        await expect_invalid(
            INVALID_IDS,
            lambda it: checkpointer.effect("t", it, tool),
            lambda it: checkpointer.effect(it, "k", tool),
            lambda it: checkpointer.effect("t", "k", tool, on_unknown=it),
        )
        assert (tool.keys, await checkpointer.effects("t")) == ([], [])

    async def test_a_call_that_failed_is_not_repeated(self, checkpointer: Any) -> None:
        tool = Tool(RuntimeError("lost"))
        with pytest.raises(RuntimeError, match="lost"):
            await checkpointer.effect("t", "k", tool)
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError, match="RuntimeError: lost"):
                await checkpointer.effect("t", "k", tool)
        [found] = await checkpointer.effects("t")
        assert (len(tool.keys), found.status, found.error) == (1, "unknown", "RuntimeError: lost")

    async def test_a_repeated_call_has_the_same_idempotency_key(self, checkpointer: Any) -> None:
        tool = Tool(RuntimeError(), KeyError())
        for error in (RuntimeError, KeyError):
            with pytest.raises(error):
                await checkpointer.effect("t", "k", tool, on_unknown="repeat")
        for _ in range(2):
            assert await checkpointer.effect("t", "k", tool, on_unknown="repeat") == 3
        assert len(tool.keys) == 3
        assert len(set(tool.keys)) == 1
        assert [it.calls for it in await checkpointer.effects("t")] == [3]

    async def test_a_function_finds_out_the_outcome(self, checkpointer: Any) -> None:
        asked: list[Any] = []

        def answering(answer: Any) -> Any:
            def ask(effect: Effect) -> Any:
                asked.append(effect)
                return answer

            return ask

        tool = Tool(RuntimeError())
        with pytest.raises(RuntimeError):
            await checkpointer.effect("t", "k", tool)
        with pytest.raises(OutcomeUnknownError):
            await checkpointer.effect("t", "k", tool, on_unknown=answering("raise"))
        with pytest.raises(InvalidArgumentError, match="on_unknown"):
            await checkpointer.effect("t", "k", tool, on_unknown=answering("done"))
        for _ in range(2):
            done = answering(Done({"receipt": 7}))
            assert await checkpointer.effect("t", "k", tool, on_unknown=done) == {"receipt": 7}
        assert len(asked) == 3
        assert {it.idempotency_key for it in asked} == set(tool.keys)
        failing = Tool(RuntimeError())
        with pytest.raises(RuntimeError):
            await checkpointer.effect("t", "again", failing)
        repeat = answering("repeat")
        assert await checkpointer.effect("t", "again", failing, on_unknown=repeat) == 2

    async def test_an_error_that_did_nothing_is_no_unknown_outcome(self, checkpointer: Any) -> None:
        tool = Tool(LookupError("no such order"))
        with pytest.raises(LookupError):
            await checkpointer.effect("t", "k", tool, arguments=1, not_done=(LookupError,))
        assert [it.status for it in await checkpointer.effects("t")] == ["open"]
        assert await checkpointer.effect("t", "k", tool, arguments=2) == 2

    async def test_a_person_settles_an_outcome(self, checkpointer: Any) -> None:
        for key in ("happened", "not"):
            with pytest.raises(RuntimeError):
                await checkpointer.effect("t", key, Tool(RuntimeError()))
        await checkpointer.resolve_effect("t", "happened", took_place=True, result=[7])
        await checkpointer.resolve_effect("t", "not", took_place=False)
        tool, keys = Tool(), {it.key: it.idempotency_key for it in await checkpointer.effects("t")}
        assert await checkpointer.effect("t", "happened", tool) == [7]
        assert await checkpointer.effect("t", "not", tool) == 1
        assert tool.keys == [keys["not"]]
        with pytest.raises(ConflictError, match="known"):
            await checkpointer.resolve_effect("t", "not", took_place=False)
        with pytest.raises(NotFoundError):
            await checkpointer.resolve_effect("t", "unknown", took_place=True)
        with pytest.raises(InvalidArgumentError):
            await checkpointer.resolve_effect("t", "not", took_place=False, result=1)

    async def test_a_call_that_is_running_is_not_settled(self, checkpointer: Any) -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def call(_: str) -> str:
            begun.set()
            await may_end.wait()
            return "paid"

        lease: Any = {"lease_seconds": 1}
        running = asyncio.ensure_future(checkpointer.effect("t", "k", call, **lease))
        await begun.wait()
        with pytest.raises(ConflictError, match="is running"):
            await checkpointer.resolve_effect("t", "k", took_place=False, **lease)
        may_end.set()
        assert await running == "paid"
        [effect] = await checkpointer.effects("t")
        assert (effect.status, effect.result, effect.calls) == ("finished", "paid", 1)

    async def test_other_arguments_are_refused(self, checkpointer: Any) -> None:
        await checkpointer.effect("t", "k", Tool(), arguments={"a": 1, "b": [2.0]})
        tool = Tool()
        others: tuple[Any, ...] = ({"a": 1, "b": [2]}, {"a": 1}, None, [])
        for arguments in others:
            with pytest.raises(InvalidArgumentError, match="arguments"):
                await checkpointer.effect("t", "k", tool, arguments=arguments)
        assert await checkpointer.effect("t", "k", tool, arguments={"b": [2.0], "a": 1}) == 1
        assert tool.keys == []

    async def test_a_result_that_is_not_kept_leaves_the_outcome_unknown(
        self, another: Another
    ) -> None:
        small = another(max_state_bytes=1_000)
        for key, value in (("large", "x" * 1_001), ("odd", float("nan")), ("bytes", b"b")):
            with pytest.raises(SerializationError, match="was called"):
                await small.effect("t", key, lambda _, it=value: it)
            with pytest.raises(OutcomeUnknownError, match="SerializationError"):
                await small.effect("t", key, Tool())

    async def test_of_two_callers_one_calls(self, checkpointer: Any, other: Any) -> None:
        tool = Tool()
        begun, over = asyncio.Event(), asyncio.Event()

        async def call(key: str) -> Any:
            begun.set()
            await over.wait()
            return tool(key)

        first = asyncio.create_task(checkpointer.effect("t", "k", call))
        await begun.wait()
        with pytest.raises(OutcomeUnknownError):
            await other.effect("t", "k", call)
        waiting = [
            asyncio.create_task(other.effect("t", "k", call, on_unknown="repeat")),
            asyncio.create_task(other.effect("t", "k", call, wait_seconds=60)),
        ]
        over.set()
        assert await asyncio.gather(first, *waiting) == [1, 1, 1]
        assert len(tool.keys) == 1

    async def test_of_many_callers_at_once_one_calls(
        self, checkpointer: Any, another: Another
    ) -> None:
        tool, objects = Tool(), [checkpointer, another(), another()]
        for key in ("k1", "k2", "k3"):
            calls = (it.effect("t", key, tool, on_unknown="repeat") for it in objects * 3)
            assert len(set(await asyncio.gather(*calls))) == 1
        assert len(tool.keys) == 3

    async def test_a_running_call_shows_that_it_is_alive(
        self, checkpointer: Any, backend: Any
    ) -> None:
        async def call(key: str) -> str:
            seen: set[Any] = set()
            while len(seen) < 2:
                await asyncio.sleep(0)  # not every storage waits for anything
                writes = await backend.list_writes("t", NAMESPACE, "k")
                seen |= {it.write.payload for it in writes if it.write.idx < 0}
            return key

        key = await checkpointer.effect("t", "k", call, lease_seconds=QUICK)
        assert [it.idempotency_key for it in await checkpointer.effects("t")] == [key]
        assert await checkpointer.effect("t", "k", Tool()) == key

    @requires("effects", "branching")
    async def test_a_copy_has_the_effects_of_its_time(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "a")
        await checkpointer.copy_thread("t", "before")
        tool = Tool()
        await checkpointer.effect("t", "k", tool)
        await checkpointer.copy_thread("t", "after")
        assert await checkpointer.effect("after", "k", tool) == 1
        assert await checkpointer.effect("before", "k", tool) == 2
        assert await checkpointer.effect("t", "k", tool) == 1

    @requires("effects", "branching")
    async def test_a_copy_made_during_a_call_does_not_know_its_outcome(
        self, checkpointer: Any
    ) -> None:
        """As after a crash: of the call, only the intent is stored."""
        await self.grow(checkpointer, "t", "a")
        tool = Tool()

        async def call(key: str) -> Any:
            await checkpointer.copy_thread("t", "copy")
            return tool(key)

        assert await checkpointer.effect("t", "k", call) == 1
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError, match="unknown"):
                await checkpointer.effect("copy", "k", tool)
        assert len(tool.keys) == 1
        options: Any = {"on_unknown": "repeat", "lease_seconds": QUICK}
        assert await checkpointer.effect("copy", "k", tool, **options) == 2
        assert tool.keys == tool.keys[:1] * 2

    @requires("effects", "list_with_metadata")
    async def test_a_rewind_is_told_what_it_does_not_undo(self, checkpointer: Any) -> None:
        await checkpointer.effect("t", "first", Tool())
        await tick(checkpointer)
        [version] = await self.grow(checkpointer, "t", "a")
        await tick(checkpointer)
        await checkpointer.effect("t", "second", Tool())
        assert [it.key for it in await checkpointer.effects("t")] == ["first", "second"]
        assert [it.key for it in await checkpointer.effects("t", since=version)] == ["second"]
        with pytest.raises(NotFoundError):
            await checkpointer.effects("t", since="unknown")

    async def test_a_thread_that_is_deleted_during_a_call_stays_deleted(
        self, checkpointer: Any, backend: Any
    ) -> None:
        await self.grow(checkpointer, "t", "a")
        keys: list[str] = []

        async def call(key: str) -> str:
            keys.append(key)
            await checkpointer.delete("t")
            return "of a person"

        with pytest.raises(ConflictError, match="deleted"):
            await checkpointer.effect("t", "k", call)
        assert (await backend.scan(), await checkpointer.effects("t")) == ([], [])
        tool = Tool()
        assert await checkpointer.effect("t", "k", tool) == 1
        assert set(keys).isdisjoint(tool.keys)

    async def test_versions_that_go_leave_the_effects(self, another: Another) -> None:
        checkpointer = another(keep_last=1)
        tool = Tool()
        for text in ("a", "b", "c"):
            [version] = await self.grow(checkpointer, "t", text)
            await checkpointer.effect("t", text, tool)
        await checkpointer.delete("t", version)
        assert [it.result for it in await checkpointer.effects("t")] == [1, 2, 3]

    @requires("effects", "ttl", "list_with_metadata")
    async def test_the_effects_of_an_expired_thread_are_forgotten(self, another: Another) -> None:
        tool, short = Tool(), another(ttl_seconds=1e-6)
        assert await another(ttl_seconds=3_600).effect("u", "k", tool) == 1
        assert await another().effect("t", "k", tool) == 2
        await short.save(self.new("a"), "t")
        await tick(another())
        assert await another().effects("t") == []
        assert await another().effect("t", "k", tool) == 3
        assert await another().effect("u", "k", tool) == 1

    @requires("effects", "branching", "metadata_query")
    async def test_effects_are_deleted_with_their_thread(
        self, checkpointer: Any, backend: Any, another: Another
    ) -> None:
        tool = Tool()
        for thread_id, user in (("t", "u"), ("of u", "u"), ("other", "v")):
            await backend.save(thread_id, {}, metadata={"user_id": user})
            await checkpointer.effect(thread_id, "k", tool)
        assert await checkpointer.delete("t") is True
        assert (await backend.forget_user("u"))["threads"] == 1
        found = {it: await another().effects(it) for it in ("t", "of u", "other")}
        assert {it: len(of) for it, of in found.items()} == {"t": 0, "of u": 0, "other": 1}
        assert [await another().effect(it, "k", tool) for it in found] == [4, 5, 3]
        assert len(set(tool.keys)) == 5

    @requires("effects", "tenants")
    async def test_a_tenant_has_effects_of_its_own(self, checkpointer: Any) -> None:
        tool = Tool()
        for number in (1, 2):
            name = secrets.token_hex(8)
            assert await checkpointer.for_tenant(name).effect("t", "k", tool) == number
        assert await checkpointer.effects("t") == []
