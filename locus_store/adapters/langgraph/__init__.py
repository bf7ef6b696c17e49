"""LangGraph on every backend: ``LangGraphSaver`` and ``LangGraphStore``."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import langgraph.checkpoint.base  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"LangGraph is not installed: {make_install_command('langgraph')}"
    ) from exc

from locus_store.adapters.langgraph.durable_tools import durable_tool
from locus_store.adapters.langgraph.graph_turns import run_in_turns
from locus_store.adapters.langgraph.saver import LangGraphSaver
from locus_store.adapters.langgraph.serializer import ExactSerializer
from locus_store.adapters.langgraph.store import LangGraphStore

__all__ = ["ExactSerializer", "LangGraphSaver", "LangGraphStore", "durable_tool", "run_in_turns"]
