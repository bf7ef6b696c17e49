"""Threads as JSON Lines: a file for people, other programs and other databases.

A thread is one line of kind ``thread``, which names its tenant in an export of several tenants;
then per namespace one ``line``, its ``version`` and its ``write`` lines; then its ``log`` and
``message`` lines; then ``end``, which counts them. A write and a message have their digest, a
version that of its state and the operations that make it from the one before in its chain
(docs/concepts.md), so that the file grows with what was said. An item of the store is a line of
kind ``item``, with its digest. The last line of a file is ``complete``, which counts its threads
and items; files may be joined.

If the storage encrypts, each line of a thread is sealed with the key of its thread, behind the line
before, as {"sealed": …}. The first one of a thread also names it. An item is as it is stored.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import datetime
from typing import Any, BinaryIO, Final

import orjson

from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.encryption.backend import EncryptedBackend
from locus_store.encryption.values import Sealing
from locus_store.errors import (
    EncryptionError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    UnsupportedError,
)
from locus_store.runtime.progress import expect, is_watched
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.transfer.items import (
    FORMAT,
    IN_CLEAR,
    SEALED,
    ArchivedItem,
    Parsed,
    Putter,
    decode_line,
    encode_line,
    make_format_error,
    make_last_line,
    parse_item,
    parse_time,
    require_sealing,
)
from locus_store.types import (
    ArchivedLine,
    ArchivedLog,
    ArchivedMessage,
    ArchivedRecord,
    ArchivedThread,
    ArchivedWrite,
)
from locus_store.types.arguments import check_tenant
from locus_store.types.messages import compute_message_checksum
from locus_store.values import frames
from locus_store.values.sealing import UnknownKeyError, get_key_id
from locus_store.versions.archives import (
    compute_write_checksum,
    describe_log,
    describe_message,
    describe_write,
    parse_log,
    parse_message,
    parse_write,
    require_form,
    select,
)
from locus_store.versions.reading import iterate_ids

_MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, LocusStoreError)

SEALED_FORMAT: Final = 2
"""The form of a thread whose lines are sealed; see ``items.FORMAT``."""

_THREAD = ("thread_id", "user_id", "name", "metadata")
_TIMES = ("created_at", "active_at", "expires_at")
_VERSION = ("sequence", "chain", "parent", "checkpoint_id", "metadata", "labels")


async def export_threads(
    backend: StorageBackend,
    thread_ids: Iterable[str] | AsyncIterable[str],
    out: BinaryIO,
    *,
    names_tenant: bool = False,
    in_clear: bool = False,
    is_last: bool = True,
    progress: Progress | None = None,
) -> int:
    """Write threads to ``out``, each from one consistent read; return how many.

    A thread that was deleted by then is left out.

    Args:
        backend: Its tenant's threads are written.
        thread_ids: The threads.
        out: A file, or anything with ``writelines``.
        names_tenant: Write the tenant's name with each thread, so that a file may hold several
            tenants; see ``import_threads``.
        in_clear: Write threads of a storage that encrypts in clear. Else they are sealed with its
            data keys, and only ``import_threads`` with the same store of data keys reads them.
        is_last: Write the last line of the file; else write ``make_last_line`` after the last call.
        progress: See ``counts.Progress``.

    Raises:
        UnsupportedError: A service encrypts with its own keys, so that nothing can be sealed here.
    """
    backend = needs(backend, StoresThreads)
    count = 0
    async for thread_id in _iterate_ids(thread_ids):
        if (thread := await backend.read_thread(thread_id)) is None:
            continue
        tenant = backend.tenant if names_tenant else None
        out.writelines(await make_lines(backend, thread, tenant, in_clear=in_clear))
        count += 1
        if progress:
            progress(thread_id, True)
    if is_last:
        out.writelines([make_last_line(count)])
    return count


async def import_threads(
    backend: StorageBackend,
    lines: Iterable[bytes],
    *,
    all_tenants: bool = False,
    from_tenant: str | None = None,
    in_clear: bool = False,
    with_items: bool = True,
    progress: Progress | None = None,
) -> Counts:
    """Store the threads and items of such a file; those that exist already are left unchanged.

    Each thread is written whole or not at all; run again, it continues where it stopped. A thread
    that cannot be written stops no other; the error is raised at the end. Threads of two tenants
    are never merged: one that names its tenant is refused, unless an option says where it goes.

    Args:
        backend: Threads that name no tenant are stored in its tenant.
        lines: Of ``export_threads``.
        all_tenants: Store a thread that names a tenant in the tenant of that name.
        from_tenant: Store only the threads that name this tenant, in the tenant of ``backend``.
        in_clear: Accept threads in clear though ``backend`` requires encryption.
        with_items: Put the items of the store.
        progress: See ``counts.Progress``.

    Raises:
        IntegrityError: A line is damaged or missing, and names it, or the file is cut off: what
            came before is written. Or a thread is damaged.
        EncryptionError: A thread is sealed with keys that ``backend`` does not have, or is in clear
            and encryption is required.
        ConflictError: A thread with that id exists with other versions, or another item.
        InvalidArgumentError: A thread names a tenant, and no option says where it goes; what came
            before is written.
        UnsupportedError: ``all_tenants``, and the storage has no tenants. Or it has no store, and
            the file has items.
    """
    if all_tenants and from_tenant is not None:
        raise InvalidArgumentError("give all_tenants or from_tenant, not both")
    if all_tenants and backend.tenant is None:
        raise UnsupportedError(f"{type(backend).__name__} has no tenants: give from_tenant")
    backend = needs(backend, StoresThreads)
    targets: dict[str | None, StoresThreads] = {None: backend, from_tenant: backend}
    tally = Tally(progress)
    opener = _Opener(backend, tally, from_tenant, in_clear=in_clear)
    try:
        async with Putter(tally, in_clear=in_clear) as putter:
            async for tenant, entry, damage in from_lines(lines, opener):
                is_left_out = isinstance(entry, ArchivedItem) and not with_items
                if is_left_out or (from_tenant is not None and tenant != from_tenant):
                    continue
                if all_tenants and tenant is not None and tenant not in targets:
                    targets[tenant] = backend.for_tenant(tenant)
                target = targets.get(tenant)
                if target is None:
                    raise InvalidArgumentError(
                        f"the file holds threads of tenant {tenant!r}: import each tenant's by "
                        "--all-tenants (all_tenants=True), or one tenant's by --from-tenant "
                        "(from_tenant=)"
                    )
                if isinstance(entry, ArchivedItem):
                    await putter.add(target, entry, tenant, damage)
                elif damage is None:
                    await tally.add(entry.thread_id, target.write_thread(entry), tenant=tenant)
                else:
                    tally.refuse(entry.thread_id, damage, tenant)
    except IntegrityError as exc:  # of the file; the threads that failed before it are named, too
        tally.finish(f"{exc}. Besides")
        raise
    return tally.finish()


async def _iterate_ids(ids: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    if isinstance(ids, AsyncIterable):
        async for thread_id in ids:
            yield thread_id
    else:
        for thread_id in ids:
            yield thread_id


async def all_threads(backend: StoresThreads, page: int = 500) -> AsyncIterator[str]:
    """Yield every thread of a backend, in the order of their ids; count them for who watches."""
    if is_watched():
        expect(len([it async for it in iterate_ids(backend.scan, page=page)]))
    async for thread_id in iterate_ids(backend.scan, page=page):
        yield thread_id


async def make_lines(
    backend: StorageBackend,
    thread: ArchivedThread,
    tenant: str | None = None,
    *,
    in_clear: bool = False,
) -> Iterator[bytes]:
    """Return the lines of a thread of a backend, sealed if that encrypts; see ``export_threads``.

    Raises:
        UnsupportedError: See ``export_threads``.
    """
    lines = to_lines(thread, backend.max_state_bytes, tenant)
    require_sealing(backend, in_clear=in_clear)
    if isinstance(backend, EncryptedBackend) and not in_clear:
        return _seal_lines(await backend.get_sealing(), thread.thread_id, lines, tenant)
    return lines


def _seal_lines(
    sealing: Sealing, thread_id: str, lines: Iterator[bytes], tenant: str | None
) -> Iterator[bytes]:
    named = {} if tenant is None else {"tenant": tenant}
    head = {"kind": "thread", "format": SEALED_FORMAT, **named, "thread_id": thread_id}
    content = b""
    for line in lines:
        content = sealing.seal_line(thread_id, line, content)
        yield encode_line({**head, "sealed": base64.b64encode(content).decode()})
        head = {}


class _Opener:
    """Opens the sealed lines of a file.

    Args:
        backend: Its data keys open them.
        tally: Learns of threads whose keys it does not have; these are left out.
        from_tenant: Other tenants' threads are left out.
        in_clear: See ``import_threads``.
    """

    def __init__(
        self, backend: StorageBackend, tally: Tally, from_tenant: str | None, *, in_clear: bool
    ) -> None:
        self._backend, self._tally, self._from_tenant = backend, tally, from_tenant
        self._requires_seal = (
            isinstance(backend, EncryptedBackend) and backend.encryption.required and not in_clear
        )
        self._sealing: Sealing | None = None
        self._is_left_out = False
        self._before = b""

    async def open(self, line: dict[str, Any]) -> dict[str, Any] | None:
        """Return the object of a line; ``None``: its thread is left out.

        Raises:
            EncryptionError, IntegrityError: It is not what was exported, or may not be read here.
        """
        if "sealed" not in line:
            if self._requires_seal or self._before:
                raise EncryptionError(IN_CLEAR)
            return line
        if line.get("kind") == "thread":
            return await self._begin(line)
        if self._is_left_out:
            return None
        if self._sealing is None or not self._before:
            raise ValueError("a sealed line before any thread")
        return self._open(self._sealing, base64.b64decode(line["sealed"], validate=True))

    async def _begin(self, line: dict[str, Any]) -> dict[str, Any] | None:
        tenant, thread_id = line.get("tenant"), line["thread_id"]
        if line["format"] != SEALED_FORMAT:
            raise make_format_error(line["format"])
        self._before, self._is_left_out = b"", True
        if self._from_tenant is not None and tenant != self._from_tenant:
            return None
        owner = self._backend if tenant is None else self._backend.for_tenant(tenant)
        if not isinstance(owner, EncryptedBackend):
            raise EncryptionError(SEALED)
        try:
            content = base64.b64decode(line["sealed"], validate=True)
            if not await owner.has_keys():  # a file that is not trusted creates none
                raise UnknownKeyError.make(get_key_id(content))
            self._sealing = await owner.get_sealing()
            found = self._open(self._sealing, content)
        except UnknownKeyError as exc:
            self._tally.refuse(thread_id, exc, tenant)
            return None
        self._is_left_out = False
        if found.get("tenant") != tenant:
            raise ValueError("another tenant is named than was sealed")
        return found

    def _open(self, sealing: Sealing, content: bytes) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(sealing.open_line(content, self._before))
        self._before = b"" if found["kind"] == "end" else content
        return found


def to_lines(
    thread: ArchivedThread, max_state_bytes: int, tenant: str | None = None
) -> Iterator[bytes]:
    """Yield a thread as lines that end in a newline; its tenant too if it is to be named.

    Raises:
        IntegrityError: A version's changes take more than ``max_state_bytes``, or are damaged.
    """
    count = 0
    for entry in _iterate_objects(thread, max_state_bytes, tenant):
        count += 1
        yield encode_line(entry)
    yield encode_line({"kind": "end", "lines": count})


def _iterate_objects(
    thread: ArchivedThread, max_state_bytes: int, tenant: str | None
) -> Iterator[dict[str, Any]]:
    times = {name: getattr(thread, name) for name in _TIMES}
    named = {} if tenant is None else {"tenant": tenant}
    yield {"kind": "thread", "format": FORMAT, **named, **select(thread, _THREAD), **times}
    for line in thread.lines:
        yield {"kind": "line", **select(line, ("namespace", "head", "floor", "last_sequence"))}
        for record in line.records:
            yield {
                "kind": "version",
                **select(record, _VERSION),
                "created_at": record.created_at,
                "digest": record.digest.hex(),
                "operations": orjson.Fragment(
                    frames.read_restorable_operations(record.payload, max_state_bytes)
                ),
            }
        for write in line.writes:
            yield {"kind": "write", **describe_write(write), "digest": _identify(write)[1]}
    for log in thread.logs:
        yield {"kind": "log", **describe_log(log)}
    for message in thread.messages:
        yield {"kind": "message", **describe_message(message), "digest": _identify(message)[1]}


def _identify(entry: ArchivedMessage | ArchivedWrite) -> tuple[str, str]:
    """Return the name of a message or pending write, for an error, and its digest."""
    if isinstance(entry, ArchivedMessage):
        return f"message {entry.message_id!r}", compute_message_checksum(entry).hex()
    name = f"a pending write of checkpoint {entry.checkpoint_id!r}"
    return name, compute_write_checksum(entry.checkpoint_id, entry.write).hex()


async def from_lines(
    lines: Iterable[bytes], opener: _Opener | None = None
) -> AsyncIterator[Parsed]:
    """Yield the threads and items of such lines.

    Raises:
        IntegrityError: A line is damaged, missing, or not of this form; names its number.
    """
    file = _File(opener)
    for number, line in ((at, it) for at, it in enumerate(lines, 1) if it.strip()):
        try:
            entry = await file.take(decode_line(line))
        except EncryptionError:
            raise
        except _MALFORMED as exc:
            why = f"no {exc}" if isinstance(exc, KeyError) else str(exc)[:200]
            raise IntegrityError(
                f"line {number} is not of an export of locus-store, or damaged"
                f" ({why}); what came before it was imported"
            ) from exc
        if entry is not None:
            yield entry
    if not file.is_complete:
        raise IntegrityError(
            "the file is cut off: its last line, which counts the threads, is missing; what is"
            " complete in it was imported; export it again"
        )


class _File:
    """Puts the lines of a file together."""

    def __init__(self, opener: _Opener | None) -> None:
        self.is_complete = False
        """The last line was the last one of a file."""
        self._opener = opener
        self._counts = Counter[str]()
        self._reader: _Reader | None = None

    async def take(self, line: dict[str, Any]) -> Parsed | None:
        """Return the thread or item that this line completes."""
        kind = str(line.get("kind"))
        if kind in {"thread", "item", "complete"} and self._reader is not None:
            raise ValueError("the thread before it has no end")
        self._counts[kind] += 1
        self.is_complete = kind == "complete"
        if self.is_complete:
            self._require_counts(line)
            return None
        if kind == "item":
            return parse_item(line)
        opened = line if self._opener is None else await self._opener.open(line)
        reader = self._reader
        if opened is None or reader is None:
            self._reader = None if opened is None else _Reader(opened)
        elif (thread := reader.take(opened)) is not None:
            self._reader = None
            return reader.tenant, thread, reader.damage
        return None

    def _require_counts(self, totals: dict[str, Any]) -> None:
        for kind in ("thread", "item"):
            total, count = totals[f"{kind}s"], self._counts[kind]
            if count != total:
                raise ValueError(f"the file is cut off: {total} {kind}s expected, {count} found")
        self._counts.clear()


class _Reader:
    """Assembles a thread line by line; ``head`` is the first one."""

    def __init__(self, head: dict[str, Any]) -> None:
        if (kind := head.pop("kind")) != "thread":
            raise ValueError(f"{kind!r} before any thread")
        if (form := head.pop("format")) != FORMAT:
            raise make_format_error(form)
        self.tenant: str | None = head.pop("tenant", None)
        if self.tenant is not None:
            check_tenant(self.tenant)
        self.damage: IntegrityError | None = None
        """Names the first message or pending write that differs from its digest."""
        self._head = {**head, **{name: parse_time(head[name]) for name in _TIMES}}
        self._lines: list[dict[str, Any]] = []
        self._messages: list[ArchivedMessage] = []
        self._logs: list[ArchivedLog] = []
        self._count = 1

    def take(self, entry: dict[str, Any]) -> ArchivedThread | None:
        """Return the thread that this line completes."""
        kind = entry.pop("kind")
        if kind == "end":
            return self._end(entry["lines"])
        if kind == "line":
            self._lines.append({**entry, "records": [], "writes": [], "segments": []})
        elif kind == "version":
            self._lines[-1]["records"].append(_parse_version(entry))
        elif kind == "write":
            self._lines[-1]["writes"].append(self._verify(parse_write(entry), entry["digest"]))
        elif kind == "log":
            self._logs.append(parse_log(entry))
        elif kind == "message":
            self._messages.append(self._verify(parse_message(entry), entry["digest"]))
        else:
            raise ValueError(f"unknown kind {kind!r}")
        self._count += 1
        return None

    def _verify(self, entry: Any, original: str) -> Any:
        """Return a message or pending write; if it is not what was exported, note the damage."""
        name, actual = _identify(entry)
        if actual != original and self.damage is None:
            self.damage = IntegrityError(f"{name} is not what was exported; nothing was written")
        return entry

    def _end(self, lines: int) -> ArchivedThread:
        if lines != self._count:
            raise ValueError(f"{lines} lines expected, {self._count} found")
        made = ArchivedThread(
            **self._head,
            lines=[ArchivedLine(**it) for it in self._lines],
            messages=self._messages,
            logs=self._logs,
        )
        require_form(made)
        return made


def _parse_version(entry: dict[str, Any]) -> ArchivedRecord:
    return ArchivedRecord(
        **{name: entry[name] for name in _VERSION},
        digest=bytes.fromhex(entry["digest"]),
        created_at=datetime.fromisoformat(entry["created_at"]),
        payload=frames.encode_operations(entry["operations"]),
    )
