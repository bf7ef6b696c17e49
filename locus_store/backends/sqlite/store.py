"""The store and the message log in an SQLite file, beside the checkpoints or alone."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Unpack

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from locus_store.backends.sqlite.backend import DEFAULT_PATH, SQLiteBackend
from locus_store.backends.sqlite.columns import make_text_condition, make_word_condition
from locus_store.backends.sqlite.options import SQLiteOptions
from locus_store.sql.columns.types import encode_path
from locus_store.sql.item_columns import select_items
from locus_store.sql.items import Items
from locus_store.sql.message_log import SqlMessageLog
from locus_store.sql.store import SqlStore
from locus_store.store import Embed
from locus_store.types.arguments import choose_backend
from locus_store.types.items import Name, StoreItem, Wanted, encode_namespace
from locus_store.values.vectors import Metric

_LOADED: Final = "locus_store_vec"
"""Key in ``Connection.info``: the extension was loaded."""

_DISTANCES: Final = {"cosine": "vec_distance_cosine", "l2": "vec_distance_L2"}
"""The extension has none for inner products."""


class _SQLiteItems(Items):
    """SQLite's implementations of the hooks."""

    most_names = sys.maxsize  # they are one parameter

    make_condition = staticmethod(make_text_condition)
    may_have_word = staticmethod(make_word_condition)

    def have_names(self, names: Sequence[Name]) -> sa.ColumnElement[bool]:
        """See ``Items``; the pairs are a subquery, as SQLite uses no index for a list of pairs."""
        if len(names) == 1:
            return super().have_names(names)
        pairs = [(encode_path(encode_namespace(it)), key) for it, key in names]
        each = sa.func.json_each(orjson.dumps(pairs).decode()).table_valued("value")
        parts = (
            sa.func.json_extract(each.c.value, path, type_=sa.Text()) for path in ("$[0]", "$[1]")
        )
        c = self.store.c
        return sa.and_(self._is_ours, sa.tuple_(c.namespace, c.key).in_(sa.select(*parts)))

    def rank(self, search: Wanted, vector: bytes) -> Iterator[tuple[StoreItem, float]]:
        """Rank by the extension's distances if it can be loaded; scores are recomputed."""
        if self.context.metric not in _DISTANCES or not can_load_vec(self.connection):
            yield from super().rank(search, vector)
            return

        c, e = self.store.c, self.embeddings.c
        measure = getattr(sa.func, _DISTANCES[self.context.metric])
        distance = sa.func.coalesce(measure(e.embedding, vector), 1.0)
        query = select_items(self.tables).add_columns(e.embedding)
        query = query.join_from(self.store, self.embeddings, e.item == c.item)
        query = query.where(*self.are_wanted(search)).order_by(distance, c.namespace, c.key)
        yield from self.rank_widening(
            search, vector, lambda size: self.connection.execute(query.limit(size)).all()
        )


def can_load_vec(connection: Connection) -> bool:
    """Return whether the connection has sqlite-vec; load the extension if possible."""
    known: bool | None = connection.info.get(_LOADED)
    if known is None:
        known = connection.info[_LOADED] = _load(connection.connection.driver_connection)
    return known


def _load(driver: Any) -> bool:
    allow = getattr(driver, "enable_load_extension", None)
    # An asynchronous driver's is a coroutine; most builds of Python have none.
    if allow is None or inspect.iscoroutinefunction(allow) or find_spec("sqlite_vec") is None:
        return False
    allow(True)
    try:
        import_module("sqlite_vec").load(driver)
    except Exception:  # noqa: BLE001  (made for another SQLite: the scan without it gives the same)
        return False
    finally:
        allow(False)
    return True


class SQLiteStore(SqlStore):
    """Keeps items in an SQLite database.

    Embeddings are compared one by one: with the extension ``sqlite-vec`` where it is installed and
    Python's SQLite may load it, else with NumPy; the answers are the same. Their dimension cannot
    be changed later.

    Arguments and errors are those of ``SQLiteBackend`` and ``BaseStore``. With ``backend``, for
    example ``checkpointer.backend``, its database is used instead, and it is left open.
    """

    items = _SQLiteItems
    backend: SQLiteBackend

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        table_name: str | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: SQLiteBackend | None = None,
        **options: Unpack[SQLiteOptions],
    ) -> None:
        place = path, table_name
        super().__init__(
            choose_backend(backend, SQLiteBackend, *place, defaults=[DEFAULT_PATH], **options),
            owns=backend is None,
            dimension=dimension,
            metric=metric,
            embed=embed,
        )


class SQLiteMessageLog(SqlMessageLog):
    """Keeps message logs in an SQLite database.

    Arguments and errors are those of ``SQLiteBackend`` and ``BaseMessageLog``; for ``backend`` see
    ``SQLiteStore``.
    """

    backend: SQLiteBackend

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        table_name: str | None = None,
        *,
        ttl_seconds: float | None = None,
        backend: SQLiteBackend | None = None,
        **options: Unpack[SQLiteOptions],
    ) -> None:
        place = path, table_name
        super().__init__(
            choose_backend(backend, SQLiteBackend, *place, defaults=[DEFAULT_PATH], **options),
            owns=backend is None,
            ttl_seconds=ttl_seconds,
        )
