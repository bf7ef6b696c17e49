"""Facts of a PostgreSQL database, for ``locus-store doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from locus_store.backends.postgresql.policies import FIXED, list_changes
from locus_store.sql.connections.diagnostics import Examination, get_package_version, judge_release
from locus_store.types.facts import Fact

OLDEST_POSTGRESQL: Final = 15


class PostgreSQLExamination(Examination):
    """A server, perhaps behind a pooler."""

    def iterate_software(self) -> Iterator[Fact]:
        yield Fact("asyncpg", get_package_version("asyncpg"))
        number = int(self._read_setting("server_version_num")) // 10_000
        shown = f"PostgreSQL {self._read_setting('server_version')}"
        yield judge_release(shown, number, OLDEST_POSTGRESQL)
        yield self._find_pooler()

    def _find_pooler(self) -> Fact:
        """Detect a pooler by the backend process id, which a pooler invents for its clients."""
        driver: Any = self.connection.connection.driver_connection
        if driver.get_server_pid() == self._ask("SELECT pg_backend_pid()"):
            return Fact("pooler", "none in between")
        return Fact(
            "pooler",
            "yes, PgBouncer or the like is in between",
            remedy="if it pools by transaction, the URL needs pgbouncer=true",
        )

    def iterate_settings(self) -> Iterator[Fact]:
        extension = self._ask("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        offered = self._ask("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'")
        absent = "available, not made" if offered else "not installed on the server"
        yield Fact("pgvector", str(extension or absent))
        unsafe = [
            f"{name}=off"
            for name in ("fsync", "full_page_writes", "synchronous_commit")
            if self._read_setting(name) == "off"
        ]
        yield Fact(
            "commits",
            ", ".join(unsafe) or "durable",
            "warn" if unsafe else "ok",
            "a crash of the server may lose saves that were acknowledged: set on" if unsafe else "",
        )
        wanted = self.connection.get_execution_options().get("locus_store_target_session_attrs")
        if wanted not in {None, "read-write", "primary"}:
            yield Fact(
                "wanted server",
                f"target_session_attrs={wanted}",
                remedy="with a standby, name every host, and add target_session_attrs=read-write to"
                " the URL: a connection is then never made to a primary that was demoted",
            )
        lacking = [
            f"{right} on {table.name}"
            for name in FIXED
            for table in [getattr(self.tables, name)]
            for right in ("SELECT", *list_changes(name))
            if not self._has_right(table, right)
        ]
        if self._read_setting("default_transaction_read_only") == "on":
            yield Fact(
                "transactions",
                "default_transaction_read_only=on",
                "warn",
                "if this role saves: ALTER ROLE … SET default_transaction_read_only = off, unless"
                " the URL or the database sets it",
            )
        yield Fact(
            "rights",
            f"no {', '.join(lacking)}" if lacking else "on all tables",
            "warn" if lacking else "ok",
            "if this role saves, grant them" if lacking else "",
        )
        if self._ask("SELECT pg_is_in_recovery()"):
            yield Fact(
                "role of the server",
                "standby, read-only",
                "warn",
                "to save, connect to the primary (target_session_attrs=read-write)",
            )

    def _has_right(self, table: sa.Table, right: str) -> bool:
        """Return whether the role has a right, on a column at least: row security grants some."""
        test = "has_table_privilege" if right == "DELETE" else "has_any_column_privilege"
        return bool(self._query_table(f"{test}(c.oid::oid, '{right}'::text)", table))

    def measure_table(self, table: sa.Table) -> int | None:
        # An argument has the function's type: another role's function could take an oid.
        size = self._query_table(
            "coalesce((SELECT sum(pg_total_relation_size(relid))"
            " FROM pg_partition_tree(c.oid::regclass)), pg_total_relation_size(c.oid::regclass))",
            table,
        )
        return None if size is None else int(size)

    def estimate_rows(self, table: sa.Table) -> int | None:
        """See ``Examination``; -1 in the catalog is a table that was never analyzed."""
        found = self._query_table("c.reltuples", table)
        return None if found is None or found < 0 else int(found)

    def _query_table(self, what: str, table: sa.Table) -> Any:
        name = self.connection.dialect.identifier_preparer.format_table(table)
        found = sa.text(
            f"SELECT {what} FROM pg_class c WHERE c.oid = to_regclass(CAST(:name AS text))::oid"  # noqa: S608  (ours)
        )
        return self.connection.execute(found, {"name": name}).scalar()

    def _read_setting(self, name: str) -> str:
        return str(self._ask(f"SHOW {name}"))

    def _ask(self, statement: str) -> Any:
        return self.connection.exec_driver_sql(statement).scalar()
