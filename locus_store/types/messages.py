"""Messages of a log, changes and readings of logs, and their checks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from itertools import islice
from os import urandom
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from locus_store.errors import (
    ConflictError,
    EncryptionError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
)
from locus_store.types.arguments import check_limit, check_names, check_text, copy_json_object
from locus_store.types.records import ArchivedMessage
from locus_store.values.canonical import canonicalize, encode_canonical_json
from locus_store.values.encoding import digest, encode, join_frames, pack_frame, require_size
from locus_store.values.filters import Filter
from locus_store.values.frames import collect_text
from locus_store.values.sealing import SEALED_BYTES, is_sealed_by_client
from locus_store.values.surrogates import decode_restored, escape, restore
from locus_store.values.text import fold

ROLE: Final = "message"
"""The role of a message that names none."""

_NOTHING_BESIDE: Final = encode([{}, None])
"""The JSON of the metadata and the text of a message that has neither."""

MAX_REVISION: Final = 2**63 - 1
"""Every database has a column for it."""

LogName: TypeAlias = tuple[str, str]
"""The thread and the namespace of a log."""


class NewMessage(NamedTuple):
    """A message to append."""

    content: Any
    """Any JSON value."""

    role: str = ROLE
    """1 to 255 characters, for people and for SQL; the library reads nothing into it."""

    message_id: str | None = None
    """Unique in its log; a message with an id that the log has replaces that one, in its place.
    ``None``: the library gives the message an id."""

    metadata: Mapping[str, Any] | None = None
    """A JSON object."""

    text: str | None = None
    """The text that ``search`` compares; ``None``: the strings in ``content``."""


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """Messages for the log of a thread that several others share; see ``append``.

    Such a thread has no time to live, and ``vacuum`` leaves it: it is stored until it is deleted.
    """

    messages: Sequence[NewMessage | tuple[Any, ...]]
    _: KW_ONLY
    user_id: str | None = None
    """The user of that thread; ``None``: it has no owner."""


class LoggedMessage(NamedTuple):
    """A stored message of a log."""

    message_id: str
    role: str
    content: Any
    metadata: dict[str, Any]
    text: str | None
    """As given; see ``NewMessage.text``."""

    created_at: datetime
    """The server's clock when the message was first appended. Messages may have the same time:
    their order is that of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogInfo:
    """The revision, size and times of a log, without its messages."""

    thread_id: str
    namespace: str
    revision: int
    """Each change makes it greater, and no log of this name had it before."""

    count: int
    """The number of messages."""

    changed_at: datetime
    """Time of the last change by the server's clock, in microseconds."""


class LogSnapshot(NamedTuple):
    """A log and some of its messages, from one consistent read."""

    info: LogInfo
    messages: list[LoggedMessage]


class Popped(NamedTuple):
    """The result of ``BaseMessageLog.pop``."""

    message: LoggedMessage | None
    """``None``: the log is empty, or does not exist."""

    revision: int


@dataclass(slots=True, kw_only=True)
class PutMessage:
    """A checked message on its way to a backend."""

    message_id: str
    may_exist: bool
    """The log may have the id: the caller chose it, or the change is sent again."""

    role: str
    metadata: dict[str, Any]
    text: str | None
    payload: bytes
    digest: bytes


class Cut(NamedTuple):
    """The messages that a change removes first."""

    kind: Literal["newest", "from", "named", "all"]
    position: int = 0
    """Of ``from``: the first to be removed, 0 is the oldest."""

    message_ids: tuple[str, ...] = ()
    """Of ``named``."""


