"""The checkpointer contract that an agent sees, and its adapter over a storage backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Unpack

from typing_extensions import TypeVar

from locus_store.backend import (
    Expires,
    LimitsTenants,
    ListsHeads,
    ListsThreads,
    QueriesMetadata,
    SearchesText,
    SharedByTenants,
    StorageBackend,
    StoresThreads,
    Vacuums,
    needs,
)
from locus_store.effects import RunsEffects
from locus_store.errors import UnsupportedError
from locus_store.runtime.background import note_save, wait_for_saves
from locus_store.runtime.notebooks import Table
from locus_store.runtime.observe import note, observe
from locus_store.runtime.stepping import needs_no_loop
from locus_store.turns import HasTurns, ThreadHandle, bind_thread
from locus_store.types import (
    CheckpointerCapabilities,
    Expected,
    Head,
    Mark,
    OnConflict,
    Snapshot,
    Tenant,
)
from locus_store.types.arguments import check_choice, check_keep_last, check_text, check_ttl
from locus_store.types.codec import StateCodec, can_carry_mark, get_labels
from locus_store.types.marks import LoadedVersion, OneLoad, loaded_here, make_thread_key
from locus_store.types.records import make_unsupported_error
from locus_store.types.state_classes import make_label
from locus_store.types.tenants import Closing, ForTenants, Quota, QuotaUse
from locus_store.values.surrogates import restore
from locus_store.versions.renewing import make_renewing

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from locus_store.types.options import CheckpointOptions

S = TypeVar("S", default=Any)
"""The class that ``load`` returns."""

B_co = TypeVar("B_co", bound=StorageBackend, default=Any, covariant=True)
"""The class of the backend."""

REMEMBERED_THREADS = 4096
"""Threads whose outstanding loads one adapter remembers; the least recent go first."""


class BaseCheckpointer(HasTurns, RunsEffects, ForTenants, Closing, ABC, Generic[S]):
    """Saves and restores the states of threads; ``Agent(checkpointer=...)`` calls it.

    A subclass with ``save``, ``load`` and ``list_checkpoints`` works wherever a checkpointer goes;
    every other method builds on these, or raises ``UnsupportedError`` until a subclass overrides
    it and declares its capability. The type parameter, as in
    ``BaseCheckpointer[MyState]``, is the class that ``load`` returns.

    Every implementation of this package guarantees:

    - **Durable.** A version survives a crash of the process once its save has returned.
    - **Atomic.** A reader sees a version whole or not at all.
    - **Never lost silently.** A save raises ``ConflictError`` and changes nothing if the thread
      was saved after the load by anything that does not descend from the same load.
    - **Isolated values.** Changing what was saved or loaded never changes what is stored.
    - **Concurrent.** One object may serve many tasks, several event loops and threads.
    - **Explicit failures.** Absence is ``None``, ``False`` or ``[]``; a failure is always an
      exception.
    """

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The operations that this checkpointer supports; none unless a subclass declares them."""
        return CheckpointerCapabilities()

    @property
    def deletes_single_checkpoints(self) -> bool:
        """True if ``delete`` can remove one version and leave the rest (the Locus agent asks)."""
        return type(self).delete is not BaseCheckpointer.delete

    @abstractmethod
    async def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Save a version of the thread and make it the one that ``load(thread_id)`` returns.

        Args:
            state: The whole state.
            thread_id: 1 to 255 characters, any Unicode but NUL and lone surrogates.
            checkpoint_id: 1 to 255 characters; generated if not given. An existing id with the same
                content is the same version and keeps its place; with other content it is replaced
                by a new version.
            metadata: JSON object, queryable with ``query_by_metadata``.

        Returns:
            The checkpoint id.

        Raises:
            ConflictError: Another writer moved the thread on; nothing was written.
            SerializationError: The state cannot be kept exactly; nothing was written.
        """

    @abstractmethod
    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> S | None:
        """Return a version's state, or the head's; ``None`` where there is none.

        Raises:
            IntegrityError: The stored bytes do not give the state that was saved.
        """

    @abstractmethod
    async def list_checkpoints(self, thread_id: str, limit: int = 10) -> list[str]:
        """Return checkpoint ids, newest first, in the order in which they were saved."""

    async def delete(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        """Delete one version, or the thread with all its data; return whether there was one.

        Deleting the head makes its nearest remaining ancestor the head. No byte of what only the
        deleted version held remains.
        """
        raise self._make_unsupported_error("delete")

    async def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        """Return whether the thread exists, or that version of it."""
        if checkpoint_id is None:
            return bool(await self.list_checkpoints(thread_id, limit=1))
        return await self.load(thread_id, checkpoint_id) is not None

    async def open(self) -> None:
        """Do now what the first call does otherwise: connect, and verify or create the schema.

        Optional and idempotent.
        """

    async def close(self) -> None:
        """Release what this object opened itself; idempotent, and it may be used again after."""

    async def tenants(self) -> list[Tenant]:
        """Return the tenants that have something stored, by name, with how much.

        Needs ``capabilities.tenants``.
        """
        raise self._make_unsupported_error("tenants")

    async def get_quota(self) -> QuotaUse:
        """Return the quota of this tenant, and what it uses. Needs ``capabilities.quotas``."""
        raise self._make_unsupported_error("quotas")

    async def set_quota(self, quota: Quota) -> None:
        """Replace the quota of this tenant; see ``LimitsTenants``. Needs ``capabilities.quotas``.

        Args:
            quota: The limits. ``Quota()`` has none.
        """
        raise self._make_unsupported_error("quotas")

    async def search(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        """Return the threads whose text has all words of ``query``, best first.

        Case and accents do not matter; there are no operators. Needs ``capabilities.search``.

        Returns:
            Dicts of ``thread_id``, ``checkpoint_id`` (the version that added the words),
            ``metadata``, ``updated_at`` (ISO 8601), ``score`` (higher is better), ``snippet``.
        """
        raise self._make_unsupported_error("search")

    async def query_by_metadata(
        self, key: str, value: Any, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return the versions whose metadata has ``value`` at ``key``, newest first.

        ``agent_id`` and ``tags`` of the state count as metadata. A dot in ``key`` descends into
        objects; a list matches when it contains ``value``, or every element of a list ``value``;
        numbers equal numbers (1 is 1.0), nothing else is converted. Needs
        ``capabilities.metadata_query``.

        Returns:
            Dicts of ``thread_id``, ``checkpoint_id``, ``metadata``, ``updated_at`` (ISO 8601).
        """
        raise self._make_unsupported_error("metadata_query")

    async def get_metadata(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> dict[str, Any] | None:
        """Return a version's metadata as it was given, or the head's; ``None`` where there is none.

        Needs ``capabilities.metadata_query``.
        """
        raise self._make_unsupported_error("metadata_query")

    async def vacuum(self, older_than_days: float = 30) -> int:
        """Remove versions older than this by the server's clock; return how many.

        A thread is deleted when none of its versions, messages and pending writes is younger; every
        other thread keeps its head. Only this object's tenant is looked at; ``for_tenant`` reaches
        the others. Needs ``capabilities.vacuum``.
        """
        raise self._make_unsupported_error("vacuum")

    async def expire(self) -> int:
        """Remove the threads whose time to live is over; return how many.

        They are invisible before; this gives their space back. Only this object's tenant is looked
        at; ``for_tenant`` reaches the others. Needs ``capabilities.ttl``.
        """
        raise self._make_unsupported_error("ttl")

    async def renewals(self) -> None:
        """Wait until the times to live that reads renew are written; ``close`` does."""

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        """Copy a thread with all it owns; ``False`` where the source does not exist.

        Deleting either leaves the other whole. Needs ``capabilities.branching``.

        Raises:
            ConflictError: ``dest_thread_id`` exists, or holds pending writes; nothing was written.
        """
        raise self._make_unsupported_error("branching")

    async def list_threads(self, limit: int = 100, pattern: str = "*") -> list[str]:
        """Return thread ids, the most recently active first, by the exact time of the last save.

        Args:
            limit: At most this many.
            pattern: Shell-style: ``*`` any characters, ``?`` one, ``[ab]`` one of these; everything
                else is itself, case included.

        Needs ``capabilities.list_threads``.
        """
        raise self._make_unsupported_error("list_threads")

    async def list_with_metadata(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return threads with their head's metadata, the most recently active first.

        A thread without a version has no head, and is left out. Needs
        ``capabilities.list_with_metadata``.

        Returns:
            Dicts of ``thread_id``, ``checkpoint_id``, ``metadata``, ``updated_at`` (ISO 8601).
        """
        raise self._make_unsupported_error("list_with_metadata")

    def for_thread(self, thread_id: str) -> CheckpointerThread[S]:
        """Return the methods of this object that take ``thread_id``, for one thread."""
        return CheckpointerThread(self, thread_id)

    def _make_unsupported_error(self, capability: str) -> UnsupportedError:
        return make_unsupported_error(type(self).__name__, self.capabilities, capability)


CONTEXT_THREADS = 64
"""Threads that one context remembers having loaded; the earliest go first."""

_numbers = count()


class BackendFacade(Generic[B_co]):
    """Saves and loads threads of a backend; a subclass describes the options."""

    def __init__(
        self,
        backend: B_co,
        *,
        on_conflict: OnConflict = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        refresh_on_read: bool = False,
    ) -> None:
        if not isinstance(backend, StorageBackend):
            wrapper, found = type(self).__name__, type(backend).__name__
            raise TypeError(f"{wrapper} takes a backend (open_storage(url).backend), not {found}")
        self.backend = backend
        self.moves_between_threads = backend.moves_between_threads
        self.needs_no_loop = needs_no_loop(backend)
        self.on_conflict = check_choice("on_conflict", on_conflict, OnConflict)
        self.keep_last, self.ttl_seconds = check_keep_last(keep_last), check_ttl(ttl_seconds)
        self.refresh_on_read = refresh_on_read
        self._renewing = make_renewing(self.ttl_seconds, refresh_on_read=refresh_on_read)
        self._begin()

    def _begin(self) -> None:
        """Start with no calls of this object."""

    def _enter(self, tenant: str) -> None:
        self.backend = self.backend.for_tenant(tenant)
        self._begin()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.backend!r})"

    async def open(self) -> None:
        """Connect, and verify or create the schema; optional and idempotent."""
        await self.backend.open()

    async def renewals(self) -> None:
        """Wait for the times to live that reads are renewing; ``close`` does."""
        if self._renewing:
            await self._renewing.drain()

    async def close(self) -> None:
        """Release what was opened; idempotent, and the object may be used again afterwards."""
        await self.renewals()
        await self.backend.close()


class StorageBackendAdapter(BackendFacade[B_co], BaseCheckpointer[S], Generic[S, B_co]):
    """A checkpointer over a storage backend: encodes states and detects conflicts.

    Args:
        backend: Keeps the versions; closed by ``close()``.
        state_type: The class that ``load`` returns: ``AgentState``, any class with
            ``to_checkpoint`` and ``from_checkpoint``, any pydantic model, or ``dict``. ``None``:
            the class that was saved, which must be imported; ``AgentState`` if none is recorded.
        on_conflict: Default of ``save``.
        keep_last: Versions to keep per thread, at least 1; each save removes older ones.
            ``None`` keeps all.
        ttl_seconds: Time to live of a thread after its last save. ``None``: it never expires.
        refresh_on_read: A read of a thread that expires renews its ``ttl_seconds``. The renewal
            does not delay the read, and its failure does not fail the read.

    Raises:
        InvalidArgumentError: An option is not valid.
        TypeError: ``backend`` is not a ``StorageBackend``.
    """

    def __init__(
        self,
        backend: B_co,
        *,
        state_type: type[S] | None = None,
        **options: Unpack[CheckpointOptions],
    ) -> None:
        super().__init__(backend, **options)
        self._codec = StateCodec(state_type)
        if self.ttl_seconds is not None:
            needs(self.backend, Expires)

    def _begin(self) -> None:
        self._number = next(_numbers)
        self._loads: OrderedDict[str, list[OneLoad]] = OrderedDict()
        self._sides: OrderedDict[str, Mark] = OrderedDict()

    @observe("tenants")
    async def tenants(self) -> list[Tenant]:
        return await needs(self.backend, SharedByTenants).tenants()

    @observe("get_quota")
    async def get_quota(self) -> QuotaUse:
        return await needs(self.backend, LimitsTenants).get_quota()

    @observe("set_quota")
    async def set_quota(self, quota: Quota) -> None:
        await needs(self.backend, LimitsTenants).set_quota(quota)

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The capabilities that the backend declares."""
        return self.backend.capabilities

    @observe("save")
    async def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        parent_checkpoint_id: str | None = None,
        on_conflict: OnConflict | None = None,
        ttl_seconds: float | None = None,
        connection: AsyncConnection | Connection | None = None,
    ) -> str:
        """Save a version of the thread; see ``BaseCheckpointer.save``.

        The version that ``state`` was made from is taken, in this order, from
        ``parent_checkpoint_id``, from the mark that a loaded state carries, from the caller's
        context, and from the only version that this object has loaded. Without any of them, the
        save appends to the present head.

        Args:
            state: The whole state.
            thread_id: The thread.
            checkpoint_id: Generated if not given.
            metadata: JSON object.
            parent_checkpoint_id: Save onto this version: a fork where it is not the head. The new
                version becomes the head, without conflict.
            on_conflict: ``"raise"``; ``"branch"`` keeps a losing state as a side branch and
                returns its id; ``"overwrite"`` lets the last writer win.
            ttl_seconds: The thread expires so long after this save, instead of the object's
                ``ttl_seconds``, until the next save that has one.
            connection: Save inside the transaction of this SQLAlchemy connection, which the caller
                commits or rolls back. SQL databases only. The save is not grouped with others,
                and an error leaves the transaction usable.

        Raises:
            NotFoundError: There is no such parent; nothing was written.
            InvalidArgumentError: ``connection`` commits by itself, or leads to another database.
            UnsupportedError: The backend takes no ``connection``.
        """
        check_text("thread_id", thread_id)
        if on_conflict is None:
            on_conflict = self.on_conflict
        check_choice("on_conflict", on_conflict, OnConflict)
        if check_ttl(ttl_seconds) is not None:
            needs(self.backend, Expires)
        data, carried = self._codec.dump(state)
        run_id = data.get("run_id")
        run = make_thread_key(run_id) if isinstance(run_id, str) else None
        origin = self._find_origin(thread_id, carried, run)
        writer = origin.load_id if origin else None
        with note_save(self.backend, thread_id):
            written = await self.backend.write_state(
                thread_id,
                data,
                checkpoint_id=checkpoint_id,
                metadata=metadata,
                labels=get_labels(data) | make_label(state),
                expected=Expected(made_from=origin.made_from, head=origin.head)
                if origin and parent_checkpoint_id is None
                else None,
                parent_id=parent_checkpoint_id,
                on_conflict=on_conflict,
                writer=writer,
                run=run,
                side_parent=self._sides.get(writer) if writer else None,
                keep_last=self.keep_last,
                ttl_seconds=self.ttl_seconds if ttl_seconds is None else ttl_seconds,
                connection=connection,
            )
        if connection is not None:
            return written.checkpoint_id  # remembered by nobody: the caller may roll back
        if written.outcome == "side" and writer:
            _remember(self._sides, writer, written.mark)
        self._note_save(thread_id, origin, run)
        return written.checkpoint_id

    @observe("load")
    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> S | None:
        """Return a version's state, or the head's; see ``BaseCheckpointer.load``.

        Loading a named version that is not the head declares a rewind: the next save of the
        state that is returned becomes the head, unless the head has moved in between.

        Saves of the thread that the same event loop has begun, such as that of an agent's run that
        was left after its first event, are waited for, at most ``PATIENCE_SECONDS``.
        """
        if isinstance(thread_id, str):  # else it is refused
            await wait_for_saves(self.backend, thread_id)
        found = await self.backend.read_state(thread_id, checkpoint_id)
        if found is None:
            if checkpoint_id is None:
                self._note_load(thread_id, OneLoad(_make_origin(thread_id, None), is_marked=False))
            return None
        if self._renewing:
            self._renewing.note(needs(self.backend, Expires), thread_id)
        origin, labels = _make_origin(thread_id, found), found.version.labels
        is_marked = can_carry_mark(self._codec.find_class(labels, found.state))
        if origin.made_from == origin.head or not is_marked:
            self._note_load(thread_id, OneLoad(origin, is_marked=is_marked))
        data = restore(found.state) if found.has_escaped else found.state
        state: S = self._codec.restore(data, origin, labels)
        return state

    def _find_origin(
        self, thread_id: str, state_origin: LoadedVersion | None, run: str | None
    ) -> LoadedVersion | None:
        """Return the origin of a state; a mark of another thread does not count."""
        if state_origin and state_origin.thread == make_thread_key(thread_id):
            return state_origin
        if here := loaded_here.get().get((self._number, thread_id)):
            return here
        # A state without a mark does not come from a load that returned a state with one.
        loads = [it for it in self._loads.get(thread_id, []) if it.may_be_of(run)]
        if run and loads and all(it.origin.made_from is None for it in loads):
            return replace(loads[0].origin, load_id=None)  # a new state's run tells its own work
        return loads[0].origin if len(loads) == 1 else None

    def _note_load(self, thread_id: str, load: OneLoad) -> None:
        """Record a load, for callers whose state has no room for a mark."""
        here = dict(loaded_here.get())
        known = here.pop((self._number, thread_id), None)
        is_view = known is not None and load.origin.made_from != load.origin.head
        here[self._number, thread_id] = known if known and is_view else load.origin
        while len(here) > CONTEXT_THREADS:
            here.pop(next(iter(here)))
        loaded_here.set(here)
        outstanding = [it for it in self._loads.get(thread_id, []) if not it.saved]
        _remember(self._loads, thread_id, [*outstanding, load][-2:])

    def _note_save(self, thread_id: str, origin: LoadedVersion | None, run: str | None) -> None:
        for load in self._loads.get(thread_id, []):
            if origin and load.origin.made_from == origin.made_from and not load.saved:
                load.saved, load.run = True, run
                return

    @observe("list_checkpoints")
    async def list_checkpoints(
        self, thread_id: str, limit: int = 10, *, after: str | None = None
    ) -> list[str]:
        """Return checkpoint ids, newest first; ``after`` continues below that id."""
        check_text("after", after, optional=True)
        page = await self.backend.history(thread_id, limit=limit, before=after)
        return [version.checkpoint_id for version in page]

    @observe("delete")
    async def delete(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        check_text("thread_id", thread_id)
        if checkpoint_id is None:
            existed, removed = await self.backend.remove_thread(thread_id)
            here = dict(loaded_here.get())  # the caller's next save without a load is a new start
            here.pop((self._number, thread_id), None)
            loaded_here.set(here)
            self._loads.pop(thread_id, None)
        else:
            origin = self._find_origin(thread_id, None, None)
            writer = origin.load_id if origin else None
            removed = await self.backend.remove(thread_id, [checkpoint_id], writer=writer)
            existed = removed > 0
        note(removed=removed)
        return existed

    @observe("exists")
    async def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        return await self.backend.exists(thread_id, checkpoint_id)

    @observe("search")
    async def search(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        hits = await needs(self.backend, SearchesText).find(query, limit)
        return Table({**_make_row(it), "score": it.score, "snippet": it.snippet} for it in hits)

    @observe("query_by_metadata")
    async def query_by_metadata(
        self, key: str, value: Any, limit: int = 100
    ) -> list[dict[str, Any]]:
        found = await needs(self.backend, QueriesMetadata).query(key, value, limit)
        return Table(map(_make_row, found))

    @observe("get_metadata")
    async def get_metadata(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> dict[str, Any] | None:
        needs(self.backend, QueriesMetadata)
        found = await self.backend.version(thread_id, checkpoint_id)
        return restore(found.metadata) if found else None

    @observe("vacuum")
    async def vacuum(self, older_than_days: float = 30) -> int:
        removed = await needs(self.backend, Vacuums).vacuum(older_than_days)
        note(removed=removed)
        return removed

    @observe("expire")
    async def expire(self) -> int:
        removed = await needs(self.backend, Expires).expire()
        note(removed=removed)
        return removed

    @observe("copy_thread")
    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        return await needs(self.backend, StoresThreads).copy_thread(
            source_thread_id, dest_thread_id
        )

    @observe("list_threads")
    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[str]:
        """See ``BaseCheckpointer.list_threads``; ``after`` continues after that thread."""
        check_text("after", after, optional=True)
        return await needs(self.backend, ListsThreads).list_threads(limit, pattern, after=after)

    @observe("list_with_metadata")
    async def list_with_metadata(self, limit: int = 100) -> list[dict[str, Any]]:
        return Table(map(_make_row, await needs(self.backend, ListsHeads).heads(limit)))


class CheckpointerThread(ThreadHandle, Generic[S]):
    """One thread of a checkpointer: its methods that take ``thread_id``, without it."""

    save = bind_thread(StorageBackendAdapter.save, 1)
    load = bind_thread(BaseCheckpointer[S].load)
    list_checkpoints = bind_thread(StorageBackendAdapter.list_checkpoints)
    delete = bind_thread(BaseCheckpointer.delete)
    exists = bind_thread(BaseCheckpointer.exists)
    get_metadata = bind_thread(BaseCheckpointer.get_metadata)
    effect = bind_thread(BaseCheckpointer.effect)
    effects = bind_thread(BaseCheckpointer.effects)
    resolve_effect = bind_thread(BaseCheckpointer.resolve_effect)
    turn = bind_thread(BaseCheckpointer.turn)
    busy = bind_thread(BaseCheckpointer.busy)
    release_turn = bind_thread(BaseCheckpointer.release_turn)


def _make_row(head: Head) -> dict[str, Any]:
    return {
        "thread_id": head.thread_id,
        "checkpoint_id": head.checkpoint_id,
        "metadata": restore(head.metadata),
        "updated_at": head.updated_at.isoformat(),
    }


def _make_origin(thread_id: str, snapshot: Snapshot | None) -> LoadedVersion:
    return LoadedVersion(
        thread=make_thread_key(thread_id),
        made_from=snapshot.version.mark if snapshot else None,
        head=snapshot.head if snapshot else None,
    )


def _remember(memory: OrderedDict[str, Any], key: str, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > REMEMBERED_THREADS:
        memory.popitem(last=False)
