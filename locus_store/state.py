"""AgentState and Message, and how a state of any type becomes a JSON object and comes back."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from types import UnionType
from typing import Annotated, Any, Protocol, Self, Union, get_args, get_origin, runtime_checkable
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from locus_store.errors import InvalidArgumentError, SerializationError
from locus_store.types import Mark

MARK_KEY = "_locus_store_mark"
"""Key in a state's ``metadata`` that says which version it was made from; never stored."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(BaseModel):
    """A tool call that the assistant asks for."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str = Field(default_factory=lambda: f"call_{uuid4().hex[:12]}")
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Message(BaseModel):
    """One message of a conversation; immutable."""

    model_config = ConfigDict(frozen=True, extra="allow")

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
        """What the user said."""
        return cls(role=Role.USER, content=content, **fields)

    @classmethod
    def assistant(
        cls, content: str | None = None, tool_calls: Iterable[ToolCall] = (), **fields: Any
    ) -> Self:
        """What the model answered, with the tool calls it asks for."""
        return cls(role=Role.ASSISTANT, content=content, tool_calls=tuple(tool_calls), **fields)

    @classmethod
    def tool(
        cls, content: str, *, tool_call_id: str, name: str | None = None, **fields: Any
    ) -> Self:
        """What a tool returned for the call ``tool_call_id``."""
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

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str = Field(default_factory=lambda: uuid4().hex)
    agent_id: str | None = None
    messages: tuple[Message, ...] = ()
    iteration: int = 0
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    _provenance: Provenance = PrivateAttr(default_factory=Provenance)

    def with_message(self, message: Message) -> Self:
        """This state and one more message."""
        return self.model_copy(update={"messages": (*self.messages, message)})

    def with_messages(self, messages: Iterable[Message]) -> Self:
        """This state and more messages, in their order."""
        return self.model_copy(update={"messages": (*self.messages, *messages)})

    def with_metadata(self, key: str, value: Any) -> Self:
        """This state with one entry of ``metadata`` set."""
        return self.model_copy(update={"metadata": {**self.metadata, key: value}})

    def with_iteration(self, iteration: int) -> Self:
        """This state at another iteration."""
        return self.model_copy(update={"iteration": iteration})

    def to_checkpoint(self) -> dict[str, Any]:
        """The state as a JSON object."""
        return self.model_dump(mode="json")

    @classmethod
    def from_checkpoint(cls, data: Mapping[str, Any]) -> Self:
        """The state that ``to_checkpoint`` gave ``data``."""
        return cls.model_validate(data)


@runtime_checkable
class Checkpointable(Protocol):
    """A state class of any library: what ``state_type=`` needs to be."""

    def to_checkpoint(self) -> dict[str, Any]: ...

    @classmethod
    def from_checkpoint(cls, data: Any) -> Any: ...


class LoadedDict(dict[str, Any]):
    """A plain dict state that remembers the version it was loaded from."""

    __slots__ = ("provenance",)

    def __init__(self, data: Mapping[str, Any], provenance: Provenance) -> None:
        super().__init__(data)
        self.provenance = provenance

    def copy(self) -> LoadedDict:
        return LoadedDict(self, self.provenance)

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedDict:
        import copy  # noqa: PLC0415  (only for those who copy deeply)

        return LoadedDict(copy.deepcopy(dict(self), memo), self.provenance)


# --- the mark that travels with a loaded state


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One load and everything that is made from it.

    ``nonce`` is minted by the load, so that two runs that loaded the same version are told apart.
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
        """The lineage in a token; ``None`` for anything that is not one of ours."""
        try:
            version, thread, nonce, body = str(token).split(".")
            if version != "1":
                return None
            raw = base64.urlsafe_b64decode(body)
            cut = 2 + struct.unpack_from(">H", raw)[0]
            made_from, head = _unpacked(raw[2:cut]), _unpacked(raw[cut + 2 :])
        except (ValueError, struct.error, UnicodeDecodeError):
            return None
        return cls(thread=thread, made_from=made_from, head=head or made_from, nonce=nonce)


def thread_key(thread_id: str) -> str:
    """A short name of a thread for a mark."""
    return sha256(thread_id.encode()).hexdigest()[:16]


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
    """Turns states of one type into JSON objects and back.

    Args:
        state_type: ``AgentState``, any class with ``to_checkpoint`` and ``from_checkpoint``, any
            pydantic model, or ``dict``.

    Raises:
        InvalidArgumentError: ``state_type`` is none of these.
    """

    def __init__(self, state_type: type[Any] = AgentState) -> None:
        if not isinstance(state_type, type) or not (
            issubclass(state_type, dict)
            or issubclass(state_type, BaseModel)
            or isinstance(state_type, Checkpointable)
        ):
            raise InvalidArgumentError(
                f"state_type={state_type!r} must be dict, a pydantic model, or a class with "
                "to_checkpoint() and from_checkpoint()"
            )
        self.state_type: Any = state_type

    def dump(self, state: Any) -> tuple[dict[str, Any], Lineage | None]:
        """The state as a JSON object of its own, and the lineage that it carried.

        Raises:
            SerializationError: The state gives no JSON object.
        """
        data, token = self._plain(state), None
        metadata = data.get("metadata")
        if isinstance(metadata, dict) and MARK_KEY in metadata:
            metadata = dict(metadata)
            token = metadata.pop(MARK_KEY)
            data = {**data, "metadata": metadata}
        if isinstance(state, LoadedDict):
            token = state.provenance.token
        elif isinstance(state, AgentState):
            token = state._provenance.token  # noqa: SLF001  (our own class)
        return data, Lineage.from_token(token) if token else None

    def _plain(self, state: Any) -> dict[str, Any]:
        if isinstance(state, dict):
            return state
        if isinstance(state, Checkpointable):
            data: Any = state.to_checkpoint()
        elif isinstance(state, BaseModel):
            data = state.model_dump(mode="json")
        else:
            raise SerializationError(
                f"cannot save a {type(state).__name__}: pass a {self.state_type.__name__}, a dict, "
                "a pydantic model or an object with to_checkpoint()"
            )
        if not isinstance(data, dict):
            raise SerializationError(
                f"{type(state).__name__}.to_checkpoint() gave a {type(data).__name__}; a state is "
                "a JSON object"
            )
        if isinstance(state, BaseModel):
            _sort_sets(_set_fields(type(state)), data)
        return data

    def restore(self, data: dict[str, Any], lineage: Lineage) -> Any:
        """The state of ``data``, carrying ``lineage`` where its type has room for one.

        Raises:
            SerializationError: ``data`` does not fit ``state_type``.
        """
        if issubclass(self.state_type, dict):
            return LoadedDict(data, Provenance(lineage.token()))
        try:
            return self._built(data, lineage)
        except ValidationError as exc:
            raise SerializationError(
                f"the stored state does not fit {self.state_type.__name__}: {exc.error_count()} "
                "field(s) refused; load it with state_type=dict to look at it"
            ) from exc

    def _built(self, data: dict[str, Any], lineage: Lineage) -> Any:
        if self._has_metadata and not issubclass(self.state_type, AgentState):
            metadata = data.get("metadata")
            if metadata is None or isinstance(metadata, dict):
                data = {**data, "metadata": {**(metadata or {}), MARK_KEY: lineage.token()}}
        make: Callable[[Any], Any] = getattr(self.state_type, "from_checkpoint", None) or (
            self.state_type.model_validate
        )
        state = make(data)
        if isinstance(state, AgentState):
            state._provenance = Provenance(lineage.token())  # noqa: SLF001  (our own class)
        return state

    @property
    def carries_marks(self) -> bool:
        """Whether a loaded state of this type remembers the version it was loaded from."""
        return (
            issubclass(self.state_type, dict)
            or self._has_metadata
            or issubclass(self.state_type, AgentState)
        )

    @property
    def _has_metadata(self) -> bool:
        """Whether the type has a free ``metadata`` mapping, as Locus' AgentState has."""
        if not issubclass(self.state_type, BaseModel):
            return False
        known = self.state_type.model_fields.get("metadata")
        return known is not None and get_origin(known.annotation) in (dict, Mapping)


