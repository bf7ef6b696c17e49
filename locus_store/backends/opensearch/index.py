"""The index behind the alias: its mapping, and the check that it is ours."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from locus_store.backends.opensearch.access import IndexPlace
from locus_store.errors import SchemaError

VERSION: Final = 3
"""Of the mapping of threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The mapping of a kind of index."""

    mark: str
    """The key of the version in the mapping's ``_meta``."""

    version: int

    properties: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the index, beside those of the cluster and of index templates."""

    language: str | None = None
    """Of the stemmed field."""


_OWN: Final = "-own"

LANGUAGE: Final = "language"
"""The key of the language of the stemmed field in the mapping's ``_meta``."""

_DOCUMENTS: Final = {
    "name": {"type": "keyword"},
    "modified_at": {"type": "date", "format": "epoch_millis"},
    "content": {"type": "binary"},
}
"""Fields of heads and segments."""

_TOKENS: Final = {"type": "keyword", "doc_values": False}
_VERSIONS: Final = {
    "thread": {"type": "keyword"},
    "namespace": {"type": "keyword"},
    "line": {"type": "long"},
    "sequence": {"type": "long"},
    "created_at": {"type": "long"},  # in microseconds
    "words": {"type": "text", "analyzer": "whitespace", "index_options": "freqs"},
    "metadata": _TOKENS,
    "labels": _TOKENS,
    "is_cut": {"type": "boolean"},
}
"""Fields of the documents of versions."""

NEWEST: Final = ("created_at", "line", "sequence")
"""Queries of metadata sort by these fields, descending."""

_SORTED: Final = {"sort": {"field": list(NEWEST), "order": ["desc"] * len(NEWEST)}}
"""The server keeps documents in the order of these queries, and ends a query with its page."""


def name_first_index(place: IndexPlace) -> str:
    """Return the name of the index that the alias is created for."""
    return f"{place.name}-000001"


def make_thread_layout(language: str | None) -> Layout:
    """Return the layout of an index of threads."""
    stemmed = {"text": {"type": "text", "analyzer": language}} if language else {}
    return Layout(
        mark="locus_store",
        version=VERSION,
        properties=_DOCUMENTS | _VERSIONS | stemmed,
        settings=_SORTED,
        language=language,
    )


def define_index(place: IndexPlace, name: str, layout: Layout) -> dict[str, Any]:
    """Return an index behind the alias."""
    aliases = {place.name: {"is_write_index": True}, generate_own_alias(name): {}}
    settings = {"index": layout.settings}
    meta: dict[str, Any] = {layout.mark: layout.version}
    meta |= {LANGUAGE: layout.language} if layout.language else {}
    mappings = {"dynamic": "strict", "_meta": meta, "properties": layout.properties}
    return {"aliases": aliases, "settings": settings, "mappings": mappings}


def generate_own_alias(name: str) -> str:
    """Return a new second alias of an index, for writes on the condition of what it holds.

    Sequence numbers of another index say nothing, not even of one that has the same name; and a
    write to an alias creates no index.
    """
    return f"{name}-{secrets.token_hex(8)}{_OWN}"


def find_own_alias(indexes: Mapping[str, Any], name: str) -> str | None:
    """Return the second alias that an index has."""
    return min((it for it in indexes[name].get("aliases", ()) if it.endswith(_OWN)), default=None)


def require_ours(
    indexes: Mapping[str, Any], place: IndexPlace, layout: Layout
) -> tuple[str, Mapping[str, Any]]:
    """Return ``find_ours``; refuse indexes of another release of this library.

    Args:
        indexes: The indexes that the name stands for.
        place: The name.
        layout: Of the kind of index that is wanted.

    Raises:
        SchemaError: One is not ours, or has another version of the mapping or another language.
    """
    name, meta = find_ours(indexes, place, layout)
    if (version := meta[layout.mark]) != layout.version:
        raise SchemaError(
            f"{place} has version {version!r} of the mapping ({name}), and this locus-store knows "
            f"version {layout.version} only; use the release that created it, or choose another "
            "index_name="
        )
    if meta.get(LANGUAGE) != layout.language:
        raise SchemaError(
            f"{place} was created with language={meta.get(LANGUAGE)!r}; open it with this one, "
            "or choose another index_name="
        )
    return name, meta


def find_ours(
    indexes: Mapping[str, Any], place: IndexPlace, layout: Layout
) -> tuple[str, Mapping[str, Any]]:
    """Return the index that a name stands for, and the ``_meta`` of its mapping.

    Raises:
        SchemaError: It was not created by this library, or there are several.
    """
    for name, index in indexes.items():
        meta = index.get("mappings", {}).get("_meta") or {}
        if not isinstance(meta.get(layout.mark), int) or name == place.name:
            raise SchemaError(
                f"{place} was not created by locus-store (it may be the Locus SDK's); choose "
                "another index_name="
            )
    if len(indexes) > 1:
        raise SchemaError(f"{place} stands for several indexes: {', '.join(sorted(indexes))}")
    return name, meta


def require_plain(index: Mapping[str, Any], place: IndexPlace, layout: Layout) -> None:
    """Refuse an index that does not keep, find or show documents as they are written.

    Args:
        index: The index.
        place: The name that it has.
        layout: Of the kind of index.

    Raises:
        SchemaError: A template of the cluster, or its operator, has changed it.
    """
    source = index["mappings"].get("_source", {})
    if not source.get("enabled", True) or source.get("includes") or source.get("excludes"):
        raise _make_change_error(place, "its mapping has a `_source` that does not keep all fields")
    analyzers = index["settings"]["index"].get("analysis", {}).get("analyzer", {})
    if changed := sorted(analyzers.keys() & {"whitespace", layout.language}):
        raise _make_change_error(place, f"its settings replace the analyzer {changed[0]!r}")
    if changed := sorted(index["aliases"].get(place.name, {}).keys() - {"is_write_index"}):
        raise _make_change_error(place, f"its alias has {changed[0]!r}, which hides documents")


def _make_change_error(place: IndexPlace, what: str) -> SchemaError:
    return SchemaError(
        f"{place} cannot be used: {what}; change the templates of the cluster or the alias"
    )
