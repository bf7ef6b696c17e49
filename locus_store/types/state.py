"""AgentState and Message, and how a state of any type becomes a JSON object and comes back."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self, get_args, get_origin
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import PydanticSerializationError

from locus_store.errors import InvalidArgumentError, SerializationError
from locus_store.types import Mark
from locus_store.types.state_classes import (
    Checkpointable,
    class_label,
    class_of,
    has_room,
    is_state_class,
    require_named,
)

MARK_KEY = "_locus_store_mark"
"""Key in a state's ``metadata`` that says which version it was made from; never stored."""

_NONCE = re.compile("[0-9a-f]{16}")


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


@dataclass(frozen=True, slots=True)
class Provenance:
    """The version a state was made from; equal to any other, so that states compare by content."""

    token: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provenance)

    def __hash__(self) -> int:
        return 0


class AgentState(BaseModel):
    """An agent's state; immutable: every change is a new object.

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
        return _dumped(self)

    @classmethod
    def from_checkpoint(cls, data: Mapping[str, Any]) -> Self:
        """Return the state that ``to_checkpoint`` gave ``data``."""
        return cls.model_validate(data)


class LoadedDict(dict[str, Any]):
    """A plain dict state that remembers the version it was loaded from, and its class."""

    __slots__ = ("class_label", "provenance")

    def __init__(
        self, data: Mapping[str, Any], provenance: Provenance, class_label: dict[str, str]
    ) -> None:
        super().__init__(data)
        self.provenance = provenance
        self.class_label = class_label
        """The label that the version has for its class; empty where it has none."""

    def _with(self, data: Mapping[str, Any]) -> LoadedDict:
        """Other data that was made from the same version."""
        return LoadedDict(data, self.provenance, self.class_label)

    def copy(self) -> LoadedDict:
        return self._with(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedDict:
        return self._with(deepcopy(dict(self), memo))

    def __or__(self, other: Any) -> Any:
        merged = super().__or__(other)
        return self._with(merged) if isinstance(merged, dict) else merged

    def __ror__(self, other: Any) -> Any:
        merged = super().__ror__(other)
        return self._with(merged) if isinstance(merged, dict) else merged

    def __reduce__(
        self,
    ) -> tuple[type[LoadedDict], tuple[dict[str, Any], Provenance, dict[str, str]]]:
        return LoadedDict, (dict(self), self.provenance, self.class_label)


# --- the mark that travels with a loaded state


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One load and everything that is made from it.

    ``nonce`` is minted by the load, so that two runs that loaded the same version differ.
    """

    thread: str
    """``thread_key`` of the thread that was loaded; a state may be saved into another one."""

    made_from: Mark | None
    head: Mark | None
    nonce: str | None = field(default_factory=lambda: uuid4().hex[:16])

    def token(self) -> str:
        """As text, for a place inside a state."""
        marks = [
            _packed(self.made_from),
            _packed(self.head if self.head != self.made_from else None),
        ]
        body = b"".join(struct.pack(">H", len(part)) + part for part in marks)
        return f"1.{self.thread}.{self.nonce}.{base64.urlsafe_b64encode(body).decode()}"

    @classmethod
    def from_token(cls, token: object) -> Lineage | None:
        """Return the lineage in a token; ``None`` for anything that is not one of ours."""
        try:
            version, thread, nonce, body = str(token).split(".")
            if version != "1" or not _NONCE.fullmatch(nonce):
                return None
            raw = base64.urlsafe_b64decode(body)
            cut = 2 + struct.unpack_from(">H", raw)[0]
            if len(raw) < cut + 2:
                return None
            made_from, head = _unpacked(raw[2:cut]), _unpacked(raw[cut + 2 :])
        except (ValueError, struct.error, UnicodeDecodeError):
            return None
        return cls(thread=thread, made_from=made_from, head=head or made_from, nonce=nonce)


def thread_key(thread_id: str) -> str:
    """Return a short name of a thread for a mark."""
    return sha256(thread_id.encode(errors="surrogatepass")).hexdigest()[:16]


def _packed(mark: Mark | None) -> bytes:
    if mark is None:
        return b""
    return struct.pack(">QQ16s", mark.line, mark.sequence, mark.digest) + mark.store.encode()


