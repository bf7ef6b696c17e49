"""States of a session as JSON objects, and back in the class that was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from locus_store.errors import SerializationError
from locus_store.session.models import AgentState, StateProvenance
from locus_store.types.marks import LoadedDict, LoadedVersion, Provenance
from locus_store.types.state import dump_state, restore_state
from locus_store.types.state_classes import is_model, make_label_name
from locus_store.values.canonical import encode_canonical_json
from locus_store.values.encoding import require_size
from locus_store.values.filters import STATE_CLASS

CHOOSE: Final = 'choose another class: config["state_class"] or bind_state_type()'
"""The advice for a stored state that does not fit its class."""


def dump(state: object) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a state as a JSON object, and the label that names its class.

    Raises:
        SerializationError: It is not a pydantic model, JSON cannot keep it, or its class would
            refuse what is stored.
    """
    kind = type(state)
    if not is_model(kind):
        raise SerializationError(
            f"a session's state is an AgentState or another pydantic model, not {kind.__name__}"
        )
    data = dump_state(state)[0]
    restore_state(kind, data, None, "nothing was written: assign a value of the field's type")
    return data, {STATE_CLASS: make_label_name(kind)}


def require_exact(data: dict[str, Any], max_state_bytes: int) -> None:
    """Refuse a JSON object that is too large, or would not come back as it is."""
    require_size(len(encode_canonical_json(data, "")), max_state_bytes)


def restore(
    data: dict[str, Any],
    labels: Mapping[str, Any],
    kind: type[BaseModel] | None,
    base: type[BaseModel],
    origin: LoadedVersion,
) -> Any:
    """Return the state of a version.

    Args:
        data: The stored JSON object.
        labels: Of the version.
        kind: The class to return; ``None``: the class that was saved.
        base: The class of a session's states, which the one that was saved extends.
        origin: The state's origin, which our own classes carry.

    Raises:
        SerializationError: The class is not imported, or ``data`` does not fit it.
    """
    state = restore_state(kind or _find_class(labels, base), data, None, CHOOSE)
    carry(state, origin)
    return state


def carry(state: object, origin: LoadedVersion) -> None:
    """Note the version that a state was made from, if its class has room for it.

    A framework's state has room in ``execution_meta.internal_data``: a dict that remembers the
    version, also in copies, and is equal to the plain dict.
    """
    if isinstance(state, AgentState):
        state._version = StateProvenance(origin.to_token())  # noqa: SLF001  (our own class)
    elif (run := _run_of(state)) is not None:
        provenance = Provenance(origin.to_token())
        noted = LoadedDict(run.internal_data, provenance, {})
        vars(run)["internal_data"] = noted  # also where the class is frozen, or copies what is set


def get_carried(state: object) -> LoadedVersion | None:
    """Return what ``carry`` noted."""
    if isinstance(state, AgentState):
        token = state._version.token  # noqa: SLF001  (our own class)
    else:
        noted = getattr(_run_of(state), "internal_data", None)
        token = noted.provenance.token if isinstance(noted, LoadedDict) else None
    return LoadedVersion.from_token(token) if token else None


def _run_of(state: object) -> Any:
    """Return the position of a framework's run, if the state has one with room for a version."""
    run = getattr(state, "execution_meta", None)
    return run if isinstance(getattr(run, "internal_data", None), dict) else None


def _find_class(labels: Mapping[str, Any], base: type[BaseModel]) -> type[BaseModel]:
    """Return the class that was saved, among the loaded subclasses only; nothing is imported."""
    name = labels.get(STATE_CLASS)
    if name is None:
        return base
    found = [it for it in _iterate_classes(base) if make_label_name(it) == name]
    if not found:
        module, _, qualname = str(name).partition(":")
        raise SerializationError(
            f"the state was saved as {qualname} of {module}, which is not a loaded subclass of "
            f"{base.__name__}: import it before the load, or {CHOOSE}"
        )
    return found[-1]


def _iterate_classes(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _iterate_classes(subclass)
