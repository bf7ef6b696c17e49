"""The checkpoint storage of Microsoft Agent Framework, over versions of threads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from agent_framework import CheckpointStorage, WorkflowCheckpoint

from locus_store.adapters.agent_framework.errors import (
    CheckpointIntegrityError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
)
from locus_store.adapters.agent_framework.values import CheckpointValues
from locus_store.adapters.logs import Places
from locus_store.backend import QueriesMetadata, StorageBackend, StoresThreads, needs
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import ConflictError, NotFoundError, SerializationError
from locus_store.open import open_checkpointer
from locus_store.runtime.loops import settled
from locus_store.types.tenants import ForTenants
from locus_store.values.surrogates import restored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from locus_store.types import Version
    from locus_store.values import frames

ID, TIME = "workflow_checkpoint", "timestamp"
"""Keys of a version's metadata: the checkpoint's id and time."""

PAGE: Final = 1000
"""Versions that a list reads at a time."""

MANY: Final = 100
"""Workflows that may have a checkpoint with the same id."""

FIELDS: Final = frozenset(it.name for it in fields(WorkflowCheckpoint))


class LocusCheckpointStorage(ForTenants, CheckpointStorage):
    """Keeps the checkpoints of workflows as versions of threads.

    A workflow is the thread of its name, and a checkpoint the version of its id. The version of
    its previous checkpoint is its parent. Values are stored as JSON and never pickled.

    Args:
        storage: A checkpointer or a backend, which ``close`` leaves open. A checkpointer's
            ``keep_last`` and ``ttl_seconds`` apply.
        allowed: Classes of the application that may be in a checkpoint.

    Raises:
        UnsupportedError: The backend cannot find versions by their metadata.
    """

    def __init__(
        self, storage: StorageBackendAdapter[Any] | StorageBackend, *, allowed: Iterable[type] = ()
    ) -> None:
        self.checkpointer: StorageBackendAdapter[Any] = (
            StorageBackendAdapter(storage) if isinstance(storage, StorageBackend) else storage
        )
        self._values = CheckpointValues(allowed)
        self._owns = False
        self._use()

    def _use(self) -> None:
        self._places = Places()
        self._queries = needs(self.checkpointer.backend, QueriesMetadata)
        self._threads = needs(self.checkpointer.backend, StoresThreads)

    @classmethod
    def from_url(cls, url: str, *, allowed: Iterable[type] = (), **options: Any) -> Self:
        """Return a storage for a URL; see ``open_checkpointer`` for URLs and options."""
        opened = cls(open_checkpointer(url, **options), allowed=allowed)
        opened._owns = True
        return opened

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.checkpointer!r})"

    def _enter(self, tenant: str) -> None:
        self.checkpointer = self.checkpointer.for_tenant(tenant)
        self._owns = False
        self._use()

    async def close(self) -> None:
        """Close what ``from_url`` opened; idempotent, and usable again afterwards."""
        if self._owns:
            await self.checkpointer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --- the protocol

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint; return its id.

        Raises:
            CheckpointSerializationError: JSON cannot keep a value, or its class is not allowed;
                nothing was written.
        """
        data = {
            name: self._values.encoded(it, f"checkpoint.{name}")
            for name, it in checkpoint.to_dict().items()
        }
        try:
            await settled(self._write(checkpoint, data))
        except SerializationError as exc:
            raise CheckpointSerializationError(str(exc)) from exc
        self._places.note(checkpoint.workflow_name, [checkpoint.checkpoint_id])
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint.

        Raises:
            CheckpointNotFoundError: There is none with this id.
            CheckpointIntegrityError: It is damaged, or has a class that is not allowed.
        """
        known = self._places.get(checkpoint_id)
        found = None if known is None else await self._threads.read_state(known, checkpoint_id)
        for workflow_name in () if found else await self._workflows_of(checkpoint_id):
            found = await self._threads.read_state(workflow_name, checkpoint_id)
            if found is not None:
                break
        if found is not None:
            return self._checkpoint(found.state)
        raise CheckpointNotFoundError(f"there is no checkpoint {checkpoint_id!r}")

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, in the order in which they were saved."""

        def read(_: Version, folder: frames.Folder) -> WorkflowCheckpoint:
            return self._checkpoint(folder.state())

        versions = await self._versions(workflow_name)
        return await self._threads.read_states(versions, read)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of a workflow's checkpoints, in the order in which they were saved."""
        return [it.checkpoint_id for it in await self._versions(workflow_name)]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint with the latest time; of several, the one saved last."""
        versions = await self._versions(workflow_name)
        if not versions:
            return None
        latest = max(reversed(versions), key=lambda it: datetime.fromisoformat(it.metadata[TIME]))
        found = await self._threads.read_state(workflow_name, latest.checkpoint_id)
        return None if found is None else self._checkpoint(found.state)

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one."""
        removed = [
            await settled(self._threads.remove(it, [checkpoint_id]))
            for it in await self._workflows_of(checkpoint_id)
        ]
        return any(removed)

    # --- versions

    async def _write(self, checkpoint: WorkflowCheckpoint, data: Mapping[str, Any]) -> None:
        options: dict[str, Any] = {
            "checkpoint_id": checkpoint.checkpoint_id,
            "metadata": {ID: checkpoint.checkpoint_id, TIME: checkpoint.timestamp},
            "keep_last": self.checkpointer.keep_last,
            "ttl_seconds": self.checkpointer.ttl_seconds,
        }
        name, write = checkpoint.workflow_name, self._threads.write_state
        *attempts, last = _attempts(checkpoint.previous_checkpoint_id)
        for attempt in attempts:
            with suppress(ConflictError, NotFoundError):
                await write(name, data, **attempt, **options)
                return
        await write(name, data, **last, **options)

    async def _workflows_of(self, checkpoint_id: str) -> list[str]:
        found = await self._queries.query(ID, checkpoint_id, MANY)
        return [it.thread_id for it in found]

    async def _versions(self, workflow_name: str) -> list[Version]:
        """Return the versions that are checkpoints, oldest first."""
        found: list[Version] = []
        before = None
        while page := await self._threads.history(workflow_name, limit=PAGE, before=before):
            found += [it for it in page if it.metadata.get(ID) == it.checkpoint_id]
            if len(page) < PAGE:
                break
            before = page[-1].checkpoint_id
        self._places.note(workflow_name, [it.checkpoint_id for it in found])
        return found[::-1]

    def _checkpoint(self, state: Mapping[str, Any]) -> WorkflowCheckpoint:
        if state.keys() != FIELDS:
            raise CheckpointIntegrityError("the version is not a checkpoint of a workflow")
        given = restored(state)
        return WorkflowCheckpoint(**{name: self._values.decode(it) for name, it in given.items()})


def _attempts(parent_id: str | None) -> list[dict[str, Any]]:
    """Return the ways of a save, the fastest first: onto the head, as a fork, without a parent."""
    root: dict[str, Any] = {"is_root": True}
    if parent_id is None:
        return [root]
    return [{"parent_id": parent_id, "forks": False}, {"parent_id": parent_id}, root]
