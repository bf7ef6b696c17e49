"""Below a backend over documents: what is stored, aged and damaged."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from locus_store.backends.documents import format as documents_format
from locus_store.backends.documents.threads import DocumentThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.backends.documents.protocol import Body, Documents
    from locus_store.versions.histories import Row
    from locus_store.versions.threads import Thread

OPERATIONS = b',"operations":'
CHECK_BYTES = len(b',"check":"01234567"}')


class DocumentsProbe:
    """Below any documents, by what they hold."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def threads(self) -> list[Thread]:
        return list(DocumentThreads(self._documents).iterate_live())

    def change_rows(self, change: Callable[[Row], None]) -> None:
        """Change each version, as a program that writes such documents would."""
        for thread in self.threads():
            for history in thread.histories.values():
                for row in history.rows.values():
                    change(row)
            self._put(thread.thread_id, documents_format.encode_thread(thread)[0])

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
            self._put(key, documents_format.Body(0, damaged(content, change)))

    def holds(self, text: str) -> bool:
        return any(text.encode() in it for _, it in self.contents())

    def rows(self) -> int:
        threads = self.threads()
        histories = [it for thread in threads for it in thread.histories.values()]
        return len(threads) + len(histories) + sum(len(it.rows) for it in histories)


def damaged(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A document whose operations were changed."""
    lines = content.split(b"\n")
    for at, line in enumerate(lines):
        if OPERATIONS in line:
            start = line.index(OPERATIONS) + len(OPERATIONS)
            lines[at] = line[:start] + change(line[start:-CHECK_BYTES]) + line[-CHECK_BYTES:]
    return b"\n".join(lines)
