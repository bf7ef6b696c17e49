"""``locus-store verify | copy | export | backup``: operations on whole threads and databases."""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import parse_qsl, urlsplit

import typer

from locus_store.backend import FullBackend
from locus_store.cli.forgetting import USER_ID, Owner, find_left
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, ask, open_backend, run
from locus_store.cli.output import (
    PROBLEMS,
    escape_json,
    format_count,
    note,
    print_line,
    put_line,
    put_table,
    show_progress,
)
from locus_store.cli.tenants import (
    OfTenant,
    Outcome,
    TenantsOptions,
    add_up,
    describe,
    open_covered,
    require_tenants,
    run_each,
    select_tenant,
    tell,
)
from locus_store.encryption.keys import DESTROYED
from locus_store.errors import (
    BackendError,
    InvalidArgumentError,
    LocusStoreError,
    NotFoundError,
    UnsupportedError,
)
from locus_store.open import list_options
from locus_store.runtime.progress import expect
from locus_store.transfer.archive import all_threads, export_threads
from locus_store.transfer.copying import copy as copy_threads
from locus_store.transfer.items import export_items, make_last_line
from locus_store.transfer.verifying import Checked, verify as check_stored
from locus_store.types.arguments import check_text
from locus_store.values.encoding import NEEDS_KEYS

Only = Annotated[
    list[str] | None, typer.Option("--thread", help="Only this thread; may be given several times.")
]
NoItems = Annotated[bool, typer.Option("--no-items", help="Leave the store's items out.")]
STANDARD = "-"


def verify(
    threads: Annotated[
        list[str] | None, typer.Argument(help="Thread ids; by default all, and the storage.")
    ] = None,
    *,
    at: TenantsOptions,
) -> None:
    """Read all that is stored of a tenant and check it: digests, changes, parents, stray rows.

    --json: JSON Lines as they come, {kind: "problem", tenant, thread_id, namespace, checkpoint_id,
    what}, and at last {kind: "summary", threads, versions, problems, tenant}.
    """
    at.require_one("THREADS", is_named=bool(threads))
    for thread in threads or ():
        check_text("thread", thread)
    problems, counts, seen = run(_verify_all(at, threads or None))
    if at.as_json:
        put_line({"kind": "summary", **describe(counts, at)})
        at.tell_others()
    else:
        if problems:
            _show(problems, at)
        tell(counts, _check_name, at)
    if problems:
        advice = "Restore a backup, or delete what is damaged; other versions still load."
        if all(it["what"] == NEEDS_KEYS for it in problems):
            advice = "Nothing that could be read is damaged."
        elif all(DESTROYED in it["what"] for it in problems):
            advice = "No backup brings destroyed keys back: remove it, see docs/encryption.md."
        note(advice)
        raise typer.Exit(PROBLEMS)
    _require_all(threads or (), seen)


def _show(problems: list[dict[str, Any]], at: TenantsOptions) -> None:
    first = ("tenant",) if at.all_tenants else ()
    keys = (*first, "thread_id", "namespace", "checkpoint_id", "what")
    columns = (*first, "thread", "namespace", "version", "problem")
    put_table(columns, ([it[key] for key in keys] for it in problems), ids=columns[:-1])


def _check_name(counts: dict[str, int]) -> str:
    return ", ".join(format_count(number, noun[:-1]) for noun, number in counts.items())


async def _verify_all(
    at: TenantsOptions, threads: list[str] | None
) -> tuple[list[dict[str, Any]], Outcome, set[str | None]]:
    found: Outcome = {}
    problems, seen = [], set()
    total = len(threads) if threads else None
    async with open_covered(at) as backends:
        with show_progress("verifying", total, prints=at.as_json) as advance:
            for backend in backends:
                counts = found[backend.tenant] = {"threads": 0, "versions": 0, "problems": 0}
                is_first = backend is backends[0]
                async for result in check_stored(backend, threads, storage=is_first):
                    seen.add(result.thread_id)
                    if isinstance(result, Checked):
                        counts["threads"] += 1
                        counts["versions"] += result.versions
                        advance()
                        continue
                    counts["problems"] += 1
                    owner = None if result.thread_id is None else backend.tenant
                    problems.append({"kind": "problem", "tenant": owner, **asdict(result)})
                    if at.as_json:
                        put_line(problems[-1])
    return problems, found, seen


def _require_all(thread_ids: Sequence[str], known_ids: Collection[str | None]) -> None:
    missing = [it for it in thread_ids if it not in known_ids]
    if missing:
        raise NotFoundError(f"there is no thread {', '.join(map(repr, missing))}")


