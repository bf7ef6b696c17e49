"""The client of an index: five primitives over opensearch-py, whose calls block."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from locus_store.backends.documents.objects import ListedObject, Objects
from locus_store.backends.documents.protocol import ChangedError, Found, Tag
from locus_store.backends.documents.workers import BlockingClient
from locus_store.backends.opensearch import failures, index
from locus_store.backends.opensearch.access import MOST_SECONDS, IndexPlace, open_client
from locus_store.backends.opensearch.bulk import (
    BulkWrite,
    Outcome,
    encode_body,
    find_undone,
    make_address,
    make_condition,
    make_path,
    make_routing,
    read_outcomes,
    require_decided,
    require_deleted,
    split_batches,
    write,
)
from locus_store.backends.opensearch.index import Layout
from locus_store.backends.opensearch.options import OpenSearchOptions
from locus_store.backends.opensearch.versions import StoredVersion
from locus_store.errors import BackendError, LocusStoreError, SchemaError
from locus_store.runtime import observe
from locus_store.runtime.retries import Pauses

T = TypeVar("T")
R = TypeVar("R")

PAGE: Final = 1000
"""Documents in one list, and in one deletion."""

MOST_HEADS: Final = 100
"""Objects with their content in one answer."""

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

    def __init__(self, place: IndexPlace, access: OpenSearchOptions, layout: Layout) -> None:
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

    def _perform(self) -> Callable[..., Any]:
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
        seen: Collection[int] = (),
        check: Callable[[Any], object] = bool,
        on_repeat: Callable[[], None] = lambda: None,
        seconds: float = MOST_SECONDS,
        **params: Any,
    ) -> Any:
        """Return the JSON of an answer, also of one with a status in ``seen``.

        Transient failures are retried for ``retry_seconds``, on the other hosts at first. So are
        those that ``check`` finds in an answer and raises.

        Args:
            method: Of HTTP.
            path: With a slash.
            body: JSON, or lines of it.
            seen: Statuses that are no failure.
            check: Raises the client's error if a part of the answer is a failure.
            on_repeat: Called before the request is repeated, which the server may have executed.
            seconds: Retry no longer than this.
            params: The parameters of the request.

        Raises:
            LocusStoreError: The call failed for good.
        """
        import opensearchpy  # noqa: PLC0415  (of an extra, and slow to import)

        what = f"{method} {path}"
        options = {"ignore": tuple(seen), "timeout": self.access["timeout_seconds"]}
        pauses = Pauses(0.05, 2.0, min(self.access["retry_seconds"], seconds))
        while True:
            try:
                answer = self._perform()(method, path, params=params, body=body, **options)
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

    def send(self, writes: Iterable[BulkWrite], **options: Any) -> Any:
        """Return the answer to writes in one request.

        A server whose shard is not ready says so before this client's time limit ends.

        Args:
            writes: In this order.
            options: Of ``call``.
        """
        limit = f"{int(self.access['timeout_seconds'] * SERVERS_PART * 1000)}ms"
        body = encode_body(writes)
        return self.request_documents(
            "POST", "_bulk", body, require_alias="true", timeout=limit, **options
        )

    def get_own_alias(self) -> str:
        """Return the second alias of the index, which an index that is created later lacks.

        Tags have the one of the time before the request; without an index, one that none has.
        """
        self._check()
        return self._own or index.generate_own_alias(self.place.name)

    def _check(self) -> None:
        """Look once whether the index is ours, if there is one."""
        if self._own:
            return
        found = self.call("GET", f"/{self.place.name}", seen=(failures.MISSING,))
        if "error" in found:
            self._require_none()
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
        self.renew()
        self._check()
        if self._own:
            return
        name = index.name_first_index(self.place)
        body = index.define_index(self.place, name, self.layout)
        made = self.call("PUT", f"/{name}", body, seen=(400,))
        if failures.get_type(made) not in {None, failures.EXISTS}:
            raise BackendError(f"{self.place} cannot be created: {made['error']}")

    def _require_none(self) -> None:
        """Refuse an index that has lost its alias.

        Raises:
            SchemaError: There is one.
        """
        name, alias = index.name_first_index(self.place), self.place.name
        found = self.call("GET", f"/{name}", seen=(failures.MISSING,))
        if "error" not in found and alias not in found.get(name, {}).get("aliases", {alias}):
            raise SchemaError(
                f"index {name!r} exists without its alias {alias!r}; add the alias, or choose "
                "another index_name="
            )

    def renew(self) -> None:
        """Look at the index again before the next call."""
        self._own = None


class IndexObjects(IndexClient, Objects):
    """The documents of an index, by name; a document's id is the digest of its name.

    Args:
        place: The index.
        access: Credentials and limits.
    """

    def __init__(self, place: IndexPlace, access: OpenSearchOptions) -> None:
        super().__init__(place, access, index.make_thread_layout(access["language"]))

    def get(self, name: str, *, known: Tag | None = None) -> Found | None:
        found = self._get(name, _TIME) if known is not None else None
        if found is None or (found.get("found") and _tag(found) != known):
            found = self._get(name, _CONTENT)
        return _make_found(found) if found.get("found") else None

    def _get(self, name: str, fields: Sequence[str]) -> Any:
        path, own = make_path(name), self.get_own_alias()
        options = {"routing": make_routing(name), "_source_includes": ",".join(fields)}
        found = self.request_documents("GET", path, seen=(failures.MISSING,), **options)
        return {**found, "own": own}

    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        return self.put_with(name, content, [], tag=tag, creates=tag is None)[0]

    def put_with(
        self,
        name: str,
        content: bytes,
        beside: Sequence[BulkWrite],
        *,
        tag: Any,
        creates: bool = False,
    ) -> tuple[Tag, list[Outcome]]:
        """Put a document and others in one request; return its tag and their outcomes.

        The condition of the first one decides. If it is refused, the others that were created are
        deleted again.

        Raises:
            ChangedError: The condition was refused, or there is no index and ``creates`` is off.
        """
        at, repeats = int(self.read_clock().timestamp() * 1000), list[bool]()
        first = self._write_head(name, content, tag, at)
        note = partial(repeats.append, True)
        done, *others = self.bulk([first, *beside], creates=creates, on_repeat=note)
        if done.tag is None:
            made = [(it, its) for it, its in zip(beside, others, strict=True) if its.is_done]
            new = ((it.name, its.tag) for it, its in made if it.kind == "create")
            gone = [self.write_deletion(*it) for it in new]
            self._undo([] if repeats else gone)  # the first attempt may have stored the head
            raise ChangedError
        return (*done.tag, at), others

    def _write_head(self, name: str, content: bytes, tag: Any, at: int) -> BulkWrite:
        encoded = {"content": b64encode(content).decode(), "modified_at": at}
        if tag is None:
            return self.write_document(name, "create", encoded)
        return self.write_document(name, "index", encoded, **make_condition(tag))

    def _undo(self, deletions: list[BulkWrite]) -> None:
        """Delete what was created beside a refused document; ``vacuum`` removes the rest."""
        if deletions:
            with suppress(LocusStoreError):
                self.bulk(deletions, seconds=SETTLE_SECONDS)

    def store(self, name: str, content: bytes) -> None:
        encoded = {"content": b64encode(content).decode()}
        (done,) = self.bulk(
            [self.write_document(name, "index", encoded)], creates=True, refresh="false"
        )
        if not done.is_done:
            raise BackendError(f"{self.locate(name)} cannot be written: {done.error}")

    def delete(self, name: str, *, tag: Tag) -> None:
        (done,) = self.bulk([self.write_deletion(name, tag)])
        if done.status != _DELETED:
            raise ChangedError

    def discard(self, names: Collection[str]) -> None:
        left = []
        for some in split_batches(self.write_deletion(it) for it in names):
            left += find_undone(some, self.settle(some, refresh="false"))
        require_deleted(left, self.locate)

    def write_document(
        self, name: str, kind: str, fields: Mapping[str, Any], **condition: Any
    ) -> BulkWrite:
        """Return a write of a document; see ``bulk.write``."""
        common = {"name": name, "modified_at": int(self.read_clock().timestamp() * 1000)}
        return write(name, kind, {**make_address(name), **condition}, {**common, **fields})

    def write_deletion(self, name: str, tag: Tag | None = None) -> BulkWrite:
        """Return a deletion, of any version or of that with a tag."""
        condition = make_condition(tag) if tag else {}
        return write(name, "delete", {**make_address(name), **condition})

    def write_removal(self, stored: StoredVersion) -> BulkWrite:
        """Return the deletion of a document of a version as it was found."""
        place = {"_id": stored.id, "routing": stored.routing}
        return write(stored.id, "delete", {**place, **make_condition(stored.tag)})

    def bulk(
        self,
        writes: Sequence[BulkWrite],
        *,
        creates: bool = False,
        refresh: str | None = None,
        **options: Any,
    ) -> list[Outcome]:
        """Return the outcomes of writes in one request, whose first one may have a condition.

        An attempt after a lost reply is refused by the condition. ``creates``: so is a missing
        index. ``options``: of ``call``.

        Raises:
            LocusStoreError: The first write failed for good, but not by its condition.
        """

        def ask() -> list[Outcome]:
            own, when = self.get_own_alias(), refresh or self.refresh
            answer = self.send(writes, check=require_decided, refresh=when, **options)
            return read_outcomes(answer, own)

        found = ask()
        if found[0].is_without_index:
            self.renew()
            if creates:
                self.create()
                found = ask()
        return found

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
        while True:
            page = self._read_page(prefix, after, {"name": "asc"})
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].name

    def newest(self, prefix: str) -> Sequence[ListedObject]:
        """Return the ``PAGE`` most recently changed objects below a prefix, the newest first."""
        return self._read_page(prefix, "", {"modified_at": "desc"})

    def _read_page(
        self, prefix: str, after: str, order: Mapping[str, str]
    ) -> Sequence[ListedObject]:
        """Return one page of a list, of all shards or not at all."""
        conditions = ({"prefix": {"name": prefix}}, {"range": {"name": {"gt": after}}})
        body = {
            "query": {"bool": {"filter": conditions}},
            "sort": [order],
            "size": PAGE,
            "_source": False,
            "docvalue_fields": ["name", {"field": "modified_at", "format": "epoch_millis"}],
            "track_total_hits": False,
        }
        found = self.search(body)
        return [_make_listed(it["fields"]) for it in found["hits"]["hits"]] if found else ()

    def get_all(self, known: Mapping[str, Tag | None]) -> dict[str, Found]:
        """Return the objects of these names that exist, without the content of a known tag."""
        found: dict[str, Found] = {}
        names = list(known)
        for some in (names[at : at + MOST_HEADS] for at in range(0, len(names), MOST_HEADS)):
            found |= self._read_found({it: known[it] for it in some})
        changed = {it: None for it in names if it in found and found[it].content is None}
        changed = {it: None for it in changed if found[it].tag != known[it]}
        return found | (self.get_all(changed) if changed else {})

    def _read_found(self, known: Mapping[str, Tag | None]) -> dict[str, Found]:
        wanted = [
            {**make_address(name), "_source": _CONTENT if tag is None else _TIME}
            for name, tag in known.items()
        ]
        own = self.get_own_alias()
        answer = self.request_documents("POST", "_mget", {"docs": wanted}, seen=(failures.MISSING,))
        named = zip(known, answer.get("docs", ()), strict=False)
        return {name: _make_found({**it, "own": own}) for name, it in named if it.get("found")}

    def search(self, body: Mapping[str, Any]) -> Any:
        """Return the answer to a search, of all shards or not at all; ``None``: no index."""
        found = self.request_documents(
            "POST",
            "_search",
            body,
            seen=(failures.MISSING,),
            allow_partial_search_results="false",
        )
        return None if "error" in found else found

    def locate(self, name: str) -> str:
        return f"document {name!r} in {self.place}"


def _tag(found: Mapping[str, Any]) -> tuple[str, int, int, int]:
    """Return the tag of a document that was read.

    Sequence numbers begin again in an index that was deleted and created again; the second alias
    and the time of the write differ.
    """
    at = found["_source"]["modified_at"]
    return found["own"], found["_seq_no"], found["_primary_term"], at


def _make_listed(fields: Mapping[str, Any]) -> ListedObject:
    at = datetime.fromtimestamp(int(fields["modified_at"][0]) / 1000, UTC)
    return ListedObject(fields["name"][0], at)


def _make_found(found: Mapping[str, Any]) -> Found:
    content = found["_source"].get("content")
    return Found(_tag(found), None if content is None else b64decode(content))
