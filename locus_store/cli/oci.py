"""``locus-store oci …``: the retention of threads in a bucket."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locus_store.cli.help import HelpGroup, command
from locus_store.cli.opening import DEFAULT_URL, Url, opened, run
from locus_store.cli.output import counted, note, put_json
from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from locus_store.backends.oci import BucketBackend

oci = typer.Typer(help="Manage threads in a bucket of OCI.", no_args_is_help=True, cls=HelpGroup)

Days = Annotated[int, typer.Option(help="Idle days after which a thread is removed.")]
Write = Annotated[bool, typer.Option("--write", help="Add the rule to the bucket's policy.")]


@oci.callback()
def group() -> None:
    """Keep ``lifecycle`` a command of its own."""


@command(oci)
def lifecycle(*, days: Days = 90, write: Write = False, url: Url = DEFAULT_URL) -> None:
    """Print the lifecycle rule that removes idle threads, as JSON.

    With --write it is added to the bucket's policy, whose other rules stay. The rule covers the
    heads of threads only: run 'threads vacuum' to remove what belonged to them.
    """
    rules = importlib.import_module("locus_store.backends.oci.lifecycle")
    run(_applied(_bucket(url), rules, days, write=write))


def _bucket(url: str) -> BucketBackend:
    if not url.startswith("oci://"):
        raise InvalidArgumentError("pass --url oci://namespace/bucket/prefix")
    backend: Any = opened(url)
    return backend  # type: ignore[no-any-return]  # the scheme says so


async def _applied(backend: BucketBackend, rules: Any, days: int, *, write: bool) -> None:
    rule = rules.rule_for(backend.documents.prefix, days)
    try:
        if write:
            others = rules.write(backend.bucket, rule)
            note(f"The rule was written; {counted(others, 'other rule')} stayed.")
    finally:
        await backend.close()
    put_json(rule)
