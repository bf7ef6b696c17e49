"""Message logs of a thread in memory: the reference for every backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from datetime import datetime

from locus_store.types import FOREVER, ArchivedLog, ArchivedMessage
from locus_store.types.messages import (
    Cut,
    LogChanged,
    LogEdit,
    LogInfo,
    LogRead,
    LogWanted,
    PutMessage,
    make_too_short_error,
    make_unknown_message_error,
    require_revision,
)
from locus_store.versions.archives import compute_idle_since
from locus_store.versions.threads import Thread, ThreadTransaction


def apply(transaction: ThreadTransaction, edit: LogEdit) -> LogChanged:
    """Change one log of a thread, whatever its revision is."""
    log = transaction.thread.logs.get(edit.namespace) if transaction.thread else None
    revision = log.revision if log else 0
    if log is None and not edit.puts:
        return LogChanged(0)
    thread = transaction.thread or transaction.begin()
    mine = select_namespace(thread, edit.namespace)
    kept = _cut(mine, edit, edit.cut) if edit.cut else mine
    if not edit.puts and len(kept) == len(mine):
        return LogChanged(revision)
    last = log.last_sequence if log else 0
    messages = _put(kept, edit.puts, edit.namespace, last, transaction.now)
    if len(messages) < len(mine) or messages[: len(mine)] != mine:
        transaction.adds_only = False
        others = [it for it in thread.messages if it.namespace != edit.namespace]
        thread.messages = others + messages
    else:
        thread.messages = thread.messages + messages[len(mine) :]
    made = ArchivedLog(
        namespace=edit.namespace,
        revision=max(revision + 1, edit.first_revision),
        last_sequence=max([last, *(it.sequence for it in messages)]),
        changed_at=max(transaction.now, log.changed_at) if log else transaction.now,
    )
    thread.logs = {**thread.logs, edit.namespace: made}
    transaction.touch(edit)
    if thread.user_id is None and edit.user_id is not None:
        transaction.adds_only = False  # the document's first line changes
        thread.user_id = edit.user_id
    if edit.is_kept:
        thread.expires_at = FOREVER
    is_pop = edit.cut is not None and edit.cut.kind == "newest"
    return LogChanged(made.revision, mine[-1] if is_pop else None)


def _cut(mine: list[ArchivedMessage], edit: LogEdit, cut: Cut) -> list[ArchivedMessage]:
    if cut.kind == "newest":
        return mine[:-1]
    if cut.kind == "named":
        return [it for it in mine if it.message_id not in cut.message_ids]
    if cut.position > len(mine):
        raise make_too_short_error(edit, len(mine))
    return mine[: cut.position]  # 0 for all


def _put(
    old_messages: list[ArchivedMessage],
    puts: Sequence[PutMessage],
    namespace: str,
    last: int,
    now: datetime,
) -> list[ArchivedMessage]:
    places = {it.message_id: at for at, it in enumerate(old_messages)}
    messages = list(old_messages)
    for put in puts:
        place = places.get(put.message_id)
        old = None if place is None else messages[place]
        made = ArchivedMessage(
            namespace=namespace,
            sequence=old.sequence if old else last + 1,
            message_id=put.message_id,
            role=put.role,
            metadata=put.metadata,
            created_at=old.created_at if old else now,
            text=put.text,
            payload=put.payload,
        )
        if place is None:
            last += 1
            messages.append(made)
        else:
            messages[place] = made
    return messages


def drop(
    transaction: ThreadTransaction, namespace: str | None, expected_revision: int | None
) -> bool:
    """See ``BaseMessageLog.drop``."""
    thread, name = transaction.thread, namespace or ""
    log = thread.logs.get(name) if thread else None
    require_revision((transaction.thread_id, name), expected_revision, log.revision if log else 0)
    if thread is None:
        return False
    gone = [it for it in thread.logs if namespace in {None, it}]
    if not gone:
        return False
    transaction.adds_only = False
    thread.logs = {name: it for name, it in thread.logs.items() if name not in gone}
    thread.messages = [it for it in thread.messages if it.namespace not in gone]
    if thread.is_empty:
        transaction.drop_thread()
    elif not thread.has_versions:
        thread.active_at = compute_idle_since(thread.active_at, thread.logs.values())
    return True


def look(thread: Thread, query: LogWanted, max_state_bytes: int) -> LogRead | None:
    """See ``BaseMessageLog.look``."""
    messages: Iterable[ArchivedMessage] = _list_behind(thread, query)
    info = find_info(thread, query.namespace)
    if info is None:
        return None
    if query.message_id is not None:
        messages = (it for it in messages if it.message_id == query.message_id)
    messages = (it for it in messages if query.takes(it, max_state_bytes))
    return LogRead(info, deepcopy(query.cut_page(messages)))


def _list_behind(thread: Thread, query: LogWanted) -> list[ArchivedMessage]:
    """Return the messages behind the cursor, which must be in the log."""
    mine = select_namespace(thread, query.namespace)
    if query.after is None:
        return mine
    for at, message in enumerate(mine, 1):
        if message.message_id == query.after:
            return mine[at:]
    raise make_unknown_message_error(query)


def select_namespace(thread: Thread, namespace: str) -> list[ArchivedMessage]:
    """Return the messages of a log, in their order."""
    mine = (it for it in thread.messages if it.namespace == namespace)
    return sorted(mine, key=lambda it: it.sequence)


def find_info(thread: Thread, namespace: str) -> LogInfo | None:
    """Return a log without its messages; ``None`` if there is none."""
    log = thread.logs.get(namespace)
    if log is None:
        return None
    return LogInfo(
        thread_id=thread.thread_id,
        namespace=namespace,
        revision=log.revision,
        count=sum(it.namespace == namespace for it in thread.messages),
        changed_at=log.changed_at,
    )
