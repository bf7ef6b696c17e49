"""States as frames: the changes between versions, and versions rebuilt from changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, cast

from locus_store.errors import IntegrityError
from locus_store.values.canonical import Grown as Grown, encode_exactly
from locus_store.values.encoding import (
    Json,
    decode,
    decode_canonical,
    encode,
    encode_canonical,
    pack_frame,
    require_json_size,
    require_values,
    unpack_record,
)
from locus_store.values.frames.arrays import PackedList as PackedList
from locus_store.values.frames.diffing import (
    Frame,
    edit,
    edit_entries,
    get_entries,
    pack_shorter_than,
)
from locus_store.values.frames.digest_trees import (
    DigestTree as DigestTree,
    Edits,
    Node,
    ObjectNode,
    build_object_by_entries,
    build_root,
    decode_opened as decode_opened,
    encode_reference,
    is_msgpack,
    is_only_msgpack,
    open_whole,
)
from locus_store.values.frames.folding import Folder as Folder, fold as fold, fold_onto as fold_onto
from locus_store.values.frames.operations import (
    collect_text as collect_text,
    encode_operations as encode_operations,
    extract_text as extract_text,
    make_malformed_error,
    read_operations as read_operations,
    read_restorable_operations as read_restorable_operations,
    read_stored_operations as read_stored_operations,
)
from locus_store.values.msgpack import convert_to_json, decode_sorted


@dataclass(slots=True)
class Change:
    """The comparison of a state with its basis, which is what a save writes."""

    tree: DigestTree
    """The digest tree of the new state."""
    frames: bytes | None
    """The payload that changes the basis into the new state (``b""``: they are equal); ``None``
    without a basis, or if it would be longer than the whole state."""
    basis_digest: bytes | None = None
    """The digest of the basis."""

    def to_payload(self) -> bytes:
        """Return the payload that holds the whole state."""
        return self.tree.to_payload()


def build_digest_tree(
    state: dict[str, Json],
    basis: DigestTree | None = None,
    edits: Edits = None,
    *,
    keeps: bool = True,
) -> DigestTree:
    """Return the digest tree of a canonical state, such as ``fold`` returns.

    Args:
        state: The state.
        basis: The digest tree of a state that this one continues.
        edits: Where they may differ, from ``fold_onto``; the rest is not encoded again.
        keeps: Keep the elements of lists in the tree. Without this, the tree serves for its digest
            and size only: neither a state nor a later change can be made from it.

    Raises:
        IntegrityError: The state holds what no save would have accepted.
    """
    try:
        before = basis._root if basis else None  # noqa: SLF001  # a tree is opaque to others
        plain = cast("dict[str, object]", state)
        root = build_object_by_entries(plain, before, 1, is_json=True, edits=edits, keeps=keeps)
        return DigestTree(root, is_whole=keeps)
    except (TypeError, ValueError) as exc:
        raise IntegrityError("a stored state holds what a state cannot hold") from exc


def make_opaque_tree(digest: bytes, state_bytes: int) -> DigestTree:
    """Return a tree that has a digest and a size, and no state."""
    return DigestTree(ObjectNode(digest, state_bytes, b"", {}, {}), is_whole=False)


def compare_states(
    state: Mapping[str, object], basis: DigestTree | None, *, packed: bool = False
) -> Change:
    """Return the change from the version of ``basis`` to ``state``.

    Args:
        state: A JSON object; neither kept nor changed.
        basis: The digest tree of that version; ``None``: there is no such version.
        packed: Bytes in ``state`` are MessagePack. They are the value of a key that is reached
            through keys, or the elements of a list there. Without this, they are refused.

    Raises:
        SerializationError: A value cannot be kept exactly; the error names its path.
    """
    root = build_root(state, basis, packed=packed)
    frames = basis_digest = None
    if basis is not None:
        basis_digest = basis.digest
        frame: Frame = []
        edit_entries(basis._root.children, root.children, (), frame)  # noqa: SLF001  # opaque
        frames = pack_shorter_than(frame, root)
    return Change(DigestTree(root), frames, basis_digest)


FRAMED_BYTES: Final = 1024
"""Frames would not make a value shorter whose encoding is not longer than this."""

MOST_CUT: Final = 16
"""A value that is so many times shorter than the older one is new, and not a part of it: to look
takes as long as the older one is."""

_KEY: Final = "value"
_VALUE: Final = encode_canonical([("=", (), {_KEY: None})])[:-1]
"""The frame of a value without the encoding of the value."""


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
        encoding = encode_canonical(value)
    else:
        encoding = encode_exactly(value, _KEY)
    require_json_size(lambda: decode_canonical(encoding), len(encoding), max_bytes)
    return pack_frame(_VALUE + encoding)


def diff_value(
    value: object, tree: DigestTree, path: Sequence[str], max_bytes: int, *, packed: bool = False
) -> bytes | None:
    """Return the payload of frames that change the value at ``path`` of a state into ``value``.

    ``None``: they would not be shorter than the whole value, or there is no such older value, or
    it is more than ``MOST_CUT`` times as long.

    Raises:
        SerializationError: It cannot be kept exactly, or is longer than ``max_bytes`` as JSON.
    """
    length = _measure(value)
    if length <= FRAMED_BYTES:
        return None
    node: Node | None = tree._root  # noqa: SLF001  # a tree is opaque to others
    for key in path:
        node = (get_entries(node) or {}).get(key) if node is not None else None
    if node is None or length * MOST_CUT < len(node):
        return None
    old = ObjectNode(b"", 0, b"", {_KEY: node}, {_KEY: encode_reference(node)})
    root = build_root({_KEY: value}, DigestTree(old), packed=packed)
    size = root.size - len(root.names)
    require_json_size(lambda: open_whole(root.children[_KEY]), size, max_bytes)
    frame: Frame = []
    made = root.children[_KEY]
    if made != node and not edit(node, made, (_KEY,), frame):
        return None
    frames = pack_shorter_than(frame, root)
    return frames if frames is not None and len(frames) <= root.size // 2 else None


def _measure(value: object) -> float:
    try:
        return len(encode_canonical(value))
    except TypeError:
        return inf  # it is looked at more closely


def decode_value(payload: bytes, max_bytes: int, *, packed: bool = False) -> Json:
    """Return the value of a payload of ``encode_value``.

    With ``packed``, MessagePack in it stays bytes; without it, it becomes JSON.

    Raises:
        IntegrityError: The payload is not valid, or the value is too large.
    """
    bodies = unpack_record(payload, max_bytes)
    if len(bodies) != 1 or not bodies[0].startswith(_VALUE):
        raise IntegrityError("a stored pending write holds no value")
    value = decode_sorted(bodies[0][len(_VALUE) :])
    return cast("Json", value) if packed else _require_json(value)


def _require_json(value: object) -> Json:
    """Return a stored value with all its MessagePack as JSON, if a save would accept it."""
    try:
        found: Json = convert_to_json(value)
        require_values(encode_canonical(found))
    except (RecursionError, TypeError, ValueError) as exc:
        raise make_malformed_error("value", exc) from exc
    return found


def change_value(old: Json, payload: bytes, max_bytes: int, *, packed: bool = False) -> Json:
    """Return what the frames of ``diff_value`` make of an older value; raises as ``decode_value``.

    ``old`` stays unchanged, and may share elements of a list with the result. With ``packed``,
    MessagePack in both stays bytes; without it, both have it as JSON.
    """
    found = (read_stored_operations if packed else read_operations)(payload, max_bytes)
    if isinstance(old, list) and (is_msgpack(old) or all(it[:2] == ["[", [_KEY]] for it in found)):
        old = old.copy()
    elif not is_msgpack(old):
        old = decode(encode(old))
    folder = Folder(max_bytes, {_KEY: old})
    folder.perform(found)
    state = folder.get_state()
    if state.keys() != {_KEY}:
        raise IntegrityError("a stored pending write holds no value")
    return state[_KEY] if packed else _require_json(state[_KEY])
