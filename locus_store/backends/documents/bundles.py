"""The bytes of heads and segments: facts as compressed JSON, then payloads.

An object begins with ``MAGIC`` and the lengths of two frames. The first frame holds what each put
changes (a head's tokens), the second one the facts; both have a checksum. The payloads follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import orjson

from locus_store.errors import IntegrityError, SchemaError
from locus_store.types import ArchivedMessage, ArchivedWrite, PendingWrite
from locus_store.values.encoding import MAX_STATE_BYTES, pack_frame, unpack_frames
from locus_store.versions import Record
from locus_store.versions.spaces import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"locus-store 1\n"
"""With the version of the form; another one is refused."""

_FAMILY: Final = b"locus-store "
_LENGTH_BYTES: Final = 4
_FACTS_AT: Final = len(MAGIC) + 2 * _LENGTH_BYTES

ENTRY_BYTES: Final = 200
"""The facts of one version or write count as this many bytes."""

_RECORD: Final = ("sequence", "chain", "parent", "checkpoint_id")
_WRITE: Final = ("task_id", "idx", "channel", "type", "task_path", "basis")
_MESSAGE: Final = ("namespace", "sequence", "message_id", "role", "metadata", "text")


@dataclass(slots=True)
class Bundle:
    """Versions, pending writes and messages that are stored together."""

    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    """Versions by namespace and sequence."""

    writes: list[tuple[str, ArchivedWrite]] = field(default_factory=list)
    """Namespaces and pending writes; a later one replaces an earlier one."""

    messages: list[ArchivedMessage] = field(default_factory=list)

    def all_rows(self) -> Iterator[tuple[str, Row]]:
        """Yield each namespace and version."""
        for namespace, rows in self.rows.items():
            for row in rows.values():
                yield namespace, row

    def add(self, other: Bundle) -> None:
        """Add what another bundle holds; it is newer."""
        for namespace, rows in other.rows.items():
            self.rows.setdefault(namespace, {}).update(rows)
        self.writes += other.writes
        self.messages += other.messages

    def put(self, namespace: str, row: Row) -> None:
        """Add a version."""
        self.rows.setdefault(namespace, {})[row.record.sequence] = row

    @property
    def size(self) -> int:
        """About the bytes that this takes in an object."""
        payloads = [row.payload() for _, row in self.all_rows()]
        payloads += [it.write.payload for _, it in self.writes]
        payloads += [it.payload or b"" for it in self.messages]
        texts = sum(len(it.text or "") for it in self.messages)
        return sum(map(len, payloads)) + texts + ENTRY_BYTES * len(payloads)

    def __bool__(self) -> bool:
        return bool(self.rows or self.writes or self.messages)


class ObjectContent(NamedTuple):
    """The content of an object."""

    note: dict[str, Any]
    facts: bytes
    payloads: bytes

    def told(self) -> dict[str, Any]:
        """Return the facts.

        Raises:
            IntegrityError: The payloads differ from those that were written.
        """
        told: dict[str, Any] = orjson.loads(self.facts)
        if told.pop("check") != crc32(self.payloads):
            raise IntegrityError("its payloads are not as they were written")
        return told


# --- to bytes


def content_of(
    facts: dict[str, Any], bundle: Bundle, note: dict[str, Any], before: bytes = b""
) -> ObjectContent:
    """Return an object's content.

    Args:
        facts: What the object says beside its bundle.
        bundle: Its versions, writes and messages.
        note: What differs between two puts of the same content.
        before: Bytes to store before the payloads.
    """
    told, payloads = _told(bundle)
    joined = b"".join((before, *payloads))
    told |= {"lengths": [*map(len, payloads)], "check": crc32(joined)}
    return ObjectContent(note, orjson.dumps({**facts, **told}), joined)


def packed(content: ObjectContent) -> bytes:
    """Return the bytes of an object."""
    frames = pack_frame(orjson.dumps(content.note)), pack_frame(content.facts)
    lengths = (len(it).to_bytes(_LENGTH_BYTES, "little") for it in frames)
    return b"".join((MAGIC, *lengths, *frames, content.payloads))


def _told(bundle: Bundle) -> tuple[dict[str, Any], list[bytes]]:
    rows = list(bundle.all_rows())
    payloads = [row.payload() for _, row in rows]
    payloads += [it.write.payload for _, it in bundle.writes]
    payloads += [it.payload or b"" for it in bundle.messages]
    told = {
        "rows": [_row(*it) for it in rows],
        "writes": [_write(*it) for it in bundle.writes],
        "messages": [_message(it) for it in bundle.messages],
    }
    return told, payloads


def _row(namespace: str, row: Row) -> list[Any]:
    it = row.record
    ours = [getattr(it, name) for name in _RECORD]
    return [namespace, *ours, it.digest.hex(), it.metadata, it.labels, row.created_at]


def _write(namespace: str, it: ArchivedWrite) -> list[Any]:
    ours = [getattr(it.write, name) for name in _WRITE]
    return [namespace, it.checkpoint_id, *ours, it.created_at]


def _message(it: ArchivedMessage) -> list[Any]:
    return [*(getattr(it, name) for name in _MESSAGE), it.created_at, it.payload is not None]


# --- from bytes


def unpacked(content: bytes) -> ObjectContent:
    """Return the parts of an object.

    Raises:
        IntegrityError: It was cut off or changed, or is none of ours.
        SchemaError: It is of a newer version of this library.
    """
    if not content.startswith(MAGIC):
        if content.startswith(_FAMILY):
            raise SchemaError("it was written by a newer locus-store; upgrade this one")
        raise IntegrityError("it was not written by this library")
    middle = len(MAGIC) + _LENGTH_BYTES
    first = int.from_bytes(content[len(MAGIC) : middle], "little") + _FACTS_AT
    second = int.from_bytes(content[middle:_FACTS_AT], "little") + first
    note, facts = _frame(content[_FACTS_AT:first]), _frame(content[first:second])
    return ObjectContent(orjson.loads(note), facts, content[second:])


def _frame(content: bytes) -> bytes:
    bodies = list(unpack_frames(content, MAX_STATE_BYTES))
    if len(bodies) != 1:
        raise IntegrityError("it is cut off")
    return bodies[0]


def bundle_of(told: dict[str, Any], payloads: bytes) -> Bundle:
    """Return the bundle of an object's facts and payloads."""
    ends = accumulate(told["lengths"], initial=0)
    parts = (payloads[begin:end] for begin, end in pairwise(ends))
    bundle = Bundle()
    for row in told["rows"]:
        bundle.put(row[0], _parsed_row(row, next(parts)))
    bundle.writes = [(it[0], _parsed_write(it, next(parts))) for it in told["writes"]]
    bundle.messages = [_parsed_message(it, next(parts)) for it in told["messages"]]
    return bundle


