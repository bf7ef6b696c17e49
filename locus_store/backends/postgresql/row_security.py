"""Row security of a database: enabled, disabled, read, and the roles of one tenant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from locus_store.backends.postgresql.failures import RACES, get_sqlstate, translate_owner_errors
from locus_store.backends.postgresql.policies import (
    ALL_TENANTS,
    DIGEST,
    NOBODY,
    OWNED,
    ROW_SECURITY_SETTING,
    TENANT,
    Words,
    render_all,
    render_disabled,
    render_enabled,
    render_lock,
    render_policies,
    render_removed_role,
    render_role,
    render_wall,
    write_literal,
    write_oid,
    write_policies,
)
from locus_store.errors import InvalidArgumentError, NotFoundError, SchemaError, UnsupportedError
from locus_store.sql.schema.definition import load_definition_of
from locus_store.sql.schema.migrations import Target, get_dialect_name, lock, run_on
from locus_store.sql.schema.status import read_setting, read_status
from locus_store.sql.schema.tables import (
    DEFAULT_PREFIX,
    Tables,
    check_prefix,
    derive_name,
    make_tables,
)
from locus_store.types.arguments import check_tenant

T = TypeVar("T")

_LOCK_MILLISECONDS: Final = 200
"""A lock is waited for, and calls wait behind it, for so long. Then all are released, before the
server finds a deadlock, which ends a call."""

_PATIENCE_SECONDS: Final = 600.0


class RowSecurity(NamedTuple):
    """The row security of a database."""

    is_enabled: bool
    problems: tuple[str, ...]
    """Parts of it that tables lack, which ``enable`` restores, and roles with too many rights."""

    roles: dict[str, str]
    """The tenant of each role that is bound to one."""


def enable(target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> bool:
    """Put all tables with rows of tenants under row security; ``False`` if they were.

    One transaction, for which calls wait. A second run restores what the tables lack.

    Raises:
        UnsupportedError: It is not PostgreSQL.
        SchemaError: The database is not up to date.
        BackendError: The role does not own the tables.
    """
    return _run_on(target, _enable, prefix, schema)


def disable(target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> bool:
    """Remove row security; ``False`` if there was none.

    Raises:
        InvalidArgumentError: A role is bound to a tenant.
    """
    return _run_on(target, _disable, prefix, schema)


def read(target: Target, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> RowSecurity:
    """Return the row security of a database."""
    return _run_on(target, _read, prefix, schema)


def add_role(
    target: Target,
    tenant: str,
    role: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
) -> bool:
    """Bind a role to a tenant, with the rights that the library needs; ``False`` if it was.

    Raises:
        NotFoundError: There is no such role.
        InvalidArgumentError: The role could leave the tenant, or belongs to another one.
        SchemaError: Row security is not enabled.
    """
    check_tenant(tenant)
    return _run_on(target, partial(_add_role, tenant=tenant, role=role), prefix, schema)


def remove_role(
    target: Target, role: str, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> bool:
    """Take the rights from a role that was bound to a tenant; ``False`` if it was not."""
    return _run_on(target, partial(_remove_role, role=role), prefix, schema)


def render_sql(
    action: str, *values: str, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> str:
    """Return the statements of an action as text, to be run by the owner of the tables.

    Args:
        action: ``enable``, ``disable``, ``add-role`` or ``remove-role``.
        values: The tenant and the role that the action names.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.
    """
    dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]  # SQLAlchemy's
    ours = make_tables(check_prefix(prefix, "postgresql"), schema)
    words = Words(dialect, ours, "CURRENT_ROLE")
    made: list[str] = []
    if action in {"enable", "add-role"}:
        has_wall = action == "add-role"
        made = [render_enabled(words), *render_all(words, has_wall=has_wall)]
        if has_wall:
            made += render_role(words, *values)
    elif action == "disable":
        made = [*render_disabled(words)]
    else:
        made = [*render_removed_role(words, *values)]
    return "BEGIN;\n\n" + "".join(f"{it};\n\n" for it in (*made, "COMMIT"))


def is_secured(connection: Connection, ours: Tables) -> bool:
    """Return whether the tables are under row security."""
    return read_setting(connection, ours, ROW_SECURITY_SETTING) is not None


def hide(connection: Connection, table: str) -> None:
    """Hide the rows of a table that was just created, and its partitions, from all but its owner.

    Direct queries of a partition meet its own policies only, and so find no row.
    """
    connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    _run(connection, _render_partitions(connection, write_oid(table), "ENABLE", "FORCE"))


def secure(connection: Connection, ours: Tables, *names: str) -> None:
    """Put tables that were just created under row security, if the others are.

    Args:
        connection: In the transaction that created them.
        ours: The tables.
        names: Without the prefix; ``heads`` is the view.
    """
    if not is_secured(connection, ours):
        return
    words = _make_words(connection, ours)
    has_wall = _has(connection, words.write_table("roles"))
    for name in names:
        _run(connection, render_policies(words, name, has_wall=has_wall))


ALL_NAMED: Final = (
    f"SELECT set_config('{ALL_TENANTS}', 'on', true), coalesce(nullif(current_setting("
    f"'{TENANT}', true), ''), set_config('{TENANT}', '{NOBODY}', true))"
)
"""The statement that lets the tables' owner see all tenants until the transaction ends."""


