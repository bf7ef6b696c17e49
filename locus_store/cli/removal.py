"""``locus-store threads delete | vacuum | expire | prune | release``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from locus_store.backend import FullBackend
from locus_store.cli.opening import (
    DryRun,
    Thread,
    Yes,
    count_contents,
    describe_counts,
    find_thread_id,
    find_version_id,
    require,
)
from locus_store.cli.output import confirm, format_count, put_outcome
from locus_store.cli.tenants import (
    Outcome,
    TenantOptions,
    TenantsOptions,
    add_up,
    approve,
    format_tenants,
    tell,
)
from locus_store.errors import ConflictError, InvalidArgumentError
from locus_store.runtime.progress import iterate_steps
from locus_store.timeline.ancestry import read_line
from locus_store.transfer.archive import all_threads
from locus_store.versions.archives import find_newest_at


def delete(
    thread: Thread,
    *,
    checkpoint: Annotated[
        str | None, typer.Option(help="Only this version; without it the whole thread.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="The namespace of --checkpoint.")] = "",
    at: TenantOptions,
    yes: Yes = False,
) -> None:
    """Delete a thread and all its data, or one version; --json: {removed}, in versions."""
    if namespace and checkpoint is None:
        raise InvalidArgumentError("a namespace has no deletion of its own: name a --checkpoint")
    if not yes:
        owned = at.ask(lambda it: _describe_deletion(it, thread, checkpoint, namespace))
        confirm(f"This deletes {owned}.")

    async def removed(backend: FullBackend) -> tuple[int, str]:
        await find_thread_id(backend, thread, exactly=True)
        if checkpoint is not None:
            name = require(await find_version_id(backend, thread, checkpoint, namespace), thread)
            found = await backend.remove(thread, [name], namespace=namespace)
            return require(found, thread, checkpoint), format_count(found, "version")
        held = require(await _describe_held(backend, thread), thread)
        return (await backend.remove_thread(thread)).versions, held

    count, what = at.ask(removed)
    put_outcome({"removed": count}, f"{what} removed", as_json=at.as_json)


async def _describe_deletion(
    backend: FullBackend, thread: str, checkpoint: str | None, namespace: str
) -> str:
    await find_thread_id(backend, thread, exactly=True)
    if checkpoint is not None:
        checkpoint = await find_version_id(backend, thread, checkpoint, namespace)
        version = await backend.version(thread, checkpoint, namespace=namespace)
        require(version, thread, checkpoint)
        return f"version {checkpoint!r} of thread {thread!r}"
    return f"thread {thread!r}: {require(await _describe_held(backend, thread), thread)}"


async def _describe_held(backend: FullBackend, thread: str) -> str:
    """Return a description of a thread's data; "" if there is none."""
    if backend.capabilities.branching:
        held = describe_counts(await count_contents(backend, [thread]))
        return held or ("no versions" if await backend.exists(thread) else "")
    found = [it async for it in read_line(backend, thread, "")]
    return format_count(len(found), "version") if found else ""


