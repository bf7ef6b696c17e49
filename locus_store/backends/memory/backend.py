"""In-memory backend: threads in a dict, for tests and trials."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.memory.documents import MemoryDocuments
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.types.arguments import check_backend
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.versions.threads import Edit

if TYPE_CHECKING:
    from locus_store.types import OnConflict


class MemoryBackend(DocumentBackend):
    """Keeps versions in this process; they are lost when it ends.

    It may be used from several threads and event loops: writes wait for each other.
    """

    factory = "MemoryCheckpointer"
    persistent_checkpoint_ids = False
    needs_no_loop = moves_between_threads = True

    def __init__(self, *, max_state_bytes: int = MAX_STATE_BYTES) -> None:
        super().__init__(MemoryDocuments(), max_state_bytes=max_state_bytes)

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

    def version_count(self, thread_id: str) -> int:
        """Return how many versions a thread has."""
        thread = self._threads.read(thread_id)
        space = thread.space("") if thread else None
        return len(space.visible()) if space else 0


class InMemoryMessageLog(DocumentMessageLog):
    """Keeps message logs in this process; usable from any number of threads and event loops.

    Args:
        ttl_seconds: See ``BaseMessageLog``.
        max_state_bytes: See ``BaseMessageLog``; excludes ``backend``.
        backend: The backend whose threads have the logs, for example ``checkpointer.backend``;
            ``None``: a backend of its own.

    Raises:
        InvalidArgumentError: An option is not valid.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        backend: MemoryBackend | None = None,
    ) -> None:
        if backend is not None:
            is_alone = max_state_bytes == MAX_STATE_BYTES
            check_backend(backend, MemoryBackend, is_alone=is_alone)
        chosen = backend or MemoryBackend(max_state_bytes=max_state_bytes)
        super().__init__(chosen, owns=False, ttl_seconds=ttl_seconds)

    def __repr__(self) -> str:
        return "InMemoryMessageLog()"


class MemoryCheckpointer(StorageBackendAdapter[S]):
    """A checkpointer in this process's memory, for tests and trials; lost when it ends.

    Args:
        state_type: See ``StorageBackendAdapter``, as the other options.
        on_conflict: What a save does on a conflict.
        keep_last: Versions to keep per thread.
        ttl_seconds: A thread's time to live after its last save.
        max_state_bytes: See ``MemoryBackend``.
        refresh_on_read: A load renews that time.
    """

    def __init__(
        self,
        *,
        state_type: type[S] | None = None,
        on_conflict: OnConflict = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        refresh_on_read: bool = False,
    ) -> None:
        self._memory_backend = MemoryBackend(max_state_bytes=max_state_bytes)
        super().__init__(
            self._memory_backend,
            state_type=state_type,
            on_conflict=on_conflict,
            keep_last=keep_last,
            ttl_seconds=ttl_seconds,
            refresh_on_read=refresh_on_read,
        )

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
    *,
    state_type: type[S] | None = None,
    on_conflict: OnConflict = "raise",
    keep_last: int | None = None,
    ttl_seconds: float | None = None,
    max_state_bytes: int = MAX_STATE_BYTES,
    refresh_on_read: bool = False,
) -> MemoryCheckpointer[S]:
    """Return a checkpointer in this process's memory; options as ``MemoryCheckpointer``."""
    return MemoryCheckpointer(
        state_type=state_type,
        on_conflict=on_conflict,
        keep_last=keep_last,
        ttl_seconds=ttl_seconds,
        max_state_bytes=max_state_bytes,
        refresh_on_read=refresh_on_read,
    )
