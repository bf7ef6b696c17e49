"""LangGraph's serializer, exact, and safer on reading."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import date, time, timedelta
from functools import cache
from inspect import isclass
from typing import Any, Final, TypeVar

import langchain_core.agents  # noqa: F401  (its classes are always found)
import ormsgpack
from langchain_core.load.load import Reviver
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_METHOD_SINGLE_ARG,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
    _reconstruction_fallback,
    _send_from_args,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from locus_store.adapters.langgraph.packing import CODES, SUBCLASS, TUPLE, pack
from locus_store.errors import SerializationError
from locus_store.types.arguments import check_list
from locus_store.values.codec import classes, forms
from locus_store.values.codec.classes import Classes, Kind, find_kind
from locus_store.values.codec.names import Name, name_of
from locus_store.values.msgpack import FORM, Extension, unpack

T = TypeVar("T")

TEXT: Final = ("langchain_core.messages.base", "TextAccessor")
"""The class of a message's text, a ``str``."""

_SECRETS: Final = frozenset({("pydantic.types", "SecretStr"), ("pydantic.types", "SecretBytes")})
"""Made from the text that they hide."""

ALWAYS: Final = (
    SAFE_MSGPACK_TYPES
    | _SECRETS
    | {
        TUPLE,
        TEXT,
        ("langchain_core.agents", "AgentAction"),
        ("langchain_core.agents", "AgentActionMessageLog"),
        ("langchain_core.agents", "AgentStep"),
        ("langchain_core.agents", "AgentFinish"),
    }
)
"""Classes that are allowed in any case."""

_KINDS: Final = {code: kind for kind, code in CODES.items()}

_MESSAGES: Final = Reviver(allowed_objects="messages")

_failures: ContextVar[list[SerializationError] | None] = ContextVar(
    "locus_store_serializer_failures", default=None
)
"""Errors raised beneath ``ormsgpack``, which replaces them by its own."""


