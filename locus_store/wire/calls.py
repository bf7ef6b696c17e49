"""The calls of a service: one for each method that a backend, a store or a message log implements.

A call's arguments and answer are the signature of the contract's method. The client, the service
and the OpenAPI document read this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from locus_store.backend import (
    ErasesThreads,
    Expires,
    KeepsEffects,
    ListsHeads,
    ListsThreads,
    ListsVersions,
    QueriesMetadata,
    SearchesText,
    StorageBackend,
    StoresThreads,
    StoresWrites,
    TakesTurns,
    Vacuums,
)
from locus_store.messages import BaseMessageLog
from locus_store.store import BaseStore
from locus_store.types import CheckpointerCapabilities
from locus_store.types.items import Put, Remove
from locus_store.types.messages import LogChange
from locus_store.types.thread_info import DescribesThreads
from locus_store.values.canonical import canonicalize
from locus_store.versions.audit import AuditLog
from locus_store.versions.sizes import ListsStatuses
from locus_store.wire.forms import Forms, Validator, list_parameters
from locus_store.wire.records import SentItem

Right: TypeAlias = Literal["read", "write", "admin", "audit"]
Part: TypeAlias = Literal["threads", "store", "messages"]

VERSION: Final = "/v1"

REQUESTS: Final = Forms(is_strict=True)
ANSWERS: Final = Forms(is_strict=False)


@dataclass(frozen=True, eq=False)
class WireCall:
    """A method of a contract as a request."""

    part: Part
    contract: type[Any]
    name: str
    right: Right
    is_repeatable: bool
    """A second run has the effect and the answer of one."""

    @property
    def path(self) -> str:
        below = "" if self.part == "threads" else f"/{self.part}"
        return f"{VERSION}{below}/{self.name}"

    @cached_property
    def parameters(self) -> dict[str, bool]:
        """The parameters by name, and whether each is required."""
        return list_parameters(getattr(self.contract, self.name))

    @cached_property
    def _types(self) -> dict[str, Any]:
        found = get_type_hints(getattr(self.contract, self.name))
        return {name: _get_wire_type(it) for name, it in found.items()}

    @cached_property
    def arguments(self) -> Validator:
        """Validates the arguments of a request, which are one object."""
        return Validator(REQUESTS.build_record(self._types, self.parameters, dict))

    @cached_property
    def answer(self) -> Validator:
        """Validates the answer to one."""
        return Validator(ANSWERS.build(self._types["return"]), f"the answer to {self.name}: ")

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their names.

        Raises:
            SerializationError: JSON cannot keep a value exactly.
        """
        found = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        return found | {it: canonicalize(found[it], it) for it in self._free if it in found}

    @cached_property
    def _free(self) -> list[str]:
        """The parameters that take any JSON value."""
        return [it for it in self.parameters if self._types[it] is Any]


def _get_wire_type(kind: Any) -> Any:
    """Return the type that is sent for a parameter's, or returned for an awaitable's."""
    if get_origin(kind) is Awaitable:
        return _get_wire_type(get_args(kind)[0])
    if set(get_args(kind)) == {Put, Remove}:
        return SentItem
    if get_args(kind) and set(get_args(get_args(kind)[0])) == {Put, Remove}:
        return list[SentItem]
    return kind


def _make_calls(part: Part, contract: type[Any], right: Right, *names: str) -> list[WireCall]:
    repeatable = {*names} if right in {"read", "audit"} else {*_REPEATABLE}
    return [WireCall(part, contract, it, right, it in repeatable) for it in names]


_REPEATABLE: Final = frozenset({"commit", "store_writes", "put_facts", "renew", "step_turn"})
"""Writes that may be sent again after a lost reply; reads always may."""


def may_repeat(call: WireCall, arguments: Mapping[str, Any]) -> bool:
    """Return whether a request may be sent again after a lost reply.

    A change of logs may if a second run finds each message by its id: ``BaseMessageLog.append``
    marks them so once a first reply was lost.
    """
    change = arguments.get("change")
    if call.is_repeatable or not isinstance(change, LogChange):
        return call.is_repeatable
    return change.is_repeatable and all(put.may_exist for put in change.get_all_puts())


CALLS: Final = (
    *_make_calls("threads", StorageBackend, "read", "fetch", "fetch_head", "history", "version"),
    *_make_calls("threads", StorageBackend, "read", "has_thread"),
    *_make_calls("threads", StorageBackend, "write", "commit", "remove", "remove_thread"),
    *_make_calls("threads", StorageBackend, "admin", "damage"),
    *_make_calls("threads", ListsThreads, "read", "recent"),
    *_make_calls("threads", ListsHeads, "read", "heads"),
    *_make_calls("threads", ListsVersions, "read", "newest", "contents"),
    *_make_calls("threads", SearchesText, "read", "find"),
    *_make_calls("threads", QueriesMetadata, "read", "query", "tagged"),
    *_make_calls("threads", StoresWrites, "read", "writes_of"),
    *_make_calls("threads", StoresWrites, "write", "store_writes"),
    *_make_calls("threads", KeepsEffects, "read", "list_writes"),
    *_make_calls("threads", StoresThreads, "read", "scan", "read_thread", "namespaces", "records"),
    *_make_calls("threads", StoresThreads, "write", "copy_thread", "restore", "replace_thread"),
    *_make_calls("threads", StoresThreads, "admin", "prune"),
    *_make_calls("threads", ErasesThreads, "read", "find_threads"),
    *_make_calls("threads", ErasesThreads, "admin", "forget_user", "forget_where"),
    *_make_calls("threads", Vacuums, "admin", "vacuum_report"),
    *_make_calls("threads", Expires, "write", "renew", "expire"),
    *_make_calls("threads", ListsStatuses, "read", "find_statuses"),
    *_make_calls("threads", TakesTurns, "read", "list_turns"),
    *_make_calls("threads", TakesTurns, "write", "step_turn", "end_turn"),
    *_make_calls("threads", DescribesThreads, "read", "facts_of", "find_facts"),
    *_make_calls("threads", DescribesThreads, "write", "put_facts", "clear_versions"),
    *_make_calls("threads", AuditLog, "audit", "read_audited", "read_last_seal"),
    *_make_calls("threads", AuditLog, "audit", "list_seals", "list_entries"),
    *_make_calls("store", BaseStore, "read", "read", "page", "recent", "nearest", "vectors_of"),
    *_make_calls("store", BaseStore, "read", "namespaces"),
    *_make_calls("store", BaseStore, "write", "apply", "clear", "renew", "sweep"),
    *_make_calls("messages", BaseMessageLog, "read", "look", "find_logs", "find_heads"),
    *_make_calls("messages", BaseMessageLog, "write", "change", "drop"),
)
"""Each call once."""

BY_PATH: Final = {it.path: it for it in CALLS}


def list_calls(part: Part) -> list[WireCall]:
    """Return the calls of a part of the service."""
    return [it for it in CALLS if it.part == part]


SERVICE: Final = "locus-store"
"""The name of the service in the answer of ``/health``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The powers and limits of a service, for the caller who asks."""

    version: str
    """The version of locus-store."""

    capabilities: CheckpointerCapabilities
    has_store: bool
    dimension: int | None
    metric: str | None
    has_messages: bool
    rights: list[str]
    max_body: int
    """The longest body of a request in bytes."""

    has_keyed_digests: bool = False
    """The service encrypts: it verifies states by their digests, and no client can."""


DESCRIPTION: Final = Validator(ANSWERS.build(Description), "the description of the service: ")
