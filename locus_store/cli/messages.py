"""``locus-store threads messages``: the message log of a thread."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated

import typer

from locus_store.cli.naming import thread_named
from locus_store.cli.opening import Namespace, Thread  # noqa: TC001  (Typer reads the annotations)
from locus_store.cli.output import note, put_json, say
from locus_store.cli.tenants import TenantOptions  # noqa: TC001  (likewise)
from locus_store.errors import NotFoundError
from locus_store.timeline.readable import text_of

if TYPE_CHECKING:
    from locus_store.backend import FullBackend
    from locus_store.messages import LogSnapshot

FIELDS = ("message_id", "role", "created_at", "metadata", "content")


def messages(
    thread: Thread,
    *,
    namespace: Namespace = "",
    newest: Annotated[int, typer.Option(min=0, help="Only the newest so many.")] = 100,
    at: TenantOptions,
) -> None:
    """Print the messages of a thread's log, oldest first, as 'role: text'.

    --json: [{message_id, role, created_at, metadata, content}].
    """
    found = at.ask(lambda it: _read(it, thread, namespace, newest))
    if at.as_json:
        put_json([{name: getattr(it, name) for name in FIELDS} for it in found.messages])
        return
    for it in found.messages:
        say(f"{it.role}: {text_of(it.content)}")
    if found.info.count > len(found.messages):
        note(f"The log has {found.info.count:,} messages: see --newest.")


async def _read(backend: FullBackend, thread: str, namespace: str, newest: int) -> LogSnapshot:
    log = importlib.import_module("locus_store.open").Storage(backend).messages()
    thread = await thread_named(backend, thread)
    found: LogSnapshot | None = await log.read(thread, namespace=namespace, newest=newest)
    if found is None:
        others = [repr(it.namespace) for it in await log.logs(thread)]
        if not others:
            raise NotFoundError(
                f"thread {thread!r} has no message log; 'locus-store threads list' shows the"
                " threads"
            )
        raise NotFoundError(
            f"thread {thread!r} has no message log in the namespace {namespace!r}; its logs"
            f" have --namespace {', '.join(others)}"
        )
    return found
