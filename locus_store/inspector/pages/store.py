"""The long-term store: namespaces, items, and the nearest items of one."""

from __future__ import annotations

from typing import Any, cast

from locus_store.errors import IntegrityError, InvalidArgumentError, NotFoundError, UnsupportedError
from locus_store.inspector.bounds import CELL, ROWS, make_tree, render_line, shorten
from locus_store.inspector.page_requests import Download, Page, PageRequest
from locus_store.store import BaseStore
from locus_store.timeline.paths import Step
from locus_store.types.items import StoreItem
from locus_store.values.encoding import decode, encode
from locus_store.versions.archives import select

NEAREST = 10

ITEM_FILTERS = ("q", "value", "metadata", "sort")
"""Parameters of a list of items; ``sort``, if not empty, is by the last put."""


async def show_namespaces(request: PageRequest) -> Page:
    """Return a page of the namespaces that have items."""
    store, start = _store(request), request.query.get_number("start")
    found = await store.list_namespaces(limit=ROWS + 1, offset=start)
    values = {
        "namespaces": found[:ROWS],
        "start": start,
        "next": start + ROWS if len(found) > ROWS else None,
    }
    return Page("store", "Store", values)


async def show_items(request: PageRequest) -> Page:
    """Return a page of the items of a namespace by key, or of what filters find in and below it.

    What filters find is sorted by the last put.
    """
    store, query, namespace = _store(request), request.query, _parse_namespace(request)
    given = {name: query.get_text(name).strip() for name in ITEM_FILTERS}
    start, after = query.get_number("start"), query.get_optional("after")
    if any(given.values()):
        pairs = (query.get_pair(name) for name in ("value", "metadata"))
        value, metadata = (dict([pair]) if pair else None for pair in pairs)
        found = await store.search(
            namespace, given["q"] or None, value, ROWS + 1, start, metadata_filter=metadata
        )
        place: dict[str, Any] = {"start": start + ROWS, **given}
    else:
        found = await store.list(namespace, ROWS + 1, after)
        place = {"after": found[min(len(found), ROWS) - 1].key} if found else {}
    values = {
        "segments": namespace,
        "given": given,
        "is_later": bool(start or after),
        "items": await request.jobs.run(lambda step: [_make_row(it, step) for it in found[:ROWS]]),
        "next": place if len(found) > ROWS else None,
    }
    return Page("items", "/".join(namespace) or "/", values)


async def show_item(request: PageRequest) -> Page:
    """Return an item, its version and expiry, and the items whose embeddings are nearest."""
    found = await _read_item(request)
    start = request.query.get_number("start")
    values = {
        "segments": found.namespace,
        "created_at": found.created_at,
        "ttl_seconds": found.ttl_seconds,
        **await request.jobs.run(lambda step: _describe_item(found, start, step)),
    }
    return Page("item", found.key, values | await _find_neighbours(request, found))


def _describe_item(item: StoreItem, start: int, step: Step) -> dict[str, Any]:
    size = len(encode(item.value))
    return {"item": _make_row(item, step), "size": size, "tree": make_tree(item.value, start=start)}


async def download_value(request: PageRequest) -> Download:
    """Return the value of an item as JSON."""
    found = await _read_item(request)
    content = await request.jobs.run(lambda _: encode(found.value))
    return Download(f"{found.key}.json", content)


async def _find_neighbours(request: PageRequest, item: StoreItem) -> dict[str, Any]:
    """Return the nearest items with their scores, or the reason why there are none."""
    store = _store(request)
    if not store.capabilities.semantic_search:
        there = store.stored_dimension
        opened = f"This store was opened without its embeddings: open it with dimension={there}."
        return {"nearest": [], "without": opened if there else "This store has no embeddings."}
    embedding = await store.get_embedding(item.namespace, item.key)
    if embedding is None:
        return {"nearest": [], "without": "This item has no embedding."}
    name = (item.namespace, item.key)
    hits = await store.search_by_embedding((), embedding, NEAREST + 1)
    others = [it for it in hits if (it.item.namespace, it.item.key) != name][:NEAREST]
    rows = await request.jobs.run(lambda step: [_make_row(it.item, step) for it in others])
    nearest = [{"score": hit.score} | row for hit, row in zip(others, rows, strict=True)]
    return {"nearest": nearest, "without": ""}


def _make_row(item: StoreItem, step: Step) -> dict[str, Any]:
    step()
    row = {"segments": item.namespace}
    row |= select(item, ("key", "version", "updated_at", "expires_at"))
    return row | {"value": render_line(item.value, CELL), "metadata": shorten(item.metadata)}


async def _read_item(request: PageRequest) -> StoreItem:
    namespace, key = _parse_namespace(request), request.query.get_text("key")
    found = await _store(request).get_item(namespace, key)
    if found is None:
        raise NotFoundError(f"there is no item {key!r} in namespace {namespace!r}")
    return found


def _store(request: PageRequest) -> BaseStore:
    if request.parts.store is None:
        raise UnsupportedError("this inspector was started without a store")
    return request.parts.store


def _parse_namespace(request: PageRequest) -> tuple[str, ...]:
    text = request.query.get_text("segments", "[]")
    try:
        found = decode(text.encode())
    except (IntegrityError, ValueError):
        found = None
    if not isinstance(found, list) or not all(isinstance(it, str) for it in found):
        expected = 'a JSON list of strings, such as ["user", "42"]'
        raise InvalidArgumentError(f"segments={text[:80]!r} must be {expected}")
    return tuple(cast("list[str]", found))
