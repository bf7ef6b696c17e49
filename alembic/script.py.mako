"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    prefix: str = context.config.attributes["prefix"]
    schema: str | None = context.config.attributes["schema"]
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    prefix: str = context.config.attributes["prefix"]
    schema: str | None = context.config.attributes["schema"]
    ${downgrades if downgrades else "pass"}
