"""A SQL database as a shard: its layout in ``settings``, moves in ``turns``, and hidden copies."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from locus_store.sql import archives
from locus_store.sql.connections.database import Database
from locus_store.sql.schema.status import SHARDS_SETTING, read_setting
from locus_store.sql.threads import listing
from locus_store.sql.threads.repository import Repository
from locus_store.types import FOREVER, Active, ArchivedThread, Head
from locus_store.types.arguments import MAX_ID_CHARACTERS
from locus_store.types.thread_info import ThreadFacts, ThreadsWanted
from locus_store.versions.archives import make_occupied_error
from locus_store.versions.sharding import Move, ShardLayout, require_layout

Row: TypeAlias = dict[str, Any]

_RESERVED: Final = -1
_TAKEN: Final = -2
"""Numbers of turns that the rows of moves have."""


class SqlShard(listing.RunsQueries):
    """A backend whose database may be a shard of a set; runs the statements below."""

    _database: Database

    @property
    def store_id(self) -> str:
        """The identity of the opened database, as in ``Mark.store``."""
        return self._database.opened.store

    @property
    def reads_replicas(self) -> bool:
        """Answers may be older than the move of a thread."""
        return self._reader is not self._runner

    def join_set(self) -> None:
        """Let ``open`` accept one shard of several, which it refuses otherwise."""
        self._database.opened.joins_set = True

    async def read_layout(self) -> ShardLayout | None:
        """Return the layout that the database stores, if any."""
        return await self._query(_read_layout, self._runner)

    async def write_layout(self, old: ShardLayout | None, new: ShardLayout) -> bool:
        """Replace the layout; ``False``: another one than ``old`` is stored, and stays."""
        return await self._write(lambda it: _swap_layout(it, old, new))

    async def find_move(self, thread_id: str) -> tuple[bool, Move | None]:
        """Return whether a live thread, or its pending writes, are stored, and its move, if any."""
        return await self._read(
            lambda it: (_is_live(it, thread_id), _find_move(it, thread_id)), self._runner
        )

    async def list_moves(self) -> list[Move]:
        """Return the moves of all tenants that the role sees."""
        return await self._read(_list_all_moves, self._runner)

    def use_layout(self, layout: ShardLayout) -> None:
        """Create threads if the database still stores this layout, which was read from it."""
        self._database.opened.layout = layout.text

    async def list_open_transactions(self) -> set[str]:
        """Return names of transactions that may have read an older layout and are not over."""
        ask = self._database.list_open_transactions
        return await self._query(lambda it: ask(it.connection), self._runner)

    async def reserve_move(
        self, thread_id: str, old: Move | None, new: Move, *, epoch: int
    ) -> bool:
        """Store a move; ``False``: another one than ``old`` is stored, and stays.

        Raises:
            OldLayoutError: The layout has a later epoch.
        """

        def reserve(repository: Repository) -> bool:
            layout = _read_layout(repository)
            require_layout(layout is None or layout.epoch <= epoch)
            return _swap_move(repository, thread_id, old, new)

        return await self._write(reserve)

    async def read_stored(self, thread_id: str) -> ArchivedThread | None:
        """Return what is stored of a thread as it is stored: ``restore`` takes it.

        Sealed records stay in their segments, which a move cannot divide without keys.
        """
        return await self._read(lambda it: archives.read_stored(it, thread_id), self._runner)

    async def take_thread(self, thread: ArchivedThread, move: Move) -> bool:
        """Remove a thread that was copied, and mark its move as taken, in one transaction.

        Returns:
            ``False``: the thread is no longer as it was copied, or has another move. Nothing was
            changed.
        """
        return await self._write(lambda it: _take_thread(it, thread, move))

    async def drop_move(self, move: Move) -> bool:
        """Remove a move; return whether it was stored."""
        return await self._write(lambda it: _drop_move(it, move))

    async def admit_thread(self, thread_id: str, tenant: str) -> bool:
        """Give a thread of this object's tenant to another tenant, in one transaction.

        Returns:
            ``False``: there is no such thread, or row security hides it.

        Raises:
            ConflictError: The other tenant has such a thread.
        """
        other = self._database.for_tenant(tenant)
        return await self._write(lambda it: _admit_thread(it, other, thread_id))

    async def get_last_active_at(self, thread_id: str) -> datetime:
        """Return the time by which ``recent`` places a thread.

        Raises:
            NotFoundError: There is no such thread.
        """
        return await self._query(lambda it: listing.get_last_active_at(it, thread_id), self._runner)

    async def list_recent_before(
        self, at: datetime, limit: int, pattern: str, *, with_ties: bool
    ) -> list[Active]:
        """Return the threads of ``recent`` that were last active before a time, or at it."""
        place = listing.make_place(at, with_ties=with_ties)
        return await self._query(
            lambda it: listing.list_threads_from(it, limit, pattern, place), self._runner
        )

    async def list_active_heads(self, limit: int) -> list[tuple[datetime, Head]]:
        """Return ``heads``, each with the time of its thread's last activity."""
        return await self._query(lambda it: listing.list_active_heads(it, limit), self._runner)

    async def find_active_facts(
        self, criteria: ThreadsWanted
    ) -> list[tuple[datetime, ThreadFacts]]:
        """Return ``find_facts``, each with the time of its thread's last activity."""
        return await self._query(lambda it: listing.find_active_facts(it, criteria), self._runner)


