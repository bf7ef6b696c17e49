"""The session of the OpenAI Agents SDK, over a message log, and tools whose calls are effects."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import takewhile
from typing import Any, Final, Self, Unpack, cast

from agents import FunctionTool, TResponseInputItem
from agents.memory import Session, SessionSettings
from agents.memory.session import _CompactionSnapshot
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.tool_context import ToolContext

from locus_store.adapters.logs import LogAdapter, choose_text, tag_numbers, untag_numbers
from locus_store.backend import StorageBackend
from locus_store.effects import RunsEffects
from locus_store.errors import ConflictError, InvalidArgumentError, SerializationError, TurnError
from locus_store.messages import BaseMessageLog
from locus_store.open import open_message_log
from locus_store.runtime.loops import settle
from locus_store.turns import HeldTurn
from locus_store.types.arguments import (
    MAX_COUNT,
    check_limit,
    check_list,
    check_mapping,
    check_text,
)
from locus_store.types.messages import ROLE, LogSnapshot, NewMessage
from locus_store.types.turns import TurnOptions
from locus_store.values.encoding import MAX_INT
from locus_store.values.text import Readable

Settings = SessionSettings | dict[str, Any] | None

READABLE: Final = Readable(
    said=frozenset(
        {"content", "text", "refusal", "summary", "transcript", "filename", "name", "reason"}
        | {"action", "actions", "query", "queries", "results", "command", "commands", "code"}
        | {"outputs", "logs", "operation", "path", "diff", "revised_prompt", "error", "message"}
    ),
    given=frozenset({"arguments", "input", "output"}),
)
"""Not ``result``: that of a generated image is its bytes."""


class LocusSession(LogAdapter, Session):
    """Keeps the items of a conversation in the root message log of the thread ``session_id``.

    A change continues when the caller is cancelled, and the caller waits for its end.

    Args:
        session_id: The thread.
        log: A message log, or a backend that has message logs; ``close`` leaves it open. Share it
            among the sessions of a process.
        session_settings: ``limit`` is the default of ``get_items``.
        user_id: The thread's user, so that ``locus-store forget --user`` finds the session.

    Raises:
        InvalidArgumentError: An id is not valid.
        UnsupportedError: The backend has no message logs.
    """

    def __init__(
        self,
        session_id: str,
        log: BaseMessageLog | StorageBackend,
        *,
        session_settings: Settings = None,
        user_id: str | None = None,
    ) -> None:
        super().__init__(log, user_id=user_id)
        check_text("session_id", session_id)
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or SessionSettings())

    @classmethod
    def from_url(  # type: ignore[override]
        cls,
        session_id: str,
        url: str,
        *,
        session_settings: Settings = None,
        user_id: str | None = None,
        **options: Any,
    ) -> Self:
        """Return a session for a URL; see ``open_message_log`` for URLs and options.

        Each call opens connections of its own: in a server, open one message log, and create the
        sessions over it.
        """
        log = open_message_log(url, **options)
        opened = cls(session_id, log, session_settings=session_settings, user_id=user_id)
        opened._owns = True
        return opened

    def turn(self, thread_id: str | None = None, **options: Unpack[TurnOptions]) -> HeldTurn:
        """Return the turn of the session, to be held around a run; see ``HasTurns.turn``."""
        return super().turn(self.session_id if thread_id is None else thread_id, **options)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items, oldest first.

        Args:
            limit: The newest so many; ``None``: the limit of the settings. 0 gives none, and a
                negative number all, as in the SDK's ``SQLiteSession``.

        Raises:
            IntegrityError: A stored item is damaged; no item is left out.
        """
        check_limit(limit, minimum=-MAX_INT, maximum=MAX_INT, optional=True)
        newest = resolve_session_limit(limit, self.session_settings)
        newest = None if newest is None or not 0 <= newest <= MAX_COUNT else newest
        items = untag_numbers(await self.log.contents(self.session_id, newest=newest))
        return cast("list[TResponseInputItem]", items)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append all items, or none."""
        if check_list("items", items):
            append = partial(self.log.append, self.session_id, user_id=self.user_id)
            await settle(_put(items, append))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it; ``None`` if there is none.

        Raises:
            IntegrityError: The newest item is damaged, and stays.
        """
        message = (await settle(self.log.pop(self.session_id))).message
        return None if message is None else untag_numbers(message.content)

    async def clear_session(self) -> None:
        """Delete the items; states and other logs of the thread stay."""
        await settle(self.log.delete(self.session_id, namespace=""))

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """Return the newest items, and a call that replaces them from a position on.

        The SDK's ``OpenAIResponsesCompactionSession`` asks for it. The call returns ``False``, and
        changes nothing, if the log was changed after this read.
        """
        if type(self) is not LocusSession:
            return None  # the methods of a subclass may store items in another form
        found = await self.log.read(self.session_id, newest=limit)
        messages = found.messages if found else []

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            if found is None or start >= len(messages):
                return False
            return await settle(self._replace(found, start, output, prune_prefix))

        is_complete = found is None or found.info.count == len(messages)
        return _CompactionSnapshot(
            untag_numbers([it.content for it in messages]), is_complete, replace_suffix
        )

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items in one transaction; ``False``: a subclass stores them in its own way.

        The SDK asks for it where a compaction replaces the whole history.
        """
        if type(self) is not LocusSession:
            return False
        replace = partial(self.log.replace, self.session_id, 0, user_id=self.user_id)
        await settle(_put(items, replace))
        return True

    async def _replace(
        self,
        snapshot: LogSnapshot,
        start: int,
        output: list[TResponseInputItem],
        is_expired: Callable[[TResponseInputItem], bool] | None,
    ) -> bool:
        info, messages = snapshot
        position = info.count - len(messages) + start
        options: dict[str, Any] = {"expected_revision": info.revision, "user_id": self.user_id}
        replace = partial(self.log.replace, self.session_id, position, **options)
        try:
            await _put(output, replace)
        except TurnError:
            raise
        except ConflictError:
            return False
        if is_expired is not None:
            await self._prune(position, is_expired, max(len(messages), 1))
        return True

    async def _prune(
        self, end: int, is_expired: Callable[[TResponseInputItem], bool], limit: int
    ) -> None:
        """Remove the oldest items up to a position as long as they are expired."""
        while end > 0:
            page = await self.log.page(self.session_id, limit=min(limit, end))
            expired = list(takewhile(lambda it: is_expired(untag_numbers(it.content)), page))
            await self.log.remove(self.session_id, [it.message_id for it in expired])
            end -= len(expired)
            if not expired or len(expired) < len(page):
                return


async def _put(
    items: Sequence[TResponseInputItem], put: Callable[[list[NewMessage]], Awaitable[int]]
) -> None:
    """Put items as messages; those that are not plain JSON in the form that the SDK stores."""
    if all(type(it) is dict for it in items):
        messages = [make_message(it) for it in items]
        if all(made.content is it for made, it in zip(messages, items, strict=True)):
            with suppress(SerializationError):
                await put(messages)
                return
    try:
        found = [json.loads(json.dumps(it, ensure_ascii=False)) for it in items]
    except TypeError as exc:
        raise InvalidArgumentError(f"an item must be a dict that JSON can keep: {exc}") from exc
    await put([make_message(it) for it in found])


def make_message(item: Mapping[str, Any]) -> NewMessage:
    """Return the message of an item; its role, or else its type, is the message's role."""
    check_mapping("an item", item)
    role = choose_text(item.get("role") or item.get("type"), ROLE)
    return NewMessage(tag_numbers(item), role, text=READABLE.get_text(item))


def durable_tool(
    tool: FunctionTool, checkpointer: RunsEffects, thread_id: str, **options: Any
) -> FunctionTool:
    """Return a tool each of whose calls is made once; the id of the tool call is the effect's key.

    Give the tool ``failure_error_function=None``: else the SDK turns its errors into results, which
    are kept.

    Args:
        tool: A tool that returns JSON, such as text.
        checkpointer: An asynchronous checkpointer, or a saver.
        thread_id: The thread of the run.
        options: Of ``effect``.
    """
    made, invoke = copy(tool), tool.on_invoke_tool

    async def run(context: ToolContext[Any], arguments: str) -> Any:
        async def call(_: str) -> Any:
            return await invoke(context, arguments)

        return await checkpointer.effect(
            thread_id, context.tool_call_id, call, arguments=arguments, **options
        )

    made.on_invoke_tool = run
    return made
