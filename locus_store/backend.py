"""The contract of a storage backend: four methods that it must have, and its optional powers.

To add a backend, subclass ``StorageBackend`` and implement the methods under "to implement", mostly
the primitives of ``versions.Lines``: the rules of saving and deleting are written over them. Each
power is a class below, as in ``class Mine(SearchesText, ListsThreads)``; ``capabilities`` follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, TypeVar

from locus_store.errors import IntegrityError, InvalidArgumentError, UnsupportedError
from locus_store.runtime.holding import get_number
from locus_store.runtime.loops import run_off_loop
from locus_store.runtime.observe import count, measure_stored, note, observe, report_branch
from locus_store.types import (
    Active,
    ArchivedThread,
    ArchivedWrite,
    CheckpointerCapabilities,
    Expected,
    Head,
    Hit,
    Kept,
    LineContents,
    Mark,
    MustExist,
    OnConflict,
    PendingWrite,
    Removed,
    Save,
    Snapshot,
    Stored,
    Tenant,
    Vacuumed,
    Version,
    VersionsWanted,
    Written,
)
from locus_store.types.arguments import (
    check_max_state_bytes,
    check_names,
    check_text,
    check_ttl,
    check_writes,
    copy_json_object,
)
from locus_store.types.facts import Fact
from locus_store.types.marks import refuse_mark
from locus_store.types.tenants import Closing, ForTenants, Quota, QuotaUse
from locus_store.types.thread_info import PutThread, require_describing
from locus_store.types.turns import ThreadTurn, TurnStep
from locus_store.values import frames
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.values.msgpack import convert_to_json
from locus_store.versions import (
    PutWrites,
    archives,
    decode_state,
    erasing,
    generate_checkpoint_id,
    has_digest,
    keep_state,
    reading,
    require_same,
    sdk_lookups,
)
from locus_store.versions.caches import COLD_STATE_BYTES, CachedVersions, KnownVersion, LineKey

T = TypeVar("T")
P = TypeVar("P", bound="StorageBackend")


class StorageBackend(ForTenants, Closing, ABC):
    """Stores versions of plain dicts by thread.

    Applications call the methods on dicts (``save``, ``load``, ``delete``, ``exists``).
    Checkpointers and savers call ``write_state``, ``read_state`` and ``history``.
    """

    factory: ClassVar[str] = "StorageBackendAdapter"
    """Name of the function that wraps this backend for an agent."""

    persistent_checkpoint_ids: ClassVar[bool] = False
    """The checkpoint ids of one process name the same versions in another."""

    messages: ClassVar[bool] = False
    """There is a ``BaseMessageLog`` over this backend. Others keep the logs of copied threads."""

    has_keyed_digests: ClassVar[bool] = False
    """Stored digests are keyed, because the backend encrypts; see ``is_digest_of``."""

    def __init__(self, *, max_state_bytes: int = MAX_STATE_BYTES) -> None:
        self.max_state_bytes: Final = check_max_state_bytes(max_state_bytes)
        """The largest state and pending write that is saved or read, as compact JSON."""
        self._known = CachedVersions()
        """Shared by the objects of all tenants."""

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The capabilities that this backend's powers give to it."""
        return _derive_capabilities(type(self))

    @abstractmethod
    async def commit(self, save: Save) -> Written:
        """Write one version, all or nothing, by the rules of ``versions.save``.

        The save continues after the caller is cancelled. Saves of one line keep the order in
        which they were submitted.

        Raises:
            ConflictError, NotFoundError: Nothing was written.
        """

    @abstractmethod
    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        """Read a version, or the head, as one consistent view; ``None`` where there is none.

        ``with_writes``: with its pending writes.
        """

    @abstractmethod
    async def history(
        self, thread_id: str, *, namespace: str = "", limit: int = 10, before: str | None = None
    ) -> list[Version]:
        """Return versions without states, newest first, below the id ``before``.

        Raises:
            NotFoundError: There is no version ``before``.
        """

    @abstractmethod
    async def remove(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str] | None = None,
        *,
        namespace: str = "",
        writer: str | None = None,
    ) -> int:
        """Remove versions, or the thread with all it owns; return how many versions.

        ``writer`` is who removes them, as in ``types.Save``: undoing its own work conflicts with
        nothing that it saves next.

        Raises:
            ConflictError: A version that stays is rebuilt from one of them; nothing was removed.
        """

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        """Read the head; its payloads may be only those after ``known``, see ``Stored.basis``.

        ``known`` must be a version of the head's chain that is still stored, or the head itself.
        """
        return await self.fetch(thread_id, namespace=namespace, with_writes=with_writes)

    async def has_thread(self, thread_id: str) -> bool:
        """Return whether the thread exists: it has a version, a message, or a name or user.

        Overridden by backends that keep more of a thread than versions of the root namespace.
        """
        return await self.version(thread_id) is not None

    async def remove_thread(
        self, thread_id: str, *, head: Mark | None = None, namespace: str = ""
    ) -> Removed:
        """Remove a thread with all it owns, or the pending writes that are stored in its place.

        ``head`` is the head of the namespace that the caller saw; ``None``: any. Overridden by
        backends that keep more of a thread than versions, or compare it in their transaction.

        Raises:
            ConflictError: The head is another one; nothing was removed.
        """
        if head is not None:
            require_same(await self.version(thread_id, namespace=namespace), head, thread_id)
        versions = await self.remove(thread_id)
        return Removed(existed=versions > 0, versions=versions)

    @property
    def tenant(self) -> str | None:
        """The tenant whose threads this object sees; ``None`` where the storage has no tenants."""
        return None

    @property
    def storage_name(self) -> str:
        """Names the storage: objects with the same name share the turns that a context holds."""
        return repr(self)

    async def damage(self) -> list[str]:
        """Return what the storage's own check finds outside any thread; nothing where all is well.

        Slow: all that is stored may be read.
        """
        return []

    async def facts(self) -> list[Fact]:
        """Return what this backend is and stands on, as ``locus-store doctor`` shows it.

        Changes nothing. Numbers may be estimates, and then say so.
        """
        can = [name for name, is_on in vars(self.capabilities).items() if is_on]
        return [Fact("backend", repr(self)), Fact("capabilities", ", ".join(can) or "none")]

    async def tenant_facts(self) -> list[Fact]:
        """Return facts of this object's tenant; none where the storage has no tenants."""
        return []

    async def open(self) -> None:
        """Do now what the first call does otherwise: connect, and verify or create the schema.

        Optional and idempotent. An application that starts with it learns at its start what is
        wrong with the storage, and its first request does not wait.

        Raises:
            ConnectionFailedError, SchemaError: As the first call.
        """

    @property
    def compares_digests(self) -> bool:
        """``is_digest_of`` compares; ``False``: a service with keys of its own has done so."""
        return True

    def is_digest_of(self, version: Version, digest: bytes) -> bool:
        """Return whether a state of this digest is that of a version.

        A backend that encrypts stores keyed digests of states.
        """
        return has_digest(version, digest)

    def limit_cache(self, max_bytes: int) -> None:
        """Remember so much of threads at most, from the next call on; see ``KNOWN_BYTES``."""
        self._known.limit(max_bytes)

    async def close(self) -> None:
        """Release what this object opened itself; idempotent, and it may be used again after."""

    @observe("save")
    async def write_state(
        self,
        thread_id: str,
        data: Mapping[str, Any],
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        labels: Mapping[str, Any] | None = None,
        expected: Expected | None = None,
        parent_id: str | None = None,
        forks: bool = True,
        is_root: bool = False,
        thread_must_exist: bool = False,
        on_conflict: OnConflict = "raise",
        writer: str | None = None,
        run: str | None = None,
        side_parent: Mark | None = None,
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        claim: PutThread | None = None,
        packed: bool = False,
        connection: object = None,
    ) -> Written:
        """Write one version; see ``types.Save`` for the options.

        With ``packed``, bytes in ``data`` are MessagePack; see ``frames.compare_states``.

        Raises:
            InvalidArgumentError: An option makes no sense.
            SchemaError: See ``KnownVersion.refuse_kind``.
            SerializationError: ``data`` or ``metadata`` cannot be kept exactly, or ``data`` exceeds
                ``max_state_bytes``.
        """
        check_names(thread_id, namespace, checkpoint_id)
        check_text("parent_checkpoint_id", parent_id, optional=True)
        check_text("writer", writer, optional=True)
        check_text("run", run, optional=True)
        if expected is not None and not isinstance(expected, Expected):
            raise InvalidArgumentError(f"expected must be an Expected, not {expected!r:.80}")
        check_ttl(ttl_seconds)
        if claim is not None:
            require_describing(self)
        refuse_mark(data)
        metadata = copy_json_object("metadata", metadata)
        labels = copy_json_object("labels", labels)
        reads_head = connection is None  # the caller may hold the pool's last connection
        key = self.tenant, thread_id, namespace
        known, change = await self._compare(key, data, packed=packed, reads_head=reads_head)
        if known is not None and known.checkpoint_id == parent_id and not forks:
            expected = expected or Expected(made_from=known.mark, head=known.mark)
        is_other = known is not None and known.tree.is_graphs != change.tree.is_graphs
        if known and is_other and connection is None and (parent_id is None or not forks):
            await known.refuse_kind(key, expected, self.version)
        save = Save(
            thread_id=thread_id,
            namespace=namespace,
            checkpoint_id=checkpoint_id or generate_checkpoint_id(),
            change=change,
            basis=known.mark if known else None,
            expected=expected,
            parent_id=parent_id,
            forks=forks,
            is_root=is_root,
            thread_must_exist=thread_must_exist,
            on_conflict=on_conflict,
            writer=writer,
            run=run,
            side_parent=side_parent,
            metadata=metadata,
            labels=labels,
            keep_last=keep_last,
            ttl_seconds=ttl_seconds,
            turn=get_number(self, thread_id),
            claim=claim,
        )
        if connection is None:
            written = await self.commit(save)
        else:
            written = await needs(self, JoinsTransactions).commit_on(save, connection)
        stored = 0 if written.outcome == "same" else measure_stored(change)
        note(checkpoint_id=written.checkpoint_id, outcome=written.outcome, written_bytes=stored)
        if written.outcome == "side":
            report_branch(thread_id, written.checkpoint_id)
        if written.outcome == "head" and connection is None:  # the caller may roll back
            self._known.put(key, written.mark, written.checkpoint_id, change.tree)
        return written

    async def _compare(
        self, key: LineKey, data: Mapping[str, Any], *, packed: bool, reads_head: bool
    ) -> tuple[KnownVersion | None, frames.Change]:
        """Return the state as a change of the version that this object knows best, if any."""
        known = self._known.get(key)
        change = frames.compare_states(data, known.tree if known else None, packed=packed)
        change.tree.require_size(self.max_state_bytes)
        is_cold = known is None and change.tree.state_bytes > COLD_STATE_BYTES
        if reads_head and is_cold and await self.read_kept(key[1], namespace=key[2]):
            known = self._known.get(key)
            # As it was when it was handed in, whatever its owner did meanwhile.
            state = change.tree.to_state()
            change = frames.compare_states(state, known.tree if known else None, packed=packed)
        return known, change

    @observe("load")
    async def read_state(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        namespace: str = "",
        with_writes: bool = False,
        packed: bool = False,
    ) -> Snapshot | None:
        """Return a version with its state, or the head; ``None`` where there is none.

        ``with_writes`` adds its pending writes, of the same read. ``packed`` leaves MessagePack as
        bytes; else it becomes JSON. A head that this object read or wrote last is not sent again.

        Raises:
            IntegrityError: The stored bytes do not give the state that was saved, or one that
                exceeds ``max_state_bytes``.
        """
        found = await self.read_kept(
            thread_id, checkpoint_id, namespace=namespace, with_writes=with_writes
        )
        if found is None:
            return None
        state, kept = found.state, found.snapshot
        if state is None:
            state = dict(await run_off_loop(kept.to_state, kept.state_bytes))
        if kept.has_msgpack and not packed:
            state = dict(await run_off_loop(partial(convert_to_json, state), kept.state_bytes))
        return Snapshot(
            version=found.version,
            state=state,
            head=found.head,
            writes=found.writes,
            has_escaped=kept.has_escaped,
        )

    @observe("load")
    async def read_kept(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        namespace: str = "",
        with_writes: bool = False,
    ) -> Kept | None:
        """Return what ``read_state`` does, with the state packed, as it is kept in memory."""
        check_names(thread_id, namespace, checkpoint_id)
        key = self.tenant, thread_id, namespace
        known = self._known.get(key) if checkpoint_id is None else None
        kept = known.tree if known else None  # may lose its elements while we wait
        which: dict[str, Any] = {"namespace": namespace, "with_writes": with_writes}
        if known and kept and kept.is_whole:
            stored = await self.fetch_head(thread_id, known=known.mark, **which)
        else:
            stored = await self.fetch(thread_id, checkpoint_id=checkpoint_id, **which)
        if stored is None:
            return None
        size = sum(map(len, stored.payloads))
        count("read_bytes", size)
        count("rows", len(stored.payloads))
        basis = None
        if known and kept and stored.basis is not None:
            is_same = stored.version.mark == known.mark
            if is_same and self.is_digest_of(stored.version, kept.digest):
                return keep_state(stored, kept)
            basis, size = kept, size + kept.state_bytes
        work = partial(decode_state, stored, self.max_state_bytes, basis, self.is_digest_of)
        try:
            state, tree = await run_off_loop(work, size)
        except IntegrityError:
            if basis is None:
                raise
            self._known.drop(key)  # the whole may be readable
            return await self.read_kept(thread_id, namespace=namespace, with_writes=with_writes)
        if stored.version.mark == stored.head:
            self._known.put(key, stored.head, stored.version.checkpoint_id, tree)
        return keep_state(stored, tree, state)

    def known_version(
        self, thread_id: str, checkpoint_id: str, *, namespace: str = ""
    ) -> tuple[Mark, frames.DigestTree] | None:
        """Return a version's mark and digest tree, if it is the newest known one of its line."""
        known = self._known.get((self.tenant, thread_id, namespace))
        if known is None or known.checkpoint_id != checkpoint_id:
            return None
        return known.mark, known.tree

    async def save(
        self,
        thread_id: str,
        data: Mapping[str, Any] | None = None,
        *more: Any,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **wrong: Any,
    ) -> str:
        """Append a version to the thread; return its checkpoint id.

        The last of two writers is the head, without an error: only a checkpointer raises one.

        Raises:
            TypeError: This is not the form in which an agent calls a checkpointer.
        """
        if more or wrong or not isinstance(thread_id, str) or not isinstance(data, Mapping):
            raise TypeError(
                f"{type(self).__name__}.save(thread_id, data) stores plain dicts and is not "
                f"a checkpointer; give the agent {self.factory}(...) instead"
            )
        written = await self.write_state(
            thread_id, data, checkpoint_id=checkpoint_id, metadata=metadata
        )
        return written.checkpoint_id

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> dict[str, Any] | None:
        """Return a version's state, or the head's; ``None`` where there is none."""
        found = await self.read_state(thread_id, checkpoint_id)
        return found.state if found else None

    @observe("delete")
    async def delete(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        """Delete a version, or the thread with all its data; return whether there was one."""
        if checkpoint_id is None:
            existed, removed = await self.remove_thread(thread_id)
        else:
            removed = await self.remove(thread_id, [checkpoint_id])
            existed = removed > 0
        note(removed=removed)
        return existed

    @observe("exists")
    async def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        """Return whether the thread exists, or that version of it."""
        if checkpoint_id is None:
            return await self.has_thread(thread_id)
        return await self.version(thread_id, checkpoint_id) is not None

    async def version(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: str = ""
    ) -> Version | None:
        """Return a version without its state, or the head; ``None`` where there is none."""
        check_names(thread_id, namespace, checkpoint_id)
        stored = await self.fetch(thread_id, namespace=namespace, checkpoint_id=checkpoint_id)
        return stored.version if stored else None


class JoinsTransactions(StorageBackend):
    """A backend that saves inside a SQL transaction of the caller's."""

    @abstractmethod
    async def commit_on(self, save: Save, connection: object) -> Written:
        """Write one version inside a transaction of the caller's, who commits it.

        Under a savepoint: an error leaves the caller's transaction usable, without the save.

        Args:
            save: As for ``commit``.
            connection: SQLAlchemy's ``AsyncConnection`` or ``Connection``, to the same database.

        Raises:
            ConflictError, NotFoundError: Nothing was written.
            InvalidArgumentError: ``connection`` is none, or leads elsewhere.
        """


class ListsThreads(StorageBackend):
    """A backend that lists its threads."""

    @abstractmethod
    async def recent(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[Active]:
        """Return threads and the times of their last activity, the most recent first.

        The time is that of the last save in any namespace, repeated or not, of the last change of
        a message log, or of the ``copy_thread`` that created a thread with versions. Deletions
        leave it, but without versions the logs that are left count; ``write_thread`` keeps it.

        Args:
            limit: Maximum number of threads.
            pattern: Shell-style: ``*``, ``?``, ``[ab]``, ``[!ab]``; case matters.
            after: Continue behind this thread.

        Raises:
            NotFoundError: There is no thread ``after``.
        """

    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[str]:
        """Return thread ids, the most recently active first; see ``recent``."""
        return [it.thread_id for it in await self.recent(limit, pattern, after=after)]

    async def search_data(self, path: str, value: Any, limit: int = 100) -> list[dict[str, Any]]:
        """Return the threads whose newest state has ``value`` at ``path``, newest first.

        Reads one state after another until ``limit`` of them match. A dot in ``path`` descends;
        values match, and results look, as in ``query_by_metadata``.
        """
        return await sdk_lookups.search_data(self, path, value, limit)

    async def count(self, pattern: str = "%") -> int:
        """Return the number of threads whose id matches ``pattern``, as ``LIKE`` of SQL does.

        ``%`` is any characters, ``_`` is one; case matters.
        """
        return await sdk_lookups.count(self, pattern)


class ListsHeads(StorageBackend):
    """A backend that lists its threads with the metadata of their heads."""

    @abstractmethod
    async def heads(self, limit: int = 100) -> list[Head]:
        """Return threads with their head's metadata, the most recently active first.

        Only threads with a version in the root namespace have such a head.
        """


class ListsVersions(StorageBackend):
    """A backend that lists the versions of all namespaces and threads by their time."""

    @abstractmethod
    async def newest(self, wanted: VersionsWanted, limit: int) -> list[Version]:
        """Return visible versions, the newest first by the server's time of the save.

        Versions of one time are ordered by line and sequence, descending.
        """

    @abstractmethod
    async def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        """Return what the states of versions of one database are made of, for each stored line."""


class SearchesText(StorageBackend):
    """A backend that searches the text of its threads."""

    @abstractmethod
    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        """Return threads that have all words of ``query``, best first.

        A thread above ``max_state_bytes`` is skipped; ``observe.report_skipped`` reports it.
        """

    @observe("search")
    async def search(self, query: str, limit: int = 10) -> list[str]:
        """Return the ids of the threads that have all words of ``query``, best first."""
        return [hit.thread_id for hit in await self.find(query, limit)]


class QueriesMetadata(StorageBackend):
    """A backend that finds versions by their metadata."""

    @abstractmethod
    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        """Return versions whose metadata has ``value`` at ``key``, newest first."""

    @abstractmethod
    async def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        """Return the versions whose own metadata has ``value`` at ``key``, in any namespace.

        Returns:
            (thread id, namespace, checkpoint id), also of hidden versions.
        """

    @observe("query_by_metadata")
    async def query_by_metadata(
        self, key: str, value: Any, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return the threads whose newest version has ``value`` at ``key``, newest first.

        Values match as in ``BaseCheckpointer.query_by_metadata``.

        Returns:
            Dicts of ``thread_id``, ``data`` (the state) and ``updated_at`` (ISO 8601).
        """
        return await sdk_lookups.query_by_metadata(self, key, value, limit)


class StoresWrites(StorageBackend):
    """A backend that keeps what tasks wrote before the version that follows."""

    async def put_writes(
        self,
        thread_id: str,
        checkpoint_id: str,
        writes: Sequence[PendingWrite],
        *,
        namespace: str = "",
        known: Mark | None = None,
        seen: Collection[tuple[str, int]] | None = None,
        must_exist: MustExist | None = None,
        ttl_seconds: float | None = None,
    ) -> bool:
        """Store pending writes; the checkpoint, and even the thread, may come later.

        An existing write (same task, same place) stays; a special one (place below 0) is replaced.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint that they are pending on.
            writes: In one transaction.
            namespace: The line.
            known: The version that writes with a ``basis`` are frames against.
            seen: Task and place of the writes that the caller loaded, or sent itself. Others come
                from another run of the same checkpoint. ``None``: not checked.
            must_exist: What must be stored when the writes are; see ``has_thread``. ``"task"``:
                an earlier write of each task on the checkpoint.
            ttl_seconds: Time to live of a thread that the writes create. One that has a time to
                live has at least so much left afterwards, but for a slack; see ``renew``.

        Returns:
            ``False``: the checkpoint is not the version ``known``. Nothing was stored; send the
            writes whole.

        Raises:
            ConflictError: Another run has writes, or ``must_exist`` fails; nothing was stored.
            InvalidArgumentError: An id or a write is none; nothing was stored.
        """
        check_names(thread_id, namespace)
        check_text("checkpoint_id", checkpoint_id)
        check_ttl(ttl_seconds)
        kept = list(writes)
        check_writes(kept)
        if not kept:
            return True
        return await self.store_writes(
            PutWrites(
                thread_id=thread_id,
                namespace=namespace,
                checkpoint_id=checkpoint_id,
                writes=kept,
                known=known,
                seen=seen,
                must_exist=must_exist,
                ttl_seconds=ttl_seconds,
                turn=get_number(self, thread_id),
            )
        )

    @abstractmethod
    async def store_writes(self, put: PutWrites) -> bool:
        """Store pending writes that were found valid; see ``put_writes``."""

    @abstractmethod
    async def writes_of(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, namespace: str = ""
    ) -> dict[str, list[PendingWrite]]:
        """Return the pending writes of checkpoints that have some, in the order of their tasks.

        That is by task path, task and place. A checkpoint need not be there, or be visible.
        """

    async def get_writes(
        self, thread_id: str, checkpoint_id: str, *, namespace: str = ""
    ) -> list[PendingWrite]:
        """Return a checkpoint's pending writes; see ``writes_of``."""
        found = await self.writes_of(thread_id, [checkpoint_id], namespace=namespace)
        return found.get(checkpoint_id, [])


class StoresThreads(StoresWrites):
    """A backend that reads, stores and copies a thread with all it owns."""

    @abstractmethod
    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        """Copy a thread with all it owns; ``False`` where the source does not exist.

        Raises:
            ConflictError: The destination exists, or holds pending writes.
        """

    @abstractmethod
    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        """Return all live threads, even of pending writes only, by thread id (code points).

        Args:
            limit: At most this many.
            after: Begin above this id, which need not be there.
        """

    @abstractmethod
    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        """Return all that is stored of a live thread, in one consistent read."""

    @abstractmethod
    async def restore(self, thread: ArchivedThread) -> None:
        """Store a thread that was found whole; see ``write_thread``.

        Raises:
            ConflictError: A thread of this id is there.
        """

    @abstractmethod
    async def namespaces(self, thread_id: str) -> list[str]:
        """Return the namespaces in which a live thread has a version, in order."""

    @abstractmethod
    async def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        """Return what the states from sequence ``first`` to ``last`` are made of.

        Returns:
            (sequence, chain, payload), ascending, of no version above ``last``; of whole chains
            from their beginning, hidden versions among them. Some before ``first`` may be joined.
        """

    async def rewrite_thread(
        self, thread_id: str, change: Callable[[ArchivedThread], ArchivedThread]
    ) -> bool:
        """Replace what is stored of a live thread, in its place and in one transaction.

        Args:
            thread_id: The thread.
            change: Returns it with other payloads, digests, text and metadata; all ids, numbers
                and times are those that it was given.

        Returns:
            ``False``: there is no such thread.
        """
        raise UnsupportedError(f"{type(self).__name__} does not rewrite threads: {thread_id!r}")

    async def replace_thread(self, old: ArchivedThread, thread: ArchivedThread) -> None:
        """Replace what is stored of a thread, as ``rewrite_thread`` does, if it is still ``old``.

        Raises:
            ConflictError: It is not; nothing was changed.
            InvalidArgumentError: An id, a number or a time differs; nothing was changed.
        """
        archives.require_same_form(old, thread)

        def change(archive: ArchivedThread) -> ArchivedThread:
            if not archives.are_same(archive, old, self.max_state_bytes):
                raise archives.make_changed_error(old.thread_id)
            return thread

        if not await self.rewrite_thread(old.thread_id, change):
            raise archives.make_changed_error(old.thread_id)

    @abstractmethod
    async def prune(self, thread_id: str) -> int:
        """Remove all versions of a thread but the heads, and what those are rebuilt from.

        Returns:
            How many.
        """

    async def write_thread(self, thread: ArchivedThread) -> bool:
        """Store a thread as it was elsewhere, all or nothing, with its numbers and times.

        Returns:
            ``False``: the very same is there already, and nothing was done.

        Raises:
            ConflictError: A thread of this id is there, and differs.
            IntegrityError: ``thread`` is damaged, or was edited by hand.
            InvalidArgumentError, SerializationError: An id or metadata in it is none.
        """
        return await archives.write_thread(self, thread)

    async def read_states(
        self, versions: Sequence[Version], make: Callable[[Version, frames.Folder], T]
    ) -> list[T]:
        """Return the results of ``make`` for versions of one line; each chain is read once.

        Args:
            versions: In any order.
            make: Is called with each version, the oldest first, and the folder of its state, which
                it neither keeps nor changes; see ``versions.replay``. Runs in a thread.

        Returns:
            Its results, in the order of ``versions``, without those that were removed
            meanwhile.

        Raises:
            IntegrityError: See ``versions.replay``.
            NotFoundError: The thread was deleted and re-created meanwhile.
        """
        return await reading.read_states(self, versions, make)


class KeepsEffects(StoresThreads):
    """A backend that reads pending writes with their times, and so can keep effects."""

    async def list_writes(
        self, thread_id: str, namespace: str, checkpoint_id: str | None = None
    ) -> list[ArchivedWrite]:
        """Return the pending writes of a line, or of a checkpoint, by checkpoint, task and place.

        Never from a replica.
        """
        found = await self.read_thread(thread_id)
        lines = [it for it in found.lines if it.namespace == namespace] if found else []
        writes = [it for line in lines for it in line.writes]
        return [it for it in writes if checkpoint_id in {None, it.checkpoint_id}]


class ErasesThreads(QueriesMetadata, StoresThreads):
    """A backend that removes the threads of a user, or those that metadata names."""

    async def threads_of(self, user_id: str) -> list[str]:
        """Return the threads of a user: registered to the user, or with the ``user_id`` in them.

        The id may be in the metadata of the thread or of a version of any namespace, hidden ones
        too, or in a state, at its top or in its ``metadata``.
        """
        check_text("user_id", user_id)
        return await self.find_threads("user_id", user_id, user_id=user_id)

    async def threads_where(self, key: str, value: Any) -> list[str]:
        """Return the threads that have ``value`` at ``key`` in their metadata.

        That is in the metadata of the thread, or in the metadata or labels of a version of any
        namespace, hidden ones too; compared as ``BaseCheckpointer.query_by_metadata`` does.
        """
        erasing.check_condition(key, value)
        return await self.find_threads(key, value)

    async def find_threads(self, key: str, value: Any, *, user_id: str | None = None) -> list[str]:
        """Return the live threads that ``archives.has`` is true of."""
        return await erasing.find_threads(self, key, value, user_id=user_id)

    async def forget_user(self, user_id: str) -> dict[str, int]:
        """Remove the threads of ``threads_of`` with all they own; return how much of each kind.

        Keys: ``threads``, ``checkpoints``, ``writes``, ``messages``; ``store`` (in SQL
        databases, or with encryption): items whose metadata names the user. Only of this tenant.

        Raises:
            ConflictError: Another caller saves the user's threads at the same time.
        """
        return await self._erase(partial(self.threads_of, user_id), "user_id", user_id)

    async def forget_where(self, key: str, value: Any) -> dict[str, int]:
        """Remove the threads of ``threads_where`` with all they own; return how much of each kind.

        Keys: as of ``forget_user``; ``store`` counts the removed items whose metadata has ``value``
        at ``key``. Only of this object's tenant.

        Raises:
            ConflictError: Another caller saves such threads at the same time.
            InvalidArgumentError: The condition makes no sense; nothing was removed.
        """
        erasing.check_condition(key, value)
        return await self._erase(partial(self.threads_where, key, value), key, value)

    async def _erase(self, find: erasing.FindThreads, key: str, value: Any) -> dict[str, int]:
        if isinstance(self, Expires):
            await self.expire()  # what expired is not listed, and may be among them
        return await erasing.erase(self, find, key, value)


class Vacuums(StorageBackend):
    """A backend that removes old versions."""

    @abstractmethod
    async def vacuum_report(self, older_than_days: float = 30) -> Vacuumed:
        """Do ``vacuum``; return how many versions it removed, and how many threads it left.

        Where transactions lock threads, a vacuum skips those that others hold, and does not wait.
        A thread whose versions cannot be rewritten is left as well, with a warning: its stored data
        is damaged, or exceeds ``max_state_bytes``.
        """

    async def vacuum(self, older_than_days: float = 30) -> int:
        """Remove versions older than this, heads of younger threads excepted; return how many.

        A thread is removed whole when none of its versions, messages and pending writes is younger;
        one that has none of them, by its last activity. Only this object's tenant is covered.
        """
        return (await self.vacuum_report(older_than_days)).removed


class Expires(StorageBackend):
    """A backend whose threads may have a time to live."""

    @abstractmethod
    async def renew(self, thread_id: str, ttl_seconds: float) -> bool:
        """Set the time left to a thread that has a time to live; return whether it was changed.

        Nothing is changed where it has none, or more is left of it; and it does not count as
        activity. Needs ``capabilities.ttl``.
        """

    @abstractmethod
    async def expire(self) -> int:
        """Remove the threads whose time to live is over; return how many.

        They are invisible before; this frees their space. Only this object's tenant is covered.
        """


class SharedByTenants(StorageBackend):
    """A backend that several tenants share."""

    @abstractmethod
    async def tenants(self) -> list[Tenant]:
        """Return the tenants that have something stored, by name.

        A tenant of which everything has expired is among them until ``expire`` removed it.

        Raises:
            UnsupportedError: The storage has no tenants.
        """

    async def may_see_all_tenants(self) -> bool:
        """Return whether ``tenants`` returns all, and no row security hides the others."""
        return True


class LimitsTenants(SharedByTenants):
    """A backend that limits what a tenant stores.

    What exceeds the quota raises ``QuotaError``, and writes nothing. Reading, deleting and expiring
    are never refused. What several processes store at once does not exceed it. A call may be
    refused before all is used: other processes may have a part of it for a minute, an eighth of
    what was left then.
    """

    @abstractmethod
    async def get_quota(self) -> QuotaUse:
        """Return the quota of this tenant, and what it uses."""

    @abstractmethod
    async def set_quota(self, quota: Quota) -> None:
        """Replace the quota of this tenant. Other processes know it within a minute.

        What is stored already stays, even if it exceeds the limits.
        """


class TakesTurns(StorageBackend):
    """A backend that gives the turn of a thread to one holder at a time.

    While a turn is held, ``commit``, ``store_writes`` and changes of message logs are refused
    unless they carry its number; those of a turn that has ended are refused. The same step as the
    write decides it, atomically. Turns outlive the deletion of their thread, and are no part of
    copies and archives.
    """

    @abstractmethod
    async def step_turn(self, step: TurnStep) -> list[ThreadTurn]:
        """Ask for a turn, or renew one; return the thread's turns, the one that is held first.

        A request that is rejected is not among them. See ``versions.turns.take_step``.
        """

    @abstractmethod
    async def end_turn(self, thread_id: str, turn_key: str | None = None) -> bool:
        """End a turn, or a wait for it; return whether there was one.

        ``turn_key`` is that of the request; ``None``: the turn that is held, by any client.
        """

    @abstractmethod
    async def list_turns(self, thread_id: str | None = None, limit: int = 100) -> list[ThreadTurn]:
        """Return the turns of a thread, or of all threads by thread id, with those that wait."""


class FullBackend(
    ListsThreads,
    ListsHeads,
    ListsVersions,
    SearchesText,
    KeepsEffects,
    ErasesThreads,
    Vacuums,
    Expires,
):
    """Has all powers but tenants and SQL transactions; LangGraph, the CLI and transfers need it."""


_POWERS: Final[dict[str, type[StorageBackend]]] = {
    "search": SearchesText,
    "metadata_query": QueriesMetadata,
    "vacuum": Vacuums,
    "branching": StoresThreads,
    "ttl": Expires,
    "list_threads": ListsThreads,
    "list_with_metadata": ListsHeads,
    "tenants": SharedByTenants,
    "quotas": LimitsTenants,
    "turns": TakesTurns,
    "effects": KeepsEffects,
}
"""The power behind each capability."""


def needs(backend: StorageBackend, power: type[P]) -> P:
    """Return the backend, typed as one that has the power.

    Raises:
        UnsupportedError: It does not have the power.
    """
    declared = backend.capabilities
    missing = [name for name in _list_granted(power) if not getattr(declared, name)]
    if isinstance(backend, power) and not missing:
        return backend
    if issubclass(power, JoinsTransactions):
        raise UnsupportedError(
            f"{type(backend).__name__} has no SQL transaction to save in: connection= needs "
            "SQLite, PostgreSQL or Oracle; nothing was written"
        )
    lacks, name = missing[0] if missing else power.__name__, type(backend).__name__
    if issubclass(power, LimitsTenants):
        raise UnsupportedError(
            f"{name} does not declare the capability 'quotas': quotas need SQLite, PostgreSQL or "
            "Oracle, without shards"
        )
    raise UnsupportedError(
        f"{name} does not declare the capability {lacks!r}; look at `capabilities` first"
    )


@lru_cache(maxsize=64)
def _list_granted(power: type[StorageBackend]) -> list[str]:
    """Return the capabilities that a power consists of."""
    return [name for name, it in _POWERS.items() if issubclass(power, it)]


@lru_cache(maxsize=256)
def _derive_capabilities(kind: type[StorageBackend]) -> CheckpointerCapabilities:
    has = {name: issubclass(kind, power) for name, power in _POWERS.items()}
    has |= {it: getattr(kind, it) for it in ("messages", "persistent_checkpoint_ids")}
    return CheckpointerCapabilities(**has)
