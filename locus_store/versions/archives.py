"""Archived threads: verification, storing, and the seal on pending writes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from locus_store.errors import (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    SerializationError,
)
from locus_store.types import (
    ArchivedLine,
    ArchivedLog,
    ArchivedMessage,
    ArchivedRecord,
    ArchivedThread,
    ArchivedWrite,
    PendingWrite,
)
from locus_store.types.arguments import check_names, check_text, check_writes
from locus_store.types.messages import decode_message
from locus_store.types.thread_info import MAX_NAME_CHARACTERS
from locus_store.values import frames
from locus_store.values.canonical import canonicalize
from locus_store.values.encoding import FRAME_VERSION, digest, encode_canonical
from locus_store.values.filters import has_value, is_found
from locus_store.values.sealing import is_sealed_by_client
from locus_store.versions import JSON_WRITE, expand_write, select_current
from locus_store.versions.reading import ThreadStorage
from locus_store.versions.segments import decompress_payload

SEAL_BYTES = 8
"""Length of the checksum that a payload begins with: the start of the digest of the rest."""


_MAX_SEQUENCE: Final = 2**62
_DIGEST_BYTES: Final = 16
_FIRST_YEAR, _LAST_YEAR = 1900, 9000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Stored data that differs from what was saved, or is misplaced."""

    thread_id: str | None
    """``None``: of the database as a whole."""

    namespace: str = ""
    checkpoint_id: str | None = None
    what: str

    def __str__(self) -> str:
        where = [] if self.thread_id is None else [f"thread {self.thread_id!r}"]
        where += [f"namespace {self.namespace!r}"] if self.namespace else []
        where += [f"checkpoint {self.checkpoint_id!r}"] if self.checkpoint_id else []
        return f"{', '.join(where)}: {self.what}" if where else self.what


def find_problems(thread: ArchivedThread, max_state_bytes: int) -> Iterator[Problem]:
    """Yield the problems of a thread: versions that do not match their digests, broken links.

    A state, a pending write or a message that cannot be decoded, or is above ``max_state_bytes``,
    is a problem, too. What a client of a service has sealed can be verified by such a client only.
    """
    for line in thread.lines:
        for checkpoint_id, what in _check_line(line, max_state_bytes):
            yield Problem(
                thread_id=thread.thread_id,
                namespace=line.namespace,
                checkpoint_id=checkpoint_id,
                what=what,
            )
    for message in thread.messages:
        try:
            if not is_sealed_by_client(message.payload or b""):
                decode_message(message, max_state_bytes)
        except IntegrityError as exc:
            yield Problem(thread_id=thread.thread_id, namespace=message.namespace, what=str(exc))


def require_whole(thread: ArchivedThread, max_state_bytes: int) -> None:
    """Refuse a thread that is damaged, or that no backend could have stored.

    Raises:
        IntegrityError: The first problem found.
        InvalidArgumentError, SerializationError: An id, or metadata, is none.
    """
    require_form(thread)
    for problem in find_problems(thread, max_state_bytes):
        raise IntegrityError(f"{problem}; nothing was written")


def are_same(one: ArchivedThread, other: ArchivedThread, max_bytes: int) -> bool:
    """Return whether two archives are equal, except for the time of the thread's activity.

    Records that were joined in the background are no longer compressed. ``max_bytes``: a record
    that takes more than this uncompressed is compared as it is.
    """
    one = replace(one, active_at=other.active_at)
    return one == other or _digest_records(one, max_bytes) == _digest_records(other, max_bytes)


def _digest_records(thread: ArchivedThread, max_bytes: int) -> ArchivedThread:
    """Return a thread with a digest in the place of each record's payload."""

    def digest_record(record: ArchivedRecord) -> ArchivedRecord:
        with suppress(IntegrityError):  # it is sealed, damaged or too large
            record = replace(record, payload=digest(decompress_payload(record.payload, max_bytes)))
        return record

    lines = [replace(it, records=[*map(digest_record, it.records)]) for it in thread.lines]
    return replace(thread, lines=lines)


def require_same_form(old: ArchivedThread, new: ArchivedThread) -> None:
    """Refuse a thread whose ids, numbers or times differ from another one's."""
    if _without_contents(old) != _without_contents(new):
        raise InvalidArgumentError(
            f"thread {old.thread_id!r}: only contents may be replaced, not ids, numbers or times"
        )


def _without_contents(thread: ArchivedThread) -> ArchivedThread:
    lines = [
        replace(
            line,
            records=[
                replace(record, digest=b"", metadata={}, labels={}, payload=b"")
                for record in line.records
            ],
            writes=[replace(it, write=replace(it.write, payload=b"")) for it in line.writes],
        )
        for line in thread.lines
    ]
    messages = [it._replace(metadata={}, text=None, payload=None) for it in thread.messages]
    return replace(thread, lines=lines, messages=messages)


