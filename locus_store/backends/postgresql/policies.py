"""The policies of row security, the roles of one tenant, and the tenant of a statement, as SQL.

The *floor* serves roles that work for every tenant: each statement names its tenant in the setting
``locus.tenant``, and the policies show the rows of that tenant. A statement without it fails. The
*wall* is a role for one tenant: a restrictive policy finds the tenant of the role in a table, so no
setting leads to another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect

from locus_store.backends.postgresql.columns import set_config
from locus_store.backends.postgresql.failures import get_sqlstate
from locus_store.errors import SchemaError
from locus_store.sql.columns.compiled import GUARD
from locus_store.sql.schema.definition import quote
from locus_store.sql.schema.tables import Tables, derive_name
from locus_store.types.arguments import MAX_TENANT_CHARACTERS

TENANT: Final = "locus.tenant"
"""The setting that names the tenant of a transaction."""

MARK: Final = "true /* the tenant is set here */"
"""The condition of a statement's main query that ``guard`` replaces."""


def guard(text: str, parameter: str = "$1") -> str:
    """Return a statement that sets its tenant before it reads a row.

    The condition has no column, so the server checks it once, above all scans of the main query,
    and runs the parts of WITH after that.

    Args:
        text: It has ``MARK`` among the conditions of its main query, or is a SELECT or a change
            without WITH; any other is returned as it is.
        parameter: The tenant.
    """
    condition = f"(SELECT pg_catalog.set_config('{TENANT}', {parameter}, true)) IS NOT NULL"
    if MARK in text:
        return text.replace(MARK, condition)
    if _QUERY.match(text):
        return f"SELECT found.* FROM ({text}\n) found WHERE {condition}"
    if _CHANGE.match(text):
        returned = "" if _RETURNING.search(text) else " RETURNING 1"
        return f"WITH done AS ({text}{returned}) SELECT * FROM done WHERE {condition}"
    return text


_QUERY: Final = re.compile(r"[\s(]*(SELECT|WITH)\b")
_CHANGE: Final = re.compile(r"\s*(INSERT|UPDATE|DELETE)\b")
_RETURNING: Final = re.compile(r"\bRETURNING\b")


def name_tenant(connection: Connection, tenant: str) -> None:
    """Name the tenant of what follows: in the statement itself where each one commits.

    Else it is named for the rest of the transaction.
    """
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.execute(sa.select(set_config(TENANT, tenant)))
        return
    guarding = partial(_guard, tenant=tenant)
    connection.execution_options(**{GUARD: guarding})
    event.listen(
        connection,
        "before_cursor_execute",
        lambda _, __, text, parameters, *___: guarding(text, parameters),
        retval=True,
    )


def _guard(text: str, parameters: Sequence[Any], *, tenant: str) -> tuple[str, Sequence[Any]]:
    """Let a statement set its tenant; see ``guard``."""
    if f"'{TENANT}'" in text:
        return text, parameters
    guarded = guard(text, f"${len(parameters) + 1}::text")
    return guarded, parameters if guarded == text else (*parameters, tenant)


_UNDEFINED: Final = "42704"
UNSET: Final = "locus.tenant_is_unset"
"""The server names this setting, which does not exist, in the error of a statement without a
tenant."""


def is_unset(exc: BaseException) -> bool:
    """Return whether the server refused a statement that named no tenant."""
    return get_sqlstate(exc) == _UNDEFINED and UNSET in str(exc)


def make_unset_error(exc: BaseException, where: str) -> SchemaError | None:
    """Return the error for a statement that named no tenant; ``None`` for all others."""
    if not is_unset(exc):
        return None
    return SchemaError(
        f"{where}: row security was enabled after this object had opened the database; nothing "
        "was read or written, and the next call names its tenant: call again"
    )


ROW_SECURITY_SETTING: Final = "row_security"
"""Row of ``settings`` that says that statements have to name their tenant."""

ALL_TENANTS: Final = "locus.all_tenants"
"""The setting by which the tables' owner sees the rows of all tenants."""

NOBODY: Final = "-" * (MAX_TENANT_CHARACTERS + 1)
"""A name that no tenant has."""

_PARENTS: Final = {
    **dict.fromkeys(("checkpoints", "segments", "writes", "search"), ("lines", "line")),
    **dict.fromkeys(("logs", "messages"), ("threads", "thread")),
    "embeddings": ("store", "item"),
}
"""The tables without a tenant: the table that has it, and the column of both."""

