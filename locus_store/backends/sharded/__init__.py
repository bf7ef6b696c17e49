"""Several databases as one storage."""

from locus_store.backends.sharded.backend import ShardedBackend, ShardedMessageLog

__all__ = ["ShardedBackend", "ShardedMessageLog"]
