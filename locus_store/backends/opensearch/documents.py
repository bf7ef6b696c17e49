"""Heads, segments and the documents of versions in an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

from locus_store.backends.documents import deriving
from locus_store.backends.documents.deriving import Changes, Derived
from locus_store.backends.documents.objects import HEADS, ObjectDocuments, digest
from locus_store.backends.documents.protocol import Body, Dated, Draft, Found, Parsed, Tag
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
from locus_store.errors import LocusStoreError

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
        for version in changes.written.values():
            if version.is_new:
                yield self.make_write(changes.thread_id, version)
            elif not version.is_changed:
                yield self.make_write(changes.thread_id, version, get_expected(changes.revision))

    def settle(
        self, thread_id: str, changes: Changes | None, removals: Iterable[tuple[int, int]]
    ) -> None:
        """Write and delete the documents that differ from a head, which is stored.

        The next write of the thread, or ``vacuum``, does what cannot be done now.

        Raises:
            LocusStoreError: Not all that were to be deleted are.
        """
        left: list[Undone] = []
        removals = list(removals)
        writes = [self.objects.make_deletion(make_version_name(thread_id, *it)) for it in removals]
        if changes:
            at = get_decided(changes.revision)
            writes += [self.make_write(thread_id, it, at) for it in changes.written.values()]
        with suppress(*([] if removals else [LocusStoreError])):
            for some in split_batches(writes):
                found = self.objects.settle(some)
                self._note(changes, some, found)
                left += find_undone(some, found)
        require_deleted(left, self.objects.locate)

    def make_fields(self, thread_id: str, version: Derived) -> dict[str, Any]:
        has_language = self.objects.access["language"] is not None
        return make_fields(thread_id, version, with_text=has_language)

    def make_write(self, thread_id: str, version: Derived, number: int | None = None) -> BulkWrite:
        """Return the write of a version's document.

        Args:
            thread_id: The thread.
            version: The version.
            number: A document with a higher one stays; ``None``: there must be none.
        """
        name = make_version_name(thread_id, version.line, version.row.record.sequence)
        fields = self.make_fields(thread_id, version)
        if number is None:
            return self.objects.make_write(name, "create", fields)
        condition = {"version": number, "version_type": NOT_OLDER}
        return self.objects.make_write(name, "index", fields, **condition)

    def _note(
        self, changes: Changes | None, some: Sequence[BulkWrite], outcomes: Sequence[Outcome]
    ) -> None:
        """Take the versions whose documents are stored out of those to write."""
        if changes is None:
            return
        keys = {
            make_version_name(changes.thread_id, version.line, version.row.record.sequence): key
            for key, version in changes.written.items()
        }
        for one, its in zip(some, outcomes, strict=True):
            is_newer = its.status == failures.CONFLICT and one.kind == "index"
            if one.name in keys and (its.is_done or is_newer):
                del changes.written[keys[one.name]]

    def keys(self, after: str = "") -> Iterator[str]:
        """See ``Documents``; of all heads that were acknowledged, none is missing."""
        if not after:
            self.objects.refresh_now()
        return super().keys(after)

    def iterate_newest(self, size: int = 0) -> Iterator[list[Dated]]:
        """See ``Documents``; the first thousand keys are one search."""
        seen = set[str]()
        for heads in (self.objects.newest(HEADS), self.objects.list(HEADS)):
            dated = [it for it in self.sort_heads(heads) if it.key not in seen]
            yield from (dated[at : at + TOGETHER] for at in range(0, len(dated), TOGETHER))
            seen.update(it.key for it in dated)
            if len(seen) < PAGE:
                return

    def get_all(self, tags: Mapping[str, Tag | None]) -> Mapping[str, Found | None]:
        """See ``Documents``; the documents of cut names are read one by one."""
        names = {key: self.name_head(key) for key in tags if not self._get_start(key)}
        found = self.objects.get_all({name: tags[key] for key, name in names.items()})
        return {key: found.get(name) for key, name in names.items()}


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
        parse: Callable[[str], Parsed | None],
        thread_id: str,
        versions: Iterable[StoredVersion],
    ) -> None:
        """Make the documents of a thread those that its head names, if it can be read."""
        objects = self.documents.objects
        there = {it.id: it for it in versions}
        try:
            found = parse(thread_id) if thread_id else None
            wanted = list(self._iterate_missing(thread_id, found, there)) if found else []
        except LocusStoreError:
            return
        left = (objects.make_removal(it) for it in there.values())
        for some in split_batches([*wanted, *left]):
            objects.bulk(some)

    def _iterate_missing(
        self, thread_id: str, head: Parsed, there: dict[str, StoredVersion]
    ) -> Iterator[BulkWrite]:
        """Yield the writes of documents that are missing or differ; take the others out."""
        at = get_decided(head.end.revision)
        for (namespace, line, sequence), history in deriving.map_versions(head.thread).items():
            stored = there.pop(make_id(make_version_name(thread_id, line, sequence)), None)
            if row := history.get_row(sequence):
                version = Derived(namespace, line, row, is_new=False, is_changed=False)
                made = self.documents.make_fields(thread_id, version)
                if stored is None or stored.digest != made["content"]:
                    yield self.documents.make_write(thread_id, version, at)


def _get_thread(version: StoredVersion) -> str:
    return version.place.thread if version.place else ""


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
