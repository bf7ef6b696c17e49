"""The state, the messages and the facts of a thread, and messages in a message log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from locus_store.errors import IntegrityError, InvalidArgumentError
from locus_store.types.arguments import check_id, copy_json_object
from locus_store.types.marks import LoadedVersion, Provenance
from locus_store.types.messages import LoggedMessage, NewMessage, put_of
from locus_store.types.state import describe_refused_fields, dump_state
from locus_store.values.text import Readable


class Block(BaseModel):
    """A part of a message: ``text``, ``tool_call``, ``tool_result``, ``image``; any other fields.

    A ``text`` block has ``text``; a ``tool_result`` block has ``output``.
    """

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    type: str = "text"


class Message(BaseModel):
    """One message. Fields that this class does not name are kept."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    message_id: str | int = Field(default_factory=lambda: uuid4().hex)
    """Unique in its thread; as a key, ``7`` and ``"7"`` are the same id."""

    role: str
    content: list[Block] = Field(default_factory=list)
    delta: bool = False
    """A part of a message that is being streamed."""

    tools_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    timestamp: datetime | int | float | None = Field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = Field(default_factory=dict)
    usages: dict[str, Any] | None = None
    raw: dict[str, Any] | None = None

    @classmethod
    def text_message(cls, content: str, role: str = "user", **fields: Any) -> Self:
        """Return a message of one text block."""
        return cls(role=role, content=[Block(type="text", text=content)], **fields)

    def text(self) -> str:
        """Return the text of the ``text`` blocks and of the outputs of ``tool_result`` blocks."""
        names = {"text": "text", "tool_result": "output"}
        found = (getattr(it, names.get(it.type, ""), None) for it in self.content)
        return "".join(it for it in found if isinstance(it, str))


class ExecutionState(BaseModel):
    """The position of a run in its graph. Fields that this class does not name are kept."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    current_node: str | None = None
    step: int = 0
    status: str = "idle"
    interrupted_node: str | None = None
    interrupt_reason: str | None = None
    interrupt_data: dict[str, Any] | None = None
    internal_data: dict[str, Any] = Field(default_factory=dict)


class StateProvenance(Provenance):
    """The version that a session's state was made from.

    A deep copy or a pickled copy is saved by itself: of two copies of one state, the second save
    raises ``ConflictError``.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[str | None], StateProvenance], tuple[str | None]]:
        return _copy_provenance, (self.token,)


def _copy_provenance(token: str | None) -> StateProvenance:
    origin = LoadedVersion.from_token(token) if token else None
    return StateProvenance(origin.with_new_load().to_token() if origin else None)


class AgentState(BaseModel):
    """The working memory of an agent; subclass it to add fields.

    A state remembers the version that it was made from, so that a save that lost a race raises
    ``ConflictError``. Fields that this class does not name are kept.
    """

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    context: list[Message] = Field(default_factory=list)
    context_summary: str | None = None
    execution_meta: ExecutionState = Field(default_factory=ExecutionState)
    _version: StateProvenance = PrivateAttr(default_factory=StateProvenance)


class ThreadInfo(BaseModel):
    """The facts of a thread. Fields that this class does not name are refused."""

    model_config = ConfigDict(extra="forbid")

    thread_id: str | int
    thread_name: str | None = None
    user_id: str | int | None = None
    metadata: dict[str, Any] | None = None
    updated_at: datetime | None = None
    """The given time, until a later save or message; without a time zone, in UTC."""

    run_id: str | None = None


class Models(NamedTuple):
    """The classes that a session takes and returns: its own, or those of a framework."""

    state: type[BaseModel]
    """A state comes back in this class, or in the loaded subclass of it that was saved."""

    message: type[Any]
    """A pydantic model with ``message_id``, ``role``, ``metadata`` and ``text()``."""

    thread_info: type[BaseModel]
    """A pydantic model with fields of ``ThreadInfo``."""


MODELS: Final = Models(AgentState, Message, ThreadInfo)
"""The classes of this package."""


def make_info(info: BaseModel | Mapping[str, Any]) -> ThreadInfo:
    """Return the facts of a thread as this package's class.

    Raises:
        InvalidArgumentError: A field is not valid, or is none of ``ThreadInfo``.
    """
    if isinstance(info, ThreadInfo):
        return info
    try:
        return ThreadInfo.model_validate(info.model_dump() if isinstance(info, BaseModel) else info)
    except ValidationError as exc:
        raise InvalidArgumentError(
            f"thread_info must be a ThreadInfo, or a dict of its fields: {exc.error_count()} "
            "field(s) are not valid"
        ) from exc


