"""``locus-store audit …``: the record of the calls of a SQL database."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from locus_store.cli.database import Prefix, Schema
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import DEFAULT_PREFIX, UrlOptions, open_backend, run
from locus_store.cli.output import PROBLEMS, format_count, note, print_line, put_json
from locus_store.cli.tenants import OfTenant, OneTenant, select_tenant
from locus_store.errors import IntegrityError, InvalidArgumentError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from locus_store.versions.audit import AuditLog, Verified

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

        async def asked() -> list[T]:
            async with open_backend(self.url) as backend:
                audited = _require_audit(backend)
                tenants = [self.tenant] if self.tenant else await audited.list_audited()
                done = await work(audited, tenants)
                if not done:
                    raise NotFoundError("no call is recorded; open the storage with audit='a name'")
                return done

        return run(asked())


def _require_audit(backend: Any) -> Any:
    if not isinstance(backend, importlib.import_module("locus_store.sql.audit").SqlAudit):
        raise UnsupportedError(
            f"{type(backend).__name__} records no calls; SQLite, PostgreSQL and Oracle do"
        )
    return backend


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
    root, problem}].
    """
    if (file is None) != (public_key is None):
        raise InvalidArgumentError("pass an export and its --public-key, or neither")
    if file is not None:
        files = importlib.import_module("locus_store.transfer.audit")
        log = files.FileLog(file, public_key)
        found = [run(_verify(log, log.about["tenant"], log.about["store"], anchors))]
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
    print_line(f"{about}{calls} in {seals}, {check['unsealed']:,} not sealed yet")


async def _verify_all(
    backend: Any, tenants: list[str], anchors: str | None
) -> list[dict[str, Any]]:
    store, names = backend.store_id, dict.fromkeys(tenants)
    if anchors is not None:
        files = importlib.import_module("locus_store.transfer.audit")
        names |= {it.tenant: None for it in await files.read_anchors(anchors, store)}
    found = [await _verify(backend.for_tenant(it), it, store, anchors) for it in names]
    return [it for it in found if it["problem"] or it["entries"] or it["unsealed"]]


async def _verify(log: AuditLog, tenant: str, store: str, anchors: str | None) -> dict[str, Any]:
    files = importlib.import_module("locus_store.transfer.audit")
    known = await files.read_anchors(anchors, store) if anchors is not None else ()
    roots = {it.number: it.root for it in known if it.tenant == tenant}
    rules = importlib.import_module("locus_store.versions.audit")
    try:
        checked: Verified = await rules.verify(log, roots)
    except IntegrityError as exc:
        return {"tenant": tenant, "problem": str(exc)}
    return {"tenant": tenant, **checked._asdict(), "problem": None}


@add_command(audit)
def export(
    file: Annotated[Path, typer.Argument(help="Is written, or replaced.")],
    *,
    key: Annotated[Path, typer.Option(help="An Ed25519 private key in PEM, without password.")],
    at: OneTenant,
) -> None:
    """Write the record of a tenant as JSON Lines, signed at the end; 'audit verify FILE' checks it.

    'openssl genpkey -algorithm ed25519 -out key.pem' makes a key.
    """
    files = importlib.import_module("locus_store.transfer.audit")

    async def exported() -> int:
        async with open_backend(at.url, **select_tenant(at.tenant)) as backend:
            log = _require_audit(backend)
            await log.open()
            about = {"tenant": log.tenant, "store": log.store_id}
            about["exported_at"] = datetime.now(UTC).isoformat(timespec="seconds")
            part = file.with_name(f"{file.name}.part")
            with part.open("wb") as lines:
                count: int = await files.export(log, about, key, lines)
            part.replace(file)
            return count

    print_line(f"{format_count(run(exported()), 'call')} exported")


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

    Run it from a timer. --json: [{store, tenant, number, root, sealed_at}].
    """
    if target is None and command is None:
        raise InvalidArgumentError("pass a file, a URL or --command")
    files = importlib.import_module("locus_store.transfer.audit")

    async def anchored(backend: Any, tenants: list[str]) -> list[Any]:
        made = []
        for tenant in tenants:
            log = backend.for_tenant(tenant)
            await log.seal_entries()
            if (seal := await log.read_last_seal()) is None:
                continue
            root, when = seal.root.hex(), seal.sealed_at.isoformat()
            made.append(files.Anchor(log.store_id, tenant, seal.number, root, when))
        await files.write_anchors(made, target, command)
        return made

    made = at.ask(anchored)
    if at.as_json:
        put_json([it._asdict() for it in made])
    else:
        print_line(f"{format_count(len(made), 'tenant')} anchored")


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
