"""The contracts through Oracle's dialect and types, over a double that executes in kind.

What Oracle itself would say of a statement is not tested here: see ``oracle_twin`` for what is.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import pytest
from oracle_twin import TwinServer
from test_contract_sqlite import FileProbe
from test_langgraph import COUNTS, conforms

from locus_store import OracleBackend, OracleMessageLog, OracleStore, oracle_checkpointer
from locus_store.testing import (
    CheckpointerContract,
    MessageLogContract,
    StorageBackendContract,
    StoreContract,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE: dict[str, Any] = {"dsn": "twin:1521/locus", "user": "locus", "password": "secret"}


@pytest.fixture
def twin(tmp_path: Path, migrated: Path) -> Iterator[TwinServer]:
    server = TwinServer(Path(copyfile(migrated, tmp_path / "twin.db")))
    with server.in_its_place():
        yield server


@pytest.mark.variant
@pytest.mark.usefixtures("packs_of_two")
class TestOracleTwin(CheckpointerContract):
    @pytest.fixture
    def reopen(self, twin: TwinServer) -> Any:
        return partial(oracle_checkpointer, **PLACE, state_type=self.state_type)

    @pytest.fixture
    async def checkpointer(self, reopen: Any) -> Any:
        async with reopen() as made:
            yield made

    @pytest.fixture
    def storage(self, twin: TwinServer) -> FileProbe:
        return FileProbe(twin.path)


class TestOracleTwinBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, twin: TwinServer) -> OracleBackend:
        return OracleBackend(**PLACE)


@pytest.mark.variant
class TestOracleTwinStore(StoreContract):
    @pytest.fixture
    def reopen(self, twin: TwinServer) -> Any:
        return lambda **options: OracleStore(**PLACE, **{"dimension": 3, **options})


class TestOracleTwinMessageLog(MessageLogContract):
    @pytest.fixture
    def reopen(self, twin: TwinServer) -> Any:
        return lambda **options: OracleMessageLog(**PLACE, **options)


@pytest.mark.anyio
@pytest.mark.parametrize("capability", COUNTS)
async def test_the_conformance_suite_passes_over_the_double(
    capability: str, twin: TwinServer
) -> None:
    await conforms(lambda: OracleBackend(**PLACE), capability)