def see_all_tenants(connection: Connection, ours: Tables) -> bool:
    """Let the tables' owner see the rows of all tenants; return whether this role sees them.

    Raises:
        SchemaError: The policies name an earlier owner of the tables, not this one.
    """
    if not is_secured(connection, ours):
        return True
    table = write_oid(Words(connection.dialect, ours, "").write_table("threads"))
    name = write_literal(derive_name(f"{ours.prefix}administrator"))
    query = f"""{ALL_NAMED}, row_security_active(c.oid) AND NOT EXISTS (SELECT FROM pg_policy p,
        unnest(p.polroles) r (oid) WHERE p.polrelid = c.oid AND pg_has_role(r.oid, 'USAGE')
        AND p.polname = {name}), pg_has_role(c.relowner, 'USAGE')
        FROM pg_class c WHERE c.oid = {table}"""
    *_, is_hidden, is_owner = connection.exec_driver_sql(query).one()
    if is_hidden and is_owner:
        raise SchemaError(
            "row security names an earlier owner of the tables, and hides rows from this one; "
            "nothing was done; run: locus-store db row-security enable"
        )
    return not is_hidden


def _run_on(
    target: Target, body: Callable[[Connection, Words], T], prefix: str, schema: str | None
) -> T:
    name = get_dialect_name(target)
    if name != "postgresql":
        raise UnsupportedError(
            f"{name}: row security is a feature of PostgreSQL; SQL for Oracle is in "
            "docs/row-security.md"
        )
    return run_on(target, partial(_run_in_transaction, body=body), prefix=prefix, schema=schema)


def _run_in_transaction(
    connection: Connection, ours: Tables, *, body: Callable[[Connection, Words], T]
) -> T:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            with translate_owner_errors(connection, "row security"), lock(connection, ours):
                status = read_status(connection, ours)
                if status.settings is None or status.state != "ok":
                    raise SchemaError(status.message)
                return body(connection, _make_words(connection, ours))
        except DBAPIError as error:
            if get_sqlstate(error) not in RACES or time.monotonic() > until:
                raise


