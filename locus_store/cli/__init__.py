"""The command line: ``locus-store``."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from typing import Annotated, Any

import typer

from locus_store import __version__
from locus_store.cli import keys  # noqa: F401  (it registers commands)
from locus_store.cli.audit import audit
from locus_store.cli.benchmark import measure_storage
from locus_store.cli.database import db, oci, row_security, shards
from locus_store.cli.doctor import diagnose
from locus_store.cli.forgetting import forget
from locus_store.cli.help import HelpGroup, add_command, give
from locus_store.cli.imports import imports
from locus_store.cli.opening import DEFAULT_PREFIX, DEFAULT_URL
from locus_store.cli.output import (
    CONFLICT,
    DONE,
    EPILOG,
    EXIT_CODES,
    FAILED,
    INTERRUPTED,
    NOT_FOUND,
    READER_GONE,
    OutputError,
    drop_output,
    note,
    print_line,
    repair_streams,
)
from locus_store.cli.removal import delete, expire, prune, vacuum
from locus_store.cli.service import inspect, serve, tokens
from locus_store.cli.store import store
from locus_store.cli.tenants import tenants
from locus_store.cli.threads import threads
from locus_store.cli.timeline import bisect, blame, print_messages, report, rewind, watch
from locus_store.cli.transfer import copy, export, verify, write_backup
from locus_store.errors import ConflictError, LocusStoreError, NotFoundError

__all__ = ["DEFAULT_PREFIX", "DEFAULT_URL", "EXIT_CODES", "app", "db", "main", "threads"]

app = typer.Typer(
    name="locus-store",
    help="Durable, versioned memory for AI agents.",
    epilog=EPILOG,
    no_args_is_help=True,
    cls=HelpGroup,
    # Their frames show local variables, a URL with its password among them.
    pretty_exceptions_enable=False,
)


def _tell_version(value: bool) -> None:
    if value:
        print_line(f"locus-store {__version__}")
        raise typer.Exit


@app.callback()
def parse_options(
    ctx: typer.Context,
    *,
    url: Annotated[
        str | None, typer.Option(help="URL of the database, for a command that takes one.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="The URL that the file of profiles has.")
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version."),
    ] = False,
) -> None:
    """Parse the options that precede a command."""
    give(ctx, url, profile)


app.add_typer(threads, name="threads")
app.add_typer(store, name="store")
app.add_typer(tenants, name="tenants")
app.add_typer(tokens, name="tokens")
app.add_typer(db, name="db")
db.add_typer(row_security, name="row-security")
app.add_typer(audit, name="audit")
app.add_typer(oci, name="oci")
app.add_typer(shards, name="shards")
add_command(threads, "messages")(print_messages)
for of_threads in (blame, bisect, watch, rewind, report, delete, prune, vacuum, expire):
    add_command(threads)(of_threads)
add_command(app, "doctor")(diagnose)
add_command(app, "bench")(measure_storage)
add_command(app)(verify)
add_command(app, "backup")(write_backup)
for of_all in (copy, export, forget, serve, inspect):
    add_command(app)(of_all)
app.add_typer(imports, name="import")


def main() -> None:
    """Run ``locus-store``; end the process with one of ``EXIT_CODES``."""
    # Messages about calls that Ctrl-C interrupted are of no use here.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if os.environ.get("COLUMNS") == "0":  # not known; Rich would print nothing
        del os.environ["COLUMNS"]
    with repair_streams():
        sys.exit(_run_and_flush())


def _run_and_flush() -> int:
    """Run the command and flush its output; return the exit code."""
    try:
        code = _run()
        sys.stdout.flush()
    except OutputError as error:
        drop_output()
        if isinstance(error.__cause__, BrokenPipeError):  # its reader has left, as `head` does
            return READER_GONE
        note(f"Error: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


@cache
def _make_command() -> Any:
    """Return all commands as Click has them; making them takes Typer 0.1 s."""
    return typer.main.get_command(app)


def _run() -> int:
    try:
        _make_command()()
    except SystemExit as stop:  # how Typer ends
        return stop.code if isinstance(stop.code, int) else DONE
    except (LocusStoreError, OSError) as error:
        note(f"Error: {error}")
        if isinstance(error, NotFoundError):
            return NOT_FOUND
        return CONFLICT if isinstance(error, ConflictError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE
