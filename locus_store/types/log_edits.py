"""Changes of message logs, from the arguments of ``BaseMessageLog.append``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from locus_store.types.arguments import check_names, checked_user, json_object, listed
from locus_store.types.messages import KeptMessages, LogEdit, distinct, log_name, put_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.types.messages import LogChange, LogName, NewMessage, PutMessage

New: TypeAlias = "Sequence[NewMessage | tuple[Any, ...]]"
"""Messages for one log."""

Also: TypeAlias = "Mapping[str | LogName, New | KeptMessages]"
"""Messages for other logs, by namespace, or by thread and namespace."""


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
    thread_id, namespace = (
        (change.thread_id, name) if isinstance(name, str) else log_name(name, "also")
    )
    check_names(thread_id, namespace)
    if isinstance(messages, KeptMessages):
        ttl_seconds, user_id = None, checked_user(messages.user_id)
        is_kept, new = True, messages.messages
    else:
        ttl_seconds, user_id = change.ttl_seconds, change.user_id
        is_kept, new = False, messages
    return LogEdit(
        thread_id=thread_id,
        namespace=namespace,
        ttl_seconds=ttl_seconds,
        user_id=user_id,
        is_kept=is_kept,
        puts=puts_of(new, namespace, None, max_state_bytes),
    )
