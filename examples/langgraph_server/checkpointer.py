"""The checkpointer of ``langgraph.json``.

pip install "langgraph-cli[inmem]" ".[langgraph]"
langgraph dev
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from locus_store.adapters.langgraph import LangGraphSaver


@asynccontextmanager
async def opened() -> AsyncIterator[LangGraphSaver]:
    """Open the saver for the life of the server."""
    url = os.environ.get("LOCUS_STORE_URL", "sqlite:///graph.db")
    async with LangGraphSaver.from_url(url) as saver:
        yield saver
