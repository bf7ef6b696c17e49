"""Lua scripts for Redis: each is atomic and takes one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Final

_FOLDER: Final = files("locus_store.backends.redis").joinpath("lua")
_MARK: Final = "\n--- "
"""Begins a script in a file; what stands before the first one begins them all."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the hash that identifies it to a server that has loaded it."""

    name: str
    source: str
    sha: str


def _load_scripts(file: str) -> dict[str, Script]:
    before, *parts = _FOLDER.joinpath(f"{file}.lua").read_text("utf-8").split(_MARK)
    named = (it.partition("\n") for it in parts)
    return {name: _make_script(f"{file} {name}", f"{before}\n{rest}") for name, _, rest in named}


def _make_script(name: str, source: str) -> Script:
    return Script(name, source, sha1(source.encode()).hexdigest())  # noqa: S324  (Redis' own name)


DOCUMENTS: Final = _load_scripts("documents")
ITEMS: Final = _load_scripts("items")
CACHE: Final = _load_scripts("cache")
