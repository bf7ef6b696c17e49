"""Forms of Python's own values: a tag, and simpler values from which the same value is made.

A carrier (tagged JSON, or MessagePack) holds the forms. ``Trees`` replaces each value that carriers
do not hold by themselves by its form, also within forms. Only exact types have a form: a value of a
subclass would come back as another type.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from types import NoneType
from typing import Any, Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from locus_store.errors import SerializationError
from locus_store.values.encoding import MAX_INT, MIN_INT
from locus_store.values.surrogates import escape, unescape


class RefusedError(SerializationError):
    """A value that cannot be kept; collects the steps to it, from the inside out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.steps: list[object] = []

    def __str__(self) -> str:
        return self.with_place("")

    def with_place(self, place: str) -> str:
        """Return the message, with the path below a place."""
        path = place + "".join(map(_step, reversed(self.steps)))
        return f"{path.removeprefix('.')}: {self.why}" if path else self.why


def _step(step: object) -> str:
    is_name = isinstance(step, str) and step.isidentifier()
    return f".{step}" if is_name else f"[{step!a:.60}]"


class ValueForm(NamedTuple):
    """The form of a type."""

    tag: str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def _dump_zone(value: timezone) -> list[Any]:
    return [*value.__getinitargs__()]  # type: ignore[attr-defined]  # the offset, and a name


def _dump_time(value: datetime | time) -> Any:
    if is_plain_time(value):
        return value.isoformat()
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, value.tzinfo]


def is_plain_time(value: datetime | time) -> bool:
    """Return whether ``isoformat`` keeps all of a time: no zone, or an offset without a name."""
    zone = value.tzinfo
    return value.fold == 0 and (
        zone is None or (type(zone) is timezone and len(_dump_zone(zone)) == 1)
    )


def _load_time(kind: type[datetime | time], content: Any) -> datetime | time:
    if isinstance(content, str):
        return kind.fromisoformat(content)
    text, fold, zone = content
    return kind.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _dump_int(value: int) -> str:
    try:
        return str(value)
    except ValueError as exc:
        raise RefusedError(
            f"an integer cannot be stored, as Python does not read it: {exc}"
        ) from exc


def _dump_zone_info(value: ZoneInfo) -> str:
    if value.key is None or ZoneInfo(value.key) is not value:
        raise RefusedError("a ZoneInfo that is not ZoneInfo(key) cannot be stored")
    return value.key


def _dump_defaultdict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise RefusedError(
            f"a defaultdict with the factory {factory!r:.60} cannot be stored: only with one of "
            f"{', '.join(_FACTORIES)}; convert it to a dict"
        )
    return [None if factory is None else factory.__name__, _to_pairs(value)]


def _build_defaultdict(content: list[Any]) -> defaultdict[Any, Any]:
    name, pairs = content
    return defaultdict(None if name is None else _FACTORIES[name], _to_dict(pairs))


def _to_pairs(value: Any) -> list[list[Any]]:
    return [[key, it] for key, it in tuple(value.items())]


def _to_dict(pairs: Any) -> dict[Any, Any]:
    return dict(map(tuple, pairs))


_FACTORIES: Final[dict[str, Any]] = {
    cls.__name__: cls
    for cls in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple, deque, Counter)
}

_BY_TEXT: Final = (
    *(IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network),
    *(Decimal, UUID, PosixPath, PurePosixPath, PureWindowsPath),
)
"""Types whose objects are made from their text."""

FORMS: Final[dict[type, ValueForm]] = {
    **{it: ValueForm(it.__name__.lower(), str, it) for it in _BY_TEXT},
    str: ValueForm("text", escape, unescape),  # those with a lone surrogate
    int: ValueForm("int", _dump_int, int),  # those beyond 64 bits
    float: ValueForm("float", str, float),  # those that JSON has not
    complex: ValueForm("complex", lambda it: [it.real, it.imag], lambda it: complex(*it)),
    bytearray: ValueForm("bytearray", bytes, bytearray),
    date: ValueForm("date", date.isoformat, date.fromisoformat),
    datetime: ValueForm("datetime", _dump_time, partial(_load_time, datetime)),
    time: ValueForm("time", _dump_time, partial(_load_time, time)),
    timedelta: ValueForm(
        "timedelta", lambda it: [it.days, it.seconds, it.microseconds], lambda it: timedelta(*it)
    ),
    timezone: ValueForm("timezone", _dump_zone, lambda it: timezone(*it)),
    ZoneInfo: ValueForm("zone", _dump_zone_info, ZoneInfo),
    range: ValueForm("range", lambda it: [it.start, it.stop, it.step], lambda it: range(*it)),
    slice: ValueForm("slice", lambda it: [it.start, it.stop, it.step], lambda it: slice(*it)),
    re.Pattern: ValueForm("pattern", lambda it: [it.pattern, it.flags], lambda it: re.compile(*it)),
    tuple: ValueForm("tuple", list, tuple),
    set: ValueForm("set", list, set),
    frozenset: ValueForm("frozenset", list, frozenset),
    deque: ValueForm("deque", lambda it: [[*it], it.maxlen], lambda it: deque(*it)),
    dict: ValueForm("map", _to_pairs, _to_dict),  # those with keys that the carrier cannot hold
    defaultdict: ValueForm("defaultdict", _dump_defaultdict, _build_defaultdict),
    OrderedDict: ValueForm("ordereddict", _to_pairs, lambda it: OrderedDict(_to_dict(it))),
    Counter: ValueForm("counter", _to_pairs, lambda it: Counter(_to_dict(it))),
}
"""The forms by exact type."""


