"""``locus-store serve`` and ``locus-store tokens``."""

from __future__ import annotations

import importlib
import re
import webbrowser
from typing import Annotated, Any

import typer

from locus_store.cli.help import command, make_group
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, opened
from locus_store.cli.output import note, pick, put_found, say
from locus_store.errors import InvalidArgumentError
from locus_store.open import Storage

tokens = make_group("The tokens of a service.")

TokenFile = Annotated[
    str, typer.Option(help="The file of the tokens.", envvar="LOCUS_STORE_TOKEN_FILE")
]
Name = Annotated[str, typer.Argument(help="The name of a token.")]

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def serve(
    *,
    url: Url = DEFAULT_URL,
    host: Annotated[str, typer.Option(help="Address; without tokens, loopback only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port; 0 is any free one.")] = 8321,
    token_file: Annotated[
        str | None,
        typer.Option(help="Let callers with tokens in only.", envvar="LOCUS_STORE_TOKEN_FILE"),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse writes.")] = False,
    max_body: Annotated[str, typer.Option(help="The longest request, as 100MB.")] = "100MB",
    rate: Annotated[
        float | None, typer.Option(help="Requests per second of each token; none: any number.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another name of the service: for the inspector, and without tokens; repeatable."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes on the port.")] = 1,
    dimension: Annotated[
        int | None, typer.Option(help="Dimensions of the store's embeddings; none: none.")
    ] = None,
    metric: Annotated[str, typer.Option(help="cosine, l2 or ip.")] = "cosine",
    inspector: Annotated[
        bool, typer.Option("--inspector", help="Show the browser inspector at /inspector/.")
    ] = False,
    behind_proxy: Annotated[
        bool,
        typer.Option("--behind-proxy", help="The inspector is reached through TLS of a proxy."),
    ] = False,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let the inspector fork, rewind and delete.")
    ] = False,
) -> None:
    """Serve a database over HTTP, for clients that open http://host:port.

    Ctrl-C or SIGTERM ends it, once the requests that are under way have their answers.
    """
    server: Any = importlib.import_module("locus_store.server.serving")
    options: Any = importlib.import_module("locus_store.server.options")

    def announce(url: str) -> None:
        note(f"Serving on {url}")
        if inspector:
            note(f"Inspector on {url}/inspector/")

    server.serve(
        options.ServeOptions(
            url=url,
            host=host,
            port=port,
            token_file=token_file,
            read_only=read_only,
            max_body=_bytes(max_body),
            requests_per_second=rate,
            allowed_hosts=tuple(allow_host or ()),
            workers=workers,
            dimension=dimension,
            metric=metric,
            inspector=inspector,
            behind_proxy=behind_proxy,
            allow_write=allow_write,
        ),
        announce=announce,
    )


def _bytes(text: str) -> int:
    """Return a number of bytes, as ``100MB``.

    Raises:
        InvalidArgumentError: It is not one.
    """
    found = re.fullmatch(r"(\d{1,12}) ?([KMG]B)?", text.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise InvalidArgumentError(f"--max-body {text!r} must be a number with KB, MB or GB")
    return int(found[1]) * _UNITS[(found[2] or "").upper()]


def _file(path: str) -> Any:
    return importlib.import_module("locus_store.service.access").TokenFile(path)


@command(tokens, "add")
def add(
    name: Name,
    *,
    token_file: TokenFile,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant that it sees; none: the service's own.")
    ] = None,
    rights: Annotated[str, typer.Option(help="Some of read, write, admin.")] = "read,write",
) -> None:
    """Add a token; print its secret, which is shown once and stored nowhere."""
    say(_file(token_file).add(name, tenant, [it.strip() for it in rights.split(",")]))


@command(tokens, "list")
def show(*, token_file: TokenFile, as_json: AsJson = False) -> None:
    """List the tokens without their secrets.

    --json: {tokens: [{name, tenant, rights, created_at}]}
    """
    found = _file(token_file).tokens()
    document = {"tokens": [pick(it, ("name", "tenant", "rights", "created_at")) for it in found]}
    columns = ("name", "tenant", "rights", "created")
    rows = ((it.name, it.tenant or "", ",".join(it.rights), it.created_at) for it in found)
    put_found(document, columns, rows, as_json=as_json)


@command(tokens, "revoke")
def revoke(name: Name, *, token_file: TokenFile) -> None:
    """Remove a token; a running service refuses it from its next request on."""
    _file(token_file).revoke(name)
    say(f"revoked {name!r}")


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
    storage = Storage(backend)
    store = storage.store() if storage.has_store else None
    options = importlib.import_module("locus_store.server.options").InspectOptions(
        port=port, allow_write=allow_write
    )
    server.inspect(backend, store, options, announce)
