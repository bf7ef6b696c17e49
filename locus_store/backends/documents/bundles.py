"""The bytes of heads and segments: facts as compressed JSON, then payloads.

An object begins with ``MAGIC`` and the lengths of two frames. The first frame holds what each put
changes (a head's tokens), the second one the facts; both have a checksum. The payloads follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from locus_store.errors import IntegrityError, SchemaError
from locus_store.types import ArchivedLog, ArchivedMessage, ArchivedWrite, PendingWrite
from locus_store.values.encoding import MAX_STATE_BYTES, pack_frame, unpack_frames
from locus_store.versions import Line, Record
from locus_store.versions.histories import History, Row
from locus_store.versions.lines import list_fields

MAGIC: Final = b"locus-store 1\n"
"""With the version of the form; another one is refused."""

_FAMILY: Final = b"locus-store "
_LENGTH_BYTES: Final = 4
_FACTS_AT: Final = len(MAGIC) + 2 * _LENGTH_BYTES

ENTRY_BYTES: Final = 200
"""The facts of one version or write count as this many bytes."""

THREAD: Final = ("thread_id", "store", "user_id", "name", "metadata")
"""The fields of a thread, beside its times and turns."""

_WRITE: Final = ("task_id", "idx", "channel", "type", "task_path", "basis")
_LOG: Final = ("namespace", "revision", "last_sequence", "changed_at")
_MESSAGE: Final = ("namespace", "sequence", "message_id", "role", "metadata", "text")


@dataclass(slots=True)
class Bundle:
    """Versions, pending writes and messages that are stored together."""

    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    """Versions by namespace and sequence."""

    writes: list[tuple[str, ArchivedWrite]] = field(default_factory=list)
    """Namespaces and pending writes; a later one replaces an earlier one."""

    messages: list[ArchivedMessage] = field(default_factory=list)

    def iterate_rows(self) -> Iterator[tuple[str, Row]]:
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
        self.rows.setdefault(namespace, {})[row.record.sequence] = row

    @property
    def size(self) -> int:
        """About the bytes that this takes in an object."""
        payloads = [row.payload for _, row in self.iterate_rows()]
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

    def describe(self) -> dict[str, Any]:
        """Return the facts.

        Raises:
            IntegrityError: The payloads differ from those that were written.
        """
        fields: dict[str, Any] = orjson.loads(self.facts)
        if fields.pop("check") != crc32(self.payloads):
            raise IntegrityError("its payloads are not as they were written")
        return fields


def make_content(
    facts: dict[str, Any], bundle: Bundle, note: dict[str, Any], before: bytes = b""
) -> ObjectContent:
    """Return an object's content.

    Args:
        facts: What the object says beside its bundle.
        bundle: Its versions, writes and messages.
        note: What differs between two puts of the same content.
        before: Bytes to store before the payloads.
    """
    of_bundle, payloads = describe_bundle(bundle)
    joined = b"".join((before, *payloads))
    all_facts = {**facts, **of_bundle, "check": crc32(joined)}
    return ObjectContent(note, orjson.dumps(all_facts), joined)


def pack(content: ObjectContent) -> bytes:
    """Return the bytes of an object."""
    frames = pack_frame(orjson.dumps(content.note)), pack_frame(content.facts)
    lengths = (len(it).to_bytes(_LENGTH_BYTES, "little") for it in frames)
    return b"".join((MAGIC, *lengths, *frames, content.payloads))


def describe_bundle(bundle: Bundle) -> tuple[dict[str, Any], list[bytes]]:
    """Return the facts of a bundle, and its payloads."""
    rows = list(bundle.iterate_rows())
    payloads = [row.payload for _, row in rows]
    payloads += [it.write.payload for _, it in bundle.writes]
    payloads += [it.payload or b"" for it in bundle.messages]
    facts: dict[str, Any] = {
        "rows": [_describe_row(*it) for it in rows],
        "writes": [_describe_write(*it) for it in bundle.writes],
        "messages": [_describe_message(it) for it in bundle.messages],
        "lengths": [*map(len, payloads)],
    }
    return {name: it for name, it in facts.items() if it}, payloads


def _describe_row(namespace: str, row: Row) -> list[Any]:
    record = row.record
    place = namespace, record.sequence, record.chain, record.parent, record.checkpoint_id
    return [*place, record.digest.hex(), record.metadata, record.labels, row.created_at]


def _describe_write(namespace: str, entry: ArchivedWrite) -> list[Any]:
    ours = [getattr(entry.write, name) for name in _WRITE]
    return [namespace, entry.checkpoint_id, *ours, entry.created_at]


def _describe_message(message: ArchivedMessage) -> list[Any]:
    fields = [getattr(message, name) for name in _MESSAGE]
    return [*fields, message.created_at, message.payload is not None]


def unpack(content: bytes) -> ObjectContent:
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
    note, facts = _unpack_frame(content[_FACTS_AT:first]), _unpack_frame(content[first:second])
    return ObjectContent(orjson.loads(note), facts, content[second:])


def _unpack_frame(content: bytes) -> bytes:
    bodies = list(unpack_frames(content, MAX_STATE_BYTES))
    if len(bodies) != 1:
        raise IntegrityError("it is cut off")
    return bodies[0]


def parse_bundle(fields: dict[str, Any], payloads: bytes) -> Bundle:
    """Return the bundle of an object's facts and payloads."""
    parts = split_payloads(fields, payloads)
    bundle = Bundle()
    for row in fields.get("rows", ()):
        bundle.put(row[0], _DescribedRow(row, next(parts)))
    bundle.writes = [(it[0], write_of(it, next(parts))) for it in fields.get("writes", ())]
    bundle.messages = [make_message(it, next(parts)) for it in fields.get("messages", ())]
    return bundle


