"""The ids that LangGraph gives to the tasks of a checkpoint, under another checkpoint id.

LangGraph hashes the checkpoint's id, the namespace, the step, the name of the node or function, and
what started the task: the channels of a node; the place of a ``Send``; the calling task and the
number of the call for a function of the functional API. Names and channels are not always stored.
Likely ones are tried: only an id that equals the stored one, under the old checkpoint id, counts as
found. Keys of LangGraph's cache hold none of this: a cached result is found under any id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from locus_store.errors import UnsupportedError
from locus_store.timeline.paths import CHANNELS, unwrap
from locus_store.types import PendingWrite
from locus_store.values.encoding import encode_canonical
from locus_store.values.frames import decode_value, encode_value
from locus_store.values.frames.operations import iterate_strings
from locus_store.values.msgpack import decode_sorted
from locus_store.versions import JSON_WRITE
from locus_store.versions.sizes import INTERRUPT

Parts: TypeAlias = tuple[str, ...]

_PULL: Final = "~__pregel_pull, "
_PUSH: Final = "~__pregel_push, "
_PULLED, _PUSHED = "__pregel_pull", "__pregel_push"
_SENT: Final = "__pregel_tasks"
"""The channel with the values of ``Send``."""

_START: Final = "__start__"
_BRANCH: Final = "branch:to:"
_NO_CALL, _CALL = f"{0:010d}", f"{1:010d}"
"""The ends of the paths of a ``Send`` and of a call."""

_HANDLER: Final = ", node_error_handler, "
"""In the path of an error handler's task, which LangGraph runs in each resume."""

_TEXTS: Final = 100
"""Strings of one ``Send`` among which the name of its node is looked for."""

_PLACES: Final = 1000
"""Places of a ``Send`` or numbers of a call that are tried for a namespace."""

_TRIES: Final = 50_000
"""Ids that are computed for one task."""


class Side(NamedTuple):
    """A checkpoint on which tasks run."""

    checkpoint_id: str
    checkpoint_ns: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """A task under both checkpoint ids."""

    path: str
    name: str
    old: str
    task_id: str
    place: tuple[str, str]
    """The old and the new namespace of what the task calls."""

    def interrupt(self, answers: int) -> tuple[bytes, bytes]:
        """Return the old and the new id of an interrupt, after so many answers."""
        ending = f"|{answers}" if answers else ""
        old, new = (_hash_text((it + ending).encode()) for it in self.place)
        return old.encode(), new.encode()


