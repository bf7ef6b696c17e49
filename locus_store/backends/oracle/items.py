"""Oracle's statements for a store: conditions on JSON, and nearest neighbours by vectors."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from locus_store.backends.oracle.conditions import on_json
from locus_store.sql.items import Items, item_of
from locus_store.values import vectors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.sql.items import Scored
    from locus_store.types.items import StoreItem, Wanted
    from locus_store.values.filters import Clause

_METRICS = {"cosine": "COSINE", "l2": "EUCLIDEAN", "ip": "DOT"}


class OracleItems(Items):
    """Oracle's implementations of the hooks."""

    def condition(
        self, column: sa.ColumnElement[Any], clause: Clause
    ) -> sa.ColumnElement[bool] | None:
        return on_json(column, clause)

    def ranked(self, wanted: Wanted, vector: bytes) -> Iterator[tuple[StoreItem, float]]:
        """Rank by the index if there is one; exactly if it found too few. Scores are recomputed."""

        def fetch(size: int) -> tuple[list[Scored], bool]:
            rows = self.connection.execute(self._nearest(wanted, vector, size)).all()
            if len(rows) < size:  # an index may give up, or miss some
                rows = self.connection.execute(
                    self._nearest(wanted, vector, size, is_exact=True)
                ).all()
            best: dict[int, tuple[float, Any]] = {}
            scores = vectors.scores(vector, [it.embedding for it in rows], self.shelf.metric)
            for row, score in zip(rows, scores, strict=True):
                if score > best.get(row.item, (-inf, None))[0]:
                    best[row.item] = (score, row)
            return [(item_of(row), score) for score, row in best.values()], len(rows) < size

        return self.widening(wanted, fetch)

    def _nearest(
        self, wanted: Wanted, vector: bytes, size: int, *, is_exact: bool = False
    ) -> sa.Select[Any]:
        c, e = self.store.c, self.embeddings.c
        metric: Any = sa.literal_column(_METRICS[self.shelf.metric])
        target = sa.literal(vector, e.embedding.type)
        distance = sa.func.vector_distance(e.embedding, target, metric, type_=sa.Float())
        query = self._items().add_columns(e.embedding)
        query = query.join_from(self.store, self.embeddings, e.item == c.item)
        query = query.where(*self.are_wanted(wanted)).order_by(distance)
        return query.fetch(size, oracle_fetch_approximate=not is_exact)
