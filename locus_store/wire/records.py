"""Records that stand for others on the wire: a state's change, and an item's."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from locus_store.errors import LocusStoreError
from locus_store.types import Save
from locus_store.types.items import Change as ChangeOfItem, Namespace, Remove, Stamp
from locus_store.values.frames import Change
from locus_store.versions import is_small


class StateNeededError(LocusStoreError):
    """The save needs the whole state; nothing was written. The client sends it again with it."""


class IdNeededError(LocusStoreError):
    """The save needs another id, which its client has to seal; nothing was written."""


@dataclass(slots=True, kw_only=True)
class SentChange:
    """A state's change as it is sent; a save reads it as ``frames.Change``."""

    digest: bytes
    state_bytes: int
    frames: bytes | None
    state: bytes | None
    """The payload that holds the whole state, if it was sent."""

    basis_digest: bytes | None = None
    """The digest of the state that ``frames`` change."""

    @classmethod
    def from_change(cls, change: Change, *, with_state: bool) -> SentChange:
        """Return a change; with the whole state if it is asked for, or is bound to be."""
        frames, size = change.frames, change.tree.state_bytes
        is_whole = with_state or frames is None or not is_small(frames, size)
        return cls(
            digest=change.tree.digest,
            state_bytes=size,
            frames=None if is_whole and not with_state else frames,
            state=change.to_payload() if is_whole else None,
            basis_digest=change.basis_digest,
        )

    @property
    def tree(self) -> SentChange:
        """The digest and the size."""
        return self

    def to_payload(self) -> bytes:
        """Return the payload that holds the whole state.

        Raises:
            StateNeededError: It was not sent.
        """
        if self.state is None:
            raise StateNeededError("send the whole state")
        return self.state


@dataclass(slots=True, kw_only=True)
class ClientSave(Save):
    """A save that a client has sealed."""

    def with_id(self, checkpoint_id: str) -> Save:
        """Refuse another id: what is sealed names the old one.

        Raises:
            IdNeededError: Always.
        """
        raise IdNeededError(f"seal the save with another id than {self.checkpoint_id!r}")


def encode_save(save: Save, *, with_state: bool) -> dict[str, Any]:
    """Return the fields of a save as they are sent, without those that have their defaults."""
    found = {name: it for name in _DEFAULTS if (it := getattr(save, name)) != _DEFAULTS[name]}
    return {**found, "change": SentChange.from_change(save.change, with_state=with_state)}


_DEFAULTS: Final = {
    field.name: field.default_factory() if callable(field.default_factory) else field.default
    for field in fields(Save)
    if field.name != "change"
}


@dataclass(slots=True, kw_only=True)
class SentItem:
    """A change of an item as it is sent: a put, or without ``json`` a removal."""

    namespace: Namespace
    key: str
    json: bytes | None = None
    """The value as JSON."""

    metadata: dict[str, Any] | None = None
    ttl_seconds: float | None = None
    expected_version: int | None = None
    vectors: tuple[bytes, ...] = ()
    stamp: Stamp | None = None

    @classmethod
    def from_change(cls, change: ChangeOfItem) -> SentItem:
        if isinstance(change, Remove):
            return cls(namespace=change.namespace, key=change.key)
        return cls(**{it.name: getattr(change, it.name) for it in fields(cls)})
