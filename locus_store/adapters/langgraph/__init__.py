"""LangGraph on every backend: ``LangGraphSaver``."""

from locus_store.adapters.langgraph.saver import LangGraphSaver
from locus_store.adapters.langgraph.serializer import ExactSerializer

__all__ = ["ExactSerializer", "LangGraphSaver"]
