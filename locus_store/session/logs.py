"""The message log on the connections of a session's backend."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from locus_store.errors import UnsupportedError
from locus_store.open import MESSAGE_LOGS

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.messages import BaseMessageLog


def message_log_of(backend: StorageBackend, ttl_seconds: float | None) -> BaseMessageLog:
    """Return the message log on a backend's connections.

    Raises:
        UnsupportedError: The backend keeps no message logs.
    """
    for kind in type(backend).__mro__:
        folder = kind.__module__.removeprefix("locus_store.backends.").partition(".")[0]
        if folder in MESSAGE_LOGS:
            module = import_module("locus_store.backends")
            log: BaseMessageLog = getattr(module, MESSAGE_LOGS[folder])(
                backend=backend, ttl_seconds=ttl_seconds
            )
            return log
    raise UnsupportedError(
        f"{type(backend).__name__} keeps no message logs; a session needs SQLite, PostgreSQL, "
        "Oracle or memory"
    )
