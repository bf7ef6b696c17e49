"""Blame: the version that each value of a state came with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

from locus_store.backend import StorageBackend
from locus_store.timeline.ancestry import Ancestry, find_ancestry, visit
from locus_store.timeline.paths import (
    CHANNELS,
    Located,
    Path,
    Query,
    Step,
    find_value,
    is_bookkeeping,
    make_query,
    unwrap,
)
from locus_store.types import Version
from locus_store.values.encoding import are_equal
from locus_store.values.frames import Folder
from locus_store.values.frames.alignment import align, digest_elements


@dataclass(frozen=True, slots=True)
class Origin:
    """A version that something came with."""

    version: Version
    is_exact: bool
    """``False``: in this version or before it, in one that is not stored any more."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """A value of a state, and its origin."""

    path: Path
    """The stored path."""

    query: Query
    """The path in the notation of the caller: without wrappings of LangGraph."""

    value: Any
    made: Origin
    """The version that the value came with."""

    changed: Origin
    """The last version that changed anything in it; of a value without parts, as ``made``."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The origins of all values of one version's state; see ``blame``."""

    ancestry: Ancestry
    origins: Origins
    state: dict[str, Any]
    """The state of the version; neither copied nor changed."""

    @property
    def version(self) -> Version:
        """The version whose values are explained."""
        return self.ancestry.versions[-1]

    @property
    def versions(self) -> list[Version]:
        """The version and its ancestors, the oldest first."""
        return self.ancestry.versions

    def find(self, path: str | Query = ()) -> Blamed | None:
        """Return the value at a path, or its text, with its origin; ``None`` if there is none."""
        query = make_query(path)
        found = find_value(self.state, query)
        return None if found is None else self._make_blamed(found, query)

    def list_parts(
        self, path: str | Query = (), *, limit: int = 200, start: int = 0, is_raw: bool = False
    ) -> list[Blamed]:
        """Return the values directly inside the one at a path, with their origins.

        Args:
            path: Of an object or a list; also as text.
            limit: At most this many.
            start: Leave out so many at the beginning.
            is_raw: With the wrappings of LangGraph, and the channels that only LangGraph needs.
        """
        query = make_query(path)
        found = find_value(self.state, query)
        if found is None:
            return []
        parts = islice(_list_parts(found, is_raw=is_raw), start, start + limit)
        return [self._make_blamed(it, (*query, it.path[-1])) for it in parts]

    def _make_blamed(self, place: Located, query: Query) -> Blamed:
        versions, exact = self.ancestry.versions, self.ancestry.exact
        steps = self.origins.list_steps(place.path)
        made, changed = (Origin(versions[step], exact[step]) for step in steps)
        return Blamed(place.path, query, place.value, made, changed)


def _list_parts(of: Located, *, is_raw: bool) -> Iterator[Located]:
    prefix, value = ((), of.value) if is_raw else unwrap(of.value)
    path = (*of.path, *prefix)
    if isinstance(value, dict):
        of_graph = prefix[:1] == (CHANNELS,)
        for key, item in value.items():
            if not (of_graph and is_bookkeeping(key)):
                yield Located((*path, key), item)
    elif isinstance(value, list):
        yield from (Located((*path, at), item) for at, item in enumerate(value))


