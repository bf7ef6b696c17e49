"""Effects of blocking code and of decorated functions; the promises are in the contract."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import (
    CheckpointSaver,
    InvalidArgumentError,
    MemoryBackend,
    MemoryCheckpointer,
    OutcomeUnknownError,
    SerializationError,
    UnsupportedError,
    sqlite_checkpointer,
)
from locus_store.blocking import BlockingCheckpointer
from locus_store.effects import NAMESPACE, EffectLog, make_durable
from locus_store.testing.kit import refused
from locus_store.transfer.verifying import verify
from locus_store.versions.archives import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[BlockingCheckpointer]:
    with BlockingCheckpointer(sqlite_checkpointer(tmp_path / "a.db")) as opened:
        yield opened


class Waiting(MemoryCheckpointer):
    """Waits for more than its own work, and so needs an event loop."""

    async def effect(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().effect(*args, **options)


def test_a_blocking_call_runs_in_the_callers_thread(blocking: BlockingCheckpointer) -> None:
    ident = threading.get_ident
    assert blocking.effect("t", "k", lambda _: ident()) == ident()
    with BlockingCheckpointer(Waiting()) as looping:
        assert looping.effect("t", "k", lambda _: ident()) != ident()


def test_async_functions_are_refused_by_blocking_code(blocking: BlockingCheckpointer) -> None:
    async def call(_: str) -> int:
        return 1

    for function in (call, lambda key: call(key)):  # noqa: PLW0108  (the result is awaitable)
        with pytest.raises(InvalidArgumentError, match="asynchronous"):
            blocking.effect("t", "k", function)
    assert blocking.effect("t", "k", lambda _: 2) == 2


def test_a_blocking_call_shows_that_it_is_alive(
    blocking: BlockingCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting thread reads renewals, and does not repeat the call."""
    monkeypatch.setattr("locus_store.effects.BEATS", 20)
    wrapped: Any = blocking._async
    backend, calls, begun = wrapped.backend, [], threading.Event()

    def call(_: str) -> int:
        calls.append(1)
        begun.set()
        seen: set[bytes] = set()
        until = time.monotonic() + 60
        while len(seen) < 3 and time.monotonic() < until:
            writes = blocking._run(lambda: backend.list_writes("t", NAMESPACE, "k"))
            seen |= {it.write.payload for it in writes if it.write.idx < 0}
        return len(seen)

    results: list[int] = []
    options: Any = {"on_unknown": "repeat", "lease_seconds": 5}
    first = threading.Thread(
        target=lambda: results.append(blocking.effect("t", "k", call, **options))
    )
    first.start()
    begun.wait()
    assert blocking.effect("t", "k", call, **options) == 3
    first.join()
    assert (results, calls) == ([3], [1])


@pytest.mark.anyio
async def test_calls_of_a_decorated_function_are_effects() -> None:
    keys: list[str] = []
    checkpointer = CheckpointSaver(MemoryBackend())

    @make_durable(checkpointer)
    async def pay(amount: int, *, currency: str, idempotency_key: str) -> list[Any]:
        """Pay."""
        keys.append(idempotency_key)
        return [amount, currency]

    @make_durable(checkpointer, not_done=(ValueError,))
    def fail(error: bool) -> str:
        if error:
            raise ValueError("nothing done")
        return threading.current_thread().name

    for _ in range(2):
        assert await pay("t", "k", 7, currency="EUR") == [7, "EUR"]
    with pytest.raises(InvalidArgumentError, match="other arguments"):
        await pay("t", "k", 7, currency="USD")
    assert (len(keys), pay.__name__, pay.__doc__) == (1, "pay", "Pay.")
    with pytest.raises(ValueError, match="nothing done"):
        await fail("t", "f", True)
    assert await fail("t", "f", False) != threading.current_thread().name
    assert [it.status for it in await checkpointer.effects("t")] == ["finished", "finished"]


@pytest.mark.anyio
@pytest.mark.parametrize("on_unknown", ["repeat", "raise"])
async def test_an_effect_does_not_wait_for_itself(on_unknown: Any) -> None:
    checkpointer = MemoryCheckpointer()

    async def call(_: str) -> Any:
        assert await checkpointer.effect("t", "inner", lambda _: 1) == 1
        return await checkpointer.effect("t", "k", call, on_unknown=on_unknown, wait_seconds=9)

    with pytest.raises(InvalidArgumentError, match="asked for by its own call"):
        await checkpointer.effect("t", "k", call)
    assert await checkpointer.effect("t", "k", lambda _: 2, on_unknown="repeat") == 2


