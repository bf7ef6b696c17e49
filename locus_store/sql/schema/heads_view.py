"""The view of threads and their heads, for people who read the database in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

    from locus_store.types.user_ids import UserIdType


class ViewWords(NamedTuple):
    """The expressions that no two dialects share."""

    now: str
    shown: str
    """A stored instant as people read it; takes the column."""
    agent_id: str


_WORDS: Final = {
    "sqlite": ViewWords(
        now="CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
        shown="strftime('%Y-%m-%dT%H:%M:%fZ', {0} / 1000000.0, 'unixepoch')",
        agent_id="json_extract(c.labels, '$.agent_id')",
    ),
    "postgresql": ViewWords(
        now="statement_timestamp()", shown="{0}", agent_id="c.labels ->> 'agent_id'::text"
    ),
    "oracle": ViewWords(
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
        quoted(dialect, f"{prefix}{name}", schema)
        for name in ("heads", "threads", "lines", "checkpoints")
    )
    user_id = _decoded("t.user_id") if users == "string" else "t.user_id"
    select = f"""
CREATE VIEW {view} AS
SELECT {_decoded("t.tenant")} AS tenant,
  {_decoded("t.thread_id")} AS thread_id,
  {_decoded("c.checkpoint_id")} AS checkpoint_id,
  {words.agent_id} AS agent_id,
  {user_id} AS user_id,
  {words.shown.format("t.created_at")} AS created_at,
  {words.shown.format("l.updated_at")} AS updated_at,
  c.metadata AS metadata,
  c.text AS text
FROM {threads} t
JOIN {lines} l ON l.tenant = t.tenant AND l.thread_id = t.thread_id AND l.namespace = '/'
JOIN {checkpoints} c ON c.line = l.line AND c.sequence = l.head
WHERE t.expires_at IS NULL OR t.expires_at > {words.now}
"""  # noqa: S608 - a prefix is checked, a schema quoted
    return select.strip()


def quoted(dialect: Dialect, name: str, schema: str | None) -> str:
    """Return a table's or view's name in SQL."""
    return dialect.identifier_preparer.format_table(sa.table(name, schema=schema))


def _decoded(column: str) -> str:
    """Return a key as its owner wrote it: one leading slash is ours (``columns.encode_key``)."""
    return f"CASE WHEN SUBSTR({column}, 1, 1) = '/' THEN SUBSTR({column}, 2) ELSE {column} END"
