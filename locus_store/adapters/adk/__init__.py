"""Google ADK: ``LocusSessionService`` over message logs, ``LocusMemoryService`` over stores."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import google.adk.sessions  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(f"Google ADK is not installed: {make_install_command('adk')}") from exc

from locus_store.adapters.adk.memory_service import LocusMemoryService
from locus_store.adapters.adk.session_service import (
    LocusSessionService,
    SessionExistsError,
    StaleSessionError,
    UnknownSessionError,
)

__all__ = [
    "LocusMemoryService",
    "LocusSessionService",
    "SessionExistsError",
    "StaleSessionError",
    "UnknownSessionError",
]