class ExactSerializer(JsonPlusSerializer):
    """``JsonPlusSerializer`` that keeps types exactly, and is safer on reading.

    Pydantic models, dataclasses and enums are stored by name. On reading, only such classes are
    used, and only imported ones: nothing is imported, and nothing that a row names is called; see
    ``classes``. Where LangGraph's serializer returns an object's fields instead of the object, this
    one raises ``SerializationError``. A tuple comes back as a tuple; there it becomes a list.

    Args:
        allowed: The only classes that may be stored and read, beside those that LangGraph considers
            safe (messages, datetimes, UUIDs, Send, Interrupt and others) and LangChain's agent
            classes: the classes themselves, or pairs of module and name. ``None``: all models,
            dataclasses and enums, unless ``LANGGRAPH_STRICT_MSGPACK`` is set. With it, ``compile``
            adds the classes of the graph's own state.
    """

    def __init__(self, allowed: Iterable[tuple[str, ...] | type] | None = None) -> None:
        listed = check_list("allowed", allowed or ())
        super().__init__(allowed_msgpack_modules=(TUPLE, *listed))
        self._is_open = allowed is None and not _msgpack.STRICT_MSGPACK_ENABLED
        self._classes = Classes(it for it in listed if isclass(it))

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return an object's type and bytes.

        Raises:
            SerializationError: It, or an object in it, cannot be stored; names the class.
            TypeError: There is no form for it.
        """
        if obj is None or isinstance(obj, (bytes, bytearray)):
            return super().dumps_typed(obj)
        return "msgpack", pack(obj, self)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the object of a type and bytes.

        Raises:
            SerializationError: It, or an object in it, is of a class that is not allowed, not
                imported, or not as it was when the object was stored.
        """
        kind, held = data
        if kind != "msgpack":
            return super().loads_typed(data)
        return _unmask_error(lambda: self._unpack(held))

    def _reviver(self, value: dict[str, Any]) -> Any:
        """Return an object of a value of type ``json``: LangChain's messages, and LangGraph's own.

        LangGraph would import and construct other classes of LangChain as well.
        """
        if value.get("lc") != 1:
            return super()._reviver(value)
        try:
            return _MESSAGES(value)
        except (ValueError, NotImplementedError) as exc:
            raise SerializationError(
                f"a stored object of {value.get('id')!r:.100} is not a LangChain message, and "
                "values of the type json may hold no other object"
            ) from exc

    def note(self, cls: type) -> None:
        """Remember a class of which an object is stored."""
        self._classes.note(cls)

    def convert_langgraph(self, obj: Any) -> Any:
        """Return LangGraph's extension for an object.

        Raises:
            SerializationError: There is none, or one that would not be read.
        """
        cls = type(obj)
        is_plain = name_of(cls) in SAFE_MSGPACK_TYPES or cls is re.Pattern
        if isinstance(obj, (BaseException, date, time, timedelta)) and not is_plain:
            raise _make_unstorable_error(cls)
        try:
            made: Any = unpack(super().dumps_typed(obj)[1])
        except TypeError:
            raise _make_unstorable_error(cls) from None
        if not isinstance(made, Extension):
            raise _make_unstorable_error(cls)
        if made.code == EXT_NUMPY_ARRAY:
            if cls is not forms.find_numpy().ndarray:
                raise _make_unstorable_error(cls)
            forms.require_exact(obj.dtype)
        elif not is_plain:
            module, path, *_ = unpack(made.data)
            self.require_allowed((module, path))
            self._require_readable(cls, made)
        return ormsgpack.Ext(made.code, made.data)

    def _require_readable(self, cls: type, extension: Extension) -> None:
        """Refuse an object that reading would refuse, or return as another."""
        self._classes.note(cls)
        try:
            found = _unmask_error(lambda: self._restore_object(extension.code, extension.data))
        except SerializationError as exc:
            raise _make_unstorable_error(cls) from exc
        if type(found) is not cls:
            raise _make_unstorable_error(cls)

    def _unpack(self, data: bytes) -> Any:
        return ormsgpack.unpackb(
            data, ext_hook=self._restore_object, option=ormsgpack.OPT_NON_STR_KEYS
        )

    def _restore_object(self, code: int, data: bytes) -> Any:
        if code == EXT_NUMPY_ARRAY:
            return _make_array(data)
        held = self._unpack(data)
        if code == EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(held)
        try:
            return self._restore_form(*held) if code == FORM else self._convert_named(code, *held)
        except SerializationError as exc:
            raise _note_error(exc) from exc
        except Exception as exc:
            raise _note_error(_make_unreadable_error(held, exc)) from exc

    def _restore_form(self, tag: str, *held: Any) -> Any:
        if tag != SUBCLASS:
            (content,) = held
            return forms.load(tag, content)
        module, path, content, attributes = held
        self.require_allowed((module, path), "subclass")
        return classes.build_subclass(self._classes.find((module, path)), content, attributes)

    def _convert_named(self, code: int, module: str, path: str, data: Any, *more: Any) -> Any:
        name = module, path
        if code == EXT_METHOD_SINGLE_ARG:
            return _call_method(module, path, data, *more)
        if name in SAFE_MSGPACK_TYPES or name == TUPLE:
            return _make_safe_object(code, name, data)
        kind = _KINDS.get(code)
        self.require_allowed(name, kind)
        cls = self._classes.find(name)
        if kind is not None and find_kind(cls) == kind:
            return classes.rebuild(cls, kind, data, *more[1:])
        if (name in _SECRETS or self._is_listed(name)) and find_kind(cls) is None:
            return _CALLS[code](cls, data)
        raise SerializationError(
            f"{module}.{path} is not a pydantic model, dataclass or enum as stored; allow it with"
            " LangGraphSaver(..., allowed=[…]) if its constructor may be called on reading"
        )

    def _is_listed(self, name: Name) -> bool:
        listed = self._allowed_msgpack_modules
        return listed is True or classes.is_listed(name, listed or ())

    def require_allowed(self, name: Name, kind: Kind | None = None) -> None:
        """Raise ``SerializationError`` unless objects of a class may be stored and read."""
        if name in ALWAYS or (self._is_open and kind is not None) or self._is_listed(name):
            return
        raise SerializationError(
            f"class {'.'.join(name)} is not allowed: allow it with LangGraphSaver(...,"
            " allowed=[…]), or keep its data as plain values"
        )


