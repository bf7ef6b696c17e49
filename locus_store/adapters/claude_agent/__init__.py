"""The Claude Agent SDK on every backend: ``LocusSessionStore``, and tools that are called once."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import claude_agent_sdk  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"the Claude Agent SDK is not installed: {make_install_command('claude-agent')}"
    ) from exc

from locus_store.adapters.claude_agent.durable_tools import durable_tool
from locus_store.adapters.claude_agent.session_store import LocusSessionStore

__all__ = ["LocusSessionStore", "durable_tool"]