@dataclass(frozen=True, slots=True)
class TaskIds:
    """The tasks that run on a checkpoint."""

    state: Mapping[str, Any]
    step: int
    """Of the checkpoint; its tasks are of the next step."""

    old: Side
    new: Side
    names: Collection[str]
    """Nodes and functions that may be those of a task whose name is not stored."""

    found: dict[str, Renamed] = field(default_factory=dict)
    """The tasks that were found, by path."""

    by_name: dict[str, dict[str, Renamed]] = field(default_factory=dict)
    """The candidates for each name, by their old ids."""

    def rename(self, task_id: str, task_path: str) -> Renamed | None:
        """Return a task by its old id, with its new one; ``None`` if it is not found.

        Raises:
            UnsupportedError: The package ``xxhash`` is not installed.
        """
        return self._find_first(task_id, self._iterate_tasks(task_path))

    def find_callers(self, place: str) -> tuple[list[Renamed], str] | None:
        """Return the tasks that lead to a namespace below the checkpoint's, and its new name.

        ``None`` if a task is not found, or the namespace is not that of a task: a subgraph that
        keeps its own checkpoints has the same namespace in all steps.

        Raises:
            UnsupportedError: The package ``xxhash`` is not installed.
        """
        tasks: list[Renamed] = []
        name = self.new.checkpoint_ns
        for part in split_below(self.old.checkpoint_ns, place):
            if part.isdigit():  # the number of a subgraph that a task calls
                name += f"|{part}"
                continue
            node, _, task_id = part.rpartition(":")
            task = self._find_called(node, task_id, tasks[-1] if tasks else None)
            if task is None:
                return None
            tasks.append(task)
            name = task.place[1]
        return tasks, name

    def _find_called(self, name: str, task_id: str, caller: Renamed | None) -> Renamed | None:
        if caller is not None:
            return self._find_first(task_id, self._iterate_calls(name, caller))
        if name not in self.by_name:
            self.by_name[name] = {it.old: it for it in self._list_named_tasks(name)}
        task = self.by_name[name].get(task_id)
        return None if task is None else self._find_first(task_id, [task])

    def _find_first(self, task_id: str, tasks: Iterable[Renamed]) -> Renamed | None:
        for task in islice(tasks, _TRIES):
            if task.old == task_id:
                self.found[task.path] = task
                return task
        return None

    def _iterate_tasks(self, path: str) -> Iterator[Renamed]:
        """Yield what the task of a path may be."""
        if path in self.found:
            yield self.found[path]
        elif path.startswith(_PULL):
            name = path.removeprefix(_PULL)
            for channels in self._iterate_triggers(name):
                yield self._make(path, name, (_PULLED, *channels))
        elif path.startswith(_PUSH):
            yield from self._iterate_pushed(path)

    def _iterate_pushed(self, path: str) -> Iterator[Renamed]:
        rest = path.removeprefix(_PUSH)
        sent = rest.partition(", ")[0]
        if sent.isdigit():
            for name in self._iterate_sent(int(sent)):
                yield self._make(path, name, (_PUSHED, str(int(sent))))
            return
        caller, number = rest.removesuffix(f", {_CALL}").rpartition(", ")[::2]
        if not number.isdigit():
            return
        for parent in self._iterate_tasks(caller):
            for name in self.names:
                yield self._make(path, name, (_PUSHED, caller, str(int(number))), parent)

    def _list_named_tasks(self, name: str) -> Iterator[Renamed]:
        """Yield what a task of a name may be that no other one calls."""
        yield from self._iterate_tasks(f"{_PULL}{name}")
        sent = unwrap(self.state[CHANNELS])[1].get(_SENT, [])
        count = len(sent) if isinstance(sent, list) else _PLACES  # at most, if they are encrypted
        for number in range(count):
            yield self._make(f"{_PUSH}{number:010d}, {_NO_CALL}", name, (_PUSHED, str(number)))

    def _iterate_calls(self, name: str, caller: Renamed) -> Iterator[Renamed]:
        """Yield what a task of a name may be that another one calls."""
        for number in range(_PLACES):
            path = f"{_PUSH}{caller.path}, {number:010d}, {_CALL}"
            yield self._make(path, name, (_PUSHED, caller.path, str(number)), caller)

    def _make(self, path: str, name: str, ending: Parts, caller: Renamed | None = None) -> Renamed:
        """Return a task.

        Args:
            path: Its path.
            name: Its node or function.
            ending: What its id has behind that.
            caller: The task in whose namespace it runs, if any.
        """
        places, ids = [], []
        for at, side in enumerate((self.old, self.new)):
            above = caller.place[at] if caller else side.checkpoint_ns
            place = f"{above}|{name}" if above else name
            parts = (place, str(self.step + 1), name, *ending)
            ids.append(self._make_id(side.checkpoint_id, parts))
            places.append(f"{place}:{ids[-1]}")
        return Renamed(path, name, ids[0], ids[1], (places[0], places[1]))

    def _make_id(self, checkpoint_id: str, parts: Parts) -> str:
        try:
            content = UUID(checkpoint_id).bytes + "".join(parts).encode()
        except ValueError:  # LangGraph runs no task on such a checkpoint
            return ""
        is_new = self.state.get("v", 1) > 1
        digest = _hash_text(content) if is_new else hashlib.sha1(content, usedforsecurity=False)
        return str(UUID(digest if isinstance(digest, str) else digest.hexdigest()[:32]))

    def _iterate_triggers(self, node: str) -> Iterator[Parts]:
        branch = {f"{_BRANCH}{node}"}
        known = unwrap(self.state["channel_versions"])[1]
        joins = {it for it in known if it.startswith("join:") and it.endswith(f":{node}")}
        seen = set(unwrap(unwrap(self.state["versions_seen"])[1].get(node, {}))[1])
        for channels in (branch, branch | joins, seen, seen | branch, seen | joins | branch):
            yield tuple(sorted(channels))
        yield (_START,)
        yield from ((it,) for it in known)

    def _iterate_sent(self, place: int) -> Iterator[str]:
        sent = unwrap(self.state[CHANNELS])[1].get(_SENT)
        if isinstance(sent, list) and place < len(sent):
            yield from islice(iterate_strings([sent[place]]), _TEXTS)
        yield from self.names


