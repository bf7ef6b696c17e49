"""Redis and Valkey."""

from locus_store.errors import require_extra

with require_extra("Redis needs redis-py", "redis"):
    import redis  # noqa: F401

from locus_store.backends.redis.backend import (
    RedisBackend,
    RedisCheckpointSaver,
    RedisMessageLog,
    redis_checkpointer,
)

__all__ = ["RedisBackend", "RedisCheckpointSaver", "RedisMessageLog", "redis_checkpointer"]
