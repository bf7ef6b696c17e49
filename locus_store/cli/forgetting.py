"""``locus-store forget``."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from locus_store.backend import FullBackend
from locus_store.cli.opening import DryRun, Yes, count_contents, describe_counts, run
from locus_store.cli.output import (
    confirm,
    format_count,
    note,
    print_line,
    put_json,
    select,
    show_progress,
)
from locus_store.cli.store import count_items, format_namespace, parse_namespace
from locus_store.cli.tenants import (
    Outcome,
    TenantsOptions,
    add_up,
    describe,
    format_tenants,
    open_covered,
    run_each,
    tell,
)
from locus_store.encryption import Receipt
from locus_store.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from locus_store.open import Storage
from locus_store.transfer.archive import all_threads
from locus_store.types.items import Namespace, check_namespace
from locus_store.types.thread_info import DescribesThreads, ThreadsWanted
from locus_store.values.filters import check_key
from locus_store.versions.reading import iterate_ids

PAGE = 1000
AT_ONCE = 8
"""Threads that are looked at together."""

USER_ID = "user_id"
"""The key of metadata and labels that names a user."""


@dataclass(frozen=True, slots=True)
class Left:
    """The data of a tenant that a deletion leaves."""

    tenant: str | None
    user: str | None
    namespaces: list[str]
    """Namespaces of the store, as they are typed, that end with the user's id."""

    pending_only: int
    """Threads that hold only pending writes."""

    unowned: int = 0
    """Threads of which neither the facts nor the newest version name a user."""

    def to_json(self) -> dict[str, Any]:
        """Return what the JSON of a command shows."""
        return select(self, ("tenant", "namespaces", "pending_only", "unowned"))

    def tell_unremoved(self, label: str) -> None:
        """Print a note about store items, with the command that deletes them."""
        user = shlex.quote(str(self.user))
        named = " ".join(f"--namespace {it}" for it in self._quoted)
        command = f"locus-store forget --user {user} {named}{self._tenant}"
        self._tell(label, f"If they are the user's: {command}")

    def tell_unexported(self) -> None:
        """Print a note about store items, with the commands that print them."""
        commands = (f"locus-store store search {it} --json{self._tenant}" for it in self._quoted)
        self._tell("not exported", f"To print them: {'; '.join(commands)}")

    def _tell(self, label: str, command: str) -> None:
        if self.namespaces:
            names = ", ".join(self.namespaces)
            about = f"the store items of {names}, where {self.user!r} is a segment"
            note(f"{self._where}{label}: {about}. {command}")

    @property
    def _quoted(self) -> list[str]:
        return [shlex.quote(it) for it in self.namespaces]

    @property
    def _tenant(self) -> str:
        return "" if self.tenant is None else f" --tenant {shlex.quote(self.tenant)}"

    def tell_unattributed(self) -> None:
        """Print notes about threads that no user can be found for."""
        if self.unowned:
            note(
                f"{self._where}not attributed: {format_count(self.unowned, 'thread')} that"
                f" {'names' if self.unowned == 1 else 'name'} no user, as adapters without user_id="
                ' (LangGraph: config["metadata"]["user_id"]) write them;'
                " 'locus-store threads list' shows them, and 'threads delete' deletes"
            )
        if self.pending_only:
            note(
                f"{self._where}not attributed: {format_count(self.pending_only, 'thread')} with "
                "pending writes only, which name no user; 'locus-store threads vacuum' removes "
                "old ones"
            )

    @property
    def _where(self) -> str:
        return "" if self.tenant is None else f"tenant {self.tenant!r}: "


async def find_left(
    backends: list[FullBackend], user: str | None, but: list[Namespace]
) -> list[Left]:
    """Return the data of each tenant that no user is found for, but some namespaces."""
    return [
        Left(
            backend.tenant,
            user,
            [format_namespace(it) for it in await _find_namespaces(backend, user, but)],
            *await _count_unattributed(backend, user),
        )
        for backend in backends
    ]


