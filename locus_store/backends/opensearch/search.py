"""Searches and metadata queries: the server finds versions, and the heads of their threads decide.

A document of a version may be left over, or be missing for a moment: each hit is looked at again in
the thread that it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from locus_store.backends.opensearch.client import IndexObjects
from locus_store.backends.opensearch.index import NEWEST
from locus_store.backends.opensearch.versions import (
    StoredVersion,
    VersionPlace,
    make_query_tokens,
    make_word,
)
from locus_store.values.text import SNIPPET_CHARACTERS

PAGE: Final = 1000
"""Versions, or threads, in one answer at most."""

SMALLEST_PAGE: Final = 30
SPARE: Final = 3
"""So many times the limit are asked for at first."""

INDEXED_WORDS: Final = 64
"""Words of a query that the server is asked for; threads are looked at again."""

MOST_TOKENS: Final = 64
"""Tokens of a value that the server is asked for; versions are looked at again."""

LONGEST_STEMMED_QUERY: Final = 1000
"""Characters of a query; a server refuses more than 1,024 terms."""

_FRAGMENT: Final = {
    "pre_tags": [""],
    "post_tags": [""],
    "fragment_size": SNIPPET_CHARACTERS,
    "number_of_fragments": 1,
    "max_analyzer_offset": 500_000,
    "no_match_size": SNIPPET_CHARACTERS,
}
_NEWEST: Final = [{name: "desc"} for name in NEWEST]
_BEST: Final = [{"_score": "desc"}, {"name": "asc"}]
_BY_NAME: Final = [{"name": "asc"}]
_PLACE: Final = ("thread", "namespace", "line", "sequence")


def find_with_value(
    objects: IndexObjects, key: str, value: Any, limit: int, *, is_tag: bool
) -> Iterator[list[VersionPlace]]:
    """Yield pages of all versions that may have a value, the newest first.

    Args:
        objects: The index.
        key: Of the metadata.
        value: At the key.
        limit: So many are wanted.
        is_tag: In the metadata of any namespace; else in that of the root, or in its labels.
    """
    wanted = make_query_tokens(key, value)
    if wanted is None:
        return
    fields = ("metadata",) if is_tag else ("metadata", "labels")
    found = [_match_all({"term": {name: it}} for it in wanted[:MOST_TOKENS]) for name in fields]
    root = [] if is_tag else [{"term": {"namespace": ""}}]
    query = {"bool": {"filter": [_match_any([*found, _CUT]), *root]}}
    yield from _iterate_pages(objects, query, _NEWEST, _compute_first_page(limit))


def _compute_first_page(limit: int) -> int:
    return min(max(limit * SPARE, SMALLEST_PAGE), PAGE)


def find_with_words(objects: IndexObjects, words: Sequence[str], limit: int) -> Iterator[list[str]]:
    """Yield pages of all threads that may have all words, each thread once.

    The threads that have them in one version come first, the best version first.
    """
    terms, seen = [make_word(it) for it in words[:INDEXED_WORDS]], set[str]()
    query = _match_any([_match_all(map(_match_word, terms)), _CUT])
    for page in _iterate_pages(objects, query, _BEST, _compute_first_page(limit)):
        yield _list_unseen((it.thread for it in page), seen)
    for some in _find_across_versions(objects, terms) if terms[1:] else ():
        yield _list_unseen(some, seen)


def _list_unseen(threads: Any, earlier: set[str]) -> list[str]:
    some = [it for it in dict.fromkeys(threads) if it not in earlier]
    earlier.update(some)
    return some


class Stemmed(NamedTuple):
    """A version that has other forms of the words."""

    place: VersionPlace
    score: float
    """Below 1, the least score of a thread that has the words themselves."""

    snippet: str


def find_with_stems(objects: IndexObjects, query: str, limit: int) -> Iterator[list[Stemmed]]:
    """Yield pages of the versions that have a form of each word of a query, the best first."""
    if len(query) > LONGEST_STEMMED_QUERY:
        return
    match = {"match": {"text": {"query": query, "operator": "and"}}}
    highlight = {"fields": {"text": _FRAGMENT}}
    options = {"highlight": highlight, "track_scores": True}
    for hits in _iterate_answers(objects, match, _BEST, _compute_first_page(limit), **options):
        yield [
            Stemmed(place, hit["_score"] / (1 + hit["_score"]), _get_snippet(hit))
            for hit in hits
            if (place := _read_place(hit))
        ]


def _get_snippet(hit: Mapping[str, Any]) -> str:
    (fragment,) = hit["highlight"]["text"]
    return " ".join(fragment.split())[:SNIPPET_CHARACTERS]


def iterate_versions(objects: IndexObjects) -> Iterator[StoredVersion]:
    """Yield all documents of versions, those of a thread together."""
    query = {"exists": {"field": "sequence"}}
    own, options = objects.get_own_alias(), {"seq_no_primary_term": True, "_source": ["content"]}
    for hits in _iterate_answers(objects, query, _BY_NAME, PAGE, **options):
        for hit in hits:
            tag, digest = (own, hit["_seq_no"], hit["_primary_term"]), hit["_source"].get("content")
            yield StoredVersion(_read_place(hit), hit["_id"], hit.get("_routing"), tag, digest)


def _find_across_versions(objects: IndexObjects, words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the threads that have all words, in any of their versions; the rarest word first."""
    counts = {str(at): {"filter": _match_word(it)} for at, it in enumerate(words)}
    found = objects.search({"size": 0, "aggs": counts})
    aggregations: Mapping[str, Any] = found["aggregations"] if found else {}
    numbers = {it: aggregations.get(str(at), {}).get("doc_count", 0) for at, it in enumerate(words)}
    rare, *others = sorted(words, key=lambda it: numbers[it])
    for some in objects.iterate_values("thread", _make_filter(_match_word(rare))):
        yield _keep_having(objects, others, some)


