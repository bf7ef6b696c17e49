"""Changes of message logs, from the arguments of ``BaseMessageLog.append``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.types.arguments import check_names, checked_user, json_object, listed
from locus_store.types.messages import KeptMessages, LogEdit, distinct, log_name, put_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.messages import Also, New
    from locus_store.types.messages import LogChange, LogName, PutMessage


def puts_of(
    messages: New, namespace: str, metadata: Mapping[str, Any] | None, max_state_bytes: int
) -> list[PutMessage]:
    """Return the checked messages of a log, with distinct ids.

    Raises:
        InvalidArgumentError, SerializationError: See ``put_of``.
    """
    shared, given = json_object("metadata", metadata), listed("messages", messages)
    return distinct([put_of(it, namespace, shared, max_state_bytes) for it in given])


def edits_of(change: LogChange, also: Also, max_state_bytes: int) -> list[LogEdit]:
    """Return the changes of the other logs, which have the user and time to live of the first.

    Raises:
        InvalidArgumentError, SerializationError: See ``put_of``.
    """
    return [_edit(change, name, messages, max_state_bytes) for name, messages in also.items()]


def _edit(
    change: LogChange, name: str | LogName, messages: New | KeptMessages, max_state_bytes: int
) -> LogEdit:
    is_its = isinstance(name, str)
    thread_id, namespace = (change.thread_id, name) if is_its else log_name(name, "also")
    check_names(thread_id, namespace)
    kept = messages if isinstance(messages, KeptMessages) else None
    return LogEdit(
        thread_id=thread_id,
        namespace=namespace,
        ttl_seconds=None if kept else change.ttl_seconds,
        user_id=checked_user(kept.user_id) if kept else change.user_id,
        is_kept=kept is not None,
        puts=puts_of(kept.messages if kept else messages, namespace, None, max_state_bytes),
    )
