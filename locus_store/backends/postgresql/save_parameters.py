"""The parameters of the statements that save: their names, their order and their SQL types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class SaveGroup(NamedTuple):
    """The parameters that the saves of a group share."""

    tenant: str
    store: str
    setting_rows: int
    """The number of settings that identify the opened database; see the statement."""

    layout: str
    """The layout of its set of shards, or ``NO_LAYOUT``."""


class SaveRow(NamedTuple):
    """The parameters of one save of a group."""

    thread_id: str
    namespace: str
    line: int | None
    """The line, if the caller knows it."""

    expected: int | None
    """The head that the caller expects."""

    expected_digest: bytes | None
    is_free: bool
    """The save appends to any head."""

    thread_must_exist: bool
    basis: int | None
    """The version that the payload's frames are against; ``None``: the payload is a whole state."""

    basis_digest: bytes | None
    writer: str | None
    run: str | None
    checkpoint_id: str
    digest: bytes
    state_bytes: int
    payload: bytes
    metadata: str | None
    labels: str | None
    added: str | None
    """The text for the full-text index, and its words separated by spaces."""

    words: str | None
    keep_last: int | None
    ttl: float | None
    slack: float | None
    turn: int | None
    owner: str | None
    """The user who claims the thread, which the save creates, with its name and metadata."""

    thread_name: str | None
    thread_metadata: str | None


class LoneSave(NamedTuple):
    """The first parameters of a statement that writes a single save."""

    tenant: str
    store: str
    known: int
    """The version that the save is made from, which is the expected head."""

    known_digest: bytes
    is_held: bool
    """The caller does not expect another head."""

    is_frames: bool


_OF_SAVE: Final = (
    *("thread_id", "namespace", "line", "writer", "run", "checkpoint_id", "digest", "state_bytes"),
    *("payload", "metadata", "labels", "turn", "keep_last", "ttl", "slack"),
)

OF_ROW: Final = {False: _OF_SAVE, True: (*_OF_SAVE, "added", "words")}
"""The fields of ``SaveRow`` that follow them; by whether the database has a full-text index."""


class RecordedSave(NamedTuple):
    """More parameters of a save that is recorded."""

    who: str
    detail: str | None


_TYPES: Final = {
    **dict.fromkeys(("setting_rows", "line", "expected", "basis", "known"), "bigint"),
    **dict.fromkeys(("state_bytes", "keep_last", "turn"), "bigint"),
    **dict.fromkeys(("expected_digest", "basis_digest", "known_digest"), "bytea"),
    **dict.fromkeys(("digest", "payload"), "bytea"),
    **dict.fromkeys(("is_free", "is_held", "is_frames", "thread_must_exist"), "boolean"),
    **dict.fromkeys(("ttl", "slack"), "double precision"),
}
"""SQL types of the fields that are no text."""


def render_parameters(names: Sequence[str], first: int = 1, suffix: str = "") -> dict[str, str]:
    """Return the fields as parameters."""
    return {
        name: f"${at}::{_TYPES.get(name, 'text')}{suffix}" for at, name in enumerate(names, first)
    }
