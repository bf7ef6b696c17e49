"""Values of workflow checkpoints as JSON, and values from that JSON.

The forms of ``values.codec`` in tagged JSON, and those of the framework's and the application's
objects. Nothing is pickled. A class is looked up by its name among those that are allowed and
imported; nothing is imported, and no constructor of a dataclass runs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Union, get_args, get_origin
from uuid import UUID

import agent_framework as framework
from agent_framework import WorkflowEvent
from agent_framework._workflows._checkpoint_encoding import _REGISTERED_CHECKPOINT_TYPE_KEYS
from agent_framework.exceptions import WorkflowCheckpointException

from locus_store.adapters.logs import LEVELS
from locus_store.errors import IntegrityError, NotFoundError, SerializationError
from locus_store.values.codec import classes, forms
from locus_store.values.codec.forms import RefusedError, Trees
from locus_store.values.codec.names import find_imported, name_of
from locus_store.values.msgpack import FORM, TypedForm, freeze, thaw

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
    kind.__qualname__: kind
    for kind in (
        *(bool, bytes, dict, float, frozenset, int, list, object, set, str, tuple),
        *(Any, types.NoneType, date, datetime, time, timedelta, Decimal, UUID),
    )
}
"""Classes that a request may name as its type."""


class CheckpointValues(Trees):
    """Conversion of values to JSON and back.

    Args:
        allowed: Classes of the application that may be stored: dataclasses, enums, pydantic models,
            and classes with ``to_dict`` and ``from_dict``. Those given to the framework's
            ``register_checkpoint_type`` may be, too.
    """

    def __init__(self, allowed: Iterable[type] = ()) -> None:
        super().__init__(is_careful=True)
        self._allowed = {name_of(it): it for it in allowed}
        self._loads: dict[str, Callable[..., Any]] = {
            "class": self._find_class,
            "alias": lambda origin, *of: types.GenericAlias(origin, of),
            "union": lambda *of: Union[of],  # noqa: UP007  (of values, not of a type)
            "event": _restore_event,
            "object": self._restore_object,
        }

    def encode(self, value: Any, path: str) -> Any:
        """Return a value as JSON.

        Raises:
            CheckpointSerializationError: It cannot; names ``path``.
        """
        try:
            return freeze(self.convert(value), LEVELS)
        except RefusedError as exc:
            raise CheckpointSerializationError(exc.with_place(path)) from exc

    def make_node(self, tag: str, *held: Any) -> TypedForm:
        return TypedForm(tag, held)

    def convert_other(self, obj: Any, cls: type) -> Any:
        if cls is WorkflowEvent:
            return self.make_node("event", self.convert_members(vars(obj)))
        if arguments := get_args(obj):
            origin, parts = get_origin(obj), self.convert_items(arguments)
            if origin in {Union, types.UnionType}:
                return self.make_node("union", *parts)
            return self.make_node("alias", self.convert(origin), *parts)
        if isinstance(obj, type):
            return self.make_node("class", self._name_class(obj, obj))
        if forms.find_numpy_form(cls):
            return self._convert_form(obj)
        return self._convert_object(cls, obj)

    def _convert_object(self, cls: type, value: Any) -> TypedForm:
        name, kind = self._name_class(cls, value), classes.find_kind(cls)
        if kind in {None, "subclass"} and self._has_dicts(cls):
            return self.make_node("object", name, self.convert(value.to_dict()))
        if kind is None:
            raise self._make_refusal(value)
        return self.make_node("object", name, *map(self.convert, classes.get_data(value, kind)))

    def _name_class(self, cls: type, value: Any) -> str:
        """Return the name of a class that may be stored."""
        module, name = name_of(cls)
        is_plain = isinstance(value, type) and PLAIN.get(name) is cls
        try:
            if not is_plain and self._find_allowed_class(module, name) is not cls:
                raise self._make_refusal(value)
        except CheckpointIntegrityError as exc:
            raise self._make_refusal(value) from exc
        return f"{module}:{name}"

    @staticmethod
    def _make_refusal(value: Any) -> RefusedError:
        kind = value if isinstance(value, type) else type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return RefusedError(
            f"an object of class {name} cannot be stored. A dataclass, an enum, a pydantic model "
            "or a class with to_dict and from_dict can: give it to LocusCheckpointStorage as "
            "allowed=[...], or to the framework's register_checkpoint_type"
        )

    def decode(self, value: Any) -> Any:
        """Return the value of ``encode``.

        Raises:
            CheckpointIntegrityError: It is not what ``encode`` returns.
        """
        try:
            return thaw(value, self._read)
        except CheckpointIntegrityError:
            raise
        except (IntegrityError, SerializationError) as exc:
            raise CheckpointIntegrityError(str(exc)) from exc
        except Exception as exc:
            raise CheckpointIntegrityError(
                f"a stored value is damaged: {type(exc).__name__}"
            ) from exc

    def _read(self, node: Mapping[str, Any]) -> Any:
        tag, *held = thaw(node["v"], self._read)
        if node["c"] != FORM or not (tag in self._loads or forms.has(tag)):
            raise CheckpointIntegrityError(f"a stored value has the unknown form {tag!r:.40}")
        return self._loads[tag](*held) if tag in self._loads else forms.load(tag, *held)

    def _find_class(self, name: str) -> type:
        module, _, path = name.partition(":")
        if path in PLAIN and PLAIN[path].__module__ == module:
            return PLAIN[path]
        return self._find_allowed_class(module, path)

    def _restore_object(self, name: str, *held: Any) -> Any:
        module, _, path = name.partition(":")
        cls: Any = self._find_allowed_class(module, path)
        kind = classes.find_kind(cls)
        if kind in {None, "subclass"} and self._has_dicts(cls):
            return cls.from_dict(*held)
        if kind is None:
            raise CheckpointIntegrityError(f"class {module}.{path} has no from_dict")
        return classes.rebuild(cls, kind, *held)

    def _has_dicts(self, cls: type) -> bool:
        is_ours = cls in AS_DICTS or not cls.__module__.startswith(FRAMEWORK)
        return is_ours and all(hasattr(cls, it) for it in ("to_dict", "from_dict"))

    def _find_allowed_class(self, module: str, path: str) -> type:
        """Return a class that is allowed and imported; refuse any other."""
        name = module, path
        if name in self._allowed:
            return self._allowed[name]
        known = f"{module}:{path}" in _REGISTERED_CHECKPOINT_TYPE_KEYS
        found = find_imported(name) if known or module.startswith(FRAMEWORK) else None
        if not isinstance(found, type) or name_of(found) != name:
            raise CheckpointIntegrityError(
                f"class {module}.{path} is not allowed or not imported: give it to "
                "LocusCheckpointStorage as allowed=[...]"
            )
        return found


def _restore_event(fields: dict[str, Any]) -> WorkflowEvent[Any]:
    event: WorkflowEvent[Any] = WorkflowEvent("request_info")
    if fields.keys() != vars(event).keys():
        raise CheckpointIntegrityError("a stored event has other fields than a WorkflowEvent")
    vars(event).update(fields)
    return event


class CheckpointNotFoundError(NotFoundError, WorkflowCheckpointException):
    """There is no checkpoint with this id."""


class CheckpointSerializationError(SerializationError, WorkflowCheckpointException):
    """JSON cannot keep a value of the checkpoint exactly; nothing was written."""


class CheckpointIntegrityError(IntegrityError, WorkflowCheckpointException):
    """The stored checkpoint is damaged, or names a class that is not allowed."""
