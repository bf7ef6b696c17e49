"""Messages within the bounds of a page."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.inspector.bounds import CHILDREN, MESSAGES, CutText, Room
from locus_store.timeline.conversations import conversation
from locus_store.timeline.paths import shown

if TYPE_CHECKING:
    from locus_store.timeline.conversations import CalledTool, MessagePart, SaidMessage, ToolResult
    from locus_store.timeline.paths import Query

NAME = 200
"""Characters of a role, a name and an id."""


@dataclass(frozen=True, slots=True)
class PartRow:
    """A part of a message."""

    kind: str
    path: str
    text: CutText
    image_type: str | None
    """The type of an image that the page can open."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The result of a tool call."""

    path: str
    parts: list[PartRow]


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call of a tool."""

    call_id: str | None
    name: str
    path: str
    arguments: CutText
    result: ResultRow | None


@dataclass(frozen=True, slots=True)
class SaidRow:
    """A message."""

    at: int
    """Its place in the list."""

    role: str
    name: str | None
    message_id: str | None
    path: str
    parts: list[PartRow]
    calls: list[CallRow]
    results: list[ResultRow]


@dataclass(frozen=True, slots=True)
class Talk:
    """A list of messages, or a part of it."""

    path: str
    start: int
    length: int
    messages: list[SaidRow]


def talk(value: list[Any], path: Query, start: int | None, room: Room) -> Talk:
    """Return messages of a list.

    Args:
        value: The list.
        path: Of the list.
        start: The first message; ``None``: the last ones are wanted.
        room: For their strings.
    """
    first = max(len(value) - MESSAGES, 0) if start is None else start
    said = conversation(value, path, first, first + MESSAGES)
    view = _View(room)
    return Talk(shown(path) if path else "", first, len(value), [view.message(it) for it in said])


class _View:
    def __init__(self, room: Room) -> None:
        self._room = room

    def message(self, it: SaidMessage) -> SaidRow:
        return SaidRow(
            at=int(str(it.path[-1])),
            role=it.role[:NAME],
            name=it.name and it.name[:NAME],
            message_id=it.message_id and it.message_id[:NAME],
            path=shown(it.path),
            parts=self._parts(it.parts),
            calls=[self._call(call) for call in it.calls[:CHILDREN]],
            results=[self._result(result) for result in it.results[:CHILDREN]],
        )

    def _parts(self, parts: list[MessagePart]) -> list[PartRow]:
        return [self._part(it) for it in parts[:CHILDREN]]

    def _part(self, it: MessagePart) -> PartRow:
        is_image = it.kind == "image" and isinstance(it.value, str)
        kind = image_type(it.value) if is_image else None
        return PartRow(it.kind[:NAME], shown(it.path), self._room.cut(it.value), kind)

    def _call(self, it: CalledTool) -> CallRow:
        return CallRow(
            it.call_id and it.call_id[:NAME],
            it.name[:NAME],
            shown(it.path),
            self._room.cut(it.arguments),
            None if it.result is None else self._result(it.result),
        )

    def _result(self, it: ToolResult) -> ResultRow:
        return ResultRow(shown(it.path), self._parts(it.parts))


_DATA: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")


def image_type(address: str) -> str | None:
    """Return the type of an image in an address; ``None`` if the address holds none."""
    found = _DATA.match(address[:80])
    return found[1] if found else None


def image(address: str) -> tuple[str, bytes] | None:
    """Return the type and the bytes of an image in an address; ``None`` if it holds none."""
    found = _DATA.fullmatch(address)
    return (found[1], b64decode(found[2])) if found and len(found[2]) % 4 == 0 else None
