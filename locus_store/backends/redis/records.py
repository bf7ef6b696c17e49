"""A namespace of a thread in memory: from scripts' results, and as their arguments."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from locus_store import versions
from locus_store.errors import IntegrityError
from locus_store.types import ArchivedLog, ArchivedMessage, ArchivedWrite, PendingWrite
from locus_store.values.encoding import UNLIMITED, decode, encode
from locus_store.versions import Line, Record
from locus_store.versions.archives import has_versions, last_active_at, sealed, unsealed
from locus_store.versions.spaces import Row, Space, new_line_id
from locus_store.versions.threads import Edit, Thread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from locus_store.types import ArchivedThread, Save
    from locus_store.types.messages import LogEdit

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
MINUTE: Final = 60_000_000
_LOG: Final = ("namespace", "revision", "last_sequence")


class MissingError(Exception):
    """Raised if the rules need data that was not read; they run again once it is."""

    def __init__(self, payloads: str = "", *, writes: bool = False) -> None:
        super().__init__(payloads)
        self.payloads = payloads
        self.writes = writes


# --- values


def loads(encoded: bytes) -> Any:
    """Return a JSON value that this library wrote."""
    return decode(encoded)


def microseconds(moment: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def moment(value: int) -> datetime:
    """Return the time of microseconds since 1970."""
    return EPOCH + value * MICROSECOND


def rest_of(metadata: Mapping[str, Any], labels: Mapping[str, Any]) -> bytes:
    """Return the part of a header that follows its numbers."""
    return encode([dict(metadata), dict(labels)])


def header_of(record: Record, created_at: datetime) -> bytes:
    """Return all of a version but its payload."""
    numbers = (
        f"{record.digest.hex()} {record.chain} {record.parent or 0} {microseconds(created_at)} "
    )
    return numbers.encode() + rest_of(record.metadata, record.labels)


def parsed(header: bytes, sequence: int, checkpoint_id: str) -> tuple[Record, datetime]:
    """Return the version of a header, and its creation time; the inverse of ``header_of``."""
    with damage(f"version {sequence}"):
        digest, chain, parent, created, rest = header.split(b" ", 4)
        metadata, labels = loads(rest)
        record = Record(
            sequence=sequence,
            chain=int(chain),
            parent=int(parent) or None,
            checkpoint_id=checkpoint_id,
            digest=bytes.fromhex(digest.decode()),
            metadata=metadata,
            labels=labels,
        )
        return record, moment(int(created))


def stored_write(checkpoint_id: str, write: PendingWrite, created_at: datetime | None) -> bytes:
    """Return a pending write as it is stored; the server adds the time if there is none."""
    at = b"" if created_at is None else str(microseconds(created_at)).encode()
    told = encode([write.channel, write.type, write.task_path, write.basis])
    return at + b" " + told + b"\n" + sealed(checkpoint_id, write)


def parsed_write(checkpoint_id: str, field: bytes, value: bytes) -> ArchivedWrite:
    """Return the pending write that ``stored_write`` encoded; ``field`` is that of ``place``."""
    with damage(f"a pending write of checkpoint {checkpoint_id!r}"):
        task_id, idx = field.decode().split("\0")
        told, _, payload = value.partition(b"\n")
        created, told = told.split(b" ", 1)
        channel, kind, task_path, basis = loads(told)
        write = PendingWrite(task_id, int(idx), channel, kind, payload, task_path, basis)
        return ArchivedWrite(
            checkpoint_id=checkpoint_id,
            write=unsealed(checkpoint_id, write),
            created_at=moment(int(created)),
        )


def place(write: PendingWrite) -> bytes:
    """Return the field of a pending write, without its checkpoint's id."""
    return f"{write.task_id}\0{write.idx}".encode()


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Return the pairs in the flat list that Redis gives for a hash or for scores."""
    return zip(flat[::2], flat[1::2], strict=True)


def read_log(log: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the chain and payload of each version in elements of the log, in order.

    Raises:
        IntegrityError: They are not as they were written.
    """
    with damage("a log"):
        for it in log:
            if it.startswith(b"+"):
                behind = it.index(b"\n") + 1
                chain, *lengths = map(int, it[1:behind].split())
                if behind + sum(lengths) != len(it):
                    raise ValueError("a block is cut")
                for length in lengths:
                    yield chain, it[behind : behind + length]
                    behind += length
            elif it:
                begin, _, payload = it.partition(b" ")
                yield int(begin), payload


