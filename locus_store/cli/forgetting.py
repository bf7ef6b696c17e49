"""``locus-store forget``."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from locus_store.backend import FullBackend
from locus_store.cli.opening import NAMED, DryRun, Yes, count_contents, describe_counts, run
from locus_store.cli.output import format_count, note, print_line, put_json, select, show_progress
from locus_store.cli.store import count_items, format_namespace, parse_namespace
from locus_store.cli.tenants import (
    Outcome,
    TenantsOptions,
    add_up,
    approve,
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

ADK_APP = "adk-app"
"""Namespace of the log of an app's state: ``APP`` of the adapter for ADK."""

EVERY = 1_000_000
"""The limit of a command that prints every item; 'store search' says if there may be more."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the data to delete: a user, by ``USER_ID`` in metadata, or a metadata value."""

    user: str | None
    key: str
    value: Any

    def __str__(self) -> str:
        return self.metadata if self.user is None else f"of user {self.user!r}"

    @property
    def metadata(self) -> str:
        """The metadata that names the owner, as text."""
        return f"with the metadata {self.key}={json.dumps(self.value, ensure_ascii=False)}"

    @property
    def conditions(self) -> dict[str, Any]:
        """The same as conditions of a search in a store."""
        found: Any = self.value
        for part in reversed(self.key.split(".")):
            found = {part: found}
        return dict(found)

    async def list_threads(self, backend: FullBackend) -> list[str]:
        if self.user is not None:
            return await backend.threads_of(self.user)
        return await backend.threads_where(self.key, self.value)

    async def forget(self, backend: FullBackend) -> dict[str, int]:
        if self.user is not None:
            return await backend.forget_user(self.user)
        return await backend.forget_where(self.key, self.value)


@dataclass(frozen=True, slots=True)
class Left:
    """The data of a tenant that a deletion leaves."""

    tenant: str | None
    owner: Owner
    namespaces: list[str]
    """Namespaces of the store, as they are typed, that end with the user's id."""

    items: int
    """Items of the store elsewhere whose metadata names the owner."""

    pending_only: int
    """Threads that hold only pending writes."""

    unowned_threads: list[str]
    """Threads of which neither the facts nor the newest version name a user."""

    @property
    def unowned(self) -> int:
        """The number of these threads."""
        return len(self.unowned_threads)

    def __bool__(self) -> bool:
        return bool(self.namespaces or self.items or self.pending_only or self.unowned)

    def to_json(self) -> dict[str, Any]:
        """Return what the JSON of a command shows."""
        names = ("tenant", "namespaces", "items", "pending_only", "unowned", "unowned_threads")
        return select(self, names)

    def tell_unremoved(self, label: str, items_label: str) -> None:
        """Print notes about store items, with the commands that delete and print them."""
        named = " ".join(f"--namespace {it}" for it in self._quoted)
        command = f"locus-store forget --user {self._user} {named}{self._tenant}"
        self._tell_namespaces(label, f"If they are the user's: {command}")
        self._tell_items(items_label, "; 'locus-store store delete' deletes an item")

    def tell_unexported(self) -> None:
        """Print notes about store items, with the commands that print them."""
        commands = "; ".join(map(self._write_search, self._quoted))
        self._tell_namespaces("not exported", f"To print them: {commands}")
        self._tell_items("not exported")

    def _tell_namespaces(self, label: str, command: str) -> None:
        if self.namespaces:
            names = ", ".join(self.namespaces)
            about = f"the store items of {names}, where {self.owner.user!r} is a segment"
            note(f"{self._where}{label}: {about}. {command}")

    def _tell_items(self, label: str, more: str = "") -> None:
        if self.items:
            about = f"{format_count(self.items, 'store item')} {self.owner.metadata}"
            conditions = shlex.quote(json.dumps(self.owner.conditions, ensure_ascii=False))
            command = self._write_search(f"/ --metadata-filter {conditions}")
            note(f"{self._where}{label}: {about}. To print them: {command}{more}")

    def _write_search(self, arguments: str) -> str:
        return f"locus-store store search {arguments} --limit {EVERY} --json{self._tenant}"

    @property
    def _user(self) -> str:
        return shlex.quote(str(self.owner.user))

    @property
    def _quoted(self) -> list[str]:
        return [shlex.quote(it) for it in self.namespaces]

    @property
    def _tenant(self) -> str:
        return "" if self.tenant is None else f" --tenant {shlex.quote(self.tenant)}"

    def tell_unattributed(self) -> None:
        """Print notes about threads that no user can be found for."""
        if self.unowned:
            names = ", ".join(map(repr, self.unowned_threads[:NAMED]))
            more = ", …" if self.unowned > NAMED else ""
            note(
                f"{self._where}not attributed: {format_count(self.unowned, 'thread')} that"
                f" {'names' if self.unowned == 1 else 'name'} no user ({names}{more}), as adapters"
                ' without user_id= (LangGraph: config["metadata"]["user_id"]) write them; to list'
                f" all: locus-store forget --user {self._user} --dry-run --json{self._tenant}"
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
    backends: list[FullBackend],
    owner: Owner,
    but: list[Namespace],
    threads: Mapping[str | None, Collection[str]],
) -> list[Left]:
    """Return the data of each tenant that is not found for an owner.

    Args:
        backends: One for each tenant.
        owner: Whose data is exported or deleted.
        but: Namespaces of the store that were named.
        threads: The owner's threads, by tenant.
    """
    left: list[Left] = []
    for backend in backends:
        names = await _find_namespaces(backend, owner.user, but)
        typed = [format_namespace(it) for it in names]
        items = await _count_items(backend, owner, [*names, *but])
        others = await _find_unattributed(backend, owner.user, threads.get(backend.tenant, ()))
        left.append(Left(backend.tenant, owner, typed, items, *others))
    return left