async def _find_namespaces(
    backend: FullBackend, user: str | None, but: list[Namespace]
) -> list[Namespace]:
    """Return the namespaces that end with the user's id, and have items, or are above some."""
    found: list[Namespace] = []
    above: Namespace = ()
    with suppress(InvalidArgumentError, UnsupportedError):  # no store, or an id that is no segment
        check_namespace((user,))
        store = Storage(backend).store()
        while await store.list_namespaces((*above, "*"), limit=1):
            offset, wanted = 0, (*above, str(user))
            while page := await store.list_namespaces(
                wanted, max_depth=len(wanted), limit=PAGE, offset=offset
            ):
                offset += len(page)
                found += [it for it in page if it[-1] == user]  # the id may be `*`
            above = (*above, "*")
    outer = [it for it in found if not _is_in(it, [name for name in found if name != it])]
    return [it for it in outer if not _is_in(it, but)]


def _is_in(namespace: Namespace, others: list[Namespace]) -> bool:
    return any(namespace[: len(it)] == it for it in others)


async def _count_unattributed(backend: FullBackend, user: str | None) -> tuple[int, int]:
    """Return the numbers of threads with pending writes only, and of those that name no user.

    Scans list the former, and lists do not. The latter matter only where a user is asked for.
    """
    known = {it async for it in iterate_ids(backend.list_threads, page=PAGE)}
    others = [it async for it in all_threads(backend) if it not in known]
    pending_only = sum([not await backend.exists(it) for it in others])
    return pending_only, 0 if user is None else await _count_unowned(backend, known)


