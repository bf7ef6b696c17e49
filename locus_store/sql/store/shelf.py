"""The context that all statements of one opened store are bound to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from locus_store.sql.columns.types import EPOCH

if TYPE_CHECKING:
    from locus_store.sql.schema.vectors import FoundVectors
    from locus_store.sql.threads.scope import Scope
    from locus_store.values import vectors

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(slots=True)
class Shelf:
    """The tables, the embeddings and the clock of one opened store.

    Args:
        scope: Tables and tenant.
        found: What the database has for embeddings.
        metric: How they are compared.
    """

    scope: Scope
    found: FoundVectors
    metric: vectors.Metric
    written_at: datetime = field(default=EPOCH)
    """The time of the last item that was put, where the clock may stand still in between."""

    def times(self, at: datetime, count: int) -> list[datetime]:
        """Return ``count`` different times, all later than those returned before."""
        first = max(at, self.written_at + _MICROSECOND)
        found = [first + number * _MICROSECOND for number in range(count)]
        self.written_at = found[-1]
        return found
