"""The layouts in which states hold values: plain JSON, and LangGraph's wrapped values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list indices."""

CHANNELS: Final = "channel_values"
_BOOKKEEPING: Final = ("__", "branch:", "join:")
_ROOT: Final = "__root__"
"""The channel of a graph whose state has no keys."""

_FIELDS: Final = 2
"""Module and class come first in what is stored of an object."""


def is_graphs(state: Mapping[str, Any]) -> bool:
    """Return whether a state is a checkpoint of LangGraph."""
    return isinstance(state.get(CHANNELS), dict) and {"channel_versions", "versions_seen"} <= set(
        state
    )


def is_bookkeeping(channel: str) -> bool:
    """Return whether only LangGraph needs a channel."""
    return channel != _ROOT and channel.startswith(_BOOKKEEPING)


def inside(value: Any) -> tuple[Path, Any]:
    """Return the content of a wrapped value, and the path to it; ``((), value)`` if it is plain.

    The wrappings are a LangGraph state around its channels, and the tags of ``typed_values``. An
    object of a class has both: its fields are tagged for their order.
    """
    path: Path = ()
    while step := _wrapping(value):
        path += step
        for key in step:
            value = value[key]
    return path, value


def _wrapping(value: Any) -> Path:
    """Return the path through the outermost wrapping of a value; empty if it is plain."""
    if not isinstance(value, dict):
        return ()
    if is_graphs(value):
        return (CHANNELS,)
    content = value.get("v")
    if value.get("$") == "d" and isinstance(content, dict):
        return ("v",)
    if value.get("$") == "x" and isinstance(content, list) and len(content) > _FIELDS:
        return ("v", _FIELDS)
    return ()
