"""Changes of message logs, from the arguments of ``BaseMessageLog.append``, and of documents."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from locus_store.types.arguments import check_names, checked_user, json_object, listed
from locus_store.types.messages import KeptMessages, LogEdit, PutMessage, distinct, log_name, put_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.types.messages import LogChange, LogName, NewMessage

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


class Outbox(NamedTuple):
    """Edits of other threads' logs that were committed with a change of a thread."""

    token: str
    edits: list[LogEdit]

    def told(self) -> list[Any]:
        """Return it for JSON."""
        return [self.token, [_told_edit(it) for it in self.edits]]

    @classmethod
    def of(cls, told: list[Any] | None) -> Outbox | None:
        """Return it from JSON."""
        return None if told is None else cls(told[0], [_edit_of(*it) for it in told[1]])


_EDIT: Final = ("thread_id", "namespace", "ttl_seconds", "user_id", "is_kept", "first_revision")
_PUT: Final = ("message_id", "may_exist", "role", "metadata", "text")


def _told_edit(edit: LogEdit) -> list[Any]:
    puts = [
        [[getattr(it, name) for name in _PUT], base64.b64encode(it.payload).decode()]
        for it in edit.puts
    ]
    return [[getattr(edit, name) for name in _EDIT], puts]


def _edit_of(facts: list[Any], puts: list[Any]) -> LogEdit:
    edit = LogEdit(**dict(zip(_EDIT, facts, strict=True)))
    for ours, payload in puts:
        named = dict(zip(_PUT, ours, strict=True))
        content = base64.b64decode(payload, validate=True)
        edit.puts.append(PutMessage(**named, payload=content, digest=b""))
    return edit
