"""An encryption with data keys in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from locus_store import Encryption, InMemoryStore, LocalKeyRing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def encryption() -> Encryption:
    return Encryption(LocalKeyRing({"a": bytes(32)}, "a"), InMemoryStore())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/data.db"
