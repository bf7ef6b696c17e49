"""Values of workflow checkpoints as JSON, and values from that JSON.

The forms of ``JsonValues``, and those of the framework's and the application's objects. Nothing is
pickled. A class is looked up by its name among those that are allowed and imported; nothing is
imported, and no constructor of a dataclass runs.
"""

from __future__ import annotations

import types
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
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
from locus_store.adapters.forms import RefusedError
from locus_store.adapters.json_values import TAG, JsonValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


class CheckpointValues(JsonValues):
    """Conversion of values to JSON and back.

    Args:
        allowed: Classes of the application that may be stored: dataclasses, enums, pydantic models,
            and classes with ``to_dict`` and ``from_dict``. Those given to the framework's
            ``register_checkpoint_type`` may be, too.
    """

    def __init__(self, allowed: Iterable[type] = ()) -> None:
        self._allowed = {classes.name_of(it): it for it in allowed}
        self._forms: dict[str, Callable[[Any], Any]] = {
            "class": self._class,
            "alias": self._alias,
            "union": self._union,
            "event": self._event,
        }

    # --- to JSON

    def encoded(self, value: Any, path: str) -> Any:
        """Return a value as JSON.

        Raises:
            CheckpointSerializationError: It cannot; names ``path``.
        """
        try:
            return self.encode(value)
        except RefusedError as exc:
            raise CheckpointSerializationError(exc.at(path)) from exc

    def _other(self, value: Any) -> Any:
        if type(value) is WorkflowEvent:
            return {TAG: "event", "v": self._members(vars(value))}
        if get_args(value):
            return self._encoded_alias(value)
        if isinstance(value, type):
            return {TAG: "class", "v": self._named(value, value)}
        return self._formed(value) or self._encoded_object(type(value), value)

    def _encoded_alias(self, value: Any) -> dict[str, Any]:
        origin, arguments = get_origin(value), get_args(value)
        is_union = origin in {Union, types.UnionType}
        encoded = [self.encode(it) for it in arguments]
        if is_union:
            return {TAG: "union", "v": encoded}
        return {TAG: "alias", "v": [self.encode(origin), *encoded]}

    def _encoded_object(self, kind: type, value: Any) -> dict[str, Any]:
        name = self._named(kind, value)
        data: Any
        if isinstance(value, Enum):
            data = value.value
        elif issubclass(kind, BaseModel):
            data, _ = classes.model_data(value)
        elif is_dataclass(kind):
            data = classes.dataclass_data(value)
        elif self._has_dicts(kind):
            data = value.to_dict()
        elif classes.kind_of(kind) == "subclass":
            data = classes.subclass_data(value)
        else:
            raise self._refusal(value)
        if isinstance(data, dict) and TAG not in data and all(type(it) is str for it in data):
            return {TAG: "object", "class": name, "v": self._members(data)}
        return {TAG: "object", "class": name, "v": self.encode(data)}

    def _named(self, cls: type, value: Any) -> str:
        """Return the name of a class that may be stored."""
        module, name = classes.name_of(cls)
        is_plain = isinstance(value, type) and PLAIN.get(name) is cls
        try:
            if not is_plain and self._found(module, name) is not cls:
                raise self._refusal(value)
        except CheckpointIntegrityError as exc:
            raise self._refusal(value) from exc
        return f"{module}:{name}"

    @staticmethod
    def _refusal(value: Any) -> RefusedError:
        kind = value if isinstance(value, type) else type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return RefusedError(
            f"a {name} cannot be stored. A dataclass, an enum, a pydantic model or a class "
            f"with to_dict and from_dict can: give it to LocusCheckpointStorage as allowed=[...], "
            "or to the framework's register_checkpoint_type"
        )

    # --- from JSON

    def _untagged(self, tag: Any, value: dict[str, Any]) -> Any:
        if tag == "object":
            return self._made(value)
        return self._forms[tag](value["v"]) if tag in self._forms else super()._untagged(tag, value)

    def _damage(self, what: str) -> CheckpointIntegrityError:
        return CheckpointIntegrityError(what)

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

    def _made(self, value: dict[str, Any]) -> Any:
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
            if kind == "subclass":
                return classes.subclass(cls, *data)
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
