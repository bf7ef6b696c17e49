"""PostgreSQL, and every way to it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import asyncpg
from servers import run
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from locus_store import (
    PostgreSQLBackend,
    PostgreSQLMessageLog,
    PostgreSQLStore,
    StorageBackendAdapter,
    postgresql_checkpointer,
)
from locus_store.backends.postgresql import row_security
from locus_store.sql.schema import vectors
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames
from storages import Storage

if TYPE_CHECKING:
    from collections.abc import Callable


class ServerProbe:
    """Below a database, by another connection."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _run(self, statement: str, *values: Any) -> list[Any]:
        async def asked() -> list[Any]:
            connection = await asyncpg.connect(self._url)
            try:
                return await connection.fetch(statement, *values)
            finally:
                await connection.close()

        return run(asked())

    def age(self, seconds: float) -> None:
        self._run(
            "UPDATE locus_checkpoints SET created_at = created_at - make_interval(secs => $1)",
            float(seconds),
        )

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        for table, key in (("locus_checkpoints", "sequence"), ("locus_segments", "last")):
            own = f"SELECT line, {key} AS key, payload FROM {table} WHERE payload IS NOT NULL"
            for row in self._run(own):
                self._run(
                    f"UPDATE {table} SET payload = $3 WHERE line = $1 AND {key} = $2",
                    *(row["line"], row["key"], change(row["payload"])),
                )

    def holds(self, text: str) -> bool:
        """Return whether any live row has it; dead rows are not read."""
        rows = [
            row
            for table in ("locus_checkpoints", "locus_segments")
            for row in self._run(f"SELECT c::text AS told, payload FROM {table} c")
        ]
        frames = [
            body for row in rows for body in unpack_frames(row["payload"] or b"", MAX_STATE_BYTES)
        ]
        told = [row["told"].encode() for row in rows]
        return any(text.encode() in it for it in frames + told)

    def rows(self) -> int:
        tables = ("threads", "lines", "checkpoints", "segments", "writes", "messages")
        return sum(self._run(f"SELECT count(*) FROM locus_{it}")[0][0] for it in tables)


class OnServer(Storage):
    """A database, with a tenant of the test's own where that is enough."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.tenant = self.own_tenant()
        name = "shared_database" if self.tenant else "migrated_database"
        self.database: str = self.fixture(name)
        self.url = self.reached()
        self.connecting = {"pool_size": 4, **self.options}

    def reached(self) -> str:
        """Return the URL by which the objects reach the database."""
        return self.database

    def checkpointer(self, **options: Any) -> Any:
        return self.new(postgresql_checkpointer, self.url, **{**self.connecting, **options})

    def backend(self) -> Any:
        return self.new(PostgreSQLBackend, self.url, **self.connecting)

    def store(self, **options: Any) -> Any:
        options = {"dimension": 3, **self.connecting, **options}
        return self.new(PostgreSQLStore, self.url, **options)

    def log(self, **options: Any) -> Any:
        return self.new(PostgreSQLMessageLog, self.url, **{**self.connecting, **options})

    def probe(self) -> ServerProbe:
        return ServerProbe(self.database)


class Audited(OnServer):
    """Each call is recorded."""

    options: ClassVar = {"audit": "tests"}


class Ungrouped(OnServer):
    options: ClassVar = {"group_saves": False}


class Alone(OnServer):
    """A database of the test's own."""

    def own_tenant(self) -> dict[str, str]:
        return {}


class Divided(OnServer):
    """Tables with partitions, where reads find the line first."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        if self.tenant:
            self.database = self.url = self.fixture("divided_database")


def secure(database: str) -> str:
    """Put a database under row security; return the URL of a role that does not own its tables."""
    row_security.enable(database)

    async def granted() -> None:
        connection = await asyncpg.connect(database)
        try:
            with suppress(asyncpg.DuplicateObjectError):
                await connection.execute("CREATE ROLE locus_app LOGIN")
            await connection.execute(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO locus_app"
            )
        finally:
            await connection.close()

    run(granted())
    place = urlsplit(database)
    return place._replace(netloc=f"locus_app@{place.netloc.rpartition('@')[2]}").geturl()


class Secured(OnServer):
    """Row security, for a role that neither owns the tables nor passes by their policies."""

    def reached(self) -> str:
        if self.tenant:
            self.database = self.fixture("secured_database")
        vectors.create_vector_index(self.database, dimension=3)
        return secure(self.database)


class Joined(Alone):
    """Segments change no answer, and nothing that was deleted is left in them."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.fixture("segments_of_two")


class Indexed(Alone):
    """The full-text index gives the answers of the scan, whatever is deleted, replaced, copied."""

    async def open(self) -> None:
        async with self.backend() as backend:
            await backend.create_search_index()


class OverEngine(Alone):
    async def open(self) -> None:
        url = self.url.replace("postgresql://", "postgresql+asyncpg://")
        self.engine = create_async_engine(url, poolclass=NullPool)

    async def close(self) -> None:
        await self.engine.dispose()

    def checkpointer(self, **options: Any) -> Any:
        return postgresql_checkpointer(engine=self.engine, **options)


class OverPool(Alone):
    """With codecs of its owner's, which are no concern of ours."""

    async def open(self) -> None:
        async def own(connection: Any) -> None:
            for name in ("json", "jsonb"):
                await connection.set_type_codec(
                    name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
                )

        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=4, init=own)

    async def close(self) -> None:
        assert not self.pool.is_closing()
        await self.pool.close()

    def checkpointer(self, **options: Any) -> Any:
        return postgresql_checkpointer(pool=self.pool, **options)


class OverPgBouncer(OnServer):
    """Transaction mode: each transaction may run on another connection."""

    options: ClassVar = {"pgbouncer": True}

    def reached(self) -> str:
        name = urlsplit(self.database).path.removeprefix("/")
        url: str = self.fixture("pgbouncer").url(name)
        return url


class OracleStatements(Alone):
    """What Oracle gets for saves, loads and pending writes, executed on PostgreSQL."""

    def checkpointer(self, *, max_state_bytes: int = MAX_STATE_BYTES, **options: Any) -> Any:
        return StorageBackendAdapter(self._portable(max_state_bytes=max_state_bytes), **options)

    def backend(self) -> Any:
        return self._portable()

    def _portable(self, **options: Any) -> Any:
        from portable_statements import PortableBackend

        return PortableBackend(self.url, pool_size=4, **options)
