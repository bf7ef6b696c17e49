"""The Locus SDK's registry of checkpointers, and its long-term memory over our stores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from locus_store.errors import InvalidArgumentError, require_extra
from locus_store.open import open_checkpointer
from locus_store.store import BaseStore
from locus_store.types.items import Namespace, SemanticSearchResult, StoreItem


def register(name: str = "locus-store") -> None:
    """Make the Locus SDK's ``get_checkpointer("locus-store:sqlite:///x.db")`` open ours.

    Keyword arguments of ``get_checkpointer`` are those of ``open_checkpointer``.

    Args:
        name: Before the colon.

    Raises:
        MissingExtraError: The Locus SDK is not installed.
    """
    with require_extra("register() needs the Locus SDK", "agent"):
        from locus.memory.registry import register_checkpointer  # noqa: PLC0415  (an extra)

    def opened(config_hint: str | None = None, **options: Any) -> Any:
        if config_hint is None:
            raise InvalidArgumentError(
                f"name the database: get_checkpointer({name + ':sqlite:///x.db'!r})"
            )
        return open_checkpointer(config_hint, **options)

    register_checkpointer(name, opened)


class LocusStore:
    """One of our stores with the Locus SDK's searches, which cover a single namespace.

    Ours take a prefix. With that, the memories of ``("users",)`` would hold those of a user whose
    id is ``project``, a kind of memory, and would be pruned for them. All else is the store's own.

    Args:
        store: Of this package; ``close`` closes it.
    """

    def __init__(self, store: BaseStore) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # not yet there: a copy is being made
            raise AttributeError(name)
        return getattr(self.store, name)

    def __repr__(self) -> str:
        return f"LocusStore({self.store!r})"

    async def search(
        self, namespace: Namespace, query: str | None = None, limit: int = 10
    ) -> list[StoreItem]:
        """Return items of a namespace, not of those below it; see ``BaseStore.search``."""
        return await self.store.search(namespace, query=query, limit=limit, recursive=False)

    async def search_many(
        self, namespaces: Sequence[Namespace], query: str | None = None, limit: int = 10
    ) -> list[list[StoreItem]]:
        """Search several namespaces at once; return one list for each."""
        return await asyncio.gather(*(self.search(it, query, limit) for it in namespaces))

    async def search_by_embedding(
        self,
        namespace: Namespace,
        query_embedding: Sequence[float],
        limit: int = 10,
        threshold: float | None = None,
        metadata_filter: Mapping[str, Any] | None = None,
    ) -> list[SemanticSearchResult]:
        """Return the nearest items of a namespace, not of those below it; see ``BaseStore``."""
        return await self.store.search_by_embedding(
            namespace,
            query_embedding,
            limit,
            threshold,
            metadata_filter=metadata_filter,
            recursive=False,
        )
