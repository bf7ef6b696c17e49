"""Microsoft Agent Framework on every backend that can: history and workflow checkpoints."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import agent_framework  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"Microsoft Agent Framework is not installed: {make_install_command('agent-framework')}"
    ) from exc

from locus_store.adapters.agent_framework.checkpoint_storage import LocusCheckpointStorage
from locus_store.adapters.agent_framework.history_provider import LocusHistoryProvider
from locus_store.adapters.agent_framework.values import (
    CheckpointIntegrityError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
)

__all__ = [
    "CheckpointIntegrityError",
    "CheckpointNotFoundError",
    "CheckpointSerializationError",
    "LocusCheckpointStorage",
    "LocusHistoryProvider",
]