OWNED: Final = ("threads", "lines", "turns", "quotas", "store", "audit", "seals")
TABLES: Final = (*OWNED, *_PARENTS)
ON_REQUEST: Final = ("search", "embeddings")
FIXED: Final = tuple(it for it in TABLES if it not in ON_REQUEST)
POLICIES: Final = ("tenant", "administrator", "role")
_KEYS: Final = {"threads": "thread", "lines": "line", "store": "item", "audit": "entry"}
"""The numbers that the server gives; a role of one tenant may not choose them."""

_GROWING: Final = ("audit", "seals")
"""Tables whose rows a role of one tenant may not change."""

_SET_TENANT: Final = (
    f"(SELECT coalesce(nullif(current_setting('{TENANT}', true), ''), current_setting('{UNSET}')))"
)
_RULE: Final = "CASE WHEN tenant = {} THEN true ELSE false END"
"""A comparison that no index serves, and of which the planner expects that half of the rows pass:
else it scans a table that is small yet, for the one row that it expects of a tenant."""

DIGEST: Final = """encode(sha256(convert_to(concat_ws('|', p.polpermissive, p.polcmd,
  ARRAY(SELECT r.rolname FROM pg_roles r WHERE r.oid = ANY (p.polroles) ORDER BY 1)::text,
  replace(pg_get_expr(p.polqual, c.oid), c.relnamespace::regnamespace::text || '.', ''),
  pg_get_expr(p.polwithcheck, c.oid)), 'UTF8')), 'hex')"""
"""The content of a policy of table ``c``, in any search path; its comment has that of when it was
made."""

_TENANT_OF_ROLE: Final = "(SELECT r.tenant FROM {roles} r WHERE r.role = {me})"
_ME: Final = "current_user"


class Words(NamedTuple):
    """The names in the statements."""

    dialect: Dialect
    ours: Tables
    owner: str
    """The role that owns the tables, quoted."""

    def write_table(self, name: str) -> str:
        """Return the name of a table or view of ours, qualified and quoted."""
        return quote(self.dialect, f"{self.ours.prefix}{name}", self.ours.schema)

    def quote(self, name: str) -> str:
        """Return a name of ours without a schema."""
        return self.dialect.identifier_preparer.quote(derive_name(f"{self.ours.prefix}{name}"))

    @property
    def oids(self) -> str:
        """The tables with rows of tenants, by their numbers."""
        return ", ".join(write_oid(self.write_table(it)) for it in TABLES)

    def write_policy(
        self, table: str, name: str, rule: str, *, to: str = "", kind: str = ""
    ) -> str:
        """Return the statement that creates a policy for reads and writes."""
        roles = f" TO {to}" if to else ""
        return f"CREATE POLICY {self.quote(name)} ON {table}{kind}{roles} USING ({rule})"


def render_policies(words: Words, name: str, *, has_wall: bool) -> Iterator[str]:
    """Yield the statements that put a table, or the view, under row security, whatever it has."""
    table = words.write_table(name)
    if name == "heads":
        yield f"ALTER VIEW {table} SET (security_invoker = true)"
        return
    for action in ("ENABLE", "FORCE"):
        yield f"ALTER TABLE {table} {action} ROW LEVEL SECURITY"
    for policy in POLICIES:
        yield f"DROP POLICY IF EXISTS {words.quote(policy)} ON {table}"
    # `OR` the function: it also sees the parent's row that the same statement has just inserted.
    rule = _RULE.format(_SET_TENANT)
    if name in _PARENTS:
        parent, key = _PARENTS[name]
        found = f"(SELECT true FROM {words.write_table(parent)} p WHERE p.{key} = {table}.{key})"
        rule = f"{found} OR {words.write_table(f'owns_{key}')}({key})"
    yield words.write_policy(table, "tenant", rule)
    every = f"(SELECT current_setting('{ALL_TENANTS}', true)) = 'on'"
    yield words.write_policy(table, "administrator", every, to=words.owner)
    if has_wall and name in OWNED:
        mine = _TENANT_OF_ROLE.format(roles=words.write_table("roles"), me=_ME)
        group, kind = words.quote("tenants"), " AS RESTRICTIVE"
        yield words.write_policy(table, "role", _RULE.format(mine), to=group, kind=kind)
    noted = f"format('COMMENT ON POLICY %I ON %s IS %L', p.polname, c.oid::regclass, {DIGEST})"
    yield _make_block(
        f"EXECUTE (SELECT string_agg({noted}, '; ') FROM pg_policy p JOIN pg_class c "
        f"ON c.oid = p.polrelid WHERE c.oid = {write_oid(table)} AND p.polname "
        f"IN ({write_policies(words.ours)}))"
    )
    if has_wall:
        yield from _render_grants(words, name)


