"""States as frames: the changes between versions, and versions rebuilt from changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from locus_store.errors import IntegrityError
from locus_store.values import msgpack
from locus_store.values.encoding import (
    LONGEST_JSON,
    Grown,
    Json,
    require_json_size,
)
from locus_store.values.frames.arrays import PackedList
from locus_store.values.frames.diffing import Frame, diff
from locus_store.values.frames.digest_trees import (
    DigestTree,
    Edits,
    ObjectNode,
    build_object_by_entries,
    build_root,
    decode_node,
    decode_opened,
    is_canonical,
    open_node,
)
from locus_store.values.frames.folding import Folder, fold, fold_each, fold_onto
from locus_store.values.frames.operations import (
    collect_text,
    encode_operations,
    extract_text,
    read_operations,
    read_restorable_operations,
)
from locus_store.values.frames.single import decode_value, diff_value, encode_value

__all__ = [
    "Change",
    "DigestTree",
    "Folder",
    "Grown",
    "PackedList",
    "PackedState",
    "build_digest_tree",
    "collect_text",
    "compare_states",
    "decode_opened",
    "decode_value",
    "diff_value",
    "encode_operations",
    "encode_value",
    "extract_text",
    "fold",
    "fold_each",
    "fold_onto",
    "pack_state",
    "read_operations",
    "read_restorable_operations",
]


class PackedState:
    """A copy of a state in memory: its digest tree, from which new objects are decoded."""

    __slots__ = ("_packed", "_root")

    def __init__(self, root: ObjectNode) -> None:
        self._root = root
        self._packed: bytes | None = None

    def _decode(self) -> dict[str, object]:
        return cast("dict[str, object]", decode_node(self._root))

    def to_state(self) -> dict[str, Json]:
        """Return a new state with sorted keys; bytes in it are MessagePack."""
        plain = self._decode()
        if is_canonical(self._root):
            return cast("dict[str, Json]", plain)
        return cast("dict[str, Json]", msgpack.decode_sorted(msgpack.pack_sorted(plain)))

    @property
    def state_bytes(self) -> int:
        """Size of the state; see ``DigestTree.state_bytes``."""
        return self._root.size

    @property
    def has_msgpack(self) -> bool:
        """True if a value in it is MessagePack."""
        return self._root.has_msgpack

    @property
    def most_bytes(self) -> int:
        """A length that the state's compact JSON does not exceed."""
        return self._root.size * LONGEST_JSON

    def to_parts(self) -> dict[str, object]:
        """Return the state with a ``PackedList`` for each long list that keys alone lead to.

        Not to be changed.
        """
        if is_canonical(self._root):
            return cast("dict[str, object]", open_node(self._root))
        return pack_state(build_digest_tree(self.to_state())).to_parts()

    def require_size(self, max_bytes: int) -> None:
        """Refuse a state whose compact JSON is longer than ``max_bytes``.

        Raises:
            SerializationError: It is longer.
        """
        require_json_size(self._decode, self._root.size, max_bytes)

    def to_payload(self) -> bytes:
        """Return the whole state as one frame."""
        if self._packed is None:  # two threads at once: the same bytes twice
            frame = Frame(is_msgpack=self._root.has_msgpack)
            frame.add("=", (), self._decode())
            self._packed = frame.to_payload()
        return self._packed


@dataclass(slots=True)
class Change:
    """The comparison of a state with its basis, which is what a save writes."""

    tree: DigestTree
    """The digest tree of the new state."""
    frames: bytes | None
    """The payload that changes the basis into the new state (``b""``: they are equal); ``None``
    without a basis, or if it would be longer than the whole state."""
    packed_state: PackedState = field(repr=False, compare=False)
    """The new state."""

    def to_payload(self) -> bytes:
        """Return the payload that holds the whole state."""
        return self.packed_state.to_payload()


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
            and size only: neither a packed state nor a later change can be made from it.

    Raises:
        IntegrityError: The state holds what no save would have accepted.
    """
    try:
        before = basis._root if basis else None  # noqa: SLF001  # a tree is opaque to others
        plain = cast("dict[str, object]", state)
        root = build_object_by_entries(plain, before, 1, decoded=True, edits=edits, keeps=keeps)
        return DigestTree(root)
    except (TypeError, ValueError) as exc:
        raise IntegrityError("a stored state holds what a state cannot hold") from exc


def pack_state(tree: DigestTree) -> PackedState:
    """Return the packed state of a digest tree that has the elements of its lists."""
    return PackedState(tree._root)  # noqa: SLF001  # a tree is opaque to others


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
    plain, root = build_root(state, basis, packed=packed)
    frames = None
    if basis is not None:
        frame = Frame(is_msgpack=root.has_msgpack)
        diff(basis._root, root, plain, (), frame)  # noqa: SLF001  # a tree is opaque to others
        frames = frame.to_payload_shorter_than(plain, root.size)
    return Change(DigestTree(root), frames, PackedState(root))
