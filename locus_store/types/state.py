"""AgentState and Message, and how an object becomes a JSON object and comes back.

Imports pydantic. A process that saves and loads dicts only does not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Self, TypeVar, get_args, get_origin
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import PydanticSerializationError

from locus_store.errors import SerializationError
from locus_store.types.marks import MARK_KEY, LoadedVersion, Provenance, split_mark
from locus_store.types.state_classes import Checkpointable, has_room
from locus_store.values import surrogates
from locus_store.values.encoding import encode
from locus_store.values.surrogates import escape, restore

T = TypeVar("T")

REFUSED: Final = (UnicodeEncodeError, PydanticSerializationError)
"""Errors of a key; the latter where a serializer of the model wraps the former."""

_LOST: Final = "\ufffd".encode()


def dump_with_keys(value: T, dump: Callable[[T], Any]) -> Any:
    """Return the JSON that ``dump`` makes of a value, with keys that pydantic cannot write.

    Args:
        value: A model, or a value that may hold some.
        dump: Makes JSON of it; called again, with a copy that has other keys, if some are lost.
    """
    try:
        made = dump(value)
        if not _may_have_lost(made):
            return made
    except REFUSED:
        pass
    return restore(dump(escape_keys(value)))


def _may_have_lost(value: Any) -> bool:
    try:
        return _LOST in orjson.dumps(value)
    except TypeError:  # a string has a lone surrogate, so a key may have had one
        return True


def escape_keys(value: Any) -> Any:
    """Return a copy of a value in which the keys of all dicts are escaped; see ``surrogates``.

    Lists, tuples, dicts, pydantic models and dataclasses are searched.

    Raises:
        SerializationError: Two keys of a dict have the same escaped form.
    """
    if isinstance(value, BaseModel):
        model = value.model_copy()
        model.__dict__.update(escape_keys(value.__dict__))
        extra = escape_keys(value.__pydantic_extra__)
        object.__setattr__(model, "__pydantic_extra__", extra)  # it may be frozen
        return model
    if isinstance(value, dict):
        held = copy(value)
        held.clear()
        for key, item in value.items():
            held[escape(key) if isinstance(key, str) else key] = escape_keys(item)
        if len(held) < len(value):
            raise SerializationError(
                "two keys of a dict differ in lone surrogates and their stored form only: "
                + ", ".join(sorted(ascii(it) for it in value))[:200]
            )
        return held
    if type(value) in {list, tuple}:
        return type(value)(map(escape_keys, value))
    if is_dataclass(value) and not isinstance(value, type):
        made = copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, escape_keys(getattr(value, field.name)))
        return made
    return value


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(BaseModel):
    """A tool call that the assistant asks for."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    id: str = Field(default_factory=lambda: f"call_{uuid4().hex[:12]}")
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Message(BaseModel):
    """One message of a conversation; immutable."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    role: Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For a tool's message: the call that it answers."""

    name: str | None = None
    """For a tool's message: the tool."""

    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def system(cls, content: str, **fields: Any) -> Self:
        """Instructions to the model."""
        return cls(role=Role.SYSTEM, content=content, **fields)

    @classmethod
    def user(cls, content: str, **fields: Any) -> Self:
        """Return a message of the user."""
        return cls(role=Role.USER, content=content, **fields)

    @classmethod
    def assistant(
        cls, content: str | None = None, tool_calls: Iterable[ToolCall] = (), **fields: Any
    ) -> Self:
        """Return a message of the model, with the tool calls it asks for."""
        return cls(role=Role.ASSISTANT, content=content, tool_calls=tuple(tool_calls), **fields)

    @classmethod
    def tool(
        cls, content: str, *, tool_call_id: str, name: str | None = None, **fields: Any
    ) -> Self:
        """Return the result of the tool call ``tool_call_id``."""
        return cls(role=Role.TOOL, content=content, tool_call_id=tool_call_id, name=name, **fields)


class AgentState(BaseModel):
    """An agent's state. It is immutable: a change returns a new object.

    Fields that this class does not name are kept as they are, so that a state written by a
    newer model survives a load and a save by an older one.
    """

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    run_id: str = Field(default_factory=lambda: uuid4().hex)
    agent_id: str | None = None
    messages: tuple[Message, ...] = ()
    iteration: int = 0
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    _provenance: Provenance = PrivateAttr(default_factory=Provenance)

    def with_message(self, message: Message) -> Self:
        """Return this state and one more message."""
        return self.model_copy(update={"messages": (*self.messages, message)})

    def with_messages(self, messages: Iterable[Message]) -> Self:
        """Return this state and more messages, in their order."""
        return self.model_copy(update={"messages": (*self.messages, *messages)})

    def with_metadata(self, key: str, value: Any) -> Self:
        """Return this state with one entry of ``metadata`` set."""
        return self.model_copy(update={"metadata": {**self.metadata, key: value}})

    def with_iteration(self, iteration: int) -> Self:
        """Return this state at another iteration."""
        return self.model_copy(update={"iteration": iteration})

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        return _dump_model(self)

    @classmethod
    def from_checkpoint(cls, data: Mapping[str, Any]) -> Self:
        """Return the state that ``to_checkpoint`` gave ``data``."""
        return cls.model_validate(data)


def keeps_mark(kind: type[Any]) -> bool:
    """Return whether a loaded state of this class remembers the version it was loaded from."""
    return issubclass(kind, AgentState) or has_room(kind)


