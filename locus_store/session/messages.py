"""Messages of a conversation, and their form in a message log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from locus_store.errors import IntegrityError, InvalidArgumentError
from locus_store.types.arguments import json_object
from locus_store.types.messages import NewMessage, put_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.types.messages import LoggedMessage


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


_ABSENT: Final = tuple(name for name, it in Message.model_fields.items() if it.default is None)
"""Fields that a log stores only if they are not ``None``: a fifth of a short message."""


def to_log(message: object) -> NewMessage:
    """Return a message as a log stores it.

    Raises:
        InvalidArgumentError: It is not a ``Message``.
    """
    if not isinstance(message, Message):
        raise InvalidArgumentError(f"a message is a Message, not {type(message).__name__}")
    content = message.model_dump(mode="python", by_alias=False, exclude={"metadata", "role"})
    for name in _ABSENT:
        if content[name] is None:
            del content[name]
    if isinstance(message.message_id, str):
        del content["message_id"]
    if isinstance(message.timestamp, datetime):
        content["timestamp"] = message.timestamp.isoformat()
    return NewMessage(
        content, message.role, str(message.message_id), message.metadata, message.text()
    )


def require_exact(
    messages: Sequence[NewMessage], metadata: Mapping[str, Any] | None, max_state_bytes: int
) -> None:
    """Refuse messages that would not come back as they are.

    Raises:
        InvalidArgumentError, SerializationError: See ``BaseMessageLog.append``.
    """
    shared = json_object("metadata", metadata)
    for it in messages:
        put_of(it, "", shared, max_state_bytes)


def from_log(logged: LoggedMessage) -> Message:
    """Return the message of a log's entry.

    Raises:
        IntegrityError: The entry was not written by a session.
    """
    try:
        data = {
            "message_id": logged.message_id,  # the content has one that is a number
            **logged.content,
            "role": logged.role,
            "metadata": logged.metadata,
        }
        return Message.model_validate(data)
    except (TypeError, ValidationError) as exc:
        raise IntegrityError(
            f"message {logged.message_id!r} was not written by a session; read it with the "
            "backend's message log"
        ) from exc
