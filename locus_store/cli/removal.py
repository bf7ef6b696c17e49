"""``locus-store threads delete | vacuum | expire`` and ``locus-store forget``."""

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
from locus_store.cli.store import items_in, namespace_of, opened_store
from locus_store.cli.threads import all_versions
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.transfer.archive import all_threads

if TYPE_CHECKING:
    from locus_store.items import Namespace


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


def forget(
    *,
    user: Annotated[str, typer.Option(help="A user id.")],
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Of the store, such as memory/u42: all items at and below it are the user's."
            " May be given several times."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete all that is stored of a user: threads, messages, store items.

    Store items are the user's by their --namespace; in SQL databases also where their metadata
    names the user. --json: {threads, checkpoints, writes, messages, …}, how many of each.
    """
    wheres = [namespace_of(it) for it in namespace or ()]
    if () in wheres:
        raise InvalidArgumentError("the root namespace is everybody's: name the user's own")
    if not yes:
        confirm(f"This deletes all of user {user!r}: {run(_of_user(url, user, wheres))}.")

    async def forgotten() -> dict[str, int]:
        with progress("forgetting"):
            cleared = await _cleared(url, wheres) if wheres else 0
            async with opened(url) as backend:
                counts = await backend.forget_user(user)
        if wheres:
            counts["store"] = counts.get("store", 0) + cleared
        return counts

    counts = run(forgotten())
    if not any(counts.values()):
        raise NotFoundError(f"nothing is stored of user {user!r}")
    if as_json:
        put_json(counts)
    else:
        removed = (counted(number, _NOUNS.get(kind, kind)) for kind, number in counts.items())
        say("removed: " + ", ".join(removed))


_NOUNS = {
    "threads": "thread",
    "checkpoints": "version",
    "writes": "pending write",
    "messages": "message",
    "store": "store item",
}
"""What ``forget_user`` counts, for a person."""


async def _of_user(url: str, user: str, wheres: list[Namespace]) -> str:
    async with opened(url) as backend:
        found = await backend.threads_of(user)
        with progress("counting", len(found), is_alone=True) as advance:
            held = await contents(backend, found, advance)
    told = f"{counted(len(found), 'thread')}{' with ' if held else ''}{held}"
    if not wheres:
        return told
    async with opened_store(url) as store:
        items = sum([await items_in(store, it, recursive=True) for it in wheres])
    return f"{told}; {counted(items, 'store item')} of {counted(len(wheres), 'namespace')}"


async def _cleared(url: str, wheres: list[Namespace]) -> int:
    async with opened_store(url) as store:
        removed = sum([await store.clear_namespace(it, recursive=True) for it in wheres])
        await store.expire()  # what expired is not counted, and may be the user's
        return removed


def _tell_removed(number: int, noun: str, *, as_json: bool) -> None:
    if as_json:
        put_json({"removed": number})
    else:
        say(f"{counted(number, noun)} removed")
