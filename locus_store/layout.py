"""States as frames: what changed between two versions, and versions from what changed."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import eq
from typing import Final, TypeAlias, TypeVar, cast

from locus_store.encoding import (
    MAX_DEPTH,
    Json,
    canonical_state,
    checked,
    decode,
    digest,
    encode,
    pack_frame,
    pinned,
    require_levels,
    require_scalar,
    unpack_frames,
)
from locus_store.errors import IntegrityError, SerializationError

_KEEP_BYTES = 1024
"""Above this an element or a text is kept, so that an edit of it costs the edit."""
_DIGEST_BYTES = 16
_TOKEN_BYTES = 32
"""Up to here a scalar's pinned encoding stands for itself: hashing it would take longer."""
_HASHED = b"#"
"""Before a digest that stands for a value; no pinned encoding begins with it."""
_SPLICE_BYTES = 32
"""About what a text splice takes beside its path and its text."""
_MOST_SINGLE_EDITS = 16
_PATCH_LEVELS = 32
"""Below this many keys and indices an element is replaced: patching looks at a list's elements
again on each level, and takes five of Python's own 1,000 levels."""


@dataclass(frozen=True, slots=True)
class _Text:
    """A text above ``_KEEP_BYTES`` code points."""

    digest: bytes
    size: int
    text: str

    @property
    def weight(self) -> int:
        """About its bytes of memory."""
        return 100 + sys.getsizeof(self.text)


@dataclass(frozen=True, slots=True)
class _Array:
    """A list that is reached through keys only."""

    digest: bytes
    size: int
    digests: bytes
    """Of the elements' canonical forms, 16 bytes each."""
    fingerprints: bytes
    """Of the elements as the caller gave them (keys in any order, tuples): equal fingerprints are
    equal values, so a known one is neither checked nor made canonical again."""
    large: dict[bytes, bytes]
    """Digest to canonical JSON, for the elements above ``_KEEP_BYTES``."""

    @property
    def weight(self) -> int:
        """About its bytes of memory."""
        packed = len(self.digests) + len(self.fingerprints)
        return 400 + packed + sum(map(len, self.large.values())) + 200 * len(self.large)


@dataclass(frozen=True, slots=True)
class _Object:
    """The root, or an object that is reached through keys only."""

    digest: bytes
    size: int
    names: bytes
    """The sorted keys, pinned."""
    children: dict[str, _Node]

    @property
    def weight(self) -> int:
        """About its bytes of memory."""
        nodes = [child.weight for child in self.children.values() if not isinstance(child, bytes)]
        return 400 + 2 * len(self.names) + 200 * len(self.children) + sum(nodes)


_Node: TypeAlias = "bytes | _Text | _Array | _Object"  # bytes: the token of any other scalar
_Check: TypeAlias = Callable[[object, bytes, int], tuple[bytes, bytes]]
_Path: TypeAlias = tuple[str | int, ...]


class Shape:
    """What must be known of a version to find what changed since. Immutable, shared freely."""

    __slots__ = ("_root", "_weight")

    def __init__(self, root: _Object) -> None:
        self._root: Final = root
        self._weight: Final = root.weight

    @property
    def digest(self) -> bytes:
        """16 bytes: the Merkle root. It depends on the state alone, not on how it came about."""
        return self._root.digest

    @property
    def state_bytes(self) -> int:
        """Size of the state: the length of its pinned encoding, about that of its JSON."""
        return self._root.size

    @property
    def weight(self) -> int:
        """About how many bytes of memory this holds."""
        return self._weight


class _Whole:
    """A state, to be encoded when asked; or its JSON, where the caller may go on changing it."""

    __slots__ = ("_packed", "_source")

    def __init__(self, source: Mapping[str, object] | bytes) -> None:
        self._source = source
        self._packed: bytes | None = None

    def payload(self) -> bytes:
        if self._packed is None:  # two threads at once: the same bytes twice
            source = self._source
            encoded = source if isinstance(source, bytes) else encode(source)
            self._packed = pack_frame(b'[["=",[],%b]]' % encoded)
        return self._packed


