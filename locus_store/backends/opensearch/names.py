"""Ids, paths and routing of documents by their names."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from locus_store.backends.documents.objects import CUT, HEADS, LAYOUT, SEGMENTS, decoded, digest

VERSIONS: Final = LAYOUT + "versions/"
"""The names of documents of versions begin with it."""


def id_of(name: str) -> str:
    """Return the id of a document; an id has up to 512 bytes, and a name up to 1,024."""
    return sha256(name.encode()).hexdigest()


def path_of(name: str) -> str:
    """Return the path of a document below its index."""
    return f"_doc/{id_of(name)}"


def address_of(name: str) -> dict[str, str]:
    """Return the part of a write that says which document it is."""
    return {"_id": id_of(name), "routing": routing_of(name)}


def routing_of(name: str) -> str:
    """Return the digest of the thread, so that its documents share a shard."""
    for prefix in (SEGMENTS, VERSIONS):
        if name.startswith(prefix):
            return name.removeprefix(prefix).partition("/")[0]
    thread = name.removeprefix(HEADS)
    return thread.rpartition(CUT)[2] if CUT in thread else digest(decoded(thread) or thread)
