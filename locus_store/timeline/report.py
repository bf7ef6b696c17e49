"""Reports to attach to a bug: the structure and the origins of a state, without its content."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from locus_store.backend import StorageBackend
from locus_store.timeline.blame import Blame, Blamed, blame
from locus_store.timeline.graph import Node, measure_stored
from locus_store.timeline.paths import Path, Step
from locus_store.timeline.readable import select_metadata
from locus_store.types import Version
from locus_store.values.encoding import encode

VALUES: Final = 10_000
"""Values of the state in a report."""

VERSIONS: Final = 200
"""Versions in a report: the newest of the ancestry of the reported one."""

_GENERATED: Final = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|v?[0-9]{1,12}", re.IGNORECASE
)
"""Ids that a program made: UUIDs, long hexadecimal numbers, numbers."""

_FIELD: Final = re.compile(r"[a-z_$][A-Za-z0-9_:$-]{0,63}")
"""Keys that may be names of fields: they begin with a small letter."""

_IDS: Final = re.compile(r"id|.*_ids?")
_ROLES: Final = frozenset(
    {
        *("ai", "assistant", "developer", "function", "human", "system", "tool", "user"),
        *("image_url", "input_text", "output_text", "text", "tool_call", "tool_result"),
    }
)
"""Values of ``role`` and ``type`` that are reported."""


class Redaction:
    """Replaces strings by their lengths and keyed hashes: equal strings have equal hashes.

    Args:
        key: Of the hashes. Without the key, a guessed string cannot be compared with them.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def redact_text(self, text: str) -> dict[str, Any]:
        """Return the length and the hash of a text."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8)
        return {"characters": len(text), "hash": digest.hexdigest()}

    def name(self, name: str) -> str:
        """Return an id; of one that a person may have chosen, its hash."""
        return name if _GENERATED.fullmatch(name) else f"#{self.redact_text(name)['hash']}"

    def redact_key(self, key: str | int) -> str | int:
        """Return a key or an index; of a key that is not like the name of a field, its hash."""
        return key if isinstance(key, int) or _FIELD.fullmatch(key) else self.name(key)

    def redact_leaf(self, key: str | int, value: Any) -> dict[str, Any]:
        """Return the description of a value without parts."""
        if not isinstance(value, str):
            return {"kind": "null" if value is None else type(value).__name__}
        if key in {"role", "type"} and value in _ROLES:
            return {"kind": "role", "role": value}
        if isinstance(key, str) and _IDS.fullmatch(key):
            return {"kind": "id", "id": self.name(value)}
        return {"kind": "text"} | self.redact_text(value)

    def redact(self, value: Any, key: str | int = "") -> Any:
        """Return a value with its structure."""
        if isinstance(value, dict):
            return {self.redact_key(name): self.redact(it, name) for name, it in value.items()}
        if isinstance(value, list):
            return [self.redact(it, key) for it in value]
        return self.redact_leaf(key, value)


async def report(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
    key: bytes | None = None,
    step: Step | None = None,
) -> dict[str, Any] | None:
    """Return a report on a version, or on the head, as JSON; ``None`` if there is none.

    Has the versions of its ancestry with their sizes, and of each value of the state its place,
    its kind, and the versions that it came with and that changed it last. A text is replaced by
    its length and a keyed hash, a number by its kind. Roles, ids that a program made, and keys that
    begin with a small letter, as names of fields do, are unchanged; other ids and keys are hashes.

    Args:
        backend: The storage.
        thread_id: The thread.
        checkpoint_id: The version; ``None``: the head.
        namespace: Its line.
        key: Of the hashes; ``None``: a random one, so that two reports have different hashes.
        step: Is called often, in a thread; what it raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError, UnsupportedError: As ``blame``.
    """
    origins = await blame(backend, thread_id, checkpoint_id, namespace=namespace, step=step)
    if origins is None:
        return None
    redaction = Redaction(key)
    way = origins.versions[-VERSIONS:]
    sizes = await measure_stored(backend, [Node(it, None) for it in way])
    values, size = await asyncio.to_thread(_show_content, redaction, origins, step)
    return {
        "backend": type(backend).__name__,
        "thread_id": redaction.name(thread_id),
        "namespace": redaction.name(namespace) if namespace else "",
        "checkpoint_id": redaction.name(origins.version.checkpoint_id),
        "state_bytes": size,
        "versions": [_show_version(redaction, it, sizes) for it in way],
        "older_versions": len(origins.versions) - len(way),
        "values": values[:VALUES],
        "is_complete": len(values) <= VALUES,
    }


def _show_content(
    redaction: Redaction, origins: Blame, step: Step | None
) -> tuple[list[dict[str, Any]], int]:
    """Return the values of a state, one more than fit if there are more, and its size as JSON."""
    values = []
    for value in islice(_iterate_values(redaction, origins, ()), VALUES + 1):
        if step is not None:
            step()
        values.append(value)
    return values, len(encode(origins.state))


def _show_version(redaction: Redaction, version: Version, sizes: dict[int, int]) -> dict[str, Any]:
    parent = version.parent_id
    return {
        "checkpoint_id": redaction.name(version.checkpoint_id),
        "parent_id": None if parent is None else redaction.name(parent),
        "sequence": version.mark.sequence,
        "created_at": version.created_at,
        "stored_bytes": sizes.get(version.mark.sequence),
        "metadata": redaction.redact(select_metadata(version.metadata)),
    }


def _iterate_values(redaction: Redaction, origins: Blame, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the values of a state, each object and list before its parts."""
    start = 0
    while page := origins.list_parts(path, start=start, limit=VALUES, is_raw=True):
        start += len(page)
        for part in page:
            yield _show_value(redaction, part)
            if isinstance(part.value, dict | list):
                yield from _iterate_values(redaction, origins, part.path)


def _show_value(redaction: Redaction, value: Blamed) -> dict[str, Any]:
    key, held = value.path[-1], value.value
    path = [redaction.redact_key(step) for step in value.path]
    is_leaf = not isinstance(held, dict | list)
    kind = "object" if isinstance(held, dict) else "list"
    found = redaction.redact_leaf(key, held) if is_leaf else {"kind": kind, "length": len(held)}
    origins = {"made": value.made} if is_leaf else {"made": value.made, "changed": value.changed}
    shown = {"path": path, **found}
    for name, origin in origins.items():
        checkpoint_id = redaction.name(origin.version.checkpoint_id)
        shown[name] = {"checkpoint_id": checkpoint_id, "is_exact": origin.is_exact}
    return shown
