"""Shapes of versions: digests that suffice to find later changes without the state.

Nodes are never changed, and shared between shapes. Their classes are not frozen, because that makes
their creation four times as slow.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Final, TypeAlias, cast

from locus_store.errors import SerializationError
from locus_store.values.canonical import canonical_state, require_scalar
from locus_store.values.encoding import (
    MAX_DEPTH,
    Grown,
    checked,
    digest,
    encode,
    pinned,
    require_levels,
    unpinned,
)
from locus_store.values.frames.alignment import DIGEST_BYTES, LIST_HEAD, Runs, split

_KEEP_BYTES = 1024
"""Above this an element or a text is kept, so that an edit of it costs the edit."""

_TOKEN_BYTES = 32
"""Up to here a scalar's pinned encoding stands for itself: hashing it would take longer."""

_HASHED = b"#"
"""Prefix of a digest that stands for a value; no pinned encoding begins with it."""


@dataclass(slots=True)
class TextNode:
    """A string of more than ``_KEEP_BYTES`` code points."""

    digest: bytes
    size: int
    text: str

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        return 100 + sys.getsizeof(self.text)


@dataclass(slots=True)
class ArrayNode:
    """A list that is reached through keys only."""

    digest: bytes
    size: int
    digests: bytes
    """Digests of the elements' canonical forms, 16 bytes each."""
    fingerprints: bytes
    """Of the elements as the caller gave them (keys in any order, tuples): equal fingerprints are
    equal values, so a known one is neither checked nor made canonical again."""
    large: dict[bytes, bytes]
    """Digest to pinned canonical form, for the elements above ``_KEEP_BYTES``."""
    raw: bytes
    """The list as the caller gave it, pinned: to see that all elements are there still, and some
    more behind them, is one comparison. ``b""``: not kept."""
    lengths: array[int]
    """The lengths of the elements in ``raw``; empty if that is not kept."""
    token: object = None
    """The token of the ``Grown`` list that has this shape."""

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        packed = len(self.digests) + len(self.fingerprints) + len(self.raw) + 8 * len(self.lengths)
        return 400 + packed + sum(map(len, self.large.values())) + 200 * len(self.large)


@dataclass(slots=True)
class ObjectNode:
    """The root, or an object that is reached through keys only."""

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
    "bytes | TextNode | ArrayNode | ObjectNode"  # bytes: the token of any other scalar
)
Path: TypeAlias = tuple[str | int, ...]
Edits: TypeAlias = "dict[str, Edits] | int | None"
"""The places of a value that may differ from an older one: the edits below the keys of an object,
or the first index of a list; ``None``: all of it."""


class Shape:
    """Digests of a version that suffice to find later changes. Immutable, may be shared."""

    __slots__ = ("_root", "_weight")

    def __init__(self, root: ObjectNode) -> None:
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
        return Shape(cast("ObjectNode", _light(self._root)))


def measure(state: object, basis: Shape | None) -> tuple[dict[str, object], ObjectNode]:
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
    value: object, before: Node | None, depth: int, *, decoded: bool, edits: Edits
) -> ObjectNode | ArrayNode:
    if edits is _NO_EDITS and isinstance(before, ObjectNode | ArrayNode):
        return before
    kind = type(value)
    if kind is dict:
        mapping = cast("dict[str, object]", value)
        return shape_object(mapping, before, depth, decoded=decoded, edits=edits)
    if kind is Grown:
        return _grown(cast("Grown", value), before, depth)
    items = cast("list[object]", value)
    if isinstance(edits, int) and isinstance(before, ArrayNode) and before.raw:
        if edits >= len(before.lengths):
            return _extended(before, items[len(before.lengths) :], depth)
        decoded = not is_canonical(before)  # if not, each element would have to be checked
    return _array(items, before, depth, decoded=decoded)


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
    if type(value) is str and len(value) > _KEEP_BYTES:
        return TextNode(token[1:], len(raw), value), len(raw)
    return token, len(raw)


def shape_object(
    value: dict[str, object],
    before: Node | None,
    depth: int,
    *,
    decoded: bool = False,
    edits: Edits = None,
) -> ObjectNode:
    """Return the shape of an object whose older shape, if any, is ``before``.

    Args:
        value: The object.
        before: The older shape.
        depth: The number of objects and lists from the root to this one.
        decoded: It was decoded from JSON, so that it is canonical and needs no check.
        edits: The places where it differs from ``before``, if they are known.
    """
    _require_depth(depth)
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
        if type(item) in _NESTED:
            below = edits.get(key, _NO_EDITS) if isinstance(edits, dict) else None
            nested = _nested(item, get(key), depth + 1, decoded=decoded, edits=below)
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


