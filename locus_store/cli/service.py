"""``locus-store serve`` and ``locus-store tokens``."""

from __future__ import annotations

import importlib
import webbrowser
from typing import Annotated, Any

import typer

from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, open_backend
from locus_store.cli.output import note, print_line, put_found, select
from locus_store.open import Storage
from locus_store.server.options import ServeOptions

tokens = make_group("The tokens of a service.")

TokenFile = Annotated[
    str, typer.Option(help="The file of the tokens.", envvar="LOCUS_STORE_TOKEN_FILE")
]
Name = Annotated[str, typer.Argument(help="The name of a token.")]


def serve(*, url: Url = DEFAULT_URL, settings: ServeOptions) -> None:
    """Serve a database over HTTP, for clients that open http://host:port.

    Ctrl-C or SIGTERM ends it, once the requests that are under way have their answers.
    """

    def announce(url: str) -> None:
        note(f"Serving on {url}")
        if settings.inspector:
            note(f"Inspector on {url}/inspector/")

    importlib.import_module("locus_store.server.serving").serve(url, settings, announce)


def _open_file(path: str) -> Any:
    return importlib.import_module("locus_store.service.access").TokenFile(path)


@add_command(tokens, "add")
def add(
    name: Name,
    *,
    token_file: TokenFile,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant that it sees; none: the service's own.")
    ] = None,
    rights: Annotated[str, typer.Option(help="Some of read, write, admin, audit.")] = "read,write",
) -> None:
    """Add a token; print its secret, which is shown once and stored nowhere."""
    print_line(_open_file(token_file).add(name, tenant, [it.strip() for it in rights.split(",")]))


@add_command(tokens, "list")
def show(*, token_file: TokenFile, as_json: AsJson = False) -> None:
    """List the tokens without their secrets.

    --json: {tokens: [{name, tenant, rights, created_at}]}
    """
    found = _open_file(token_file).read_tokens()
    document = {"tokens": [select(it, ("name", "tenant", "rights", "created_at")) for it in found]}
    columns = ("name", "tenant", "rights", "created")
    rows = ((it.name, it.tenant or "", ",".join(it.rights), it.created_at) for it in found)
    put_found(document, columns, rows, as_json=as_json)


@add_command(tokens, "revoke")
def revoke(name: Name, *, token_file: TokenFile) -> None:
    """Remove a token; a running service refuses it from its next request on."""
    _open_file(token_file).revoke(name)
    print_line(f"revoked {name!r}")


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
    server: Any = importlib.import_module("locus_store.server.serving")

    def announce(link: str) -> None:
        note(f"Inspecting on {link}")
        if not no_browser:
            webbrowser.open(server.start_page(link).as_uri())

    backend = open_backend(url)
    storage = Storage(backend)
    store = storage.store() if storage.has_store else None
    server.inspect(backend, store, announce, port=port, allow_write=allow_write)