def _unpacked(raw: bytes) -> Mark | None:
    if not raw:
        return None
    line, sequence, digest = struct.unpack_from(">QQ16s", raw)
    return Mark(store=raw[32:].decode(), line=line, sequence=sequence, digest=digest)


# --- a state of any type to a JSON object and back


class StateCodec:
    """Turns states into JSON objects and back.

    Args:
        state_type: The class that ``restore`` returns: ``AgentState``, any class with
            ``to_checkpoint`` and ``from_checkpoint``, any pydantic model, or ``dict``. ``None``:
            the class that was saved.

    Raises:
        InvalidArgumentError: ``state_type`` is none of these.
    """

    def __init__(self, state_type: type[Any] | None = None) -> None:
        if state_type is not None and not is_state_class(state_type):
            raise InvalidArgumentError(
                f"state_type={state_type!r} must be dict, a pydantic model, or a class with "
                "to_checkpoint() and from_checkpoint()"
            )
        self.state_type = state_type
        self._tried: set[type[Any]] = set()

    def dump(self, state: Any) -> tuple[dict[str, Any], Lineage | None]:
        """Return the state as a JSON object, and the lineage that it carried.

        A mark counts only where ``load`` puts it: in our own classes, and in the ``metadata`` of
        a pydantic state that has room for it.

        Raises:
            SerializationError: The state gives no JSON object, or one that would not load.
        """
        data = self._plain(state)
        token = None
        if isinstance(state, LoadedDict):
            token = state.provenance.token
        elif isinstance(state, AgentState):
            token = state._provenance.token  # noqa: SLF001  (our own class)
        elif has_room(type(state)):
            data, token = without_mark(data)
        self._require_loadable(state, data)
        return data, Lineage.from_token(token) if token else None

    def _plain(self, state: Any) -> dict[str, Any]:
        if isinstance(state, dict):
            return state
        is_ours = isinstance(state, BaseModel) and not _is_foreign(state)
        if not is_ours and not isinstance(state, Checkpointable):
            raise SerializationError(
                f"cannot save a {type(state).__name__}: pass a dict, a pydantic model, or an "
                "object with to_checkpoint() and from_checkpoint()"
            )
        try:
            data: Any = _dumped(state) if is_ours else state.to_checkpoint()
        except (PydanticSerializationError, UnicodeError) as exc:
            raise SerializationError(
                f"{type(state).__name__} cannot be written as JSON: {exc}"
            ) from exc
        if not isinstance(data, dict):
            raise SerializationError(
                f"{type(state).__name__}.to_checkpoint() gave a {type(data).__name__}; a state is "
                "a JSON object"
            )
        if isinstance(state, BaseModel):
            _sort_sets(state, data)
        return data

    def _require_loadable(self, state: Any, data: dict[str, Any]) -> None:
        """Try, once per type, that what is saved can be loaded: an alias may be in the way."""
        kind = type(state)
        target = self.state_type or kind
        if kind in self._tried or issubclass(target, dict):
            return
        if self.state_type is None:
            require_named(state)
        if not isinstance(state, dict):
            _restored(target, data, Lineage(thread="", made_from=None, head=None))
        self._tried.add(kind)

    def class_for(self, labels: Mapping[str, Any], data: Mapping[str, Any]) -> type[Any]:
        """Return the class of the state that ``restore`` builds from a stored version.

        Raises:
            SerializationError: It is to be the class that was saved, which is not imported.
        """
        return self.state_type or class_of(labels, data) or AgentState

    def restore(
        self, data: dict[str, Any], lineage: Lineage, labels: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the state of ``data``, carrying ``lineage`` where its type has room for one.

        Raises:
            SerializationError: ``data`` does not fit the class; see also ``class_for``.
        """
        kind = self.class_for(labels or {}, data)
        if issubclass(kind, dict):
            return LoadedDict(data, Provenance(lineage.token()), class_label(labels or {}))
        return _restored(kind, data, lineage)


def carries_mark(kind: type[Any]) -> bool:
    """Return whether a loaded state of this class remembers the version it was loaded from."""
    return issubclass(kind, dict | AgentState) or has_room(kind)


def has_mark(data: Mapping[str, Any]) -> bool:
    """Return whether the metadata of a plain state has a mark, or any value under its key."""
    metadata = data.get("metadata")
    return isinstance(metadata, Mapping) and MARK_KEY in metadata


def without_mark(data: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a plain state without its mark, and the mark's token; ``None`` where it has none."""
    if not has_mark(data):
        return data, None
    metadata = dict(data["metadata"])
    token = metadata.pop(MARK_KEY)
    return {**data, "metadata": metadata}, token


def _restored(kind: Any, data: dict[str, Any], lineage: Lineage) -> Any:
    try:
        return _built(kind, data, lineage)
    except ValidationError as exc:
        raise SerializationError(
            f"the state does not fit {kind.__name__}: {exc.error_count()} field(s) "
            f"refused, the first {'.'.join(map(str, exc.errors()[0]['loc']))!r}; with "
            "state_type=dict it can be looked at"
        ) from exc


def _built(kind: Any, data: dict[str, Any], lineage: Lineage) -> Any:
    if has_room(kind) and not issubclass(kind, AgentState):
        metadata = data.get("metadata")
        if metadata is None or isinstance(metadata, dict):
            data = {**data, "metadata": {**(metadata or {}), MARK_KEY: lineage.token()}}
    foreign: Callable[[Any], Any] | None = getattr(kind, "from_checkpoint", None)
    if foreign is not None:
        state = foreign(data)
    else:
        state = kind.model_validate(data, by_name=True, by_alias=False)
    if isinstance(state, AgentState):
        state._provenance = Provenance(lineage.token())  # noqa: SLF001  (our own class)
    return state


def _is_foreign(state: BaseModel) -> bool:
    """Return whether the model has its own ``to_checkpoint``, which may return any dict."""
    method = getattr(type(state), "to_checkpoint", None)
    return method is not None and method is not AgentState.to_checkpoint


def _dumped(state: BaseModel) -> dict[str, Any]:
    """Dump by field names, without computed fields, so that it validates; subclasses whole."""
    return state.model_dump(mode="json", by_alias=False, round_trip=True, serialize_as_any=True)


def labels_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of a state: ``agent_id``, ``user_id`` and ``tags``.

    The last two are at its top or in its metadata.
    """
    labels: dict[str, Any] = {}
    metadata = data.get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    if isinstance(agent_id := data.get("agent_id"), str):
        labels["agent_id"] = agent_id
    if isinstance(user_id := data.get("user_id", inner.get("user_id")), str):
        labels["user_id"] = user_id
    tags = data.get("tags", inner.get("tags"))
    if isinstance(tags, list | tuple) and all(isinstance(tag, str) for tag in tags):
        labels["tags"] = list(tags)
    return labels


# --- sets have no order, but their JSON has: it differs from process to process


@lru_cache(maxsize=256)
def _set_fields(model: type[BaseModel]) -> tuple[str, ...]:
    """Fields in which a set may stand."""
    fields = model.model_fields.items()
    return tuple(name for name, known in fields if _may_hold_set(known.annotation, (model,)))


def _may_hold_set(annotation: Any, seen: tuple[Any, ...]) -> bool:
    origin = get_origin(annotation) or annotation
    if origin in seen:
        return True
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        known = origin.model_fields.values()
        return any(_may_hold_set(it.annotation, (*seen, origin)) for it in known)
    if isinstance(origin, type) and issubclass(origin, AbstractSet):
        return True
    return any(_may_hold_set(it, seen) for it in get_args(annotation))


def _sort_sets(state: BaseModel, data: Mapping[str, Any]) -> None:
    for name in _set_fields(type(state)):
        _sort_in(getattr(state, name, None), data.get(name))


def _sort_in(value: Any, dumped: Any) -> None:
    """Sort the lists of ``dumped`` that stand for sets of ``value``, the inner ones first."""
    if isinstance(value, BaseModel) and isinstance(dumped, dict):
        _sort_sets(value, dumped)
    elif isinstance(value, Mapping) and isinstance(dumped, dict) and len(value) == len(dumped):
        for item, its in zip(value.values(), dumped.values(), strict=True):
            _sort_in(item, its)
    elif isinstance(value, list | tuple | AbstractSet) and isinstance(dumped, list):
        for item, its in zip(value, dumped, strict=False):
            _sort_in(item, its)
        if isinstance(value, AbstractSet):
            dumped.sort(key=lambda it: orjson.dumps(it, option=orjson.OPT_SORT_KEYS))
