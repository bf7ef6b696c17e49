"""SQLAlchemy's greenlets in the event loop of sync methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy.util

from locus_store.runtime import driven

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")


await_only = sqlalchemy.util.await_only
"""Wait in a greenlet, without ``await``."""


async def greenlet_spawn(work: Callable[..., T], *args: Any) -> T:
    """Run ``work`` in a greenlet, which cannot continue in another thread."""
    async with driven.OneThread():
        return await sqlalchemy.util.greenlet_spawn(work, *args)


async def dispose(engine: AsyncEngine) -> None:
    """Close an engine's connections, which takes a greenlet."""
    async with driven.OneThread():
        await engine.dispose()