async def _count_items(backend: FullBackend, owner: Owner, but: list[Namespace]) -> int:
    """Return the number of items outside of some namespaces whose metadata names the owner."""
    count = offset = 0
    with suppress(InvalidArgumentError, UnsupportedError):  # no store, or a value with a $
        store = Storage(backend).store()
        while page := await store.search((), None, None, PAGE, offset, owner.conditions):
            offset += len(page)
            count += sum(not _is_in(it.namespace, but) for it in page)
    return count


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


async def _find_unattributed(
    backend: FullBackend, user: str | None, thread_ids: Collection[str]
) -> tuple[int, list[str]]:
    """Return the number of threads with pending writes only, and other ones without a user.

    Scans list the former, and lists do not. The latter matter only where a user is asked for.
    """
    known = {it async for it in iterate_ids(backend.list_threads, page=PAGE)}
    others = [it async for it in all_threads(backend) if it not in known]
    pending_only = sum([not await backend.exists(it) for it in others])
    rest = known.difference(thread_ids)
    return pending_only, [] if user is None else await _find_unowned(backend, rest)


async def _find_unowned(backend: FullBackend, thread_ids: set[str]) -> list[str]:
    owned: set[str] = set()
    if isinstance(backend, DescribesThreads):
        offset = 0
        wanted = ThreadsWanted(user_id=None, needle=None, offset=0, limit=PAGE)
        while page := await backend.find_facts(replace(wanted, offset=offset)):
            offset += len(page)
            owned.update(it.thread_id for it in page if it.user_id or USER_ID in it.metadata)

    async def names_no_user(thread_id: str) -> bool:
        head = await backend.version(thread_id)
        if head is not None:
            return not {*head.metadata, *head.labels} & {USER_ID}
        return not (thread_id.endswith("//") and await _is_of_app(backend, thread_id))

    unowned: list[str] = []
    rest = sorted(thread_ids - owned)
    for first in range(0, len(rest), AT_ONCE):
        some = rest[first : first + AT_ONCE]
        answers = await asyncio.gather(*map(names_no_user, some))
        unowned += [it for it, is_unowned in zip(some, answers, strict=True) if is_unowned]
    return unowned


