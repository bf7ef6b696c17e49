"""Storages that encrypt, with data keys in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from services import Service

from locus_store import (
    FileBackend,
    FileMessageLog,
    FileStore,
    InMemoryMessageLog,
    InMemoryStore,
    MemoryBackend,
    OCIBucketMessageLog,
    OCIBucketStore,
    OpenSearchBackend,
    OpenSearchMessageLog,
    OpenSearchStore,
    PostgreSQLBackend,
    PostgreSQLMessageLog,
    PostgreSQLStore,
    RedisBackend,
    RedisMessageLog,
    RedisStore,
    S3Backend,
    S3MessageLog,
    S3Store,
    SQLiteBackend,
    SQLiteMessageLog,
    SQLiteStore,
    StorageBackendAdapter,
    postgresql_checkpointer,
    sqlite_checkpointer,
)
from locus_store.backends.http.backend import HTTPBackend, HTTPMessageLog, HTTPStore
from locus_store.backends.oci.backend import BucketBackend
from locus_store.encryption import Encryption, LocalKeyRing, create
from locus_store.types.options import CheckpointOptions, split_options
from storages import (
    Storage,
    file,
    http,
    memory,
    oci,
    opensearch,
    postgresql,
    redis,
    s3,
    sharded,
    sqlite,
)

ENCRYPTION = Encryption(LocalKeyRing({"a": bytes(32)}, "a"), InMemoryStore())


def make(kind: Any, *place: Any, **options: Any) -> Any:
    """Return an object of a class that encrypts."""
    return create(kind, *place, encryption=ENCRYPTION, **options)


def make_checkpointer(
    kind: Any, *place: Any, state_type: Any = None, **options: Any
) -> StorageBackendAdapter[Any]:
    own, rest = split_options(CheckpointOptions, options)
    return StorageBackendAdapter(make(kind, *place, **rest), state_type=state_type, **own)


FACTORIES = {
    kind: partial(make, kind)
    for kind in (
        *(SQLiteBackend, SQLiteStore, SQLiteMessageLog),
        *(PostgreSQLBackend, PostgreSQLStore, PostgreSQLMessageLog),
    )
} | {
    sqlite_checkpointer: partial(make_checkpointer, SQLiteBackend),
    postgresql_checkpointer: partial(make_checkpointer, PostgreSQLBackend),
}
"""Factories to those of the same that encrypts."""


class OnFile(sqlite.OnFile):
    def new(self, factory: Any, place: Any, **options: Any) -> Any:
        return super().new(FACTORIES[factory], place, **options)

    def probe(self) -> FileProbe:
        return FileProbe(self.path)


class FileProbe(sqlite.FileProbe):
    def holds(self, text: str) -> bool:
        files = [it.read_bytes() for it in self._path.parent.glob(f"{self._path.name}*")]
        return any(text.encode() in it for it in files)


class OfFiles(sharded.OfFiles):
    def new(self, factory: Any, place: Any, **options: Any) -> Any:
        return super().new(factory, place, encryption=ENCRYPTION, **options)

    def probe(self) -> sharded.ShardsProbe:
        return sharded.ShardsProbe([FileProbe(it) for it in self.files])


class OfServers(sharded.OfServers):
    def new(self, factory: Any, place: Any, **options: Any) -> Any:
        return super().new(factory, place, encryption=ENCRYPTION, **options)

    def probe(self) -> sharded.ShardsProbe:
        return sharded.ShardsProbe([ServerProbe(it) for it in self.urls])


class OnServer(postgresql.OnServer):
    def new(self, factory: Any, place: Any, **options: Any) -> Any:
        return super().new(FACTORIES[factory], place, **options)

    def probe(self) -> ServerProbe:
        return ServerProbe(self.database)


class ServerProbe(postgresql.ServerProbe):
    def holds(self, text: str) -> bool:
        tables = ("locus_checkpoints", "locus_segments")
        return any(
            text in row["told"]
            for it in tables
            for row in self._run(f"SELECT c::text AS told FROM {it} c")
        )


class Each(Storage):
    """Of classes, and where they are."""

    kinds: tuple[Any, Any, Any]

    def build(self, construct: Any, kind: Any, **options: Any) -> Any:
        """Return an object on the storage, which one of the functions above makes."""
        return construct(kind, **options)

    def checkpointer(self, **options: Any) -> Any:
        return self.build(make_checkpointer, self.kinds[0], **options)

    def backend(self) -> Any:
        return self.build(make, self.kinds[0])

    def store(self, **options: Any) -> Any:
        return self.build(make, self.kinds[1], **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return self.build(make, self.kinds[2], **options)


class Files(Each, file.Files):
    kinds = (FileBackend, FileStore, FileMessageLog)

    def build(self, construct: Any, kind: Any, **options: Any) -> Any:
        return construct(kind, self.directory, **options)


class OnValkey(Each, redis.OnValkey):
    kinds = (RedisBackend, RedisStore, RedisMessageLog)

    def build(self, construct: Any, kind: Any, **options: Any) -> Any:
        return construct(kind, self.url, **options)


class _OfObjects(Each):
    """Heads and segments, whose backends are closed behind a test."""

    backends: list[Any]
    options: Any
    """Returns the options that open the storage, with others."""

    def build(self, construct: Any, kind: Any, **options: Any) -> Any:
        return construct(kind, **self.options(**options))

    def backend(self) -> Any:
        self.backends.append(super().backend())
        return self.backends[-1]


class OnBucket(_OfObjects, s3.OnService):
    kinds = (S3Backend, S3Store, S3MessageLog)

    def options(self, **options: Any) -> Any:
        return self.place.options(**options)


class OnOCIBucket(_OfObjects, oci.OnBucket):
    """Through Oracle's SDK to a double of its API."""

    kinds = (BucketBackend, OCIBucketStore, OCIBucketMessageLog)

    def options(self, **options: Any) -> Any:
        return self.bucket.options(**options)


