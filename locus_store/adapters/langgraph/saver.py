"""LangGraph's checkpointer, over a ``CheckpointSaver``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final, Self, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from locus_store.adapters.langgraph.listing import (
    CheckpointLists,
    DeltaHistories,
    Maker,
    Write,
    make_ttl_options,
    remove_ended_calls,
)
from locus_store.adapters.langgraph.loads import (
    HELD,
    RUNTIME,
    GivenIds,
    Load,
    check_pairs,
    format_thread_id,
    make_parent_arguments,
    parse_config,
)
from locus_store.adapters.langgraph.serializer import ExactSerializer, make_exact
from locus_store.adapters.langgraph.values import ChannelValues
from locus_store.backend import FullBackend, StorageBackend, needs
from locus_store.errors import ConflictError, InvalidArgumentError, LocusStoreError
from locus_store.open import open_saver
from locus_store.runtime.background import note_save, wait_for_saves
from locus_store.runtime.holding import held_here
from locus_store.runtime.portals import Portals, SyncLife, make_sync_wrapper
from locus_store.runtime.recent import Recent
from locus_store.saver import (
    SPECIAL_CHANNELS,
    CheckpointSaver,
    decode_written_value,
    get_namespace,
    make_line_name,
)
from locus_store.turns import HasSyncTurns
from locus_store.types import PendingWrite, Version
from locus_store.types.arguments import check_limit, check_list, check_mapping, check_text
from locus_store.types.tenants import ForTenants
from locus_store.versions import JSON_WRITE, select_current

_COUNTERS: Final = "counters_since_delta_snapshot"
CACHE_BYTES: Final = 64 * 1024 * 1024
"""Memory for what one saver and its backend remember, unless the caller says otherwise."""

Makers: TypeAlias = "list[Maker]"  # in the class, `list` is a method


class LangGraphSaver(HasSyncTurns, SyncLife, ForTenants, BaseCheckpointSaver[Any]):
    """Keeps the checkpoints of LangGraph's graphs in any backend of this package.

    One object serves the sync and the async methods of any number of graphs, from any thread and
    any event loop. A sync method in a running loop, as in a notebook, stops it for that long.

    ``put`` knows a second writer from a fork: a run whose thread was moved on by another one since
    it was loaded gets a ``ConflictError`` at its next checkpoint, by default.

    Args:
        saver: A ``CheckpointSaver``, which has the options, or a backend.
        serde: Serializer; ``ExactSerializer`` unless given. An ``EncryptedSerializer`` over
            LangGraph's default serializer gets an ``ExactSerializer`` instead of that one, which
            reads values that are not encrypted, and calls what they name.
        allowed: The only classes of your own that may be stored, without ``serde`` or with such an
            ``EncryptedSerializer``; ``None``: all pydantic models, dataclasses and enums. See
            ``ExactSerializer``.
        cache_bytes: Memory for what is remembered of threads: by this object and its clones, and,
            a quarter of it, by the backend. 0 remembers as little as possible.
        share_messages: A LangChain message that several checkpoints of one ``list`` or
            ``get_state_history`` have is one object in all of them. ``False``: each checkpoint has
            copies.
        trust_new_versions: A ``put`` looks only at channels that ``new_versions`` names, as
            LangGraph's saver for PostgreSQL does. A value that a node changes in place, without
            returning it, is not saved then.

    Raises:
        InvalidArgumentError: ``serde`` and ``allowed`` are both given, or ``cache_bytes`` is
            negative.
        TypeError: ``saver`` is neither.
    """

    turns_part = "saver"

    def __init__(
        self,
        saver: CheckpointSaver | StorageBackend,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[tuple[str, ...] | type] | None = None,
        cache_bytes: int = CACHE_BYTES,
        share_messages: bool = True,
        trust_new_versions: bool = False,
    ) -> None:
        check_limit(cache_bytes, "cache_bytes")
        used = make_exact(serde, allowed)
        if used is not None and used is serde and allowed is not None:
            raise InvalidArgumentError("give serde or allowed, not both: a serde has its own")
        super().__init__(serde=used or ExactSerializer(allowed))
        self.saver = saver if isinstance(saver, CheckpointSaver) else CheckpointSaver(saver)
        of_backend = cache_bytes // 4
        self.saver.backend.limit_cache(of_backend)
        self._caches: Recent[Any, Any] = Recent(cache_bytes - of_backend)
        self._made = ChannelValues(self.serde, self._caches)
        self.share_messages = share_messages
        self.trust_new_versions = trust_new_versions
        self._given = GivenIds()
        self._portals = Portals.make_for(self, self.saver)
        self._owns_portals = True

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[tuple[str, ...] | type] | None = None,
        cache_bytes: int = CACHE_BYTES,
        share_messages: bool = True,
        trust_new_versions: bool = False,
        ttl: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Return a saver for a URL; see ``open_saver`` for the options.

        Use it as it is, in ``with`` or in ``async with``. ``ttl`` is spelt as in
        langgraph-checkpoint-redis: ``{"default_ttl": minutes, "refresh_on_read": True}``.
        """
        return cls(
            open_saver(url, **make_ttl_options(ttl, options), **options),
            serde=serde,
            allowed=allowed,
            cache_bytes=cache_bytes,
            share_messages=share_messages,
            trust_new_versions=trust_new_versions,
        )

    def _enter(self, tenant: str) -> None:
        self.saver = self.saver.for_tenant(tenant)
        self._owns_portals = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.saver!r})"

    @property
    def backend(self) -> StorageBackend:
        """The backend of the saver."""
        return self.saver.backend

    @property
    def _values(self) -> ChannelValues:
        if self._made.serde is not self.serde:  # `with_allowlist` replaces it in a copy
            self._made = ChannelValues(self.serde, self._caches)
        return self._made

    async def asetup(self) -> None:
        await needs(self.saver.backend, FullBackend).scan(1)

    async def aclose(self) -> None:
        """Close what was opened; idempotent, and the saver may be used again afterwards."""
        await self.saver.close()

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that ``config`` names, or the newest; ``None`` where there is none.

        It waits for what a run that was left or cancelled saves in the same event loop, at most
        ``PATIENCE_SECONDS``.

        Raises:
            SchemaError: The thread was saved by an agent, not by a graph.
            IntegrityError: The stored bytes do not give what was saved.
        """
        thread_id, checkpoint_ns, checkpoint_id = parse_config(config)
        given, turns = config["configurable"], held_here.get()
        if RUNTIME in given and (turns or HELD in given):  # a node's config may outlive its run
            given[HELD] = turns
        await wait_for_saves(self.saver.backend, f"{thread_id}\0{checkpoint_ns}")
        found = await self.saver.backend.read_kept(
            thread_id, checkpoint_id, namespace=make_line_name(checkpoint_ns), with_writes=True
        )
        if found is None:
            self.saver.note_missing(thread_id, checkpoint_id, checkpoint_ns)
            return None
        self.saver.note_read(found.version)
        writes = select_current(found.writes or [], found.version.mark.sequence)
        load = Load(found.version.mark, found.head, {(it.task_id, it.idx) for it in writes})
        state = found.snapshot.to_state() if any(it.basis is not None for it in writes) else {}
        return self._make_tuple(
            found.version,
            self._given.give(found.version.checkpoint_id, load),
            self._values.make_checkpoint(found.version, found.snapshot.to_parts(), found.state),
            [self._write(it, state) for it in writes],
        )

    get_tuple = make_sync_wrapper(aget_tuple)

    def _make_tuple(
        self, version: Version, name: str, checkpoint: dict[str, Any], writes: list[Write]
    ) -> CheckpointTuple:
        place = {"thread_id": version.thread_id, "checkpoint_ns": get_namespace(version)}
        parent = {"configurable": {**place, "checkpoint_id": version.parent_id}}
        return CheckpointTuple(
            config={"configurable": {**place, "checkpoint_id": name}},
            checkpoint={**checkpoint, "id": name},  # type: ignore[typeddict-item]
            metadata=self._values.read_fields(version.metadata),  # type: ignore[arg-type]
            parent_config=parent if version.parent_id else None,  # type: ignore[arg-type]
            pending_writes=writes,
        )

    def _write(self, write: PendingWrite, state: Mapping[str, Any]) -> Write:
        value = decode_written_value(write, state, self.saver.backend.max_state_bytes, packed=True)
        if write.type == JSON_WRITE:
            return write.task_id, write.channel, self._values.read(value)
        return write.task_id, write.channel, self._values.load(write.type, value)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint below the one that ``config`` names; return its config.

        Raises:
            ConflictError: Another run moved the thread on since this one loaded it; nothing was
                written.
            SerializationError: A value cannot be kept exactly, or would not be made again.
        """
        thread_id, checkpoint_ns, parent = parse_config(config)
        line = thread_id, make_line_name(checkpoint_ns)
        check_mapping("new_versions", new_versions)
        get: Any = check_mapping("checkpoint", checkpoint).get
        versions = check_mapping("checkpoint['channel_versions']", get("channel_versions"))
        channels = check_mapping("checkpoint['channel_values']", get("channel_values"))
        checkpoint_id, values = check_text("checkpoint['id']", get("id")), self._values
        unchanged = values.find_unchanged(line, parent, checkpoint, new_versions)
        try:
            fields: Mapping[str, Any] = get_serializable_checkpoint_metadata(config, metadata)
        except AttributeError:
            check_mapping("config['metadata']", config.get("metadata") or {})
            check_mapping("metadata", metadata)
            raise
        counters = fields.get(_COUNTERS) or {}
        keep = self.saver.keep_last  # and all that this version is rebuilt from
        rebuilt = [it for it in counters if it in versions and it not in channels]
        save: dict[str, Any] = {
            "thread_id": thread_id,
            "checkpoint_id": checkpoint_id,
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_data": values.make_state(checkpoint, line, unchanged),
            "metadata": values.convert_metadata(fields),
            "packed": True,
            "rebuilt": rebuilt,
            "keep_last": keep and max(keep, 1, *(counters[it][1] + 2 for it in rebuilt)),
            "ttl_seconds": config["configurable"].get("ttl_seconds"),
        }
        where = thread_id, checkpoint_ns, checkpoint_id
        puts = self.saver.saving(*where) if checkpoint_ns else nullcontext()  # not repeated
        with note_save(self.saver.backend, f"{thread_id}\0{checkpoint_ns}"), puts:
            try:
                given = self._given.find(parent)
                name = await self.saver.put(
                    **save, **make_parent_arguments(config, parent, fields, given)
                )
            except ConflictError as exc:
                if not await self._is_of_same_step(exc, thread_id, checkpoint_ns, save["metadata"]):
                    raise
                name = await self.saver.put(
                    **save, parent_checkpoint_id=parent, fork=bool(parent), is_root=not parent
                )
        state, trusts = save["checkpoint_data"], self.trust_new_versions
        values.note_put(line, name, versions, state, only_joins=not trusts)
        is_only = config["configurable"].get("__pregel_durability") == "exit"  # save of its run
        is_once = not checkpoint_ns and (is_only or fields.get("source") in {"input", "update"})
        if keep and is_once and self.saver.on_conflict == "raise":  # else it may be overtaken
            with suppress(LocusStoreError):  # the thread's next run tries again
                await remove_ended_calls(needs(self.saver.backend, FullBackend), thread_id)
        place = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": name}
        return {"configurable": place}

    put = make_sync_wrapper(aput)

    async def _is_of_same_step(
        self, exc: ConflictError, thread_id: str, checkpoint_ns: str, metadata: Mapping[str, Any]
    ) -> bool:
        """Return whether another task of the same step made the newest version of a subgraph.

        Tasks of one step that call the same subgraph share its namespace. Another run of the same
        step is recognized in the namespace above.
        """
        if not checkpoint_ns or exc.head_id is None or not metadata.get("parents"):
            return False
        line = make_line_name(checkpoint_ns)
        head = await self.saver.backend.version(thread_id, exc.head_id, namespace=line)
        return head is not None and head.metadata.get("parents") == metadata["parents"]

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save a task's writes on the checkpoint that ``config`` names.

        It may be saved later, unless this saver loaded or saved it. Writes renew the time to live.

        Raises:
            ConflictError: Another run is at work on the same checkpoint, or it was deleted; nothing
                was written.
            SerializationError: A value cannot be kept exactly, or would not be made again.
        """
        thread_id, checkpoint_ns, checkpoint_id = parse_config(config)
        if checkpoint_id is None:
            check_text("the checkpoint_id in a config of writes", checkpoint_id)
        if not held_here.get():  # the thread of a parallel task has no context of the run
            held_here.set(config["configurable"].get(HELD, {}))
        load = getattr(self._given.find(checkpoint_id), "load", None)
        pairs = self._values.store_channels(check_pairs(writes))
        save: dict[str, Any] = {
            "thread_id": thread_id,
            "checkpoint_id": checkpoint_id,
            "checkpoint_ns": checkpoint_ns,
            "task_id": task_id,
            "task_path": task_path,
            "packed": True,
            "ttl_seconds": config["configurable"].get("ttl_seconds"),
            "writes": pairs,
        }
        with note_save(self.saver.backend, f"{thread_id}\0{checkpoint_ns}"):
            if load is None or checkpoint_ns:
                await self.saver.put_writes(**save)
                return
            check_text("task_id", task_id)
            keys = {(task_id, SPECIAL_CHANNELS.get(it, at)) for at, (it, _) in enumerate(pairs)}
            async with load.admit_writes(keys) as seen:
                await self.saver.put_writes(**save, seen=seen)

    put_writes = make_sync_wrapper(aput_writes)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first by the server's order.

        Within a namespace that is the order of its saves; between namespaces and threads, the
        server's time of the save.

        Args:
            config: A thread, and perhaps a namespace and a checkpoint; ``None``: all threads of
                graphs.
            filter: Metadata that a checkpoint must have; see ``filters.holds``.
            before: Only those below this checkpoint of the same namespace; in another one, those
                with a smaller id.
            limit: At most this many.
        """
        async for page in self._lists.iterate_pages(config, filter or {}, before, limit):
            for make in page:
                yield make()

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """See ``alist``; no connection is held between two checkpoints."""
        pages = self._lists.iterate_pages(config, filter or {}, before, limit)
        nothing: Makers = []
        while page := self._portals.run(type(self).__name__, anext, pages, nothing):
            for make in page:
                yield make()

    @property
    def _lists(self) -> CheckpointLists:
        backend, makers = needs(self.saver.backend, FullBackend), (self._make_tuple, self._write)
        return CheckpointLists(backend, self._values, self._given, *makers, self.share_messages)

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its namespaces, checkpoints and pending writes."""
        await self.saver.delete_thread(format_thread_id(thread_id))

    delete_thread = make_sync_wrapper(adelete_thread)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints and pending writes of runs, in all threads and namespaces.

        Raises:
            ConflictError: A ``DeltaChannel`` of a checkpoint that stays is rebuilt from one of
                them; those of other namespaces and threads may be gone.
        """
        await self.saver.delete_for_runs([str(it) for it in check_list("run_ids", run_ids)])

    delete_for_runs = make_sync_wrapper(adelete_for_runs)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces, checkpoints and pending writes.

        Raises:
            NotFoundError: There is no source.
            ConflictError: The target exists already.
        """
        await self.saver.copy_thread(*map(format_thread_id, (source_thread_id, target_thread_id)))

    copy_thread = make_sync_wrapper(acopy_thread)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads but the newest of each namespace, or all.

        What a ``DeltaChannel`` of the newest is rebuilt from stays too. The namespace of a call of
        a subgraph is removed with the root checkpoint that the call began from.

        Raises:
            InvalidArgumentError: ``strategy`` is neither ``"keep_latest"`` nor ``"delete"``.
        """
        ids = [format_thread_id(it) for it in check_list("thread_ids", thread_ids)]
        await self.saver.prune(ids, strategy=strategy)
        for thread_id in ids:
            await remove_ended_calls(needs(self.saver.backend, FullBackend), thread_id)

    prune = make_sync_wrapper(aprune)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what channels are rebuilt from: an ancestor's value, and the later writes.

        The ancestors are read without their states, their writes at once, and the state of each
        ancestor that has a value.
        """
        found = DeltaHistories(needs(self.saver.backend, FullBackend), self._values, self._write)
        for name in check_list("channels", channels):
            check_text("channel", name)
        return await found.read(parse_config(config), channels)

    get_delta_channel_history = make_sync_wrapper(aget_delta_channel_history)

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """Return the version of a channel that follows ``current``.

        It is a string, as in LangGraph's own savers, so that their threads can continue here; a
        number if ``current`` is one.
        """
        is_number = isinstance(current, (int, float))
        try:
            number = int(current if is_number else str(current or 0).partition(".")[0]) + 1
        except (ValueError, OverflowError) as exc:
            raise InvalidArgumentError(f"{current!r:.80} is not a version of a channel") from exc
        return number if is_number else f"{number:032}"
