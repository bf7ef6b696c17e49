"""The client of an index: five primitives over opensearch-py, whose calls block."""

from __future__ import annotations

import os
import random
import threading
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

from locus_store.backends.documents.object_documents import HEADS, LAYOUT, SEGMENTS
from locus_store.backends.documents.objects import CUT, ListedObject, Objects, decoded, digest
from locus_store.backends.documents.protocol import ChangedError, Found
from locus_store.backends.documents.workers import Workers
from locus_store.backends.opensearch import failures, index
from locus_store.backends.opensearch.access import opened
from locus_store.backends.opensearch.bulk import (
    batches,
    body_of,
    outcomes,
    require_decided,
    tag_of,
    write,
)
from locus_store.errors import BackendError, LocusStoreError
from locus_store.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from locus_store.backends.documents.protocol import Tag
    from locus_store.backends.opensearch.access import IndexAccess, IndexPlace
    from locus_store.backends.opensearch.bulk import BulkWrite, Outcome
    from locus_store.backends.opensearch.index import Layout

T = TypeVar("T")
R = TypeVar("R")

PAGE: Final = 1000
"""Documents in one list, and in one deletion."""

MOST_HEADS: Final = 100
"""Objects with their content in one answer."""

LONGEST_PAUSE_SECONDS: Final = 2.0
VERSIONS: Final = LAYOUT + "versions/"
_DELETED: Final = 200


