"""The items of a store as documents, and the index that holds them.

========== ==================================================================================
namespace  the encoded namespace; every segment ends with NUL
key        the key
updated    microseconds of the last put, by the clock of its host
expires    microseconds, if the item has a time to live
vectors    ``true``, if the item has embeddings
kept       version, time of creation, time to live, embeddings, value and metadata, and the tokens
           of the last puts; of a decision the items of a batch; of the settings the dimension
batch      the batch that is changing the item
intent     the document in place of this one, if the batch is committed; absent: a removal
state      of the decision about a batch: ``committed`` or ``aborted``
decided    microseconds of the decision
========== ==================================================================================

A document with a batch and without ``updated`` is an item that only its batch knows.
"""

from __future__ import annotations

import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, TypeAlias

from locus_store.backends.opensearch import failures
from locus_store.backends.opensearch.access import IndexPlace
from locus_store.backends.opensearch.bulk import (
    BulkWrite,
    IndexTag,
    Outcome,
    make_condition,
    make_write,
    split_batches,
)
from locus_store.backends.opensearch.client import KEEP_ALIVE, IndexClient
from locus_store.backends.opensearch.index import Layout
from locus_store.backends.opensearch.options import OpenSearchOptions
from locus_store.types.items import (
    Change,
    Name,
    Put,
    StoreItem,
    decode_namespace,
    encode_namespace,
    require_version,
    translate_damage,
)
from locus_store.values import encoding
from locus_store.values.times import MICROSECOND, from_microseconds, to_microseconds

ITEMS: Final = Layout(
    mark="locus_store_items",
    version=1,
    properties={
        "namespace": {"type": "keyword"},
        "key": {"type": "keyword"},
        "updated": {"type": "long"},
        "expires": {"type": "long"},
        "vectors": {"type": "boolean"},
        "kept": {"type": "object", "enabled": False},
        "batch": {"type": "keyword"},
        "intent": {"type": "object", "enabled": False},
        "state": {"type": "keyword"},
        "decided": {"type": "long"},
    },
)

SUFFIX: Final = "-store"
"""Between the name of the threads' index and this one's."""

REMEDY: Final = "restore a snapshot of the index"
"""For what is not as it was written."""

TOKENS: Final = 32
"""Puts that a document remembers, so that a repetition after a lost reply is recognised."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it was read."""

    id: str
    tag: IndexTag
    source: Mapping[str, Any]

    @property
    def batch(self) -> str | None:
        """The batch that is changing it."""
        return self.source.get("batch")

    def restore(self) -> Mapping[str, Any] | None:
        """Return the document as it was before its batch."""
        rest = {name: it for name, it in self.source.items() if name not in {"batch", "intent"}}
        return rest if "updated" in rest else None  # else only its batch knows it


def make_document_id(name: Name) -> str:
    """Return the id of an item's document."""
    namespace, key = name
    return sha256(f"{encode_namespace(namespace)}\0{key}".encode()).hexdigest()


def get_name(source: Mapping[str, Any]) -> Name:
    """Return the name of an item."""
    return decode_namespace(source["namespace"]), source["key"]


def get_microseconds() -> int:
    """Return the time in microseconds."""
    return to_microseconds(datetime.now(UTC))


def is_live(source: Mapping[str, Any] | None) -> bool:
    """Return whether there is an item that has not expired."""
    if source is None or "updated" not in source:
        return False
    expires = source.get("expires")
    return expires is None or expires > get_microseconds()


def apply_put(source: Mapping[str, Any] | None, put: Put, at: int, token: str) -> dict[str, Any]:
    """Return the document of a put in place of the one that was found."""
    tokens = source["kept"]["tokens"] if source else []
    moment = from_microseconds(max(at, source["updated"] + 1) if source else at)
    if source is not None and is_live(source):
        kept = source["kept"]
        stamp = put.make_stamp(moment, kept["version"], from_microseconds(kept["created"]))
    else:
        stamp = put.make_stamp(moment)
    body = b"[%b,%b]" % (put.json, encoding.encode(put.metadata))
    made: dict[str, Any] = {
        "namespace": encode_namespace(put.namespace),
        "key": put.key,
        "updated": to_microseconds(stamp.updated_at),
        "kept": {
            "version": stamp.version,
            "created": to_microseconds(stamp.created_at),
            "content": b64encode(encoding.pack_frame(body)).decode(),
            "tokens": [*tokens, token][-TOKENS:] if put.stamp is None else tokens,
        },
    }
    if put.ttl_seconds is not None:
        made["kept"]["ttl"] = put.ttl_seconds
    if stamp.expires_at is not None:
        made["expires"] = to_microseconds(stamp.expires_at)
    if put.vectors:
        made["vectors"] = True
        made["kept"]["vectors"] = [b64encode(it).decode() for it in put.vectors]
    return made


