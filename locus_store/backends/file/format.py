"""A thread as a JSON file in which every line is an entry, and a save adds one.

The file is one JSON object. Its first line says whose it is, each further one is an entry of its
list ``log``: a ``line`` (a namespace, and what has become of it), a ``version``, a ``write``, a
``message``, an ``activity``. Read in order they give the thread. Commas stand at the beginning of
lines, so that what is added leaves every line as it was.

Each line ends with a checksum of itself, begun with that of the line above: a line that was
changed, lost, added or moved is found.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import orjson

from locus_store.backends.file.names import is_of_sdk, refusal_of_sdk
from locus_store.errors import IntegrityError, SchemaError
from locus_store.types import ArchivedMessage, ArchivedWrite, PendingWrite
from locus_store.values.encoding import encode
from locus_store.versions import Line, Record
from locus_store.versions.threads import NOTHING, Row, Space, Thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from locus_store.versions.threads import Edit

FORMAT: Final = 1
"""Version of the form; a newer one is refused."""

_END: Final = b"\n]}\n"
_CHECK: Final = b',"check":"'
_CHECK_DIGITS: Final = 8
_LOG: Final = b'","log":['
_CLOSE: Final = b'"}'
_LINE: Final = ("head", "floor", "last_sequence", "writer", "run")
"""Of a line's entry, beside its namespace and key."""

_WRITE: Final = ("task_id", "idx", "channel", "type", "task_path", "basis")
_MESSAGE: Final = ("sequence", "message_id", "role", "metadata", "text")


@dataclass(frozen=True, slots=True)
class End:
    """Where a file can be continued."""

    kept_bytes: int
    """What comes before the end that every file has."""

    entries: int
    checksum: int
    """Of the last line by itself."""


Entry = tuple[bytes, ...]
"""An object without its end, and for a version its operations behind it."""

# --- to bytes


def whole(thread: Thread) -> tuple[bytes, End]:
    """The file of a thread."""
    times = {"created_at": thread.created_at}
    named = {name: getattr(thread, name) for name in ("thread_id", "store")}
    told = {name: value for name in ("user_id", "name") if (value := getattr(thread, name))}
    told |= {"metadata": thread.metadata} if thread.metadata else {}
    head = orjson.dumps({"locus_store": FORMAT, **named, **times, **told})[:-1]
    first = b"%b%b%08x%b" % (head, _CHECK, crc32(head), _LOG)
    end = End(len(first), 0, crc32(head))
    implied = Thread(thread.thread_id, thread.store, thread.created_at, thread.created_at)
    return _continued(first, end, implied, thread, _everything(thread))


def tail(edit: Edit, end: End) -> tuple[bytes, End]:
    """What comes behind ``end.kept_bytes`` of the stored file; ``b""``: nothing has changed."""
    assert edit.old is not None and edit.thread is not None  # noqa: S101, PT018  (it adds only)
    lines = {it: replace(space.line) for it, space in edit.old.spaces.items()}
    spaces = {name: Space(name, line) for name, line in lines.items()}
    entries = (_entry(space, it) for space, it in edit.added)
    rest, after = _continued(b"", end, replace(edit.old, spaces=spaces), edit.thread, entries)
    return (b"", end) if after.entries == end.entries else (rest, after)


def _continued(
    before: bytes, end: End, implied: Thread, thread: Thread, entries: Iterable[Entry]
) -> tuple[bytes, End]:
    """The entries, and those that say what they do not imply.

    Args:
        before: What stands before them.
        end: Of what stands before them.
        implied: The thread without them; it becomes what a reader would make of all.
        thread: What a reader is to make of all.
        entries: What was added.
    """
    out, checksum, count = [before], end.checksum, end.entries

    def add(entry: Entry) -> None:
        nonlocal checksum, count
        body = b"".join((b"," if count else b" ", *entry))
        out.append(b"\n%b%b%08x%b" % (body, _CHECK, crc32(body, checksum), _CLOSE))
        checksum, count = crc32(body), count + 1

    for entry in entries:
        add(entry)
        _apply(implied, orjson.loads(entry[0] + b"}"))
    for entry in list(_corrections(implied, thread)):
        add(entry)
    size = end.kept_bytes + sum(map(len, out[1:]))
    return b"".join(out) + _END, End(size, count, checksum)