def copy(
    *,
    source: Annotated[
        str, typer.Option("--from", envvar="LOCUS_STORE_FROM", help="The source; it is only read.")
    ],
    target: Annotated[
        str, typer.Option("--to", envvar="LOCUS_STORE_TO", help="The target; created if missing.")
    ],
    thread: Only = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Tenant of the source; the target's is the same, unless --to has ?tenant=.",
        ),
    ] = None,
    all_tenants: Annotated[
        bool,
        typer.Option(
            "--all-tenants",
            help="Copy each tenant to that of the same name; in JSON also tenants: {name: {…}}.",
        ),
    ] = False,
    no_items: NoItems = False,
    as_json: AsJson = False,
) -> None:
    """Copy threads with all versions, metadata and pending writes, and check them by digest.

    Without --thread the store's items follow, with their versions, times and embeddings. After an
    interruption run it again: what exists is skipped. A thread or item that exists and differs is
    a conflict. --json: {written, same, items_written, items_same, tenant}.
    """
    at = TenantsOptions(tenant=tenant, all_tenants=all_tenants, url=source, as_json=as_json)
    at.require_one("--thread", is_named=bool(thread))
    found, into = run(_copy_all(at, target, thread or None, with_items=not no_items))
    tell(found, lambda it: report_moved(it, "copied") + into, at)


async def _copy_all(
    at: TenantsOptions, target: str, threads: list[str] | None, *, with_items: bool
) -> tuple[Outcome, str]:
    """Copy; return the outcome, and the target if its tenant differs from the source's."""
    is_named = "tenant" in dict(parse_qsl(urlsplit(target).query))
    if is_named and at.all_tenants:
        raise InvalidArgumentError(
            "--all-tenants copies each tenant to that of the same name: leave ?tenant= of --to out"
        )
    takes_tenant = "tenant" in list_options(target) and not (is_named or at.all_tenants)
    async with open_covered(at) as sources:
        options = select_tenant(sources[0].tenant if takes_tenant else None)
        async with open_backend(target, creates=True, **options) as there:
            return await _copy_each(at, sources, there, threads, with_items=with_items)


async def _copy_each(
    at: TenantsOptions,
    sources: list[FullBackend],
    there: FullBackend,
    threads: list[str] | None,
    *,
    with_items: bool,
) -> tuple[Outcome, str]:
    require_tenants(there, at)

    def place(here: FullBackend) -> FullBackend:
        is_other = at.all_tenants and here.tenant is not None
        return there.for_tenant(str(here.tenant)) if is_other else there

    with show_progress("copying") as advance:

        async def copied(here: FullBackend) -> dict[str, int]:
            return asdict(
                await copy_threads(
                    here, place(here), threads, with_items=with_items, progress=advance
                )
            )

        found = await run_each(sources, copied)
    to = place(sources[0]).tenant
    is_same = at.all_tenants or to in {None, sources[0].tenant}
    return found, "" if is_same else f", into tenant {to!r}"


def report_moved(counts: dict[str, int], done: str) -> str:
    """Return how many threads and items were moved."""
    text = f"{format_count(counts['written'], 'thread')} {done}, {counts['same']:,} there already"
    items, same = counts.get("items_written", 0), counts.get("items_same", 0)
    return (
        f"{text}; {format_count(items, 'item')}, {same:,} there already" if items + same else text
    )


