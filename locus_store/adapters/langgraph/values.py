"""LangGraph's checkpoints as states, and checkpoints from states."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from locus_store.adapters.langgraph import typed_values
from locus_store.adapters.langgraph.channel_lists import ChannelLists, Place
from locus_store.adapters.langgraph.copies import SCALARS, Maker, is_message, make_copier
from locus_store.adapters.langgraph.serializer import ExactSerializer
from locus_store.adapters.langgraph.typed_values import is_plain
from locus_store.errors import SerializationError
from locus_store.runtime.recent import Recent
from locus_store.types import Version
from locus_store.values.encoding import (
    MAX_INT,
    MIN_INT,
    decode_canonical,
    encode_canonical,
    join_list,
)
from locus_store.values.frames import PackedList, decode_opened
from locus_store.values.msgpack import (
    MSGPACK,
    TAG,
    convert_to_json,
    from_json,
    has_no_tag,
    pack_each,
    to_json,
)
from locus_store.values.surrogates import may_be_escaped, restore, unescape
from locus_store.versions import CHANNELS
from locus_store.versions.caches import make_kind_error

_VERSIONS: Final = "channel_versions"
_SEEN: Final = "versions_seen"
_LIST_DEPTH: Final = 3
"""Keys and indices on the way to an element of a channel's list."""

_CHANNEL_BYTES: Final = 200
"""About the memory of a channel, without what its list or text takes elsewhere."""

_JOIN: Final = re.compile("join:")
"""Matches a channel whose set LangGraph changes in place, even while it is put: of a join."""


