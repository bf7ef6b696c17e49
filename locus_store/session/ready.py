"""Sessions that are ready to use: PostgreSQL, SQLite, memory."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final, Literal, TypedDict, Unpack

from locus_store.backend import StorageBackend
from locus_store.backends.memory.backend import MemoryBackend
from locus_store.errors import InvalidArgumentError
from locus_store.session.cache import (
    CACHE_TTL_SECONDS,
    MAX_CACHED_THREADS,
    LocalCache,
    StateCache,
    check_cache,
)
from locus_store.session.checkpointer import SessionCheckpointer
from locus_store.types.thread_info import UserIdType

DATABASE_VARIABLE: Final = "DATABASE_URL"
CACHE_VARIABLE: Final = "CACHE_URL"
TTL_VARIABLE: Final = "CACHE_TTL"


class SessionOptions(TypedDict, total=False):
    """Of every session; see ``SessionCheckpointer``."""

    cache_verify_seconds: float
    user_id_type: UserIdType
    on_conflict: Literal["raise", "overwrite"]
    keep_last: int | None
    ttl_seconds: float | None
    release_resources: bool


class PgCheckpointer(SessionCheckpointer):
    """Session memory in PostgreSQL, with a cache in Redis or in this process.

    What is not given is read from the environment when it is first needed: ``DATABASE_URL``,
    ``CACHE_URL``, ``CACHE_TTL``. What is handed in is used and never closed.

    Args:
        postgres_dsn: As the host issues it.
        pg_pool: An asyncpg pool, instead of ``postgres_dsn``.
        redis_url: Of a cache in Redis or Valkey; without it the cache is in this process.
        redis: A ``redis.asyncio.Redis`` or ``RedisCluster``, instead of ``redis_url``.
        engine: An async SQLAlchemy engine, instead of ``postgres_dsn``.
        schema: The schema of the tables, created with them.
        cache_ttl: Seconds for which an entry of the cache is kept after its last use; 86,400.
        max_cached_threads: Entries of the cache at most; the least recently used one is dropped
            first. ``None``: 1,000 in this process, and no limit in Redis.
        options: Of ``SessionCheckpointer``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: A driver is not installed.
    """

    def __init__(
        self,
        postgres_dsn: str | None = None,
        pg_pool: Any = None,
        redis_url: str | None = None,
        redis: Any = None,
        *,
        engine: Any = None,
        schema: str | None = "public",
        cache_ttl: float | None = None,
        max_cached_threads: int | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        check_cache(CACHE_TTL_SECONDS if cache_ttl is None else cache_ttl, max_cached_threads)
        given = {"dsn": postgres_dsn, "pool": pg_pool, "engine": engine}
        place = {name: it for name, it in given.items() if it is not None}
        made = partial(_open_postgresql, place, schema)
        cache = partial(_open_cache, redis_url, redis, cache_ttl, max_cached_threads)
        super().__init__(
            made() if place else made,
            cache() if redis_url is not None or redis is not None else cache,
            **options,
        )


class SqliteCheckpointer(SessionCheckpointer):
    """Session memory in a file of SQLite, created if missing, with a cache.

    ``engine`` is an SQLAlchemy engine, instead of ``path``. The other arguments and the errors are
    those of ``PgCheckpointer``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        redis_url: str | None = None,
        redis: Any = None,
        engine: Any = None,
        cache_ttl: float = CACHE_TTL_SECONDS,
        max_cached_threads: int | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        from locus_store.backends.sqlite.backend import SQLiteBackend  # noqa: PLC0415  (memory needs no SQL)

        if (path is None) is (engine is None):
            raise InvalidArgumentError("give a path or an engine")
        backend = SQLiteBackend(path) if path is not None else SQLiteBackend(engine=engine)
        cache = make_cache(redis_url, redis, cache_ttl, max_cached_threads)
        super().__init__(backend, cache, **options)


class InMemoryCheckpointer(SessionCheckpointer):
    """Session memory in this process, for tests and trials; lost when it ends.

    Options are those of ``SessionCheckpointer``.
    """

    def __init__(self, **options: Unpack[SessionOptions]) -> None:
        super().__init__(MemoryBackend(), LocalCache(MAX_CACHED_THREADS), **options)


def _open_postgresql(place: dict[str, Any], schema: str | None) -> StorageBackend:
    from locus_store.backends.postgresql.backend import PostgreSQLBackend  # noqa: PLC0415  (needs a driver)

    if len(place) > 1:
        raise InvalidArgumentError("give one of postgres_dsn, pg_pool and engine")
    dsn = place.get("dsn")
    if dsn is not None and not (isinstance(dsn, str) and dsn.strip()):
        raise InvalidArgumentError(
            f"postgres_dsn={dsn!r} is not the URL of a database; None reads {DATABASE_VARIABLE}"
        )
    if not place:
        dsn = os.environ.get(DATABASE_VARIABLE)
        if not dsn:
            raise InvalidArgumentError(
                f"no database: give PgCheckpointer postgres_dsn=, pg_pool= or engine=, or set "
                f"{DATABASE_VARIABLE}"
            )
        place = {"dsn": dsn}
    return PostgreSQLBackend(**place, schema=schema)


def _open_cache(
    redis_url: str | None, redis: Any, cache_ttl: float | None, max_cached_threads: int | None
) -> StateCache:
    if redis_url is None and redis is None:
        redis_url = os.environ.get(CACHE_VARIABLE) or None
    if cache_ttl is None:
        text = os.environ.get(TTL_VARIABLE)
        try:
            cache_ttl = float(text) if text else CACHE_TTL_SECONDS
        except ValueError as exc:
            raise InvalidArgumentError(
                f"{TTL_VARIABLE}={text!r} is not a number of seconds"
            ) from exc
    return make_cache(redis_url, redis, cache_ttl, max_cached_threads)


def make_cache(
    redis_url: str | None, redis: Any, cache_ttl: float, max_cached_threads: int | None
) -> StateCache:
    """Return the cache that these options name: in Redis, else in this process.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed.
    """
    if redis_url is None and redis is None:
        most = MAX_CACHED_THREADS if max_cached_threads is None else max_cached_threads
        return LocalCache(most, ttl_seconds=cache_ttl)
    from locus_store.session.redis_cache import RedisCache  # noqa: PLC0415  (needs a driver)

    return RedisCache(
        redis_url, client=redis, max_threads=max_cached_threads, ttl_seconds=cache_ttl
    )