def _parsed_row(told: list[Any], payload: bytes) -> Row:
    _, sequence, chain, parent, checkpoint_id, digest, metadata, labels, created_at = told
    record = Record(
        sequence=sequence,
        chain=chain,
        parent=parent,
        checkpoint_id=checkpoint_id,
        digest=bytes.fromhex(digest),
        metadata=metadata,
        labels=labels,
    )
    return Row(record, datetime.fromisoformat(created_at), payload, is_framed=True)


def _parsed_write(told: list[Any], payload: bytes) -> ArchivedWrite:
    _, checkpoint_id, *ours, created_at = told
    write = PendingWrite(**dict(zip(_WRITE, ours, strict=True)), payload=payload)
    return ArchivedWrite(
        checkpoint_id=checkpoint_id, write=write, created_at=datetime.fromisoformat(created_at)
    )


def _parsed_message(told: list[Any], payload: bytes) -> ArchivedMessage:
    *ours, created_at, has_payload = told
    return ArchivedMessage(
        **dict(zip(_MESSAGE, ours, strict=True)),
        created_at=datetime.fromisoformat(created_at),
        payload=payload if has_payload else None,
    )


def segment_content(bundle: Bundle) -> bytes:
    """Return the bytes of a segment."""
    return packed(content_of({}, bundle, {}))


def segment_bundle(content: bytes) -> Bundle:
    """Return the bundle of a segment.

    Raises:
        IntegrityError: It was cut off or changed.
        SchemaError: It is of a newer version of this library.
    """
    parts = unpacked(content)
    try:
        return bundle_of(parts.told(), parts.payloads)
    except (LookupError, TypeError, ValueError, StopIteration) as exc:
        raise IntegrityError(f"it holds what no save writes ({exc!r:.100})") from exc
