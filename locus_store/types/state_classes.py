"""State classes: their criteria, the name recorded with a version, and their lookup."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args, get_origin, runtime_checkable

from locus_store.errors import SerializationError
from locus_store.values.codec.names import find_imported, name_of
from locus_store.values.filters import STATE_CLASS

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import TypeIs

LOCUS_STATE: Final = "locus.core.state:AgentState"
"""The state of the Locus SDK's agent."""

OUR_MODULE: Final = "locus_store.types.state"
OUR_STATE: Final = f"{OUR_MODULE}:AgentState"
"""The class for the SDK's state in a process that has not imported the SDK."""

_LOCUS_FIELDS: Final = frozenset({"messages", "iteration", "tool_executions", "reasoning_steps"})
"""Fields that every state of the Locus SDK's agent has, and that together are no one else's."""


@runtime_checkable
class Checkpointable(Protocol):
    """The methods that a class needs to be used as ``state_type=``."""

    def to_checkpoint(self) -> dict[str, Any]: ...

    @classmethod
    def from_checkpoint(cls, data: Any) -> Any: ...


def is_state_class(kind: Any) -> bool:
    """Return whether states of this class can be saved and loaded."""
    return issubclass(type(kind), type) and (
        issubclass(kind, dict) or is_model(kind) or isinstance(kind, Checkpointable)
    )


def is_model(kind: type[Any]) -> TypeIs[type[BaseModel]]:
    """Return whether the class is a pydantic model; never imports pydantic."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base is not None and issubclass(kind, base)


def has_room(kind: type[Any]) -> bool:
    """Return whether the class has a free ``metadata`` mapping, as the Locus SDK's ``AgentState``.

    A loaded state of such a class carries its mark there.
    """
    if not is_model(kind):
        return False
    known = kind.model_fields.get("metadata")
    if known is None or known.metadata or known.validation_alias:
        return False
    held = known.annotation
    return get_origin(held) in (dict, Mapping) and get_args(held) == (str, Any)


def make_label(state: Any) -> dict[str, str]:
    """Return the label that names a state's class; empty if the class cannot be found by name.

    A dict that ``load`` returned keeps the label of its version.
    """
    kept: dict[str, str] | None = getattr(state, "class_label", None)
    if kept is not None and isinstance(state, dict):
        return kept
    name = make_label_name(type(state))
    return {STATE_CLASS: name} if _find_class(name) is not None else {}


def get_class_label(labels: Mapping[str, Any]) -> dict[str, str]:
    """Return the label that names the class of a version's state."""
    name = labels.get(STATE_CLASS)
    return {STATE_CLASS: name} if isinstance(name, str) else {}


def require_named(state: Any) -> None:
    """Refuse a state whose class was defined in a function: loading could not find it by name."""
    name = make_label_name(type(state))
    if _find_class(name) is None:
        raise SerializationError(
            f"cannot save a state of class {type(state).__qualname__}, which no load could find: "
            f"define it at the top of a module, or pass state_type={type(state).__name__}"
        )


def find_class(labels: Mapping[str, Any], data: Mapping[str, Any]) -> type[Any] | None:
    """Return the class that a stored state was saved from; ``None`` if it is not recorded.

    Only a class that is already imported, or one of ours, is found. Nothing else is ever imported
    or called by a name that was read from storage.

    Raises:
        SerializationError: This process has not imported the class; names the import.
    """
    name = labels.get(STATE_CLASS)
    if data.keys() >= _LOCUS_FIELDS and name == OUR_STATE:  # saved where the SDK is not imported
        name = None
    if not isinstance(name, str):
        return _find_class(LOCUS_STATE) if data.keys() >= _LOCUS_FIELDS else None
    found = _find_class(name)
    if found is None and name != LOCUS_STATE:
        module, _, qualname = name.partition(":")
        raise SerializationError(
            f"the state was saved as {qualname} of {module}, and this process has no such state "
            f"class: `import {module}` before the load, or pass state_type= the class to load it "
            "as; state_type=dict loads any state"
        )
    return found


def make_label_name(kind: type[Any]) -> str:
    """Return the name of a class in a label; that of ``dict`` for the classes of dicts."""
    if issubclass(kind, dict):
        kind = dict
    return ":".join(name_of(kind))


def _find_class(name: str) -> type[Any] | None:
    """Return the state class of that name among the imported modules, and the module of ours."""
    module, _, qualname = name.partition(":")
    if module == OUR_MODULE:
        import_module(module)
    found = find_imported((module, qualname))
    if not is_state_class(found) or name_of(found) != (module, qualname):
        return None
    return found if found is dict or not issubclass(found, dict) else None