@pytest.mark.anyio
async def test_a_cancelled_call_has_an_unknown_outcome() -> None:
    checkpointer, begun = MemoryCheckpointer(), asyncio.Event()

    async def call(_: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(checkpointer.effect("t", "k", call))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OutcomeUnknownError, match="and raised CancelledError: whether"):
        await checkpointer.effect("t", "k", call)


def test_an_interrupt_in_a_blocking_call_is_kept_as_its_error(
    blocking: BlockingCheckpointer,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        blocking.effect("t", "k", lambda _: signal.raise_signal(signal.SIGINT))
    assert [(it.status, it.error) for it in blocking.effects("t")] == [
        ("unknown", "KeyboardInterrupt")
    ]


@pytest.mark.anyio
async def test_a_result_is_stored_for_a_cancelled_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = MemoryCheckpointer()
    put_writes = checkpointer.backend.put_writes

    async def put_late(*args: Any, **options: Any) -> None:
        if any(it.channel == "finished" for it in args[2]):
            task.cancel()
            await asyncio.sleep(0)
        await put_writes(*args, **options)

    async def call(_: str) -> int:
        return 1

    monkeypatch.setattr(checkpointer.backend, "put_writes", put_late)
    task = asyncio.create_task(checkpointer.effect("t", "k", call))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [it.result for it in await checkpointer.effects("t")] == [1]


@pytest.mark.anyio
async def test_a_plain_function_is_not_left_alone_by_a_cancelled_caller() -> None:
    checkpointer, begun, over = MemoryCheckpointer(), threading.Event(), threading.Event()

    def call(_: str) -> int:
        begun.set()
        over.wait()
        return 1

    task = asyncio.create_task(checkpointer.effect("t", "k", call))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    is_done = task.done()
    over.set()
    assert not is_done
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [it.result for it in await checkpointer.effects("t")] == [1]


@pytest.mark.anyio
async def test_options_that_make_no_sense_are_refused_before_the_call() -> None:
    checkpointer, calls = MemoryCheckpointer(), list[str]()
    wrong: list[dict[str, Any]] = [
        {"lease_seconds": None}, {"lease_seconds": 0}, {"wait_seconds": -1}, {"on_unknown": []},
        {"not_done": ValueError}, {"not_done": [ValueError]}, {"arguments": {1}},
    ]  # fmt: skip
    for options in wrong:
        with refused((InvalidArgumentError, SerializationError), options):
            await checkpointer.effect("t", "k", calls.append, **options)
    with pytest.raises(InvalidArgumentError, match="callable"):
        await checkpointer.effect("t", "k", {"receipt": 7})  # type: ignore[arg-type]
    assert (calls, await checkpointer.effects("t")) == ([], [])


@pytest.mark.anyio
async def test_a_checkpointer_without_a_backend_has_no_effects() -> None:
    class Mine(MemoryCheckpointer):
        backend = None  # type: ignore[assignment]  # as of a class of the user's own

        def __init__(self) -> None:
            pass

        capabilities = MemoryCheckpointer().capabilities

    with pytest.raises(UnsupportedError, match="effects"):
        await Mine().effect("t", "k", lambda _: None)


@pytest.mark.anyio
async def test_a_call_that_outlives_its_lease_gets_the_result_of_the_repeated_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the process had stood still: no renewal, and the call ends after the other one."""

    async def stand_still(*_: object) -> None:
        pass

    monkeypatch.setattr(EffectLog, "_write_beat", stand_still)
    checkpointer, keys = MemoryCheckpointer(), list[str]()
    begun, over = asyncio.Event(), asyncio.Event()

    async def call(key: str) -> int:
        keys.append(key)
        number = len(keys)
        if number == 1:
            begun.set()
            await over.wait()
        return number

    options: Any = {"on_unknown": "repeat", "lease_seconds": 0.04}
    first = asyncio.create_task(checkpointer.effect("t", "k", call, **options))
    await begun.wait()
    assert await checkpointer.effect("t", "k", call, **options) == 2
    over.set()
    assert await first == 2
    assert len(set(keys)) == 1
    assert [(it.calls, it.result) for it in await checkpointer.effects("t")] == [(2, 2)]


@pytest.mark.anyio
async def test_effects_are_no_damage_and_no_namespace(tmp_path: Path) -> None:
    async with sqlite_checkpointer(tmp_path / "a.db", state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        await checkpointer.effect("t", "k", lambda _: {"n": 1})
        backend: Any = checkpointer.backend
        found = [it async for it in verify(backend)]
        assert [it for it in found if isinstance(it, Problem)] == []
        assert await backend.namespaces("t") == [""]
        assert await backend.prune("t") == 0
        archived = await backend.read_thread("t")
        assert await checkpointer.delete("t")
        assert await checkpointer.effects("t") == []
        await backend.write_thread(archived)
        assert [it.result for it in await checkpointer.effects("t")] == [{"n": 1}]
