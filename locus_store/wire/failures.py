"""Errors of this package as JSON with a status, and back."""

from __future__ import annotations

from typing import Any, Final

from locus_store import errors
from locus_store.errors import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    EncryptionError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    MissingExtraError,
    NotFoundError,
    NotOwnerError,
    SchemaError,
    SerializationError,
    TurnError,
    UnsupportedError,
)
from locus_store.values.encoding import TooLargeError
from locus_store.values.sealing import SealedByClientError
from locus_store.wire.records import IdNeededError, StateNeededError

UNAVAILABLE: Final = 503

STATUSES: Final[dict[type[LocusStoreError], int]] = {
    ConflictError: 409,
    TurnError: 409,
    NotFoundError: 404,
    NotOwnerError: 403,
    UnsupportedError: 501,
    SerializationError: 422,
    InvalidArgumentError: 422,
    IntegrityError: 422,
    EncryptionError: 422,
    SchemaError: UNAVAILABLE,
    ConnectionFailedError: UNAVAILABLE,
    BackendError: UNAVAILABLE,
    MissingExtraError: UNAVAILABLE,
    StateNeededError: 428,
    IdNeededError: 428,
}
"""The status of each class. 428 is ``Precondition Required``."""

SHOWN: Final = frozenset(
    kind
    for kind, status in STATUSES.items()
    if status != UNAVAILABLE and not issubclass(kind, IntegrityError)
)
"""Classes whose messages name only what the caller sent or stored. The messages of the others may
name a host or a file, and stay in the log of the service."""

HIDDEN: Final = "the storage of the service failed; the log of the service says why"
DAMAGED: Final = "stored data is damaged; the log of the service names it"
SEALED: Final = "stored data is sealed with keys that this process does not have, or is in clear"

FIELDS: Final = ("head_id", "parent_id")
"""Attributes of errors that cross the wire."""


def encode_error(error: LocusStoreError) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of an error."""
    kind = next(it for it in type(error).__mro__ if it in STATUSES or it is LocusStoreError)
    found = {name: it for name in FIELDS if (it := getattr(error, name, None)) is not None}
    return STATUSES.get(kind, UNAVAILABLE), {
        "error": kind.__name__,
        "message": str(error) if is_shown(error) else _hidden(kind),
        "fields": found,
    }


def is_shown(error: LocusStoreError) -> bool:
    """Return whether the caller may read the message of an error."""
    is_plain = isinstance(error, TooLargeError | SealedByClientError)
    return is_plain or any(type(error) is it for it in SHOWN)


def _hidden(kind: type[Exception]) -> str:
    if kind is EncryptionError:
        return SEALED
    return DAMAGED if kind is IntegrityError else HIDDEN


def decode_error(answer: Any) -> LocusStoreError | None:
    """Return the error that an answer holds; ``None`` if it is not one of ours."""
    if not isinstance(answer, dict) or not isinstance(answer.get("message"), str):
        return None
    kind = _CLASSES.get(str(answer.get("error")))
    if kind is None:
        return None
    message, found = answer["message"], answer.get("fields")
    if kind is not ConflictError or not isinstance(found, dict):
        return kind(message)
    ids = {name: it for name in FIELDS if isinstance(it := found.get(name), str)}
    return ConflictError(message, **ids)


_CLASSES: Final = {it.__name__: it for it in STATUSES} | {
    name: it
    for name, it in vars(errors).items()
    if isinstance(it, type) and issubclass(it, LocusStoreError)
}
