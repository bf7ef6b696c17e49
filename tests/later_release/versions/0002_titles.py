"""Threads: titles, which are their ids at first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
from later_release import titles

from locus_store.sql.columns.types import Key

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

LOSES = {"threads": "the titles of threads"}


def upgrade() -> None:
    prefix, schema = (context.config.attributes[it] for it in ("prefix", "schema"))
    if not titles.is_there(prefix, schema):
        with op.batch_alter_table(f"{prefix}threads", schema=schema) as table:
            table.add_column(sa.Column("title", Key(255)))
    titles.fill(prefix, schema)


def downgrade() -> None:
    prefix, schema = (context.config.attributes[it] for it in ("prefix", "schema"))
    if context.is_offline_mode() or titles.is_there(prefix, schema):
        with op.batch_alter_table(f"{prefix}threads", schema=schema) as table:
            table.drop_column("title")
