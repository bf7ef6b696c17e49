"""OpenSearch: threads in an index."""

from locus_store.backends.opensearch.backend import (
    OpenSearchBackend,
    OpenSearchCheckpointer,
    OpenSearchMessageLog,
    opensearch_checkpointer,
)
from locus_store.backends.opensearch.store import OpenSearchStore

__all__ = [
    "OpenSearchBackend",
    "OpenSearchCheckpointer",
    "OpenSearchMessageLog",
    "OpenSearchStore",
    "opensearch_checkpointer",
]
