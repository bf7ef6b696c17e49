"""A state of any type as a JSON object, and back; imports pydantic with the first object only."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from locus_store.errors import InvalidArgumentError
from locus_store.types.marks import LoadedDict, LoadedVersion, Provenance
from locus_store.types.state_classes import (
    OUR_MODULE,
    find_class,
    get_class_label,
    is_model,
    is_state_class,
    require_named,
)
from locus_store.values.canonical import require_object


class StateCodec:
    """Turns states into JSON objects and back.

    Args:
        state_type: The class that ``restore`` returns: ``AgentState``, any class with
            ``to_checkpoint`` and ``from_checkpoint``, any pydantic model, or ``dict``. ``None``:
            the class that was saved.

    Raises:
        InvalidArgumentError: ``state_type`` is none of these.
    """

    def __init__(self, state_type: type[Any] | None = None) -> None:
        if state_type is not None and not is_state_class(state_type):
            raise InvalidArgumentError(
                f"state_type={state_type!r} must be dict, a pydantic model, or a class with "
                "to_checkpoint() and from_checkpoint()"
            )
        self.state_type = state_type
        self._tried: set[type[Any]] = set()

    def dump(self, state: Any) -> tuple[dict[str, Any], LoadedVersion | None]:
        """Return the state as a JSON object, and the origin that it carried.

        A mark counts only where ``load`` puts it: in our own classes, and in the ``metadata`` of
        a pydantic state that has room for it.

        Raises:
            SerializationError: The state gives no JSON object, or one that would not load.
        """
        data, token = _dump(state)
        self._require_loadable(state, data)
        return data, LoadedVersion.from_token(token) if token else None

    def _require_loadable(self, state: Any, data: dict[str, Any]) -> None:
        """Try, once per type, that what is saved can be loaded: an alias may be in the way."""
        kind = type(state)
        target = self.state_type or kind
        if kind in self._tried or issubclass(kind, dict) or issubclass(target, dict):
            return
        if self.state_type is None:
            require_named(state)
        _restore(target, data, LoadedVersion(thread="", made_from=None, head=None))
        self._tried.add(kind)

    def find_class(self, labels: Mapping[str, Any], data: Mapping[str, Any]) -> type[Any]:
        """Return the class of the state that ``restore`` builds from a stored version.

        Raises:
            SerializationError: It is to be the class that was saved, which is not imported.
        """
        return self.state_type or find_class(labels, data) or import_module(OUR_MODULE).AgentState

    def restore(
        self, data: dict[str, Any], origin: LoadedVersion, labels: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the state of ``data``, carrying ``origin`` where its type has room for one.

        Raises:
            SerializationError: ``data`` does not fit the class; see also ``find_class``.
        """
        kind = self.find_class(labels or {}, data)
        if issubclass(kind, dict):
            return LoadedDict(data, Provenance(origin.to_token()), get_class_label(labels or {}))
        return _restore(kind, data, origin)


def can_carry_mark(kind: type[Any]) -> bool:
    """Return whether a loaded state of this class remembers the version it was loaded from."""
    if not is_model(kind):
        return issubclass(kind, dict)
    from locus_store.types.state import keeps_mark  # noqa: PLC0415  (pydantic is slow to import)

    return keeps_mark(kind)


def _dump(state: Any) -> tuple[dict[str, Any], Any]:
    if isinstance(state, dict):
        return state, state.provenance.token if isinstance(state, LoadedDict) else None
    from locus_store.types.state import dump_state  # noqa: PLC0415  (as above)

    return dump_state(state)


def _restore(kind: type[Any], data: dict[str, Any], origin: LoadedVersion) -> Any:
    from locus_store.types.state import restore_state  # noqa: PLC0415  (as above)

    return restore_state(kind, data, origin)


def get_labels(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of a state: ``agent_id``, ``user_id`` and ``tags``.

    The last two are at its top or in its metadata.
    """
    if require_object(data).keys().isdisjoint({"agent_id", "user_id", "tags", "metadata"}):
        return {}
    metadata = data.get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    ids = {"agent_id": data.get("agent_id"), "user_id": data.get("user_id", inner.get("user_id"))}
    labels: dict[str, Any] = {name: it for name, it in ids.items() if isinstance(it, str)}
    tags = data.get("tags", inner.get("tags"))
    if isinstance(tags, (list, tuple)) and all(isinstance(tag, str) for tag in tags):
        labels["tags"] = list(tags)
    return labels
