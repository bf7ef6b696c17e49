"""The options of the in-memory store, for type checkers; a test holds them to the signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from locus_store.store import Embed
    from locus_store.values.vectors import Metric


class InMemoryStoreOptions(TypedDict, total=False):
    """Of ``InMemoryStore``."""

    dimension: int | None
    metric: Metric
    embed: Embed | None
