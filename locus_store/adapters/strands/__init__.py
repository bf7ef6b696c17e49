"""Strands Agents on every backend with message logs: ``LocusSessionRepository``."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import strands.session  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"Strands Agents is not installed: {make_install_command('strands')}"
    ) from exc

from locus_store.adapters.strands.session_repository import (
    LocusSessionRepository,
    SessionConflictError,
    SessionNotFoundError,
)

__all__ = ["LocusSessionRepository", "SessionConflictError", "SessionNotFoundError"]
