"""The session service of Google ADK, over a message log."""

from __future__ import annotations

import asyncio
import time
from copy import deepcopy
from typing import Any, TypeAlias, Unpack
from uuid import uuid4

from google.adk.errors import StaleSessionError as AdkStaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from pydantic import ValidationError

from locus_store.adapters.adk.records import (
    SCHEME,
    STATE,
    Document,
    Scopes,
    SessionRecord,
    collect_values,
    convert_state,
    make_event_message,
    name_app_log,
    name_user_log,
    select_events,
)
from locus_store.adapters.logs import (
    LogAdapter,
    list_all,
    make_thread_id,
    replace_conflict,
    split_thread_id,
)
from locus_store.backend import StorageBackend
from locus_store.errors import ConflictError, IntegrityError, InvalidArgumentError, NotFoundError
from locus_store.messages import BaseMessageLog
from locus_store.open import open_message_log
from locus_store.runtime.gathering import NamedLocks
from locus_store.runtime.loops import settle
from locus_store.turns import HeldTurn
from locus_store.types.messages import LogName, LogSnapshot, NewMessage
from locus_store.types.turns import TurnOptions


class LocusSessionService(LogAdapter, BaseSessionService):
    """Keeps the sessions of Google ADK in message logs.

    A session is the thread ``app/user/session`` (``%`` and ``/`` within the three are escaped): its
    events are the root log, and its state is the log ``adk-state``. The state of a user is the log
    ``adk-state`` of the thread ``app/user/``, and that of an app is the log ``adk-app`` of the
    thread ``app//``. An event is stored in the transaction that changes these states. The threads
    of a session and of a user's state belong to the user. The shared states have no time to live,
    and ``vacuum`` leaves them.

    Args:
        log: A message log, or a backend that has message logs; ``close`` leaves it open.
        uri: In place of ``log``, as ADK's ``services.yaml`` passes it: a URL of
            ``open_message_log``, with or without ``locus+`` before it.
        agents_dir: Ignored; ADK passes it with ``uri``.
        options: With ``uri``, those of ``open_message_log``.

    Raises:
        InvalidArgumentError: There is not one of ``log`` and ``uri``.
        UnsupportedError: The backend has no message logs.
    """

    def __init__(
        self,
        log: BaseMessageLog | StorageBackend | None = None,
        *,
        uri: str | None = None,
        agents_dir: str | None = None,
        **options: Any,
    ) -> None:
        if log is not None and uri is None and not options:
            super().__init__(log)
        elif log is None and uri is not None:
            super().__init__(open_message_log(uri.removeprefix(SCHEME), **options))
            self._owns = True
        else:
            raise InvalidArgumentError("pass a message log, or uri= with its options")
        self._appends = NamedLocks()

    def turn(  # type: ignore[override]
        self, *, app_name: str, user_id: str, session_id: str, **options: Unpack[TurnOptions]
    ) -> HeldTurn:
        """Return the turn of a session, to be held around a run; see ``HasTurns.turn``."""
        return super().turn(make_thread_id(app_name, user_id, session_id.strip()), **options)

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session.

        Raises:
            SessionExistsError: There is one with this id.
        """
        names = app_name, user_id, (session_id or "").strip() or str(uuid4())
        scopes = Scopes.divide(convert_state(state or {}))
        record = SessionRecord(scopes.session, time.time())
        shared = await _merge_shared_state(self.log, app_name, user_id)
        with replace_conflict(SessionExistsError(f"session {names[-1]!r} exists already")):
            revision = await settle(_put_session(self.log, names, record, scopes, 0))
        return _make_session(names, record, revision, {**shared, **scopes.add_prefixes()})

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Return a session with its events, in the order of their appends.

        Raises:
            IntegrityError: A stored event is damaged; none is left out.
        """
        names, config = (app_name, user_id, session_id.strip()), config or GetSessionConfig()
        if not names[-1]:
            return None  # as in delete_session
        found, shared = await asyncio.gather(
            _read_session(self.log, names, config), _merge_shared_state(self.log, app_name, user_id)
        )
        if found is None:
            return None
        state, session_events = found
        session = _make_session(names, SessionRecord.parse(state), state.info.revision, shared)
        session.events = session_events
        return session

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return sessions without events, the least recently changed first."""
        names = (app_name,) if user_id is None else (app_name, user_id)
        shared: Document = await _read_state_of(self.log, name_app_log(app_name), State.APP_PREFIX)
        prefix = make_thread_id(*names, "")
        logs = list_all(self.log.heads, prefix=prefix, namespace=STATE, whole=True)
        users: dict[str, Document] = {}
        found: list[Session] = []
        async for log in logs:  # that of a user comes before those of the user's sessions
            app, user, session = split_thread_id(log.info.thread_id)
            if session:
                state: Any = deepcopy({**shared, **users.get(user, {})})  # each its own
                record, revision = SessionRecord.parse(log), log.info.revision
                found.append(_make_session((app, user, session), record, revision, state))
            else:
                contents = [it.content for it in log.messages]
                users[user] = collect_values(log.info.thread_id, contents, State.USER_PREFIX)
        found.sort(key=lambda it: (it.last_update_time, it.user_id, it.id))
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session; the states of its user and app stay."""
        name = session_id.strip()
        if name:  # the thread without a session has the state of the user
            await settle(self.log.delete(make_thread_id(app_name, user_id, name)))

    async def delete_user(self, *, app_name: str, user_id: str) -> int:
        """Delete the sessions of a user and the user's state; return how many sessions.

        Call it when no run of the user is left: a session that is created later is stored.

        Raises:
            InvalidArgumentError: ``user_id`` is empty.
        """
        if not user_id:
            raise InvalidArgumentError("user_id is empty, which would be the state of the app")
        return await settle(self._delete_user(make_thread_id(app_name, user_id, "")))

    async def _delete_user(self, prefix: str) -> int:
        found = {it.thread_id async for it in list_all(self.log.logs, prefix=prefix)}
        for thread_id in sorted(found):
            await self.log.delete(thread_id)
        return len(found - {prefix})

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await _read_state_of(self.log, name_user_log(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and the changes of the states that it makes.

        An event with an id that the session has replaces the stored one.

        Raises:
            UnknownSessionError: The session was deleted.
            StaleSessionError: It was changed after it was read.
        """
        if event.partial:
            return event
        names = _make_names(session)
        # Branches of a run share the session.
        async with self._appends.get_lock(make_thread_id(*names)):
            return await settle(self._append(names, session, event))

    async def _append(self, names: _Names, session: Session, event: Event) -> Event:
        log = make_thread_id(*names)
        found = await self.log.read(log, namespace=STATE) if session.id else None
        if found is None:
            raise UnknownSessionError(f"there is no session {session.id!r}")
        revision, record = found.info.revision, SessionRecord.parse(found)
        if not await self._is_stored(session, event, revision, record.updated):
            await self._require_current(session, revision, record)
            message, scopes = make_event_message(event)
            state = {**record.state, **scopes.session}
            record = SessionRecord(state, event.timestamp)
            with replace_conflict(_make_stale_error(session)):
                revision = await _put_session(self.log, names, record, scopes, revision, message)
        session.last_update_time = event.timestamp
        session._storage_update_marker = str(revision)  # noqa: SLF001  (made for services)
        return await super().append_event(session, event)

    async def _is_stored(self, session: Session, event: Event, revision: int, at: float) -> bool:
        """Return whether the last change since the session was read is this event.

        The append was committed and its reply was lost, and the caller repeats it.
        """
        marker = session._storage_update_marker  # noqa: SLF001
        if marker == str(revision) or at != event.timestamp:
            return False
        return await _find_newest_event(self.log, _make_names(session)) == event.id

    async def _require_current(
        self, session: Session, revision: int, record: SessionRecord
    ) -> None:
        marker = session._storage_update_marker  # noqa: SLF001
        is_current = marker in {None, str(revision)}
        if marker is None and record.updated > session.last_update_time:  # made from events
            newest = session.events[-1].id if session.events else None
            is_current = await _find_newest_event(self.log, _make_names(session)) == newest
        if not is_current:
            raise _make_stale_error(session)


def _make_session(
    names: _Names, record: SessionRecord, revision: int, shared_state: Document
) -> Session:
    app_name, user_id, session_id = names
    session = Session(
        app_name=app_name,
        user_id=user_id,
        id=session_id,
        state={**record.state, **shared_state},
        last_update_time=record.updated,
    )
    session._storage_update_marker = str(revision)  # noqa: SLF001  (made for services)
    return session


def _make_stale_error(session: Session) -> StaleSessionError:
    return StaleSessionError(
        f"session {session.id!r} was changed after it was read; get it again, and repeat the event"
    )


def _make_names(session: Session) -> _Names:
    return session.app_name, session.user_id, session.id


_Names: TypeAlias = tuple[str, str, str]
"""App, user and session."""


async def _put_session(
    log: BaseMessageLog,
    names: _Names,
    record: SessionRecord,
    scopes: Scopes,
    revision: int,
    *messages: NewMessage,
) -> int:
    """Store a session's state with the shared states and events; return its revision.

    Raises:
        ConflictError: Its revision is not the expected one; nothing was written.
        NotOwnerError: The thread is another user's; nothing was written.
    """
    app_name, user_id, _ = names
    return await log.append(
        make_thread_id(*names),
        [record.to_message()],
        namespace=STATE,
        expected_revision=revision,
        also={"": messages, **scopes.make_messages(app_name, user_id)},
        user_id=user_id or None,
    )


async def _read_session(
    log: BaseMessageLog, names: _Names, config: GetSessionConfig
) -> tuple[LogSnapshot, list[Event]] | None:
    """Return the state of a session, and its events of the same time; refuse damaged ones."""
    thread_id = make_thread_id(*names)
    newest = config.num_recent_events if config.after_timestamp is None else None
    state = await log.read(thread_id, namespace=STATE)
    while state is not None:
        contents = await log.contents(thread_id, newest=newest) if newest != 0 else []
        again = await log.read(thread_id, namespace=STATE) if contents else state
        if again is not None and again.info == state.info:
            return state, await _read_events(log, thread_id, contents, config)
        state = again
    return None


async def _read_events(
    log: BaseMessageLog, thread_id: str, contents: list[Any], config: GetSessionConfig
) -> list[Event]:
    try:
        return select_events(contents, config)
    except ValidationError as exc:
        place = int(exc.errors(include_url=False, include_input=False)[0]["loc"][0])
        messages = await log.load(thread_id, newest=len(contents)) or []
        ids = [it.message_id for it in messages[place : place + 1]]
        raise IntegrityError(f"event {''.join(ids)!r} of thread {thread_id!r} is damaged") from exc


async def _find_newest_event(log: BaseMessageLog, names: _Names) -> str | None:
    found = await log.load(make_thread_id(*names), newest=1)
    return found[-1].message_id if found else None


async def _merge_shared_state(log: BaseMessageLog, app_name: str, user_id: str) -> Document:
    """Return the states of an app and a user, as a session has them."""
    app, user = await asyncio.gather(
        _read_state_of(log, name_app_log(app_name), State.APP_PREFIX),
        _read_state_of(log, name_user_log(app_name, user_id), State.USER_PREFIX),
    )
    return {**app, **user}


async def _read_state_of(log: BaseMessageLog, name: LogName, prefix: str = "") -> Document:
    """Return the checked state of an app or user, with a prefix before each key."""
    thread_id, namespace = name
    return collect_values(thread_id, await log.contents(thread_id, namespace=namespace), prefix)


class SessionExistsError(ConflictError, AlreadyExistsError):
    """A session with this id exists already; nothing was written."""


class UnknownSessionError(NotFoundError, SessionNotFoundError):
    """The session does not exist; nothing was written."""


class StaleSessionError(ConflictError, AdkStaleSessionError):
    """The session was changed after it was read; nothing was written."""
