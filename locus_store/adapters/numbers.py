"""Values of frameworks with numbers that JSON does not have: long integers, NaN, infinities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import IntegrityError
from locus_store.values.encoding import decode, encode_strictly, pinned
from locus_store.values.msgpack import FORM, TAG, frozen, thawed

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEVELS: Final = 1000
"""More than a stored value may have."""


def with_numbers(value: Any) -> Any:
    """Return a JSON value with integers beyond 64 bits, NaN and infinities in a form that JSON has.

    ``numbers_in`` gives them back. A value that JSON does not have stays what it is.
    """
    try:
        encoded = encode_strictly(value)
        is_json = len(pinned(value)) == len(pinned(decode(encoded)))  # NaN becomes null: shorter
    except (TypeError, ValueError):
        is_json, encoded = False, b""
    if is_json and b'"$"' not in encoded:
        return value
    try:
        return frozen(value, _LEVELS)
    except (TypeError, ValueError):
        return value  # it is refused later


def numbers_in(value: Any) -> Any:
    """Return the value of ``with_numbers``.

    Raises:
        IntegrityError: It is damaged.
    """
    if pinned(TAG) not in pinned(value):
        return value
    try:
        return thawed(value, _long_integer)
    except (LookupError, TypeError, ValueError) as exc:
        raise IntegrityError(f"a stored number is damaged: {exc}") from exc


def _long_integer(tagged: Mapping[str, Any]) -> int:
    kind, text = tagged["v"]
    if (tagged["c"], kind) != (FORM, "int"):
        raise ValueError(f"a value of the form {kind!r:.40}")
    return int(text)


def has_null(value: Any) -> bool:
    """Return whether a JSON value has a ``None`` in it."""
    return b"N" in pinned(value) and _any_none(value)


def _any_none(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_any_none, value.values() if isinstance(value, dict) else value))
    return value is None


def with_floats(made: Any, source: Any) -> Any:
    """Return the JSON that pydantic made, with NaN and infinities, which it writes as ``None``.

    Args:
        made: Its JSON.
        source: The same as Python's values.
    """
    if made is None and isinstance(source, float):
        return source
    if isinstance(made, dict) and isinstance(source, dict) and len(made) == len(source):
        pairs = zip(made.items(), source.values(), strict=True)
        return {key: with_floats(it, its) for (key, it), its in pairs}
    if isinstance(made, list) and isinstance(source, list | tuple) and len(made) == len(source):
        return [with_floats(it, its) for it, its in zip(made, source, strict=True)]
    return made
