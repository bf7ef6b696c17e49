"""The difference between two digest trees, as a frame of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import compress, filterfalse
from operator import ne
from typing import Any, TypeAlias, cast
from unicodedata import combining

from locus_store.values import msgpack
from locus_store.values.encoding import (
    ENVELOPE_BYTES,
    Json,
    decode_canonical,
    digest,
    encode_canonical,
    encode_each,
    encode_entries,
    pack_frame,
)
from locus_store.values.frames.alignment import (
    Gap,
    align,
    digest_at,
    measure_common_ends,
    shift_gaps,
)
from locus_store.values.frames.arrays import KEEP_BYTES, ArrayNode, build_array
from locus_store.values.frames.digest_trees import Node, ObjectNode, Path, TextNode, open_whole

_SPLICE_BYTES = 32
"""About what a text splice takes beside its path and its text."""

_TINY_BYTES = 64
"""Up to here a list is replaced: finding what changed in it would take longer than it saves."""

_WORD_REACH = 64
"""Characters by which a splice is extended to the ends of a word that it changes."""

_PATCH_LEVELS = 32
"""Below this many keys and indices an element is replaced: patching looks at a list's elements
again on each level, and takes five of Python's own 1,000 levels."""


Frame: TypeAlias = list[tuple[object, ...]]
"""Operations, each with its kind, its path and its operands."""


def pack_shorter_than(frame: Frame, whole: ObjectNode) -> bytes | None:
    """Return the payload; ``None`` if it would be longer than ``whole``, the new value.

    Long keys that many paths repeat make it longer. A frame that is shorter than an accepted
    state exceeds no limit either.
    """
    body = encode_canonical(frame)
    if len(body) > whole.size + ENVELOPE_BYTES:
        return None
    return pack_frame(body) if frame else b""


_Patch: TypeAlias = Callable[[int, int], "Frame | None"]
_Select: TypeAlias = Callable[[int, int], list[Any]]
"""Returns the elements of a range."""


def edit(old: Node, new: Node, path: Path, frame: Frame) -> bool:
    """Add the operations to ``frame`` that turn ``old`` into ``new``, which differs from it.

    False: nothing was added, since it is better to replace ``old`` as a whole.
    """
    if isinstance(old, bytes) and isinstance(new, bytes):
        return _edit_value(decode_canonical(old), decode_canonical(new), path, frame)
    if isinstance(old, ArrayNode) or isinstance(new, ArrayNode):
        return _edit_array(_as_array(old, path), _as_array(new, path), path, frame)
    if isinstance(old, TextNode) and isinstance(new, TextNode):
        return _edit_text(old.text, new.text, path, frame)
    before, after = get_entries(old), get_entries(new)
    if before is None or after is None:
        return False
    count = len(frame)
    edit_entries(before, after, path, frame)
    return _keep_shorter(frame, count, len(new))


def edit_entries(
    old: Mapping[str, Node], new: Mapping[str, Node], path: Path, frame: Frame
) -> None:
    """Add the operations to ``frame`` that turn the entries of one object into those of another."""
    frame += [("-", (*path, key)) for key in filterfalse(new.__contains__, old)]
    for key, node in compress(new.items(), map(ne, new.values(), map(old.get, new))):
        place = (*path, key)
        if key not in old or not edit(old[key], node, place, frame):
            frame.append(("=", place, open_whole(node)))


def get_entries(node: Node) -> Mapping[str, Node] | None:
    """Return the nodes of the values of an object; ``None`` for another value."""
    if isinstance(node, ObjectNode):
        return node.children
    value = decode_canonical(node) if isinstance(node, bytes) else None
    return encode_entries(value) if isinstance(value, dict) else None


def _keep_shorter(frame: Frame, count: int, size: int) -> bool:
    """Remove the operations behind ``count`` if they are longer: each of them repeats its path."""
    if len(frame) <= count + 1 or len(encode_canonical(frame[count:])) <= size:
        return True
    del frame[count:]
    return False


def _edit_array(old: ArrayNode | None, new: ArrayNode | None, path: Path, frame: Frame) -> bool:
    if old is None or new is None:
        return False

    def select(first: int, last: int) -> list[Any]:
        return cast("list[Any]", decode_canonical(new.encode_range(first, last)))

    def patch(i: int, j: int) -> Frame | None:
        before = old.large.get(digest_at(old.digests, i))
        wanted = digest_at(new.digests, j)
        after = new.large.get(wanted)
        if before is None or after is None or wanted in old.large:  # moved, not edited
            return None
        return _patch(decode_canonical(before), decode_canonical(after), (*path, i), len(after))

    _splice(align(old.digests, new.digests), select, path, frame, patch)
    return True


def _as_array(node: Node, path: Path) -> ArrayNode | None:
    """Return the node of a list with its elements; ``None`` for another value."""
    value = decode_canonical(node) if isinstance(node, bytes) else node
    if isinstance(value, list):
        return build_array(value, None, len(path) + 1, is_json=True)
    return value if isinstance(value, ArrayNode) else None


