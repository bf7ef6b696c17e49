"""A SQL database as a shard: its layout in ``settings``, and threads on their way.

Moves are rows of ``turns``, as the role of an application may not write ``settings``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from locus_store.sql import archives
from locus_store.sql.connections.database import Database
from locus_store.sql.schema.status import SHARDS_SETTING
from locus_store.sql.threads import listing
from locus_store.sql.threads.repository import Repository
from locus_store.types import FOREVER, Active, ArchivedThread, Head
from locus_store.types.thread_info import ThreadFacts, ThreadsWanted
from locus_store.versions.archives import make_occupied_error
from locus_store.versions.sharding import HIDDEN_TENANT, JoinsShards, Move, ShardLayout

T = TypeVar("T")

_TURNS: Final = {False: -1, True: -2}
"""Numbers of turns that the rows of moves have, by ``Move.is_taken``."""


class SqlShard(JoinsShards):
    """Runs the statements below in the transactions of a backend."""

    _database: Database
    _reader: Any
    _runner: Any
    _write: Callable[[Callable[[Repository], T]], Awaitable[T]]
    _read: Callable[[Callable[[Repository], T], Any], Awaitable[T]]
    _query: Callable[[Callable[[Repository], T], Any], Awaitable[T]]

    @property
    def store_id(self) -> str:
        return self._database.store

    @property
    def reads_replicas(self) -> bool:
        return self._reader is not self._runner

    def join_set(self) -> None:
        self._database.join_set()

    async def read_layout(self) -> ShardLayout | None:
        found = await self._query(_read_layout, self._runner)
        return ShardLayout.from_text(found) if found else None

    async def write_layout(self, old: ShardLayout | None, new: ShardLayout) -> bool:
        texts = old.to_text() if old else None, new.to_text()
        return await self._write(lambda it: _swap_layout(it, *texts))

    async def find_move(self, thread_id: str) -> tuple[bool, Move | None]:
        return await self._read(
            lambda it: (bool(it.is_live_thread(thread_id)), _find_move(it, thread_id)),
            self._runner,
        )

    async def list_moves(self) -> list[Move]:
        return await self._read(_list_moves, self._runner)

    async def reserve_move(self, thread_id: str, old: Move | None, new: Move) -> bool:
        return await self._write(lambda it: _swap_move(it, thread_id, old, new))

    async def take_thread(self, thread: ArchivedThread, move: Move) -> bool:
        return await self._write(lambda it: _take_thread(it, thread, move))

    async def drop_move(self, move: Move) -> bool:
        return await self._write(lambda it: _drop_move(it, move))

    async def admit_thread(self, thread_id: str, tenant: str) -> bool:
        other = self._database.for_tenant(tenant)
        return await self._write(lambda it: _admit_thread(it, other, thread_id))

    async def get_last_active_at(self, thread_id: str) -> datetime:
        return await self._query(lambda it: listing.get_last_active_at(it, thread_id), self._runner)

    async def list_recent_before(
        self, at: datetime, limit: int, pattern: str, *, with_ties: bool
    ) -> list[Active]:
        place = listing.make_place(at, with_ties=with_ties)
        return await self._query(
            lambda it: listing.list_threads_from(it, limit, pattern, place), self._runner
        )

    async def list_active_heads(self, limit: int) -> list[tuple[datetime, Head]]:
        return await self._query(lambda it: listing.list_active_heads(it, limit), self._runner)

    async def find_active_facts(
        self, criteria: ThreadsWanted
    ) -> list[tuple[datetime, ThreadFacts]]:
        return await self._query(lambda it: listing.find_active_facts(it, criteria), self._runner)


def _read_layout(repository: Repository) -> str | None:
    c = repository.tables.settings.c
    found: str | None = repository.connection.execute(
        sa.select(c.value).where(c.name == SHARDS_SETTING)
    ).scalar()
    return found


def _swap_layout(repository: Repository, old: str | None, new: str) -> bool:
    """Replace or create the layout; ``False`` if it is another one than ``old``."""
    settings = repository.tables.settings
    if old is None:
        if _read_layout(repository) is not None:
            return False
        repository.connection.execute(settings.insert().values(name=SHARDS_SETTING, value=new))
        return True
    change = settings.update().values(value=new)
    is_old = settings.c.name == SHARDS_SETTING, settings.c.value == old
    return repository.connection.execute(change.where(*is_old)).rowcount == 1


def _make_key(repository: Repository, thread_id: str) -> dict[str, str]:
    """Return the key of a thread's move: of its tenant, which row security shows."""
    digest = sha256(thread_id.encode(errors="surrogatepass")).hexdigest()
    return {"tenant": repository.scope.tenant, "thread_id": HIDDEN_TENANT + digest}


