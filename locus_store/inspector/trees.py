"""Values as trees within the bounds of a page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from locus_store.inspector.bounds import CHILDREN, NODES, CutText, Room
from locus_store.timeline.paths import CHANNELS, inside, is_bookkeeping, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from locus_store.timeline.paths import Query

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


def tree(
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
    return _Growing(room or Room(), is_raw=is_raw).node(value, path, LEVELS, start, hidden)


class _Growing:
    """A tree, and the parts that still fit on its page."""

    def __init__(self, room: Room, *, is_raw: bool) -> None:
        self._room = room
        self._is_raw = is_raw
        self._left = NODES

    def node(
        self,
        value: Any,
        path: Query,
        levels: int,
        start: int = 0,
        hidden: Collection[str | int] = (),
    ) -> TreeNode:
        prefix, content = ((), value) if self._is_raw else inside(value)
        label, name = (str(path[-1]), shown(path)) if path else ("the state", "")
        if not isinstance(content, dict | list):
            return TreeNode(label, name, kind_of(content), self._room.cut(scalar(content)))
        found = TreeNode(label, name, kind_of(content), None, len(content))
        parts = _parts(content, hidden, of_graph=prefix[:1] == (CHANNELS,))
        for at, (key, item) in enumerate(islice(parts, start, None), start):
            if at - start >= CHILDREN or self._left <= 0 or not levels:
                found.next = at
                break
            self._left -= 1
            found.parts.append(self.node(item, (*path, key), levels - 1))
        return found


def _parts(
    content: dict[str, Any] | list[Any], hidden: Collection[str | int], *, of_graph: bool
) -> Iterator[tuple[str | int, Any]]:
    if isinstance(content, list):
        yield from enumerate(content)
        return
    for key, item in content.items():
        if key not in hidden and not (of_graph and is_bookkeeping(key)):
            yield key, item


_KINDS: Final = {
    dict: "object",
    list: "list",
    str: "text",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}


def kind_of(value: Any) -> str:
    """Return the name of a value's type; those of ``timeline.bisect``."""
    return _KINDS.get(type(value), "text")


def scalar(value: Any) -> str:
    """Return a value without parts as text."""
    return value if isinstance(value, str) else json.dumps(value)
