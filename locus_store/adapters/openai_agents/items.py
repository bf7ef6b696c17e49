"""Items of the OpenAI Agents SDK as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.adapters.logs import with_numbers
from locus_store.messages import ROLE, NewMessage
from locus_store.values.readable import Readable

if TYPE_CHECKING:
    from collections.abc import Mapping


READABLE: Final = Readable(
    said=frozenset(
        {"content", "text", "refusal", "summary", "transcript", "filename", "name", "reason"}
        | {"action", "actions", "query", "queries", "results", "command", "commands", "code"}
        | {"outputs", "logs", "operation", "path", "diff", "revised_prompt", "error", "message"}
    ),
    given=frozenset({"arguments", "input", "output"}),
)
"""Not ``result``: that of a generated image is its bytes."""


def message_of(item: Mapping[str, Any]) -> NewMessage:
    """Return the message of an item; its role, or else its type, is the message's role."""
    role = item.get("role") or item.get("type")
    return NewMessage(
        with_numbers(item), role if isinstance(role, str) else ROLE, text=READABLE.text(item)
    )
