"""langgraph-checkpoint-sqlite, saving what we save, as a graph of one step a turn calls it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Peer:
    """One ``aput`` a turn: no pending writes and no input checkpoint, which a graph adds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = AsyncExitStack()
        self._saver: Any = None
        self._versions: dict[str, dict[str, Any]] = {}
        self._parents: dict[str, dict[str, Any]] = {}

    async def _opened(self) -> Any:
        if self._saver is None:
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            opening = AsyncSqliteSaver.from_conn_string(str(self._path))
            self._saver = await self._stack.enter_async_context(opening)
        return self._saver

    async def save(self, state: Mapping[str, Any], thread_id: str) -> None:
        """Save every field as a channel, each with its next version."""
        from langgraph.checkpoint.base import empty_checkpoint

        saver = await self._opened()
        known = self._versions.get(thread_id, {})
        versions = {name: saver.get_next_version(known.get(name), None) for name in state}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = dict(state)
        checkpoint["channel_versions"] = versions
        config = self._parents.get(thread_id) or {
            "configurable": {"thread_id": thread_id, "checkpoint_ns": ""}
        }
        metadata = {"source": "loop", "step": len(known), "parents": {}}
        self._parents[thread_id] = await saver.aput(config, checkpoint, metadata, versions)
        self._versions[thread_id] = versions

    async def load(self, thread_id: str) -> Any:
        """Load the newest checkpoint's values."""
        saver = await self._opened()
        found = await saver.aget_tuple({"configurable": {"thread_id": thread_id}})
        return found.checkpoint["channel_values"]

    async def close(self) -> None:
        """Close the file; the object may be used again."""
        self._saver = None
        await self._stack.aclose()