@dataclass(frozen=True, slots=True)
class Change:
    """What one save writes."""

    shape: Shape
    """Of the new state."""
    frames: bytes | None
    """Payload against the basis (``b""``: nothing changed); ``None`` without a basis."""
    _whole: _Whole = field(repr=False, compare=False)

    def whole(self) -> bytes:
        """Payload that holds the state as it was at ``change``, by itself."""
        return self._whole.payload()


def shape_of(state: dict[str, Json]) -> Shape:
    """The shape of a canonical state, such as ``fold`` gives.

    Raises:
        IntegrityError: it holds what no save would have accepted.
    """
    try:
        return Shape(_object(cast("dict[str, object]", state), None, 1, _trusted))
    except (TypeError, ValueError) as exc:
        raise IntegrityError("a stored state holds what a state cannot hold") from exc


def change(state: Mapping[str, object], basis: Shape | None, *, private: bool = False) -> Change:
    """What turns the version of ``basis`` into ``state``.

    Args:
        state: a JSON object; never kept or changed, unless ``private``.
        basis: of the version that the frames are to be against.
        private: the caller promises that nobody will change ``state``. Then ``whole()`` encodes
            it only when asked.

    Raises:
        SerializationError: a value cannot be kept exactly; names its path.
    """
    plain, root = _measure(state, basis)
    source = plain if private else encode(plain)
    frames = None
    if basis is not None:
        frame = _Frame()
        _diff(basis._root, root, plain, (), frame)  # noqa: SLF001  # a shape is opaque to others
        frames = frame.payload()
    return Change(Shape(root), frames, _Whole(source))


# Shapes: digests, and the check that a value is exactly JSON, in one pass.


def _measure(state: object, basis: Shape | None) -> tuple[dict[str, object], _Object]:
    before = None if basis is None else basis._root  # noqa: SLF001
    if isinstance(state, Mapping):
        plain = state if type(state) is dict else dict(state)
        with suppress(TypeError, ValueError):
            return plain, _object(plain, before, 1, _strict)
    # The quick check says no: the slow one says where and why.
    copy = cast("dict[str, object]", canonical_state(state))
    try:
        return copy, _object(copy, before, 1, _strict)
    except (TypeError, ValueError) as exc:
        raise SerializationError("the state cannot be kept exactly as JSON") from exc


def _strict(value: object, raw: bytes, depth: int) -> tuple[bytes, bytes]:
    return checked(value, len(raw), depth)


def _trusted(value: object, raw: bytes, depth: int) -> tuple[bytes, bytes]:
    if len(raw) < 4 * MAX_DEPTH:  # a level takes 5 bytes at least
        return b"", raw
    encoded = encode(value)
    require_levels(value, encoded, depth)
    return encoded, raw


def _node(value: object, before: _Node | None, depth: int, check: _Check) -> tuple[_Node, int]:
    kind = type(value)
    if kind is dict:
        mapping = _object(cast("dict[str, object]", value), before, depth + 1, check)
        return mapping, mapping.size
    if kind is list or kind is tuple:
        array = _array(cast("list[object]", value), before, depth + 1, check)
        return array, array.size
    if isinstance(before, _Text) and value == before.text and kind is str:
        return before, before.size
    return _scalar(value, before)


def _scalar(value: object, before: _Node | None) -> tuple[_Node, int]:
    raw = pinned(value)
    if raw == before:
        return before, len(raw)
    token = raw if len(raw) <= _TOKEN_BYTES else _HASHED + digest(raw)
    if before is not None and token == _token_of(before):
        return before, len(raw)
    require_scalar(value)
    if type(value) is str and len(value) > _KEEP_BYTES:
        return _Text(token[1:], len(raw), value), len(raw)
    return token, len(raw)


def _object(value: dict[str, object], before: _Node | None, depth: int, check: _Check) -> _Object:
    _require_depth(depth)
    old = before if isinstance(before, _Object) else _NO_OBJECT
    keys = sorted(value)
    names = pinned(keys)
    if names != old.names:
        "".join(keys).encode()  # neither other types nor lone surrogates
    size = len(names) - 3  # one tag and an end for the list's tag and count
    children: dict[str, _Node] = {}
    get = old.children.get
    tokens = []
    for key in keys:
        child, length = _node(value[key], get(key), depth, check)
        size += length
        children[key] = child
        tokens.append(child if type(child) is bytes else _token_of(child))
    found = digest(b"D" + names + b"".join(tokens))
    return _Object(found, size, names, children)


