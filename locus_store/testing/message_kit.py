"""The base of a message log's contract: fixtures, and short forms of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store.types.messages import NewMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from locus_store.testing.kit import Another


class MessageLogKit:
    """The fixtures that every part of a message log's contract uses."""

    pytestmark = pytest.mark.anyio

    persists = True
    """Another object of ``reopen`` has the same logs."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def reopen(self) -> Another:
        """Create an object on this test's storage, empty at first; override this.

        It takes the options of ``BaseMessageLog``.
        """
        raise NotImplementedError("give the contract a `reopen` fixture")

    @pytest.fixture
    async def log(self, reopen: Another) -> AsyncIterator[Any]:
        """The object to test, open."""
        async with reopen() as made:
            yield made

    @pytest.fixture
    def backend(self, log: Any) -> Any:
        """The backend whose threads have the logs."""
        found = getattr(log, "backend", None)
        if found is None:
            pytest.skip(f"{type(log).__name__} stands over no backend")
        return found


def new(*contents: Any) -> list[NewMessage]:
    """Return messages with these contents, without ids."""
    return [NewMessage(it) for it in contents]


def named(*ids: str) -> list[NewMessage]:
    """Return messages with these ids, which are their contents, too."""
    return [NewMessage(it, message_id=it) for it in ids]


def contents(messages: Iterable[Any] | None) -> list[Any] | None:
    """Return the contents of messages; ``None`` where there is no log."""
    return None if messages is None else [it.content for it in messages]
