"""The index behind the alias: its mapping, and the check that it is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import SchemaError

if TYPE_CHECKING:
    from locus_store.backends.opensearch.access import IndexPlace

VERSION: Final = 1
"""Of the mapping."""

MARK: Final = "locus_store"
"""The key of the version in the mapping's ``_meta``."""


def first_index(place: IndexPlace) -> str:
    """Return the name of the index that the alias is created for."""
    return f"{place.name}-000001"


def definition(place: IndexPlace) -> dict[str, Any]:
    """Return the index; its settings are those of the cluster and of index templates."""
    return {
        "aliases": {place.name: {"is_write_index": True}},
        "mappings": {
            "dynamic": "strict",
            "_meta": {MARK: VERSION},
            "properties": {
                "name": {"type": "keyword"},
                "modified_at": {"type": "date", "format": "epoch_millis"},
                "content": {"type": "binary"},
            },
        },
    }


def require_ours(found: dict[str, Any], place: IndexPlace) -> None:
    """Refuse indexes that this library did not create, or a newer version of it.

    Args:
        found: The indexes that the name stands for.
        place: The name.

    Raises:
        SchemaError: One is not ours.
    """
    for name, it in found.items():
        version = (it.get("mappings", {}).get("_meta") or {}).get(MARK)
        if version is None or name == place.name:
            raise SchemaError(
                f"{place} was not created by locus-store (it may be the Locus SDK's); choose "
                "another index_name="
            )
        if version != VERSION:
            raise SchemaError(
                f"{place} has version {version!r} of the mapping, and this locus-store knows "
                f"version {VERSION}; upgrade locus-store"
            )
    if len(found) > 1:
        raise SchemaError(f"{place} stands for several indexes: {', '.join(sorted(found))}")
