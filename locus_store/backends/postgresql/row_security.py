"""Row security: policies by which the server itself keeps tenants apart.

The *floor* serves roles that work for every tenant: each statement names its tenant in the setting
``locus.tenant``, and the policies show the rows of that tenant. A statement without it fails. The
*wall* is a role for one tenant: a restrictive policy finds the tenant of the role in a table, so no
setting leads to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import Connection, Dialect

from locus_store.backends.postgresql.failures import get_sqlstate, translate_owner_errors
from locus_store.errors import InvalidArgumentError, NotFoundError, SchemaError, UnsupportedError
from locus_store.sql.columns.types import decode_key, encode_key
from locus_store.sql.schema.definition import load_definition_of
from locus_store.sql.schema.migrations import Target, get_dialect_name, lock, run_on
from locus_store.sql.schema.status import read_status
from locus_store.sql.schema.tables import (
    DEFAULT_PREFIX,
    Tables,
    check_prefix,
    derive_name,
    make_tables,
)
from locus_store.types.arguments import check_tenant

T = TypeVar("T")

ROW_SECURITY_SETTING: Final = "row_security"
"""Row of ``settings`` that says that statements have to name their tenant."""

TENANT: Final = "locus.tenant"
"""The setting that names the tenant of a transaction."""

ALL_TENANTS: Final = "locus.all_tenants"
"""The setting by which the tables' owner sees the rows of all tenants."""

UNSET: Final = "locus.tenant_is_unset"
"""The server names this setting, which does not exist, in the error of a statement without a
tenant."""

MARK: Final = "true /* the tenant is set here */"
"""The condition of a statement's main query that ``guard`` replaces."""

_NOBODY: Final = "/all"
"""The key of no tenant; see ``encode_key``."""

_UNDEFINED: Final = "42704"
_PARENTS: Final = {
    **dict.fromkeys(("checkpoints", "segments", "writes", "search"), ("lines", "line")),
    **dict.fromkeys(("logs", "messages"), ("threads", "thread")),
    "embeddings": ("store", "item"),
}
"""The tables without a tenant: the table that has it, and the column of both."""

_OWNED: Final = ("threads", "lines", "turns", "store")
TABLES: Final = (*_OWNED, *_PARENTS)
_ON_REQUEST: Final = ("search", "embeddings")
_FIXED: Final = tuple(it for it in TABLES if it not in _ON_REQUEST)
_POLICIES: Final = ("tenant", "administrator", "role")
_KEYS: Final = {"threads": "thread", "lines": "line", "store": "item"}
"""The numbers that the server gives; a role of one tenant may not choose them."""

_SET_TENANT: Final = (
    f"(SELECT coalesce(nullif(current_setting('{TENANT}', true), ''), current_setting('{UNSET}')))"
)
_TENANT_OF_ROLE: Final = "(SELECT r.tenant FROM {roles} r WHERE r.role = {me})"
_ME: Final = "current_user"


def guard(text: str, parameter: str = "$1") -> str:
    """Return a statement that sets its tenant before it reads a row.

    The condition has no column, so the server checks it once, above all scans of the main query,
    and runs the parts of WITH after that.

    Args:
        text: It has ``MARK`` among the conditions of its main query, or is a SELECT.
        parameter: The tenant.
    """
    condition = f"(SELECT pg_catalog.set_config('{TENANT}', {parameter}, true)) IS NOT NULL"
    if MARK in text:
        return text.replace(MARK, condition)
    return f"SELECT found.* FROM ({text}\n) found WHERE {condition}"


def is_unset(exc: BaseException) -> bool:
    """Return whether the server refused a statement that named no tenant."""
    return get_sqlstate(exc) == _UNDEFINED and UNSET in str(exc)


# --- the policies


class _Words(NamedTuple):
    """The names in the statements."""

    dialect: Dialect
    ours: Tables
    owner: str
    """The role that owns the tables, quoted."""

    def table(self, name: str) -> str:
        """Return the name of a table or view of ours, qualified and quoted."""
        table = sa.table(f"{self.ours.prefix}{name}", schema=self.ours.schema)
        return self.dialect.identifier_preparer.format_table(table)

    def quote(self, name: str) -> str:
        """Return a name of ours without a schema."""
        return self.dialect.identifier_preparer.quote(derive_name(f"{self.ours.prefix}{name}"))

    @property
    def oids(self) -> str:
        """The tables with rows of tenants, by their numbers."""
        return ", ".join(_oid(self.table(it)) for it in TABLES)

    def policy(self, table: str, name: str, rule: str, *, to: str = "", kind: str = "") -> str:
        """Return the statement that creates a policy for reads and writes."""
        roles = f" TO {to}" if to else ""
        return f"CREATE POLICY {self.quote(name)} ON {table}{kind}{roles} USING ({rule})"


