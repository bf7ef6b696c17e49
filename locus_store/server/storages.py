"""The store and the message log beside the backend of a URL."""

from __future__ import annotations

import importlib
from typing import Any

from locus_store.open import MESSAGE_LOGS, STORES, open_store


def store_beside(url: str, backend: Any, **options: Any) -> Any:
    """Return the store beside a backend; over its connections, where a store can use them.

    Args:
        url: Of the backend.
        backend: Need not be open.
        options: Of the store.
    """
    folder = _folder_of(backend)
    if folder not in STORES:
        return None
    if folder in {"memory", "redis"}:
        return open_store(url, **options)
    kind = getattr(importlib.import_module("locus_store.backends"), STORES[folder])
    return kind(backend=backend, **options)


def messages_beside(backend: Any) -> Any:
    """Return the message log beside a backend, or ``None``: it has none."""
    folder = _folder_of(backend)
    if folder not in MESSAGE_LOGS:
        return None
    kind = getattr(importlib.import_module("locus_store.backends"), MESSAGE_LOGS[folder])
    return kind(backend=backend)


def _folder_of(backend: Any) -> str:
    """Return the folder of a backend's technology."""
    return type(backend).__module__.split(".")[2]
