"""The OpenAI Agents SDK on every backend with message logs: ``LocusSession``."""

from locus_store.errors import require_extra

with require_extra("the OpenAI Agents SDK is not installed", "openai-agents"):
    import agents.memory  # noqa: F401

from locus_store.adapters.openai_agents.session import LocusSession, durable_tool

__all__ = ["LocusSession", "durable_tool"]
