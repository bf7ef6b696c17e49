"""Shapes of versions: digests that suffice to find later changes without the state.

A small object is one node, which C calls make and compare. Nodes are never changed, and shared
between shapes. Their classes are not frozen, because that makes their creation four times as slow.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import Final, TypeAlias, cast

from locus_store.errors import SerializationError
from locus_store.values.canonical import canonical_state, require_scalar
from locus_store.values.encoding import (
    Grown,
    Json,
    checked,
    digest,
    pinned,
    require_levels,
    unpinned,
)
from locus_store.values.frames.arrays import (
    KEEP_BYTES,
    NESTED,
    ArrayNode,
    Listed,
    array_of,
    extended,
    grown_array,
    require_depth,
)

_TOKEN_BYTES = 32
"""Up to here a scalar's pinned encoding stands for itself: hashing it would take longer."""

SMALL_BYTES: Final = 4096
"""Up to here an object is compared and hashed as a whole, by its pinned form."""

_HASHED = b"#"
"""Prefix of a digest that stands for a value; no pinned encoding begins with it."""


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
    """An object of up to ``SMALL_BYTES``, which is compared and hashed as a whole."""

    digest: bytes
    size: int
    given: bytes
    """Its pinned form, as the caller gave it."""
    pin: bytes
    """Its canonical form, pinned: the same object where the caller gave that one."""

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        return 200 + len(self.pin) + (0 if self.given is self.pin else len(self.given))

    def value(self) -> dict[str, Json]:
        """Return a new object for the value, in its canonical form."""
        return cast("dict[str, Json]", unpinned(self.pin))


@dataclass(slots=True)
class ObjectNode:
    """A larger object: the root, or one that is reached through keys only."""

    digest: bytes
    size: int
    names: bytes
    """The sorted keys, pinned."""
    children: dict[str, Node]

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        nodes = [child.weight for child in self.children.values() if not isinstance(child, bytes)]
        return 400 + 2 * len(self.names) + 200 * len(self.children) + sum(nodes)


Node: TypeAlias = (
    "bytes | TextNode | ArrayNode | SmallNode | ObjectNode"  # bytes: the token of another scalar
)
Root: TypeAlias = "SmallNode | ObjectNode"
Path: TypeAlias = tuple[str | int, ...]
Edits: TypeAlias = "dict[str, Edits] | int | None"
"""The places of a value that may differ from an older one: the edits below the keys of an object,
or the first index of a list; ``None``: all of it."""


class Shape:
    """Digests of a version that suffice to find later changes. Immutable, may be shared."""

    __slots__ = ("_root", "_weight")

    def __init__(self, root: Root) -> None:
        self._root: Final = root
        self._weight: Final = root.weight

    @property
    def digest(self) -> bytes:
        """The Merkle root, 16 bytes. It depends on the state alone, not on its history."""
        return self._root.digest

    @property
    def state_bytes(self) -> int:
        """Size of the state: the length of its pinned encoding, about that of its JSON."""
        return self._root.size

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        return self._weight

    def light(self) -> Shape:
        """Return the shape without the lists' bodies; a later save compares every element."""
        return Shape(cast("Root", _light(self._root)))


def measure(state: object, basis: Shape | None) -> tuple[dict[str, object], Root]:
    """Return the state as a plain dict, and its shape; parts of ``basis`` are not rechecked."""
    before = None if basis is None else basis._root  # noqa: SLF001
    if isinstance(state, Mapping):
        plain = state if type(state) is dict else dict(state)
        try:
            return plain, shape_object(plain, before, 1, decoded=False)
        except (TypeError, ValueError):
            pass  # the slow check says where and why
    copy = cast("dict[str, object]", canonical_state(state))
    try:
        return copy, shape_object(copy, before, 1, decoded=False)
    except (TypeError, ValueError) as exc:
        raise SerializationError("the state cannot be kept exactly as JSON") from exc


def _nested(
    value: object, before: Node | None, depth: int, *, decoded: bool, edits: Edits, keeps: bool
) -> Root | ArrayNode:
    if edits is _NO_EDITS and isinstance(before, SmallNode | ObjectNode | ArrayNode):
        return before
    kind = type(value)
    if kind is dict:
        mapping = cast("dict[str, object]", value)
        return shape_object(mapping, before, depth, decoded=decoded, edits=edits, keeps=keeps)
    if kind is Grown:
        return grown_array(cast("Grown", value), before, depth)
    items = cast("list[object]", value)
    if isinstance(edits, int) and isinstance(before, ArrayNode) and before.is_kept:
        if edits >= len(before.lengths):
            return extended(before, items, depth)
        decoded = not before.is_canonical  # if not, each element would have to be checked
    return array_of(items, before, depth, decoded=decoded, keeps=keeps)


