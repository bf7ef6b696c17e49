"""Loads of checkpoints, which distinguish a fork from a second writer."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from langchain_core.runnables import RunnableConfig

from locus_store.errors import ConflictError, InvalidArgumentError
from locus_store.runtime.forks import make_lock
from locus_store.runtime.stepping import wait_for_end
from locus_store.saver import SPECIAL_CHANNELS
from locus_store.types import Expected, Mark
from locus_store.types.arguments import check_list, check_mapping, check_text

Key: TypeAlias = tuple[str, int]

RUNTIME: Final = "__pregel_runtime"  # in the config of a call by a running graph
HELD: Final = "__pregel_locus_turns"  # in the same: the turns of the run, for writes of its threads
_REPLAY: Final = "__pregel_replay_state"  # in the config of a subgraph that is replayed
_FORKS: Final = frozenset({"fork", "update"})  # `source` of one that may be made from any other


@dataclass(slots=True)
class Load:
    """The result of reading a checkpoint when it was loaded."""

    mark: Mark
    head: Mark
    """The newest version then."""

    seen: set[Key]
    """Task and place of its pending writes, and of those that were sent since."""

    is_lost: bool = False
    """Another run was faster: what this one still sends is refused."""

    _last: Future[None] | None = None

    @asynccontextmanager
    async def admit_writes(self, keys: set[Key]) -> AsyncIterator[Collection[Key]]:
        """Allow these writes to be sent within the block; yield those that may be stored already.

        One call after the other, so that of two runs one is refused whole.

        Raises:
            ConflictError: Another run was faster, or is found to be.
        """
        new, mine = keys - self.seen, Future[None]()
        self.seen |= keys
        before, self._last = self._last, mine
        try:
            if before is not None:
                await wait_for_end(before)
            self.require_own()
            yield _Seen(self.seen, new)
        except ConflictError:
            self.is_lost = True
            raise
        finally:
            mine.set_result(None)

    def require_own(self) -> None:
        """Refuse to continue a run that has had a conflict."""
        if self.is_lost:
            raise ConflictError(
                "another run uses the checkpoint of this run; nothing more of this run is "
                "written. Run the graph again when the other run is over"
            )


class Given(NamedTuple):
    """A checkpoint id that a saver returned."""

    checkpoint_id: str
    load: Load | None
    """``None`` for an id of a list: a checkpoint that is made from it is a fork."""


class _Seen(Collection[Key]):
    """The writes that a run may find stored; it grows while the run sends more."""

    def __init__(self, keys: set[Key], new: set[Key]) -> None:
        self._keys, self._new = keys, new

    def __contains__(self, key: object) -> bool:
        return key in self._keys and key not in self._new

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys - self._new)

    def __len__(self) -> int:
        return len(self._keys - self._new)


def parse_config(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the thread, namespace and checkpoint that a config names.

    Raises:
        InvalidArgumentError: It names no thread, or is not a config.
    """
    try:
        found = config.get("configurable") or {}
        name = check_text("checkpoint_id", found.get("checkpoint_id") or None, optional=True)
        return format_thread_id(found.get("thread_id")), found.get("checkpoint_ns") or "", name
    except AttributeError:
        get_checkpoint_id(config)  # raises an error that says what is wrong
        raise


def format_thread_id(value: object) -> str:
    """Return a thread id as text: a ``str``, or the text of an integer or a UUID.

    Raises:
        InvalidArgumentError: It is anything else, ``None`` or an empty text among them: as text,
            ``None`` of one user would be the thread of all others that have none.
    """
    if type(value) is str and value:
        return value
    if isinstance(value, (str, int, UUID)) and value != "" and not isinstance(value, bool):
        return str(value)
    raise InvalidArgumentError(
        f"thread_id must be a non-empty str, an int or a UUID, not {value!r}; give the graph "
        '{"configurable": {"thread_id": "..."}}, an id of the conversation'
    )


