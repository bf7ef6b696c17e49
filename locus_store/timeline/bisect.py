"""Bisect: conditions on a state, and the version that changed the answer to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from locus_store.backend import StorageBackend
from locus_store.errors import InvalidArgumentError
from locus_store.timeline.ancestry import Ancestry, find_ancestry, visit
from locus_store.timeline.paths import (
    Path,
    Query,
    Step,
    Where,
    find_value,
    follow_path,
    make_query,
    parse_path,
    select_matching,
)
from locus_store.types import Version
from locus_store.values.encoding import decode, encode, encode_canonical
from locus_store.values.filters import Filter
from locus_store.values.frames import Folder


@dataclass(frozen=True, slots=True)
class Turn:
    """A version with another answer than the one before it."""

    version: Version
    holds: bool
    """The answer from here on."""

    is_exact: bool
    """``False``: the answer changed in this version or before it, in one that could not be judged
    or is not stored any more."""


@dataclass(frozen=True, slots=True)
class Bisected:
    """The answers for the ancestry of a version."""

    version: Version
    turns: list[Turn]
    """The oldest version that was judged, and each one that changed the answer, oldest first."""

    asked: int
    """Versions of the ancestry, with the version itself."""

    skipped: int
    """Versions that could not be judged."""

    @property
    def first(self) -> Turn | None:
        """The first version for which the condition holds; ``None``: it never does."""
        return next((it for it in self.turns if it.holds), None)


async def bisect(
    backend: StorageBackend,
    thread_id: str,
    condition: Condition,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
    step: Step | None = None,
) -> Bisected | None:
    """Return the answers for the ancestry of a version, or of the head; ``None`` if there is none.

    Args:
        backend: The storage.
        thread_id: The thread.
        condition: ``HasText``, ``equals`` or another one below; used for this call only.
        checkpoint_id: The version, whose ancestors are asked about, and itself.
        namespace: The line of the version.
        step: Is called before each version, in a thread; what it raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError: See ``StoresThreads.read_states``.
        InvalidArgumentError: ``condition`` is none of those.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    if not callable(getattr(condition, "answer", None)):
        raise InvalidArgumentError(
            f"condition={condition!r:.80} is not a condition; make one with equals, matches, "
            "exists, contains, is_longer_than, is_type or HasText of locus_store.timeline.bisect"
        )
    ancestry = await find_ancestry(backend, thread_id, checkpoint_id, namespace=namespace)
    if ancestry is None:
        return None
    turns, skipped, exact = list[Turn](), 0, iter(ancestry.exact)
    is_exact, last = True, None

    def ask(version: Version, folder: Folder) -> None:
        nonlocal skipped, is_exact, last
        answer = condition.answer(version, folder, folder.log if folder is last else None)
        last = folder
        is_exact &= next(exact)
        if answer is None:
            skipped += 1
        elif not turns or turns[-1].holds != answer:
            turns.append(Turn(version, answer, is_exact))
        is_exact = answer is not None

    await visit(backend, ancestry.versions, ask, step)
    return Bisected(ancestry.versions[-1], turns, len(ancestry.versions), skipped)


