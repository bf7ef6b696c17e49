"""One-line changes of versions: ``messages + 1: 'Zurich then'``, ``budget 120 → 90``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from locus_store.backend import StorageBackend
from locus_store.timeline.ancestry import visit
from locus_store.timeline.conversations import is_conversation, read_conversation
from locus_store.timeline.paths import (
    CHANNELS,
    Path,
    Step,
    format_path,
    is_bookkeeping,
    is_graphs,
    unwrap,
)
from locus_store.timeline.readable import cut_common_ends, strip_tags
from locus_store.types import Version
from locus_store.values.encoding import are_equal, decode, encode
from locus_store.values.frames import Folder, read_operations
from locus_store.values.frames.operations import make_malformed_error

MOST: Final = 4
"""BriefChanges of a version that are described; further ones are counted."""

OPERATIONS: Final = 200
"""Operations of a version that are looked at."""

CHARACTERS: Final = 48
"""Of a value."""

PATH: Final = 60
"""Characters of a path."""

LEVELS: Final = 16
"""Deeper values are changed as a whole."""

_GRAPHS: Final = {CHANNELS, "channel_versions", "versions_seen"}
_INSIDE: Final = ("v", 2)
"""The steps through the tag of an object of a class; a dict has the first one only."""


@dataclass(frozen=True, slots=True)
class BriefChange:
    """One change, with values that are cut to a few words."""

    path: str
    before: str | None = None
    """``None``: there was no value, or it is not known."""

    after: str | None = None
    """``None``: there is no value any more."""

    added: int = 0
    """Elements of a list that came; ``after`` is the last one."""

    removed: int = 0
    """Elements of a list that went."""

    def __str__(self) -> str:
        if self.added or self.removed:
            counts = [f"{sign} {n:,}" for sign, n in (("-", self.removed), ("+", self.added)) if n]
            return f"{self.path} {' '.join(counts)}{f': {self.after}' if self.after else ''}"
        if self.after is None:
            return f"- {self.path}"
        return f"{self.path} {f'{self.before} → ' if self.before else '= '}{self.after}"


@dataclass(frozen=True, slots=True)
class BriefChanges:
    """The changes of a version to its parent's state."""

    shown: tuple[BriefChange, ...] = ()
    more: int = 0
    """Further changes."""

    def __str__(self) -> str:
        more = (f"{self.more:,} more",) if self.more else ()
        return "; ".join((*map(str, self.shown), *more))


def describe_value(value: Any) -> str:
    """Return a value in a few words; of a message its text, or the tools that it calls."""
    content = unwrap(value)[1]
    if is_conversation([value]):
        said = read_conversation([value], (), 0, 1)
        parts = [it for m in said for it in (*m.parts, *(p for r in m.results for p in r.parts))]
        calls = [it.name for m in said for it in m.calls]
        content = next((it.value for it in parts if isinstance(it.value, str)), content)
        if calls and not isinstance(content, str):
            return f"calls {_cut(', '.join(calls[:MOST]))}"
    if isinstance(content, dict) and "$" in content:
        content = strip_tags(content)
    if isinstance(content, str):
        return f"'{_cut(content)}'"
    if isinstance(content, dict | list):
        noun = "key" if isinstance(content, dict) else "element"
        return f"{len(content):,} {noun}{'' if len(content) == 1 else 's'}"
    return _cut(json.dumps(content))


def _cut(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text[: 4 * CHARACTERS].split())
    return line if len(text) == len(line) <= CHARACTERS else f"{line[: CHARACTERS - 1].rstrip()}…"


def compare_briefly(old: dict[str, Any], new: dict[str, Any]) -> BriefChanges:
    """Return the changes between two states.

    Args:
        old: The older state; ``{}``: there is none.
        new: The newer one.
    """
    return _collect(_compare((), old, new))


def _collect(changes: Iterator[BriefChange]) -> BriefChanges:
    """Return the first changes, those of lists before others: a list is often the messages."""
    ordered = sorted(changes, key=lambda it: not it.added)
    return BriefChanges(tuple(ordered[:MOST]), len(ordered[MOST:]))


def _compare(path: Path, old: Any, new: Any, *, of_graph: bool = False) -> Iterator[BriefChange]:
    """Yield the changes of a value at a readable path; ``of_graph``: of the channels of a graph."""
    of_graph |= not path and isinstance(new, dict) and is_graphs(new)
    old, new = unwrap(old)[1], unwrap(new)[1]
    if isinstance(old, dict) and isinstance(new, dict) and len(path) < LEVELS:
        for key in (*new, *(it for it in old if it not in new)):
            if of_graph and is_bookkeeping(key):
                continue
            if key not in new:
                yield BriefChange(_name((*path, key)))
            elif key not in old:
                yield from _compare_missing((*path, key), new[key])
            elif not are_equal(old[key], new[key]):
                yield from _compare((*path, key), old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list):
        yield from _compare_lists(path, old, new)
    else:
        yield _compare_values(path, old, new)


def _compare_missing(path: Path, new: Any) -> Iterator[BriefChange]:
    content = unwrap(new)[1]
    if isinstance(content, list) and content:
        yield from _compare_lists(path, [], content)
    else:
        yield BriefChange(_name(path), None, describe_value(new))


