"""Pydantic AI on every backend with message logs: ``LocusConversationStore``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from locus_store.errors import (
    ConflictError,
    IntegrityError,
    NotFoundError,
    SerializationError,
    require_extra,
)

with require_extra("Pydantic AI is not installed", "pydantic-ai"):
    import pydantic_ai.conversation_store  # noqa: F401

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai import ModelMessage
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_core import PydanticSerializationError

from locus_store.adapters.logs import (
    MAX_PLACES,
    LogAdapter,
    list_all,
    replace_conflict,
    tag_numbers,
    untag_numbers,
)
from locus_store.backend import StorageBackend
from locus_store.messages import BaseMessageLog
from locus_store.runtime.loops import settle
from locus_store.runtime.recent import Recent
from locus_store.types.arguments import check_text
from locus_store.types.messages import LoggedMessage, LogSnapshot, NewMessage
from locus_store.types.state import dump_with_keys
from locus_store.values.encoding import encode
from locus_store.values.surrogates import escape_within, restore_within
from locus_store.values.text import Readable

__all__ = ["ConversationConflictError", "LocusConversationStore"]

ENTRIES: Final = "messages"
"""Namespace of the log of a conversation's entries."""


class ConversationConflictError(ConflictError, ConversationConflict):
    """The conversation was changed or deleted since it was read, or exists; nothing was written."""

    def __init__(self, conversation_id: str) -> None:
        ConversationConflict.__init__(self, conversation_id)
        self.head_id = self.parent_id = None


class _Stored(NamedTuple):
    """A stored record, as this store last read or wrote it."""

    token: str
    """The record's revision."""

    revision: int
    """Of the log that has the record. No other record has it."""

    tips: frozenset[str | None]
    """The entries that the record names."""


