"""The columns that puts write: a list of values for each parameter of a statement."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from locus_store.types.items import encode_namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Row

    from locus_store.types.items import Put

Columns: TypeAlias = "dict[str, Sequence[Any]]"


def columns_of_new(puts: Sequence[Put], times: Sequence[datetime], tenant: str) -> Columns:
    """Return the columns of ``Statements.new_item``."""
    return _written(puts, times) | {
        "version": [1] * len(puts),
        "tenant": [tenant] * len(puts),
        "namespace": [encode_namespace(it.namespace) for it in puts],
        "key": [it.key for it in puts],
    }


def columns_of_changed(
    puts: Sequence[Put], times: Sequence[datetime], rows: Sequence[Row[*tuple[Any, ...]]]
) -> Columns:
    """Return the columns of ``Statements.changed_item``; an expired item starts at version 1."""
    each = zip(times, rows, strict=True)
    return _written(puts, times) | {
        "version": [it.version + 1 if it.is_live else 1 for it in rows],
        "created_at": [it.created_at if it.is_live else moment for moment, it in each],
        "of_item": [it.item for it in rows],
    }


def _written(puts: Sequence[Put], times: Sequence[datetime]) -> Columns:
    each = zip(puts, times, strict=True)
    return {
        "value": [it.json for it in puts],
        "metadata": [it.metadata for it in puts],
        "ttl_seconds": [it.ttl_seconds for it in puts],
        "expires_at": [_expiry(it, moment) for it, moment in each],
        "updated_at": times,
    }


def _expiry(put: Put, moment: datetime) -> datetime | None:
    return None if put.ttl_seconds is None else moment + timedelta(seconds=put.ttl_seconds)
