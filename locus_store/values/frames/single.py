"""The payload of a pending write: a single value, whole or as frames against an older value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from locus_store.errors import IntegrityError
from locus_store.values.canonical import encode_canonical_json
from locus_store.values.encoding import (
    Json,
    decode,
    encode,
    encode_canonical,
    measure_json,
    pack_frame,
    require_json_size,
    require_size,
)
from locus_store.values.frames.diffing import Frame, build_by_entries, diff, is_object
from locus_store.values.frames.digest_trees import (
    DigestTree,
    Node,
    ObjectNode,
    build_root,
    encode_reference,
    is_msgpack,
    is_only_msgpack,
)
from locus_store.values.frames.folding import Folder
from locus_store.values.frames.operations import read_operations, read_stored_operations
from locus_store.values.msgpack import pack_sorted

FRAMED_BYTES: Final = 1024
"""Frames would not make a value shorter whose encoding is not longer than this."""

_KEY: Final = "value"


def encode_value(value: object, max_bytes: int, *, packed: bool = False) -> bytes:
    """Return the payload of a whole value.

    Args:
        value: JSON; with ``packed`` also MessagePack as bytes, or a list of these.
        max_bytes: The longest value, as compact JSON.
        packed: Bytes in ``value`` are MessagePack.

    Raises:
        SerializationError: It cannot be kept exactly, or is longer than ``max_bytes`` as JSON.
    """
    if packed and is_only_msgpack(value):
        require_size(measure_json(value), max_bytes)
        return pack_frame(pack_sorted([["=", [], {_KEY: value}]]))
    encoded = encode_canonical_json(value, _KEY)
    require_size(len(encoded), max_bytes)
    return pack_frame(b'[["=",[],{"%b":%b}]]' % (_KEY.encode(), encoded))


def diff_value(
    value: object, known: DigestTree, path: Sequence[str], max_bytes: int, *, packed: bool = False
) -> bytes | None:
    """Return the payload of frames that change the value at ``path`` of a state into ``value``.

    ``None``: they would not be shorter than the whole value, or there is no such older value.

    Raises:
        SerializationError: It cannot be kept exactly, or is longer than ``max_bytes`` as JSON.
    """
    if _is_small(value):
        return None
    node: Node | None = known._root  # noqa: SLF001  # a tree is opaque to others
    for key in path:
        node = build_by_entries(node, ()).children.get(key) if is_object(node) else None
    if node is None or (isinstance(node, bytes) and not is_msgpack(value)):
        return None
    old = ObjectNode(b"", 0, b"", {_KEY: node}, {_KEY: encode_reference(node)}, 0)
    plain, root = build_root({_KEY: value}, DigestTree(old), packed=packed)
    require_json_size(lambda: plain[_KEY], root.size, max_bytes)
    frame = Frame(is_msgpack=root.has_msgpack)
    diff(node, root.children[_KEY], plain[_KEY], (_KEY,), frame)
    frames = frame.to_payload_shorter_than(plain, root.size)
    return frames if frames is not None and len(frames) <= root.size // 2 else None


def _is_small(value: object) -> bool:
    try:
        return len(encode_canonical(value)) <= FRAMED_BYTES
    except ValueError:
        return False  # it is looked at more closely


def decode_value(payload: bytes, max_bytes: int, old: Json = None, *, packed: bool = False) -> Json:
    """Return the value of a payload: a whole one, or what its frames make of ``old``.

    ``old`` stays unchanged, and may share elements of a list with the result. With ``packed``,
    MessagePack in both stays bytes; without it, both have it as JSON.

    Raises:
        IntegrityError: The payload is not valid, or the value is too large.
    """
    found = (read_stored_operations if packed else read_operations)(payload, max_bytes)
    splices = all(it[:2] == ["[", [_KEY]] for it in found)
    if isinstance(old, list) and (splices or is_msgpack(old)):
        old = old.copy()
    elif not is_msgpack(old):
        old = decode(encode(old))
    folder = Folder(max_bytes, {_KEY: old})
    folder.perform(found)
    state = folder.get_state()
    if state.keys() != {_KEY}:
        raise IntegrityError("a stored pending write holds no value")
    return state[_KEY]
