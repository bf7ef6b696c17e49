"""The store and the message log in an Oracle Database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import sqlalchemy as sa

from locus_store.backends.oracle.backend import OracleBackend
from locus_store.backends.oracle.columns import METRICS, filter_json
from locus_store.backends.oracle.options import OracleOptions
from locus_store.sql.item_columns import select_items
from locus_store.sql.items import Items
from locus_store.sql.message_log import SqlMessageLog
from locus_store.sql.store import ServerStore
from locus_store.store import Embed
from locus_store.types.arguments import choose_backend
from locus_store.types.items import StoreItem, Wanted
from locus_store.values.vectors import Metric


class OracleItems(Items):
    """Oracle's implementations of the hooks."""

    make_condition = staticmethod(filter_json)

    def rank(self, search: Wanted, vector: bytes) -> Iterator[tuple[StoreItem, float]]:
        """Rank by the index if there is one; exactly if it found too few. Scores are recomputed."""

        def select(size: int) -> Sequence[Any]:
            near = partial(self._select_nearest, search, vector, size)
            rows = self.connection.execute(near()).all()
            if len(rows) < size:  # an index may give up, or miss some
                rows = self.connection.execute(near(is_exact=True)).all()
            return rows

        return self.rank_widening(search, vector, select)

    def _select_nearest(
        self, search: Wanted, vector: bytes, size: int, *, is_exact: bool = False
    ) -> sa.Select[Any]:
        c, e = self.store.c, self.embeddings.c
        metric: Any = sa.literal_column(METRICS[self.context.metric])
        target = sa.literal(vector, e.embedding.type)
        distance = sa.func.vector_distance(e.embedding, target, metric, type_=sa.Float())
        query = select_items(self.tables).add_columns(e.embedding)
        query = query.join_from(self.store, self.embeddings, e.item == c.item)
        query = query.where(*self.are_wanted(search)).order_by(distance)
        return query.fetch(size, oracle_fetch_approximate=not is_exact)


class OracleStore(ServerStore):
    """Keeps items in an Oracle database.

    Embeddings are of type ``VECTOR(n, FLOAT32)``; ``locus-store db vector-index`` creates an index.
    Their dimension cannot be changed later.

    Arguments and errors are those of ``OracleBackend`` and ``BaseStore``. With ``backend``, for
    example ``checkpointer.backend``, its connections are used instead, and it is left open.
    """

    items = OracleItems
    backend: OracleBackend

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: OracleBackend | None = None,
        **options: Unpack[OracleOptions],
    ) -> None:
        super().__init__(
            choose_backend(backend, OracleBackend, dsn, user, password, **options),
            owns=backend is None,
            dimension=dimension,
            metric=metric,
            embed=embed,
        )


class OracleMessageLog(SqlMessageLog):
    """Keeps message logs in an Oracle database.

    Arguments and errors are those of ``OracleBackend`` and ``BaseMessageLog``; for ``backend`` see
    ``OracleStore``.
    """

    backend: OracleBackend

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        ttl_seconds: float | None = None,
        backend: OracleBackend | None = None,
        **options: Unpack[OracleOptions],
    ) -> None:
        super().__init__(
            choose_backend(backend, OracleBackend, dsn, user, password, **options),
            owns=backend is None,
            ttl_seconds=ttl_seconds,
        )
