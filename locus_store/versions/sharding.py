"""Shards: the layout of a set of databases, the place of a thread in it, and moves between places.

A set grows and shrinks at its end only: its shards are numbered, and a thread's place depends on
its tenant, its id and the number of shards. docs/decisions/0286 explains the states of a layout.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal
from uuid import uuid4

import orjson

from locus_store.errors import IntegrityError, InvalidArgumentError, SchemaError

SHARDED: Final = "sharded:"
"""The beginning of the URL of a set of shards."""


def split_urls(url: str) -> list[str]:
    """Return the URLs of the shards, of which there must be some, in the URL of a set."""
    urls = url.removeprefix(SHARDED).split()
    if not urls:
        raise InvalidArgumentError(
            "sharded: is followed by the URLs of the shards, with spaces between them"
        )
    return urls


def check_urls(urls: Sequence[str]) -> None:
    """Refuse a list of shards' URLs that is empty, no list, or has a URL twice."""
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


is_routed: ContextVar[bool] = ContextVar("is_routed", default=False)
"""The call is of a set: a change that finds nothing is refused if its thread may have moved."""


def require_layout(is_known: bool | int) -> None:
    """Raise ``OldLayoutError`` unless a database stores the known layout of its shards."""
    if not is_known:
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
    """The text that a database stores, if this was read; it is not stored itself."""

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

    def require_listed(self, count: int) -> None:
        """Check that a list of so many databases names all that may have threads."""
        if self.used > count:
            raise InvalidArgumentError(
                f"the set has {self.used} shards, and the list names {count}; list all of them, in"
                " the order of the set"
            )

    def change(self, **changes: object) -> ShardLayout:
        return replace(self, epoch=self.epoch + 1, **changes)  # type: ignore[arg-type]

    def to_text(self) -> str:
        stored = asdict(self)
        del stored["text"]
        return orjson.dumps(stored).decode()

    @classmethod
    def from_text(cls, text: str) -> ShardLayout:
        """Return the layout in JSON; refuse what is none."""
        try:
            return cls(**orjson.loads(text), text=text)
        except (ValueError, TypeError) as exc:
            raise IntegrityError(
                f"the setting 'shards' is not a layout: {text!r:.80}; restore the database from a"
                " backup"
            ) from exc


def judge_layouts(layouts: Sequence[ShardLayout | None]) -> ShardLayout | None:
    """Return the newest layout of a set, which some databases may lack that were to get it."""
    known = [(number, it) for number, it in enumerate(layouts) if it is not None]
    if not known:
        return None
    # Of clients that created the set at once, one may have left its layout behind that of another.
    known = [it for it in known if it[1].epoch or it[1].set_id == known[0][1].set_id]
    newest = max((it for _, it in known), key=lambda it: it.epoch)
    for number, own in known:
        if own.set_id != newest.set_id:
            raise InvalidArgumentError(
                f"shard {number + 1} of the list belongs to another set than shard"
                f" {known[0][0] + 1}; list the databases of one set"
            )
        if own.shard != number:
            raise InvalidArgumentError(
                f"database {number + 1} of the list is shard {own.shard + 1} of its set; list"
                " all shards, in the order of the set"
            )
    newest.require_listed(len(layouts))
    first = newest.former if newest.state == "announced" else newest.shards
    missing = sorted({*range(first)} - {number for number, _ in known})
    if missing and newest.epoch > 0:
        raise InvalidArgumentError(
            f"database {missing[0] + 1} of the list is not shard {missing[0] + 1} of the set:"
            " it belongs to no set. Name the right database, or restore a backup from after it"
            " joined. If there is none, its later threads are lost: insert into its table of"
            f" settings the row ('shards', '{replace(newest, shard=missing[0]).to_text()}')"
        )
    return newest


def make_used_error(number: int) -> InvalidArgumentError:
    """Return the error of a database that is to be a shard, and is not empty."""
    return InvalidArgumentError(
        f"database {number + 1} of the list has threads or items, and belongs to no set of"
        " shards: only the first one of a new set may have some. Add it empty, and copy its"
        " threads with 'locus-store copy'"
    )


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
