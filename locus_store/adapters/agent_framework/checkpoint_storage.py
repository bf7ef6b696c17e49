"""The checkpoint storage of Microsoft Agent Framework, over versions of threads.

A state has the forms of ``values.codec`` in tagged JSON, and those of the framework's and the
application's objects. Nothing is pickled. A class is looked up by its name among those that are
allowed and imported; nothing is imported, and no constructor of a dataclass runs.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from glob import escape
from typing import Any, Final, Union, get_args, get_origin
from uuid import UUID

import agent_framework as framework
from agent_framework import CheckpointStorage, WorkflowCheckpoint, WorkflowEvent
from agent_framework._workflows._checkpoint_encoding import _REGISTERED_CHECKPOINT_TYPE_KEYS
from agent_framework.exceptions import WorkflowCheckpointException

from locus_store.adapters.logs import LEVELS, MAX_PLACES, Adapter, make_thread_id
from locus_store.backend import ListsThreads, QueriesMetadata, StorageBackend, StoresThreads, needs
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import ConflictError, IntegrityError, NotFoundError, SerializationError
from locus_store.open import open_checkpointer
from locus_store.runtime.loops import settle
from locus_store.runtime.recent import Recent
from locus_store.types import Active, Head, Version
from locus_store.types.arguments import MAX_COUNT, check_text
from locus_store.values import frames
from locus_store.values.codec import classes, forms
from locus_store.values.codec.forms import RefusedError, Trees
from locus_store.values.codec.names import find_imported, name_of
from locus_store.values.msgpack import FORM, TypedForm, freeze, thaw
from locus_store.values.surrogates import restore

ID, TIME, WORKFLOW = "workflow_checkpoint", "timestamp", "workflow_name"
"""Keys of a version's metadata: the checkpoint's id and time, and the name of its workflow."""

NEWEST, GROWTH = 10, 4
"""Runs, and versions of a run, among which the latest checkpoint is looked for first; factor."""

AT_ONCE: Final = 8
"""Runs that a list reads at once."""

MANY: Final = 100
"""Threads that may have a checkpoint with the same id."""

FIELDS: Final = frozenset(it.name for it in fields(WorkflowCheckpoint))


class LocusCheckpointStorage(Adapter, CheckpointStorage):
    """Keeps the checkpoints of workflows as versions of threads.

    A run of a workflow is the thread ``workflow/checkpoint``, by the id of its first checkpoint
    (``%`` and ``/`` within the two are escaped); what continues the run is in the same thread. A
    checkpoint is the version of its id, and the version of its previous checkpoint is its parent.
    Values are stored as JSON and never pickled.

    Args:
        storage: A checkpointer or a backend, which ``close`` leaves open. A checkpointer's
            ``keep_last`` and ``ttl_seconds`` apply to each run.
        allowed: Classes of the application that may be in a checkpoint.
        user_id: Is stored with each checkpoint, so that ``locus-store forget --user`` finds them.

    Raises:
        InvalidArgumentError: ``user_id`` is not valid.
        UnsupportedError: The backend cannot list threads, or find versions by their metadata.
    """

    part = "checkpointer"
    open_part = staticmethod(open_checkpointer)
    own_options = frozenset({"allowed", "user_id"})

    def __init__(
        self,
        storage: StorageBackendAdapter[Any] | StorageBackend,
        *,
        allowed: Iterable[type] = (),
        user_id: str | None = None,
    ) -> None:
        self.user_id = check_text("user_id", user_id, optional=True)
        self.checkpointer: StorageBackendAdapter[Any] = (
            StorageBackendAdapter(storage) if isinstance(storage, StorageBackend) else storage
        )
        self._values = CheckpointValues(allowed)
        self._use()

    def _use(self) -> None:
        self._places: Recent[str, str] = Recent(MAX_PLACES)
        """The threads that had checkpoints when these were last seen."""

        self._lists = needs(self.checkpointer.backend, ListsThreads)
        self._queries = needs(self.checkpointer.backend, QueriesMetadata)
        self._threads = needs(self.checkpointer.backend, StoresThreads)

    def _enter(self, tenant: str) -> None:
        super()._enter(tenant)
        self._use()

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint; return its id.

        Raises:
            CheckpointSerializationError: JSON cannot keep a value, or its class is not allowed;
                nothing was written.
        """
        data = {
            name: self._values.encode(value, f"checkpoint.{name}")
            for name, value in checkpoint.to_dict().items()
        }
        try:
            thread_id = await settle(self._write(checkpoint, data))
        except SerializationError as exc:
            raise CheckpointSerializationError(str(exc)) from exc
        self._places.put(checkpoint.checkpoint_id, thread_id)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint.

        Raises:
            CheckpointNotFoundError: There is none with this id.
            CheckpointIntegrityError: It is damaged, or has a class that is not allowed.
        """
        known = self._places.get(checkpoint_id)
        found = None if known is None else await self._threads.read_state(known, checkpoint_id)
        for head in () if found else await self._find_versions(checkpoint_id):
            found = await self._threads.read_state(head.thread_id, checkpoint_id)
            if found is not None:
                self._places.put(checkpoint_id, head.thread_id)
                break
        if found is not None:
            return self._make_checkpoint(found.state)
        raise CheckpointNotFoundError(f"there is no checkpoint {checkpoint_id!r}")

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, in the order in which they were saved."""
        wanted = await self._find_threads(workflow_name)
        runs: dict[str, set[str]] = {}
        for checkpoint_id, thread_id in wanted.items():
            runs.setdefault(thread_id, set()).add(checkpoint_id)
        found: dict[str, WorkflowCheckpoint] = {}
        every = list(runs.items())
        for start in range(0, len(every), AT_ONCE):
            some = (self._read_checkpoints(*it) for it in every[start : start + AT_ONCE])
            for checkpoints in await asyncio.gather(*some):
                found.update(checkpoints)
        return [found[it] for it in wanted if it in found]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of a workflow's checkpoints, in the order in which they were saved."""
        return list(await self._find_threads(workflow_name))

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint with the latest time; of several, the one saved last.

        Reads the runs that were active since that time, and their versions since then.
        """
        latest: Version | None = None
        async for run in self._iterate_recent_runs(workflow_name):
            if latest is not None and run.active_at < _make_order_key(latest)[0]:
                break  # no version of this run, or of those behind it, is later
            found = await self._find_latest(run.thread_id, workflow_name)
            latest = max(filter(None, (found, latest)), key=_make_order_key, default=None)
        if latest is None:
            return None
        self._places.put(latest.checkpoint_id, latest.thread_id)
        snapshot = await self._threads.read_state(latest.thread_id, latest.checkpoint_id)
        return None if snapshot is None else self._make_checkpoint(snapshot.state)

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one."""
        removed = [
            await settle(self._threads.remove(head.thread_id, [checkpoint_id]))
            for head in await self._find_versions(checkpoint_id)
        ]
        return any(removed)

    async def _write(self, checkpoint: WorkflowCheckpoint, data: Mapping[str, Any]) -> str:
        """Store a version; return its thread."""
        options: dict[str, Any] = {
            "checkpoint_id": checkpoint.checkpoint_id,
            "metadata": {
                ID: checkpoint.checkpoint_id,
                TIME: checkpoint.timestamp,
                WORKFLOW: checkpoint.workflow_name,
                **({} if self.user_id is None else {"user_id": self.user_id}),
            },
            "keep_last": self.checkpointer.keep_last,
            "ttl_seconds": self.checkpointer.ttl_seconds,
        }
        thread_id = await self._run_of(checkpoint)
        parent_id = checkpoint.previous_checkpoint_id
        parent: dict[str, Any] = {"parent_id": parent_id}
        # The fastest way first: onto the head, as a fork, without a parent.
        for attempt in ({**parent, "forks": False}, parent) if parent_id is not None else ():
            with suppress(ConflictError, NotFoundError):
                await self._threads.write_state(thread_id, data, **attempt, **options)
                return thread_id
        await self._threads.write_state(thread_id, data, is_root=True, **options)
        return thread_id

    async def _run_of(self, checkpoint: WorkflowCheckpoint) -> str:
        """Return the thread of a checkpoint: that of the one before, or else its own."""
        name, previous = checkpoint.workflow_name, checkpoint.previous_checkpoint_id
        if previous is not None:
            known = self._places.get(previous)
            if known is not None and known.startswith(make_thread_id(name, "")):
                return known
            for head in await self._find_versions(previous):
                if head.metadata.get(WORKFLOW) == name:
                    return head.thread_id
        return make_thread_id(name, checkpoint.checkpoint_id)

    async def _find_versions(self, checkpoint_id: str) -> list[Head]:
        """Return the versions of a checkpoint, the one saved last first."""
        return await self._queries.query(ID, checkpoint_id, MANY)

    async def _find_threads(self, workflow_name: str) -> dict[str, str]:
        """Return the threads of a workflow's checkpoints by their ids, the oldest first."""
        found = await self._queries.query(WORKFLOW, workflow_name, MAX_COUNT)
        mine = [it for it in reversed(found) if _is_of(it, workflow_name)]
        for head in mine:
            self._places.put(head.checkpoint_id, head.thread_id)
        return {it.checkpoint_id: it.thread_id for it in mine}

    async def _iterate_recent_runs(self, workflow_name: str) -> AsyncIterator[Active]:
        """Yield the threads of a workflow, the most recently active first."""
        pattern, limit = f"{escape(make_thread_id(workflow_name, ''))}*", NEWEST
        seen: set[str] = set()
        while True:
            page = await self._lists.recent(limit, pattern)
            for run in page:
                if run.thread_id not in seen:
                    yield run
            if len(page) < limit:
                return
            seen.update(it.thread_id for it in page)
            limit *= GROWTH

    async def _find_latest(self, thread_id: str, workflow_name: str) -> Version | None:
        """Return the checkpoint of a thread with the latest time, without its state."""
        limit = NEWEST
        while True:
            page = await self._threads.history(thread_id, limit=limit)
            mine = [it for it in page if _is_of(it, workflow_name)]
            latest = max(mine, key=_make_order_key, default=None)
            if len(page) < limit or (latest and page[-1].created_at < _make_order_key(latest)[0]):
                return latest
            limit *= GROWTH

    async def _read_checkpoints(
        self, thread_id: str, ids: set[str]
    ) -> list[tuple[str, WorkflowCheckpoint]]:
        def read(version: Version, folder: frames.Folder) -> tuple[str, WorkflowCheckpoint]:
            return version.checkpoint_id, self._make_checkpoint(folder.get_state())

        versions = await self._threads.history(thread_id, limit=MAX_COUNT)
        wanted = [it for it in versions if it.checkpoint_id in ids]
        return await self._threads.read_states(wanted, read)

    def _make_checkpoint(self, state: Mapping[str, Any]) -> WorkflowCheckpoint:
        if state.keys() != FIELDS:
            raise CheckpointIntegrityError("the version is not a checkpoint of a workflow")
        given = restore(state)
        return WorkflowCheckpoint(**{name: self._values.decode(it) for name, it in given.items()})


