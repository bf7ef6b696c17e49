"""Sessions of locus-store and of AgentFlow, on the same servers, with the same methods."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks import workloads
from benchmarks.places import server

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator

OURS, THEIRS = "locus-store", "AgentFlow"
SIDES = THEIRS, OURS


@dataclass
class Servers:
    """PostgreSQL 18 with fsync, and Valkey 9 as the cache."""

    postgresql: Any
    valkey: Any

    def database(self) -> str:
        """Create an empty database; return its URL."""
        return str(self.postgresql.url(self.postgresql.new_database()))

    def cpu(self) -> dict[int, int]:
        """Return the nanoseconds that each process of both servers ran, by its id."""
        import servers

        postmaster = self.postgresql.process.pid
        pids = [postmaster, *servers.children(postmaster), self.valkey.process.pid]
        return {it: _scheduled(it) for it in pids}

    def cpu_seconds(self, begun: dict[int, int]) -> float:
        """Return the CPU time since then, without that of processes that have ended."""
        return sum(it - begun.get(pid, 0) for pid, it in self.cpu().items() if it) / 1e9


def _scheduled(pid: int) -> int:
    """Return the nanoseconds that a process of one thread ran."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except OSError:
        return 0


@contextmanager
def started() -> Iterator[Servers]:
    """Start both servers."""
    with server() as (running, _):
        import redis_servers

        valkey = redis_servers.Redis("valkey")
        try:
            yield Servers(running, valkey)
        finally:
            valkey.stop()


def name_of(url: str) -> str:
    """Return the name of a database."""
    return urlsplit(url).path[1:]


@asynccontextmanager
async def counted(servers: Servers, url: str) -> AsyncIterator[tuple[str, str, Trips]]:
    """Give the URLs of a database and of the cache by way of proxies that count."""
    from servers import CountingProxy

    proxies = CountingProxy(servers.postgresql.port), CountingProxy(servers.valkey.port)
    database, cache = proxies
    try:
        where = database.url(servers.postgresql, name_of(url)), f"redis://127.0.0.1:{cache.port}/0"
        yield *where, Trips(*proxies)
    finally:
        for proxy in proxies:
            proxy.close()


@dataclass
class Trips:
    """Round trips on the wire, to the database and to the cache."""

    _database: Any
    _cache: Any

    def taken(self) -> tuple[int, int]:
        """Return the round trips since the last call."""
        found = self._database.trips, self._cache.trips
        self._database.trips = self._cache.trips = 0
        return found


# --- the sides


def opened(side: str, database: str, cache: str | None, **options: Any) -> Any:
    """Return a checkpointer; both sides have the methods of AgentFlow's ``BaseCheckpointer``."""
    if side == OURS:
        from locus_store.backends.postgresql import PostgreSQLBackend
        from locus_store.session import PgCheckpointer, SessionCheckpointer

        if cache is None:
            return SessionCheckpointer(PostgreSQLBackend(database), **options)
        return PgCheckpointer(database, redis_url=cache, **options)
    from agentflow.storage.checkpointer import PgCheckpointer as Theirs

    return Theirs(database, redis_url=cache, release_resources=True)


def maker(side: str) -> Maker:
    """Return what makes the states and messages of a side."""
    if side == OURS:
        from locus_store.session import AgentState, Message
    else:
        from agentflow.core.state import AgentState, Message  # type: ignore[no-redef]
    return Maker(AgentState, Message.text_message)


@dataclass
class Maker:
    """States and messages of one library."""

    state_type: type[Any]
    message: Callable[..., Any]

    def messages(self, count: int, rng: random.Random) -> list[Any]:
        """Return messages of 100 characters (user) and 300 (assistant), in turn."""
        return [self._message(number, rng) for number in range(count)]

    def _message(self, number: int, rng: random.Random) -> Any:
        role, size = ("assistant", 300) if number % 2 else ("user", 100)
        return self.message(workloads.prose(rng, size), role=role)

    def state(self, count: int, rng: random.Random) -> Any:
        return self.state_type(context=self.messages(count, rng))


def versions() -> str:
    """The packages compared, with their versions."""
    from importlib.metadata import version

    names = "10xscale-agentflow", "asyncpg", "redis", "pydantic", "sqlalchemy"
    return ", ".join(f"{name} {version(name)}" for name in names)
