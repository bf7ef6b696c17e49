"""Nodes of long lists: digests of the elements, and their encodings, which later ones compare."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeVar, cast

from locus_store.values.canonical import Grown
from locus_store.values.encoding import (
    MAX_DEPTH,
    are_flat,
    decode_canonical,
    digest,
    digest_each,
    encode_canonical,
    encode_each,
    make_list_head,
    require_json,
    require_levels,
    require_values,
    skip_list_head,
)
from locus_store.values.frames.alignment import DIGEST_BYTES, Runs, split

Items = TypeVar("Items", list[Any], "array[int]")

KEEP_BYTES = 1024
"""Above this an element or a text is kept, so that an edit of it costs the edit."""

CHUNK: Final = 64
"""Elements that are encoded at once: a large list takes a third of the time of one block, and
of one print a fifth, whose memory is new each time."""

_MANY: Final = 8
"""Up to so many elements are hashed or looked up one by one."""

LISTS: Final = frozenset({list, tuple, Grown})


@dataclass(slots=True, eq=False)
class ArrayNode:
    """A list that is reached through keys only."""

    digest: bytes
    element_bytes: int
    """The sum of the elements' encodings."""
    digests: bytes
    """Digests of the elements, 16 bytes each. An element whose digest is known is not checked."""
    large: dict[bytes, bytes]
    """The encoded elements above ``KEEP_BYTES``, by their digests."""
    chunks: list[bytes]
    """The list, encoded as lists of ``CHUNK`` elements, which are compared to find the equal ones.
    Empty: not kept."""
    lengths: array[int]
    """The lengths of the elements in ``chunks``; empty if those are not kept."""
    token: object = None
    """The token of the ``Grown`` list that this is the node of."""
    has_msgpack: bool = False
    """Its elements are MessagePack."""

    def __len__(self) -> int:
        """Return the length of the encoding."""
        return self.element_bytes + len(make_list_head(len(self.digests) // DIGEST_BYTES))

    @property
    def is_kept(self) -> bool:
        """True if the elements themselves are kept."""
        return len(self.lengths) * DIGEST_BYTES == len(self.digests)

    def encode_range(self, first: int, last: int) -> bytes:
        """Return the encoded list of the elements of a range."""
        return make_list_head(last - first) + self.join_encoded(first, last)

    def join_encoded(self, first: int, last: int) -> bytes:
        """Return the encodings of the elements of a range."""
        parts: list[memoryview] = []
        for nth in range(first // CHUNK, -(-last // CHUNK)):
            lengths = self.lengths[nth * CHUNK : (nth + 1) * CHUNK]
            start = max(first - nth * CHUNK, 0)
            chunk = skip_list_head(self.chunks[nth])[sum(lengths[:start]) :]
            parts.append(chunk[: sum(lengths[start : last - nth * CHUNK])])
        return b"".join(parts)

    def without_elements(self) -> ArrayNode:
        """Return the node without the elements; a later save compares each of them."""
        return replace(self, chunks=[], lengths=_NO_ARRAY.lengths)

    def with_token(self, token: object) -> ArrayNode:
        """Return the node of the ``Grown`` list with this token; ``replace`` takes much longer."""
        held = self.digests, self.large, self.chunks, self.lengths
        return ArrayNode(self.digest, self.element_bytes, *held, token, self.has_msgpack)

    def __bytes__(self) -> bytes:
        """Return the encoding."""
        return self.encode_range(0, len(self.digests) // DIGEST_BYTES)

    def __sizeof__(self) -> int:
        """Return the memory in bytes (an estimate)."""
        packed = len(self.digests) + 8 * len(self.lengths)
        packed += sum(map(len, self.chunks))
        return 400 + packed + sum(map(len, self.large.values())) + 200 * len(self.large)


def build_array(
    value: list[object], before: object, depth: int, *, is_json: bool, keeps: bool = True
) -> ArrayNode:
    """Return the node of a list.

    Args:
        value: A list or tuple.
        before: The node of the older value at the same path, if any.
        depth: The number of objects and lists from the root to this one.
        is_json: The list was decoded from a frame.
        keeps: Of a decoded list: keep its elements.
    """
    require_depth(depth)
    if is_json:
        return _build_decoded(value, depth, keeps=keeps)
    old = before if isinstance(before, ArrayNode) else _NO_ARRAY
    items = value if type(value) is list else list(value)
    chunks = encode_chunks(items)
    if chunks == old.chunks and old.is_kept:
        return old
    return _edit_array(old, items, chunks, depth)


def encode_chunks(
    items: list[Any], encode: Callable[[object], bytes] = encode_canonical
) -> list[bytes]:
    """Return the encoded lists of ``CHUNK`` elements each."""
    return [encode(items[at : at + CHUNK]) for at in range(0, len(items), CHUNK)]


def build_grown_array(value: Grown, before: object, depth: int) -> ArrayNode:
    """Return the node of a list that names the list it extends."""
    old = before if isinstance(before, ArrayNode) and before.is_kept else _NO_ARRAY
    if old.token is not None and old.token is value.token:
        return old
    if old.token is None or old.token is not value.base:
        made = build_array(list(value), before, depth, is_json=False)
    else:
        require_depth(depth)
        made = extend_array(old, value, depth)
    return made.with_token(value.token)


def extend_array(
    old: ArrayNode, value: list[object], depth: int, chunks: list[bytes] | None = None
) -> ArrayNode:
    """Return the node of a list that begins with all elements of an older one."""
    count = len(old.lengths)
    raws = encode_each(value[count:])
    chunks = chunks or grow_chunks(old.chunks, count, raws)
    return _replace(old, (count, 0), value[count:], raws, chunks=chunks, depth=depth)


def grow_chunks(
    chunks: list[bytes],
    count: int,
    others: list[bytes],
    make_head: Callable[[int], bytes] = make_list_head,
) -> list[bytes]:
    """Return the chunks of ``count`` elements with the encodings of more."""
    begun, made = count % CHUNK, chunks[: count // CHUNK]
    before = chunks[-1][len(make_head(begun)) :] if begun else b""
    for at in range(-begun, len(others), CHUNK):
        length = min(CHUNK, len(others) - at)
        made.append(make_head(length) + before + b"".join(others[max(0, at) : at + CHUNK]))
        before = b""
    return made


def _edit_array(old: ArrayNode, value: list[object], chunks: list[bytes], depth: int) -> ArrayNode:
    """Return the node of a list whose elements are compared with those of an older one as bytes."""
    first, last = _count_equal_chunks(old.chunks, chunks), 0
    if _begins_with(chunks, old.chunks, first):
        return extend_array(old, value, depth, chunks)
    if len(value) == len(old.lengths) and first < len(chunks) - 1:
        last = _count_equal_chunks(old.chunks[::-1], chunks[::-1])
    behind = len(value) - min(len(value), (len(chunks) - last) * CHUNK)
    return _align(old, (first * CHUNK, behind), value, chunks, depth)


def _align(
    old: ArrayNode, same: tuple[int, int], value: list[object], chunks: list[bytes], depth: int
) -> ArrayNode:
    """Return the node of a list that has ``same`` many elements of an older one at its ends."""
    start, behind = same
    new, lengths = _select_between(same, value), _select_between(same, old.lengths)
    if min(len(new), len(lengths)) <= _MANY:
        raws = encode_each(new)
        return _replace(old, same, new, raws, chunks=chunks, depth=depth)
    runs = Runs(_join_chunks(old.chunks, same), lengths, _join_chunks(chunks, same), len(new))
    head, tail = runs.head, runs.tail
    if (
        not behind
        and head + tail < len(new)
        and (gone := runs.count_missing(encode_canonical(new[head])))
    ):
        stays = start + head, len(lengths) - head - gone
        left = _replace(old, stays, [], [], chunks=[], depth=depth)
        return extend_array(left, value, depth, chunks)
    raws = encode_each(_select_between((head, tail), new))
    if not runs.fit(tail, raws):
        raws += encode_each(new[len(new) - tail :])
        tail = 0
    edited = _select_between((head, tail), new)
    return _replace(old, (start + head, behind + tail), edited, raws, chunks=chunks, depth=depth)


def _select_between(ends: tuple[int, int], items: Items) -> Items:
    """Return a list without so many elements at its start and end."""
    return items[ends[0] : len(items) - ends[1]]


def _count_equal_chunks(old: list[bytes], new: list[bytes]) -> int:
    """Return how many chunks are equal at the start."""
    at, most = 0, min(len(old), len(new))
    while at < most and old[at] == new[at]:
        at += 1
    return at


def _begins_with(chunks: list[bytes], old: list[bytes], first: int) -> bool:
    """Return whether a list begins with all of an older one; ``first`` chunks are equal."""
    if first == len(old):
        return True
    if first < len(old) - 1 or first == len(chunks):
        return False
    new = chunks[first]
    return new.startswith(skip_list_head(old[first]), len(new) - len(skip_list_head(new)))


def _join_chunks(chunks: list[bytes], same: tuple[int, int]) -> bytes:
    """Return the encoded elements of the chunks between the ends, joined."""
    between = chunks[same[0] // CHUNK : len(chunks) - -(-same[1] // CHUNK)]
    return b"".join(map(skip_list_head, between))


def _replace(
    old: ArrayNode,
    stays: tuple[int, int],
    items: list[object],
    raws: list[bytes],
    *,
    chunks: list[bytes],
    depth: int,
) -> ArrayNode:
    """Return the node of a list: an older one with ``items`` between its ends.

    Args:
        old: The older one.
        stays: The number of its elements that stay at the start, and at the end.
        items: The new elements.
        raws: The encoding of each of them.
        chunks: The encoding of the new list.
        depth: The number of objects and lists that contain an element.
    """
    head, tail = stays[0] * DIGEST_BYTES, len(old.digests) - stays[1] * DIGEST_BYTES
    gone = split(old.digests[head:tail])
    has_msgpack = {*map(type, items)} == {bytes} if items else old.has_msgpack
    if has_msgpack != old.has_msgpack and any(stays):
        raise TypeError("a list of MessagePack and other values")
    known = set(gone) if has_msgpack == old.has_msgpack else set[bytes]()
    found, fresh = _check_elements(raws, known, depth, is_msgpack=has_msgpack)
    digests = b"".join((old.digests[:head], *found, old.digests[tail:]))
    last = len(old.lengths) - stays[1]
    added = array("Q", map(len, raws))
    lengths = old.lengths[: stays[0]] + added + old.lengths[last:]
    held = old.element_bytes - sum(old.lengths[stays[0] : last]) if any(stays) else 0
    made = ArrayNode(
        _digest_of_list(digests),
        held + sum(added),
        digests,
        _select_large(old, gone, digests, fresh),
        chunks,
        lengths,
        has_msgpack=has_msgpack,
    )
    if chunks and made.join_encoded(stays[0], stays[0] + len(raws)) != b"".join(raws):
        raise ValueError("another thread changes the list")
    return made


def _check_elements(
    raws: list[bytes], others: set[bytes], depth: int, *, is_msgpack: bool
) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return the digests of encoded elements, and the large ones that are not among ``others``."""
    fresh: dict[bytes, bytes] = {}
    digests = digest_each(raws)
    for raw, mark in zip(raws, digests, strict=True):
        if mark in others:
            continue
        if not is_msgpack:
            require_json(raw, depth)
        if len(raw) > KEEP_BYTES:
            fresh[mark] = raw
    return digests, fresh


def _build_decoded(value: list[object], depth: int, *, keeps: bool) -> ArrayNode:
    """Return the node of a list that was decoded from a frame."""
    each: list[bytes] = []
    large: dict[bytes, bytes] = {}
    chunks: list[bytes] = []
    lengths, size = array("Q"), 0
    has_msgpack = bool(value) and type(value[0]) is bytes
    for at in range(0, len(value), CHUNK):
        items = value[at : at + CHUNK]
        raws = encode_each(items)
        sizes = list(map(len, raws))
        chunk = b"".join((make_list_head(len(raws)), *raws))
        if not has_msgpack:
            require_values(chunk)
            _require_levels(items, raws, depth)
        elif {*map(type, items)} != {bytes}:
            raise TypeError("a list of MessagePack and other values")
        found = digest_each(raws)
        each += found
        size += sum(sizes)
        if keeps:
            if max(sizes) > KEEP_BYTES:
                pairs = zip(found, raws, strict=True)
                large |= {mark: raw for mark, raw in pairs if len(raw) > KEEP_BYTES}
            chunks.append(chunk)
            lengths.extend(sizes)
    digests = b"".join(each)
    known = digests, large, chunks, lengths
    return ArrayNode(_digest_of_list(digests), size, *known, has_msgpack=has_msgpack)


def _require_levels(items: list[object], raws: list[bytes], depth: int) -> None:
    """Raise ``ValueError`` if an element is nested too deeply; ``raws`` are their encodings."""
    objects = cast("list[dict[str, object]]", items)
    if {*map(type, items)} == {dict} and are_flat(it for one in objects for it in one.values()):
        return
    for item, raw in zip(items, raws, strict=True):
        if type(item) is dict or type(item) in LISTS:
            require_levels(raw, depth)


def _select_large(
    old: ArrayNode, lost_digests: list[bytes], digests: bytes, fresh: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    """Return the large elements: those of an older list that are not lost, and new ones."""
    lost = old.large.keys() & lost_digests
    if not fresh and not lost:
        return old.large
    every = old.large | fresh
    there = digests if len(lost) <= _MANY else set(split(digests))
    for one in lost:
        if one not in there:
            del every[one]
    return every


def _digest_of_list(digests: bytes) -> bytes:
    return digest(b"L" + (len(digests) // DIGEST_BYTES).to_bytes(8) + digests)


def require_depth(depth: int) -> None:
    """Raise ``ValueError`` if a value is nested too deeply."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")


@dataclass(slots=True)
class PackedList:
    """A long list of a state, which is not decoded yet."""

    node: ArrayNode

    def has_prefix(self, elements: list[object]) -> bool:
        """Return whether the first elements have these canonical forms."""
        digests = b"".join([digest(encode_canonical(it)) for it in elements])
        return self.node.digests.startswith(digests)

    def decode_elements(self) -> list[object]:
        """Return new objects for the elements, in their canonical form."""
        chunks = map(decode_canonical, self.node.chunks)
        return list(chain.from_iterable(cast("Iterable[list[object]]", chunks)))


_NO_ARRAY: Final = ArrayNode(digest(b"L" + bytes(8)), 0, b"", {}, [], array("Q"))
