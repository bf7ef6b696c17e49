"""Store: values as JSON, which filters look into, their time to live, longer namespaces."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from locus_store.sql.column_types import PlainText
from locus_store.sql.columns import BigKey, Blob, Instant, Key, Path
from locus_store.sql.json_columns import Json, JsonValue
from locus_store.sql.names import derived

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEPT = (
    *("item", "tenant", "namespace", "key", "metadata", "version"),
    *("created_at", "updated_at", "expires_at"),
)


def upgrade() -> None:
    if _dialect() == "oracle":
        return  # it came later: its first revision has all of this
    table, schema = _begin()
    if _dialect() == "sqlite":
        _rebuild(
            f"{table}",
            [
                sa.Column("namespace", Path(300), nullable=False),
                sa.Column("value", JsonValue),
                sa.Column("ttl_seconds", sa.Double),
            ],
            "CAST(value AS TEXT)",
        )
        return
    op.add_column(table, sa.Column("ttl_seconds", sa.Double), schema=schema)
    _retype(
        table,
        schema,
        sa.Column("value", JsonValue),
        "coalesce(convert_from({0}, 'UTF8'), 'null')::jsonb",
    )


LOSES = {"embeddings": "the embeddings of store items"}
"""The data that ``downgrade`` deletes, by table."""


def downgrade() -> None:
    if _dialect() == "oracle":
        return
    table, schema = _begin()
    if _dialect() == "sqlite":
        columns = [sa.Column("namespace", Key(300), nullable=False), sa.Column("value", Blob)]
        _rebuild(table, columns, "CAST(value AS BLOB)")
        return
    _retype(table, schema, sa.Column("value", Blob), "convert_to({0}::text, 'UTF8')")
    op.drop_column(table, "ttl_seconds", schema=schema)


def _begin() -> tuple[str, str | None]:
    """Drop what was made on request in another form; the store's table and its schema."""
    prefix: str = context.config.attributes["prefix"]
    schema: str | None = context.config.attributes["schema"]
    op.drop_table(f"{prefix}embeddings", schema=schema, if_exists=True)
    settings = sa.table(f"{prefix}settings", sa.column("name", PlainText()), schema=schema)
    op.execute(settings.delete().where(settings.c.name == "vector_dimension"))
    return f"{prefix}store", schema


def _dialect() -> str:
    return op.get_context().dialect.name


def _retype(table: str, schema: str | None, column: sa.Column[Any], using: str) -> None:
    """Another type, with the rows where they can be converted; nobody had any yet."""
    op.alter_column(
        table,
        column.name,
        type_=column.type,
        schema=schema,
        postgresql_using=using.format(column.name),
    )


def _rebuild(table: str, changed: list[sa.Column[Any]], value: str) -> None:
    """SQLite changes no column: the table is made anew."""
    schema: str | None = context.config.attributes["schema"]
    known = {it.name: it for it in changed}
    op.drop_index(derived(f"{table}_expires"), table, schema=schema)
    op.rename_table(table, f"{table}_old", schema=schema)
    columns = [
        sa.Column("item", BigKey, sa.Identity(), nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        known.pop("namespace"),
        sa.Column("key", Key(255), nullable=False),
        sa.Column("metadata", Json),
        sa.Column("version", sa.BigInteger, server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("expires_at", Instant),
        *known.values(),
    ]
    op.create_table(
        table,
        *columns,
        sa.PrimaryKeyConstraint("item", name=derived(f"{table}_pk")),
        sa.UniqueConstraint("tenant", "namespace", "key", name=derived(f"{table}_id")),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_index(
        derived(f"{table}_expires"),
        table,
        ["expires_at"],
        schema=schema,
        sqlite_where=sa.text("expires_at IS NOT NULL"),
    )
    quote = op.get_context().dialect.identifier_preparer
    new, old = (
        quote.format_table(sa.table(name, schema=schema)) for name in (table, f"{table}_old")
    )
    names = ", ".join(map(quote.quote, KEPT))
    copied = f"INSERT INTO {new} ({names}, value) SELECT {names}, {value} FROM {old}"  # noqa: S608
    op.execute(sa.text(copied))  # a prefix is checked, a schema quoted
    op.drop_table(f"{table}_old", schema=schema)
