"""The nodes of a LangGraph graph whose tasks made a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from locus_store.backend import StoresWrites
from locus_store.timeline.layouts import CHANNELS, is_bookkeeping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.backend import StorageBackend
    from locus_store.timeline.layouts import Path
    from locus_store.types import PendingWrite, Version

_NODE: Final = "~__pregel_pull, "
"""The task path of a node that its channels started."""


class Writer(NamedTuple):
    """A task that wrote to a channel."""

    node: str | None
    """``None``: started by a ``Send`` or a function, whose name is not stored."""

    task_id: str
    channel: str


async def writers(backend: StorageBackend, versions: Sequence[Version]) -> dict[str, list[Writer]]:
    """Return the tasks whose writes made each version of a line, by its checkpoint id.

    They are the pending writes of the version's parent. Versions of agents have none.
    """
    made = [it for it in versions if it.parent_id is not None]
    if not made or not isinstance(backend, StoresWrites):
        return {}
    at = made[0]
    parents = list(dict.fromkeys(it.parent_id or "" for it in made))
    found = await backend.writes_of(at.thread_id, parents, namespace=at.namespace)
    return {
        it.checkpoint_id: [
            _writer(write)
            for write in found.get(it.parent_id or "", [])
            if write.idx >= 0 and not is_bookkeeping(write.channel)
        ]
        for it in made
    }


def _writer(write: PendingWrite) -> Writer:
    node = write.task_path.removeprefix(_NODE) if write.task_path.startswith(_NODE) else None
    return Writer(node, write.task_id, write.channel)


def channel_of(path: Path) -> str | None:
    """Return the channel of a graph that a stored path is in; ``None`` if it is in none."""
    return str(path[1]) if len(path) > 1 and path[0] == CHANNELS else None
