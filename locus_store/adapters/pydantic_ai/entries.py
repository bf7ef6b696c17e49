"""Records and entries of Pydantic AI as messages."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai import ModelMessage
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_core import PydanticSerializationError

from locus_store.adapters.numbers import numbers_in, with_numbers
from locus_store.errors import IntegrityError, SerializationError
from locus_store.messages import NewMessage
from locus_store.values.encoding import encode
from locus_store.values.readable import Readable
from locus_store.values.surrogates import escaped_within, restored_within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.messages import LoggedMessage, LogSnapshot

RECORD: Final = "pydantic-ai-record"
"""Role and id of the one message of a thread's root log: the conversation's record."""

_SAID: Final = frozenset({"content", "text"})
PART: Final = Readable(said=_SAID, given=frozenset())
TOOL: Final = Readable(said=frozenset({"tool_name"}), given=frozenset({"args", "content"}))
"""The parts of messages without and with a tool. Instructions come with each request: not read."""

_CONFIG: Final = ConfigDict(
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="constants",
    defer_build=True,
)
"""That of Pydantic AI, but for NaN and infinities, which it writes as ``null``."""

_RECORDS: Final = TypeAdapter(list[ConversationRecord], config=_CONFIG)
_MESSAGES: Final = TypeAdapter(list[ModelMessage], config=_CONFIG)


def has_record(found: LogSnapshot) -> bool:
    """Return whether a root log is that of a conversation."""
    return [(it.role, it.message_id) for it in found.messages] == [(RECORD, RECORD)]


def record_message(record: ConversationRecord) -> NewMessage:
    """Return the message of a record."""
    (content,) = _json(_RECORDS, [record])
    return NewMessage(with_numbers(content), RECORD, RECORD, text="")


def messages_of(entries: Sequence[ConversationEntry]) -> list[NewMessage]:
    """Return the messages of entries.

    Raises:
        SerializationError: Pydantic cannot make JSON of one.
    """
    contents = _json(_MESSAGES, [it.message for it in entries])
    return [
        NewMessage(
            with_numbers(content),
            it.message.kind,
            it.id,
            {"parent_id": it.parent_id, "kind": it.kind},
            text_of(content),
        )
        for it, content in zip(entries, contents, strict=True)
    ]


def text_of(content: Mapping[str, Any]) -> str:
    """Return the text of a message."""
    texts = ((TOOL if "tool_name" in it else PART).text(it) for it in content["parts"])
    return "\n".join(filter(None, texts))


def _json(adapter: TypeAdapter[Any], values: list[Any]) -> list[Any]:
    try:
        made: list[Any] = adapter.dump_python(values, mode="json")
    except PydanticSerializationError as exc:
        raise SerializationError(f"Pydantic cannot make JSON of it: {exc}") from exc
    return made


def records_of(messages: Sequence[LoggedMessage]) -> list[ConversationRecord]:
    """Return the records of messages.

    Raises:
        IntegrityError: A message is not a record.
    """
    return _restored(_RECORDS, messages)


def entries_of(messages: Sequence[LoggedMessage]) -> list[ConversationEntry]:
    """Return the entries of messages.

    Raises:
        IntegrityError: A message is not one of Pydantic AI.
    """
    restored = _restored(_MESSAGES, messages)
    return [
        ConversationEntry(id=it.message_id, message=message, parent_id=_parent(it))
        for it, message in zip(messages, restored, strict=True)
    ]


def _restored(adapter: TypeAdapter[Any], messages: Sequence[LoggedMessage]) -> list[Any]:
    text, is_cut = _text([it.content for it in messages])
    try:
        made: list[Any] = adapter.validate_json(text)
    except ValidationError as exc:
        raise IntegrityError(f"a stored message is not one of Pydantic AI: {exc}") from exc
    return restored_within(made) if is_cut else made


def _text(contents: list[Any]) -> tuple[bytes | str, bool]:
    """Return the JSON of messages, and whether strings in it are escaped."""
    given = numbers_in(contents)
    if given is contents:
        with suppress(TypeError):  # a string has a lone surrogate
            return encode(contents), False
    return json.dumps(escaped_within(given), ensure_ascii=False), True


def _parent(message: LoggedMessage) -> str | None:
    parent = message.metadata.get("parent_id")
    return parent if isinstance(parent, str) else None


def walked(
    log: Mapping[str, LoggedMessage], head_id: str, limit: int | None
) -> list[LoggedMessage] | None:
    """Return the messages from the first, or the last ``limit``, up to one; ``None``: not here."""
    found: list[LoggedMessage] = []
    entry_id: str | None = head_id
    while entry_id is not None and (limit is None or len(found) < limit):
        message = log.get(entry_id)
        if message is None or len(found) > len(log):
            return None
        found.append(message)
        entry_id = _parent(message)
    return found[::-1]
