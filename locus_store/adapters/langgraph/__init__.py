"""LangGraph on every backend: ``LangGraphSaver`` and ``LangGraphStore``."""

from locus_store.errors import require_extra

with require_extra("LangGraph is not installed", "langgraph"):
    import langgraph.checkpoint.base  # noqa: F401

from locus_store.adapters.langgraph.saver import LangGraphSaver
from locus_store.adapters.langgraph.serializer import ExactSerializer
from locus_store.adapters.langgraph.store import LangGraphStore
from locus_store.adapters.langgraph.wrapped import durable_tool, run_in_turns

__all__ = ["ExactSerializer", "LangGraphSaver", "LangGraphStore", "durable_tool", "run_in_turns"]
