"""The service's errors by their HTTP status, and the errors of this library."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from locus_store.errors import BackendError, ConnectionFailedError, LocusStoreError
from locus_store.runtime.retries import parse_date

UNCHANGED: Final = 304
UNAUTHENTICATED: Final = 401
FORBIDDEN: Final = 403
MISSING: Final = 404
NO_BATCH: Final = frozenset({400, FORBIDDEN, MISSING, 405, 501})
"""The service has no deletion of several objects, or its policies refuse one of them."""

CONFLICTS: Final = frozenset({409, 412})
TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
SKEW: Final = timedelta(minutes=5)
"""The service refuses requests whose clock differs by more."""


def get_status(exc: BaseException) -> int | None:
    """Return the HTTP status of an error; ``None`` if the service did not answer."""
    status = getattr(exc, "status", None)
    return status if isinstance(status, int) else None


def is_transient(exc: BaseException, driver_errors: tuple[type[BaseException], ...]) -> bool:
    """Return whether a later attempt may succeed."""
    status = get_status(exc)
    return isinstance(exc, driver_errors) if status is None else status in TRANSIENT


def get_driver_errors() -> tuple[type[BaseException], ...]:
    """Return the errors of a call that the service did not answer, or not to its end."""
    import oci  # noqa: PLC0415  (of an extra, and slow to import)
    from circuitbreaker import CircuitBreakerError  # noqa: PLC0415  (of the SDK)
    from requests.exceptions import RequestException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    theirs = oci.exceptions
    of_the_sdk = theirs.RequestException, theirs.ConnectTimeout, CircuitBreakerError
    return (*of_the_sdk, RequestException, HTTPError, OSError)


def translate_error(exc: BaseException, place: object, what: str) -> LocusStoreError:
    """Return the error for a call that failed for good."""
    status = get_status(exc)
    if status is None:
        return ConnectionFailedError(f"{what}: {place} cannot be reached: {_describe_error(exc)}")
    if status == UNAUTHENTICATED:
        return _translate_unauthenticated(exc, place)
    if status in {FORBIDDEN, MISSING}:
        return ConnectionFailedError(
            f"{what}: {place} does not exist, or its policies refuse the call (HTTP {status}); "
            "create the bucket, pass compartment_id= to have it created, or see the policies on "
            "the page about OCI"
        )
    return BackendError(f"{what}: {place} answered HTTP {status}: {_describe_error(exc)}")


def _translate_unauthenticated(exc: BaseException, place: object) -> LocusStoreError:
    at = parse_date((getattr(exc, "headers", None) or {}).get("date"))
    skew = abs(at - datetime.now(UTC)) if at else timedelta(0)
    if skew > SKEW:
        message = (
            f"the clock of this host differs from the service's by {skew.total_seconds():.0f} s"
        )
        return ConnectionFailedError(f"{place} refused the request: {message}; set the clock")
    return ConnectionFailedError(
        f"{place} refused the credentials (HTTP {UNAUTHENTICATED}); a session token has expired "
        "(run `oci session refresh`), or the key is not the user's"
    )


def _describe_error(exc: BaseException) -> str:
    text = str(getattr(exc, "message", None) or exc)
    return f"{type(exc).__name__}: {text:.300}"
