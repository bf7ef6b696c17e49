"""OpenSearch backend: each thread is a head and segments in an index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import Any, Final, Unpack

from locus_store import versions
from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.listing import FindsText
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.objects import HEADS, SEGMENTS
from locus_store.backends.documents.workers import move_off_loop
from locus_store.backends.opensearch import failures, index, search
from locus_store.backends.opensearch.access import DEFAULT_INDEX, make_place, require
from locus_store.backends.opensearch.client import IndexClient, IndexObjects
from locus_store.backends.opensearch.documents import IndexDocuments, IndexForm
from locus_store.backends.opensearch.options import OpenSearchCheckpointerOptions, OpenSearchOptions
from locus_store.backends.opensearch.versions import VersionPlace
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import SchemaError
from locus_store.runtime.extras import make_factory
from locus_store.types import Head, Hit
from locus_store.types.arguments import choose_backend
from locus_store.types.facts import Fact
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options
from locus_store.values.filters import check_wanted, has_value, is_found
from locus_store.values.text import query_words
from locus_store.versions.histories import History, Row
from locus_store.versions.threads import Thread


class OpenSearchBackend(DocumentBackend):
    """Keeps threads in an index of OpenSearch; see docs/opensearch.md.

    Args:
        hosts: One or several hosts of the cluster: ``host``, ``host:9200`` or
            ``https://host:9200``.
        index_name: The alias of the index, which is created at the first save.
        use_ssl: Use HTTPS for hosts without a scheme.
        options: See ``options.OpenSearchOptions``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: opensearch-py is not installed.
    """

    factory = "opensearch_checkpointer"

    def __init__(
        self,
        hosts: str | Sequence[str] | None = None,
        *,
        index_name: str = DEFAULT_INDEX,
        use_ssl: bool = True,
        **options: Unpack[OpenSearchOptions],
    ) -> None:
        access = fill_defaults(OpenSearchOptions, options, "OpenSearchBackend")
        require(access)
        place = make_place(hosts, index_name, use_ssl=use_ssl, client=access["client"])
        self.index = IndexObjects(place, access)
        documents = IndexDocuments(self.index)
        form = IndexForm(documents)
        super().__init__(documents, form=form, max_state_bytes=access["max_state_bytes"])

    def __repr__(self) -> str:
        return f"OpenSearchBackend({str(self.index.place)!r})"

    async def facts(self) -> list[Fact]:
        return [*await super().facts(), *await self._threads.look(collect_facts, self.index)]

    def _find_with_words(self, words: list[str], limit: int) -> Iterator[Iterable[Thread]]:
        return map(self._threads.read_all, search.find_with_words(self.index, words, limit))

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        """See ``SearchesText``; with a language, threads with other forms of the words follow."""
        hits = await super().find(query, limit)
        if self.index.access["language"] is None or len(hits) >= limit:
            return hits
        seen = {it.thread_id for it in hits}
        return hits + await self._threads.look(self._find_stemmed, query, limit - len(hits), seen)

    def _make_search(self, text: str | None) -> tuple[Collection[str] | None, FindsText]:
        """See ``DocumentThreadInfo``; with a language, also of other forms of the words."""
        _, find = super()._make_search(text)
        if text is None:
            return None, find
        pages = search.find_with_words(self.index, query_words(text), search.PAGE)
        forms = dict[str, Hit]()
        if self.index.access["language"] is not None:
            forms = {it.thread_id: it for it in self._find_stemmed(text, maxsize, set())}
        ids = {it for page in pages for it in page} | forms.keys()
        few = ids if len(ids) <= search.PAGE else None
        return (
            few,
            lambda it: (find(it) or forms.get(it.thread_id)) if it.thread_id in ids else None,
        )

    def _find_stemmed(self, query: str, limit: int, thread_ids: set[str]) -> list[Hit]:
        found: dict[str, Hit] = {}
        for page in search.find_with_stems(self.index, query, limit):
            some = {it.place: it for it in page if it.place.thread not in thread_ids}
            for place, thread, history, _ in self._iterate_versions(some):
                if versions.is_visible(history.line, place.sequence):
                    hit = some[place]
                    version = thread.get_version(history, place.sequence)
                    made = Hit(
                        thread_id=version.thread_id,
                        checkpoint_id=version.checkpoint_id,
                        metadata=version.metadata,
                        updated_at=version.created_at,
                        score=hit.score,
                        snippet=hit.snippet,
                    )
                    found.setdefault(place.thread, made)
            if len(found) >= limit:
                break
        return list(found.values())[:limit]

    def _query(self, key: str, value: Any, limit: int) -> list[Head]:
        found: list[Head] = []
        for page in search.find_with_value(self.index, key, value, limit, is_tag=False):
            for _, thread, history, row in self._iterate_versions(page):
                shown = versions.is_visible(history.line, row.record.sequence)
                if shown and is_found(row.record.metadata, row.record.labels, key, value):
                    found.append(thread.get_version(history, row.record.sequence).as_head())
            if len(found) >= limit:
                break
        return found[:limit]

    @move_off_loop
    def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        value = check_wanted(key, value)
        return [
            (thread.thread_id, history.namespace, row.record.checkpoint_id)
            for page in search.find_with_value(self.index, key, value, search.PAGE, is_tag=True)
            for _, thread, history, row in self._iterate_versions(page)
            if has_value(row.record.metadata, key, value)
        ]

    def _iterate_versions(
        self, page: Collection[VersionPlace]
    ) -> Iterator[tuple[VersionPlace, Thread, History, Row]]:
        threads = {it.thread_id: it for it in self._threads.read_all(it.thread for it in page)}
        for place in page:
            thread = threads.get(place.thread)
            history = thread.histories.get(place.namespace) if thread else None
            if thread is None or history is None or history.line.line != place.line:
                continue
            if (row := history.get_row(place.sequence)) is not None:
                yield place, thread, history, row

    async def close(self) -> None:
        await super().close()
        self.index.close()


class OpenSearchCheckpointer(StorageBackendAdapter[S, OpenSearchBackend]):
    """A checkpointer over an index of OpenSearch.

    A save is one conditional put of the thread's head; see docs/opensearch.md. Arguments and errors
    are those of ``OpenSearchBackend`` and ``StorageBackendAdapter``.
    """

    def __init__(
        self,
        hosts: str | Sequence[str] | None = None,
        *,
        index_name: str = DEFAULT_INDEX,
        use_ssl: bool = True,
        state_type: type[S] | None = None,
        **options: Unpack[OpenSearchCheckpointerOptions],
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        backend = OpenSearchBackend(hosts, index_name=index_name, use_ssl=use_ssl, **rest)
        super().__init__(backend, state_type=state_type, **own)


class OpenSearchMessageLog(DocumentMessageLog):
    """Keeps message logs in an index of OpenSearch.

    Arguments and errors are those of ``OpenSearchBackend`` and ``BaseMessageLog``, or ``backend``
    alone: the one whose threads have the logs.
    """

    def __init__(
        self,
        hosts: str | Sequence[str] | None = None,
        *,
        index_name: str = DEFAULT_INDEX,
        ttl_seconds: float | None = None,
        backend: OpenSearchBackend | None = None,
        **options: Any,
    ) -> None:
        made = choose_backend(
            backend,
            OpenSearchBackend,
            hosts,
            defaults=[DEFAULT_INDEX],
            index_name=index_name,
            **options,
        )
        super().__init__(made, owns=backend is None, ttl_seconds=ttl_seconds)


opensearch_checkpointer = make_factory(
    OpenSearchCheckpointer,
    "opensearch_checkpointer",
    "Return a checkpointer over OpenSearch; options as ``OpenSearchBackend``.",
)

_REMEDIES: Final = {
    "yellow": "some copies are missing: add a node, or set number_of_replicas to what there is",
    "red": "a shard has no copy: bring its node back, or restore a snapshot",
}


def collect_facts(objects: IndexObjects) -> list[Fact]:
    """Return the server's version, the number of documents and the health of the index."""
    version = objects.call("GET", "/")["version"]
    kind = version.get("distribution", "elasticsearch")
    server = Fact("server", f"{kind} {version['number']}")
    heads, segments = (sum(1 for _ in objects.list(it)) for it in (HEADS, SEGMENTS))
    count = Fact("threads", f"{heads:,} (a head each; {segments:,} segments)")
    return [server, count, _describe_health(objects)]


