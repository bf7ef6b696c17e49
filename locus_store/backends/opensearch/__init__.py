"""OpenSearch: threads in an index."""

from locus_store.backends.opensearch.backend import (
    OpenSearchBackend,
    OpenSearchCheckpointer,
    opensearch_checkpointer,
)
from locus_store.backends.opensearch.store import OpenSearchStore

__all__ = [
    "OpenSearchBackend",
    "OpenSearchCheckpointer",
    "OpenSearchStore",
    "opensearch_checkpointer",
]