@dataclass(slots=True, kw_only=True)
class LogEdit:
    """A change of one log: what it removes, then what it puts."""

    thread_id: str
    namespace: str
    ttl_seconds: float | None = None
    user_id: str | None = None
    """The user of the thread, if it has none; another user's thread is refused."""

    is_kept: bool = False
    """The thread has no time to live and no age: it is stored until it is deleted."""

    turn: int | None = None
    """See ``Save.turn``."""

    cut: Cut | None = None
    puts: list[PutMessage] = field(default_factory=list)
    """With distinct ids. Without any, a log that does not exist is not created."""

    first_revision: int = field(default_factory=lambda: time.time_ns() // 1000)
    """The least revision of the log after this change. From a clock: a log that was created again,
    or lost its last changes, has no revision twice."""


@dataclass(slots=True, kw_only=True)
class LogChange(LogEdit):
    """A change of a log, all or nothing."""

    expected_revision: int | None
    also: list[LogEdit] = field(default_factory=list)
    """Messages for other logs, of this thread or others, in the same transaction."""

    def split(self) -> list[LogEdit]:
        """Return the changes of all logs, by thread id: the order in which threads are locked."""
        return sorted([*self.also, self], key=lambda it: it.thread_id)

    def get_all_puts(self) -> list[PutMessage]:
        """Return the messages for all logs."""
        return [put for edit in self.split() for put in edit.puts]

    @property
    def is_repeatable(self) -> bool:
        """True if a second run has the effect of one: it only puts messages by their ids."""
        return self.cut is None and self.expected_revision is None


class LogChanged(NamedTuple):
    """The result of a change."""

    revision: int
    """0: there is no such log."""

    removed: ArchivedMessage | None = None
    """The message that a cut of ``newest`` removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWanted:
    """The criteria of a read."""

    thread_id: str
    namespace: str
    limit: int | None = None
    offset: int = 0
    newest: bool = False
    """The last ``limit`` messages, in their order, instead of the first; without the last
    ``offset`` ones."""

    after: str | None = None
    """Only what comes after the message with this id."""

    message_id: str | None = None
    """Only the message with this id."""

    role: str | None = None
    """Only messages of this role."""

    since: datetime | None = None
    """Only messages that were first appended at this time or later."""

    until: datetime | None = None
    """Only messages that were first appended at this time or earlier."""

    metadata_filter: Filter | None = None
    """Only messages whose metadata it takes."""

    needle: str | None = None
    """Only messages whose text has it, both folded."""

    @property
    def reads_content(self) -> bool:
        """Return whether a condition needs the text or the metadata of each message."""
        return self.needle is not None or self.metadata_filter is not None

    def takes(self, message: ArchivedMessage, max_bytes: int) -> bool:
        """Return whether a message meets the conditions: the reference for every backend."""
        return (
            self.role in {None, message.role}
            and (self.since is None or message.created_at >= self.since)
            and (self.until is None or message.created_at <= self.until)
            and (self.metadata_filter is None or self.metadata_filter.takes(message.metadata))
            and (self.needle is None or self.needle in fold(get_search_text(message, max_bytes)))
        )

    def cut_page(self, messages: Iterable[ArchivedMessage]) -> list[ArchivedMessage]:
        """Return those of the messages that match which are on the page."""
        if self.newest and self.limit is not None:
            last = deque(messages, self.offset + self.limit)
            return [*islice(last, max(0, len(last) - self.offset))]
        end = None if self.limit is None else self.offset + self.limit
        return [*islice(messages, self.offset, end)]


class LogRead(NamedTuple):
    """The result of a read; the messages are still packed."""

    info: LogInfo
    messages: list[ArchivedMessage]


def put_of(
    message: object, namespace: str, call_metadata: Mapping[str, Any], max_state_bytes: int
) -> PutMessage:
    """Return a validated message.

    Args:
        message: A ``NewMessage``, or a plain tuple of its fields.
        namespace: Of its log.
        call_metadata: Metadata of the call; the message's own wins.
        max_state_bytes: The largest message as compact JSON.

    Raises:
        InvalidArgumentError: A field is not valid.
        SerializationError: JSON cannot keep a field exactly, or the message is too large.
    """
    if not isinstance(message, tuple) or not 1 <= len(message) <= len(NewMessage._fields):
        fields = ", ".join(NewMessage._fields)
        raise InvalidArgumentError(f"a message is a NewMessage({fields}), not {message!r:.80}")
    new = message if type(message) is NewMessage else NewMessage(*message)
    check_text("role", new.role)
    check_text("message_id", new.message_id, optional=True)
    content = encode_canonical_json(new.content, "content")
    text = None if new.text is None else _canonicalize_text(new.text)
    metadata = {**call_metadata, **copy_json_object("metadata", new.metadata)}
    beside = encode([metadata, text]) if metadata or text else _NOTHING_BESIDE
    require_size(len(content) + len(beside), max_state_bytes)
    message_id, payload = new.message_id or urandom(16).hex(), pack_frame(content)
    checksum = compute_checksum(namespace, message_id, new.role, metadata, text, payload)
    return PutMessage(
        message_id=message_id,
        may_exist=new.message_id is not None,
        role=new.role,
        metadata=metadata,
        text=text,
        payload=payload,
        digest=checksum,
    )


def check_change(thread_id: object, namespace: object, expected_revision: object) -> None:
    """Refuse a change whose log, or the revision that it expects, is not valid."""
    check_names(thread_id, namespace)
    check_limit(expected_revision, "expected_revision", maximum=MAX_REVISION, optional=True)


def check_put(put: PutMessage, namespace: str, max_state_bytes: int) -> None:
    """Refuse a packed message of a caller that is not trusted.

    Raises:
        IntegrityError: Its payload is damaged, or the digest is not its own.
        InvalidArgumentError, SerializationError: See ``put_of``.
    """
    if put.payload is not None and is_sealed_by_client(put.payload):
        require_size(len(put.payload) - SEALED_BYTES, max_state_bytes)
        content: Any = ""
    else:
        content = decode_content(put.message_id, None, put.payload, max_state_bytes)
    put_of(
        (content, put.role, put.message_id, put.metadata, put.text), namespace, {}, max_state_bytes
    )
    if put.digest != compute_checksum(
        namespace, put.message_id, put.role, put.metadata, put.text, put.payload
    ):
        raise IntegrityError(f"message {put.message_id!r} has the digest of another one")


def _canonicalize_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidArgumentError(f"text must be a str, not {type(text).__name__}")
    return text if type(text) is str and text.isascii() else cast("str", canonicalize(text, "text"))


def require_revision(change_of: LogName, expected_revision: int | None, revision: int) -> None:
    """Refuse a change that expects another revision; ``revision`` is 0 where there is no log."""
    if expected_revision is not None and expected_revision != revision:
        thread_id, namespace = change_of
        there = f"revision {revision} is stored" if revision else "there is no such log"
        raise ConflictError(
            f"the log of thread {thread_id!r}, namespace {namespace!r}: revision "
            f"{expected_revision} was expected, but {there}; read it and repeat the change"
        )


def require_distinct(change: LogChange) -> None:
    """Refuse a change that names a log twice, or two users for a thread."""
    users = {(it.thread_id, it.user_id) for it in change.split() if it.user_id is not None}
    if len(users) > len({thread_id for thread_id, _ in users}):
        raise InvalidArgumentError("also names two users for one thread; a thread has one user")
    names = [(it.thread_id, it.namespace) for it in change.split()]
    for thread_id, namespace in names:
        if names.count((thread_id, namespace)) > 1:
            raise InvalidArgumentError(
                f"also has the log of thread {thread_id!r}, namespace {namespace!r} twice"
            )


def make_too_short_error(change: LogEdit, count: int) -> ConflictError:
    """Return the error for a position behind the end of a log."""
    position = change.cut.position if change.cut else 0
    return ConflictError(
        f"the log of thread {change.thread_id!r}, namespace {change.namespace!r} has {count} "
        f"messages and no position {position}; read it and repeat the change"
    )


def make_unknown_message_error(query: LogWanted) -> NotFoundError:
    """Return the error for a cursor that is not a message of the log."""
    return NotFoundError(
        f"the log of thread {query.thread_id!r}, namespace {query.namespace!r} has no message "
        f"{query.after!r} to continue behind; begin again without a cursor"
    )


def compute_checksum(  # noqa: PLR0917  (the columns of a row, in their order)
    namespace: str,
    message_id: str,
    role: str,
    metadata: dict[str, Any],
    text: str | None,
    payload: bytes | None,
) -> bytes:
    """Return the digest of a message."""
    return digest(encode([namespace, message_id, role, metadata, text]) + (payload or b""))


def compute_message_checksum(message: ArchivedMessage) -> bytes:
    """Return the digest of a stored message."""
    _, message_id, role, metadata, _, text, payload, namespace = message
    return compute_checksum(namespace, message_id, role, metadata, text, payload)


def require_sealed(thread_id: str | None, message: ArchivedMessage, stored_digest: bytes) -> None:
    """Check a message against its digest; see ``require_digest``."""
    require_digest(thread_id, message.message_id, compute_message_checksum(message), stored_digest)


def require_digest(thread_id: str | None, message_id: str, actual: bytes, original: bytes) -> None:
    """Compare a message's digest with the stored one.

    Args:
        thread_id: Of the message.
        message_id: For the error.
        actual: The digest of what was read.
        original: The digest that was stored with it.

    Raises:
        IntegrityError: It is not what was stored.
    """
    if original != actual:
        where = "" if thread_id is None else f" of thread {thread_id!r}"
        raise IntegrityError(
            f"message {message_id!r}{where} is not what was saved; restore the database "
            "from a backup, or delete the message"
        )


def decode_message(message: ArchivedMessage, max_state_bytes: int) -> LoggedMessage:
    """Return a stored message.

    Raises:
        IntegrityError: Its payload is damaged, too large, or not a message log's.
    """
    _, message_id, role, metadata, created_at, text, _, _ = message
    content = decode_content(message_id, text, message.payload, max_state_bytes)
    return LoggedMessage(message_id, role, content, restore(metadata), restore(text), created_at)


def get_search_text(message: ArchivedMessage, max_state_bytes: int) -> str:
    """Return the text that a search looks into."""
    if message.text is not None:
        return message.text
    content = decode_content(message.message_id, None, message.payload, max_state_bytes)
    return escape(collect_text(content))


def decode_content(
    message_id: str, text: str | None, payload: bytes | None, max_state_bytes: int
) -> Any:
    """Return the content of a message: of its payload, or else its text.

    Raises:
        IntegrityError: See ``decode_message``.
    """
    if payload is None:
        return restore(text)
    try:
        return decode_restored(join_frames(payload, max_state_bytes))
    except (IntegrityError, ValueError) as exc:
        kind = EncryptionError if isinstance(exc, EncryptionError) else IntegrityError
        raise kind(f"message {message_id!r}: {exc}") from exc


def log_name(name: object, argument: str = "after") -> LogName:
    """Return the name of a log; refuse what is none."""
    if not isinstance(name, (tuple, list)) or len(name) != 2:  # noqa: PLR2004  (a pair)
        raise InvalidArgumentError(f"{argument} must be a thread and a namespace, not {name!r:.80}")
    thread_id, namespace = name
    check_names(thread_id, namespace)
    return thread_id, namespace
