"""Errors of a connection, classified by class, not by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Iterator


class LostConnectionError(Exception):
    """The connection was closed; raised from the driver's error, and never leaves ``sql``."""


def is_refused(exc: BaseException) -> bool:
    """Return whether the server refused the connection: no process listens on the port."""
    return any(isinstance(it, ConnectionRefusedError) for it in causes(exc))


def is_overtime(exc: BaseException) -> bool:
    """Return whether a statement exceeded its timeout; network timeouts carry an errno."""
    return isinstance(exc, TimeoutError) and exc.errno is None


def causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first."""
    at: BaseException | None = exc
    while at is not None:
        yield at
        at = at.orig if isinstance(at, DBAPIError) else at.__cause__
