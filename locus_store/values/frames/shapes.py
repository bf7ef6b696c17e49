"""Shapes of versions: digests that suffice to find later changes without the state."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from locus_store.values.frames.alignment import DIGEST_BYTES, common_digests, fingerprint_all, split

_KEEP_BYTES = 1024
"""Above this an element or a text is kept, so that an edit of it costs the edit."""

_TOKEN_BYTES = 32
"""Up to here a scalar's pinned encoding stands for itself: hashing it would take longer."""

_HASHED = b"#"
"""Prefix of a digest that stands for a value; no pinned encoding begins with it."""


@dataclass(frozen=True, slots=True)
class TextNode:
    """A string of more than ``_KEEP_BYTES`` code points."""

    digest: bytes
    size: int
    text: str

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        return 100 + sys.getsizeof(self.text)


@dataclass(frozen=True, slots=True)
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
    body: bytes = field(default=b"", compare=False, repr=False)
    """The elements as the caller gave them, pinned: to see that they are all there still, and
    some more behind them, is one comparison. ``b""``: not kept."""
    token: object = field(default=None, compare=False, repr=False)
    """The token of the ``Grown`` list that has this shape."""

    @property
    def weight(self) -> int:
        """The memory in bytes (an estimate)."""
        packed = len(self.digests) + len(self.fingerprints) + len(self.body)
        return 400 + packed + sum(map(len, self.large.values())) + 200 * len(self.large)


@dataclass(frozen=True, slots=True)
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
        with suppress(TypeError, ValueError):
            return plain, shape_object(plain, before, 1, decoded=False)
    # The quick check says no: the slow one says where and why.
    copy = cast("dict[str, object]", canonical_state(state))
    try:
        return copy, shape_object(copy, before, 1, decoded=False)
    except (TypeError, ValueError) as exc:
        raise SerializationError("the state cannot be kept exactly as JSON") from exc


def _node(value: object, before: Node | None, depth: int, *, decoded: bool) -> tuple[Node, int]:
    kind = type(value)
    if kind is dict:
        mapping = shape_object(cast("dict[str, object]", value), before, depth + 1, decoded=decoded)
        return mapping, mapping.size
    if kind is Grown:
        grown = _grown(cast("Grown", value), before, depth + 1)
        return grown, grown.size
    if kind is list or kind is tuple:
        array = _array(cast("list[object]", value), before, depth + 1, decoded=decoded)
        return array, array.size
    if isinstance(before, TextNode) and value == before.text and kind is str:
        return before, before.size
    return _scalar(value, before)


def _scalar(value: object, before: Node | None) -> tuple[Node, int]:
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
    value: dict[str, object], before: Node | None, depth: int, *, decoded: bool
) -> ObjectNode:
    """Return the shape of an object whose older shape, if any, is ``before``.

    ``decoded``: it was decoded from JSON, so that it is canonical and needs no check.
    """
    _require_depth(depth)
    old = before if isinstance(before, ObjectNode) else _NO_OBJECT
    keys = sorted(value)
    names = pinned(keys)
    if names != old.names:
        "".join(keys).encode()  # neither other types nor lone surrogates
    size = len(names) - 3  # one tag and an end for the list's tag and count
    children: dict[str, Node] = {}
    get = old.children.get
    tokens = []
    for key in keys:
        child, length = _node(value[key], get(key), depth, decoded=decoded)
        size += length
        children[key] = child
        tokens.append(child if type(child) is bytes else token_of(child))
    found = digest(b"D" + names + b"".join(tokens))
    return ObjectNode(found, size, names, children)


