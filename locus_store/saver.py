"""Storage for graph runners: checkpoints with parents, namespaces, pending writes.

Over the same backends and the same tables as a checkpointer: a thread that an agent saved is
visible here, and the other way round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal

from locus_store.backend import Expires, QueriesMetadata, StorageBackend, StoresThreads, needs
from locus_store.checkpointer import BackendFacade
from locus_store.effects import RunsEffects
from locus_store.errors import ConflictError, NotFoundError
from locus_store.runtime.holding import get_number
from locus_store.runtime.observe import note, observe
from locus_store.runtime.stepping import wait_for_end
from locus_store.turns import HasTurns
from locus_store.types import Expected, Mark, MustExist, PendingWrite, Version
from locus_store.types.arguments import (
    MAX_ID_CHARACTERS,
    check_choice,
    check_list,
    check_pairs,
    check_task,
    check_text,
    check_ttl,
)
from locus_store.types.codec import get_labels
from locus_store.types.tenants import Closing, ForTenants
from locus_store.values import frames
from locus_store.values.encoding import decode, encode
from locus_store.values.surrogates import restore
from locus_store.versions import CHANNELS, JSON_WRITE, REBUILT, find_channel, select_current
from locus_store.versions.caches import CachedCheckpoints, Place, PutInProgress
from locus_store.versions.lines import PutWrites

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection


SPECIAL_CHANNELS: Final = {
    "__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4,
}  # fmt: skip
"""Channels of which a task has one write only, the last, and its place. LangGraph's names."""

NAMESPACE: Final = "namespace"
"""Label of a version whose namespace is longer than a name may be: the whole of it."""

_SHOWN_CHARACTERS: Final = 200


