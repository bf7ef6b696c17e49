"""``locus-store forget``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, Yes, contents, run
from locus_store.cli.output import confirm, counted, progress, say
from locus_store.cli.store import items_in, namespace_of, opened_store
from locus_store.cli.tenants import (
    AllTenants,
    Choice,
    OfTenant,
    Outcome,
    chosen,
    covered,
    each,
    of_tenant,
    tell,
    total,
)
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.values.filters import check_key

if TYPE_CHECKING:
    from locus_store.backend import FullBackend
    from locus_store.types.items import Namespace

_NOUNS = {
    "threads": "thread",
    "checkpoints": "version",
    "writes": "pending write",
    "messages": "message",
    "store": "store item",
}
"""Nouns for the counts."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The owner of the data to delete: a user, or a metadata value."""

    user: str | None
    key: str
    value: Any

    def __str__(self) -> str:
        if self.user is not None:
            return f"of user {self.user!r}"
        return f"with the metadata {self.key}={json.dumps(self.value, ensure_ascii=False)}"

    async def threads(self, backend: FullBackend) -> list[str]:
        if self.user is not None:
            return await backend.threads_of(self.user)
        return await backend.threads_where(self.key, self.value)

    async def forget(self, backend: FullBackend) -> dict[str, int]:
        if self.user is not None:
            return await backend.forget_user(self.user)
        return await backend.forget_where(self.key, self.value)


def forget(
    *,
    user: Annotated[str | None, typer.Option(help="A user id.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Metadata instead of a user: VALUE is JSON if it can be read as such, else a"
            " string; a dot in KEY descends into objects.",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Namespace of the store, such as memory/u42: its items are deleted, also below it."
            " May be given several times."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted; delete nothing.")
    ] = False,
    tenant: OfTenant = None,
    all_tenants: AllTenants = False,
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete all data of a user, or of a metadata value.

    That is threads with their versions and messages, and store items. Store items are found by
    --namespace; in SQL databases also by their metadata. --json: {threads,
    checkpoints, writes, messages, …, tenant}, how many of each; with --all-tenants {…, tenants:
    {name: {…}}}.
    """
    owner, choice = _owner(user, where), chosen(tenant, everyone=all_tenants)
    wheres = [namespace_of(it) for it in namespace or ()]
    if () in wheres:
        raise InvalidArgumentError("the root namespace belongs to all users: name the user's own")
    if wheres and choice.everyone:
        raise InvalidArgumentError("--namespace belongs to one tenant: pass --tenant")
    if dry_run or not yes:
        held = f"all {owner}: {run(_held(url, choice, owner, wheres))}"
        if dry_run:
            say(f"This would delete {held}.")
            choice.tell_others()
            return
        confirm(f"This deletes {held}.")
    found = run(_forgotten(url, choice, owner, wheres))
    if not any(total(found).values()):
        choice.tell_others()
        raise NotFoundError(f"nothing is stored {owner}")
    tell(found, _removed, choice, as_json=as_json)


def _owner(user: str | None, where: str | None) -> _Owner:
    if (user is None) is (where is None):
        raise typer.BadParameter("pass --user or --where")
    if where is None:
        return _Owner(user, "", None)
    key, equals, value = where.partition("=")
    if not equals:
        raise typer.BadParameter(f"--where {where!r} is not KEY=VALUE")
    return _Owner(None, check_key(key), _parsed(value))


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


async def _held(url: str, choice: Choice, owner: _Owner, wheres: list[Namespace]) -> str:
    """Return the amount of data to be deleted, as text."""
    count, held = 0, []
    async with covered(url, choice) as backends:
        for backend in backends:
            found = await owner.threads(backend)
            count += len(found)
            with progress("counting", len(found)) as advance:
                told = await contents(backend, found, advance)
            held += [f"{backend.tenant}: {told}" if told and choice.everyone else told]
        told = counted(count, "thread") + of_tenant(it.tenant for it in backends)
    told += " with " + "; ".join(filter(None, held)) if any(held) else ""
    if not wheres:
        return told
    async with opened_store(url, **choice.options) as store:
        items = sum([await items_in(store, it, recursive=True) for it in wheres])
    return f"{told}; {counted(items, 'store item')} of {counted(len(wheres), 'namespace')}"


async def _forgotten(url: str, choice: Choice, owner: _Owner, wheres: list[Namespace]) -> Outcome:
    with progress("forgetting"):
        cleared = await _cleared(url, choice, wheres) if wheres else 0
        async with covered(url, choice) as backends:
            found = await each(backends, owner.forget)
    if wheres:
        ((name, counts),) = found.items()
        found[name] = {**counts, "store": counts.get("store", 0) + cleared}
    return found


async def _cleared(url: str, choice: Choice, wheres: list[Namespace]) -> int:
    async with opened_store(url, **choice.options) as store:
        removed = sum([await store.clear_namespace(it, recursive=True) for it in wheres])
        await store.expire()  # expired items are not counted, but may be the user's
        return removed


def _removed(counts: dict[str, int]) -> str:
    kinds = (counted(number, _NOUNS.get(kind, kind)) for kind, number in counts.items())
    return "removed: " + ", ".join(kinds)
