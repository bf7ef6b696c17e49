"""Several databases as one storage."""

from locus_store.backends.sharded.backend import ShardedBackend
from locus_store.backends.sharded.message_log import ShardedMessageLog

__all__ = ["ShardedBackend", "ShardedMessageLog"]
