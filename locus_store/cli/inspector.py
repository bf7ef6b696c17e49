"""``locus-store inspect``."""

from __future__ import annotations

import importlib
import webbrowser
from typing import Annotated, Any

import typer

from locus_store.cli.opening import DEFAULT_URL, Url, opened
from locus_store.cli.output import note


def inspect(
    *,
    url: Url = DEFAULT_URL,
    port: Annotated[int, typer.Option(help="Port on loopback; 0 is any free one.")] = 0,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Offer forks, rewinds and deletions.")
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link only, for a browser elsewhere.")
    ] = False,
) -> None:
    """Open the inspector in a browser, which shows the version and node that introduced a value.

    It changes nothing without --allow-write. The printed link works once and for a minute. Ctrl-C
    ends it.
    """
    importlib.import_module("locus_store.inspector")  # says which extra is missing
    server: Any = importlib.import_module("locus_store.server.inspecting")

    def announce(link: str) -> None:
        note(f"Inspecting on {link}")
        if not no_browser:
            webbrowser.open(server.start_page(link).as_uri())

    backend = opened(url)
    storage = importlib.import_module("locus_store.open").Storage(backend)
    store = storage.store() if storage.has_store else None
    options = importlib.import_module("locus_store.server.options").InspectOptions(
        port=port, allow_write=allow_write
    )
    server.inspect(backend, store, options, announce)
