"""URLs of the backends that the adapters over message logs are tested on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiers import full

if TYPE_CHECKING:
    from pathlib import Path

OURS = ("sqlite", "memory", "postgresql", "http")
EACH = (*OURS[:2], *full(*OURS[2:]))
"""Parameters: what `make test` takes, and the others."""


def url_of(kind: str, request: Any, folder: Path) -> str:
    """Return the URL of an empty backend of one of ``OURS``."""
    urls = {"sqlite": f"sqlite:///{folder / 'a.db'}", "memory": "memory://"}
    fixtures = {"postgresql": "migrated_database", "http": "service_url"}
    return urls.get(kind) or request.getfixturevalue(fixtures[kind])
