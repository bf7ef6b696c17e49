"""``locus-store verify | copy | export | import``: whole threads."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from locus_store.arguments import check_text
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, opened, run
from locus_store.cli.output import (
    EXIT_CODES,
    PROBLEMS,
    counted,
    note,
    progress,
    put_json,
    put_line,
    put_table,
    say,
)
from locus_store.errors import InvalidArgumentError, LocusStoreError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.transfer.counts import Counts

imports = typer.Typer(
    help="Take threads over from elsewhere; what is there already is left as it is.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

Only = Annotated[
    list[str] | None, typer.Option("--thread", help="Only this one; may be given several times.")
]
STANDARD = "-"


# --- checking


def verify(
    threads: Annotated[
        list[str] | None, typer.Argument(help="Only these; without any, all, and the storage.")
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Read everything that is stored and check it: digests, changes, parents, stray rows.

    --json: JSON Lines as they come, {kind: "problem", thread_id, namespace, checkpoint_id, what},
    and at last {kind: "summary", threads, versions, problems}.
    """
    for it in threads or ():
        check_text("thread", it)
    found, counts, seen = run(_verified(url, threads or None, as_json=as_json))
    if as_json:
        put_line({"kind": "summary", **counts})
    else:
        if found:
            keys = ("thread_id", "namespace", "checkpoint_id", "what")
            rows = ([it[key] for key in keys] for it in found)
            columns = ("thread", "namespace", "version", "problem")
            put_table(columns, rows, ids=columns[:3])
        say(", ".join(counted(number, noun[:-1]) for noun, number in counts.items()))
    if counts["problems"]:
        note("Restore a backup, or delete what is damaged; other versions still load.")
        raise typer.Exit(PROBLEMS)
    _require_all(threads or (), seen)


async def _verified(
    url: str, threads: list[str] | None, *, as_json: bool
) -> tuple[list[dict[str, Any]], dict[str, int], set[str]]:
    verifying = importlib.import_module("locus_store.transfer.verifying")
    counts = {"threads": 0, "versions": 0, "problems": 0}
    problems, seen = [], set()
    total = len(threads) if threads else None
    async with opened(url) as backend:
        with progress("verifying", total, is_alone=not as_json) as advance:
            async for it in verifying.verify(backend, threads):
                seen.add(it.thread_id)
                if isinstance(it, verifying.Checked):
                    counts["threads"] += 1
                    counts["versions"] += it.versions
                    advance()
                    continue
                counts["problems"] += 1
                if as_json:
                    put_line({"kind": "problem", **asdict(it)})
                else:
                    problems.append(asdict(it))
    return problems, counts, seen


def _require_all(wanted: Any, found: set[str]) -> None:
    missing = [it for it in wanted if it not in found]
    if missing:
        raise NotFoundError(f"there is no thread {', '.join(map(repr, missing))}")


# --- copying


def copy(
    *,
    source: Annotated[
        str, typer.Option("--from", envvar="LOCUS_STORE_FROM", help="Where from; only read.")
    ],
    target: Annotated[
        str, typer.Option("--to", envvar="LOCUS_STORE_TO", help="Where to; made if it is not there")
    ],
    thread: Only = None,
    as_json: AsJson = False,
) -> None:
    """Copy threads with all versions, metadata and pending writes, and check them by digest.

    After an interruption run it again: what is there already is skipped. A thread that is there
    with other versions is a conflict. --json: {written, same}, in threads.
    """

    async def copied() -> Counts:
        copying = importlib.import_module("locus_store.transfer.copying")
        async with opened(source) as here, opened(target, creates=True) as there:
            with progress("copying", len(thread) if thread else None) as advance:
                counts: Counts = await copying.copy(here, there, thread or None, progress=advance)
                return counts

    _tell(run(copied()), "copied", as_json=as_json)


def _tell(counts: Counts, done: str, *, as_json: bool) -> None:
    if as_json:
        put_json({"written": counts.written, "same": counts.same})
    else:
        say(f"{counted(counts.written, 'thread')} {done}, {counts.same:,} there already")


# --- files


def export(
    threads: Annotated[list[str] | None, typer.Argument(help="Thread ids.")] = None,
    *,
    user: Annotated[str | None, typer.Option(help="All threads of this user.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All threads.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", help="A file that is not there yet; - is standard out.")
    ] = STANDARD,
    url: Url = DEFAULT_URL,
) -> None:
    """Write threads as JSON Lines, which 'import file' reads: some, a user's, or all.

    A file is written whole or not at all.
    """
    if [bool(threads), user is not None, everything].count(True) != 1:
        raise typer.BadParameter("name threads, or --user, or --all")
    with _written(output) as file:
        count = run(_exported(url, threads, user, file, is_alone=output != STANDARD))
    note(f"{counted(count, 'thread')} exported")


