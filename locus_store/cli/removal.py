"""``locus-store threads delete | vacuum | expire``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from locus_store.cli.opening import (
    DEFAULT_URL,
    AsJson,
    Thread,
    Url,
    Yes,
    contents,
    opened,
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
from locus_store.cli.threads import all_versions
from locus_store.errors import InvalidArgumentError
from locus_store.transfer.archive import all_threads


def delete(
    thread: Thread,
    *,
    checkpoint: Annotated[
        str | None, typer.Option(help="Only this version; without it the whole thread.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="That --checkpoint is in.")] = "",
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a thread with all it owns, or one version; --json: {removed}, in versions."""
    if namespace and checkpoint is None:
        raise InvalidArgumentError("a namespace has no deletion of its own: name a --checkpoint")
    if not yes:
        confirm(f"This deletes {run(_owned(url, thread, checkpoint, namespace))}.")

    async def removed() -> int:
        ids = None if checkpoint is None else [checkpoint]
        async with opened(url) as backend:
            found = await backend.remove(thread, ids, namespace=namespace)
            return require(found, thread, checkpoint)

    _tell_removed(run(removed()), "version", as_json=as_json)


async def _owned(url: str, thread: str, checkpoint: str | None, namespace: str) -> str:
    """What a deletion takes, for a person."""
    async with opened(url) as backend:
        if checkpoint is not None:
            require(await backend.version(thread, checkpoint, namespace=namespace), thread)
            return f"version {checkpoint!r} of thread {thread!r}"
        if not backend.capabilities.branching:
            found = require(await all_versions(backend, thread), thread)
            return f"thread {thread!r}: {counted(len(found), 'version')}"
        held = require(await contents(backend, [thread]), thread)
        return f"thread {thread!r}: {held}"


def vacuum(
    *,
    older_than: Annotated[
        float, typer.Option(min=0, max=365_000, metavar="DAYS", help="By the server's clock.")
    ],
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the versions older than some days.

    A thread whose newest version is older goes whole; every other one keeps its head. --json:
    {removed}, in versions.
    """
    if not yes:
        confirm(f"This deletes {run(_aged(url, older_than))} older than {older_than:g} days.")

    async def removed() -> int:
        async with opened(url) as backend:
            return await backend.vacuum(older_than)

    _tell_removed(run(removed()), "version", as_json=as_json)


async def _aged(url: str, days: float) -> str:
    """How much a vacuum would remove; by this machine's clock, and of the root namespaces."""
    limit = datetime.now(UTC) - timedelta(days=days)
    some = whole = versions = 0
    async with opened(url) as backend:
        with progress("counting", is_alone=True) as advance:
            async for thread_id in all_threads(backend):
                found = await all_versions(backend, thread_id)
                old = sum(it.created_at < limit for it in found)
                whole += old == len(found) > 0
                some += 0 < old < len(found)
                versions += old
                advance()
    return (
        f"{counted(whole, 'whole thread')} and parts of {counted(some, 'other')}, about"
        f" {counted(versions, 'version')}"
    )


def expire(*, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Give back the space of threads whose time to live is over; --json: {removed}, in threads.

    Nobody can see them any more, so nobody is asked.
    """

    async def removed() -> int:
        async with opened(url) as backend:
            return await backend.expire()

    _tell_removed(run(removed()), "thread", as_json=as_json)


def _tell_removed(number: int, noun: str, *, as_json: bool) -> None:
    if as_json:
        put_json({"removed": number})
    else:
        say(f"{counted(number, noun)} removed")
