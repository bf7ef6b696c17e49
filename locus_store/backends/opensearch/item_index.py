"""The index of a store: reads by id, conditional writes, and searches in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from locus_store.backends.opensearch import failures, items
from locus_store.backends.opensearch.access import IndexPlace
from locus_store.backends.opensearch.bulk import (
    BulkWrite,
    IndexTag,
    make_condition,
    make_write,
    split_batches,
)
from locus_store.backends.opensearch.client import KEEP_ALIVE, IndexClient
from locus_store.backends.opensearch.items import Document
from locus_store.backends.opensearch.options import OpenSearchOptions

AT_ONCE: Final = 500
"""Documents that one request reads."""

PAGE: Final = 200
"""Documents in one answer to a search."""


def make_item_write(
    document_id: str, tag: IndexTag | None, source: Mapping[str, Any] | None
) -> BulkWrite:
    """Return the write of a document on a condition.

    Args:
        document_id: Its id.
        tag: Of the stored document; ``None``: there is none.
        source: The document; ``None``: it is deleted.
    """
    if tag is None:
        return make_write("", "create", {"_id": document_id}, source)
    where = {"_id": document_id, **make_condition(tag)}
    return make_write("", "delete" if source is None else "index", where, source)


class ItemIndex(IndexClient):
    """The documents of a store."""

    def read(self, ids: Sequence[str], **params: Any) -> list[Document | None]:
        """Return documents as they are now, in the order of the ids."""
        docs = [{"_id": it} for it in ids]
        found = self.read_documents(docs, size=AT_ONCE, **params)
        return [make_document(it) if it.get("found") else None for it in found]

    def write(
        self,
        writes: Sequence[BulkWrite],
        *,
        refresh: str = "false",
        on_repeat: Callable[[], None] = lambda: None,
    ) -> list[IndexTag | None]:
        """Write documents, each on its condition; return their tags, ``None`` if one had changed.

        Args:
            writes: In this order.
            refresh: The parameter of the requests.
            on_repeat: Called if a request is repeated, which its first attempt may have done.
        """
        answers: list[IndexTag | None] = []
        for some in split_batches(writes):
            found = self.bulk(
                some, creates=["create"], most=None, refresh=refresh, on_repeat=on_repeat
            )
            answers += [it.tag if it.is_done else None for it in found]
        return answers

    def iterate_pages(self, body: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        """Yield the hits of a view that later writes do not change, in pages of the body's size."""
        path, seen = "_search/point_in_time", (failures.MISSING,)
        options = {"keep_alive": KEEP_ALIVE, "allow_partial_pit_creation": "false"}
        view = self.request_documents("POST", path, statuses=seen, **options).get("pit_id")
        if view is None:  # there is no index
            return
        try:
            yield from self.iterate_hits(body, view=view)
        finally:
            self.call("DELETE", f"/{path}", {"pit_id": [view]}, statuses=seen)


def open_item_index(place: IndexPlace, access: OpenSearchOptions) -> ItemIndex:
    """Return the index of items beside an index of threads."""
    return ItemIndex(replace(place, name=place.name + items.SUFFIX), access, items.ITEMS)


def get_hits(answer: Any) -> list[Any]:
    """Return the hits of an answer."""
    return list(answer["hits"]["hits"]) if answer else []


def make_document(answer: Mapping[str, Any]) -> Document:
    """Return the document that was found, with its sequence number."""
    tag = answer["own"], answer["_seq_no"], answer["_primary_term"]
    return Document(answer["_id"], tag, answer.get("_source", {}))
