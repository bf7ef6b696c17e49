"""The Locus SDK's look-up methods, over this library's methods, with its result types."""

from __future__ import annotations

from typing import Any, Final, Protocol

from locus_store.types import Head, Snapshot
from locus_store.types.arguments import check_limit
from locus_store.values.filters import check_wanted, has_value
from locus_store.versions.reading import iterate_ids

_PAGE: Final = 100
_SHELL: Final = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}


class Queryable(Protocol):
    """The methods of a backend that a look-up by metadata calls."""

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        """Return versions whose metadata has ``value`` at ``key``, newest first."""

    async def read_state(self, thread_id: str) -> Snapshot | None:
        """Return the head with its state."""


class Listable(Protocol):
    """The methods of a backend that a look-up through all threads calls."""

    async def read_state(self, thread_id: str) -> Snapshot | None:
        """Return the head with its state."""

    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[str]:
        """Return thread ids, the most recently active first."""


async def query_by_metadata(
    backend: Queryable, key: str, value: Any, limit: int
) -> list[dict[str, Any]]:
    """Return the threads whose newest version's metadata has ``value`` at ``key``."""
    check_limit(limit)
    asked, rows = max(limit, 1), list[dict[str, Any]]()
    while True:
        found = await backend.query(key, value, asked)
        rows = []
        for head in found:
            kept = await backend.read_state(head.thread_id) if len(rows) < limit else None
            if kept is not None and kept.version.checkpoint_id == head.checkpoint_id:
                rows.append(_make_row(kept))
        if len(rows) == limit or len(found) < asked:
            return rows
        asked *= 4  # older versions of a thread were among them


async def search_data(backend: Listable, path: str, value: Any, limit: int) -> list[dict[str, Any]]:
    """Return threads whose newest state has ``value`` at ``path``, most recently active first."""
    check_limit(limit)
    value = check_wanted(path, value)
    rows: list[dict[str, Any]] = []
    if limit == 0:
        return rows
    async for thread_id in iterate_ids(backend.list_threads, "*", page=_PAGE):
        kept = await backend.read_state(thread_id)
        if kept is not None and has_value(kept.state, path, value):
            rows.append(_make_row(kept))
            if len(rows) == limit:
                break
    return rows


async def count(backend: Listable, pattern: str) -> int:
    """Return the number of threads whose id matches a pattern of SQL's ``LIKE``."""
    shell = "".join(_SHELL.get(it, it) for it in pattern)
    return sum([1 async for _ in iterate_ids(backend.list_threads, shell, page=_PAGE)])


def _make_row(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "thread_id": snapshot.version.thread_id,
        "data": snapshot.state,
        "updated_at": snapshot.version.created_at.isoformat(),
    }
