"""Items of the OpenAI Agents SDK as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.adapters.json_values import with_numbers
from locus_store.messages import ROLE, NewMessage

if TYPE_CHECKING:
    from collections.abc import Mapping


def message_of(item: Mapping[str, Any]) -> NewMessage:
    """Return the message of an item; its role, or else its type, is the message's role."""
    role = item.get("role") or item.get("type")
    return NewMessage(with_numbers(item), role if isinstance(role, str) else ROLE)
