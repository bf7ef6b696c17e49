"""Google ADK: ``LocusSessionService`` over message logs, ``LocusMemoryService`` over stores."""

from locus_store.errors import require_extra

with require_extra("Google ADK is not installed", "adk"):
    import google.adk.sessions  # noqa: F401

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
