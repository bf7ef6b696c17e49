"""Indexes of the test server, and what is below them."""

from __future__ import annotations

import json
from base64 import b64decode
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

from shelf import ObjectsProbe, get_payloads

from locus_store.backends.documents import bundles
from locus_store.backends.opensearch import (
    OpenSearchBackend,
    OpenSearchStore,
    opensearch_checkpointer,
)
from locus_store.errors import IntegrityError
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames

if TYPE_CHECKING:
    from opensearch_servers import Server

    from locus_store.backends.opensearch.client import IndexObjects


class TestIndex:
    """An index with the options that open it; a save returns when lists show it."""

    __test__ = False

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    def options(self, **others: Any) -> dict[str, Any]:
        return {**self.server.options(), "index_name": self.name, "refresh": "wait", **others}

    @property
    def place(self) -> str:
        """Host and index, for the pages of the documentation."""
        return f"{self.server.url.partition('://')[2]}/{self.name}"

    def url(self) -> str:
        """For other processes."""
        return self.server.index_url(self.name)

    def checkpointer(self, **options: Any) -> Any:
        return opensearch_checkpointer(**self.options(**options))

    def store(self, **options: Any) -> OpenSearchStore:
        return OpenSearchStore(**self.options(**{"dimension": 3, **options}))

    def backend(self, **options: Any) -> OpenSearchBackend:
        return OpenSearchBackend(**self.options(**options))

    def objects(self, **options: Any) -> IndexObjects:
        return self.backend(**options).index

    def reopen(self, state_type: Any) -> Any:
        return partial(self.checkpointer, state_type=state_type)

    def probe(self) -> IndexProbe:
        return IndexProbe(self)

    # --- below

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The server's answer, also to what it refused."""
        try:
            return self.server.ask(method, path, body)
        except HTTPError as error:
            return {"status": error.code, "told": error.read().decode()}

    def refresh(self) -> None:
        self.ask("POST", f"/{self.name}/_refresh")

    def refresh_all(self) -> str:
        """Refresh the indexes of threads and items; return their names."""
        names = f"{self.name},{self.name}-store"
        self.ask("POST", f"/{names}/_refresh?ignore_unavailable=true")
        return names

    def read_documents(self) -> list[Any]:
        """Return all documents of threads and items."""
        names, body = self.refresh_all(), {"size": 10_000}
        found = self.ask("POST", f"/{names}/_search?ignore_unavailable=true", body)
        return list(found["hits"]["hits"])

    def read_all(self) -> bytes:
        """Return all documents as they are stored, and what is packed in them."""
        found = [it["_source"] for it in self.read_documents()]
        packed = [it.get("content") or it.get("kept", {}).get("content") or "" for it in found]
        return b"\n".join([json.dumps(found).encode(), *chain(*map(unpack, packed))])

    def replace_documents(self, documents: list[Any]) -> None:
        """Store these documents, and no others."""
        self.empty()
        for it in documents:
            self.write(it, it["_source"])
        self.refresh_all()

    def write(self, document: Any, source: Any) -> None:
        """Store a document in the place of another one."""
        routing = f"?routing={it}" if (it := document.get("_routing")) else ""
        self.ask("PUT", f"/{document['_index']}/_doc/{document['_id']}{routing}", source)

    def empty(self) -> None:
        """Delete all documents of the indexes that there are."""
        names = self.refresh_all()
        path = "_delete_by_query?refresh=true&conflicts=proceed&ignore_unavailable=true"
        self.ask("POST", f"/{names}/{path}", {"query": {"match_all": {}}})

    def remove(self) -> None:
        """Delete the index."""
        self.ask("DELETE", f"/{self.name}-000001")


class IndexProbe(ObjectsProbe):
    """The probe of an object store; segments are listed without a wait for the refresh."""

    def __init__(self, index: TestIndex) -> None:
        super().__init__(index.objects(), "")
        self._index = index

    def contents(self) -> Any:
        self._index.refresh()
        return super().contents()

    def holds(self, text: str) -> bool:
        return text.encode() in self._index.read_all() or super().holds(text)


def unpack(content: str) -> list[bytes]:
    """Return what a head, a segment or an item has in base64, its frames decompressed."""
    raw = b64decode(content)
    if not raw.startswith(bundles.MAGIC):
        return decompress(raw)
    found = bundles.unpack(raw)
    told, payloads = found.describe(), get_payloads(found)
    parts = bundles.split_payloads(told, payloads)
    return [found.facts, *chain(*map(decompress, parts))]


def decompress(payload: bytes) -> list[bytes]:
    """Return the bodies of frames; other bytes, and sealed ones, as they are."""
    try:
        return list(unpack_frames(payload, MAX_STATE_BYTES))
    except IntegrityError:
        return [payload]