def make_exact(
    serde: SerializerProtocol | None, allowlist: Iterable[tuple[str, ...] | type] | None
) -> SerializerProtocol | None:
    """Return the serializer; where it encrypts over LangGraph's default, over an exact one.

    An ``EncryptedSerializer`` hands values that are not encrypted to its inner serializer, so that
    a row in clear would have the power that the encryption is to take away.
    """
    if type(serde) is EncryptedSerializer and type(serde.serde) is JsonPlusSerializer:
        return EncryptedSerializer(serde.cipher, ExactSerializer(allowlist))
    return serde


def _refuse_extension(code: int, data: bytes) -> Any:
    raise _note_error(
        SerializationError(f"an array has an extension in it (code {code}, {len(data)} bytes)")
    )


def _make_array(data: bytes) -> Any:
    """Return an extension's array; refuse a damaged one, and any if NumPy is not imported."""
    try:
        dtype, shape, order, held = ormsgpack.unpackb(data, ext_hook=_refuse_extension)
        return forms.build_array(dtype, shape, order, held)
    except SerializationError as exc:
        raise _note_error(exc) from exc
    except Exception as exc:
        failure = SerializationError(f"a NumPy array cannot be read: {type(exc).__name__}")
        raise _note_error(failure) from exc


def _make_safe_object(code: int, name: Name, data: Any) -> Any:
    """Return an object of a class that LangGraph considers safe, made as LangGraph does."""
    try:
        if name == ("langgraph.types", "Send"):
            return _send_from_args(data)
        return _CALLS[code](_find_safe_class(name), data)
    except Exception as exc:  # noqa: BLE001  (LangGraph's promise: the data, and a warning)
        return _reconstruction_fallback((*name, data), exc)


@cache
def _find_safe_class(name: Name) -> Any:
    module, path = name
    return getattr(importlib.import_module(module), path)


def _call_method(module: str, path: str, argument: Any, method: str) -> Any:
    if (module, path, method) not in SAFE_MSGPACK_METHODS:
        raise SerializationError(f"{module}.{path}.{method} is not allowed: no row may name it")
    return getattr(_find_safe_class((module, path)), method)(argument)


def _make_model(cls: Any, fields: Any) -> Any:
    try:
        return cls(**fields)
    except Exception:  # noqa: BLE001  (as LangGraph does)
        return cls.model_construct(**fields)


_CALLS: Final[dict[int, Callable[[Any, Any], Any]]] = {
    EXT_CONSTRUCTOR_SINGLE_ARG: lambda cls, held: cls(held),
    EXT_CONSTRUCTOR_POS_ARGS: lambda cls, held: cls(*held),
    EXT_CONSTRUCTOR_KW_ARGS: lambda cls, held: cls(**held),
    EXT_PYDANTIC_V1: lambda cls, held: cls(**held),
    EXT_PYDANTIC_V2: _make_model,
}
"""Calls of a constructor, by the extension; for classes that are safe or listed."""


def _unmask_error(call: Callable[[], T]) -> T:
    """Call ``ormsgpack``, and raise the error that it replaced by its own."""
    failures: list[SerializationError] = []
    outer = _failures.set(failures)
    try:
        return call()
    except (TypeError, ValueError):
        if failures:
            raise failures[0] from None
        raise
    finally:
        _failures.reset(outer)


def _note_error(failure: SerializationError) -> SerializationError:
    failures = _failures.get()
    if failures is not None:
        failures.append(failure)
    return failure


def _make_unstorable_error(cls: type) -> SerializationError:
    hint = next((it for kind, it in _HINTS if issubclass(cls, kind)), "convert it to one of these")
    return SerializationError(
        f"an object of class {cls.__module__}.{cls.__qualname__} cannot be stored. Pydantic models,"
        f" dataclasses, enums, messages and plain values can: {hint}, or pass a serializer of your"
        " own with LangGraphSaver(..., serde=…)"
    )


_HINTS: Final = (
    (date, "convert it to a datetime (pandas: to_pydatetime)"),
    (timedelta, "convert it to a timedelta (pandas: to_pytimedelta)"),
    (BaseException, "keep its text, str(exc)"),
)


def _make_unreadable_error(content: Any, exc: Exception) -> SerializationError:
    name = ".".join(map(str, content[:2])) if isinstance(content, list) else "an unknown class"
    return SerializationError(f"an object of {name} cannot be read: {type(exc).__name__}")
