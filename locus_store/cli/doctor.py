"""``locus-store doctor``: what the store stands on, and what to do about it."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from locus_store import __version__
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, opened, run
from locus_store.cli.output import PROBLEMS, put_json, put_table
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    LocusStoreError,
    SchemaError,
    UnsupportedError,
)
from locus_store.facts import Fact

if TYPE_CHECKING:
    from locus_store.backends.base import StorageBackend


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
            return [*await backend.facts(), *await _reading(backend)]
    except SchemaError as error:
        return [_failure("schema", error)]
    except ConnectionFailedError as error:
        return [_failure("connection", error)]
    except (BackendError, IntegrityError) as error:
        return [_failure("storage", error)]


async def _reading(backend: StorageBackend) -> list[Fact]:
    """That it can be read."""
    with suppress(UnsupportedError):
        await backend.scan(1)
        return [Fact("reading", "works", "ok")]
    return []


def _failure(name: str, error: LocusStoreError) -> Fact:
    text = str(error)
    what, _, remedy = text.partition("; ") if "; " in text else text.rpartition(": ")
    return Fact(name, what or text, "fail", remedy)
