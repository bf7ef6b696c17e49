"""The command line: ``locus-store``."""

from __future__ import annotations

import logging
import os
import sys

import typer

from locus_store.cli.database import db
from locus_store.cli.doctor import doctor
from locus_store.cli.opening import DEFAULT_PREFIX, DEFAULT_URL
from locus_store.cli.output import CONFLICT, EXIT_CODES, FAILED, INTERRUPTED, NOT_FOUND, note
from locus_store.cli.removal import delete, expire, vacuum
from locus_store.cli.threads import threads
from locus_store.cli.transfer import copy, export, forget, imports, verify
from locus_store.errors import ConflictError, LocusStoreError, NotFoundError

__all__ = ["DEFAULT_PREFIX", "DEFAULT_URL", "EXIT_CODES", "app", "db", "main", "threads"]

app = typer.Typer(
    name="locus-store",
    help="Durable, versioned memory for AI agents.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    # Their frames show local variables, a URL with its password among them.
    pretty_exceptions_enable=False,
)
app.add_typer(threads, name="threads")
app.add_typer(db, name="db")
for removal in (delete, vacuum, expire):
    threads.command(epilog=EXIT_CODES)(removal)
for command in (doctor, verify, copy, export, forget):
    app.command(epilog=EXIT_CODES)(command)
app.add_typer(imports, name="import")


def main() -> None:
    """Entry point of ``locus-store`` and ``python -m locus_store``."""
    # What it says of calls that Ctrl-C cut short is nobody's concern here.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if os.environ.get("COLUMNS") == "0":  # not known; Rich would print nothing
        del os.environ["COLUMNS"]
    try:
        app()
    except LocusStoreError as error:
        note(f"Error: {error}")
        sys.exit(_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        _flush()


def _code(error: LocusStoreError) -> int:
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    return CONFLICT if isinstance(error, ConflictError) else FAILED


def _flush() -> None:
    """Whoever reads may have gone, as ``head`` does; that is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
