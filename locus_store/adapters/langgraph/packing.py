"""Values as MessagePack: LangGraph's extensions where they keep a value exactly, else forms."""

from __future__ import annotations

import re
from collections import deque
from datetime import date, datetime, time, timedelta
from inspect import isclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
)
from langgraph.checkpoint.serde.types import SendProtocol, _DeltaSnapshot
from pydantic import BaseModel

from locus_store.adapters import classes, forms
from locus_store.adapters.classes import Kind, Name, kind_of, name_of
from locus_store.adapters.forms import RefusedError
from locus_store.errors import SerializationError
from locus_store.values.msgpack import FORM

if TYPE_CHECKING:
    from collections.abc import Iterable

TUPLE: Final = ("builtins", "tuple")

SUBCLASS: Final = "subclass"
"""The tag of an object whose class derives from a built-in one."""

CODES: Final[dict[Kind, int]] = {
    "model": EXT_PYDANTIC_V2,
    "model of pydantic 1": EXT_PYDANTIC_V1,
    "dataclass": EXT_CONSTRUCTOR_KW_ARGS,
    "enum": EXT_CONSTRUCTOR_SINGLE_ARG,
}
"""The extension that holds an object, by the kind of its class: LangGraph's own choice."""

METHOD: Final = "model_validate_json"
"""Stands in the row of a model; never called."""

_FLAT: Final = frozenset({str, int, float, bool, NoneType, bytes})
_KEYS: Final = _FLAT - {bytes}
_LISTED: Final = (set, frozenset, deque)
_TIMES: Final = (date, time, timedelta)


class Rules(Protocol):
    """The classes that may be stored, and LangGraph's own extensions."""

    def note(self, cls: type) -> None:
        """Remember a class of which an object is stored."""

    def require_allowed(self, name: Name, kind: Kind | None = None) -> None:
        """Raise ``SerializationError`` unless objects of a class may be stored."""

    def of_langgraph(self, obj: Any) -> Any:
        """Return LangGraph's extension for an object.

        Raises:
            SerializationError: There is none, or one that would not be read.
        """


def packed(value: Any, rules: Rules) -> bytes:
    """Return a value as MessagePack.

    Raises:
        RefusedError: It, or a value in it, cannot be kept exactly; has the path to it.
    """
    try:
        return _plain(value) or _Packer(rules, is_careful=False).packed(value)
    except SerializationError:
        raise
    except (TypeError, ValueError):
        # A string has half a character, or an integer more than 64 bits.
        return _Packer(rules, is_careful=True).packed(value)


