"""The options of storages in memory."""

from __future__ import annotations

from urllib.parse import urlsplit

from typing_extensions import TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.store import Embed
from locus_store.types.options import CheckpointOptions, StateOptions
from locus_store.values.vectors import Metric


class MemoryCheckpointerOptions(StateOptions, CheckpointOptions, total=False):
    """Of ``MemoryCheckpointer``, beside ``state_type``."""


class InMemoryStoreOptions(TypedDict, total=False):
    """Of ``InMemoryStore``, for type checkers."""

    dimension: int | None
    metric: Metric
    embed: Embed | None


URL_OPTIONS = StateOptions


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the query string of a URL.

    Raises:
        InvalidArgumentError: The URL names a place.
    """
    parts = urlsplit(url)
    if parts.netloc or parts.path or parts.fragment:
        raise InvalidArgumentError("memory:// takes only ?options after it")
    return {}, parts.query
