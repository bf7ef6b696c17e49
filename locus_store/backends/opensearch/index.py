"""The index behind the alias: its mapping, and the check that it is ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.backends.opensearch.access import IndexPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The mapping of a kind of index."""

    mark: str
    """The key of the version in the mapping's ``_meta``."""

    version: int
    properties: Mapping[str, Any]


THREADS: Final = Layout(
    mark="locus_store",
    version=1,
    properties={
        "name": {"type": "keyword"},
        "modified_at": {"type": "date", "format": "epoch_millis"},
        "content": {"type": "binary"},
    },
)


def first_index(place: IndexPlace) -> str:
    """Return the name of the index that the alias is created for."""
    return f"{place.name}-000001"


def definition(place: IndexPlace, layout: Layout) -> dict[str, Any]:
    """Return the index; its settings are those of the cluster and of index templates."""
    return {"aliases": {place.name: {"is_write_index": True}}, "mappings": mappings(layout)}


def mappings(layout: Layout) -> dict[str, Any]:
    """Return the mapping of an index."""
    meta = {layout.mark: layout.version}
    return {"dynamic": "strict", "_meta": meta, "properties": layout.properties}


def require_ours(found: Mapping[str, Any], place: IndexPlace, layout: Layout) -> None:
    """Refuse indexes that this library did not create, or a newer version of it.

    Args:
        found: The indexes that the name stands for.
        place: The name.
        layout: Of the kind of index that is wanted.

    Raises:
        SchemaError: One is not ours.
    """
    for name, it in found.items():
        version = (it.get("mappings", {}).get("_meta") or {}).get(layout.mark)
        if version is None or name == place.name:
            raise SchemaError(
                f"{place} was not created by locus-store (it may be the Locus SDK's); choose "
                "another index_name="
            )
        if version != layout.version:
            raise SchemaError(
                f"{place} has version {version!r} of the mapping, and this locus-store knows "
                f"version {layout.version}; upgrade locus-store"
            )
    if len(found) > 1:
        raise SchemaError(f"{place} stands for several indexes: {', '.join(sorted(found))}")
