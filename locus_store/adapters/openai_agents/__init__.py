"""The OpenAI Agents SDK on every backend with message logs: ``LocusSession``."""

from locus_store.errors import MissingExtraError, pip_install

try:
    import agents.memory  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"the OpenAI Agents SDK is not installed: {pip_install('openai-agents')}"
    ) from exc

from locus_store.adapters.openai_agents.session import LocusSession

__all__ = ["LocusSession"]
