"""Messages of a state for display, with tool calls beside their results.

The formats are those of the Locus SDK, LangChain, OpenAI and Anthropic. No class is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from locus_store.timeline.paths import Query, unwrap
from locus_store.timeline.readable import is_message, strip_tags

_TYPES: Final = frozenset(
    {"human", "ai", "system", "tool", "function", "chat", "remove"}
    | {"AIMessageChunk", "HumanMessageChunk", "SystemMessageChunk", "ToolMessageChunk"}
)
"""The types of LangChain's messages."""

_CALLS: Final = frozenset({"function_call", "tool_use", "tool_call"})
_RESULTS: Final = frozenset({"function_call_output", "tool_result"})
_TEXTS: Final = ("text", "thinking", "refusal", "output_text", "input_text")
_LOOKS_AHEAD: Final = 200
"""Messages behind those to show in which the result of a call is looked for."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A part of a message's content."""

    kind: str
    """``text``, ``image``, or the name that the part has."""

    value: Any
    """A string for a text or an image (its address), else JSON."""

    path: Query


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    call_id: str
    parts: list[MessagePart]
    path: Query


@dataclass(slots=True)
class CalledTool:
    """A call of a tool, and its result if it has one."""

    call_id: str | None
    name: str
    arguments: Any
    path: Query
    result: ToolResult | None = None


@dataclass(slots=True)
class SaidMessage:
    """A message."""

    role: str
    name: str | None
    message_id: str | None
    path: Query
    parts: list[MessagePart] = field(default_factory=list)
    calls: list[CalledTool] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    """Results in this message whose calls are not shown."""


def is_conversation(value: Any) -> bool:
    """Return whether a value is a list of messages, by its first and last element."""
    if not isinstance(value, list) or not value:
        return False
    return all(_find_fields(it) is not None for it in (value[0], value[-1]))


def read_conversation(
    value: Sequence[Any], path: Query, start: int, stop: int
) -> list[SaidMessage]:
    """Return the messages of a list from ``start`` up to ``stop``.

    A message that only holds results of calls before it is left out: its results are with them.

    Args:
        value: The list.
        path: Of the list.
        start: The first message.
        stop: The end.
    """
    said = [
        _read_message(element, (*path, at))
        for at, element in enumerate(value[start : stop + _LOOKS_AHEAD], start)
    ]
    calls = {it.call_id: it for message in said for it in message.calls if it.call_id}
    for message in said:
        for result in list(message.results):
            call = calls.get(result.call_id)
            if call is not None and call.result is None:
                call.result = result
                message.results.remove(result)
    return [it for it in said[: stop - start] if it.parts or it.calls or it.results]


def _find_fields(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a message; ``None`` if the value is not a message."""
    found = unwrap(value)[1]
    if not isinstance(found, dict):
        return None
    kind = found.get("type")
    if is_message(found) or (kind in _TYPES and "content" in found):
        return found
    if kind in _CALLS | _RESULTS and "call_id" in found:
        return found
    below = unwrap(found.get("data" if kind in _TYPES else "kwargs"))[1]
    return below if isinstance(below, dict) and "content" in below else None


def _read_message(value: Any, path: Query) -> SaidMessage:
    fields = _find_fields(value)
    if fields is None:
        part = MessagePart("json", strip_value_tags(value), path)
        return SaidMessage("?", None, None, path, [part])
    kind = str(fields.get("role") or fields.get("type") or unwrap(value)[1].get("type") or "?")
    message = SaidMessage(kind, _as_text(fields.get("name")), _as_text(fields.get("id")), path)
    if kind in _CALLS | _RESULTS:
        _take(message, fields, path)
        return message
    _take_content(message, fields.get("content"), (*path, "content"))
    _take_calls(message, fields.get("tool_calls"), (*path, "tool_calls"))
    call_id = _as_text(fields.get("tool_call_id"))
    if call_id:
        message.results.append(ToolResult(call_id, message.parts, path))
        message.parts = []
    return message


def _take_content(message: SaidMessage, content: Any, path: Query) -> None:
    found = unwrap(content)[1]
    if isinstance(found, list):
        for at, block in enumerate(found):
            _take(message, unwrap(block)[1], (*path, at))
    elif found is not None and found != "":
        message.parts.append(_make_part(found, path))


def _take(message: SaidMessage, block: Any, path: Query) -> None:
    """Add a block of a content to its message."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _CALLS:
        call_id = _as_text(block.get("call_id") or block.get("id"))
        _add_call(message, CalledTool(call_id, str(block.get("name")), _read_args(block), path))
    elif kind in _RESULTS:
        call_id = _as_text(block.get("call_id") or block.get("tool_use_id")) or ""
        key = "output" if "output" in block else "content"
        below = SaidMessage("", None, None, path)
        _take_content(below, block.get(key), (*path, key))
        message.results.append(ToolResult(call_id, below.parts, path))
    else:
        message.parts.append(_make_part(block, path))


def _take_calls(message: SaidMessage, calls: Any, path: Query) -> None:
    found = unwrap(calls)[1]
    for at, element in enumerate(found if isinstance(found, list) else ()):
        call = unwrap(element)[1]
        if isinstance(call, dict):
            function = unwrap(call.get("function"))[1]
            made = function if isinstance(function, dict) else call
            call_id, name = _as_text(call.get("id")), str(made.get("name"))
            _add_call(message, CalledTool(call_id, name, _read_args(made), (*path, at)))


def _add_call(message: SaidMessage, call: CalledTool) -> None:
    """Add a call; LangChain has those of Anthropic twice."""
    if call.call_id is None or call.call_id not in {it.call_id for it in message.calls}:
        message.calls.append(call)


def _read_args(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call, under the names that they have in the formats."""
    names = ("args", "arguments", "input")
    return strip_value_tags(next((call[it] for it in names if it in call), None))


def _make_part(block: Any, path: Query) -> MessagePart:
    if isinstance(block, str):
        return MessagePart("text", block, path)
    if not isinstance(block, dict):
        return MessagePart("json", strip_value_tags(block), path)
    for name in _TEXTS:
        text = block.get(name)
        if isinstance(text, str):
            return MessagePart("text", text, (*path, name))
    image = _find_image(block, path)
    return image or MessagePart(str(block.get("type") or "json"), strip_value_tags(block), path)


def _find_image(block: Mapping[str, Any], path: Query) -> MessagePart | None:
    """Return the image of a block: its address as text or as the ``url`` of an object."""
    at: Query = (*path, "image_url")
    found = unwrap(block.get("image_url"))[1]
    if isinstance(found, dict):
        found, at = found.get("url"), (*at, "url")
    return MessagePart("image", found, at) if isinstance(found, str) else None


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def strip_value_tags(value: Any) -> Any:
    """Return a stored value without the tags of LangGraph's values."""
    content = unwrap(value)[1]
    if isinstance(content, list):
        return [strip_value_tags(it) for it in content]
    if not isinstance(content, dict):
        return content
    if "$" in content:
        return strip_tags(content)
    return {key: strip_value_tags(it) for key, it in content.items()}
