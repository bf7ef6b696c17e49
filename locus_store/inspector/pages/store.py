"""The long-term store: namespaces, items, and the nearest items of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from locus_store.errors import IntegrityError, InvalidArgumentError, NotFoundError, UnsupportedError
from locus_store.inspector.bounds import INLINE, ROWS, cut, json_line
from locus_store.inspector.trees import tree
from locus_store.inspector.visits import Download, Page
from locus_store.values.encoding import decode, encode

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit
    from locus_store.store import BaseStore
    from locus_store.types.items import StoreItem

CELL = 240
"""Characters of a value in a row."""

NEAREST = 10


async def namespaces(visit: Visit) -> Page:
    """Return a page of the namespaces that have items."""
    store, start = _store(visit), visit.query.number("start")
    found = await store.list_namespaces(limit=ROWS + 1, offset=start)
    values = {
        "namespaces": found[:ROWS],
        "start": start,
        "next": start + ROWS if len(found) > ROWS else None,
    }
    return Page("store", "Store", values)


async def items(visit: Visit) -> Page:
    """Return a page of the items of a namespace."""
    store, namespace = _store(visit), _namespace(visit)
    found = await store.list(namespace, ROWS + 1, visit.query.optional("after"))
    values = {
        "segments": namespace,
        "items": [_row(it) for it in found[:ROWS]],
        "next": found[ROWS - 1].key if len(found) > ROWS else None,
    }
    return Page("items", "/".join(namespace) or "/", values)


async def item(visit: Visit) -> Page:
    """Return an item, its version and expiry, and the items whose embeddings are nearest."""
    found = await _item(visit)
    start = visit.query.number("start")
    size = len(encode(found.value))
    shown = (
        tree(found.value, start=start)
        if size <= INLINE
        else await visit.jobs.run(tree, found.value, start=start)
    )
    values = {
        "segments": found.namespace,
        "item": _row(found),
        "created_at": found.created_at,
        "metadata": found.metadata,
        "ttl_seconds": found.ttl_seconds,
        "size": size,
        "tree": shown,
    }
    return Page("item", found.key, values | await _neighbours(_store(visit), found))


async def value(visit: Visit) -> Download:
    """Return the value of an item as JSON."""
    found = await _item(visit)
    return Download(f"{found.key}.json", encode(found.value))


async def _neighbours(store: BaseStore, found: StoreItem) -> dict[str, Any]:
    """Return the nearest items with their scores, or the reason why there are none."""
    if not store.capabilities.semantic_search:
        return {"nearest": [], "without": "This store has no embeddings."}
    embedding = await store.get_embedding(found.namespace, found.key)
    if embedding is None:
        return {"nearest": [], "without": "This item has no embedding."}
    name = (found.namespace, found.key)
    hits = await store.search_by_embedding((), embedding, NEAREST + 1)
    rows = [
        {"segments": it.item.namespace, "score": it.score} | _row(it.item)
        for it in hits
        if (it.item.namespace, it.item.key) != name
    ]
    return {"nearest": rows[:NEAREST], "without": ""}


def _row(found: StoreItem) -> dict[str, Any]:
    return {
        "key": found.key,
        "version": found.version,
        "updated_at": found.updated_at,
        "expires_at": found.expires_at,
        "value": cut(json_line(found.value), CELL),
    }


async def _item(visit: Visit) -> StoreItem:
    namespace, key = _namespace(visit), visit.query.text("key")
    found = await _store(visit).get_item(namespace, key)
    if found is None:
        raise NotFoundError(f"there is no item {key!r} in namespace {namespace!r}")
    return found


def _store(visit: Visit) -> BaseStore:
    if visit.parts.store is None:
        raise UnsupportedError("this inspector was started without a store")
    return visit.parts.store


def _namespace(visit: Visit) -> tuple[str, ...]:
    text = visit.query.text("segments", "[]")
    try:
        found = decode(text.encode())
    except (IntegrityError, ValueError) as exc:
        raise InvalidArgumentError(_no_list(text)) from exc
    if not isinstance(found, list) or not all(isinstance(it, str) for it in found):
        raise InvalidArgumentError(_no_list(text))
    return tuple(cast("list[str]", found))


def _no_list(text: str) -> str:
    return f'segments={text[:80]!r} must be a JSON list of strings, such as ["user", "42"]'
