"""The text of a framework's messages that a person reads: what a search of their log compares.

Ids, roles, encrypted reasoning and the bytes of files are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from locus_store.values.surrogates import SURROGATE

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
        elif isinstance(value, list | tuple):
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
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping):
        kind = value.get("type")
        is_block = isinstance(kind, str) and kind in _BLOCKS
        is_file = not _FORMATS.isdisjoint(value)
        for key, part in value.items():
            is_hidden = is_file and (key in _FORMATS or key in _CONTENTS)
            if not is_hidden and (key in _READ or not is_block):
                yield from _iterate_values(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _iterate_values(part)
