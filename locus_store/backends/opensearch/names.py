"""Ids, paths and routing of documents by their names."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from locus_store.backends.documents.objects import CUT, HEADS, LAYOUT, SEGMENTS, decode_name, digest

VERSIONS: Final = LAYOUT + "versions/"
"""The names of documents of versions begin with it."""


def make_id(name: str) -> str:
    """Return the id of a document; an id has up to 512 bytes, and a name up to 1,024."""
    return sha256(name.encode()).hexdigest()


def make_path(name: str) -> str:
    """Return the path of a document below its index."""
    return f"_doc/{make_id(name)}"


def make_address(name: str) -> dict[str, str]:
    """Return the part of a write that says which document it is."""
    return {"_id": make_id(name), "routing": make_routing(name)}


def make_routing(name: str) -> str:
    """Return the digest of the thread, so that its documents share a shard."""
    for prefix in (SEGMENTS, VERSIONS):
        if name.startswith(prefix):
            return name.removeprefix(prefix).partition("/")[0]
    thread = name.removeprefix(HEADS)
    return thread.rpartition(CUT)[2] if CUT in thread else digest(decode_name(thread) or thread)
