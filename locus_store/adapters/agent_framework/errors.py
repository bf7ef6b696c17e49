"""Errors of workflow checkpoints, which are also the framework's own."""

from __future__ import annotations

from agent_framework.exceptions import WorkflowCheckpointException

from locus_store.errors import IntegrityError, NotFoundError, SerializationError


class CheckpointNotFoundError(NotFoundError, WorkflowCheckpointException):
    """There is no checkpoint with this id."""


class CheckpointSerializationError(SerializationError, WorkflowCheckpointException):
    """JSON cannot keep a value of the checkpoint exactly; nothing was written."""


class CheckpointIntegrityError(IntegrityError, WorkflowCheckpointException):
    """The stored checkpoint is damaged, or names a class that is not allowed."""