def _compare_lists(path: Path, old: list[Any], new: list[Any]) -> Iterator[BriefChange]:
    least = min(len(old), len(new))
    start = next((at for at in range(least) if not are_equal(old[at], new[at])), least)
    left = range(least - start)
    end = next((at for at in left if not are_equal(old[-1 - at], new[-1 - at])), len(left))
    gone, came = old[start : len(old) - end], new[start : len(new) - end]
    yield from _splice(path, start, gone, came)


def _splice(path: Path, start: int, old: list[Any], new: list[Any]) -> Iterator[BriefChange]:
    """Yield the changes of a list in which elements take the place of others."""
    if len(old) == len(new) == 1 and len(path) < LEVELS:
        yield from _compare((*path, start), old[0], new[0])
    elif old or new:
        last = describe_value(new[-1]) if new else None
        yield BriefChange(_name(path), None, last, len(new), len(old))


def _compare_values(path: Path, old: Any, new: Any) -> BriefChange:
    """Return the change of a value without parts, or of a value to one of another kind."""
    if isinstance(old, str) and isinstance(new, str) and len(old) + len(new) > CHARACTERS:
        old, new = cut_common_ends(old, new)
    return BriefChange(_name(path), describe_value(old), describe_value(new))


def _name(path: Path) -> str:
    name = format_path(path)
    return name if len(name) <= PATH else f"{name[: PATH - 1]}…"


def describe_record(payload: bytes, max_bytes: int) -> BriefChanges:
    """Return the changes of a stored record by itself; the values before it are not known.

    Raises:
        IntegrityError: The payload is damaged, or too large.
    """
    operations: list[list[Any]] = list(read_operations(payload, max_bytes))
    try:
        keys = {str(it[1][0]) for it in operations if it[1]}
        of_graph = not keys.isdisjoint(_GRAPHS)
        return _collect(_change_alone(operations[:OPERATIONS], of_graph=of_graph))
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as exc:
        raise make_malformed_error("operation", exc) from exc


def _change_alone(operations: list[list[Any]], *, of_graph: bool) -> Iterator[BriefChange]:
    for kind, stored, *rest in operations:
        path = _strip(tuple(stored), of_graph=of_graph)
        if path is None:
            continue
        if not path:
            content = unwrap(rest[0])[1]
            state: dict[str, Any] = content if isinstance(content, dict) else rest[0]
            is_graph = of_graph or is_graphs(rest[0])
            keys = [it for it in state if not (is_graph and is_bookkeeping(it))]
            keys.sort(key=lambda it: not isinstance(unwrap(state[it])[1], list))
            yield from (_set_alone((it,), state[it]) for it in keys)
        elif kind == "[":
            last = describe_value(rest[2][-1]) if rest[2] else None
            yield BriefChange(_name(path), None, last, len(rest[2]), int(rest[1]))
        elif kind == "-":
            yield BriefChange(_name(path))
        elif kind == "=":
            yield _set_alone(path, rest[0])
        else:
            yield BriefChange(_name(path), "…", describe_value(f"…{rest[2]}"))


def _set_alone(path: Path, value: Any) -> BriefChange:
    """Return the change that set a value; of a list its last element, and no numbers."""
    content = unwrap(value)[1]
    is_list = isinstance(content, list) and bool(content)
    return BriefChange(_name(path), None, describe_value(content[-1] if is_list else value))


def _strip(path: Path, *, of_graph: bool) -> Path | None:
    """Return the readable form of a path whose state is not known; ``None``: bookkeeping."""
    if not of_graph or not path:
        return path
    if path[0] != CHANNELS or (len(path) > 1 and is_bookkeeping(str(path[1]))):
        return None
    readable: list[str | int] = []
    for at, step in enumerate(path[1:], 1):
        is_inside = step == _INSIDE[1] and path[at - 1] == _INSIDE[0]
        if step != _INSIDE[0] and not is_inside:
            readable.append(step)
    return tuple(readable)


def _locate(path: Path, root: Any) -> Path | None:
    """Return the readable form of a stored path; ``None``: only LangGraph needs the value."""
    readable: list[str | int] = []
    value, at = root, 0
    while at < len(path):
        prefix, content = unwrap(value)
        if prefix and path[at : at + len(prefix)] == prefix:
            at, value = at + len(prefix), content
            if prefix[0] == CHANNELS and at < len(path) and is_bookkeeping(str(path[at])):
                return None
            continue
        if prefix:  # beside the content: the bookkeeping of a graph, or the name of a class
            return None
        step = path[at]
        readable.append(step)
        is_there = step in value if isinstance(value, dict) else isinstance(value, list)
        value = value[step] if is_there and at + 1 < len(path) else None
        at += 1
    return tuple(readable)


