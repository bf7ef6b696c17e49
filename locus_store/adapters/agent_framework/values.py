"""Values of workflow checkpoints as JSON, and values from that JSON.

Plain JSON stands for itself. Everything else is an object with the key ``$``, which names one of
the forms below, and ``v``. Nothing is pickled. A class is looked up by its name among those that
are allowed and imported; nothing is imported, and no constructor of a dataclass runs.
"""

from __future__ import annotations

import base64
import json
import math
import types
from collections import deque
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin
from uuid import UUID

import agent_framework as framework
from agent_framework import WorkflowEvent
from agent_framework._workflows._checkpoint_encoding import _REGISTERED_CHECKPOINT_TYPE_KEYS
from pydantic import BaseModel

from locus_store.adapters import classes
from locus_store.adapters.agent_framework.errors import (
    CheckpointIntegrityError,
    CheckpointSerializationError,
)
from locus_store.errors import SerializationError
from locus_store.values.encoding import MAX_INT, MIN_INT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TAG: Final = "$"

FRAMEWORK: Final = ("agent_framework.", "agent_framework_")
"""Modules whose dataclasses, enums and models are allowed."""

AS_DICTS: Final = frozenset(
    {
        framework.AgentResponse,
        framework.AgentResponseUpdate,
        framework.AgentSession,
        framework.ChatResponse,
        framework.ChatResponseUpdate,
        framework.Content,
        framework.Message,
    }
)
"""Classes of the framework that are stored by their ``to_dict`` and ``from_dict``."""

PLAIN: Final = {
    it.__qualname__: it
    for it in (
        *(bool, bytes, dict, float, frozenset, int, list, object, set, str, tuple),
        *(Any, types.NoneType, date, datetime, time, timedelta, Decimal, UUID),
    )
}
"""Classes that a request may name as its type."""


def _days(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


SCALARS: Final[dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    bytes: ("bytes", _base64, _bytes),
    bytearray: ("bytearray", _base64, lambda text: bytearray(_bytes(text))),
    date: ("date", date.isoformat, date.fromisoformat),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: ("timedelta", _days, lambda parts: timedelta(*parts)),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
    float: ("float", str, float),  # those that JSON has not
    int: ("int", str, int),  # those beyond 64 bits
}
SERIES: Final[dict[type, str]] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
}
_FROM_SCALAR: Final = {tag: load for tag, _, load in SCALARS.values()}
_FROM_SERIES: Final = {tag: made for made, tag in SERIES.items()}


