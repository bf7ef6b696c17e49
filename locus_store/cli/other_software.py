"""``locus-store import``: threads and items of other software."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locus_store.cli.help import command
from locus_store.cli.opening import UrlOptions, opened, run
from locus_store.cli.output import counted, progress, put_json, say
from locus_store.cli.transfer import Only, imports, tell_imported

if TYPE_CHECKING:
    from locus_store.transfer.counts import Counts

__all__ = ["imports"]

SqlSource = Annotated[
    str, typer.Argument(envvar="LOCUS_STORE_FROM", help="URL of a database, SQLite or PostgreSQL")
]


@command(imports, "locus")
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
    tell_imported(*run(_taken("locus", at.url, source, thread)), as_json=at.as_json)


@command(imports, "langgraph")
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
        options["cipher"] = module.aes_cipher()
    taken = run(_taken("langgraph", at.url, source, thread, **options))
    tell_imported(*taken, as_json=at.as_json)


@command(imports, "openai-agents")
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
    taken = run(_taken("openai_agents", at.url, source, thread, messages_table=table))
    tell_imported(*taken, as_json=at.as_json)


@command(imports, "adk")
def import_adk(
    source: SqlSource,
    *,
    thread: Only = None,
    at: UrlOptions,
) -> None:
    """Import the sessions of Google ADK's own SQL services as message logs.

    --json: {written, same}, in threads: sessions, and the states of users and apps.
    """
    tell_imported(*run(_taken("adk", at.url, source, thread)), as_json=at.as_json)


@command(imports, "langgraph-store")
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
        opening = importlib.import_module("locus_store.open")
        async with opening.open_store(at.url, dimension=dimension) as store:
            with progress("importing") as advance:
                done = await module.import_langgraph_store(store, source, progress=advance)
        names = ("written", "same", "newer", "without_embeddings")
        return {name: getattr(done, name) for name in names}

    counts = run(imported())
    if at.as_json:
        put_json(counts)
        return
    say(
        f"{counted(counts['written'], 'item')} imported, {counts['same']:,} there already, "
        f"{counts['newer']:,} there with another value"
    )
    if counts["without_embeddings"]:
        say(f"{counted(counts['without_embeddings'], 'item')} without embeddings: see --dimension")


async def _taken(
    name: str, url: str, source: str, threads: list[str] | None, **options: Any
) -> tuple[Counts, str | None]:
    module = importlib.import_module(f"locus_store.adapters.{name}.import_threads")
    take = getattr(module, f"import_{name}")
    async with opened(url, creates=True) as backend:
        with progress("importing") as advance:
            counts: Counts = await take(
                backend, source, thread_ids=threads or None, progress=advance, **options
            )
            return counts, backend.tenant
