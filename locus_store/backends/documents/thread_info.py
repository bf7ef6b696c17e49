"""The facts of threads in documents: user, name, metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING

from locus_store import versions
from locus_store.types.arguments import check_text
from locus_store.types.thread_info import (
    DescribesThreads,
    PutThread,
    StoredFacts,
    ThreadFacts,
    ThreadsWanted,
    make_facts,
    require_owner,
)

if TYPE_CHECKING:
    from locus_store.backends.documents.threads import DocumentThreads
    from locus_store.types import Save, Written
    from locus_store.versions.threads import Thread, ThreadTransaction


class DocumentThreadInfo(DescribesThreads):
    """Reads and changes the documents of a backend."""

    _threads: DocumentThreads
    _recent: Callable[[int], Iterator[Thread]]

    async def put_facts(self, put: PutThread) -> None:
        """See ``DescribesThreads``, also for the following methods."""
        await self._threads.make(put.thread_id, lambda edit: put_facts(edit, put))

    async def facts_of(self, thread_id: str) -> ThreadFacts | None:
        found = await self._threads.look(self._threads.read, thread_id)
        return _facts(found) if found and found.exists else None

    async def clear_versions(self, thread_id: str) -> None:
        check_text("thread_id", thread_id)
        await self._threads.make(
            thread_id, lambda edit: versions.clear(edit, thread_id, ""), removes=True
        )

    async def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        size = wanted.offset + wanted.limit

        def find() -> list[ThreadFacts]:
            found = (
                it
                for it in self._recent(size)
                if wanted.user_id in {None, it.user_id} and wanted.takes(it.name, it.metadata)
            )
            some = islice(found, wanted.offset, size)
            return [_facts(it) for it in some]

        return await self._threads.look(find)


def require_its_owner(edit: ThreadTransaction, put: PutThread) -> None:
    """Refuse a put into another user's thread, which ``put_facts`` refuses too.

    Raises:
        NotOwnerError: The thread is another user's.
    """
    owner = edit.thread.user_id if edit.thread else None
    require_owner(put.thread_id, owner, put.user_id)


def claim_and_save(edit: ThreadTransaction, save: Save) -> Written:
    """Save a version, and claim its thread if the save says so; see ``StorageBackend.commit``."""
    if save.claim is None:
        return versions.save(edit, save)
    require_its_owner(edit, save.claim)
    written = versions.save(edit, save)
    put_facts(edit, save.claim)
    return written


def put_facts(edit: ThreadTransaction, put: PutThread) -> None:
    """Store a thread's facts; see ``DescribesThreads.put_facts``."""
    thread = edit.thread or edit.begin()
    stored = put.apply_to(
        StoredFacts(thread.user_id, thread.name, thread.metadata), thread.active_at
    )
    edit.adds_only = False  # the document's first line changes
    thread.user_id, thread.name, thread.metadata = stored


def _facts(thread: Thread) -> ThreadFacts:
    stored = deepcopy(thread.metadata)
    times = {"created_at": thread.created_at, "active_at": thread.active_at}
    return make_facts(thread.thread_id, thread.user_id, thread.name, stored, **times)
