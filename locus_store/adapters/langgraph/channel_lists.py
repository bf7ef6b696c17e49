"""A cache of the lists in channels, which mostly grow from one checkpoint to the next.

A message that was there before is neither taken apart nor constructed again. C calls print the
elements that were there with all their contents, so that a message changed in place counts as
another one. Readers get copies.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, takewhile
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import orjson
import ormsgpack

from locus_store.adapters.langgraph.copies import SCALARS, Maker, is_message
from locus_store.adapters.langgraph.packing import EXACT
from locus_store.runtime.recent import Recent
from locus_store.values.codec.forms import RefusedError
from locus_store.values.encoding import join_list, make_list_head, may_hold_binary
from locus_store.values.frames import Grown, PackedList
from locus_store.values.frames.arrays import CHUNK, encode_chunks, grow_chunks
from locus_store.values.msgpack import pack_each

Place: TypeAlias = tuple[str, str, str]
"""A thread, a line of it, and a channel."""

_ELEMENT_BYTES: Final = 1_400
_CONTAINER_BYTES: Final = 440
"""Memory of an element, which is kept as MessagePack and as an object, and of each object or list
in it, beside three times its print. Measured for messages of 20 to 2,000 characters, with and
without tool calls (500 of each, traced); the sum is within 3 %."""

_SAMPLE: Final = 8_192
"""Bytes of elements in which objects and lists are counted; at least one element."""


@dataclass(slots=True)
class Known:
    """A list as it was last put or read."""

    stored: Grown
    chunks: list[bytes] | None
    """Prints of ``CHUNK`` elements each, as lists; ``None`` if an element has none."""

    lengths: list[int] | None
    """The length of each element's print; ``None`` after a read, which prints none by itself."""

    makers: list[Maker | None]
    """Functions that copy the elements, as far as they were needed."""

    weight: int
    """The memory that the entry takes, in bytes (an estimate)."""

    digest: bytes = b""
    """The list's digest, if the list was read."""

    def index_places(self) -> dict[bytes, int]:
        """Return the index of each element whose print is known, by its print."""
        places: dict[bytes, int] = {}
        for nth, chunk in enumerate(self.chunks or ()):
            lengths = (self.lengths or [])[nth * CHUNK : (nth + 1) * CHUNK]
            end = len(chunk) - sum(lengths)
            for at, length in enumerate(lengths, nth * CHUNK):
                start, end = end, end + length
                places[chunk[start:end]] = at
        return places


class Prints(NamedTuple):
    """The prints of a list's elements."""

    same: int
    """The elements that the older list has too: all of that one, or none."""

    others: list[bytes]
    """A print of each of the other elements."""

    chunks: list[bytes]
    """See ``Known.chunks``."""

    is_msgpack: bool
    """The prints of other values than messages are their stored form."""


class ElementReader(Protocol):
    """The objects that stored elements stand for."""

    def make_objects(self, chunks: list[bytes]) -> list[Any]:
        """Return a new object for each element of packed lists."""

    def make_makers(self, elements: list[Any]) -> list[Maker]:
        """Return functions that each return a new object for an element."""


