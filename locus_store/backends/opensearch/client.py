"""The client of an index: five primitives over opensearch-py, whose calls block."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from locus_store.backends.documents.object_documents import HEADS, SEGMENTS
from locus_store.backends.documents.objects import CUT, ListedObject, Objects, decoded, digest
from locus_store.backends.documents.protocol import ChangedError, Found
from locus_store.backends.documents.workers import Workers
from locus_store.backends.opensearch import failures, index
from locus_store.backends.opensearch.access import opened
from locus_store.errors import BackendError
from locus_store.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from locus_store.backends.documents.protocol import Tag
    from locus_store.backends.opensearch.access import IndexAccess, IndexPlace
    from locus_store.backends.opensearch.index import Layout

T = TypeVar("T")
R = TypeVar("R")

PAGE: Final = 1000
"""Documents in one list, and in one deletion."""

LONGEST_PAUSE_SECONDS: Final = 2.0


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
        check: Callable[[Any], None] = lambda _answer: None,
        on_repeat: Callable[[], None] = lambda: None,
        **params: Any,
    ) -> Any:
        """Return the JSON of an answer, also of one with a status in ``seen``.

        Transient failures are retried for ``retry_seconds``, on the other hosts at first.

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

    def documents(
        self, method: str, path: str, body: Any = None, *, alias: str | None = None, **options: Any
    ) -> Any:
        """Return the answer to a request about documents, once the index was found to be ours.

        Args:
            method: Of HTTP.
            path: Below the alias.
            body: JSON, or lines of it.
            alias: Another one than that of the place.
            options: See ``call``.
        """
        self._check()
        where = f"/{alias or self.place.name}/{path}"
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
        path, routing = _path(name), _routing(name)
        found = self.documents(
            "GET", path, seen=(failures.MISSING,), routing=routing, _source_includes="content"
        )
        if not found.get("found"):
            return None
        tag = _tag(found)
        content = None if tag == known else b64decode(found["_source"]["content"])
        return Found(tag, content)

    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        found = self._put(name, content, _condition(tag), alias=_alias(tag))
        if "error" in found:
            raise ChangedError
        return _tag(found)

    def store(self, name: str, content: bytes) -> None:
        self._put(name, content, {}, alias=None, refresh="false")

    def _put(
        self,
        name: str,
        content: bytes,
        condition: Mapping[str, Any],
        *,
        alias: str | None,
        refresh: str | None = None,
    ) -> Any:
        """Put a document; an attempt after a lost reply is refused by the condition."""
        body = {
            "name": name,
            "modified_at": int(self.now().timestamp() * 1000),
            "content": b64encode(content).decode(),
        }
        options = {"routing": _routing(name), "refresh": refresh or self.refresh, **condition}

        def put() -> Any:
            options["seen"] = failures.MISSING, failures.CONFLICT
            return self.documents(
                "PUT", _path(name), body, alias=alias, require_alias="true", **options
            )

        found = put()
        if alias is None and failures.type_of(found) == failures.NO_INDEX:
            self.create()
            found = put()
        return found

    def delete(self, name: str, *, tag: Tag) -> None:
        found = self.documents(
            "DELETE",
            _path(name),
            seen=(failures.MISSING, failures.CONFLICT),
            routing=_routing(name),
            refresh=self.refresh,
            alias=_alias(tag),
            **_condition(tag),
        )
        if found.get("result") != "deleted":
            raise ChangedError

    def discard(self, names: Collection[str]) -> None:
        rest = iter(names)
        while some := list(islice(rest, PAGE)):
            self._discard(some)

    def _discard(self, names: list[str]) -> None:
        """Delete documents in one request; those that a busy server left are asked for alone."""
        lines = [{"delete": {"_id": _id(it), "routing": _routing(it)}} for it in names]
        body = "".join(f"{json.dumps(it)}\n" for it in lines)
        found = self.documents("POST", "_bulk", body, seen=(failures.MISSING,))
        for name, item in zip(names, found.get("items", ()), strict=False):
            if item["delete"]["status"] not in {200, failures.MISSING}:
                seen, routing = (failures.MISSING,), _routing(name)
                self.documents("DELETE", _path(name), seen=seen, routing=routing)

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
        found = self.documents(
            "POST",
            "_search",
            body,
            seen=(failures.MISSING,),
            allow_partial_search_results="false",
        )
        hits: Sequence[Any] = found["hits"]["hits"] if "hits" in found else ()
        return hits

    def where(self, name: str) -> str:
        return f"document {name!r} in {self.place}"


def _id(name: str) -> str:
    """Return the id of a document; an id has up to 512 bytes, and a name up to 1,024."""
    return sha256(name.encode()).hexdigest()


def _path(name: str) -> str:
    return f"_doc/{_id(name)}"


def _routing(name: str) -> str:
    """Return the digest of the thread, so that a head and its segments share a shard."""
    if name.startswith(SEGMENTS):
        return name.removeprefix(SEGMENTS).partition("/")[0]
    thread = name.removeprefix(HEADS)
    return thread.rpartition(CUT)[2] if CUT in thread else digest(decoded(thread) or thread)


def _tag(found: Mapping[str, Any]) -> tuple[str, int, int]:
    return found["_index"], found["_seq_no"], found["_primary_term"]


def _condition(tag: Any) -> dict[str, Any]:
    if tag is None:
        return {"op_type": "create"}
    return {"if_seq_no": tag[1], "if_primary_term": tag[2]}


def _alias(tag: Any) -> str | None:
    """Return the alias for a write on a condition: that of the index that was read."""
    return None if tag is None else index.own_alias(tag[0])
