"""LangGraph's checkpointer, over a ``CheckpointSaver``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointTuple,
    DeltaChannelHistory,
    get_serializable_checkpoint_metadata,
)

from locus_store.adapters.langgraph.loads import (
    Load,
    Loaded,
    fork_of,
    made_from,
    parent_of,
    place_of,
)
from locus_store.adapters.langgraph.pages import PAGE, Line, ancestors
from locus_store.adapters.langgraph.serializer import ExactSerializer
from locus_store.adapters.langgraph.values import History, Values
from locus_store.arguments import MAX_COUNT
from locus_store.blocking import Portals
from locus_store.errors import ConflictError, InvalidArgumentError
from locus_store.open import open_saver
from locus_store.saver import (
    JSON_WRITE,
    SPECIAL_CHANNELS,
    CheckpointSaver,
    line_name,
    namespace_of,
    written_value,
)
from locus_store.versions import CHANNELS, REBUILT, current, whole_write

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import TracebackType

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from locus_store.backends.base import StorageBackend
    from locus_store.layout import Folder
    from locus_store.types import PendingWrite, Version

_COUNTERS: Final = "counters_since_delta_snapshot"
T = TypeVar("T")
Makers: TypeAlias = "list[Callable[[], CheckpointTuple]]"  # in the class, `list` is a method
Versions: TypeAlias = "list[Version]"
Path: TypeAlias = "list[str]"


class LangGraphSaver(BaseCheckpointSaver[Any]):
    """Keeps the checkpoints of LangGraph's graphs in any backend of this package.

    One object serves the sync and the async methods of any number of graphs, from any thread and
    any event loop; within a running loop only the async ones.

    ``put`` knows a second writer from a fork: a run whose thread was moved on by another one since
    it was loaded gets a ``ConflictError`` at its next checkpoint, by default.

    Args:
        saver: A ``CheckpointSaver``, which has the options, or a backend.
        serde: Serializer; ``ExactSerializer`` unless given.
        allowed: Classes that it may make on reading, without ``serde``; see ``ExactSerializer``.

    Raises:
        InvalidArgumentError: ``serde`` and ``allowed`` are both given.
        TypeError: ``saver`` is neither.
    """

    def __init__(
        self,
        saver: CheckpointSaver | StorageBackend,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[tuple[str, ...] | type] = (),
    ) -> None:
        allowed = tuple(allowed)
        if serde is not None and allowed:
            raise InvalidArgumentError("give serde or allowed, not both: a serde has its own")
        super().__init__(serde=serde or ExactSerializer(allowed))
        self.saver = saver if isinstance(saver, CheckpointSaver) else CheckpointSaver(saver)
        self._made = Values(self.serde)
        self._portals = Portals()

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Iterable[tuple[str, ...] | type] = (),
        **options: Any,
    ) -> Self:
        """Return a saver for a URL; see ``open_saver`` for the options.

        Use it as it is, in ``with`` or in ``async with``.
        """
        return cls(open_saver(url, **options), serde=serde, allowed=allowed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.saver!r})"

    @property
    def _values(self) -> Values:
        if self._made.serde is not self.serde:  # `with_allowlist` replaces it in a copy
            self._made = Values(self.serde)
        return self._made

    # --- life

    async def asetup(self) -> None:
        """Open the storage, which the first call does otherwise: tells what is wrong with it."""
        await self.saver.backend.scan(1)

    def setup(self) -> None:
        """See ``asetup``."""
        self._run(self.asetup)

    async def aclose(self) -> None:
        """Close what was opened; idempotent, and the saver may be used again after."""
        await self.saver.close()

    def close(self) -> None:
        """See ``aclose``; ends the thread of the sync methods too."""
        self._run(self.aclose)
        self._portals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _run(self, call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        return self._portals.run(type(self).__name__, call, *args, **kwargs)

    # --- one checkpoint

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that ``config`` names, or the newest; ``None`` where there is none.

        Raises:
            SchemaError: The thread was saved by an agent, not by a graph.
            IntegrityError: The stored bytes do not give what was saved.
        """
        thread_id, checkpoint_ns, checkpoint_id = place_of(config)
        found = await self.saver.backend.read_kept(
            thread_id, checkpoint_id, namespace=line_name(checkpoint_ns), with_writes=True
        )
        if found is None:
            return None
        writes = current(found.writes or [], found.version.mark.sequence)
        load = Load(found.version.mark, found.head, {(it.task_id, it.idx) for it in writes})
        is_framed = any(it.basis is not None for it in writes)
        state = found.snapshot.state() if is_framed else {}
        return self._tuple(
            found.version,
            Loaded(found.version.checkpoint_id, load),
            self._values.checkpoint(found.version, found.snapshot.parts()),
            [self._write(it, state) for it in writes],
        )

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See ``aget_tuple``; as every sync method, not within a running loop."""
        return self._run(self.aget_tuple, config)

    def _tuple(
        self,
        version: Version,
        name: Loaded,
        checkpoint: dict[str, Any],
        writes: list[tuple[str, str, Any]],
    ) -> CheckpointTuple:
        place = {"thread_id": version.thread_id, "checkpoint_ns": namespace_of(version)}
        parent = None
        if version.parent_id is not None:
            parent = {"configurable": {**place, "checkpoint_id": version.parent_id}}
        return CheckpointTuple(
            config={"configurable": {**place, "checkpoint_id": name}},
            checkpoint={**checkpoint, "id": name},  # type: ignore[typeddict-item]
            metadata=self._values.metadata_from_json(version.metadata),  # type: ignore[arg-type]
            parent_config=parent,  # type: ignore[arg-type]
            pending_writes=writes,
        )

    def _write(self, write: PendingWrite, state: Mapping[str, Any]) -> tuple[str, str, Any]:
        value = written_value(write, state)
        if write.type == JSON_WRITE:
            return write.task_id, write.channel, self._values.from_json(value)
        return write.task_id, write.channel, self._values.loaded(write.type, value)

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
        del new_versions  # what did not change costs nothing anyway
        thread_id, checkpoint_ns, _ = place_of(config)
        told: Mapping[str, Any] = get_serializable_checkpoint_metadata(config, metadata)
        counters = told.get(_COUNTERS) or {}
        values = checkpoint["channel_values"]
        rebuilt = [it for it in counters if it in checkpoint["channel_versions"].keys() - values]
        save: dict[str, Any] = {
            "thread_id": thread_id,
            "checkpoint_id": str(checkpoint["id"]),
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_data": self._values.state(
                checkpoint, (thread_id, line_name(checkpoint_ns))
            ),
            "metadata": self._values.metadata_to_json(told),
            "rebuilt": rebuilt,
            "keep_last": self._kept(counters[it] for it in rebuilt),
        }
        try:
            name = await self.saver.put(**save, **made_from(config, told))
        except ConflictError as exc:
            if not await self._is_of_same_step(exc, thread_id, checkpoint_ns, save["metadata"]):
                raise
            name = await self.saver.put(**save, **fork_of(parent_of(config)))
        place = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": name}
        return {"configurable": place}

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See ``aput``."""
        return self._run(self.aput, config, checkpoint, metadata, new_versions)

    def _kept(self, counters: Iterable[Sequence[int]]) -> int | None:
        """How many versions to keep, where some are what this one is rebuilt from."""
        if self.saver.keep_last is None:
            return None
        return max(self.saver.keep_last, *(steps + 2 for _, steps in counters), 1)

    async def _is_of_same_step(
        self, exc: ConflictError, thread_id: str, checkpoint_ns: str, metadata: Mapping[str, Any]
    ) -> bool:
        """Whether the newest version of a subgraph was made by another task of the same step.

        Tasks of one step that call the same subgraph share its namespace. Another run that is on
        the same step is told by the namespace above.
        """
        if not checkpoint_ns or exc.head_id is None or not metadata.get("parents"):
            return False
        head = await self.saver.backend.version(
            thread_id, exc.head_id, namespace=line_name(checkpoint_ns)
        )
        return head is not None and head.metadata.get("parents") == metadata["parents"]

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task wrote on the checkpoint that ``config`` names, there or still to come.

        Raises:
            ConflictError: Another run is at work on the same checkpoint; nothing was written.
            SerializationError: A value cannot be kept exactly, or would not be made again.
        """
        thread_id, checkpoint_ns, checkpoint_id = place_of(config)
        if checkpoint_id is None:
            raise InvalidArgumentError(
                "put_writes needs the checkpoint_id that they are pending on"
            )
        load = checkpoint_id.load if isinstance(checkpoint_id, Loaded) else None
        keys = {(task_id, SPECIAL_CHANNELS.get(it, at)) for at, (it, _) in enumerate(writes)}
        save: dict[str, Any] = {
            "thread_id": thread_id,
            "checkpoint_id": str(checkpoint_id),
            "checkpoint_ns": checkpoint_ns,
            "task_id": task_id,
            "task_path": task_path,
            "writes": [
                (name, self._values.to_json(it, f"channel {name!r}")) for name, it in writes
            ],
        }
        if load is None or checkpoint_ns:
            await self.saver.put_writes(**save)
            return
        async with load.writing(keys) as seen:
            await self.saver.put_writes(**save, seen=seen)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """See ``aput_writes``."""
        return self._run(self.aput_writes, config, writes, task_id, task_path)

    # --- many

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first by the server's order.

        Args:
            config: A thread, and perhaps a namespace and a checkpoint; ``None``: all threads, by
                their ids.
            filter: Metadata, whose values must be equal.
            before: Only those below this checkpoint of the same namespace; in another one, those
                with a smaller id.
            limit: At most this many.
        """
        async for page in self._pages(config, filter or {}, before, limit):
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
        """See ``alist``; nothing is held between two of them."""
        pages = self._pages(config, filter or {}, before, limit)
        nothing: Makers = []
        while page := self._run(anext, pages, nothing):
            for make in page:
                yield make()

    async def _pages(
        self,
        config: RunnableConfig | None,
        wanted: Mapping[str, Any],
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncIterator[Makers]:
        left = MAX_COUNT if limit is None else limit
        named = place_of(config)[2] if config else None
        async for thread_id, namespace in self._lines(config):
            below = before["configurable"].get("checkpoint_id") if before else None
            lister = Line(self.saver.backend, thread_id, namespace, below)
            while left > 0 and (page := await lister.page(PAGE)):
                found = [
                    it for it in page if named in {None, it.checkpoint_id} and self._has(it, wanted)
                ][:left]
                left -= len(found)
                if found:
                    yield await self._read(found)

    async def _lines(self, config: RunnableConfig | None) -> AsyncIterator[tuple[str, str]]:
        """Threads and names of their lines."""
        backend = self.saver.backend
        if config is not None:
            thread_id, _, _ = place_of(config)
            checkpoint_ns = config["configurable"].get("checkpoint_ns")
            if checkpoint_ns is not None:
                yield thread_id, line_name(checkpoint_ns)
                return
            for namespace in await backend.namespaces(thread_id):
                yield thread_id, namespace
            return
        after: str | None = None
        while threads := await backend.scan(after=after):
            for after in threads:
                for namespace in await backend.namespaces(after):
                    yield after, namespace

    def _has(self, version: Version, wanted: Mapping[str, Any]) -> bool:
        if not wanted:
            return True
        metadata = self._values.metadata_from_json(version.metadata)
        return all(name in metadata and metadata[name] == it for name, it in wanted.items())

    async def _read(self, versions: Versions) -> Makers:
        """What makes the tuples of versions of one line, once each."""
        backend, first = self.saver.backend, versions[0]
        ids = [it.checkpoint_id for it in versions]
        writes = await backend.writes_of(first.thread_id, ids, namespace=first.namespace)
        history = History(self._values)

        def read(version: Version, folder: Folder) -> Callable[[], CheckpointTuple]:
            state = folder.state()
            of_it = current(writes.get(version.checkpoint_id, []), version.mark.sequence)
            pending = [self._write(it, state) for it in of_it]
            name = Loaded(version.checkpoint_id, None)
            make = history.read(version, folder)
            return lambda: self._tuple(version, name, make(), pending)

        return await backend.read_states(versions, read)

    # --- threads

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its namespaces, checkpoints and pending writes."""
        await self.saver.delete_thread(str(thread_id))

    def delete_thread(self, thread_id: str) -> None:
        """See ``adelete_thread``."""
        self._run(self.adelete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints and pending writes of runs, in all threads and namespaces.

        Raises:
            ConflictError: A ``DeltaChannel`` of a checkpoint that stays is rebuilt from one of
                them; those of other namespaces and threads may be gone.
        """
        await self.saver.delete_for_runs([str(it) for it in run_ids])

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See ``adelete_for_runs``."""
        self._run(self.adelete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces, checkpoints and pending writes.

        Raises:
            NotFoundError: There is no source.
            ConflictError: The target is there already.
        """
        await self.saver.copy_thread(str(source_thread_id), str(target_thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See ``acopy_thread``."""
        self._run(self.acopy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads but the newest of each namespace, or all.

        What a ``DeltaChannel`` of the newest is rebuilt from stays too.

        Raises:
            InvalidArgumentError: ``strategy`` is neither ``"keep_latest"`` nor ``"delete"``.
        """
        await self.saver.prune([str(it) for it in thread_ids], strategy=strategy)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See ``aprune``."""
        self._run(self.aprune, thread_ids, strategy=strategy)

    # --- delta channels

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what channels are rebuilt from: an ancestor's value, and the writes since.

        The ancestors are read without their states, their writes at once, and the state of each
        ancestor that has a value.
        """
        thread_id, checkpoint_ns, checkpoint_id = place_of(config)
        backend, namespace = self.saver.backend, line_name(checkpoint_ns)
        target = await backend.version(thread_id, checkpoint_id, namespace=namespace)
        seeds: dict[str, Any] = {}
        path: Path = []
        ends: dict[str, int] = {}
        async for version in ancestors(backend, target):
            missing = [it for it in channels if it not in seeds]
            if not missing:
                break
            path.append(version.checkpoint_id)
            if any(it not in version.labels.get(REBUILT, ()) for it in missing):
                found = await backend.read_state(
                    thread_id, version.checkpoint_id, namespace=namespace
                )
                values = found.state.get(CHANNELS, {}) if found else {}
                seeds |= {it: self._values.from_json(values[it]) for it in missing if it in values}
            ends |= dict.fromkeys(missing, len(path))
        on_path = {it: path[: ends.get(it, 0)][::-1] for it in channels}
        return await self._histories(thread_id, namespace, on_path, seeds)

    async def _histories(
        self,
        thread_id: str,
        namespace: str,
        path: Mapping[str, Path],
        seeds: Mapping[str, Any],
    ) -> dict[str, DeltaChannelHistory]:
        ids: Path = max(path.values(), key=len, default=[])
        writes = await self.saver.backend.writes_of(thread_id, ids, namespace=namespace)
        histories: dict[str, DeltaChannelHistory] = {}
        for name, on_path in path.items():
            found = [
                self._write(whole, {})
                for of in on_path
                for it in writes.get(of, [])
                if it.channel == name
                and (whole := await self._whole(thread_id, namespace, of, it)) is not None
            ]
            histories[name] = {"writes": found}
            if name in seeds:
                histories[name]["seed"] = seeds[name]
        return histories

    async def _whole(
        self, thread_id: str, namespace: str, checkpoint_id: str, write: PendingWrite
    ) -> PendingWrite | None:
        """The write without frames; ``None`` for what another version left behind."""
        if write.basis is None:
            return write
        found = await self.saver.backend.read_state(thread_id, checkpoint_id, namespace=namespace)
        if found is None or not current([write], found.version.mark.sequence):
            return None
        return whole_write(write, found.state)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See ``aget_delta_channel_history``."""
        return self._run(self.aget_delta_channel_history, config=config, channels=channels)

    # --- versions of channels

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """Return the version of a channel that follows ``current``.

        Text, as LangGraph's own savers have it, so that their threads go on here; a number where
        ``current`` is one.
        """
        del channel
        if isinstance(current, int | float):
            return int(current) + 1
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}"