class ChannelLists:
    """The lists of all channels; shared by all threads.

    Args:
        entries: Keeps them; may be shared, since no two objects of this class have a key in common.
    """

    def __init__(self, entries: Recent[tuple[object, Place], Known]) -> None:
        self._known = entries
        self._owner = object()

    def store(
        self, place: Place, items: list[Any], convert: Callable[[list[Any]], list[Any] | None]
    ) -> Grown | None:
        """Return a list in its stored form; ``None`` if one of its elements has no print.

        Args:
            place: Where it stands.
            items: The list itself.
            convert: Gives elements in their stored form, which depends on nothing but what is
                in them.
        """
        held = None if _PLAIN.issuperset(map(type, items)) else _hold(items)
        old = self._known.get((self._owner, place)) or _NOTHING
        found = None if held is None else _print(old, held)
        if found is not None and found.same == len(items):
            return old.stored
        if held is None or found is None:
            made = None
        else:
            made = self._make_known(old, (items, held), found, convert)
        if made is None:
            self._known.drop((self._owner, place))
            return None
        self._known.put((self._owner, place), made, made.weight)
        return made.stored

    @staticmethod
    def _make_known(
        old: Known,
        pair: tuple[list[Any], list[Any]],
        prints: Prints,
        convert: Callable[[list[Any]], list[Any] | None],
    ) -> Known | None:
        """Return the entry of a list; ``pair``: its elements, and what they hold."""
        (items, held), (count, others, chunks, is_msgpack) = pair, prints
        base = old if count else _NOTHING
        there = {} if base is old else old.index_places()
        new = {at: it for at, it in enumerate(others, count) if it not in there}
        contents = [held[it] for it in new]
        if not _are_exact(contents, new.values(), is_msgpack=is_msgpack):
            return None
        made = {at: it for at, it in new.items() if is_msgpack and held[at] is items[at]}
        rest = [at for at in new if at not in made]
        chosen, encode = [items[it] for it in rest], _PRINTERS[0 if is_msgpack else 1][0]
        try:
            converted = convert(chosen)
            again = list(map(encode, _hold(chosen) or ()))
        except RefusedError as exc:
            exc.steps[-1] = rest[int(str(exc.steps[-1]))]
            raise
        except (ValueError, TypeError, RecursionError):
            return None
        if converted is None or again != [new[it] for it in rest]:  # or a thread changes one
            return None
        made |= zip(rest, converted, strict=True)
        elements, makers = list(base.stored), list(base.makers)
        for at, element in enumerate(others, count):
            before = None if at in made else there[element]
            elements.append(made[at] if before is None else old.stored[before])
            makers.append(None if before is None else old.makers[before])
        lengths = None if base.lengths is None else [*base.lengths, *map(len, others)]
        grown = Grown(elements, base.stored if count else None)
        return Known(grown, chunks, lengths, makers, base.weight + _weigh(others, held[count:]))

    def copy(
        self,
        place: Place,
        part: PackedList,
        reader: ElementReader,
        elements: list[Any] | None = None,
    ) -> list[Any]:
        """Return a list of a snapshot, all elements of which are the caller's own.

        The first read of a list returns the objects that it created. Objects to copy from are
        created at the next read.

        Args:
            place: Where it stands.
            part: The list.
            reader: Creates the objects.
            elements: The elements in their stored form, to be kept, if they are at hand.
        """
        known = self._known.get((self._owner, place)) or _NOTHING
        if known.stored.token is part.node.token or known.digest == part.node.digest:
            known.digest = part.node.digest
            return _copy_all(known, reader)
        known, count = _continue(known, part, elements)
        whole, begun = divmod(count, CHUNK)
        data = pack_each(known.stored[count - begun :])
        packed = [join_list(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
        found = _copy_all(known, reader) if known.chunks else reader.make_objects(packed)
        held = _hold(found[count - begun :])
        known.weight += _weigh(data[begun:], None if held is None else held[begun:])
        if held is None:
            chunks = None
        elif any(map(is_message, {*map(type, found)})) or _may_hold_binary(packed):
            chunks = _print_chunks(held)
        else:
            chunks = packed
        known.chunks = None if chunks is None else [*(known.chunks or [])[:whole], *chunks]
        self._known.put((self._owner, place), known, known.weight)
        return found


def _continue(old: Known, part: PackedList, elements: list[Any] | None) -> tuple[Known, int]:
    """Return the entry of a list, and how many elements it shares with ``old``.

    Only the shared elements are printed and weighed yet.
    """
    found = part.decode_elements() if elements is None else elements
    kept = old if old.chunks and part.has_prefix(old.stored) else _NOTHING
    count = len(kept.stored)
    stored = Grown([*kept.stored, *found[count:]])
    makers = [*kept.makers, *[None] * (len(found) - count)]
    return Known(stored, kept.chunks, None, makers, kept.weight, part.node.digest), count


def _copy_all(entry: Known, reader: ElementReader) -> list[Any]:
    missing = [at for at, it in enumerate(entry.makers) if it is None]
    if missing:
        made = reader.make_makers([entry.stored[at] for at in missing])
        for at, maker in zip(missing, made, strict=True):
            entry.makers[at] = maker
    return [it() for it in entry.makers if it is not None]


_NOTHING: Final = Known(Grown(()), [], [], [], 0)


def _weigh(prints: list[bytes], contents: list[Any] | None) -> int:
    """Return about the memory of elements by what they hold; ``None``: it cannot be shown.

    Elements of one list are alike: apart from their strings they take about the same memory.
    """
    sizes = list(map(len, prints))
    some = sum(1 for _ in takewhile(_SAMPLE.__ge__, accumulate(sizes))) or 1
    shown = _show(contents[:some]) if contents else None
    found = 0
    if shown:
        found = sum(map(shown.count, (b"{", b"["))) - sum(map(shown.count, (b"{}", b"[]")))
    each = _ELEMENT_BYTES + _CONTAINER_BYTES * found // some
    return len(sizes) * each + 3 * sum(sizes)


_PLAIN: Final = SCALARS - {bytes}
"""Types of scalars that no other type has the same print as."""

_AS_THEY_ARE: Final = _PLAIN | {dict, list}


def _print(old: Known, elements: list[Any]) -> Prints | None:
    """Return the prints of elements beside an older list; ``None``: one has no print."""
    for encode, make_head in _PRINTERS:
        try:
            count, chunks = len(old.stored), old.chunks or []
            if encode_chunks(elements[:count], encode) != chunks:
                count, chunks = 0, []
            others = list(map(encode, elements[count:]))
        except (ValueError, TypeError, RecursionError):
            continue
        chunks = grow_chunks(chunks, count, others, make_head)
        return Prints(count, others, chunks, make_head is make_list_head)
    return None


def _print_chunks(contents: list[Any]) -> list[bytes] | None:
    """Return the chunks of what elements hold; ``None`` if one has no print of its own."""
    for encode, make_head in _PRINTERS:
        try:
            chunks = encode_chunks(contents, encode)
        except (ValueError, TypeError, RecursionError):
            continue
        is_exact = _are_exact(contents, chunks, is_msgpack=make_head is make_list_head)
        return chunks if is_exact else None
    return None


def _marshal(value: Any) -> bytes:
    return marshal.dumps(value, 2)


_PRINTERS: Final[tuple[tuple[Callable[[object], bytes], Callable[[int], bytes]], ...]] = (
    (partial(ormsgpack.packb, option=EXACT), make_list_head),
    (_marshal, lambda count: b"[" + count.to_bytes(4, "little")),
)
"""Functions that print a value, and the head of a list. MessagePack is faster; the other one holds
tuples."""


def _hold(items: list[Any]) -> list[Any] | None:
    """Return what the elements of a list hold; ``None`` if one is neither a message nor JSON."""
    if _AS_THEY_ARE.issuperset(map(type, items)):
        return items
    try:
        return [
            item
            if (kind := type(item)) in _AS_THEY_ARE
            else [_name(kind), item.__dict__, item.__pydantic_extra__]  # type: ignore[arg-type]
            for item in items
        ]
    except TypeError:
        return None


@cache
def _name(kind: type) -> str:
    """Return the name of a class of messages; another one is a ``TypeError``."""
    if not is_message(kind):
        raise TypeError
    return f"{kind.__module__}.{kind.__qualname__}"


def _are_exact(contents: list[Any], prints: Iterable[bytes], *, is_msgpack: bool) -> bool:
    """Return whether no other values have the same prints.

    A print shows an array as its bytes.
    """
    return (is_msgpack and not _may_hold_binary(prints)) or _show(contents) is not None


def _may_hold_binary(prints: Iterable[bytes]) -> bool:
    return any(map(may_hold_binary, prints))


def _show(contents: list[Any]) -> bytes | None:
    """Return contents as JSON; ``None`` if they hold what orjson refuses, such as an array."""
    try:
        return orjson.dumps(
            contents, option=orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_NON_STR_KEYS
        )
    except TypeError:
        return None
