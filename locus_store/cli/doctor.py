"""``locus-store doctor``: what the store stands on, and what to do about it."""

from __future__ import annotations

import platform
from dataclasses import asdict

import typer

from locus_store import __version__
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, opened, run
from locus_store.cli.output import PROBLEMS, put_json, put_table
from locus_store.errors import SchemaError
from locus_store.facts import Fact


def doctor(*, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Examine the store: versions, schema, indexes, sizes, clock, and what to do; changes nothing.

    --json: {ok, facts: [{name, value, verdict, remedy}]}; verdict is ok, info, warn or fail.
    Only a fail is a problem for the exit code.
    """
    facts = [Fact("locus-store", __version__), Fact("Python", platform.python_version())]
    facts += run(_facts(url))
    is_well = all(it.verdict != "fail" for it in facts)
    if as_json:
        put_json({"ok": is_well, "facts": [asdict(it) for it in facts]})
    else:
        rows = ((it.verdict, it.name, it.value, it.remedy) for it in facts)
        put_table(("", "what", "found", "what to do"), rows)
    if not is_well:
        raise typer.Exit(PROBLEMS)


async def _facts(url: str) -> list[Fact]:
    try:
        async with opened(url) as backend:
            return await backend.facts()
    except SchemaError as error:
        what, _, remedy = str(error).partition("; ")
        return [Fact("schema", what, "fail", remedy or what)]