def _keep_having(objects: IndexObjects, words: Sequence[str], threads: list[str]) -> list[str]:
    """Return those of the threads that have every word in some version."""
    terms = {"terms": {"field": "thread", "size": len(threads)}}
    aggs = {
        str(at): {"filter": _match_word(word), "aggs": {"threads": terms}}
        for at, word in enumerate(words)
    }
    query = _make_filter({"terms": {"thread": threads}})
    found = objects.search({"size": 0, "query": query, "aggs": aggs}) if threads else None
    if not found:
        return []
    several = (it["threads"]["buckets"] for it in found["aggregations"].values())
    return sorted(set(threads).intersection(*({it["key"] for it in some} for some in several)))


def _match_word(word: str) -> dict[str, Any]:
    return {"term": {"words": word}}


_CUT: Final = {"constant_score": {"filter": {"term": {"is_cut": True}}, "boost": 0.0}}
"""The versions whose documents do not have all words and tokens."""


def _match_all(queries: Any) -> dict[str, Any]:
    return {"bool": {"must": list(queries)}}


def _match_any(queries: Any) -> dict[str, Any]:
    return {"bool": {"should": list(queries), "minimum_should_match": 1}}


def _make_filter(query: Any) -> dict[str, Any]:
    return {"bool": {"filter": [query]}}


def _iterate_pages(
    objects: IndexObjects, query: Any, order: Any, size: int
) -> Iterator[list[VersionPlace]]:
    """Yield all versions that a query finds, page by page; the first page has ``size``."""
    seen = set[VersionPlace | None]([None])
    for hits in _iterate_answers(objects, query, order, size):
        some = [it for hit in hits if (it := _read_place(hit)) and it not in seen]
        yield list(dict.fromkeys(some))
        seen.update(some)


def _iterate_answers(
    objects: IndexObjects, query: Any, order: Any, size: int, **options: Any
) -> Iterator[Sequence[Any]]:
    body: dict[str, Any] = {
        "query": query,
        "sort": order,
        "size": size,
        "_source": False,
        "docvalue_fields": list(_PLACE),
        "track_total_hits": False,
        **options,
    }
    return objects.iterate_hits(body, size=PAGE)


def _read_place(hit: Mapping[str, Any]) -> VersionPlace | None:
    """Return the version that a document names; ``None`` for a foreign document."""
    fields = hit.get("fields", {})
    if not all(name in fields for name in _PLACE) or not fields["thread"][0]:
        return None
    return VersionPlace(*(fields[name][0] for name in _PLACE))