class CheckpointValues:
    """Conversion of values to JSON and back.

    Args:
        allowed: Classes of the application that may be stored: dataclasses, enums, pydantic models,
            and classes with ``to_dict`` and ``from_dict``. Those given to the framework's
            ``register_checkpoint_type`` may be, too.
    """

    def __init__(self, allowed: Iterable[type] = ()) -> None:
        self._allowed = {classes.name_of(it): it for it in allowed}
        self._forms: dict[str, Callable[[Any], Any]] = {
            "dict": self._ordered,
            "map": lambda pairs: {self.decode(key): self.decode(it) for key, it in pairs},
            "class": self._class,
            "alias": self._alias,
            "union": self._union,
            "object": self._object,
            "event": self._event,
        }

    # --- to JSON

    def encode(self, value: Any, path: str) -> Any:
        """Return a value as JSON.

        Raises:
            CheckpointSerializationError: It cannot; names ``path``.
        """
        kind = type(value)
        if value is None or kind in {str, bool}:
            return value
        if kind in {int, float}:
            is_json = MIN_INT <= value <= MAX_INT if kind is int else math.isfinite(value)
            return value if is_json else {TAG: kind.__name__, "v": str(value)}
        if kind is list:
            return [self.encode(it, f"{path}[{n}]") for n, it in enumerate(value)]
        if kind is dict:
            return self._encoded_dict(value, path)
        return self._tagged(kind, value, path)

    def _tagged(self, kind: type, value: Any, path: str) -> dict[str, Any]:
        if kind in SCALARS:
            if isinstance(value, datetime | time) and type(value.tzinfo) not in {
                types.NoneType,
                timezone,
            }:
                raise self._refusal(value, path)
            tag, dump, _ = SCALARS[kind]
            return {TAG: tag, "v": dump(value)}
        if kind in SERIES and getattr(value, "maxlen", None) is None:
            series = [self.encode(it, f"{path}[{n}]") for n, it in enumerate(value)]
            if kind in {set, frozenset}:
                series.sort(key=lambda it: json.dumps(it, sort_keys=True))
            return {TAG: SERIES[kind], "v": series}
        if kind is WorkflowEvent:
            held = {name: self.encode(it, f"{path}.{name}") for name, it in vars(value).items()}
            return {TAG: "event", "v": held}
        if get_args(value):
            return self._encoded_alias(value, path)
        if isinstance(value, type):
            return {TAG: "class", "v": self._named(value, value, path)}
        return self._encoded_object(kind, value, path)

    def _encoded_dict(self, value: dict[Any, Any], path: str) -> dict[str, Any]:
        if any(type(key) is not str for key in value):
            pairs = value.items()
            made = [
                [self.encode(key, path), self.encode(it, f"{path}[{key!r}]")] for key, it in pairs
            ]
            return {TAG: "map", "v": made}
        held = {key: self.encode(it, f"{path}.{key}") for key, it in value.items()}
        keys = list(held)
        if TAG in held or keys != sorted(keys):
            return {TAG: "dict", "keys": keys, "v": held}
        return held

    def _encoded_alias(self, value: Any, path: str) -> dict[str, Any]:
        origin, arguments = get_origin(value), get_args(value)
        is_union = origin in {Union, types.UnionType}
        encoded = [self.encode(it, path) for it in arguments]
        if is_union:
            return {TAG: "union", "v": encoded}
        return {TAG: "alias", "v": [self.encode(origin, path), *encoded]}

    def _encoded_object(self, kind: type, value: Any, path: str) -> dict[str, Any]:
        name = self._named(kind, value, path)
        data: Any
        if isinstance(value, Enum):
            data = value.value
        elif issubclass(kind, BaseModel):
            data, _ = classes.model_data(value)
        elif is_dataclass(kind):
            data = classes.dataclass_data(value)
        elif self._has_dicts(kind):
            data = value.to_dict()
        else:
            raise self._refusal(value, path)
        if isinstance(data, dict) and TAG not in data and all(type(it) is str for it in data):
            held = {key: self.encode(it, f"{path}.{key}") for key, it in data.items()}
            return {TAG: "object", "class": name, "v": held}
        return {TAG: "object", "class": name, "v": self.encode(data, path)}

    def _named(self, cls: type, value: Any, path: str) -> str:
        """Return the name of a class that may be stored."""
        module, name = classes.name_of(cls)
        is_plain = isinstance(value, type) and PLAIN.get(name) is cls
        try:
            if not is_plain and self._found(module, name) is not cls:
                raise self._refusal(value, path)
        except CheckpointIntegrityError as exc:
            raise self._refusal(value, path) from exc
        return f"{module}:{name}"

    @staticmethod
    def _refusal(value: Any, path: str) -> CheckpointSerializationError:
        kind = value if isinstance(value, type) else type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return CheckpointSerializationError(
            f"{path}: a {name} cannot be stored. A dataclass, an enum, a pydantic model or a class "
            f"with to_dict and from_dict can: give it to LocusCheckpointStorage as allowed=[...], "
            "or to the framework's register_checkpoint_type"
        )

    # --- from JSON

    def decode(self, value: Any) -> Any:
        """Return the value of ``encode``.

        Raises:
            CheckpointIntegrityError: It is not what ``encode`` returns, or names a class that is
                not allowed or not imported.
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
        except CheckpointIntegrityError:
            raise
        except SerializationError as exc:
            raise CheckpointIntegrityError(str(exc)) from exc
        except Exception as exc:
            raise CheckpointIntegrityError(
                f"a stored value of the form {tag!r:.40} is damaged: {type(exc).__name__}"
            ) from exc

    def _untagged(self, tag: Any, value: dict[str, Any]) -> Any:
        if tag in {"dict", "object"}:
            return self._forms[tag](value)
        held = value["v"]
        if tag in _FROM_SCALAR:
            return _FROM_SCALAR[tag](held)
        if tag in _FROM_SERIES:
            return _FROM_SERIES[tag](map(self.decode, held))
        if tag not in self._forms:
            raise CheckpointIntegrityError(f"a stored value has the unknown form {tag!r:.40}")
        return self._forms[tag](held)

    def _ordered(self, value: dict[str, Any]) -> dict[str, Any]:
        return {key: self.decode(value["v"][key]) for key in value["keys"]}

    def _class(self, name: str) -> type:
        module, _, path = name.partition(":")
        if path in PLAIN and PLAIN[path].__module__ == module:
            return PLAIN[path]
        return self._found(module, path)

    def _alias(self, parts: list[Any]) -> Any:
        origin, *arguments = map(self.decode, parts)
        return types.GenericAlias(origin, tuple(arguments))

    def _union(self, parts: list[Any]) -> Any:
        return Union[tuple(map(self.decode, parts))]  # noqa: UP007  (of values, not of a type)

    def _event(self, held: dict[str, Any]) -> WorkflowEvent[Any]:
        event: WorkflowEvent[Any] = WorkflowEvent("request_info")
        if held.keys() != vars(event).keys():
            raise CheckpointIntegrityError("a stored event has other fields than a WorkflowEvent")
        vars(event).update({name: self.decode(it) for name, it in held.items()})
        return event

    def _object(self, value: dict[str, Any]) -> Any:
        module, _, path = value["class"].partition(":")
        cls: Any = self._found(module, path)
        data = self.decode(value["v"])
        kind = classes.kind_of(cls)
        if kind == "enum":
            return classes.member(cls, data)
        if kind == "model":
            return classes.model(cls, data, None)
        if kind == "dataclass":
            return classes.dataclass(cls, data)
        if not self._has_dicts(cls):
            raise CheckpointIntegrityError(f"class {module}.{path} has no from_dict")
        return cls.from_dict(data)

    def _has_dicts(self, cls: type) -> bool:
        is_ours = cls in AS_DICTS or not cls.__module__.startswith(FRAMEWORK)
        return is_ours and all(hasattr(cls, it) for it in ("to_dict", "from_dict"))

    def _found(self, module: str, path: str) -> type:
        """Return a class that is allowed and imported.

        Raises:
            CheckpointIntegrityError: There is none.
        """
        name = module, path
        if name in self._allowed:
            return self._allowed[name]
        known = f"{module}:{path}" in _REGISTERED_CHECKPOINT_TYPE_KEYS
        found = classes.imported(name) if known or module.startswith(FRAMEWORK) else None
        if not isinstance(found, type) or classes.name_of(found) != name:
            raise CheckpointIntegrityError(
                f"class {module}.{path} is not allowed or not imported: give it to "
                "LocusCheckpointStorage as allowed=[...]"
            )
        return found