def _array(value: list[object], before: _Node | None, depth: int, check: _Check) -> _Array:
    _require_depth(depth)
    old = before if isinstance(before, _Array) else _NO_ARRAY
    fingerprints, size = _fingerprints(value)
    if fingerprints == old.fingerprints:
        return old
    head, tail = _common_digests(old.fingerprints, fingerprints)
    gone = slice(head, len(old.fingerprints) - tail)
    known = dict(zip(_split(old.fingerprints[gone]), _split(old.digests[gone]), strict=True))
    fresh: dict[bytes, bytes] = {}
    middle = bytearray()
    start, stop = head // _DIGEST_BYTES, len(value) - tail // _DIGEST_BYTES
    marks = _split(fingerprints[head : len(fingerprints) - tail])
    for item, mark in zip(value[start:stop], marks, strict=True):
        if mark not in known:
            known[mark] = _admit(item, mark, depth, check, fresh)
        middle += known[mark]
    digests = b"".join((old.digests[:head], middle, old.digests[len(old.digests) - tail :]))
    return _Array(
        digest(b"L" + len(value).to_bytes(8) + digests),
        size,
        digests,
        digests if fingerprints == digests else fingerprints,
        _large(old, gone, digests, fresh),
    )


def _fingerprints(value: Iterable[object]) -> tuple[bytes, int]:
    out = []
    size = 5  # the list's tag and count
    for item in value:
        raw = pinned(item)
        size += len(raw)
        out.append(digest(raw))
    return b"".join(out), size


def _admit(
    item: object, mark: bytes, depth: int, check: _Check, fresh: dict[bytes, bytes]
) -> bytes:
    raw = pinned(item)
    encoded, pin = check(item, raw, depth)
    found = mark if pin == raw else digest(pin)
    if len(pin) > _KEEP_BYTES:
        fresh[found] = encoded
    return found


