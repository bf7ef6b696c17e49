"""The base of objects over a storage: ``async with``, and ``for_tenant``; the quota of a tenant."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from locus_store.errors import UnsupportedError
from locus_store.types.arguments import check_limit
from locus_store.values.encoding import MAX_INT


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a tenant; ``None``: there is no limit.

    Raises:
        InvalidArgumentError: A limit is not a whole number, or is below 0.
    """

    threads: int | None = None
    """Threads that exist."""

    bytes: int | None = None
    """Bytes of versions, pending writes, messages and store items, and 100 for each of them."""

    saves_per_minute: int | None = None
    """Calls that store something, by the minutes of the database's clock."""

    def __post_init__(self) -> None:
        for name, limit in self.to_limits().items():
            check_limit(limit, name, maximum=MAX_INT)

    def to_limits(self) -> dict[str, int]:
        """Return the limits that there are, by name."""
        return {name: it for name, it in asdict(self).items() if it is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The quota of a tenant, and how much of it is used now."""

    quota: Quota
    threads: int
    bytes: int
    saves: int
    """In this minute, and those that processes have reserved; 0 without a quota of saves."""

    def to_amounts(self) -> dict[str, tuple[int, int | None]]:
        """Return what is used and its limit by the names of the limits; ``None``: no limit."""
        used = {"threads": self.threads, "bytes": self.bytes, "saves_per_minute": self.saves}
        limits = self.quota.to_limits()
        return {name: (one, limits.get(name)) for name, one in used.items()}


class ForTenants:
    """An object that can be opened for another tenant of the same storage."""

    moves_between_threads: bool = False
    """A coroutine of this object may continue in another thread than the one it began in.

    A sync call is then run by the thread that calls. Code of others may not permit it: an engine
    that was handed in, or ``embed``.
    """

    needs_no_loop: bool = False
    """The coroutines of this object wait for its own work only.

    A sync call then runs them without an event loop; see ``runtime.stepping``. A class that is
    derived outside of this library, and overrides one of them, has an event loop again.
    """

    def for_tenant(self, tenant: str) -> Self:
        """Return this object for a tenant: the same options, connections and caches.

        The new object sees what ``tenant`` owns and nothing else. It is cheap to make and need not
        be closed: its ``close`` releases nothing, and the ``close`` of the object that opened the
        connections releases them for all tenants.

        Raises:
            InvalidArgumentError: ``tenant`` is not a valid name.
            UnsupportedError: The storage has no tenants; ``capabilities.tenants`` says so.
        """
        other = copy(self)
        other._enter(tenant)  # noqa: SLF001  (a copy of this object)
        return other

    def _enter(self, tenant: str) -> None:
        """Turn a fresh copy into the object of ``tenant``."""
        raise UnsupportedError(
            f"{type(self).__name__} does not declare the capability 'tenants': give each tenant "
            "a storage of its own"
        )


class Closing:
    """An object that ``async with`` closes at its end."""

    @abstractmethod
    async def close(self) -> None:
        """Release what was opened."""

    if not TYPE_CHECKING:  # type checkers find the mistake by the missing method

        def __enter__(self) -> None:
            name = type(self).__name__
            raise TypeError(f"{name} takes 'async with'; locus_store.blocking is for 'with'")

        def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
