"""The context of the statements of items, and the columns of an item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy.engine import Row

from locus_store.sql.schema.vectors import FoundVectors
from locus_store.sql.threads.statements import Tenancy
from locus_store.types.items import Put, encode_namespace
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
    return _make_put_columns(puts, times) | {
        "version": [1] * len(puts),
        "tenant": [tenant] * len(puts),
        "namespace": [encode_namespace(it.namespace) for it in puts],
        "key": [it.key for it in puts],
    }


def make_changed_columns(
    puts: Sequence[Put], times: Sequence[datetime], rows: Sequence[Row[*tuple[Any, ...]]]
) -> _Columns:
    """Return the columns of ``Statements.changed_item``; an expired item starts at version 1."""
    each = zip(times, rows, strict=True)
    return _make_put_columns(puts, times) | {
        "version": [it.version + 1 if it.is_live else 1 for it in rows],
        "created_at": [it.created_at if it.is_live else moment for moment, it in each],
        "of_item": [it.item for it in rows],
    }


def _make_put_columns(puts: Sequence[Put], times: Sequence[datetime]) -> _Columns:
    each = zip(puts, times, strict=True)
    return {
        "value": [it.json for it in puts],
        "metadata": [it.metadata for it in puts],
        "ttl_seconds": [it.ttl_seconds for it in puts],
        "expires_at": [_compute_expiry(it, moment) for it, moment in each],
        "updated_at": times,
    }


def _compute_expiry(put: Put, moment: datetime) -> datetime | None:
    return None if put.ttl_seconds is None else moment + timedelta(seconds=put.ttl_seconds)
