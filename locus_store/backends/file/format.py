"""A thread as a JSON document: every line is an entry, and a save appends one.

It is one JSON object. Its first line says whose it is, each further one is an entry of its list
``log``: a ``line`` (a namespace, and what has become of it), a ``version``, a ``write``, a
``message``, a ``log`` (a message log without its messages), an ``activity``, an ``outbox``, a
``delivery``, the ``turns``. Read in order they give the thread. Commas stand at the beginning of
lines, so that what is added leaves every line as it was.

Each line ends with a checksum of itself, begun with that of the line above: a line that was
changed, lost, added or moved is found.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias
from zlib import crc32

import orjson

from locus_store.backends.documents.bundles import parse_time
from locus_store.backends.documents.protocol import Body, DocumentForm, Draft, Parsed
from locus_store.errors import IntegrityError, SchemaError
from locus_store.types import ArchivedMessage, ArchivedWrite
from locus_store.types.logs import Outbox
from locus_store.values.encoding import UNLIMITED
from locus_store.values.frames import encode_operations, read_restorable_operations
from locus_store.values.sealing import is_sealed
from locus_store.versions import Line, Record
from locus_store.versions.archives import (
    describe_log,
    describe_message,
    describe_write,
    parse_log,
    parse_message,
    parse_write,
    select,
)
from locus_store.versions.histories import History, Row
from locus_store.versions.threads import Thread, ThreadTransaction

FORMAT: Final = 1
"""Version of the form; a newer one is refused."""

_END: Final = b"\n]}\n"
_CHECK: Final = b',"check":"'
_CHECK_DIGITS: Final = 8
_LOG: Final = b'","log":['
_CLOSE: Final = b'"}'
_PLACE: Final = ("sequence", "checkpoint_id", "parent", "chain")
"""The fields of a version's entry that are always there, beside its time and digest."""

_LINE: Final = ("head", "floor", "last_sequence", "writer", "run")
"""The fields of a line's entry, beside its namespace and key."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a document, at which it can be continued."""

    kept_bytes: int
    """Bytes before the closing characters that every document has."""

    entries: int
    checksum: int
    """Checksum of the last line alone."""

    @property
    def size(self) -> int:
        """The size of the document in bytes."""
        return self.kept_bytes + len(_END)


Entry: TypeAlias = tuple[bytes, ...]
"""An object without its end, and for a version its operations behind it."""

Added: TypeAlias = "tuple[History, Row | ArchivedWrite | None]"
"""See ``ThreadTransaction.added``."""


def encode_thread(thread: Thread) -> tuple[Body, End]:
    """Return the whole document of a thread."""
    times = {"created_at": thread.created_at}
    named = {name: getattr(thread, name) for name in ("thread_id", "store")}
    fields = {name: getattr(thread, name) for name in ("user_id", "name")}
    fields = {name: it for name, it in fields.items() if it is not None}
    fields |= {"metadata": thread.metadata} if thread.metadata else {}
    head = orjson.dumps({"locus_store": FORMAT, **named, **times, **fields})[:-1]
    first = b"%b%b%08x%b" % (head, _CHECK, crc32(head), _LOG)
    end = End(len(first), 0, crc32(head))
    implied = Thread(thread.thread_id, thread.store, thread.created_at, thread.created_at)
    content, end = _continue_document(
        first, end, implied, thread, _list_everything(thread), messages=thread.messages
    )
    return Body(0, content), end


def encode_tail(transaction: ThreadTransaction, end: End) -> tuple[Body, End]:
    """Return the document with the additions; the rest is ``b""`` if nothing changed."""
    old, thread = transaction.old, transaction.thread
    assert old is not None and thread is not None  # noqa: S101, PT018  (it adds only)
    histories = {name: History(name, it.line.copy()) for name, it in old.histories.items()}
    implied, messages = replace(old, histories=histories), thread.messages[len(old.messages) :]
    rest, after = _continue_document(
        b"", end, implied, thread, transaction.added, messages=messages
    )
    if after.entries == end.entries:
        return Body(end.kept_bytes, b""), end
    return Body(end.kept_bytes, rest), after


