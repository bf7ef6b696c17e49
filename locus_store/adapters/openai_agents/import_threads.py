"""Conversations of the OpenAI Agents SDK's own SQL sessions. The source is only read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from locus_store.adapters.openai_agents.session import make_message
from locus_store.adapters.sql_sources import READABLE, Rows, archive_message, open_rows, put_thread
from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.errors import IntegrityError, InvalidArgumentError, NotFoundError, SchemaError
from locus_store.runtime.progress import expect_steps
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.types import ArchivedMessage

TABLE: Final = "agent_messages"
"""The SDK's name of the table of items, unless the session was given another one."""

_NAME: Final = re.compile(r"[A-Za-z_]\w{0,62}", re.ASCII)
_IDS: Final = 'SELECT DISTINCT session_id FROM "{table}" ORDER BY 1'
_ITEMS: Final = (
    'SELECT id, message_data, created_at FROM "{table}" WHERE session_id = ? '
    "ORDER BY created_at, id"
)


async def import_openai_agents(
    backend: StorageBackend,
    source: str,
    *,
    messages_table: str = TABLE,
    thread_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Counts:
    """Store the items of ``SQLiteSession``, ``AsyncSQLiteSession`` and ``SQLAlchemySession``.

    A session becomes the message log of the thread with its id, and items keep their times. Threads
    that exist already are left unchanged. Each thread is written whole or not at all, read again,
    and compared. A session that cannot be imported does not stop the others; the error is raised at
    the end.

    Args:
        backend: Where to.
        source: ``sqlite:///file.db`` or ``postgresql://…``, with or without a driver.
        messages_table: The table of items.
        thread_ids: The sessions to import; ``None``: all.
        progress: See ``counts.Progress``.

    Raises:
        ConnectionFailedError: The source cannot be reached.
        SchemaError: The table is not there.
        NotFoundError: One of ``thread_ids`` is not there; nothing was written.
        ConflictError: ``backend`` has a thread of that id with other messages.
        IntegrityError: An item is damaged; names it.
        InvalidArgumentError: The scheme is not supported, or a name is not valid.
    """
    backend = needs(backend, StoresThreads)
    await backend.exists("-")  # creates its schema before the source is read
    if not _NAME.fullmatch(messages_table):
        raise InvalidArgumentError(f"messages_table={messages_table!r} is not a name of a table")
    tally = Tally(progress)
    async with open_rows(source, READABLE) as rows, rows.take_snapshot():
        if not await rows.list_columns(messages_table):
            raise SchemaError(
                f"{rows.shown} has no table {messages_table!r} of the OpenAI Agents SDK; name the "
                "database of its sessions, and their messages_table"
            )
        found = [row[0] for row in await rows.fetch_all(_IDS.format(table=messages_table))]
        for thread_id in found if thread_ids is None else thread_ids:
            if thread_id not in found:
                raise NotFoundError(f"{rows.shown} has no session {thread_id!r}")
        for thread_id in expect_steps(found if thread_ids is None else thread_ids):
            await tally.add(thread_id, _import_session(backend, rows, thread_id, messages_table))
        return tally.finish(rows.shown)


async def _import_session(backend: StoresThreads, rows: Rows, thread_id: str, table: str) -> bool:
    """Import a session; return whether its thread was new to the backend."""
    items = await rows.fetch_all(_ITEMS.format(table=table), thread_id)
    messages = [_archive_item(backend, row, sequence) for sequence, row in enumerate(items, 1)]
    return await put_thread(backend, thread_id, messages)


def _archive_item(backend: StoresThreads, row: Any, sequence: int) -> ArchivedMessage:
    number, data, created_at = row
    try:
        message = make_message(json.loads(data))._replace(message_id=f"openai-agents-{number}")
    except ValueError as exc:
        raise IntegrityError(f"item {number} is not a JSON object") from exc
    return archive_message(message, sequence, created_at, backend)
