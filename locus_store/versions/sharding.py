"""Shards: the layout of a set of databases, the place of a thread in it, and moves between places.

A set grows and shrinks at its end only: its shards are numbered, and a thread's place depends on
its tenant, its id and the number of shards. docs/decisions/0286 explains the states of a layout.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal
from uuid import uuid4

import orjson

from locus_store.errors import IntegrityError, InvalidArgumentError, SchemaError
from locus_store.types import Active, ArchivedThread, Head
from locus_store.types.thread_info import ThreadFacts, ThreadsWanted

SHARDED: Final = "sharded:"
"""The beginning of the URL of a set of shards."""


def split_urls(url: str) -> list[str]:
    """Return the URLs of the shards in the URL of a set.

    Raises:
        InvalidArgumentError: There are none.
    """
    urls = url.removeprefix(SHARDED).split()
    if not urls:
        raise InvalidArgumentError(
            "sharded: is followed by the URLs of the shards, with spaces between them"
        )
    return urls


def check_urls(urls: Sequence[str]) -> None:
    """Refuse a list of URLs that cannot be those of shards.

    Raises:
        InvalidArgumentError: It is not a list, is empty, or has a URL twice.
    """
    if isinstance(urls, str) or not urls:
        raise InvalidArgumentError("urls must be a list of URLs, one for each shard")
    for at, url in enumerate(urls):
        if url in urls[:at]:
            first = list(urls).index(url) + 1
            raise InvalidArgumentError(f"shards {first} and {at + 1} have the same URL")


HIDDEN_TENANT: Final = "_moving_"
"""Prefix of the tenants that hold the copies of threads on their way."""


@lru_cache(maxsize=4096)
def choose_shard(shards: int, tenant: str | None, thread_id: str) -> int:
    """Return the number of the shard of a thread: the highest hash of shard and thread.

    Rendezvous hashing: a shard more or less moves only the threads that belong to it.
    """
    if shards == 1:
        return 0
    key = f"{tenant or ''}\0{thread_id}".encode(errors="surrogatepass")
    return max(range(shards), key=lambda it: blake2b(b"%d\0" % it + key, digest_size=8).digest())


class OldLayoutError(SchemaError):
    """The layout of the set of shards is another one than the caller knows; nothing was done."""


def require_layout(created: int) -> None:
    """Check that a thread was created, which needs the known layout.

    Raises:
        OldLayoutError: It was not.
    """
    if not created:
        raise OldLayoutError(
            "this database became a shard, or its set has changed, after it was opened; nothing was"
            " written. Open the set by 'sharded:URL URL …', with the URLs of all its shards"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """The description of a set that each of its databases stores."""

    set_id: str = field(default_factory=lambda: uuid4().hex)
    shard: int = 0
    """Number of the shard that stores this."""

    shards: int
    """Number of shards."""

    former: int
    """Number of shards before the last change; threads may be at their places of that time. More
    than ``shards``: the last one was removed, or is to be."""

    epoch: int = 1
    """Counts the changes; 0: the set is not complete, and was never used."""

    state: Literal["stable", "announced", "moving"] = "stable"
    """``announced``: all clients learn of the change, and no thread changes its place.
    ``moving``: a thread changes its place when it is written, or when the rebalance comes to it."""

    text: str = field(default="", compare=False, repr=False)
    """What a database stores, if this was read; it is not stored itself."""

    def get_places(self, tenant: str | None, thread_id: str) -> tuple[int, int]:
        """Return the numbers of the shards where a thread was and where it belongs."""
        place = choose_shard(self.shards, tenant, thread_id)
        if self.state == "stable":
            return place, place
        return choose_shard(self.former, tenant, thread_id), place

    @property
    def databases(self) -> int:
        """Number of databases, with one that was removed."""
        return max(self.shards, self.former)

    @property
    def used(self) -> int:
        """Number of databases that may have threads."""
        return self.shards if self.state == "stable" else self.databases

    def require_whole(self) -> None:
        """Check that no other database may have threads of the set.

        Raises:
            InvalidArgumentError: This one is a shard of several.
        """
        if self.shard < self.used != 1:
            raise InvalidArgumentError(
                f"this database is shard {self.shard + 1} of {self.used}, and a save here could put"
                " a thread into two of them: open the set by 'sharded:URL URL …', with the URLs of"
                " all its shards"
            )

    def change(self, **changes: object) -> ShardLayout:
        return replace(self, epoch=self.epoch + 1, **changes)  # type: ignore[arg-type]

    def to_text(self) -> str:
        stored = asdict(self)
        del stored["text"]
        return orjson.dumps(stored).decode()

    @classmethod
    def from_text(cls, text: str) -> ShardLayout:
        """Return the layout in JSON.

        Raises:
            IntegrityError: It is not one.
        """
        try:
            return cls(**orjson.loads(text), text=text)
        except (ValueError, TypeError) as exc:
            raise IntegrityError(
                f"the setting 'shards' is not a layout: {text!r:.80}; restore the database from a"
                " backup"
            ) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move of one thread to another shard, as its old database stores it."""

    tenant: str
    thread_id: str
    target: int
    """Number of the new shard."""

    number: int = field(default_factory=lambda: secrets.randbits(63))
    """A random one, which no other move has."""

    is_taken: bool = False
    """The old database no longer has the thread: the hidden copy is the thread."""

    @property
    def hidden_tenant(self) -> str:
        """The tenant that has the copy in the new database until it is admitted."""
        return f"{HIDDEN_TENANT}{self.number:x}"