def _read_layout(repository: Repository) -> ShardLayout | None:
    found = read_setting(repository.connection, repository.tables, SHARDS_SETTING)
    return ShardLayout.from_text(found) if found else None


def _swap_layout(repository: Repository, old: ShardLayout | None, new: ShardLayout) -> bool:
    table, before = repository.tables.settings, {"value": old.to_text()} if old else None
    return _swap(repository, table, {"name": SHARDS_SETTING}, before, {"value": new.to_text()})


def _swap(repository: Repository, table: sa.Table, key: Row, old: Row | None, new: Row) -> bool:
    """Replace or create a row; ``False`` if it is another one than ``old``."""
    run = repository.connection.execute
    if old is not None:
        return run(table.update().filter_by(**key, **old).values(new)).rowcount == 1
    if run(sa.select(*table.primary_key).filter_by(**key)).first():
        return False
    run(table.insert().values({**key, **new}))
    return True


def _make_key(repository: Repository, thread_id: str) -> Row:
    # In ``turns``, which an application may write, and of the tenant, as row security demands.
    # Longer than an id: a turn of such a thread would replace the move, and lose what was taken.
    digest = sha256(thread_id.encode(errors="surrogatepass")).hexdigest()
    return {"tenant": repository.tenant, "thread_id": digest.zfill(MAX_ID_CHARACTERS + 1)}


def _list_moves(repository: Repository, **key: Any) -> list[Move]:
    c = repository.tables.turns.c
    query = sa.select(c.tickets, c.revision, c.turn).where(c.turn < 0).filter_by(**key)
    rows = repository.connection.execute(query)
    return [Move(**of, number=number, is_taken=turn == _TAKEN) for of, number, turn in rows]


def _list_all_moves(repository: Repository) -> list[Move]:
    repository.see_all_tenants()
    return _list_moves(repository)


def _find_move(repository: Repository, thread_id: str) -> Move | None:
    return next(iter(_list_moves(repository, **_make_key(repository, thread_id))), None)


def _identify(move: Move) -> Row:
    return {"revision": move.number, "turn": _TAKEN if move.is_taken else _RESERVED}


def _swap_move(repository: Repository, thread_id: str, old: Move | None, new: Move) -> bool:
    tickets = {"tenant": new.tenant, "thread_id": thread_id, "target": new.target}
    row = {**_identify(new), "tickets": tickets, "expires_at": FOREVER}
    key, before = _make_key(repository, thread_id), _identify(old) if old else None
    return _swap(repository, repository.tables.turns, key, before, row)


def _drop_move(repository: Repository, move: Move) -> bool:
    change = repository.tables.turns.delete().filter_by(**_identify(move))
    return repository.connection.execute(change).rowcount == 1


def _take_thread(repository: Repository, thread: ArchivedThread, move: Move) -> bool:
    thread_id, taken = thread.thread_id, replace(move, is_taken=True)
    if not repository.lock(thread_id) or archives.read_stored(repository, thread_id) != thread:
        return False
    if not _swap_move(repository, thread_id, move, taken):
        return False
    repository.drop_threads([thread_id])
    repository.connection.execute(_delete_turn(repository, thread_id))
    return True


def _is_live(repository: Repository, thread_id: str) -> bool:
    found = repository.read_row(thread_id)
    return bool(found and found.live)


def _admit_thread(repository: Repository, database: Database, thread_id: str) -> bool:
    """Store a thread again below the tenant of a database: no row may change its tenant."""
    if repository.read_row(thread_id) is None or not repository.lock(thread_id):
        return False
    thread = archives.read_stored(repository, thread_id)
    repository.drop_threads([thread_id])
    if thread is None:  # it has expired
        return True
    other = database.make_repository(repository.connection)
    if _is_live(other, thread_id):
        raise make_occupied_error(thread_id, "moved")
    # One of the thread's former time here, which has ended with its move.
    other.connection.execute(_delete_turn(other, thread_id))
    archives.restore(other, thread)
    return True


def _delete_turn(repository: Repository, thread_id: str) -> sa.Delete:
    key = {"tenant": repository.tenant, "thread_id": thread_id}
    return repository.tables.turns.delete().filter_by(**key)