async def _count_unowned(backend: FullBackend, thread_ids: set[str]) -> int:
    owned: set[str] = set()
    if isinstance(backend, DescribesThreads):
        offset = 0
        wanted = ThreadsWanted(user_id=None, needle=None, offset=0, limit=PAGE)
        while page := await backend.find_facts(replace(wanted, offset=offset)):
            offset += len(page)
            owned.update(it.thread_id for it in page if it.user_id or USER_ID in it.metadata)
    gate = asyncio.Semaphore(AT_ONCE)

    async def names_no_user(thread_id: str) -> bool:
        async with gate:
            head = await backend.version(thread_id)
        return head is None or not {*head.metadata, *head.labels} & {USER_ID}

    count, rest = 0, sorted(thread_ids - owned)
    for first in range(0, len(rest), PAGE):
        count += sum(await asyncio.gather(*map(names_no_user, rest[first : first + PAGE])))
    return count


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

    async def list_threads(self, backend: FullBackend) -> list[str]:
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

    That is threads with their versions and messages, and store items, found by --namespace; in SQL
    databases, and with encryption, also by metadata. Namespaces with the user's id as a segment are
    listed with the command that deletes them. Threads that name no user are counted, those with
    pending writes only apart: they may be the user's. --json: {threads, checkpoints, writes,
    messages, …, tenant, left: [{tenant, namespaces, pending_only, unowned}]}, how many of each. An
    encrypted storage also destroys the keys of what it removes; receipts: [{tenant, key_ids,
    destroyed_at}].
    """
    owner = _find_owner(user, where)
    wheres = [parse_namespace(it) for it in namespace or ()]
    if () in wheres:
        raise InvalidArgumentError("the root namespace belongs to all users: name the user's own")
    if wheres and at.all_tenants:
        raise InvalidArgumentError("--namespace belongs to one tenant: pass --tenant")
    if (dry_run or not yes) and not _approve(at, owner, wheres, dry_run=dry_run):
        return
    found, left, receipts = run(_forget_all(at, owner, wheres))
    if not receipts and not any(add_up(found).values()):
        _tell_left(left)
        at.tell_others()
        beside = any(it.namespaces or it.pending_only or it.unowned for it in left)
        raise NotFoundError(
            f"nothing was found and removed {owner}" if beside else f"nothing is stored {owner}"
        )
    if at.as_json:
        _put_outcome(found, left, receipts, at)
        return
    tell(found, lambda it: f"removed: {describe_counts(it) or 'nothing'}", at)
    _tell_left(left)
    for receipt in receipts:
        print_line(f"receipt: {receipt}")


def _approve(at: TenantsOptions, owner: _Owner, wheres: list[Namespace], *, dry_run: bool) -> bool:
    """Ask before the deletion; with ``dry_run`` only print it, and return ``False``."""
    held, left = run(_count_held(at, owner, wheres))
    if dry_run and at.as_json:
        _put_outcome(held, left, [], at)
        return False
    what = f"all {owner}: {_describe_held(add_up(held), format_tenants(held), wheres)}."
    of_all = held.items() if at.all_tenants else ()
    each_tenant = [f"tenant {name!r}: {_describe_held(it)}" for name, it in of_all]
    if not dry_run:
        for line in each_tenant:
            note(line)
        confirm(f"This deletes {what}")
        return True
    for line in [f"This would delete {what}", *each_tenant]:
        print_line(line)
    _tell_left(left, "not covered")
    at.tell_others()
    return False


def _put_outcome(
    found: Outcome, left: list[Left], receipts: list[Receipt], at: TenantsOptions
) -> None:
    more = {"receipts": [asdict(it) for it in receipts]} if receipts else {}
    put_json({**describe(found, at), "left": [it.to_json() for it in left], **more})
    at.tell_others()


def _tell_left(remainders: list[Left], label: str = "not removed") -> None:
    for remainder in remainders:
        remainder.tell_unremoved(label)
        remainder.tell_unattributed()


def _find_owner(user: str | None, where: str | None) -> _Owner:
    if (user is None) is (where is None):
        raise typer.BadParameter("pass --user or --where")
    if where is None:
        return _Owner(user, "", None)
    key, equals, value = where.partition("=")
    if not equals:
        raise typer.BadParameter(f"--where {where!r} is not KEY=VALUE")
    return _Owner(None, check_key(key), _parse_json(value))


def _parse_json(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


async def _count_held(
    at: TenantsOptions, owner: _Owner, wheres: list[Namespace]
) -> tuple[Outcome, list[Left]]:
    """Return the amount of data to be deleted by tenant, and what is left."""
    held: Outcome = {}
    async with open_covered(at) as backends:
        for backend in backends:
            found = await owner.list_threads(backend)
            with show_progress("counting", len(found)) as advance:
                counts = await count_contents(backend, found, advance)
            held[backend.tenant] = {"threads": len(found), **counts}
        left = await find_left(backends, owner.user, wheres)
        if wheres:
            store = Storage(backends[0]).store()
            items = [await count_items(store, it, recursive=True) for it in wheres]
            held[backends[0].tenant]["store"] = sum(items)
    return held, left


def _describe_held(
    counts: dict[str, int], of_tenants: str = "", wheres: Sequence[Namespace] = ()
) -> str:
    items, inside = counts.get("store", 0), {**counts, "threads": 0, "store": 0}
    text = f"{format_count(counts['threads'], 'thread')}{of_tenants}"
    if any(inside.values()):
        text += f" with {describe_counts(inside)}"
    if wheres:
        text += f"; {format_count(items, 'store item')} of {format_count(len(wheres), 'namespace')}"
    return text


async def _forget_all(
    at: TenantsOptions, owner: _Owner, wheres: list[Namespace]
) -> tuple[Outcome, list[Left], list[Receipt]]:
    began, receipts = datetime.now(UTC).isoformat(timespec="microseconds"), []
    with show_progress("forgetting"):
        async with open_covered(at) as backends:
            cleared = await _clear_items(backends[0], wheres) if wheres else 0
            found = await run_each(backends, owner.forget)
            left = await find_left(backends, owner.user, wheres)
            for backend in backends:
                if encryption := getattr(backend, "encryption", None):
                    receipts += await encryption.list_receipts(backend.tenant or "", began)
    if wheres:
        ((name, counts),) = found.items()
        found[name] = {**counts, "store": counts.get("store", 0) + cleared}
    return found, left, receipts


async def _clear_items(backend: FullBackend, wheres: list[Namespace]) -> int:
    store = Storage(backend).store()
    clear = partial(store.clear_namespace, recursive=True)
    forget_namespace = getattr(store, "forget_namespace", clear)  # which destroys keys, too
    removed = sum([int(await forget_namespace(it)) for it in wheres])
    await store.expire()  # expired items are not counted, but may be the user's
    return removed
