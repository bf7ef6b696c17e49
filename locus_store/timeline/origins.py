"""The origin of each value of a state: the step, in a row of states, that it came with.

A step is the number of a state in the row. The rules by which a value counts as kept:

- A key's value is compared with that of the same key. Equal elements of lists are matched by
  ``align``, as a save does it. Between the matches the first element is compared with the first,
  the second with the second, as far as both lists reach.
- An element whose ``id`` is another string is another element: nothing in it is kept.
- Two objects or two lists are compared inside. Any other value is kept if it is equal.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from locus_store.values.encoding import pinned
from locus_store.values.frames.alignment import align, fingerprint_all

if TYPE_CHECKING:
    from locus_store.timeline.layouts import Path
    from locus_store.values.frames import Folder

_ID: Final = "id"


class Steps(NamedTuple):
    """The steps of one value."""

    made: int
    """The step that it came with."""

    changed: int
    """The last step that changed anything in it."""


class _Tree:
    """The origins inside an object or a list that several steps made."""

    __slots__ = ("changed", "children", "made")

    def __init__(self, made: int, changed: int, children: dict[str, Node] | list[Node]) -> None:
        self.made = made
        self.changed = changed
        self.children: Any = children


Node: TypeAlias = int | _Tree
"""A number: the whole value came with that step, and nothing in it changed later."""


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
        self._root = _kept(self._root, old, new, self.step)

    def follow(self, folder: Folder) -> None:
        """Note each operation of a folder, which holds the newest state, from now on."""
        folder.watch = partial(self._note, folder)

    def steps(self, path: Path) -> Steps:
        """Return the steps of the value at a path of the state."""
        node = self._root
        for key in path:
            if not isinstance(node, _Tree):
                break
            node = node.children[key]
        return Steps(node.made, node.changed) if isinstance(node, _Tree) else Steps(node, node)

    def _note(self, folder: Folder, operation: list[Any], root: Any) -> None:
        with suppress(LookupError, TypeError, ValueError):  # malformed: the folder refuses it
            match operation:
                case ["=", [], state]:
                    self.compare(folder.settled(), state)
                case ["[", path, start, gone, elements]:
                    self._splice(folder, self._opened(path, root), start, gone, elements)
                case ["-", [*path, key]]:
                    self._delete(self._opened(path, root), key)
                case ["t", [*path, key], *_]:
                    self._rewrite(self._opened(path, root), key, path)
                case ["=", [*path, key], value]:
                    self._set(folder, self._opened(path, root), key, value, path)

    def _opened(self, path: list[Any], root: Any) -> list[tuple[_Tree, Any]]:
        """Return the origins and values on a path; none where this step brought all of one."""
        opened: list[tuple[_Tree, Any]] = []
        node, value = self._root, root
        for key in (None, *path):
            if opened:
                node, value = opened[-1][0].children[key], value[key]
            if node == self.step:
                return []
            if not isinstance(node, _Tree):
                node = self._expand(opened, key, node, value)
            opened.append((node, value))
        return opened

    def _expand(self, opened: list[tuple[_Tree, Any]], key: Any, step: int, value: Any) -> _Tree:
        tree = _expanded(step, value)
        if opened:
            opened[-1][0].children[key] = tree
        else:
            self._root = tree
        return tree

    def _splice(
        self,
        folder: Folder,
        opened: list[tuple[_Tree, Any]],
        start: int,
        gone: int,
        elements: list[Any],
    ) -> None:
        if not opened:
            return
        if gone:
            folder.settled()  # edited texts are brought up to date
        tree, old = opened[-1]
        part = slice(start, start + gone)
        tree.children[part] = _replaced(tree.children[part], old[part], elements, self.step)
        self._mark(opened)

    def _delete(self, opened: list[tuple[_Tree, Any]], key: str) -> None:
        if opened and opened[-1][0].children.pop(key, None) is not None:
            self._mark(opened)

    def _rewrite(self, opened: list[tuple[_Tree, Any]], key: Any, path: list[Any]) -> None:
        """Note that a text becomes another one."""
        if not opened:
            return
        opened[-1][0].children[key] = self.step
        self._mark(opened)
        if key == _ID and len(opened) > 1 and isinstance(opened[-2][1], list):
            opened[-2][0].children[path[-1]] = self.step

    def _set(
        self,
        folder: Folder,
        opened: list[tuple[_Tree, Any]],
        key: Any,
        value: Any,
        path: list[Any],
    ) -> None:
        if not opened:
            return
        tree, holder = opened[-1]
        if isinstance(holder, dict) and key not in holder:
            tree.children[key] = self.step
            self._mark(opened)
            return
        folder.settled()
        old = holder[key]
        if isinstance(old, str) and isinstance(value, str) and old != value:
            self._rewrite(opened, key, path)
            return
        compare = _of_pair if isinstance(holder, list) else _kept
        tree.children[key] = compare(tree.children[key], old, value, self.step)
        self._mark(opened)

    def _mark(self, opened: list[tuple[_Tree, Any]]) -> None:
        for tree, _ in opened:
            tree.changed = self.step


def _expanded(node: Node, value: Any) -> _Tree:
    if isinstance(node, _Tree):
        return node
    if isinstance(value, dict):
        return _Tree(node, node, dict.fromkeys(value, node))
    return _Tree(node, node, [node] * len(value))


def _kept(node: Node, old: Any, new: Any, step: int) -> Node:
    """Return the origins of ``new``, which replaces ``old``."""
    if pinned(old) == pinned(new):  # 1, 1.0 and True are equal in Python
        return node
    if isinstance(old, dict) and isinstance(new, dict):
        tree = _expanded(node, old)
        return _Tree(tree.made, step, _kept_keys(tree.children, old, new, step))
    if isinstance(old, list) and isinstance(new, list):
        tree = _expanded(node, old)
        return _Tree(tree.made, step, _kept_elements(tree.children, old, new, step))
    return step


def _kept_keys(
    nodes: dict[str, Node], old: dict[str, Any], new: dict[str, Any], step: int
) -> dict[str, Node]:
    return {
        key: _kept(nodes[key], old[key], value, step) if key in old else step
        for key, value in new.items()
    }


def _kept_elements(nodes: list[Node], old: list[Any], new: list[Any], step: int) -> list[Node]:
    found: list[Node] = []
    done = 0
    for start, stop, first, last in align(fingerprint_all(old)[0], fingerprint_all(new)[0]):
        found += nodes[done:start]
        found += _replaced(nodes[start:stop], old[start:stop], new[first:last], step)
        done = stop
    return found + nodes[done:]


def _replaced(nodes: list[Node], old: list[Any], new: list[Any], step: int) -> list[Node]:
    """Return the origins of elements that replace others, of any number."""
    pairs = zip(nodes, old, new, strict=False)
    found = [_of_pair(node, before, after, step) for node, before, after in pairs]
    return found + [step] * (len(new) - len(found))


def _of_pair(node: Node, old: Any, new: Any, step: int) -> Node:
    return step if _is_another(old, new) else _kept(node, old, new, step)


def _is_another(old: Any, new: Any) -> bool:
    names = [it.get(_ID) for it in (old, new) if isinstance(it, dict)]
    return len(names) == 2 and all(isinstance(it, str) for it in names) and names[0] != names[1]  # noqa: PLR2004