def dump_state(state: Any) -> tuple[dict[str, Any], Any]:
    """Return the state as a JSON object, and the token of the mark that it carried, or ``None``.

    Raises:
        SerializationError: The state gives no JSON object.
    """
    data = _dump_state(state)
    if isinstance(state, AgentState):
        return data, state._provenance.token  # noqa: SLF001  (our own class)
    return split_mark(data) if has_room(type(state)) else (data, None)


def _dump_state(state: Any) -> dict[str, Any]:
    is_ours = isinstance(state, BaseModel) and not _is_foreign(state)
    if not is_ours and not isinstance(state, Checkpointable):
        raise SerializationError(
            f"cannot save a state of type {type(state).__name__}: pass a dict, a pydantic "
            "model, or an object with to_checkpoint() and from_checkpoint()"
        )
    try:
        data: Any = _dump_model(state) if is_ours else _to_checkpoint(state)
    except (PydanticSerializationError, UnicodeError) as exc:
        raise SerializationError(
            f"{type(state).__name__} cannot be written as JSON: {exc}"
        ) from exc
    if not isinstance(data, dict):
        raise SerializationError(
            f"{type(state).__name__}.to_checkpoint() must return a JSON object, not "
            f"{type(data).__name__}"
        )
    if isinstance(state, BaseModel):
        _sort_sets(state, data)
    return data


LOOK: Final = "with state_type=dict it can be looked at"
"""The advice for a stored state that does not fit its class."""


def restore_state(
    kind: Any, data: dict[str, Any], origin: LoadedVersion | None, advice: str = LOOK
) -> Any:
    """Return the state of ``data``, carrying ``origin``, if any, where its class has room for one.

    Raises:
        SerializationError: ``data`` does not fit the class; the message ends with ``advice``.
    """
    try:
        return _build_state(kind, data, origin)
    except ValidationError as exc:
        raise SerializationError(
            f"the state does not fit {kind.__name__}: {describe_refused_fields(exc)}; {advice}"
        ) from exc


def describe_refused_fields(exc: ValidationError) -> str:
    """Return the number of fields that a model refused, and the name of the first, without data."""
    first = ".".join(map(str, exc.errors(include_input=False, include_context=False)[0]["loc"]))
    return f"{exc.error_count()} field(s) refused, the first {first!r}"


def _build_state(kind: Any, data: dict[str, Any], origin: LoadedVersion | None) -> Any:
    if origin is not None and has_room(kind) and not issubclass(kind, AgentState):
        metadata = data.get("metadata")
        if metadata is None or isinstance(metadata, dict):
            data = {**data, "metadata": {**(metadata or {}), MARK_KEY: origin.to_token()}}
    foreign: Callable[[Any], Any] | None = getattr(kind, "from_checkpoint", None)
    if foreign is not None:
        state = foreign(data)
    else:
        state = kind.model_validate(data, by_name=True, by_alias=False)
    if origin is not None and isinstance(state, AgentState):
        state._provenance = Provenance(origin.to_token())  # noqa: SLF001  (our own class)
    return state


def _is_foreign(state: BaseModel) -> bool:
    """Return whether the model has its own ``to_checkpoint``, which may return any dict."""
    method = getattr(type(state), "to_checkpoint", None)
    return method is not None and method is not AgentState.to_checkpoint


def _to_checkpoint(state: Any) -> Any:
    if isinstance(state, BaseModel):
        return dump_with_keys(state, lambda it: it.to_checkpoint())  # type: ignore[attr-defined]
    return state.to_checkpoint()


def _dump_model(state: BaseModel) -> dict[str, Any]:
    """Dump by field names, without computed fields, so that it validates; subclasses whole."""
    try:
        return _dump_by_names(state)
    except REFUSED:  # with `serialize_as_any` no key is replaced
        data: dict[str, Any] = surrogates.restore(_dump_by_names(escape_keys(state)))
        return data


def _dump_by_names(state: BaseModel) -> dict[str, Any]:
    return state.model_dump(mode="json", by_alias=False, round_trip=True, serialize_as_any=True)


@lru_cache(maxsize=256)
def _set_fields(model: type[BaseModel]) -> tuple[str, ...]:
    """Fields in which a set may stand."""
    fields = model.model_fields.items()
    return tuple(name for name, known in fields if _may_hold_set(known.annotation, (model,)))


def _may_hold_set(annotation: Any, outer: tuple[Any, ...]) -> bool:
    origin = get_origin(annotation) or annotation
    if origin in outer:
        return True
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        known = origin.model_fields.values()
        return any(_may_hold_set(it.annotation, (*outer, origin)) for it in known)
    if isinstance(origin, type) and issubclass(origin, AbstractSet):
        return True
    return any(_may_hold_set(it, outer) for it in get_args(annotation))


def _sort_sets(state: BaseModel, data: Mapping[str, Any]) -> None:
    for name in _set_fields(type(state)):
        _sort_in(getattr(state, name, None), data.get(name))


def _sort_in(value: Any, data: Any) -> None:
    """Sort the lists of ``data`` that stand for sets of ``value``, the inner ones first."""
    if isinstance(value, BaseModel) and isinstance(data, dict):
        _sort_sets(value, data)
    elif isinstance(value, Mapping) and isinstance(data, dict) and len(value) == len(data):
        for item, its in zip(value.values(), data.values(), strict=True):
            _sort_in(item, its)
    elif isinstance(value, list | tuple | AbstractSet) and isinstance(data, list):
        for item, its in zip(value, data, strict=False):
            _sort_in(item, its)
        if isinstance(value, AbstractSet):
            data.sort(key=_make_sort_key)


def _make_sort_key(value: Any) -> bytes:
    return encode(surrogates.escape_within(value))
