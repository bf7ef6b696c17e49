"""Digest trees: the encoded values of a state, with which a later state is compared.

A small value is its encoding, which one C call makes, and whose bytes are compared with the older
ones. Nodes never change, and trees share them. Their classes are not frozen, because that makes
their creation four times as slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from sys import getsizeof
from typing import Any, ClassVar, Final, TypeAlias, cast

from locus_store.errors import SerializationError
from locus_store.values.canonical import Grown, canonicalize, canonicalize_state
from locus_store.values.encoding import (
    SURE,
    Json,
    decode_canonical,
    digest,
    encode_canonical,
    encode_each,
    is_msgpack_encoding,
    join_list,
    make_object_head,
    pack_frame,
    require_json,
    require_json_size,
)
from locus_store.values.frames.arrays import (
    KEEP_BYTES,
    LISTS,
    ArrayNode,
    PackedList,
    build_array,
    build_grown_array,
    extend_array,
    require_depth,
)
from locus_store.values.surrogates import escape, may_be_escaped

REFERENCE_BYTES: Final = 512
"""A value whose encoding is not longer stands for itself in a digest: to hash it by itself would
take longer than to hash it again with each change beside it."""

SMALL_BYTES: Final = 4096
"""A list or object in a state whose encoding is not longer is compared and hashed as a whole."""

_HASHED = b"\xc1"
"""Prefix of a digest that stands for a value; no encoding begins with it."""


@dataclass(slots=True, eq=False)
class TextNode:
    """A string of more than ``KEEP_BYTES`` code points."""

    has_msgpack: ClassVar = False
    digest: bytes
    size: int
    text: str

    def __len__(self) -> int:
        """Return the length of the encoding."""
        return self.size

    def __bytes__(self) -> bytes:
        """Return the encoding."""
        return encode_canonical(self.text)

    def __sizeof__(self) -> int:
        """Return the memory in bytes (an estimate)."""
        return 100 + getsizeof(self.text)


@dataclass(slots=True, eq=False)
class ObjectNode:
    """An object by its entries: the state, or a larger one that is reached through keys only."""

    digest: bytes
    size: int
    names: bytes
    """The encoding of the sorted keys."""
    children: dict[str, Node]
    """The entries, in the order of the keys."""
    references: dict[str, bytes]
    """The bytes that represent each entry in the digest; see ``encode_reference``."""

    def __len__(self) -> int:
        """Return the length of the encoding."""
        return self.size

    def __bytes__(self) -> bytes:
        """Return the encoding."""
        entries = zip(encode_each(self.children), map(bytes, self.children.values()), strict=True)
        return make_object_head(len(self.children)) + b"".join(chain.from_iterable(entries))

    def __sizeof__(self) -> int:
        """Return the memory in bytes (an estimate)."""
        held = sum(map(getsizeof, self.children.values()))
        return _EMPTY_WEIGHT + 2 * len(self.names) + held + _ENTRY_WEIGHT * len(self.children)

    @property
    def has_msgpack(self) -> bool:
        """True if a value in it is MessagePack."""
        return any(
            is_msgpack_encoding(child) if isinstance(child, bytes) else child.has_msgpack
            for child in self.children.values()
        )


Node: TypeAlias = "bytes | TextNode | ArrayNode | ObjectNode"
"""The value of a key. Bytes: the encoding of a scalar, of MessagePack, or of an object or list of
up to ``SMALL_BYTES``."""

Path: TypeAlias = tuple[str | int, ...]
Edits: TypeAlias = "dict[str, Edits] | int | None"
"""The places of a value that may differ from an older one: the edits below the keys of an object,
or the first index of a list; ``None``: all of it."""


class DigestTree:
    """The encoded values of a state and their digests. Immutable, may be shared.

    Args:
        root: The state.
        is_whole: It has the elements of its lists, so that the state can be decoded from it.
    """

    __slots__ = ("_has_escaped", "_packed", "_root", "is_whole", "weight")

    def __init__(self, root: ObjectNode, *, is_whole: bool = True) -> None:
        self._root: Final = root
        self.is_whole: Final = is_whole
        self.weight: Final = getsizeof(root)
        """The memory in bytes (an estimate)."""
        self._packed: bytes | None = None
        self._has_escaped: bool | None = None

    @property
    def digest(self) -> bytes:
        """The Merkle root, 16 bytes. It depends on the state alone, not on its history."""
        return self._root.digest

    @property
    def state_bytes(self) -> int:
        """Size of the state: the length of its encoding, about that of its JSON."""
        return self._root.size

    @property
    def has_msgpack(self) -> bool:
        """True if a value of the state is MessagePack."""
        return self._root.has_msgpack

    @property
    def is_graphs(self) -> bool:
        """True for a checkpoint of LangGraph."""
        return {"channel_values", "channel_versions"} <= self._root.children.keys()

    def without_elements(self) -> DigestTree:
        """Return the tree without the elements of lists; a later save compares each of them."""
        return DigestTree(cast("ObjectNode", _drop_elements(self._root)), is_whole=False)

    @property
    def has_escaped(self) -> bool:
        """True if a string in it may be one that was escaped; see ``surrogates``."""
        if self._has_escaped is None:
            self._has_escaped = has_escaped(self._root)
        return self._has_escaped

    def to_state(self) -> dict[str, Json]:
        """Return a new state with sorted keys; bytes in it are MessagePack."""
        return cast("dict[str, Json]", open_whole(self._root))

    def to_parts(self) -> dict[str, object]:
        """Return the state with a ``PackedList`` for each long list that keys alone lead to.

        Not to be changed.
        """
        return cast("dict[str, object]", open_node(self._root))

    def to_payload(self) -> bytes:
        """Return the whole state as one frame."""
        if self._packed is None:  # two threads at once: the same bytes twice
            operation = [encode_canonical("="), encode_canonical([]), bytes(self._root)]
            self._packed = pack_frame(join_list([join_list(operation)]))
        return self._packed

    def require_size(self, max_bytes: int) -> None:
        """Refuse a state that is longer than ``max_bytes`` as compact JSON or MessagePack."""
        require_json_size(self.to_state, self._root.size, max_bytes)


def build_root(state: object, basis: DigestTree | None, *, packed: bool = False) -> ObjectNode:
    """Return the root of a state's tree.

    Parts that ``basis`` has are not checked again.

    Args:
        state: A JSON object.
        basis: The digest tree of an older state.
        packed: Bytes in the state are MessagePack; without this, they are refused.
    """
    before = None if basis is None else basis._root  # noqa: SLF001
    if isinstance(state, Mapping):
        plain = state if type(state) is dict else dict(state)
        try:
            root = build_object_by_entries(plain, before, 1)
            if packed or not root.has_msgpack:
                return root
        except (TypeError, ValueError, LookupError, RuntimeError):
            pass  # the slow check says where and why; or another thread changes the state
    copy: Any = _canonicalize_with_msgpack(state) if packed else canonicalize_state(state)
    try:
        return build_object_by_entries(copy, before, 1)
    except (TypeError, ValueError) as exc:
        raise SerializationError("the state cannot be kept exactly as JSON") from exc


def _canonicalize_with_msgpack(value: object) -> object:
    """Return the canonical form of a value in which bytes are MessagePack."""
    if isinstance(value, Mapping):
        return {escape(key): _canonicalize_with_msgpack(it) for key, it in sorted(value.items())}
    return value if is_msgpack(value) else canonicalize(value)


def is_msgpack(value: object) -> bool:
    """Return whether a value is MessagePack, or a list whose elements are."""
    return type(value) is bytes or (
        isinstance(value, list) and bool(value) and type(value[0]) is bytes
    )


def is_only_msgpack(value: object) -> bool:
    """Return whether a value is MessagePack, or a list of nothing else."""
    return type(value) is bytes or (
        isinstance(value, list) and bool(value) and {*map(type, value)} == {bytes}
    )


def build_object_by_entries(
    value: dict[str, object],
    before: Node | None,
    depth: int,
    *,
    is_json: bool = False,
    edits: Edits = None,
    keeps: bool = True,
) -> ObjectNode:
    """Return the node of an object, with a node for each entry.

    Args:
        value: The object.
        before: The node of the older value at the same path; nodes of equal values are reused.
        depth: The number of objects and lists from the root to this one.
        is_json: The object was decoded from a frame, so it is canonical.
        edits: The places where it differs from ``before``, if they are known.
        keeps: Of a decoded object: keep the elements of its lists, which later changes need.
    """
    require_depth(depth)
    old = before if isinstance(before, ObjectNode) else _NO_OBJECT
    keys = sorted(value)
    names = encode_canonical(keys)
    is_same = names == old.names
    if not is_same:
        "".join(keys)  # raises TypeError unless all are strings
    get, below = old.children.get, edits if isinstance(edits, dict) else None
    children: dict[str, Node] = {}
    references: dict[str, bytes] = {}
    for key in keys:
        item, was = value[key], get(key)
        is_list = type(item) in LISTS
        child: Node | None = None
        if below is not None and was is not None and key not in below:
            child = was
        elif not is_list and type(was) not in _LARGE:
            child = _build_small(item, was, depth + 1)
        if child is None:
            build = _build_list if is_list else _build_large
            places = below.get(key) if below else None
            child = build(item, was, depth + 1, is_json=is_json, edits=places, keeps=keeps)
        children[key] = child
        if child is was:
            references[key] = old.references[key]
        else:
            references[key] = encode_reference(child)
            is_same = False
    if is_same:
        return old
    found = digest(b"".join((b"D", names, *references.values())))
    size = len(names) + sum(map(len, children.values()))  # its head is as long as that of a list
    return ObjectNode(found, size, names, children, references)


def _build_large(
    value: Any, before: Node | None, depth: int, *, is_json: bool, edits: Edits, keeps: bool
) -> Node:
    """Return the node of an object or scalar that may be large, or follows a large value."""
    if type(value) is dict:
        made = build_object_by_entries(
            value, before, depth, is_json=is_json, edits=edits, keeps=keeps
        )
        return made if made.size > SMALL_BYTES or made.has_msgpack else bytes(made)
    if isinstance(before, TextNode) and type(value) is str and value == before.text:
        return before
    return cast("Node", _build_small(value, None, depth))


def _build_list(
    value: Any, before: Node | None, depth: int, *, is_json: bool, edits: Edits, keeps: bool
) -> Node:
    items = value if type(value) is list else list(value)
    holds_msgpack = bool(items) and type(items[0]) is bytes
    if (
        not holds_msgpack
        and not isinstance(before, ArrayNode)
        and (len(items) <= _SAMPLE or len(encode_canonical(items[:_SAMPLE])) <= SMALL_BYTES)
    ):
        small = _build_small(items, before, depth)
        if small is not None:
            return small
    made = _build_long_list(value, before, depth, is_json=is_json, edits=edits, keeps=keeps)
    if len(made) > SMALL_BYTES or holds_msgpack:
        return made
    return bytes(made) if made.is_kept else encode_canonical(items)


def _build_long_list(
    value: list[object],
    before: Node | None,
    depth: int,
    *,
    is_json: bool,
    edits: Edits,
    keeps: bool,
) -> ArrayNode:
    if type(value) is Grown:
        return build_grown_array(value, before, depth)
    if isinstance(edits, int) and isinstance(before, ArrayNode) and before.is_kept:
        if edits >= len(before.lengths):
            return extend_array(before, value, depth)
        is_json = False  # elements are compared with those of before
    return build_array(value, before, depth, is_json=is_json, keeps=keeps)


def _build_small(value: object, before: Node | None, depth: int) -> Node | None:
    """Return the node of a scalar, or of an object or list of up to ``SMALL_BYTES``.

    ``None`` for a larger one, and for an object with MessagePack or a ``Grown`` list in it.
    """
    try:
        encoded = encode_canonical(value)
        if encoded == before:
            return before
        if type(value) is str and len(value) > KEEP_BYTES:
            return TextNode(digest(encoded), len(encoded), value)
        if type(value) in SURE or type(value) is bytes:
            return encoded
        if len(encoded) <= SMALL_BYTES:
            require_json(encoded, depth - 1)
            return encoded
    except TypeError:
        if type(value) is not dict and type(value) is not list:
            raise
    return None


def _drop_elements(node: Node) -> Node:
    if isinstance(node, ArrayNode):
        return node.without_elements()
    if not isinstance(node, ObjectNode):
        return node
    children = {key: _drop_elements(child) for key, child in node.children.items()}
    return replace(node, children=children)


def has_escaped(node: Node) -> bool:
    """Return whether a string of the value may be one that was escaped; see ``surrogates``."""
    if isinstance(node, bytes):
        return may_be_escaped(node)
    if isinstance(node, ObjectNode):
        return may_be_escaped(node.names) or any(map(has_escaped, node.children.values()))
    encodings = node.chunks if isinstance(node, ArrayNode) else [bytes(node)]
    return any(map(may_be_escaped, encodings))


def open_node(node: Node) -> object:
    """Return a node's value, with a ``PackedList`` for each longer list; see ``decode_opened``."""
    if isinstance(node, bytes):
        return decode_canonical(node)
    if isinstance(node, ObjectNode):
        return OpenedObject((key, open_node(it)) for key, it in node.children.items())
    return PackedList(node) if isinstance(node, ArrayNode) else node.text


