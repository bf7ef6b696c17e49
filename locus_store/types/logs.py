"""Lists, changes and contents of message logs."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

from locus_store.errors import IntegrityError, InvalidArgumentError
from locus_store.types.arguments import (
    check_limit,
    check_list,
    check_names,
    check_text,
    check_time,
    copy_json_object,
)
from locus_store.types.messages import (
    KeptMessages,
    LogChange,
    LogEdit,
    LogName,
    LogWanted,
    NewMessage,
    PutMessage,
    decode_content,
    log_name,
    put_of,
    require_digest,
)
from locus_store.values.encoding import digest, encode, unpack_verified
from locus_store.values.filters import Filter
from locus_store.values.surrogates import decode_restored
from locus_store.values.text import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsWanted:
    """The criteria of a list of logs, ordered by thread id and namespace (code points)."""

    thread_id: str | None = None
    """Of this thread only."""

    prefix: str = ""
    """Of threads whose ids begin with it."""

    namespace: str | None = None
    """Of this namespace only."""

    user_id: str | None = None
    """Of this user's threads only."""

    limit: int
    after: LogName | None = None
    whole: bool = False
    """Of ``find_heads``: each log with all its messages, instead of the newest."""

    def takes(self, thread_id: str, namespace: str, user_id: str | None) -> bool:
        """Return whether a log matches: the reference for every backend."""
        is_behind = self.after is None or (thread_id, namespace) > self.after
        is_thread = self.thread_id in {None, thread_id} and thread_id.startswith(self.prefix)
        is_theirs = self.user_id in {None, user_id}
        return is_behind and is_thread and is_theirs and self.namespace in {None, namespace}


def select_head(thread_id: str, namespace: str, *, whole: bool) -> LogWanted:
    """Return the criteria of the newest message of a log, or of all."""
    limit = None if whole else 1
    return LogWanted(thread_id=thread_id, namespace=namespace, limit=limit, newest=not whole)


def select_log(thread_id: str, namespace: str, newest: int | None) -> LogWanted:
    """Return the criteria of a log, or of its newest messages."""
    check_names(thread_id, namespace)
    limit = None if newest is None else check_limit(newest, "newest")
    is_newest = newest is not None
    return LogWanted(thread_id=thread_id, namespace=namespace, limit=limit, newest=is_newest)


def select_page(search: object, metadata_filter: Any, **given: Any) -> LogWanted:
    """Return the criteria of a page of a log; ``given`` are fields of ``LogWanted``.

    Raises:
        InvalidArgumentError: One is not valid.
    """
    if search is not None and not isinstance(search, str):
        raise InvalidArgumentError(f"search must be a str, not {search!r}")
    wanted = LogWanted(
        **given,
        metadata_filter=None if metadata_filter is None else Filter(metadata_filter),
        needle=None if search is None else fold(search),
    )
    check_names(wanted.thread_id, wanted.namespace)
    if wanted.after is not None:
        check_text("after", wanted.after)
        if wanted.offset or wanted.newest:
            other = "offset" if wanted.offset else "newest_first"
            raise InvalidArgumentError(f"give {other} or after, not both")
    check_text("role", wanted.role, optional=True)
    check_time("since", wanted.since)
    check_time("until", wanted.until)
    check_limit(wanted.offset, "offset")
    check_limit(wanted.limit)
    return wanted


def select_logs(after: LogName | None, **given: Any) -> LogsWanted:
    """Return the criteria of a list; ``given`` are fields of ``LogsWanted``, and checked."""
    wanted = LogsWanted(**given, after=None if after is None else log_name(after))
    check_text("thread_id", wanted.thread_id, optional=True)
    check_text("prefix", wanted.prefix, minimum=0)
    check_text("namespace", wanted.namespace, minimum=0, optional=True)
    check_text("user_id", wanted.user_id, optional=True)
    check_limit(wanted.limit)
    return wanted


