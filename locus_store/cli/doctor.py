"""``locus-store doctor``: facts about the store and its environment, with remedies."""

from __future__ import annotations

import logging
import platform
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from typing import Annotated

import typer

from locus_store import __version__
from locus_store.backend import FullBackend
from locus_store.cli.opening import open_backend, run
from locus_store.cli.output import PROBLEMS, format_count, put_found, show_progress
from locus_store.cli.tenants import TenantsOptions, make_covered, select_tenant
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    SchemaError,
    UnsupportedError,
)
from locus_store.open import SCHEMES
from locus_store.transfer.archive import all_threads
from locus_store.types import ArchivedThread
from locus_store.types.facts import Fact

LARGEST = 10
"""Tenants, users and threads that are named with their bytes."""


def diagnose(
    *,
    sizes: Annotated[
        bool,
        typer.Option("--sizes", help="Read all, and add the bytes by tenant, user and thread."),
    ] = False,
    compatibility: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Try what the library needs on this PostgreSQL-compatible service instead, in"
            " tables that are dropped.",
        ),
    ] = None,
    at: TenantsOptions,
) -> None:
    """Examine the store: versions, schema, indexes, sizes, clock, and what to do; changes nothing.

    --json: {ok, facts: [{name, value, verdict, remedy}]}; verdict is ok, info, warn or fail. With
    --compatibility: {ok, trials: [{name, needed_for, is_required, verdict, answer}]}.
    Only a fail is a problem for the exit code.
    """
    if compatibility is not None:
        if sizes or at.tenant is not None or at.all_tenants:
            raise InvalidArgumentError(
                "--compatibility looks at no store: leave --sizes, --tenant, --all-tenants out"
            )
        _try_compatibility(compatibility, as_json=at.as_json)
        return
    facts = [Fact("locus-store", __version__), Fact("Python", platform.python_version())]
    facts += run(_collect_facts(at, sizes=sizes))
    is_well = all(it.verdict != "fail" for it in facts)
    document = {"ok": is_well, "facts": [asdict(it) for it in facts]}
    rows = ((it.verdict, it.name, it.value, it.remedy) for it in facts)
    put_found(document, ("", "what", "found", "what to do"), rows, as_json=at.as_json)
    at.tell_others()
    if not is_well:
        raise typer.Exit(PROBLEMS)


def _try_compatibility(url: str, *, as_json: bool) -> None:
    scheme = url.partition(":")[0]
    if SCHEMES.get(scheme, "postgresql") != "postgresql":
        raise InvalidArgumentError(
            f"--compatibility tries a PostgreSQL-compatible service, and this {scheme}: URL names "
            "none; pass postgresql://host/database"
        )
    module = import_module("locus_store.backends.postgresql.compatibility")
    # It reports connections that the time limit of a trial has cut.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    with show_progress("trying") as advance:
        trials = run(module.try_service(url, advance))
    is_well = all(it.verdict != "fail" for it in trials)
    document = {"ok": is_well, "trials": [it._asdict() for it in trials]}
    rows = ((it.verdict, it.name, it.needed_for, it.answer) for it in trials)
    put_found(document, ("", "feature", "needed for", "answer"), rows, as_json=as_json)
    if not is_well:
        raise typer.Exit(PROBLEMS)


async def _collect_facts(at: TenantsOptions, *, sizes: bool) -> list[Fact]:
    try:
        async with open_backend(at.url, **select_tenant(at.tenant)) as backend:
            found = [*await backend.facts(), *await _collect_tenant_facts(backend, at)]
            return [*found, *await _measure(await make_covered(backend, at))] if sizes else found
    except SchemaError as error:
        return [_make_failure("schema", error)]
    except ConnectionFailedError as error:
        return [_make_failure("connection", error)]
    except (BackendError, IntegrityError) as error:
        return [_make_failure("storage", error)]


async def _collect_tenant_facts(backend: FullBackend, at: TenantsOptions) -> list[Fact]:
    """Return facts of the chosen tenants; with several, each fact names its tenant."""
    each = await make_covered(backend, at)
    found = []
    if at.all_tenants:
        found.append(Fact("tenants", f"{len(each):,}"))
    elif backend.tenant is not None:
        found.append(Fact("tenant", repr(backend.tenant)))
    for one in each:
        about = f"tenant {one.tenant!r}: " if at.all_tenants else ""
        facts = [*await one.tenant_facts(), *await _check_reading(one)]
        found += [replace(it, name=about + it.name) for it in facts]
    return found


async def _measure(backends: list[FullBackend]) -> list[Fact]:
    """Return the bytes of states, writes and messages by tenant, and of the largest users."""
    tenants: Counter[str] = Counter()
    users: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    with show_progress("measuring") as advance:
        for backend in backends:
            whose = f", tenant {backend.tenant!r}" if len(backends) > 1 else ""
            async for thread_id in all_threads(backend):
                thread = await backend.read_thread(thread_id)
                size = 0 if thread is None else _count_bytes(thread)
                owner = thread.user_id if thread else None
                tenants[repr(backend.tenant) if backend.tenant else "all threads"] += size
                users[("no user" if owner is None else repr(owner)) + whose] += size
                threads[repr(thread_id) + whose] += size
                advance()
    named = {"tenants": tenants, "users": users, "threads": threads}
    return [Fact(f"bytes of {name}", _format_largest(it)) for name, it in named.items() if it]


def _count_bytes(thread: ArchivedThread) -> int:
    """Return the stored bytes of a thread, without indexes and the columns of rows."""
    lines = thread.lines
    size = sum(len(it.payload) for line in lines for it in line.records)
    size += sum(len(it.write.payload) for line in lines for it in line.writes)
    return size + sum(len(it.payload or (it.text or "").encode()) for it in thread.messages)


def _format_largest(sizes: Counter[str]) -> str:
    largest = sizes.most_common(LARGEST)
    named = [f"{name}: {size:,}" for name, size in largest]
    if more := len(sizes) - len(largest):
        rest = sizes.total() - sum(size for _, size in largest)
        named.append(f"{format_count(more, 'other')}: {rest:,}")
    return ", ".join(named)


async def _check_reading(backend: FullBackend) -> list[Fact]:
    """Check that the storage can be read, by the head of one thread."""
    with suppress(UnsupportedError):
        try:
            for thread_id in await backend.scan(1):
                await backend.fetch(thread_id)
        except IntegrityError as error:
            return [_make_failure("reading", error)]
        return [Fact("reading", "works", "ok")]
    return []


def _make_failure(name: str, error: LocusStoreError) -> Fact:
    text = str(error)
    what, _, remedy = text.partition("; ") if "; " in text else text.rpartition(": ")
    return Fact(name, what or text, "fail", remedy)
