"""Text that is searched: its words, the same on every backend, and what a person reads of messages.

Of a framework's message, ids, roles, encrypted reasoning and the bytes of files are left out.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from locus_store.errors import InvalidArgumentError
from locus_store.values.surrogates import SURROGATE

SNIPPET_CHARACTERS = 160

_WORD = re.compile(r"[^\W_]+")
_IDEOGRAPH = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")

_SPACED = {n: " " for n in range(128) if not chr(n).isalnum()}
"""Replaces the characters of ASCII that are in no word; a tenth of the time of ``_WORD``."""


def fold(text: str) -> str:
    """Return the text without case and accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(it for it in decomposed if not unicodedata.combining(it))


def split_words(text: str) -> list[str]:
    """Return the folded words: runs of letters and digits; each ideograph is a word of its own."""
    found = fold(text)
    if found.isascii():
        return found.translate(_SPACED).split()
    return _WORD.findall(_IDEOGRAPH.sub(r" \1 ", found))


def query_words(query: str) -> list[str]:
    """Return the distinct words of a query, all of which must occur.

    Raises:
        InvalidArgumentError: The query has no word.
    """
    found = list(dict.fromkeys(split_words(query))) if isinstance(query, str) else []
    if not found:
        raise InvalidArgumentError(f"search query {query!r} has no word: letters or digits")
    return found


@dataclass(slots=True)
class Match:
    """The words of a query that one thread's versions contain, collected version by version."""

    wanted: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    best: tuple[int, int] = (0, 0)
    """(distinct words, position) of the version that added most; later wins a tie."""

    text: str = ""

    def add(self, position: int, text: str) -> None:
        """Count the words that the version at ``position`` added."""
        present = Counter(split_words(text))
        here = {word: present[word] for word in self.wanted if word in present}
        self.counts.update(here)
        if here and (len(here), position) > self.best:
            self.best, self.text = (len(here), position), text

    @property
    def is_complete(self) -> bool:
        """True if all words were found."""
        return len(self.counts) == len(self.wanted)

    @property
    def score(self) -> float:
        """The score, which grows logarithmically with the occurrences of each word."""
        return sum(1 + math.log(count) for count in self.counts.values())

    @property
    def snippet(self) -> str:
        """The text around the first word found in the best version."""
        return find_snippet(self.text, self.wanted)


def find_snippet(text: str, words: Iterable[str]) -> str:
    """Return up to ``SNIPPET_CHARACTERS`` of a line around the first word found."""
    targets = set(words)
    for line in text.splitlines():
        for found in _WORD.finditer(line):
            if targets.intersection(split_words(found.group())):
                begin = max(0, found.start() - SNIPPET_CHARACTERS // 4)
                return " ".join(line[begin : begin + SNIPPET_CHARACTERS].split())
    return " ".join(text[:SNIPPET_CHARACTERS].split())


_BYTES: Final = re.compile(
    r"data:[^\s,;]*(?:;[^\s,;]+)*;base64,[A-Za-z0-9+/_=-]*|[A-Za-z0-9+/_-]{200,}={0,2}"
)
"""Matches bytes as text, also within a longer text: words that are too long to be read."""

_HALF: Final = 100
"""Half of the shortest such word."""

_BLOCKS: Final = frozenset(
    {"text", "image", "audio", "video", "file", "document", "resource", "resource_link", "media"}
    | {"input_text", "output_text", "input_image", "input_file", "image_url", "computer_screenshot"}
)
"""Types of the parts that a tool's result may have."""

_READ: Final = frozenset({"text", "content", "resource", "title", "name", "filename"})
"""Keys of such parts that are read."""

_FORMATS: Final = frozenset(
    {"mime_type", "mimeType", "media_type", "mediaType", "__bytes_encoded__"}
)
"""Keys beside the bytes of a file."""

_CONTENTS: Final = frozenset({"data", "blob", "bytes", "uri", "identifier", "kind"})
"""Keys of a file that are not read."""


class Readable(NamedTuple):
    """The keys of a framework's messages under which there is text.

    Other keys are not looked into.
    """

    said: frozenset[str]
    """Of text, and of the parts that have text."""

    given: frozenset[str]
    """Of the arguments and results of tools: JSON, or its text, in which every value is read."""

    def get_text(self, message: Any) -> str:
        """Return the text of a message; ``""`` if it has none."""
        texts = self._iterate_texts(message)
        found = (_BYTES.sub("", it) if _may_have_bytes(it) else it for it in texts)
        text = "\n".join(it for it in found if it)
        return SURROGATE.sub("\ufffd", text) if not text.isascii() else text

    def _iterate_texts(self, value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            for key, part in value.items():
                if key in self.given:
                    yield from _iterate_values(_parse_text(part))
                elif key in self.said:
                    yield from self._iterate_texts(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                yield from self._iterate_texts(part)


def _may_have_bytes(text: str) -> bool:
    """Return whether ``_BYTES`` may match: a long word leaves a part of the text without space."""
    starts = range(0, len(text) - _HALF + 1, _HALF)
    return "data:" in text or not all(" " in text[at : at + _HALF] for at in starts)


def _parse_text(value: Any) -> Any:
    """Return the value of JSON text, or else the value itself."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _iterate_values(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping):
        kind = value.get("type")
        is_block = isinstance(kind, str) and kind in _BLOCKS
        is_file = not _FORMATS.isdisjoint(value)
        for key, part in value.items():
            is_hidden = is_file and (key in _FORMATS or key in _CONTENTS)
            if not is_hidden and (key in _READ or not is_block):
                yield from _iterate_values(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _iterate_values(part)
