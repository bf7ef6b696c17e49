"""Values as trees of plain values and forms, which MessagePack and tagged JSON hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import NoneType
from typing import Any, Final

from locus_store.errors import SerializationError
from locus_store.values.codec import forms
from locus_store.values.codec.forms import RefusedError
from locus_store.values.encoding import MAX_INT, MIN_INT
from locus_store.values.surrogates import escape

FLAT: Final = frozenset({str, int, float, bool, NoneType, bytes})
_KEYS: Final = FLAT - {bytes}


class Trees(ABC):
    """The conversion of values.

    Args:
        is_careful: Inspect strings and integers too, which the carrier may refuse.
    """

    def __init__(self, *, is_careful: bool) -> None:
        self._is_careful = is_careful

    @abstractmethod
    def make_node(self, tag: str, *held: Any) -> Any:
        """Return the carrier's node for a tag and trees."""

    @abstractmethod
    def convert_other(self, obj: Any, cls: type) -> Any:
        """Return the node of an object whose class has no form; refuse it if there is none."""

    def convert_formed(self, value: Any, kind: type) -> Any:
        """Return the node of a value whose type has a form."""
        return self._convert_form(value)

    def convert(self, value: Any) -> Any:
        """Return a value with a node for each part that is not plain.

        Raises:
            RefusedError: It, or a value in it, cannot be kept exactly; has the path to it.
        """
        kind = type(value)
        if kind in FLAT:
            return self._convert_form(value) if self._is_careful and not _is_held(value) else value
        if kind is list:
            value = value.copy()  # another thread may change it meanwhile, here and below
            is_flat = not self._is_careful and FLAT.issuperset(map(type, value))
            return value if is_flat else self.convert_items(value)
        if kind is dict:
            return self._convert_dict(value)
        try:
            return (
                self.convert_formed(value, kind)
                if kind in forms.FORMS
                else self.convert_other(value, kind)
            )
        except RefusedError:
            raise
        except SerializationError as exc:
            raise RefusedError(str(exc)) from exc

    def convert_items(self, items: Iterable[Any]) -> list[Any]:
        made: list[Any] = []
        try:
            for item in tuple(items):
                made.append(self.convert(item))  # noqa: PERF401  (its length is the place)
        except RefusedError as exc:
            exc.steps.append(len(made))
            raise
        return made

    def convert_members(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        key = None
        try:
            for key, item in value.items():
                made[key] = self.convert(item)
        except RefusedError as exc:
            exc.steps.append(key)
            raise
        return made

    def _convert_dict(self, value: dict[Any, Any]) -> Any:
        value = value.copy()
        if not _KEYS.issuperset(map(type, value)):
            return self._convert_form(value)
        if not self._is_careful and FLAT.issuperset(map(type, value.values())):
            return value
        if self._is_careful and not all(map(_is_held, value)):
            return self._convert_form(value)
        return self.convert_members(value)

    def _convert_form(self, value: Any) -> Any:
        tag, held = forms.dump(value) or ("", None)
        try:
            return self.make_node(tag, self.convert(held))
        except RefusedError as exc:
            forms.locate(exc, tag, value)
            raise


def _is_held(value: Any) -> bool:
    """Return whether UTF-8 holds a plain value, if it is a string, or 64 bits, if an integer."""
    if type(value) is str:
        return value.isascii() or escape(value) is value
    return type(value) is not int or MIN_INT <= value <= MAX_INT