class CheckpointSaver(BackendFacade[StorageBackend], HasTurns, RunsEffects, ForTenants, Closing):
    """Stores the steps of a graph runner.

    Each namespace of a thread has versions of its own. Without an id, ``get`` returns the newest
    one by the order of the server, not by ids or clocks.

    Args:
        backend: Keeps the versions; closed by ``close()``.
        on_conflict: What ``put`` does if its parent is no longer the newest version and no fork
            was requested: ``"raise"`` raises ``ConflictError``; ``"branch"`` stores a side branch;
            ``"overwrite"`` stores a fork, which becomes the newest version.
        keep_last: Versions to keep of each namespace, at least 1. ``None`` keeps all.
        ttl_seconds: Time to live of a thread after its last ``put``. ``None``: it never expires.
        refresh_on_read: A read of a thread that expires renews its ``ttl_seconds``. The renewal
            does not delay the read, and its failure does not fail the read.

    Raises:
        InvalidArgumentError: An option is not valid.
        TypeError: ``backend`` is not a ``StorageBackend``.
    """

    def _begin(self) -> None:
        self._puts: dict[Place, PutInProgress] = {}
        """The puts in progress, by thread, namespace and checkpoint."""

        self._known = CachedCheckpoints()

    @observe("put")
    async def put(
        self,
        *,
        thread_id: str,
        checkpoint_id: str,
        checkpoint_data: Mapping[str, Any],
        checkpoint_ns: str = "",
        parent_checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        fork: bool = False,
        expected: Expected | None = None,
        is_root: bool = False,
        rebuilt: Sequence[str] = (),
        packed: bool = False,
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        connection: AsyncConnection | Connection | None = None,
    ) -> str:
        """Save a step; without a parent it is appended to the newest one.

        Args:
            thread_id: The thread.
            checkpoint_id: Unique in the namespace. One that is there with the same content stays
                as it is; with other content it is replaced, and its pending writes stay.
            checkpoint_data: A JSON object; the channels of a runner are in its
                ``channel_values``.
            checkpoint_ns: The namespace; of any length.
            parent_checkpoint_id: The step that this one was made from.
            metadata: A JSON object, queryable.
            fork: The parent may be another than the newest; the step becomes the newest.
            expected: What is known of the parent and the newest version, where the caller loaded
                them; tells a parent that was removed and made again.
            is_root: It was made from nothing, though the namespace may have versions.
            rebuilt: Channels of which ``checkpoint_data`` has no value, since it is rebuilt from
                an ancestor's and the pending writes since: these are not removed before it is.
            packed: Bytes in ``checkpoint_data`` are MessagePack: the value of a channel, or the
                elements of its list. Other readers get it as JSON.
            keep_last: Instead of the saver's.
            ttl_seconds: Instead of the saver's, until the next ``put`` that has one.
            connection: Save inside the transaction of this SQLAlchemy connection, which the caller
                commits or rolls back. SQL databases only.

        Returns:
            The checkpoint id; another one for a side branch whose id was in use.

        Raises:
            ConflictError: Another writer moved the thread on; nothing was written.
            NotFoundError: There is no such parent to fork from; nothing was written.
            SerializationError: The data cannot be kept exactly; nothing was written.
        """
        namespace = make_line_name(checkpoint_ns)
        is_below = bool(namespace) and parent_checkpoint_id is None
        labels = get_labels(checkpoint_data) | make_line_labels(checkpoint_ns)
        if rebuilt:
            channels = check_list("rebuilt", rebuilt)
            labels[REBUILT] = sorted(check_text("rebuilt", it, maximum=2**20) for it in channels)
        with PutInProgress(self._puts, self._known, (thread_id, namespace, checkpoint_id)):
            written = await self.backend.write_state(
                thread_id,
                checkpoint_data,
                namespace=namespace,
                checkpoint_id=checkpoint_id,
                metadata=metadata,
                labels=labels,
                expected=expected,
                parent_id=parent_checkpoint_id,
                forks=fork,
                is_root=is_root,
                thread_must_exist=is_below and self._known.has_thread(thread_id),
                on_conflict=self.on_conflict,
                packed=packed,
                keep_last=keep_last or self.keep_last,
                ttl_seconds=self.ttl_seconds if ttl_seconds is None else ttl_seconds,
                connection=connection,
            )
            if connection is None:  # else it is not there for other connections yet
                self._known.add((thread_id, namespace, written.checkpoint_id))
        return written.checkpoint_id

    def saving(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> PutInProgress:
        """Return a context in which a checkpoint's pending writes wait until it is stored.

        They are refused if it is not. A caller that repeats a refused ``put`` may use it around
        both attempts.
        """
        place = (thread_id, make_line_name(checkpoint_ns), checkpoint_id)
        return PutInProgress(self._puts, self._known, place)

    @observe("get")
    async def get(
        self, *, thread_id: str, checkpoint_id: str | None = None, checkpoint_ns: str = ""
    ) -> dict[str, Any] | None:
        """Return a step, or the newest one; ``None`` if there is none.

        Returns:
            A dict of ``checkpoint_id``, ``parent_checkpoint_id``, ``checkpoint``, ``metadata`` and
            ``created_at`` (ISO 8601, the server's clock).

        Raises:
            IntegrityError: The stored bytes do not give the state that was saved.
        """
        line = make_line_name(checkpoint_ns)
        found = await self.backend.read_state(thread_id, checkpoint_id, namespace=line)
        if found is None:
            self.note_missing(thread_id, checkpoint_id, checkpoint_ns)
            return None
        self.note_read(found.version)
        return _step(found.version, found.state)

    def note_missing(self, thread_id: str, checkpoint_id: str | None, checkpoint_ns: str) -> None:
        """Note a load that found nothing: a thread without versions may begin again."""
        if checkpoint_id is None and not checkpoint_ns:
            self._known.forget_thread(thread_id)

    def note_read(self, version: Version) -> None:
        """Note a version that was loaded: writes on it need it from now on.

        Renews the time to live of its thread, if the saver is set to do so.
        """
        self._known.add((version.thread_id, version.namespace, version.checkpoint_id))
        if self._renewing:
            self._renewing.note(needs(self.backend, Expires), version.thread_id)

    @observe("list_checkpoints")
    async def list_checkpoints(
        self, *, thread_id: str, checkpoint_ns: str = "", limit: int = 10, before: str | None = None
    ) -> list[dict[str, Any]]:
        """Return steps as ``get`` does, newest first, below the id ``before``.

        Raises:
            NotFoundError: There is no step ``before``.
        """
        line = make_line_name(checkpoint_ns)
        page = await self.backend.history(thread_id, namespace=line, limit=limit, before=before)
        return await needs(self.backend, StoresThreads).read_states(
            page, lambda version, folder: _step(version, decode(encode(folder.get_state())))
        )

    @observe("put_writes")
    async def put_writes(
        self,
        *,
        thread_id: str,
        checkpoint_id: str,
        task_id: str,
        writes: Sequence[tuple[str, Any]],
        checkpoint_ns: str = "",
        task_path: str = "",
        packed: bool = False,
        seen: Collection[tuple[str, int]] | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Save a task's writes to channels, before the step that follows ``checkpoint_id``.

        A checkpoint that this saver loaded or saved must still be stored, or a later one of it must
        be: then the writes are dropped. Another one may be saved later, and even its thread, if
        this saver loaded and saved nothing of it; a thread without any checkpoint expires with the
        saver's ``ttl_seconds``. An existing write (same task, same place) stays; one to a special
        channel replaces the task's last one there. Writes renew a thread's time to live.

        Args:
            thread_id: The thread.
            checkpoint_id: The step that the task ran on.
            task_id: The task.
            writes: Pairs of a channel and a JSON value.
            checkpoint_ns: The namespace.
            task_path: Where the task stands among the others; they are ordered by it.
            packed: Bytes in a value are MessagePack, as in ``put``.
            seen: Task and place of the writes that the caller loaded with the step, or sent
                itself; others are those of another run on the same step.
            ttl_seconds: Instead of the saver's.

        Raises:
            ConflictError: Another run is at work on the step, or the step that this saver knew is
                gone; nothing was written.
            SerializationError: A value cannot be kept exactly; nothing was written.
        """
        namespace = make_line_name(checkpoint_ns)
        check_text("thread_id", thread_id)
        check_text("checkpoint_id", checkpoint_id)
        check_task(task_id, task_path)
        check_ttl(ttl_seconds)
        if seen is not None:
            check_pairs("seen", seen)
        writes = check_pairs("writes", writes)
        note(writes=len(writes))
        if not writes:
            return
        place = thread_id, namespace, checkpoint_id
        if not self._known.has_thread(thread_id):
            await self._wait_for_puts(thread_id, namespace)
        if under_way := self._puts.get(place):
            await wait_for_end(under_way.get_end())
        must_exist: MustExist | None = "thread" if self._known.has_thread(thread_id) else None
        if self._known.has(place):
            must_exist = "checkpoint"
        known = self.backend.known_version(thread_id, checkpoint_id, namespace=namespace)
        limit = self.backend.max_state_bytes
        pack = partial(_pack_writes, writes, task_id, task_path, limit, packed=packed)
        made = pack(known)
        mark = known[0] if known and {it.basis for it in made} != {None} else None
        put = PutWrites(
            thread_id=thread_id,
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            writes=made,
            known=mark,
            seen=seen,
            must_exist=must_exist,
            ttl_seconds=self.ttl_seconds if ttl_seconds is None else ttl_seconds,
            turn=get_number(self.backend, thread_id),
        )
        store = needs(self.backend, StoresThreads).store_writes
        try:
            if not await store(put):
                await store(replace(put, writes=pack(None), known=None))
        except ConflictError:
            if not await self._is_superseded(thread_id, namespace, checkpoint_id):
                raise

    async def _wait_for_puts(self, *line: str) -> None:
        """Wait for the puts of a line that are in progress."""
        for place, under_way in list(self._puts.items()):
            if place[:2] == line:
                await wait_for_end(under_way.get_end())

    async def _is_superseded(self, thread_id: str, namespace: str, checkpoint_id: str) -> bool:
        """Return whether a step was removed, and one that this saver saved later is stored.

        Steps and their writes may be sent at the same time, and ``keep_last`` and ``prune`` keep
        newer steps only; no load returns these writes any more.
        """
        await self._wait_for_puts(thread_id, namespace)
        newer = self._known.get_newest(thread_id, namespace)
        is_other = newer is not None and newer != checkpoint_id
        find = partial(self.backend.version, thread_id, namespace=namespace)
        return is_other and await find(checkpoint_id) is None and await find(newer) is not None

    @observe("get_writes")
    async def get_writes(
        self, *, thread_id: str, checkpoint_id: str, checkpoint_ns: str = ""
    ) -> list[dict[str, Any]]:
        """Return tasks' writes on a step, ordered by task path, task and index.

        Returns:
            Dicts of ``task_id``, ``task_path``, ``idx``, ``channel`` and ``value``.
        """
        namespace = make_line_name(checkpoint_ns)
        read = needs(self.backend, StoresThreads).get_writes
        writes = await read(thread_id, checkpoint_id, namespace=namespace)
        state: Mapping[str, Any] = {}
        if any(it.basis is not None for it in writes):
            found = await self.backend.read_state(
                thread_id, checkpoint_id, namespace=namespace, with_writes=True
            )
            state = found.state if found else {}
            sequence = found.version.mark.sequence if found else 0
            writes = select_current((found and found.writes) or [], sequence)
        return [
            {
                "task_id": write.task_id,
                "task_path": write.task_path,
                "idx": write.idx,
                "channel": write.channel,
                "value": restore(decode_written_value(write, state, self.backend.max_state_bytes)),
            }
            for write in writes
        ]

    @observe("namespaces")
    async def namespaces(self, thread_id: str) -> list[str]:
        """Return the namespaces in which a thread has steps."""
        return await list_namespaces(self.backend, thread_id)

    @observe("delete_thread")
    async def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its namespaces, steps and pending writes."""
        note(removed=await self.backend.remove(thread_id))

    @observe("delete_for_runs")
    async def delete_for_runs(self, run_ids: Sequence[str]) -> int:
        """Remove the steps whose metadata names one of these as ``run_id``; return how many.

        With their pending writes, in all threads and namespaces.

        Raises:
            ConflictError: A step that stays is rebuilt from one of them. Those of other namespaces
                and threads may be gone.
        """
        lines: dict[tuple[str, str], list[str]] = {}
        for run_id in check_list("run_ids", run_ids):
            check_text("run_id", run_id)
            found = await needs(self.backend, QueriesMetadata).tagged("run_id", run_id)
            for thread_id, namespace, checkpoint_id in found:
                lines.setdefault((thread_id, namespace), []).append(checkpoint_id)
        removed = 0
        for (thread_id, namespace), ids in lines.items():
            removed += await self.backend.remove(thread_id, ids, namespace=namespace)
        note(removed=removed)
        return removed

    @observe("copy_thread")
    async def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces, steps and pending writes.

        Raises:
            NotFoundError: There is no source.
            ConflictError: The target exists already.
        """
        whole = needs(self.backend, StoresThreads)
        if not await whole.copy_thread(source_thread_id, target_thread_id):
            raise NotFoundError(f"there is no thread {source_thread_id!r} to copy")

    @observe("prune")
    async def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> int:
        """Remove the steps of threads; return how many.

        Args:
            thread_ids: Those that are not there are passed over.
            strategy: ``"keep_latest"``: all but the newest of each namespace, and what that one is
                rebuilt from. ``"delete"``: all.

        Raises:
            InvalidArgumentError: No such strategy.
        """
        check_choice("strategy", strategy, Literal["keep_latest", "delete"])
        whole = needs(self.backend, StoresThreads)
        take = whole.prune if strategy == "keep_latest" else whole.remove
        removed = sum([await take(it) for it in check_list("thread_ids", thread_ids)])
        note(removed=removed)
        return removed


def make_line_name(checkpoint_ns: str) -> str:
    """Return the name of a namespace's line; a long one is cut and ends in a digest."""
    if checkpoint_ns != "":
        check_text("checkpoint_ns", checkpoint_ns, maximum=2**20)
    if len(checkpoint_ns) < MAX_ID_CHARACTERS:
        return checkpoint_ns
    ending = blake2b(checkpoint_ns.encode(), digest_size=(MAX_ID_CHARACTERS - 201) // 2)
    name = f"{checkpoint_ns[:_SHOWN_CHARACTERS]}…{ending.hexdigest()}"
    return name.ljust(MAX_ID_CHARACTERS, "…")


def make_line_labels(checkpoint_ns: str) -> dict[str, str]:
    """Return the label with a namespace whose line has a shortened name; else none."""
    return {} if len(checkpoint_ns) < MAX_ID_CHARACTERS else {NAMESPACE: checkpoint_ns}


def get_namespace(version: Version) -> str:
    """Return the namespace of a version, even if its line's name is shortened."""
    return str(version.labels.get(NAMESPACE, version.namespace))


async def list_namespaces(backend: StorageBackend, thread_id: str) -> list[str]:
    """Return a thread's namespaces, also those whose lines have shortened names."""
    found = []
    for name in await needs(backend, StoresThreads).namespaces(thread_id):
        is_whole = len(name) < MAX_ID_CHARACTERS
        head = None if is_whole else await backend.version(thread_id, namespace=name)
        found.append(get_namespace(head) if head else name)
    return found


def decode_written_value(
    write: PendingWrite, state: Mapping[str, Any], max_bytes: int, *, packed: bool = False
) -> Any:
    """Return the value of a pending write; bytes if another library wrote it.

    Args:
        write: A write.
        state: Of its checkpoint.
        max_bytes: The largest frame, as ``max_state_bytes``.
        packed: MessagePack stays bytes, in the state and in the value.

    Raises:
        IntegrityError: The stored bytes make no sense, or are too large.
    """
    if write.type != JSON_WRITE:
        return write.payload
    if write.basis is None:
        return frames.decode_value(write.payload, max_bytes, packed=packed)
    old = find_channel(state, write.channel)
    return frames.change_value(old, write.payload, max_bytes, packed=packed)


def _pack_writes(
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    max_bytes: int,
    basis: tuple[Mark, frames.DigestTree] | None,
    *,
    packed: bool,
) -> list[PendingWrite]:
    """Return pending writes: as changes of the channels' known values where that is smaller."""
    made = []
    for at, (channel, value) in enumerate(writes):
        check_text("channel", channel)
        path, place = (CHANNELS, channel), SPECIAL_CHANNELS.get(channel, at)
        change = basis and frames.diff_value(value, basis[1], path, max_bytes, packed=packed)
        sequence = basis[0].sequence if basis and change is not None else None
        payload = frames.encode_value(value, max_bytes, packed=packed) if change is None else change
        made.append(PendingWrite(task_id, place, channel, JSON_WRITE, payload, task_path, sequence))
    return made


def _step(version: Version, state: Any) -> dict[str, Any]:
    return {
        "checkpoint_id": version.checkpoint_id,
        "parent_checkpoint_id": version.parent_id,
        "checkpoint": restore(state),
        "metadata": restore(version.metadata),
        "created_at": version.created_at.isoformat(),
    }
