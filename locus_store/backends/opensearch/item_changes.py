"""Changes of one document of a store, decided on the document that is stored."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.opensearch import items
from locus_store.types.items import Put, require_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.backends.opensearch.items import Document
    from locus_store.types.items import Change, Name

KEEP: Final = object()
"""In place of a document that is not written."""

_TOKEN_CHARACTERS: Final = 16


class Decide:
    """The change of a document: its replacement, or ``KEEP``, and the answer of the call."""

    was_repeated = False
    """A request was sent again, so an earlier one may have been executed."""

    def __call__(self, found: Document | None) -> tuple[Any, int]:
        raise NotImplementedError

    def on_repeat(self) -> None:
        self.was_repeated = True


class ItemChange(Decide):
    """A put or a removal; ``offset``: microseconds, so that the items of a batch have an order."""

    def __init__(self, change: Change, offset: int = 0) -> None:
        self._change = change
        self._offset = offset
        self._token = uuid.uuid4().hex[:_TOKEN_CHARACTERS]
        self._removed = 0

    def __call__(self, found: Document | None) -> tuple[Any, int]:
        if isinstance(self._change, Put):
            return self._put(self._change, found.source if found else None)
        if found is None:
            return KEEP, self._removed if self.was_repeated else 0
        self._removed = int(items.is_live(found.source))
        return None, self._removed

    def _put(self, put: Put, found: Mapping[str, Any] | None) -> tuple[Any, int]:
        tokens = found["kept"]["tokens"] if found else []
        version = found["kept"]["version"] if found and items.is_live(found) else 0
        if self._token in tokens:  # the reply to the put was lost
            return KEEP, version - len(tokens) + 1 + tokens.index(self._token)
        require_version(put, version)
        made = items.put_on(found, put, items.now() + self._offset, self._token)
        return made, made["kept"]["version"]


class Clearing(Decide):
    """A removal of items that were not put again since they were seen."""

    def __init__(self, seen: Mapping[Name, int]) -> None:
        self._seen = seen

    def __call__(self, found: Document | None) -> tuple[Any, int]:
        if found is None or found.source["updated"] > self._seen[items.name_of(found.source)]:
            return KEEP, 0
        return None, int(items.is_live(found.source))


class Expiring(Decide):
    """A removal of an item whose time is over."""

    def __call__(self, found: Document | None) -> tuple[Any, int]:
        return (KEEP if found is None or items.is_live(found.source) else None), 1


class ItemRenewal(Decide):
    """A new beginning of an item's time to live."""

    def __call__(self, found: Document | None) -> tuple[Any, int]:
        if found is None or not items.is_live(found.source):
            return KEEP, 0
        return items.renewed(found.source) or KEEP, 1
