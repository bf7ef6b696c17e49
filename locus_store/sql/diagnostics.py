"""What a database is and holds, for ``locus-store doctor``; nothing here changes anything."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from locus_store.sql.columns import now
from locus_store.sql.status import HEAD, read_settings
from locus_store.sql.vectors import DIMENSION_SETTING
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.sql.repository import Repository

CLOCK_SECONDS: Final = 5.0
"""A server's clock may differ by so much from this machine's."""

COUNTED: Final = 1_000_000
"""Rows that are counted one by one; beyond that it takes long."""

SAMPLE: Final = 10_000
"""Versions whose bytes are averaged."""

LONGEST: Final = 3
"""Threads that are named."""

OLDEST_POSTGRESQL: Final = 15
OLDEST_ORACLE: Final = 23


class Examination:
    """Looks at a database within one reading transaction.

    The methods under "dialect hooks" are all that may differ between databases.
    """

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.connection = repository.connection
        self.tables = repository.tables

    def facts(self) -> list[Fact]:
        """One line after the other."""
        return [
            self.clock(),
            *self.software(),
            *self.schema(),
            *self.settings(),
            *self.sizes(),
        ]

    def of_tenant(self) -> list[Fact]:
        """Facts of the repository's tenant."""
        return [*self.lengths(), *self.leftovers()]

    # --- dialect hooks

    def software(self) -> Iterator[Fact]:
        """Driver and server."""
        yield Fact("SQLAlchemy", sa.__version__)
        dialect = self.connection.dialect
        found = ".".join(map(str, dialect.server_version_info or ())) or "unknown"
        yield Fact("server", f"{dialect.name} {found}")

    def settings(self) -> Iterator[Fact]:
        """How the database is set up, where that matters."""
        yield from ()

    def table_bytes(self, table: sa.Table) -> int | None:
        """Bytes of a table with its indexes; ``None`` where that is not known."""
        del table
        return None

    def total_bytes(self) -> int | None:
        """Bytes of all our tables."""
        sizes = [self.table_bytes(it) for it in self._tables()]
        return None if None in sizes else sum(it or 0 for it in sizes)

    def estimated_rows(self, table: sa.Table) -> int | None:
        """About how many rows there are, where the database keeps that."""
        del table
        return None

    # --- the same for all

    def clock(self) -> Fact:
        """How far the server's clock is from this machine's."""
        theirs = self.connection.execute(sa.select(now())).scalar_one()
        apart = (theirs - datetime.now(UTC)).total_seconds()
        if abs(apart) <= CLOCK_SECONDS:
            return Fact("clock", "the server's and this machine's agree", "ok")
        return Fact(
            "clock",
            f"the server is {abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}",
            "warn",
            "set both by NTP; order and expiry go by the server's clock only",
        )

    def schema(self) -> Iterator[Fact]:
        """Revision and indexes; who gets here has a schema that can be used."""
        settings = read_settings(self.connection, self.tables)
        revision = settings.revision if settings else "unknown"
        is_newest = revision == HEAD
        yield Fact(
            "schema",
            f"revision {revision}" + ("" if is_newest else f"; this library knows {HEAD}"),
            "ok" if is_newest else "info",
        )
        has_index = self.repository.has_index
        yield Fact(
            "full-text index",
            "yes" if has_index else "no: a search reads everything",
            "ok" if has_index else "info",
            "" if has_index else "if you search: locus-store db search-index",
        )
        numbers = settings.raw.get(DIMENSION_SETTING) if settings else None
        yield Fact("vector index", f"{numbers} numbers" if numbers else "no")

    def sizes(self) -> Iterator[Fact]:
        """Rows and bytes, in all and per version."""
        for table in self._tables():
            rows, size = self._rows(table), self.table_bytes(table)
            yield Fact(
                f"rows of {table.name}", rows + (f", {_size(size)}" if size is not None else "")
            )
        total = self.total_bytes()
        if total is not None:
            yield Fact("size", _size(total))
        payload = self.tables.checkpoints.c.payload
        some = sa.select(sa.func.length(payload).label("size")).limit(SAMPLE).subquery()
        mean = self.connection.execute(sa.select(sa.func.avg(some.c.size))).scalar()
        if mean is not None:
            yield Fact(
                "bytes per version", f"{float(mean):,.0f} on average ({SAMPLE:,} at most looked at)"
            )

    def _tables(self) -> tuple[sa.Table, ...]:
        it = self.tables
        return it.threads, it.lines, it.checkpoints, it.writes, it.messages, it.store

    def _rows(self, table: sa.Table) -> str:
        estimated = self.estimated_rows(table)
        if estimated is not None and estimated > COUNTED:
            return f"about {estimated:,}"
        first = sa.select(sa.literal(1)).select_from(table).limit(COUNTED + 1).subquery()
        found = self.connection.execute(sa.select(sa.func.count()).select_from(first)).scalar_one()
        return f"{found:,}" if found <= COUNTED else f"more than {COUNTED:,}"

    def lengths(self) -> Iterator[Fact]:
        """The threads that were saved most often."""
        lines = self.tables.lines
        found = self.connection.execute(
            sa.select(lines.c.thread_id, lines.c.namespace, lines.c.last_sequence)
            .where(lines.c.tenant == self.repository.scope.tenant, lines.c.head.is_not(None))
            .order_by(lines.c.last_sequence.desc(), lines.c.line)
            .limit(LONGEST)
        ).all()
        named = [f"{it.thread_id!r}{_within(it.namespace)}: {it.last_sequence:,}" for it in found]
        if named:
            yield Fact("longest threads, in saves", ", ".join(named))

    def leftovers(self) -> Iterator[Fact]:
        """What nobody sees and a sweep would remove."""
        threads, lines = self.tables.threads, self.tables.lines
        checkpoints = self.tables.checkpoints
        tenant = self.repository.scope.tenant
        over = self._count(
            sa.select(threads.c.thread).where(
                threads.c.tenant == tenant, threads.c.expires_at <= now()
            )
        )
        yield Fact(
            "expired threads",
            f"{over:,}",
            "warn" if over else "ok",
            "give their space back: locus-store threads expire" if over else "",
        )
        hidden = self._count(
            sa.select(checkpoints.c.sequence)
            .join(lines, lines.c.line == checkpoints.c.line)
            .where(lines.c.tenant == tenant, lines.c.floor > 0)
            .where(checkpoints.c.sequence < lines.c.floor, checkpoints.c.sequence != lines.c.head)
        )
        yield Fact("versions hidden by keep_last", f"{hidden:,}, which go with later saves")

    def _count(self, rows: sa.Select[Any]) -> int:
        count = sa.select(sa.func.count()).select_from(rows.subquery())
        return int(self.connection.execute(count).scalar_one())


