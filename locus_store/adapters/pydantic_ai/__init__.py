"""Pydantic AI on every backend with message logs: ``LocusConversationStore``."""

from locus_store.errors import require_extra

with require_extra("Pydantic AI is not installed", "pydantic-ai"):
    import pydantic_ai.conversation_store  # noqa: F401

from locus_store.adapters.pydantic_ai.conversation_store import (
    ConversationConflictError,
    LocusConversationStore,
)

__all__ = ["ConversationConflictError", "LocusConversationStore"]
