"""Folding: the state that a chain of frames gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from locus_store.errors import IntegrityError
from locus_store.values.encoding import (
    LONGEST_JSON,
    UNLIMITED,
    Json,
    TooLargeError,
    decode,
    encode,
    encode_canonical,
    measure_json,
    unpack_frames,
)
from locus_store.values.frames.diffing import diff_values
from locus_store.values.frames.digest_trees import DigestTree, Edits, is_msgpack
from locus_store.values.frames.operations import (
    check_operation,
    has_bytes,
    iterate_json_operations,
    make_malformed_error,
    parse_frame,
)
from locus_store.values.msgpack import as_json, convert_to_json, decode_sorted, get_packed


def fold(payloads: Iterable[bytes], max_bytes: int) -> dict[str, Json]:
    """Return the state after a chain's payloads, in order.

    Args:
        payloads: The first one is a whole state.
        max_bytes: The largest state, as compact JSON.

    Raises:
        IntegrityError: the payloads are damaged, or not a chain, or the state is too large.
    """
    return _fold(Folder(max_bytes), payloads).get_state()


def fold_onto(
    basis: DigestTree, payloads: Iterable[bytes], max_bytes: int
) -> tuple[dict[str, Json], Edits]:
    """Return the state after payloads that continue ``basis``, and where it may differ from it.

    Raises:
        IntegrityError: As ``fold``.
    """
    folder = _fold(
        Folder(max_bytes, basis.to_state(), LONGEST_JSON * basis.state_bytes, logs=True), payloads
    )
    return folder.get_state(), _find_edits(folder.log or [])


def _fold(folder: Folder, payloads: Iterable[bytes]) -> Folder:
    for payload in payloads:
        folder.apply(payload)
    return folder


def _find_edits(log: list[list[Json]]) -> Edits:
    """Return the places that operations changed."""
    edits: dict[str, Edits] = {}
    for kind, path, *operands in cast("list[list[Any]]", log):
        depth = next((at for at, key in enumerate(path) if type(key) is int), len(path))
        first = path[depth] if depth < len(path) else operands[0] if kind == "[" else None
        if depth == 0:
            return None
        _add_edit(edits, path[:depth], first)
    return edits


def _add_edit(edits: dict[str, Edits], path: list[str], first: int | None) -> None:
    """Add a place: a list from an index on, or a whole value."""
    for key in path[:-1]:
        below = edits.setdefault(key, {})
        if not isinstance(below, dict):
            return
        edits = below
    known = edits.setdefault(path[-1], first)
    edits[path[-1]] = min(known, first) if isinstance(known, int) and first is not None else None


def _has_msgpack(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_msgpack, value.values()))
    return is_msgpack(value)


class Folder:
    """A state under construction, which shares no part with other objects.

    The state never grows to more than twice ``max_bytes`` while it is folded: the frames' bytes
    give an upper bound of it, and where that exceeds this, state and frame are measured.

    Args:
        max_bytes: The largest state, as compact JSON.
        root: A state to start from; it is changed.
        root_bytes: A length that the JSON of ``root`` does not exceed; 0: it is not counted.
        logs: Record the operations in ``log``.
        in_json: The state and the operations in ``log`` have MessagePack as JSON.
    """

    def __init__(
        self,
        max_bytes: int,
        root: dict[str, Json] | None = None,
        root_bytes: int = 0,
        *,
        logs: bool = False,
        in_json: bool = False,
    ) -> None:
        self.log: list[list[Json]] | None = [] if logs else None
        """The operations that were performed; a reader may clear the list."""
        self.watch: Callable[[list[Json], Json], None] | None = None
        """Called with each operation and the root, before the operation is performed."""
        self._root: Json = root
        self._max_bytes = self._most_frame_bytes = max_bytes
        self._most_bytes = root_bytes
        """The state's JSON is not longer than this."""
        self._ropes: dict[int, tuple[dict[str, Json] | list[Json], dict[str | int, _Rope]]] = {}
        self._unsorted: dict[int, dict[str, Json]] = {}
        self._opened: dict[int, tuple[Json, dict[str | int, Folder]]] = {}
        """MessagePack that was edited, as JSON, by the object or list that holds it and its key."""

        self._in_json = in_json
        self._exact: Folder | None = None
        """The state with its MessagePack, once there is some, where ``in_json`` asks for JSON."""

    def apply(self, payload: bytes) -> None:
        """Apply the payload's frames.

        Raises:
            IntegrityError: They are damaged, or the state is too large.
        """
        for body in unpack_frames(payload, self._most_frame_bytes):
            operations = parse_frame(body)
            self._count(body, operations)
            if self._in_json and (self._exact or has_bytes(body, operations)):
                try:
                    self._apply_exactly(body)
                    self.perform(op for it in operations for op in self._refine(it))
                except (RecursionError, TypeError) as exc:
                    raise make_malformed_error("operation", "nested too deeply") from exc
            else:
                self.perform(operations)

    def _count(self, body: bytes, operations: list[list[Any]]) -> None:
        """Count what a frame may add to the state; exactly, where that may be too much."""
        self._most_bytes += LONGEST_JSON * len(body)
        if self._most_bytes > 2 * self._max_bytes:
            size = 0 if self._root is None else _measure(self.get_settled())
            self._most_bytes = size + _measure(operations)
            if size > self._max_bytes and self._most_bytes > 2 * self._max_bytes:
                raise TooLargeError.make(size, self._max_bytes)

    def _apply_exactly(self, body: bytes) -> None:
        if self._exact is None:
            root = (
                cast("dict[str, Json]", decode(encode(self.get_settled()))) if self._root else None
            )
            self._exact = Folder(self._max_bytes, root, self._most_bytes)
            self._max_bytes = UNLIMITED  # of JSON that is only shown
        operations = parse_frame(body)  # objects of its own
        self._exact._count(body, operations)  # noqa: SLF001  (of this class)
        self._exact.perform(operations)

    def _refine(self, operation: list[Any]) -> Iterable[list[Json]]:
        """Return an operation as operations on JSON; a replaced value becomes its changes."""
        match operation:
            case ["=", [*path, str() as key], value] if _has_msgpack(value):
                self.get_settled()
                holder = self._walk(path)
                if isinstance(holder, dict) and key in holder:
                    frame = diff_values(holder[key], convert_to_json(value), (*path, key))
                    return cast("list[list[Json]]", decode_sorted(encode_canonical(frame)))
        return iterate_json_operations(operation)

    def build_exact(self) -> dict[str, Json]:
        """Return the state that has the version's digest, with MessagePack as bytes.

        Raises:
            IntegrityError: See ``get_state``.
        """
        return self.get_state() if self._exact is None else self._exact.get_state()

    def perform(self, operations: Iterable[list[Json]]) -> None:
        """Perform operations, whose bytes are not counted; refuse those that are not valid."""
        for operation in operations:
            if self.watch is not None:
                self.watch(operation, self._root)
            self._apply(operation)
            if self.log is not None:
                self.log.append(operation)

    def get_state(self) -> dict[str, Json]:
        """Return the state itself, not a copy, keys sorted.

        Raises:
            IntegrityError: There is none, or it is too large.
        """
        state = self.get_settled()
        if self._most_bytes > self._max_bytes:
            self._most_bytes = _measure(state)
            if self._most_bytes > self._max_bytes:
                raise TooLargeError.make(self._most_bytes, self._max_bytes)
        return state

    def get_settled(self) -> dict[str, Json]:
        """Return the state of the operations so far, as ``get_state`` does, without measuring it.

        Raises:
            IntegrityError: There is none.
        """
        if self._ropes or self._opened or self._unsorted:
            self._settle()
        if not isinstance(self._root, dict):
            raise IntegrityError("a stored chain does not begin with a whole state")
        return self._root

    def _settle(self) -> None:
        for holder, ropes in self._ropes.values():
            _write_ropes(holder, ropes)
        self._ropes.clear()
        for held, opened in self._opened.values():
            _write_opened(held, opened)
        self._opened.clear()
        for mapping in self._unsorted.values():
            items = sorted(mapping.items())
            mapping.clear()
            mapping.update(items)
        self._unsorted.clear()

    def _apply(self, operation: list[Json]) -> None:
        match operation:
            case ["=", [*path, key], value]:
                self._set(self._walk(path), key, value)
            case ["=", [], dict() as state]:
                self._root = state
            case ["[", list() as path, int() as start, int() as gone, list() as elements]:
                self._splice(self._walk(path), start, gone, elements)
            case ["-", [*path, str() as key]]:
                self._delete(path, key)
            case ["m", [*path, key], list() as inner]:
                self._edit_msgpack(self._walk(path), key, inner)
            case ["t", [*path, key], int() as start, int() as gone, str() as text]:
                self._open_rope(self._walk(path), key).splice(start, gone, text)
            case _:
                raise make_malformed_error("operation", operation)

    def _walk(self, path: list[Json]) -> Json:
        node = self._root
        for key in path:
            if isinstance(node, dict) and isinstance(key, str) and key in node:
                node = node[key]
            else:
                node = _get_item(node, key)
        return node

    def _set(self, holder: Json, key: Json, value: Json) -> None:
        if isinstance(holder, dict) and isinstance(key, str):
            if key not in holder:
                self._unsorted[id(holder)] = holder
            holder[key] = value
        else:
            _get_item(holder, key)
            cast("list[Json]", holder)[cast("int", key)] = value
        if self._ropes or self._opened:
            self._forget(holder, cast("str | int", key))

    def _edit_msgpack(self, holder: Json, key: Json, inner: list[list[Any]]) -> None:
        """Perform operations within the MessagePack at a key, which is packed again later."""
        data = _get_item(holder, key)
        _, opened = self._opened.setdefault(id(holder), (holder, {}))
        name = cast("str | int", key)
        if name not in opened:
            opened[name] = Folder(UNLIMITED, {_VALUE: as_json(data)})
        edits = map(check_operation, inner)
        opened[name].perform([kind, [_VALUE, *path], *rest] for kind, path, *rest in edits)

    def _delete(self, path: list[Json], key: str) -> None:
        holder = self._root
        for step in path:
            if isinstance(holder, dict) and isinstance(step, str) and step not in holder:
                return
            holder = _get_item(holder, step)
        if not isinstance(holder, dict):
            raise make_malformed_error("path", [*path, key])
        holder.pop(key, None)
        self._forget(holder, key)

    def _splice(self, target: Json, start: int, delete_count: int, elements: list[Json]) -> None:
        if not isinstance(target, list) or not _is_within(start, delete_count, len(target)):
            raise make_malformed_error("splice", (start, delete_count))
        if self._ropes:
            _, ropes = self._ropes.pop(id(target), (target, {}))
            _write_ropes(target, ropes)
        if self._opened:
            _write_opened(*self._opened.pop(id(target), (target, {})))
        target[start : start + delete_count] = elements

    def _open_rope(self, holder: Json, key: Json) -> _Rope:
        text = _get_item(holder, key)
        if not isinstance(text, str) or not isinstance(holder, (dict, list)):
            raise make_malformed_error("path", key)
        _, ropes = self._ropes.setdefault(id(holder), (holder, {}))
        name = cast("str | int", key)
        if name not in ropes:
            ropes[name] = _Rope(text)
        return ropes[name]

    def _forget(self, holder: Json, key: str | int) -> None:
        for pending in (self._ropes, self._opened):
            if id(holder) in pending:
                pending[id(holder)][1].pop(key, None)