def _render_policies(words: _Words, name: str, *, has_wall: bool) -> Iterator[str]:
    """Yield the statements that put a table under row security, whatever it has now."""
    table = words.table(name)
    for action in ("ENABLE", "FORCE"):
        yield f"ALTER TABLE {table} {action} ROW LEVEL SECURITY"
    for it in _POLICIES:
        yield f"DROP POLICY IF EXISTS {words.quote(it)} ON {table}"
    # IS TRUE: without statistics, an index on the tenant looked better than one on the key. `OR`
    # the function: it also sees the parent's row that the same statement has just inserted.
    rule = f"(tenant = {_SET_TENANT}) IS TRUE"
    if name in _PARENTS:
        parent, key = _PARENTS[name]
        found = f"(SELECT true FROM {words.table(parent)} p WHERE p.{key} = {table}.{key})"
        rule = f"{found} OR {words.table(f'owns_{key}')}({key})"
    yield words.policy(table, "tenant", rule)
    every = f"(SELECT current_setting('{ALL_TENANTS}', true)) = 'on'"
    yield words.policy(table, "administrator", every, to=words.owner)
    if has_wall and name in _OWNED:
        mine = _TENANT_OF_ROLE.format(roles=words.table("roles"), me=_ME)
        group, kind = words.quote("tenants"), " AS RESTRICTIVE"
        yield words.policy(table, "role", f"(tenant = {mine}) IS TRUE", to=group, kind=kind)
    if has_wall:
        yield from _render_grants(words, name)


def _render_functions(words: _Words) -> Iterator[str]:
    """Yield the functions that say whether a row of a parent is visible by now."""
    for parent, key in dict.fromkeys(_PARENTS.values()):
        yield (
            f"CREATE OR REPLACE FUNCTION {words.table(f'owns_{key}')}(bigint) RETURNS boolean "
            f"LANGUAGE sql VOLATILE BEGIN ATOMIC "
            f"SELECT EXISTS (SELECT FROM {words.table(parent)} p WHERE p.{key} = $1); END"
        )


def _render_grants(words: _Words, name: str) -> Iterator[str]:
    """Yield what a role of one tenant may do with a table: all but choose the server's numbers."""
    group, key = words.quote("tenants"), _KEYS.get(name)
    columns = ""
    if key is not None:
        named = (it.name for it in getattr(words.ours, name).columns if it.name != key)
        columns = f" ({', '.join(map(words.dialect.identifier_preparer.quote, named))})"
    changes = f"INSERT{columns}, UPDATE{columns}"
    yield f"GRANT SELECT, {changes}, DELETE ON {words.table(name)} TO {group}"


def _render_wall(words: _Words) -> Iterator[str]:
    """Yield the statements that prepare for roles of one tenant; a second run changes nothing."""
    group, roles, owner = words.quote("tenants"), words.table("roles"), words.owner
    yield _block(f"CREATE ROLE {group} NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL")
    yield (
        f"CREATE TABLE IF NOT EXISTS {roles} "
        '(role varchar(63) COLLATE "C" PRIMARY KEY, tenant varchar(64) COLLATE "C" NOT NULL)'
    )
    yield f"ALTER TABLE {roles} OWNER TO {owner}"
    yield f"ALTER TABLE {roles} ENABLE ROW LEVEL SECURITY"
    yield f"DROP POLICY IF EXISTS {words.quote('role')} ON {roles}"
    yield words.policy(roles, "role", f"role = {_ME}", to=group, kind=" FOR SELECT")
    yield _block(
        "EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', (SELECT nspname FROM pg_class c JOIN "
        f"pg_namespace n ON n.oid = relnamespace WHERE c.oid = {_oid(roles)}), {_literal(group)})"
    )
    common = ", ".join(map(words.table, ("settings", "version", "heads", "roles")))
    yield f"GRANT SELECT ON {common} TO {group}"


