"""A store in PostgreSQL, beside the checkpoints or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from locus_store.backends.postgresql.backend import PostgreSQLBackend
from locus_store.backends.postgresql.items import PostgreSQLItems, VectorsChangedError
from locus_store.sql.connections.backend import backend_of
from locus_store.sql.store import ServerStore
from locus_store.types.items import StoreCapabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection
    from typing_extensions import Unpack

    from locus_store.backends.postgresql.options import PostgreSQLOptions
    from locus_store.sql.connections.pool import PooledRunner
    from locus_store.sql.items import Items
    from locus_store.store import Embed
    from locus_store.values.vectors import Metric

T = TypeVar("T")


class PostgreSQLStore(ServerStore):
    """Keeps items in a PostgreSQL database; see ``PostgreSQLBackend``.

    Each call is one statement, and so one round trip. A put whose connection is lost is not
    repeated: it may have been done. The item's version shows whether it was.

    Embeddings need the extension pgvector; without it everything else works.

    Args:
        dsn: As your provider issues it; ``None``: the one of the environment.
        table_name: As in the Locus SDK: ``x`` or ``x_store`` means prefix ``x_``.
        dimension: See ``BaseStore``, as the next two options; it cannot be changed later.
        metric: How embeddings are compared.
        embed: Computes the embeddings of strings.
        backend: A backend whose connections are used instead of ``dsn`` and the options, for
            example ``checkpointer.backend``. It is left open.
        options: Of ``PostgreSQLBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: asyncpg is not installed, or NumPy, which a dimension needs.
    """

    items = PostgreSQLItems
    backend: PostgreSQLBackend

    def __init__(
        self,
        dsn: str | None = None,
        table_name: str | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: PostgreSQLBackend | None = None,
        **options: Unpack[PostgreSQLOptions],
    ) -> None:
        super().__init__(
            backend_of(backend, PostgreSQLBackend, dsn, table_name, **options),
            owns=backend is None,
            dimension=dimension,
            metric=metric,
            embed=embed,
        )

    @property
    def capabilities(self) -> StoreCapabilities:
        """The capabilities of this store; pgvector's presence is known once the store is open."""
        return super().capabilities if self._shelf is not None else StoreCapabilities(tenants=True)

    async def _change(self, body: Callable[[Connection], T]) -> T:
        runner: PooledRunner = self._shared.runner  # type: ignore[assignment]  # its backend's
        return await runner.write_once(body)

    async def _written(self, body: Callable[[Items], T]) -> T:
        try:
            return await super()._written(body)
        except VectorsChangedError:  # nothing was written
            self._shelf = None
        return await super()._written(body)

    async def _write_on(self, connection: object, body: Callable[[Items], T]) -> T:
        try:
            return await super()._write_on(connection, body)
        except VectorsChangedError:  # nothing was written
            self._shelf = None
        return await super()._write_on(connection, body)