def _is_of(version: Head | Version, workflow_name: str) -> bool:
    named = version.metadata.get(ID), version.metadata.get(WORKFLOW)
    return named == (version.checkpoint_id, workflow_name)


def _make_order_key(version: Version) -> tuple[datetime, datetime, int]:
    """Return the key by which the latest checkpoint is the greatest; its time is first."""
    at = datetime.fromisoformat(version.metadata[TIME])
    zoned = at if at.tzinfo else at.replace(tzinfo=UTC)
    return zoned, version.created_at, version.mark.sequence


FRAMEWORK: Final = ("agent_framework.", "agent_framework_")
"""Modules whose dataclasses, enums and models are allowed."""

AS_DICTS: Final = frozenset(
    {
        *(framework.AgentResponse, framework.AgentResponseUpdate, framework.AgentSession),
        *(framework.ChatResponse, framework.ChatResponseUpdate),
        *(framework.Content, framework.Message),
    }
)
"""Classes of the framework that are stored by their ``to_dict`` and ``from_dict``."""

PLAIN: Final = {
    kind.__qualname__: kind
    for kind in (
        *(bool, bytes, dict, float, frozenset, int, list, object, set, str, tuple),
        *(Any, types.NoneType, date, datetime, time, timedelta, Decimal, UUID),
    )
}
"""Classes that a request may name as its type."""