def _render_all(words: _Words, names: Sequence[str], *, has_wall: bool) -> Iterator[str]:
    if has_wall:
        yield from _render_wall(words)
    yield from _render_functions(words)
    for name in names:
        yield from _render_policies(words, name, has_wall=has_wall)
    yield f"ALTER VIEW {words.table('heads')} SET (security_invoker = true)"


def _render_if_made(words: _Words, name: str, statements: Iterable[str]) -> str:
    """Return the statement that executes others if a table exists."""
    exists = f"{_oid(words.table(name))} IS NOT NULL"
    return _block(f"IF {exists} THEN {'; '.join(statements)}; END IF")


def _render_enabled(words: _Words) -> str:
    settings, name = words.table("settings"), ROW_SECURITY_SETTING
    return (
        f"INSERT INTO {settings} (name, value) VALUES ('{name}', 'on') "
        "ON CONFLICT (name) DO NOTHING"
    )


def _render_open(words: _Words, name: str) -> Iterator[str]:
    """Yield the statements that remove the policies of a table."""
    table = words.table(name)
    for it in _POLICIES:
        yield f"DROP POLICY IF EXISTS {words.quote(it)} ON {table}"
    for action in ("NO FORCE", "DISABLE"):
        yield f"ALTER TABLE {table} {action} ROW LEVEL SECURITY"


def _render_disabled(words: _Words) -> Iterator[str]:
    yield f"DELETE FROM {words.table('settings')} WHERE name = '{ROW_SECURITY_SETTING}'"
    yield f"ALTER VIEW {words.table('heads')} RESET (security_invoker)"
    for name in TABLES:
        opened = _render_open(words, name)
        yield from [_render_if_made(words, name, opened)] if name in _ON_REQUEST else opened
    for _, key in dict.fromkeys(_PARENTS.values()):
        yield f"DROP FUNCTION IF EXISTS {words.table(f'owns_{key}')}(bigint)"
    group, roles = words.quote("tenants"), words.table("roles")
    tables = ", ".join(map(words.table, (*_FIXED, "settings", "version", "heads")))
    removed = f"REVOKE ALL ON {tables}, {roles} FROM {group}", f"DROP TABLE {roles}"
    yield _render_if_made(words, "roles", removed)


def _render_role(words: _Words, tenant: str, role: str) -> Iterator[str]:
    """Yield the statements that bind a role to a tenant."""
    quoted, key = words.dialect.identifier_preparer.quote(role), _literal(encode_key(tenant))
    yield f"INSERT INTO {words.table('roles')} VALUES ({_literal(role)}, {key})"
    yield f"GRANT {words.quote('tenants')} TO {quoted}"
    # So that the role's own SQL has it. Only some roles may set it; it decides nothing.
    yield _render_default(quoted, f"SET {TENANT} = %L", f", {key}")


def _render_removed_role(words: _Words, role: str) -> Iterator[str]:
    quoted = words.dialect.identifier_preparer.quote(role)
    yield f"REVOKE {words.quote('tenants')} FROM {quoted}"
    yield f"DELETE FROM {words.table('roles')} WHERE role = {_literal(role)}"
    yield _render_default(quoted, f"RESET {TENANT}")


def _render_default(role: str, change: str, value: str = "") -> str:
    """Return the statement that changes the setting with which a role's sessions begin."""
    return _block(
        f"EXECUTE format('ALTER ROLE %s IN DATABASE %I {change}', {_literal(role)}, "
        f"current_database(){value}); EXCEPTION WHEN insufficient_privilege THEN NULL"
    )


def _block(body: str) -> str:
    """Return a statement that executes a body, whatever a name in it contains."""
    tag = "do"
    while f"${tag}$" in body:
        tag += "o"
    return f"DO ${tag}$BEGIN {body}; END${tag}$"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _oid(name: str) -> str:
    return f"to_regclass({_literal(name)})"


# --- on a database


class RowSecurity(NamedTuple):
    """The row security of a database."""

    is_enabled: bool
    problems: tuple[str, ...]
    """What the tables lack of it: run ``locus-store db row-security enable`` again."""

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
    action: str,
    *values: str,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
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
    words = _Words(dialect, ours, "CURRENT_ROLE")
    made: list[str] = []
    if action in {"enable", "add-role"}:
        has_wall = action == "add-role"
        made = [_render_enabled(words), *_render_all(words, _FIXED, has_wall=has_wall)]
        made += [
            _render_if_made(words, it, _render_policies(words, it, has_wall=has_wall))
            for it in _ON_REQUEST
        ]
        if has_wall:
            made += _render_role(words, *values)
    elif action == "disable":
        made = [*_render_disabled(words)]
    else:
        made = [*_render_removed_role(words, *values)]
    return "BEGIN;\n\n" + "".join(f"{it};\n\n" for it in (*made, "COMMIT"))


