"""``--tenant`` and ``--all-tenants``, and ``locus-store tenants``."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

import typer

from locus_store.backend import FullBackend, LimitsTenants, SharedByTenants, needs
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, UrlOptions, ask, open_backend, run
from locus_store.cli.output import (
    confirm,
    format_count,
    note,
    print_line,
    put_found,
    put_json,
    show_progress,
)
from locus_store.errors import BackendError, InvalidArgumentError, LocusStoreError, NotFoundError
from locus_store.types.tenants import Quota, QuotaUse

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
Counts: TypeAlias = dict[str, int]
Outcome: TypeAlias = dict[str | None, Counts]
"""Counts by tenant; ``None`` stands for a storage without tenants."""

NAMED = 5
"""Tenants that a warning names."""


@dataclass(frozen=True, kw_only=True)
class OneTenant:
    """The options of a command on the data of one tenant."""

    tenant: OfTenant = None
    url: Url = DEFAULT_URL

    def ask(self, work: Callable[[FullBackend], Awaitable[T]]) -> T:
        """Return what ``work`` returns for the opened backend.

        Raises:
            NotFoundError: Nothing is stored of the tenant that was named.
        """

        async def asked(backend: FullBackend) -> T:
            if self.tenant is not None:
                await make_covered(backend, TenantsOptions(tenant=self.tenant))
            return await work(backend)

        return ask(self.url, asked, **select_tenant(self.tenant))


@dataclass(frozen=True, kw_only=True)
class TenantOptions(OneTenant):
    """Those of a command that also prints JSON."""

    as_json: AsJson = False


@dataclass(kw_only=True)
class TenantsOptions:
    """The options of a command on the data of one tenant, or of all.

    Raises:
        InvalidArgumentError: They contradict each other.
    """

    tenant: OfTenant = None
    all_tenants: AllTenants = False
    url: Url = DEFAULT_URL
    as_json: AsJson = False
    others: list[str] = field(default_factory=list, init=False)
    """Tenants that were left out, once a storage was opened."""

    is_named: bool = field(default=False, init=False)
    """The named threads belong to one tenant, so no data of other tenants was left out."""

    def __post_init__(self) -> None:
        if self.tenant is not None and self.all_tenants:
            raise InvalidArgumentError("pass --tenant or --all-tenants, not both")

    def ask_each(
        self, doing: str, work: Callable[[FullBackend, Callable[[], None]], Awaitable[Counts]]
    ) -> Outcome:
        """Return the counts of each tenant, by work that may advance the bar of progress."""

        async def asked() -> Outcome:
            async with open_covered(self) as backends:
                with show_progress(doing) as advance:
                    return await run_each(backends, lambda it: work(it, advance))

        return run(asked())

    def require_one(self, what: str, *, is_named: bool) -> None:
        """Refuse a thread's name together with ``--all-tenants``."""
        if self.all_tenants and is_named:
            raise InvalidArgumentError(f"{what} is of one tenant: pass --tenant")
        self.is_named = is_named

    def tell_others(self) -> None:
        """Warn of tenants that the command does not cover."""
        if self.others and not self.is_named:
            names = ", ".join(map(repr, self.others[:NAMED]))
            more = ", …" if len(self.others) > NAMED else ""
            note(
                f"Not covered: {format_count(len(self.others), 'other tenant')} ({names}{more});"
                " --all-tenants covers all."
            )


def select_tenant(tenant: str | None) -> dict[str, Any]:
    """Return the option of ``open_backend`` that selects a tenant; none: the URL may name one."""
    return {} if tenant is None else {"tenant": tenant}


@asynccontextmanager
async def open_covered(at: TenantsOptions) -> AsyncIterator[list[FullBackend]]:
    """Open the storage; yield the backends of ``make_covered``."""
    async with open_backend(at.url, **select_tenant(at.tenant)) as backend:
        yield await make_covered(backend, at)


async def make_covered(backend: FullBackend, at: TenantsOptions) -> list[FullBackend]:
    """Return a backend for each chosen tenant, by name.

    Raises:
        InvalidArgumentError: The storage has no tenants, or hides some of them from this role.
        NotFoundError: There is no such tenant.
    """
    if not backend.capabilities.tenants:
        require_tenants(backend, at)
        return [backend]
    if at.is_named and at.tenant is None:
        return [backend]
    shared = needs(backend, SharedByTenants)
    try:
        names = [it.name for it in await shared.tenants()]
    except BackendError as exc:
        if at.all_tenants:
            raise
        note(f"Other tenants were not looked for: {exc}")
        return [backend]
    if at.all_tenants:
        if not await shared.may_see_all_tenants():
            raise InvalidArgumentError(
                "--all-tenants: row security hides other tenants from this role; connect as the "
                "owner of the tables, or pass --tenant"
            )
        return [backend.for_tenant(it) for it in names] or [backend]
    at.others = [it for it in names if it != backend.tenant]
    if at.tenant is not None and at.tenant not in names:
        raise NotFoundError(
            f"no data of tenant {at.tenant!r} exists; 'locus-store tenants list' shows the tenants"
        )
    return [backend]


