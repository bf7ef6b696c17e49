"""The pending writes of a LangGraph checkpoint that a rewound one keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from locus_store.timeline.task_ids import is_call_of, is_handler
from locus_store.values.frames import value_of, value_payload
from locus_store.values.msgpack import pack_sorted, plain
from locus_store.versions import JSON_WRITE
from locus_store.versions.sizes import INTERRUPT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from locus_store.timeline.task_ids import Renamed
    from locus_store.types import PendingWrite

_ERROR: Final = "__error__"
_HANDLED: Final = "__error_source_node__"
"""An error handler ran, or is to run, in place of the task."""

_RESUME: Final = "__resume__"
_NO_RESULTS: Final = {_ERROR, _HANDLED, INTERRUPT, _RESUME, "__scheduled__"}
NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""The task of what a caller wrote with ``Command``."""

_ANSWERS: Final = 64
"""Interrupts of one task that are looked for."""


def stopped(writes: Sequence[PendingWrite]) -> set[str]:
    """Return the tasks that an interrupt stopped, or an error that nothing handled."""
    handled = {it.task_id for it in writes if it.channel == _HANDLED}
    stops = {it.task_id for it in writes if it.channel in {_ERROR, INTERRUPT}}
    return stops - handled


def finished(writes: Sequence[PendingWrite]) -> set[str]:
    """Return the tasks with a result that LangGraph does not compute again."""
    return {
        it.task_id
        for it in writes
        if it.channel not in _NO_RESULTS and it.task_id != NO_TASK and not is_handler(it.task_path)
    }


def answered(writes: Sequence[PendingWrite]) -> set[str]:
    """Return the tasks that an answer to one of their own interrupts is stored of."""
    return {it.task_id for it in writes if it.channel == _RESUME}


def before_stop(writes: Sequence[PendingWrite]) -> list[PendingWrite]:
    """Return what a step had before it was continued; nothing if it was never stopped.

    What a stopped task called is left out: whether it was before the stop is not stored.
    """
    ids = stopped(writes)
    paths = {it.task_path for it in writes if it.task_id in ids}
    if not ids:
        return []
    return [
        it
        for it in writes
        if not any(is_call_of(it.task_path, path) for path in paths)
        and (it.channel in {_ERROR, INTERRUPT} or it.task_id not in {*ids, NO_TASK})
    ]


def moved(
    write: PendingWrite,
    task: Renamed,
    all_tasks: Collection[Renamed],
    max_bytes: int,
    *,
    first_only: bool,
) -> PendingWrite | None:
    """Return a write of the task's new id; ``None`` for an interrupt whose id is not found.

    Args:
        write: Without frames.
        task: The task.
        all_tasks: Those that the id of an interrupt may be of: it and those below.
        max_bytes: The largest value.
        first_only: An interrupt is kept only if it was a task's first one.
    """
    made = replace(write, task_id=task.task_id)
    if write.channel != INTERRUPT:
        return made
    is_json = write.type == JSON_WRITE
    content = before = write.payload
    if is_json:  # one id is as long as another, so that MessagePack stays valid
        content = before = pack_sorted(value_of(before, max_bytes, packed=True))
    for it in all_tasks:
        for answers in range(1 if first_only else _ANSWERS):
            content = content.replace(*it.interrupt(answers))
    if content == before:
        return None
    value = value_payload(plain(content), max_bytes, packed=True) if is_json else content
    return replace(made, payload=value)
