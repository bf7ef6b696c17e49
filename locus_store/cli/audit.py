"""``locus-store audit …``: the record of the calls of a SQL database."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from locus_store.cli.database import Prefix, Schema
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import DEFAULT_PREFIX, UrlOptions, ask, run
from locus_store.cli.output import PROBLEMS, format_count, note, print_line, put_json, put_outcome
from locus_store.cli.tenants import OfTenant, OneTenant, select_tenant
from locus_store.errors import IntegrityError, InvalidArgumentError, NotFoundError, UnsupportedError
from locus_store.transfer import audit as files
from locus_store.versions import audit as rules

T = TypeVar("T")

audit = make_group("Check, export and anchor the record of calls.")

Anchors = Annotated[str | None, typer.Option(help="A file or URL that 'audit anchor' wrote to.")]


@dataclass(frozen=True, kw_only=True)
class AuditedOptions(UrlOptions):
    """The options of a command on the record of one tenant, or of all."""

    tenant: OfTenant = None

    def ask(self, work: Callable[[Any, list[str]], Awaitable[list[T]]]) -> list[T]:
        """Return what ``work`` returns for the opened backend and the tenants.

        Raises:
            NotFoundError: That is nothing.
            UnsupportedError: The storage records no calls.
        """

        async def asked(backend: Any) -> list[T]:
            done = await work(_require_audit(backend), await self._list_tenants(backend))
            if not done:
                raise NotFoundError("no call is recorded; open the storage with audit='a name'")
            return done

        return ask(self.url, asked)

    async def _list_tenants(self, backend: Any) -> list[str]:
        if backend.tenant is None:  # a service, which answers for the tenant of the token
            return [(await backend.read_audited()).tenant]
        return [self.tenant] if self.tenant else await backend.list_audited()


def _require_audit(backend: Any) -> Any:
    if not isinstance(backend, rules.AuditLog):
        raise UnsupportedError(
            f"{type(backend).__name__} records no calls; SQLite, PostgreSQL and Oracle do"
        )
    return backend


def _select_log(backend: Any, tenant: str) -> Any:
    return backend if backend.tenant is None else backend.for_tenant(tenant)


@add_command(audit)
def verify(
    file: Annotated[Path | None, typer.Argument(help="An export, instead of the database.")] = None,
    *,
    public_key: Annotated[
        Path | None, typer.Option(help="Of the export: an Ed25519 key in PEM.")
    ] = None,
    anchors: Anchors = None,
    at: AuditedOptions,
) -> None:
    """Compare all entries with their seals, and the seals with their anchors; name the first break.

    Without anchors, a cut-off end cannot be found. --json: [{tenant, entries, seals, unsealed,
    pruned, root, problem}].
    """
    if (file is None) != (public_key is None):
        raise InvalidArgumentError("pass an export and its --public-key, or neither")
    if file is not None and public_key is not None:
        log = files.FileLog(file, public_key)
        known = run(_read_anchors(anchors, log.about["store"]))
        found = [run(_verify(log, log.about["tenant"], known))]
    else:
        found = at.ask(lambda backend, tenants: _verify_all(backend, tenants, anchors))
    if at.as_json:
        put_json(found)
    else:
        for check in found:
            _print(check)
    if any(it["problem"] for it in found):
        raise typer.Exit(PROBLEMS)


def _print(check: dict[str, Any]) -> None:
    about = f"tenant {check['tenant']!r}: "
    if check["problem"]:
        note(about + check["problem"])
        return
    calls, seals = format_count(check["entries"], "call"), format_count(check["seals"], "seal")
    pruned = f", {check['pruned']:,} pruned" if check["pruned"] else ""
    print_line(f"{about}{calls} in {seals}, {check['unsealed']:,} not sealed yet{pruned}")


async def _verify_all(
    backend: Any, tenants: list[str], anchors: str | None
) -> list[dict[str, Any]]:
    known = await _read_anchors(anchors, (await backend.read_audited()).store)
    others = [] if backend.tenant is None else [it.tenant for it in known]
    names = dict.fromkeys([*tenants, *others])
    found = [await _verify(_select_log(backend, it), it, known) for it in names]
    return [it for it in found if it["problem"] or it["entries"] or it["unsealed"] or it["pruned"]]


async def _read_anchors(anchors: str | None, store: str) -> list[Any]:
    return await files.read_anchors(anchors, store) if anchors is not None else []


async def _verify(log: rules.AuditLog, tenant: str, anchors: list[Any]) -> dict[str, Any]:
    try:
        checked = await rules.verify(log, files.select_roots(anchors, tenant))
    except IntegrityError as exc:
        return {"tenant": tenant, "problem": str(exc)}
    return {"tenant": tenant, **checked._asdict(), "problem": None}


File = Annotated[Path, typer.Argument(help="Is written, or replaced.")]
Key = Annotated[Path, typer.Option(help="An Ed25519 private key in PEM, without password.")]


@add_command(audit)
def export(file: File, *, key: Key, at: OneTenant) -> None:
    """Write the record of a tenant as JSON Lines, signed at the end; 'audit verify FILE' checks it.

    'openssl genpkey -algorithm ed25519 -out key.pem' makes a key.
    """
    count = ask(at.url, lambda it: _export(it, file, key), **select_tenant(at.tenant))
    print_line(f"{format_count(count, 'call')} exported")


async def _export(backend: Any, file: Path, key: Path) -> int:
    log = _require_audit(backend)
    audited = await log.read_audited()
    about = {"tenant": audited.tenant, "store": audited.store}
    about["exported_at"] = datetime.now(UTC).isoformat(timespec="seconds")
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as lines:
        count = await files.export(log, about, key, lines)
    part.replace(file)
    return count


@add_command(audit)
def prune(
    file: File,
    *,
    key: Key,
    before: Annotated[datetime, typer.Option(help="A time in UTC.", formats=["%Y-%m-%d"])],
    at: OneTenant,
) -> None:
    """Export the record of a tenant, then delete the calls that were sealed before a day.

    The seals stay, so that what remains can be verified. A record with a break is not pruned.
    """

    async def pruned(backend: Any) -> int:
        log = _require_audit(backend)
        if log.tenant is None:
            raise UnsupportedError("a service does not prune: name the URL of its database")
        await log.open()
        if problem := (await _verify(log, log.tenant, []))["problem"]:
            raise IntegrityError(f"nothing was pruned: {problem}")
        upto = await log.find_prunable(before.replace(tzinfo=UTC))
        if not upto:
            return 0
        await _export(log, file, key)
        count: int = await log.prune_entries(upto)
        return count

    count = ask(at.url, pruned, **select_tenant(at.tenant))
    print_line(f"{format_count(count, 'call')} pruned")


@add_command(audit)
def anchor(
    target: Annotated[
        str | None, typer.Argument(help="A file to append to, or a URL of another storage.")
    ] = None,
    *,
    command: Annotated[
        str | None, typer.Option(help="A shell command that reads the anchors as JSON Lines.")
    ] = None,
    at: AuditedOptions,
) -> None:
    """Seal the record now, and keep the newest root of each tenant elsewhere.

    Run it from a timer. Over HTTP, nothing is sealed. --json: [{store, tenant, number, root,
    sealed_at}].
    """
    if target is None and command is None:
        raise InvalidArgumentError("pass a file, a URL or --command")

    async def anchored(backend: Any, tenants: list[str]) -> list[Any]:
        made, store = [], (await backend.read_audited()).store
        for tenant in tenants:
            log = _select_log(backend, tenant)
            if backend.tenant is not None:  # an auditor of a service only reads
                await log.seal_entries()
            if (seal := await log.read_last_seal()) is None:
                continue
            root, when = seal.root.hex(), seal.sealed_at.isoformat()
            made.append(files.Anchor(store, tenant, seal.number, root, when))
        await files.write_anchors(made, target, command)
        return made

    made = at.ask(anchored)
    document = [it._asdict() for it in made]
    put_outcome(document, f"{format_count(len(made), 'tenant')} anchored", as_json=at.as_json)


@add_command(audit)
def grant(
    role: Annotated[str, typer.Argument(help="A role of PostgreSQL, such as auditor.")],
    *,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Print the SQL that lets a role of PostgreSQL read the record, and no state or message."""
    sql = importlib.import_module("locus_store.sql.audit")
    sys.stdout.write(sql.render_grants(role, prefix=prefix, schema=schema))
