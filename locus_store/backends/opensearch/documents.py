"""Heads, segments and the documents of versions in an index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from locus_store.backends.documents import deriving
from locus_store.backends.documents.deriving import Changes, Derived
from locus_store.backends.documents.forms import Draft, Parsed
from locus_store.backends.documents.objects import HEADS, ObjectDocuments, digest
from locus_store.backends.documents.protocol import LAST, Body, Dated, Found, Tag
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.backends.opensearch import failures
from locus_store.backends.opensearch.bulk import (
    VERSIONS,
    BulkWrite,
    Outcome,
    Undone,
    find_undone,
    make_id,
    require_deleted,
    split_batches,
)
from locus_store.backends.opensearch.client import PAGE, IndexObjects
from locus_store.backends.opensearch.search import iterate_versions
from locus_store.backends.opensearch.versions import StoredVersion, make_fields
from locus_store.errors import IntegrityError, LocusStoreError

TOGETHER: Final = 50
"""Heads that a list reads in one request."""

NOT_OLDER: Final = "external_gte"
"""A document is replaced by one whose number is the same or higher."""

REWRITTEN: Final = 1 << 40
"""The server counts the writes of a created document from 1, and stays below."""


class IndexDocuments(ObjectDocuments):
    """The heads of threads and their segments; a put also writes the documents of versions."""

    objects: IndexObjects

    def __init__(self, objects: IndexObjects) -> None:
        super().__init__(objects)
        self._identified = ""

    def read_identity(self) -> str | None:
        """See ``Documents``; an index that was created again has another store."""
        if (own := self.objects.get_own_alias()) != self._identified:
            self._store = None
        found = super().read_identity()
        self._identified = own
        return found

    def identify(self, store: str) -> None:
        super().identify(store)
        self._identified = self.objects.get_own_alias()

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        """See ``Documents``. Documents of versions may be missing when it returns."""
        changes: Changes | None = body.beside
        if not changes:
            return super().put(key, body, tag=tag)
        some = next(split_batches(self._iterate_harmless(changes)), [])
        content = self._get_start(key) + body.rest
        tag, found = self.objects.put_with(self.name_head(key), content, some, tag=tag)
        self._note(changes, some, found)
        return tag

    def _iterate_harmless(self, changes: Changes) -> Iterator[BulkWrite]:
        """Yield the writes that harm nothing if the head is refused."""
        for it in changes.written.values():
            if it.is_new:
                yield self.write_of(changes.thread_id, it)
            elif not it.is_changed:
                yield self.write_of(changes.thread_id, it, get_expected(changes.revision))

    def settle(
        self, thread_id: str, changes: Changes | None, removed: Iterable[tuple[int, int]]
    ) -> None:
        """Write and delete the documents that differ from a head, which is stored.

        The next write of the thread, or ``vacuum``, does what cannot be done now.

        Raises:
            LocusStoreError: Not all that were to be deleted are.
        """
        left: list[Undone] = []
        removed = list(removed)
        writes = [self.objects.write_deletion(make_version_name(thread_id, *it)) for it in removed]
        if changes:
            at = get_decided(changes.revision)
            writes += [self.write_of(thread_id, it, at) for it in changes.written.values()]
        with suppress(*([] if removed else [LocusStoreError])):
            for some in split_batches(writes):
                found = self.objects.settle(some)
                self._note(changes, some, found)
                left += find_undone(some, found)
        require_deleted(left, self.objects.locate)

    def make_fields(self, thread_id: str, it: Derived) -> dict[str, Any]:
        """Return the fields of a version's document."""
        return make_fields(thread_id, it, with_text=self.objects.access["language"] is not None)

    def write_of(self, thread_id: str, it: Derived, number: int | None = None) -> BulkWrite:
        """Return the write of a version's document.

        Args:
            thread_id: The thread.
            it: The version.
            number: A document with a higher one stays; ``None``: there must be none.
        """
        name, made = make_version_name(thread_id, it.line, it.row.record.sequence), self.make_fields
        if number is None:
            return self.objects.write_document(name, "create", made(thread_id, it))
        condition = {"version": number, "version_type": NOT_OLDER}
        return self.objects.write_document(name, "index", made(thread_id, it), **condition)

    def _note(
        self, changes: Changes | None, some: Sequence[BulkWrite], found: Sequence[Outcome]
    ) -> None:
        """Take the versions whose documents are stored out of those to write."""
        if changes is None:
            return
        keys = {
            make_version_name(changes.thread_id, it.line, it.row.record.sequence): key
            for key, it in changes.written.items()
        }
        for one, its in zip(some, found, strict=True):
            is_newer = its.status == failures.CONFLICT and one.kind == "index"
            if one.name in keys and (its.is_done or is_newer):
                del changes.written[keys[one.name]]

    def iterate_newest(self, size: int = 0) -> Iterator[list[Dated]]:
        """See ``Documents``; the first thousand keys are one search."""
        del size
        seen = set[str]()
        for heads in (self.objects.newest(HEADS), self.objects.list(HEADS)):
            dated, strays = self.make_dated(heads)
            for stray in strays:
                raise IntegrityError(stray)
            dated = sorted((it for it in dated if it.key not in seen), key=_get_time, reverse=True)
            yield from (dated[at : at + TOGETHER] for at in range(0, len(dated), TOGETHER))
            seen.update(it.key for it in dated)
            if len(seen) < PAGE:
                return

    def get_all(self, tags: Mapping[str, Tag | None]) -> FoundDocuments:
        """See ``Documents``; the documents of cut names are read one by one."""
        names = {self.name_head(key): tag for key, tag in tags.items() if not self._get_start(key)}
        return FoundDocuments(self, self.objects.get_all(names), names)