def _measure(value: object) -> int:
    """Return the length of a value as JSON."""
    try:
        return measure_json(value)
    except TypeError as exc:
        raise IntegrityError("a stored state is nested too deeply") from exc


def _get_item(holder: Json, key: Json) -> Json:
    if isinstance(holder, dict) and isinstance(key, str) and key in holder:
        return holder[key]
    if isinstance(holder, list) and type(key) is int and 0 <= key < len(holder):
        return holder[key]
    raise make_malformed_error("path", key)


def _is_within(start: int, delete_count: int, length: int) -> bool:
    whole = type(start) is int and type(delete_count) is int  # not True
    return whole and start >= 0 and delete_count >= 0 and start + delete_count <= length


def _write_ropes(holder: dict[str, Json] | list[Json], ropes: dict[str | int, _Rope]) -> None:
    for key, rope in ropes.items():
        cast("dict[str | int, Json]", holder)[key] = rope.join()


_VALUE: Final = ""
"""The key of a value that is folded by itself."""


def _write_opened(holder: Json, folders: dict[str | int, Folder]) -> None:
    for key, folder in folders.items():
        value = folder.get_settled()
        if _VALUE not in value:
            raise make_malformed_error("edit", key)
        cast("dict[str | int, object]", holder)[key] = get_packed(value[_VALUE])


class _Rope:
    """A string in pieces, so that thousands of small splices do not copy it each time."""

    def __init__(self, text: str) -> None:
        self._length = len(text)
        self._piece = max(4096, 16 * math.isqrt(len(text)))
        self._pieces = self._cut(text)

    def join(self) -> str:
        return "".join(self._pieces)

    def splice(self, start: int, delete_count: int, text: str) -> None:
        if not _is_within(start, delete_count, self._length):
            raise make_malformed_error("splice", (start, delete_count))
        first, begin = self._find(start)
        last, end = self._find(start + delete_count)
        joined = self._pieces[first][:begin] + text + self._pieces[last][end:]
        self._pieces[first : last + 1] = self._cut(joined)
        self._length += len(text) - delete_count

    def _cut(self, text: str) -> list[str]:
        if len(text) <= 2 * self._piece:
            return [text]
        return [text[at : at + self._piece] for at in range(0, len(text), self._piece)]

    def _find(self, at: int) -> tuple[int, int]:
        for index, piece in enumerate(self._pieces):
            if at <= len(piece):
                return index, at
            at -= len(piece)
        raise make_malformed_error("splice", at)  # never: the caller looked at the length