def require_tenants(backend: FullBackend, at: TenantsOptions) -> None:
    """Refuse ``--all-tenants`` if the storage has no tenants."""
    if at.all_tenants and not backend.capabilities.tenants:
        raise InvalidArgumentError(
            f"{type(backend).__name__} has no tenants: leave --all-tenants out"
        )


async def run_each(
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


def format_tenants(names: Iterable[str | None]) -> str:
    """Return `` of tenant 'acme'`` or `` of 3 tenants``; "" if there are no tenants."""
    found = list(names)
    if len(found) == 1:
        return "" if found[0] is None else f" of tenant {found[0]!r}"
    return f" of {format_count(len(found), 'tenant')}"


def add_up(outcome: Outcome) -> dict[str, int]:
    """Return the sum over all tenants."""
    counts: Counter[str] = Counter()
    for tenant_counts in outcome.values():
        counts.update(tenant_counts)
    return dict(counts)


def tell(outcome: Outcome, text: Callable[[dict[str, int]], str], at: TenantsOptions) -> None:
    """Print each tenant's counts and the sum, and warn of tenants that are not covered."""
    if at.as_json:
        put_json(describe(outcome, at))
    else:
        for name, counts in outcome.items():
            print_line(text(counts) if name is None else f"tenant {name!r}: {text(counts)}")
        if at.all_tenants:
            print_line(
                f"{format_count(len(outcome), 'tenant')}: "
                f"{text(add_up(outcome)) if outcome else 'nothing'}"
            )
    at.tell_others()


def approve(
    outcome: Outcome,
    what: str,
    at: TenantsOptions,
    *,
    dry_run: bool,
    more: Mapping[str, Any] | None = None,
) -> bool:
    """Ask before a deletion; with ``dry_run`` only print it, in JSON with more fields.

    Returns:
        ``False`` for a dry run.

    Raises:
        typer.Exit: The answer is not yes.
    """
    if not dry_run:
        confirm(f"This deletes {what}.")
        return True
    if at.as_json:
        put_json({**describe(outcome, at), **(more or {})})
    else:
        print_line(f"This would delete {what}.")
    at.tell_others()
    return False


def describe(outcome: Outcome, at: TenantsOptions) -> dict[str, Any]:
    """Return the sum with ``tenant``, or with the counts by name in ``tenants``."""
    if at.all_tenants:
        return {**add_up(outcome), "tenants": outcome}
    ((name, counts),) = outcome.items()
    return counts if name is None else {**counts, "tenant": name}


@add_command(tenants, "list")
def list_tenants(*, at: UrlOptions) -> None:
    """List the tenants that have something stored; --json: [{tenant, threads, items}]."""
    found = ask(at.url, lambda it: needs(it, SharedByTenants).tenants())
    document = [{"tenant": it.name, "threads": it.threads, "items": it.items} for it in found]
    columns = ("tenant", "threads", "store items")
    rows = ((it.name, f"{it.threads:,}", f"{it.items:,}") for it in found)
    put_found(document, columns, rows, ids=columns[:1], as_json=at.as_json)


def _make_limit(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", metavar="N", min=0, help=text)


@add_command(tenants, "quota")
def change_quota(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")],
    *,
    threads: Annotated[int | None, _make_limit("threads", "Most threads.")] = None,
    size: Annotated[int | None, _make_limit("bytes", "Most bytes that are stored.")] = None,
    saves: Annotated[int | None, _make_limit("saves-per-minute", "Most calls that store.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove all limits first.")] = False,
    at: UrlOptions,
) -> None:
    """Change the limits that are named, and show the quota of a tenant with its use.

    --json: {name: {used, limit}}.
    """
    given = {"threads": threads, "bytes": size, "saves_per_minute": saves}
    changes = {name: limit for name, limit in given.items() if limit is not None}

    async def changed(backend: FullBackend) -> QuotaUse:
        limited = needs(backend, LimitsTenants).for_tenant(tenant)
        if changes or remove:
            old = {} if remove else (await limited.get_quota()).quota.to_limits()
            await limited.set_quota(Quota(**{**old, **changes}))
        return await limited.get_quota()

    found = ask(at.url, changed).to_amounts()
    document = {name: {"used": used, "limit": limit} for name, (used, limit) in found.items()}
    rows = (
        (name.replace("_", " "), f"{used:,}", "none" if limit is None else f"{limit:,}")
        for name, (used, limit) in found.items()
    )
    put_found(document, ("quota", "used", "limit"), rows, as_json=at.as_json)
