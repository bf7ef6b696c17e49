"""JSON as a carrier of the forms of values.

Plain JSON stands for itself. Everything else is an object with the key ``$``, which names a form,
and ``v``. So is an object that has such a key of its own, and no data can pass for a form.
"""

from __future__ import annotations

import base64
import json
from math import isfinite
from types import NoneType
from typing import Any, Final

from locus_store.adapters import forms
from locus_store.adapters.forms import RefusedError
from locus_store.errors import IntegrityError, SerializationError
from locus_store.values.encoding import decode, encode_strictly, pinned

TAG: Final = "$"
_TAGGED: Final = pinned(TAG)
_PLAIN: Final = frozenset({str, bool, NoneType})
_UNORDERED: Final = frozenset({"set", "frozenset"})


class JsonValues:
    """Conversion of values to JSON and back."""

    def encode(self, value: Any) -> Any:
        """Return a value as JSON.

        Raises:
            RefusedError: It has no form.
        """
        kind = type(value)
        if kind in _PLAIN or (kind is int and forms.is_int(value)):
            return value
        if kind is float and isfinite(value):
            return value
        if kind is list:
            return self._series(value)
        if kind is dict and all(type(key) is str for key in value):
            return self._object(value)
        if kind is bytes:
            return {TAG: "bytes", "v": base64.b64encode(value).decode()}
        return self._other(value)

    def _other(self, value: Any) -> Any:
        """Return a value that JSON does not have as JSON."""
        made = self._formed(value)
        if made is None:
            kind = type(value)
            raise RefusedError(f"a {kind.__module__}.{kind.__qualname__} cannot be stored")
        return made

    def _formed(self, value: Any) -> dict[str, Any] | None:
        """Return the form of a value; ``None`` if its type has none."""
        form = forms.dumped(value)
        if form is None:
            return None
        tag, held = form
        try:
            content = self.encode(held)
        except RefusedError as exc:
            forms.locate(exc, tag, value)
            raise
        if tag in _UNORDERED:
            content.sort(key=lambda it: json.dumps(it, sort_keys=True))
        return {TAG: tag, "v": content}

    def _series(self, items: Any) -> list[Any]:
        made: list[Any] = []
        try:
            for item in items:
                made.append(self.encode(item))  # noqa: PERF401  (its length is the place)
        except RefusedError as exc:
            exc.steps.append(len(made))
            raise
        return made

    def _members(self, value: dict[str, Any]) -> dict[str, Any]:
        made = {}
        key = ""
        try:
            for key, item in value.items():
                made[key] = self.encode(item)
        except RefusedError as exc:
            exc.steps.append(key)
            raise
        return made

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        held = self._members(value)
        keys = list(held)
        if TAG in held or keys != sorted(keys):
            return {TAG: "dict", "keys": keys, "v": held}
        return held

    def decode(self, value: Any) -> Any:
        """Return the value of ``encode``.

        Raises:
            IntegrityError: It is not what ``encode`` returns.
        """
        if isinstance(value, list):
            return [self.decode(it) for it in value]
        if not isinstance(value, dict):
            return value
        tag = value.get(TAG)
        if tag is None:
            return {key: self.decode(it) for key, it in value.items()}
        try:
            return self._untagged(tag, value)
        except IntegrityError:
            raise
        except SerializationError as exc:
            raise self._damage(str(exc)) from exc
        except Exception as exc:
            raise self._damage(
                f"a stored value of the form {tag!r:.40} is damaged: {type(exc).__name__}"
            ) from exc

    def _untagged(self, tag: Any, value: dict[str, Any]) -> Any:
        held = value["v"]
        if tag == "dict":
            return {key: self.decode(held[key]) for key in value["keys"]}
        if tag == "bytes":
            return base64.b64decode(held, validate=True)
        if not forms.has(tag):
            raise self._damage(f"a stored value has the unknown form {tag!r:.40}")
        return forms.loaded(tag, self.decode(held))

    def _damage(self, what: str) -> IntegrityError:
        return IntegrityError(what)


class JsonNumbers(JsonValues):
    """JSON values, and the numbers that JSON does not have; keys are in no order."""

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        held = self._members(value)
        return {TAG: "dict", "keys": sorted(held), "v": held} if TAG in held else held

    def _other(self, value: Any) -> Any:
        kind = type(value)
        if kind is tuple:
            return self._series(value)
        return super()._other(value) if kind in {int, float} else value  # else it is refused later


_numbers: Final = JsonNumbers()


def with_numbers(value: Any) -> Any:
    """Return a JSON value with integers beyond 64 bits, NaN and infinities in a form that JSON has.

    ``numbers_in`` gives them back. Values that JSON does not have stay what they are.
    """
    try:
        encoded = encode_strictly(value)
        is_json = len(pinned(value)) == len(pinned(decode(encoded)))  # NaN becomes null: shorter
    except (TypeError, ValueError):
        return _numbers.encode(value)
    return value if is_json and b'"$"' not in encoded else _numbers.encode(value)


def numbers_in(value: Any) -> Any:
    """Return the value of ``with_numbers``.

    Raises:
        IntegrityError: It is damaged.
    """
    return _numbers.decode(value) if _TAGGED in pinned(value) else value


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
