"""The OpenAI Agents SDK on every backend with message logs: ``LocusSession``."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import agents.memory  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"the OpenAI Agents SDK is not installed: {make_install_command('openai-agents')}"
    ) from exc

from locus_store.adapters.openai_agents.session import LocusSession, durable_tool

__all__ = ["LocusSession", "durable_tool"]
