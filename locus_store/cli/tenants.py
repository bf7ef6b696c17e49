"""``--tenant`` and ``--all-tenants``, and ``locus-store tenants``."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from locus_store.backend import SharedByTenants, needs
from locus_store.cli.help import command, make_group
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, UrlOptions, opened, run
from locus_store.cli.output import confirm, counted, note, put_found, put_json, say
from locus_store.errors import InvalidArgumentError, LocusStoreError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from locus_store.backend import FullBackend
    from locus_store.types import Tenant

T = TypeVar("T")

tenants = make_group("Show the tenants of a database.")

OfTenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="The tenant; overrides the URL's ?tenant=."),
]
AllTenants = Annotated[
    bool,
    typer.Option(
        "--all-tenants",
        help="All tenants with stored data; in JSON the sums, and tenants: {name: {…}}.",
    ),
]
Outcome: TypeAlias = dict[str | None, dict[str, int]]
"""Counts by tenant; ``None`` stands for a storage without tenants."""

NAMED = 5
"""Tenants that a warning names."""


# --- which ones


@dataclass(frozen=True, kw_only=True)
class OneTenant:
    """The options of a command on the data of one tenant."""

    tenant: OfTenant = None
    url: Url = DEFAULT_URL

    def ask(self, work: Callable[[FullBackend], Awaitable[T]]) -> T:
        """Return what ``work`` returns for the opened backend."""

        async def asked() -> T:
            async with opened_of(self.url, self.tenant) as backend:
                return await work(backend)

        return run(asked())


@dataclass(frozen=True, kw_only=True)
class TenantOptions(OneTenant):
    """Those of a command that also prints JSON."""

    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class TenantsOptions:
    """The options of a command on the data of one tenant, or of all."""

    tenant: OfTenant = None
    all_tenants: AllTenants = False
    url: Url = DEFAULT_URL
    as_json: AsJson = False

    @cached_property
    def choice(self) -> Choice:
        """The choice that the options express.

        Raises:
            InvalidArgumentError: They contradict each other.
        """
        if self.tenant is not None and self.all_tenants:
            raise InvalidArgumentError("pass --tenant or --all-tenants, not both")
        return Choice(self.tenant, self.all_tenants)


@dataclass(slots=True)
class Choice:
    """The tenants of ``--tenant`` and ``--all-tenants``."""

    tenant: str | None = None
    everyone: bool = False
    others: list[str] = field(default_factory=list)
    """Tenants that were left out, once a storage was opened."""

    is_named: bool = False
    """The named threads belong to one tenant, so no data of other tenants was left out."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of ``opened``."""
        return {} if self.tenant is None else {"tenant": self.tenant}

    def tell_others(self) -> None:
        """Warn of tenants that the command does not cover."""
        if self.others and not self.is_named:
            names = ", ".join(map(repr, self.others[:NAMED]))
            more = ", …" if len(self.others) > NAMED else ""
            note(
                f"Not covered: {counted(len(self.others), 'other tenant')} ({names}{more});"
                " --all-tenants covers all."
            )


def one_of(choice: Choice, what: str, *, is_named: bool) -> None:
    """Refuse a thread's name together with ``--all-tenants``.

    Raises:
        InvalidArgumentError: All tenants were chosen.
    """
    if choice.everyone and is_named:
        raise InvalidArgumentError(f"{what} is of one tenant: pass --tenant")
    choice.is_named = is_named


@asynccontextmanager
async def covered(at: TenantsOptions) -> AsyncIterator[list[FullBackend]]:
    """Open the storage; yield the backends of ``covering``."""
    async with opened(at.url, **at.choice.options) as backend:
        yield await covering(backend, at.choice)


@asynccontextmanager
async def opened_of(url: str, tenant: str | None) -> AsyncIterator[FullBackend]:
    """Open the storage of ``url`` for a command that works on one tenant.

    Raises:
        NotFoundError: Nothing is stored of the tenant that was named.
    """
    choice = Choice(tenant)
    async with opened(url, **choice.options) as backend:
        if tenant is not None:
            await covering(backend, choice)
        yield backend


def _shared(backend: FullBackend) -> SharedByTenants:
    """Return the backend, if its storage has tenants."""
    return needs(backend, SharedByTenants)


