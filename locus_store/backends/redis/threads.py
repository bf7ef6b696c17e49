"""Threads in Redis: calls of the scripts, and the meaning of their results."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from locus_store import versions
from locus_store.backends.redis import failures, scripts
from locus_store.backends.redis.answers import (
    damaged,
    digest_in,
    records_in,
    version_in,
    whole,
    writes_in,
)
from locus_store.backends.redis.connections import DRIVER_ERRORS
from locus_store.backends.redis.records import (
    MissingError,
    NamespaceEdit,
    pairs,
    place,
    read_log,
    restoring,
    space_of,
    stored_write,
    thread_of,
)
from locus_store.backends.redis.save_arguments import NO_THREAD, appending, applying, time_to_live
from locus_store.errors import IntegrityError, SchemaError
from locus_store.types import Mark, PendingWrite, Removed, Save, Stored, Version, Written
from locus_store.versions.archives import occupied
from locus_store.versions.spaces import new_line_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from locus_store.backends.redis.connections import Connections, LoopClient
    from locus_store.backends.redis.keys import RedisKeys
    from locus_store.backends.redis.scripts import Script
    from locus_store.types import ArchivedThread, MustExist
    from locus_store.versions.threads import Thread

T = TypeVar("T")

LAYOUT: Final = b"3"
"""The version of the layout of keys and values."""

ATTEMPTS: Final = 100
"""Attempts to change a namespace that other clients keep changing."""

AT_ONCE: Final = 16
"""Threads that a search reads in one round trip."""

LARGE: Final = 256_000
"""Bytes of a list that are worked on in a thread."""

MANY: Final = 1000
"""The number of rows that counts as large."""


class RedisThreads:
    """The threads below a prefix.

    Args:
        connections: To the server or cluster.
        keys: The names of the keys.
        max_state_bytes: The largest state that is folded.
    """

    def __init__(self, connections: Connections, keys: RedisKeys, max_state_bytes: int) -> None:
        self.connections = connections
        self.max_state_bytes = max_state_bytes
        self.keys = keys
        self._store: str | None = None
        self._is_ours = False

    # --- the store

    async def store(self, home: LoopClient) -> str:
        """Return the store's identity, which is created with its first thread.

        Raises:
            SchemaError: Another release created it.
        """
        if self._store is None:
            meta = self.keys.meta
            await home.command("HSETNX", meta, "layout", LAYOUT)
            await home.command("HSETNX", meta, "store", uuid4().hex)
            layout, store = await home.command("HMGET", meta, "layout", "store")
            self._require(layout, home)
            self._store = store.decode()
        return self._store

    async def require_layout(self, home: LoopClient) -> None:
        """Look once whether the threads, if there are any, are of this layout.

        Raises:
            SchemaError: Another release created them.
        """
        if not self._is_ours:
            layout = await home.command("HGET", self.keys.meta, "layout")
            self._require(layout or LAYOUT, home)

    def _require(self, layout: bytes, home: LoopClient) -> None:
        if layout != LAYOUT:
            raise SchemaError(
                f"the threads of prefix {self.keys.prefix!r} in Redis {home.where} are of layout "
                f"{layout.decode()}, this release knows {LAYOUT.decode()} only; use the release "
                "that created them, or choose another prefix="
            )
        self._is_ours = True

    async def refuse_foreign(self, home: LoopClient, thread_id: str) -> None:
        """Refuse a thread that another library keeps below the same prefix.

        Raises:
            SchemaError: The Locus SDK's own backend, or a similar one, keeps it.
        """
        for key in self.keys.foreign(thread_id):
            if await home.command("TYPE", key) in {b"string", "string"}:
                raise SchemaError(
                    f"Redis {home.where} has a key {key!r} that is not ours: the Locus SDK keeps "
                    "its threads so. Import them with `locus-store import locus "
                    "redis://host:port/db`, or use another prefix="
                )

    async def _refuse_to_replace(self, home: LoopClient, archived: ArchivedThread) -> None:
        """Refuse a thread as ``refuse_foreign`` does, unless it was imported from those keys.

        Raises:
            SchemaError: Another library keeps a different thread.
        """
        try:
            await self.refuse_foreign(home, archived.thread_id)
        except SchemaError:
            if not await self._is_theirs(home, archived):
                raise

    async def _is_theirs(self, home: LoopClient, archived: ArchivedThread) -> bool:
        """Return whether the Locus SDK stores the thread's heads, as for an imported thread."""
        heads = [it.checkpoint_id for line in archived.lines for it in line.records[-1:]]
        keys = [key for it in heads for key in self.keys.foreign_versions(archived.thread_id, it)]
        there = [await home.command("EXISTS", key) for key in keys]
        return any(there)

    # --- saving

    async def save(self, home: LoopClient, save: Save) -> Written:
        """Write a version: by one script if it is a plain append, else by the full rules."""
        args = appending(save, await self.store(home))
        if args is not None:
            answer = await home.again(
                lambda: self._given(
                    home, scripts.SAVE, save.thread_id, save.namespace, args, creates_at=0
                )
            )
            if isinstance(answer, bytes):
                store, line, sequence = answer.decode().split()
                mark = Mark(store, int(line), int(sequence), save.change.shape.digest)
                return Written(save.checkpoint_id, mark, "head")
        return await self.edit(
            home, save.thread_id, save.namespace, lambda it: versions.save(it, save), creates=True
        )

    async def put_writes(
        self,
        home: LoopClient,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        writes: Sequence[PendingWrite],
        *,
        known: Mark | None,
        seen: Collection[tuple[str, int]] | None,
        must_exist: MustExist | None,
        ttl_seconds: float | None,
    ) -> bool:
        """See ``StorageBackend.store_writes``."""
        store = await self.store(home)
        mark: list[Any] = ["", "", ""]
        if any(it.basis is not None for it in writes):
            if known is None:
                return False
            mark = [known.line, known.sequence, known.digest.hex()]
        fields = [] if seen is None else [f"{task}\0{idx}" for task, idx in seen]
        args = [thread_id, namespace, store, new_line_id(), NO_THREAD if must_exist else ""]
        args += [checkpoint_id, *mark, "1" if must_exist == "checkpoint" else ""]
        args += [*time_to_live(ttl_seconds), "" if seen is None else len(fields), *fields]
        for it in writes:
            args += [place(it), stored_write(checkpoint_id, it, None)]
        answer = await home.again(
            lambda: self._given(home, scripts.PUT, thread_id, namespace, args, creates_at=4)
        )
        if answer[0] == b"gone":
            raise versions.gone(checkpoint_id)
        if answer[0] == b"no":
            return False
        if answer[0] == b"done":
            return True

        def put(edit: NamespaceEdit) -> bool:
            versions.find_for_writes(edit, thread_id, namespace, checkpoint_id, must_exist)
            line = replace(edit.open_space(namespace).line)
            return versions.put_writes(
                edit, line, checkpoint_id, writes, known=known, seen=seen, must_exist=must_exist
            )

        stored: bool = await self.edit(home, thread_id, namespace, put, creates=True)
        if stored and ttl_seconds is not None:
            await self.renew(home, thread_id, ttl_seconds)
        return stored

    async def edit(
        self,
        home: LoopClient,
        thread_id: str,
        namespace: str,
        body: Callable[[NamespaceEdit], T],
        *,
        creates: bool,
    ) -> T | Any:
        """Change a namespace by the rules; write nothing if another client changed it meanwhile.

        In that case the rules decide again. Returns ``0`` unless it exists or ``creates`` is set.

        Raises:
            BackendError: Other clients keep changing it.
        """
        store = await self.store(home)
        unsure: _Decided | None = None  # a change whose outcome is not known
        patience = home.patience()
        payloads, has_writes = "", False
        for attempt in range(ATTEMPTS):
            asked = payloads, "1" if has_writes else ""
            found = await self._read(home, scripts.VIEW, thread_id, namespace, *asked)
            if unsure is not None and unsure.was_done(found):
                return unsure.answer
            if not found and not creates:
                await self.refuse_foreign(home, thread_id)
                return 0
            decide = partial(
                _decided,
                *(thread_id, namespace, found, store, body),
                has_writes=has_writes,
                max_state_bytes=self.max_state_bytes,
            )
            try:
                decided = await _aside(found, decide)
            except MissingError as missing:
                more = _more(payloads, missing), has_writes or missing.writes
                if more == (payloads, has_writes):  # it was requested and does not exist
                    raise damaged(thread_id) from missing
                payloads, has_writes = more
                continue
            if decided.args is None:
                return decided.answer
            try:
                reply = await self._given(
                    home, scripts.APPLY, thread_id, namespace, decided.args, creates_at=4
                )
            except DRIVER_ERRORS as exc:
                await patience.after(exc, failures.is_lost)
                unsure = decided
                continue
            if reply[0] == b"done":
                return decided.answer
            whole(thread_id, reply)
            if attempt > 1:
                await patience.rest()
        raise failures.busy(thread_id)

    async def renew(self, home: LoopClient, thread_id: str, ttl_seconds: float) -> bool:
        """See ``StorageBackend.renew``."""
        await self.require_layout(home)
        args = [thread_id, *time_to_live(ttl_seconds)]
        reply = await home.again(lambda: self._given(home, scripts.RENEW, thread_id, None, args))
        return bool(reply[0] == b"done")

    async def _given(
        self,
        home: LoopClient,
        script: Script,
        thread_id: str,
        namespace: str | None,
        args: list[Any],
        *,
        creates_at: int | None = None,
        insisting: Callable[[list[str]], list[Any]] | None = None,
    ) -> list[Any]:
        """Run a writing script, with the permission and the namespaces that it asks for.

        Args:
            home: The connections.
            script: What to run.
            thread_id: The thread.
            namespace: The one that it is about; ``None``: all.
            args: Arguments of the script.
            creates_at: Which argument says that a thread may be made.
            insisting: The arguments for a thread of these namespaces that lost some of its keys.

        Raises:
            IntegrityError: It lost some, and ``insisting`` is not given.
            BackendError: Other clients keep changing it.
        """
        names, args = [namespace or ""], list(args)
        for _ in range(ATTEMPTS):
            keys = self.keys.writing(thread_id, names[0], names[1:])
            reply: list[Any] = await home.write(script, keys, *args)
            if reply[0] == b"lines":
                asked, names = names, _beside(namespace, reply[1:])
                if asked == names:
                    if insisting is None:
                        raise damaged(thread_id)
                    args = insisting(names)
            elif reply[0] == b"create" and creates_at is not None:
                await self.refuse_foreign(home, thread_id)
                args[creates_at] = "1"
            else:
                return reply
        raise failures.busy(thread_id)

    # --- reading

    async def _read(
        self, home: LoopClient, script: Script, thread_id: str, namespace: str, *args: Any
    ) -> Any:
        """Run a script that reads one namespace.

        Raises:
            IntegrityError: It lost keys.
        """
        found = await home.read(script, self.keys.reading(thread_id, namespace), *args)
        return whole(thread_id, found)

    async def fetch(
        self,
        home: LoopClient,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        known: Mark | None,
        *,
        with_writes: bool,
    ) -> Stored | None:
        """Return a stored version; if ``known`` is in its chain, with the payloads after it."""
        mark = (known.line, known.sequence, known.digest.hex()) if known else ("", "0", "")
        found = await self._read(
            *(home, scripts.LOAD, thread_id, namespace),
            "" if checkpoint_id is None else f"={checkpoint_id}",
            *mark,
            "1" if with_writes else "",
        )
        if not found:
            await self.refuse_foreign(home, thread_id)
            return None
        if len(found) == 1:
            raise IntegrityError(
                f"thread {thread_id!r} names version {found[0].decode()} as its head, or that has "
                "no row; restore Redis from a backup, or load a version by its id"
            )
        told, rows, writes = found
        store, line, head, at, name, parent, digest, follows, *part, header = told.split(b"\0", 10)
        version = version_in(thread_id, namespace, store, line, [at, name, parent, header])
        return Stored(
            version=version,
            head=Mark(store.decode(), int(line), int(head), digest_in(digest)),
            payloads=[it for _, it in read_log(rows)][slice(*map(int, part))],  # a part of blocks
            basis=known if follows else None,
            writes=writes_in(version.checkpoint_id, writes) if with_writes else None,
        )

    async def exists(self, home: LoopClient, thread_id: str) -> bool:
        """See ``StorageBackend.has_thread``."""
        if await self._read(home, scripts.EXISTS, thread_id, "") == b"1":
            return True
        await self.refuse_foreign(home, thread_id)
        return False

    async def history(
        self, home: LoopClient, thread_id: str, namespace: str, limit: int, before: str | None
    ) -> list[Version] | None:
        """Return versions, newest first; ``None`` if the version ``before`` does not exist."""
        start = "" if before is None else f"={before}"
        found = await self._read(home, scripts.HISTORY, thread_id, namespace, start, limit)
        if not found:
            await self.refuse_foreign(home, thread_id)
            return []
        if found[0] == b"missing":
            return None
        return [version_in(thread_id, namespace, found[0], found[1], row) for row in found[2]]

    async def looked_at(
        self, home: LoopClient, thread_ids: Sequence[str], look: Callable[[Thread], T]
    ) -> list[T]:
        """Return the results of ``look`` for existing threads, with the root and its payloads."""
        calls = [(self.keys.reading(it, ""), ("all", "")) for it in thread_ids]
        found = await home.each(scripts.VIEW, calls)
        seen = []
        for name, it in zip(thread_ids, found, strict=True):
            if whole(name, it):
                seen.append(await _aside(it, partial(_looked, name, it, look)))
        return seen

    async def records(
        self, home: LoopClient, thread_id: str, namespace: str, last: int
    ) -> list[tuple[int, int, bytes]]:
        """Return (sequence, chain, payload) of the versions up to ``last``."""
        found = await self._read(home, scripts.RECORDS, thread_id, namespace, last)
        return records_in(thread_id, *found) if found else []

    async def writes_of(
        self, home: LoopClient, thread_id: str, namespace: str, checkpoint_ids: Sequence[str]
    ) -> dict[str, list[PendingWrite]]:
        """See ``StorageBackend.writes_of``."""
        found = await self._read(home, scripts.WRITES, thread_id, namespace, *checkpoint_ids)
        each = dict(zip(checkpoint_ids, found, strict=bool(found)))
        return {name: writes_in(name, flat) for name, flat in each.items() if flat}

    async def archive(
        self, home: LoopClient, thread_id: str, *, is_whole: bool
    ) -> tuple[Thread, dict[str, str]] | None:
        """Return a thread with all its namespaces, and the revision of each.

        ``is_whole``: with payloads and pending writes.
        """
        reply = await self._archived(home, thread_id, "1" if is_whole else "")
        if reply is None:
            return None
        names, found = reply
        return await _aside(found, partial(_unpacked, thread_id, names, found))

    async def _archived(
        self, home: LoopClient, thread_id: str, whole: str
    ) -> tuple[list[str], list[Any]] | None:
        names = [""]
        for _ in range(ATTEMPTS):
            keys = self.keys.archiving(thread_id, names[0], names[1:])
            reply = await home.read(scripts.ARCHIVE, keys, whole)
            if not reply:
                return None
            if reply[0] == b"whole":
                return names, reply
            asked, names = names, _beside(None, reply[1:])
            if asked == names:
                raise damaged(thread_id)
        raise failures.busy(thread_id)

    async def restore(
        self, home: LoopClient, archived: ArchivedThread, *, is_copy: bool = False
    ) -> None:
        """Store a thread as it was in another backend; a copy counts as active now.

        Raises:
            ConflictError: There is one of this id.
            SchemaError: Another library keeps a different thread of this id.
        """
        await self._refuse_to_replace(home, archived)
        args = restoring(archived, await self.store(home), is_copy=is_copy)
        names = [it.namespace for it in archived.lines] or [""]
        keys = self.keys.writing(archived.thread_id, names[0], names[1:])
        reply = await home.again(lambda: home.write(scripts.RESTORE, keys, *args))
        if reply[0] == b"there":
            raise occupied(archived.thread_id, "copied" if is_copy else "written")

    async def drop(
        self, home: LoopClient, thread_id: str, revisions: dict[str, str] | None = None
    ) -> Removed:
        """Remove a thread.

        Args:
            home: The connections.
            thread_id: The thread.
            revisions: Of all its namespaces, as they were when it was decided to remove it.
        """
        await self.require_layout(home)
        if revisions is None:
            reply = await home.once(
                lambda: self._given(
                    *(home, scripts.DROP, thread_id, None, [thread_id, ""]),
                    insisting=lambda names: [thread_id, "1", *names],
                )
            )
            if reply[0] == b"none":
                await self.refuse_foreign(home, thread_id)
        else:
            names = list(revisions) or [""]  # a thread may have messages only
            keys = self.keys.writing(thread_id, names[0], names[1:])
            reply = await home.once(
                lambda: home.write(scripts.DROP, keys, thread_id, "", *revisions.values())
            )
        if reply[0] != b"done":
            return Removed(existed=False, versions=0)
        return Removed(existed=bool(reply[2]), versions=int(reply[1]))


