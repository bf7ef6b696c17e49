"""Below a backend over documents: what is stored, aged and damaged."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from locus_store.backends.documents.packed import START, PackedForm
from locus_store.backends.documents.protocol import Body, DocumentForm
from locus_store.backends.documents.threads import DocumentThreads
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames
from locus_store.values.sealing import is_sealed
from locus_store.versions.threads import ThreadTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from locus_store.backends.documents.protocol import Documents
    from locus_store.versions.histories import Row
    from locus_store.versions.threads import Thread


class DocumentsProbe:
    """Below any documents, by what they hold."""

    def __init__(self, documents: Documents, form: type[DocumentForm] = PackedForm) -> None:
        self._documents = documents
        self._form = form(documents)

    def threads(self) -> list[Thread]:
        return list(DocumentThreads(self._documents, form=self._form).iterate_live())

    def change_rows(self, change: Callable[[Row], None]) -> None:
        """Change each version, as a program that writes such documents would."""
        for thread in self.threads():
            for row in iterate_rows([thread]):
                change(row)
            self._put(thread.thread_id, make_body(self._form, thread))

    def _put(self, key: str, body: Body) -> None:
        found = self._documents.get(key)
        assert found is not None
        self._documents.put(key, body, tag=found.tag)

    def contents(self) -> Iterator[tuple[str, bytes]]:
        for key in list(self._documents.keys("")):
            found = self._documents.get(key)
            assert found is not None
            yield key, found.content or b""

    def age(self, seconds: float) -> None:
        def older(row: Row) -> None:
            row.created_at -= timedelta(seconds=seconds)

        self.change_rows(older)

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        """Of the operations as they stand in the document; their checksum is left as it was."""
        for key, content in self.contents():
            self._put(key, Body(0, damaged(content, change)))

    def holds(self, text: str) -> bool:
        contents = (content for _, content in self.contents())
        return has_text(text.encode(), contents, self.threads())

    def rows(self) -> int:
        return count_rows(self.threads())


def make_body(form: DocumentForm, thread: Thread) -> Body:
    """The whole document of a thread."""
    transaction = ThreadTransaction(thread.thread_id, thread, thread.store, MAX_STATE_BYTES)
    transaction.adds_only = False
    draft = form.draft(transaction, None)
    assert draft is not None
    assert draft.body is not None
    return draft.body


def iterate_rows(threads: Iterable[Thread]) -> Iterator[Row]:
    for thread in threads:
        for history in thread.histories.values():
            yield from history.rows.values()


def count_rows(threads: list[Thread]) -> int:
    histories = sum(len(it.histories) for it in threads)
    return len(threads) + histories + len(list(iterate_rows(threads)))


def has_text(wanted: bytes, contents: Iterable[bytes], threads: Iterable[Thread]) -> bool:
    """Return whether a text stands in documents, or in the unsealed frames of versions."""
    payloads = (it.payload for it in iterate_rows(threads) if not is_sealed(it.payload))
    frames = (b"".join(unpack_frames(it, MAX_STATE_BYTES)) for it in payloads)
    return any(wanted in it for it in (*contents, *frames))


def damaged(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Packs whose payloads were changed; the checksums are left as they were."""
    parts, at = [], 0
    while at < len(content):
        head, payload, _ = START.unpack_from(content, at)
        middle = at + START.size + head
        parts += [content[at:middle], change(content[middle : middle + payload])]
        at = middle + payload
    return b"".join(parts)
