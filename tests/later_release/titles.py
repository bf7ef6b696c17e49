"""The data that both revisions move: a thread without a title gets its id as one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from locus_store.sql.columns.types import Key
from locus_store.sql.schema.definition import load_definition

BATCH_ROWS = 3


def fill(prefix: str, schema: str | None) -> None:
    """Fill the titles in batches; a second run continues with the threads that have none."""
    columns = sa.column("thread"), sa.column("thread_id", Key(255)), sa.column("title", Key(255))
    threads = sa.table(f"{prefix}threads", *columns, schema=schema)
    is_left, key = threads.c.title.is_(None), threads.c.thread
    update = threads.update().values(title=threads.c.thread_id)
    if context.is_offline_mode():
        op.execute(update.where(is_left))
        return
    some = sa.select(key).where(is_left).order_by(key).limit(BATCH_ROWS)
    connection = op.get_bind()
    while connection.execute(update.where(key.in_(some))).rowcount:
        if load_definition(connection.dialect.name).commits_each:
            connection.connection.commit()


def is_there(prefix: str, schema: str | None) -> bool:
    """Return whether the threads have the column, as after a run that was cut short."""
    if context.is_offline_mode():
        return False
    connection = op.get_bind()
    found = load_definition(connection.dialect.name).list_columns(
        connection, schema, f"{prefix}threads"
    )
    return "title" in found
