"""The memory service of Google ADK, over a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from heapq import nlargest
from math import inf
from typing import Any, Final
from uuid import uuid4

from google.adk.events import Event
from google.adk.memory import BaseMemoryService
from google.adk.memory.base_memory_service import SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import Session
from google.genai.types import Content
from pydantic import ValidationError

from locus_store.adapters.adk.records import SCHEME, as_json
from locus_store.adapters.logs import Adapter, tag_numbers, untag_numbers
from locus_store.backend import StorageBackend
from locus_store.errors import ConflictError, IntegrityError, InvalidArgumentError
from locus_store.open import Storage, open_store
from locus_store.store import BaseStore
from locus_store.types.items import Namespace, PutItem, StoreItem, check_name
from locus_store.values.text import fold, split_words

MAX_FOUND: Final = 10
"""Memories of a search at most, as of ``InMemoryMemoryService``."""

PAGE: Final = 1000
"""Memories that a search by words reads at a time."""


class LocusMemoryService(Adapter, BaseMemoryService):
    """Keeps the long-term memory of Google ADK in a store.

    The memories of a user are the items of the namespace ``("adk-memory", app, user)``, by the ids
    of their events; the value is the text, and the metadata names the user. A memory that was
    deleted stays as an item without a text, so that its session does not bring it back.

    Args:
        store: A store, or a backend that has one; ``close`` leaves it open. With ``embed``, a
            search ranks by meaning; else by the number of the query's words, and it reads all
            memories of the user.
        uri: In place of ``store``, as ADK's ``services.yaml`` passes it: a URL of ``open_store``,
            with or without ``locus+`` before it.
        agents_dir: Ignored; ADK passes it with ``uri``.
        options: With ``uri``, those of ``open_store``.

    Raises:
        InvalidArgumentError: There is not one of ``store`` and ``uri``.
        UnsupportedError: The backend has no store.
    """

    part = "store"
    open_part = staticmethod(open_store)

    def __init__(
        self,
        store: BaseStore | StorageBackend | None = None,
        *,
        uri: str | None = None,
        agents_dir: str | None = None,
        **options: Any,
    ) -> None:
        self._owns = uri is not None
        if store is not None and uri is None and not options:
            self.store = store if isinstance(store, BaseStore) else Storage(store).store()
        elif store is None and uri is not None:
            self.store = open_store(uri.removeprefix(SCHEME), **options)
        else:
            raise InvalidArgumentError("pass a store, or uri= with its options")

    async def add_session_to_memory(self, session: Session) -> None:
        """Add the events of a session that have a text, in place of those with the same ids.

        These keep the ``custom_metadata`` that they were added with.
        """
        entries = _list_entries(session.events)
        await self._put(session.app_name, session.user_id, entries, replaces=True)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add events that have a text; existing ones stay. Found memories have the metadata."""
        del session_id  # a search covers all sessions of the user
        await self._put(app_name, user_id, _list_entries(events, custom_metadata), replaces=False)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add memories, with new ids where they have none, in place of those with the same ids.

        A memory that was deleted is there again.
        """
        given = custom_metadata or {}
        entries = [
            memory.model_copy(update={"custom_metadata": {**given, **memory.custom_metadata}})
            for memory in memories
        ]
        await self._put(app_name, user_id, entries, replaces=True, restores=True)

    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        """Return at most ten memories of a user, the best first; of equal ones the newest."""
        namespace = _make_namespace(app_name, user_id)
        if not split_words(query):
            found = []
        elif self.store.embed is not None:
            found = await self.store.search(namespace, query, limit=MAX_FOUND, recursive=False)
        else:
            found = await self._find_with_words(namespace, set(split_words(query)))
        return SearchMemoryResponse(memories=[_read_memory(it) for it in found])

    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        """Delete a memory by the id of its event, for good: adding its session leaves it out."""
        namespace = _make_namespace(app_name, user_id)
        if memory_id and await self.store.exists(namespace, memory_id):
            await self.store.put(namespace, memory_id, None, {"user_id": user_id})

    async def delete_user(self, *, app_name: str, user_id: str) -> int:
        """Delete the memories of a user; return how many items were stored."""
        return await self.store.clear_namespace(_make_namespace(app_name, user_id))

    async def _put(
        self,
        app_name: str,
        user_id: str,
        entries: Iterable[MemoryEntry],
        *,
        replaces: bool,
        restores: bool = False,
    ) -> None:
        """Store memories, and those that were deleted if ``restores``.

        A memory that is deleted or added in the meantime has another version than was read.
        """
        namespace = _make_namespace(app_name, user_id)
        given = {it.id or str(uuid4()): it for it in entries}
        for key in given:
            check_name(namespace, key)
        while given:
            names = [(namespace, key) for key in given]
            found = {it.key: it for it in await self.store.read(names) if it is not None}
            due = [
                _make_item(namespace, key, user_id, entry, found.get(key))
                for key, entry in given.items()
                if key not in found or (replaces and (restores or found[key].value is not None))
            ]
            with suppress(ConflictError):
                await self.store.put_batch(due)
                return

    async def _find_with_words(self, namespace: Namespace, words: set[str]) -> list[StoreItem]:
        found: list[tuple[tuple[int, float], StoreItem]] = []
        after = None
        while page := await self.store.list(namespace, PAGE, after):
            after = page[-1].key
            ranked = [(_compute_rank(it, words), it) for it in page]
            matching = [*found, *(pair for pair in ranked if pair[0][0])]
            found = nlargest(MAX_FOUND, matching, key=lambda pair: pair[0])
        return [item for _, item in found]


_ROOT: Final = "adk-memory"
"""First segment of the namespaces."""


def _make_namespace(app_name: str, user_id: str) -> Namespace:
    return _ROOT, app_name, user_id


def _list_entries(
    events: Iterable[Event], custom_metadata: Mapping[str, object] | None = None
) -> Iterator[MemoryEntry]:
    """Give the events that have a text as memories."""
    for event in events:
        if event.content and _extract_text(event.content):
            yield MemoryEntry(
                id=event.id,
                content=event.content,
                author=event.author,
                timestamp=datetime.fromtimestamp(event.timestamp, UTC).isoformat(),
                custom_metadata=dict(custom_metadata or {}),
            )


def _extract_text(content: Content) -> str:
    """Return the text that is searched, as ``InMemoryMemoryService`` takes it."""
    return " ".join(it.text for it in content.parts or () if it.text)


def _make_item(
    namespace: Namespace, key: str, user_id: str, entry: MemoryEntry, old: StoreItem | None
) -> PutItem:
    """Return a memory, if JSON can keep it, as an item that takes the place of a stored one."""
    memory = tag_numbers(as_json(entry, f"memory {key!r}"))
    if old is not None and not entry.custom_metadata:
        kept = old.metadata.get("memory", {}).get("custom_metadata", {})
        memory = {**memory, "custom_metadata": kept}
    metadata = {"user_id": user_id, "memory": memory}
    version = 0 if old is None else old.version
    return PutItem(namespace, key, _extract_text(entry.content), metadata, expected_version=version)


def _read_memory(item: StoreItem) -> MemoryEntry:
    """Return the memory of an item; refuse an item that holds something else."""
    try:
        memory = untag_numbers(item.metadata["memory"])
        return MemoryEntry.model_validate({**memory, "id": item.key})
    except (KeyError, TypeError, ValidationError) as exc:
        raise IntegrityError(f"memory {item.key!r} of {item.namespace!r} is damaged") from exc


def _compute_rank(item: StoreItem, words: set[str]) -> tuple[int, float]:
    """Return how many words an item has, and its time.

    A word that is not ASCII may be a part: some languages write no spaces.
    """
    text = fold(item.value or "")
    there = set(split_words(text))
    score = sum(it in there or (not it.isascii() and it in text) for it in words)
    return score, _parse_time(item.metadata.get("memory", {}).get("timestamp"))


def _parse_time(timestamp: str | None) -> float:
    """Return the seconds of an ISO 8601 time; any other text is older than all times."""
    try:
        made = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return -inf
    return (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()
