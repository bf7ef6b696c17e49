"""Arguments of a wrong type: an error of the library, before anything is written."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import (
    BaseMessageLog,
    BaseStore,
    CheckpointSaver,
    InMemoryMessageLog,
    InMemoryStore,
    LocusStoreError,
    MemoryBackend,
    StorageBackendAdapter,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.anyio

WRONG: list[Any] = [
    [], {}, {1}, [1], [[]], ("a", 1), {"k": object()}, object(), 1, -1.5, True, 1j, float("nan"),
    b"x", "", "\0", None, ...,
]  # fmt: skip
RIGHT: dict[str, Any] = {
    "state": {"n": 1}, "checkpoint_data": {"n": 1}, "namespaces": [("n",)], "messages": ["m"],
    "run_ids": ["r"], "thread_ids": ["t"], "message_ids": ["m"], "writes": [("c", 1)],
    "items": [(("n",), "k", 1)], "keys": [(("n",), "k")], "embedding": [1.0], "position": 0,
    "call": len, "older_than_days": 1,
}  # fmt: skip
"""Arguments without a default; the others are text, or in a store the namespace ``("n",)``."""

OF_OBJECTS = {"close", "for_tenant", "for_thread", "open"}
OF_BACKENDS = {"apply_on", "checked", "look_at_contents", "note_read"}
"""Methods that get records which the library made."""


def list_methods(kind: type) -> Iterator[str]:
    left_out = OF_OBJECTS | OF_BACKENDS | getattr(kind, "__abstractmethods__", frozenset())
    for name, _ in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in left_out:
            yield name


KINDS = CheckpointSaver, StorageBackendAdapter, BaseStore, BaseMessageLog
METHODS = [(kind, name) for kind in KINDS for name in list_methods(kind)]


class World:
    """One object of each contract, and what they have stored."""

    def __init__(self) -> None:
        backend = MemoryBackend()
        self.saver, self.checkpointer = CheckpointSaver(backend), StorageBackendAdapter(backend)
        self.store, self.log = InMemoryStore(), InMemoryMessageLog(backend=backend)

    async def fill(self) -> None:
        await self.saver.put(thread_id="t", checkpoint_id="c", checkpoint_data={"n": 1})
        await self.log.append("t", [("m", "user", "m")])
        await self.store.put(("n",), "k", 1)

    def select(self, kind: type) -> Any:
        objects = self.saver, self.checkpointer, self.store, self.log
        return next(it for it in objects if isinstance(it, kind))

    async def look(self) -> list[object]:
        """Return all that is stored but for times."""
        threads = await self.checkpointer.list_threads()
        found: list[object] = [
            [(it, await self.saver.list_checkpoints(thread_id=it, limit=99)) for it in threads],
            [(it, await self.log.load(it)) for it in threads],
            [await self.saver.get_writes(thread_id="t", checkpoint_id="c")],
        ]
        for namespace in await self.store.list_namespaces():
            found += [namespace, await self.store.list(namespace)]
        return found


async def call(method: Callable[..., Awaitable[object]], arguments: dict[str, Any]) -> None:
    """Call a method; await what it returns, or enter and leave it."""
    made: Any = method(**arguments)
    if inspect.isawaitable(made):
        await made
    elif hasattr(made, "__enter__"):
        with made:
            pass
    elif hasattr(made, "__aenter__"):
        async with made:
            pass


@pytest.mark.parametrize(
    ("kind", "name"), METHODS, ids=[f"{kind.__name__}.{name}" for kind, name in METHODS]
)
async def test_a_wrong_type_is_an_error_of_the_library_before_anything_is_written(
    kind: type, name: str
) -> None:
    world = World()
    await world.fill()
    method = getattr(world.select(kind), name)
    right = {**RIGHT, "namespace": ("n",) if kind is BaseStore else "n"}
    parameters = inspect.signature(method).parameters.values()
    given = {it.name: right.get(it.name, "t") for it in parameters if it.default is it.empty}
    for argument in parameters:
        for wrong in WRONG:
            before = await world.look()
            try:
                await call(method, {**given, argument.name: wrong})
            except LocusStoreError:
                assert await world.look() == before, (argument, wrong)
            except Exception as exc:
                raise AssertionError(f"{argument}: {wrong!r}") from exc
