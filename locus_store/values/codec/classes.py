"""Objects of the user's classes as data, and objects from that data.

Four kinds of classes are stored by name: pydantic models, dataclasses, enums, and classes that
derive from a built-in one. A class is looked up among the imported modules only. Nothing is
imported, and no constructor or method that a row names is called:

- a pydantic model is validated from its fields, so its validators run on what was stored;
- a dataclass gets its fields set; ``__init__`` and ``__post_init__`` do not run;
- an enum is looked up by its value;
- a ``str``, ``int``, ``float``, ``list`` or ``dict`` of the user's gets its content and attributes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from enum import Enum, Flag
from math import isnan
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

from pydantic import BaseModel, Json, ValidationError

from locus_store.errors import SerializationError
from locus_store.values.codec.names import Name, find_imported, get_members, is_class, name_of

Kind: TypeAlias = Literal["model", "model of pydantic 1", "dataclass", "enum", "subclass"]

_logger: Final = logging.getLogger("locus_store")

_DATACLASS: Final = "__dataclass_fields__"
_set: Final = object.__setattr__


def is_listed(name: Name, names: Iterable[tuple[str, ...]]) -> bool:
    """Return whether a list of modules and names has a class; LangGraph's omit outer classes."""
    module, path = name
    return name in names or (module, path.rpartition(".")[2]) in names


def find_kind(cls: Any) -> Kind | None:
    """Return the kind of a class; ``None`` for one that cannot be stored by its name.

    Asks no metaclass, no ``__class__`` and no ``__subclasshook__``, which may say anything.
    """
    if not is_class(cls):
        return None
    mro = type.__getattribute__(cls, "__mro__")
    if BaseModel in mro:
        return None if cls is BaseModel else "model"
    first = sys.modules.get("pydantic.v1.main")
    if first is not None and first.BaseModel in mro:
        return "model of pydantic 1"
    if Enum in mro:
        return "enum"
    if any(_DATACLASS in get_members(it) for it in mro):
        return "dataclass"
    return None if find_base(cls) is None else "subclass"


_HEAP: Final = 1 << 9
"""The flag of classes that are made by ``class`` statements."""

_BASES: Final = frozenset({str, int, float, list, dict})


_flags: Final[Any] = type.__dict__["__flags__"].__get__
"""Gives a class's flags, and asks no metaclass."""


def find_base(cls: type) -> Any:
    """Return the built-in class whose content, with ``__dict__``, is all of a class's objects.

    ``None``: there is none, or the class is built in itself.
    """
    mro = type.__getattribute__(cls, "__mro__")
    own = [it for it in mro if _flags(it) & _HEAP]
    base = next(it for it in mro if not _flags(it) & _HEAP)
    is_whole = base in _BASES and not any(get_members(it).get("__slots__") for it in own)
    return base if own and is_whole else None


