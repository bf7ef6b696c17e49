"""The difference between two digest trees, as a frame of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeGuard, cast
from unicodedata import combining

from locus_store.values import msgpack
from locus_store.values.encoding import (
    ENVELOPE_BYTES,
    Json,
    decode_canonical,
    digest,
    encode_canonical,
    is_msgpack_encoding,
    join_list,
    make_list_head,
    pack_frame,
    skip_list_head,
)
from locus_store.values.frames.alignment import (
    Gap,
    align,
    digest_at,
    measure_common_ends,
    shift_gaps,
)
from locus_store.values.frames.arrays import KEEP_BYTES, ArrayNode, build_array
from locus_store.values.frames.digest_trees import (
    Node,
    ObjectNode,
    Path,
    SmallNode,
    TextNode,
    build_object_by_entries,
    encode_node,
)

_SPLICE_BYTES = 32
"""About what a text splice takes beside its path and its text."""

_TINY_BYTES = 64
"""Up to here a list is replaced: finding what changed in it would take longer than it saves."""

_WORD_REACH = 64
"""Characters by which a splice is extended to the ends of a word that it changes."""

_LEAST_ENTRY = 2
"""An entry of an object takes at least so many bytes in the encoding."""

_PATCH_LEVELS = 32
"""Below this many keys and indices an element is replaced: patching looks at a list's elements
again on each level, and takes five of Python's own 1,000 levels."""


class Frame:
    """Operations, each encoded when it is added, so that their size is known."""

    __slots__ = ("operations", "size")

    def __init__(self) -> None:
        self.operations: list[bytes] = []
        self.size = 0

    def add(self, kind: str, path: Path, *operands: object, last: bytes = b"") -> None:
        """Add an operation; its ``last`` operand, if any, is encoded."""
        operation = encode_canonical((kind, path, *operands))
        if last:
            operation = b"%c%b%b" % (operation[0] + 1, operation[1:], last)  # the count is one more
        self.operations.append(operation)
        self.size += len(operation)

    def extend(self, other: Frame) -> None:
        self.operations += other.operations
        self.size += other.size

    def cut(self, count: int, size: int) -> None:
        del self.operations[count:]
        self.size = size

    def to_payload(self) -> bytes:
        return pack_frame(join_list(self.operations)) if self.operations else b""

    def to_payload_shorter_than(self, whole: ObjectNode) -> bytes | None:
        """Return the payload; ``None`` if it would be longer than ``whole``, the new value.

        Long keys that many paths repeat make it longer. A frame that is shorter than an accepted
        state exceeds no limit either.
        """
        size = len(make_list_head(len(self.operations))) + self.size
        return self.to_payload() if size <= whole.size + ENVELOPE_BYTES else None


_Patch: TypeAlias = Callable[[int, int], "Frame | None"]
_Select: TypeAlias = Callable[[int, int], bytes]
"""Returns the encoded list of the elements of a range."""


def diff(old: Node | None, new: Node, path: Path, frame: Frame) -> None:
    """Add the operations to ``frame`` that turn ``old`` into ``new``."""
    if old is None or isinstance(old, bytes) or isinstance(new, bytes):
        if old != new:
            _diff_scalars(old, new, path, frame)
    elif old.digest == new.digest:
        return
    elif isinstance(old, SmallNode) and isinstance(new, SmallNode):
        was, item = decode_canonical(old.encoded), decode_canonical(new.encoded)
        diff_values(was, item, path, frame)
    elif isinstance(old, TextNode) and isinstance(new, TextNode):
        _diff_texts(old.text, new.text, path, frame)
    elif is_object(old) and is_object(new):
        _diff_objects(build_by_entries(old, path), build_by_entries(new, path), path, frame)
    elif _is_list(old) and _is_list(new):
        _diff_arrays(_as_array(old, path), _as_array(new, path), path, frame)
    else:
        frame.add("=", path, last=encode_node(new))


def _diff_scalars(old: Node | None, new: Node, path: Path, frame: Frame) -> None:
    if isinstance(old, bytes) and isinstance(new, bytes) and is_msgpack_encoding(new):
        edit = _patch_msgpack(decode_canonical(old), decode_canonical(new), path)
        if edit is not None:
            frame.extend(edit)
            return
    frame.add("=", path, last=encode_node(new))


