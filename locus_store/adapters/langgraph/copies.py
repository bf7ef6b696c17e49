"""Copies of objects that were decoded once.

To make a message from its bytes takes twenty times as long as to copy one. A copy shares nothing
that can be changed: with the first object, with another copy, or with what the serializer gave.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from langchain_core.messages import BaseMessage

Maker: TypeAlias = Callable[[], Any]
"""Gives a value of its own with each call."""

SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
"""Exact types of values that cannot be changed."""

_MESSAGES: Final = "langchain_core.messages."


def make_copier(value: Any) -> Maker | None:
    """Return a function that copies a private value; ``None`` if it must be decoded again.

    Plain values, and LangChain's own messages with plain values in them, are copied.
    """
    kind = type(value)
    if kind in SCALARS:
        return lambda: value
    if kind is list:
        return _list_maker(value)
    if kind is dict:
        return _make_dict_maker(value)
    return _make_message_maker(value) if is_message(kind) else None


def is_message(kind: type) -> bool:
    """Return whether the class is one of LangChain's own messages."""
    return kind.__module__.startswith(_MESSAGES) and issubclass(kind, BaseMessage)


def _list_maker(value: list[Any]) -> Maker | None:
    if SCALARS.issuperset(map(type, value)):
        return value.copy
    makers = [it for it in map(make_copier, value) if it is not None]
    return partial(make_list, makers) if len(makers) == len(value) else None


def make_list(makers: list[Maker]) -> list[Any]:
    """Return a list of what the makers give."""
    return [make() for make in makers]


def _make_dict_maker(value: dict[Any, Any]) -> Maker | None:
    nested = _find_makers(value)
    if nested is None:
        return None
    return partial(_make_dict, value, nested) if nested else value.copy


def _find_makers(value: dict[Any, Any]) -> list[tuple[Any, Maker]] | None:
    """Return the makers for values that can be changed; ``None`` if one must be decoded again."""
    if not SCALARS.issuperset(map(type, value)):
        return None
    found = [(key, make_copier(it)) for key, it in value.items() if type(it) not in SCALARS]
    nested = [(key, make) for key, make in found if make is not None]
    return nested if len(nested) == len(found) else None


def _make_dict(source: dict[Any, Any], makers: list[tuple[Any, Maker]]) -> dict[Any, Any]:
    made = source.copy()
    for key, make in makers:
        made[key] = make()
    return made


def _make_message_maker(value: BaseMessage) -> Maker | None:
    nested, extra = _find_makers(value.__dict__), make_copier(value.__pydantic_extra__)
    if nested is None or extra is None or value.__pydantic_private__ is not None:
        return None
    names = value.__pydantic_fields_set__
    return partial(_make_message, type(value), value.__dict__, nested, extra, names)


def _make_message(
    kind: type[BaseMessage],
    source: dict[str, Any],
    makers: list[tuple[str, Maker]],
    extra: Maker,
    names: set[str],
) -> BaseMessage:
    """Return a copy of a message, as pydantic's ``__copy__`` creates it, but deep."""
    made = kind.__new__(kind)
    fields = source.copy()
    for key, make in makers:
        fields[key] = make()
    _set(made, "__dict__", fields)
    _set(made, "__pydantic_extra__", extra())
    _set(made, "__pydantic_fields_set__", names.copy())
    _set(made, "__pydantic_private__", None)
    return made


_set: Final = object.__setattr__
