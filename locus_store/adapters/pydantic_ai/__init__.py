"""Pydantic AI on every backend with message logs: ``LocusConversationStore``."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import pydantic_ai.conversation_store  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"Pydantic AI is not installed: {make_install_command('pydantic-ai')}"
    ) from exc

from locus_store.adapters.pydantic_ai.conversation_store import (
    ConversationConflictError,
    LocusConversationStore,
)

__all__ = ["ConversationConflictError", "LocusConversationStore"]