class LocusConversationStore(LogAdapter, ConversationStore):
    """Keeps the conversations of Pydantic AI in message logs.

    A conversation is the thread of its id. The record is the one message of the thread's root log,
    and the entries are the log ``messages``. Both change in one transaction. A fork has its own
    copy of the entries that it shares, with their ids: deleting a conversation deletes all its
    messages, and no message of another conversation.
    """

    def __init__(self, log: BaseMessageLog | StorageBackend) -> None:
        super().__init__(log)
        self._forget()

    def _enter(self, tenant: str) -> None:
        super()._enter(tenant)
        self._forget()

    def _forget(self) -> None:
        self._places: Recent[str, str] = Recent(MAX_PLACES)
        """The conversations that had entries when these were last seen."""

        self._known: Recent[str, _Stored] = Recent(MAX_PLACES)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        found = await self.log.read(conversation_id, newest=1)
        if found is None or not _has_record(found):
            return None
        record: ConversationRecord
        (record,) = _restore(_RECORDS, found.messages)
        self._note(record, found.info.revision)
        return record

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> list[ConversationRecord]:
        """Return the records, the last changed first.

        Those of one scope are found by the user of their threads.
        """
        logs = list_all(self.log.heads, namespace="", user_id=_get_owner(scope))
        heads = [it async for it in logs if _has_record(it)]
        found: list[ConversationRecord] = _restore(_RECORDS, [it.messages[0] for it in heads])
        mine = [it for it in found if scope is None or it.scope == scope]
        return sorted(mine, key=lambda it: it.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries in one transaction.

        Raises:
            InvalidArgumentError: The scope is longer than the id of a user may be.
            ConversationConflictError: The stored record has not the expected revision, or the
                record or an entry names an entry that no conversation has.
            NotOwnerError: The conversation is of another scope; nothing was written.
            SerializationError: JSON cannot keep a message exactly; nothing was written.
        """
        found = await self._read_expected(record.conversation_id, expected_revision)
        shared = await self._collect_shared(record, new_entries, found)
        entries = [*shared, *make_messages(new_entries)]
        (content,) = _dump_json(_RECORDS, [record])
        with replace_conflict(ConversationConflictError(record.conversation_id)):
            revision = await settle(
                self.log.append(
                    record.conversation_id,
                    [NewMessage(tag_numbers(content), _RECORD, _RECORD, text="")],
                    expected_revision=found.revision if found else 0,
                    also={ENTRIES: entries} if entries else None,
                    user_id=_get_owner(record.scope),
                )
            )
        self._note(record, revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its messages; a fork keeps its own.

        Raises:
            ConversationConflictError: The stored record has not the expected revision.
        """
        found = await self._read_expected(conversation_id, expected_revision)
        revision = found.revision if found else 0
        with replace_conflict(ConversationConflictError(conversation_id)):
            await settle(self.log.delete(conversation_id, expected_revision=revision))

    async def _read_expected(self, conversation_id: str, token: str | None) -> _Stored | None:
        """Return the stored record with a revision; ``None``: there must be no record.

        Another revision is refused. The record may be out of date: a change compares the revision.
        """
        if token is None:
            return None
        known = self._known.get(conversation_id)
        if known is None or known.token != token:
            await self.read_record(conversation_id)
            known = self._known.get(conversation_id)
        if known is None or known.token != token:
            raise ConversationConflictError(conversation_id)
        return known

    def _note(self, record: ConversationRecord, revision: int) -> None:
        """Remember a record that was read or written."""
        tips = (record.head_id, *record.branches)
        for tip in filter(None, tips):
            self._places.put(tip, record.conversation_id)
        stored = _Stored(record.revision, revision, frozenset(tips))
        self._known.put(record.conversation_id, stored)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry.

        Raises:
            NotFoundError: No conversation has it.
        """
        (entry,) = await self.read_history(entry_id, limit=1)
        return entry

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to one, or the last ``limit`` of them, in their order.

        One read of the conversation's log, and a second one if a branch takes up the place of the
        last ``limit``. Without a record that named ``head_id`` before, all conversations are read.

        Raises:
            NotFoundError: No conversation has an entry of the history.
        """
        if head_id is None or limit == 0:
            return []
        return make_entries(await self._read_history(head_id, limit))

    async def _read_history(self, head_id: str, limit: int | None = None) -> list[LoggedMessage]:
        known = self._places.get(head_id)
        found = None if known is None else await self._read_chain(known, head_id, limit)
        if found is None:
            found = await self._read_chain(await self._find_conversation(head_id), head_id, limit)
        if found is None:
            raise NotFoundError(f"no conversation has all entries of the history of {head_id!r}")
        return found

    async def _read_chain(
        self, conversation_id: str, head_id: str, limit: int | None
    ) -> list[LoggedMessage] | None:
        for newest in dict.fromkeys((limit, None)):
            log = await self.log.load(conversation_id, namespace=ENTRIES, newest=newest)
            found = _walk_back({it.message_id: it for it in log or ()}, head_id, limit)
            if found is not None:
                return found
        return None

    async def _find_conversation(self, entry_id: str) -> str:
        """Return a conversation that has an entry, by asking one after the other."""
        async for info in list_all(self.log.logs, namespace=ENTRIES):
            if await self.log.get(info.thread_id, entry_id, namespace=ENTRIES):
                return info.thread_id
        raise NotFoundError(f"no conversation has an entry {entry_id!r}")

    async def _collect_shared(
        self, record: ConversationRecord, new: Sequence[ConversationEntry], old: _Stored | None
    ) -> list[NewMessage]:
        """Return the entries of other conversations that a record or its new entries continue."""
        named = {record.head_id, *(it.parent_id for it in new)} - {None, *(it.id for it in new)}
        named -= old.tips if old else set()
        name = record.conversation_id
        missing: dict[str, LoggedMessage] = {}
        for entry_id in filter(None, named):
            if old and await self.log.get(name, entry_id, namespace=ENTRIES):
                continue
            try:
                missing |= {it.message_id: it for it in await self._read_history(entry_id)}
            except NotFoundError as exc:
                raise ConversationConflictError(name) from exc
        return [
            NewMessage(one.content, one.role, one.message_id, one.metadata, one.text)
            for one in missing.values()
        ]


def _get_owner(scope: str | None) -> str | None:
    """Return the user of a scope's threads, if it can be an id; an empty scope has none."""
    if not scope:
        return None
    check_text("scope", scope)
    return scope


_RECORD: Final = "pydantic-ai-record"
"""Role and id of the one message of a thread's root log: the conversation's record."""

_SAID: Final = frozenset({"content", "text"})
_PART: Final = Readable(said=_SAID, given=frozenset())
_TOOL: Final = Readable(said=frozenset({"tool_name"}), given=frozenset({"args", "content"}))
"""The parts of messages without and with a tool. Instructions come with each request: not read."""

_CONFIG: Final = ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants", defer_build=True
)
"""That of Pydantic AI, but for NaN and infinities, which it writes as ``null``."""