def _splice(gaps: list[Gap], select: _Select, path: Path, frame: Frame, patch: _Patch) -> None:
    """Add splices from back to front, so that earlier gaps keep their old indexes."""

    def replace(start: int, stop: int, first: int, last: int) -> None:
        if start < stop or first < last:
            frame.append(("[", path, start, stop - start, select(first, last)))

    for start, stop, first, last in reversed(gaps):
        end_old, end_new = stop, last
        for nth in reversed(range(min(stop - start, last - first))):
            patched = patch(start + nth, first + nth)
            if patched is not None:
                replace(start + nth + 1, end_old, first + nth + 1, end_new)
                frame += patched
                end_old, end_new = start + nth, first + nth
        replace(start, end_old, first, end_new)


def _patch(old: Json, new: Json, path: Path, limit: int) -> Frame | None:
    """Return the edit of one element if it is smaller than the element."""
    frame: Frame = []
    if len(path) > _PATCH_LEVELS or not _edit_value(old, new, path, frame):
        return None
    return frame if len(encode_canonical(frame)) <= limit else None


def diff_values(old: Json, new: Json, path: Path) -> Frame:
    """Return the operations that turn one JSON value into another."""
    frame: Frame = []
    if encode_canonical(old) != encode_canonical(new) and not _edit_value(old, new, path, frame):
        frame.append(("=", path, new))
    return frame


def _edit_value(old: Json, new: Json, path: Path, frame: Frame) -> bool:
    """Do as ``edit`` with two values."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _edit_object(old, new, path, frame)
    if isinstance(old, list) and isinstance(new, list):
        return _edit_list(old, new, path, frame)
    if isinstance(old, str) and isinstance(new, str):
        return _edit_text(old, new, path, frame)
    if isinstance(old, bytes) and isinstance(new, bytes):
        return _edit_msgpack(old, new, path, frame)
    return False


def _edit_object(old: dict[str, Json], new: dict[str, Json], path: Path, frame: Frame) -> bool:
    count, encoding = len(frame), encode_canonical(new)
    changed = {key: it for key, it in new.items() if key not in old or old[key] != it}
    made = old | changed
    if len(made) > len(new):
        gone = [key for key in old if key not in new]
        frame += [("-", (*path, key)) for key in gone]
        for key in gone:
            del made[key]
    if encode_canonical(made) != encoding:  # 1, 1.0 and True are equal in Python
        before, after = encode_entries(old), encode_entries(new)
        changed = {key: it for key, it in new.items() if before.get(key) != after[key]}
    for key, item in changed.items():
        place = (*path, key)
        is_short = type(item) is str and len(item) <= _SPLICE_BYTES
        if is_short or key not in old or not _edit_value(old[key], item, place, frame):
            frame.append(("=", place, item))
    return _keep_shorter(frame, count, len(encoding))


def _edit_list(old: list[Json], new: list[Json], path: Path, frame: Frame) -> bool:
    if len(old) < len(new) and encode_canonical(new[: len(old)]) == encode_canonical(old):
        frame.append(("[", path, len(old), 0, new[len(old) :]))
        return True
    if len(encode_canonical(new)) <= _TINY_BYTES:
        return False
    least = 0 if int in map(type, path) else KEEP_BYTES  # 0: part of a list's element
    # Encoded, because 1, 1.0 and True are equal in Python.
    olds, news = encode_each(old), encode_each(new)

    def patch(i: int, j: int) -> Frame | None:
        size = len(news[j])
        if least and min(size, len(olds[i])) <= least:
            return None
        return _patch(old[i], new[j], (*path, i), size)

    head, tail = measure_common_ends(olds, news)
    a, b = olds[head : len(old) - tail], news[head : len(new) - tail]
    gaps = align(b"".join(map(digest, a)), b"".join(map(digest, b)))
    _splice(shift_gaps(gaps, head), lambda *ends: new[slice(*ends)], path, frame, patch)
    return True


def _edit_text(old: str, new: str, path: Path, frame: Frame) -> bool:
    if min(len(old), len(new)) <= KEEP_BYTES and int not in map(type, path):
        return False
    head, tail = _keep_words_whole(new, *measure_common_ends(old, new))
    middle = new[head : len(new) - tail]
    if len(middle) + _SPLICE_BYTES >= len(new):
        return False
    frame.append(("t", path, head, len(old) - tail - head, middle))
    return True


def _edit_msgpack(old: bytes, new: bytes, path: Path, frame: Frame) -> bool:
    """Edit MessagePack by its JSON, if that is shorter than the new bytes."""
    operation = ("m", path, diff_values(msgpack.as_json(old), msgpack.as_json(new), ()))
    if len(encode_canonical(operation)) >= len(new):
        return False
    frame.append(operation)
    return True


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
