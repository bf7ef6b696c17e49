"""The base of a store's contract: fixtures, hostile names, expired items."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.testing.kit import HOSTILE_IDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from locus_store.testing.kit import Another
    from locus_store.types.items import Namespace

NS: Namespace = ("memory", "u42")

HOSTILE_NAMESPACES: tuple[Namespace, ...] = (
    (), ("a", "b"), ("a/b",), ("a", "b", "c"), ("ab",), ("a", "bc"), ("b", "a"), ("a\x01b",),
    ("a\x01", "b"), ("a", "\x01b"), ("a", "%"), ("a", "_"), ("a", "*"), ("a%",), ("a_",),
    ("*", "b"), ("a.b",), ("a|b",), ("a", "a", "b"), ("x" * 255, "y" * 43), ("🎉",) * 150,
    *((it,) for it in HOSTILE_IDS),
)  # fmt: skip
"""Each is one of its own."""

INVALID_NAMESPACES: tuple[Any, ...] = (
    None, "a", ["a"], ("",), ("a", ""), ("a\0",), ("a", None), ("a", 1), (b"a",), ("\ud800",),
    ("a", ["b"]), ("x" * 256,), ("x" * 255, "y" * 44), ("x",) * 151, 7, {"a"},
)  # fmt: skip
"""Invalid namespaces."""

LONG = 3600.0
SHORT = 0.02
"""Seconds to live; what has the first outlives a test."""


class StoreKit:
    """The fixtures that every part of a store's contract uses."""

    pytestmark = pytest.mark.anyio

    persists = True
    """Another object of ``reopen`` has the same items."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def reopen(self) -> Another:
        """Create an object on this test's storage, empty at first; override this.

        It takes the options of ``BaseStore``, and without one it has ``dimension=3``.
        """
        raise NotImplementedError("give the contract a `reopen` fixture")

    @pytest.fixture
    async def store(self, reopen: Another) -> AsyncIterator[Any]:
        """The object to test, open."""
        async with reopen() as made:
            yield made


async def fill(store: Any, namespace: Namespace, count: int, value: Any = None) -> list[str]:
    """Put ``count`` items, one after the other; return their keys, which are in order."""
    keys = [f"k{n:04}" for n in range(count)]
    for n, key in enumerate(keys):
        await store.put(namespace, key, {"n": n} if value is None else value)
    return keys


async def put_over(store: Any, namespace: Namespace, key: str, value: Any = "over") -> None:
    """Put an item, and wait until it has expired."""
    await store.put(namespace, key, value, ttl_seconds=SHORT)
    await over(store, namespace, key)


async def over(store: Any, namespace: Namespace, key: str) -> None:
    """Wait until an item has expired by the server's clock."""
    deadline = monotonic() + 20
    while await store.exists(namespace, key):
        assert monotonic() < deadline, "an item whose time is over is still shown"
        await asyncio.sleep(0.005)


def keys_of(items: Sequence[Any]) -> list[str]:
    """Return the keys of items or hits, in their order."""
    return [getattr(it, "item", it).key for it in items]
