"""``locus-store doctor``: facts about the store and its environment, with remedies."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import typer

from locus_store import __version__
from locus_store.cli.opening import DEFAULT_URL, AsJson, Url, opened, run
from locus_store.cli.output import PROBLEMS, put_json, put_table
from locus_store.cli.tenants import AllTenants, OfTenant, chosen, covering
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    LocusStoreError,
    SchemaError,
    UnsupportedError,
)
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from locus_store.backend import FullBackend
    from locus_store.cli.tenants import Choice


def doctor(
    *,
    tenant: OfTenant = None,
    all_tenants: AllTenants = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Examine the store: versions, schema, indexes, sizes, clock, and what to do; changes nothing.

    --json: {ok, facts: [{name, value, verdict, remedy}]}; verdict is ok, info, warn or fail.
    Only a fail is a problem for the exit code.
    """
    facts = [Fact("locus-store", __version__), Fact("Python", platform.python_version())]
    choice = chosen(tenant, everyone=all_tenants)
    facts += run(_facts(url, choice))
    is_well = all(it.verdict != "fail" for it in facts)
    if as_json:
        put_json({"ok": is_well, "facts": [asdict(it) for it in facts]})
    else:
        rows = ((it.verdict, it.name, it.value, it.remedy) for it in facts)
        put_table(("", "what", "found", "what to do"), rows)
    choice.tell_others()
    if not is_well:
        raise typer.Exit(PROBLEMS)


async def _facts(url: str, choice: Choice) -> list[Fact]:
    try:
        async with opened(url, **choice.options) as backend:
            return [*await backend.facts(), *await _of_tenants(backend, choice)]
    except SchemaError as error:
        return [_failure("schema", error)]
    except ConnectionFailedError as error:
        return [_failure("connection", error)]
    except (BackendError, IntegrityError) as error:
        return [_failure("storage", error)]


async def _of_tenants(backend: FullBackend, choice: Choice) -> list[Fact]:
    """Return facts of the chosen tenants; with several, each fact names its tenant."""
    each = await covering(backend, choice)
    if backend.tenant is None:
        return await _reading(backend)
    if not choice.everyone:
        named = Fact("tenant", repr(backend.tenant))
        return [named, *await backend.tenant_facts(), *await _reading(backend)]
    found = [Fact("tenants", f"{len(each):,}")]
    for it in each:
        about = f"tenant {it.tenant!r}: "
        found += [replace(fact, name=about + fact.name) for fact in await it.tenant_facts()]
    return [*found, *await _reading(backend)]


async def _reading(backend: FullBackend) -> list[Fact]:
    """Check that the storage can be read."""
    with suppress(UnsupportedError):
        await backend.scan(1)
        return [Fact("reading", "works", "ok")]
    return []


def _failure(name: str, error: LocusStoreError) -> Fact:
    text = str(error)
    what, _, remedy = text.partition("; ") if "; " in text else text.rpartition(": ")
    return Fact(name, what or text, "fail", remedy)