class SQLiteExamination(Examination):
    """A file, or memory."""

    def software(self) -> Iterator[Fact]:
        """See ``Examination``, as the following."""
        yield Fact("SQLAlchemy", sa.__version__)
        yield Fact("aiosqlite", _package("aiosqlite"))
        yield Fact("server", f"SQLite {sqlite3.sqlite_version}")

    def settings(self) -> Iterator[Fact]:
        mode = str(self._pragma("journal_mode")).upper()
        is_fine = mode in {"WAL", "MEMORY"}
        remedy = "readers and writers wait for each other: PRAGMA journal_mode=WAL"
        yield Fact(
            "journal mode", mode, "ok" if is_fine else "warn", "" if is_fine else f"{remedy}, once"
        )

    def table_bytes(self, table: sa.Table) -> int | None:
        """SQLite tells the size of the file only."""

    def total_bytes(self) -> int | None:
        return int(self._pragma("page_count")) * int(self._pragma("page_size"))

    def _pragma(self, name: str) -> Any:
        return self.connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


class OracleExamination(Examination):
    """A server, and the driver's thin mode."""

    def software(self) -> Iterator[Fact]:
        """See ``Examination``."""
        yield Fact("SQLAlchemy", sa.__version__)
        yield Fact("oracledb", _package("oracledb"))
        driver: Any = self.connection.connection.driver_connection
        number = int(str(driver.version).partition(".")[0])
        is_fine = number >= OLDEST_ORACLE
        yield Fact(
            "server",
            f"Oracle Database {driver.version}",
            "ok" if is_fine else "fail",
            "" if is_fine else f"upgrade the server to {OLDEST_ORACLE}ai or later",
        )


class PostgreSQLExamination(Examination):
    """A server, perhaps behind a pooler."""

    def software(self) -> Iterator[Fact]:
        """See ``Examination``, as the following."""
        yield Fact("SQLAlchemy", sa.__version__)
        yield Fact("asyncpg", _package("asyncpg"))
        number = int(self._setting("server_version_num")) // 10_000
        is_fine = number >= OLDEST_POSTGRESQL
        yield Fact(
            "server",
            f"PostgreSQL {self._setting('server_version')}",
            "ok" if is_fine else "fail",
            "" if is_fine else f"upgrade the server to {OLDEST_POSTGRESQL} or later",
        )
        yield self._pooler()

    def _pooler(self) -> Fact:
        """A pooler makes up the process number that it gives its clients."""
        driver: Any = self.connection.connection.driver_connection
        if driver.get_server_pid() == self._scalar("SELECT pg_backend_pid()"):
            return Fact("pooler", "none in between")
        return Fact(
            "pooler",
            "yes, PgBouncer or the like is in between",
            remedy="if it pools by transaction, the URL needs pgbouncer=true",
        )

    def settings(self) -> Iterator[Fact]:
        extension = self._scalar("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        offered = self._scalar("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'")
        absent = "available, not made" if offered else "not installed on the server"
        yield Fact("pgvector", str(extension or absent))
        unsafe = [
            f"{name}=off"
            for name in ("fsync", "full_page_writes", "synchronous_commit")
            if self._setting(name) == "off"
        ]
        yield Fact(
            "commits",
            ", ".join(unsafe) or "durable",
            "warn" if unsafe else "ok",
            "a crash of the server may lose saves that were acknowledged: set on" if unsafe else "",
        )
        if self._scalar("SELECT pg_is_in_recovery()"):
            yield Fact(
                "role of the server",
                "standby, read-only",
                "warn",
                "to save, connect to the primary (target_session_attrs=read-write)",
            )

    def table_bytes(self, table: sa.Table) -> int | None:
        size = self._of_table("pg_total_relation_size(c.oid)", table)
        return None if size is None else int(size)

    def estimated_rows(self, table: sa.Table) -> int | None:
        """-1 is a table that was never looked at."""
        found = self._of_table("c.reltuples", table)
        return None if found is None or found < 0 else int(found)

    def _of_table(self, what: str, table: sa.Table) -> Any:
        name = self.connection.dialect.identifier_preparer.format_table(table)
        found = sa.text(
            f"SELECT {what} FROM pg_class c WHERE c.oid = to_regclass(CAST(:name AS text))"  # noqa: S608  (ours)
        )
        return self.connection.execute(found, {"name": name}).scalar()

    def _setting(self, name: str) -> str:
        return str(self._scalar(f"SHOW {name}"))

    def _scalar(self, statement: str) -> Any:
        return self.connection.exec_driver_sql(statement).scalar()


def _within(namespace: str) -> str:
    return f" ({namespace!r})" if namespace else ""


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _size(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} bytes"