class Classes:
    """The classes that a serializer knows by name.

    Those that it has stored are known too, so that a class which is local to a function comes back
    in the same process.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._known: WeakValueDictionary[Name, type] = WeakValueDictionary()
        self._given = tuple(classes)
        """Without these references a class that nothing else refers to would be forgotten."""

        for cls in self._given:
            self.note(cls)

    def note(self, cls: type) -> None:
        """Remember a class that no module has under its name."""
        name = name_of(cls)
        if find_imported(name) is not cls:
            self._known[name] = cls

    def find(self, name: Name) -> Any:
        """Return the class, or whatever has this name, of an imported module.

        Raises:
            SerializationError: There is none; says what to import.
        """
        found = find_imported(name)
        if found is None:
            found = self._known.get(name)
        if found is None:
            raise SerializationError(_describe_absence(name))
        return found


def _describe_absence(name: Name) -> str:
    module, path = name
    if "<locals>" in path:
        return (
            f"class {module}.{path} is local to a function, and this process has not stored an"
            " object of it. Define it at the top level of a module, or read the thread with"
            " serde=JsonPlusSerializer(), which gives its fields as a dict"
        )
    if module in sys.modules:
        return (
            f"module {module} has no class {path}. Where it was renamed or moved, leave an alias"
            f" of the old name in {module}"
        )
    outer = path.partition(".")[0].partition("[")[0]
    return (
        f"class {module}.{path} is not imported, and names that are read are never imported."
        f" Write `from {module} import {outer}` where your program opens the saver"
    )


def get_data(obj: Any, kind: Kind) -> tuple[Any, ...]:
    """Return what an object of a class of this kind holds; ``rebuild`` takes it.

    Raises:
        SerializationError: It could not be restored.
    """
    if kind == "model":
        return get_model_data(obj)
    if kind == "model of pydantic 1":
        return (dict(obj.__dict__),)
    if kind == "dataclass":
        make_empty(type(obj))
        return (get_dataclass_data(obj),)
    return get_subclass_data(obj) if kind == "subclass" else (obj._value_,)


def rebuild(cls: Any, kind: Kind, *held: Any) -> Any:
    """Return the object of ``get_data``.

    Raises:
        SerializationError: The class has changed, so that it does not fit.
    """
    return _REBUILDERS[kind](cls, *held)


def get_model_data(obj: BaseModel) -> tuple[Any, list[str] | None]:
    """Return a model's data by the names of its fields, and which were set, unless all were.

    Fields with ``exclude=True`` and private attributes are left out, as in ``model_dump``.
    """
    cls = type(obj)
    if cls.__pydantic_root_model__:
        return obj.__dict__["root"], None
    if _has_own_form(cls):
        data = obj.model_dump(round_trip=True)
    else:
        held = {**obj.__dict__, **(obj.__pydantic_extra__ or {})}
        excluded = {name for name, it in cls.model_fields.items() if it.exclude}
        computed = obj.__dict__.keys() - cls.model_fields.keys()  # cached properties
        data = {name: it for name, it in held.items() if name not in excluded | computed}
    names = obj.__pydantic_fields_set__
    return data, None if names >= data.keys() else [it for it in data if it in names]


def _has_own_form(cls: type[BaseModel]) -> bool:
    """Return whether a model defines, as a whole, how it is stored.

    Serializers of single fields are for other readers: what they return need not be valid again.
    """
    if cls.__pydantic_decorators__.model_serializers:
        return True
    return any(type(it) is Json for field in cls.model_fields.values() for it in field.metadata)


def build_model(cls: type[BaseModel], data: Any, names: list[str] | None = None) -> BaseModel:
    """Return the model of ``get_model_data``.

    Raises:
        SerializationError: Its data is not valid any more.
    """
    if isinstance(data, dict):
        data = {name: it for name, it in data.items() if name not in cls.model_computed_fields}
    try:
        made = cls.model_validate(data, by_name=True, by_alias=False)
    except Exception as exc:
        if _is_complete(cls, data):
            return _build_as_is(cls, data, names)
        if isinstance(exc, ValidationError):
            raise SerializationError(_describe_invalid(cls, exc)) from None
        raise SerializationError(
            f"stored data of {cls.__module__}.{cls.__qualname__} is not valid: a validator"
            f" raised {type(exc).__name__}"
        ) from exc
    if names is not None:
        made.__pydantic_fields_set__.intersection_update(names)
    return made


def _is_complete(cls: type[BaseModel], data: Any) -> bool:
    """Return whether the data has every field that a model requires."""
    if cls.__pydantic_root_model__ or not isinstance(data, dict):
        return False
    return all(name in data for name, it in cls.model_fields.items() if it.is_required())


def _build_as_is(cls: type[BaseModel], data: dict[str, Any], names: list[str] | None) -> BaseModel:
    """Return the model as it was stored, although its validators refuse it.

    A ``before`` validator may accept other values than it returns, and a field may have been
    assigned a value that is not valid. No constructor or validator runs.
    """
    _logger.warning(
        "stored data of %s.%s is not valid for it; the object has the stored values",
        cls.__module__,
        cls.__qualname__,
    )
    return cls.model_construct(_fields_set=None if names is None else {*names}, **data)


def _describe_invalid(cls: type, exc: ValidationError) -> str:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or "the model"
    return (
        f"stored data of {cls.__module__}.{cls.__qualname__} is not valid: {place}: {first['msg']}."
        " Give new fields a default, and let validators accept what they returned before"
    )


def build_model_of_1(cls: Any, data: Mapping[str, Any]) -> Any:
    """Return the model of pydantic 1 whose ``__dict__`` was stored.

    Raises:
        SerializationError: Its data is not valid any more.
    """
    aliases = {name: field.alias for name, field in cls.__fields__.items()}
    try:
        return cls.parse_obj({aliases.get(name, name): it for name, it in data.items()})
    except ValueError as exc:
        raise SerializationError(
            f"stored data of {cls.__module__}.{cls.__qualname__} is not valid:"
            f" {type(exc).__name__}. Give new fields a default"
        ) from None


def get_dataclass_data(obj: Any) -> dict[str, Any]:
    """Return the values of all fields, those that ``__init__`` does not take among them."""
    return {it.name: getattr(obj, it.name) for it in fields(obj) if hasattr(obj, it.name)}


def build_dataclass(cls: Any, data: Mapping[str, Any]) -> Any:
    """Return the object of ``get_dataclass_data``; new fields get their defaults.

    Raises:
        SerializationError: A new field has no default; see also ``make_empty``.
    """
    made = make_empty(cls)
    for field in fields(cls):
        if field.name in data:
            _set(made, field.name, data[field.name])
        elif field.default is not MISSING:
            _set(made, field.name, field.default)
        elif field.default_factory is not MISSING:
            _set(made, field.name, field.default_factory())
        elif field.init:
            raise SerializationError(
                f"stored data of {cls.__module__}.{cls.__qualname__} has no {field.name!r}: give"
                " the new field a default"
            )
    return made


def make_empty(cls: type) -> Any:
    """Return an object of a dataclass that has no fields yet.

    Raises:
        SerializationError: The class is abstract, or derives from a built-in one that holds data.
    """
    try:
        return object.__new__(cls)
    except TypeError as exc:
        raise SerializationError(
            f"dataclass {cls.__module__}.{cls.__qualname__} is abstract or derives from a built-in"
            " class: it cannot be made from its fields"
        ) from exc


def find_member(cls: Any, value: Any) -> Any:
    """Return the member of an enum with a value; ``_missing_`` is not asked, but for a flag's.

    Raises:
        SerializationError: The class has no such member any more.
    """
    found = next((it for it in cls if _is_same(it._value_, value)), None)
    if found is not None:
        return found
    if Flag in cls.__mro__ and type(value) is int:
        try:
            return Flag._missing_.__func__(cls, value)  # type: ignore[attr-defined]
        except ValueError:
            pass
    raise SerializationError(
        f"enum {cls.__module__}.{cls.__qualname__} has no member with the stored value; keep the"
        " members whose values were stored"
    )


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and are equal; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    return bool(one == other) or (isinstance(one, float) and isnan(one) and isnan(other))


def get_subclass_data(obj: Any) -> tuple[Any, dict[str, Any]]:
    """Return the content of an object, of the built-in class, and its attributes."""
    base = find_base(type(obj))
    content = base(_CONTENTS[base](obj))
    return content, dict(getattr(obj, "__dict__", {}))


def build_subclass(cls: Any, content: Any, attributes: Mapping[str, Any]) -> Any:
    """Return the object of ``get_subclass_data``; no method of the class is called.

    Raises:
        SerializationError: The class does not derive from the same built-in class any more.
    """
    base: Any = find_base(cls)
    new: Any = getattr(base, "__new__", None)
    if type(content) is not base:
        raise SerializationError(
            f"class {cls.__module__}.{cls.__qualname__} does not derive from"
            f" {type(content).__name__} any more, as it did when an object of it was stored"
        )
    fill = _FILLS.get(base)
    made: Any = new(cls, content) if fill is None else new(cls)
    if fill is not None:
        fill(made, content)
    if attributes:
        object.__getattribute__(made, "__dict__").update(attributes)
    return made


_CONTENTS: Final[dict[type, Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    list: list.__iter__,
    dict: dict.items,
}
"""Functions that return the content of an object, whatever its class overrides."""

_FILLS: Final[dict[type, Any]] = {list: list.extend, dict: dict.update}
"""Functions that put content into a new object of a mutable class."""

_REBUILDERS: Final[dict[Kind, Any]] = {
    "model": build_model,
    "model of pydantic 1": build_model_of_1,
    "dataclass": build_dataclass,
    "enum": find_member,
    "subclass": build_subclass,
}
