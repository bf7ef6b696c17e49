"""In-memory backend: threads in a dict, for tests and trials."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.memory.documents import MemoryDocuments
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.types.log_lists import head_of
from locus_store.types.messages import LogChanged, require_revision, unknown_message
from locus_store.types.options import CheckpointOptions, StateOptions, complete, parted
from locus_store.types.thread_info import require_owner
from locus_store.versions import logs
from locus_store.versions.threads import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from locus_store.backends.memory.options import MemoryCheckpointerOptions
    from locus_store.types.log_lists import LogsWanted
    from locus_store.types.messages import LogChange, LogInfo, LogRead, LogWanted
    from locus_store.versions.threads import Thread


class MemoryBackend(DocumentBackend):
    """Keeps versions in this process; they are lost when it ends.

    It may be used from several threads and event loops: writes wait for each other.
    """

    factory = "MemoryCheckpointer"
    persistent_checkpoint_ids = False
    messages = True
    needs_no_loop = moves_between_threads = True

    def __init__(self, **options: Unpack[StateOptions]) -> None:
        given = complete(StateOptions, options, "MemoryBackend")
        super().__init__(MemoryDocuments(), max_state_bytes=given["max_state_bytes"])

    def __repr__(self) -> str:
        return "MemoryBackend()"

    def clear(self) -> None:
        """Remove all threads."""
        for thread_id in self._documents.keys(after=""):
            drop = partial(self._threads.write, thread_id, Edit.drop_thread, creates=False)
            self._threads.at_once(drop)

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads that have a version."""
        return [thread.thread_id for thread, _ in self._roots()]

    # --- message logs

    async def change_log(self, change: LogChange) -> LogChanged:
        """See ``BaseMessageLog.change``, and for the following methods its others."""
        return self._threads.at_once(lambda: self._changed_logs(change))

    def _changed_logs(self, change: LogChange) -> LogChanged:
        """Change logs while no other write runs; readers may see one thread before another."""
        for edit in change.edits():
            thread = self._threads.read(edit.thread_id)
            require_owner(edit.thread_id, thread.user_id if thread else None, edit.user_id)
        name, write = change.thread_id, self._threads.write
        creates = any(edit.puts for edit in change.edits() if edit.thread_id == name)
        found = write(name, lambda it: logs.change(it, change), creates=creates)
        if found is None:
            require_revision((name, change.namespace), change.expected_revision, 0)
        for other in change.also:
            if other.puts and other.thread_id != name:
                write(other.thread_id, partial(logs.apply, wanted=other), creates=True)
        return found or LogChanged(0)

    async def look_at_log(self, wanted: LogWanted) -> LogRead | None:
        thread = self._threads.read(wanted.thread_id)
        if thread is None and wanted.after is not None:
            raise unknown_message(wanted)
        return logs.look(thread, wanted, self.max_state_bytes) if thread else None

    async def find_logs(self, wanted: LogsWanted) -> list[LogInfo]:
        each = (logs.info_of(it, name) for it, name in self._matching(wanted))
        return [it for it in each if it is not None]

    async def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        each = (
            logs.look(it, head_of(it.thread_id, name, whole=wanted.whole), self.max_state_bytes)
            for it, name in self._matching(wanted)
        )
        return [it for it in each if it is not None]

    def _matching(self, wanted: LogsWanted) -> Iterator[tuple[Thread, str]]:
        found = (
            (it, name)
            for it in self._threads.live()
            for name in sorted(it.logs)
            if wanted.takes(it.thread_id, name, it.user_id)
        )
        return islice(found, wanted.limit)

    async def drop_logs(
        self, thread_id: str, namespace: str | None, expected_revision: int | None
    ) -> bool:
        found = await self._change(
            thread_id, lambda it: logs.drop(it, namespace, expected_revision)
        )
        if found is None:
            require_revision((thread_id, namespace or ""), expected_revision, 0)
        return found or False

    def version_count(self, thread_id: str) -> int:
        """Return how many versions a thread has."""
        thread = self._threads.read(thread_id)
        space = thread.space("") if thread else None
        return len(space.visible()) if space else 0


class MemoryCheckpointer(StorageBackendAdapter[S]):
    """A checkpointer in this process's memory, for tests and trials; lost when it ends.

    Args:
        state_type: See ``StorageBackendAdapter``.
        options: Of ``MemoryBackend`` and of ``StorageBackendAdapter``.
    """

    def __init__(
        self,
        *,
        state_type: type[S] | None = None,
        **options: Unpack[MemoryCheckpointerOptions],
    ) -> None:
        own, rest = parted(CheckpointOptions, options)
        self._memory_backend = MemoryBackend(**rest)
        super().__init__(self._memory_backend, state_type=state_type, **own)

    # --- as the Locus SDK's, which block

    def clear(self) -> None:
        """Remove all threads."""
        self._memory_backend.clear()
        self._loads.clear()

    def get_thread_ids(self) -> list[str]:
        """Return the ids of all threads."""
        return self._memory_backend.thread_ids()

    def get_checkpoint_count(self, thread_id: str | None = None) -> int:
        """Return how many versions a thread has, or all threads have; 0 where there is none."""
        ids = self.get_thread_ids() if thread_id is None else [thread_id]
        return sum(map(self._memory_backend.version_count, ids))


def memory_checkpointer(
    *, state_type: type[S] | None = None, **options: Unpack[MemoryCheckpointerOptions]
) -> MemoryCheckpointer[S]:
    """Return a checkpointer in this process's memory; options as ``MemoryCheckpointer``."""
    return MemoryCheckpointer(state_type=state_type, **options)
