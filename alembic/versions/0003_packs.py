"""Packs: redundant copies of what the beginning of a chain folds to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from locus_store.sql.column_types import PlainText
from locus_store.sql.columns import Blob, Digest
from locus_store.sql.names import derived

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table = f"{context.config.attributes['prefix']}packs"
    op.create_table(
        table,
        sa.Column("line", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("basis", sa.BigInteger),
        sa.Column("digest", Digest, nullable=False),
        sa.Column("payload", Blob),
        sa.PrimaryKeyConstraint("line", "sequence", name=derived(f"{table}_pk")),
        schema=context.config.attributes["schema"],
        if_not_exists=True,
    )
    # An older library would remove versions and leave their packs.
    _set_floor("0003")


def downgrade() -> None:
    prefix, schema = (context.config.attributes[it] for it in ("prefix", "schema"))
    _set_floor("0001")
    op.drop_table(f"{prefix}packs", schema=schema, if_exists=True)


def _set_floor(revision: str) -> None:
    name, value = sa.column("name", PlainText()), sa.column("value", PlainText())
    prefix, schema = (context.config.attributes[it] for it in ("prefix", "schema"))
    settings = sa.table(f"{prefix}settings", name, value, schema=schema)
    floor = settings.update().where(name == "compatibility_floor")
    op.execute(floor.values(value=revision))