class FoundDocuments:
    """Documents that were read together, as ``Access`` for reads."""

    def __init__(
        self, documents: IndexDocuments, found: Mapping[str, Found], asked: Collection[str]
    ) -> None:
        self._documents = documents
        self._found = found
        self._asked = asked

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        name = self._documents.name_head(key)
        found = self._found.get(name)
        if name not in self._asked or (found and found.content is None and found.tag != known):
            return self._documents.get(key, known=known)
        return found


class IndexForm(SegmentedForm):
    """Threads as heads and segments, with a document for each version."""

    documents: IndexDocuments

    derives = True

    def finish(self, thread_id: str, draft: Draft) -> None:
        try:
            super().finish(thread_id, draft)
        finally:
            changes = draft.body.beside if draft.body else None
            if draft.removed or (changes and changes.written):
                self.documents.settle(thread_id, changes, draft.removed)

    def sweep(self, read: Callable[[str], Parsed | None]) -> None:
        """Also delete the documents that no head names, and write those that are missing."""
        super().sweep(read)
        seen = set[str]()
        for thread_id, some in groupby(iterate_versions(self.documents.objects), _get_thread):
            seen.add(thread_id)
            self._reconcile(read, thread_id, some)
        for thread_id in self.documents.keys(""):
            if thread_id not in seen:
                self._reconcile(read, thread_id, ())

    def find_leftovers(self, read: Callable[[str], Parsed | None]) -> set[str]:
        """Also return the documents of versions that no head names."""
        left = super().find_leftovers(read)
        for thread_id, some in groupby(iterate_versions(self.documents.objects), _get_thread):
            there = {it.id: it for it in some}
            with suppress(LocusStoreError):
                found = read(thread_id) if thread_id else None
                named = deriving.map_versions(found.thread) if found else ()
                names = {make_id(make_version_name(thread_id, line, it)) for _, line, it in named}
                left |= there.keys() - names
        return left

    def _reconcile(
        self,
        parsed: Callable[[str], Parsed | None],
        thread_id: str,
        stored: Iterable[StoredVersion],
    ) -> None:
        """Make the documents of a thread those that its head names, if it can be read."""
        objects = self.documents.objects
        there = {it.id: it for it in stored}
        try:
            found = parsed(thread_id) if thread_id else None
            wanted = list(self._iterate_missing(thread_id, found, there)) if found else []
        except LocusStoreError:
            return
        left = (objects.write_removal(it) for it in there.values())
        for some in split_batches([*wanted, *left]):
            objects.bulk(some)

    def _iterate_missing(
        self, thread_id: str, found: Parsed, there: dict[str, StoredVersion]
    ) -> Iterator[BulkWrite]:
        """Yield the writes of documents that are missing or differ; take the others out."""
        at = get_decided(found.end.revision)
        for (namespace, line, sequence), history in deriving.map_versions(found.thread).items():
            stored = there.pop(make_id(make_version_name(thread_id, line, sequence)), None)
            if row := history.get_row(sequence):
                it = Derived(namespace, line, row, is_new=False, is_changed=False)
                made = self.documents.make_fields(thread_id, it)
                if stored is None or stored.digest != made["content"]:
                    yield self.documents.write_of(thread_id, it, at)


def _get_time(dated: Dated) -> datetime:
    return dated.at or LAST


def _get_thread(stored: StoredVersion) -> str:
    return stored.place.thread if stored.place else ""


def get_expected(revision: int) -> int:
    """Return the number of a document beside a head that may be refused.

    It is below that of every document which a stored head of the same revision has decided, and
    above those of documents that were created.
    """
    return REWRITTEN + 2 * revision


def get_decided(revision: int) -> int:
    """Return the number of a document as a stored head has it."""
    return get_expected(revision) + 1


def make_version_name(thread_id: str, line: int, sequence: int) -> str:
    """Return the name of a version's document; it sorts by thread."""
    return f"{VERSIONS}{digest(thread_id)}/{line:x}/{sequence}"
