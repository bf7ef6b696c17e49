"""The store that all SQL databases share, on the connections of a backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from sqlalchemy.engine import Connection

from locus_store.errors import (
    ConflictError,
    ConnectionFailedError,
    LocusStoreError,
    UnsupportedError,
)
from locus_store.runtime.gathering import Failed, Gathering, GroupLimits, PerLoop, Undecided
from locus_store.runtime.stepping import needs_no_loop
from locus_store.sql.audit import OF_STORE, READS_OF_STORE, Audit, get_call, record_calls
from locus_store.sql.connections.backend import GROUP_BYTES, ConnectedBackend, run_joined
from locus_store.sql.connections.pool import PooledRunner
from locus_store.sql.item_columns import StoreContext
from locus_store.sql.items import Items, Outcome, RecordedChanges
from locus_store.sql.quotas import limit_calls, measure_items
from locus_store.sql.schema import vectors
from locus_store.sql.schema.migrations import lock
from locus_store.store import BaseStore
from locus_store.types.items import (
    Change,
    Name,
    Namespace,
    NamespaceMatch,
    StoreCapabilities,
    StoreItem,
    Wanted,
    get_names,
)

T = TypeVar("T")

CHANGES: Final = GroupLimits(count=8000, size=GROUP_BYTES, workers=2)
"""One statement or transaction is worked on while the next is put together."""

READS: Final = GroupLimits(count=8000, workers=2)

SEARCHES: Final = GroupLimits(count=16, workers=2)

SLOW_SECONDS: Final = 0.005
"""A search that takes longer is not grouped, since the others of its group would wait for it."""


class _Calls(NamedTuple):
    """The calls of one event loop."""

    changes: Gathering[Sequence[Change], list[int]]
    reads: Gathering[Sequence[Name], list[StoreItem | None]]
    searches: Gathering[Wanted, list[StoreItem] | None]
    vectors: Gathering[Name, list[bytes]]

    def submit(self, changes: Sequence[Change]) -> Awaitable[list[int]]:
        """Submit changes that are done as a whole or not at all."""
        size = sum([it.size for it in changes])
        return self.changes.submit(changes, count=len(changes), size=size)

    async def submit_after(self, opening: Awaitable[None], changes: Sequence[Change]) -> list[int]:
        """Submit changes when the database is opened for them."""
        await opening
        return await self.submit(changes)

    async def drain(self) -> None:
        """Wait for all submitted calls."""
        for each in self:
            await each.drain()


class SqlStore(BaseStore):
    """Runs the statements of ``Items``; a subclass creates the backend.

    Args:
        backend: The backend whose connections are used.
        owns: ``close`` closes the backend as well.
        options: See ``BaseStore``.
    """

    items: ClassVar[type[Items]] = Items

    def __init__(self, backend: ConnectedBackend, *, owns: bool, **options: Any) -> None:
        super().__init__(max_state_bytes=backend.max_state_bytes, **options)
        self.backend = backend
        self.moves_between_threads = self.embed is None and backend.moves_between_threads
        self.needs_no_loop = self.embed is None and needs_no_loop(backend)
        self.owns = owns
        self.shards: Any = None
        """The set of whose first shard this is the store; it is opened before the first call."""

        self._shared = backend.shared
        self._context: StoreContext | None = None
        self._calls = PerLoop(self._make_calls)
        self._is_slow = False
        """True if the last search was."""

        self._no_vectors: UnsupportedError | None = None
        """Why there are no embeddings, although there is a dimension."""

        record_calls(self, self._shared.database.audit, OF_STORE, READS_OF_STORE)

    def __repr__(self) -> str:
        return repr(self.backend).replace("Backend", "Store", 1)

    @property
    def capabilities(self) -> StoreCapabilities:
        embeds = self.dimension is not None and self._no_vectors is None
        return StoreCapabilities(
            semantic_search=embeds,
            embedding_dimension=self.dimension if embeds else None,
            tenants=True,
        )

    async def _open_embeddings(self) -> None:
        """Open the store for embeddings; check again if there was no support before."""
        self._require_vectors()
        await self._open_context()
        if self._no_vectors is not None:
            self._context = None
            await self._open_context()
        if self._no_vectors is not None:
            raise UnsupportedError(str(self._no_vectors)) from self._no_vectors

    def _enter(self, tenant: str) -> None:
        self.backend = self.backend.for_tenant(tenant)
        self.shards = self.shards and self.shards.for_tenant(tenant)
        self._calls = PerLoop(self._make_calls)
        self._shared = self.backend.shared
        self.owns = False
        self._context = None

    async def setup(self) -> None:
        await self._open_context()

    async def _open_context(self) -> StoreContext:
        context = self._context
        if context is None or context.tenancy != self._shared.database.tenancy:
            with self._shared.translating:
                context = self._context = await self._open()
        return context

    async def _open(self) -> StoreContext:
        if self.shards is not None:
            await self.shards.shard_set.open()
        database, runner = self._shared.database, self._shared.runner
        found = await runner.query(lambda it: vectors.find(it, database.tables))
        self._no_vectors = None
        self.stored_dimension = found.dimension
        if (dimension := self.dimension) is not None:
            vectors.require_dimension(found, dimension)
            if found.dimension is None:
                tables = database.tables
                try:
                    if not database.may_create:
                        raise await runner.query(
                            lambda it: vectors.make_missing_table_error(it, tables, dimension)
                        )
                    found = await self._define(self._make_table)
                except UnsupportedError as exc:  # all else works
                    self._no_vectors = exc
        return StoreContext(database.tenancy, found, self.metric)

    def _make_table(self, connection: Connection) -> vectors.FoundVectors:
        tables, dimension = self._shared.database.tables, self.dimension
        assert dimension is not None  # noqa: S101  (asked before)
        vectors.make_table(connection, tables, dimension)
        return vectors.find(connection, tables)

    async def close(self) -> None:
        await self._calls.get().drain()
        if self.owns:
            await (self.shards or self.backend).close()
        self._context = None

    def _make_items(self, connection: Connection, context: StoreContext) -> Items:
        self._shared.database.enter_tenant(connection)
        return self.items(connection, context)

    async def _change(self, body: Callable[[Connection], T], *, is_one: bool = False) -> T:
        """Run a body that writes; ``is_one``: on PostgreSQL it is one statement."""
        return await self._shared.runner.write(body)

    async def _define(self, body: Callable[[Connection], T]) -> T:
        """Run a body that changes the schema."""
        return await self._change(body)

    async def _write_items(self, body: Callable[[Items], T], *, is_one: bool = True) -> T:
        """Run a body that writes, without translating the driver's errors."""
        context = await self._open_context()
        return await self._change(lambda it: body(self._make_items(it, context)), is_one=is_one)

    async def _write(self, body: Callable[[Items], T], *, is_one: bool = False) -> T:
        call = get_call(self._shared.database.audit)

        def write(items: Items) -> T:
            result = body(items)
            if call is not None:
                call.record(items.connection, items.context.tenancy, result)
            return result

        with self._shared.translating:
            return await self._write_items(write, is_one=is_one and call is None)

    async def _write_on(self, connection: object, body: Callable[[Items], T]) -> T:
        """Run a body that writes, inside a caller's transaction."""
        database = self._shared.database
        database.require_joinable(connection)
        with self._shared.translating:
            await self._shared.runner.open()
            context = await self._open_context()
            return await run_joined(
                database, connection, lambda it: body(self._make_items(it, context))
            )

    async def _query(self, body: Callable[[Items], T]) -> T:
        """Run a body that needs no snapshot shared by several statements."""
        context = await self._open_context()
        with self._shared.translating:
            return await self._shared.reader.query(lambda it: body(self._make_items(it, context)))

    def _make_calls(self) -> _Calls:
        return _Calls(
            Gathering(self._run_changes, CHANGES, get_names),
            Gathering(self._run_reads, READS),
            Gathering(self._run_searches, SEARCHES),
            Gathering(self._run_vectors, READS),
        )

    async def _run_changes(
        self, batches: Sequence[Sequence[Change]], is_alone: bool
    ) -> Sequence[list[int] | Failed | Undecided]:
        with self._shared.translating:
            try:
                outcomes = await self._write_items(lambda it: it.apply(batches, waits=is_alone))
            except self._shared.database.driver_errors as exc:
                if len(batches) == 1 or not self._shared.database.is_refused_value(exc):
                    raise
                return [Undecided.ALONE] * len(batches)  # nothing was written
        return [_answer(it) for it in outcomes]

    async def _run_reads(
        self, requests: Sequence[Sequence[Name]], _: bool
    ) -> list[list[StoreItem | None]]:
        names = dict.fromkeys(chain.from_iterable(requests))
        rows = await self._query(lambda it: it.read([*names]))
        found, given = dict(zip(names, rows, strict=True)), set()

        def item(name: Name) -> StoreItem | None:
            stored = found[name]
            if stored is None or name not in given:
                given.add(name)
                return stored
            return replace(stored, value=deepcopy(stored.value), metadata=deepcopy(stored.metadata))

        return [[item(it) for it in request] for request in requests]

    async def _run_searches(
        self, searches: Sequence[Wanted], _: bool
    ) -> Sequence[list[StoreItem] | Undecided | None]:
        try:
            found, self._is_slow = await self._query(lambda it: _search(it, searches))
        except LocusStoreError as exc:
            if len(searches) == 1 or isinstance(exc, ConnectionFailedError):
                raise
            return [Undecided.ALONE] * len(searches)
        return found

    async def _run_vectors(self, names: Sequence[Name], _: bool) -> list[list[bytes]]:
        found = await self._query(lambda it: it.get_vectors([*dict.fromkeys(names)]))
        return [[*found.get(it, ())] for it in names]

    @limit_calls(measure_items)
    def apply(self, changes: Sequence[Change]) -> Awaitable[list[int]]:
        calls, changes = self._calls.get(), _note_call(self._shared.database.audit, changes)
        for change in changes:
            if change.vectors:
                return calls.submit_after(self._open_embeddings(), changes)
        return calls.submit(changes)

    @limit_calls(measure_items)
    async def apply_on(self, changes: Sequence[Change], connection: object) -> list[int]:
        if any(it.vectors for it in changes):
            await self._open_embeddings()
        noted = _note_call(self._shared.database.audit, changes)
        done = await self._write_on(connection, lambda it: it.apply([noted], waits=True))
        outcome = done[0]
        if isinstance(outcome, ConflictError):
            raise outcome
        assert outcome is not None  # noqa: S101  (it waited for every lock)
        return outcome

    def read(self, names: Sequence[Name]) -> Awaitable[list[StoreItem | None]]:
        return self._calls.get().reads.submit(names, count=len(names))

    async def page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        return await self._query(lambda it: it.read_page(namespace, limit, after))

    async def recent(self, wanted: Wanted) -> list[StoreItem]:
        if self._is_slow:
            [found], self._is_slow = await self._query(lambda it: _search(it, [wanted]))
        else:
            found = await self._calls.get().searches.submit(wanted)
        if found is None:
            context, read = await self._open_context(), self._shared.reader.read
            with self._shared.translating:
                found = await read(lambda it: self._make_items(it, context).find_recent(wanted))
        return found

    async def nearest(
        self, wanted: Wanted, vector: bytes, threshold: float | None
    ) -> list[StoreItem]:
        await self._open_embeddings()
        return await self._query(lambda it: it.find_nearest(wanted, vector, threshold))

    async def vectors_of(self, namespace: Namespace, key: str) -> list[bytes]:
        await self._open_embeddings()
        return await self._calls.get().vectors.submit((namespace, key))

    async def namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> list[Namespace]:
        return await self._query(lambda it: it.list_namespaces(match, limit, offset))

    async def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        return await self._write(lambda it: it.clear(namespace, recursive=recursive))

    async def renew(self, names: Sequence[Name]) -> None:
        await self._write(lambda it: it.renew(names), is_one=True)

    async def sweep(self, limit: int) -> int:
        return await self._write(lambda it: it.sweep(limit))


class ServerStore(SqlStore):
    """A store in a server, where a table is created by itself, under the migration lock."""

    def _make_table(self, connection: Connection) -> vectors.FoundVectors:
        with lock(connection, self._shared.database.tables):
            return super()._make_table(connection)

    async def _define(self, body: Callable[[Connection], T]) -> T:
        runner: PooledRunner = self._shared.runner  # type: ignore[assignment]  # its backend's
        return await runner.define(body)


def _search(items: Items, searches: Sequence[Wanted]) -> tuple[list[list[StoreItem] | None], bool]:
    """Return the results, and whether the searches are slow."""
    begin = monotonic()
    found = list(map(items.find_recent_at_once, searches))
    return found, monotonic() - begin > SLOW_SECONDS * len(searches)


def _note_call(audit: Audit | None, changes: Sequence[Change]) -> Sequence[Change]:
    call = get_call(audit)
    return changes if call is None else RecordedChanges(changes, call)


def _answer(outcome: Outcome) -> list[int] | Failed | Undecided:
    if outcome is None:
        return Undecided.ALONE
    return Failed(outcome) if isinstance(outcome, ConflictError) else outcome
