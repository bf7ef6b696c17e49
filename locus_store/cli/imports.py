"""``locus-store import``: threads of files, and threads and items of other software."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from locus_store.backend import FullBackend
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import UrlOptions, ask, open_backend, run
from locus_store.cli.output import format_count, print_line, put_json, select, show_progress
from locus_store.cli.tenants import TenantsOptions, select_tenant, tell
from locus_store.cli.transfer import STANDARD, NoItems, Only, report_moved, translate_errors
from locus_store.errors import InvalidArgumentError
from locus_store.open import open_store
from locus_store.transfer.archive import import_threads
from locus_store.transfer.counts import Counts

imports = make_group("Import threads from another store; existing threads stay as they are.")


def _tell_imported(counts: dict[str, int], tenant: str | None, *, as_json: bool) -> None:
    tell({tenant: counts}, lambda it: report_moved(it, "imported"), TenantsOptions(as_json=as_json))


@add_command(imports, "file")
def import_file(
    file: Annotated[str, typer.Argument(help="Output of 'export'; - is standard input.")],
    *,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The target; overrides ?tenant=.")
    ] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Each thread into the tenant named in the file.")
    ] = False,
    from_tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only the threads that name this tenant in the file."),
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Accept clear text though encryption is required.")
    ] = False,
    no_items: NoItems = False,
    at: UrlOptions,
) -> None:
    """Import threads and items from JSON Lines; run again, it continues where it stopped.

    What is damaged is left out and reported, as is a cut-off file; the rest is imported. Files may
    be joined. Threads and items of 'export --all-tenants' name their tenant: say --all-tenants or
    --from-tenant. --json: {written, same, items_written, items_same, tenant}.
    """
    if all_tenants and (tenant, from_tenant) != (None, None):
        raise InvalidArgumentError("pass --all-tenants alone, or --tenant and --from-tenant")

    async def imported(lines: BinaryIO) -> tuple[Counts, str | None]:
        async with open_backend(at.url, creates=True, **select_tenant(tenant)) as backend:
            with show_progress("importing", _count_threads(lines)) as advance:
                counts = await import_threads(
                    backend,
                    lines,
                    all_tenants=all_tenants,
                    from_tenant=from_tenant,
                    in_clear=clear,
                    with_items=not no_items,
                    progress=advance,
                )
                return counts, None if all_tenants else backend.tenant

    is_standard = file == STANDARD
    with (
        translate_errors("standard input" if is_standard else file, "read"),
        nullcontext(sys.stdin.buffer) if is_standard else Path(file).open("rb") as lines,
    ):
        counts, into = run(imported(lines))
    _tell_imported(asdict(counts), into, as_json=at.as_json)


def _count_threads(lines: BinaryIO) -> int | None:
    """Return how many threads a file holds, for a bar on a terminal; ``None``: of a pipe."""
    if not (sys.stderr.isatty() and lines.seekable()):
        return None
    count = sum(it.startswith(b'{"kind":"thread"') for it in lines)
    lines.seek(0)
    return count


SqlSource = Annotated[
    str, typer.Argument(envvar="LOCUS_STORE_FROM", help="URL of a database, SQLite or PostgreSQL")
]


@add_command(imports, "locus")
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
    at: UrlOptions,
) -> None:
    """Import the threads that the Locus SDK keeps in its own tables, keys or files.

    --json: {written, same}, in threads.
    """
    _import_threads("locus", at, source, thread)


@add_command(imports, "langgraph")
def import_langgraph(
    source: SqlSource,
    *,
    thread: Only = None,
    decrypt: Annotated[
        bool,
        typer.Option("--decrypt", help="Decrypt values with LANGGRAPH_AES_KEY; store plain ones."),
    ] = False,
    at: UrlOptions,
) -> None:
    """Import langgraph's checkpoints, blobs and pending writes, checked by reading both sides.

    --json: {written, same}, in threads.
    """
    options = {}
    if decrypt:
        module = importlib.import_module("locus_store.adapters.langgraph.import_threads")
        options["cipher"] = module.make_aes_cipher()
    _import_threads("langgraph", at, source, thread, **options)


@add_command(imports, "openai-agents")
def import_openai_agents(
    source: SqlSource,
    *,
    thread: Only = None,
    table: Annotated[
        str, typer.Option(help="The table of the items; messages_table of the session.")
    ] = "agent_messages",
    at: UrlOptions,
) -> None:
    """Import the sessions of the OpenAI Agents SDK's own SQL stores as message logs.

    --json: {written, same}, in threads.
    """
    _import_threads("openai_agents", at, source, thread, messages_table=table)


@add_command(imports, "adk")
def import_adk(source: SqlSource, *, thread: Only = None, at: UrlOptions) -> None:
    """Import the sessions of Google ADK's own SQL services as message logs.

    --json: {written, same}, in threads: sessions, and the states of users and apps.
    """
    _import_threads("adk", at, source, thread)


@add_command(imports, "langgraph-store")
def import_langgraph_store(
    source: Annotated[
        str,
        typer.Argument(
            envvar="LOCUS_STORE_FROM", help="URL of a database: SQLite, PostgreSQL or Redis"
        ),
    ],
    *,
    dimension: Annotated[
        int | None,
        typer.Option(help="Dimensions of the embeddings; without it, they are left out."),
    ] = None,
    at: UrlOptions,
) -> None:
    """Import the items of langgraph's long-term store; items that are there already stay.

    --json: {written, same, newer, without_embeddings}, in items.
    """

    async def imported() -> dict[str, int]:
        module = importlib.import_module("locus_store.adapters.langgraph.import_items")
        async with open_store(at.url, dimension=dimension) as store:
            with show_progress("importing") as advance:
                done = await module.import_langgraph_store(store, source, progress=advance)
        return select(done, ("written", "same", "newer", "without_embeddings"))

    counts = run(imported())
    if at.as_json:
        put_json(counts)
        return
    print_line(
        f"{format_count(counts['written'], 'item')} imported, {counts['same']:,} there already, "
        f"{counts['newer']:,} there with another value"
    )
    if counts["without_embeddings"]:
        print_line(
            f"{format_count(counts['without_embeddings'], 'item')} without embeddings: see "
            "--dimension"
        )


def _import_threads(
    name: str, at: UrlOptions, source: str, threads: list[str] | None, **options: Any
) -> None:
    """Import by the adapter of a name, and print how many threads were imported."""
    module = importlib.import_module(f"locus_store.adapters.{name}.import_threads")
    options |= {"thread_ids": threads or None}

    async def imported(backend: FullBackend) -> tuple[Counts, str | None]:
        with show_progress("importing") as advance:
            take = getattr(module, f"import_{name}")
            return await take(backend, source, progress=advance, **options), backend.tenant

    counts, tenant = ask(at.url, imported, creates=True)
    _tell_imported({"written": counts.written, "same": counts.same}, tenant, as_json=at.as_json)
