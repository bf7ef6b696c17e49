"""The options that all commands share, and the opening of backends and stores by URL.

Nothing here imports a database library before a command runs: ``--help`` needs none.
"""

from __future__ import annotations

import asyncio
import glob
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from locus_store.backend import FullBackend
from locus_store.cli.output import format_count, note
from locus_store.errors import InvalidArgumentError, NotFoundError, SchemaError
from locus_store.open import list_options, open_storage
from locus_store.timeline.ancestry import read_line
from locus_store.types.arguments import check_names, did_you_mean

T = TypeVar("T")

# As in sql.migrate and sql.schema, which are not imported here.
DEFAULT_URL = "sqlite:///locus_checkpoints.db"
DEFAULT_PREFIX = "locus_"

Url = Annotated[
    str,
    typer.Option(
        help="URL of the database; keep a password in the environment.",
        envvar="LOCUS_STORE_URL",
        show_default=DEFAULT_URL,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be deleted; delete nothing.")
]
Namespace = Annotated[str, typer.Option(help="A namespace of the thread; '' is the root.")]
Thread = Annotated[str, typer.Argument(help="A thread id.")]


@dataclass(frozen=True, kw_only=True)
class UrlOptions:
    """The options of a command on everything that a URL names."""

    url: Url = DEFAULT_URL
    as_json: AsJson = False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine; return its result."""
    return asyncio.run(work)


def ask(url: str, work: Callable[[FullBackend], Awaitable[T]], **options: Any) -> T:
    """Return what ``work`` returns for the backend that ``open_backend`` opens."""

    async def asked() -> T:
        async with open_backend(url, **options) as backend:
            return await work(backend)

    return run(asked())


def open_backend(url: str, *, creates: bool = False, **options: Any) -> FullBackend:
    """Return the backend of ``url``; with ``creates``, a missing database is created.

    Statements have no time limit: a person waits for them.

    Raises:
        InvalidArgumentError: The URL takes no such option.
    """
    storage = open_storage(url, **make_options(url, options, creates=creates))
    if not creates:
        admit_shard(storage.backend)
    return storage.backend


def admit_shard(backend: object) -> None:
    """Let a command work on one database of a set of shards."""
    if join_set := getattr(backend, "join_set", None):
        join_set()


def make_options(url: str, options: dict[str, Any], *, creates: bool = False) -> dict[str, Any]:
    """Return the options with which a command opens ``url``.

    Raises:
        InvalidArgumentError: The URL takes no such option.
        SchemaError: It is the default, and there is no such file.
    """
    if not creates and url == DEFAULT_URL:
        if not Path(url.removeprefix("sqlite:///")).exists():
            raise SchemaError(
                f"no storage is named, and the default, {url}, does not exist; pass --url, set "
                "LOCUS_STORE_URL, or create the default: locus-store db upgrade"
            )
        note(f"the storage is the default, {url}")
    known = list_options(url)
    if "tenant" in options.keys() - known:
        scheme = url.partition(":")[0]
        raise InvalidArgumentError(f"this {scheme}: URL has no tenants: leave --tenant out")
    if unknown := options.keys() - known:
        raise InvalidArgumentError(f"this URL does not take the option {min(unknown)!r}")
    wanted = {"statement_timeout_seconds": None} | ({} if creates else {"auto_migrate": False})
    return {**{name: it for name, it in wanted.items() if name in known}, **options}


NOUNS = {
    "threads": "thread",
    "checkpoints": "version",
    "namespaces": "namespace",
    "writes": "pending write",
    "messages": "message",
    "store": "store item",
}
"""Nouns for the counts of what is stored."""


async def count_contents(
    backend: FullBackend, thread_ids: Iterable[str], advance: Callable[..., None] = lambda: None
) -> Counter[str]:
    """Return the numbers of versions, namespaces, pending writes and messages in threads."""
    counts: Counter[str] = Counter()
    for thread_id in thread_ids:
        thread = await backend.read_thread(thread_id)
        for line in thread.lines if thread else ():
            counts["checkpoints"] += len(line.records)
            counts["namespaces"] += 1
            counts["writes"] += len(line.writes)
        counts["messages"] += len(thread.messages) if thread else 0
        advance()
    return counts


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return the counts above 0, as text."""
    some = {NOUNS.get(kind, kind): number for kind, number in counts.items() if number}
    return ", ".join(format_count(number, noun) for noun, number in some.items())


def require(value: T | None, thread_id: str, checkpoint_id: str | None = None) -> T:
    """Return ``value`` if it is not empty.

    Raises:
        NotFoundError: Nothing was found.
    """
    if value:
        return value
    if checkpoint_id is None:
        raise NotFoundError(
            f"there is no thread {thread_id!r}, or it has no version in this namespace; see "
            "'locus-store threads list', and for a message log 'locus-store threads messages"
            f" {shlex.quote(thread_id)}'"
        )
    raise NotFoundError(
        f"there is no checkpoint {checkpoint_id!r} in thread {thread_id!r}; 'locus-store threads"
        f" history {shlex.quote(thread_id)}' shows its checkpoints"
    )


NEARBY = 1000
"""Threads among which similar ids are looked for."""

NAMED = 5
"""Ids that an error names."""


async def find_thread_id(backend: FullBackend, name: str, *, exactly: bool = False) -> str:
    """Return the id of the thread that is named so, or whose id alone begins so.

    Args:
        backend: The storage.
        name: The id, or the beginning of one.
        exactly: A beginning is not enough.

    Raises:
        NotFoundError: Several ids begin so, or a similar one exists.
    """
    check_names(name, "")
    if await backend.exists(name) or not backend.capabilities.list_threads:
        return name
    if backend.capabilities.branching and await backend.read_thread(name) is not None:
        return name  # it has pending writes only
    begin = await backend.list_threads(NAMED, f"{glob.escape(name)}*")
    if len(begin) == 1 and not exactly:
        return begin[0]
    if begin and not exactly:
        raise _make_ambiguity_error("thread", name, begin)
    if similar := did_you_mean(name, begin or await backend.list_threads(NEARBY)):
        raise NotFoundError(f"there is no thread {name!r}{similar}")
    return name


async def find_version_id(
    backend: FullBackend, thread: str, name: str | None, namespace: str = ""
) -> str | None:
    """Return the id of the version that is named so, or whose id alone begins so.

    Raises:
        NotFoundError: Several ids begin so.
    """
    if name is None:
        return None
    check_names(thread, namespace, name)
    if await backend.version(thread, name, namespace=namespace) is not None:
        return name
    names = [it.checkpoint_id async for it in read_line(backend, thread, namespace)]
    found = [it for it in names if it.startswith(name)]
    if len(found) > 1:
        raise _make_ambiguity_error("version", name, found)
    return found[0] if found else name


async def find_named(
    backend: FullBackend, thread: str, checkpoint: str | None, namespace: str
) -> tuple[str, str | None]:
    """Return the ids of a thread and of a version of it, of which the beginnings were typed."""
    thread = await find_thread_id(backend, thread)
    return thread, await find_version_id(backend, thread, checkpoint, namespace)


def _make_ambiguity_error(what: str, name: str, matches: list[str]) -> NotFoundError:
    more = ", …" if len(matches) > NAMED else ""
    names = ", ".join(map(repr, matches[:NAMED]))
    return NotFoundError(f"several {what}s begin with {name!r}: {names}{more}")
