"""LangGraph on every backend: ``LangGraphSaver``."""

from locus_store.errors import MissingExtraError

try:
    import langgraph.checkpoint.base  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        'LangGraph is not installed: pip install "locus-store[langgraph]"'
    ) from exc

from locus_store.adapters.langgraph.saver import LangGraphSaver
from locus_store.adapters.langgraph.serializer import ExactSerializer

__all__ = ["ExactSerializer", "LangGraphSaver"]
