from __future__ import annotations

from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oracle_twin import TwinServer


@pytest.fixture
def twin(tmp_path: Path, migrated: Path) -> Iterator[TwinServer]:
    from oracle_twin import TwinServer

    server = TwinServer(Path(copyfile(migrated, tmp_path / "twin.db")))
    with server.in_its_place():
        yield server