def vacuum(
    *,
    older_than: Annotated[
        float, typer.Option(min=0, max=365_000, metavar="DAYS", help="Age, by the server's clock.")
    ],
    at: TenantsOptions,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete the versions older than some days.

    A thread is deleted when no version, message or pending write of it is younger; every other
    thread keeps its head. A thread that another transaction holds is skipped, and one whose
    versions cannot be rewritten is left. --json: {removed, threads, messages, skipped,
    unreadable, tenant}: removed versions, threads that were deleted and their messages, and threads
    that were left. With --dry-run: {removed, threads, messages, tenant}.
    """
    if dry_run or not yes:
        limit = datetime.now(UTC) - timedelta(days=older_than)  # by this machine's clock
        found = at.ask_each("counting", lambda it, advance: _count_old(it, limit, advance))
        tenants = format_tenants(found)
        what = f"about {_describe_removal(add_up(found))}, older than {older_than:g} days{tenants}"
        if not approve(found, what, at, dry_run=dry_run):
            return
    tell(at.ask_each("removing", lambda it, _: _vacuum(it, older_than)), _describe_vacuum, at)


async def _vacuum(backend: FullBackend, days: float) -> dict[str, int]:
    return (await backend.vacuum_report(days))._asdict()


def _describe_removal(counts: dict[str, int], done: str = "") -> str:
    """Return what a vacuum deletes, as text."""
    summary = format_count(counts.get("removed", 0), "version")
    if counts.get("messages"):
        summary += f" and {format_count(counts['messages'], 'message')}"
    summary += done
    if counts.get("threads"):
        summary += f", with {format_count(counts['threads'], 'whole thread')}"
    return summary


def _describe_vacuum(counts: dict[str, int]) -> str:
    summary = _describe_removal(counts, " removed")
    if counts["skipped"]:
        skipped = format_count(counts["skipped"], "thread")
        summary += f"; {skipped} skipped, held by other transactions: run it again later"
    if counts["unreadable"]:
        left = format_count(counts["unreadable"], "thread")
        summary += f"; {left} left, damaged or above max_state_bytes: see the warnings"
    return summary


async def _count_old(
    backend: FullBackend, limit: datetime, advance: Callable[[], None]
) -> dict[str, int]:
    """Count what a vacuum would remove."""
    found = dict.fromkeys(("removed", "threads", "messages"), 0)
    async for thread_id in all_threads(backend):
        old = await _count_old_versions(backend, thread_id, limit)
        thread = await backend.read_thread(thread_id) if old is None else None
        found["removed"] += old or 0
        if thread is not None:
            found["removed"] += sum(len(it.records) for it in thread.lines)
            if find_newest_at(thread) < limit:
                found["threads"] += 1
                found["messages"] += len(thread.messages)
            else:  # the heads stay
                found["removed"] -= sum(it.head is not None for it in thread.lines)
        advance()
    return found


async def _count_old_versions(backend: FullBackend, thread_id: str, limit: datetime) -> int | None:
    """Return how many of a thread's versions are old, without heads; ``None``: all are."""
    names = await backend.namespaces(thread_id) if backend.capabilities.branching else [""]
    lines = [[it async for it in read_line(backend, thread_id, name)] for name in names]
    old = [sum(it.created_at < limit for it in line) for line in lines]
    every = [len(it) for it in lines]
    if old == every:
        return None
    return sum(old) - sum(map(int.__eq__, old, every))  # of a namespace that is old, the head stays


def expire(*, at: TenantsOptions) -> None:
    """Delete the threads whose time to live is over, to free their space.

    They are invisible already: there is no prompt. --json: {removed, tenant}, in threads.
    """

    async def removed(backend: FullBackend, _: object) -> dict[str, int]:
        return {"removed": await backend.expire()}

    counts = at.ask_each("removing", removed)
    tell(counts, lambda it: f"{format_count(it['removed'], 'thread')} removed", at)


def prune(
    threads: Annotated[list[str] | None, typer.Argument(help="Thread ids; by default all.")] = None,
    *,
    keep_last: Annotated[int, typer.Option(min=1, help="Versions that each namespace keeps.")],
    at: TenantsOptions,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete all versions but the newest ones of each namespace, and its head.

    Messages stay. A namespace is skipped if a version that stays is rebuilt from older ones.
    --json: {removed, threads, skipped, tenant}: versions, threads that lost some, and namespaces.
    With --dry-run, skipped is 0.
    """
    at.require_one("THREADS", is_named=bool(threads))
    if dry_run or not yes:
        found = _prune_each(at, threads, keep_last, removes=False)
        versions = f"{_describe_versions(add_up(found))}{format_tenants(found)}"
        what = f"{versions}, and keeps {keep_last:,} of each"
        if not approve(found, what, at, dry_run=dry_run):
            return
    tell(_prune_each(at, threads, keep_last, removes=True), _describe_counts, at)


def _prune_each(
    at: TenantsOptions, threads: list[str] | None, keep_last: int, *, removes: bool
) -> Outcome:
    async def pruned(backend: FullBackend, advance: Callable[[], None]) -> dict[str, int]:
        counts = dict.fromkeys(("removed", "threads", "skipped"), 0)
        if threads:
            for typed in iterate_steps(threads):
                name = await find_thread_id(backend, typed, exactly=True)
                await _prune(backend, name, keep_last, counts, removes=removes)
            return counts
        async for name in all_threads(backend):
            await _prune(backend, name, keep_last, counts, removes=removes)
            advance()
        return counts

    return at.ask_each("pruning" if removes else "counting", pruned)


async def _prune(
    backend: FullBackend, thread: str, keep_last: int, counts: dict[str, int], *, removes: bool
) -> None:
    removed = 0
    for namespace in await backend.namespaces(thread):
        head = await backend.version(thread, namespace=namespace)
        found = [it.checkpoint_id async for it in read_line(backend, thread, namespace)]
        old = [it for it in found[keep_last:] if head is None or it != head.checkpoint_id]
        try:
            if old and removes:
                await backend.remove(thread, old, namespace=namespace)
            removed += len(old)
        except ConflictError:
            counts["skipped"] += 1
    counts["removed"] += removed
    counts["threads"] += removed > 0


def _describe_versions(counts: dict[str, int]) -> str:
    of_threads = format_count(counts.get("threads", 0), "thread")
    return f"{format_count(counts.get('removed', 0), 'version')} of {of_threads}"


def _describe_counts(counts: dict[str, int]) -> str:
    summary = f"{_describe_versions(counts)} removed"
    if counts["skipped"]:
        skipped = format_count(counts["skipped"], "namespace")
        summary += f"; {skipped} skipped, where a version that stays is rebuilt from older ones"
    return summary