def _corrections(implied: Thread, thread: Thread) -> Iterator[Entry]:
    for name, space in thread.spaces.items():
        if _facts(implied.spaces[name].line) != _facts(space.line):
            yield _of_line(space, _facts(space.line))
    times = {"active_at": thread.active_at, "expires_at": thread.expires_at}
    if times != {name: getattr(implied, name) for name in times}:
        yield _encoded("activity", times)


def _facts(line: Line) -> dict[str, Any]:
    return {name: value for name in _LINE if (value := getattr(line, name))}


def _everything(thread: Thread) -> Iterator[Entry]:
    """All entries, by time; those of a namespace keep their order."""
    dated = [it for space in thread.spaces.values() for it in _dated(space, thread.created_at)]
    yield from (entry for _, entry in sorted(dated, key=lambda it: it[0]))
    yield from map(_of_message, thread.messages)


def _dated(space: Space, made_at: datetime) -> Iterator[tuple[datetime, Entry]]:
    rows = list(space.rows.values())
    at = first = rows[0].created_at if rows else made_at
    yield at, _of_line(space, {})
    for row in rows:
        at = max(at, row.created_at)
        yield at, _of_version(space, row)
    for of_checkpoint in space.writes.values():
        for write in of_checkpoint.values():
            yield max(first, write.created_at), _of_write(space, write)


def _entry(space: Space, it: Row | ArchivedWrite | None) -> Entry:
    if it is None:
        return _of_line(space, {})
    return _of_version(space, it) if isinstance(it, Row) else _of_write(space, it)


def _encoded(kind: str, values: dict[str, Any], space: Space | None = None) -> Entry:
    where = {"namespace": space.namespace} if space and space.namespace else {}
    return (orjson.dumps({"kind": kind, **where, **values})[:-1],)


def _of_line(space: Space, facts: dict[str, Any]) -> Entry:
    return _encoded("line", {"key": space.line.line, **facts}, space)


def _of_version(space: Space, row: Row) -> Entry:
    it = row.record
    values = {
        "sequence": it.sequence,
        "checkpoint_id": it.checkpoint_id,
        "parent": it.parent,
        "chain": it.chain,
        "created_at": row.created_at,
        **row.told,
        **{name: value for name in ("metadata", "labels") if (value := getattr(it, name))},
        "digest": it.digest.hex(),
    }
    return (*_encoded("version", values, space), b',"operations":', row.body())


def _of_write(space: Space, it: ArchivedWrite) -> Entry:
    values = {
        "checkpoint_id": it.checkpoint_id,
        **{name: getattr(it.write, name) for name in _WRITE},
        "created_at": it.created_at,
        "payload": _base64(it.write.payload),
    }
    return _encoded("write", values, space)


def _of_message(it: ArchivedMessage) -> Entry:
    values = {name: getattr(it, name) for name in _MESSAGE}
    return _encoded(
        "message", {**values, "created_at": it.created_at, "payload": _base64(it.payload)}
    )


def _base64(payload: bytes | None) -> str | None:
    return None if payload is None else base64.b64encode(payload).decode()


# --- from bytes


def parsed(content: bytes, thread_id: str, path: str) -> tuple[Thread, End]:
    """The thread of a file.

    Raises:
        IntegrityError: It was cut off or changed, or is another thread's, or none of ours.
        SchemaError: It is of the Locus SDK, or of a newer version of this library.
    """
    if is_of_sdk(content):
        raise refusal_of_sdk(path)
    if not content.endswith(_END):
        raise _damaged(path, "it is cut off, or no file of this library")
    lines = content[: -len(_END)].split(b"\n")
    try:
        thread, checksum = _header(lines[0], path)
        for number, line in enumerate(lines[1:], 2):
            checksum = _apply_line(thread, line, number, checksum)
    except _LineError as exc:
        raise _damaged(path, str(exc)) from exc
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise _damaged(path, f"it holds what no save writes ({exc!r:.100})") from exc
    if thread.thread_id != thread_id:
        raise _damaged(
            path, f"it is of the thread {thread.thread_id!r}, and its name says {thread_id!r}"
        )
    return thread, End(len(content) - len(_END), len(lines) - 1, checksum)


