"""LangGraph's checkpoints as states, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.adapters import typed
from locus_store.errors import SchemaError, SerializationError
from locus_store.versions import CHANNELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langgraph.checkpoint.serde.base import SerializerProtocol

    from locus_store.layout import Folder
    from locus_store.types import Version

_VERSIONS: Final = "channel_versions"
_LIST_DEPTH: Final = 3
"""Keys and indices on the way to an element of a channel's list."""


class Values:
    """Values to JSON and back, by a serializer.

    Args:
        serde: LangGraph's, or the user's.
        known: What is known of elements; may be shared.
    """

    def __init__(self, serde: SerializerProtocol, known: typed.Elements) -> None:
        self._serde = serde
        self._known = known

    def to_json(self, value: Any, what: str) -> Any:
        """A value as it stands in a state.

        Raises:
            SerializationError: The serializer cannot; names ``what``.
        """
        try:
            if type(value) is list:
                taken = typed.list_to_json(value, self._serde.dumps_typed, self._known)
                if taken is not None:
                    return taken
            return typed.to_json(*self._serde.dumps_typed(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise SerializationError(
                f"{what}: LangGraph's serializer cannot keep it: {exc}"
            ) from exc

    def from_json(self, value: Any) -> Any:
        """The value of ``to_json``."""
        return self._serde.loads_typed(typed.from_json(value))

    def loaded(self, kind: str, data: bytes) -> Any:
        """The value of a serializer's type and bytes."""
        return self._serde.loads_typed((kind, data))

    def metadata_to_json(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Metadata as JSON that can be queried: what is JSON stands for itself."""
        return {name: self._plain(it, f"metadata {name!r}") for name, it in metadata.items()}

    def _plain(self, value: Any, what: str) -> Any:
        try:
            return typed.plain_to_json(_lists(value))
        except (TypeError, ValueError):
            return self.to_json(value, what)

    def metadata_from_json(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of ``metadata_to_json``."""
        return {name: self.from_json(it) for name, it in metadata.items()}

    def state(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """A checkpoint as a state: all but its id, and no channel without a version."""
        state = {
            name: self._plain(it, name)
            for name, it in checkpoint.items()
            if name not in {"id", CHANNELS}
        }
        state[CHANNELS] = {
            name: self.to_json(it, f"channel {name!r}")
            for name, it in checkpoint[CHANNELS].items()
            if name in checkpoint[_VERSIONS]
        }
        return state

    def checkpoint(
        self, version: Version, state: Mapping[str, Any], channels: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The checkpoint of a state.

        Args:
            version: Whose state it is.
            state: What ``state`` gave.
            channels: Its channels' values, where they are known.

        Raises:
            SchemaError: The thread is not LangGraph's.
        """
        require_checkpoint(version, state)
        fields = {name: self.from_json(it) for name, it in state.items() if name != CHANNELS}
        if channels is None:
            channels = {name: self.from_json(it) for name, it in state[CHANNELS].items()}
        return {**fields, "id": version.checkpoint_id, CHANNELS: dict(channels)}


def require_checkpoint(version: Version, state: Mapping[str, Any]) -> None:
    """Refuse a state that LangGraph did not make.

    Raises:
        SchemaError: Names the thread.
    """
    if not isinstance(state.get(CHANNELS), dict) or _VERSIONS not in state:
        raise SchemaError(
            f"thread {version.thread_id!r} holds an agent's state and no LangGraph checkpoint; "
            "give the graph a thread of its own"
        )


class History:
    """The checkpoints of a line, the oldest first; what did not change is not packed again.

    Args:
        values: How values are read.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._lists: dict[str, list[bytes | None]] = {}
        """Channels that are lists: their packed elements, ``None`` for those that changed."""

        self._others: dict[str, tuple[str, bytes]] = {}
        """Type and bytes of the other channels."""

    def read(self, version: Version, folder: Folder) -> dict[str, Any]:
        """The checkpoint of a version; see ``StorageBackend.read_states``."""
        state = folder.state()
        require_checkpoint(version, state)
        for operation in folder.log or ():
            self._note(operation)
        if folder.log:
            folder.log.clear()
        channels = {
            name: self._values.loaded(*self._typed(name, it))
            for name, it in state[CHANNELS].items()  # type: ignore[union-attr]  # an object
        }
        return self._values.checkpoint(version, state, channels)

    def _note(self, operation: list[Any]) -> None:
        """What an operation changed is packed anew."""
        kind, path = operation[0], operation[1]
        if not path or path == [CHANNELS]:
            self._lists.clear()
            self._others.clear()
        elif path[0] == CHANNELS:
            name = path[1]
            self._others.pop(name, None)
            elements = self._lists.get(name)
            if elements is None:
                return
            if len(path) >= _LIST_DEPTH:
                elements[path[2]] = None
            elif kind == "[":
                start, gone, new = operation[2:]
                elements[start : start + gone] = [None] * len(new)
            else:
                del self._lists[name]

    def _typed(self, name: str, value: Any) -> tuple[str, bytes]:
        if not isinstance(value, list):
            if name not in self._others:
                self._others[name] = typed.from_json(value)
            return self._others[name]
        elements = self._lists.setdefault(name, [None] * len(value))
        at = -1
        for _ in range(elements.count(None)):
            at = elements.index(None, at + 1)
            elements[at] = typed.packed(value[at])
        return typed.MSGPACK, typed.joined(elements)  # type: ignore[arg-type]  # none is left


def _lists(value: Any) -> Any:
    """Lists for tuples and plain texts for those of a class, as JSON has it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list):
        return [_lists(it) for it in value]
    if isinstance(value, dict):
        return {_lists(key): _lists(it) for key, it in value.items()}
    return value