def is_secured(connection: Connection, ours: Tables) -> bool:
    """Return whether the tables are under row security."""
    names = ours.settings.c.name
    found = sa.select(names).where(names == ROW_SECURITY_SETTING)
    return connection.execute(found).first() is not None


def list_policies(ours: Tables) -> list[str]:
    """Return the names of the policies that the library creates."""
    return [derive_name(f"{ours.prefix}{it}") for it in _POLICIES]


def hide(connection: Connection, table: str) -> None:
    """Hide the rows of a table that was just created, and its partitions, from all but its owner.

    Direct queries of a partition meet its own policies only, and so find no row.
    """
    connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    _run(connection, _render_partitions(connection, _oid(table), "ENABLE", "FORCE"))


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
    has_wall = _has(connection, words.table("roles"))
    for name in names:
        if name == "heads":
            _run(connection, [f"ALTER VIEW {words.table(name)} SET (security_invoker = true)"])
        else:
            _run(connection, _render_policies(words, name, has_wall=has_wall))


def see_all_tenants(connection: Connection) -> None:
    """Let the tables' owner see the rows of all tenants until the transaction ends."""
    connection.exec_driver_sql(
        f"SELECT set_config('{ALL_TENANTS}', 'on', true), coalesce(nullif(current_setting("
        f"'{TENANT}', true), ''), set_config('{TENANT}', '{_NOBODY}', true))"
    )


def _run_on(
    target: Target, body: Callable[[Connection, _Words], T], prefix: str, schema: str | None
) -> T:
    name = get_dialect_name(target) if isinstance(target, str | sa.URL) else target.dialect.name
    if name != "postgresql":
        raise UnsupportedError(
            f"{name}: row security is a feature of PostgreSQL; see docs/row-security.md for Oracle"
        )
    return run_on(target, partial(_in_transaction, body=body), prefix=prefix, schema=schema)


def _in_transaction(
    connection: Connection, ours: Tables, *, body: Callable[[Connection, _Words], T]
) -> T:
    with translate_owner_errors(connection, "row security"), lock(connection, ours):
        status = read_status(connection, ours)
        if status.settings is None or status.state != "ok":
            raise SchemaError(status.message)
        return body(connection, _make_words(connection, ours))


def _make_words(connection: Connection, ours: Tables) -> _Words:
    schema = load_definition_of(connection).find_schema(connection, ours)
    home = make_tables(ours.prefix, schema)
    words = _Words(connection.dialect, home, "")
    owner = connection.exec_driver_sql(
        "SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class "
        f"WHERE oid = {_oid(words.table('threads'))}"
    ).scalar_one()
    return words._replace(owner=owner)


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


def _has(connection: Connection, table: str) -> bool:
    return connection.exec_driver_sql(f"SELECT {_oid(table)} IS NOT NULL").scalar_one() is True


def _list_tables(connection: Connection, words: _Words) -> list[str]:
    return [it for it in TABLES if _has(connection, words.table(it))]


def _enable(connection: Connection, words: _Words) -> bool:
    before = _read(connection, words)
    if before.is_enabled and not before.problems:
        return False
    has_wall = _has(connection, words.table("roles"))
    names = _list_tables(connection, words)
    _run(connection, [_render_enabled(words), *_render_all(words, names, has_wall=has_wall)])
    _run(connection, _render_partitions(connection, words.oids, "ENABLE", "FORCE"))
    return True


def _disable(connection: Connection, words: _Words) -> bool:
    before = _read(connection, words)
    if before.roles:
        raise InvalidArgumentError(
            f"the role {next(iter(before.roles))!r} is bound to a tenant, and would see all of them; "
            "remove it first: locus-store db row-security remove-role"
        )
    if not before.is_enabled:
        return False
    _run(connection, _render_disabled(words))
    _run(connection, _render_partitions(connection, words.oids, "NO FORCE", "DISABLE"))
    return True