async def covering(backend: FullBackend, choice: Choice) -> list[FullBackend]:
    """Return a backend for each chosen tenant, by name.

    Raises:
        InvalidArgumentError: The storage has no tenants.
        NotFoundError: There is no such tenant.
    """
    if not backend.capabilities.tenants:
        require_tenants(backend, choice)
        return [backend]
    names = [it.name for it in await _shared(backend).tenants()]
    if choice.everyone:
        return [backend.for_tenant(it) for it in names] or [backend]
    choice.others = [it for it in names if it != backend.tenant]
    if choice.tenant is not None and choice.tenant not in names:
        raise NotFoundError(
            f"no data of tenant {choice.tenant!r} exists; 'locus-store tenants list' shows the"
            " tenants"
        )
    return [backend]


def require_tenants(backend: FullBackend, choice: Choice) -> None:
    """Refuse ``--all-tenants`` if the storage has no tenants.

    Raises:
        InvalidArgumentError: It was given.
    """
    if choice.everyone and not backend.capabilities.tenants:
        raise InvalidArgumentError(
            f"{type(backend).__name__} has no tenants: leave --all-tenants out"
        )


async def each(
    backends: list[FullBackend], work: Callable[[FullBackend], Awaitable[dict[str, int]]]
) -> Outcome:
    """Return the counts of each tenant; the failure of one does not stop the others.

    Raises:
        LocusStoreError: The first error, once all tenants had their turn.
    """
    found: Outcome = {}
    failed: dict[str | None, LocusStoreError] = {}
    for backend in backends:
        try:
            found[backend.tenant] = await work(backend)
        except LocusStoreError as exc:
            failed[backend.tenant] = exc
    if not failed:
        return found
    (tenant, first), *more = failed.items()
    if len(backends) == 1:
        raise first
    also = f" Tenants that failed as well: {', '.join(repr(it) for it, _ in more)}." if more else ""
    raise type(first)(f"tenant {tenant!r}: {first}{also}") from first


# --- what is said of them


def of_tenant(names: Iterable[str | None]) -> str:
    """Return `` of tenant 'acme'`` or `` of 3 tenants``; "" if there are no tenants."""
    found = list(names)
    if len(found) == 1:
        return "" if found[0] is None else f" of tenant {found[0]!r}"
    return f" of {counted(len(found), 'tenant')}"


def total(found: Outcome) -> dict[str, int]:
    """Return the sum over all tenants."""
    counts: Counter[str] = Counter()
    for it in found.values():
        counts.update(it)
    return dict(counts)


def tell(found: Outcome, text: Callable[[dict[str, int]], str], at: TenantsOptions) -> None:
    """Print each tenant's counts and the sum, and warn of tenants that are not covered."""
    choice = at.choice
    if at.as_json:
        put_json(described(found, choice))
    else:
        for name, counts in found.items():
            say(text(counts) if name is None else f"tenant {name!r}: {text(counts)}")
        if choice.everyone:
            say(f"{counted(len(found), 'tenant')}: {text(total(found)) if found else 'nothing'}")
    choice.tell_others()


def approve(found: Outcome, what: str, at: TenantsOptions, *, dry_run: bool) -> bool:
    """Ask before a deletion; with ``dry_run`` only print it, and return ``False``.

    Raises:
        typer.Exit: The answer is not yes.
    """
    if not dry_run:
        confirm(f"This deletes {what}.")
        return True
    if at.as_json:
        put_json(described(found, at.choice))
    else:
        say(f"This would delete {what}.")
    at.choice.tell_others()
    return False


def described(found: Outcome, choice: Choice) -> dict[str, Any]:
    """Return the sum with ``tenant``, or with the counts by name in ``tenants``."""
    if choice.everyone:
        return {**total(found), "tenants": found}
    ((name, counts),) = found.items()
    return counts if name is None else {**counts, "tenant": name}


# --- the command


@command(tenants, "list")
def list_tenants(*, at: UrlOptions) -> None:
    """List the tenants that have something stored; --json: [{tenant, threads, items}]."""

    async def listed() -> list[Tenant]:
        async with opened(at.url) as backend:
            return await _shared(backend).tenants()

    found = run(listed())
    document = [{"tenant": it.name, "threads": it.threads, "items": it.items} for it in found]
    columns = ("tenant", "threads", "store items")
    rows = ((it.name, f"{it.threads:,}", f"{it.items:,}") for it in found)
    put_found(document, columns, rows, ids=columns[:1], as_json=at.as_json)
