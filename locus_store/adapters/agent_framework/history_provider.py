"""The history provider of Microsoft Agent Framework, over a message log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Unpack

import agent_framework
from agent_framework import HistoryProvider
from agent_framework._sessions import filter_new_messages

from locus_store.adapters.logs import LogAdapter, choose_text, tag_numbers, untag_numbers
from locus_store.backend import StorageBackend
from locus_store.errors import ConflictError, IntegrityError, TurnError
from locus_store.messages import BaseMessageLog
from locus_store.runtime.loops import settle
from locus_store.turns import HeldTurn
from locus_store.types.arguments import check_text
from locus_store.types.messages import ROLE, LoggedMessage, NewMessage
from locus_store.types.turns import TurnOptions
from locus_store.values.text import Readable

SOURCE_ID: Final = "locus_history"
"""Name of a provider that is not given one."""

NO_SESSION: Final = "default"
"""Thread of messages without a session, as in the framework's ``FileHistoryProvider``."""

READABLE: Final = Readable(
    said=frozenset(
        {"contents", "text", "message", "error_details", "name", "tool_name", "function_call"}
        | {"inputs", "outputs", "commands", "stdout", "stderr"}
    ),
    given=frozenset({"arguments", "result", "output"}),
)
"""Not ``items``, which repeat the result of a function."""


class LocusHistoryProvider(LogAdapter, HistoryProvider):
    """Keeps the messages of agents in message logs; a session is the thread of its id.

    The messages are in the thread's root log; those of a provider with a ``source_id`` of its own
    are in the log of that name. Messages that repeat the end of the stored ones are not stored
    again, as in the framework's own providers.

    Args:
        log: A message log, or a backend that has message logs; ``close`` leaves it open.
        source_id: The provider's name.
        skip_excluded: Leave out messages that a ``CompactionProvider`` has excluded.
        user_id: The user of the threads, so that ``locus-store forget --user`` finds them.
        options: Of ``HistoryProvider``.

    Raises:
        InvalidArgumentError: A name is not valid.
        UnsupportedError: The backend has no message logs.
    """

    own_options = frozenset(
        {
            *("load_messages", "skip_excluded", "source_id", "store_context_from"),
            *("store_context_messages", "store_inputs", "store_outputs", "user_id"),
        }
    )

    def __init__(
        self,
        log: BaseMessageLog | StorageBackend,
        *,
        source_id: str = SOURCE_ID,
        skip_excluded: bool = False,
        user_id: str | None = None,
        **options: Any,
    ) -> None:
        check_text("source_id", source_id)
        LogAdapter.__init__(self, log, user_id=user_id)
        HistoryProvider.__init__(self, source_id, **options)
        self.skip_excluded = skip_excluded
        self._namespace = "" if source_id == SOURCE_ID else source_id

    def turn(self, session_id: str | None = None, **options: Unpack[TurnOptions]) -> HeldTurn:
        """Return the turn of a session, to be held around a run; see ``HasTurns.turn``."""
        return super().turn(session_id or NO_SESSION, **options)

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[agent_framework.Message]:
        """Return the messages of a session, oldest first.

        Raises:
            IntegrityError: A stored message is damaged.
        """
        found = await self.log.load(session_id or NO_SESSION, namespace=self._namespace)
        messages = list(map(_restore_message, found or ()))
        if not self.skip_excluded:
            return messages
        return [it for it in messages if not it.additional_properties.get("_excluded", False)]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[agent_framework.Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append the messages that do not repeat the stored ones, all or none."""
        incoming = list(messages)
        if incoming:
            await settle(self._append(session_id or NO_SESSION, incoming))

    async def _append(self, thread_id: str, incoming: list[agent_framework.Message]) -> None:
        newest = len(incoming) + 1  # one more shows that the log is longer than what is given
        while True:
            found = await self.log.read(thread_id, namespace=self._namespace, newest=newest)
            stored = list(map(_restore_message, found.messages)) if found else []
            new = list(map(_make_message, filter_new_messages(stored, incoming)))
            try:
                await self.log.append(
                    thread_id,
                    new,
                    namespace=self._namespace,
                    expected_revision=found.info.revision if found else 0,
                    user_id=self.user_id,
                )
            except TurnError:
                raise
            except ConflictError:
                continue
            return


def _make_message(message: agent_framework.Message) -> NewMessage:
    content = message.to_dict()
    role = choose_text(message.role, ROLE)
    return NewMessage(tag_numbers(content), role, text=READABLE.get_text(content))


def _restore_message(message: LoggedMessage) -> agent_framework.Message:
    try:
        return agent_framework.Message.from_dict(untag_numbers(message.content))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise IntegrityError(
            f"message {message.message_id!r} is not one of Agent Framework: {exc}"
        ) from exc
