"""The storages that the tests of sessions run on."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from locus_store import MemoryBackend, PostgreSQLBackend, SQLiteBackend
from locus_store.session import SessionCheckpointer

if TYPE_CHECKING:
    import pytest

STORAGES = ("memory", "sqlite", "postgresql")

ORACLE: dict[str, Any] = {"dsn": "twin:1521/locus", "user": "locus", "password": "secret"}
"""Of the double of an Oracle server."""


class Storage:
    """One database; ``open`` returns another session on it."""

    def __init__(self, kind: str, request: pytest.FixtureRequest) -> None:
        self.kind = kind
        self._memory = MemoryBackend()
        fixtures = {
            "sqlite": "database_file", "postgresql": "migrated_database",
            "oracle": "database_file",
        }  # fmt: skip
        self.place = request.getfixturevalue(fixtures[kind]) if kind in fixtures else None
        self._stack = ExitStack()
        if kind == "oracle":
            from oracle_twin import TwinServer

            self._stack.enter_context(TwinServer(self.place).in_its_place())
        self._opened: list[SessionCheckpointer] = []

    def backend(self) -> Any:
        if self.kind == "memory":
            return self._memory
        if self.kind == "oracle":
            from locus_store import OracleBackend

            return OracleBackend(**ORACLE)
        return (SQLiteBackend if self.kind == "sqlite" else PostgreSQLBackend)(self.place)

    def open(self, cache: Any = None, **options: Any) -> SessionCheckpointer:
        self._opened.append(SessionCheckpointer(self.backend(), cache, **options))
        return self._opened[-1]

    async def close(self) -> None:
        for it in self._opened:
            await it.arelease()
        self._stack.close()
