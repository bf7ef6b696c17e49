"""Upgrades of an index: its documents are copied into one with the current mapping.

Writes are blocked while the documents are copied; the alias then moves to the new index, and the
old one is removed in the same step. Reads continue. Each step may be repeated, by the same upgrade
or by another one at the same time. The new index has an alias for the copy, which the last step
removes: after it no other upgrade copies or moves anything.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.opensearch import failures, index
from locus_store.errors import BackendError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from locus_store.backends.opensearch.client import IndexClient

PAUSE_SECONDS: Final = 0.2
DIGITS: Final = 6
"""Of the number at the end of an index's name."""

REINDEX: Final = "indices:data/write/reindex"
OF_ONE_INDEX: Final = (
    "uuid", "version.", "creation_date", "provided_name", "blocks.", "resize.", "history.",
    "routing.allocation.initial_recovery.",
)  # fmt: skip
"""Prefixes of the settings that belong to one index and are not copied."""

COPY: Final = "-copy"
"""The end of the alias that documents are copied into."""

ATTEMPTS: Final = 3
"""The most attempts of an upgrade while other upgrades replace its index."""


class _OvertakenError(Exception):
    """Another upgrade has moved the alias."""


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

    Of several upgrades at the same time, all wait for the copy, and one moves the alias.

    Raises:
        SchemaError: It is not ours, is newer, or the upgrade's target is not.
        BackendError: Documents are missing in the copy; the alias was not moved.
    """
    for _ in range(ATTEMPTS):
        found = _found(client)
        if not found:
            client.create()
            return client.layout.version
        old, meta = index.only_ours(found, client.place, client.layout)
        if meta[client.layout.mark] >= client.layout.version:
            index.require_ours(found, client.place, client.layout)
            return int(meta[client.layout.mark])
        with suppress(_OvertakenError):
            _replace(client, old, found[old])
    raise BackendError(
        f"{client.place} was changed by another program during the upgrade; run it again"
    )


def _replace(client: IndexClient, old: str, found: Mapping[str, Any]) -> None:
    """Replace an index by one with the current mapping.

    Raises:
        _OvertakenError: Another upgrade has moved the alias.
    """
    new = _next(old)
    _require_current(client, old, new)
    _ask(client, "PUT", f"/{old}/_block/write")
    copy = _create(client, new, found)
    _copy(client, old, copy)
    _move(client, old, new, copy)


def _ask(client: IndexClient, method: str, path: str, body: Any = None, **params: Any) -> Any:
    """Return the JSON of an answer about an index or alias that another upgrade may have removed.

    Raises:
        _OvertakenError: It is not there.
    """
    found = client.call(method, path, body, seen=(failures.MISSING,), **params)
    if "error" in found:
        raise _OvertakenError
    return found


def _require_current(client: IndexClient, old: str, new: str) -> None:
    """Refuse the copy of an upgrade that was interrupted if its block was removed since.

    Raises:
        SchemaError: It may have documents that were changed or deleted.
        _OvertakenError: Another upgrade has moved the alias.
    """
    left = client.call("GET", f"/{new}", seen=(failures.MISSING,))
    if "error" in left:
        return
    blocks = _ask(client, "GET", f"/{old}")[old]["settings"]["index"].get("blocks", {})
    if blocks.get("write") != "true":  # a copy is created after the block
        raise SchemaError(
            f"index {new!r} was left by an upgrade that was interrupted, and {old!r} may have been "
            f"written since: remove {new!r}, and run the upgrade again"
        )


def _found(client: IndexClient) -> Mapping[str, Any]:
    """Return the indexes behind the alias."""
    found = client.call("GET", f"/{client.place.name}", seen=(failures.MISSING,))
    return {} if "error" in found else found


def _next(name: str) -> str:
    """Return the name of the index that comes after this one."""
    base, _, number = name.rpartition("-")
    is_numbered = number.isdecimal() and number.isascii()
    base, last = (base, int(number)) if is_numbered else (name, 1)  # restored by another name
    return f"{base}-{last + 1:0{DIGITS}}"


def _create(client: IndexClient, new: str, old: Mapping[str, Any]) -> str:
    """Create the new index with the settings of the old one, unless an upgrade has done so.

    Returns:
        Its alias for the copy.

    Raises:
        SchemaError: There is one that no upgrade has created, or a template has changed it.
        BackendError: The server refuses it.
        _OvertakenError: Another upgrade has moved the alias.
    """
    told = old["settings"]["index"]
    kept = {name: it for name, it in _flat(told) if not name.startswith(OF_ONE_INDEX)}
    settings = {**kept, **dict(_flat(client.layout.settings))}
    mappings = index.mappings(client.layout)
    copy = f"{new}-{secrets.token_hex(8)}{COPY}"
    aliases: dict[str, Any] = {index.own_alias(new): {}, copy: {}}
    body = {"aliases": aliases, "settings": {"index": settings}, "mappings": mappings}
    made = client.call("PUT", f"/{new}", body, seen=(400,))
    if failures.type_of(made) not in {None, failures.EXISTS}:
        raise BackendError(f"index {new!r} cannot be created: {made['error']}")
    return _copy_alias(client, new)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with their full names."""
    for name, it in settings.items():
        if isinstance(it, dict):
            yield from _flat(it, f"{prefix}{name}.")
        else:
            yield prefix + name, it


