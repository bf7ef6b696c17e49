"""Threads: titles of those that an older library saved, which may work here no longer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
from later_release import titles

from locus_store.sql.columns.dialect_columns import PlainText

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    prefix, schema = (context.config.attributes[it] for it in ("prefix", "schema"))
    _set_floor(prefix, schema, "0002")
    titles.fill(prefix, schema)


def downgrade() -> None:
    prefix, schema = (context.config.attributes[it] for it in ("prefix", "schema"))
    _set_floor(prefix, schema, "0001")


def _set_floor(prefix: str, schema: str | None, revision: str) -> None:
    name, value = sa.column("name", PlainText()), sa.column("value", PlainText())
    settings = sa.table(f"{prefix}settings", name, value, schema=schema)
    op.execute(settings.update().where(name == "compatibility_floor").values(value=revision))
