"""Strands Agents on every backend with message logs: ``LocusSessionRepository``."""

from locus_store.errors import require_extra

with require_extra("Strands Agents is not installed", "strands"):
    import strands.session  # noqa: F401

from locus_store.adapters.strands.session_repository import (
    LocusSessionRepository,
    SessionConflictError,
    SessionNotFoundError,
)

__all__ = ["LocusSessionRepository", "SessionConflictError", "SessionNotFoundError"]