def render_functions(words: Words) -> Iterator[str]:
    """Yield the functions that say whether a row of a parent is visible by now."""
    for parent, key in dict.fromkeys(_PARENTS.values()):
        name, table = words.write_table(f"owns_{key}"), words.write_table(parent)
        yield (
            f"CREATE OR REPLACE FUNCTION {name}(bigint) RETURNS boolean LANGUAGE sql VOLATILE "
            f"BEGIN ATOMIC SELECT EXISTS (SELECT FROM {table} p WHERE p.{key} = $1); END"
        )


def list_changes(name: str) -> list[str]:
    """Return the rights beside SELECT that saving needs, at least on some columns of a table."""
    if name == "quotas":
        return ["UPDATE"]
    return ["INSERT"] if name in _GROWING else ["INSERT", "UPDATE", "DELETE"]


def _render_grants(words: Words, name: str) -> Iterator[str]:
    """Yield what a role of one tenant may do with a table: all but choose the server's numbers."""
    group, key = words.quote("tenants"), _KEYS.get(name)
    columns = ""
    if key is not None:
        named = (it.name for it in getattr(words.ours, name).columns if it.name != key)
        columns = f" ({', '.join(map(words.dialect.identifier_preparer.quote, named))})"
    if name == "quotas":  # not the limits
        columns = " (usage, revision)"
    changes = ", ".join(it if it == "DELETE" else it + columns for it in list_changes(name))
    yield f"GRANT SELECT, {changes} ON {words.write_table(name)} TO {group}"


def render_wall(words: Words) -> Iterator[str]:
    """Yield the statements that prepare for roles of one tenant; a second run changes nothing."""
    group, roles, owner = words.quote("tenants"), words.write_table("roles"), words.owner
    yield _make_block(f"CREATE ROLE {group} NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL")
    yield (
        f"CREATE TABLE IF NOT EXISTS {roles} "
        '(role varchar(63) COLLATE "C" PRIMARY KEY, tenant varchar(64) COLLATE "C" NOT NULL)'
    )
    yield f"ALTER TABLE {roles} OWNER TO {owner}"
    yield f"ALTER TABLE {roles} ENABLE ROW LEVEL SECURITY"
    yield f"DROP POLICY IF EXISTS {words.quote('role')} ON {roles}"
    yield words.write_policy(roles, "role", f"role = {_ME}", to=group, kind=" FOR SELECT")
    yield _make_block(
        "EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', (SELECT relnamespace::regnamespace "
        f"FROM pg_class WHERE oid = {write_oid(roles)}), {write_literal(group)})"
    )
    common = ", ".join(map(words.write_table, ("settings", "version", "heads", "roles")))
    yield f"GRANT SELECT ON {common} TO {group}"
    # A put gives an item with embeddings another number, which only the server may choose.
    yield f"ALTER TABLE {words.write_table('store')} ALTER COLUMN item SET GENERATED ALWAYS"
    yield f"GRANT UPDATE (item) ON {words.write_table('store')} TO {group}"


def render_all(words: Words, *, has_wall: bool) -> Iterator[str]:
    """Yield the statements that put tables and the view under row security."""
    if has_wall:
        yield from render_wall(words)
    yield from render_functions(words)
    for name in (*FIXED, "heads"):
        yield from render_policies(words, name, has_wall=has_wall)
    for name in ON_REQUEST:
        yield render_if_made(words, name, render_policies(words, name, has_wall=has_wall))


def render_lock(words: Words) -> Iterator[str]:
    """Yield the statements that lock out all calls."""
    # A save locks the lines first.
    fixed, mode = map(words.write_table, ("lines", *FIXED)), "IN ACCESS EXCLUSIVE MODE"
    yield f"LOCK TABLE {', '.join(fixed)} {mode}"
    for name in ON_REQUEST:
        yield render_if_made(words, name, [f"LOCK TABLE {words.write_table(name)} {mode}"])