def get_checkpoint_id(config: RunnableConfig) -> str | None:
    """Return the checkpoint that a config names."""
    found = check_mapping("a config", config).get("configurable") or {}
    name = check_mapping("configurable of a config", found).get("checkpoint_id")
    return check_text("checkpoint_id", name or None, optional=True)


def check_pairs(writes: object) -> list[tuple[str, Any]]:
    """Return a task's writes, with the text of an error that ended it, as LangGraph's savers."""
    try:
        pairs = [*map(tuple, check_list("writes", writes))]
        special = dict(pairs).keys() & SPECIAL_CHANNELS
    except (TypeError, ValueError) as exc:
        raise InvalidArgumentError(f"writes must be pairs of a channel and a value: {exc}") from exc
    for at, (name, value) in enumerate(pairs if special else ()):
        if name in special and isinstance(value, BaseException):
            pairs[at] = name, repr(value)
    return pairs


def make_parent_arguments(
    config: RunnableConfig, parent: str | None, metadata: Mapping[str, Any], origin: Given | None
) -> dict[str, Any]:
    """Return the arguments of a ``put`` that describe its parent; see docs/langgraph.md.

    Args:
        config: The config that names the parent.
        parent: The parent's id.
        metadata: Metadata of the new checkpoint.
        origin: How the parent was loaded, where that is known.
    """
    source = metadata.get("source")
    if parent is None:
        configurable = config["configurable"]
        replays = configurable.get(_REPLAY) is not None
        runs = RUNTIME in configurable or source == "update"
        if runs and not replays and source != "fork":
            return {"expected": Expected(made_from=None, head=None)}
        return {"is_root": True}
    if origin is not None and origin.load is not None:
        origin.load.require_own()
        expected = Expected(made_from=origin.load.mark, head=origin.load.head)
        return {"parent_checkpoint_id": parent, "expected": expected}
    is_fork = source in _FORKS or origin is not None
    return {"parent_checkpoint_id": parent, "fork": is_fork}


FIRST_SWEEP: Final = 1024
"""From this number of entries on, those that are not needed any more are looked for."""

MAX_ENTRIES: Final = 16_384
"""Entries at most; the oldest are dropped."""

_OWN_REFERENCES: Final = 2
"""References to an id that only its entry holds: the entry's, and that of ``sys.getrefcount``."""


class GivenIds:
    """The ids that a saver returned, known by the string object itself.

    LangGraph carries the object from ``get_tuple`` to the first ``put`` of a run. The object
    distinguishes two runs that loaded the same checkpoint; the id is a plain ``str``. An id that is
    not known (it went through JSON, or its entry was dropped) is treated as one that the caller
    typed: its checkpoint must be the newest one, unless the metadata declares a fork.

    An entry is dropped when the string has no other reference.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Given] = {}
        self._sweep_at = FIRST_SWEEP
        self._lock = make_lock()

    def __len__(self) -> int:
        return len(self._entries)

    def give(self, checkpoint_id: str, load: Load | None) -> str:
        """Return a new string that equals the id, and remember its load under this object.

        Python has one object for each string of one character, so such an id is not remembered.
        """
        made = checkpoint_id.encode().decode()
        if len(made) > 1:
            with self._lock:
                self._entries[id(made)] = Given(made, load)
                if len(self._entries) > self._sweep_at:
                    self._sweep()
        return made

    def find(self, checkpoint_id: str | None) -> Given | None:
        """Return what is known of this very string object."""
        found = self._entries.get(id(checkpoint_id))
        return found if found is not None and found.checkpoint_id is checkpoint_id else None

    def _sweep(self) -> None:
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if sys.getrefcount(entry.checkpoint_id) > _OWN_REFERENCES
        }
        for key in list(self._entries)[:-MAX_ENTRIES]:
            del self._entries[key]
        self._sweep_at = len(self._entries) + FIRST_SWEEP