def _patch_msgpack(old: object, new: object, path: Path) -> Frame | None:
    """Return the edit of MessagePack, by its JSON, if it is smaller than the new bytes."""
    if not isinstance(old, bytes) or not isinstance(new, bytes):
        return None
    inner, frame = Frame(), Frame()
    diff_values(msgpack.as_json(old), msgpack.as_json(new), (), inner)
    frame.add("m", path, last=join_list(inner.operations))
    return frame if frame.size < len(new) else None


def is_object(node: Node | None) -> TypeGuard[SmallNode | ObjectNode]:
    """Return whether a node is that of an object."""
    return isinstance(node, ObjectNode) or (isinstance(node, SmallNode) and not node.is_list)


def _is_list(node: Node) -> TypeGuard[SmallNode | ArrayNode]:
    return isinstance(node, ArrayNode) or (isinstance(node, SmallNode) and node.is_list)


def build_by_entries(node: SmallNode | ObjectNode, path: Path) -> ObjectNode:
    """Return an object whose entries have nodes of their own, at a path."""
    if isinstance(node, ObjectNode):
        return node
    value = cast("dict[str, object]", node.decode())
    return build_object_by_entries(value, None, len(path) + 1, is_json=True)


def _as_array(node: SmallNode | ArrayNode, path: Path) -> ArrayNode:
    if isinstance(node, ArrayNode):
        return node
    return build_array(cast("list[object]", node.decode()), None, len(path) + 1, is_json=True)


def _diff_objects(old: ObjectNode, new: ObjectNode, path: Path, frame: Frame) -> None:
    count, size = len(frame.operations), frame.size
    if old.names != new.names:
        for key in old.children.keys() - new.children.keys():
            frame.add("-", (*path, key))
    get = old.children.get
    for key, child in new.children.items():
        before = get(key)
        if before is not child:
            diff(before, child, (*path, key), frame)
    if path and frame.size - size > new.size:  # every operation repeats its path
        frame.cut(count, size)
        frame.add("=", path, last=encode_node(new))


def _diff_arrays(old: ArrayNode, new: ArrayNode, path: Path, frame: Frame) -> None:
    def patch(i: int, j: int) -> Frame | None:
        before = old.large.get(digest_at(old.digests, i))
        wanted = digest_at(new.digests, j)
        after = new.large.get(wanted)
        if before is None or after is None or wanted in old.large:  # in it: moved, not edited
            return None
        was, element = decode_canonical(before), decode_canonical(after)
        if isinstance(was, bytes) or isinstance(element, bytes):
            return _patch_msgpack(was, element, (*path, i))
        edited = cast("Json", was), cast("Json", element)
        return _patch(*edited, (*path, i), len(after))

    _splice(align(old.digests, new.digests), new.encode_range, path, frame, patch)


def _splice(gaps: list[Gap], select: _Select, path: Path, frame: Frame, patch: _Patch) -> None:
    """Add splices from back to front, so that earlier gaps keep their old indexes."""

    def replace(start: int, stop: int, first: int, last: int) -> None:
        if start < stop or first < last:
            frame.add("[", path, start, stop - start, last=select(first, last))

    for start, stop, first, last in reversed(gaps):
        end_old, end_new = stop, last
        for nth in reversed(range(min(stop - start, last - first))):
            edit = patch(start + nth, first + nth)
            if edit is not None:
                replace(start + nth + 1, end_old, first + nth + 1, end_new)
                frame.extend(edit)
                end_old, end_new = start + nth, first + nth
        replace(start, end_old, first, end_new)


def _patch(old: Json, new: Json, path: Path, limit: int) -> Frame | None:
    """Return the edit of one element if it is smaller than the element."""
    if type(old) is not type(new) or not isinstance(new, (dict, list, str)):
        return None
    if len(path) > _PATCH_LEVELS:
        return None
    frame = Frame()
    diff_values(old, new, path, frame)
    return frame if frame.size < limit else None


