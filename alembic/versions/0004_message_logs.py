"""Message logs: several for a thread, by namespace; their revisions; digests of messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from locus_store.sql.column_types import PlainText
from locus_store.sql.columns import Blob, Digest, Instant, Key
from locus_store.sql.json_columns import Json
from locus_store.sql.names import derived

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

FLOOR, FLOOR_BEFORE = "0004", "0003"
"""An older library would copy messages without their namespaces."""

KEPT = (
    *("thread", "sequence", "message_id", "role", "metadata"),
    *("created_at", "text", "payload"),
)


def upgrade() -> None:
    prefix, schema = _place()
    table = f"{prefix}messages"
    if _dialect() != "oracle":  # its first revision has them, as it came later
        _rebuild(table, schema, has_namespace=True)
    _make_logs(f"{prefix}logs", schema)
    _fill_logs(prefix, schema)
    _set_floor(prefix, schema, FLOOR)


LOSES = {"logs": "the message logs of namespaces, and the revision of each log"}
"""The data that ``downgrade`` deletes, by table."""


def downgrade() -> None:
    """Remove the logs, and the messages of namespaces, which the revision before has not."""
    prefix, schema = _place()
    table = f"{prefix}messages"
    messages = sa.table(table, sa.column("namespace", PlainText()), schema=schema)
    op.execute(messages.delete().where(messages.c.namespace != sa.literal_column("'/'")))
    if _dialect() != "oracle":
        _rebuild(table, schema, has_namespace=False)
    op.drop_table(f"{prefix}logs", schema=schema, if_exists=True)
    _set_floor(prefix, schema, FLOOR_BEFORE)


def _place() -> tuple[str, str | None]:
    attributes = context.config.attributes
    return attributes["prefix"], attributes["schema"]


def _dialect() -> str:
    return op.get_context().dialect.name


def _rebuild(table: str, schema: str | None, *, has_namespace: bool) -> None:
    """Make the table anew: SQLite changes no key, and the long columns stay last.

    The rows wait in a table without keys, which would keep their names.
    """
    old = f"{table}_v1"
    quote = op.get_context().dialect.identifier_preparer
    target, source = (quote.format_table(sa.table(it, schema=schema)) for it in (table, old))
    names = ", ".join(map(quote.quote, KEPT))
    op.execute(f"CREATE TABLE {source} AS SELECT {names} FROM {target}")  # noqa: S608
    op.drop_table(table, schema=schema)
    namespace = ("namespace",) if has_namespace else ()
    op.create_table(
        table,
        sa.Column("thread", sa.BigInteger, autoincrement=False, nullable=False),
        *([_namespace()] if has_namespace else []),
        sa.Column("sequence", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("message_id", Key(255), nullable=False),
        sa.Column("role", Key(255), nullable=False),
        sa.Column("metadata", Json),
        sa.Column("created_at", Instant, nullable=False),
        *([sa.Column("digest", Digest)] if has_namespace else []),
        sa.Column("text", sa.Text),
        sa.Column("payload", Blob),
        sa.PrimaryKeyConstraint("thread", *namespace, "sequence", name=derived(f"{table}_pk")),
        sa.UniqueConstraint("thread", *namespace, "message_id", name=derived(f"{table}_id")),
        schema=schema,
    )
    op.execute(f"INSERT INTO {target} ({names}) SELECT {names} FROM {source}")  # noqa: S608
    op.drop_table(old, schema=schema)


def _namespace() -> sa.Column[str]:
    return sa.Column("namespace", Key(255), server_default=sa.text("'/'"), nullable=False)


def _make_logs(table: str, schema: str | None) -> None:
    op.create_table(
        table,
        sa.Column("thread", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("namespace", Key(255), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("message_count", sa.BigInteger, nullable=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("changed_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("thread", "namespace", name=derived(f"{table}_pk")),
        schema=schema,
        if_not_exists=True,  # of a run on Oracle that was cut short
    )
    if _dialect() == "postgresql":
        name = op.get_context().dialect.identifier_preparer.format_table(
            sa.table(table, schema=schema)
        )
        op.execute(f"ALTER TABLE {name} SET (fillfactor = 50)")


def _fill_logs(prefix: str, schema: str | None) -> None:
    """Give the messages that are there their logs; all are of the root namespace."""
    columns = ("thread", "sequence", "created_at")
    messages = sa.table(f"{prefix}messages", *map(sa.column, columns), schema=schema)
    names = ("thread", "namespace", "revision", "message_count", "last_sequence", "changed_at")
    logs = sa.table(f"{prefix}logs", *map(sa.column, names), schema=schema)
    rows = sa.select(
        messages.c.thread,
        sa.literal_column("'/'"),
        sa.literal_column("1"),
        sa.func.count(),
        sa.func.max(messages.c.sequence),
        sa.func.max(messages.c.created_at),
    ).group_by(messages.c.thread)
    missing = rows.where(~sa.exists().where(logs.c.thread == messages.c.thread))
    op.execute(logs.insert().from_select(names, missing))


def _set_floor(prefix: str, schema: str | None, floor: str) -> None:
    names = (sa.column("name", PlainText()), sa.column("value", PlainText()))
    settings = sa.table(f"{prefix}settings", *names, schema=schema)
    of_floor = settings.c.name == sa.literal_column("'compatibility_floor'")
    op.execute(settings.update().where(of_floor).values(value=sa.literal_column(f"'{floor}'")))