def make_item(source: Mapping[str, Any], max_bytes: int, place: str) -> StoreItem:
    """Return the item of a document.

    Raises:
        IntegrityError: It is not as it was written, or takes more than ``max_bytes``.
    """
    with translate_damage(f"item {source.get('key')!r} in {place}", REMEDY):
        kept, expires = source["kept"], source.get("expires")
        [body] = encoding.unpack_frames(b64decode(kept["content"]), max_bytes)
        value, metadata = encoding.decode(body)  # type: ignore[misc,str-unpack]  # two of them
        namespace, key = get_name(source)
        return StoreItem(
            namespace=namespace,
            key=key,
            value=value,
            metadata=metadata,  # type: ignore[arg-type]  # an object
            created_at=from_microseconds(kept["created"]),
            updated_at=from_microseconds(source["updated"]),
            version=kept["version"],
            expires_at=None if expires is None else from_microseconds(expires),
            ttl_seconds=kept.get("ttl"),
        )


def get_vectors(source: Mapping[str, Any]) -> list[bytes]:
    """Return the embeddings of a document."""
    return [b64decode(it) for it in source["kept"].get("vectors", ())]


KEEP: Final = object()
"""In place of a document that is not written."""

_TOKEN_CHARACTERS: Final = 16

Decide: TypeAlias = "Callable[[Document | None, bool], tuple[Any, int]]"
"""Returns the replacement of a document, or ``KEEP``, and the answer of the call.

It is given the document, and whether a request was sent again, so that an earlier one may have been
executed.
"""


class ItemChange:
    """A put or a removal; ``offset``: microseconds, so that the items of a batch have an order."""

    def __init__(self, change: Change, offset: int = 0) -> None:
        self._change = change
        self._offset = offset
        self._token = uuid.uuid4().hex[:_TOKEN_CHARACTERS]
        self._removed = 0

    def __call__(self, document: Document | None, is_repeat: bool) -> tuple[Any, int]:
        if isinstance(self._change, Put):
            return self._put(self._change, document.source if document else None)
        if document is None:
            return KEEP, self._removed if is_repeat else 0
        self._removed = int(is_live(document.source))
        return None, self._removed

    def _put(self, put: Put, source: Mapping[str, Any] | None) -> tuple[Any, int]:
        tokens = source["kept"]["tokens"] if source else []
        version = source["kept"]["version"] if source and is_live(source) else 0
        if self._token in tokens:  # the reply to the put was lost
            return KEEP, version - len(tokens) + 1 + tokens.index(self._token)
        require_version(put, version)
        made = apply_put(source, put, get_microseconds() + self._offset, self._token)
        return made, made["kept"]["version"]


def make_clearing(times: Mapping[Name, int]) -> Decide:
    """Return the removal of items that were not put again since they were seen."""

    def clear(document: Document | None, _: bool) -> tuple[Any, int]:
        if document is None or document.source["updated"] > times[get_name(document.source)]:
            return KEEP, 0
        return None, int(is_live(document.source))

    return clear


def expire(document: Document | None, _: bool) -> tuple[Any, int]:
    """Remove an item whose time is over."""
    return (KEEP if document is None or is_live(document.source) else None), 1


def renew(document: Document | None, _: bool) -> tuple[Any, int]:
    """Begin an item's time to live again."""
    if document is None or not is_live(document.source):
        return KEEP, 0
    ttl = document.source["kept"].get("ttl")
    if not ttl:
        return KEEP, 1
    until = get_microseconds() + timedelta(seconds=ttl) // MICROSECOND
    return {**document.source, "expires": until}, 1


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

    def write(self, writes: Sequence[BulkWrite], *, refresh: str = "false") -> list[Outcome]:
        """Write documents, each on its condition; return their outcomes.

        Args:
            writes: In this order.
            refresh: The parameter of the requests.
        """
        found: list[Outcome] = []
        for some in split_batches(writes):
            found += self.bulk(some, creates=["create"], most=None, refresh=refresh)
        return found

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
    return ItemIndex(replace(place, name=place.name + SUFFIX), access, ITEMS)


def get_hits(answer: Any) -> list[Any]:
    """Return the hits of an answer."""
    return list(answer["hits"]["hits"]) if answer else []


def make_document(answer: Mapping[str, Any]) -> Document:
    """Return the document that was found, with its sequence number."""
    tag = answer["own"], answer["_seq_no"], answer["_primary_term"]
    return Document(answer["_id"], tag, answer.get("_source", {}))


States: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Decisions by batch."""

LEASE_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.02
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A document in place of another one."""

    id: str
    found: Document | None
    """The stored document, which no batch is changing."""

    source: Mapping[str, Any] | None
    """``None``: the document is deleted."""

    def make_intent(self, batch: str) -> BulkWrite:
        """Return the write that announces the replacement."""
        own = self.source or {}
        before = self.found.source if self.found else {it: own[it] for it in ("namespace", "key")}
        source = {**before, "batch": batch, "intent": self.source}
        return make_item_write(self.id, self.found.tag if self.found else None, source)