def _array(value: list[object], before: Node | None, depth: int, *, decoded: bool) -> ArrayNode:
    _require_depth(depth)
    if decoded:
        return _decoded_array(value, depth)
    old = before if isinstance(before, ArrayNode) else _NO_ARRAY
    body = pinned(value)[_LIST_HEAD:]
    if old.body and body.startswith(old.body):
        if len(body) == len(old.body):
            return old
        return _appended(old, value[len(old.digests) // DIGEST_BYTES :], body, depth)
    fingerprints, size = fingerprint_all(value)
    if fingerprints == old.fingerprints:
        return replace(old, body=body)
    head, tail = common_digests(old.fingerprints, fingerprints)
    gone = slice(head, len(old.fingerprints) - tail)
    known = dict(zip(split(old.fingerprints[gone]), split(old.digests[gone]), strict=True))
    fresh: dict[bytes, bytes] = {}
    middle = bytearray()
    start, stop = head // DIGEST_BYTES, len(value) - tail // DIGEST_BYTES
    marks = split(fingerprints[head : len(fingerprints) - tail])
    for item, mark in zip(value[start:stop], marks, strict=True):
        if mark not in known:
            known[mark] = _admit(item, mark, depth, fresh)
        middle += known[mark]
    digests = b"".join((old.digests[:head], middle, old.digests[len(old.digests) - tail :]))
    return ArrayNode(
        digest(b"L" + len(value).to_bytes(8) + digests),
        size,
        digests,
        digests if fingerprints == digests else fingerprints,
        _large(old, gone, digests, fresh),
        body,
    )


def _grown(value: Grown, before: Node | None, depth: int) -> ArrayNode:
    """Return the shape of a list that names the list it extends."""
    old = before if isinstance(before, ArrayNode) and before.body else _NO_ARRAY
    if old.token is not None and old.token is value.token:
        return old
    if old.token is None or old.token is not value.base:
        made = _array(list(value), before, depth, decoded=False)
    else:
        _require_depth(depth)
        new = value[len(old.digests) // DIGEST_BYTES :]
        made = _appended(old, new, old.body + pinned(new)[_LIST_HEAD:], depth)
    return replace(made, token=value.token)


def _appended(old: ArrayNode, new: list[object], body: bytes, depth: int) -> ArrayNode:
    """Return the shape of a list: all elements of an older one, then ``new``."""
    fresh: dict[bytes, bytes] = {}
    marks, found = [], []
    for item in new:
        marks.append(digest(pinned(item)))
        found.append(_admit(item, marks[-1], depth, fresh))
    digests = b"".join((old.digests, *found))
    shared = old.fingerprints is old.digests and marks == found
    return ArrayNode(
        digest(b"L" + (len(digests) // DIGEST_BYTES).to_bytes(8) + digests),
        _LIST_HEAD + len(body),
        digests,
        digests if shared else b"".join((old.fingerprints, *marks)),
        {**old.large, **fresh} if fresh else old.large,
        body,
    )


def _decoded_array(value: list[object], depth: int) -> ArrayNode:
    """Return the shape of a list decoded from JSON; each element is inspected once."""
    raws = [pinned(item) for item in value]
    found = [digest(raw) for raw in raws]
    for item, raw in zip(value, raws, strict=True):
        # A level takes 5 bytes at least, and a byte of its own, which may be another's as well.
        if len(raw) >= 5 * MAX_DEPTH and raw.count(b"{") + raw.count(b"[") > MAX_DEPTH - depth:
            require_levels(item, encode(item), depth)
    large = {mark: raw for mark, raw in zip(found, raws, strict=True) if len(raw) > _KEEP_BYTES}
    digests, body = b"".join(found), b"".join(raws)
    mark = digest(b"L" + len(value).to_bytes(8) + digests)
    return ArrayNode(mark, _LIST_HEAD + len(body), digests, digests, large, body)


def _admit(item: object, mark: bytes, depth: int, fresh: dict[bytes, bytes]) -> bytes:
    raw = pinned(item)
    pin = checked(item, len(raw), depth)
    found = mark if pin == raw else digest(pin)
    if len(pin) > _KEEP_BYTES:
        fresh[found] = pin
    return found


def _large(
    old: ArrayNode, gone: slice, digests: bytes, fresh: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    if not fresh and not old.large:
        return old.large
    every = {**old.large, **fresh}
    if old.large.keys().isdisjoint(split(old.digests[gone])):
        return every
    return {found: every[found] for found in split(digests) if found in every}


def _light(node: Node) -> Node:
    if isinstance(node, ArrayNode):
        return replace(node, body=b"")
    if isinstance(node, ObjectNode):
        return replace(node, children={key: _light(it) for key, it in node.children.items()})
    return node


@dataclass(frozen=True, slots=True)
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

    def elements(self) -> list[object]:
        """Return new objects for the elements."""
        count = (len(self.shape.digests) // DIGEST_BYTES).to_bytes(4, "little")
        return cast("list[object]", unpinned(b"[" + count + self.shape.body))


def snapshot(value: object, node: Node) -> object:
    """Return a snapshot of a value, independent of later changes by its owner; see ``thawed``.

    Args:
        value: As the caller gave it.
        node: Its shape, from ``measure``.
    """
    if isinstance(node, ObjectNode):
        mapping = cast("dict[str, object]", value)
        return {key: snapshot(mapping[key], child) for key, child in node.children.items()}
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


_LIST_HEAD: Final = 5
"""A pinned list's tag and count."""

_NO_ARRAY: Final = ArrayNode(digest(b"L" + bytes(8)), 5, b"", b"", {})
_NO_OBJECT: Final = ObjectNode(digest(b"D" + pinned([])), 2, pinned([]), {})
