"""Classes by their names, among the imported modules only.

Nothing is imported, and no ``__getattr__`` of a module or metaclass is called.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias

Name: TypeAlias = tuple[str, str]
"""A module, and a class's name within it with dots."""


def name_of(cls: type) -> Name:
    """Return the name under which objects of a class are stored."""
    return cls.__module__, cls.__qualname__


def find_imported(name: Name) -> Any:
    """Return the object of an imported module that has a name; ``None`` if there is none."""
    module, path = name
    found: Any = sys.modules.get(module)
    if not issubclass(type(found), ModuleType):
        return None
    members: Mapping[str, Any] = object.__getattribute__(found, "__dict__")
    outer, bracket, arguments = path.partition("[")
    parts = outer.split(".")
    if bracket and path in members:  # pydantic adds specialised models to their module
        return members[path]
    for part in parts:
        found = members.get(part)
        members = get_members(found) if is_class(found) else {}
    return _find_specialised(found, parts[-1] + bracket + arguments) if bracket else found


def _find_specialised(model: Any, name: str) -> Any:
    """Return the class ``Model[int]`` of a generic model, if the program has created it."""
    if not is_class(model) or model is type:
        return None
    return next((it for it in type.__subclasses__(model) if it.__name__ == name), None)


def is_class(value: Any) -> bool:
    """Return whether a value is a class, whatever it says of itself."""
    return issubclass(type(value), type)


def get_members(cls: Any) -> Mapping[str, Any]:
    """Return the attributes that a class itself defines."""
    members: MappingProxyType[str, Any] = type.__dict__["__dict__"].__get__(cls)
    return members
