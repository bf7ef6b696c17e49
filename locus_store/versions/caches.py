"""Caches: the newest version of each line in a backend, and a saver's checkpoint ids."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from locus_store.errors import ConflictError, InvalidArgumentError, SchemaError
from locus_store.runtime.forks import make_lock
from locus_store.types import Expected, Mark, Version
from locus_store.values import frames

LineKey: TypeAlias = tuple[str | None, str, str]
"""A tenant, a thread and a namespace."""

COLD_STATE_BYTES = 16 * 1024
"""For a state above this size, the head is read if its digest tree is not cached."""

KNOWN_BYTES = 64 * 1024 * 1024
"""The bytes of versions that one backend object caches, so that saves send frames and not whole
states, and a load of a cached head reads no state."""


FindHead: TypeAlias = "Callable[..., Awaitable[Version | None]]"


def make_kind_error(thread_id: str, *, is_graphs: bool) -> SchemaError:
    """Return the error of a thread that is, or is not, of a graph of LangGraph."""
    held = "LangGraph checkpoints" if is_graphs else "an agent's state and no LangGraph checkpoint"
    user = "agent" if is_graphs else "graph"
    return SchemaError(f"thread {thread_id!r} holds {held}; give the {user} a thread of its own")


@dataclass(slots=True)
class KnownVersion:
    """The newest version known of a line."""

    mark: Mark
    checkpoint_id: str
    tree: frames.DigestTree

    async def refuse_kind(self, key: LineKey, origin: Expected | None, find: FindHead) -> None:
        """Refuse an agent's state that follows a checkpoint of LangGraph, and the other way round.

        The head is read before: this version may be another writer's past.

        Raises:
            SchemaError: Names the thread.
        """
        if origin is None or origin.made_from == self.mark:
            _, thread_id, namespace = key
            head = await find(thread_id, namespace=namespace)
            if head is not None and head.mark == self.mark:
                raise make_kind_error(thread_id, is_graphs=self.tree.is_graphs)


class CachedVersions:
    """A cache of the newest version of each line that its owner has read or written.

    If it has too many bytes, the least recently used versions lose the elements in their digest
    trees first, then they are removed. The one used last stays whole. A caller must compare the
    mark of a cached version: its id and sequence may name another version later.
    """

    def __init__(self, max_bytes: int = KNOWN_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[LineKey, KnownVersion] = OrderedDict()
        self._heavy: OrderedDict[LineKey, KnownVersion] = OrderedDict()
        self._lock = make_lock()  # several loops may use one backend

    def limit(self, max_bytes: int) -> None:
        """Keep at most this many bytes; the version used last is always kept."""
        with self._lock:
            self._max_bytes = max_bytes
            self._shrink()

    def get(self, key: LineKey) -> KnownVersion | None:
        """Return the newest version known of a line."""
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                if key in self._heavy:
                    self._heavy.move_to_end(key)
            return found

    def put(self, key: LineKey, mark: Mark, checkpoint_id: str, tree: frames.DigestTree) -> None:
        """Record a version that was the head when it was read or written; its tree is whole."""
        with self._lock:
            old, version = self._known.get(key), KnownVersion(mark, checkpoint_id, tree)
            self._bytes += tree.weight - (old.tree.weight if old else 0)
            self._known[key] = version
            self._known.move_to_end(key)
            self._heavy[key] = version
            self._heavy.move_to_end(key)
            if self._bytes > self._max_bytes:
                self._shrink()

    def drop(self, key: LineKey) -> None:
        with self._lock:
            found = self._known.pop(key, None)
            self._heavy.pop(key, None)
            self._bytes -= found.tree.weight if found else 0

    def _shrink(self) -> None:
        while self._bytes > self._max_bytes and len(self._heavy) > 1:
            version = self._heavy.popitem(last=False)[1]
            self._bytes -= version.tree.weight
            version.tree = version.tree.without_elements()
            self._bytes += version.tree.weight
        while self._bytes > self._max_bytes and len(self._known) > 1:
            self._bytes -= self._known.popitem(last=False)[1].tree.weight


Place: TypeAlias = tuple[str, str, str]
"""A thread, a namespace and a checkpoint."""

MOST: Final = 16_384
"""Checkpoints that are remembered; the oldest are dropped."""


class CachedCheckpoints:
    """Ids of checkpoints that were loaded, stored or refused; bounded."""

    def __init__(self) -> None:
        self._places: OrderedDict[Place, bool] = OrderedDict()
        """Maps a checkpoint to True if it was stored, and to False if its save was refused."""

        self._threads: Counter[str] = Counter()
        """The number of remembered checkpoints of each thread."""

        self._lock = make_lock()  # several loops may use one saver

    def add(self, place: Place, *, is_stored: bool = True) -> None:
        """Remember a checkpoint as the newest of its namespace, or as one that was refused."""
        with self._lock:
            if place in self._places:
                self._drop(place)
            self._places[place] = is_stored
            if is_stored:
                self._threads[place[0]] += 1
            if len(self._places) > MOST:
                self._drop(next(iter(self._places)))

    def _drop(self, place: Place) -> None:
        self._threads[place[0]] -= self._places.pop(place)
        if not self._threads[place[0]]:
            del self._threads[place[0]]

    def has(self, place: Place) -> bool:
        return place in self._places

    def has_thread(self, thread_id: str) -> bool:
        """Return whether a loaded or stored checkpoint of the thread is remembered."""
        return thread_id in self._threads

    def forget_thread(self, thread_id: str) -> None:
        """Forget the checkpoints of a thread, which begins again."""
        with self._lock:
            if thread_id in self._threads:
                for place in [it for it in self._places if it[0] == thread_id]:
                    self._drop(place)

    def get_newest(self, thread_id: str, namespace: str) -> str | None:
        """Return the checkpoint of a namespace that was added last; ``None`` if none is known."""
        with self._lock:
            places = reversed(self._places.items())
            found = (it[2] for it, stored in places if stored and it[:2] == (thread_id, namespace))
            return next(found, None)


_ends: Final = make_lock()  # of all puts


@dataclass(slots=True, eq=False)
class PutInProgress:
    """The context of a put; see ``CheckpointSaver.saving``."""

    puts: dict[Place, PutInProgress]
    """The puts in progress, of which this becomes one."""

    checkpoints: CachedCheckpoints
    place: Place
    _is_over: bool = field(default=False, init=False)
    _end: Future[None] | None = field(default=None, init=False)

    def get_end(self) -> Future[None]:
        """Return a future that is done when the put is over."""
        with _ends:
            if self._end is None:
                self._end = Future()
                if self._is_over:
                    self._end.set_result(None)
            return self._end

    def __enter__(self) -> None:
        try:
            self.puts.setdefault(self.place, self)  # else it is within another one
        except TypeError as exc:
            raise InvalidArgumentError("thread_id and checkpoint_id must be str") from exc

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        if self.puts.get(self.place) is not self:
            return
        if isinstance(exc, ConflictError):  # it is not there, so its writes are refused
            self.checkpoints.add(self.place, is_stored=False)
        del self.puts[self.place]
        with _ends:
            self._is_over, end = True, self._end
        if end is not None:
            end.set_result(None)
