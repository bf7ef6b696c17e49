"""The elements that two versions of a list share, found by their digests."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Literal, TypeAlias, TypeVar

from locus_store.values.encoding import Json, digest, print_json

DIGEST_BYTES = 16

_MOST_SINGLE_EDITS = 16
_SHORT_BYTES = 4096
"""Up to here two runs of digests are compared as numbers, faster than by bisection."""

Gap: TypeAlias = tuple[int, int, int, int]
"""(start, stop) of the old list, replaced by (first, last) of the new one."""

_Run = TypeVar("_Run", bytes, str, "list[bytes]", "list[Json]")


def digest_elements(value: Iterable[object]) -> bytes:
    """Return the elements' packed digests."""
    return b"".join([digest(print_json(it)) for it in value])


def measure_common_ends(old: _Run, new: _Run) -> tuple[int, int]:
    """Return the lengths of the common start of two runs and of the common end after it."""
    shorter, ends = min(len(old), len(new)), (len(old), len(new))
    head = _bisect(shorter, lambda start, stop: old[start:stop] == new[start:stop])
    tail = _bisect(
        shorter - head,
        lambda start, stop: (
            old[ends[0] - stop : ends[0] - start] == new[ends[1] - stop : ends[1] - start]
        ),
    )
    return head, tail


def measure_common_digests(old: bytes, new: bytes) -> tuple[int, int]:
    """Return the common start and the common end after it in bytes, rounded to whole digests."""
    head, tail = _measure_common_bytes(old, new)
    head -= head % DIGEST_BYTES
    tail = min(tail, len(old) - head, len(new) - head)
    return head, tail - tail % DIGEST_BYTES


def _measure_common_bytes(old: bytes, new: bytes) -> tuple[int, int]:
    """Return the lengths of the common start and of the common end, which may overlap."""
    end, at = len(old), len(new)
    length = min(end, at)
    if end + at <= _SHORT_BYTES:
        head = _count_same_bytes(old[:length], new[:length], "big")
        return head, _count_same_bytes(old[end - length :], new[at - length :], "little")
    view = memoryview(old)
    head = _bisect(length, lambda start, stop: new.startswith(view[start:stop], start))
    tail = _bisect(
        length, lambda start, stop: new.startswith(view[end - stop : end - start], at - stop)
    )
    return head, tail


def _count_same_bytes(old: bytes, new: bytes, order: Literal["big", "little"]) -> int:
    """Return the number of equal bytes at the start (big-endian) or end, by one subtraction."""
    differing = int.from_bytes(old, order) ^ int.from_bytes(new, order)
    return len(old) - (differing.bit_length() + 7) // 8


def _bisect(most: int, same: Callable[[int, int], bool]) -> int:
    """Return the number of equal elements; compares each at most twice, at memcmp's speed."""
    if same(0, most):
        return most
    if not same(0, 1):
        return 0
    low, high = 1, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


class Runs:
    """The elements of an older list that a newer one has, found in the bytes of both.

    Args:
        old: The encoded elements of the older list, joined; ``b""`` if they are not known.
        lengths: The lengths of its elements.
        new: The encoded elements of the newer list, joined.
        count: The number of its elements.
    """

    __slots__ = ("_count", "_ends", "_new", "_old", "_tail", "head")

    def __init__(self, old: bytes, lengths: Iterable[int], new: bytes, count: int) -> None:
        self._old, self._new, self._count = old, new, count
        self._ends = list(accumulate(lengths, initial=0))
        same, self._tail = _measure_common_bytes(old, new)
        self.head = min(bisect_right(self._ends, same) - 1, count)
        """The number of equal elements at the start."""

    @property
    def tail(self) -> int:
        """The number of elements at the end that seem equal, not counting ``head``; see ``fit``."""
        most = min(len(self._ends) - 1, self._count) - self.head
        return min(len(self._ends) - 1 - bisect_left(self._ends, len(self._old) - self._tail), most)

    def count_missing(self, first: bytes) -> int:
        """Return the number of elements missing behind those at the start, if the others follow.

        ``first`` is the newer list's element behind those at the start.
        """
        ends, head = self._ends, self.head
        at = self._old.find(first, ends[head])
        place = bisect_left(ends, at, head + 1) if at > 0 else 0
        if not head < place < len(ends) - 1 or ends[place] != at:
            return 0
        follow = self._new.startswith(memoryview(self._old)[at:], ends[head])
        return place - head if follow else 0

    def fit(self, tail: int, middle: Iterable[bytes]) -> bool:
        """Return whether the newer list has these elements between the equal ends.

        Without that, an element may only end with the bytes of others.
        """
        ends = self._ends
        behind = ends[-1] - ends[len(ends) - 1 - tail]
        return ends[self.head] + sum(map(len, middle)) + behind == len(self._new)


