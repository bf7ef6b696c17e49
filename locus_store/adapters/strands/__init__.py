"""Strands Agents on every backend with message logs: ``LocusSessionRepository``."""

from locus_store.errors import MissingExtraError

try:
    import strands.session  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        'Strands Agents is not installed: pip install "locus-store[strands]"'
    ) from exc

from locus_store.adapters.strands.session_repository import (
    LocusSessionRepository,
    SessionConflictError,
    SessionNotFoundError,
)

__all__ = ["LocusSessionRepository", "SessionConflictError", "SessionNotFoundError"]