def _array(value: list[object], before: Node | None, depth: int, *, decoded: bool) -> ArrayNode:
    _require_depth(depth)
    if decoded:
        return _decoded_array(value, depth)
    old = before if isinstance(before, ArrayNode) else _NO_ARRAY
    raw = pinned(value if type(value) is list else list(value))
    if not raw.startswith(memoryview(old.raw)[LIST_HEAD:], LIST_HEAD) or not old.raw:
        return _edited(old, value, raw, depth)
    if len(raw) == len(old.raw):
        return old
    return _appended(old, value[len(old.lengths) :], raw, depth)


def _grown(value: Grown, before: Node | None, depth: int) -> ArrayNode:
    """Return the shape of a list that names the list it extends."""
    old = before if isinstance(before, ArrayNode) and before.raw else _NO_ARRAY
    if old.token is not None and old.token is value.token:
        return old
    if old.token is None or old.token is not value.base:
        made = _array(list(value), before, depth, decoded=False)
    else:
        _require_depth(depth)
        made = _extended(old, value[len(old.lengths) :], depth)
    return replace(made, token=value.token)


def _extended(old: ArrayNode, new: list[object], depth: int) -> ArrayNode:
    """Return the shape of a list: all elements of an older one, then ``new``."""
    head = _list_head(len(old.lengths) + len(new))
    more = memoryview(pinned(new))[LIST_HEAD:]
    return _appended(old, new, b"".join((head, memoryview(old.raw)[LIST_HEAD:], more)), depth)


def _appended(old: ArrayNode, new: list[object], raw: bytes, depth: int) -> ArrayNode:
    raws = [pinned(item) for item in new]
    return _replaced(old, (len(old.lengths), 0), new, raws, raw=raw, depth=depth)


def _edited(old: ArrayNode, value: list[object], raw: bytes, depth: int) -> ArrayNode:
    """Return the shape of a list, whose elements are compared with an older one's as bytes."""
    if min(len(value), len(old.lengths)) <= _MANY:
        raws = [pinned(item) for item in value]
        return _replaced(old, (0, 0), value, raws, raw=raw, depth=depth)
    runs = Runs(old.raw, old.lengths, raw, len(value))
    head, tail = runs.head, runs.tail
    if head + tail < len(value) and (gone := runs.gone(pinned(value[head]))):
        stays = head, len(old.lengths) - head - gone
        left = _replaced(old, stays, [], [], raw=b"", depth=depth)
        return _appended(left, value[sum(stays) :], raw, depth)
    raws = [pinned(item) for item in value[head : len(value) - tail]]
    if not runs.fit(tail, raws):
        raws += [pinned(item) for item in value[len(value) - tail :]]
        tail = 0
    new = value[head : len(value) - tail]
    return _replaced(old, (head, tail), new, raws, raw=raw, depth=depth)


def _replaced(
    old: ArrayNode,
    stays: tuple[int, int],
    items: list[object],
    raws: list[bytes],
    *,
    raw: bytes,
    depth: int,
) -> ArrayNode:
    """Return the shape of a list: an older one with ``items`` between its ends.

    Args:
        old: The older one.
        stays: The number of its elements that stay at the start, and at the end.
        items: The new elements.
        raws: Each of them pinned.
        raw: The new list, pinned.
        depth: The number of objects and lists that contain an element.
    """
    head, tail = stays[0] * DIGEST_BYTES, len(old.digests) - stays[1] * DIGEST_BYTES
    gone = split(old.digests[head:tail])
    known = dict(zip(split(old.fingerprints[head:tail]), gone, strict=True))
    marks, found, fresh = _admitted(items, raws, known, depth)
    digests = b"".join((old.digests[:head], found, old.digests[tail:]))
    fingerprints = b"".join((old.fingerprints[:head], marks, old.fingerprints[tail:]))
    last = len(old.lengths) - stays[1]
    return ArrayNode(
        _digest_of_list(digests),
        len(raw),
        digests,
        digests if fingerprints == digests else fingerprints,
        _large(old, gone, digests, fresh),
        raw,
        old.lengths[: stays[0]] + array("Q", map(len, raws)) + old.lengths[last:],
    )


def _admitted(
    items: list[object], raws: list[bytes], known: dict[bytes, bytes], depth: int
) -> tuple[bytes, bytes, dict[bytes, bytes]]:
    """Return fingerprints and digests of elements, and the large ones that are not ``known``."""
    fresh: dict[bytes, bytes] = {}
    marks = [digest(raw) for raw in raws]
    for item, raw, mark in zip(items, raws, marks, strict=True):
        if mark not in known:
            pin = checked(item, len(raw), depth)
            known[mark] = mark if pin == raw else digest(pin)
            if len(pin) > _KEEP_BYTES:
                fresh[known[mark]] = pin
    return b"".join(marks), b"".join([known[mark] for mark in marks]), fresh