def align(old: bytes, new: bytes) -> list[Gap]:
    """Return ordered replacements: (start, stop) of the old list, (first, last) of the new."""
    if new.startswith(old):  # nearly every save
        kept, length = len(old) // DIGEST_BYTES, len(new) // DIGEST_BYTES
        return [(kept, kept, kept, length)] if kept < length else []
    head, tail = measure_common_digests(old, new)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(a) <= DIGEST_BYTES and len(b) <= DIGEST_BYTES:
        gap = (0, len(a) // DIGEST_BYTES, 0, len(b) // DIGEST_BYTES)
        return shift_gaps([gap] if a or b else [], head // DIGEST_BYTES)
    gaps, done = _find_single_edits(a, b)
    a, b = a[done:], b[done:]
    if a or b:
        rest = _find_slide(a, b) or _find_gaps(split(a), split(b))
        gaps += shift_gaps(rest, done // DIGEST_BYTES)
    return shift_gaps(gaps, head // DIGEST_BYTES)


def shift_gaps(gaps: list[Gap], by: int) -> list[Gap]:
    """Return the gaps of a part, shifted by its offset in the whole list."""
    return [(start + by, stop + by, first + by, last + by) for start, stop, first, last in gaps]


def _find_single_edits(old: bytes, new: bytes) -> tuple[list[Gap], int]:
    """Return the gaps of single edited elements, and how many bytes they cover."""
    gaps: list[Gap] = []
    done = 0
    while len(gaps) < _MOST_SINGLE_EDITS:
        start, stop = done + DIGEST_BYTES, done + 2 * DIGEST_BYTES
        if old[start:stop] != new[start:stop] or len(old) < stop:
            break
        at = done // DIGEST_BYTES
        gaps.append((at, at + 1, at, at + 1))
        done = start + measure_common_digests(old[start:], new[start:])[0]
    return gaps, done


def _find_slide(old: bytes, new: bytes) -> list[Gap]:
    """Return the gaps of a sliding window, without comparing each element."""
    at = old.find(new[:DIGEST_BYTES]) if old and new else -1
    if at < 0 or at % DIGEST_BYTES or not new.startswith(old[at:]):
        return []
    gone, kept, length = (n // DIGEST_BYTES for n in (at, len(old) - at, len(new)))
    return [(0, gone, 0, 0), (gone + kept, gone + kept, kept, length)]


def _find_gaps(old: list[bytes], new: list[bytes]) -> list[Gap]:
    gaps = []
    at_old = at_new = 0
    for i, j in [*_find_anchors(old, new), (len(old), len(new))]:
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


def _find_anchors(old: list[bytes], new: list[bytes]) -> list[tuple[int, int]]:
    """Return the longest run, increasing on both sides, of elements that occur once on both."""
    here, there = _index_unique(old), _index_unique(new)
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


def _index_unique(items: list[bytes]) -> dict[bytes, int]:
    """Return the index of each item that occurs once, in order."""
    index = {item: at for at, item in enumerate(items)}
    if len(index) < len(items):
        again = {item for item, count in Counter(items).items() if count > 1}
        index = {item: at for at, item in enumerate(items) if item not in again}
    return index


def split(digests: bytes) -> list[bytes]:
    """Split packed digests into single ones."""
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


def digest_at(digests: bytes, index: int) -> bytes:
    """Return one of packed digests."""
    return digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
