"""The tenant of a statement, named to a server that keeps tenants apart: see ``policies``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection

from locus_store.backends.postgresql.columns import set_config
from locus_store.backends.postgresql.failures import get_sqlstate
from locus_store.errors import SchemaError
from locus_store.sql.columns.compiled import GUARD
from locus_store.sql.columns.types import encode_key

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
    key = encode_key(tenant)
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.execute(sa.select(set_config(TENANT, key)))
        return
    guarding = partial(_guard, tenant=key)
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
