"""Digest trees: the encoded values of a state, with which a later state is compared.

A small value is encoded by one C call, and its bytes are compared with the older ones. Nodes never
change, and trees share them. Their classes are not frozen, because that makes their creation four
times as slow.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeAlias, cast

from locus_store.errors import SerializationError
from locus_store.values.canonical import Grown, canonicalize, canonicalize_state
from locus_store.values.encoding import (
    Json,
    decode_canonical,
    digest,
    encode_canonical,
    is_list_encoding,
    is_plain,
    join_list,
    make_object_head,
    pack_frame,
    require_json,
    require_json_size,
    require_levels,
)
from locus_store.values.frames.alignment import DIGEST_BYTES
from locus_store.values.frames.arrays import (
    KEEP_BYTES,
    NESTED,
    ArrayNode,
    PackedList,
    build_array,
    build_grown_array,
    extend_array,
    require_depth,
)
from locus_store.values.surrogates import escape, may_be_escaped

REFERENCE_BYTES: Final = 64
"""A scalar whose encoding is not longer stands for itself in a digest."""

SMALL_BYTES: Final = 4096
"""A list or object in a state whose encoding is not longer is compared and hashed as a whole."""

_HASHED = b"\xc1"
"""Prefix of a digest that stands for a value; no encoding begins with it."""


@dataclass(slots=True)
class TextNode:
    """A string of more than ``KEEP_BYTES`` code points."""

    digest: bytes
    size: int
    text: str

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        return 100 + sys.getsizeof(self.text)


@dataclass(slots=True)
class SmallNode:
    """An object or list of up to ``SMALL_BYTES``, which is compared and hashed as a whole."""

    has_msgpack: ClassVar = False
    digest: bytes
    size: int
    encoded: bytes

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        return 200 + self.size

    @property
    def is_list(self) -> bool:
        """True for a list, False for an object."""
        return is_list_encoding(self.encoded)

    def decode(self) -> Any:
        """Return a new object or list for the value, in its canonical form."""
        return decode_canonical(self.encoded)


@dataclass(slots=True)
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
    weight: int
    """The memory in bytes (an estimate)."""
    has_msgpack: bool = False
    """A value in it is MessagePack."""


Node: TypeAlias = "bytes | TextNode | ArrayNode | SmallNode | ObjectNode"
"""The value of a key; bytes: the encoding of a scalar or of MessagePack."""

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

    __slots__ = ("_has_escaped", "_packed", "_root", "is_whole")

    def __init__(self, root: ObjectNode, *, is_whole: bool = True) -> None:
        self._root: Final = root
        self.is_whole: Final = is_whole
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
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        return self._root.weight

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
            operation = [encode_canonical("="), encode_canonical([]), encode_node(self._root)]
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
    return is_msgpack(value) and (
        type(value) is bytes or {*map(type, cast("list[object]", value))} == {bytes}
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
        is_json: The object was decoded from JSON, so it is canonical and needs no check.
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
    has_msgpack = False
    size = len(names)  # the head of an object is as long as that of a list
    weight = _EMPTY_WEIGHT + 2 * len(names)
    children: dict[str, Node] = {}
    references: dict[str, bytes] = {}
    get, old_references = old.children.get, old.references
    child: Node
    for key in keys:
        item, was = value[key], get(key)
        if type(item) in NESTED:
            below = edits.get(key, _NO_EDITS) if isinstance(edits, dict) else None
            child = _build_nested(item, was, depth + 1, is_json=is_json, edits=below, keeps=keeps)
            size += child.size
            weight += child.weight - child.size
            has_msgpack |= child.has_msgpack
        else:
            child = _build_scalar(item, was)
            size += len(child) if isinstance(child, bytes) else child.size
            has_msgpack |= type(item) is bytes
        children[key] = child
        if child is was:
            references[key] = old_references[key]
        else:
            references[key] = encode_reference(child)
            is_same = False
    if is_same:
        return old
    found = digest(b"".join((b"D", names, *references.values())))
    weight += size + _ENTRY_WEIGHT * len(keys)
    return ObjectNode(found, size, names, children, references, weight, has_msgpack)


def _build_nested(
    value: object, before: Node | None, depth: int, *, is_json: bool, edits: Edits, keeps: bool
) -> SmallNode | ObjectNode | ArrayNode:
    if edits is _NO_EDITS and isinstance(before, (SmallNode, ObjectNode, ArrayNode)):
        return before
    if type(value) is not dict:
        items = cast("list[object]", value)
        return _build_list(items, before, depth, is_json=is_json, edits=edits, keeps=keeps)
    if not isinstance(before, ObjectNode):
        small = _as_small(_replace_grown(value), before, depth, is_json=is_json)
        if small is not None:
            return small
    made = build_object_by_entries(value, before, depth, is_json=is_json, edits=edits, keeps=keeps)
    if made.size <= SMALL_BYTES and not made.has_msgpack:
        return _build_small(encode_canonical(_replace_grown(value)), depth, is_json=is_json)
    return made


def _replace_grown(value: dict[str, object]) -> dict[str, object]:
    """Return an object with plain lists in place of ``Grown`` ones."""
    if Grown not in map(type, value.values()):
        return value
    return {key: list(it) if isinstance(it, Grown) else it for key, it in value.items()}


def _build_list(
    value: list[object],
    before: Node | None,
    depth: int,
    *,
    is_json: bool,
    edits: Edits,
    keeps: bool,
) -> SmallNode | ArrayNode:
    items = value if type(value) is list else list(value)
    if is_msgpack(items):
        return _build_long_list(value, before, depth, is_json=is_json, edits=edits, keeps=keeps)
    if not isinstance(before, ArrayNode) and (
        len(items) <= _SAMPLE or len(encode_canonical(items[:_SAMPLE])) <= SMALL_BYTES
    ):
        small = _as_small(items, before, depth, is_json=is_json)
        if small is not None:
            return small
    made = _build_long_list(value, before, depth, is_json=is_json, edits=edits, keeps=keeps)
    if made.size <= SMALL_BYTES:
        return _build_small(encode_canonical(items), depth, is_json=is_json)
    return made


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


def _build_scalar(value: object, before: Node | None) -> bytes | TextNode:
    if type(before) is TextNode and value == before.text and type(value) is str:
        return before
    raw = encode_canonical(value)
    if type(before) is bytes and raw == before:
        return before
    if type(value) is bytes:
        return raw
    if type(value) is not str:
        require_json(raw, 0)
    elif len(value) > KEEP_BYTES:
        return TextNode(digest(raw), len(raw), value)
    return raw


def _as_small(value: object, before: Node | None, depth: int, *, is_json: bool) -> SmallNode | None:
    """Return the node of a value of up to ``SMALL_BYTES``.

    ``None`` for a larger one, and for an object with MessagePack as the value of a key.
    """
    encoded = encode_canonical(value)
    if type(before) is SmallNode and encoded == before.encoded:
        return before
    if len(encoded) > SMALL_BYTES:
        return None
    if not is_plain(encoded, depth - 1):
        if type(value) is dict and any(map(is_msgpack, value.values())):
            return None
        (require_levels if is_json else require_json)(encoded, depth - 1)
    return SmallNode(digest(encoded), len(encoded), encoded)


def _build_small(encoding: bytes, depth: int, *, is_json: bool) -> SmallNode:
    if len(encoding) > SMALL_BYTES:
        raise ValueError("another thread changes the value")
    (require_levels if is_json else require_json)(encoding, depth - 1)
    return SmallNode(digest(encoding), len(encoding), encoding)


def _drop_elements(node: Node) -> Node:
    if isinstance(node, ArrayNode):
        return node.without_elements()
    if not isinstance(node, ObjectNode):
        return node
    children = {key: _drop_elements(child) for key, child in node.children.items()}
    weight = node.weight + _sum_weights(children) - _sum_weights(node.children)
    return replace(node, children=children, weight=weight)


def _sum_weights(children: Mapping[str, Node]) -> int:
    return sum(len(it) if isinstance(it, bytes) else it.weight for it in children.values())


def has_escaped(node: Node) -> bool:
    """Return whether a string of the value may be one that was escaped; see ``surrogates``."""
    if isinstance(node, bytes):
        return may_be_escaped(node)
    if isinstance(node, ObjectNode):
        return may_be_escaped(node.names) or any(map(has_escaped, node.children.values()))
    if isinstance(node, ArrayNode):
        return any(map(may_be_escaped, node.chunks))
    return may_be_escaped(node.text.encode() if isinstance(node, TextNode) else node.encoded)


def encode_node(node: Node) -> bytes:
    """Return the encoding of a node's value."""
    if isinstance(node, bytes):
        return node
    if isinstance(node, SmallNode):
        return node.encoded
    if isinstance(node, ObjectNode):
        entries = node.children.items()
        parts = [it for key, child in entries for it in (encode_canonical(key), encode_node(child))]
        return b"".join([make_object_head(len(entries)), *parts])
    if isinstance(node, ArrayNode):
        return node.encode_range(0, len(node.digests) // DIGEST_BYTES)
    return encode_canonical(node.text)


def open_node(node: Node) -> object:
    """Return a node's value, with a ``PackedList`` for each longer list; see ``decode_opened``."""
    if isinstance(node, bytes):
        return decode_canonical(node)
    if isinstance(node, ObjectNode):
        return OpenedObject((key, open_node(it)) for key, it in node.children.items())
    if isinstance(node, ArrayNode):
        return PackedList(node)
    return node.text if isinstance(node, TextNode) else node.decode()


def open_whole(node: Node) -> object:
    """Return a new object for a node's value, in its canonical form."""
    return decode_opened(open_node(node))


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


_NO_EDITS: Final[dict[str, Edits]] = {}
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
    _EMPTY_WEIGHT + 2 * len(encode_canonical([])),
)
