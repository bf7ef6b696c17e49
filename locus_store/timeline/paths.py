"""The layouts in which states hold values, and paths: ``messages[3].content``."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from locus_store.errors import InvalidArgumentError
from locus_store.values.encoding import are_equal


@dataclass(frozen=True, slots=True)
class Where:
    """A step to the first element of a list whose ``field`` has ``value``."""

    field: str
    value: Any


Query: TypeAlias = tuple[str | int | Where, ...]
"""A path whose steps may choose list elements; an index below 0 counts from the end."""


class Located(NamedTuple):
    """A value, and the stored path that leads to it."""

    path: Path
    value: Any


_STRING: Final = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_STEP: Final = re.compile(
    rf"""
    (?P<dot>\.?)(?P<name>[^.\[\]]+)
    | \[ (?P<index>-?\d+) \]
    | \[ (?P<key>{_STRING}) \]
    | \[ (?P<field>[^=\[\]'"]+) = (?P<value>{_STRING}|[^\]'"]+) \]
    """,
    re.VERBOSE | re.DOTALL,
)


def parse_path(text: str) -> Query:
    """Return the path that a text names; the empty one names the state.

    Raises:
        InvalidArgumentError: The text is not a path.
    """
    steps: list[str | int | Where] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or (found["name"] and bool(found["dot"]) is not bool(at)):
            raise _make_path_error(text, at)
        try:
            steps.append(_parse_step(found))
        except (ValueError, SyntaxError, RecursionError) as exc:
            raise _make_path_error(text, at) from exc
        at = found.end()
    return tuple(steps)


def make_query(path: str | Query) -> Query:
    """Return a path that is given as such or as its text; see ``parse_path``."""
    return parse_path(path) if isinstance(path, str) else path


def _make_path_error(text: str, at: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text!r:.200} is not a path, at character {at + 1}; write it as messages[3].content, "
        "messages[id=\"m7\"].content or ['a key']"
    )


def _parse_step(match: re.Match[str]) -> str | int | Where:
    if match["name"]:
        return match["name"]
    if match["index"]:
        return int(match["index"])
    if match["key"]:
        return str(ast.literal_eval(match["key"]))
    return Where(match["field"].strip(), _parse_value(match["value"].strip()))


def _parse_value(text: str) -> Any:
    """Return the value of a text: a quoted string, JSON, or the text itself."""
    if not text:
        raise ValueError("no value")
    if text[0] in "'\"":
        return ast.literal_eval(text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def format_path(path: Query) -> str:
    """Return a path in the usual notation: ``messages[3].content``."""
    text = ""
    for step in path:
        if isinstance(step, Where):
            text += f"[{step.field}={json.dumps(step.value, ensure_ascii=False)}]"
        elif isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text or "the state"


def find_value(state: Any, path: Query) -> Located | None:
    """Return the value at a path; ``None`` if there is none.

    A step leads through the wrappings of a LangGraph state: ``messages[0].content`` is the text of
    a message there, too. The fields of a wrapping can be named where its content has no such key.
    """
    found, rest = follow_path(state, path)
    return None if rest else found


def follow_path(state: Any, path: Query) -> tuple[Located, Query]:
    """Return the last value that a path leads to, and the steps behind it that lead nowhere."""
    found: Path = ()
    value = state
    for at, step in enumerate(path):
        entered = _enter_value(value, step)
        if entered is None:
            return Located(found, value), path[at:]
        found, value = (*found, *entered.path), entered.value
    return Located(found, value), ()


def _enter_value(value: Any, step: str | int | Where) -> Located | None:
    prefix, content = unwrap(value)
    below = _find_child(content, step)
    if below is not None:
        return Located((*prefix, *below.path), below.value)
    return _find_child(value, step) if prefix else None


def _find_child(value: Any, step: str | int | Where) -> Located | None:
    if isinstance(step, str):
        return Located((step,), value[step]) if isinstance(value, dict) and step in value else None
    if not isinstance(value, list):
        return None
    if isinstance(step, Where):
        return next(select_matching(value, step), None)
    at = step + len(value) if step < 0 else step
    return Located((at,), value[at]) if 0 <= at < len(value) else None


def select_matching(items: list[Any], step: Where) -> Iterator[Located]:
    """Yield the elements of a list that a step chooses; their paths begin at the list."""
    for at, item in enumerate(items):
        found = _enter_value(item, step.field)
        if found is not None and are_equal(found.value, step.value):
            yield Located((at,), item)


Step: TypeAlias = Callable[[], None]
"""Is called before each step of a calculation; what it raises ends the calculation."""

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list indices."""

CHANNELS: Final = "channel_values"
_BOOKKEEPING: Final = ("__", "branch:", "join:")
_ROOT: Final = "__root__"
"""The channel of a graph whose state has no keys."""

CLASS_PARTS: Final = 2
"""Module and class come first in what is stored of an object."""


def is_graphs(state: Mapping[str, Any]) -> bool:
    """Return whether a state is a checkpoint of LangGraph."""
    has_versions = state.keys() >= {"channel_versions", "versions_seen"}
    return has_versions and isinstance(state.get(CHANNELS), dict)


def is_bookkeeping(channel: str) -> bool:
    """Return whether only LangGraph needs a channel."""
    return channel != _ROOT and channel.startswith(_BOOKKEEPING)


def unwrap(value: Any) -> tuple[Path, Any]:
    """Return the content of a wrapped value, and the path to it; ``((), value)`` if it is plain.

    The wrappings are a LangGraph state around its channels, and the tags of ``typed_values``. An
    object of a class has both: its fields are tagged for their order.
    """
    path: Path = ()
    while step := _find_wrapping(value):
        path += step
        for key in step:
            value = value[key]
    return path, value


def _find_wrapping(value: Any) -> Path:
    """Return the path through the outermost wrapping of a value; empty if it is plain."""
    if not isinstance(value, dict):
        return ()
    if is_graphs(value):
        return (CHANNELS,)
    content = value.get("v")
    if value.get("$") == "d" and isinstance(content, dict):
        return ("v",)
    if value.get("$") == "x" and isinstance(content, list) and len(content) > CLASS_PARTS:
        return ("v", CLASS_PARTS)
    return ()