def split_payloads(fields: dict[str, Any], content: bytes, start: int = 0) -> Iterator[bytes]:
    """Yield the payloads of a bundle, which begin at a place of the content."""
    for length in fields.get("lengths", ()):
        yield content[start : start + length]
        start += length


def put_row(history: History, fields: list[Any], payload: bytes) -> None:
    """Add the version of its facts and payload to its namespace, in which it is the newest."""
    _, sequence, chain, _, checkpoint_id, *_ = fields
    history.add(_DescribedRow(fields, payload), sequence, chain, checkpoint_id)


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the facts."""
    return None if text is None else datetime.fromisoformat(text)


class _DescribedRow(Row):
    """A version whose facts are parsed when they are asked for: a load asks for few."""

    __slots__ = ("_facts",)

    def __init__(self, facts: list[Any], payload: bytes) -> None:
        self._facts = facts
        self.payload = payload
        self.line_changes = {}

    def __getattr__(self, name: str) -> Any:
        """Set ``record`` and ``created_at``, of which one is missing."""
        _, sequence, chain, parent, checkpoint_id, digest, metadata, labels, at = self._facts
        place = sequence, chain, parent, checkpoint_id
        self.created_at = datetime.fromisoformat(at)
        self.record = Record(*place, bytes.fromhex(digest), metadata, labels)
        return object.__getattribute__(self, name)


def write_of(fields: list[Any], payload: bytes) -> ArchivedWrite:
    """Return the pending write of its facts and payload."""
    _, checkpoint_id, *ours, created_at = fields
    write = PendingWrite(**dict(zip(_WRITE, ours, strict=True)), payload=payload)
    return ArchivedWrite(
        checkpoint_id=checkpoint_id, write=write, created_at=datetime.fromisoformat(created_at)
    )


def make_message(fields: list[Any], payload: bytes) -> ArchivedMessage:
    """Return the message of its facts and payload."""
    *ours, created_at, has_payload = fields
    return ArchivedMessage(
        **dict(zip(_MESSAGE, ours, strict=True)),
        created_at=datetime.fromisoformat(created_at),
        payload=payload if has_payload else None,
    )


def describe_line(history: History) -> list[Any]:
    """Return a namespace and its line, as facts have them: without what is last and missing."""
    fields = [history.namespace, *list_fields(history.line)]
    while fields[-1] is None:
        del fields[-1]
    return fields


def parse_line(fields: list[Any]) -> tuple[str, Line]:
    """Return the namespace and the line of ``describe_line``."""
    namespace, *facts = fields
    return namespace, Line(*facts)


def describe_log(log: ArchivedLog) -> list[Any]:
    """Return a message log, as facts have it."""
    return [getattr(log, name) for name in _LOG]


def parse_log(fields: list[Any]) -> ArchivedLog:
    """Return the message log of ``describe_log``."""
    *facts, changed_at = fields
    at = datetime.fromisoformat(changed_at)
    return ArchivedLog(**dict(zip(_LOG, [*facts, at], strict=True)))


def unpack_segment(content: bytes) -> Bundle:
    """Return the bundle of a segment.

    Raises:
        IntegrityError: It was cut off or changed.
        SchemaError: It is of a newer version of this library.
    """
    parts = unpack(content)
    try:
        return parse_bundle(parts.describe(), parts.payloads)
    except (LookupError, TypeError, ValueError, StopIteration) as exc:
        raise IntegrityError(f"it holds what no save writes ({exc!r:.100})") from exc
