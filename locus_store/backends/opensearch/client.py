"""The client of an index: five primitives over opensearch-py, whose calls block."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any, Final

from locus_store.backends.documents.objects import ListedObject, Objects
from locus_store.backends.documents.protocol import ChangedError, Found, StaleTagError, Tag
from locus_store.backends.documents.workers import BlockingClient
from locus_store.backends.opensearch import failures, index
from locus_store.backends.opensearch.access import MOST_SECONDS, IndexPlace, open_client
from locus_store.backends.opensearch.bulk import (
    BulkWrite,
    Outcome,
    find_undone,
    make_address,
    make_condition,
    make_outcome,
    make_path,
    make_routing,
    make_write,
    require_decided,
    require_deleted,
    require_read,
    split_batches,
)
from locus_store.backends.opensearch.options import OpenSearchOptions
from locus_store.backends.opensearch.versions import StoredVersion
from locus_store.errors import BackendError, IntegrityError, LocusStoreError, SchemaError
from locus_store.runtime import observe
from locus_store.runtime.retries import Pauses

PAGE: Final = 1000
"""Documents in one list, and in one deletion."""

MOST_HEADS: Final = 100
"""Objects with their content in one answer."""

KEEP_ALIVE: Final = "5m"
"""The time for which the server keeps a view between two of its pages."""

SETTLE_SECONDS: Final = 5.0
"""The time for which writes are retried on which no stored head depends."""

SERVERS_PART: Final = 0.8
"""Of the time limit of an answer: how long the server waits for the shard of a write."""

_TIME: Final = ("modified_at",)
_CONTENT: Final = ("modified_at", "content")
_DELETED: Final = 200


class IndexClient(BlockingClient):
    """Calls of an index, by any number of threads.

    Args:
        place: The index.
        access: Credentials and limits.
        layout: Of the index.
    """

    def __init__(self, place: IndexPlace, access: OpenSearchOptions, layout: index.Layout) -> None:
        self.place = place
        self.access = access
        self.layout = layout
        super().__init__("opensearch", access["pool_size"])

    def _start(self) -> None:
        super()._start()
        self._client = self.access["client"]
        self._own: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.place)!r})"

    def close(self) -> None:
        """Release threads and connections; later calls open them again."""
        with self._lock:
            client, self._client = self._client, self.access["client"]
        self._workers.close()
        if client is not None and client is not self.access["client"]:
            client.close()

    @property
    def refresh(self) -> str:
        """The parameter of writes that lists and searches show."""
        return "wait_for" if self.access["refresh"] == "wait" else "false"

    def _get_perform(self) -> Callable[..., Any]:
        with self._lock:
            self._client = self._client or open_client(self.place, self.access)
            perform: Callable[..., Any] = self._client.transport.perform_request
        return perform

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        statuses: Collection[int] = (),
        check: Callable[[Any], object] = bool,
        on_repeat: Callable[[], None] = lambda: None,
        seconds: float = MOST_SECONDS,
        **params: Any,
    ) -> Any:
        """Return the JSON of an answer, also of one with a status in ``statuses``.

        Transient failures are retried for ``retry_seconds``, on the other hosts at first. So are
        those that ``check`` finds in an answer and raises.

        Args:
            method: Of HTTP.
            path: With a slash.
            body: JSON, or lines of it.
            statuses: Statuses that are no failure.
            check: Raises the client's error if a part of the answer is a failure.
            on_repeat: Called before the request is repeated, which the server may have executed.
            seconds: Retry no longer than this.
            params: The parameters of the request.

        Raises:
            LocusStoreError: The call failed for good.
        """
        import opensearchpy  # noqa: PLC0415  (of an extra, and slow to import)

        what = f"{method} {path}"
        options = {"ignore": tuple(statuses), "timeout": self.access["timeout_seconds"]}
        pauses = Pauses(0.05, 2.0, min(self.access["retry_seconds"], seconds))
        while True:
            try:
                answer = self._get_perform()(method, path, params=params, body=body, **options)
                check(answer)
            except opensearchpy.exceptions.OpenSearchException as exc:
                pause = pauses.get_next()
                if pause is None or not failures.is_transient(exc):
                    raise failures.translate_error(exc, self.place, what) from exc
                observe.report_retry(f"{what}: {failures.get_status(exc) or 'no answer'}", exc)
                on_repeat()
                time.sleep(pause)
            else:
                return answer

    def request_documents(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Return the answer to a request about documents, once the index was found to be ours."""
        self._check()
        where = f"/{self.place.name}/{path}"
        answer = self.call(method, where, body, **options)
        if failures.get_type(answer) == failures.NO_INDEX and self._own:
            self._own = None  # the index was deleted
            self._check()
            answer = self.call(method, where, body, **options)
        return answer

    def bulk(
        self,
        writes: Sequence[BulkWrite],
        *,
        creates: Collection[str] = (),
        most: int | None = 1,
        refresh: str | None = None,
        **options: Any,
    ) -> list[Outcome]:
        """Return the outcomes of writes in one request.

        An attempt after a lost reply is refused by the condition of a write. A server whose shard
        is not ready says so before this client's time limit ends.

        Args:
            writes: In this order.
            creates: The kinds of writes that create a missing index.
            most: Failures of so many writes are the request's; ``None``: of all.
            refresh: The parameter of the request; ``None``: that of writes that lists show.
            options: Of ``call``.

        Raises:
            LocusStoreError: One of these failed for good, but not by its condition.
        """
        limit = f"{int(self.access['timeout_seconds'] * SERVERS_PART * 1000)}ms"
        body, check = b"".join(it.content for it in writes), partial(require_decided, most=most)
        repeats, refresh = list[bool](), refresh or self.refresh
        params: dict[str, Any] = {"require_alias": "true", "timeout": limit, "refresh": refresh}
        params |= {"check": check, "on_repeat": partial(repeats.append, True)}

        def ask() -> list[Outcome]:
            own = self.get_own_alias()
            answer = self.request_documents("POST", "_bulk", body, **params, **options)
            return [make_outcome(it, own, is_repeat=bool(repeats)) for it in answer["items"]]

        found = ask()
        pairs = zip(writes, found, strict=True)
        absent = {one.kind for one, its in pairs if its.is_without_index}
        if absent:
            self._own = None  # look at the index again before the next call
        if absent.intersection(creates):
            self.create()
            found = ask()
        return found

    def read_documents(
        self, docs: Sequence[Mapping[str, Any]], *, size: int, **params: Any
    ) -> Iterator[Mapping[str, Any]]:
        """Yield documents as they are now, in this order, with the index's second alias.

        Args:
            docs: What the server is asked for.
            size: So many in one request.
            params: Of the requests.
        """
        options: dict[str, Any] = {"statuses": (failures.MISSING,), "check": require_read}
        for at in range(0, len(docs), size):
            own, some = self.get_own_alias(), docs[at : at + size]
            answer = self.request_documents("POST", "_mget", {"docs": some}, **options, **params)
            for document in answer.get("docs", [{}] * len(some)):
                yield {**document, "own": own}

    def search(self, body: Mapping[str, Any], *, view: str | None = None) -> Any:
        """Return the answer to a search, of all shards or not at all; ``None``: no index.

        ``view``: of the index, which later writes do not change.
        """
        options: dict[str, Any] = {"allow_partial_search_results": "false"}
        if view is not None:
            at = {"pit": {"id": view, "keep_alive": KEEP_ALIVE}}
            return self.call("POST", "/_search", {**body, **at}, **options)
        options["statuses"] = (failures.MISSING,)
        found = self.request_documents("POST", "_search", body, **options)
        return None if "error" in found else found

    def refresh_now(self) -> None:
        """Let the following searches show all acknowledged writes."""
        self.request_documents("POST", "_refresh", statuses=(failures.MISSING,))

    def iterate_hits(
        self, body: Mapping[str, Any], *, size: int | None = None, view: str | None = None
    ) -> Iterator[Sequence[Any]]:
        """Yield pages of hits: the first one of the body's size, the others of ``size``."""
        while found := self.search(body, view=view):
            hits = found["hits"]["hits"]
            yield hits
            if len(hits) < body["size"]:
                return
            body = {**body, "search_after": hits[-1]["sort"], "size": size or body["size"]}

    def iterate_values(self, field: str, query: Any) -> Iterator[list[str]]:
        """Yield pages of the values of a field in the documents that a query finds, in order."""
        source = {field: {"terms": {"field": field}}}
        composite: dict[str, Any] = {"size": PAGE, "sources": [source]}
        body = {"size": 0, "query": query, "aggs": {"values": {"composite": composite}}}
        while found := self.search(body):
            values = found["aggregations"]["values"]
            yield [it["key"][field] for it in values["buckets"]]
            if "after_key" not in values:
                return
            composite["after"] = values["after_key"]

    def get_own_alias(self) -> str:
        """Return the second alias of the index, which an index that is created later lacks.

        Tags have the one of the time before the request; without an index, one that none has.
        """
        self._check()
        return self._own or index.generate_own_alias(self.place.name)

    def _check(self) -> None:
        """Look once whether the index is ours, if there is one; else raise ``SchemaError``."""
        if self._own:
            return
        found = self.call("GET", f"/{self.place.name}", statuses=(failures.MISSING,))
        if "error" in found:
            first, alias = index.name_first_index(self.place), self.place.name
            found = self.call("GET", f"/{first}", statuses=(failures.MISSING,))
            if "error" not in found and alias not in found.get(first, {}).get("aliases", {alias}):
                raise SchemaError(
                    f"index {first!r} exists without its alias {alias!r}; add the alias, or choose "
                    "another index_name="
                )
        else:
            name, _ = index.require_ours(found, self.place, self.layout)
            index.require_plain(found[name], self.place, self.layout)
            self._own = index.find_own_alias(found, name) or self._give_alias(name)

    def _give_alias(self, name: str) -> str:
        """Return the second alias of an index that was restored without its aliases."""
        made = index.generate_own_alias(name)
        self.call("PUT", f"/{name}/_alias/{made}")
        return made

    def create(self) -> None:
        """Create the index, unless another process has done so."""
        self._own = None
        self._check()
        if self._own:
            return
        name = index.name_first_index(self.place)
        body = index.define_index(self.place, name, self.layout)
        made = self.call("PUT", f"/{name}", body, statuses=(400,))
        if failures.get_type(made) not in {None, failures.EXISTS}:
            raise BackendError(f"{self.place} cannot be created: {made['error']}")