def _select_moves(repository: Repository) -> sa.Select[Any]:
    c = repository.tables.turns.c
    return sa.select(c.tickets, c.revision, c.turn).where(c.turn.in_(_TURNS.values()))


def _read_move(row: sa.Row[Any]) -> Move:
    of, is_taken = row.tickets, row.turn == _TURNS[True]
    return Move(
        tenant=of["tenant"], target=int(of["target"]), number=row.revision, is_taken=is_taken
    )


def _find_move(repository: Repository, thread_id: str) -> Move | None:
    query = _select_moves(repository).filter_by(**_make_key(repository, thread_id))
    found = repository.connection.execute(query).first()
    return _read_move(found) if found else None


def _list_moves(repository: Repository) -> list[Move]:
    repository.see_all_tenants()
    return [_read_move(it) for it in repository.connection.execute(_select_moves(repository))]


def _swap_move(repository: Repository, thread_id: str, old: Move | None, new: Move) -> bool:
    """Replace or create a move; ``False`` if it is another one than ``old``."""
    table, key = repository.tables.turns, _make_key(repository, thread_id)
    tickets = {"tenant": new.tenant, "target": new.target}
    values = {"turn": _TURNS[new.is_taken], "revision": new.number, "tickets": tickets}
    if old is None:
        if _find_move(repository, thread_id) is not None:
            return False
        created = table.insert().values(**key, **values, expires_at=FOREVER)
        repository.connection.execute(created)
        return True
    change = table.update().filter_by(**key).where(*_is_move(table, old)).values(values)
    return repository.connection.execute(change).rowcount == 1


def _drop_move(repository: Repository, move: Move) -> bool:
    table = repository.tables.turns
    return repository.connection.execute(table.delete().where(*_is_move(table, move))).rowcount == 1


def _is_move(table: sa.Table, move: Move) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.revision == move.number, table.c.turn == _TURNS[move.is_taken]


def _take_thread(repository: Repository, thread: ArchivedThread, move: Move) -> bool:
    thread_id, taken = thread.thread_id, replace(move, is_taken=True)
    if not repository.lock(thread_id) or archives.read_thread(repository, thread_id) != thread:
        return False
    if not _swap_move(repository, thread_id, move, taken):
        return False
    repository.drop_threads([thread_id])
    return True


def _admit_thread(repository: Repository, database: Database, thread_id: str) -> bool:
    """Store a thread again below the tenant of a database: no row may change its tenant."""
    is_live = repository.is_live_thread(thread_id)
    if is_live is None or not repository.lock(thread_id):
        return False
    thread = archives.read_thread(repository, thread_id)
    updated_at = repository.connection.execute(
        sa.select(sa.func.max(repository.tables.lines.c.updated_at)).where(
            *_is_of(repository, thread_id)
        )
    ).scalar()
    repository.drop_threads([thread_id])
    if thread is None:  # it has expired
        return True
    database.enter_tenant(repository.connection)
    other = database.make_repository(repository.connection)
    if other.is_live_thread(thread_id):
        raise make_occupied_error(thread_id, "moved")
    archives.restore(other, thread)
    change = other.tables.lines.update().where(*_is_of(other, thread_id))
    repository.connection.execute(change.values(updated_at=updated_at))  # a copy's own
    return True


def _is_of(repository: Repository, thread_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of a thread's lines."""
    c = repository.tables.lines.c
    return c.tenant == repository.scope.tenant, c.thread_id == thread_id
