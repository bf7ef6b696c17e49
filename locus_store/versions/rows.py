"""A version in memory, and the form of its operations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from locus_store.values.encoding import UNLIMITED, decode, encode, pack_frame, unpack_frames
from locus_store.values.frames import payload_of, written

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.versions import Record


class Row:
    """A version. Its operations are kept in the form received: JSON, or a payload of frames."""

    __slots__ = ("_held", "created_at", "record", "told")

    def __init__(
        self,
        record: Record,
        created_at: datetime,
        operations: bytes,
        told: dict[str, Any] | None = None,
        *,
        is_framed: bool = False,
    ) -> None:
        self.record = record
        self.created_at = created_at
        self.told = told or {}
        """The save's changes of the line, in the form of the file's entry."""
        self._held = is_framed, operations
        """If the operations are frames, and their bytes. One value, so that threads see both."""

    def payload(self) -> bytes:
        """Return the operations as frames."""
        is_framed, held = self._held
        if not is_framed:
            held = _payload_of(held)
            self._held = True, held
        return held

    def body(self) -> bytes:
        """Return the operations as JSON."""
        is_framed, held = self._held
        return body_of(held) if is_framed else held

    def but(self, *, parent: int | None) -> Row:
        """Return the same version below another parent."""
        is_framed, held = self._held
        record = replace(self.record, parent=parent)
        return Row(record, self.created_at, held, self.told, is_framed=is_framed)


def _payload_of(body: bytes) -> bytes:
    if body.startswith(b"[["):
        return pack_frame(body)
    return payload_of(cast("list[Any]", decode(body)))


def body_of(payload: bytes) -> bytes:
    """Return the operations of a payload as one JSON list on one line."""
    bodies = list(unpack_frames(payload, UNLIMITED))
    if len(bodies) == 1 and bodies[0].startswith(b"[[") and b"\n" not in bodies[0]:
        return bodies[0]  # nearly always of JSON: already one list
    return encode(written(payload, UNLIMITED))
