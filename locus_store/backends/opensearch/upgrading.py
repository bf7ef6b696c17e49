"""Upgrades of an index: its documents are copied into one with the current mapping.

Writes are blocked while the documents are copied; the alias then moves to the new index, and the
old one is removed in the same step. Reads continue. Each step may be repeated, so an upgrade that
was interrupted is resumed by the next one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.opensearch import failures, index
from locus_store.errors import BackendError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.backends.opensearch.client import IndexClient

PAUSE_SECONDS: Final = 0.2
DIGITS: Final = 6
"""Of the number at the end of an index's name."""

REINDEX: Final = "indices:data/write/reindex"
OF_ONE_INDEX: Final = frozenset({"uuid", "version", "creation_date", "provided_name", "blocks"})
"""Settings that a copy does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """The state of an index; ``state`` has the words of ``locus-store db check``."""

    state: str
    revision: str | None
    message: str

    @property
    def usable(self) -> bool:
        """This library can work on it."""
        return self.state in {"ok", "missing", "newer"}


def check(client: IndexClient) -> IndexStatus:
    """Return the state of an index; change nothing."""
    found = _found(client)
    if not found:
        return IndexStatus(
            state="missing",
            revision=None,
            message=f"{client.place} does not exist; the first write creates it",
        )
    try:
        _, meta = index.only_ours(found, client.place, client.layout)
    except SchemaError as exc:
        return IndexStatus(state="foreign", revision=None, message=str(exc))
    version = meta[client.layout.mark]
    try:
        index.require_ours(found, client.place, client.layout)
    except SchemaError as exc:
        state = "too new" if version > client.layout.version else "behind"
        return IndexStatus(state=state, revision=str(version), message=str(exc))
    message = f"{client.place} has version {version} of the mapping"
    state = "newer" if version > client.layout.version else "ok"
    return IndexStatus(state=state, revision=str(version), message=message)


def upgrade(client: IndexClient) -> int:
    """Create an index, or give it the current mapping; return the version that it has now.

    Raises:
        SchemaError: It is not ours, is newer, or the upgrade's target is not.
        BackendError: Documents are missing in the copy; the alias was not moved.
    """
    found = _found(client)
    if not found:
        client.create()
        return client.layout.version
    old, meta = index.only_ours(found, client.place, client.layout)
    if meta[client.layout.mark] >= client.layout.version:
        index.require_ours(found, client.place, client.layout)
        return int(meta[client.layout.mark])
    new = _next(old)
    client.call("PUT", f"/{old}/_block/write")
    _create(client, new, found[old])
    _copy(client, old, new)
    _move(client, old, new)
    return client.layout.version


def _found(client: IndexClient) -> Mapping[str, Any]:
    """Return the indexes behind the alias."""
    found = client.call("GET", f"/{client.place.name}", seen=(failures.MISSING,))
    return {} if "error" in found else found


def _next(name: str) -> str:
    """Return the name of the index that comes after this one."""
    base, _, number = name.rpartition("-")
    return f"{base}-{int(number) + 1:0{DIGITS}}"


def _create(client: IndexClient, new: str, old: Mapping[str, Any]) -> None:
    """Create the new index with the settings of the old one, unless an upgrade has done so."""
    told = old["settings"]["index"]
    kept = {name: it for name, it in told.items() if name not in OF_ONE_INDEX}
    settings = {**kept, **client.layout.settings}
    mappings = index.mappings(client.layout)
    aliases: dict[str, Any] = {index.own_alias(new): {}}
    body = {"aliases": aliases, "settings": {"index": settings}, "mappings": mappings}
    made = client.call("PUT", f"/{new}", body, seen=(400,))
    if failures.type_of(made) == failures.EXISTS:
        index.require_ours(client.call("GET", f"/{new}"), client.place, client.layout)
    elif "error" in made:
        raise BackendError(f"index {new!r} cannot be created: {made['error']}")


def _copy(client: IndexClient, old: str, new: str) -> None:
    """Copy the documents that are missing in the new index, by a task of the server."""
    _finish_tasks(client, new)
    if _count(client, new) < _count(client, old):
        body = {
            "conflicts": "proceed",
            "source": {"index": old},
            "dest": {"index": new, "op_type": "create"},
        }
        client.call("POST", "/_reindex", body, wait_for_completion="false")
        _finish_tasks(client, new)
    there, copied = _count(client, old), _count(client, new)
    if copied != there:
        raise BackendError(
            f"{client.place}: {copied:,} of {there:,} documents were copied into {new!r}; look at "
            "the server's log, and run the upgrade again"
        )


def _finish_tasks(client: IndexClient, new: str) -> None:
    """Wait for tasks that copy into an index, also those of an upgrade that was interrupted."""
    while any(f"[{new}]" in it for it in _tasks(client)):
        time.sleep(PAUSE_SECONDS)


def _tasks(client: IndexClient) -> list[str]:
    found = client.call("GET", "/_tasks", actions=REINDEX, detailed="true")
    nodes = found.get("nodes", {}).values()
    return [task["description"] for node in nodes for task in node["tasks"].values()]


def _count(client: IndexClient, name: str) -> int:
    client.call("POST", f"/{name}/_refresh")
    found: int = client.call("GET", f"/{name}/_count")["count"]
    return found


def _move(client: IndexClient, old: str, new: str) -> None:
    """Move the alias and remove the old index, in one step."""
    alias = {"index": new, "alias": client.place.name, "is_write_index": True}
    actions = [{"add": alias}, {"remove_index": {"index": old}}]
    client.call("POST", "/_aliases", {"actions": actions})
