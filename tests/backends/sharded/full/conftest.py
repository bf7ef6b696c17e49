"""The databases of sets of shards."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from tiers import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Returns the URL of a new database."""
    if request.param == "sqlite":
        numbers = count()
        yield lambda: f"sqlite:///{tmp_path / str(next(numbers))}.db"
        return
    server, names = request.getfixturevalue("postgresql"), []

    def make() -> str:
        names.append(server.new_database())
        return f"{server.url(names[-1])}?pool_size=2"

    yield make
    for it in names:
        server.drop_database(it)
