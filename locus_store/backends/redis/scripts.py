"""Lua scripts for Redis: each is atomic and takes one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Final

_FOLDER: Final = files("locus_store.backends.redis").joinpath("lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the hash that identifies it to a server that has loaded it."""

    name: str
    source: str
    sha: str


def _script(name: str, *before: str) -> Script:
    source = "\n".join(_FOLDER.joinpath(f"{it}.lua").read_text("utf-8") for it in (*before, name))
    return Script(name, source, sha1(source.encode()).hexdigest())  # noqa: S324  (Redis' own name)


LOAD: Final = _script("load", "reading")
HISTORY: Final = _script("history", "reading")
HEADS: Final = _script("heads", "reading")
RECORDS: Final = _script("records", "reading")
CONTENTS: Final = _script("contents", "reading")
NAMES: Final = _script("names", "reading")
WRITES: Final = _script("writes", "reading")
VIEW: Final = _script("view", "reading")
SAVE: Final = _script("save", "reading", "writing")
PUT: Final = _script("put", "reading", "writing")
APPLY: Final = _script("apply", "reading", "writing")
ARCHIVE: Final = _script("archive", "reading", "writing")
DROP: Final = _script("drop", "reading", "writing")
RESTORE: Final = _script("restore", "reading", "writing")
EXISTS: Final = _script("exists", "reading")
PAGE: Final = _script("page")
RENEW: Final = _script("renew", "reading", "writing")
SWEEP: Final = _script("sweep")

ITEM_APPLY: Final = _script("item_apply", "item")
ITEM_CLEAR: Final = _script("item_clear", "item")
ITEM_NAMESPACES: Final = _script("item_namespaces", "item")
ITEM_PAGE: Final = _script("item_page", "item")
ITEM_READ: Final = _script("item_read", "item")
ITEM_RECENT: Final = _script("item_recent", "item")
ITEM_RENEW: Final = _script("item_renew", "item")
ITEM_SWEEP: Final = _script("item_sweep", "item")
ITEM_VECTORS: Final = _script("item_vectors", "item")

CACHE_GET: Final = _script("cache_get")
CACHE_PUT: Final = _script("cache_put")