def dump(value: Any) -> tuple[str, Any] | None:
    """Return the tag and the content of a value; ``None`` if its type has no form.

    Raises:
        RefusedError: The type has one, but the value is not all that it holds.
    """
    form = FORMS.get(type(value)) or find_numpy_form(type(value))
    return None if form is None else (form.tag, form.dump(value))


_PAIRS: Final = {"map": 2, "ordereddict": 2, "counter": 2, "defaultdict": 3}
"""The steps from a mapping to a key or value in its form."""


def locate(refusal: RefusedError, tag: str, value: Any) -> None:
    """Replace the steps within a form by those within its value."""
    count = _PAIRS.get(tag)
    if count is not None:
        key = list(value)[int(str(refusal.steps[1 - count]))]
        refusal.steps[-count:] = [key]
    elif tag in {"deque", "datetime", "time"}:
        refusal.steps.pop()


def has(tag: Any) -> bool:
    """Return whether a tag is that of a form."""
    return tag in _LOADS


def load(tag: str, content: Any) -> Any:
    """Return the value of a form.

    Raises:
        LookupError, TypeError, ValueError: It is damaged.
        SerializationError: NumPy is not imported.
    """
    return _LOADS[tag](content)


DTYPE: Final = re.compile(r"[<>|][biufcSUV]\d+")
"""A dtype of plain values as NumPy writes it; objects and NumPy's own strings hold addresses."""


def find_numpy() -> Any:
    """Return NumPy; refuse to import it if the program has not."""
    found = sys.modules.get("numpy")
    if found is None:
        raise SerializationError(
            "a NumPy array is stored here, and nothing is imported on reading. Write"
            " `import numpy` where your program opens the storage"
        )
    return found


def require_exact(dtype: Any) -> None:
    """Refuse an array whose elements are objects, or that would be read with another dtype."""
    if not DTYPE.fullmatch(dtype.str) or find_numpy().dtype(dtype.str) != dtype:
        raise RefusedError(
            f"a NumPy array of dtype {dtype!s:.100} cannot be stored: convert it to a list, or to"
            " arrays of plain numbers"
        )


def build_array(dtype: str, shape: Sequence[int], order: str, data: bytes) -> Any:
    """Return an array that owns its data."""
    if not DTYPE.fullmatch(dtype):
        raise ValueError(dtype)
    found = find_numpy()
    flat = found.frombuffer(data, dtype=found.dtype(dtype))
    return flat.reshape(shape, order=order).copy(order="K")


def find_numpy_form(kind: type) -> ValueForm | None:
    """Return the form of NumPy's arrays, or of its scalars; ``None`` for another type."""
    found = sys.modules.get("numpy")
    if found is None or not kind.__module__.startswith("numpy"):
        return None
    if kind is found.ndarray:
        return _ARRAY
    return _SCALAR if issubclass(kind, found.generic) else None


def is_numpy_scalar(value: Any) -> bool:
    """Return whether a value is one of NumPy's numbers or strings."""
    found = sys.modules.get("numpy")
    return found is not None and isinstance(value, found.generic)


def _dump_array(value: Any) -> list[Any]:
    require_exact(value.dtype)
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return [value.dtype.str, list(value.shape), order, value.tobytes(order=order)]


def _as_parts(value: Any) -> list[Any]:
    require_exact(value.dtype)
    return [value.dtype.str, value.tobytes()]


_ARRAY: Final = ValueForm("array", _dump_array, lambda it: build_array(*it))
_SCALAR: Final = ValueForm("scalar", _as_parts, lambda it: build_array(it[0], (1,), "C", it[1])[0])
_LOADS: Final = {it.tag: it.load for it in (*FORMS.values(), _ARRAY, _SCALAR)}


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
            value = value.copy()  # another thread may change it meanwhile
            is_flat = not self._is_careful and FLAT.issuperset(map(type, value))
            return value if is_flat else self.convert_items(value)
        if kind is dict:
            return self._convert_dict(value)
        try:
            return (
                self.convert_formed(value, kind)
                if kind in FORMS
                else self.convert_other(value, kind)
            )
        except RefusedError:
            raise
        except SerializationError as exc:
            raise RefusedError(str(exc)) from exc

    def convert_items(self, items: Iterable[Any]) -> list[Any]:
        made: list[Any] = []
        try:
            for item in items:
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
        tag, held = dump(value) or ("", None)
        try:
            return self.make_node(tag, self.convert(held))
        except RefusedError as exc:
            locate(exc, tag, value)
            raise


def _is_held(value: Any) -> bool:
    """Return whether UTF-8 holds a plain value, if it is a string, or 64 bits, if an integer."""
    if type(value) is str:
        return value.isascii() or escape(value) is value
    return type(value) is not int or MIN_INT <= value <= MAX_INT
