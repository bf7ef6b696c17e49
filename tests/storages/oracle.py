"""Oracle's dialect and types over a double that executes in kind."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile
from typing import Any

from oracle_twin import TwinServer

from locus_store import OracleBackend, OracleMessageLog, OracleStore, oracle_checkpointer
from storages import Storage
from storages.sqlite import FileProbe

PLACE: dict[str, Any] = {"dsn": "twin:1521/locus", "user": "locus", "password": "secret"}


class Double(Storage):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        path = self.fixture("tmp_path") / "twin.db"
        self.server = TwinServer(Path(copyfile(self.fixture("migrated"), path)))
        self._placed = self.server.in_its_place()

    async def open(self) -> None:
        self._placed.__enter__()

    async def close(self) -> None:
        self._placed.__exit__(None, None, None)

    def checkpointer(self, **options: Any) -> Any:
        return oracle_checkpointer(**PLACE, **options)

    def backend(self) -> Any:
        return OracleBackend(**PLACE)

    def store(self, **options: Any) -> Any:
        return OracleStore(**PLACE, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return OracleMessageLog(**PLACE, **options)

    def probe(self) -> FileProbe:
        return FileProbe(self.server.path)


class Joined(Double):
    """Segments change no answer, and nothing that was deleted is left in them."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.fixture("segments_of_two")