class ItemBatches:
    """The batches of an index: changes of several documents, all or none.

    OpenSearch has no transaction over documents. A batch writes into each document its
    *intent*, the document that is to replace it, and then creates one document, the *decision*.
    This write commits the batch. Before it readers see the old documents, after it the intents.
    Finally the batch replaces the documents. A writer that finds an intent waits. If the batch
    stays undecided for ``LEASE_SECONDS``, this writer creates the decision ``aborted``. The first
    of two decisions counts, because both are created under one id.
    """

    def __init__(self, index: ItemIndex) -> None:
        self._index = index

    def read(self, ids: Sequence[str], **params: Any) -> list[Mapping[str, Any] | None]:
        """Return documents as they were at one instant."""
        while True:
            found = self._index.read(ids, **params)
            batches = {it.batch for it in found if it and it.batch}
            if len(ids) == 1 and not batches:
                return [it.source if it else None for it in found]
            states = self.read_states(batches)
            again = self._index.read(ids, _source="false")
            if [it and it.tag for it in again] == [it and it.tag for it in found]:
                return [_decide_document(it, states) if it else None for it in found]

    def read_states(self, batches: Iterable[str | None]) -> States:
        """Return the decisions about batches; an undecided one is absent."""
        named = [it for it in batches if it]
        found = self._index.read(named) if named else []
        return {it.id: it.source for it in found if it}

    def settle(self, ids: Sequence[str], **params: Any) -> list[Document | None]:
        """Return documents that no batch is changing; wait for batches, or end abandoned ones."""
        first_seen: dict[str, float] = {}
        while True:
            found = self._index.read(ids, **params)
            held = [it.id for it in found if it and it.batch]
            if not held:
                return found
            self._settle(held, first_seen)

    def _settle(self, ids: Sequence[str], first_seen: dict[str, float]) -> None:
        """Put decided documents in place; wait for others, or end a batch that has taken long."""
        held = [it for it in self._index.read(ids) if it and it.batch]
        states = self.read_states({it.batch for it in held})
        self.replace([it for it in held if it.batch in states], states)
        now = time.monotonic()
        undecided = {it.batch: first_seen.setdefault(it.batch, now) for it in held if it.batch}
        over = [it for it, at in undecided.items() if at + LEASE_SECONDS < now]
        self._index.write([_make_decision(it, ABORTED, ()) for it in over if it not in states])
        if undecided.keys() - states.keys():
            time.sleep(PAUSE_SECONDS)

    def replace(self, documents: Sequence[Document], states: States) -> None:
        """Replace documents by their intents, or restore them, as their batches were decided."""
        writes = [make_item_write(it.id, it.tag, _decide_document(it, states)) for it in documents]
        self._index.write(writes, refresh=self._index.refresh)

    def finish(self, batches: Iterable[str]) -> bool:
        """Put the intents of committed batches in place; return whether there was one."""
        states = self.read_states(batches)
        done = {it: decision for it, decision in states.items() if decision["state"] == COMMITTED}
        for batch, decision in done.items():
            self.replace(self._read_held(decision["kept"]["ids"], batch), states)
            self.forget([batch])
        return bool(done)

    def write(self, replacements: Sequence[Replacement]) -> bool:
        """Write all or none; return whether it was done: a document may have changed."""
        if not replacements:
            return True
        batch = uuid.uuid4().hex
        ordered = sorted(replacements, key=lambda it: it.id)
        ids = [it.id for it in ordered]
        tags = [it.tag for it in self._index.write([it.make_intent(batch) for it in ordered])]
        if None in tags:  # another writer was faster, or the reply to our own write was lost
            tags = [it.tag for it in self._read_held(ids, batch)]
        if len(tags) < len(ids) or not self._commit(batch, ids):
            self.replace(self._read_held(ids, batch), {batch: {"state": ABORTED}})
            return False
        final = [
            make_item_write(replacement.id, tag, replacement.source)
            for replacement, tag in zip(ordered, tags, strict=True)
        ]
        self._index.write(final, refresh=self._index.refresh)
        self.forget([batch])
        return True

    def _commit(self, batch: str, ids: Sequence[str]) -> bool:
        """Create the decision; return whether it is ours."""
        [done] = self._index.write([_make_decision(batch, COMMITTED, ids)])
        return done.is_done or self.read_states([batch])[batch]["state"] == COMMITTED

    def _read_held(self, ids: Sequence[str], batch: str) -> list[Document]:
        return [it for it in self._index.read(ids) if it and it.batch == batch]

    def forget(self, batches: Sequence[str]) -> None:
        """Delete the decisions about batches that have no intents any more."""
        found = self._index.read(batches)
        self._index.write([make_item_write(it.id, it.tag, None) for it in found if it])


def _decide_document(document: Document, states: States) -> Mapping[str, Any] | None:
    """Return the document as its batch was decided."""
    if not document.batch:
        return document.source
    if states.get(document.batch, {}).get("state") != COMMITTED:
        return document.restore()
    return document.source.get("intent")


def _make_decision(batch: str, state: str, ids: Sequence[str]) -> BulkWrite:
    fields = {"state": state, "decided": get_microseconds(), "kept": {"ids": list(ids)}}
    return make_item_write(batch, None, fields)