def _scalar(value: object, before: Node | None) -> tuple[Node, int]:
    if type(before) is TextNode and value == before.text and type(value) is str:
        return before, before.size
    raw = pinned(value)
    if raw == before:
        return before, len(raw)
    token = raw if len(raw) <= _TOKEN_BYTES else _HASHED + digest(raw)
    if before is not None and token == token_of(before):
        return before, len(raw)
    require_scalar(value)
    if type(value) is str and len(value) > KEEP_BYTES:
        return TextNode(token[1:], len(raw), value), len(raw)
    return token, len(raw)


def shape_object(
    value: dict[str, object],
    before: Node | None,
    depth: int,
    *,
    decoded: bool = False,
    edits: Edits = None,
    keeps: bool = True,
) -> Root:
    """Return the shape of an object whose older shape, if any, is ``before``.

    Args:
        value: The object.
        before: The older shape.
        depth: The number of objects and lists from the root to this one.
        decoded: It was decoded from JSON, so that it is canonical and needs no check.
        edits: The places where it differs from ``before``, if they are known.
        keeps: Of a decoded object: keep the elements of its lists, which later changes need.
    """
    require_depth(depth)
    if not isinstance(before, ObjectNode):
        pin = pinned(value)
        if isinstance(before, SmallNode) and pin == before.given:
            return before
        if len(pin) <= SMALL_BYTES:
            return _small(value, pin, depth, decoded=decoded)
    made = large_object(value, before, depth, decoded=decoded, edits=edits, keeps=keeps)
    if made.size <= SMALL_BYTES:
        return _small(value, pinned(value), depth, decoded=decoded)
    return made


def _small(value: dict[str, object], pin: bytes, depth: int, *, decoded: bool) -> SmallNode:
    if decoded:
        require_levels(value, pin, depth - 1)
        return SmallNode(digest(pin), len(pin), pin, pin)
    canon = checked(value, len(pin), depth - 1)
    return SmallNode(digest(canon), len(pin), pin, pin if canon == pin else canon)


def large_object(
    value: dict[str, object],
    before: Node | None,
    depth: int,
    *,
    decoded: bool = False,
    edits: Edits = None,
    keeps: bool = True,
) -> ObjectNode:
    """Return the shape of an object by its entries; see ``shape_object``."""
    old = before if isinstance(before, ObjectNode) else _NO_OBJECT
    keys = sorted(value)
    names = pinned(keys)
    if names != old.names:
        "".join(keys).encode()  # neither other types nor lone surrogates
    size = len(names) - 3  # one tag and an end for the list's tag and count
    children: dict[str, Node] = {}
    child: Node
    get = old.children.get
    tokens = []
    for key in keys:
        item = value[key]
        if type(item) in NESTED:
            below = edits.get(key, _NO_EDITS) if isinstance(edits, dict) else None
            nested = _nested(item, get(key), depth + 1, decoded=decoded, edits=below, keeps=keeps)
            child, length = nested, nested.size
        else:
            child, length = _scalar(item, get(key))
        size += length
        children[key] = child
        tokens.append(child if type(child) is bytes else token_of(child))
    if names == old.names and all(map(is_, children.values(), old.children.values())):
        return old
    found = digest(b"".join((b"D", names, *tokens)))
    return ObjectNode(found, size, names, children)


def _light(node: Node) -> Node:
    if isinstance(node, ArrayNode):
        return node.light()
    if isinstance(node, ObjectNode):
        return replace(node, children={key: _light(it) for key, it in node.children.items()})
    return node


def snapshot(value: object, node: Node) -> object:
    """Return a snapshot of a value, independent of later changes by its owner; see ``thawed``.

    Args:
        value: As the caller gave it.
        node: Its shape, from ``measure``.
    """
    if isinstance(node, ObjectNode):
        mapping = cast("dict[str, object]", value)
        return {
            key: mapping[key] if type(child) is bytes else snapshot(mapping[key], child)
            for key, child in node.children.items()
        }
    if isinstance(node, ArrayNode):
        return Listed(node)
    return node if isinstance(node, SmallNode) else value


def is_canonical(node: Node) -> bool:
    """Return whether every list was given in its canonical form."""
    if isinstance(node, ObjectNode):
        return all(map(is_canonical, node.children.values()))
    return not isinstance(node, ArrayNode) or node.is_canonical


def thawed(kept: object) -> object:
    """Return the value of a snapshot."""
    if isinstance(kept, Listed):
        return kept.elements()
    if isinstance(kept, SmallNode):
        return kept.value()
    if isinstance(kept, dict):
        return {key: thawed(item) for key, item in kept.items()}
    return kept


def opened(kept: object) -> object:
    """Return a snapshot's value in which larger lists are still packed."""
    if isinstance(kept, SmallNode):
        return kept.value()
    return {key: opened(it) for key, it in kept.items()} if isinstance(kept, dict) else kept


def token_of(node: Node) -> bytes:
    """Return the bytes that represent a node in its parent's digest."""
    return node if isinstance(node, bytes) else _HASHED + node.digest


_NO_EDITS: Final[dict[str, Edits]] = {}


_NO_OBJECT: Final = ObjectNode(digest(b"D" + pinned([])), 2, pinned([]), {})
