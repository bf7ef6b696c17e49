"""An encryption with data keys in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from places import IndexPlace, Place
from tiers import full

from locus_store import Encryption, InMemoryStore, LocalKeyRing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def encryption() -> Encryption:
    return Encryption(LocalKeyRing({"a": bytes(32)}, "a"), InMemoryStore())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/data.db"


@pytest.fixture(params=["sqlite", "file", *full("sharded", "opensearch")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A storage of each form: rows, documents, two shards, documents beside an index of words."""
    if request.param == "opensearch":
        return IndexPlace(request.getfixturevalue("index"))
    return Place(tmp_path / "data", request.param)
