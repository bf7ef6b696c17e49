"""Sets of shards: three files of SQLite, and two databases of PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store import StorageBackendAdapter, open_message_log, open_storage, open_store
from storages import Storage
from storages.postgresql import ServerProbe
from storages.sqlite import FileProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ShardsProbe:
    """Below all shards."""

    def __init__(self, probes: Sequence[Any]) -> None:
        self._probes = probes

    def age(self, seconds: float) -> None:
        for it in self._probes:
            it.age(seconds)

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        for it in self._probes:
            it.damage(change)

    def holds(self, text: str) -> bool:
        return any(it.holds(text) for it in self._probes)

    def rows(self) -> int:
        return sum(it.rows() for it in self._probes)


class Shards(Storage):
    """A set with a tenant of the test's own where that is enough."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.tenant = self.own_tenant()
        self.urls = self.places()
        self.url = f"sharded:{' '.join(self.urls)}"

    def places(self) -> list[str]:
        """Return the URLs of the shards."""
        raise NotImplementedError

    def checkpointer(self, **options: Any) -> Any:
        return self.new(_open_checkpointer, self.url, **options)

    def backend(self) -> Any:
        return self.new(_open_backend, self.url)

    def store(self, **options: Any) -> Any:
        return self.new(open_store, self.url, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return self.new(open_message_log, self.url, **options)


def _open_checkpointer(url: str, **options: Any) -> StorageBackendAdapter[Any]:
    state_type = options.pop("state_type", None)
    return open_storage(url, **options).checkpointer(state_type=state_type)


def _open_backend(url: str, **options: Any) -> Any:
    return open_storage(url, **options).backend


class OfFiles(Shards):
    def places(self) -> list[str]:
        path = self.fixture("shared_file" if self.tenant else "database_file")
        self.files = [path.with_name(f"{path.name}.{it}") for it in "abc"]
        return [f"sqlite:///{it}" for it in self.files]

    def probe(self) -> ShardsProbe:
        return ShardsProbe([FileProbe(it) for it in self.files])


class OfServers(Shards):
    def places(self) -> list[str]:
        server = self.fixture("postgresql")
        if self.tenant:
            return list(self.fixture("shared_shards"))
        self.databases = [server.new_database() for _ in range(2)]
        return [f"{server.url(it)}" for it in self.databases]

    async def close(self) -> None:
        for it in getattr(self, "databases", []):
            self.fixture("postgresql").drop_database(it)

    def probe(self) -> ShardsProbe:
        return ShardsProbe([ServerProbe(it) for it in self.urls])