@dataclass(frozen=True, slots=True)
class _Decided:
    """The rules' decision about a namespace."""

    answer: Any
    args: list[Any] | None
    """Arguments of ``apply``; ``None``: there is nothing to write."""

    token: str
    """The token that identifies the change later."""

    drops: bool
    """The change removes the namespace."""

    def was_done(self, found: list[Any]) -> bool:
        """Return whether ``view`` shows the change whose answer was lost."""
        fields = dict(pairs(found[1])) if found else {}
        return not fields if self.drops else fields.get(b"edit") == self.token.encode()


def _decided(
    thread_id: str,
    namespace: str,
    found: list[Any],
    store: str,
    body: Callable[[NamespaceEdit], Any],
    *,
    has_writes: bool,
    max_state_bytes: int,
) -> _Decided:
    """Apply the rules to the result of ``view``.

    Raises:
        MissingError: They need more of it.
    """
    old, revision, line_id = _seen(thread_id, namespace, found)
    edit = NamespaceEdit(
        *(thread_id, namespace, old, store), has_writes=has_writes, max_state_bytes=max_state_bytes
    )
    answer = body(edit)
    operations = edit.operations()
    if not operations and not edit.is_active:
        return _Decided(answer, None, "", drops=False)
    token, drops = secrets.token_hex(8), operations == ["drop"]
    args = applying(edit, line_id, revision, operations, "" if drops else token)
    return _Decided(answer, args, token, drops)


