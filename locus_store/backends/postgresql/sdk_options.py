"""The Locus SDK's names of PostgreSQL's options, translated to this library's."""

from __future__ import annotations

from typing import Final

from sqlalchemy.engine import URL

from locus_store.errors import InvalidArgumentError
from locus_store.sql.connections.options import check_count

HOST: Final = "localhost"
PORT: Final = 5432
DATABASE: Final = "locus"
USER: Final = "postgres"
MAX_POOL_SIZE: Final = 10


def place_of(
    dsn: str | None,
    *,
    host: str | None,
    port: int | None,
    database: str | None,
    user: str | None,
) -> str | URL | None:
    """Return the DSN, or a URL of its parts; missing parts have the SDK's defaults.

    Raises:
        InvalidArgumentError: Both are given, or a part makes no sense.
    """
    parts = {"host": host, "port": port, "database": database, "user": user}
    given = [name for name, value in parts.items() if value is not None]
    if not given:
        return dsn
    if dsn is not None:
        raise InvalidArgumentError(f"give dsn or {', '.join(given)}, not both")
    for name in given:
        if name != "port" and (not isinstance(parts[name], str) or not parts[name]):
            raise InvalidArgumentError(f"{name}={parts[name]!r} must be a non-empty str")
    number = PORT if port is None else check_count("port", port, least=1)
    return URL.create(
        "postgresql", username=user or USER, host=host or HOST, port=number,
        database=database or DATABASE,
    )  # fmt: skip


def pool_of(
    pool_size: int, max_overflow: int, least: int | None, most: int | None, *, is_default: bool
) -> tuple[int, int]:
    """Return the pool's size and overflow; the SDK's spelling is minimum and maximum.

    Raises:
        InvalidArgumentError: Both spellings are given, or one makes no sense.
    """
    if least is None and most is None:
        return (
            check_count("pool_size", pool_size, least=1),
            check_count("max_overflow", max_overflow, least=0),
        )
    if not is_default:
        raise InvalidArgumentError(
            "give pool_size and max_overflow, or min_pool_size and max_pool_size, not both"
        )
    kept = most if least is None else check_count("min_pool_size", least, least=1)
    whole = max(MAX_POOL_SIZE, kept or 1) if most is None else most
    check_count("max_pool_size", whole, least=1 if least is None else least)
    return int(kept or 1), whole - int(kept or 1)
