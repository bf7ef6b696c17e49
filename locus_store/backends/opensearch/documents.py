"""Heads, segments and the documents of versions in an index."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

from locus_store.backends.documents import deriving
from locus_store.backends.documents.deriving import Derived
from locus_store.backends.documents.object_documents import ObjectDocuments
from locus_store.backends.documents.objects import digest
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.backends.opensearch import failures
from locus_store.backends.opensearch.bulk import batches
from locus_store.backends.opensearch.client import VERSIONS
from locus_store.backends.opensearch.search import VersionPlace, all_versions
from locus_store.backends.opensearch.versions import VersionName, fields
from locus_store.errors import LocusStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from locus_store.backends.documents.deriving import Changes
    from locus_store.backends.documents.forms import Draft, Parsed
    from locus_store.backends.documents.protocol import Body, Found, Tag
    from locus_store.backends.opensearch.bulk import BulkWrite, IndexTag, Outcome
    from locus_store.backends.opensearch.client import IndexObjects


class IndexDocuments(ObjectDocuments):
    """The heads of threads and their segments; a put also writes the documents of versions."""

    objects: IndexObjects

    def __init__(self, objects: IndexObjects) -> None:
        super().__init__(objects)

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        """See ``Documents``. Documents of versions may be missing when it returns."""
        changes: Changes | None = body.beside
        if not changes:
            return super().put(key, body, tag=tag)
        rest = batches(self._writes(changes))
        some = next(rest, [])
        content = self._before(key) + body.rest
        tag, found = self.objects.put_with(self.name_of(key), content, some, tag=tag)
        with suppress(LocusStoreError):  # the head is stored, and names what is missing
            self._settle(changes, some, found)
            for more in rest:
                self._settle(changes, more, self.objects.bulk(more))
        return tag

    def _writes(self, changes: Changes) -> Iterator[BulkWrite]:
        for it in list(changes.written.values()):
            yield self.write_of(changes.thread_id, it, "create" if it.is_new else "index")

    def write_of(self, thread_id: str, it: Derived, kind: str) -> BulkWrite:
        """Return the write of a version's document."""
        name = version_name(thread_id, it.line, it.row.record.sequence)
        with_text = self.objects.access.language is not None
        return self.objects.document(name, kind, fields(thread_id, it, with_text=with_text))

    def _settle(
        self, changes: Changes, some: Sequence[BulkWrite], found: Sequence[Outcome]
    ) -> None:
        """Note the documents that were written, and replace those of refused saves."""
        named = {
            version_name(changes.thread_id, it.line, it.row.record.sequence): (key, it)
            for key, it in changes.written.items()
        }
        others = []
        for one, its in zip(some, found, strict=True):
            key, version = named[one.name]
            if its.is_done:
                del changes.written[key]
            elif its.status == failures.CONFLICT and one.kind == "create":
                others.append(self.write_of(changes.thread_id, version, "index"))
        if others:
            self._settle(changes, others, self.objects.bulk(others))

    def get_all(self, known: dict[str, Tag | None]) -> FoundDocuments:
        """Return the documents of these keys, in few requests; without content if a tag is known.

        The documents of cut names are read one by one.
        """
        names = {self.name_of(key): tag for key, tag in known.items() if not self._before(key)}
        return FoundDocuments(self, self.objects.get_all(names), names)

    def discard_versions(self, thread_id: str, removed: Iterable[tuple[int, int]]) -> None:
        """Delete the documents of versions; ``vacuum`` deletes those that cannot be now."""
        with suppress(LocusStoreError):
            self.objects.discard([version_name(thread_id, *it) for it in removed])


class FoundDocuments:
    """Documents that were read together, as ``Access`` for reads."""

    def __init__(
        self, documents: IndexDocuments, found: Mapping[str, Found], asked: Collection[str]
    ) -> None:
        self._documents = documents
        self._found = found
        self._asked = asked

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``Access``."""
        name = self._documents.name_of(key)
        found = self._found.get(name)
        if name not in self._asked or (found and found.content is None and found.tag != known):
            return self._documents.get(key, known=known)
        return found


class IndexForm(SegmentedForm):
    """Threads as heads and segments, with a document for each version."""

    documents: IndexDocuments

    derives = True

    def finish(self, thread_id: str, draft: Draft) -> None:
        """See ``DocumentForm``."""
        super().finish(thread_id, draft)
        if draft.removed:
            self.documents.discard_versions(thread_id, draft.removed)

    def sweep(self, parsed: Callable[[str], Parsed | None]) -> None:
        """Also delete the documents that no head names, and write those that are missing."""
        super().sweep(parsed)
        seen = set[str]()
        for thread_id, some in groupby(all_versions(self.documents.objects), _thread_of):
            seen.add(thread_id)
            self._reconcile(parsed, thread_id, dict(some))
        for thread_id in self.documents.keys(""):
            if thread_id not in seen:
                self._reconcile(parsed, thread_id, {})

    def _reconcile(
        self,
        parsed: Callable[[str], Parsed | None],
        thread_id: str,
        stored: dict[VersionPlace, IndexTag],
    ) -> None:
        """Make the documents of a thread those that its head names, if it can be read."""
        objects, missing = self.documents.objects, []
        try:
            found = parsed(thread_id)
            named = deriving.named(found.thread) if found else {}
            for (namespace, line, sequence), space in named.items():
                place = VersionPlace(thread_id, namespace, line, sequence)
                if stored.pop(place, None) is None and (row := space.row(sequence)):
                    derived = Derived(namespace, line, row, is_new=True)
                    missing.append(self.documents.write_of(thread_id, derived, "create"))
        except LocusStoreError:
            return
        left = (
            objects.deletion(version_name(thread_id, it.line, it.sequence), tag)
            for it, tag in stored.items()
        )
        for some in batches([*missing, *left]):
            objects.bulk(some)


def _thread_of(stored: tuple[VersionPlace, object]) -> str:
    return stored[0].thread


def version_name(thread_id: str, line: int, sequence: int) -> str:
    """Return the name of a version's document."""
    return VERSIONS + VersionName(digest(thread_id), line, sequence).text()