def diff_values(old: Json, new: Json, path: Path, frame: Frame) -> None:
    """Add the operations to ``frame`` that turn one JSON value into another."""
    if isinstance(old, dict) and isinstance(new, dict):
        _diff_dicts(old, new, path, frame)
    elif isinstance(old, list) and isinstance(new, list):
        _diff_lists(old, new, path, frame)
    elif isinstance(old, str) and isinstance(new, str):
        if old != new:
            _diff_texts(old, new, path, frame)
    elif encode_canonical(old) != encode_canonical(new):  # 1, 1.0 and True are equal in Python
        frame.add("=", path, new)


def _diff_dicts(old: dict[str, Json], new: dict[str, Json], path: Path, frame: Frame) -> None:
    count, size = len(frame.operations), frame.size
    if old.keys() != new.keys():
        for key in old.keys() - new.keys():
            frame.add("-", (*path, key))
    changed, alike = [], []
    for key, item in new.items():
        if key not in old or old[key] != item:
            changed.append(key)
        elif type(item) is not str:
            alike.append(key)
    if alike and encode_canonical([old[it] for it in alike]) != encode_canonical(
        [new[it] for it in alike]
    ):
        changed = list(new)  # 1 equals True
    for key in changed:
        if key in old:
            diff_values(old[key], new[key], (*path, key), frame)
        else:
            frame.add("=", (*path, key), new[key])
    added = frame.size - size
    # Operations repeat the path.
    if added > _LEAST_ENTRY * len(new) and added > len(encode_canonical(new)):
        frame.cut(count, size)
        frame.add("=", path, new)


def _diff_lists(old: list[Json], new: list[Json], path: Path, frame: Frame) -> None:
    encoded = encode_canonical(new)
    before = skip_list_head(encode_canonical(old)) if len(old) < len(new) else None
    if before is not None and skip_list_head(encoded)[: len(before)] == before:
        frame.add("[", path, len(old), 0, new[len(old) :])
        return
    if len(encoded) <= _TINY_BYTES:
        frame.add("=", path, new)
        return
    least = 0 if int in map(type, path) else KEEP_BYTES  # 0: part of a list's element
    # Encoded, because 1, 1.0 and True are equal in Python.
    olds, news = list(map(encode_canonical, old)), list(map(encode_canonical, new))

    def patch(i: int, j: int) -> Frame | None:
        size = len(news[j])
        if least and min(size, len(olds[i])) <= least:
            return None
        return _patch(old[i], new[j], (*path, i), size)

    head, tail = measure_common_ends(olds, news)
    a, b = olds[head : len(old) - tail], news[head : len(new) - tail]
    gaps = align(b"".join(map(digest, a)), b"".join(map(digest, b)))
    _splice(shift_gaps(gaps, head), lambda *ends: join_list(news[slice(*ends)]), path, frame, patch)


def _diff_texts(old: str, new: str, path: Path, frame: Frame) -> None:
    if min(len(old), len(new)) <= KEEP_BYTES and int not in map(type, path):
        frame.add("=", path, new)
        return
    head, tail = _keep_words_whole(new, *measure_common_ends(old, new))
    middle = new[head : len(new) - tail]
    if len(middle) + _SPLICE_BYTES < len(new):
        gone = len(old) - tail - head
        frame.add("t", path, head, gone, middle)
    else:
        frame.add("=", path, new)


def _keep_words_whole(text: str, head: int, tail: int) -> tuple[int, int]:
    """Return ends that cut no word, so that a search finds whole words in a frame.

    ``head`` and ``tail`` are how many characters of ``text`` are not new at either end. A run of
    letters that is longer than ``_WORD_REACH`` stays cut.
    """
    before = _measure_reach(lambda by: _is_in_word(text, head - by), head)
    behind = _measure_reach(lambda by: _is_in_word(text, len(text) - tail + by), tail)
    return head - before, tail - behind


def _measure_reach(is_in_word: Callable[[int], bool], most: int) -> int:
    """Return the distance to the end of the word; 0 if it is too far."""
    for by in range(min(most, _WORD_REACH) + 1):
        if not is_in_word(by):
            return by
    return 0


def _is_in_word(text: str, place: int) -> bool:
    """Return whether one word spans the characters before and after ``place``."""
    return 0 < place < len(text) and _is_of_word(text[place - 1]) and _is_of_word(text[place])


def _is_of_word(character: str) -> bool:
    return character.isalnum() or combining(character) > 0