def _decoded_array(value: list[object], depth: int) -> ArrayNode:
    """Return the shape of a list decoded from JSON; each element is inspected once."""
    raws = [pinned(item) for item in value]
    found = [digest(raw) for raw in raws]
    for item, raw in zip(value, raws, strict=True):
        # A level takes 5 bytes at least, and a byte of its own, which may be another's as well.
        is_long = len(raw) >= 5 * MAX_DEPTH and not _is_flat(item)
        if is_long and raw.count(b"{") + raw.count(b"[") > MAX_DEPTH - depth:
            require_levels(item, encode(item), depth)
    large = {mark: raw for mark, raw in zip(found, raws, strict=True) if len(raw) > _KEEP_BYTES}
    digests, whole = b"".join(found), b"".join((_list_head(len(raws)), *raws))
    lengths = array("Q", map(len, raws))
    return ArrayNode(_digest_of_list(digests), len(whole), digests, digests, large, whole, lengths)


def _is_flat(value: object) -> bool:
    """Return whether a value holds no list or object."""
    if type(value) is dict:
        return _NESTED.isdisjoint(map(type, value.values()))
    return type(value) is not list or _NESTED.isdisjoint(map(type, value))


def _large(
    old: ArrayNode, gone: list[bytes], digests: bytes, fresh: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    """Return the large elements of a list: an older one's without those ``gone``, and new ones."""
    lost = old.large.keys() & gone
    if not fresh and not lost:
        return old.large
    every = old.large | fresh
    there = digests if len(lost) <= _MANY else set(split(digests))
    for mark in lost:
        if mark not in there:
            del every[mark]
    return every


def _digest_of_list(digests: bytes) -> bytes:
    return digest(b"L" + (len(digests) // DIGEST_BYTES).to_bytes(8) + digests)


def _list_head(count: int) -> bytes:
    return b"[" + count.to_bytes(4, "little")


def _light(node: Node) -> Node:
    if isinstance(node, ArrayNode):
        return replace(node, raw=b"", lengths=_NO_ARRAY.lengths)
    if isinstance(node, ObjectNode):
        return replace(node, children={key: _light(it) for key, it in node.children.items()})
    return node


@dataclass(slots=True)
class Listed:
    """A list in a snapshot, in packed form."""

    shape: ArrayNode

    @property
    def digest(self) -> bytes:
        """The digest of the contents; equal lists have equal digests."""
        return self.shape.digest

    @property
    def token(self) -> object:
        """The token of the saved ``Grown`` list; ``None`` for other lists."""
        return self.shape.token

    @property
    def size(self) -> int:
        """See ``Shape.state_bytes``."""
        return self.shape.size

    @property
    def lengths(self) -> Sequence[int]:
        """The size of each element; see ``Shape.state_bytes``."""
        return self.shape.lengths

    def begins_with(self, elements: list[object]) -> bool:
        """Return whether the first elements have these canonical forms."""
        digests = b"".join([digest(pinned(it)) for it in elements])
        return self.shape.digests.startswith(digests)

    def elements(self) -> list[object]:
        """Return new objects for the elements."""
        return cast("list[object]", unpinned(self.shape.raw))


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
    return value


def is_canonical(node: Node) -> bool:
    """Return whether every list was given in its canonical form."""
    if isinstance(node, ObjectNode):
        return all(map(is_canonical, node.children.values()))
    return not isinstance(node, ArrayNode) or node.fingerprints == node.digests


def thawed(kept: object) -> object:
    """Return the value of a snapshot."""
    if isinstance(kept, Listed):
        return kept.elements()
    if isinstance(kept, dict):
        return {key: thawed(item) for key, item in kept.items()}
    return kept


def token_of(node: Node) -> bytes:
    """Return the bytes that represent a node in its parent's digest."""
    return node if isinstance(node, bytes) else _HASHED + node.digest


def _require_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")


_NESTED: Final = frozenset({dict, list, tuple, Grown})

_NO_EDITS: Final[dict[str, Edits]] = {}

_MANY: Final = 8
"""Up to so many elements are hashed or looked up one by one."""

_NO_ARRAY: Final = ArrayNode(digest(b"L" + bytes(8)), 5, b"", b"", {}, pinned([]), array("Q"))
_NO_OBJECT: Final = ObjectNode(digest(b"D" + pinned([])), 2, pinned([]), {})
