"""``locus-store db row-security …``: the server keeps tenants apart."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer

from locus_store.cli.database import TableOptions, db
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import AsJson
from locus_store.cli.output import PROBLEMS, note, print_line, put_json

row_security = make_group("Let PostgreSQL itself keep tenants apart.")
db.add_typer(row_security, name="row-security")

AsSql = Annotated[
    bool, typer.Option("--sql", help="Print the SQL for the owner of the tables; run nothing.")
]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="A role of the server.")]


def _change(action: str, at: TableOptions, done: str, *values: str, as_sql: bool) -> None:
    module: Any = importlib.import_module("locus_store.backends.postgresql.row_security")
    if as_sql:
        sys.stdout.write(module.render_sql(action, *values, **at.names))
        return
    changed = getattr(module, action.replace("-", "_"))(at.url, *values, **at.names)
    print_line(done if changed else "nothing was changed")


@add_command(row_security)
def enable(*, as_sql: AsSql = False, at: TableOptions) -> None:
    """Enable row security on all tables with rows of tenants; restore what they lack of it.

    Calls wait for the transaction. A process that has the database open fails one call, and then
    names its tenant.
    """
    _change("enable", at, "row security is enabled", as_sql=as_sql)


@add_command(row_security)
def disable(*, as_sql: AsSql = False, at: TableOptions) -> None:
    """Remove row security; refused while a role is bound to a tenant."""
    _change("disable", at, "row security is disabled", as_sql=as_sql)


@add_command(row_security, "add-role")
def add_role(
    tenant: TenantName, role: RoleName, *, as_sql: AsSql = False, at: TableOptions
) -> None:
    """Bind an existing role to a tenant, and grant it what the library needs."""
    done = f"role {role} sees tenant {tenant!r} only"
    _change("add-role", at, done, tenant, role, as_sql=as_sql)


@add_command(row_security, "remove-role")
def remove_role(role: RoleName, *, as_sql: AsSql = False, at: TableOptions) -> None:
    """Take from a role what add-role granted."""
    done = f"role {role} sees no rows any more"
    _change("remove-role", at, done, role, as_sql=as_sql)


@add_command(row_security, "status")
def show_status(*, at: TableOptions, as_json: AsJson = False) -> None:
    """Print whether row security is enabled, what tables lack of it, and the roles of tenants.

    --json: {enabled, problems, roles}. Problems end with the exit code of 'verify'.
    """
    module: Any = importlib.import_module("locus_store.backends.postgresql.row_security")
    found = module.read(at.url, **at.names)
    if as_json:
        put_json(
            {"enabled": found.is_enabled, "problems": found.problems, "roles": dict(found.roles)}
        )
    else:
        print_line(f"row security is {'enabled' if found.is_enabled else 'disabled'}")
        for role, tenant in found.roles.items():
            print_line(f"role {role}: tenant {tenant!r}")
        for problem in found.problems:
            note(problem)
    if found.problems:
        raise typer.Exit(PROBLEMS)