def _lock_tables(connection: Connection, words: Words) -> None:
    """Lock out all calls. One that waits for another table meanwhile continues soon."""
    _run(connection, [f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}", *render_lock(words)])


def _make_words(connection: Connection, ours: Tables) -> Words:
    schema = load_definition_of(connection).find_schema(connection, ours)
    home = make_tables(ours.prefix, schema)
    words = Words(connection.dialect, home, "")
    owner = connection.exec_driver_sql(
        "SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class "
        f"WHERE oid = {write_oid(words.write_table('threads'))}"
    ).scalar_one()
    return words._replace(owner=owner)


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


def _has(connection: Connection, table: str) -> bool:
    return connection.exec_driver_sql(f"SELECT {write_oid(table)} IS NOT NULL").scalar_one() is True


def _enable(connection: Connection, words: Words) -> bool:
    before = _read(connection, words)
    if before.is_enabled and not before.problems:
        return False
    _lock_tables(connection, words)
    has_wall = _has(connection, words.write_table("roles"))
    _run(connection, [render_enabled(words), *render_all(words, has_wall=has_wall)])
    _run(connection, _render_partitions(connection, words.oids, "ENABLE", "FORCE"))
    return True


def _disable(connection: Connection, words: Words) -> bool:
    before = _read(connection, words)
    if before.roles:
        raise InvalidArgumentError(
            f"the role {next(iter(before.roles))!r} is bound to a tenant, and would see all of "
            "them; remove it first: locus-store db row-security remove-role"
        )
    if not before.is_enabled:
        return False
    _lock_tables(connection, words)
    _run(connection, render_disabled(words))
    _run(connection, _render_partitions(connection, words.oids, "NO FORCE", "DISABLE"))
    return True


def _render_partitions(connection: Connection, tables: str, *actions: str) -> Iterator[str]:
    """Yield statements for the partitions of tables, which are named by their numbers."""
    query = f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent IN ({tables})"
    for name in connection.exec_driver_sql(query).scalars().all():
        for action in actions:
            yield f"ALTER TABLE {name} {action} ROW LEVEL SECURITY"


def _find_tables(connection: Connection, words: Words) -> Sequence[Any]:
    """Return all tables with rows of tenants, their partitions included, and their policies."""
    owner = f"ARRAY[{write_literal(words.owner)}::regrole::oid]"
    return connection.exec_driver_sql(
        "SELECT c.oid::regclass::text AS name, c.relname, c.relispartition, c.relrowsecurity AND "
        "c.relforcerowsecurity AS is_forced, ARRAY(SELECT polname::text FROM pg_policy "
        "WHERE polrelid = c.oid) AS policies, ARRAY(SELECT p.polname::text FROM pg_policy p WHERE "
        f"p.polrelid = c.oid AND (obj_description(p.oid, 'pg_policy') IS DISTINCT FROM {DIGEST} "
        f"OR p.polpermissive AND p.polroles NOT IN ('{{0}}', {owner})) "
        f"AND (p.polpermissive OR p.polname::text IN ({write_policies(words.ours)}))) AS altered "
        "FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid "
        f"WHERE c.oid IN ({words.oids}) OR i.inhparent IN ({words.oids}) ORDER BY 2"
    ).all()


def _read(connection: Connection, words: Words) -> RowSecurity:
    is_enabled, roles = is_secured(connection, words.ours), {}
    has_wall = _has(connection, words.write_table("roles"))
    if has_wall:
        query = f"SELECT role, tenant FROM {words.write_table('roles')} ORDER BY 1"
        found = connection.exec_driver_sql(query)
        roles = dict(map(tuple, found))
    problems = []
    owned = {f"{words.ours.prefix}{it}" for it in OWNED}
    for table in _find_tables(connection, words) if is_enabled else ():
        wanted = set() if table.relispartition else {"tenant", "administrator"}
        if has_wall and table.relname in owned:
            wanted.add("role")
        lacking = sorted(wanted - {x.removeprefix(words.ours.prefix) for x in table.policies})
        if not table.is_forced:
            lacking.insert(0, "row security")
        problems += [
            f"{table.name} lacks {'the policy ' * (x != 'row security')}{x}" for x in lacking
        ]
        problems += [
            f"{table.name} has a policy {x!r} that enable did not create in this form: drop it, "
            "and run enable again"
            for x in table.altered
        ]
    for role in _read_roles(connection, words, list(roles)) if roles else ():
        if role.way is not None:
            problems.append(f"the role {role.rolname!r} can leave its tenant: it {role.way}")
    return RowSecurity(is_enabled, tuple(problems), roles)


_ROLE: Final = """
WITH RECURSIVE beyond AS (
  SELECT m.member AS role, m.roleid FROM pg_auth_members m UNION
  SELECT b.role, m.roleid FROM beyond b JOIN pg_auth_members m ON m.member = b.roleid)
SELECT r.rolname, r.rolinherit, CASE
    WHEN r.rolsuper OR r.rolbypassrls OR r.rolcreaterole OR r.rolreplication OR r.oid = c.relowner
      THEN 'has more than plain rights'
    WHEN has_schema_privilege(r.oid, c.relnamespace, 'CREATE')
      THEN 'may create objects in the schema of the tables'
    ELSE (SELECT 'is a member of ' || quote_literal(min(b.rolname))
      FROM beyond m JOIN pg_roles b ON b.oid = m.roleid
      WHERE m.role = r.oid AND b.rolname <> :of_tenants AND (
        b.rolname LIKE 'pg\\_%' OR b.rolsuper OR b.rolbypassrls OR b.rolcreaterole
        OR b.rolreplication OR EXISTS (SELECT FROM unnest(ARRAY[{tables}]) t (oid)
          WHERE has_any_column_privilege(b.oid, t.oid, 'SELECT, INSERT, UPDATE')
            OR has_table_privilege(b.oid, t.oid, 'DELETE, TRUNCATE, TRIGGER'))))
  END AS way
FROM pg_roles r, pg_class c WHERE r.rolname = ANY (:names) AND c.oid = {threads}
"""


def _read_roles(connection: Connection, words: Words, names: Sequence[str]) -> Sequence[Any]:
    """Return roles, and by which way each could leave its tenant, if there is one."""
    threads = write_oid(words.write_table("threads"))
    query = sa.text(_ROLE.format(threads=threads, tables=words.oids))
    given = sa.bindparam("names", [*names], sa.ARRAY(sa.Text))
    group = derive_name(f"{words.ours.prefix}tenants")
    return connection.execute(query.bindparams(given, of_tenants=group)).all()


def _add_role(connection: Connection, words: Words, *, tenant: str, role: str) -> bool:
    if not is_secured(connection, words.ours):
        raise SchemaError("row security is not enabled: locus-store db row-security enable")
    _run(connection, render_wall(words))
    bound = _read(connection, words).roles
    found = next(iter(_read_roles(connection, words, [role])), None)
    quoted = words.dialect.identifier_preparer.quote(role)
    if found is None:
        raise NotFoundError(f"there is no role {role!r}: CREATE ROLE {quoted} LOGIN PASSWORD '…'")
    if role in bound:
        if bound[role] != tenant:
            raise InvalidArgumentError(f"the role {role!r} is bound to tenant {bound[role]!r}")
        return False
    if found.way is not None:
        raise InvalidArgumentError(
            f"the role {role!r} could leave its tenant: it {found.way}; create a plain role for it"
            " (no SUPERUSER, BYPASSRLS, CREATEROLE or REPLICATION, not the owner, without CREATE"
            " on the schema, in no role of the server's own or with rights on the tables)"
        )
    if not found.rolinherit:
        raise InvalidArgumentError(
            f"the role {role!r} does not inherit: ALTER ROLE {quoted} INHERIT"
        )
    _run(connection, render_all(words, has_wall=True))
    _run(connection, render_role(words, tenant, role))
    return True


def _remove_role(connection: Connection, words: Words, *, role: str) -> bool:
    if role not in _read(connection, words).roles:
        return False
    _run(connection, render_removed_role(words, role))
    return True
