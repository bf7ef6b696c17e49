"""The server's errors by their status and type, and the errors of this library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from locus_store.backends.opensearch.access import IndexPlace
from locus_store.errors import BackendError, ConnectionFailedError, LocusStoreError

REFUSED: Final = frozenset({401, 403})
MISSING: Final = 404
CONFLICT: Final = 409
TRANSIENT: Final = frozenset({408, 429, 502, 503, 504})
BLOCKED: Final = "cluster_block_exception"

NO_INDEX: Final = "index_not_found_exception"
EXISTS: Final = "resource_already_exists_exception"


def make_part_error(status: int, error: Mapping[str, Any]) -> Exception:
    """Return the client's error for one part of an answer."""
    import opensearchpy  # noqa: PLC0415  (of an extra, and slow to import)

    info = {"error": {**error, "root_cause": [error]}}
    made: Exception = opensearchpy.exceptions.TransportError(status, error["type"], info)
    return made


def get_status(exc: BaseException) -> int | None:
    """Return the HTTP status of an error; ``None`` if the server did not answer."""
    status = getattr(exc, "status_code", None)
    return status if isinstance(status, int) else None


def get_type(answer: Any) -> str | None:
    """Return the type of the error in an answer; ``None`` if it has none."""
    error = answer.get("error") if isinstance(answer, dict) else None
    return error.get("type") if isinstance(error, dict) else None


def is_blocked(exc: BaseException) -> bool:
    """Return whether a block of the index refuses the call, which only an operator removes."""
    error = exc.args[1] if len(exc.args) > 1 else None
    return error == BLOCKED and get_status(exc) in {403, 429}


def is_transient(exc: BaseException) -> bool:
    """Return whether a later attempt may succeed."""
    status = get_status(exc)
    return status is None or (status in TRANSIENT and not is_blocked(exc))


def translate_error(exc: BaseException, place: IndexPlace, what: str) -> LocusStoreError:
    """Return the error for a call that failed for good."""
    status = get_status(exc)
    if status is None:
        return ConnectionFailedError(f"{what}: {place} cannot be reached: {_describe(exc)}")
    if is_blocked(exc):
        return BackendError(
            f"{what}: a block refuses writes to {place}: {_describe(exc)}; free disk space, or "
            "remove the block from the settings of the index"
        )
    if status in REFUSED:
        return ConnectionFailedError(
            f"{what}: {place} refused the credentials, or their roles do not allow the call (HTTP "
            f"{status})"
        )
    return BackendError(f"{what}: {place} answered HTTP {status}: {_describe(exc)}")


def _describe(exc: BaseException) -> str:
    """Return an error's type and reason without its status, or the cause of a lost connection."""
    has_status = get_status(exc) is not None
    said = str(exc if has_status else getattr(exc, "info", exc))
    said = said.partition(", ")[2].removesuffix(")") if has_status else said
    return f"{said or type(exc).__name__:.300}"