@contextmanager
def damage(what: str) -> Iterator[None]:
    """Report values that cannot be read as damage: the library did not write them.

    Raises:
        IntegrityError: The body raised an error of decoding.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, UnicodeDecodeError) as exc:
        raise IntegrityError(
            f"{what} in Redis is not as it was written; restore the server from a backup, or "
            "delete the thread"
        ) from exc


# --- rows


class StoredRow(Row):
    """A version whose payload may not have been read yet."""

    __slots__ = ("_payload",)

    def __init__(self, record: Record, created_at: datetime, payload: bytes | None) -> None:
        super().__init__(record, created_at, b"")
        self._payload = payload

    def payload(self) -> bytes:
        """See ``Row``.

        Raises:
            MissingError: It was not read.
        """
        if self._payload is None:
            raise MissingError(str(self.record.chain))
        return self._payload

    def but(self, *, parent: int | None) -> Row:
        """See ``Row``."""
        return StoredRow(replace(self.record, parent=parent), self.created_at, self._payload)

    def has_payload_of(self, other: StoredRow) -> bool:
        """Return whether the payload is still that of ``other``."""
        return self._payload is other._payload


def line_of(fields: Mapping[bytes, bytes]) -> Line:
    """Return the line of a stored row."""

    def number(name: bytes) -> int | None:
        return int(fields[name]) if name in fields else None

    def text(name: bytes) -> str | None:
        return fields[name].decode() if name in fields else None

    with damage("the row of a line"):
        return Line(
            line=int(fields[b"id"]),
            head=number(b"head"),
            open_chain=number(b"chain"),
            open_bytes=number(b"bytes") or 0,
            floor=number(b"floor") or 0,
            last_sequence=number(b"last") or 0,
            writer=text(b"writer"),
            run=text(b"run"),
        )


def fields_of(line: Line) -> list[Any]:
    """Return a line as fields and values; an empty value represents ``None``."""
    values = {
        "head": line.head,
        "chain": line.open_chain,
        "bytes": line.open_bytes,
        "floor": line.floor,
        "last": line.last_sequence,
        "writer": line.writer,
        "run": line.run,
    }
    return [it for name, value in values.items() for it in (name, "" if value is None else value)]


def space_of(
    namespace: str,
    fields: Mapping[bytes, bytes],
    order: Sequence[bytes],
    log: Sequence[bytes],
    writes: Sequence[bytes],
) -> Space:
    """Return a stored namespace with the part of the log that was read, which is its end."""
    space = Space(namespace, line_of(fields), is_settled=True)
    ids = list(pairs(order))
    with damage("the order of versions"):
        payloads = list(read_log(log))
        bare = len(ids) - len(payloads)
        if bare < 0:
            raise ValueError("more payloads than versions")
        for at, (name, score) in enumerate(ids):
            record, created_at = parsed(fields[b"r" + score], int(score), name.decode())
            payload = None
            if at >= bare:
                chain, payload = payloads[at - bare]
                if chain != record.chain:
                    raise ValueError("a payload is another chain's")
            space.put(StoredRow(record, created_at, payload))
        if space.line.head and space.line.head not in space.rows:
            raise ValueError("the head does not exist")
    for field, value in pairs(writes):
        checkpoint_id, mark, rest = field.partition(b"\0")
        if mark:
            space.put_write(parsed_write(checkpoint_id.decode(), rest, value))
    return space


def thread_of(thread_id: str, fields: Mapping[bytes, bytes], messages: Sequence[bytes]) -> Thread:
    """Return a stored thread without its namespaces."""

    def at(name: bytes, unit: int = 1) -> datetime | None:
        return moment(int(fields[name]) * unit) if name in fields else None

    with damage("the row of a thread"):
        logs = [_log(it) for it in loads(fields.get(b"logs", b"[]"))]
        return Thread(
            thread_id,
            fields[b"store"].decode(),
            moment(int(fields[b"created"])),
            moment(int(fields[b"minute"]) * MINUTE),
            user_id=loads(fields[b"user"]) if b"user" in fields else None,
            name=loads(fields[b"name"]) if b"name" in fields else None,
            metadata=loads(fields[b"metadata"]) if b"metadata" in fields else {},
            expires_at=at(b"expires", 1000),
            messages=[_message(it) for it in messages],
            logs={it.namespace: it for it in logs},
            is_listed=fields.get(b"listed") == b"1",
        )


def _log(told: Sequence[Any]) -> ArchivedLog:
    *facts, changed = told
    return ArchivedLog(**dict(zip(_LOG, facts, strict=True)), changed_at=moment(changed))


def _message(stored: bytes) -> ArchivedMessage:
    told, _, payload = stored.partition(b"\n")
    sequence, message_id, role, metadata, created, text, has_payload, *namespace = loads(told)
    return ArchivedMessage(
        namespace=namespace[0] if namespace else "",
        sequence=sequence,
        message_id=message_id,
        role=role,
        metadata=metadata,
        created_at=moment(created),
        text=text,
        payload=payload if has_payload else None,
    )


def _stored_message(it: ArchivedMessage) -> bytes:
    told = [it.sequence, it.message_id, it.role, it.metadata, microseconds(it.created_at), it.text]
    told += [it.payload is not None, *([it.namespace] if it.namespace else [])]
    return encode(told) + b"\n" + (it.payload or b"")


# --- changes


class NamespaceEdit(Edit):
    """``versions.Lines`` over one namespace of a thread; the others are unknown to it.

    Args:
        thread_id: The thread.
        namespace: The namespace.
        old: What is stored of the thread, with this namespace alone.
        store: Identity of the store.
        has_writes: Whether ``old`` has the pending writes.
        max_state_bytes: The largest state that is folded.
    """

    def __init__(
        self,
        thread_id: str,
        namespace: str,
        old: Thread | None,
        store: str,
        *,
        has_writes: bool,
        max_state_bytes: int,
    ) -> None:
        super().__init__(thread_id, old, store, max_state_bytes)
        self.namespace = namespace
        self.ttl_seconds: float | None = None
        self.is_active = False
        """True for a save, which updates the thread's activity."""

        self._before = old.spaces.get(namespace) if old else None
        self._has_writes = has_writes or self._before is None

    def row(
        self,
        record: Record,
        created_at: datetime,
        payload: bytes,
        told: dict[str, Any] | None = None,
    ) -> Row:
        """See ``Edit``, also for the following methods."""
        del told
        return StoredRow(record, created_at, payload)

    def touch(self, save: Save | LogEdit) -> None:
        self.is_active, self.ttl_seconds = True, save.ttl_seconds

    def drop(self, line: Line) -> None:
        del line
        assert self.thread is not None  # noqa: S101  (it had a line)
        del self.thread.spaces[self.namespace]

    def writes(self, line: Line, checkpoint_id: str) -> list[PendingWrite]:
        self._require_writes()
        return super().writes(line, checkpoint_id)

    def written(self, line: Line, checkpoint_id: str) -> Collection[tuple[str, int]]:
        self._require_writes()
        return super().written(line, checkpoint_id)

    def _require_writes(self) -> None:
        if not self._has_writes:
            raise MissingError(writes=True)

    def new_line_id(self) -> int:
        """Return the id of the line if this edit creates it."""
        space = self.thread.spaces.get(self.namespace) if self.thread else None
        return space.line.line if space else new_line_id()

    def operations(self) -> list[Any]:
        """Return the changes as arguments of ``apply``; empty if nothing changed."""
        before = self._before
        after = self.thread.spaces.get(self.namespace) if self.thread else None
        if after is None:
            return ["drop"] if before is not None else []
        old = before.rows if before else {}
        gone = [sequence for sequence in old if sequence not in after.rows]
        changed = list(_changed(old, after.rows))
        moved = [now.record.sequence for was, now in changed if not now.has_payload_of(was)] + gone
        told: list[Any] = ["place", len(moved), *moved] if moved else []
        for was, now in changed:
            told += _rewritten(was, now)
        if gone:
            told += ["remove", len(gone), *gone]
        for sequence in gone:
            told += ["unwrite", old[sequence].record.checkpoint_id]
        for sequence in (it for it in after.rows if it not in old):
            told += _added(after.rows[sequence])
        for write in _put(before, after):
            told += ["write", write.checkpoint_id, place(write.write)]
            told += [stored_write(write.checkpoint_id, write.write, None)]
        if not told and before and before.line == after.line:
            return []
        fields = fields_of(after.line)
        return [*told, "line", len(fields) // 2, *fields]


def _changed(
    old: Mapping[int, Row], new: Mapping[int, Row]
) -> Iterator[tuple[StoredRow, StoredRow]]:
    """Yield versions whose header or payload changed, as they were and as they are now."""
    for sequence, now in new.items():
        was = old.get(sequence)
        if was is not None and was is not now:
            assert isinstance(was, StoredRow)  # noqa: S101  (as space_of makes them)
            assert isinstance(now, StoredRow)  # noqa: S101  (as NamespaceEdit makes them)
            yield was, now


def _rewritten(was: StoredRow, now: StoredRow) -> Iterator[Any]:
    it = now.record
    if it != was.record:
        yield from ("header", it.sequence, header_of(it, now.created_at))
    if not now.has_payload_of(was):
        yield from ("rewrite", it.sequence, it.chain, now.payload())


def _added(row: Row) -> list[Any]:
    it = row.record
    return [
        *("add", it.sequence, it.checkpoint_id, it.digest.hex(), it.chain, it.parent or 0),
        *(rest_of(it.metadata, it.labels), row.payload()),
    ]


def _put(before: Space | None, after: Space) -> Iterator[ArchivedWrite]:
    """Yield pending writes that are new or replaced."""
    old = before.writes if before else {}
    for checkpoint_id, writes in after.writes.items():
        there = old.get(checkpoint_id, {})
        yield from (it for key, it in writes.items() if there.get(key) is not it)


def restoring(archived: ArchivedThread, store: str, *, is_copy: bool = False) -> list[Any]:
    """Return the arguments of ``restore`` for a thread; a copy with versions is active now."""
    edit = NamespaceEdit(
        archived.thread_id, "", None, store, has_writes=True, max_state_bytes=UNLIMITED
    )
    edit.restore(archived)
    thread = edit.thread
    assert thread is not None  # noqa: S101  (it was restored)
    row: dict[str, Any] = {
        "created": microseconds(thread.created_at),
        "minute": microseconds(thread.active_at) // MINUTE,
    }
    if thread.expires_at is not None:
        row["expires"] = microseconds(thread.expires_at) // 1000
    named: dict[str, Any] = {
        "user": thread.user_id,
        "name": thread.name,
        "metadata": thread.metadata or None,
    }
    facts = ([getattr(it, name) for name in _LOG] for it in archived.logs)
    changes = [microseconds(it.changed_at) for it in archived.logs]
    named["logs"] = [[*it, at] for it, at in zip(facts, changes, strict=True)] or None
    row |= {name: encode(value) for name, value in named.items() if value is not None}
    row |= {"logged": max(changes)} if changes else {}
    told = [*_counted(row.items()), *_counted((_stored_message(it),) for it in thread.messages)]
    for space in thread.spaces.values():
        versions.settle(edit, space.line)
        told += _restoring_line(space)
    is_active = is_copy and has_versions(archived)
    moment = "" if is_active else microseconds(last_active_at(archived))
    return [thread.thread_id, store, secrets.token_hex(8), moment, *told]


def _restoring_line(space: Space) -> list[Any]:
    fields = [("id", space.line.line), ("rev", 0), *pairs(fields_of(space.line))]
    records = (
        (
            *(sequence, it.record.checkpoint_id, header_of(it.record, it.created_at)),
            *(it.record.chain, it.payload()),
        )
        for sequence, it in space.rows.items()
    )
    writes = (
        (name, place(it.write), stored_write(name, it.write, it.created_at))
        for name, of_checkpoint in space.writes.items()
        for it in of_checkpoint.values()
    )
    there = (it for it in fields if it[1] != "")
    return [space.namespace, *_counted(there), *_counted(records), *_counted(writes)]


def _counted(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return the number of rows followed by their values, as one list."""
    found = list(rows)
    return [len(found), *(it for row in found for it in row)]