class OnIndex(_OfObjects, opensearch.OnIndex):
    kinds = (OpenSearchBackend, OpenSearchStore, OpenSearchMessageLog)

    def options(self, **options: Any) -> Any:
        return self.index.options(**options)


class Memory(Each, memory.Memory):
    kinds = (MemoryBackend, InMemoryStore, InMemoryMessageLog)

    def checkpointer(self, **options: Any) -> Any:
        self.first = super().checkpointer(**options)
        return self.first

    def log(self, **options: Any) -> Any:
        if "max_state_bytes" in options:
            return super().log(**options)
        backend = self.first.backend if self.first else make(MemoryBackend)
        self.first = super().log(backend=backend, **options)
        return self.first


class AtService(http.OverSQLite):
    """The service has the keys."""

    def backend_behind(self) -> Any:
        return make(SQLiteBackend, self.fixture("database_file"))

    def store(self, **options: Any) -> Any:
        metric = options.get("metric", "cosine")
        store = make(SQLiteStore, backend=self.behind, dimension=3, metric=metric)
        service = self._started(metric, lambda: Service(self.behind, store=store))
        return HTTPStore(service.url, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        log = make(SQLiteMessageLog, backend=self.behind)
        service = self._started("log", lambda: Service(self.behind, messages=log))
        return HTTPMessageLog(service.url, **options)


class _AtClient(http.OverMemory):
    """The client has the keys, and the service does not."""

    def checkpointer(self, **options: Any) -> Any:
        plain = super().checkpointer(**options)
        return make_checkpointer(HTTPBackend, plain.backend.service.where, **options)

    def backend(self) -> Any:
        made = make(HTTPBackend, self.service().url)
        made.service = http.LimitedRemote(self)
        return made

    def store(self, **options: Any) -> Any:
        where = super().store(**options).backend.service.where
        return make(HTTPStore, where, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return make(HTTPMessageLog, super().log().backend.service.where, **options)

    def probe(self) -> Any:
        return None


class OverSQLite(_AtClient, http.OverSQLite):
    pass


class OverPostgreSQL(_AtClient, http.OverPostgreSQL):
    pass
