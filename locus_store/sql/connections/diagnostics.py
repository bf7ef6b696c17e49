"""Read-only facts about a database and its contents, for ``locus-store doctor``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import sqlalchemy as sa

from locus_store.errors import SchemaError
from locus_store.sql.columns.types import make_clock
from locus_store.sql.schema.status import HEAD, UNFINISHED_SETTING, describe_partitions, read_status
from locus_store.sql.schema.vectors import DIMENSION_SETTING
from locus_store.sql.threads.repository import Repository
from locus_store.types.facts import Fact, Verdict

CLOCK_SECONDS: Final = 5.0
"""A server's clock may differ by so much from this machine's."""

COUNTED: Final = 1_000_000
"""Rows that are counted one by one; beyond that it takes long."""

SAMPLE: Final = 10_000
"""Versions whose bytes are averaged."""

LONGEST: Final = 3
"""Threads that are named."""


class Examination(ABC):
    """Collects facts about a database within one read transaction.

    The methods under "dialect hooks" are all that may differ between databases.
    """

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.connection = repository.connection
        self.tables = repository.tables

    def collect(self) -> list[Fact]:
        """Collect the facts, one after the other."""
        return [
            self.compare_clocks(),
            Fact("SQLAlchemy", sa.__version__),
            *self.iterate_software(),
            *self.iterate_schema(),
            *self.iterate_settings(),
            *self.iterate_sizes(),
        ]

    def collect_of_tenant(self) -> list[Fact]:
        """Return facts about the repository's tenant."""
        return [*self.iterate_lengths(), *self.iterate_leftovers()]

    # --- dialect hooks

    @abstractmethod
    def iterate_software(self) -> Iterator[Fact]:
        """Yield the versions of driver and server."""

    def iterate_settings(self) -> Iterator[Fact]:
        """Return facts about the database's settings that matter to the library."""
        yield from ()

    def measure_table(self, table: sa.Table) -> int | None:
        """Return the bytes of a table with its indexes; ``None`` if unknown."""
        return None

    def measure_total(self) -> int | None:
        """Return the bytes of all tables of this library."""
        sizes = [self.measure_table(it) for it in self._list_tables()]
        return None if None in sizes else sum(it or 0 for it in sizes)

    def estimate_rows(self, table: sa.Table) -> int | None:
        """Return the estimated number of rows, if the database keeps one."""
        return None

    def compare_clocks(self) -> Fact:
        """Return the difference between the server's clock and this machine's."""
        theirs = self.connection.execute(sa.select(make_clock())).scalar_one()
        apart = (theirs - datetime.now(UTC)).total_seconds()
        if abs(apart) <= CLOCK_SECONDS:
            return Fact("clock", "the server's and this machine's agree", "ok")
        return Fact(
            "clock",
            f"the server is {abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}",
            "warn",
            "synchronize both by NTP; order and expiry use the server's clock only",
        )

    def iterate_schema(self) -> Iterator[Fact]:
        """Yield the revision and the indexes.

        Raises:
            SchemaError: A table or column is missing, which opening does not look for.
        """
        status = read_status(self.connection, self.tables)
        if not status.usable:
            raise SchemaError(status.message)
        settings, revision = status.settings, status.revision
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
        if settings and (divided := describe_partitions(settings)):
            verdict: Verdict = "warn" if UNFINISHED_SETTING in settings.raw else "ok"
            yield Fact("partitions", divided.lstrip(",; "), verdict)
        numbers = settings.raw.get(DIMENSION_SETTING) if settings else None
        yield Fact("vector index", f"{numbers} numbers" if numbers else "no")

    def iterate_sizes(self) -> Iterator[Fact]:
        """Yield rows and bytes, in total and per version."""
        for table in self._list_tables():
            rows, size = self._describe_row_count(table), self.measure_table(table)
            yield Fact(
                f"rows of {table.name}",
                rows + (f", {_format_size(size)}" if size is not None else ""),
            )
        total = self.measure_total()
        if total is not None:
            yield Fact("size", _format_size(total))
        payload = self.tables.checkpoints.c.payload
        some = sa.select(sa.func.length(payload).label("size")).limit(SAMPLE).subquery()
        mean = self.connection.execute(sa.select(sa.func.avg(some.c.size))).scalar()
        if mean is not None:
            yield Fact(
                "bytes per version", f"{float(mean):,.0f} on average ({SAMPLE:,} at most looked at)"
            )

    def _list_tables(self) -> tuple[sa.Table, ...]:
        t = self.tables
        return t.threads, t.lines, t.checkpoints, t.segments, t.writes, t.logs, t.messages, t.store

    def _describe_row_count(self, table: sa.Table) -> str:
        estimated = self.estimate_rows(table)
        if estimated is not None and estimated > COUNTED:
            return f"about {estimated:,}"
        first = sa.select(sa.literal(1)).select_from(table).limit(COUNTED + 1).subquery()
        found = self.connection.execute(sa.select(sa.func.count()).select_from(first)).scalar_one()
        return f"{found:,}" if found <= COUNTED else f"more than {COUNTED:,}"

    def iterate_lengths(self) -> Iterator[Fact]:
        """Yield the threads with the most saves."""
        lines = self.tables.lines
        found = self.connection.execute(
            sa.select(lines.c.thread_id, lines.c.namespace, lines.c.last_sequence)
            .where(lines.c.tenant == self.repository.tenant, lines.c.head.is_not(None))
            .order_by(lines.c.last_sequence.desc(), lines.c.line)
            .limit(LONGEST)
        ).all()
        named = [
            f"{row.thread_id!r}{row.namespace and f' ({row.namespace!r})'}: {row.last_sequence:,}"
            for row in found
        ]
        if named:
            yield Fact("longest threads, in saves", ", ".join(named))

    def iterate_leftovers(self) -> Iterator[Fact]:
        """Yield facts about invisible rows that a sweep would remove."""
        threads, lines = self.tables.threads, self.tables.lines
        checkpoints = self.tables.checkpoints
        tenant = self.repository.tenant
        over = self._count(
            sa.select(threads.c.thread).where(
                threads.c.tenant == tenant, threads.c.expires_at <= make_clock()
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


def judge_release(shown: str, release: int, oldest: int, suffix: str = "") -> Fact:
    """Return the version of a server, which must have the oldest release at least."""
    if release >= oldest:
        return Fact("server", shown, "ok")
    return Fact("server", shown, "fail", f"upgrade the server to {oldest}{suffix} or later")


def get_package_version(name: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _format_size(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} bytes"
