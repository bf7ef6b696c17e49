"""The store that all SQL databases share, over a backend's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from locus_store.errors import UnsupportedError
from locus_store.items import Put, StoreCapabilities
from locus_store.sql import vectors
from locus_store.sql.items import Items, Shelf
from locus_store.store import BaseStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Connection

    from locus_store.items import Change, Name, Namespace, NamespaceMatch, StoreItem, Wanted
    from locus_store.sql.backend import SqlBackend

T = TypeVar("T")


class SqlStore(BaseStore):
    """Runs the statements of ``Items``; a subclass makes the backend.

    Args:
        backend: Whose connections are used.
        owns: ``close`` closes the backend as well.
        options: See ``BaseStore``.
    """

    items: ClassVar[type[Items]] = Items

    def __init__(self, backend: SqlBackend, *, owns: bool, **options: Any) -> None:
        super().__init__(**options)
        self.backend = backend
        self._owns = owns
        self._shared = backend.shared
        self._shelf: Shelf | None = None
        self._no_vectors: UnsupportedError | None = None
        """Why there are no embeddings, although there is a dimension."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """What this store can do."""
        embeds = self.dimension is not None and self._no_vectors is None
        return StoreCapabilities(
            semantic_search=embeds, embedding_dimension=self.dimension if embeds else None
        )

    async def _embedding(self) -> None:
        """Open for embeddings; looks again where there could be none before.

        Raises:
            UnsupportedError: There still can be none; says what to do.
        """
        self._require_vectors()
        await self._opened()
        if self._no_vectors is not None:
            self._shelf = None
            await self._opened()
        if self._no_vectors is not None:
            raise UnsupportedError(str(self._no_vectors)) from self._no_vectors

    # --- opening

    async def setup(self) -> None:
        """See ``BaseStore``, as the following."""
        await self._opened()

    async def _opened(self) -> Shelf:
        """What statements are bound to, in the database that is open now."""
        shelf = self._shelf
        if shelf is None or shelf.scope != self._shared.database.scope:
            with self._shared.translating():
                shelf = self._shelf = await self._open()
        return shelf

    async def _open(self) -> Shelf:
        database, runner, _ = self._shared
        found = await runner.query(lambda it: vectors.find(it, database.tables))
        self._no_vectors = None
        if self.dimension is not None:
            vectors.require_dimension(found, self.dimension)
            if found.dimension is None:
                try:
                    found = await self._define(self._made_table)
                except UnsupportedError as exc:  # all else works
                    self._no_vectors = exc
        return Shelf(database.scope, found, self.metric)

    def _made_table(self, connection: Connection) -> vectors.Found:
        database, dimension = self._shared.database, self.dimension
        assert dimension is not None  # noqa: S101  (asked before)
        if not database.may_create:
            raise vectors.missing_table(connection, database.tables, dimension)
        self._make_table(connection, dimension)
        return vectors.find(connection, database.tables)

    def _make_table(self, connection: Connection, dimension: int) -> None:
        """Make the table of embeddings, alone in the database."""
        vectors.make_table(connection, self._shared.database.tables, dimension)

    async def close(self) -> None:
        if self._owns:
            await self.backend.close()
        self._shelf = None

    # --- running

    async def _change(self, body: Callable[[Connection], T]) -> T:
        """Run a body that writes."""
        return await self._shared.runner.write(body)

    async def _define(self, body: Callable[[Connection], T]) -> T:
        """Run a body that changes the schema."""
        return await self._change(body)

    async def _write(self, body: Callable[[Items], T]) -> T:
        shelf = await self._opened()
        with self._shared.translating():
            return await self._change(lambda it: body(self.items(it, shelf)))

    async def _query(self, body: Callable[[Items], T]) -> T:
        """Run a body that is one statement, or need not see one moment."""
        shelf = await self._opened()
        with self._shared.translating():
            return await self._shared.runner.query(lambda it: body(self.items(it, shelf)))

    async def _read(self, body: Callable[[Items], T]) -> T:
        shelf = await self._opened()
        with self._shared.translating():
            return await self._shared.runner.read(lambda it: body(self.items(it, shelf)))

    # --- the contract

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        if any(isinstance(it, Put) and it.vectors for it in changes):
            await self._embedding()
        return await self._write(lambda it: it.apply(changes))

    async def read(self, names: Sequence[Name]) -> list[StoreItem | None]:
        return await self._query(lambda it: it.read(names))

    async def page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        return await self._query(lambda it: it.page(namespace, limit, after))

    async def recent(self, wanted: Wanted) -> list[StoreItem]:
        found = await self._query(lambda it: it.recent_at_once(wanted))
        if found is None:
            found = await self._read(lambda it: it.recent(wanted))
        return found

    async def nearest(
        self, wanted: Wanted, vector: bytes, threshold: float | None
    ) -> list[StoreItem]:
        await self._embedding()
        return await self._query(lambda it: it.nearest(wanted, vector, threshold))

    async def vectors_of(self, namespace: Namespace, key: str) -> list[bytes]:
        await self._embedding()
        return await self._query(lambda it: it.vectors_of(namespace, key))

    async def namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> list[Namespace]:
        return await self._query(lambda it: it.namespaces(match, limit, offset))

    async def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        return await self._write(lambda it: it.clear(namespace, recursive=recursive))

    async def renew(self, names: Sequence[Name]) -> None:
        await self._write(lambda it: it.renew(names))

    async def sweep(self, limit: int) -> int:
        return await self._write(lambda it: it.sweep(limit))