def make_changed_error(thread_id: str) -> ConflictError:
    """Return the error of a thread that is not as it was read."""
    return ConflictError(f"thread {thread_id!r} was changed meanwhile; nothing was written")


def compute_last_active_at(thread: ArchivedThread) -> datetime:
    """Return the time of a thread's last activity: exact if its contents determine it."""
    times = [it.created_at for line in thread.lines for it in line.records]
    times += [it.changed_at for it in thread.logs]
    newest = max(times, default=thread.active_at)
    return newest if cut_to_minute(newest) == thread.active_at else thread.active_at


def find_newest_at(thread: ArchivedThread) -> datetime:
    """Return the time of the newest version, log or pending write, else of the last activity."""
    times = [it.created_at for line in thread.lines for it in line.records]
    times += [it.created_at for line in thread.lines for it in line.writes]
    times += [it.changed_at for it in thread.logs]
    return max(times, default=thread.active_at)


def has_versions(thread: ArchivedThread) -> bool:
    """Return whether a thread has a version, in any namespace."""
    return any(line.head is not None for line in thread.lines)


def make_copy(thread: ArchivedThread, thread_id: str) -> ArchivedThread:
    """Return the copy of a thread; one that has versions is active from now on."""
    active_at = datetime.now(UTC) if has_versions(thread) else thread.active_at
    return replace(thread, thread_id=thread_id, active_at=active_at)


def compute_idle_since(active_at: datetime, logs: Iterable[ArchivedLog]) -> datetime:
    """Return the activity of a thread without versions: its logs' last change, else its minute."""
    return max((it.changed_at for it in logs), default=cut_to_minute(active_at))


def cut_to_minute(moment: datetime) -> datetime:
    """Return a time rounded down to the minute."""
    return moment.replace(second=0, microsecond=0)


def make_occupied_error(thread_id: str, done: str) -> ConflictError:
    """Return the error for a copy or restore to an existing thread; ``done`` is the verb."""
    return ConflictError(
        f"thread {thread_id!r} already exists, or has pending writes; nothing was {done}. "
        "Delete it first, or use another id"
    )


def require_form(thread: ArchivedThread) -> None:
    """Refuse values of invalid types and ranges, such as after an edit by hand.

    Raises:
        IntegrityError: Names the first.
        InvalidArgumentError, SerializationError: An id, or metadata, is none.
    """
    from locus_store.versions.archive_types import require_types  # noqa: PLC0415  (slow)

    require_types(thread)
    check_text("thread_id", thread.thread_id)
    check_text("user_id", thread.user_id, optional=True)
    check_text("name", thread.name, minimum=0, maximum=MAX_NAME_CHARACTERS, optional=True)
    canonicalize(thread.metadata, "metadata")
    _require_unique("namespace", (it.namespace for it in thread.lines))
    for line in thread.lines:
        _require_line(thread.thread_id, line)
    _require_unique("message", ((it.namespace, it.message_id) for it in thread.messages))
    _require_unique("message log", (it.namespace for it in thread.logs))
    sequences: dict[str, list[int]] = {}
    for message in thread.messages:
        sequences.setdefault(message.namespace, []).append(message.sequence)
    for log in thread.logs:
        its = sequences.get(log.namespace, [])
        check_text("namespace", log.namespace, minimum=0)
        _require_ascending("message", its)
        if not max(its, default=0) <= log.last_sequence <= _MAX_SEQUENCE or log.revision < 1:
            raise IntegrityError(f"the message log of namespace {log.namespace!r} makes no sense")
    for message in thread.messages:
        check_text("message_id", message.message_id)
        check_text("role", message.role)
        canonicalize(message.metadata, "metadata")
    for moment in filter(None, _iterate_times(thread)):
        if moment.utcoffset() is None or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
            raise IntegrityError(f"the time {moment.isoformat()} has no zone or is out of range")


def _require_line(thread_id: str, line: ArchivedLine) -> None:
    check_names(thread_id, line.namespace)
    if not 0 <= line.floor <= line.last_sequence <= _MAX_SEQUENCE:
        raise IntegrityError(
            f"floor {line.floor} and last_sequence {line.last_sequence} of namespace"
            f" {line.namespace!r} make no sense"
        )
    _require_ascending("version", [it.sequence for it in line.records])
    for record in line.records:
        check_text("checkpoint_id", record.checkpoint_id)
        canonicalize(record.metadata, "metadata")
        canonicalize(record.labels, "labels")
        if record.chain < 1 or len(record.digest) != _DIGEST_BYTES:
            raise IntegrityError(f"checkpoint {record.checkpoint_id!r} has no chain or digest")
    _require_unique(
        "pending write", ((it.checkpoint_id, it.write.task_id, it.write.idx) for it in line.writes)
    )
    check_writes([it.write for it in line.writes])
    for write in line.writes:
        check_text("checkpoint_id", write.checkpoint_id)