def find_names(state: Mapping[str, Any]) -> set[str]:
    """Return the nodes and functions that ran before a checkpoint, or are to run on it."""
    ran = {it for it in unwrap(state["versions_seen"])[1] if not it.startswith("__")}
    channels = unwrap(state["channel_versions"])[1]
    return ran | {it.removeprefix(_BRANCH) for it in channels if it.startswith(_BRANCH)}


def split_below(checkpoint_ns: str, place: str) -> list[str]:
    """Return the parts of a namespace that lies below another; none if it does not."""
    above = f"{checkpoint_ns}|" if checkpoint_ns else ""
    return place[len(above) :].split("|") if place != above and place.startswith(above) else []


def describe_path(task_path: str) -> str:
    """Return a task's path in words."""
    rest = task_path.removeprefix(_PUSH)
    if rest == task_path:
        return repr(task_path.removeprefix(_PULL))
    sent = rest.partition(", ")[0]
    if sent.isdigit():
        return f"the task of Send {int(sent) + 1}"
    caller, number = rest.removesuffix(f", {_CALL}").rpartition(", ")[::2]
    return f"call {int(number) + 1 if number.isdigit() else number} of {describe_path(caller)}"


def _hash_text(content: bytes) -> str:
    try:
        from xxhash import xxh3_128_hexdigest  # noqa: PLC0415  (LangGraph brings it)
    except ImportError as exc:
        raise UnsupportedError(
            "the tasks of a LangGraph thread cannot be renamed without the package xxhash, which "
            "LangGraph uses for their ids; run: pip install xxhash"
        ) from exc
    return xxh3_128_hexdigest(content)


_ERROR: Final = "__error__"
_HANDLED: Final = "__error_source_node__"
"""An error handler ran, or is to run, in place of the task."""

_RESUME: Final = "__resume__"
_NO_RESULTS: Final = {_ERROR, _HANDLED, INTERRUPT, _RESUME, "__scheduled__"}
NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""The task of what a caller wrote with ``Command``."""

_ANSWERS: Final = 64
"""Interrupts of one task that are looked for."""


def find_stopped(writes: Sequence[PendingWrite]) -> set[str]:
    """Return the tasks that an interrupt stopped, or an error that nothing handled."""
    handled = {it.task_id for it in writes if it.channel == _HANDLED}
    stops = {it.task_id for it in writes if it.channel in {_ERROR, INTERRUPT}}
    return stops - handled


def find_finished(writes: Sequence[PendingWrite]) -> set[str]:
    """Return the tasks with a result that LangGraph does not compute again."""
    return {
        write.task_id
        for write in writes
        if write.channel not in _NO_RESULTS
        and write.task_id != NO_TASK
        and _HANDLER not in write.task_path
    }


def find_answered(writes: Sequence[PendingWrite]) -> set[str]:
    """Return the tasks that an answer to one of their own interrupts is stored of."""
    return {it.task_id for it in writes if it.channel == _RESUME}


def select_before_stop(writes: Sequence[PendingWrite]) -> list[PendingWrite]:
    """Return what a step had before it was continued; nothing if it was never stopped.

    What a stopped task called is left out: whether it was before the stop is not stored.
    """
    ids = find_stopped(writes)
    callers = {f"{it.task_path}, " for it in writes if it.task_id in ids}
    if not ids:
        return []
    return [
        write
        for write in writes
        if not (
            write.task_path.startswith(f"{_PUSH}~") and any(at in write.task_path for at in callers)
        )
        and (write.channel in {_ERROR, INTERRUPT} or write.task_id not in {*ids, NO_TASK})
    ]


def move_write(
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
        content = before = encode_canonical(decode_value(before, max_bytes, packed=True))
    for other in all_tasks:
        for answers in range(1 if first_only else _ANSWERS):
            content = content.replace(*other.interrupt(answers))
    if content == before:
        return None
    value = encode_value(decode_sorted(content), max_bytes, packed=True) if is_json else content
    return replace(made, payload=value)
