"""The ids that LangGraph gives to the tasks of a checkpoint, under another checkpoint id.

LangGraph hashes the checkpoint's id, the task's place in the graph and the channels that started
it. Which channels those are is in the graph, and not in what is stored. Likely ones are tried: only
an id that equals the stored one, under the old checkpoint id, counts as found.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from locus_store.errors import UnsupportedError
from locus_store.timeline.layouts import CHANNELS, inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Parts: TypeAlias = tuple[str, ...]

_PULL: Final = "__pregel_pull"
_PUSH: Final = "__pregel_push"
_SENT: Final = "__pregel_tasks"
"""The channel with the values of ``Send``."""

_START: Final = "__start__"
_TEXTS: Final = 100
"""Strings of one ``Send`` among which the name of its node is looked for."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """A task under both checkpoint ids."""

    task_id: str
    place: tuple[str, str]
    """The old and the new namespace of what the task calls."""

    def interrupt(self, answers: int) -> tuple[bytes, bytes]:
        """Return the old and the new id of an interrupt, after so many answers."""
        ending = f"|{answers}" if answers else ""
        old, new = (_xxh3((it + ending).encode()) for it in self.place)
        return old.encode(), new.encode()


@dataclass(frozen=True, slots=True)
class TaskIds:
    """The tasks that run on a checkpoint."""

    state: Mapping[str, Any]
    step: int
    """Of the checkpoint; its tasks are of the next step."""

    checkpoint_ns: str
    old: str
    new: str
    """The checkpoint ids."""

    def renamed(self, task_id: str, task_path: str) -> Renamed | None:
        """Return a task by its old id, with its new one; ``None`` if it is not found.

        Raises:
            UnsupportedError: The package ``xxhash`` is not installed.
        """
        for name, ending in self._tasks(task_path):
            place = f"{self.checkpoint_ns}|{name}" if self.checkpoint_ns else name
            parts = (place, str(self.step + 1), name, *ending)
            if self._id(self.old, parts) == task_id:
                found = self._id(self.new, parts)
                return Renamed(found, (f"{place}:{task_id}", f"{place}:{found}"))
        return None

    def _id(self, checkpoint_id: str, parts: Parts) -> str:
        content = UUID(checkpoint_id).bytes + "".join(parts).encode()
        is_new = self.state.get("v", 1) > 1
        digest = _xxh3(content) if is_new else hashlib.sha1(content, usedforsecurity=False)
        return str(UUID(digest if isinstance(digest, str) else digest.hexdigest()[:32]))

    def _tasks(self, task_path: str) -> Iterator[tuple[str, Parts]]:
        """Yield what a task may be: its node, and what its id has behind that."""
        kind, _, rest = task_path.removeprefix("~").partition(", ")
        if kind == _PULL:
            yield from ((rest, (_PULL, *it)) for it in self._triggers(rest))
        elif kind == _PUSH and rest.partition(",")[0].isdigit():
            place = int(rest.partition(",")[0])
            yield from ((it, (_PUSH, str(place))) for it in self._sent(place))

    def _triggers(self, node: str) -> Iterator[Parts]:
        branch = {f"branch:to:{node}"}
        known = inside(self.state["channel_versions"])[1]
        joins = {it for it in known if it.startswith("join:") and it.endswith(f":{node}")}
        seen = set(inside(inside(self.state["versions_seen"])[1].get(node, {}))[1])
        for channels in (branch, branch | joins, seen, seen | branch, seen | joins | branch):
            yield tuple(sorted(channels))
        yield (_START,)

    def _sent(self, place: int) -> Iterator[str]:
        sent = inside(self.state[CHANNELS])[1].get(_SENT)
        if isinstance(sent, list) and place < len(sent):
            yield from islice(_texts(sent[place]), _TEXTS)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for it in value.values() if isinstance(value, dict) else value:
            yield from _texts(it)


def _xxh3(content: bytes) -> str:
    try:
        from xxhash import xxh3_128_hexdigest  # noqa: PLC0415  (LangGraph brings it)
    except ImportError as exc:
        raise UnsupportedError(
            "the tasks of a LangGraph thread cannot be renamed without the package xxhash, which "
            "LangGraph uses for their ids; run: pip install xxhash"
        ) from exc
    return xxh3_128_hexdigest(content)
