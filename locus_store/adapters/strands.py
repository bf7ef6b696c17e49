"""Strands Agents on every backend with message logs: ``LocusSessionRepository``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, Unpack

from locus_store.errors import ConflictError, NotFoundError, require_extra

with require_extra("Strands Agents is not installed", "strands"):
    import strands.session  # noqa: F401

from strands.session.session_repository import SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage

from locus_store.adapters.logs import OpenedByUrl, replace_conflict, tag_numbers, untag_numbers
from locus_store.backend import StorageBackend
from locus_store.blocking import BlockingMessageLog, open_message_log
from locus_store.open import Storage
from locus_store.turns import HeldTurn
from locus_store.types.arguments import MAX_COUNT, check_text
from locus_store.types.messages import NewMessage
from locus_store.types.turns import TurnOptions
from locus_store.values.text import Readable

if TYPE_CHECKING:
    from strands.multiagent.base import MultiAgentBase

__all__ = ["LocusSessionRepository", "SessionConflictError", "SessionNotFoundError"]

SESSION: Final = "strands-session"
"""Namespace of the log whose one message is the session."""

AGENT, MESSAGES, MULTI_AGENT = "agent/", "messages/", "multi-agent/"
"""Namespaces of the logs of an agent's state, its messages, and a multi-agent's state."""

READABLE: Final = Readable(
    said=frozenset(
        {"content", "text", "toolUse", "toolResult", "name", "document", "title"}
        | {"reasoningContent", "reasoningText", "citationsContent", "guardContent"}
    ),
    given=frozenset({"input", "json"}),
)

Document: TypeAlias = dict[str, Any]


class SessionConflictError(ConflictError, SessionException):
    """Another writer created the session or message first; nothing was written."""


class SessionNotFoundError(NotFoundError, SessionException):
    """The session, agent or message does not exist; nothing was written."""


class LocusSessionRepository(OpenedByUrl, SessionRepository):
    """Keeps the sessions of Strands Agents in message logs; a session is the thread of its id.

    Usable from any number of threads. Two managers that append to one agent do not overwrite each
    other: the second message with an index raises ``SessionConflictError``.

    Args:
        log: A blocking message log, which ``close`` leaves open, or a backend that has message
            logs, which stays open, too.
        user_id: The user of the threads, so that ``locus-store forget --user`` finds them.

    Raises:
        InvalidArgumentError: ``user_id`` is not valid.
        UnsupportedError: The backend has no message logs.
    """

    open_part = staticmethod(open_message_log)
    own_options = frozenset({"user_id"})

    def __init__(
        self, log: BlockingMessageLog | StorageBackend, *, user_id: str | None = None
    ) -> None:
        self._owns = not isinstance(log, BlockingMessageLog)
        if not isinstance(log, BlockingMessageLog):
            log = BlockingMessageLog(Storage(log).messages())
        self.log = log
        self.user_id = check_text("user_id", user_id, optional=True)

    def close(self) -> None:
        """Close what ``from_url`` opened; idempotent, and usable again afterwards."""
        if self._owns:
            self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def turn(self, session_id: str, **options: Unpack[TurnOptions]) -> HeldTurn:
        """Return the turn of a session, to be held around a call of its agent; see ``HasTurns``."""
        return self.log.turn(session_id, **options)

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Create a session.

        Raises:
            SessionConflictError: It exists already.
        """
        name = session.session_id
        with replace_conflict(SessionConflictError(f"session {name!r} exists already")):
            self._write(name, SESSION, session.to_dict(), expected_revision=0)
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        found = self._read(session_id, SESSION)
        return None if found is None else Session.from_dict(found)

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with its agents and messages; states of the thread stay.

        Raises:
            SessionNotFoundError: There is no such session.
        """
        if not self.log.delete(session_id):
            raise SessionNotFoundError(f"there is no session {session_id!r}")

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        self._write(session_id, AGENT + session_agent.agent_id, session_agent.to_dict())

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        found = self._read(session_id, AGENT + agent_id)
        return None if found is None else SessionAgent.from_dict(found)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace an agent's state; the time of its creation stays.

        Raises:
            SessionNotFoundError: There is no such agent.
        """
        previous = self.read_agent(session_id, session_agent.agent_id)
        if previous is None:
            raise _make_agent_error(session_id, session_agent.agent_id)
        session_agent.created_at = previous.created_at
        self.create_agent(session_id, session_agent)

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Append a message.

        Raises:
            SessionConflictError: The agent has a message with this index, or a later one.
        """
        namespace, index = MESSAGES + agent_id, session_message.message_id
        found = self.log.read(session_id, namespace=namespace, newest=1)
        newest = int(found.messages[0].message_id) if found and found.messages else -1
        conflict = SessionConflictError(
            f"agent {agent_id!r} of session {session_id!r} has message {max(index, newest)} of "
            "another writer; create the agent again from the session, and repeat the turn"
        )
        if index <= newest:
            raise conflict
        revision = found.info.revision if found else 0
        with replace_conflict(conflict):
            self._put(session_id, agent_id, session_message, expected_revision=revision)

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **kwargs: Any
    ) -> SessionMessage | None:
        found = self.log.get(session_id, str(message_id), namespace=MESSAGES + agent_id)
        return None if found is None else SessionMessage.from_dict(untag_numbers(found.content))

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Replace a message; its place and the time of its creation stay.

        Raises:
            SessionNotFoundError: There is no such message.
        """
        index = session_message.message_id
        previous = self.read_message(session_id, agent_id, index)
        if previous is None:
            raise SessionNotFoundError(
                f"agent {agent_id!r} of session {session_id!r} has no message {index}"
            )
        session_message.created_at = previous.created_at
        self._put(session_id, agent_id, session_message)

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,
    ) -> list[SessionMessage]:
        """Return messages of an agent, oldest first.

        Raises:
            SessionNotFoundError: There is no such agent.
        """
        found = self.log.page(
            session_id,
            namespace=MESSAGES + agent_id,
            offset=offset,
            limit=MAX_COUNT if limit is None else limit,
        )
        if not found and self.read_agent(session_id, agent_id) is None:
            raise _make_agent_error(session_id, agent_id)
        return [SessionMessage.from_dict(untag_numbers(it.content)) for it in found]

    def create_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        self._write(session_id, MULTI_AGENT + multi_agent.id, multi_agent.serialize_state())

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **kwargs: Any
    ) -> dict[str, Any] | None:
        return self._read(session_id, MULTI_AGENT + multi_agent_id)

    def update_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        """Replace the state of a multi-agent.

        Raises:
            SessionNotFoundError: There is no such multi-agent.
        """
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionNotFoundError(
                f"session {session_id!r} has no multi-agent {multi_agent.id!r}"
            )
        self.create_multi_agent(session_id, multi_agent)

    def _put(self, session_id: str, agent_id: str, message: SessionMessage, **options: Any) -> None:
        shown = message.to_message()  # redacted, where the message was
        content, text = _parse_json(message.to_dict()), READABLE.get_text(shown)
        new = NewMessage(content, shown["role"], str(message.message_id), text=text)
        options |= {"namespace": MESSAGES + agent_id, "user_id": self.user_id}
        self.log.append(session_id, [new], **options)

    def _write(self, session_id: str, namespace: str, document: Document, **options: Any) -> None:
        message = NewMessage(_parse_json(document), "state", "state", text="")
        options |= {"namespace": namespace, "user_id": self.user_id}
        self.log.append(session_id, [message], **options)

    def _read(self, session_id: str, namespace: str) -> Document | None:
        found = self.log.get(session_id, "state", namespace=namespace)
        return None if found is None else dict(untag_numbers(found.content))


def _parse_json(value: Document) -> Any:
    # As the framework's own repositories store it, which write NaN.
    return tag_numbers(json.loads(json.dumps(value, ensure_ascii=False)))


def _make_agent_error(session_id: str, agent_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(f"session {session_id!r} has no agent {agent_id!r}")
