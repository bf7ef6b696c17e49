"""The bounds of a page, and values cut to them: rows, trees and messages."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final

from locus_store.timeline.bisect import TYPES
from locus_store.timeline.conversations import (
    CalledTool,
    MessagePart,
    SaidMessage,
    ToolResult,
    read_conversation,
)
from locus_store.timeline.paths import CHANNELS, Query, format_path, is_bookkeeping, unwrap
from locus_store.timeline.readable import select_metadata
from locus_store.types import Version
from locus_store.values.filters import STATE_CLASS

ROWS: Final = 200
"""Rows of a table."""

CHILDREN: Final = 200
"""Parts of one object or list."""

NODES: Final = 1_000
"""Parts of a tree on one page, in all levels."""

MESSAGES: Final = 50
"""Messages of one list."""

CHARACTERS: Final = 4_096
"""Characters of one string."""

ALL_CHARACTERS: Final = 100_000
"""Characters of all strings of one page in full; further ones are cut to ``SHORT``."""

SHORT: Final = 80

CELL: Final = 240
"""Characters of a value in a row."""

ABOUT: Final = 2_000
"""Characters of the metadata in a row, after which further entries are left out."""

INLINE: Final = 256_000
"""Bytes of a state above which work on it leaves the event loop."""


@dataclass(frozen=True, slots=True)
class CutText:
    """A text, or its beginning."""

    text: str
    length: int | None
    """Characters of the whole text; ``None``: of JSON that was written no further."""

    @property
    def is_cut(self) -> bool:
        """Return whether the text goes further."""
        return self.length is None or len(self.text) < self.length


class Room:
    """The characters that still fit on a page."""

    def __init__(self) -> None:
        self._left = ALL_CHARACTERS

    def cut(self, value: Any) -> CutText:
        """Return a text, or a value as JSON, within the bounds of one string and of the page."""
        return self._take(cut(value, self._most)) if isinstance(value, str) else self.render(value)

    def render(self, value: Any) -> CutText:
        """Return a value as JSON, likewise."""
        return self._take(render_line(value, self._most))

    @property
    def _most(self) -> int:
        return min(CHARACTERS, max(self._left, SHORT))

    def _take(self, text: CutText) -> CutText:
        self._left -= len(text.text)
        return text


def render_line(value: Any, characters: int = CHARACTERS) -> CutText:
    """Return the beginning of a value's JSON in one line, which is written no further."""
    text = ""
    for part in _JSON.iterencode(value):
        text += part
        if len(text) > characters:
            return CutText(text[:characters], None)
    return CutText(text, len(text))


_JSON: Final = json.JSONEncoder(ensure_ascii=False, default=str)


def cut(text: str, characters: int = CHARACTERS) -> CutText:
    """Return a text within a bound."""
    return CutText(text[:characters], len(text))