def _render_partitions(connection: Connection, tables: str, *actions: str) -> Iterator[str]:
    """Yield statements for the partitions of tables, which are named by their numbers."""
    query = f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent IN ({tables})"
    for name in connection.exec_driver_sql(query).scalars().all():
        for action in actions:
            yield f"ALTER TABLE {name} {action} ROW LEVEL SECURITY"


def _find_tables(connection: Connection, words: _Words) -> Sequence[Any]:
    """Return all tables with rows of tenants, their partitions included, and their policies."""
    return connection.exec_driver_sql(
        "SELECT c.oid::regclass::text AS name, c.relname, c.relispartition, c.relrowsecurity AND "
        "c.relforcerowsecurity AS is_forced, ARRAY(SELECT polname::text FROM pg_policy "
        "WHERE polrelid = c.oid) AS policies FROM pg_class c LEFT JOIN pg_inherits i "
        f"ON i.inhrelid = c.oid WHERE c.oid IN ({words.oids}) OR i.inhparent IN ({words.oids}) "
        "ORDER BY 2"
    ).all()


def _read(connection: Connection, words: _Words) -> RowSecurity:
    is_enabled, roles = is_secured(connection, words.ours), {}
    has_wall = _has(connection, words.table("roles"))
    if has_wall:
        query = f"SELECT role, tenant FROM {words.table('roles')} ORDER BY 1"
        found = connection.exec_driver_sql(query)
        roles = {role: decode_key(tenant) for role, tenant in found}
    problems = []
    owned = {f"{words.ours.prefix}{it}" for it in _OWNED}
    for it in _find_tables(connection, words) if is_enabled else ():
        wanted = set() if it.relispartition else {"tenant", "administrator"}
        if has_wall and it.relname in owned:
            wanted.add("role")
        lacking = sorted(wanted - {x.removeprefix(words.ours.prefix) for x in it.policies})
        if not it.is_forced:
            lacking.insert(0, "row security")
        problems += [f"{it.name} lacks {'the policy ' * (x != 'row security')}{x}" for x in lacking]
    return RowSecurity(is_enabled, tuple(problems), roles)


_ROLE: Final = """
SELECT rolsuper OR rolbypassrls OR rolcreaterole OR r.oid = (SELECT relowner FROM pg_class
    WHERE oid = {threads}) AS is_mighty, rolinherit AS inherits,
  (SELECT min(b.rolname) FROM pg_roles b WHERE b.rolname <> r.rolname AND b.rolname <> $2
    AND pg_has_role(r.oid, b.oid, 'MEMBER') AND has_table_privilege(b.oid, {threads}, 'SELECT'))
    AS beyond
FROM pg_roles r WHERE rolname = $1
"""


def _add_role(connection: Connection, words: _Words, *, tenant: str, role: str) -> bool:
    if not is_secured(connection, words.ours):
        raise SchemaError("row security is not enabled: locus-store db row-security enable")
    _run(connection, _render_wall(words))
    bound = _read(connection, words).roles
    group = derive_name(f"{words.ours.prefix}tenants")
    query = sa.text(
        _ROLE.format(threads=_oid(words.table("threads")))
        .replace("$1", ":role")
        .replace("$2", ":g")
    )
    found = connection.execute(query, {"role": role, "g": group}).first()
    quoted = words.dialect.identifier_preparer.quote(role)
    if found is None:
        raise NotFoundError(f"there is no role {role!r}: CREATE ROLE {quoted} LOGIN PASSWORD '…'")
    if role in bound:
        if bound[role] != tenant:
            raise InvalidArgumentError(f"the role {role!r} is bound to tenant {bound[role]!r}")
        return False
    if found.is_mighty or found.beyond:
        why = f"is a member of {found.beyond!r}" if found.beyond else "has more than plain rights"
        raise InvalidArgumentError(
            f"the role {role!r} could leave its tenant: it {why}; create a plain role for it "
            "(no SUPERUSER, BYPASSRLS or CREATEROLE, not the owner, in no role that reads the tables)"
        )
    if not found.inherits:
        raise InvalidArgumentError(
            f"the role {role!r} does not inherit: ALTER ROLE {quoted} INHERIT"
        )
    _run(connection, _render_all(words, _list_tables(connection, words), has_wall=True))
    _run(connection, _render_role(words, tenant, role))
    return True


def _remove_role(connection: Connection, words: _Words, *, role: str) -> bool:
    if role not in _read(connection, words).roles:
        return False
    _run(connection, _render_removed_role(words, role))
    return True