def export(
    threads: Annotated[list[str] | None, typer.Argument(help="Thread ids.")] = None,
    *,
    user: Annotated[str | None, typer.Option(help="All threads of this user.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All threads.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", help="A new file; - is standard output.")
    ] = STANDARD,
    tenant: OfTenant = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Threads of all tenants, with the tenant's name.")
    ] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Write clear text though the storage encrypts.")
    ] = False,
    no_items: NoItems = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write threads as JSON Lines, which 'import file' reads: some, a user's, or all.

    With --all, the store's items follow. A file is written whole or not at all; a killed command
    leaves a hidden file .export-… with the data. Threads and items of a storage that encrypts are
    sealed, and an import needs its keys. With --user, commands are listed that print the user's
    store items: those whose metadata names the user, and of namespaces with the user's id as a
    segment.
    """
    at = TenantsOptions(tenant=tenant, all_tenants=all_tenants, url=url)
    at.require_one("THREADS", is_named=bool(threads))
    everything = everything or (all_tenants and user is None)
    if [bool(threads), user is not None, everything].count(True) != 1:
        raise typer.BadParameter("name threads, or --user, or --all")
    with _open_output(output) as file:
        options = {"prints": output == STANDARD, "in_clear": clear, "with_items": not no_items}
        found = run(_export_all(at, threads, user, file, **options))
    for name, counts in found.items():
        about = "" if name is None else f"tenant {name!r}: "
        items = f", {format_count(counts['items'], 'item')}" if counts["items"] else ""
        note(f"{about}{format_count(counts['threads'], 'thread')}{items} exported")
    at.tell_others()


async def _export_all(
    at: TenantsOptions,
    threads: list[str] | None,
    user: str | None,
    file: BinaryIO,
    *,
    prints: bool,
    in_clear: bool,
    with_items: bool,
) -> Outcome:
    seen = set()
    of_user: dict[str | None, list[str]] = {}
    total = len(threads) if threads else None
    async with open_covered(at) as backends:
        with show_progress("exporting", total, prints=prints) as advance:

            def noted(thread_id: str, _: bool) -> None:
                seen.add(thread_id)
                advance()

            async def exported(backend: FullBackend) -> dict[str, int]:
                wanted: Any = threads or all_threads(backend)
                if user is not None:
                    wanted = of_user[backend.tenant] = await backend.threads_of(user)
                count = await export_threads(
                    backend,
                    wanted,
                    file,
                    names_tenant=at.all_tenants,
                    in_clear=in_clear,
                    is_last=False,
                    progress=noted,
                )
                items = 0
                if with_items and user is None and not threads:
                    options = {"names_tenant": at.all_tenants, "in_clear": in_clear}
                    items = await export_items(backend, file, **options)
                return {"threads": count, "items": items}

            found = await run_each(backends, exported)
        if user is not None:
            for left in await find_left(backends, Owner(user, USER_ID, user), [], of_user):
                left.tell_unexported()
                left.tell_unattributed()
    _require_all(threads or (), seen)
    if user is not None and not seen:
        raise NotFoundError(f"user {user!r} has no threads")
    file.writelines([make_last_line(**add_up(found))])
    return found


class _Screen:
    """Standard output that is a terminal: it gets no control characters."""

    def writelines(self, lines: Iterable[bytes]) -> None:
        sys.stdout.buffer.writelines(map(escape_json, lines))


@contextmanager
def _open_output(output: str) -> Iterator[BinaryIO]:
    """Open the output: standard output, or a file that appears once it is complete."""
    if output == STANDARD:
        sys.stdout.flush()
        yield _Screen() if sys.stdout.isatty() else sys.stdout.buffer  # type: ignore[misc]  # likewise
        sys.stdout.buffer.flush()
        return
    with (
        translate_errors(output, "written"),
        _create_file(output, ".export-") as unfinished,
        Path(unfinished).open("wb") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _create_file(output: str, prefix: str) -> Iterator[str]:
    """Yield the path of a private file, named at the end of the block; refuse a name in use."""
    if os.path.lexists(output):
        raise _exists_already(output)
    number, unfinished = tempfile.mkstemp(dir=Path(output).absolute().parent, prefix=prefix)
    os.close(number)
    try:
        yield unfinished
        _place_file(unfinished, output)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)


def _place_file(temporary: str, output: str) -> None:
    """Give a file its name, unless another process has created that file."""
    with suppress(OSError):  # it exists, or the file system has no hard links
        os.link(temporary, output)
        return
    try:
        os.close(os.open(output, os.O_CREAT | os.O_EXCL))
    except FileExistsError as exc:
        raise _exists_already(output) from exc
    os.replace(temporary, output)


def _exists_already(output: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{output} already exists; name another file")


@contextmanager
def translate_errors(file: str, done: str) -> Iterator[None]:
    """Translate the system's errors into one that names the file."""
    try:
        yield
    except LocusStoreError:  # some are the system's too
        raise
    except OSError as exc:
        raise InvalidArgumentError(f"{file} cannot be {done}: {exc.strerror}") from exc


PAGES = 1000
"""Pages that are copied at a time; writers have their turn between them."""

TOOLS = {
    "postgresql": "pg_dump",
    "oracle": "expdp or RMAN",
    "redis": "BGSAVE, and copy the file",
    "opensearch": "a snapshot",
    "file": "a copy of the directory",
}
"""The means of each technology, by the folder of its backend."""


def write_backup(
    file: Annotated[str, typer.Argument(help="A new file.")], *, url: Url = DEFAULT_URL
) -> None:
    """Copy an SQLite database while it is in use, with all tenants, and check the copy.

    The file appears once it is complete. Restore it by a copy in the other direction, or in place
    of the database when no process has that open.
    """
    source = ask(url, _find_path)
    try:
        with _create_file(file, ".backup-") as unfinished, show_progress("copying") as advance:
            size = _copy_database(source, unfinished, advance)
    except sqlite3.Error as exc:
        raise BackendError(f"{file} was not written: {exc}; run the command again") from exc
    print_line(f"{file}: {format_count(size, 'byte')}")


async def _find_path(backend: FullBackend) -> str:
    """Return the path of the backend's SQLite file, if its schema is ours."""
    folder = type(backend).__module__.split(".")[2]
    path = getattr(backend, "path", None)
    if folder != "sqlite" or path in {None, ":memory:"}:
        how = f"use {TOOLS[folder]}, or " if folder in TOOLS else ""
        which = "--all-tenants" if backend.capabilities.tenants else "--all"
        raise UnsupportedError(
            f"{type(backend).__name__} is not copied as a file: {how}"
            f"'locus-store export {which} --output FILE'"
        )
    await backend.open()
    return str(path)


def _copy_database(source: str, target: str, advance: Any) -> int:
    """Copy a database; return the number of bytes."""
    done = 0

    def seen(_: int, remaining: int, pages: int) -> None:
        nonlocal done
        if not done:
            expect(-(-pages // PAGES))
        done += 1
        advance()

    place = f"{Path(source).absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(place, uri=True)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy, pages=PAGES, progress=seen)
        found = copy.execute("PRAGMA quick_check").fetchone()[0]
    if found != "ok":
        raise BackendError(f"the copy is damaged: {found}; check the database: locus-store verify")
    return os.path.getsize(target)
