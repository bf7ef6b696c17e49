"""A cache of the lists in channels, which mostly grow from one checkpoint to the next.

A message that was there before is neither taken apart nor constructed again. It is recognized by a
print of all its contents, so that a message changed in place counts as another one. Readers get
copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from locus_store.adapters.langgraph.copies import SCALARS, Maker, is_message
from locus_store.adapters.langgraph.recent import memory_of
from locus_store.values.encoding import pinned
from locus_store.values.frames import Grown

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.adapters.langgraph.recent import Recent
    from locus_store.values.frames import Listed

Place: TypeAlias = tuple[str, str, str]
"""A thread, a line of it, and a channel."""

_ELEMENT_BYTES: Final = 100
"""Memory per element in bytes, beside its print, its JSON and its object."""

_BYTES_PER_JSON: Final = 2.2
"""An element is kept as JSON and as an object: so much of the JSON's memory. Measured for messages
of 20 to 2,000 characters, with and without tool calls; see docs/decisions.md."""

_PLAIN: Final = SCALARS - {bytes}
"""Values that no other type has the same print as: an array has that of its bytes."""


@dataclass(slots=True)
class Known:
    """A list as it was last put or read."""

    json: Grown
    prints: list[bytes]
    """The elements' prints; empty if the elements have none."""

    makers: list[Maker | None]
    """Functions that copy the elements, as far as they were needed."""

    weights: list[int]
    """About the bytes of memory of each element, without its print."""

    digest: bytes = b""
    """The list's digest, if the list was read."""

    @property
    def weight(self) -> int:
        """The memory that the entry takes, in bytes (an estimate)."""
        return sum(self.weights) + sum(map(len, self.prints))


class ChannelLists:
    """The lists of all channels; shared by all threads.

    Args:
        known: Keeps them; may be shared, since no two objects of this class have a key in common.
    """

    def __init__(self, known: Recent[tuple[object, Place], Known]) -> None:
        self._known = known
        self._owner = object()

    def to_json(
        self, place: Place, items: list[Any], convert: Callable[[list[Any]], list[Any] | None]
    ) -> Grown | None:
        """Return a list as JSON; ``None`` if one of its elements has no print.

        Args:
            place: Where it stands.
            items: The list itself.
            convert: Gives elements as JSON. What it gives depends on nothing but what is in them.
        """
        prints = None if _PLAIN.issuperset(map(type, items)) else _prints(items)
        if prints is None:
            self._known.drop((self._owner, place))
            return None
        old = self._known.get((self._owner, place)) or _NOTHING
        count = len(old.prints)
        if count == len(prints) and prints == old.prints:
            return old.json
        base = old if count and prints[:count] == old.prints else _NOTHING
        made = self._grown(base, old, items, prints, convert)
        if made is None:
            self._known.drop((self._owner, place))
            return None
        self._known.put((self._owner, place), made, made.weight)
        return made.json

    @staticmethod
    def _grown(
        base: Known,
        old: Known,
        items: list[Any],
        prints: list[bytes],
        convert: Callable[[list[Any]], list[Any] | None],
    ) -> Known | None:
        """Return the entry of a list that begins with ``base`` and may have more of ``old``."""
        count = len(base.prints)
        there = {} if base is old else dict(zip(old.prints, range(len(old.prints)), strict=True))
        new = [it for it in range(count, len(items)) if prints[it] not in there]
        if not all(map(_is_plain, map(items.__getitem__, new))):
            return None
        converted = convert([items[it] for it in new])
        if converted is None:
            return None
        made = dict(zip(new, converted, strict=True))
        json, makers, weights = list(base.json), list(base.makers), list(base.weights)
        for at in range(count, len(items)):
            before = None if at in made else there[prints[at]]
            json.append(made[at] if before is None else old.json[before])
            makers.append(None if before is None else old.makers[before])
            weights.append(_weight(made[at]) if before is None else old.weights[before])
        return Known(Grown(json, base.json if count else None), prints, makers, weights)

    def copies(
        self, place: Place, listed: Listed, make: Callable[[list[Any]], list[Maker]]
    ) -> list[Any]:
        """Return a list of a snapshot, all elements of which are the caller's own.

        Args:
            place: Where it stands.
            listed: The list.
            make: Gives what copies the objects that elements' JSON stands for.
        """
        known = self._known.get((self._owner, place))
        is_known = known is not None and (
            known.json.token is listed.token or known.digest == listed.digest
        )
        if known is None or not is_known:
            json = Grown(listed.elements())
            known = Known(json, [], [None] * len(json), list(map(_weight, json)))
        known.digest = listed.digest
        missing = [at for at, it in enumerate(known.makers) if it is None]
        if missing:
            made = make([known.json[at] for at in missing])
            for at, it in zip(missing, made, strict=True):
                known.makers[at] = it
        found = [it() for it in known.makers if it is not None]
        if not is_known:
            known.prints = (all(map(_is_plain, found)) and _prints(found)) or []
            self._known.put((self._owner, place), known, known.weight)
        return found


_NOTHING: Final = Known(Grown(()), [], [], [])


def _weight(json: object) -> int:
    return _ELEMENT_BYTES + int(_BYTES_PER_JSON * memory_of(json))


def _prints(items: list[Any]) -> list[bytes] | None:
    """Return prints that identify elements to the bit; ``None`` if an element has none."""
    try:
        return [_print(it) for it in items]
    except (ValueError, TypeError, RecursionError):
        return None


def _print(item: Any) -> bytes:
    kind = type(item)
    if kind is dict or kind is list or kind in _PLAIN:
        return pinned(item)
    if not is_message(kind):
        raise TypeError
    name = f"{kind.__module__}.{kind.__qualname__}"
    return pinned((name, item.__dict__, item.__pydantic_extra__))


def _is_plain(value: Any) -> bool:
    """Return whether no value of other types has the same print."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is list:
        return all(map(_is_plain, value))
    if kind is dict:
        return _PLAIN.issuperset(map(type, value)) and all(map(_is_plain, value.values()))
    if is_message(kind):
        return _is_plain(value.__dict__) and _is_plain(value.__pydantic_extra__)
    return False