def _require_unique(what: str, keys: Iterable[object]) -> None:
    found = list(keys)
    if len(set(found)) < len(found):
        raise IntegrityError(f"a {what} exists twice")


def _require_ascending(what: str, sequences: list[int]) -> None:
    if sequences != sorted(set(sequences)) or (sequences and sequences[0] < 1):
        raise IntegrityError(f"the numbers of the {what}s are not in order")


def _iterate_times(thread: ArchivedThread) -> Iterator[datetime | None]:
    yield from (thread.created_at, thread.active_at, thread.expires_at)
    for line in thread.lines:
        yield from (it.created_at for it in line.records)
        yield from (it.created_at for it in line.writes)
    yield from (it.created_at for it in thread.messages)
    yield from (it.changed_at for it in thread.logs)


def _check_line(line: ArchivedLine, max_bytes: int) -> Iterator[tuple[str | None, str]]:
    known = {it.sequence: it for it in line.records}
    ids = {it.checkpoint_id for it in line.records}
    if len(known) < len(line.records) or len(ids) < len(line.records):
        yield None, "two of its versions have the same number or id"
    if not 0 <= line.floor <= line.last_sequence <= _MAX_SEQUENCE:
        yield None, f"floor {line.floor} and last_sequence {line.last_sequence} make no sense"
    if line.head is None and line.records:
        yield None, "it has versions and no head"
    if line.head is not None and line.head not in known:
        yield None, f"its head is version {line.head}, which is not there"
    if any(it.sequence > line.last_sequence for it in line.records):
        yield None, f"a version is newer than its last one, {line.last_sequence}"
    for record in line.records:
        yield from _check_links(record, known.keys())
    yield from _check_states(line.records, _select_framed_writes(line), max_bytes)
    sequences = {it.checkpoint_id: it.sequence for it in line.records}
    for write in line.writes:
        try:
            _require_decodable(write.write, max_bytes)
        except IntegrityError as exc:
            yield write.checkpoint_id, f"a pending write: {exc}"
        sequence = sequences.get(write.checkpoint_id)
        if sequence is not None and write.write.basis not in {None, sequence}:
            yield write.checkpoint_id, "a pending write is a change of another version"


def _require_decodable(write: PendingWrite, max_bytes: int) -> None:
    """Refuse frames that are damaged or too large; any other payload is an application's own."""
    if write.type == JSON_WRITE and write.payload[:1] == bytes([FRAME_VERSION]):
        frames.read_stored_operations(write.payload, max_bytes)


def _check_links(record: ArchivedRecord, sequences: Collection[int]) -> Iterator[tuple[str, str]]:
    if record.parent is not None and record.parent not in sequences:
        yield record.checkpoint_id, f"its parent, version {record.parent}, is not there"
    elif record.parent is not None and record.parent >= record.sequence:
        yield record.checkpoint_id, f"its parent, version {record.parent}, is not older"
    if record.chain > record.sequence:
        yield record.checkpoint_id, f"its chain begins behind it, at {record.chain}"


def _select_framed_writes(line: ArchivedLine) -> dict[str, list[PendingWrite]]:
    """Return the pending writes that are stored as frames, by checkpoint id."""
    found: dict[str, list[PendingWrite]] = {}
    for entry in line.writes:
        if entry.write.basis is not None:
            found.setdefault(entry.checkpoint_id, []).append(entry.write)
    return found


def _check_states(
    records: list[ArchivedRecord], framed_writes: dict[str, list[PendingWrite]], max_bytes: int
) -> Iterator[tuple[str, str]]:
    """Fold each chain once; after a damaged record the rest of its chain is unknown.

    ``framed_writes``: by checkpoint id, the pending writes that are changes of the state.
    """
    folders: dict[int, frames.Folder] = {}
    trees: dict[int, frames.DigestTree] = {}
    damaged: set[int] = set()
    opaque = {it.chain for it in records if is_sealed_by_client(it.payload)}
    records = [it for it in records if it.chain not in opaque]
    for record in sorted(records, key=lambda it: it.sequence):
        if record.chain in damaged:
            yield record.checkpoint_id, "a version that it is made from is damaged"
            continue
        folder = folders.setdefault(record.chain, frames.Folder(max_bytes))
        try:
            folder.apply(record.payload)
            # Against the version before: unchanged parts are not checked again.
            tree = frames.compare_states(
                folder.get_state(), trees.get(record.chain), packed=True
            ).tree
        except (IntegrityError, SerializationError) as exc:
            damaged.add(record.chain)
            yield record.checkpoint_id, str(exc)
            continue
        trees[record.chain] = tree
        if tree.digest != record.digest:
            yield record.checkpoint_id, "its stored bytes do not give the state that was saved"
        for write in select_current(framed_writes.get(record.checkpoint_id, []), record.sequence):
            try:
                expand_write(write, folder.get_state(), max_bytes)
            except (IntegrityError, SerializationError) as exc:
                yield record.checkpoint_id, f"a pending write: {exc}"


