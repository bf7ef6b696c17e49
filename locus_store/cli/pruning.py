"""``locus-store threads prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from locus_store.cli.naming import thread_named
from locus_store.cli.opening import DryRun, Yes, run
from locus_store.cli.output import counted, progress
from locus_store.cli.tenants import (
    Places,
    approve,
    covered,
    each,
    of_tenant,
    one_of,
    tell,
    total,
)
from locus_store.cli.threads import all_versions
from locus_store.errors import ConflictError
from locus_store.runtime.progress import steps
from locus_store.transfer.archive import all_threads

if TYPE_CHECKING:
    from locus_store.backend import FullBackend
    from locus_store.cli.tenants import Outcome


def prune(
    threads: Annotated[list[str] | None, typer.Argument(help="Thread ids; by default all.")] = None,
    *,
    keep_last: Annotated[int, typer.Option(min=1, help="Versions that each namespace keeps.")],
    at: Places,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete all versions but the newest ones of each namespace, and its head.

    Messages stay. A namespace is skipped if a version that stays is rebuilt from older ones.
    --json: {removed, threads, skipped, tenant}: versions, threads that lost some, and namespaces;
    with --all-tenants {…, tenants: {name: {…}}}. With --dry-run, skipped is 0.
    """
    one_of(at.choice, "THREADS", is_named=bool(threads))
    if dry_run or not yes:
        found = run(_pruned(at, threads, keep_last, removes=False))
        what = f"{_versions(total(found))}{of_tenant(found)}, and keeps {keep_last:,} of each"
        if not approve(found, what, at, dry_run=dry_run):
            return
    found = run(_pruned(at, threads, keep_last, removes=True))
    tell(found, _told, at)


async def _pruned(
    at: Places, threads: list[str] | None, keep_last: int, *, removes: bool
) -> Outcome:
    async with covered(at) as backends:
        with progress("pruning" if removes else "counting") as advance:

            async def pruned(backend: FullBackend) -> dict[str, int]:
                counts = dict.fromkeys(("removed", "threads", "skipped"), 0)
                if threads:
                    for typed in steps(threads):
                        name = await thread_named(backend, typed, exactly=True)
                        await _prune(backend, name, keep_last, counts, removes=removes)
                    return counts
                async for name in all_threads(backend):
                    await _prune(backend, name, keep_last, counts, removes=removes)
                    advance()
                return counts

            return await each(backends, pruned)


async def _prune(
    backend: FullBackend, thread: str, keep_last: int, counts: dict[str, int], *, removes: bool
) -> None:
    removed = 0
    for namespace in await backend.namespaces(thread):
        head = await backend.version(thread, namespace=namespace)
        found = [it.checkpoint_id for it in await all_versions(backend, thread, namespace)]
        old = [it for it in found[keep_last:] if head is None or it != head.checkpoint_id]
        try:
            if old and removes:
                await backend.remove(thread, old, namespace=namespace)
        except ConflictError:
            counts["skipped"] += 1
        else:
            removed += len(old)
    counts["removed"] += removed
    counts["threads"] += removed > 0


def _versions(counts: dict[str, int]) -> str:
    of_threads = counted(counts.get("threads", 0), "thread")
    return f"{counted(counts.get('removed', 0), 'version')} of {of_threads}"


def _told(counts: dict[str, int]) -> str:
    told = f"{_versions(counts)} removed"
    if counts["skipped"]:
        skipped = counted(counts["skipped"], "namespace")
        told += f"; {skipped} skipped, where a version that stays is rebuilt from older ones"
    return told
