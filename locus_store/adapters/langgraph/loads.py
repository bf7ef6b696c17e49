"""How a checkpoint was loaded, which tells a fork from a second writer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from locus_store.errors import ConflictError
from locus_store.types import Expected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from langchain_core.runnables import RunnableConfig

    from locus_store.types import Mark

Key: TypeAlias = tuple[str, int]

_RUNTIME: Final = "__pregel_runtime"
"""In the config of what a running graph puts."""

_REPLAY: Final = "__pregel_replay_state"
"""In the config of a subgraph that runs again as it did before."""

_FORKS: Final = frozenset({"fork", "update"})
"""``source`` of a checkpoint that may be made from any other one."""


@dataclass(slots=True)
class Load:
    """What was read when a checkpoint was loaded."""

    mark: Mark
    head: Mark
    """The newest version then."""

    seen: set[Key]
    """Task and place of its pending writes, and of those that were sent since."""

    is_lost: bool = False
    """Another run was faster: what this one still sends is refused."""

    _last: Future[None] | None = None

    @asynccontextmanager
    async def writing(self, keys: set[Key]) -> AsyncIterator[Collection[Key]]:
        """Within it, these writes may be sent; gives those that may be there before them.

        One call after the other, so that of two runs one is refused whole.

        Raises:
            ConflictError: Another run was faster, or is found to be.
        """
        new, mine = keys - self.seen, Future[None]()
        self.seen |= keys
        before, self._last = self._last, mine
        try:
            if before is not None:
                await asyncio.shield(asyncio.wrap_future(before))
            self.require_own()
            yield _Seen(self.seen, new)
        except ConflictError:
            self.is_lost = True
            raise
        finally:
            mine.set_result(None)

    def require_own(self) -> None:
        """Refuse to go on with a run that was told once.

        Raises:
            ConflictError: It was.
        """
        if self.is_lost:
            raise ConflictError(
                "this run was told that another one is at work on its checkpoint; nothing more of "
                "it is written. Run the graph again when the other run is over"
            )


class _Seen(Collection[Key]):
    """Writes of a run, those that it sends meanwhile among them, but for some of its own."""

    def __init__(self, keys: set[Key], new: set[Key]) -> None:
        self._keys, self._new = keys, new

    def __contains__(self, key: object) -> bool:
        return key in self._keys and key not in self._new

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys - self._new)

    def __len__(self) -> int:
        return len(self._keys - self._new)


class Loaded(str):
    """A checkpoint's id that remembers how it was loaded.

    LangGraph carries it, as the text that it is, from ``get_tuple`` to the run's first ``put`` and
    to the writes on the checkpoint: so a second writer is told from a fork.
    """

    __slots__ = ("load",)

    def __new__(cls, value: str, load: Load | None = None) -> Self:
        """``load`` is ``None`` for one that was listed: what is made from it is a fork."""
        made = super().__new__(cls, value)
        made.load = load
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # elsewhere, it is a text

    def __deepcopy__(self, memo: object) -> Self:
        return self

    load: Load | None


def place_of(config: RunnableConfig) -> tuple[str, str, str | None]:
    """The thread, namespace and checkpoint that a config names."""
    configurable = config["configurable"]
    checkpoint_id = configurable.get("checkpoint_id") or None
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or "", checkpoint_id


def parent_of(config: RunnableConfig) -> str | None:
    """The checkpoint that a config names."""
    return place_of(config)[2]


def made_from(config: RunnableConfig, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a ``put`` says of its parent; see docs/langgraph.md."""
    parent, source = parent_of(config), metadata.get("source")
    if parent is None:
        configurable = config["configurable"]
        replays = configurable.get(_REPLAY) is not None
        runs = _RUNTIME in configurable or source == "update"
        if runs and not replays and source != "fork":
            return {"expected": Expected(made_from=None, head=None)}
        return {"is_root": True}
    load = parent.load if isinstance(parent, Loaded) else None
    if load is not None:
        load.require_own()
        expected = Expected(made_from=load.mark, head=load.head)
        return {"parent_checkpoint_id": str(parent), "expected": expected}
    is_fork = source in _FORKS or isinstance(parent, Loaded)
    return {"parent_checkpoint_id": str(parent), "fork": is_fork}


def fork_of(parent: str | None) -> dict[str, Any]:
    """What a ``put`` says of its parent where it is a fork."""
    if parent is None:
        return {"is_root": True}
    return {"parent_checkpoint_id": str(parent), "fork": True}
