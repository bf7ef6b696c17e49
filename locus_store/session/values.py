"""Values beside the versions of a session, each with a time to live, in the backend's store."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import ConflictError
from locus_store.types.arguments import MAX_ID_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from locus_store.store import BaseStore
    from locus_store.types.items import Namespace

ROOT: Final = "locus.session"
"""First segment of the namespaces in the store."""

PAGE: Final = 1000


def of_thread(thread_id: str, kind: str, user_id: str | None) -> Namespace:
    """Return the namespace of a user's values of a thread; another user of its id sees none."""
    whose = () if user_id is None else (user_id,)
    return ROOT, "threads", thread_id, kind, *whose


class Values:
    """Keeps JSON values by namespace and key; the key may have any length.

    Args:
        store: The store.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    async def put(self, place: Namespace, key: str, value: Any, ttl_seconds: float) -> None:
        """Store a value in place of any existing one."""
        await self._put(place, key, value, ttl_seconds, None)

    async def put_first(self, place: Namespace, key: str, value: Any, ttl_seconds: float) -> None:
        """Store a value, unless there is one."""
        with suppress(ConflictError):
            await self._put(place, key, value, ttl_seconds, 0)

    async def _put(
        self, place: Namespace, key: str, value: Any, ttl_seconds: float, expected: int | None
    ) -> None:
        whole = {"key": key, "value": value}
        await self._store.put(
            place, _short(key), whole, ttl_seconds=ttl_seconds, expected_version=expected
        )

    async def get(self, place: Namespace, key: str) -> Any:
        """Return a value; ``None`` if there is none."""
        found = await self._store.get(place, _short(key))
        return None if found is None else found["value"]

    async def drop(self, place: Namespace, key: str) -> None:
        """Remove a value, if there is one."""
        await self._store.delete(place, _short(key))

    async def keys(self, place: Namespace) -> AsyncIterator[str]:
        """Yield the keys of a namespace."""
        after: str | None = None
        while items := await self._store.list(place, limit=PAGE, after=after):
            for it in items:
                yield it.value["key"]
            after = items[-1].key

    async def clear_thread(self, thread_id: str) -> None:
        """Remove the values of a thread."""
        await self._store.clear_namespace(of_thread(thread_id, "", None)[:-1], recursive=True)


def _short(key: str) -> str:
    """Return the key that the store has."""
    is_digest = len(key) > MAX_ID_CHARACTERS
    return f"sha256:{sha256(key.encode()).hexdigest()}" if is_digest else key
