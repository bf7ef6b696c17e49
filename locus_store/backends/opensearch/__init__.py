"""OpenSearch: threads in an index."""

from locus_store.backends.opensearch.backend import (
    OpenSearchBackend,
    OpenSearchCheckpointer,
    opensearch_checkpointer,
)

__all__ = ["OpenSearchBackend", "OpenSearchCheckpointer", "opensearch_checkpointer"]
