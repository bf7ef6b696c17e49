"""Encryption of what a storage keeps: key rings, data keys, and the classes that encrypt."""

from __future__ import annotations

from typing import Any, Final

from locus_store.backend import StorageBackend
from locus_store.encryption import backend, contracts
from locus_store.encryption.keys import Encryption, KeyStatus, Receipt, make_encryption
from locus_store.encryption.rings import KeyRing, LocalKeyRing
from locus_store.errors import UnsupportedError

__all__ = ["Encryption", "KeyRing", "KeyStatus", "LocalKeyRing", "Receipt", "create"]

_WITHOUT: Final = {
    "opensearch": "its index needs the text of states",
}
"""Folders of technologies to why they do not encrypt."""


def create(kind: type[Any], *place: Any, encryption: object, **options: Any) -> Any:
    """Return an object of a class of a backend, message log or store, which encrypts.

    Raises:
        UnsupportedError: Its storage does not encrypt; nothing was opened.
    """
    folder = kind.__module__.removeprefix("locus_store.backends.").partition(".")[0]
    if folder in _WITHOUT:
        raise UnsupportedError(f"{kind.__name__} has no encryption=: {_WITHOUT[folder]}")
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