def _continue_document(
    before: bytes,
    end: End,
    image: Thread,
    thread: Thread,
    additions: Iterable[Added],
    *,
    messages: Iterable[ArchivedMessage],
) -> tuple[bytes, End]:
    """Return the document continued by what was added, with corrections, and its new end.

    Args:
        before: What stands before them.
        end: Of what stands before them.
        image: The thread without them; its lines and times become what a reader makes of all.
        thread: What a reader is to make of all.
        additions: In order.
        messages: Those that were added.
    """
    out, checksum, count = [before], end.checksum, end.entries

    def add(entry: Entry) -> None:
        nonlocal checksum, count
        body = b"".join((b"," if count else b" ", *entry))
        out.append(b"\n%b%b%08x%b" % (body, _CHECK, crc32(body, checksum), _CLOSE))
        checksum, count = crc32(body), count + 1

    for history, item in additions:
        add(_make_entry(history, item))
        _apply_addition(image, history, item)
    of_messages = (_encode_entry("message", describe_message(it)) for it in messages)
    for entry in (*of_messages, *_list_corrections(image, thread)):
        add(entry)
    size = end.kept_bytes + sum(map(len, out[1:]))
    return b"".join(out) + _END, End(size, count, checksum)


def _apply_addition(image: Thread, history: History, item: Row | ArchivedWrite | None) -> None:
    """Apply an entry to the lines and times as a reader of the entry does."""
    if item is None:
        name, line = history.namespace, Line(line=history.line.line)
        image.histories[name] = History(name, line)
    elif isinstance(item, Row):
        _advance(image, image.histories[history.namespace].line, item)


def _list_corrections(image: Thread, thread: Thread) -> Iterator[Entry]:
    for name, history in thread.histories.items():
        if _describe_line(image.histories[name].line) != _describe_line(history.line):
            yield _encode_line(history, _describe_line(history.line))
    for name, log in thread.logs.items():
        if image.logs.get(name) != log:
            facts = describe_log(log)
            yield _encode_entry("log", {name: it for name, it in facts.items() if it != ""})
    if image.outbox != thread.outbox:
        yield _encode_entry("outbox", {"edits": thread.outbox and thread.outbox.to_json()})
    for source in image.delivered.keys() | thread.delivered.keys():
        token = thread.delivered.get(source)
        if image.delivered.get(source) != token:
            yield _encode_entry("delivery", {"thread_id": source, "token": token})
    if image.tickets != thread.tickets:
        yield _encode_entry("turns", thread.dump_turns())
    times = {"active_at": thread.active_at, "expires_at": thread.expires_at}
    if times != {name: getattr(image, name) for name in times}:
        yield _encode_entry("activity", times)


def _describe_line(line: Line) -> dict[str, Any]:
    return {name: value for name in _LINE if (value := getattr(line, name))}


def _list_everything(thread: Thread) -> list[Added]:
    """Return everything but the messages by time; a namespace's entries keep their order."""
    histories = thread.histories.values()
    dated = [
        (at, history, entry)
        for history in histories
        for at, entry in _iterate_dated(history, thread.created_at)
    ]
    return [(history, it) for _, history, it in sorted(dated, key=lambda it: it[0])]


def _iterate_dated(
    history: History, made_at: datetime
) -> Iterator[tuple[datetime, Row | ArchivedWrite | None]]:
    rows = list(history.rows.values())
    at = first = rows[0].created_at if rows else made_at
    yield at, None
    for row in rows:
        at = max(at, row.created_at)
        yield at, row
    for of_checkpoint in history.writes.values():
        for write in of_checkpoint.values():
            yield max(first, write.created_at), write


def _make_entry(history: History, item: Row | ArchivedWrite | None) -> Entry:
    if item is None:
        return _encode_line(history, {})
    if isinstance(item, Row):
        return _encode_version(history, item)
    return _encode_entry("write", describe_write(item), history)


