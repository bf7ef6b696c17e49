"""LangGraph's own serializer: strict, told of it, and with tuples that stay tuples."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)
from langgraph.checkpoint.serde.types import SendProtocol, _DeltaSnapshot

from locus_store.errors import SerializationError

if TYPE_CHECKING:
    from collections.abc import Iterable

_TUPLE: Final = ("builtins", "tuple")
_LISTED: Final = (set, frozenset, deque)

# What LangGraph's serializer lets MessagePack do by itself, but for tuples; and it makes "?" of a
# lone surrogate, which is refused here.
_OPTIONS: Final = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
)

_blocked: ContextVar[list[str] | None] = ContextVar("locus_store_blocked_classes", default=None)


def _listen(event: SerdeEvent) -> None:
    found = _blocked.get()
    if found is not None and event["kind"] == "msgpack_blocked":
        found.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_listen)


class ExactSerializer(JsonPlusSerializer):
    """``JsonPlusSerializer`` that makes no object of a class which nobody allowed.

    Where LangGraph's own would give the object's fields instead, and log a warning, this one
    refuses, on writing already. A tuple comes back as one; there it becomes a list.

    Args:
        allowed: Classes that may be made on reading, beside those that LangGraph takes for safe
            (messages, datetimes, UUIDs, Send, Interrupt and others): the classes themselves, or
            pairs of module and name. A graph that is compiled with ``LANGGRAPH_STRICT_MSGPACK``
            set adds those of its own state.
    """

    def __init__(self, allowed: Iterable[tuple[str, ...] | type] = ()) -> None:
        super().__init__(allowed_msgpack_modules=(_TUPLE, *allowed))

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return an object's type and bytes.

        Raises:
            SerializationError: It, or something in it, is of a class that is not allowed.
            TypeError: There is no form for it.
        """
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        return "msgpack", self._packed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the object of a type and bytes.

        Raises:
            SerializationError: It, or something in it, is of a class that is not allowed.
        """
        blocked: list[str] = []
        outer = _blocked.set(blocked)
        try:
            loaded = super().loads_typed(data)
        finally:
            _blocked.reset(outer)
        if blocked:
            raise _refusal(blocked[0])
        return loaded

    def _packed(self, obj: Any) -> bytes:
        packed: bytes = ormsgpack.packb(obj, default=self._extension, option=_OPTIONS)
        return packed

    def _extension(self, obj: Any) -> Any:
        """What MessagePack has no form for, as LangGraph has it; what it holds is packed here."""
        kind = type(obj)
        if kind is tuple:
            return self._made(EXT_CONSTRUCTOR_SINGLE_ARG, _TUPLE, list(obj))
        name = (kind.__module__, kind.__name__)
        if callable(getattr(obj, "model_dump", None)):
            return self._made(EXT_PYDANTIC_V2, name, obj.model_dump(), "model_validate_json")
        if isinstance(obj, _LISTED):
            return self._made(EXT_CONSTRUCTOR_SINGLE_ARG, name, list(obj))
        return self._rarer(obj, name)

    def _rarer(self, obj: Any, name: tuple[str, str]) -> Any:
        if isinstance(obj, _DeltaSnapshot):
            return ormsgpack.Ext(EXT_DELTA_SNAPSHOT, self._packed(obj.value))
        if isinstance(obj, SendProtocol):
            timeout = getattr(obj, "timeout", None)
            more = [] if timeout is None else [timeout]
            return self._made(EXT_CONSTRUCTOR_POS_ARGS, name, [obj.node, obj.arg, *more])
        fields = _fields(obj)
        if fields is not None:
            return self._made(EXT_CONSTRUCTOR_KW_ARGS, name, fields)
        return self._of_langgraph(obj)

    def _of_langgraph(self, obj: Any) -> Any:
        made: Any = _unpacked(super().dumps_typed(obj)[1])
        if not isinstance(made, _Extension):
            return made
        if made.code != EXT_NUMPY_ARRAY:
            module, function, *_ = _unpacked(made.data)
            self._require_allowed((module, function))
        return ormsgpack.Ext(made.code, made.data)

    def _made(self, code: int, name: tuple[str, str], held: Any, *more: Any) -> Any:
        self._require_allowed(name)
        return ormsgpack.Ext(code, self._packed([*name, held, *more]))

    def _require_allowed(self, name: tuple[str, str]) -> None:
        allowed = self._allowed_msgpack_modules
        if name in SAFE_MSGPACK_TYPES or allowed is True or (allowed and name in allowed):
            return
        raise _refusal(".".join(name))


class _Extension(NamedTuple):
    """What ``ormsgpack.Ext`` does not tell of itself."""

    code: int
    data: bytes


def _unpacked(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_Extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _fields(obj: Any) -> dict[str, Any] | None:
    """Of a named tuple or a dataclass."""
    if callable(getattr(obj, "_asdict", None)):
        found: dict[str, Any] = obj._asdict()
        return found
    if is_dataclass(obj) and not isinstance(obj, type):
        return {it.name: getattr(obj, it.name) for it in fields(obj)}
    return None


def _refusal(name: str) -> SerializationError:
    return SerializationError(
        f"class {name} is not allowed: it would not be made again on reading. Allow it with"
        " LangGraphSaver(..., allowed=[…]), or keep its data as plain values"
    )