def labels_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a state says of itself: ``agent_id``, and ``tags`` at its top or in its metadata."""
    labels: dict[str, Any] = {}
    if isinstance(agent_id := data.get("agent_id"), str):
        labels["agent_id"] = agent_id
    metadata = data.get("metadata")
    inner = metadata.get("tags") if isinstance(metadata, dict) else None
    tags = data.get("tags", inner)
    if isinstance(tags, list | tuple) and all(isinstance(tag, str) for tag in tags):
        labels["tags"] = list(tags)
    return labels


# --- sets have no order, but their JSON has: it differs from process to process


@lru_cache(maxsize=256)
def _set_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Per field that holds sets: ``True`` where it is one, else the fields of the model inside."""
    found = {}
    for name, known in model.model_fields.items():
        inside = _sets_in(known.annotation, (model,))
        if inside:
            found[name] = inside
    return found


def _sets_in(annotation: Any, seen: tuple[Any, ...]) -> Any:
    origin = get_origin(annotation) or annotation
    if origin in (set, frozenset):
        return True
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        return None if origin in seen else _set_fields(origin) or None
    if origin in (list, tuple, dict, Mapping, Union, UnionType, Annotated):
        for argument in get_args(annotation):
            if inside := _sets_in(argument, seen):
                return inside
    return None


def _sort_sets(fields: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    for name, inside in fields.items():
        _sort_in(inside, data.get(name))


def _sort_in(inside: Any, value: Any) -> None:
    if inside is True and isinstance(value, list):
        value.sort(key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
    elif isinstance(value, list):
        for item in value:
            _sort_in(inside, item)
    elif isinstance(value, dict) and inside is True:  # a mapping of sets
        for item in value.values():
            _sort_in(inside, item)
    elif isinstance(value, dict) and isinstance(inside, dict):
        _sort_sets(inside, value)
