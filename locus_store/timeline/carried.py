"""The pending writes of a LangGraph checkpoint that a rewound one keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from locus_store.saver import namespace_of
from locus_store.timeline.task_ids import TaskIds
from locus_store.values.encoding import decode, encode
from locus_store.values.frames import value_of, value_payload
from locus_store.versions import JSON_WRITE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from locus_store.timeline.task_ids import Renamed
    from locus_store.types import PendingWrite, Snapshot

_ERROR: Final = "__error__"
_INTERRUPT: Final = "__interrupt__"
_STOPS: Final = {_ERROR, _INTERRUPT}
_NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""The task of what a caller wrote with ``Command``."""

_ANSWERS: Final = 64
"""Interrupts of one task that are looked for."""


def carried(
    found: Snapshot, writes: Sequence[PendingWrite], name: str, max_bytes: int, *, is_left: bool
) -> list[PendingWrite]:
    """Return the writes of a checkpoint under the ids that its tasks have in a copy of it.

    The writes of the newest checkpoint are all kept. A graph that ran on from a checkpoint left the
    results of all its tasks there. If an interrupt or an error stopped it there in between, those
    of the tasks that did not stop are kept, and the interrupts. If nothing did, none are kept, as
    a result that is kept would only repeat the next version.

    A task whose new id is not found runs again: a function of the functional API, and a node whose
    channels are not known.

    Args:
        found: The checkpoint.
        writes: Its writes, without frames.
        name: The id of the copy.
        max_bytes: The largest value.
        is_left: Whether the graph ran on from this checkpoint.
    """
    version = found.version
    step = version.metadata.get("step")
    if not isinstance(step, int):
        return []
    ids = TaskIds(found.state, step, namespace_of(version), version.checkpoint_id, name)
    kept = _before_stop(writes) if is_left else writes
    return list(_renamed(ids, kept, max_bytes, first_only=is_left))


def _before_stop(writes: Sequence[PendingWrite]) -> list[PendingWrite]:
    stopped = {it.task_id for it in writes if it.channel in _STOPS}
    if not stopped:
        return []
    return [it for it in writes if it.channel in _STOPS or it.task_id not in {*stopped, _NO_TASK}]


def _renamed(
    ids: TaskIds, writes: Sequence[PendingWrite], max_bytes: int, *, first_only: bool
) -> Iterator[PendingWrite]:
    tasks: dict[str, Renamed | None] = {}
    for write in writes:
        if write.task_id == _NO_TASK:
            yield write
            continue
        if write.task_id not in tasks:
            tasks[write.task_id] = ids.renamed(write.task_id, write.task_path)
        task = tasks[write.task_id]
        made = None if task is None else _write(write, task, max_bytes, first_only=first_only)
        if made is not None:
            yield made


def _write(
    write: PendingWrite, task: Renamed, max_bytes: int, *, first_only: bool
) -> PendingWrite | None:
    """Return a write of the task's new id; ``None`` for an interrupt whose id is not found."""
    moved = replace(write, task_id=task.task_id)
    if write.channel != _INTERRUPT:
        return moved
    is_json = write.type == JSON_WRITE
    content = encode(value_of(write.payload, max_bytes)) if is_json else write.payload
    for answers in range(1 if first_only else _ANSWERS):
        old, new = task.interrupt(answers)
        if old in content:
            content = content.replace(old, new)
            value = value_payload(decode(content), max_bytes) if is_json else content
            return replace(moved, payload=value)
    return None