class IndexClient:
    """Calls of an index, by any number of threads.

    Args:
        place: The index.
        access: Credentials and limits.
        layout: Of the index.
    """

    def __init__(self, place: IndexPlace, access: IndexAccess, layout: Layout) -> None:
        self.place = place
        self.access = access
        self.layout = layout
        self._workers = Workers("locus-store-opensearch", access.pool_size)
        self._start()

    def _start(self) -> None:
        """Begin without connections, as in a forked child."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._client = self.access.client
        self._is_checked = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.place)!r})"

    def _require_process(self) -> None:
        if self._pid != os.getpid():
            self._start()

    def close(self) -> None:
        """Release threads and connections; later calls open them again."""
        self._require_process()
        with self._lock:
            client, self._client = self._client, self.access.client
        self._workers.close()
        if client is not None and client is not self.access.client:
            client.close()

    @property
    def pool(self) -> Executor:
        """The threads that calls run in."""
        return self._workers

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """See ``Objects``; within another call of this kind, one after another."""
        return self._workers.each(work, items)

    @property
    def refresh(self) -> str:
        """The parameter of writes that lists and searches show."""
        return "wait_for" if self.access.refresh == "wait" else "false"

    # --- calls

    def _perform(self) -> Callable[..., Any]:
        self._require_process()
        with self._lock:
            self._client = self._client or opened(self.place, self.access)
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
            params: The parameters of the request.

        Raises:
            LocusStoreError: The call failed for good.
        """
        import opensearchpy  # noqa: PLC0415  (of an extra, and slow to import)

        what, deadline = f"{method} {path}", time.monotonic() + self.access.retry_seconds
        for attempt in range(1_000_000):
            try:
                answer = self._perform()(method, path, params=params, body=body, ignore=tuple(seen))
                check(answer)
            except opensearchpy.exceptions.OpenSearchException as exc:
                pause = random.uniform(0, min(0.05 * 2**attempt, LONGEST_PAUSE_SECONDS))  # noqa: S311
                is_late = time.monotonic() + pause > deadline
                if is_late or not failures.is_transient(exc):
                    raise failures.translated(exc, self.place, what) from exc
                observe.retried(f"{what}: {failures.status_of(exc) or 'no answer'}", exc)
                on_repeat()
                time.sleep(pause)
            else:
                return answer
        raise AssertionError("unreachable")  # the deadline ends the loop

    def documents(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Return the answer to a request about documents, once the index was found to be ours."""
        self._check()
        where = f"/{self.place.name}/{path}"
        answer = self.call(method, where, body, **options)
        if failures.type_of(answer) == failures.NO_INDEX and self._is_checked:
            self._is_checked = False  # the index was deleted, or an upgrade is just removing it
            self._check()
            answer = self.call(method, where, body, **options)
        return answer

    def _check(self) -> None:
        """Look once whether the index is ours, if there is one."""
        self._require_process()
        if self._is_checked:
            return
        found = self.call("GET", f"/{self.place.name}", seen=(failures.MISSING,))
        if "error" not in found:
            index.require_ours(found, self.place, self.layout)
            self._is_checked = True

    def create(self) -> None:
        """Create the index, which another process may have created meanwhile."""
        name = index.first_index(self.place)
        body = index.definition(self.place, name, self.layout)
        made = self.call("PUT", f"/{name}", body, seen=(400,))
        if failures.type_of(made) not in {None, failures.EXISTS}:
            raise BackendError(f"{self.place} cannot be created: {made['error']}")


class IndexObjects(IndexClient, Objects):
    """The documents of an index, by name; a document's id is the digest of its name.

    Args:
        place: The index.
        access: Credentials and limits.
    """

    def __init__(self, place: IndexPlace, access: IndexAccess) -> None:
        super().__init__(place, access, index.threads(access.language))

    def get(self, name: str, *, known: Tag | None = None) -> Found | None:
        """See ``Objects``, also for the following methods."""
        found = self._get(name, _source="false") if known is not None else None
        if found is None or (found.get("found") and tag_of(found) != known):
            found = self._get(name, _source_includes="content")
        return _found(found) if found.get("found") else None

    def _get(self, name: str, **options: str) -> Any:
        path, routing = _path(name), _routing(name)
        return self.documents("GET", path, seen=(failures.MISSING,), routing=routing, **options)

    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        return self.put_with(name, content, [], tag=tag)[0]

    def put_with(
        self, name: str, content: bytes, beside: Sequence[BulkWrite], *, tag: Tag | None
    ) -> tuple[Tag, list[Outcome]]:
        """Put a document and others in one request; return its tag and their outcomes.

        The condition of the first one decides. If it is refused, the others that were created are
        deleted again.

        Raises:
            ChangedError: The condition was refused.
        """
        first = self._head(name, content, tag)
        done, *others = self.bulk([first, *beside], creates=tag is None)
        if done.tag is None:
            made = [(it, its) for it, its in zip(beside, others, strict=True) if its.is_done]
            self._undo([self.deletion(it.name, its.tag) for it, its in made if it.kind == "create"])
            raise ChangedError
        return done.tag, others

    def _head(self, name: str, content: bytes, tag: Any) -> BulkWrite:
        encoded = {"content": b64encode(content).decode()}
        if tag is None:
            return self.document(name, "create", encoded)
        return self.document(name, "index", encoded, **_condition(tag))

    def _undo(self, deletions: list[BulkWrite]) -> None:
        """Delete what was created beside a refused document; ``vacuum`` removes the rest."""
        if deletions:
            with suppress(LocusStoreError):
                self.bulk(deletions)

    def store(self, name: str, content: bytes) -> None:
        encoded = {"content": b64encode(content).decode()}
        (done,) = self.bulk([self.document(name, "index", encoded)], creates=True, refresh="false")
        if not done.is_done:
            raise BackendError(f"{self.where(name)} cannot be written: {done.error}")

    def delete(self, name: str, *, tag: Tag) -> None:
        (done,) = self.bulk([self.deletion(name, tag)])
        if done.status != _DELETED:
            raise ChangedError

    def discard(self, names: Collection[str]) -> None:
        for some in batches(self.deletion(it) for it in names):
            for it, done in zip(some, self.bulk(some, refresh="false"), strict=True):
                if not done.is_done:  # a busy server left it
                    self.bulk([it], refresh="false")

    # --- several writes

    def document(
        self, name: str, kind: str, fields: Mapping[str, Any], **condition: Any
    ) -> BulkWrite:
        """Return a write of a document; see ``bulk.write``."""
        common = {"name": name, "modified_at": int(self.now().timestamp() * 1000)}
        return write(name, kind, {**_place(name), **condition}, {**common, **fields})

    def deletion(self, name: str, tag: Tag | None = None) -> BulkWrite:
        """Return a deletion, of any version or of that with a tag."""
        condition = _condition(tag) if tag else {}
        return write(name, "delete", {**_place(name), **condition})

    def bulk(
        self, writes: Sequence[BulkWrite], *, creates: bool = False, refresh: str | None = None
    ) -> list[Outcome]:
        """Return the outcomes of writes in one request, whose first one may have a condition.

        An attempt after a lost reply is refused by the condition. ``creates``: so is a missing
        index.

        Raises:
            LocusStoreError: The first write failed for good, but not by its condition.
        """

        def ask() -> list[Outcome]:
            answer = self.documents(
                "POST",
                "_bulk",
                body_of(writes),
                check=require_decided,
                refresh=refresh or self.refresh,
                require_alias="true",
            )
            return outcomes(answer)

        found = ask()
        if creates and found[0].error and found[0].error["type"] == failures.NO_INDEX:
            self.create()
            found = ask()
        return found

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        while True:
            hits = self._page(prefix, after)
            for it in hits:
                fields = it["fields"]
                at = datetime.fromtimestamp(int(fields["modified_at"][0]) / 1000, UTC)
                yield ListedObject(fields["name"][0], at)
            if len(hits) < PAGE:
                return
            after = hits[-1]["fields"]["name"][0]

    def _page(self, prefix: str, after: str) -> Sequence[Any]:
        """Return one page of a list, of all shards or not at all."""
        conditions = ({"prefix": {"name": prefix}}, {"range": {"name": {"gt": after}}})
        body = {
            "query": {"bool": {"filter": conditions}},
            "sort": [{"name": "asc"}],
            "size": PAGE,
            "_source": False,
            "docvalue_fields": ["name", {"field": "modified_at", "format": "epoch_millis"}],
            "track_total_hits": False,
        }
        found = self.search(body)
        hits: Sequence[Any] = found["hits"]["hits"] if found else ()
        return hits

    # --- several reads

    def get_all(self, known: Mapping[str, Tag | None]) -> dict[str, Found]:
        """Return the objects of these names that exist, without the content of a known tag."""
        found: dict[str, Found] = {}
        names = list(known)
        for some in (names[at : at + MOST_HEADS] for at in range(0, len(names), MOST_HEADS)):
            found |= self._found_of({it: known[it] for it in some})
        changed = {it: None for it in names if it in found and found[it].content is None}
        changed = {it: None for it in changed if found[it].tag != known[it]}
        return found | (self.get_all(changed) if changed else {})

    def _found_of(self, known: Mapping[str, Tag | None]) -> dict[str, Found]:
        wanted = [
            {**_place(name), "_source": ["content"] if tag is None else False}
            for name, tag in known.items()
        ]
        answer = self.documents("POST", "_mget", {"docs": wanted}, seen=(failures.MISSING,))
        named = zip(known, answer.get("docs", ()), strict=False)
        return {name: _found(it) for name, it in named if it.get("found")}

    def search(self, body: Mapping[str, Any]) -> Any:
        """Return the answer to a search, of all shards or not at all; ``None``: no index."""
        found = self.documents(
            "POST",
            "_search",
            body,
            seen=(failures.MISSING,),
            allow_partial_search_results="false",
        )
        return None if "error" in found else found

    def where(self, name: str) -> str:
        return f"document {name!r} in {self.place}"


def _id(name: str) -> str:
    """Return the id of a document; an id has up to 512 bytes, and a name up to 1,024."""
    return sha256(name.encode()).hexdigest()


def _path(name: str) -> str:
    return f"_doc/{_id(name)}"


def _place(name: str) -> dict[str, str]:
    return {"_id": _id(name), "routing": _routing(name)}


def _routing(name: str) -> str:
    """Return the digest of the thread, so that its documents share a shard."""
    for prefix in (SEGMENTS, VERSIONS):
        if name.startswith(prefix):
            return name.removeprefix(prefix).partition("/")[0]
    thread = name.removeprefix(HEADS)
    return thread.rpartition(CUT)[2] if CUT in thread else digest(decoded(thread) or thread)


def _condition(tag: Any) -> dict[str, Any]:
    """Return the part of a write that expects the document with this tag, in the same index."""
    return {
        "_index": index.own_alias(tag[0]),
        "if_seq_no": tag[1],
        "if_primary_term": tag[2],
    }


def _found(found: Mapping[str, Any]) -> Found:
    source = found.get("_source")
    return Found(tag_of(found), b64decode(source["content"]) if source else None)