def _encode_entry(kind: str, values: dict[str, Any], history: History | None = None) -> Entry:
    where = {"namespace": history.namespace} if history and history.namespace else {}
    return (orjson.dumps({"kind": kind, **where, **values})[:-1],)


def _encode_line(history: History, facts: dict[str, Any]) -> Entry:
    return _encode_entry("line", {"key": history.line.line, **facts}, history)


def _encode_version(history: History, row: Row) -> Entry:
    record = row.record
    values = {
        **select(record, _PLACE),
        "created_at": row.created_at,
        **row.line_changes,
        **{name: value for name in ("metadata", "labels") if (value := getattr(record, name))},
        "digest": record.digest.hex(),
    }
    operations = b',"operations":', _encode_body(row.payload)
    return _encode_entry("version", values, history) + operations


def _encode_body(payload: bytes) -> bytes:
    """Return the operations of a payload as one JSON list on one line; sealed, as a string."""
    if is_sealed(payload):
        return b'"%b"' % base64.b64encode(payload)
    return read_restorable_operations(payload, UNLIMITED)


def _parse_body(operations: Any) -> bytes:
    """Return the payload of what ``_encode_body`` gave, as parsed from JSON."""
    if isinstance(operations, str):
        return base64.b64decode(operations, validate=True)
    return encode_operations(operations)


def _parse_document(content: bytes, thread_id: str, where: str) -> tuple[Thread, End]:
    if not content.endswith(_END):
        raise _LineError("it is cut off, or was not written by this library")
    lines = content[: -len(_END)].split(b"\n")
    try:
        thread, checksum = _read_header(lines[0], where)
        for number, line in enumerate(lines[1:], 2):
            checksum = _apply_line(thread, line, number, checksum)
    except _LineError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, IntegrityError) as exc:
        raise _LineError(f"it holds what no save writes ({exc!r:.100})") from exc
    if thread.thread_id != thread_id:
        raise _LineError(
            f"it is of the thread {thread.thread_id!r}, and its name says {thread_id!r}"
        )
    return thread, End(len(content) - len(_END), len(lines) - 1, checksum)


class _LineError(ValueError):
    """Raised for a line that differs from the line that was written."""


def _read_header(line: bytes, where: str) -> tuple[Thread, int]:
    body = line[: -len(_CHECK) - _CHECK_DIGITS - len(_LOG)]
    if line != b"%b%b%08x%b" % (body, _CHECK, crc32(body), _LOG):
        raise _LineError("line 1 is not as it was written")
    header = orjson.loads(body + b"}")
    if header.pop("locus_store") != FORMAT:
        raise SchemaError(f"{where} was written by a newer locus-store; upgrade this one")
    created_at = datetime.fromisoformat(header.pop("created_at"))
    return Thread(**header, created_at=created_at, active_at=created_at), crc32(body)


def _apply_line(thread: Thread, line: bytes, number: int, checksum: int) -> int:
    """Apply a line to the thread; return the checksum of the line alone."""
    body = line[: -len(_CHECK) - _CHECK_DIGITS - len(_CLOSE)]
    if line != b"%b%b%08x%b" % (body, _CHECK, crc32(body, checksum), _CLOSE):
        raise _LineError(f"line {number} is not as it was written, or the one above it")
    _apply(thread, orjson.loads(body[1:] + b"}"))
    return crc32(body)


def _apply(thread: Thread, entry: dict[str, Any]) -> None:
    kind = entry.pop("kind")
    if kind == "activity":
        thread.active_at = datetime.fromisoformat(entry["active_at"])
        thread.expires_at = parse_time(entry["expires_at"])
    elif kind == "message":
        thread.messages.append(parse_message(entry))
    elif kind == "log":
        log = parse_log(entry)
        thread.logs[log.namespace] = log
    elif kind == "outbox":
        thread.outbox = Outbox.from_json(entry["edits"])
    elif kind == "turns":
        thread.load_turns(entry)
    elif kind == "delivery":
        delivered = {**thread.delivered, entry["thread_id"]: entry["token"]}
        thread.delivered = {name: token for name, token in delivered.items() if token}
    elif kind == "line":
        _read_line(thread, entry)
    elif kind == "version":
        _read_version(thread, thread.histories[entry.pop("namespace", "")], entry)
    elif kind == "write":
        thread.histories[entry.pop("namespace", "")].put_write(parse_write(entry))
    else:
        raise _LineError(f"an entry is of the unknown kind {kind!r}")