async def blame(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
    step: Step | None = None,
) -> Blame | None:
    """Return the origins of the values of a version, or of the head; ``None`` if there is none.

    Reads each version of its ancestry once. ``origins`` has the rules by which a value is kept
    from one version to the next. ``step`` is called before each version, in a thread; what it
    raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError: See ``StoresThreads.read_states``.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    ancestry = await find_ancestry(backend, thread_id, checkpoint_id, namespace=namespace)
    if ancestry is None:
        return None
    origins, chains = Origins(), list[Folder]()

    def trace(_: Version, folder: Folder) -> None:
        if not chains or folder is not chains[-1]:
            if chains:  # the first state of a chain is compared with its parent's
                origins.compare(_end_chain(chains.pop()), folder.get_settled())
            chains.append(folder)
            origins.follow(folder)
        origins.step += 1

    await visit(backend, ancestry.versions, trace, step)
    return Blame(ancestry, origins, _end_chain(chains.pop()))


def _end_chain(folder: Folder) -> dict[str, Any]:
    """Return the newest state of a chain, and follow the chain no further."""
    folder.watch = None  # it leads back to the folder, and would keep the state in memory
    return folder.get_settled()


_ID: Final = "id"


@dataclass(slots=True, eq=False)
class _Tree:
    """The origins inside an object or a list that several steps made."""

    made: int
    """The step that the value came with."""

    changed: int
    """The last step that changed anything in it."""

    children: Any
    """The nodes, by key or in a list."""


Node: TypeAlias = int | _Tree
"""A number: the whole value came with that step, and nothing in it changed later."""

Holders: TypeAlias = list[tuple[_Tree, Any]]
"""The origins and values on a path."""


class Origins:
    """The origins of the values of the newest state of a row, which begins with ``step`` 0.

    What one step brought as a whole is kept as one number.
    """

    def __init__(self) -> None:
        self._root: Node = 0
        self.step = 0
        """The step of what is noted next."""

    def compare(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Note that ``new`` follows the state ``old``."""
        self._root = _keep_origins(self._root, old, new, self.step)

    def follow(self, folder: Folder) -> None:
        """Note each operation of a folder, which holds the newest state, from now on."""
        folder.watch = partial(self._note, folder)

    def list_steps(self, path: Path) -> tuple[int, int]:
        """Return the steps that made, and last changed, the value at a path of the state."""
        node = self._root
        for key in path:
            if not isinstance(node, _Tree):
                break
            node = node.children[key]
        return (node.made, node.changed) if isinstance(node, _Tree) else (node, node)

    def _note(self, folder: Folder, operation: list[Any], root: Any) -> None:
        with suppress(LookupError, TypeError, ValueError):  # malformed: the folder refuses it
            match operation:
                case ["=", [], state]:
                    self.compare(folder.get_settled(), state)
                case ["[", path, start, gone, elements]:
                    self._splice(folder, self._open_path(path, root), start, gone, elements)
                case ["-", [*path, key]]:
                    self._delete(self._open_path(path, root), key)
                case ["t", [*path, key], *_]:
                    self._rewrite(self._open_path(path, root), key, path)
                case ["=", [*path, key], value]:
                    self._set(folder, self._open_path(path, root), key, value, path)

    def _open_path(self, path: list[Any], root: Any) -> Holders:
        """Return the origins and values on a path; none where this step brought all of one."""
        holders: Holders = []
        node, value = self._root, root
        for key in (None, *path):
            if holders:
                node, value = holders[-1][0].children[key], value[key]
            if node == self.step:
                return []
            if not isinstance(node, _Tree):
                node = _expand_tree(node, value)
                if holders:
                    holders[-1][0].children[key] = node
                else:
                    self._root = node
            holders.append((node, value))
        return holders

    def _splice(
        self, folder: Folder, holders: Holders, start: int, delete_count: int, elements: list[Any]
    ) -> None:
        if not holders:
            return
        if delete_count:
            folder.get_settled()  # writes edited strings back
        tree, old = holders[-1]
        part = slice(start, start + delete_count)
        tree.children[part] = _replace_elements(tree.children[part], old[part], elements, self.step)
        self._mark(holders)

    def _delete(self, holders: Holders, key: str) -> None:
        if holders and holders[-1][0].children.pop(key, None) is not None:
            self._mark(holders)

    def _rewrite(self, holders: Holders, key: Any, path: list[Any]) -> None:
        """Note that a text becomes another one."""
        if not holders:
            return
        holders[-1][0].children[key] = self.step
        self._mark(holders)
        if key == _ID and len(holders) > 1 and isinstance(holders[-2][1], list):
            holders[-2][0].children[path[-1]] = self.step

    def _set(self, folder: Folder, holders: Holders, key: Any, value: Any, path: list[Any]) -> None:
        if not holders:
            return
        tree, holder = holders[-1]
        if isinstance(holder, dict) and key not in holder:
            tree.children[key] = self.step
            self._mark(holders)
            return
        folder.get_settled()
        old = holder[key]
        if isinstance(old, str) and isinstance(value, str) and old != value:
            self._rewrite(holders, key, path)
            return
        compare = _blame_pair if isinstance(holder, list) else _keep_origins
        tree.children[key] = compare(tree.children[key], old, value, self.step)
        self._mark(holders)

    def _mark(self, holders: Holders) -> None:
        for tree, _ in holders:
            tree.changed = self.step


def _expand_tree(node: Node, value: Any) -> _Tree:
    if isinstance(node, _Tree):
        return node
    if isinstance(value, dict):
        return _Tree(node, node, dict.fromkeys(value, node))
    return _Tree(node, node, [node] * len(value))


def _keep_origins(node: Node, old: Any, new: Any, step: int) -> Node:
    """Return the origins of ``new``, which replaces ``old``."""
    if are_equal(old, new):
        return node
    if isinstance(old, dict) and isinstance(new, dict):
        tree = _expand_tree(node, old)
        nodes = tree.children
        kept = {
            key: _keep_origins(nodes[key], old[key], value, step) if key in old else step
            for key, value in new.items()
        }
        return _Tree(tree.made, step, kept)
    if isinstance(old, list) and isinstance(new, list):
        tree = _expand_tree(node, old)
        return _Tree(tree.made, step, _keep_elements(tree.children, old, new, step))
    return step


def _keep_elements(nodes: list[Node], old: list[Any], new: list[Any], step: int) -> list[Node]:
    found: list[Node] = []
    done = 0
    for start, stop, first, last in align(digest_elements(old), digest_elements(new)):
        found += nodes[done:start]
        found += _replace_elements(nodes[start:stop], old[start:stop], new[first:last], step)
        done = stop
    return found + nodes[done:]


def _replace_elements(nodes: list[Node], old: list[Any], new: list[Any], step: int) -> list[Node]:
    """Return the origins of elements that replace others, of any number."""
    pairs = zip(nodes, old, new, strict=False)
    found = [_blame_pair(node, before, after, step) for node, before, after in pairs]
    return found + [step] * (len(new) - len(found))


def _blame_pair(node: Node, old: Any, new: Any, step: int) -> Node:
    return step if _is_another(old, new) else _keep_origins(node, old, new, step)


def _is_another(old: Any, new: Any) -> bool:
    names = [it.get(_ID) for it in (old, new) if isinstance(it, dict)]
    return len(names) == 2 and all(isinstance(it, str) for it in names) and names[0] != names[1]  # noqa: PLR2004
