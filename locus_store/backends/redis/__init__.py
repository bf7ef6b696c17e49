"""Redis and Valkey."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import redis  # noqa: F401  (whatever is imported first says what to install)
except ImportError as exc:
    raise MissingExtraError(
        f"Redis needs redis-py: {make_install_command('redis')}", name="redis"
    ) from exc

from locus_store.backends.redis.backend import (
    RedisBackend,
    RedisCheckpointSaver,
    RedisMessageLog,
    redis_checkpointer,
)

__all__ = ["RedisBackend", "RedisCheckpointSaver", "RedisMessageLog", "redis_checkpointer"]
