"""Parts of the conditions that filters become, with everything bound.

A condition may let through what the clause refuses, never the other way round: what it lets through
is looked at again (``Wanted.takes``). ``None`` stands for no condition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import sqlalchemy as sa

from locus_store.sql.columns.column_types import PlainText

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.values.filters import Clause

Condition: TypeAlias = "sa.ColumnElement[bool] | None"

ORDERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "$gt": lambda left, right: left > right,
    "$gte": lambda left, right: left >= right,
    "$lt": lambda left, right: left < right,
    "$lte": lambda left, right: left <= right,
}


def is_there(found: sa.ColumnElement[Any], clause: Clause) -> sa.ColumnElement[bool]:
    """Return the condition of ``$exists``."""
    return found.is_not(None) if clause.operand else found.is_(None)


MOST_FORMS: Final = 100
"""Values of ``$in`` that a database compares; with more, it looks for any."""


def text_literal(value: str) -> sa.ColumnElement[str]:
    """Return a bound text."""
    return sa.literal(value, PlainText())
