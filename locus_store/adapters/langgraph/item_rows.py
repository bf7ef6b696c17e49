"""A record of an item of LangGraph's own stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime


class ItemRow(NamedTuple):
    """An item as it is stored, with its embeddings in the order of their fields."""

    prefix: str
    key: str
    value: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    ttl_minutes: float | None
    embeddings: list[list[float]]
    problem: str = ""
    """The reason why it cannot be imported."""

    @property
    def namespace(self) -> tuple[str, ...]:
        """As LangGraph reads it."""
        return tuple(self.prefix.split(".")) if self.prefix else ()


Pages: TypeAlias = "AsyncIterator[list[ItemRow]]"
