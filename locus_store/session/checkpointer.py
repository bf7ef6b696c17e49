"""Session memory: state, message log and facts of a thread in one object, with a cache."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, ClassVar

from locus_store.errors import ConflictError, InvalidArgumentError
from locus_store.runtime.portals import make_sync_wrapper
from locus_store.session import states
from locus_store.session.cache import CachedState
from locus_store.session.config import VERSION_KEY, Call, to_call
from locus_store.session.models import (
    MODELS,
    Message,
    Models,
    ThreadInfo,
    from_log,
    make_info,
    require_exact,
    to_log,
)
from locus_store.session.owners import make_owner_label
from locus_store.session.reads import StateReads, make_entry
from locus_store.session.runs import BaseSession, make_writer
from locus_store.types import Expected, Version
from locus_store.types.arguments import MAX_COUNT, check_id, check_list
from locus_store.types.codec import get_labels
from locus_store.types.marks import LoadedVersion
from locus_store.types.thread_info import ThreadFacts, format_user, parse_user
from locus_store.values.encoding import decode
from locus_store.values.surrogates import restore


class SessionCheckpointer(BaseSession):
    """Keeps the states, messages and facts of threads; a state is an ordinary version.

    A config is a dict with ``thread_id``, and where needed ``user_id``, ``state_class``,
    ``thread_name``, ``thread_meta`` and ``meta`` (of a version); it is not changed. Name and
    metadata are stored by the save or message that makes a thread its first user's, if it has none.
    Other users find nothing, and their writes raise ``NotOwnerError``. A config without ``user_id``
    reaches all threads.

    A save is written to the database first, then to the cache. Writes continue when their caller
    is cancelled. Methods with ``a`` before their names are asynchronous; each has a blocking form.

    A load or save notes its version in the config as ``_checkpoint_version``; a save with it raises
    ``ConflictError`` if the thread was moved on. A state without one derives from the newest seen.

    Args:
        backend: SQLite, PostgreSQL, Oracle or memory; or a function that returns it, which the
            first use calls.
        cache: Of states; ``None``: none; or a function, as of the backend.
        cache_verify_seconds: No read of the cache is staler than this; 0: none is stale.
        user_id_type: ``string``, ``int`` or ``bigint``: the type of users' ids. In SQL it is that
            of a column; an empty database takes it, another one by ``locus-store db user-ids``.
        on_conflict: ``"raise"``; ``"overwrite"`` lets the last writer win.
        keep_last: Versions to keep per thread; ``None``: all.
        ttl_seconds: A thread expires so long after its last save or message; ``None``: never.
        release_resources: ``False``: ``arelease`` leaves the connections open.

    Raises:
        InvalidArgumentError: An option is not valid.
        UnsupportedError: The backend keeps no messages, or no users of threads.
    """

    models: ClassVar[Models] = MODELS
    """The classes of states, messages and facts of threads."""

    @make_writer
    async def aput_state(self, config: Mapping[str, Any], state: Any) -> Any:
        """Save a version of the thread's state; return the state, which is now made from it.

        Raises:
            ConflictError: The thread has other versions than those seen here; nothing was written.
            NotOwnerError: The thread is another user's; nothing was written.
            SerializationError: JSON cannot keep the state; nothing was written.
        """
        call = self._parse(config)
        data, kind = states.dump(state)
        origin = _find_origin(call, state, self._reads)
        labels = {**get_labels(data), **kind, **make_owner_label(call)}
        claim = await self._owners.to_claim(call)
        began = time.monotonic()
        try:
            written = await self.backend.write_state(
                call.thread_id,
                data,
                metadata=call.meta,
                labels=labels,
                expected=Expected(made_from=origin.made_from, head=origin.head),
                thread_must_exist=call.user_id is not None and claim is None,
                on_conflict=self.on_conflict,
                writer=origin.load_id,
                keep_last=self.keep_last,
                ttl_seconds=self.ttl_seconds,
                claim=claim,
            )
        except ConflictError:  # the thread may have been deleted since its user was seen
            self._owners.forget(call.thread_id)
            raise
        if claim is not None:
            self._owners.remember_claim(claim, began)
        made = call.make_origin(written.mark, origin)
        self._reads.note(made)
        self._hand_on(config, made)
        states.carry(state, made)
        self._reads.remember_write(call.thread_id, written.mark, began)
        if self.cache is not None:
            await self._reads.cache_state(call.thread_id, make_entry(data, written.mark, labels))
        return state

    async def aget_state(self, config: Mapping[str, Any]) -> Any:
        """Return the committed state as the database has it; ``None`` if there is none.

        Raises:
            SerializationError: The state's class is not imported.
        """
        call = self._parse(config)
        found = await self._reads.read_head(call.thread_id)
        if found is None or not await self._owners.may_load(call, found.version.labels):
            self._hand_on(config, call.make_origin(None))
            return None
        return self._restore(call, config, found.state, found.version)

    @make_writer
    async def aclear_state(self, config: Mapping[str, Any]) -> None:
        """Remove the state with all its versions in one transaction, then its cache entry.

        The messages and facts of the thread stay.

        Raises:
            NotOwnerError: The thread is another user's; nothing was removed.
        """
        call = self._parse(config)
        await self._owners.require(call)
        await self._owners.threads.clear_versions(call.thread_id)
        await self._reads.drop(call.thread_id)

    @make_writer
    async def aput_state_cache(self, config: Mapping[str, Any], state: Any) -> Any:
        """Keep a working state in the cache, over the version that it was made from.

        It is lost with the cache, and when a newer version is committed. Without a cache nothing
        is kept.

        Raises:
            NotOwnerError: The thread is another user's; nothing was written.
            SerializationError: JSON cannot keep the state; nothing was written.
        """
        call = self._parse(config)
        data, kind = states.dump(state)
        origin = _find_origin(call, state, self._reads)
        states.require_exact(data, self.backend.max_state_bytes)
        if self.cache is None:
            await self._owners.require(call)
            return state
        await self._owners.claim(call)
        mark = self._reads.get_base(origin)
        if mark is None and await self._reads.has_state(call.thread_id):
            return state  # a commit outranks it already
        labels = {**kind, **make_owner_label(call)}
        entry = make_entry(data, mark, labels, is_working=True)
        await self._reads.cache_state(call.thread_id, entry)
        return state

    async def aget_state_cache(self, config: Mapping[str, Any]) -> Any:
        """Return the working or committed state, from the cache where it is confirmed.

        Reads the database otherwise, and fills the cache. ``None`` if there is no state.
        """
        call = self._parse(config)
        entry = await self._reads.get_cached(call.thread_id)
        if entry is None or not await self._owners.may_load(
            call, entry.labels, is_working=entry.is_working
        ):
            self._hand_on(config, call.make_origin(None))
            return None
        data: Any = decode(entry.state)
        return self._restore(call, config, data, entry)

    def _restore(
        self,
        call: Call,
        config: Mapping[str, Any],
        data: dict[str, Any],
        version: Version | CachedState,
    ) -> Any:
        origin = call.make_origin(version.mark)
        self._hand_on(config, origin)
        kind = call.state_class or self._state_class
        return states.restore(restore(data), version.labels, kind, self.models.state, origin)

    @make_writer
    async def aput_messages(
        self,
        config: Mapping[str, Any],
        messages: Sequence[Message],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Append messages to the thread's log, in one transaction and in their order.

        A message with a known id replaces that message, in its place.

        Args:
            config: See the class.
            messages: All are written, or none.
            metadata: Merged into the metadata of each message, whose keys win.

        Raises:
            InvalidArgumentError: One is not a ``Message``; nothing was written.
            NotOwnerError: The thread is another user's; nothing was written.
            SerializationError: JSON cannot keep one; nothing was written.
        """
        call, kind = self._parse(config), self.models.message
        entries = [to_log(it, kind) for it in check_list("messages", messages)]
        if not entries:
            return
        most = self.backend.max_state_bytes
        await self._owners.claim(call, lambda: require_exact(entries, metadata, most))
        await self.log.append(call.thread_id, entries, metadata=metadata, user_id=call.user_id)

    async def aget_message(
        self, config: Mapping[str, Any], message_id: str | int
    ) -> Message | None:
        """Return the message with an id; ``None`` if there is none."""
        call = self._parse(config)
        if not await self._owners.may_read(call):
            return None
        found = await self.log.get(call.thread_id, check_id("message_id", message_id))
        return None if found is None else from_log(found, self.models.message)

    async def alist_messages(
        self,
        config: Mapping[str, Any],
        search: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> list[Message]:
        """Return messages, oldest first.

        Args:
            config: See the class.
            search: Only messages whose text has this, without regard to case and accents.
            offset: So many that match are left out first.
            limit: At most this many; 0: none; ``None``: all.
        """
        call = self._parse(config)
        if not await self._owners.may_read(call):
            return []
        most = MAX_COUNT if limit is None else limit
        found = await self.log.page(call.thread_id, search=search, offset=offset or 0, limit=most)
        return [from_log(it, self.models.message) for it in found]

    @make_writer
    async def adelete_message(self, config: Mapping[str, Any], message_id: str | int) -> None:
        """Delete the message with an id, if there is one.

        Raises:
            NotOwnerError: The thread is another user's; nothing was deleted.
        """
        call = self._parse(config)
        await self._owners.require(call)
        await self.log.remove(call.thread_id, [check_id("message_id", message_id)])

    @make_writer
    async def aput_checkpoint(
        self,
        config: Mapping[str, Any],
        state: Any,
        messages: Sequence[Message] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        """Append messages, then save the state that has them; return the state.

        These are two transactions: a process that ends between them leaves messages that no state
        has, never a state without its messages.

        Raises:
            ConflictError: The thread was moved on since the state was loaded. The messages were
                appended, and the state was not saved.
            InvalidArgumentError, NotOwnerError, SerializationError: See ``aput_messages`` and
                ``aput_state``.
        """
        if messages:
            await self.aput_messages(config, messages, metadata)
        return await self.aput_state(config, state)

    @make_writer
    async def aput_thread(
        self, config: Mapping[str, Any], thread_info: ThreadInfo | Mapping[str, Any]
    ) -> None:
        """Replace the facts of a thread but its user; create the thread if it does not exist.

        Raises:
            InvalidArgumentError: The config names another thread or user than ``thread_info``.
            NotOwnerError: The thread is another user's; nothing was written.
        """
        info = make_info(thread_info)
        thread_id = check_id("thread_id", info.thread_id)
        call = self._parse({"thread_id": thread_id, **config})
        user_id = format_user(info.user_id, self.user_id_type) or call.user_id
        if call.thread_id != thread_id or call.user_id not in {None, user_id}:
            raise InvalidArgumentError(
                "the config and thread_info name different threads or users; nothing was written"
            )
        at = info.updated_at
        threads = await self._owners.open()
        await threads.put_thread(
            thread_id,
            user_id=user_id,
            name=info.thread_name,
            metadata=info.metadata,
            run_id=info.run_id,
            updated_at=at if at is None or at.tzinfo else at.replace(tzinfo=UTC),
        )

    async def aget_thread(self, config: Mapping[str, Any]) -> ThreadInfo | None:
        """Return the facts of a thread; ``None`` if it does not exist."""
        call = self._parse(config)
        threads = await self._owners.open()
        found = await threads.thread_facts(call.thread_id, user_id=call.user_id)
        return None if found is None else self._make_info(found)

    async def alist_threads(
        self,
        config: Mapping[str, Any],
        search: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> list[ThreadInfo]:
        """Return the threads of the config's user, the most recently active first.

        Args:
            config: ``user_id`` names the user; without it, all threads are listed.
            search: Only threads whose name, or a string in whose metadata, has this, without
                regard to case and accents.
            offset: So many that match are left out first.
            limit: At most this many; 0: none; ``None``: all.
        """
        call = to_call(config, self.user_id_type, needs_thread=False)
        threads = await self._owners.open()
        found = await threads.threads_by_activity(
            call.user_id,
            search=search,
            offset=offset or 0,
            limit=MAX_COUNT if limit is None else limit,
        )
        return [self._make_info(it) for it in found]

    @make_writer
    async def aclean_thread(self, config: Mapping[str, Any]) -> None:
        """Delete the thread's state, messages and facts in one transaction, then its cache entry.

        Raises:
            NotOwnerError: The thread is another user's; nothing was deleted.
        """
        call = self._parse(config)
        await self._owners.require(call)
        await self.backend.remove_thread(call.thread_id)
        await self._values.clear_thread(call.thread_id)
        self._owners.forget(call.thread_id)
        await self._reads.drop(call.thread_id)

    put_state = make_sync_wrapper(aput_state)
    get_state = make_sync_wrapper(aget_state)
    clear_state = make_sync_wrapper(aclear_state)
    put_state_cache = make_sync_wrapper(aput_state_cache)
    get_state_cache = make_sync_wrapper(aget_state_cache)
    put_messages = make_sync_wrapper(aput_messages)
    get_message = make_sync_wrapper(aget_message)
    list_messages = make_sync_wrapper(alist_messages)
    delete_message = make_sync_wrapper(adelete_message)
    put_thread = make_sync_wrapper(aput_thread)
    get_thread = make_sync_wrapper(aget_thread)
    list_threads = make_sync_wrapper(alist_threads)
    clean_thread = make_sync_wrapper(aclean_thread)
    put_checkpoint = make_sync_wrapper(aput_checkpoint)

    def _hand_on(self, config: Mapping[str, Any], origin: LoadedVersion) -> None:
        """Give the version of a state to the next call, where the config has room for it."""
        if VERSION_KEY in config and isinstance(config, dict):
            config[VERSION_KEY] = origin.to_token()

    def _make_info(self, facts: ThreadFacts) -> Any:
        return self.models.thread_info(
            thread_id=facts.thread_id,
            thread_name=facts.name,
            user_id=parse_user(facts.user_id, self.user_id_type),
            metadata=restore(facts.metadata),
            updated_at=facts.updated_at,
            run_id=facts.run_id,
        )


def _find_origin(call: Call, state: object, reads: StateReads) -> LoadedVersion:
    """Return the origin of a state: its own, else the config's, else what was seen last."""
    known = call.select_for_thread(states.get_carried(state)) or call.select_for_thread(call.origin)
    return known or call.make_origin(reads.get_newest(call.thread_id))