async def _exported(
    url: str, threads: list[str] | None, user: str | None, file: BinaryIO, *, is_alone: bool
) -> int:
    archive = importlib.import_module("locus_store.transfer.archive")
    seen = set()
    async with opened(url) as backend:
        wanted: Any = threads or archive.all_threads(backend)
        if user is not None:
            wanted = await backend.threads_of(user)
            if not wanted:
                raise NotFoundError(f"user {user!r} has no threads")
        with progress("exporting", len(threads) if threads else None, is_alone=is_alone) as advance:

            def exported(thread_id: str, _: bool) -> None:
                seen.add(thread_id)
                advance()

            count: int = await archive.export_threads(backend, wanted, file, progress=exported)
    _require_all(threads or (), seen)
    return count


@contextmanager
def _written(output: str) -> Iterator[BinaryIO]:
    """A file that is there when all of it is, or standard output."""
    if output == STANDARD:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.lexists(output):
        raise _there_already(output)
    with _told(output, "written"):
        folder = Path(output).absolute().parent
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=".export-", delete=False)  # noqa: SIM115  (closed below)
        try:
            with file:
                yield file  # type: ignore[misc]  # a binary file
                file.flush()
                os.fsync(file.fileno())
            _name(file.name, output)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(file.name)


def _name(temporary: str, output: str) -> None:
    """Give a file its name, unless somebody was faster."""
    with suppress(OSError):  # it is there already, or that file system has no hard links
        os.link(temporary, output)
        return
    try:
        os.close(os.open(output, os.O_CREAT | os.O_EXCL))
    except FileExistsError as exc:
        raise _there_already(output) from exc
    os.replace(temporary, output)


def _there_already(output: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{output} is there already; name another file")


@contextmanager
def _told(file: str, done: str) -> Iterator[None]:
    """The system's errors as one of ours, which names the file."""
    try:
        yield
    except LocusStoreError:  # some are the system's too
        raise
    except OSError as exc:
        raise InvalidArgumentError(f"{file} cannot be {done}: {exc.strerror}") from exc


@imports.command("file", epilog=EXIT_CODES)
def import_file(
    file: Annotated[str, typer.Argument(help="Of 'export'; - is standard input.")],
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take over threads from JSON Lines; run again, it goes on where it stopped.

    --json: {written, same}, in threads.
    """

    async def imported(lines: BinaryIO) -> Counts:
        archive = importlib.import_module("locus_store.transfer.archive")
        async with opened(url, creates=True) as backend:
            with progress("importing") as advance:
                counts: Counts = await archive.import_threads(backend, lines, progress=advance)
                return counts

    with _told("standard input" if file == STANDARD else file, "read"), _read(file) as lines:
        counts = run(imported(lines))
    _tell(counts, "imported", as_json=as_json)


def _read(file: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if file == STANDARD else Path(file).open("rb")


# --- other software


@imports.command("locus", epilog=EXIT_CODES)
def import_locus(
    source: Annotated[
        str,
        typer.Argument(
            envvar="LOCUS_STORE_FROM",
            help="URL of a database, ?table_name=, ?tenant= or ?prefix= in it; or a directory.",
        ),
    ],
    *,
    thread: Only = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take over the threads that the Locus SDK keeps in its own tables, keys or files.

    --json: {written, same}, in threads.
    """
    _tell(run(_taken("locus", url, source, thread)), "imported", as_json=as_json)


@imports.command("langgraph", epilog=EXIT_CODES)
def import_langgraph(
    source: Annotated[
        str,
        typer.Argument(envvar="LOCUS_STORE_FROM", help="URL of a database, SQLite or PostgreSQL"),
    ],
    *,
    thread: Only = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take over langgraph's checkpoints, blobs and pending writes, checked by reading both sides.

    --json: {written, same}, in threads.
    """
    _tell(run(_taken("langgraph", url, source, thread)), "imported", as_json=as_json)


async def _taken(name: str, url: str, source: str, threads: list[str] | None) -> Counts:
    module = importlib.import_module(f"locus_store.transfer.from_{name}")
    take = getattr(module, f"import_{name}")
    async with opened(url, creates=True) as backend:
        with progress("importing", len(threads) if threads else None) as advance:
            counts: Counts = await take(
                backend, source, thread_ids=threads or None, progress=advance
            )
            return counts