class _LineError(ValueError):
    """A line is not as it was written."""


def _damaged(path: str, what: str) -> IntegrityError:
    return IntegrityError(
        f"{path} is damaged or was edited: {what}. Restore the file, as with `git checkout`, or "
        "remove it"
    )


def _header(line: bytes, path: str) -> tuple[Thread, int]:
    body = line[: -len(_CHECK) - _CHECK_DIGITS - len(_LOG)]
    if line != b"%b%b%08x%b" % (body, _CHECK, crc32(body), _LOG):
        raise _LineError("line 1 is not as it was written")
    it = orjson.loads(body + b"}")
    if it.pop("locus_store") != FORMAT:
        raise SchemaError(f"{path} was written by a newer locus-store; upgrade this one")
    created_at = datetime.fromisoformat(it.pop("created_at"))
    return Thread(**it, created_at=created_at, active_at=created_at), crc32(body)


def _apply_line(thread: Thread, line: bytes, number: int, checksum: int) -> int:
    """Do what a line says; return its checksum by itself."""
    body = line[: -len(_CHECK) - _CHECK_DIGITS - len(_CLOSE)]
    if line != b"%b%b%08x%b" % (body, _CHECK, crc32(body, checksum), _CLOSE):
        raise _LineError(f"line {number} is not as it was written, or the one above it")
    _apply(thread, orjson.loads(body[1:] + b"}"))
    return crc32(body)


def _apply(thread: Thread, it: dict[str, Any]) -> None:
    kind = it.pop("kind")
    if kind == "activity":
        thread.active_at = datetime.fromisoformat(it["active_at"])
        thread.expires_at = _moment(it["expires_at"])
    elif kind == "message":
        thread.messages.append(_message(it))
    elif kind == "line":
        _line(thread, it)
    elif kind == "version":
        _version(thread, thread.spaces[it.pop("namespace", "")], it)
    elif kind == "write":
        thread.spaces[it.pop("namespace", "")].put_write(_write(it))
    else:
        raise _LineError(f"an entry is of the unknown kind {kind!r}")


def _line(thread: Thread, it: dict[str, Any]) -> None:
    namespace, line = it.pop("namespace", ""), Line(line=it.pop("key"), **it)
    space = thread.spaces.get(namespace)
    if space is None:
        thread.spaces[namespace] = Space(namespace, line)
    else:
        space.line = line


def _version(thread: Thread, space: Space, it: dict[str, Any]) -> None:
    created_at = datetime.fromisoformat(it["created_at"])
    record = Record(
        sequence=it["sequence"],
        chain=it["chain"],
        parent=it["parent"],
        checkpoint_id=it["checkpoint_id"],
        digest=bytes.fromhex(it["digest"]),
        metadata=it.get("metadata", {}),
        labels=it.get("labels", {}),
    )
    told = {name: it[name] for name in _TOLD if name in it}
    if "expires_at" in told:
        told["expires_at"] = thread.expires_at = datetime.fromisoformat(told["expires_at"])
    body = encode(it["operations"]) if "operations" in it else NOTHING
    space.put(Row(record, created_at, body, told))
    thread.active_at = created_at
    line = space.line
    line.last_sequence, line.floor = record.sequence, told.get("floor", 0)
    if "beside_head" not in told:
        line.head = record.sequence
        line.writer, line.run = told.get("writer"), told.get("run")


_TOLD: Final[tuple[str, ...]] = ("floor", "beside_head", "writer", "run", "expires_at")
"""Of a version's entry: what its save did to the line and the thread."""


def _write(it: dict[str, Any]) -> ArchivedWrite:
    payload = base64.b64decode(it["payload"], validate=True)
    return ArchivedWrite(
        checkpoint_id=it["checkpoint_id"],
        write=PendingWrite(**{name: it[name] for name in _WRITE}, payload=payload),
        created_at=datetime.fromisoformat(it["created_at"]),
    )


def _message(it: dict[str, Any]) -> ArchivedMessage:
    payload = it["payload"]
    return ArchivedMessage(
        **{name: it[name] for name in _MESSAGE},
        created_at=datetime.fromisoformat(it["created_at"]),
        payload=None if payload is None else base64.b64decode(payload, validate=True),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
