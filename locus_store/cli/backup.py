"""``locus-store backup``."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from locus_store.cli.opening import DEFAULT_URL, Url, opened, run
from locus_store.cli.output import counted, progress, say
from locus_store.cli.transfer import place_file, there_already
from locus_store.errors import BackendError, UnsupportedError
from locus_store.runtime.progress import expect

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


def backup(
    file: Annotated[str, typer.Argument(help="A new file.")],
    *,
    url: Url = DEFAULT_URL,
) -> None:
    """Copy an SQLite database while it is in use, with all tenants, and check the copy.

    The file appears once it is complete. Restore it by a copy in the other direction, or in place
    of the database when no process has that open.
    """
    source = run(_path(url))
    if os.path.lexists(file):
        raise there_already(file)
    folder = Path(file).absolute().parent
    number, unfinished = tempfile.mkstemp(dir=folder, prefix=".backup-")  # private, as its content
    os.close(number)
    try:
        with progress("copying") as advance:
            size = _copied(source, unfinished, advance)
        place_file(unfinished, file)
    except sqlite3.Error as exc:
        raise BackendError(f"{file} was not written: {exc}; run the command again") from exc
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
    say(f"{file}: {counted(size, 'byte')}")


async def _path(url: str) -> str:
    """Return the path of the SQLite file that a URL names, if its schema is ours."""
    async with opened(url) as backend:
        folder = type(backend).__module__.split(".")[2]
        path = getattr(backend, "path", None)
        if folder != "sqlite" or path in {None, ":memory:"}:
            tool = TOOLS.get(folder)
            how = f"use {tool}, or " if tool else ""
            raise UnsupportedError(
                f"{type(backend).__name__} is not copied as a file: {how}"
                "'locus-store export --all-tenants --output FILE'"
            )
        await backend.open()
        return str(path)


def _copied(source: str, target: str, advance: Any) -> int:
    """Copy a database; return the number of bytes."""
    done = 0

    def seen(_: int, left: int, pages: int) -> None:
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
