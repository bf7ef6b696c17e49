"""Documents of versions: words to search, and tokens of metadata; derived from the heads."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from locus_store.backends.documents.deriving import Derived
from locus_store.backends.opensearch.bulk import IndexTag
from locus_store.errors import IntegrityError
from locus_store.values import frames
from locus_store.values.encoding import UNLIMITED
from locus_store.values.filters import STATE_CLASS
from locus_store.values.text import split_words
from locus_store.values.times import to_microseconds

LONGEST_TOKEN: Final = 200
"""Bytes of a token or word; a longer one is replaced by its digest."""

MOST_BYTES: Final = 1024 * 1024
"""Of the words, and of the tokens, in one document."""

MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Of the paths and values in the tokens of one document, before long tokens are replaced."""

DIGEST_BYTES: Final = 12
"""Of the digest of a document, by which ``vacuum`` compares it."""

LIST: Final = "[]"
"""The token of every list, after its path."""


class VersionPlace(NamedTuple):
    """A version, as its document names it."""

    thread: str
    namespace: str
    line: int
    sequence: int


class StoredVersion(NamedTuple):
    """A document of a version as it is stored."""

    place: VersionPlace | None
    """``None``: it names no version."""

    id: str
    routing: str | None
    tag: IndexTag
    digest: str | None
    """Of its fields, as they were written."""


def make_fields(thread_id: str, version: Derived, *, with_text: bool) -> dict[str, Any]:
    """Return the fields of a version's document, except its name and time.

    A document that would be too large, or whose version is damaged, is a candidate for each query.

    Args:
        thread_id: The thread.
        version: The version.
        with_text: Also the text as it was said, for the stemmed field.
    """
    record = version.row.record
    labels = {name: one for name, one in record.labels.items() if name != STATE_CLASS}
    made: dict[str, Any] = {
        "thread": thread_id,
        "namespace": version.namespace,
        "line": version.line,
        "sequence": record.sequence,
        "created_at": to_microseconds(version.row.created_at),
    }
    try:
        text = "" if version.namespace else frames.extract_text(version.row.payload, UNLIMITED)
        made["words"] = " ".join(_limit(_split_words(text)))
        made["text"] = text if with_text and len(text) <= MOST_BYTES else ""
        made |= {"metadata": _limit(make_tokens(record.metadata))}
        made |= {"labels": _limit(make_tokens(labels))}
    except (IntegrityError, OverflowError):
        made["is_cut"] = True
    made = {name: one for name, one in made.items() if one or name == "namespace"}
    return {**made, "content": _digest(made)}


def _digest(fields: Mapping[str, Any]) -> str:
    content = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return b64encode(hashlib.sha256(content).digest()[:DIGEST_BYTES]).decode()


def _split_words(text: str) -> list[str]:
    found = split_words(text)
    are_short = max(map(len, found), default=0) <= LONGEST_TOKEN // 4
    return found if are_short else [make_word(it) for it in found]


def make_word(text: str) -> str:
    """Return a word as the index has it."""
    return text if len(text) <= LONGEST_TOKEN // 4 else _shorten(text)


def _shorten(text: str) -> str:
    content = text.encode()
    return text if len(content) <= LONGEST_TOKEN else hashlib.sha256(content).hexdigest()


def _limit(some: list[str]) -> list[str]:
    """Return strings, each once if they are long; raise ``OverflowError`` if they still are."""
    if sum(map(len, some)) > MOST_BYTES:
        some = list(dict.fromkeys(some))
    if sum(map(len, some)) > MOST_BYTES:
        raise OverflowError
    return some


def make_tokens(metadata: Mapping[str, Any]) -> list[str]:
    """Return the tokens of all values, and of the elements of lists, each once.

    Raises:
        OverflowError: The values and their paths, repeated at each level, have too many characters.
    """
    found = _Tokens()
    for key, value in metadata.items():
        found.add(key, value)
    return list(dict.fromkeys(found.tokens))


class _Tokens:
    """The tokens of a version's metadata; each value becomes JSON once."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self._left = MOST_CHARACTERS

    def add(self, path: str, value: Any) -> str:
        """Add the tokens of a value and of those below it; return its canonical JSON."""
        self._spend(path)
        at = len(self.tokens)
        self.tokens.append("")
        if isinstance(value, list):
            self.tokens.append(self._make_token(path + LIST))
            items = [_canonicalize(it) for it in value]
            self.tokens += [self._make_token(f"{path}={it}") for it in items]
            text = f"[{','.join(items)}]"
        elif isinstance(value, dict):
            members = {
                key: _canonicalize(item) if "." in key else self.add(f"{path}.{key}", item)
                for key, item in value.items()  # a dot in a query descends
            }
            in_order = (f"{_canonicalize(key)}:{members[key]}" for key in sorted(members))
            text = f"{{{','.join(in_order)}}}"
        else:
            text = _canonicalize(value)
        self.tokens[at] = self._make_token(f"{path}={text}")
        return text

    def _make_token(self, text: str) -> str:
        self._spend(text)
        return _shorten(text)

    def _spend(self, text: str) -> None:
        self._left -= len(text)
        if self._left < 0:
            raise OverflowError


def _make_token(path: str, value: Any) -> str:
    return _shorten(f"{path}={_canonicalize(value)}")


def make_query_tokens(key: str, value: Any) -> list[str] | None:
    """Return the tokens that each version with the value has; ``None``: no version has it."""
    try:
        if not isinstance(value, list | tuple):
            return [_make_token(key, value)]
        items = [_make_token(key, it) for it in value]
    except (TypeError, ValueError, RecursionError):
        return None
    return [_shorten(key + LIST), *dict.fromkeys(items)]


def _canonicalize(value: Any) -> str:
    """Return the same text for values equal by ``values.filters``; refuse what is not JSON."""
    return json.dumps(_simplify(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _simplify(value: Any) -> Any:
    """Return a value with its keys sorted, and its integral numbers as integers."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return int(value) if value == value // 1 else float(value)
    if isinstance(value, list | tuple):
        return [_simplify(it) for it in value]
    if isinstance(value, Mapping) and all(isinstance(it, str) for it in value):
        return {key: _simplify(value[key]) for key in sorted(value)}
    raise TypeError