def has(thread: ArchivedThread, key: str, value: Any, *, user_id: str | None = None) -> bool:
    """Return whether a thread has ``value`` at ``key`` in metadata or labels, or is the user's."""
    if user_id is not None and thread.user_id == user_id:
        return True
    if has_value(thread.metadata, key, value):
        return True
    records = (it for line in thread.lines for it in line.records)
    return any(is_found(it.metadata, it.labels, key, value) for it in records)


def compute_write_checksum(checkpoint_id: str, write: PendingWrite) -> bytes:
    """Return the start of the digest of a whole pending write; stored before its payload."""
    names = encode_canonical([checkpoint_id, *_list_names(write)])
    return digest(names + write.payload)[:SEAL_BYTES]


async def write_thread(backend: ThreadStorage, thread: ArchivedThread) -> bool:
    """Store a thread, all or nothing; return ``False`` if the very same is there already.

    Raises:
        ConflictError: A thread of this id is there, and differs.
        IntegrityError, InvalidArgumentError, SerializationError: See ``archives.require_whole``.
    """
    await asyncio.to_thread(require_whole, thread, backend.max_state_bytes)
    there = await backend.read_thread(thread.thread_id)
    if there is None:
        try:
            await backend.restore(thread)
        except ConflictError:  # another caller was faster, perhaps with the same thread
            there = await backend.read_thread(thread.thread_id)
        else:
            return True
    if there is not None and are_same(there, thread, backend.max_state_bytes):
        return False
    raise ConflictError(
        f"thread {thread.thread_id!r} is there already, and differs; nothing was written. "
        "Delete one of the two, or fork it under another id first"
    )


_WRITE: Final = ("task_id", "idx", "channel", "type", "task_path", "basis")
_list_names: Final = attrgetter(*_WRITE)
_LOG: Final = ("namespace", "revision", "last_sequence")
_MESSAGE: Final = ("sequence", "message_id", "role", "metadata", "text")


def describe_write(entry: ArchivedWrite) -> dict[str, Any]:
    """Return a pending write as a JSON object."""
    return {
        "checkpoint_id": entry.checkpoint_id,
        **select(entry.write, _WRITE),
        "created_at": entry.created_at,
        "payload": base64.b64encode(entry.write.payload).decode(),
    }


def parse_write(fields: dict[str, Any]) -> ArchivedWrite:
    """Return the pending write of a JSON object, which may have more members."""
    payload = base64.b64decode(fields["payload"], validate=True)
    return ArchivedWrite(
        checkpoint_id=fields["checkpoint_id"],
        write=PendingWrite(**{name: fields[name] for name in _WRITE}, payload=payload),
        created_at=datetime.fromisoformat(fields["created_at"]),
    )


def describe_log(log: ArchivedLog) -> dict[str, Any]:
    """Return a message log without its messages as a JSON object."""
    return {**select(log, _LOG), "changed_at": log.changed_at}


def parse_log(fields: dict[str, Any]) -> ArchivedLog:
    """Return the message log of a JSON object; without a namespace, that of the root."""
    facts = {name: {"namespace": "", **fields}[name] for name in _LOG}
    return ArchivedLog(**facts, changed_at=datetime.fromisoformat(fields["changed_at"]))


def describe_message(message: ArchivedMessage) -> dict[str, Any]:
    """Return a message of a log as a JSON object, with its namespace if that is not the root."""
    return {
        **({"namespace": message.namespace} if message.namespace else {}),
        **select(message, _MESSAGE),
        "created_at": message.created_at,
        "payload": None if message.payload is None else base64.b64encode(message.payload).decode(),
    }


def parse_message(fields: dict[str, Any]) -> ArchivedMessage:
    """Return the message of a JSON object."""
    payload = fields["payload"]
    return ArchivedMessage(
        namespace=fields.get("namespace", ""),
        **{name: fields[name] for name in _MESSAGE},
        created_at=datetime.fromisoformat(fields["created_at"]),
        payload=None if payload is None else base64.b64decode(payload, validate=True),
    )


def select(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the attributes of an object by their names."""
    return {name: getattr(source, name) for name in names}