def _large(
    old: _Array, gone: slice, digests: bytes, fresh: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    if not fresh and not old.large:
        return old.large
    every = {**old.large, **fresh}
    if old.large.keys().isdisjoint(_split(old.digests[gone])):
        return every
    return {found: every[found] for found in _split(digests) if found in every}


def _token_of(node: _Node) -> bytes:
    return node if isinstance(node, bytes) else _HASHED + node.digest


def _require_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")


# Frames: what differs between two shapes, as operations.


class _Frame:
    """Operations, encoded one by one, so that their size is known."""

    __slots__ = ("operations", "size")

    def __init__(self) -> None:
        self.operations: list[bytes] = []
        self.size = 0

    def add(self, kind: bytes, path: _Path, *operands: bytes) -> None:
        operation = b'["%b",%b]' % (kind, b",".join((encode(path), *operands)))
        self.operations.append(operation)
        self.size += len(operation)

    def extend(self, other: _Frame) -> None:
        self.operations += other.operations
        self.size += other.size

    def cut(self, count: int, size: int) -> None:
        del self.operations[count:]
        self.size = size

    def payload(self) -> bytes:
        return pack_frame(b"[%b]" % b",".join(self.operations)) if self.operations else b""


_Patch: TypeAlias = Callable[[int, int], "_Frame | None"]
_Gap: TypeAlias = tuple[int, int, int, int]
_Run = TypeVar("_Run", bytes, str, "list[Json]")


def _diff(old: _Node | None, new: _Node, value: object, path: _Path, frame: _Frame) -> None:
    if isinstance(new, bytes):
        if old != new:
            frame.add(b"=", path, encode(value))
    elif old is not None and _token_of(old) == _token_of(new):
        return
    elif isinstance(old, _Object) and isinstance(new, _Object):
        _diff_objects(old, new, cast("dict[str, object]", value), path, frame)
    elif isinstance(old, _Array) and isinstance(new, _Array):
        _diff_arrays(old, new, cast("list[object]", value), path, frame)
    elif isinstance(old, _Text) and isinstance(new, _Text):
        _diff_texts(old.text, new.text, path, frame)
    else:
        frame.add(b"=", path, encode(value))


def _diff_objects(
    old: _Object, new: _Object, value: dict[str, object], path: _Path, frame: _Frame
) -> None:
    count, size = len(frame.operations), frame.size
    for key in old.children.keys() - new.children.keys():
        frame.add(b"-", (*path, key))
    get = old.children.get
    for key, child in new.children.items():
        before = get(key)
        if before is not child:
            _diff(before, child, value[key], (*path, key), frame)
    if frame.size - size > new.size:  # every operation repeats its path
        frame.cut(count, size)
        frame.add(b"=", path, encode(value))


def _diff_arrays(old: _Array, new: _Array, value: list[object], path: _Path, frame: _Frame) -> None:
    def patch(i: int, j: int) -> _Frame | None:
        before = old.large.get(_at(old.digests, i))
        wanted = _at(new.digests, j)
        after = new.large.get(wanted)
        if before is None or after is None or wanted in old.large:  # in it: moved, not edited
            return None
        return _patch(decode(before), decode(after), (*path, i), len(after))

    _splice(_align(old.digests, new.digests), value, path, frame, patch)


def _splice(
    gaps: list[_Gap], value: list[object], path: _Path, frame: _Frame, patch: _Patch
) -> None:
    """Splices from the back to the front: what stands before a gap has its old index still."""

    def replace(start: int, stop: int, first: int, last: int) -> None:
        if start < stop or first < last:
            elements = encode(value[first:last])
            frame.add(b"[", path, b"%d" % start, b"%d" % (stop - start), elements)

    for start, stop, first, last in reversed(gaps):
        end_old, end_new = stop, last
        for nth in reversed(range(min(stop - start, last - first))):
            edit = patch(start + nth, first + nth)
            if edit is not None:
                replace(start + nth + 1, end_old, first + nth + 1, end_new)
                frame.extend(edit)
                end_old, end_new = start + nth, first + nth
        replace(start, end_old, first, end_new)


def _patch(old: Json, new: Json, path: _Path, limit: int) -> _Frame | None:
    """The edit of one element, if that is smaller than the element."""
    if type(old) is not type(new) or not isinstance(new, dict | list | str):
        return None
    if len(path) > _PATCH_LEVELS:
        return None
    frame = _Frame()
    _diff_values(old, new, path, frame)
    return frame if frame.size < limit else None


def _diff_values(old: Json, new: Json, path: _Path, frame: _Frame) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            frame.add(b"-", (*path, key))
        for key, item in new.items():
            if key in old:
                _diff_values(old[key], item, (*path, key), frame)
            else:
                frame.add(b"=", (*path, key), encode(item))
    elif isinstance(old, list) and isinstance(new, list):
        _diff_lists(old, new, path, frame)
    elif isinstance(old, str) and isinstance(new, str):
        if old != new:
            _diff_texts(old, new, path, frame)
    elif pinned(old) != pinned(new):  # 1, 1.0 and True are equal in Python
        frame.add(b"=", path, encode(new))


def _diff_lists(old: list[Json], new: list[Json], path: _Path, frame: _Frame) -> None:
    def patch(i: int, j: int) -> _Frame | None:
        return _patch(old[i], new[j], (*path, i), len(pinned(new[j])))

    # as runs, for 1, 1.0 and True are equal in Python, and one by one takes longer
    head, tail = _common_ends(old, new, lambda a, b: pinned(a) == pinned(b))
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    gaps = _align(_fingerprints(a)[0], _fingerprints(b)[0])
    _splice(_moved(gaps, head), cast("list[object]", new), path, frame, patch)


def _diff_texts(old: str, new: str, path: _Path, frame: _Frame) -> None:
    head, tail = _common_ends(old, new)
    middle = new[head : len(new) - tail]
    if len(middle) + _SPLICE_BYTES < len(new):
        gone = len(old) - tail - head
        frame.add(b"t", path, b"%d" % head, b"%d" % gone, encode(middle))
    else:
        frame.add(b"=", path, encode(new))


# Alignment: which elements of a list are still there.


def _common_ends(old: _Run, new: _Run, equal: Callable[[_Run, _Run], bool] = eq) -> tuple[int, int]:
    """How much of two runs is the same at the front, and behind that."""
    shorter, ends = min(len(old), len(new)), (len(old), len(new))
    head = _bisect(shorter, lambda start, stop: equal(old[start:stop], new[start:stop]))
    tail = _bisect(
        shorter - head,
        lambda start, stop: equal(
            old[ends[0] - stop : ends[0] - start], new[ends[1] - stop : ends[1] - start]
        ),
    )
    return head, tail


def _common_digests(old: bytes, new: bytes) -> tuple[int, int]:
    """``_common_ends`` in bytes of whole digests."""
    head, tail = _common_ends(old, new)
    head -= head % _DIGEST_BYTES
    tail = min(tail, len(old) - head, len(new) - head)
    return head, tail - tail % _DIGEST_BYTES


def _bisect(most: int, same: Callable[[int, int], bool]) -> int:
    """How many are the same; each is compared twice at most, at the speed of memcmp."""
    if same(0, most):
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _align(old: bytes, new: bytes) -> list[_Gap]:
    """What to replace: (start, stop) of the old list by (first, last) of the new one, in order."""
    head, tail = _common_digests(old, new)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    gaps, done = _single_edits(a, b)
    a, b = a[done:], b[done:]
    if a or b:
        rest = _slide(a, b) or _gaps(_split(a), _split(b))
        gaps += _moved(rest, done // _DIGEST_BYTES)
    return _moved(gaps, head // _DIGEST_BYTES)


def _moved(gaps: list[_Gap], by: int) -> list[_Gap]:
    return [(start + by, stop + by, first + by, last + by) for start, stop, first, last in gaps]


def _single_edits(old: bytes, new: bytes) -> tuple[list[_Gap], int]:
    """Single elements edited in place, at memcmp's speed, and how many bytes that explains."""
    gaps: list[_Gap] = []
    done = 0
    while len(gaps) < _MOST_SINGLE_EDITS:
        start, stop = done + _DIGEST_BYTES, done + 2 * _DIGEST_BYTES
        if old[start:stop] != new[start:stop] or len(old) < stop:
            break
        at = done // _DIGEST_BYTES
        gaps.append((at, at + 1, at, at + 1))
        done = start + _common_digests(old[start:], new[start:])[0]
    return gaps, done


def _slide(old: bytes, new: bytes) -> list[_Gap]:
    """The gaps of a sliding window, which needs no look at each element."""
    at = old.find(new[:_DIGEST_BYTES]) if old and new else -1
    if at < 0 or at % _DIGEST_BYTES or not new.startswith(old[at:]):
        return []
    gone, kept, length = (n // _DIGEST_BYTES for n in (at, len(old) - at, len(new)))
    return [(0, gone, 0, 0), (gone + kept, gone + kept, kept, length)]


def _gaps(old: list[bytes], new: list[bytes]) -> list[_Gap]:
    gaps = []
    at_old = at_new = 0
    for i, j in [*_anchors(old, new), (len(old), len(new))]:
        if i < at_old or j < at_new:
            continue
        start, first, stop, last = at_old, at_new, i, j
        while stop > start and last > first and old[stop - 1] == new[last - 1]:
            stop, last = stop - 1, last - 1
        while start < stop and first < last and old[start] == new[first]:
            start, first = start + 1, first + 1
        if start < stop or first < last:
            gaps.append((start, stop, first, last))
        at_old, at_new = i + 1, j + 1
    return gaps


def _anchors(old: list[bytes], new: list[bytes]) -> list[tuple[int, int]]:
    """The longest run, increasing on both sides, of elements that occur once on both."""
    here, there = _once(old), _once(new)
    pairs = [(here[found], j) for found, j in there.items() if found in here]
    tops: list[int] = []  # least last index of a run of each length
    ends: list[int] = []  # the pair that it belongs to
    links: list[int] = []
    for at, (i, _) in enumerate(pairs):
        length = len(tops) if not tops or i > tops[-1] else bisect_left(tops, i)
        links.append(ends[length - 1] if length else -1)
        tops[length : length + 1] = [i]
        ends[length : length + 1] = [at]
    run = []
    at = ends[-1] if ends else -1
    while at >= 0:
        run.append(pairs[at])
        at = links[at]
    return run[::-1]


def _once(items: list[bytes]) -> dict[bytes, int]:
    """Index of each item that occurs once, in order."""
    index = {item: at for at, item in enumerate(items)}
    if len(index) < len(items):
        again = {item for item, count in Counter(items).items() if count > 1}
        index = {item: at for at, item in enumerate(items) if item not in again}
    return index


def _split(packed: bytes) -> list[bytes]:
    return [packed[at : at + _DIGEST_BYTES] for at in range(0, len(packed), _DIGEST_BYTES)]


def _at(packed: bytes, index: int) -> bytes:
    return packed[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES]


_NO_ARRAY: Final = _Array(digest(b"L" + bytes(8)), 5, b"", b"", {})
_NO_OBJECT: Final = _Object(digest(b"D" + pinned([])), 2, pinned([]), {})


# Folding: frames to states.


def fold(payloads: Iterable[bytes]) -> dict[str, Json]:
    """The state after a chain's payloads, in order; the first holds the whole state.

    Raises:
        IntegrityError: the payloads are damaged, or not a chain.
    """
    folder = Folder()
    for payload in payloads:
        folder.apply(payload)
    return folder.state()


def fold_each(payloads: Iterable[bytes]) -> Iterator[dict[str, Json]]:
    """The state after each of a chain's payloads, every one a copy of its own.

    Raises:
        IntegrityError: the payloads are damaged, or not a chain.
    """
    folder = Folder()
    for payload in payloads:
        folder.apply(payload)
        try:
            yield cast("dict[str, Json]", decode(encode(folder.state())))
        except TypeError as exc:
            raise IntegrityError("a stored state is nested too deeply") from exc


def text_of(payload: bytes) -> str:
    """All texts that a payload brings: values, never keys, a line each."""
    return "\n".join(
        text for body in unpack_frames(payload) for op in _operations(body) for text in _texts(op)
    )


def _texts(operation: list[Json]) -> Iterator[str]:
    rest: list[Json] = operation[:1:-1]  # without kind and path
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list | dict):
            rest.extend(reversed(item if isinstance(item, list) else list(item.values())))


def _operations(body: bytes) -> list[list[Json]]:
    operations = decode(body)
    if not isinstance(operations, list) or not all(isinstance(op, list) for op in operations):
        raise _malformed("frame", operations)
    return cast("list[list[Json]]", operations)


def _malformed(what: str, found: object) -> IntegrityError:
    return IntegrityError(f"a stored frame has a {what} that makes no sense ({str(found)[:60]})")


class Folder:
    """A state in the making. What it is made of was decoded for it, so nothing is shared."""

    def __init__(self) -> None:
        self._root: Json = None
        self._ropes: dict[int, tuple[dict[str, Json] | list[Json], dict[str | int, _Rope]]] = {}
        self._unsorted: dict[int, dict[str, Json]] = {}

    def apply(self, payload: bytes) -> None:
        """Do what the payload's frames say."""
        for body in unpack_frames(payload):
            for operation in _operations(body):
                self._apply(operation)

    def state(self) -> dict[str, Json]:
        """The state itself, not a copy, keys sorted."""
        for holder, ropes in self._ropes.values():
            _write_ropes(holder, ropes)
        self._ropes.clear()
        for mapping in self._unsorted.values():
            items = sorted(mapping.items())
            mapping.clear()
            mapping.update(items)
        self._unsorted.clear()
        if not isinstance(self._root, dict):
            raise IntegrityError("a stored chain does not begin with a whole state")
        return self._root

    def _apply(self, operation: list[Json]) -> None:
        match operation:
            case ["=", [], dict() as state]:
                self._root = state
            case ["=", [*path, key], value]:
                self._set(self._walk(path), key, value)
            case ["-", [*path, str() as key]]:
                self._delete(path, key)
            case ["[", list() as path, int() as start, int() as gone, list() as elements]:
                self._splice(self._walk(path), start, gone, elements)
            case ["t", [*path, key], int() as start, int() as gone, str() as text]:
                self._rope(self._walk(path), key).splice(start, gone, text)
            case _:
                raise _malformed("operation", operation)

    def _walk(self, path: list[Json]) -> Json:
        node = self._root
        for key in path:
            node = _item(node, key)
        return node

    def _set(self, holder: Json, key: Json, value: Json) -> None:
        if isinstance(holder, dict) and isinstance(key, str):
            if key not in holder:
                self._unsorted[id(holder)] = holder
            holder[key] = value
        else:
            _item(holder, key)
            cast("list[Json]", holder)[cast("int", key)] = value
        self._forget(holder, cast("str | int", key))

    def _delete(self, path: list[Json], key: str) -> None:
        holder = self._root
        for step in path:
            if isinstance(holder, dict) and isinstance(step, str) and step not in holder:
                return
            holder = _item(holder, step)
        if not isinstance(holder, dict):
            raise _malformed("path", [*path, key])
        holder.pop(key, None)
        self._forget(holder, key)

    def _splice(self, target: Json, start: int, gone: int, elements: list[Json]) -> None:
        if not isinstance(target, list) or not _within(start, gone, len(target)):
            raise _malformed("splice", (start, gone))
        _, ropes = self._ropes.pop(id(target), (target, {}))
        _write_ropes(target, ropes)
        target[start : start + gone] = elements

    def _rope(self, holder: Json, key: Json) -> _Rope:
        text = _item(holder, key)
        if not isinstance(text, str) or not isinstance(holder, dict | list):
            raise _malformed("path", key)
        _, ropes = self._ropes.setdefault(id(holder), (holder, {}))
        name = cast("str | int", key)
        if name not in ropes:
            ropes[name] = _Rope(text)
        return ropes[name]

    def _forget(self, holder: Json, key: str | int) -> None:
        if id(holder) in self._ropes:
            self._ropes[id(holder)][1].pop(key, None)


def _item(holder: Json, key: Json) -> Json:
    if isinstance(holder, dict) and isinstance(key, str) and key in holder:
        return holder[key]
    if isinstance(holder, list) and type(key) is int and 0 <= key < len(holder):
        return holder[key]
    raise _malformed("path", key)


def _within(start: int, gone: int, length: int) -> bool:
    whole = type(start) is int and type(gone) is int  # not True
    return whole and start >= 0 and gone >= 0 and start + gone <= length


def _write_ropes(holder: dict[str, Json] | list[Json], ropes: dict[str | int, _Rope]) -> None:
    for key, rope in ropes.items():
        cast("dict[str | int, Json]", holder)[key] = rope.text()


class _Rope:
    """A text in pieces: thousands of small splices of a long one do not copy it each time."""

    def __init__(self, text: str) -> None:
        self._length = len(text)
        self._piece = max(4096, 16 * math.isqrt(len(text)))
        self._pieces = self._cut(text)

    def text(self) -> str:
        return "".join(self._pieces)

    def splice(self, start: int, gone: int, text: str) -> None:
        if not _within(start, gone, self._length):
            raise _malformed("splice", (start, gone))
        first, begin = self._find(start)
        last, end = self._find(start + gone)
        joined = self._pieces[first][:begin] + text + self._pieces[last][end:]
        self._pieces[first : last + 1] = self._cut(joined)
        self._length += len(text) - gone

    def _cut(self, text: str) -> list[str]:
        if len(text) <= 2 * self._piece:
            return [text]
        return [text[at : at + self._piece] for at in range(0, len(text), self._piece)]

    def _find(self, at: int) -> tuple[int, int]:
        for index, piece in enumerate(self._pieces):
            if at <= len(piece):
                return index, at
            at -= len(piece)
        raise _malformed("splice", at)  # never: the caller looked at the length
