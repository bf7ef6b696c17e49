"""ItemBatches of a store: changes of several documents, all or none.

OpenSearch has no transaction over documents. A batch writes into each document its *intent*, the
document that is to replace it, and then creates one document, the *decision*. This write commits
the batch. Until then readers see the documents as before, and afterwards the intents, which the
batch puts in place at last. Another writer that meets an intent waits; if the batch remains
undecided for ``LEASE_SECONDS``, it creates the decision ``aborted``. Of two decisions the first
counts, because both are created under one id.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from locus_store.backends.opensearch import items
from locus_store.backends.opensearch.bulk import BulkWrite
from locus_store.backends.opensearch.items import Document, ItemIndex, make_item_write

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
    """The batches of an index."""

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
        tags = self._index.write([it.make_intent(batch) for it in ordered])
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
        [tag] = self._index.write([_make_decision(batch, COMMITTED, ids)])
        return tag is not None or self.read_states([batch])[batch]["state"] == COMMITTED

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
    fields = {"state": state, "decided": items.get_microseconds(), "kept": {"ids": list(ids)}}
    return make_item_write(batch, None, fields)
