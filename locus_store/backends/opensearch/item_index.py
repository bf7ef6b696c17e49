"""The index of a store: reads by id, conditional writes, and searches in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from locus_store.backends.opensearch import failures, items
from locus_store.backends.opensearch.access import IndexPlace
from locus_store.backends.opensearch.bulk import (
    BulkWrite,
    IndexTag,
    Outcome,
    make_condition,
    read_outcomes,
    require_decided,
    split_batches,
    write,
)
from locus_store.backends.opensearch.client import IndexClient
from locus_store.backends.opensearch.items import Document
from locus_store.backends.opensearch.options import OpenSearchOptions

AT_ONCE: Final = 500
"""Documents that one request reads."""

PAGE: Final = 200
"""Documents in one answer to a search."""

KEEP_ALIVE: Final = "5m"
"""The time for which the server keeps a view between two of its pages."""


@dataclass(frozen=True, slots=True)
class Write:
    """A document to write on a condition."""

    id: str
    tag: IndexTag | None
    """Of the stored document; ``None``: there is none."""

    source: Mapping[str, Any] | None
    """``None``: the document is deleted."""

    def to_bulk_write(self) -> BulkWrite:
        """Return the write as a part of a request."""
        if self.tag is None:
            return write("", "create", {"_id": self.id}, self.source)
        where = {"_id": self.id, **make_condition(self.tag)}
        return write("", "delete" if self.source is None else "index", where, self.source)


class ItemIndex(IndexClient):
    """The documents of a store."""

    def read(self, ids: Sequence[str], **params: Any) -> list[Document | None]:
        """Return documents as they are now, in the order of the ids."""
        found: list[Document | None] = []
        for at in range(0, len(ids), AT_ONCE):
            some = ids[at : at + AT_ONCE]
            own, body = self.get_own_alias(), {"docs": [{"_id": it} for it in some]}
            answer = self.request_documents(
                "POST", "_mget", body, seen=(failures.MISSING,), check=_check_read, **params
            )
            docs = answer.get("docs", [{}] * len(some))
            found += [make_document(it, own) if it.get("found") else None for it in docs]
        return found

    def write(
        self,
        writes: Sequence[Write],
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
        check = partial(require_decided, most=None)

        def ask(some: Sequence[BulkWrite]) -> list[Outcome]:
            own = self.get_own_alias()
            answer = self.send(some, refresh=refresh, check=check, on_repeat=on_repeat)
            return read_outcomes(answer, own)

        answers: list[IndexTag | None] = []
        for some in split_batches(it.to_bulk_write() for it in writes):
            found = ask(some)
            pairs = zip(some, found, strict=True)
            absent = {one.kind for one, its in pairs if its.is_without_index}
            if absent:
                self.renew()
            if "create" in absent:
                self.create()
                found = ask(some)
            answers += [it.tag if it.is_done else None for it in found]
        return answers

    def refresh_now(self) -> None:
        """Let the following searches show all acknowledged writes."""
        self.request_documents("POST", "_refresh", seen=(failures.MISSING,))

    def search(self, body: Mapping[str, Any], *, view: str | None = None) -> Any:
        """Return the answer to a search of all shards; without an index, none."""
        options: dict[str, Any] = {
            "seen": (failures.MISSING,),
            "allow_partial_search_results": "false",
        }
        if view is None:
            return self.request_documents("POST", "_search", body, **options)
        at = {"pit": {"id": view, "keep_alive": KEEP_ALIVE}}
        return self.call("POST", "/_search", {**body, **at}, allow_partial_search_results="false")

    def iterate_pages(self, body: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Yield the hits of one view of the index in pages of the body's size."""
        with self._open_view() as view:
            after: Any = None
            while view is not None:
                hits = get_hits(self.search({**body, **(after or {})}, view=view))
                yield hits
                if len(hits) < body["size"]:
                    return
                after = {"search_after": hits[-1]["sort"]}

    @contextmanager
    def _open_view(self) -> Iterator[str | None]:
        """Yield a view of the index, which later writes do not change; ``None``: no index."""
        path, seen = "_search/point_in_time", (failures.MISSING,)
        options = {"keep_alive": KEEP_ALIVE, "allow_partial_pit_creation": "false"}
        view = self.request_documents("POST", path, seen=seen, **options).get("pit_id")
        try:
            yield view
        finally:
            if view is not None:
                self.call("DELETE", f"/{path}", {"pit_id": [view]}, seen=seen)


def open_item_index(place: IndexPlace, access: OpenSearchOptions) -> ItemIndex:
    """Return the index of items beside an index of threads."""
    return ItemIndex(replace(place, name=place.name + items.SUFFIX), access, items.ITEMS)


def get_hits(answer: Any) -> list[Any]:
    """Return the hits of an answer."""
    return list(answer["hits"]["hits"]) if "hits" in answer else []


def make_document(found: Mapping[str, Any], own: str) -> Document:
    """Return the document that was found, with its sequence number, after ``own`` was."""
    tag = own, found["_seq_no"], found["_primary_term"]
    return Document(found["_id"], tag, found.get("_source", {}))


def _check_read(answer: Any) -> None:
    for it in answer.get("docs", ()):
        error = it.get("error")
        if error and error["type"] != failures.NO_INDEX:
            raise failures.make_part_error(503, error)
