"""The documents engine over a toy, and over an object store in a dictionary."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from document_probe import DocumentsProbe
from drawer import Drawer
from shelf import ObjectsProbe, Shelf, shelf_backend

from locus_store import StorageBackendAdapter
from locus_store.backends.documents import item_journal, segmented
from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.objects import ITEMS, ObjectDocuments
from locus_store.backends.documents.store import DocumentStore
from locus_store.values.encoding import MAX_STATE_BYTES
from storages import Storage


def bounded(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a message log that are its backend's."""
    return {name: it for name, it in options.items() if name == "max_state_bytes"}


def log_of(backend: DocumentBackend, options: dict[str, Any]) -> DocumentMessageLog:
    return DocumentMessageLog(backend, owns=True, ttl_seconds=options.get("ttl_seconds"))


class OfDrawer(Storage):
    """A backend of four methods, the example of the documentation."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.drawer = Drawer(self.fixture("tmp_path") / "drawer.db")

    def checkpointer(self, *, max_state_bytes: int = MAX_STATE_BYTES, **options: Any) -> Any:
        backend = DocumentBackend(self.drawer, max_state_bytes=max_state_bytes)
        return StorageBackendAdapter(backend, **options)

    def backend(self) -> Any:
        return DocumentBackend(self.drawer)

    def store(self, **options: Any) -> Any:
        return DocumentStore(self.drawer, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return log_of(DocumentBackend(self.drawer, **bounded(options)), options)

    def probe(self) -> DocumentsProbe:
        return DocumentsProbe(self.drawer)


class OnShelf(Storage):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.shelf = Shelf()

    def checkpointer(self, *, max_state_bytes: int = MAX_STATE_BYTES, **options: Any) -> Any:
        backend = shelf_backend(self.shelf, max_state_bytes=max_state_bytes)
        return StorageBackendAdapter(backend, **options)

    def backend(self) -> Any:
        return shelf_backend(self.shelf)

    def store(self, **options: Any) -> Any:
        documents = ObjectDocuments(self.shelf, "p/", heads=ITEMS)
        return DocumentStore(documents, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return log_of(shelf_backend(self.shelf, **bounded(options)), options)

    def probe(self) -> ObjectsProbe:
        return ObjectsProbe(self.shelf)


class Segments(OnShelf):
    """Nearly every save and put makes a segment; lists have times in whole seconds."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.shelf.time_step = timedelta(seconds=1)  # type: ignore[misc]  # of this object
        self.fixture("monkeypatch").setattr(segmented, "TAIL_BYTES", 1)
        self.fixture("monkeypatch").setattr(item_journal, "HEAD_BYTES", 1)