async def list_values(
    backend: StorageBackend, ancestry: Ancestry, path: Query, most: int, step: Step | None = None
) -> list[tuple[Version, Any]]:
    """Return the values at a path, each once, with the oldest version of an ancestry that has it.

    The value that a version had last comes first.

    Args:
        backend: The storage.
        ancestry: The versions.
        path: Of the values.
        most: Bytes of JSON of a value; larger ones are left out.
        step: Is called before each version, in a thread; what it raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError: See ``StoresThreads.read_states``.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    found: dict[bytes, tuple[Version, Any]] = {}

    def note(version: Version, folder: Folder) -> None:
        at = find_value(folder.get_settled(), path)
        stored = b"" if at is None else encode(at.value)
        if at is not None and len(stored) <= most:
            content = encode_canonical(at.value)
            found[content] = found.pop(content, (version, decode(stored)))

    await visit(backend, ancestry.versions, note, step)
    return list(found.values())[::-1]


TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "list": (list,),
    "text": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
"""The names of the types of a value."""

_KEY: Final = "value"


class Condition(Protocol):
    """A question that has an answer for each version."""

    def answer(
        self, version: Version, folder: Folder, operations: list[list[Any]] | None
    ) -> bool | None:
        """Return whether the condition holds; ``None``: this version cannot be judged.

        Args:
            version: The version.
            folder: Of its state.
            operations: What was done since the version before; ``None``: not known.
        """


class _AtPath:
    """A condition on the value at a path.

    Args:
        path: The path, or its text.
        test: Is called with the value, or without an argument where there is none.
    """

    def __init__(self, path: str | Query, test: Callable[..., bool]) -> None:
        query = make_query(path)
        self._path = query
        self._test = test
        self._at: Path = ()
        self._rest: Query = query
        self._answer = False
        self._from_end = any(isinstance(it, int) and it < 0 for it in query)
        self._fields = {it.field for it in query if isinstance(it, Where)}

    def answer(self, version: Version, folder: Folder, operations: list[list[Any]] | None) -> bool:
        if operations is None or any(map(self._is_touched, operations)):
            found, self._rest = follow_path(folder.get_settled(), self._path)
            self._at = found.path
            self._answer = self._test() if self._rest else self._test(found.value)
        return self._answer

    def _is_touched(self, operation: list[Any]) -> bool:
        path = tuple(operation[1])
        if (self._from_end and operation[0] == "[") or not self._fields.isdisjoint(path):
            return True
        if not is_near(operation, self._at):
            return False
        if not self._rest or path[: len(self._at)] != self._at:
            return True
        step, depth = self._rest[0], len(self._at)
        return not isinstance(step, Where) or _may_add(operation, step, path[depth + 1 :])


def _may_add(operation: list[Any], step: Where, inside: Path) -> bool:
    """Return whether an operation in a list may bring an element that a step chooses.

    ``inside`` is the operation's path from the element on.
    """
    if operation[0] == "[" and not inside:
        return next(select_matching(operation[4], step), None) is not None
    return operation[0] != "t" or inside[-1:] == (step.field,)


def is_near(operation: list[Any], place: Path) -> bool:
    """Return whether an operation may change the value at a place, or what its path means."""
    kind, path = operation[0], operation[1]
    for key, own in zip(path, place, strict=False):
        if key != own:  # an edited element before this one may now be chosen
            return isinstance(key, int) and isinstance(own, int) and key < own
    if kind == "[" and len(path) < len(place):
        start: int = operation[2]
        return start <= int(place[len(path)])
    return True


def equals(path: str | Query, value: Any) -> Condition:
    """Return the condition that a value equals another: 1 is 1.0, and ``true`` is not 1."""
    return matches(path, {"$eq": value})


def matches(path: str | Query, operators: Mapping[str, Any]) -> Condition:
    """Return the condition that a ``Filter`` takes the value.

    Raises:
        InvalidArgumentError, SerializationError: See ``Filter``.
    """
    taken = Filter({_KEY: dict(operators)})
    return _AtPath(path, lambda *found: taken.takes({_KEY: found[0]} if found else {}))


def exists(path: str | Query) -> Condition:
    """Return the condition that there is a value."""
    return _AtPath(path, lambda *found: bool(found))


def contains(path: str | Query, part: Any) -> Condition:
    """Return the condition that a text has a part, a list an element, or an object a key."""
    is_part = Filter({_KEY: {"$eq": part}})

    def test(value: Any = None) -> bool:
        if isinstance(value, list):
            return any(is_part.takes({_KEY: it}) for it in value)
        return isinstance(value, str | dict) and isinstance(part, str) and part in value

    return _AtPath(path, test)


def is_longer_than(path: str | Query, length: int) -> Condition:
    """Return the condition that a text, list or object has more parts than ``length``."""
    return _AtPath(
        path, lambda value=None: isinstance(value, str | list | dict) and len(value) > length
    )


def is_type(path: str | Query, name: str) -> Condition:
    """Return the condition that a value has the type of this name.

    Raises:
        InvalidArgumentError: There is no such type.
    """
    if name not in TYPES:
        raise InvalidArgumentError(f"{name!r} is not a type; the types are {', '.join(TYPES)}")
    return _AtPath(path, lambda *found: bool(found) and type(found[0]) in TYPES[name])


class HasText:
    """The condition that any string of the state has a text in it. Keys do not count."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at: Path | None = None

    def answer(self, version: Version, folder: Folder, operations: list[list[Any]] | None) -> bool:
        if operations is None or self._must_look(folder, operations):
            self._at = _find_place(self._text, folder.get_settled())
        return self._at is not None

    def _must_look(self, folder: Folder, operations: list[list[Any]]) -> bool:
        place = self._at
        if place is not None:
            return any(is_near(it, place) for it in operations)
        if len(operations) > 1 and any(it[0] == "t" for it in operations):
            return True  # the paths of edited strings may have changed
        return any(self._may_bring(folder, it) for it in operations)

    def _may_bring(self, folder: Folder, operation: list[Any]) -> bool:
        if operation[0] == "t":
            found = find_value(folder.get_settled(), tuple(operation[1]))
            return found is None or self._text in found.value
        return _find_place(self._text, operation[2:]) is not None


def _find_place(text: str, value: Any) -> Path | None:
    """Return the path of the first string with a text in it."""
    if isinstance(value, str):
        return () if text in value else None
    if not isinstance(value, dict | list):
        return None
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        below = _find_place(text, item)
        if below is not None:
            return (key, *below)
    return None


def parse_json_or_text(text: str) -> Any:
    """Return the value of a text: JSON, or the text itself."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _parse_filter(text: str) -> dict[str, Any]:
    wanted = parse_json_or_text(text)
    if not isinstance(wanted, dict):
        raise InvalidArgumentError(f'a filter is JSON such as {{"$gt": 5}}, not {text!r}')
    return wanted


def _parse_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise InvalidArgumentError(
            f"a length must be a whole number of 0 or more, not {text[:40]!r}"
        )
    return int(text)


_DIGITS: Final = 18
"""Most digits of a length."""

AT_PATH: Final[dict[str, Callable[[Any, str], Condition]]] = {
    "equals": lambda path, text: equals(path, parse_json_or_text(text)),
    "contains": lambda path, text: contains(path, parse_json_or_text(text)),
    "exists": lambda path, _: exists(path),
    "longer-than": lambda path, text: is_longer_than(path, _parse_number(text)),
    "type": is_type,
    "filter": lambda path, text: matches(path, _parse_filter(text)),
}
"""The conditions on the value at a path."""

TEXT: Final = "text"
"""The condition that any string of the state has a text in it."""


def make_condition(name: str, path: str, text: str) -> Condition:
    """Return the condition of a name.

    Args:
        name: ``TEXT``, or one of ``AT_PATH``.
        path: As ``paths.parse_path`` accepts it.
        text: What the value is compared with.

    Raises:
        InvalidArgumentError: There is no such condition, or it does not take the text.
        SerializationError: See ``matches``.
    """
    if name == TEXT:
        if not text:
            raise InvalidArgumentError("write the text to look for: each state contains ''")
        return HasText(text)
    if name not in AT_PATH:
        known = ", ".join((*AT_PATH, TEXT))
        raise InvalidArgumentError(f"{name!r} is not a condition; the conditions are {known}")
    return AT_PATH[name](parse_path(path), text)
