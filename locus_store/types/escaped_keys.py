"""The JSON of pydantic models whose dicts have keys with lone surrogates.

pydantic keeps such strings as values. In keys it refuses them, or writes U+FFFD in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from locus_store.errors import SerializationError
from locus_store.values.surrogates import escape, restore

T = TypeVar("T")

REFUSED: Final = (UnicodeEncodeError, PydanticSerializationError)
"""Errors of a key; the latter where a serializer of the model wraps the former."""

_LOST: Final = "\ufffd".encode()


def dump_with_keys(value: T, dump: Callable[[T], Any]) -> Any:
    """Return the JSON that ``dump`` makes of a value, with keys that pydantic cannot write.

    Args:
        value: A model, or a value that may hold some.
        dump: Makes JSON of it; called again, with a copy that has other keys, if some are lost.
    """
    try:
        made = dump(value)
        if not _may_have_lost(made):
            return made
    except REFUSED:
        pass
    return restore(dump(escape_keys(value)))


def _may_have_lost(value: Any) -> bool:
    try:
        return _LOST in orjson.dumps(value)
    except TypeError:  # a string has a lone surrogate, so a key may have had one
        return True


def escape_keys(value: Any) -> Any:
    """Return a copy of a value in which the keys of all dicts are escaped; see ``surrogates``.

    Lists, tuples, dicts, pydantic models and dataclasses are searched.

    Raises:
        SerializationError: Two keys of a dict have the same escaped form.
    """
    if isinstance(value, BaseModel):
        model = value.model_copy()
        model.__dict__.update(escape_keys(value.__dict__))
        extra = escape_keys(value.__pydantic_extra__)
        object.__setattr__(model, "__pydantic_extra__", extra)  # it may be frozen
        return model
    if isinstance(value, dict):
        held = copy(value)
        held.clear()
        for key, item in value.items():
            held[escape(key) if isinstance(key, str) else key] = escape_keys(item)
        if len(held) < len(value):
            raise SerializationError(
                "two keys of a dict differ in lone surrogates and their stored form only: "
                + ", ".join(sorted(ascii(it) for it in value))[:200]
            )
        return held
    if type(value) in {list, tuple}:
        return type(value)(map(escape_keys, value))
    if is_dataclass(value) and not isinstance(value, type):
        made = copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, escape_keys(getattr(value, field.name)))
        return made
    return value