class PackedContents(NamedTuple):
    """The columns of messages that their digests cover, and the digests."""

    message_ids: Sequence[str] = ()
    roles: Sequence[str] = ()
    metadata: Sequence[dict[str, Any]] = ()
    texts: Sequence[str | None] = ()
    payloads: Sequence[bytes] = ()
    digests: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """The bytes of all payloads."""
        return sum(map(len, self.payloads))


def decode_contents(log: LogName, batch: PackedContents, max_state_bytes: int) -> list[Any]:
    """Return the contents of messages.

    Raises:
        IntegrityError: A message is not what was stored, or too large; names it.
    """
    thread_id, namespace = log
    heads = zip(repeat(namespace), *batch[:4], strict=False)
    computed = [
        digest(encode(head) + payload) for head, payload in zip(heads, batch.payloads, strict=True)
    ]
    if computed == list(batch.digests):
        with suppress(ValueError, IntegrityError):  # raised below, with the message's id
            return list(map(decode_restored, unpack_verified(batch.payloads, max_state_bytes)))
    contents = []
    for message_id, text, payload, found, stored in zip(
        batch.message_ids, batch.texts, batch.payloads, computed, batch.digests, strict=True
    ):
        require_digest(thread_id, message_id, found, stored)
        contents.append(decode_content(message_id, text, payload or None, max_state_bytes))
    return contents


New: TypeAlias = "Sequence[NewMessage | tuple[Any, ...]]"
"""Messages for one log."""

Also: TypeAlias = "Mapping[str | LogName, New | KeptMessages]"
"""Messages for other logs, by namespace, or by thread and namespace."""


def make_puts(
    messages: New, namespace: str, metadata: Mapping[str, Any] | None, max_state_bytes: int
) -> list[PutMessage]:
    """Return the checked messages of a log: the last with an id, in the place of the first."""
    shared, given = copy_json_object("metadata", metadata), check_list("messages", messages)
    puts = [put_of(it, namespace, shared, max_state_bytes) for it in given]
    return list({it.message_id: it for it in puts}.values())


def make_edit(
    change: LogChange, name: str | LogName, messages: New | KeptMessages, max_state_bytes: int
) -> LogEdit:
    """Return the checked change of another log, with the user and time to live of the first."""
    thread_id, namespace = (
        (change.thread_id, name) if isinstance(name, str) else log_name(name, "also")
    )
    check_names(thread_id, namespace)
    if isinstance(messages, KeptMessages):
        ttl_seconds, user_id = None, check_text("user_id", messages.user_id, optional=True)
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
        puts=make_puts(new, namespace, None, max_state_bytes),
    )


class Outbox(NamedTuple):
    """Edits of other threads' logs that were committed with a change of a thread."""

    token: str
    edits: list[LogEdit]

    def to_json(self) -> list[Any]:
        return [self.token, [_convert_edit_to_json(it) for it in self.edits]]

    @classmethod
    def from_json(cls, data: list[Any] | None) -> Outbox | None:
        return None if data is None else cls(data[0], [_restore_edit(*it) for it in data[1]])


_EDIT: Final = ("thread_id", "namespace", "ttl_seconds", "user_id", "is_kept", "first_revision")
_PUT: Final = ("message_id", "may_exist", "role", "metadata", "text")


def _convert_edit_to_json(edit: LogEdit) -> list[Any]:
    puts = [
        [[getattr(put, name) for name in _PUT], base64.b64encode(put.payload).decode()]
        for put in edit.puts
    ]
    return [[getattr(edit, name) for name in _EDIT], puts]


def _restore_edit(facts: list[Any], puts: list[Any]) -> LogEdit:
    edit = LogEdit(**dict(zip(_EDIT, facts, strict=True)))
    for ours, payload in puts:
        named = dict(zip(_PUT, ours, strict=True))
        content = base64.b64decode(payload, validate=True)
        edit.puts.append(PutMessage(**named, payload=content, digest=b""))
    return edit
