"""The Claude Agent SDK on every backend: ``LocusSessionStore``, and tools that are called once."""

from locus_store.errors import require_extra

with require_extra("the Claude Agent SDK is not installed", "claude-agent"):
    import claude_agent_sdk  # noqa: F401

from locus_store.adapters.claude_agent.session_store import LocusSessionStore, durable_tool

__all__ = ["LocusSessionStore", "durable_tool"]
