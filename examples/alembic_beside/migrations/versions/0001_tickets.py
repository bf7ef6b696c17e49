"""Tickets."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the table of tickets."""
    op.create_table(
        "tickets",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("thread_id", sa.String, nullable=False),
        sa.Column("destination", sa.String, nullable=False),
    )
    op.create_index("ix_tickets_thread_id", "tickets", ["thread_id"])


def downgrade() -> None:
    """Drop the table of tickets."""
    op.drop_table("tickets")
