"""URLs of the backends that the adapters over message logs are tested on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiers import full

if TYPE_CHECKING:
    from pathlib import Path

OURS = ("sqlite", "memory", "postgresql", "http", "file", "oci", "opensearch", "redis")
EACH = (*OURS[:2], *full(*OURS[2:]))
"""Parameters: what `make test` takes, and the others."""


def url_of(kind: str, request: Any, folder: Path) -> str:
    """Return the URL of an empty backend of one of ``OURS``."""
    urls = {
        "sqlite": f"sqlite:///{folder / 'a.db'}",
        "memory": "memory://",
        "file": f"file://{folder / 'threads'}",
    }
    if kind in urls:
        return urls[kind]
    fixtures = {"postgresql": "migrated_database", "http": "service_url", "oci": "bucket"}
    fixtures |= {"redis": "redis_url"}
    found = request.getfixturevalue(fixtures.get(kind, "index"))
    return found if isinstance(found, str) else found.url()