def open_whole(node: Node) -> object:
    """Return a new object for a node's value, in its canonical form."""
    return decode_canonical(node) if isinstance(node, bytes) else decode_opened(open_node(node))


def decode_opened(part: object) -> object:
    """Return the value of ``open_node``, or of a part of it."""
    if isinstance(part, PackedList):
        return part.decode_elements()
    if type(part) is OpenedObject:
        return {key: decode_opened(item) for key, item in part.items()}
    return part


class OpenedObject(dict[str, object]):
    """An object of ``open_node``, which may have a ``PackedList`` below it."""


def encode_reference(node: Node) -> bytes:
    """Return the bytes that represent a node in its parent's digest."""
    if isinstance(node, bytes):
        return node if len(node) <= REFERENCE_BYTES else _HASHED + digest(node)
    return _HASHED + node.digest


_LARGE: Final = frozenset({TextNode, ArrayNode, ObjectNode})
_SAMPLE: Final = 64
"""The first elements of a list, whose encoding may show that the list is a long one."""

_EMPTY_WEIGHT: Final = 400
_ENTRY_WEIGHT: Final = 250

_NO_OBJECT: Final = ObjectNode(
    digest(b"D" + encode_canonical([])),
    1,
    encode_canonical([]),
    {},
    {},
)
