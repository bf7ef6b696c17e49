"""Errors of sessions, which are also the framework's own."""

from __future__ import annotations

from google.adk.errors import StaleSessionError as AdkStaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError

from locus_store.errors import ConflictError, NotFoundError


class SessionExistsError(ConflictError, AlreadyExistsError):
    """A session with this id exists already; nothing was written."""


class UnknownSessionError(NotFoundError, SessionNotFoundError):
    """The session does not exist; nothing was written."""


class StaleSessionError(ConflictError, AdkStaleSessionError):
    """The session was changed after it was read; nothing was written."""
