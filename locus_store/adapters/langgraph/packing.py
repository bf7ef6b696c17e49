"""Values as MessagePack: LangGraph's extensions where they keep a value exactly, else forms."""

from __future__ import annotations

import re
from collections import deque
from datetime import datetime
from inspect import isclass
from typing import Any, Final, Protocol

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

from locus_store.errors import SerializationError
from locus_store.values.codec import classes, forms
from locus_store.values.codec.classes import Kind, find_kind
from locus_store.values.codec.forms import Trees
from locus_store.values.codec.names import Name, name_of
from locus_store.values.encoding import may_hold_binary
from locus_store.values.msgpack import FORM, pack as encode_packed

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
"""A part of the row of a model; never called."""

_LISTED: Final = (set, frozenset, deque)


class Rules(Protocol):
    """The classes that may be stored, and LangGraph's own extensions."""

    def note(self, cls: type) -> None:
        """Remember a class of which an object is stored."""

    def require_allowed(self, name: Name, kind: Kind | None = None) -> None:
        """Raise ``SerializationError`` unless objects of a class may be stored."""

    def convert_langgraph(self, obj: Any) -> Any:
        """Return LangGraph's extension for an object.

        Raises:
            SerializationError: There is none, or one that would not be read.
        """


def pack(value: Any, rules: Rules) -> bytes:
    """Return a value as MessagePack.

    Raises:
        RefusedError: It, or a value in it, cannot be kept exactly; has the path to it.
    """
    try:
        return _pack_plain(value) or _Packer(rules, is_careful=False).pack(value)
    except SerializationError:
        raise
    except (TypeError, ValueError):
        # A string has half a character, or an integer more than 64 bits.
        return _Packer(rules, is_careful=True).pack(value)


class _Packer(Trees):
    """The conversion of one value.

    Args:
        rules: See ``Rules``.
        is_careful: Inspect strings and integers too, which MessagePack may refuse.
    """

    def __init__(self, rules: Rules, *, is_careful: bool) -> None:
        super().__init__(is_careful=is_careful)
        self._rules = rules

    def pack(self, value: Any) -> bytes:
        return encode_packed(self.convert(value))

    def make_node(self, tag: str, *held: Any) -> Any:
        return ormsgpack.Ext(FORM, encode_packed([tag, *held]))

    def convert_formed(self, value: Any, kind: type) -> Any:
        if not _is_theirs(value, kind):
            return super().convert_formed(value, kind)
        if kind is tuple or kind in _LISTED:
            held = self.convert_items(tuple(value))
            return _pack_named(EXT_CONSTRUCTOR_SINGLE_ARG, name_of(kind), held)
        return self._rules.convert_langgraph(value)

    def convert_other(self, obj: Any, cls: type) -> Any:
        name = name_of(cls)
        if name in SAFE_MSGPACK_TYPES and isinstance(obj, BaseModel):
            # Not ``model_dump``, which replaces the objects in it by dicts.
            held = {**obj.__dict__, **(obj.__pydantic_extra__ or {})}
            return _pack_named(EXT_PYDANTIC_V2, name, self.convert(held), METHOD)
        if forms.is_numpy_scalar(obj):
            return self._convert_form(obj)
        kind = find_kind(cls)
        if name not in SAFE_MSGPACK_TYPES and kind is not None:
            self._rules.require_allowed(name, kind)
            self._rules.note(cls)
            return self._convert_kind(obj, name, kind)
        return self._convert_rare(obj, name)

    def _convert_kind(self, obj: Any, name: Name, kind: Kind) -> Any:
        data, *more = map(self.convert, classes.get_data(obj, kind))
        if kind == "subclass":
            return self.make_node(SUBCLASS, *name, data, *more)
        if kind == "model":  # the names of its fields, unless all were set
            more = [METHOD, *(it for it in more if it is not None)]
        return _pack_named(CODES[kind], name, data, *more)

    def _convert_rare(self, obj: Any, name: Name) -> Any:
        if isinstance(obj, _DeltaSnapshot):
            return ormsgpack.Ext(EXT_DELTA_SNAPSHOT, self.pack(obj.value))
        if isinstance(obj, SendProtocol):
            self._rules.require_allowed(name)
            timeout = getattr(obj, "timeout", None)
            more = [] if timeout is None else [timeout]
            held = self.convert_items([obj.node, obj.arg, *more])
            return _pack_named(EXT_CONSTRUCTOR_POS_ARGS, name, held)
        if callable(getattr(obj, "_asdict", None)) and not isclass(obj):
            self._rules.require_allowed(name)
            return _pack_named(EXT_CONSTRUCTOR_KW_ARGS, name, self.convert(obj._asdict()))
        if isinstance(obj, _LISTED):
            self._rules.require_allowed(name)
            return _pack_named(EXT_CONSTRUCTOR_SINGLE_ARG, name, self.convert_items(tuple(obj)))
        if find_kind(type(obj)) == "dataclass":
            held = self.convert(classes.get_dataclass_data(obj))
            return _pack_named(EXT_CONSTRUCTOR_KW_ARGS, name, held)
        return self._rules.convert_langgraph(obj)


def _pack_plain(value: Any) -> bytes | None:
    """Return a dict or list of nothing but JSON as MessagePack; ``None`` for other values."""
    if type(value) is not dict and type(value) is not list:
        return None
    try:
        made: bytes = ormsgpack.packb(value, option=EXACT)
        if may_hold_binary(made):
            orjson.dumps(value)  # refuses buffers, which ormsgpack makes bytes of
    except TypeError:
        return None
    return made


EXACT: Final = (
    ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
)
"""With these, ormsgpack refuses what would come back as another type."""


def _pack_named(code: int, name: Name, *parts: Any) -> Any:
    return ormsgpack.Ext(code, encode_packed([*name, *parts]))


def _is_theirs(value: Any, kind: type) -> bool:
    """Return whether LangGraph has an extension that keeps all of a value that has a form."""
    if kind is datetime:
        return forms.is_plain_time(value)
    if kind is deque:
        return value.maxlen is None
    return kind is tuple or kind is re.Pattern or name_of(kind) in SAFE_MSGPACK_TYPES
