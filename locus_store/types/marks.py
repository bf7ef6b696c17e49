"""The origin of a loaded state: the version that the state was made from, and its load."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from locus_store.errors import SerializationError
from locus_store.types import Mark
from locus_store.values.canonical import require_object

MARK_KEY = "_locus_store_mark"
"""Key in a state's ``metadata`` that says which version it was made from; never stored."""

_LOAD_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Provenance:
    """The version a state was made from; equal to any other, so that states compare by content."""

    token: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provenance)

    def __hash__(self) -> int:
        return 0


class LoadedDict(dict[str, Any]):
    """A plain dict state that remembers the version it was loaded from, and its class."""

    __slots__ = ("class_label", "provenance")

    def __init__(
        self, data: Mapping[str, Any], provenance: Provenance, class_label: dict[str, str]
    ) -> None:
        super().__init__(data)
        self.provenance = provenance
        self.class_label = class_label
        """The label that the version has for its class; empty where it has none."""

    def _with(self, data: Mapping[str, Any]) -> LoadedDict:
        """Other data that was made from the same version."""
        return LoadedDict(data, self.provenance, self.class_label)

    def copy(self) -> LoadedDict:
        return self._with(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedDict:
        return self._with(deepcopy(dict(self), memo))

    def __or__(self, other: Any) -> Any:
        merged = super().__or__(other)
        return self._with(merged) if isinstance(merged, dict) else merged

    def __ror__(self, other: Any) -> Any:
        merged = super().__ror__(other)
        return self._with(merged) if isinstance(merged, dict) else merged

    def __reduce__(
        self,
    ) -> tuple[type[LoadedDict], tuple[dict[str, Any], Provenance, dict[str, str]]]:
        return LoadedDict, (dict(self), self.provenance, self.class_label)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """The version that one load returned, for all states that are made from it.

    ``load_id`` differs for each load, so that two runs that loaded the same version differ.
    """

    thread: str
    """``make_thread_key`` of the thread that was loaded; a state may be saved into another one."""

    made_from: Mark | None
    head: Mark | None
    load_id: str | None = field(default_factory=lambda: uuid4().hex[:16])

    def with_new_load(self) -> LoadedVersion:
        """Return the origin of a copy, which is saved by itself."""
        return LoadedVersion(thread=self.thread, made_from=self.made_from, head=self.head)

    def to_token(self) -> str:
        """Return the origin as text, for a place inside a state."""
        marks = [
            _pack_mark(self.made_from),
            _pack_mark(self.head if self.head != self.made_from else None),
        ]
        body = b"".join(struct.pack(">H", len(part)) + part for part in marks)
        return f"1.{self.thread}.{self.load_id}.{base64.urlsafe_b64encode(body).decode()}"

    @classmethod
    def from_token(cls, token: object) -> LoadedVersion | None:
        """Return the origin in a token; ``None`` for anything that is not one of ours."""
        try:
            version, thread, load_id, body = str(token).split(".")
            if version != "1" or not _LOAD_ID.fullmatch(load_id):
                return None
            raw = base64.urlsafe_b64decode(body)
            cut = 2 + struct.unpack_from(">H", raw)[0]
            if len(raw) < cut + 2:
                return None
            made_from, head = _unpack_mark(raw[2:cut]), _unpack_mark(raw[cut + 2 :])
        except (ValueError, struct.error, UnicodeDecodeError):
            return None
        found = cls(thread=thread, made_from=made_from, head=head or made_from, load_id=load_id)
        return found if found.to_token() == token else None  # base64 skips what it does not know


Loads = Mapping[tuple[int, str], LoadedVersion]
loaded_here: ContextVar[Loads] = ContextVar("locus_store_loaded_here", default=MappingProxyType({}))
"""The last loads of the caller's own context, by adapter and thread. They are lost through
``wait_for``, ``gather``, ``create_task`` and threads, so the adapter does not rely on them alone;
the blocking facade passes them on to the caller."""


@dataclass(slots=True)
class OneLoad:
    """A load through one adapter, for callers that lose their context."""

    origin: LoadedVersion
    is_marked: bool
    """The loaded state itself carries its mark."""

    saved: bool = False
    run: str | None = None
    """The run whose save was made from it."""

    def may_be_of(self, run: str | None) -> bool:
        """Return whether a save of ``run``, of a state without a mark, may come from this load."""
        return not self.is_marked and (not self.saved or self.run == run)


@lru_cache(maxsize=4096)
def make_thread_key(thread_id: str) -> str:
    """Return a short name of a thread for a mark."""
    return sha256(thread_id.encode(errors="surrogatepass")).hexdigest()[:16]


def _pack_mark(mark: Mark | None) -> bytes:
    if mark is None:
        return b""
    return struct.pack(">QQ16s", mark.line, mark.sequence, mark.digest) + mark.store.encode()


def _unpack_mark(raw: bytes) -> Mark | None:
    if not raw:
        return None
    line, sequence, digest = struct.unpack_from(">QQ16s", raw)
    return Mark(store=raw[32:].decode(), line=line, sequence=sequence, digest=digest)


def has_mark(data: Mapping[str, Any]) -> bool:
    """Return whether the metadata of a plain state has a mark, or any value under its key."""
    metadata = data.get("metadata")
    return metadata is not None and isinstance(metadata, Mapping) and MARK_KEY in metadata


def refuse_mark(data: Mapping[str, Any]) -> None:
    """Refuse a plain state with a mark.

    Raises:
        SerializationError: It has one, or the state is another type than a mapping.
    """
    require_object(data)
    if has_mark(data):
        raise SerializationError(
            f"the state's metadata has the key {MARK_KEY!r}, which only a state object that "
            "load returned may carry: save that object, or remove the key"
        )


def split_mark(data: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a plain state without its mark, and the mark's token; ``None`` where it has none."""
    if not has_mark(data):
        return data, None
    metadata = dict(data["metadata"])
    token = metadata.pop(MARK_KEY)
    return {**data, "metadata": metadata}, token
