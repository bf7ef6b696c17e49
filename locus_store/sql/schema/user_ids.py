"""The column for users' ids: text, or numbers on request."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect

from locus_store.errors import SchemaError
from locus_store.sql.columns.dialect_columns import get_columns
from locus_store.sql.schema.definition import (
    OLD_USERS,
    load_definition,
    load_definition_of,
    make_place,
    quote,
    write_options,
)
from locus_store.sql.schema.migrations import Target, get_dialect_name, lock, run_on
from locus_store.sql.schema.status import USERS_SETTING, read_setting, read_status
from locus_store.sql.schema.tables import DEFAULT_PREFIX, Tables, check_prefix, make_tables
from locus_store.types.thread_info import UserIdType, check_user_id_type, is_user_id

_BATCH = 1000
"""Ids that are checked at once."""


def set_user_id_type(
    target: Target, users: UserIdType, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> bool:
    """Change the type of the column for users' ids; ``False`` if it has the type.

    One transaction on SQLite and PostgreSQL. On Oracle each definition commits: stop the
    application first; a run that was cut short is repeated. Processes that have the database open
    must be restarted.

    Args:
        target: The database; its schema is up to date.
        users: ``string``, ``int`` (32 bits) or ``bigint`` (64 bits).
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.

    Raises:
        InvalidArgumentError: There is no such type.
        SchemaError: The database is not up to date, or a thread has a user whose id does not fit.
    """
    check_user_id_type(users)
    return run_on(target, partial(_set, users=users), prefix=prefix, schema=schema)


def _set(connection: Connection, ours: Tables, *, users: UserIdType) -> bool:
    with lock(connection, ours):
        status = read_status(connection, ours)
        if not status.usable and not _is_cut_short(connection, ours):
            raise SchemaError(status.message)
        return change_column(connection, ours, users)


def _is_cut_short(connection: Connection, ours: Tables) -> bool:
    """Return whether a run that commits each definition left its column."""
    database = load_definition_of(connection)
    return database.commits_each and OLD_USERS in _list_columns(connection, ours)


def _list_columns(connection: Connection, ours: Tables) -> set[str]:
    database = load_definition_of(connection)
    return database.list_columns(
        connection, database.find_schema(connection, ours), ours.threads.name
    )


def render_sql(
    dialect: str, users: UserIdType, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> str:
    """Return the statements of ``set_user_id_type`` as text; needs no driver and no database.

    Args:
        dialect: ``sqlite``, ``postgresql`` or ``oracle``.
        users: The new type.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.
    """
    name = get_dialect_name(dialect)
    database = load_definition(name)
    database.refuse_schema(schema)
    ours = make_tables(check_prefix(prefix, name), schema, check_user_id_type(users))
    words: Any = URL.create(name).get_dialect()
    found = make_statements(words(paramstyle="named"), ours, frozenset())
    begin = database.offline_preface or "BEGIN;"
    return f"{begin}\n\n" + "".join(f"{it};\n\n" for it in (*found, "COMMIT"))


def make_statements(dialect: Dialect, ours: Tables, columns: Collection[str]) -> list[str]:
    """Return the statements that change the column to the type that it has in ``ours``."""
    users, database = ours.user_id_type, load_definition(dialect.name)
    settings = quote(dialect, ours.settings.name, ours.schema)
    statement = f"UPDATE {settings} SET value = '{users}' WHERE name = '{USERS_SETTING}'"  # noqa: S608
    # In one transaction first, so that a failure undoes it; else last, for a run that continues.
    first, last = ([], [statement]) if database.commits_each else ([statement], [])
    return [
        *first,
        f"DROP VIEW IF EXISTS {quote(dialect, ours.heads, ours.schema)}",
        *database.change_user_column(dialect, ours, columns),
        create_view(dialect, ours.prefix, ours.schema, users),
        *last,
    ]


def read_user_id_type(connection: Connection, ours: Tables) -> UserIdType:
    """Return the type that the settings name; ``string`` if there are no tables."""
    database = load_definition_of(connection)
    home = database.find_schema(connection, ours)
    if "value" not in database.list_columns(connection, home, ours.settings.name):
        return "string"
    found = read_setting(connection, make_tables(ours.prefix, home), USERS_SETTING)
    return check_user_id_type(found or "string")


def change_column(connection: Connection, ours: Tables, users: UserIdType) -> bool:
    """Change the column within the caller's transaction; ``False`` if it has the type.

    Raises:
        SchemaError: A thread has a user whose id does not fit; nothing was changed.
    """
    database = load_definition_of(connection)
    with database.translate_owner_errors(connection):
        database.lock_threads(connection, ours)
        before, columns = read_user_id_type(connection, ours), _list_columns(connection, ours)
        if users == before and OLD_USERS not in columns:
            return False
        if OLD_USERS not in columns:
            _require_ids(connection, make_tables(ours.prefix, ours.schema, before), users)
        new = make_tables(ours.prefix, ours.schema, users)
        for statement in make_statements(connection.dialect, new, columns):
            connection.exec_driver_sql(statement)
        database.secure(connection, ours, "heads")
    return True


def _require_ids(connection: Connection, ours: Tables, users: UserIdType) -> None:
    user_id = ours.threads.c.user_id
    distinct = sa.select(user_id).where(user_id.is_not(None)).distinct()
    for ids in connection.execute(distinct).scalars().partitions(_BATCH):
        wrong = [it for it in ids if not is_user_id(it, users)]
        if wrong:
            raise SchemaError(
                f"{make_place(connection).with_schema(ours.schema)}: a thread's user "
                f"{min(wrong)!r:.80} is not a number of the type {users}; nothing was changed. "
                "Keep the type 'string', or forget that user: locus-store forget"
            )


def take(connection: Connection, ours: Tables, users: UserIdType, *, may_create: bool) -> None:
    """Change the column for a session, if it may create tables and no thread is stored.

    Raises:
        SchemaError: It may not; names the command that changes the column.
    """
    found = read_user_id_type(connection, ours)
    if found == users:  # another session was first
        return
    threads = sa.select(sa.literal(1)).select_from(ours.threads).limit(1)
    if not may_create or connection.execute(threads).first():
        raise _make_type_error(connection, ours, users, found)
    change_column(connection, ours, users)


def _make_type_error(
    connection: Connection, ours: Tables, users: UserIdType, kind: UserIdType
) -> SchemaError:
    place = make_place(connection).with_schema(ours.schema)
    return SchemaError(
        f"{place}: the database's user ids are of the type {kind}, and the session's of the type "
        f"{users}; open the session with user_id_type={kind!r}, or change the database: "
        f"locus-store db user-ids {users} --url '…'{write_options(ours)}"
    )


class _ViewWords(NamedTuple):
    """The expressions that no two dialects share."""

    now: str
    shown: str
    """A stored instant as people read it; takes the column."""
    agent_id: str


_WORDS: Final = {
    "sqlite": _ViewWords(
        now="CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
        shown="strftime('%Y-%m-%dT%H:%M:%fZ', {0} / 1000000.0, 'unixepoch')",
        agent_id="json_extract(c.labels, '$.agent_id')",
    ),
    "postgresql": _ViewWords(
        now="statement_timestamp()", shown="{0}", agent_id="c.labels ->> 'agent_id'::text"
    ),
    "oracle": _ViewWords(
        now="SYSTIMESTAMP", shown="{0}", agent_id="JSON_VALUE(c.labels, '$.agent_id')"
    ),
}


def create_view(
    dialect: Dialect, prefix: str, schema: str | None, users: UserIdType = "string"
) -> str:
    """Return the statement that creates the view.

    Args:
        dialect: The database's.
        prefix: Of every table.
        schema: Database schema; ``None`` is the connection's default.
        users: The type of users' ids.
    """
    words = _WORDS[dialect.name]
    view, threads, lines, checkpoints = (
        quote(dialect, f"{prefix}{name}", schema)
        for name in ("heads", "threads", "lines", "checkpoints")
    )
    mark = get_columns(dialect).key_mark

    def decode(column: str) -> str:
        is_marked, rest = f"SUBSTR({column}, 1, 1) = '{mark}'", f"SUBSTR({column}, 2)"
        return f"CASE WHEN {is_marked} THEN {rest} ELSE {column} END" if mark else column

    user_id = decode("t.user_id") if users == "string" else "t.user_id"
    select = f"""
CREATE VIEW {view} AS
SELECT {decode("t.tenant")} AS tenant,
  {decode("t.thread_id")} AS thread_id,
  {decode("c.checkpoint_id")} AS checkpoint_id,
  {words.agent_id} AS agent_id,
  {user_id} AS user_id,
  {words.shown.format("t.created_at")} AS created_at,
  {words.shown.format("l.updated_at")} AS updated_at,
  c.metadata AS metadata,
  c.text AS text
FROM {threads} t
JOIN {lines} l ON l.tenant = t.tenant AND l.thread_id = t.thread_id AND l.namespace = '{mark}'
JOIN {checkpoints} c ON c.line = l.line AND c.sequence = l.head
WHERE t.expires_at IS NULL OR t.expires_at > {words.now}
"""  # noqa: S608 - a prefix is checked, a schema quoted
    return select.strip()
