"""Every error this package raises.

LocusStoreError
├── ConflictError           another writer saved the thread first (head_id, parent_id)
│   └── TurnError           another turn of the thread is held, or the caller's own is over
├── NotFoundError           the thread or checkpoint does not exist (LookupError)
├── NotOwnerError           the thread belongs to another user (PermissionError)
├── QuotaError              a quota of the tenant is used up (quota, limit, used)
├── UnsupportedError        a capability that is not declared (NotImplementedError)
├── SerializationError      a state or metadata value that JSON cannot hold exactly (ValueError)
├── SchemaError             the schema is missing, another program's, too old or too new
├── ConnectionFailedError   the server or file cannot be reached (ConnectionError)
├── BackendError            the backend failed; the driver's error is __cause__
├── OutcomeUnknownError     a call of an effect may have been made; a person decides (effect)
├── IntegrityError          stored data is damaged
│   └── EncryptionError     a key is missing, or data is in clear where that is refused
├── InvalidArgumentError    an id, option or URL is not valid (ValueError)
└── MissingExtraError       a driver is not installed; names the pip command (ImportError)

Absence is never an error: it is ``None``, ``False`` or an empty list.
"""

from __future__ import annotations

import json
from collections import abc
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit


def make_install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation, wherever it was installed from."""
    from importlib import metadata  # noqa: PLC0415  (slow, and rarely needed)

    try:
        written = metadata.distribution("locus-store").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # imported from a folder
        written = None
    origin = json.loads(written or "{}")  # of an index there is none
    wanted, url = f"[{','.join(extras)}]" if extras else "", origin.get("url")
    if "dir_info" in origin:  # a checkout
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f'pip install {editable}"{unquote(urlsplit(url).path)}{wanted}"'
    place = f" @ {url}" if url else ""
    return f'pip install "locus-store{wanted}{place}"'


@contextmanager
def require_extra(message: str, *extras: str) -> abc.Iterator[None]:
    """Name the extras that a block's imports need.

    Raises:
        MissingExtraError: They are not installed.
    """
    try:
        yield
    except ImportError as exc:
        commands = " or ".join(map(make_install_command, extras))
        raise MissingExtraError(f"{message}: {commands}", name=exc.name) from exc


class LocusStoreError(Exception):
    """Base class of all errors of this package."""


class ConflictError(LocusStoreError):
    """Another writer saved the thread first; nothing was written.

    Load the thread again and repeat the step, or save with ``on_conflict="branch"`` (keeps
    this state as a side branch) or ``on_conflict="overwrite"`` (last writer wins).
    """

    def __init__(
        self, message: str, *, head_id: str | None = None, parent_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.head_id = head_id
        """Checkpoint id of the thread's present head; ``None`` if the thread does not exist."""
        self.parent_id = parent_id
        """Checkpoint id that the refused state was made from; ``None`` if it does not exist."""


class TurnError(ConflictError):
    """Another turn of the thread is held, or the caller's own is over; nothing was written."""


class NotFoundError(LocusStoreError, LookupError):
    """The thread or checkpoint that the call needs does not exist."""


class NotOwnerError(LocusStoreError, PermissionError):
    """The thread belongs to another user; nothing was written."""


class QuotaError(LocusStoreError):
    """The call exceeds a quota of its tenant; nothing was written.

    Delete something, or raise the quota. One of saves per minute has ``retry_after_seconds``.
    """

    def __init__(
        self,
        message: str,
        *,
        tenant: str | None = None,
        quota: str | None = None,
        limit: int | None = None,
        used: int | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.tenant = tenant
        """The tenant whose quota it is."""
        self.quota = quota
        """The name of the limit: a field of ``Quota``."""
        self.limit = limit
        self.used = used
        """The amount that is used, or reserved for calls that are under way."""
        self.retry_after_seconds = retry_after_seconds
        """The rest of the minute; ``None``: time alone does not help."""


class UnsupportedError(LocusStoreError, NotImplementedError):
    """This object does not declare the capability that the call needs."""


class SerializationError(LocusStoreError, ValueError):
    """A value cannot be kept exactly as JSON; the message names its path. Nothing was written."""


class SchemaError(LocusStoreError):
    """The schema is missing, another program's, too old or too new; the message says what to do."""


class ConnectionFailedError(LocusStoreError, ConnectionError):
    """The server or file cannot be reached or opened."""


class BackendError(LocusStoreError):
    """The backend failed; the driver's error is ``__cause__``."""


class OutcomeUnknownError(LocusStoreError):
    """A call of an effect was begun, and its outcome is unknown; it was not made again."""


class IntegrityError(LocusStoreError):
    """Stored data is damaged and does not give the state that was saved; restore a backup."""


class EncryptionError(IntegrityError):
    """A key is missing, or stored data is in clear, or another tenant's, where that is refused."""


class InvalidArgumentError(LocusStoreError, ValueError):
    """An id, option or URL is not valid; nothing was written."""


class MissingExtraError(LocusStoreError, ImportError):
    """A driver is not installed; the message says which extra to install."""