def _read_line(thread: Thread, entry: dict[str, Any]) -> None:
    namespace, line = entry.pop("namespace", ""), Line(line=entry.pop("key"), **entry)
    history = thread.histories.get(namespace)
    if history is None:
        thread.histories[namespace] = History(namespace, line)
    else:
        history.line = line


def _read_version(thread: Thread, history: History, entry: dict[str, Any]) -> None:
    created_at = datetime.fromisoformat(entry["created_at"])
    record = Record(
        **{name: entry[name] for name in _PLACE},
        digest=bytes.fromhex(entry["digest"]),
        metadata=entry.get("metadata", {}),
        labels=entry.get("labels", {}),
    )
    changes = {name: entry[name] for name in _TOLD if name in entry}
    if "expires_at" in changes:
        changes["expires_at"] = datetime.fromisoformat(changes["expires_at"])
    row = Row(record, created_at, _parse_body(entry["operations"]), changes)
    history.put(row)
    _advance(thread, history.line, row)


def _advance(thread: Thread, line: Line, row: Row) -> None:
    """Apply the save of a version to its line and thread."""
    changes = row.line_changes
    thread.active_at = row.created_at
    thread.expires_at = changes.get("expires_at", thread.expires_at)
    line.last_sequence, line.floor = row.record.sequence, changes.get("floor", 0)
    if "beside_head" not in changes:
        line.head = row.record.sequence
        line.writer, line.run = changes.get("writer"), changes.get("run")


def _list_line_changes(transaction: ThreadTransaction, line: Line, row: Row) -> dict[str, Any]:
    """Return how the save of a new version changed the line."""
    changes: dict[str, Any] = {"floor": line.floor} if line.floor else {}
    if line.head != row.record.sequence:
        changes["beside_head"] = True
    else:
        pairs = ("writer", line.writer), ("run", line.run)
        changes |= {name: value for name, value in pairs if value is not None}
    old, thread = transaction.old, transaction.thread
    expires_at = thread.expires_at if thread else None
    if expires_at is not None and (old is None or old.expires_at != expires_at):
        changes["expires_at"] = expires_at
    return changes


_TOLD: Final[tuple[str, ...]] = ("floor", "beside_head", "writer", "run", "expires_at")
"""The fields of a version's entry that record how its save changed the line and the thread."""


class LinesForm(DocumentForm):
    """A whole thread in one JSON object, to which a save adds lines."""

    def parse(self, content: bytes, thread_id: str) -> tuple[Thread, End]:
        where = self.documents.locate(thread_id)
        try:
            return _parse_document(content, thread_id, where)
        except _LineError as exc:
            reason = f"{where} is damaged or was edited: {exc}"
            raise IntegrityError(f"{reason}. {self.documents.remedy}") from exc

    def draft(self, transaction: ThreadTransaction, old: Parsed | None) -> Draft | None:
        thread = transaction.thread
        assert thread is not None  # noqa: S101  (the caller deletes it else)
        for history, row in transaction.added:
            if isinstance(row, Row):
                row.line_changes = _list_line_changes(transaction, history.line, row)
        if old is not None and transaction.adds_only:
            body, end = encode_tail(transaction, old.end)
        else:
            body, end = encode_thread(thread)
        return Draft(body, thread, end) if body.rest else None

    def holds(self, content: bytes, draft: Draft) -> bool:
        # Entries tell puts apart: they have ids, microseconds, and a checksum of the entry above.
        body = draft.body
        return body is not None and content.startswith(
            body.rest.removesuffix(_END), body.kept_bytes
        )