class _Noting:
    """The changes of the next version of a chain, noted while its operations are performed."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._found: list[BriefChange] = []
        self._texts: dict[Path, tuple[Path, str]] = {}
        self._seen = 0
        folder.watch = self._note

    def take(self) -> BriefChanges:
        """Return what was noted, and begin again."""
        for stored, (readable, before) in self._texts.items():
            with suppress(LookupError, TypeError):  # it went, or is elsewhere in its list
                value = self._look(stored)
                if value != before:
                    self._found.append(_compare_values(readable, before, value))
        found = _collect(iter(self._found))
        more = max(self._seen - OPERATIONS, 0)
        self._found, self._texts, self._seen = [], {}, 0
        return BriefChanges(found.shown, found.more + more) if more else found

    def _note(self, operation: list[Any], root: Any) -> None:
        self._seen += 1
        if self._seen > OPERATIONS:
            return
        with suppress(LookupError, TypeError, ValueError):  # malformed: the folder refuses it
            kind, keys, *rest = operation
            path = tuple(keys)
            readable = _locate(path, root) if path else None
            if readable is not None:
                self._found += self._list_changes(kind, readable, path, root, rest)

    def _list_changes(
        self, kind: str, readable: Path, path: Path, root: Any, rest: list[Any]
    ) -> list[BriefChange]:
        *above, key = path
        if kind == "t":
            if path not in self._texts:
                self._texts[path] = (readable, self._look(path))
            return []
        if kind == "-":
            return [BriefChange(_name(readable))]
        if kind == "[":
            start, gone, came = rest
            old = self._look(path)[start : start + gone] if gone else []
            return list(_splice(readable, start, old, came))
        holder: Any = root
        for step in above:
            holder = holder[step]
        if isinstance(holder, dict) and key not in holder:
            return list(_compare_missing(readable, rest[0]))
        before, of_graph = self._look(path), path == (CHANNELS,)
        return list(_compare(readable, before, rest[0], of_graph=of_graph))

    def _look(self, path: Path) -> Any:
        value: Any = self._folder.get_settled()
        for step in path:
            value = value[step]
        return value


PARENTS: Final = 4
"""Parents that are read beside the versions of a page."""

REACH: Final = 200
"""Versions below the oldest of a page among which its parents are read."""

KEPT_BYTES: Final = 4_000_000
"""Of the states of parents from which several versions of a page were made."""


async def describe_versions(
    backend: StorageBackend, versions: Sequence[Version], *, step: Step | None = None
) -> dict[str, BriefChanges]:
    """Return the changes of versions of one line, by their checkpoint ids.

    Reads the records of the versions once, and no state as a whole but for the first versions of
    chains. Versions whose parents are far below them are left out.

    Args:
        backend: The storage.
        versions: Of a page, in any order.
        step: Is called before each version, in a thread; what it raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError: See ``StoresThreads.read_states``.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    if not versions:
        return {}
    lowest = min(it.mark.sequence for it in versions)
    wanted = {it.checkpoint_id: it for it in versions}
    missing = dict.fromkeys(it.parent_id for it in versions if it.parent_id not in wanted)
    at = versions[0]
    for parent_id in [it for it in missing if it is not None][:PARENTS]:
        found = await backend.version(at.thread_id, parent_id, namespace=at.namespace)
        if found is not None and found.mark.sequence >= lowest - REACH:
            wanted[parent_id] = found
    describing = _Describing(sorted(wanted.values(), key=lambda it: it.mark.sequence))
    await visit(backend, describing.versions, describing.visit, step)
    names = [it.checkpoint_id for it in versions if it.checkpoint_id in describing.found]
    return {name: describing.found[name] for name in names}


class _Describing:
    """The changes of versions, in the order of their sequences."""

    def __init__(self, versions: list[Version]) -> None:
        self.versions = versions
        self.found: dict[str, BriefChanges] = {}
        before = [None, *(it.checkpoint_id for it in versions)]
        pairs = zip(versions, before, strict=False)
        self._forked = {version.parent_id for version, last in pairs if version.parent_id != last}
        self._kept: dict[str, bytes] = {}
        self._room = KEPT_BYTES
        self._show_last: tuple[str, Folder, _Noting] | None = None

    def visit(self, version: Version, folder: Folder) -> None:
        """Take the state of the next version."""
        name, last = version.checkpoint_id, self._show_last
        is_next = last is not None and last[1] is folder
        noting = last[2] if last is not None and is_next else _Noting(folder)
        changes = noting.take()
        if is_next and last is not None and last[0] == version.parent_id:
            self.found[name] = changes
        elif (before := self._find_parent(version)) is not None:
            self.found[name] = compare_briefly(before, folder.get_settled())
        if not is_next and last is not None:
            last[1].watch = None  # it leads back to the folder, and would keep the state in memory
        self._show_last = (name, folder, noting)
        if name in self._forked and self._room > 0:
            self._kept[name] = encode(folder.get_settled())
            self._room -= len(self._kept[name])

    def _find_parent(self, version: Version) -> dict[str, Any] | None:
        """Return the state of a version's parent; ``None`` if it is not at hand."""
        if version.parent_id is None:
            return {}
        if self._show_last is not None and self._show_last[0] == version.parent_id:
            return self._show_last[1].get_settled()
        kept = self._kept.get(version.parent_id)
        return None if kept is None else cast("dict[str, Any]", decode(kept))
