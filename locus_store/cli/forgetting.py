"""``locus-store forget``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locus_store.cli.leftovers import Left, left_of
from locus_store.cli.opening import DryRun, Yes, contents, run
from locus_store.cli.output import confirm, counted, note, progress, put_json, say
from locus_store.cli.store import items_in, namespace_of, opened_store
from locus_store.cli.tenants import (
    Outcome,
    TenantsOptions,
    covered,
    described,
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
    dry_run: DryRun = False,
    at: TenantsOptions,
    yes: Yes = False,
) -> None:
    """Delete all data of a user, or of a metadata value.

    That is threads with their versions and messages, and store items. Store items are found by
    --namespace; in SQL databases also by their metadata. Namespaces that have the user's id as a
    segment are listed with the command that deletes them. Threads that name no user are counted,
    those with pending writes only apart: they may be the user's. --json: {threads, checkpoints,
    writes, messages, …, tenant, left: [{tenant, namespaces, pending_only, unowned}]}, how many of
    each.
    """
    owner, choice = _owner(user, where), at.choice
    wheres = [namespace_of(it) for it in namespace or ()]
    if () in wheres:
        raise InvalidArgumentError("the root namespace belongs to all users: name the user's own")
    if wheres and choice.everyone:
        raise InvalidArgumentError("--namespace belongs to one tenant: pass --tenant")
    if dry_run or not yes:
        (held, *each_tenant), left = run(_held(at, owner, wheres))
        if dry_run:
            say(f"This would delete all {owner}: {held}.")
            for it in each_tenant:
                say(it)
            _tell_left(left, "not covered")
            choice.tell_others()
            return
        for it in each_tenant:
            note(it)
        confirm(f"This deletes all {owner}: {held}.")
    found, left = run(_forgotten(at, owner, wheres))
    if not any(total(found).values()):
        _tell_left(left)
        choice.tell_others()
        beside = any(it.namespaces or it.pending_only or it.unowned for it in left)
        raise NotFoundError(
            f"nothing was found and removed {owner}" if beside else f"nothing is stored {owner}"
        )
    if at.as_json:
        put_json({**described(found, choice), "left": [it.described() for it in left]})
        choice.tell_others()
    else:
        tell(found, _removed, at)
        _tell_left(left)


def _tell_left(left: list[Left], told: str = "not removed") -> None:
    for it in left:
        it.tell_unremoved(told)
        it.tell_unattributed()


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


async def _held(
    at: TenantsOptions, owner: _Owner, wheres: list[Namespace]
) -> tuple[list[str], list[Left]]:
    """Return the amount of data to be deleted, in all and by tenant, and what is left."""
    choice = at.choice
    ids: list[str] = []
    held: list[str] = []
    async with covered(at) as backends:
        for backend in backends:
            found = await owner.threads(backend)
            ids += found
            with progress("counting", len(found)) as advance:
                told = await contents(backend, found, advance)
            threads = counted(len(found), "thread")
            held.append(f"{threads} with {told}" if told else threads)
        left = await left_of(at.url, backends, at.choice.options, owner.user, wheres)
        names = [it.tenant for it in backends]
    if choice.everyone:
        told = counted(len(ids), "thread") + of_tenant(names)
        held = [f"tenant {name!r}: {it}" for name, it in zip(names, held, strict=True)]
    else:
        threads, with_, told = held.pop().partition(" with ")
        told = threads + of_tenant(names) + with_ + told
    if not wheres:
        return [told, *held], left
    async with opened_store(at.url, **choice.options) as store:
        items = sum([await items_in(store, it, recursive=True) for it in wheres])
    beside = f"{counted(items, 'store item')} of {counted(len(wheres), 'namespace')}"
    return [f"{told}; {beside}"], left


async def _forgotten(
    at: TenantsOptions, owner: _Owner, wheres: list[Namespace]
) -> tuple[Outcome, list[Left]]:
    with progress("forgetting"):
        cleared = await _cleared(at, wheres) if wheres else 0
        async with covered(at) as backends:
            found = await each(backends, owner.forget)
            left = await left_of(at.url, backends, at.choice.options, owner.user, wheres)
    if wheres:
        ((name, counts),) = found.items()
        found[name] = {**counts, "store": counts.get("store", 0) + cleared}
    return found, left


async def _cleared(at: TenantsOptions, wheres: list[Namespace]) -> int:
    async with opened_store(at.url, **at.choice.options) as store:
        removed = sum([await store.clear_namespace(it, recursive=True) for it in wheres])
        await store.expire()  # expired items are not counted, but may be the user's
        return removed


def _removed(counts: dict[str, int]) -> str:
    some = {kind: number for kind, number in counts.items() if number}
    kinds = (counted(number, _NOUNS.get(kind, kind)) for kind, number in some.items())
    return "removed: " + (", ".join(kinds) or "nothing")
