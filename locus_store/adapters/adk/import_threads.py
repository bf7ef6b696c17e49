"""Sessions of Google ADK's own SQL services. The source is only read."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from google.adk.events import Event
from pydantic import ValidationError

from locus_store.adapters.adk.records import (
    STATE,
    Document,
    SessionRecord,
    make_event_message,
    make_value_message,
    name_app_log,
    name_user_log,
)
from locus_store.adapters.logs import make_thread_id, split_thread_id
from locus_store.adapters.sql_sources import (
    READABLE,
    Rows,
    archive_message,
    open_rows,
    parse_time,
    put_thread,
)
from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.errors import IntegrityError, NotFoundError, SchemaError
from locus_store.runtime.progress import expect_steps
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.types import FOREVER, ArchivedMessage
from locus_store.types.messages import LogName

Taking = Callable[[], Awaitable[bool]]

_NAMES: Final = "SELECT app_name, user_id, id FROM sessions ORDER BY 1, 2, 3"
_SESSION: Final = (
    "SELECT state, update_time FROM sessions WHERE app_name = ? AND user_id = ? AND id = ?"
)
_APPS: Final = "SELECT app_name, state, update_time FROM app_states ORDER BY 1"
_USERS: Final = "SELECT app_name, user_id, state, update_time FROM user_states ORDER BY 1, 2"
_EVENTS: Final = (
    "SELECT id, invocation_id, timestamp, event_data FROM events "
    "WHERE app_name = ? AND user_id = ? AND session_id = ? ORDER BY timestamp, {tie}"
)


async def import_adk(
    backend: StorageBackend,
    source: str,
    *,
    thread_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Counts:
    """Store the sessions of ``DatabaseSessionService`` and ``SqliteSessionService``.

    A session becomes the thread ``app/user/session``, and events keep their times; so do the states
    of apps and users. Threads that exist already are left unchanged. Each thread is written whole
    or not at all, read again, and compared. A thread that cannot be imported does not stop the
    others; the error is raised at the end.

    Args:
        backend: Where to.
        source: ``sqlite:///file.db`` or ``postgresql://…``, with or without a driver.
        thread_ids: The threads to import; ``None``: all.
        progress: See ``counts.Progress``.

    Raises:
        ConnectionFailedError: The source cannot be reached.
        SchemaError: The tables are not there, or they are of ADK's old, pickled schema.
        NotFoundError: One of ``thread_ids`` is not there; nothing was written.
        ConflictError: ``backend`` has a thread of that id with other messages.
        IntegrityError: An event or a state is damaged; names it.
        InvalidArgumentError: The scheme is not supported.
    """
    backend = needs(backend, StoresThreads)
    await backend.exists("-")  # creates its schema before the source is read
    tally = Tally(progress)
    async with open_rows(source, READABLE) as rows, rows.take_snapshot():
        columns = await rows.list_columns("events")
        if not columns or not await rows.list_columns("user_states"):
            raise SchemaError(
                f"{rows.shown} has no tables of Google ADK; name the database of its sessions"
            )
        if "event_data" not in columns:
            raise SchemaError(
                f"{rows.shown} has pickled events of Google ADK, which are not read; convert it "
                "with `adk migrate session`, and import the result"
            )
        found = await _read_threads(backend, rows)
        for thread_id in thread_ids or ():
            if thread_id not in found:
                raise NotFoundError(f"{rows.shown} has no thread {thread_id!r}")
        for thread_id in expect_steps(found if thread_ids is None else thread_ids):
            await tally.add(thread_id, found[thread_id]())
        return tally.finish(rows.shown)


async def _read_threads(backend: StoresThreads, rows: Rows) -> dict[str, Taking]:
    """Return by thread id the calls that import a thread; without states that are empty."""
    found: dict[str, Taking] = {}
    for app, state, at in await rows.fetch_all(_APPS):
        found |= _make_shared_taking(backend, name_app_log(app), state, at)
    for app, user, state, at in await rows.fetch_all(_USERS):
        found |= _make_shared_taking(backend, name_user_log(app, user), state, at)
    for app, user, session in await rows.fetch_all(_NAMES):
        name = make_thread_id(app, user, session.strip())
        found[name] = partial(_take_session, backend, rows, name, (app, user, session))
    return found


def _make_shared_taking(
    backend: StoresThreads, log: LogName, state: str, at: Any
) -> dict[str, Taking]:
    if state.strip() == "{}":
        return {}
    return {log[0]: partial(_take_shared, backend, log, state, at)}


async def _take_shared(backend: StoresThreads, log: LogName, state: str, at: Any) -> bool:
    thread_id, namespace = log
    values = _parse_json(state, f"the state of {thread_id!r}")
    messages = [
        archive_message(make_value_message(*item), sequence, at, backend, namespace)
        for sequence, item in enumerate(values.items(), 1)
    ]
    user_id = split_thread_id(thread_id)[1] or None
    return await put_thread(backend, thread_id, messages, user_id=user_id, expires_at=FOREVER)


async def _take_session(
    backend: StoresThreads, rows: Rows, thread_id: str, names: tuple[str, str, str]
) -> bool:
    ((state, updated),) = await rows.fetch_all(_SESSION, *names)
    at = parse_time(updated)
    exact = updated if isinstance(updated, int | float) else at.timestamp()
    record = SessionRecord(_parse_json(state, "the state"), exact)
    events = await rows.fetch_all(_EVENTS.format(tie="rowid" if rows.is_sqlite else "id"), *names)
    messages = [_archive_event(backend, row, sequence) for sequence, row in enumerate(events, 1)]
    messages.append(archive_message(record.to_message(), 1, at, backend, STATE))
    return await put_thread(backend, thread_id, messages, user_id=names[1] or None)


def _archive_event(backend: StoresThreads, row: Any, sequence: int) -> ArchivedMessage:
    event_id, invocation_id, at, data = row
    at = parse_time(at)
    names = {"id": event_id, "invocation_id": invocation_id}
    content = {"timestamp": at.timestamp(), **_parse_json(data, f"event {event_id!r}"), **names}
    try:
        message, _ = make_event_message(Event.model_validate(content))
    except ValidationError as exc:
        raise IntegrityError(f"event {event_id!r} is damaged") from exc
    return archive_message(message, sequence, at, backend)


def _parse_json(text: str | None, what: str) -> Document:
    try:
        found = json.loads(text or "{}")
    except ValueError as exc:
        raise IntegrityError(f"{what} is not JSON") from exc
    if not isinstance(found, dict):
        raise IntegrityError(f"{what} is not a JSON object")
    return found
