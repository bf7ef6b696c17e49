"""The long-term store: namespaces, items, and the nearest items of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from locus_store.errors import IntegrityError, InvalidArgumentError, NotFoundError, UnsupportedError
from locus_store.inspector.bounds import CELL, ROWS, json_line, short, tree
from locus_store.inspector.visits import Download, Page
from locus_store.values.encoding import decode, encode

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit
    from locus_store.inspector.work import Step
    from locus_store.store import BaseStore
    from locus_store.types.items import StoreItem

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
        "items": await visit.jobs.run(lambda step: _rows(found[:ROWS], step)),
        "next": found[ROWS - 1].key if len(found) > ROWS else None,
    }
    return Page("items", "/".join(namespace) or "/", values)


async def item(visit: Visit) -> Page:
    """Return an item, its version and expiry, and the items whose embeddings are nearest."""
    found = await _item(visit)
    start = visit.query.number("start")
    values = {
        "segments": found.namespace,
        "created_at": found.created_at,
        "metadata": short(found.metadata),
        "ttl_seconds": found.ttl_seconds,
        **await visit.jobs.run(lambda _: _looked(found, start)),
    }
    return Page("item", found.key, values | await _neighbours(visit, found))


def _looked(found: StoreItem, start: int) -> dict[str, Any]:
    size = len(encode(found.value))
    return {"item": _row(found), "size": size, "tree": tree(found.value, start=start)}


async def value(visit: Visit) -> Download:
    """Return the value of an item as JSON."""
    found = await _item(visit)
    content = await visit.jobs.run(lambda _: encode(found.value))
    return Download(f"{found.key}.json", content)


async def _neighbours(visit: Visit, found: StoreItem) -> dict[str, Any]:
    """Return the nearest items with their scores, or the reason why there are none."""
    store = _store(visit)
    if not store.capabilities.semantic_search:
        there = store.stored_dimension
        opened = f"This store was opened without its embeddings: start it with --dimension {there}."
        return {"nearest": [], "without": opened if there else "This store has no embeddings."}
    embedding = await store.get_embedding(found.namespace, found.key)
    if embedding is None:
        return {"nearest": [], "without": "This item has no embedding."}
    name = (found.namespace, found.key)
    hits = await store.search_by_embedding((), embedding, NEAREST + 1)
    others = [it for it in hits if (it.item.namespace, it.item.key) != name][:NEAREST]
    rows = await visit.jobs.run(lambda step: _rows([it.item for it in others], step))
    nearest = [
        {"segments": hit.item.namespace, "score": hit.score} | row
        for hit, row in zip(others, rows, strict=True)
    ]
    return {"nearest": nearest, "without": ""}


def _rows(found: list[StoreItem], step: Step) -> list[dict[str, Any]]:
    rows = []
    for it in found:
        step()
        rows.append(_row(it))
    return rows


def _row(found: StoreItem) -> dict[str, Any]:
    return {
        "key": found.key,
        "version": found.version,
        "updated_at": found.updated_at,
        "expires_at": found.expires_at,
        "value": json_line(found.value, CELL),
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
