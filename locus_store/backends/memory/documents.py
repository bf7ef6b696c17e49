"""Documents in a dict of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple
from uuid import uuid4

from locus_store.backends.documents.protocol import Body, ChangedError, Documents, Found, Tag


class _Document(NamedTuple):
    tag: int
    content: bytearray
    """Continued in place: a save takes time with what it adds."""


class MemoryDocuments(Documents):
    """Documents in a dict."""

    blocks = False

    def __init__(self) -> None:
        self._stored: dict[str, _Document] = {}
        self._tags = count(1)
        self._lock = threading.Lock()
        self._store = uuid4().hex

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``Documents``, also for the following methods."""
        with self._lock:
            found = self._stored.get(key)
            if found is None:
                return None
            return Found(found.tag, None if found.tag == known else bytes(found.content))

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        with self._lock:
            old = self._require(key, tag)
            content = old.content if old else bytearray()
            content[body.kept_bytes :] = body.rest
            self._stored[key] = made = _Document(next(self._tags), content)
            return made.tag

    def delete(self, key: str, *, tag: Tag) -> None:
        with self._lock:
            self._require(key, tag)
            self._stored.pop(key, None)

    def keys(self, after: str = "") -> Iterator[str]:
        with self._lock:
            return iter(sorted(it for it in self._stored if it > after))

    def _require(self, key: str, tag: Tag | None) -> _Document | None:
        found = self._stored.get(key)
        if tag != (found.tag if found else None):
            raise ChangedError
        return found