def shorten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata for a row; what is too long is text that ends with an ellipsis."""
    found: dict[str, Any] = {}
    left = ABOUT
    for key, value in values.items():
        if left <= 0:
            return found | {"…": f"{len(values) - len(found)} more"}
        text = cut(value, CELL) if isinstance(value, str) else render_line(value, CELL)
        found[key[:CELL]] = f"{text.text}…" if text.is_cut else value
        left -= len(key) + len(text.text)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """A version without its state."""

    checkpoint_id: str
    parent_id: str | None
    created_at: datetime
    sequence: int
    about: dict[str, Any]
    """Metadata and labels within the bounds of a row, without what only LangGraph needs."""


def make_row(version: Version) -> VersionRow:
    """Return a version as a row."""
    labels = {name: it for name, it in version.labels.items() if name != STATE_CLASS}
    return VersionRow(
        checkpoint_id=version.checkpoint_id,
        parent_id=version.parent_id,
        created_at=version.created_at,
        sequence=version.mark.sequence,
        about=shorten(select_metadata(labels | version.metadata)),
    )


LEVELS: Final = 8
"""Levels of a tree that are on one page."""


@dataclass(slots=True)
class TreeNode:
    """A value in a tree."""

    label: str
    """The last step of its path."""

    path: str
    """In the notation of ``timeline.paths``; empty: the state."""

    kind: str
    """``object``, ``list``, ``text``, ``number``, ``boolean`` or ``null``."""

    text: CutText | None
    """Of a value without parts."""

    length: int = 0
    """Parts of the whole value."""

    parts: list[TreeNode] = field(default_factory=list)
    next: int | None = None
    """The number of the first part that is not on the page; ``None``: all are."""


def make_tree(
    value: Any,
    path: Query = (),
    *,
    start: int = 0,
    is_raw: bool = False,
    hidden: Collection[str | int] = (),
    room: Room | None = None,
) -> TreeNode:
    """Return a value as a tree.

    Args:
        value: JSON.
        path: Of the value.
        start: Leave out so many parts of the value at the beginning.
        is_raw: With the wrappings of LangGraph, and its bookkeeping.
        hidden: Keys of the value that are shown elsewhere on the page.
        room: For the strings.
    """
    room, left = room or Room(), NODES

    def grow(
        value: Any, path: Query, levels: int, start: int, hidden: Collection[str | int]
    ) -> TreeNode:
        nonlocal left
        prefix, content = ((), value) if is_raw else unwrap(value)
        label, name = (str(path[-1]), format_path(path)) if path else ("the state", "")
        if not isinstance(content, dict | list):
            text = content if isinstance(content, str) else json.dumps(content)
            return TreeNode(label, name, name_kind(content), room.cut(text))
        found = TreeNode(label, name, name_kind(content), None, len(content))
        parts = _iterate_parts(content, hidden, of_graph=prefix[:1] == (CHANNELS,))
        for at, (key, item) in enumerate(islice(parts, start, None), start):
            if at - start >= CHILDREN or left <= 0 or not levels:
                found.next = at
                break
            left -= 1
            found.parts.append(grow(item, (*path, key), levels - 1, 0, ()))
        return found

    return grow(value, path, LEVELS, start, hidden)


def _iterate_parts(
    content: dict[str, Any] | list[Any], hidden: Collection[str | int], *, of_graph: bool
) -> Iterator[tuple[str | int, Any]]:
    if isinstance(content, list):
        yield from enumerate(content)
        return
    for key, item in content.items():
        if key not in hidden and not (of_graph and is_bookkeeping(key)):
            yield key, item


def name_kind(value: Any) -> str:
    """Return the name of the type of a JSON value."""
    return next(name for name, kinds in TYPES.items() if type(value) in kinds)


NAME = 200
"""Characters of a role, a name and an id."""


def make_conversation(
    value: list[Any], path: Query, start: int | None, room: Room
) -> dict[str, Any]:
    """Return messages of a list, with their places in it, and with their calls and results.

    Args:
        value: The list.
        path: Of the list.
        start: The first message; ``None``: the last ones are wanted.
        room: For their strings.
    """
    first = max(len(value) - MESSAGES, 0) if start is None else start
    said = read_conversation(value, path, first, first + MESSAGES)
    return {
        "path": format_path(path) if path else "",
        "start": first,
        "length": len(value),
        "messages": [_describe_message(it, room) for it in said],
    }


def _describe_message(message: SaidMessage, room: Room) -> dict[str, Any]:
    return {
        "at": int(str(message.path[-1])),
        "role": message.role[:NAME],
        "name": message.name and message.name[:NAME],
        "message_id": message.message_id and message.message_id[:NAME],
        "path": format_path(message.path),
        "parts": _describe_parts(message.parts, room),
        "calls": [_describe_call(it, room) for it in message.calls[:CHILDREN]],
        "results": [_describe_result(it, room) for it in message.results[:CHILDREN]],
    }


def _describe_parts(parts: list[MessagePart], room: Room) -> list[dict[str, Any]]:
    return [_describe_part(it, room) for it in parts[:CHILDREN]]


def _describe_part(part: MessagePart, room: Room) -> dict[str, Any]:
    is_image = part.kind == "image" and isinstance(part.value, str)
    return {
        "kind": part.kind[:NAME],
        "path": format_path(part.path),
        "text": room.cut(part.value),
        "image_type": find_image_type(part.value) if is_image else None,
    }


def _describe_call(call: CalledTool, room: Room) -> dict[str, Any]:
    return {
        "call_id": call.call_id and call.call_id[:NAME],
        "name": call.name[:NAME],
        "path": format_path(call.path),
        "arguments": room.cut(call.arguments),
        "result": None if call.result is None else _describe_result(call.result, room),
    }


def _describe_result(result: ToolResult, room: Room) -> dict[str, Any]:
    return {"path": format_path(result.path), "parts": _describe_parts(result.parts, room)}


_DATA: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")


def find_image_type(address: str) -> str | None:
    """Return the type of an image in an address; ``None`` if the address holds none."""
    found = _DATA.match(address[:80])
    return found[1] if found else None


def decode_image(address: str) -> tuple[str, bytes] | None:
    """Return the type and the bytes of an image in an address; ``None`` if it holds none."""
    found = _DATA.fullmatch(address)
    return (found[1], b64decode(found[2])) if found and len(found[2]) % 4 == 0 else None
