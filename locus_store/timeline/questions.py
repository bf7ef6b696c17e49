"""Conditions by their names, as a person writes them in a command or a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from locus_store.errors import InvalidArgumentError
from locus_store.timeline import conditions
from locus_store.timeline.paths import parsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.timeline.conditions import Condition


def json_or_text(text: str) -> Any:
    """Return the value of a text: JSON, or the text itself."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _filter(text: str) -> dict[str, Any]:
    wanted = json_or_text(text)
    if not isinstance(wanted, dict):
        raise InvalidArgumentError(f'a filter is JSON such as {{"$gt": 5}}, not {text!r}')
    return wanted


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS):
        raise InvalidArgumentError(
            f"a length must be a whole number of 0 or more, not {text[:40]!r}"
        )
    return int(text)


DIGITS: Final = 18
"""Most digits of a length."""

AT_PATH: Final[dict[str, Callable[[Any, str], Condition]]] = {
    "equals": lambda path, text: conditions.equals(path, json_or_text(text)),
    "contains": lambda path, text: conditions.contains(path, json_or_text(text)),
    "exists": lambda path, _: conditions.exists(path),
    "longer-than": lambda path, text: conditions.longer_than(path, _number(text)),
    "type": conditions.is_type,
    "filter": lambda path, text: conditions.matches(path, _filter(text)),
}
"""The conditions on the value at a path."""

TEXT: Final = "text"
"""The condition that any string of the state has a text in it."""


def asked(name: str, path: str, text: str) -> Condition:
    """Return the condition of a name.

    Args:
        name: ``TEXT``, or one of ``AT_PATH``.
        path: As ``paths.parsed`` takes it.
        text: What the value is compared with.

    Raises:
        InvalidArgumentError: There is no such condition, or it does not take the text.
        SerializationError: See ``conditions.matches``.
    """
    if name == TEXT:
        if not text:
            raise InvalidArgumentError("write the text to look for: each state contains ''")
        return conditions.HasText(text)
    if name not in AT_PATH:
        known = ", ".join((*AT_PATH, TEXT))
        raise InvalidArgumentError(f"{name!r} is not a condition; the conditions are {known}")
    return AT_PATH[name](parsed(path), text)