def _copy_alias(client: IndexClient, new: str) -> str:
    """Return the alias for the copy of an index that an upgrade has created.

    Raises:
        SchemaError: It has none, or a template of the cluster has changed it.
        _OvertakenError: Another upgrade has moved the alias.
    """
    found = _ask(client, "GET", f"/{new}")
    index.require_ours(found, client.place, client.layout)
    index.require_plain(found[new], client.place, client.layout)
    if client.place.name in found[new]["aliases"]:
        raise _OvertakenError
    copies = (str(it) for it in found[new]["aliases"] if it.endswith(COPY))
    copy = min(copies, default=None)
    if copy is None:
        raise SchemaError(
            f"index {new!r} exists, and no upgrade has created it; look at its documents, remove "
            "it, and run the upgrade again"
        )
    return copy


def _copy(client: IndexClient, old: str, copy: str) -> None:
    """Copy the documents that are missing in the new index, by a task of the server.

    They keep their versions: a late write of the copy is older than a change of the document.
    """
    _finish_tasks(client, copy)
    if _count(client, copy) < _count(client, old):
        body = {
            "conflicts": "proceed",
            "source": {"index": old},
            "dest": {"index": copy, "version_type": "external"},
        }
        options = {"wait_for_completion": "false", "require_alias": "true"}
        _ask(client, "POST", "/_reindex", body, **options)
        _finish_tasks(client, copy)
    there, copied = _count(client, old), _count(client, copy)
    if copied != there:
        raise BackendError(
            f"{client.place}: {copied:,} of {there:,} documents were copied into {copy!r}; look at "
            "the server's log, and run the upgrade again"
        )


def _finish_tasks(client: IndexClient, copy: str) -> None:
    """Wait for tasks that copy into an index, also those of other upgrades."""
    while any(f"[{copy}]" in it for it in _tasks(client)):
        time.sleep(PAUSE_SECONDS)


def _tasks(client: IndexClient) -> list[str]:
    found = client.call("GET", "/_tasks", actions=REINDEX, detailed="true")
    nodes = found.get("nodes", {}).values()
    return [task["description"] for node in nodes for task in node["tasks"].values()]


def _count(client: IndexClient, name: str) -> int:
    _ask(client, "POST", f"/{name}/_refresh")
    found: int = _ask(client, "GET", f"/{name}/_count")["count"]
    return found


def _move(client: IndexClient, old: str, new: str, copy: str) -> None:
    """Move the alias and remove the old index, in one step, which one upgrade alone can do."""
    actions = [
        {"remove": {"index": new, "alias": copy, "must_exist": True}},
        {"add": {"index": new, "alias": client.place.name, "is_write_index": True}},
        {"remove_index": {"index": old}},
    ]
    _ask(client, "POST", "/_aliases", {"actions": actions})
