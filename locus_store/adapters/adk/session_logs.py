"""Reads and writes of the logs that hold one session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from google.adk.sessions import State

from locus_store.adapters.adk.records import (
    STATE,
    DamagedEventError,
    app_log,
    events,
    user_log,
    values,
)
from locus_store.adapters.logs import thread_of
from locus_store.errors import IntegrityError

if TYPE_CHECKING:
    from google.adk.events import Event
    from google.adk.sessions.base_session_service import GetSessionConfig

    from locus_store.adapters.adk.records import Document, Scopes, SessionRecord
    from locus_store.messages import BaseMessageLog, LogSnapshot, NewMessage
    from locus_store.types.messages import LogName

Names: TypeAlias = tuple[str, str, str]
"""App, user and session."""


async def put_session(
    log: BaseMessageLog,
    names: Names,
    record: SessionRecord,
    scopes: Scopes,
    expected: int,
    *messages: NewMessage,
) -> int:
    """Store a session's state with the shared states and events; return its revision.

    Raises:
        ConflictError: Its revision is not the expected one; nothing was written.
        NotOwnerError: The thread is another user's; nothing was written.
    """
    app_name, user_id, _ = names
    return await log.append(
        thread_of(*names),
        [record.message()],
        namespace=STATE,
        expected_revision=expected,
        also={"": messages, **scopes.shared(app_name, user_id)},
        user_id=user_id or None,
    )


async def read_session(
    log: BaseMessageLog, names: Names, config: GetSessionConfig
) -> tuple[LogSnapshot, list[Event]] | None:
    """Return the state of a session, and its events of the same time.

    Raises:
        IntegrityError: An event is damaged.
    """
    thread_id = thread_of(*names)
    newest = config.num_recent_events if config.after_timestamp is None else None
    state = await log.read(thread_id, namespace=STATE)
    while state is not None:
        contents = await log.contents(thread_id, newest=newest) if newest != 0 else []
        again = await log.read(thread_id, namespace=STATE) if contents else state
        if again is not None and again.info == state.info:
            return state, await _events(log, thread_id, contents, config)
        state = again
    return None


async def _events(
    log: BaseMessageLog, thread_id: str, contents: list[Any], config: GetSessionConfig
) -> list[Event]:
    try:
        return events(contents, config)
    except DamagedEventError as exc:
        messages = await log.load(thread_id, newest=len(contents)) or []
        ids = [it.message_id for it in messages[exc.place : exc.place + 1]]
        raise IntegrityError(f"event {''.join(ids)!r} of thread {thread_id!r} is damaged") from exc


async def newest_event(log: BaseMessageLog, names: Names) -> str | None:
    """Return the id of the newest event; ``None`` if there is none."""
    found = await log.load(thread_of(*names), newest=1)
    return found[-1].message_id if found else None


async def shared_state(log: BaseMessageLog, app_name: str, user_id: str) -> Document:
    """Return the states of an app and a user, as a session has them."""
    app, user = await asyncio.gather(
        state_of(log, app_log(app_name), State.APP_PREFIX),
        state_of(log, user_log(app_name, user_id), State.USER_PREFIX),
    )
    return {**app, **user}


async def state_of(log: BaseMessageLog, name: LogName, prefix: str = "") -> Document:
    """Return the state of an app or user, with a prefix before each key.

    Raises:
        IntegrityError: The log holds something else.
    """
    thread_id, namespace = name
    return values(thread_id, await log.contents(thread_id, namespace=namespace), prefix)