class IndexObjects(IndexClient, Objects):
    """The documents of an index, by name; a document's id is the digest of its name."""

    def __init__(self, place: IndexPlace, access: OpenSearchOptions) -> None:
        super().__init__(place, access, index.make_thread_layout(access["language"]))

    def get(self, name: str, *, known: Tag | None = None) -> Found | None:
        found = self._get(name, _TIME) if known is not None else None
        if found is None or (found.get("found") and _get_tag(found) != known):
            found, known = self._get(name, _CONTENT), None
        return _make_found(found, known) if found.get("found") else None

    def _get(self, name: str, fields: Sequence[str]) -> Any:
        path, own = make_path(name), self.get_own_alias()
        options = {"routing": make_routing(name), "_source_includes": ",".join(fields)}
        found = self.request_documents("GET", path, statuses=(failures.MISSING,), **options)
        return {**found, "own": own}

    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        creates = ["create"] if tag is None else []
        return self.put_with(name, content, [], tag=tag, creates=creates)[0]

    def put_with(
        self,
        name: str,
        content: bytes,
        beside: Sequence[BulkWrite],
        *,
        tag: Any,
        creates: Collection[str] = (),
    ) -> tuple[Tag, list[Outcome]]:
        """Put a document and others in one request; return its tag and their outcomes.

        The condition of the first one decides. If it is refused, the others that were created are
        deleted again. ``creates``: of ``bulk``.

        Raises:
            StaleTagError, ChangedError: See ``Access.put``; also if there is no index.
        """
        at = int(self.read_clock().timestamp() * 1000)
        encoded = {"content": b64encode(content).decode(), "modified_at": at}
        kind, condition = ("create", {}) if tag is None else ("index", make_condition(tag))
        first = self.make_write(name, kind, encoded, **condition)
        done, *others = self.bulk([first, *beside], creates=creates)
        if done.tag is None:
            made = [(it, its) for it, its in zip(beside, others, strict=True) if its.is_done]
            new = ((it.name, its.tag) for it, its in made if it.kind == "create")
            gone = [self.make_deletion(*it) for it in new]
            if gone and not done.is_repeat:  # else the first attempt may have stored the head
                with suppress(LocusStoreError):  # ``vacuum`` removes what stays
                    self.bulk(gone, seconds=SETTLE_SECONDS)
            raise ChangedError if done.is_repeat else StaleTagError
        return (*done.tag, at), others

    def store(self, name: str, content: bytes) -> None:
        encoded = {"content": b64encode(content).decode()}
        write = self.make_write(name, "index", encoded)
        (done,) = self.bulk([write], creates=["index"], refresh="false")
        if not done.is_done:
            raise BackendError(f"{self.locate(name)} cannot be written: {done.error}")

    def delete(self, name: str, *, tag: Tag) -> None:
        (done,) = self.bulk([self.make_deletion(name, tag)])
        if done.status != _DELETED:
            raise ChangedError if done.is_repeat else StaleTagError

    def discard(self, names: Collection[str]) -> None:
        left = []
        for some in split_batches(self.make_deletion(it) for it in names):
            left += find_undone(some, self.settle(some, refresh="false"))
        require_deleted(left, self.locate)

    def make_write(
        self, name: str, kind: str, fields: Mapping[str, Any], **condition: Any
    ) -> BulkWrite:
        """Return a write of a document; see ``bulk.make_write``."""
        common = {"name": name, "modified_at": int(self.read_clock().timestamp() * 1000)}
        return make_write(name, kind, {**make_address(name), **condition}, {**common, **fields})

    def make_deletion(self, name: str, tag: Tag | None = None) -> BulkWrite:
        """Return a deletion, of any version or of that with a tag."""
        condition = make_condition(tag) if tag else {}
        return make_write(name, "delete", {**make_address(name), **condition})

    def make_removal(self, version: StoredVersion) -> BulkWrite:
        """Return the deletion of a document of a version as it was found."""
        place = {"_id": version.id, "routing": version.routing}
        return make_write(version.id, "delete", {**place, **make_condition(version.tag)})

    def settle(self, writes: Sequence[BulkWrite], **options: Any) -> list[Outcome]:
        """Return the outcomes of writes; those that a busy server refuses are retried.

        ``options``: of ``bulk``.

        Raises:
            LocusStoreError: One failed for good; it is not known which of them were done.
        """
        found: dict[str, Outcome] = {}
        left = writes
        while left:
            done = self.bulk(left, seconds=SETTLE_SECONDS, **options)
            found |= {it.name: its for it, its in zip(left, done, strict=True)}
            left = [it for it in left if found[it.name].status in failures.TRANSIENT]
        return [found[it.name] for it in writes]

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        return chain.from_iterable(self._iterate_listed(prefix, after, {"name": "asc"}))

    def newest(self, prefix: str) -> Sequence[ListedObject]:
        """Return the ``PAGE`` most recently changed objects below a prefix, the newest first."""
        return next(self._iterate_listed(prefix, "", {"modified_at": "desc"}), ())

    def _iterate_listed(
        self, prefix: str, after: str, order: Mapping[str, str]
    ) -> Iterator[Sequence[ListedObject]]:
        conditions = ({"prefix": {"name": prefix}}, {"range": {"name": {"gt": after}}})
        body = {
            "query": {"bool": {"filter": conditions}},
            "sort": [order],
            "size": PAGE,
            "_source": False,
            "docvalue_fields": ["name", {"field": "modified_at", "format": "epoch_millis"}],
            "track_total_hits": False,
        }
        for hits in self.iterate_hits(body):
            yield [_make_listed(it["fields"]) for it in hits]

    def get_all(self, tags: Mapping[str, Tag | None]) -> dict[str, Found]:
        """Return the objects of these names that exist, without the content of a known tag."""
        wanted = [
            {**make_address(name), "_source": _CONTENT if tag is None else _TIME}
            for name, tag in tags.items()
        ]
        named = zip(tags, self.read_documents(wanted, size=MOST_HEADS), strict=True)
        found = {name: _make_found(it, tags[name]) for name, it in named if it.get("found")}
        changed = {name: None for name, it in found.items() if tags[name] not in {None, it.tag}}
        return found | (self.get_all(changed) if changed else {})

    def locate(self, name: str) -> str:
        return f"document {name!r} in {self.place}"


def _get_tag(document: Mapping[str, Any]) -> tuple[str, int, int, int]:
    """Return the tag of a document that was read.

    Sequence numbers begin again in an index that was deleted and created again; the second alias
    and the time of the write differ.
    """
    at = document["_source"].get("modified_at")
    return document["own"], document["_seq_no"], document["_primary_term"], at


def _make_listed(fields: Mapping[str, Any]) -> ListedObject:
    [at] = fields.get("modified_at", [0])  # without one, the object itself says what it lacks
    return ListedObject(fields["name"][0], datetime.fromtimestamp(int(at) / 1000, UTC))


def _make_found(document: Mapping[str, Any], old_tag: Tag | None) -> Found:
    """Return a document that was read; with ``old_tag``, its content was not asked for."""
    try:
        content = b64decode(document["_source"].get("content") or b"") if old_tag is None else None
        return Found(_get_tag(document), content)
    except (TypeError, ValueError) as exc:
        raise IntegrityError(f"document {document['_id']!r} is not as it was written") from exc
