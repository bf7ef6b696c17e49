"""The index behind the alias: its mapping, and the check that it is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import InvalidArgumentError, SchemaError

if TYPE_CHECKING:
    from locus_store.backends.opensearch.access import IndexPlace

VERSION: Final = 2
"""Of the mapping."""

MARK: Final = "locus_store"
"""The key of the version in the mapping's ``_meta``."""

LANGUAGE: Final = "language"
"""The key of the language of the stemmed field in the mapping's ``_meta``."""

LANGUAGES: Final = frozenset({
    "arabic", "armenian", "basque", "bengali", "brazilian", "bulgarian", "catalan", "cjk",
    "czech", "danish", "dutch", "english", "estonian", "finnish", "french", "galician", "german",
    "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "latvian", "lithuanian",
    "norwegian", "persian", "portuguese", "romanian", "russian", "sorani", "spanish", "swedish",
    "thai", "turkish",
})  # fmt: skip
"""The analyzers of languages that OpenSearch has without a plugin."""

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


def first_index(place: IndexPlace) -> str:
    """Return the name of the index that the alias is created for."""
    return f"{place.name}-000001"


def checked_language(language: str | None) -> str | None:
    """Return the language of the stemmed field.

    Raises:
        InvalidArgumentError: OpenSearch has no analyzer for it.
    """
    if language is not None and language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise InvalidArgumentError(f"language={language!r} must be None or one of: {known}")
    return language


def definition(place: IndexPlace, language: str | None = None) -> dict[str, Any]:
    """Return the index; its settings are those of the cluster and of index templates."""
    stemmed = {"text": {"type": "text", "analyzer": language}} if language else {}
    return {
        "aliases": {place.name: {"is_write_index": True}},
        "mappings": {
            "dynamic": "strict",
            "_meta": {MARK: VERSION, LANGUAGE: language},
            "properties": _DOCUMENTS | _VERSIONS | stemmed,
        },
    }


def require_ours(found: dict[str, Any], place: IndexPlace, language: str | None = None) -> None:
    """Refuse indexes that this library did not create, or a newer version of it.

    Args:
        found: The indexes that the name stands for.
        place: The name.
        language: Of the stemmed field.

    Raises:
        SchemaError: One is not ours.
    """
    for name, it in found.items():
        meta = it.get("mappings", {}).get("_meta") or {}
        version = meta.get(MARK)
        if version is None or name == place.name:
            raise SchemaError(
                f"{place} was not created by locus-store (it may be the Locus SDK's); choose "
                "another index_name="
            )
        if version != VERSION:
            raise SchemaError(
                f"{place} has version {version!r} of the mapping, and this locus-store knows "
                f"version {VERSION}; upgrade locus-store, or choose another index_name="
            )
        if meta.get(LANGUAGE) != language:
            raise SchemaError(
                f"{place} was created with language={meta.get(LANGUAGE)!r}; open it with this one, "
                "or choose another index_name="
            )
    if len(found) > 1:
        raise SchemaError(f"{place} stands for several indexes: {', '.join(sorted(found))}")
