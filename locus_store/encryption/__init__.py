"""Encryption of what a storage keeps: key rings, data keys, and the classes that encrypt."""

from __future__ import annotations

from typing import Any

from locus_store.backend import StorageBackend
from locus_store.encryption import backend, contracts
from locus_store.encryption.keys import Encryption, KeyStatus, Receipt, make_encryption
from locus_store.encryption.rings import KeyRing, LocalKeyRing

__all__ = ["Encryption", "KeyRing", "KeyStatus", "LocalKeyRing", "Receipt", "create"]


def create(kind: type[Any], *place: Any, encryption: object, **options: Any) -> Any:
    """Return an object of a class of a backend, message log or store, which encrypts."""
    derive = backend if issubclass(kind, StorageBackend) else contracts
    chosen = make_encryption(encryption)
    made = derive.derive_class(kind)(*place, **options)
    own = getattr(made, "backend", None)  # that a message log or a store has made for itself
    if isinstance(own, StorageBackend) and own is not options.get("backend"):
        own.__class__ = backend.derive_class(type(own))
        _equip(own, chosen)
    return _equip(made, chosen)


def _equip(target: Any, encryption: Encryption) -> Any:
    target.encryption = encryption
    target.needs_no_loop = target.moves_between_threads = False
    return target
