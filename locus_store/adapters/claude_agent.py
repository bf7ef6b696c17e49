"""The Claude Agent SDK on every backend: ``LocusSessionStore``, and tools that are called once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Unpack, cast

from locus_store.errors import ConflictError, TurnError, require_extra

with require_extra("the Claude Agent SDK is not installed", "claude-agent"):
    import claude_agent_sdk  # noqa: F401

from claude_agent_sdk import (
    SdkMcpTool,
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from locus_store.adapters.logs import (
    LogAdapter,
    choose_text,
    list_all,
    make_thread_id,
    split_thread_id,
    tag_numbers,
    untag_numbers,
)
from locus_store.effects import RunsEffects
from locus_store.turns import HeldTurn
from locus_store.types.messages import ROLE, LogInfo, LogSnapshot, NewMessage
from locus_store.types.turns import TurnOptions
from locus_store.values.text import Readable

__all__ = ["LocusSessionStore", "durable_tool"]

SUMMARY: Final = "claude-summary"
"""Namespace of the log whose one message is the session's summary."""

SUBPATH: Final = "subpath/"
"""Namespaces of the transcripts of subagents begin with it."""

READABLE: Final = Readable(
    said=frozenset(
        {"message", "content", "text", "thinking", "name", "title", "context", "stdout", "stderr"}
        | {"summary", "customTitle", "aiTitle", "agentName", "lastPrompt"}
    ),
    given=frozenset({"input"}),
)
"""Not ``toolUseResult``, which repeats the result of a tool."""


class LocusSessionStore(LogAdapter, SessionStore):
    """Keeps the transcripts of the Claude Agent SDK in message logs.

    A session is the thread ``project_key/session_id`` (``%`` and ``/`` within the two are escaped).
    The main transcript is the thread's root log, and each subagent has a log of its own. An entry
    with a ``uuid`` that is stored already replaces the stored one in its place; an entry without a
    ``uuid`` is always appended. The summary of a session is folded in the transaction that appends
    its entries, so no summary misses an entry that another process appended.

    Arguments and errors are those of ``LogAdapter``.
    """

    own_options = frozenset({"user_id"})

    def turn(self, key: SessionKey, **options: Unpack[TurnOptions]) -> HeldTurn:  # type: ignore[override]
        """Return the turn of a session, to be held around a query; see ``HasTurns.turn``."""
        return super().turn(_log_of(key)[0], **options)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        thread_id, namespace = _log_of(key)
        messages = [_make_message(cast("dict[str, Any]", it)) for it in entries]
        if namespace:
            await self.log.append(thread_id, messages, namespace=namespace, user_id=self.user_id)
            return
        while messages:  # the summary is folded again if another append was faster
            found = await self.log.read(thread_id, namespace=SUMMARY, newest=1)
            previous = _make_summary(found) if found and found.messages else None
            folded = fold_session_summary(previous, key, entries)["data"]
            try:
                await self.log.append(
                    thread_id,
                    [NewMessage(tag_numbers(folded), SUMMARY, SUMMARY, text="")],
                    namespace=SUMMARY,
                    expected_revision=found.info.revision if found else 0,
                    also={"": messages},
                    user_id=self.user_id,
                )
            except TurnError:
                raise
            except ConflictError:
                continue
            return

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        thread_id, namespace = _log_of(key)
        found = await self.log.contents(thread_id, namespace=namespace)
        return untag_numbers(found) or None  # an append of no entries creates no log

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        found = list_all(self.log.logs, prefix=make_thread_id(project_key, ""), namespace=SUMMARY)
        return [{"session_id": _get_session(it), "mtime": _compute_mtime(it)} async for it in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        found = list_all(self.log.heads, prefix=make_thread_id(project_key, ""), namespace=SUMMARY)
        return [_make_summary(it) async for it in found if it.messages]

    async def delete(self, key: SessionKey) -> None:
        thread_id, namespace = _log_of(key)
        await self.log.delete(thread_id, namespace=namespace or None)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        thread_id = make_thread_id(key["project_key"], key["session_id"])
        names = [it.namespace async for it in list_all(self.log.logs, thread_id)]
        return [it.removeprefix(SUBPATH) for it in names if it.startswith(SUBPATH)]


def _log_of(key: SessionKey) -> tuple[str, str]:
    """Return the thread and the namespace of a transcript."""
    subpath = key.get("subpath")
    namespace = "" if subpath is None else SUBPATH + subpath
    return make_thread_id(key["project_key"], key["session_id"]), namespace


def _get_session(info: LogInfo) -> str:
    return split_thread_id(info.thread_id)[-1]


def _compute_mtime(info: LogInfo) -> int:
    return int(info.changed_at.timestamp() * 1000)


def _make_summary(snapshot: LogSnapshot) -> SessionSummaryEntry:
    info, (message,) = snapshot
    return {
        "session_id": _get_session(info),
        "mtime": _compute_mtime(info),
        "data": untag_numbers(message.content),
    }


def _make_message(entry: dict[str, Any]) -> NewMessage:
    role, uuid = choose_text(entry.get("type"), ROLE), choose_text(entry.get("uuid"), None)
    return NewMessage(tag_numbers(entry), role, uuid, text=READABLE.get_text(entry))


def durable_tool(
    tool: SdkMcpTool[Any],
    checkpointer: RunsEffects,
    thread_id: str,
    key: Callable[[Any], str],
    **options: Any,
) -> SdkMcpTool[Any]:
    """Return a tool for ``create_sdk_mcp_server`` each of whose calls is made once.

    After a crash the model asks again, and the SDK gives its call a new id. So the arguments name
    the call.

    Args:
        tool: Made by ``tool`` of the SDK. It should raise errors: a result with ``is_error`` is
            kept.
        checkpointer: An asynchronous checkpointer, or a saver.
        thread_id: The thread of the effects.
        key: Returns the key of the effect for the arguments, for example the id of an order.
        options: Of ``effect``.
    """

    async def run(arguments: Any) -> Any:
        async def call(_: str) -> Any:
            return await tool.handler(arguments)

        name = f"{tool.name}:{key(arguments)}"
        result = await checkpointer.effect(thread_id, name, call, arguments=arguments, **options)
        if isinstance(result, dict) and result.keys() & {"content", "is_error"}:
            return result
        # JSON that settled the effect.
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        return {"content": [{"type": "text", "text": text}]}

    return replace(tool, handler=run)