class ChannelValues:
    """Conversion of channel values to their stored form and back by a serializer, with a cache.

    The stored form is JSON, or MessagePack as bytes, or a list of such; see ``typed_values``.

    Args:
        serde: LangGraph's, or the user's.
        cache: The lists that are known; shared by the clones of a saver.
    """

    def __init__(self, serde: SerializerProtocol, cache: Recent[Any, Any]) -> None:
        self.serde = serde
        self._known: Recent[Any, Any] = cache
        self._lists = ChannelLists(cache)
        self._is_langgraphs = type(serde) in {JsonPlusSerializer, ExactSerializer}
        """True if the result depends on the value alone, and plain values stay plain."""

    def store_channels(
        self,
        channels: Iterable[tuple[str, Any]],
        line: tuple[str, str] | None = None,
        kind: str = "channel ",
    ) -> list[tuple[str, Any]]:
        """Return channels with their values in the stored form.

        Args:
            channels: Pairs of a name and a value.
            line: The thread and line of the checkpoint that has these values.
            kind: What they are, for messages.

        Raises:
            SerializationError: The serializer cannot; names the channel.
        """
        found, name = [], ""
        try:
            for name, value in channels:
                is_kept = self._is_langgraphs and is_plain(value)
                stored = value if is_kept else self._store(value, line and (*line, name))
                found.append((name, stored))
        except SerializationError as exc:
            raise SerializationError(f"{kind}{name!r}: {exc}") from exc
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            what = f"{kind}{name!r}: LangGraph's serializer cannot keep it"
            raise SerializationError(f"{what}: {exc}") from exc
        return found

    def _store(self, value: Any, place: Place | None) -> Any:
        if type(value) is list:
            value, taken = value.copy(), None  # a node may change it meanwhile
            if typed_values.are_plain(value):
                taken = value if self._is_langgraphs or self._dump(value)[0] == MSGPACK else None
            else:
                convert = partial(typed_values.store_elements, dumps=self._dump)
                if place is not None and self._is_langgraphs:
                    taken = self._lists.store(place, value, convert)
                taken = convert(value) if taken is None else taken
            if taken is not None:
                return taken
        kind, data = self._dump(value)
        return data if kind == MSGPACK else to_json(kind, data)

    def _dump(self, value: Any) -> tuple[str, bytes]:
        kind, data = self.serde.dumps_typed(value)
        return kind, bytes(data)

    def read(self, value: Any, *, is_own: bool = False) -> Any:
        """Return the value of a stored form; with ``is_own``, it may be returned as it is."""
        if type(value) is bytes:
            return self.load(MSGPACK, value)
        if isinstance(value, list) and value and type(value[0]) is bytes:
            return self.load(MSGPACK, join_list(value))
        if self._is_langgraphs:
            if type(value) in SCALARS:
                return value
            encoded = encode_canonical(value)
            if has_no_tag(encoded):
                return value if is_own else decode_canonical(encoded)
        return self.load(*from_json(value))

    def from_part(self, part: Any, place: Place, form: Any = None) -> Any:
        """Return the value of a channel in a snapshot; see ``frames.DigestTree.to_parts``.

        ``form`` is the value in its stored form, to be kept, if it is at hand.
        """
        if not isinstance(part, PackedList):
            return self.read(decode_opened(part), is_own=True)
        return self._lists.copy(place, part, self, form)

    def make_objects(self, chunks: list[bytes]) -> list[Any]:
        """Return a new object for each element of packed lists."""
        return [it for chunk in chunks for it in self.load(MSGPACK, chunk)]

    def make_makers(self, elements: list[Any]) -> list[Maker]:
        """Return functions that each return a new object for an element of the list."""
        data = pack_each(elements)
        objects = self.load(MSGPACK, join_list(data))
        return [
            make_copier(value) or partial(self.load, MSGPACK, each)
            for value, each in zip(objects, data, strict=True)
        ]

    def read_elements(self, elements: list[Any], *, shares: bool) -> list[Any]:
        """Return a new list with an object for each element, or a ``partial`` if it can be changed.

        The ``partial`` makes an object. ``shares``: messages are there as objects, too.
        """
        if not elements or (self._is_langgraphs and _PLAIN.issuperset(map(type, elements))):
            return elements.copy()
        data = pack_each(elements)
        return [
            value
            if type(value) in SCALARS or (shares and is_message(type(value)))
            else partial(make_copier(value) or partial(self.load, MSGPACK, each))
            for value, each in zip(self.load(MSGPACK, join_list(data)), data, strict=True)
        ]

    def make_maker(self, value: Any) -> Maker:
        """Return a function that returns a new object for a channel's value at each call."""
        if (made := make_copier(self.read(value))) is not None:
            return made
        kind, data = (MSGPACK, value) if type(value) is bytes else from_json(value)
        return partial(self.load, kind, data)  # packed now: it is still folded

    def load(self, kind: str, data: bytes) -> Any:
        """Return the value of a serializer's type and bytes."""
        return self.serde.loads_typed((kind, data))

    def convert_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata as JSON that can be queried; values that are JSON stay as they are."""
        return {name: self._make_plain(it, name, "metadata ") for name, it in metadata.items()}

    def _make_plain(self, value: Any, name: str, kind: str) -> Any:
        of = type(value)
        if of in _AS_IS or (of is int and MIN_INT <= value <= MAX_INT):
            return value
        if (of is list and _TEXT.issuperset(map(type, value))) or (of is dict and not value):
            return value
        plain = _simplify_value(value)
        try:
            return typed_values.convert_to_json(plain)
        except (TypeError, ValueError):
            return convert_to_json(self.store_channels([(name, plain)], kind=kind)[0][1])

    def read_fields(self, fields: Mapping[str, Any], *, is_own: bool = False) -> dict[str, Any]:
        """Return the metadata of ``convert_metadata``, or a checkpoint's fields but its channels.

        Strings outside of channels were escaped. With ``is_own``, values may be returned as they
        are.
        """
        known = dict(fields)
        if self._is_langgraphs and has_no_tag(encoded := encode_canonical(known)):
            found: dict[str, Any] = known if is_own else decode_canonical(encoded)
            return restore(found) if may_be_escaped(encoded) else found
        return restore({name: self.read(it) for name, it in known.items()})

    def make_state(
        self, checkpoint: Mapping[str, Any], line: tuple[str, str], forms: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a checkpoint as a state, without its id and channels that have no version.

        ``forms`` has channels in their stored form, which are not looked at.
        """
        state = dict(checkpoint)
        del state["id"]
        channels, versions = state.pop(CHANNELS), state[_VERSIONS]
        if _are_versions(versions, state.get(_SEEN)):
            plain = {_VERSIONS, _SEEN}
        else:
            plain = {_VERSIONS} if _are_versions(versions, {}) else set()
        for name, value in state.items():
            if name not in plain:
                state[name] = self._make_plain(value, name, "")
        given = dict(channels)
        for name in (given.keys() - versions.keys()) | forms.keys():
            given.pop(name, None)
        state[CHANNELS] = {**forms, **dict(self.store_channels(given.items(), line))}
        return state

    def find_unchanged(
        self,
        line: tuple[str, str],
        parent_id: str | None,
        checkpoint: Mapping[str, Any],
        new_versions: Collection[str],
    ) -> dict[str, Any]:
        """Return the stored form of channels that have the value of the parent checkpoint.

        None, unless the parent was put last: a copy has the parent of what it copies.
        """
        last = self._known.get((self, line))
        if last is None or last[0] != parent_id:
            return {}
        versions, channels = checkpoint[_VERSIONS], checkpoint[CHANNELS]
        return {
            name: form
            for name, form in last[2].items()
            if name not in new_versions and name in channels and last[1][name] == versions.get(name)
        }

    def note_put(
        self, line: tuple[str, str], name: str, versions: Any, state: Any, *, only_joins: bool
    ) -> None:
        """Note the channels of a checkpoint that was put, for ``find_unchanged``."""
        channels = state[CHANNELS]
        names = [*filter(_JOIN.match, channels)] if only_joins else channels
        if names:
            stored = {it: channels[it] for it in names}
            sizes = [len(it) if type(it) is bytes else _CHANNEL_BYTES for it in stored.values()]
            known = name, dict(versions), stored
            self._known.put((self, line), known, _CHANNEL_BYTES + sum(sizes))

    def make_checkpoint(
        self, version: Version, parts: Mapping[str, Any], state: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the checkpoint of a version, without its id.

        Args:
            version: Which one.
            parts: Its state; see ``frames.DigestTree.to_parts``.
            state: The same, of which parts are kept, if it is at hand.

        Raises:
            SchemaError: The thread is not LangGraph's.
        """
        require_checkpoint(version, parts)
        line = version.thread_id, version.namespace
        stored = state[CHANNELS] if state else {}
        channels = {
            unescape(name): self.from_part(part, (*line, name), stored.get(name))
            for name, part in parts[CHANNELS].items()
        }
        fields = {name: decode_opened(part) for name, part in parts.items() if name != CHANNELS}
        return {**self.read_fields(fields, is_own=True), CHANNELS: channels}


def is_checkpoint(state: Mapping[str, Any]) -> bool:
    """Return whether LangGraph made a state."""
    return isinstance(state.get(CHANNELS), dict) and _VERSIONS in state


def require_checkpoint(version: Version, state: Mapping[str, Any]) -> None:
    """Refuse a state that LangGraph did not make; name its thread."""
    if not is_checkpoint(state):
        raise make_kind_error(version.thread_id, is_graphs=False)


_UNREAD: Final = object()
"""An element of a list that changed since it was read."""


@dataclass(slots=True, eq=False)
class StateHistory:
    """The checkpoints of a chain, oldest first; unchanged values are reused."""

    values: ChannelValues
    shares: bool
    """A message that several checkpoints have is one object in all of them."""

    _lists: dict[str, list[Any]] = field(default_factory=dict, init=False)
    """Channels that are lists: their elements as ``read_elements`` returns them."""

    _makers: dict[str, Maker] = field(default_factory=dict, init=False)
    """A function that makes the values of all channels, until they change."""

    def read(self, version: Version, state: dict[str, Any], log: list[list[Any]]) -> Maker:
        """Return the maker of a version's checkpoint without its id; see ``Folder`` and its log.

        A page of checkpoints holds each value many times: copies are made on request.
        """
        require_checkpoint(version, state)
        for kind, path, *operands in log:
            if not path or path[0] == CHANNELS:
                self._note(kind, path, operands)
        log.clear()
        known, fields = self._makers, state.copy()
        makers = {
            name: known.get(name) or self._make_maker(name, value)
            for name, value in fields.pop(CHANNELS).items()
        }
        found = self.values.read_fields(fields)
        return lambda: {**found, CHANNELS: {unescape(it): make() for it, make in makers.items()}}

    def _note(self, kind: str, path: list[Any], operands: list[Any]) -> None:
        """Forget the values that an operation changed, so that they are decoded again."""
        if len(path) <= 1:
            self._lists, self._makers = {}, {}
            return
        name = path[1]
        self._makers.pop(name, None)
        elements = self._lists.get(name)
        if elements is not None and len(path) >= _LIST_DEPTH:
            elements[path[2]] = _UNREAD
        elif elements is not None and kind == "[":
            start, gone, new = operands
            elements[start : start + gone] = [_UNREAD] * len(new)
        else:
            self._lists.pop(name, None)

    def _make_maker(self, name: str, value: Any) -> Maker:
        is_list = isinstance(value, list)
        made = self._make_list_maker(name, value) if is_list else self.values.make_maker(value)
        self._makers[name] = made
        return made

    def _make_list_maker(self, name: str, value: list[Any]) -> Maker:
        elements = self._lists.get(name)
        if elements is None:
            elements = self._lists[name] = self.values.read_elements(value, shares=self.shares)
        else:
            kinds, missing = list(map(type, elements)), list[int]()
            for _ in range(kinds.count(object)):  # the type of _UNREAD
                missing.append(kinds.index(object, missing[-1] + 1 if missing else 0))
            found = self.values.read_elements([value[at] for at in missing], shares=self.shares)
            for at, element in zip(missing, found, strict=True):
                elements[at] = element
        now = elements.copy()
        if partial not in map(type, now):
            return now.copy
        return lambda: [it() if type(it) is partial else it for it in now]


def _are_versions(versions: Any, of_nodes: Any) -> bool:
    """Return whether the versions that channels have, and had for each node, are JSON as is."""
    if type(of_nodes) is not dict:
        return False
    objects = [versions, *of_nodes.values()]
    if not _DICT.issuperset(map(type, objects)):
        return False
    texts = chain(of_nodes, *chain.from_iterable(map(dict.items, objects)))
    return _TEXT.issuperset(map(type, texts)) and TAG not in chain(of_nodes, *objects)


_PLAIN: Final = SCALARS - {bytes}
"""Types of elements of lists that are stored as they are; bytes are MessagePack."""

_AS_IS: Final = frozenset({str, bool, type(None)})
_TEXT: Final = frozenset({str})
_DICT: Final = frozenset({dict})


def _simplify_value(value: Any) -> Any:
    """Replace tuples by lists, and strings and numbers of a subclass by plain ones, for filters."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)) and type(value) is not bool:
        return int.__int__(value) if isinstance(value, int) else float.__float__(value)
    if isinstance(value, (tuple, list)):
        return [_simplify_value(it) for it in value]
    if isinstance(value, dict):
        return {_simplify_value(key): _simplify_value(it) for key, it in value.items()}
    return value