class _Packer:
    """The conversion of one value.

    Args:
        rules: See ``Rules``.
        is_careful: Inspect strings and integers too, which MessagePack may refuse.
    """

    def __init__(self, rules: Rules, *, is_careful: bool) -> None:
        self._rules = rules
        self._is_careful = is_careful

    def packed(self, value: Any) -> bytes:
        return _bytes(self._tree(value))

    def _tree(self, value: Any) -> Any:
        """Return a value with an extension for each that MessagePack does not have."""
        kind = type(value)
        if kind in _FLAT:
            return self._form(value) if self._is_careful and not _is_held(value) else value
        if kind is list:
            is_flat = not self._is_careful and _FLAT.issuperset(map(type, value))
            return value if is_flat else self._items(value)
        if kind is dict:
            return self._dict(value)
        return self._extension(value, kind)

    def _items(self, items: Iterable[Any]) -> list[Any]:
        made: list[Any] = []
        try:
            for item in items:
                made.append(self._tree(item))  # noqa: PERF401  (its length is the place)
        except RefusedError as exc:
            exc.steps.append(len(made))
            raise
        return made

    def _dict(self, value: dict[Any, Any]) -> Any:
        if not _KEYS.issuperset(map(type, value)):
            return self._form(value)
        if not self._is_careful and _FLAT.issuperset(map(type, value.values())):
            return value
        if self._is_careful and not all(map(_is_held, value)):
            return self._form(value)
        made: dict[Any, Any] = {}
        key = None
        try:
            for key, item in value.items():
                made[key] = self._tree(item)
        except RefusedError as exc:
            exc.steps.append(key)
            raise
        return made

    def _extension(self, value: Any, kind: type) -> Any:
        try:
            if kind in forms.FORMS:
                return self._theirs(value, kind) if _is_theirs(value, kind) else self._form(value)
            return self._object(value, kind)
        except RefusedError:
            raise
        except SerializationError as exc:
            raise RefusedError(str(exc)) from exc

    def _form(self, value: Any) -> Any:
        tag, held = forms.dumped(value) or ("", None)
        try:
            return ormsgpack.Ext(FORM, _bytes([tag, self._tree(held)]))
        except RefusedError as exc:
            forms.locate(exc, tag, value)
            raise

    def _theirs(self, value: Any, kind: type) -> Any:
        if kind is tuple or kind in _LISTED:
            return _named(EXT_CONSTRUCTOR_SINGLE_ARG, name_of(kind), self._items(value))
        return self._rules.of_langgraph(value)

    # --- objects

    def _object(self, obj: Any, cls: type) -> Any:
        name = name_of(cls)
        if name in SAFE_MSGPACK_TYPES and isinstance(obj, BaseModel):
            # Not ``model_dump``, which replaces the objects in it by dicts.
            held = {**obj.__dict__, **(obj.__pydantic_extra__ or {})}
            return _named(EXT_PYDANTIC_V2, name, self._tree(held), METHOD)
        if forms.is_numpy_scalar(obj):
            return self._form(obj)
        kind = kind_of(cls)
        if name not in SAFE_MSGPACK_TYPES and kind is not None:
            self._rules.require_allowed(name, kind)
            self._rules.note(cls)
            return self._of_kind(obj, name, kind)
        return self._rarer(obj, name)

    def _of_kind(self, obj: Any, name: Name, kind: Kind) -> Any:
        if kind == "subclass":
            content, attributes = classes.subclass_data(obj)
            held = [SUBCLASS, *name, self._tree(content), self._tree(attributes)]
            return ormsgpack.Ext(FORM, _bytes(held))
        data, more = _data(obj, kind)
        return _named(CODES[kind], name, self._tree(data), *more)

    def _rarer(self, obj: Any, name: Name) -> Any:
        if isinstance(obj, _DeltaSnapshot):
            return ormsgpack.Ext(EXT_DELTA_SNAPSHOT, self.packed(obj.value))
        if isinstance(obj, SendProtocol):
            self._rules.require_allowed(name)
            timeout = getattr(obj, "timeout", None)
            more = [] if timeout is None else [timeout]
            held = self._items([obj.node, obj.arg, *more])
            return _named(EXT_CONSTRUCTOR_POS_ARGS, name, held)
        if callable(getattr(obj, "_asdict", None)) and not isclass(obj):
            self._rules.require_allowed(name)
            return _named(EXT_CONSTRUCTOR_KW_ARGS, name, self._tree(obj._asdict()))
        if isinstance(obj, _LISTED):
            self._rules.require_allowed(name)
            return _named(EXT_CONSTRUCTOR_SINGLE_ARG, name, self._items(obj))
        if kind_of(type(obj)) == "dataclass":
            held = self._tree(classes.dataclass_data(obj))
            return _named(EXT_CONSTRUCTOR_KW_ARGS, name, held)
        return self._rules.of_langgraph(obj)


def _plain(value: Any) -> bytes | None:
    """Return a dict or list of nothing but JSON as MessagePack; ``None`` for other values."""
    if type(value) is not dict and type(value) is not list:
        return None
    try:
        orjson.dumps(value, option=_NO_BYTES)
        made: bytes = ormsgpack.packb(value, option=_EXACT)
    except TypeError:
        return None
    return made


_NO_BYTES: Final = (
    orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
"""With these, orjson refuses buffers, which ormsgpack makes bytes of."""

_EXACT: Final = (
    ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
)
"""With these, ormsgpack refuses what would come back as another type."""


def _bytes(value: Any) -> bytes:
    made: bytes = ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    return made


def _named(code: int, name: Name, held: Any, *more: Any) -> Any:
    return ormsgpack.Ext(code, _bytes([*name, held, *more]))


def _data(obj: Any, kind: Kind) -> tuple[Any, list[Any]]:
    """Return the content of an object, and what follows it in its extension."""
    if kind == "model":
        data, names = classes.model_data(obj)
        return data, [METHOD] if names is None else [METHOD, names]
    if kind == "model of pydantic 1":
        return dict(obj.__dict__), []
    if kind == "dataclass":
        classes.require_plain(type(obj))
        return classes.dataclass_data(obj), []
    return obj._value_, []


def _is_held(value: Any) -> bool:
    """Return whether MessagePack holds a plain value."""
    if type(value) is str:
        return forms.is_text(value)
    return type(value) is not int or forms.is_int(value)


def _is_theirs(value: Any, kind: type) -> bool:
    """Return whether LangGraph has an extension that keeps all of a value that has a form."""
    if kind is datetime:
        return forms.is_plain_time(value)
    if kind is deque:
        return value.maxlen is None
    return kind is tuple or kind is re.Pattern or name_of(kind) in SAFE_MSGPACK_TYPES