def render_if_made(words: Words, name: str, statements: Iterable[str]) -> str:
    """Return the statement that executes others if a table exists."""
    exists = f"{write_oid(words.write_table(name))} IS NOT NULL"
    return _make_block(f"IF {exists} THEN {'; '.join(statements)}; END IF")


def render_enabled(words: Words) -> str:
    """Return the statement that lets processes know of row security."""
    settings, name = words.write_table("settings"), ROW_SECURITY_SETTING
    return (
        f"INSERT INTO {settings} (name, value) VALUES ('{name}', 'on') "
        "ON CONFLICT (name) DO NOTHING"
    )


def render_open(words: Words, name: str) -> Iterator[str]:
    """Yield the statements that remove the policies of a table."""
    table = words.write_table(name)
    for policy in POLICIES:
        yield f"DROP POLICY IF EXISTS {words.quote(policy)} ON {table}"
    for action in ("NO FORCE", "DISABLE"):
        yield f"ALTER TABLE {table} {action} ROW LEVEL SECURITY"


def render_disabled(words: Words) -> Iterator[str]:
    """Yield the statements that remove row security, and what prepared for roles of one tenant."""
    yield f"DELETE FROM {words.write_table('settings')} WHERE name = '{ROW_SECURITY_SETTING}'"
    yield f"ALTER VIEW {words.write_table('heads')} RESET (security_invoker)"
    for name in TABLES:
        opened = render_open(words, name)
        yield from [render_if_made(words, name, opened)] if name in ON_REQUEST else opened
    for _, key in dict.fromkeys(_PARENTS.values()):
        yield f"DROP FUNCTION IF EXISTS {words.write_table(f'owns_{key}')}(bigint)"
    group, roles = words.quote("tenants"), words.write_table("roles")
    tables = ", ".join(map(words.write_table, (*FIXED, "settings", "version", "heads", "roles")))
    for name in ON_REQUEST:
        revoked = f"REVOKE ALL ON {words.write_table(name)} FROM {group}"
        yield render_if_made(words, "roles", [render_if_made(words, name, [revoked])])
    removed = f"REVOKE ALL ON {tables} FROM {group}", f"DROP TABLE {roles}"
    yield render_if_made(words, "roles", removed)


def render_role(words: Words, tenant: str, role: str) -> Iterator[str]:
    """Yield the statements that bind a role to a tenant."""
    quoted, key = words.dialect.identifier_preparer.quote(role), write_literal(tenant)
    yield f"INSERT INTO {words.write_table('roles')} VALUES ({write_literal(role)}, {key})"
    yield f"GRANT {words.quote('tenants')} TO {quoted}"
    # So that the role's own SQL has it. Only some roles may set it; it decides nothing.
    yield _render_default(quoted, f"SET {TENANT} = %L", f", {key}")


def render_removed_role(words: Words, role: str) -> Iterator[str]:
    """Yield the statements that take its rights from a role."""
    quoted = words.dialect.identifier_preparer.quote(role)
    yield f"REVOKE {words.quote('tenants')} FROM {quoted}"
    yield f"DELETE FROM {words.write_table('roles')} WHERE role = {write_literal(role)}"
    yield _render_default(quoted, f"RESET {TENANT}")


def _render_default(role: str, change: str, value: str = "") -> str:
    """Return the statement that changes the setting with which a role's sessions begin."""
    return _make_block(
        f"EXECUTE format('ALTER ROLE %s IN DATABASE %I {change}', {write_literal(role)}, "
        f"current_database(){value}); EXCEPTION WHEN insufficient_privilege THEN NULL"
    )


def _make_block(body: str) -> str:
    """Return a statement that executes a body, whatever a name in it contains."""
    tag = "do"
    while f"${tag}$" in body:
        tag += "o"
    return f"DO ${tag}$BEGIN {body}; END${tag}$"


def write_literal(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def write_policies(ours: Tables) -> str:
    """Return the names of the policies that the library creates, as a list in SQL."""
    return ", ".join(write_literal(derive_name(f"{ours.prefix}{it}")) for it in POLICIES)


def write_oid(name: str) -> str:
    """Return the number of a table as SQL; it is NULL if there is none."""
    return f"to_regclass({write_literal(name)})::oid"
