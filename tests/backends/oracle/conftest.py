from __future__ import annotations

from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING

import pytest
from oracle_twin import TwinServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def twin(tmp_path: Path, migrated: Path) -> Iterator[TwinServer]:
    server = TwinServer(Path(copyfile(migrated, tmp_path / "twin.db")))
    with server.in_its_place():
        yield server
