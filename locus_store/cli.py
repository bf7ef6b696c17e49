"""The command line: ``locus-store db …``."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from locus_store.errors import LocusStoreError

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, the message says why; 2 the command line makes no sense;"
    " 3 'check' found the schema missing, behind, too new, damaged or not ours."
)
NOT_USABLE = 3

app = typer.Typer(
    name="locus-store",
    help="Durable, versioned memory for AI agents.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    # Their frames show local variables, a URL with its password among them.
    pretty_exceptions_enable=False,
)
db = typer.Typer(
    help="Create, upgrade and check the database schema.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)
app.add_typer(db, name="db")

Url = Annotated[
    str,
    typer.Option(
        help="The database; a password is best left to the environment.",
        envvar="LOCUS_STORE_URL",
        show_default="sqlite:///locus_checkpoints.db",
    ),
]
Prefix = Annotated[str, typer.Option(help="What every table's name begins with.")]
Schema = Annotated[
    str | None, typer.Option(help="Database schema; without it the connection's default.")
]
Revision = Annotated[str, typer.Argument(help="A revision of 'history'.")]

# As in sql.migrate and sql.schema, which are not imported here: --help needs no SQLAlchemy.
DEFAULT_URL = "sqlite:///locus_checkpoints.db"
DEFAULT_PREFIX = "locus_"


@app.callback()
def _root() -> None:
    """Keeps ``db`` a group even while it is the only one."""


@db.command(epilog=EXIT_CODES)
def upgrade(
    revision: Revision = "head",
    *,
    url: Url = DEFAULT_URL,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Create the schema, or bring it up to a revision; data is kept."""
    reached = _migrate().upgrade(url, revision, prefix=prefix, schema=schema)
    _say(f"schema revision {reached}")


@db.command(epilog=EXIT_CODES)
def downgrade(
    revision: Revision,
    *,
    url: Url = DEFAULT_URL,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take the schema down to a revision; 'base' deletes every table and what is in it."""
    status = _migrate().check(url, prefix=prefix, schema=schema)
    if not yes:
        _note(status.message)
        typer.confirm(f"Downgrade to {revision} and delete what it does not hold?", abort=True)
    reached = _migrate().downgrade(url, revision, prefix=prefix, schema=schema)
    _say(f"schema revision {reached or 'none'}")


@db.command(epilog=EXIT_CODES)
def current(
    *, url: Url = DEFAULT_URL, schema: Schema = None, prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Print the database's revision, or 'none'."""
    _say(_migrate().current(url, prefix=prefix, schema=schema) or "none")


@db.command(epilog=EXIT_CODES)
def check(
    *, url: Url = DEFAULT_URL, schema: Schema = None, prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Say whether this library can work on the database; changes nothing."""
    status = _migrate().check(url, prefix=prefix, schema=schema)
    if not status.usable:
        _note(status.message)
        raise typer.Exit(NOT_USABLE)
    _say(status.message)


@db.command(epilog=EXIT_CODES)
def sql(
    revision: Annotated[str, typer.Argument(help="To where, or from:to.")] = "head",
    *,
    dialect: Annotated[str, typer.Option(help="sqlite, postgresql or oracle.")],
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Print the statements of an upgrade, for somebody else to run; needs no database."""
    text = _migrate().offline_sql(dialect, revision, prefix=prefix, schema=schema)
    typer.echo(text, nl=False)


@db.command("search-index", epilog=EXIT_CODES)
def search_index(
    *, url: Url = DEFAULT_URL, schema: Schema = None, prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Make the full-text index, which makes 'search' fast and takes space; once is enough."""
    options = {"prefix": prefix} | ({"schema": schema} if schema else {})
    _say("made" if asyncio.run(_search_index(url, options)) else "it was there")


@db.command("vector-index", epilog=EXIT_CODES)
def vector_index(
    *,
    dimension: Annotated[int, typer.Option(help="Numbers in an embedding; the same for good.")],
    metric: Annotated[str, typer.Option(help="cosine, l2 or ip.")] = "cosine",
    method: Annotated[str, typer.Option(help="hnsw or ivfflat.")] = "hnsw",
    url: Url = DEFAULT_URL,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Make the table of embeddings and its index (PostgreSQL with pgvector); once is enough."""
    vectors = importlib.import_module("locus_store.sql.vectors")
    made = vectors.create_vector_index(
        url, dimension=dimension, metric=metric, method=method, prefix=prefix, schema=schema
    )
    _say("made" if made else "it was there")


async def _search_index(url: str, options: dict[str, Any]) -> bool:
    opening = importlib.import_module("locus_store.open")
    async with opening.open_checkpointer(url, **options) as checkpointer:
        made: bool = await checkpointer.backend.create_search_index()
        return made


@db.command(epilog=EXIT_CODES)
def history() -> None:
    """List the revisions that this library knows, oldest first."""
    for revision, title in _migrate().history():
        _say(f"{revision}  {title}")


def main() -> None:
    """Entry point of ``locus-store`` and ``python -m locus_store``."""
    try:
        app()
    except LocusStoreError as error:
        _note(f"Error: {error}")
        sys.exit(1)


def _migrate() -> Any:
    return importlib.import_module("locus_store.sql.migrate")


def _say(text: str) -> None:
    # soft_wrap: one message stays one line in a log.
    Console(soft_wrap=True).print(text, markup=False, highlight=False)


def _note(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)
