"""The context of the statements of items, their columns, and statements that are compiled once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Row

from locus_store.sql.columns.types import make_clock
from locus_store.sql.schema.tables import Tables
from locus_store.sql.schema.vectors import FoundVectors
from locus_store.sql.threads.pending import name_parameters
from locus_store.sql.threads.statements import Tenancy
from locus_store.types.items import (
    SEGMENT_END,
    Namespace,
    Put,
    Stamp,
    StoreItem,
    decode_namespace,
    encode_namespace,
)
from locus_store.values import vectors
from locus_store.values.times import EPOCH, MICROSECOND


@dataclass(slots=True)
class StoreContext:
    """The tables, the embeddings and the clock of one opened store.

    Args:
        tenancy: Tables and tenant.
        found: What the database has for embeddings.
        metric: How they are compared.
    """

    tenancy: Tenancy
    found: FoundVectors
    metric: vectors.Metric
    written_at: datetime = field(default=EPOCH)
    """The time of the last item that was put, where the clock may stand still in between."""

    def generate_times(self, at: datetime, count: int) -> list[datetime]:
        """Return ``count`` different times, all later than those returned before."""
        first = max(at, self.written_at + MICROSECOND)
        found = [first + number * MICROSECOND for number in range(count)]
        self.written_at = found[-1]
        return found


_Columns: TypeAlias = "dict[str, Sequence[Any]]"


def make_new_columns(puts: Sequence[Put], times: Sequence[datetime], tenant: str) -> _Columns:
    """Return the columns of ``Statements.new_item``."""
    stamps = [it.make_stamp(moment) for it, moment in zip(puts, times, strict=True)]
    return _make_put_columns(puts, stamps) | {
        "tenant": [tenant] * len(puts),
        "namespace": [encode_namespace(it.namespace) for it in puts],
        "key": [it.key for it in puts],
    }


def make_changed_columns(
    puts: Sequence[Put], times: Sequence[datetime], rows: Sequence[Row[*tuple[Any, ...]]]
) -> _Columns:
    """Return the columns of ``Statements.changed_item``; an expired item starts at version 1."""
    stamps = [
        put.make_stamp(moment, row.version, row.created_at)
        if row.is_live
        else put.make_stamp(moment)
        for put, moment, row in zip(puts, times, rows, strict=True)
    ]
    return _make_put_columns(puts, stamps) | {"of_item": [it.item for it in rows]}


def _make_put_columns(puts: Sequence[Put], stamps: Sequence[Stamp]) -> _Columns:
    return {
        "value": [it.json for it in puts],
        "metadata": [it.metadata for it in puts],
        "ttl_seconds": [it.ttl_seconds for it in puts],
        "version": [it.version for it in stamps],
        "created_at": [it.created_at for it in stamps],
        "updated_at": [it.updated_at for it in stamps],
        "expires_at": [it.expires_at for it in stamps],
    }


def make_bounds(namespace: Namespace, *, recursive: bool) -> dict[str, str]:
    """Return the bounds of the encoded namespaces in or below one, by their names."""
    first = encode_namespace(namespace)
    if not recursive:
        return {"namespace": first}
    beyond = first.removesuffix(SEGMENT_END) + chr(ord(SEGMENT_END) + 1)
    return {"first": first, "beyond": beyond} if namespace else {}


BOUNDS: Final[dict[str, Callable[[Any, Any], sa.ColumnElement[bool]]]] = {
    "namespace": operator.eq,
    "first": operator.ge,
    "beyond": operator.lt,
}
"""The comparison of a namespace with each bound."""


def select_items(t: Tables) -> sa.Select[Any]:
    """Return the query for all items."""
    return sa.select(*(it for it in t.store.c if it.name != "tenant"))


def make_item(row: Row[*tuple[Any, ...]]) -> StoreItem:
    """Return the item of a row of ``store``."""
    return StoreItem(
        namespace=decode_namespace(row.namespace),
        key=row.key,
        value=row.value,
        metadata=row.metadata,
        created_at=row.created_at,
        updated_at=row.updated_at,
        version=row.version,
        expires_at=row.expires_at,
        ttl_seconds=row.ttl_seconds,
    )


def is_live_item(t: Tables) -> sa.ColumnElement[bool]:
    """Return the condition that an item has not expired, by the server's clock."""
    expires_at = t.store.c.expires_at
    return sa.or_(expires_at.is_(None), expires_at > make_clock())


def select_locked(t: Tables) -> sa.Select[Any]:
    """Return the query that locks items for a change, expired ones too."""
    c, is_live = t.store.c, sa.case((is_live_item(t), 1), else_=0).label("is_live")
    columns = (c.item, c.namespace, c.key, c.version, c.created_at)
    return sa.select(*columns, is_live).with_for_update()


def select_live(t: Tables) -> sa.Select[Any]:
    """Return the query for items that have not expired."""
    return select_items(t).where(is_live_item(t))


def select_vectors(t: Tables) -> sa.Select[Any]:
    """Return the query for the embeddings of items that have not expired."""
    c, embeddings = t.store.c, t.embeddings
    e = embeddings.c
    found = sa.select(c.namespace, c.key, e.part, e.embedding).where(is_live_item(t))
    return found.join_from(t.store, embeddings, e.item == c.item)


def select_named(t: Tables, select: Callable[[Tables], sa.Select[Any]]) -> sa.Select[Any]:
    """Return a query for the item that parameters name."""
    columns = (t.store.c[name] for name in ("tenant", "namespace", "key"))
    return select(t).where(*(it == sa.bindparam(it.name, type_=it.type) for it in columns))


def select_recent(
    t: Tables, conditions: Iterable[sa.ColumnElement[bool]], *bounds: str
) -> sa.Select[Any]:
    """Return the query for a page of live items within bounds, the newest first."""
    c = t.store.c
    found = select_items(t).where(*_are_within(t, *bounds), *conditions)
    page = found.order_by(c.updated_at.desc(), c.item.desc()).limit(sa.bindparam("limit"))
    return page.offset(sa.bindparam("offset"))


def select_namespaces(t: Tables, *bounds: str) -> sa.Select[Any]:
    """Return the query for the namespaces of live items within bounds."""
    return sa.select(t.store.c.namespace).where(*_are_within(t, *bounds)).distinct()


def _are_within(t: Tables, *bounds: str) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a tenant's live items within bounds, all of them parameters."""
    c = t.store.c

    def bind(name: str) -> sa.BindParameter[Any]:
        return sa.bindparam(name, type_=c[name if name in c else "namespace"].type)

    is_there = (BOUNDS[it](c.namespace, bind(it)) for it in bounds)
    return [c.tenant == bind("tenant"), *is_there, is_live_item(t)]


def delete_items(t: Tables, size: int) -> sa.Delete:
    """Return the deletion of so many items."""
    return t.store.delete().where(t.store.c.item.in_(name_parameters("item", size)))