class CheckpointValues(Trees):
    """Conversion of values to JSON and back.

    Args:
        allowed: Classes of the application that may be stored: dataclasses, enums, pydantic models,
            and classes with ``to_dict`` and ``from_dict``. Those given to the framework's
            ``register_checkpoint_type`` may be, too.
    """

    def __init__(self, allowed: Iterable[type] = ()) -> None:
        super().__init__(is_careful=True)
        self._allowed = {name_of(it): it for it in allowed}
        self._loads: dict[str, Callable[..., Any]] = {
            "class": self._find_class,
            "alias": lambda origin, *of: types.GenericAlias(origin, of),
            "union": lambda *of: Union[of],  # noqa: UP007  (of values, not of a type)
            "event": _restore_event,
            "object": self._restore_object,
        }

    def encode(self, value: Any, path: str) -> Any:
        """Return a value as JSON.

        Raises:
            CheckpointSerializationError: It cannot; names ``path``.
        """
        try:
            return freeze(self.convert(value), LEVELS)
        except RefusedError as exc:
            raise CheckpointSerializationError(exc.with_place(path)) from exc

    def make_node(self, tag: str, *held: Any) -> TypedForm:
        return TypedForm(tag, held)

    def convert_other(self, obj: Any, cls: type) -> Any:
        if cls is WorkflowEvent:
            return self.make_node("event", self.convert_members(vars(obj)))
        if arguments := get_args(obj):
            origin, parts = get_origin(obj), self.convert_items(arguments)
            if origin in {Union, types.UnionType}:
                return self.make_node("union", *parts)
            return self.make_node("alias", self.convert(origin), *parts)
        if isinstance(obj, type):
            return self.make_node("class", self._name_class(obj, obj))
        if forms.find_numpy_form(cls):
            return self._convert_form(obj)
        return self._convert_object(cls, obj)

    def _convert_object(self, cls: type, value: Any) -> TypedForm:
        name, kind = self._name_class(cls, value), classes.find_kind(cls)
        if kind in {None, "subclass"} and self._has_dicts(cls):
            return self.make_node("object", name, self.convert(value.to_dict()))
        if kind is None:
            raise self._make_refusal(value)
        return self.make_node("object", name, *map(self.convert, classes.get_data(value, kind)))

    def _name_class(self, cls: type, value: Any) -> str:
        """Return the name of a class that may be stored."""
        module, name = name_of(cls)
        is_plain = isinstance(value, type) and PLAIN.get(name) is cls
        try:
            if not is_plain and self._find_allowed_class(module, name) is not cls:
                raise self._make_refusal(value)
        except CheckpointIntegrityError as exc:
            raise self._make_refusal(value) from exc
        return f"{module}:{name}"

    @staticmethod
    def _make_refusal(value: Any) -> RefusedError:
        kind = value if isinstance(value, type) else type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return RefusedError(
            f"an object of class {name} cannot be stored. A dataclass, an enum, a pydantic model "
            "or a class with to_dict and from_dict can: give it to LocusCheckpointStorage as "
            "allowed=[...], or to the framework's register_checkpoint_type"
        )

    def decode(self, value: Any) -> Any:
        """Return the value of ``encode``.

        Raises:
            CheckpointIntegrityError: It is not what ``encode`` returns.
        """
        try:
            return thaw(value, self._read)
        except CheckpointIntegrityError:
            raise
        except (IntegrityError, SerializationError) as exc:
            raise CheckpointIntegrityError(str(exc)) from exc
        except Exception as exc:
            raise CheckpointIntegrityError(
                f"a stored value is damaged: {type(exc).__name__}"
            ) from exc

    def _read(self, node: Mapping[str, Any]) -> Any:
        tag, *held = thaw(node["v"], self._read)
        if node["c"] != FORM or not (tag in self._loads or forms.has(tag)):
            raise CheckpointIntegrityError(f"a stored value has the unknown form {tag!r:.40}")
        return self._loads[tag](*held) if tag in self._loads else forms.load(tag, *held)

    def _find_class(self, name: str) -> type:
        module, _, path = name.partition(":")
        if path in PLAIN and PLAIN[path].__module__ == module:
            return PLAIN[path]
        return self._find_allowed_class(module, path)

    def _restore_object(self, name: str, *held: Any) -> Any:
        module, _, path = name.partition(":")
        cls: Any = self._find_allowed_class(module, path)
        kind = classes.find_kind(cls)
        if kind in {None, "subclass"} and self._has_dicts(cls):
            return cls.from_dict(*held)
        if kind is None:
            raise CheckpointIntegrityError(f"class {module}.{path} has no from_dict")
        return classes.rebuild(cls, kind, *held)

    def _has_dicts(self, cls: type) -> bool:
        is_ours = cls in AS_DICTS or not cls.__module__.startswith(FRAMEWORK)
        return is_ours and all(hasattr(cls, it) for it in ("to_dict", "from_dict"))

    def _find_allowed_class(self, module: str, path: str) -> type:
        """Return a class that is allowed and imported; refuse any other."""
        name = module, path
        if name in self._allowed:
            return self._allowed[name]
        known = f"{module}:{path}" in _REGISTERED_CHECKPOINT_TYPE_KEYS
        found = find_imported(name) if known or module.startswith(FRAMEWORK) else None
        if not isinstance(found, type) or name_of(found) != name:
            raise CheckpointIntegrityError(
                f"class {module}.{path} is not allowed or not imported: give it to "
                "LocusCheckpointStorage as allowed=[...]"
            )
        return found


def _restore_event(fields: dict[str, Any]) -> WorkflowEvent[Any]:
    event: WorkflowEvent[Any] = WorkflowEvent("request_info")
    if fields.keys() != vars(event).keys():
        raise CheckpointIntegrityError("a stored event has other fields than a WorkflowEvent")
    vars(event).update(fields)
    return event


class CheckpointNotFoundError(NotFoundError, WorkflowCheckpointException):
    """There is no checkpoint with this id."""


class CheckpointSerializationError(SerializationError, WorkflowCheckpointException):
    """JSON cannot keep a value of the checkpoint exactly; nothing was written."""


class CheckpointIntegrityError(IntegrityError, WorkflowCheckpointException):
    """The stored checkpoint is damaged, or names a class that is not allowed."""
