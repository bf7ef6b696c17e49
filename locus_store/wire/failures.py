"""Errors of this package as JSON with a status, and back."""

from __future__ import annotations

from typing import Any, Final

from locus_store import errors
from locus_store.errors import LocusStoreError
from locus_store.values.encoding import TooLargeError
from locus_store.values.sealing import SealedByClientError
from locus_store.wire.records import IdNeededError, StateNeededError

UNAVAILABLE: Final = 503
TOO_MANY: Final = 429

STATUSES: Final[dict[type[LocusStoreError], int]] = {
    errors.ConflictError: 409,
    errors.TurnError: 409,
    errors.NotFoundError: 404,
    errors.NotOwnerError: 403,
    errors.QuotaError: 403,
    errors.UnsupportedError: 501,
    errors.SerializationError: 422,
    errors.InvalidArgumentError: 422,
    errors.IntegrityError: 422,
    errors.EncryptionError: 422,
    errors.SchemaError: UNAVAILABLE,
    errors.ConnectionFailedError: UNAVAILABLE,
    errors.BackendError: UNAVAILABLE,
    errors.MissingExtraError: UNAVAILABLE,
    StateNeededError: 428,
    IdNeededError: 428,
}
"""The status of each class. 428 is ``Precondition Required``.

A quota that time renews has 429; clients and proxies repeat a 507, which would not help.
"""

SHOWN: Final = frozenset(
    kind
    for kind, status in STATUSES.items()
    if status != UNAVAILABLE and not issubclass(kind, errors.IntegrityError)
)
"""Classes whose messages name only what the caller sent or stored. The messages of the others may
name a host or a file, and stay in the log of the service."""

HIDDEN: Final = "the storage of the service failed; the log of the service says why"
DAMAGED: Final = "stored data is damaged; the log of the service names it"
SEALED: Final = "stored data is sealed with keys that this process does not have, or is in clear"

FIELDS: Final[dict[type[LocusStoreError], dict[str, type]]] = {
    errors.ConflictError: {"head_id": str, "parent_id": str},
    errors.QuotaError: {
        "tenant": str,
        "quota": str,
        "limit": int,
        "used": int,
        "retry_after_seconds": int,
    },
}
"""Attributes of errors that cross the wire, with their types."""


def encode_error(error: LocusStoreError) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of an error."""
    kind = next(it for it in type(error).__mro__ if it in STATUSES or it is LocusStoreError)
    found = {
        name: value
        for owner, names in FIELDS.items()
        if isinstance(error, owner)
        for name in names
        if (value := getattr(error, name)) is not None
    }
    status = STATUSES.get(kind, UNAVAILABLE)
    texts: dict[type, str] = {errors.EncryptionError: SEALED, errors.IntegrityError: DAMAGED}
    return TOO_MANY if get_retry_after(error) is not None else status, {
        "error": kind.__name__,
        "message": str(error) if is_shown(error) else texts.get(kind, HIDDEN),
        "fields": found,
    }


def get_retry_after(error: LocusStoreError) -> int | None:
    """Return the seconds after which the call may be repeated, if an error names them."""
    return error.retry_after_seconds if isinstance(error, errors.QuotaError) else None


def is_shown(error: LocusStoreError) -> bool:
    """Return whether the caller may read the message of an error."""
    is_plain = isinstance(error, TooLargeError | SealedByClientError)
    return is_plain or any(type(error) is it for it in SHOWN)


def decode_error(answer: Any) -> LocusStoreError | None:
    """Return the error that an answer holds; ``None`` if it is not one of ours."""
    if not isinstance(answer, dict) or not isinstance(answer.get("message"), str):
        return None
    kind = _CLASSES.get(str(answer.get("error")))
    if kind is None:
        return None
    found = answer.get("fields")
    given = found if isinstance(found, dict) else {}
    fields = {
        name: value
        for name, type_ in FIELDS.get(kind, {}).items()
        if isinstance(value := given.get(name), type_)
    }
    return kind(answer["message"], **fields)


_CLASSES: Final = {it.__name__: it for it in STATUSES} | {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, LocusStoreError)
}