READABLE: Final = Readable(
    said=frozenset(
        {"content", "tools_calls", "function", "name", "reasoning", "summary", "details"}
        | {"message", "transcript", "title"}
    ),
    given=frozenset({"args", "arguments", "input", "output"}),
)
"""Not ``text``, which is what the class of a message returns."""


def to_log(message: object, kind: type[Any]) -> NewMessage:
    """Return a message as a log stores it.

    Args:
        message: The message.
        kind: The class of a session's messages.

    Raises:
        InvalidArgumentError: It is not of this class, or a field was assigned what the class
            refuses.
        SerializationError: A framework's message cannot be written as JSON.
    """
    if not isinstance(message, kind):
        raise InvalidArgumentError(f"a message must be {_name(kind)}, not {_name(type(message))}")
    content = _dump_content(message) if isinstance(message, Message) else dump_state(message)[0]
    message_id = check_id("message_id", content["message_id"])
    read = _read(content, kind)
    text = _extract_text(read.text() if type(message) is type(read) else message.text(), content)
    role, metadata = content.pop("role"), content.pop("metadata")
    for name in _list_optional(kind):  # type: ignore[arg-type]  # a class is hashable
        if content.get(name) is None:
            content.pop(name, None)
    if isinstance(content["message_id"], str):  # else the row does not say that it is a number
        del content["message_id"]
    return NewMessage(content, role, message_id, metadata, text)


def _extract_text(text: str, content: Mapping[str, Any]) -> str:
    """Return the text of a message for a search.

    Args:
        text: What its class returns: text, and the results of tools that are text.
        content: Its fields: also reasoning, calls of tools, and results that are JSON.
    """
    blocks = content["content"] if isinstance(content["content"], list) else []
    others = [
        {**block, "output": None} if isinstance(block.get("output"), str) else block
        for block in blocks
        if isinstance(block, dict)
    ]
    return READABLE.get_text([text, {**content, "content": others}])


def _read(content: dict[str, Any], kind: type[Any]) -> Any:
    """Return the message that a load makes of this content, if the class accepts it."""
    try:
        return kind.model_validate(content, by_alias=False, by_name=True)
    except ValidationError as exc:
        raise InvalidArgumentError(
            f"message {content['message_id']!r:.80} does not fit {_name(kind)}: "
            f"{describe_refused_fields(exc)}; nothing was written"
        ) from exc


@cache
def _list_optional(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields that a log stores only if they are not ``None``: they fill a message."""
    return tuple(name for name, it in kind.model_fields.items() if it.default is None)


def _dump_content(message: Message) -> dict[str, Any]:
    """Return the fields as they are: the log refuses what JSON would change."""
    content = message.model_dump(
        mode="python", by_alias=False, warnings=False, serialize_as_any=True
    )
    if isinstance(message.timestamp, datetime):
        content["timestamp"] = message.timestamp.isoformat()
    return content


def _name(kind: type[Any]) -> str:
    """Return a class's name, with its package if that is not this one."""
    package = kind.__module__.partition(".")[0]
    is_plain = package in {"builtins", "locus_store"}
    return kind.__name__ if is_plain else f"{package} {kind.__name__}"


def require_exact(
    messages: Sequence[NewMessage], metadata: Mapping[str, Any] | None, max_state_bytes: int
) -> None:
    """Refuse messages that would not come back as they are."""
    shared = copy_json_object("metadata", metadata)
    for message in messages:
        put_of(message, "", shared, max_state_bytes)


def from_log(entry: LoggedMessage, kind: type[Any]) -> Any:
    """Return the message of a log's entry.

    Args:
        entry: The entry.
        kind: The class to return.

    Raises:
        IntegrityError: The entry was not written by a session.
    """
    try:
        data = {
            "message_id": entry.message_id,
            **entry.content,
            "role": entry.role,
            "metadata": entry.metadata,
        }
        return kind.model_validate(data, by_alias=False, by_name=True)
    except (TypeError, ValidationError) as exc:
        raise IntegrityError(
            f"message {entry.message_id!r} was not written by a session; read it with the "
            "backend's message log"
        ) from exc