async def _is_of_app(backend: FullBackend, thread_id: str) -> bool:
    """Return whether a thread is the state that all users of an ADK app share."""
    thread = await backend.read_thread(thread_id)
    return thread is not None and {it.namespace for it in thread.messages} == {ADK_APP}


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

    Threads are deleted with their versions and messages. Store items are found by --namespace; in
    SQL databases, and with encryption, also by their metadata. What stays and may be the user's is
    listed: other items whose metadata names the user, namespaces with the user's id as a segment,
    and threads that name no user. --json: {threads, checkpoints, writes, messages, …, tenant, left:
    [{tenant, namespaces, items, pending_only, unowned, unowned_threads}]}. An encrypted storage
    also destroys the keys of what it removes; receipts: [{tenant, key_ids, destroyed_at}].
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
        raise NotFoundError(
            f"nothing was found and removed {owner}" if any(left) else f"nothing is stored {owner}"
        )
    if at.as_json:
        more = {"receipts": [asdict(it) for it in receipts]} if receipts else {}
        put_json({**describe(found, at), **_list_left(left), **more})
        at.tell_others()
        return
    tell(found, lambda it: f"removed: {describe_counts(it) or 'nothing'}", at)
    _tell_left(left)
    for receipt in receipts:
        print_line(f"receipt: {receipt}")


def _approve(at: TenantsOptions, owner: Owner, wheres: list[Namespace], *, dry_run: bool) -> bool:
    """Ask before the deletion; with ``dry_run`` only print it, and return ``False``."""
    held, left = run(_count_held(at, owner, wheres))
    what = f"all {owner}: {_describe_held(add_up(held), format_tenants(held), wheres)}"
    of_all = held.items() if at.all_tenants else ()
    each_tenant = [f"tenant {name!r}: {_describe_held(it)}" for name, it in of_all]
    if not dry_run:
        for line in each_tenant:
            note(line)
    if approve(held, what, at, dry_run=dry_run, more=_list_left(left)):
        return True
    if not at.as_json:
        for line in each_tenant:
            print_line(line)
        _tell_left(left, "not covered", "removed in SQL databases and with encryption only")
    return False


def _list_left(remainders: list[Left]) -> dict[str, Any]:
    return {"left": [it.to_json() for it in remainders]}


def _tell_left(
    remainders: list[Left],
    label: str = "not removed",
    items_label: str = "not removed, as items are not searched by metadata here",
) -> None:
    for remainder in remainders:
        remainder.tell_unremoved(label, items_label)
        remainder.tell_unattributed()


def _find_owner(user: str | None, where: str | None) -> Owner:
    if (user is None) is (where is None):
        raise typer.BadParameter("pass --user or --where")
    if where is None:
        return Owner(user, USER_ID, user)
    key, equals, value = where.partition("=")
    if not equals:
        raise typer.BadParameter(f"--where {where!r} is not KEY=VALUE")
    return Owner(None, check_key(key), _parse_json(value))


def _parse_json(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


async def _count_held(
    at: TenantsOptions, owner: Owner, wheres: list[Namespace]
) -> tuple[Outcome, list[Left]]:
    """Return the amount of data to be deleted by tenant, and what is left."""
    held: Outcome = {}
    found: dict[str | None, list[str]] = {}
    async with open_covered(at) as backends:
        for backend in backends:
            found[backend.tenant] = ids = await owner.list_threads(backend)
            with show_progress("counting", len(ids)) as advance:
                counts = await count_contents(backend, ids, advance)
            held[backend.tenant] = {"threads": len(ids), **counts}
        left = await find_left(backends, owner, wheres, found)
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
    at: TenantsOptions, owner: Owner, wheres: list[Namespace]
) -> tuple[Outcome, list[Left], list[Receipt]]:
    began, receipts = datetime.now(UTC).isoformat(timespec="microseconds"), []
    with show_progress("forgetting"):
        async with open_covered(at) as backends:
            cleared = await _clear_items(backends[0], wheres) if wheres else 0
            found = await run_each(backends, owner.forget)
            left = await find_left(backends, owner, wheres, {})
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