_RECORDS: Final = TypeAdapter(list[ConversationRecord], config=_CONFIG)
_MESSAGES: Final = TypeAdapter(list[ModelMessage], config=_CONFIG)


def _has_record(snapshot: LogSnapshot) -> bool:
    """Return whether a root log is that of a conversation."""
    return [(it.role, it.message_id) for it in snapshot.messages] == [(_RECORD, _RECORD)]


def make_messages(entries: Sequence[ConversationEntry]) -> list[NewMessage]:
    """Return the messages of entries.

    Raises:
        SerializationError: Pydantic cannot make JSON of one.
    """
    contents = _dump_json(_MESSAGES, [it.message for it in entries])
    return [
        NewMessage(
            tag_numbers(content),
            entry.message.kind,
            entry.id,
            {"parent_id": entry.parent_id, "kind": entry.kind},
            _extract_text(content),
        )
        for entry, content in zip(entries, contents, strict=True)
    ]


def _extract_text(content: Mapping[str, Any]) -> str:
    texts = ((_TOOL if "tool_name" in it else _PART).get_text(it) for it in content["parts"])
    return "\n".join(filter(None, texts))


def _dump_json(adapter: TypeAdapter[Any], values: list[Any]) -> list[Any]:
    try:
        made: list[Any] = dump_with_keys(values, lambda it: adapter.dump_python(it, mode="json"))
    except PydanticSerializationError as exc:
        raise SerializationError(f"Pydantic cannot make JSON of it: {exc}") from exc
    return made


def make_entries(messages: Sequence[LoggedMessage]) -> list[ConversationEntry]:
    """Return the entries of messages."""
    restored = _restore(_MESSAGES, messages)
    return [
        ConversationEntry(id=row.message_id, message=message, parent_id=_get_parent_id(row))
        for row, message in zip(messages, restored, strict=True)
    ]


def _restore(adapter: TypeAdapter[Any], messages: Sequence[LoggedMessage]) -> list[Any]:
    """Return the records or messages that stored messages hold; refuse those of others."""
    text, is_cut = _encode_contents([it.content for it in messages])
    try:
        made: list[Any] = adapter.validate_json(text)
    except ValidationError as exc:
        raise IntegrityError(f"a stored message is not one of Pydantic AI: {exc}") from exc
    return restore_within(made) if is_cut else made


def _encode_contents(contents: list[Any]) -> tuple[bytes | str, bool]:
    """Return the JSON of messages, and whether strings in it are escaped."""
    given = untag_numbers(contents)
    if given is contents:
        with suppress(TypeError):  # a string has a lone surrogate
            return encode(contents), False
    return json.dumps(escape_within(given), ensure_ascii=False), True


def _get_parent_id(message: LoggedMessage) -> str | None:
    parent = message.metadata.get("parent_id")
    return parent if isinstance(parent, str) else None


def _walk_back(
    log: Mapping[str, LoggedMessage], head_id: str, limit: int | None
) -> list[LoggedMessage] | None:
    """Return the messages from the first, or the last ``limit``, up to one; ``None``: not here."""
    found: list[LoggedMessage] = []
    entry_id: str | None = head_id
    while entry_id is not None and (limit is None or len(found) < limit):
        message = log.get(entry_id)
        if message is None or len(found) > len(log):
            return None
        found.append(message)
        entry_id = _get_parent_id(message)
    return found[::-1]
