"""A single value, whole or as frames against another one, as a pending write holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from locus_store.errors import IntegrityError
from locus_store.values.canonical import canonical_json
from locus_store.values.encoding import (
    Json,
    decode,
    encode,
    json_size,
    pack_frame,
    pinned,
    require_pinned,
    require_size,
)
from locus_store.values.frames.diffing import Frame, by_entries, diff, is_object
from locus_store.values.frames.folding import Folder
from locus_store.values.frames.operations import readable, stored
from locus_store.values.frames.shapes import (
    ObjectNode,
    Shape,
    are_packed,
    is_packed,
    measure,
    token_of,
)
from locus_store.values.msgpack import pack_sorted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.values.frames.shapes import Node

FRAMED_BYTES: Final = 1024
"""Up to here a value is smaller than what is saved by framing it."""

_KEY: Final = "value"


def value_payload(value: object, max_bytes: int, *, packed: bool = False) -> bytes:
    """Return a value as a separate payload.

    Args:
        value: JSON; with ``packed``, or MessagePack as bytes, or a list of such.
        max_bytes: The longest value, as compact JSON.
        packed: See ``change``.

    Raises:
        SerializationError: It cannot be kept exactly, or is longer than ``max_bytes`` as JSON.
    """
    if packed and are_packed(value):
        require_size(json_size(value), max_bytes)
        return pack_frame(pack_sorted([["=", [], {_KEY: value}]]))
    encoded = canonical_json(value, _KEY)
    require_size(len(encoded), max_bytes)
    return pack_frame(b'[["=",[],{"%b":%b}]]' % (_KEY.encode(), encoded))


def value_frames(
    value: object, known: Shape, path: Sequence[str], max_bytes: int, *, packed: bool = False
) -> bytes | None:
    """Return a value as frames against the one at ``path``; ``None`` if they are not shorter.

    Raises:
        SerializationError: It cannot be kept exactly, or is longer than ``max_bytes`` as JSON.
    """
    if _is_small(value):
        return None
    node: Node | None = known._root  # noqa: SLF001  # a shape is opaque to others
    for key in path:
        node = by_entries(node, ()).children.get(key) if is_object(node) else None
    if node is None or (isinstance(node, bytes) and not is_packed(value)):
        return None
    old = ObjectNode(b"", 0, b"", {_KEY: node}, {_KEY: token_of(node)}, 0)
    plain, root = measure({_KEY: value}, Shape(old), packed=packed)
    require_pinned(lambda: plain[_KEY], root.size, max_bytes)
    frame = Frame(packs=root.has_packed)
    diff(node, root.children[_KEY], plain[_KEY], (_KEY,), frame)
    frames = frame.payload_shorter_than(plain, root.size)
    return frames if frames is not None and len(frames) <= root.size // 2 else None


def _is_small(value: object) -> bool:
    try:
        return len(pinned(value)) <= FRAMED_BYTES
    except ValueError:
        return False  # it is looked at more closely


def value_of(payload: bytes, max_bytes: int, old: Json = None, *, packed: bool = False) -> Json:
    """Return a payload's value, whole or against ``old``, which stays unchanged.

    Elements of a list may be shared with it. With ``packed``, MessagePack in both stays bytes;
    without, both have it as JSON.

    Raises:
        IntegrityError: It is not valid, or is too large.
    """
    found = (stored if packed else readable)(payload, max_bytes)
    splices = all(it[:2] == ["[", [_KEY]] for it in found)
    if isinstance(old, list) and (splices or is_packed(old)):
        old = old.copy()
    elif not is_packed(old):
        old = decode(encode(old))
    folder = Folder(max_bytes, {_KEY: old})
    folder.perform(found)
    state = folder.state()
    if state.keys() != {_KEY}:
        raise IntegrityError("a stored pending write holds no value")
    return state[_KEY]
