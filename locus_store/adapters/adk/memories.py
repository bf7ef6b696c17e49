"""Forms of Google ADK's memories in a store."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Final

from google.adk.memory.memory_entry import MemoryEntry
from pydantic import ValidationError

from locus_store.adapters.adk.records import as_json
from locus_store.adapters.numbers import numbers_in, with_numbers
from locus_store.errors import IntegrityError
from locus_store.types.items import PutItem
from locus_store.values.text import folded, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from google.adk.events import Event
    from google.genai.types import Content

    from locus_store.types.items import Namespace, StoreItem

ROOT: Final = "adk-memory"
"""First segment of the namespaces."""


def namespace_of(app_name: str, user_id: str) -> Namespace:
    """Return the namespace of a user's memories."""
    return ROOT, app_name, user_id


def entries_of(
    events: Iterable[Event], custom_metadata: Mapping[str, object] | None = None
) -> Iterator[MemoryEntry]:
    """Give the events that have a text as memories."""
    for it in events:
        if it.content and text_of(it.content):
            yield MemoryEntry(
                id=it.id,
                content=it.content,
                author=it.author,
                timestamp=datetime.fromtimestamp(it.timestamp, UTC).isoformat(),
                custom_metadata=dict(custom_metadata or {}),
            )


def text_of(content: Content) -> str:
    """Return the text that is searched, as ``InMemoryMemoryService`` takes it."""
    return " ".join(it.text for it in content.parts or () if it.text)


def item_of(
    namespace: Namespace, key: str, user_id: str, entry: MemoryEntry, stored: StoreItem | None
) -> PutItem:
    """Return a memory as an item that takes the place of a stored one.

    Raises:
        SerializationError: JSON cannot keep a value of it.
    """
    memory = with_numbers(as_json(entry, f"memory {key!r}"))
    if stored is not None and not entry.custom_metadata:
        kept = stored.metadata.get("memory", {}).get("custom_metadata", {})
        memory = {**memory, "custom_metadata": kept}
    metadata = {"user_id": user_id, "memory": memory}
    version = 0 if stored is None else stored.version
    return PutItem(namespace, key, text_of(entry.content), metadata, expected_version=version)


def memory_of(item: StoreItem) -> MemoryEntry:
    """Return the memory of an item.

    Raises:
        IntegrityError: The item holds something else.
    """
    try:
        memory = numbers_in(item.metadata["memory"])
        return MemoryEntry.model_validate({**memory, "id": item.key})
    except (KeyError, TypeError, ValidationError) as exc:
        raise IntegrityError(f"memory {item.key!r} of {item.namespace!r} is damaged") from exc


def rank_of(item: StoreItem, wanted: set[str]) -> tuple[int, float]:
    """Return how many words an item has, and its time.

    A word that is not ASCII may be a part: some languages write no spaces.
    """
    text = folded(item.value or "")
    there = set(words(text))
    score = sum(it in there or (not it.isascii() and it in text) for it in wanted)
    return score, _time_of(item.metadata.get("memory", {}).get("timestamp"))


def _time_of(timestamp: str | None) -> float:
    """Return the seconds of an ISO 8601 time; any other text is older than all times."""
    try:
        made = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return -inf
    return (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()
