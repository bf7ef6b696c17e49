"""Message logs: ordered messages of a thread, kept apart from its state.

A log is named by a thread and a namespace. The methods under "what a backend implements" differ per
technology; everything else is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Self

from locus_store.backend import StorageBackend
from locus_store.errors import ConnectionFailedError, QuotaError, TurnError
from locus_store.runtime.holding import get_number
from locus_store.runtime.loops import run_off_loop
from locus_store.runtime.stepping import needs_no_loop
from locus_store.turns import HasTurns
from locus_store.types.arguments import (
    check_limit,
    check_list,
    check_mapping,
    check_max_state_bytes,
    check_names,
    check_text,
    check_ttl,
)
from locus_store.types.logs import (
    Also,
    LogsWanted,
    New,
    make_edit,
    make_puts,
    select_log,
    select_logs,
    select_page,
)
from locus_store.types.messages import (
    Cut,
    LogChange,
    LogChanged,
    LoggedMessage,
    LogInfo,
    LogName,
    LogRead,
    LogSnapshot,
    LogWanted,
    Popped,
    check_change,
    decode_message,
    require_distinct,
)
from locus_store.types.tenants import Closing, ForTenants
from locus_store.values.encoding import MAX_STATE_BYTES


class BaseMessageLog(HasTurns, ForTenants, Closing, ABC):
    """The message logs of all threads of a storage.

    The order of the messages in a log never changes and does not depend on their times. A change is
    written whole or not at all, and continues when the caller is cancelled. A log that was emptied
    still exists and keeps its revision; a log that does not exist has revision 0.

    There are two ways to repeat a change whose reply was lost without storing a message twice. With
    message ids of your own, a message with a known id replaces the stored one in its place. With
    ``expected_revision``, the second call raises ``ConflictError``. ``append`` without an expected
    revision repeats itself once, over a new connection.

    Args:
        ttl_seconds: The thread's time to live after a change of its log; ``None``: as before.
        max_state_bytes: The largest message as compact JSON.
    """

    changes_several_threads: ClassVar[bool] = True
    """A change may have logs of several threads; else ``also`` with them is refused."""

    def __init__(
        self, *, ttl_seconds: float | None = None, max_state_bytes: int = MAX_STATE_BYTES
    ) -> None:
        self.ttl_seconds = check_ttl(ttl_seconds)
        self.max_state_bytes = check_max_state_bytes(max_state_bytes)

    @abstractmethod
    async def open(self) -> None:
        """Open the storage now instead of in the first call, so that errors show here."""

    @abstractmethod
    async def change(self, change: LogChange) -> LogChanged:
        """Apply one change, all or nothing, also after the caller is cancelled.

        Raises:
            ConflictError: The log has not the expected revision, or not the position of the cut.
        """

    @abstractmethod
    async def look(self, wanted: LogWanted) -> LogRead | None:
        """Return a log with the messages that match, in one consistent read; in their order.

        ``None`` if there is no such log.

        Raises:
            NotFoundError: The log has no message ``wanted.after``.
        """

    async def look_at_contents(self, request: LogWanted) -> list[Any]:
        """Return the contents that ``look`` finds, checked; ``[]`` if there is no such log."""
        return [it.content for it in await self._decode_logs(await self.look(request))]

    @abstractmethod
    async def find_logs(self, wanted: LogsWanted) -> list[LogInfo]:
        """Return the logs of live threads that match, by thread id and namespace."""

    @abstractmethod
    async def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        """Return the logs of ``find_logs``, in one read.

        Each has its newest message, or, with ``wanted.whole``, all its messages in their order.
        """

    @abstractmethod
    async def drop(
        self, thread_id: str, namespace: str | None, expected_revision: int | None
    ) -> bool:
        """Remove a log, or all logs of a thread; return whether there was one.

        A thread with nothing else is removed with its last log.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release what was opened; idempotent, and the log may be used again afterwards."""

    async def append(
        self,
        thread_id: str,
        messages: New,
        *,
        namespace: str = "",
        metadata: Mapping[str, Any] | None = None,
        expected_revision: int | None = None,
        also: Also | None = None,
        user_id: str | None = None,
    ) -> int:
        """Append messages in their order; return the log's new revision.

        A message with an id that the log has replaces that message and keeps its place and time.
        Of several with one id the last counts, in the place of the first. Without messages nothing
        is changed, and no log is created.

        Args:
            thread_id: The thread; created if it does not exist.
            messages: All are written, or none.
            namespace: Of the log, for example the name of a subagent.
            metadata: A JSON object; merged into the metadata of each message, whose keys win.
            expected_revision: Append only if this is the log's revision; 0: if there is none.
            also: Messages for other logs: by namespace for those of this thread, by thread and
                namespace for others. All logs are changed in one transaction. ``KeptMessages``
                are for threads that have no time to live.
            user_id: The threads become this user's if they have no user, so that
                ``backend.forget_user`` finds them.

        Raises:
            ConflictError: It is not; nothing was written.
            NotOwnerError: A thread is another user's; nothing was written.
            InvalidArgumentError: A message or option is not valid; nothing was written.
            SerializationError: JSON cannot keep a message exactly, or it is too large.
        """
        change = self._change(
            thread_id, namespace, messages, metadata, expected_revision, user_id=user_id
        )
        others = check_mapping("also", also or {}).items()
        change.also = [make_edit(change, *it, self.max_state_bytes) for it in others]
        for edit in change.also:
            edit.turn = self._find_number(edit.thread_id)
        require_distinct(change)
        try:
            return (await self.change(change)).revision
        except ConnectionFailedError as exc:
            if not change.is_repeatable:
                raise
            for put in change.get_all_puts():
                put.may_exist = True  # the reply may be lost, and not the change
            lost = exc
        try:
            return (await self.change(change)).revision
        except (QuotaError, TurnError) as exc:  # the messages may be there
            raise lost from exc

    async def replace(
        self,
        thread_id: str,
        start: int,
        messages: New,
        *,
        namespace: str = "",
        metadata: Mapping[str, Any] | None = None,
        expected_revision: int | None = None,
        user_id: str | None = None,
    ) -> int:
        """Replace the messages from a position on by others; return the log's new revision.

        Give ``expected_revision`` (of ``read``) to replace only what was read.

        Args:
            thread_id: The thread.
            start: Position of the first message to remove; 0 is the oldest, the log's length
                removes none.
            messages: Appended in place of what was removed; see ``append``.
            namespace: Of the log.
            metadata: See ``append``.
            expected_revision: See ``append``.
            user_id: See ``append``.

        Raises:
            ConflictError: The log has another revision, or fewer messages; nothing was written.
            NotOwnerError: See ``append``.
        """
        check_limit(start, "start")
        change = self._change(
            thread_id, namespace, messages, metadata, expected_revision, user_id=user_id
        )
        change.cut = Cut("from", position=start)
        return (await self.change(change)).revision

    async def pop(
        self, thread_id: str, *, namespace: str = "", expected_revision: int | None = None
    ) -> Popped:
        """Remove the newest message; return it and the log's new revision.

        Raises:
            ConflictError: See ``append``.
            IntegrityError: The message is damaged, and stays; ``remove`` removes it unread.
        """
        change = self._change(thread_id, namespace, (), None, expected_revision)
        change.cut = Cut("newest")
        revision, removed = await self.change(change)
        message = None if removed is None else decode_message(removed, self.max_state_bytes)
        return Popped(message, revision)

    async def remove(
        self,
        thread_id: str,
        message_ids: Sequence[str],
        *,
        namespace: str = "",
        expected_revision: int | None = None,
    ) -> int:
        """Remove the messages with these ids, if they exist; return the log's revision.

        Raises:
            ConflictError: See ``append``.
        """
        change = self._change(thread_id, namespace, (), None, expected_revision)
        ids = check_list("message_ids", message_ids)
        for message_id in ids:
            check_text("message_id", message_id)
        change.cut = Cut("named", message_ids=tuple(dict.fromkeys(ids)))
        return (await self.change(change)).revision

    async def clear(
        self, thread_id: str, *, namespace: str = "", expected_revision: int | None = None
    ) -> int:
        """Remove all messages of a log, which still exists; return its new revision.

        Raises:
            ConflictError: See ``append``.
        """
        change = self._change(thread_id, namespace, (), None, expected_revision)
        change.cut = Cut("all")
        return (await self.change(change)).revision

    async def delete(
        self, thread_id: str, *, namespace: str | None = None, expected_revision: int | None = None
    ) -> bool:
        """Delete a thread's logs of all namespaces; return whether there was one.

        The thread's states stay. A thread that has nothing but its logs is deleted with the last.

        Args:
            thread_id: The thread.
            namespace: Delete the log of this namespace only.
            expected_revision: Delete only if this is the revision of the log of ``namespace``, or
                else of the root namespace.

        Raises:
            ConflictError: It is not; nothing was deleted.
        """
        check_change(thread_id, "" if namespace is None else namespace, expected_revision)
        return await self.drop(thread_id, namespace, expected_revision)

    async def load(
        self, thread_id: str, *, namespace: str = "", newest: int | None = None
    ) -> list[LoggedMessage] | None:
        """Return the messages of a log, oldest first; ``None`` if there is no such log.

        Args:
            thread_id: The thread.
            namespace: Of the log.
            newest: Only the last ones, so many at most, oldest first.
        """
        found = await self.read(thread_id, namespace=namespace, newest=newest)
        return None if found is None else found.messages

    async def contents(
        self, thread_id: str, *, namespace: str = "", newest: int | None = None
    ) -> list[Any]:
        """Return the contents of the messages of ``load``; ``[]`` if there is no such log."""
        return await self.look_at_contents(select_log(thread_id, namespace, newest))

    async def read(
        self, thread_id: str, *, namespace: str = "", newest: int | None = None
    ) -> LogSnapshot | None:
        """Return a log with its revision and messages, as of one time; see ``load``."""
        found = await self.look(select_log(thread_id, namespace, newest))
        return None if found is None else LogSnapshot(found.info, await self._decode_logs(found))

    async def page(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        offset: int = 0,
        limit: int = 100,
        after: str | None = None,
        search: str | None = None,
        role: str | None = None,
        metadata_filter: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
    ) -> list[LoggedMessage]:
        """Return a page of a log, oldest first; ``[]`` if there is no such log.

        Appends change no page that was read: they add to the last one. Pages by ``after`` stay in
        step while messages before it are removed, too.

        Args:
            thread_id: The thread.
            namespace: Of the log.
            offset: So many messages that match are left out first; not with ``after``.
            limit: At most this many; 0: none.
            after: Id of the last message of the page before.
            search: Only messages whose text has this, without regard to case and accents. ``%`` and
                ``_`` are characters like others. The text is the one that was given, or else the
                strings in the content, not its field names. Reads the messages of this log that
                meet the other conditions, one after the other.
            role: Only messages of this role.
            metadata_filter: Only messages with such metadata; see
                ``locus_store.values.filters.Filter``. Reads messages as ``search`` does.
            since: Only messages that were first appended then or later.
            until: Only messages that were first appended then or earlier.
            newest_first: In the opposite order; not with ``after``.

        Raises:
            NotFoundError: The log has no message ``after``.
        """
        wanted = select_page(
            search,
            metadata_filter,
            thread_id=thread_id,
            namespace=namespace,
            offset=offset,
            limit=limit,
            after=after,
            newest=bool(newest_first),
            role=role,
            since=since,
            until=until,
        )
        messages = await self._decode_logs(await self.look(wanted) if limit else None)
        return messages[::-1] if newest_first else messages

    async def get(
        self, thread_id: str, message_id: str, *, namespace: str = ""
    ) -> LoggedMessage | None:
        """Return the message with an id; ``None`` if there is none."""
        check_names(thread_id, namespace)
        check_text("message_id", message_id)
        wanted = LogWanted(thread_id=thread_id, namespace=namespace, limit=1, message_id=message_id)
        messages = await self._decode_logs(await self.look(wanted))
        return messages[0] if messages else None

    async def info(self, thread_id: str, *, namespace: str = "") -> LogInfo | None:
        """Return a log's revision, count and time; ``None`` if there is no such log."""
        check_names(thread_id, namespace)
        found = await self.find_logs(LogsWanted(thread_id=thread_id, namespace=namespace, limit=1))
        return found[0] if found else None

    async def logs(
        self,
        thread_id: str | None = None,
        *,
        prefix: str = "",
        namespace: str | None = None,
        user_id: str | None = None,
        limit: int = 100,
        after: LogName | None = None,
    ) -> list[LogInfo]:
        """Return logs with their counts and times, by thread id and namespace.

        Args:
            thread_id: Of this thread only.
            prefix: Of threads whose ids begin with it.
            namespace: Of this namespace only.
            user_id: Of the threads of this user only.
            limit: At most this many.
            after: Thread and namespace of the last log of the page before.
        """
        where = {"prefix": prefix, "namespace": namespace, "user_id": user_id}
        wanted = select_logs(after, thread_id=thread_id, limit=limit, **where)
        return await self.find_logs(wanted) if limit else []

    async def heads(
        self,
        thread_id: str | None = None,
        *,
        prefix: str = "",
        namespace: str | None = None,
        user_id: str | None = None,
        limit: int = 100,
        after: LogName | None = None,
        whole: bool = False,
    ) -> list[LogSnapshot]:
        """Return logs, each with its newest message, or with none if it is empty; see ``logs``.

        With ``whole``, each has all its messages, oldest first: many short logs in one read.
        """
        where = {"prefix": prefix, "namespace": namespace, "user_id": user_id}
        wanted = select_logs(after, thread_id=thread_id, limit=limit, whole=whole, **where)
        found = await self.find_heads(wanted) if limit else []
        messages = iter(await self._decode_logs(*found))
        return [LogSnapshot(it.info, [*islice(messages, len(it.messages))]) for it in found]

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    def _change(
        self,
        thread_id: str,
        namespace: str,
        messages: New,
        metadata: Mapping[str, Any] | None,
        expected_revision: int | None,
        *,
        user_id: str | None = None,
    ) -> LogChange:
        check_change(thread_id, namespace, expected_revision)
        return LogChange(
            thread_id=thread_id,
            namespace=namespace,
            expected_revision=expected_revision,
            ttl_seconds=self.ttl_seconds,
            user_id=check_text("user_id", user_id, optional=True),
            turn=self._find_number(thread_id),
            puts=make_puts(messages, namespace, metadata, self.max_state_bytes),
        )

    def _find_number(self, thread_id: str) -> int | None:
        """Return the number of the turn that the caller holds."""
        backend = getattr(self, "backend", None)
        return backend and get_number(backend, thread_id)

    async def _decode_logs(self, *found: LogRead | None) -> list[LoggedMessage]:
        messages = [it for log in found if log is not None for it in log.messages]
        size, most = sum(len(it.payload or b"") for it in messages), self.max_state_bytes
        return await run_off_loop(lambda: [decode_message(it, most) for it in messages], size)


class BackendMessageLog(BaseMessageLog):
    """Message logs of the threads of a backend, which ``close`` closes if the log ``owns`` it."""

    backend: Any

    def __init__(self, backend: StorageBackend, *, owns: bool, **options: Any) -> None:
        super().__init__(max_state_bytes=backend.max_state_bytes, **options)
        self.backend = backend
        self.moves_between_threads = backend.moves_between_threads
        self.needs_no_loop = needs_no_loop(backend)
        self.owns = owns

    def __repr__(self) -> str:
        return repr(self.backend).replace("Backend", "MessageLog", 1)

    async def open(self) -> None:
        await self.backend.open()

    async def close(self) -> None:
        if self.owns:
            await self.backend.close()