class HasShards:
    """A backend over the databases of a set, whose module is imported with the first set."""

    shards: Sequence[Any]
    shard_set: Any


class JoinsShards(ABC):
    """A backend whose database may be a shard of a set."""

    @property
    @abstractmethod
    def store_id(self) -> str:
        """The identity of the opened database, as in ``Mark.store``."""

    @property
    @abstractmethod
    def reads_replicas(self) -> bool:
        """Answers may be older than the move of a thread."""

    @abstractmethod
    def join_set(self) -> None:
        """Let ``open`` accept one shard of several, which it refuses otherwise."""

    @abstractmethod
    async def read_layout(self) -> ShardLayout | None:
        """Return the layout that the database stores, if any."""

    @abstractmethod
    async def write_layout(self, old: ShardLayout | None, new: ShardLayout) -> bool:
        """Replace the layout; ``False``: another one than ``old`` is stored, and stays."""

    @abstractmethod
    async def find_move(self, thread_id: str) -> tuple[bool, Move | None]:
        """Return whether a live thread, or its pending writes, are stored, and its move, if any."""

    @abstractmethod
    async def list_moves(self) -> list[Move]:
        """Return the moves of all tenants that the role sees."""

    @abstractmethod
    def use_layout(self, layout: ShardLayout) -> None:
        """Create threads if the database still stores this layout, which was read from it."""

    @abstractmethod
    async def list_open_transactions(self) -> set[str]:
        """Return names of transactions that may have read an older layout and are not over."""

    @abstractmethod
    async def reserve_move(
        self, thread_id: str, old: Move | None, new: Move, *, epoch: int
    ) -> bool:
        """Store a move; ``False``: another one than ``old`` is stored, and stays.

        Raises:
            OldLayoutError: The layout has another epoch.
        """

    @abstractmethod
    async def read_stored(self, thread_id: str) -> ArchivedThread | None:
        """Return what is stored of a thread as it is stored: ``restore`` takes it.

        Sealed records stay in their segments, which a move cannot divide without keys.
        """

    @abstractmethod
    async def take_thread(self, thread: ArchivedThread, move: Move) -> bool:
        """Remove a thread that was copied, and mark its move as taken, in one transaction.

        Returns:
            ``False``: the thread is no longer as it was copied, or has another move. Nothing was
            changed.
        """

    @abstractmethod
    async def drop_move(self, move: Move) -> bool:
        """Remove a move; return whether it was stored."""

    @abstractmethod
    async def admit_thread(self, thread_id: str, tenant: str) -> bool:
        """Give a thread of this object's tenant to another tenant, in one transaction.

        Returns:
            ``False``: there is no such thread, or row security hides it.

        Raises:
            ConflictError: The other tenant has such a thread.
        """

    @abstractmethod
    async def get_last_active_at(self, thread_id: str) -> datetime:
        """Return the time by which ``recent`` places a thread.

        Raises:
            NotFoundError: There is no such thread.
        """

    @abstractmethod
    async def list_recent_before(
        self, at: datetime, limit: int, pattern: str, *, with_ties: bool
    ) -> list[Active]:
        """Return the threads of ``recent`` that were last active before a time, or at it."""

    @abstractmethod
    async def list_active_heads(self, limit: int) -> Sequence[tuple[datetime, Head]]:
        """Return ``heads``, each with the time of its thread's last activity."""

    @abstractmethod
    async def find_active_facts(
        self, criteria: ThreadsWanted
    ) -> Sequence[tuple[datetime, ThreadFacts]]:
        """Return ``find_facts``, each with the time of its thread's last activity."""
