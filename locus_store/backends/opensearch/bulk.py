"""Requests of several documents, each of which succeeds or fails by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from locus_store.backends.documents.objects import CUT, HEADS, LAYOUT, SEGMENTS, decode_name, digest
from locus_store.backends.opensearch import failures
from locus_store.errors import BackendError

IndexTag: TypeAlias = tuple[str, int, int]
"""The second alias of a document's index, its sequence number and its primary term."""

Undone: TypeAlias = "tuple[str, Mapping[str, Any]]"
"""The name of a document that was not deleted, and the error."""

MOST_WRITES: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024


class BulkWrite(NamedTuple):
    """One write of a request."""

    name: str
    kind: str
    """``create``, ``index`` or ``delete``."""

    content: bytes
    """Its lines in the request."""


class Outcome(NamedTuple):
    """The outcome of one write."""

    status: int
    tag: IndexTag | None
    error: Mapping[str, Any] | None
    is_repeat: bool
    """The request was repeated, and its first attempt may have been done."""

    @property
    def is_without_index(self) -> bool:
        """There is no index with the alias."""
        return self.error is not None and self.error["type"] == failures.NO_INDEX

    @property
    def is_done(self) -> bool:
        """True if the write was done, or the document to delete does not exist."""
        return self.error is None


def make_write(
    name: str, kind: str, where: Mapping[str, Any], fields: Mapping[str, Any] | None = None
) -> BulkWrite:
    """Return a write.

    Args:
        name: Of the document.
        kind: See ``BulkWrite``.
        where: Its id, its routing, and conditions.
        fields: The document.
    """
    lines = [orjson.dumps({kind: where}), *([orjson.dumps(fields)] if fields is not None else [])]
    return BulkWrite(name, kind, b"".join(it + b"\n" for it in lines))


def split_batches(writes: Iterable[BulkWrite]) -> Iterator[list[BulkWrite]]:
    """Yield writes in lists that a server takes in one request; each has one at least."""
    batch: list[BulkWrite] = []
    size = 0
    for one in writes:
        if batch and (len(batch) == MOST_WRITES or size + len(one.content) > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.content)
    if batch:
        yield batch


def make_outcome(part: Mapping[str, Any], own: str, *, is_repeat: bool = False) -> Outcome:
    """Return the outcome of a write; its tag has the index's second alias ``own``."""
    (item,) = part.values()
    tag = (own, item["_seq_no"], item["_primary_term"]) if "_seq_no" in item else None
    return Outcome(item["status"], tag, item.get("error"), is_repeat)


def find_undone(writes: Iterable[BulkWrite], outcomes: Iterable[Outcome]) -> list[Undone]:
    """Return the deletions among writes whose documents stay."""
    return [
        (one.name, its.error)
        for one, its in zip(writes, outcomes, strict=True)
        if one.kind == "delete" and its.error is not None and not its.is_without_index
    ]


def require_deleted(undone: Sequence[Undone], where: Callable[[str], str]) -> None:
    """Raise the error of deletions that were not done, if there are some."""
    for name, error in undone[:1]:
        raise BackendError(
            f"{len(undone)} documents were not deleted and stay, {where(name)} among them: {error}"
        )


def require_decided(answer: Mapping[str, Any], most: int | None = 1) -> None:
    """Raise the error of a write as the request's, unless its condition refused it.

    Args:
        answer: To the request.
        most: So many writes are looked at; ``None``: all.

    Raises:
        opensearchpy.TransportError: A write failed.
    """
    for its in (make_outcome(it, "") for it in answer["items"][:most]):
        if its.error is not None and its.status not in {failures.MISSING, failures.CONFLICT}:
            raise failures.make_part_error(its.status, its.error)


def require_read(answer: Any) -> None:
    """Raise the error of a document whose shard did not answer."""
    for document in answer.get("docs", ()):
        error = document.get("error")
        if error and error["type"] != failures.NO_INDEX:
            raise failures.make_part_error(503, error)


def make_condition(tag: Any) -> dict[str, Any]:
    """Return the part of a write that expects the document with this tag, in the same index."""
    return {"_index": tag[0], "if_seq_no": tag[1], "if_primary_term": tag[2]}


VERSIONS: Final = LAYOUT + "versions/"
"""The names of documents of versions begin with it."""


def make_id(name: str) -> str:
    """Return the id of a document; an id has up to 512 bytes, and a name up to 1,024."""
    return sha256(name.encode()).hexdigest()


def make_path(name: str) -> str:
    """Return the path of a document below its index."""
    return f"_doc/{make_id(name)}"


def make_address(name: str) -> dict[str, str]:
    """Return the part of a write that says which document it is."""
    return {"_id": make_id(name), "routing": make_routing(name)}


def make_routing(name: str) -> str:
    """Return the digest of the thread, so that its documents share a shard."""
    for prefix in (SEGMENTS, VERSIONS):
        if name.startswith(prefix):
            return name.removeprefix(prefix).partition("/")[0]
    thread = name.removeprefix(HEADS)
    return thread.rpartition(CUT)[2] if CUT in thread else digest(decode_name(thread) or thread)
