"""The message logs of a thread: their namespaces, and the messages of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from locus_store.errors import NotFoundError
from locus_store.inspector.bounds import MESSAGES, ROWS, CutText, Room, short
from locus_store.inspector.visits import Download, Page
from locus_store.open import Storage
from locus_store.timeline.readable import text_of
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.inspector.visits import Visit
    from locus_store.inspector.work import Step
    from locus_store.messages import BaseMessageLog
    from locus_store.types.messages import LoggedMessage, LogInfo


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A message in the list."""

    message_id: str
    role: str
    created_at: datetime
    metadata: dict[str, Any]
    text: CutText


async def page(visit: Visit) -> Page:
    """Return messages of a log, oldest first; without a start, the newest ones.

    Raises:
        NotFoundError: There is no such thread, or it does not have this log.
        UnsupportedError: The backend has no message logs.
    """
    log = _log(visit)
    behind = visit.query.optional("logs")
    after = (visit.thread, behind) if behind else None
    listed = await log.logs(visit.thread, limit=ROWS + 1, after=after)
    logs = listed[:ROWS]
    name = visit.query.optional("log") or _first(logs)
    info = await _info(visit, log, name)
    count = info.count if info else 0
    newest = max(count - MESSAGES, 0)
    start = visit.query.number("start", newest)
    found = await log.page(visit.thread, namespace=name, offset=start, limit=MESSAGES)
    values = {
        "thread_id": visit.thread,
        "namespace": "",
        "log": name,
        "logs": [{"namespace": it.namespace, "count": it.count} for it in logs],
        "logs_behind": behind,
        "logs_next": logs[-1].namespace if len(listed) > ROWS else None,
        "count": count,
        "changed_at": info.changed_at if info else None,
        "start": start,
        "messages": await visit.jobs.run(lambda step: _rows(found, step)),
        "previous": max(min(start, count) - MESSAGES, 0) if start else None,
        "next": start + MESSAGES if start + MESSAGES < count else None,
    }
    return Page("messages", f"Messages of {visit.thread}", values)


async def message(visit: Visit) -> Download:
    """Return the content of a message as JSON.

    Raises:
        NotFoundError: There is no such message.
    """
    name, message_id = visit.query.text("log"), visit.query.required("id")
    found = await _log(visit).get(visit.thread, message_id, namespace=name)
    if found is None:
        raise NotFoundError(f"there is no message {message_id!r} in thread {visit.thread!r}")
    content = await visit.jobs.run(lambda _: encode(found.content))
    return Download(f"{message_id}.json", content)


def _first(logs: list[LogInfo]) -> str:
    """Return the namespace to begin with: the root, or else that with the most messages."""
    if not logs or not logs[0].namespace:
        return ""
    return max(logs, key=lambda it: it.count).namespace


async def has_log(visit: Visit) -> bool:
    """Return whether the thread has a message log."""
    if not visit.parts.threads.capabilities.messages:
        return False
    return bool(await _log(visit).logs(visit.thread, limit=1))


def _log(visit: Visit) -> BaseMessageLog:
    return Storage(visit.parts.threads).messages()


async def _info(visit: Visit, log: BaseMessageLog, name: str) -> LogInfo | None:
    """Return the facts of a log; ``None``: the thread has none in the root namespace."""
    found = await log.info(visit.thread, namespace=name)
    if found is None and name:
        raise NotFoundError(f"thread {visit.thread!r} has no message log {name!r}")
    if found is None and not await visit.parts.threads.exists(visit.thread):
        raise NotFoundError(f"there is no thread {visit.thread!r}")
    return found


def _rows(found: list[LoggedMessage], step: Step) -> list[LoggedRow]:
    rows, room = [], Room()
    for it in found:
        step()
        text = room.cut(text_of(it.content))
        rows.append(LoggedRow(it.message_id, it.role, it.created_at, short(it.metadata), text))
    return rows
