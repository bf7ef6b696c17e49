"""Values as trees within the bounds of a page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from locus_store.inspector.bounds import CHILDREN, NODES, CutText, cut
from locus_store.timeline.layouts import CHANNELS, inside, is_bookkeeping
from locus_store.timeline.paths import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.timeline.layouts import Path

LEVELS: Final = 8
"""Levels of a tree that are on one page."""


@dataclass(slots=True)
class TreeNode:
    """A value in a tree."""

    label: str
    """The last step of its path."""

    path: str
    """In the notation of ``timeline.paths``."""

    kind: str
    """``object``, ``list``, ``text``, ``number``, ``boolean`` or ``null``."""

    text: CutText | None
    """Of a value without parts."""

    length: int = 0
    """Parts of the whole value."""

    parts: list[TreeNode] = field(default_factory=list)
    next: int | None = None
    """The number of the first part that is not here; ``None``: all are."""


class _Left:
    """The parts that still fit on the page."""

    def __init__(self) -> None:
        self.nodes = NODES


def tree(value: Any, path: Path = (), *, start: int = 0, is_raw: bool = False) -> TreeNode:
    """Return a value as a tree.

    Args:
        value: JSON.
        path: Of the value.
        start: Leave out so many parts of the value at the beginning.
        is_raw: With the wrappings of LangGraph.
    """
    return _node(value, path, LEVELS, _Left(), start, is_raw=is_raw)


def _node(
    value: Any, path: Path, levels: int, left: _Left, start: int = 0, *, is_raw: bool
) -> TreeNode:
    label = str(path[-1]) if path else "the state"
    content, hides = (value, False) if is_raw else _plain(value)
    kind = kind_of(content)
    if not isinstance(content, dict | list):
        return TreeNode(label, shown(path), kind, cut(_scalar(content)))
    found = TreeNode(label, shown(path) if path else "", kind, None, len(content))
    at = -1
    for at, (key, item) in enumerate(_items(content, hides=hides)):
        if at < start:
            continue
        if at - start >= CHILDREN or left.nodes <= 0 or not levels:
            found.next = at
            break
        left.nodes -= 1
        found.parts.append(_node(item, (*path, key), levels - 1, left, is_raw=is_raw))
    return found


def _plain(value: Any) -> tuple[Any, bool]:
    """Return the content of a wrapped value, and whether it is the channels of a graph."""
    prefix, content = inside(value)
    return content, prefix == (CHANNELS,)


def _items(value: Any, *, hides: bool) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, list):
        yield from enumerate(value)
    else:
        yield from ((k, it) for k, it in value.items() if not (hides and is_bookkeeping(k)))


def kind_of(value: Any) -> str:
    """Return the name of a value's type; those of ``timeline.conditions``."""
    for name, kinds in (("object", dict), ("list", list), ("text", str), ("boolean", bool)):
        if isinstance(value, kinds):
            return name
    return "null" if value is None else "number"


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