async def _aside(found: list[Any], work: Callable[[], T]) -> T:
    """Process a script's result; in a worker thread if it is large."""
    return await asyncio.to_thread(work) if _is_large(found) else work()


def _is_large(found: Any) -> bool:
    rows = [it for it in found if isinstance(it, list)]
    return any(len(it) > MANY or sum(map(len, it)) > LARGE or _is_large(it) for it in rows)


def _more(payloads: str, missing: MissingError) -> str:
    """Return the payloads to read next: first those of a chain, then all."""
    if not missing.payloads:
        return payloads
    return "all" if payloads else missing.payloads


@contextmanager
def all_read(thread_id: str) -> Iterator[None]:
    """Report a missing payload as damage: all payloads were read, so Redis has lost it.

    Raises:
        IntegrityError: A payload is missing.
    """
    try:
        yield
    except MissingError as missing:
        raise damaged(thread_id) from missing


def _beside(namespace: str | None, there: Sequence[bytes]) -> list[str]:
    """Return the namespaces to pass to a script: the given one, then all that exist."""
    names = sorted(it.decode() for it in there)
    if namespace is None:
        return names or [""]  # a thread may have messages only
    return [namespace, *(it for it in names if it != namespace)]


def _seen(thread_id: str, namespace: str, found: list[Any]) -> tuple[Thread | None, str, str]:
    """Return the contents of a ``view``: the thread, the revision and the line's id."""
    if not found:
        return None, "", ""
    row, line, order, first, log, writes = found
    thread = thread_of(thread_id, dict(pairs(row)), [])
    fields = dict(pairs(line))
    if not fields:
        return thread, "", ""
    del first  # only the end of the log was read
    thread.spaces[namespace] = space_of(namespace, fields, order, log, writes)
    return thread, fields[b"rev"].decode(), fields[b"id"].decode()


def _looked(thread_id: str, found: list[Any], look: Callable[[Thread], T]) -> T:
    """Return ``look`` of the thread in a ``view`` of the root with all its payloads."""
    thread, _, _ = _seen(thread_id, "", found)
    assert thread is not None  # noqa: S101  (it was found)
    with all_read(thread_id):
        return look(thread)


def _unpacked(
    thread_id: str, names: Sequence[str], found: list[Any]
) -> tuple[Thread, dict[str, str]]:
    """Return the thread in the result of ``archive``, and the revisions of its namespaces."""
    _, row, messages, each = found
    thread = thread_of(thread_id, dict(pairs(row)), messages)
    revisions: dict[str, str] = {}
    for name, (line, order, log, writes) in zip(names, each, strict=True):
        fields = dict(pairs(line))
        if fields:  # a thread may have messages only
            thread.spaces[name] = space_of(name, fields, order, log, writes)
            revisions[name] = fields[b"rev"].decode()
    return thread, revisions
