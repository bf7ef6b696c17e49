"""Microsoft Agent Framework on every backend that can: history and workflow checkpoints."""

from locus_store.errors import require_extra

with require_extra("Microsoft Agent Framework is not installed", "agent-framework"):
    import agent_framework  # noqa: F401

from locus_store.adapters.agent_framework.checkpoint_storage import (
    CheckpointIntegrityError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    LocusCheckpointStorage,
)
from locus_store.adapters.agent_framework.history_provider import LocusHistoryProvider

__all__ = [
    "CheckpointIntegrityError",
    "CheckpointNotFoundError",
    "CheckpointSerializationError",
    "LocusCheckpointStorage",
    "LocusHistoryProvider",
]