def _describe_health(objects: IndexObjects) -> Fact:
    name = objects.place.name
    if "error" in objects.call("GET", f"/{name}", statuses=(failures.MISSING,)):
        return Fact("index", "there is none yet; the first save creates it")
    status = objects.call("GET", f"/_cluster/health/{name}")["status"]
    if status == "green":
        return Fact("index", "green", "ok")
    return Fact("index", status, "fail" if status == "red" else "warn", _REMEDIES[status])


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """The state of an index; ``state`` has the words of ``locus-store db check``."""

    state: str
    revision: str | None
    message: str

    @property
    def usable(self) -> bool:
        """This library can work on it."""
        return self.state in {"ok", "missing"}


def check_index(client: IndexClient) -> IndexStatus:
    """Return the state of an index; change nothing."""
    found = client.call("GET", f"/{client.place.name}", statuses=(failures.MISSING,))
    if "error" in found:
        message = f"{client.place} does not exist; the first write creates it"
        return IndexStatus("missing", None, message)
    try:
        _, meta = index.find_ours(found, client.place, client.layout)
    except SchemaError as exc:
        return IndexStatus("foreign", None, str(exc))
    version = meta[client.layout.mark]
    try:
        index.require_ours(found, client.place, client.layout)
    except SchemaError as exc:
        state = "too new" if version > client.layout.version else "behind"
        return IndexStatus(state, str(version), str(exc))
    message = f"{client.place} has version {version} of the mapping"
    return IndexStatus("ok", str(version), message)
