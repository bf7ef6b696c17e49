"""``locus-store threads delete | vacuum | expire``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from locus_store.cli.opening import (
    DEFAULT_URL,
    AsJson,
    Thread,
    Url,
    Yes,
    contents,
    require,
    run,
)
from locus_store.cli.output import (
    confirm,
    counted,
    progress,
    put_json,
    say,
)
from locus_store.cli.tenants import (
    AllTenants,
    Choice,
    OfTenant,
    Outcome,
    chosen,
    covered,
    each,
    of_tenant,
    opened_of,
    tell,
)
from locus_store.cli.threads import all_versions
from locus_store.errors import InvalidArgumentError
from locus_store.transfer.archive import all_threads

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from locus_store.backend import FullBackend
    from locus_store.cli.threads import Storage


def delete(
    thread: Thread,
    *,
    checkpoint: Annotated[
        str | None, typer.Option(help="Only this version; without it the whole thread.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="The namespace of --checkpoint.")] = "",
    tenant: OfTenant = None,
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a thread and all its data, or one version; --json: {removed}, in versions."""
    if namespace and checkpoint is None:
        raise InvalidArgumentError("a namespace has no deletion of its own: name a --checkpoint")
    if not yes:
        owned = _owned(opened_of(url, tenant), thread, checkpoint, namespace)
        confirm(f"This deletes {run(owned)}.")

    async def removed() -> int:
        async with opened_of(url, tenant) as backend:
            if checkpoint is not None:
                found = await backend.remove(thread, [checkpoint], namespace=namespace)
                return require(found, thread, checkpoint)
            require(await _held(backend, thread), thread)
            return (await backend.remove_thread(thread)).versions

    _tell_removed(run(removed()), "version", as_json=as_json)


async def _owned(storage: Storage, thread: str, checkpoint: str | None, namespace: str) -> str:
    """Return a description of what a deletion removes."""
    async with storage as backend:
        if checkpoint is not None:
            version = await backend.version(thread, checkpoint, namespace=namespace)
            require(version, thread, checkpoint)
            return f"version {checkpoint!r} of thread {thread!r}"
        return f"thread {thread!r}: {require(await _held(backend, thread), thread)}"


async def _held(backend: FullBackend, thread: str) -> str:
    """Return a description of a thread's data; "" if there is none."""
    if backend.capabilities.branching:
        held = await contents(backend, [thread])
        return held or ("no versions" if await backend.exists(thread) else "")
    found = await all_versions(backend, thread)
    return counted(len(found), "version") if found else ""


def vacuum(
    *,
    older_than: Annotated[
        float, typer.Option(min=0, max=365_000, metavar="DAYS", help="Age, by the server's clock.")
    ],
    tenant: OfTenant = None,
    all_tenants: AllTenants = False,
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the versions older than some days.

    A thread is deleted when no version, message or pending write of it is younger; every other
    thread keeps its head. A thread that another transaction holds is skipped, and one whose
    versions cannot be rewritten is left as it is. --json: {removed, skipped, unreadable, tenant},
    in versions and threads; with --all-tenants {removed, skipped, unreadable, tenants: {name:
    {removed, skipped, unreadable}}}.
    """
    choice = chosen(tenant, everyone=all_tenants)
    if not yes:
        confirm(f"This deletes {run(_aged(url, choice, older_than))}.")

    async def removed() -> Outcome:
        async with covered(url, choice) as backends:
            return await each(backends, lambda it: _vacuumed(it, older_than))

    tell(run(removed()), _versions, choice, as_json=as_json)


async def _removed(removing: Awaitable[int]) -> dict[str, int]:
    return {"removed": await removing}


async def _vacuumed(backend: FullBackend, days: float) -> dict[str, int]:
    return (await backend.vacuum_report(days))._asdict()


def _versions(counts: dict[str, int]) -> str:
    told = f"{counted(counts['removed'], 'version')} removed"
    if counts["skipped"]:
        skipped = counted(counts["skipped"], "thread")
        told += f"; {skipped} skipped, held by other transactions: run it again later"
    if counts["unreadable"]:
        left = counted(counts["unreadable"], "thread")
        told += f"; {left} left, damaged or above max_state_bytes: see the warnings"
    return told


def _threads(counts: dict[str, int]) -> str:
    return f"{counted(counts['removed'], 'thread')} removed"


async def _aged(url: str, choice: Choice, days: float) -> str:
    """Describe what a vacuum would remove by this machine's clock, without messages and writes."""
    limit = datetime.now(UTC) - timedelta(days=days)
    some = whole = versions = 0
    async with covered(url, choice) as backends:
        with progress("counting", is_alone=True) as advance:
            for backend in backends:
                async for thread_id in all_threads(backend):
                    old, is_whole = await _old_versions(backend, thread_id, limit)
                    whole += is_whole
                    some += old > 0 and not is_whole
                    versions += old
                    advance()
        whose = of_tenant(it.tenant for it in backends)
        return (
            f"about {counted(versions, 'version')} older than {days:g} days{whose}:"
            f" up to {counted(whole, 'whole thread')}, where no message or pending write is"
            f" younger, and parts of {counted(some, 'other')}"
        )


async def _old_versions(backend: FullBackend, thread_id: str, limit: datetime) -> tuple[int, bool]:
    """Return how many of a thread's versions a vacuum would remove, and whether that is all."""
    names = await backend.namespaces(thread_id) if backend.capabilities.branching else [""]
    lines = [await all_versions(backend, thread_id, namespace=it) for it in names]
    old = [sum(it.created_at < limit for it in line) for line in lines]
    every = [len(it) for it in lines]
    if old == every:
        return sum(old), True
    heads = sum(map(int.__eq__, old, every))  # of a namespace that is old, the head stays
    return sum(old) - heads, False


def expire(
    *,
    tenant: OfTenant = None,
    all_tenants: AllTenants = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete the threads whose time to live is over, to free their space.

    They are invisible already: there is no prompt. --json: {removed, tenant}, in threads; with
    --all-tenants {removed, tenants: {name: {removed}}}.
    """
    choice = chosen(tenant, everyone=all_tenants)

    async def removed() -> Outcome:
        async with covered(url, choice) as backends:
            return await each(backends, lambda it: _removed(it.expire()))

    tell(run(removed()), _threads, choice, as_json=as_json)


def _tell_removed(number: int, noun: str, *, as_json: bool) -> None:
    if as_json:
        put_json({"removed": number})
    else:
        say(f"{counted(number, noun)} removed")
