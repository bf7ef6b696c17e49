"""The storage backend that all SQL databases share, and the copy of a thread on the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from locus_store import versions
from locus_store.runtime.progress import expect_steps, step
from locus_store.runtime.stepping import run_in_thread, run_together
from locus_store.sql import archives
from locus_store.sql.audit import SqlAudit
from locus_store.sql.columns.types import Minute, make_moment
from locus_store.sql.connections.backend import Body, ConnectedBackend, make_writing, run_joined
from locus_store.sql.connections.database import ServerDatabase
from locus_store.sql.connections.diagnostics import Examination
from locus_store.sql.connections.pool import PooledRunner
from locus_store.sql.quotas import (
    SqlQuotas,
    limit_calls,
    measure_copy,
    measure_facts,
    measure_save,
    measure_thread,
    measure_writes,
)
from locus_store.sql.schema.user_ids import take
from locus_store.sql.sharding import SqlShard
from locus_store.sql.threads import listing, searching, version_lists
from locus_store.sql.threads.listing import SqlThreadInfo, SqlTurns
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.segments import SqlSegments
from locus_store.sql.threads.statements import has_other_layout
from locus_store.sql.threads.statuses import SqlSizes
from locus_store.sql.threads.thread_rows import has_thread, select_last_save
from locus_store.types import (
    Active,
    ArchivedThread,
    ArchivedWrite,
    Head,
    Hit,
    LineContents,
    Mark,
    PendingWrite,
    Removed,
    Save,
    Stored,
    Tenant,
    Vacuumed,
    Version,
    VersionsWanted,
    Written,
)
from locus_store.types.arguments import check_days, check_limit, check_names, check_scan, check_text
from locus_store.types.facts import Fact
from locus_store.types.options import DAY
from locus_store.types.thread_info import UserIdType
from locus_store.values.filters import check_wanted
from locus_store.values.text import query_words
from locus_store.versions import PutWrites
from locus_store.versions.archives import make_copy, make_occupied_error
from locus_store.versions.erasing import FindThreads, Sweep
from locus_store.versions.sharding import require_layout

T = TypeVar("T")

VACUUM_BATCH = 64
"""Threads that a vacuum works on between two chances for others to write."""


class SqlBackend(
    ConnectedBackend, SqlTurns, SqlSegments, SqlThreadInfo, SqlSizes, SqlShard, SqlAudit, SqlQuotas
):
    """Implements the contract with a repository; a subclass names its database and runner."""

    persistent_checkpoint_ids = True
    messages = True

    examination: ClassVar[type[Examination]]
    """The examination that ``facts`` runs."""

    put_facts = limit_calls(measure_facts)(SqlThreadInfo.put_facts)
    replace_thread = limit_calls(archives.measure_replacement)(ConnectedBackend.replace_thread)

    @limit_calls(measure_save)
    async def commit(self, save: Save) -> Written:
        return self._join_soon(save, await self._write(lambda it: it.save(save)))

    @limit_calls(measure_save)
    async def commit_on(self, save: Save, connection: object) -> Written:
        self._database.require_joinable(connection)
        with self._translating:
            await self._runner.open()
            work = make_writing(self._database, lambda it: it.save(save))
            return await run_joined(self._database, connection, work)

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        ask = self._read if with_writes else self._query
        return await ask(
            lambda it: it.fetch(thread_id, namespace, checkpoint_id, with_writes=with_writes)
        )

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        ask = self._read if with_writes else self._query
        return await ask(
            lambda it: it.fetch(thread_id, namespace, known_mark=known, with_writes=with_writes)
        )

    async def version(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: str = ""
    ) -> Version | None:
        check_names(thread_id, namespace, checkpoint_id)
        return await self._query(lambda it: it.read_version(thread_id, namespace, checkpoint_id))

    async def history(
        self, thread_id: str, *, namespace: str = "", limit: int = 10, before: str | None = None
    ) -> list[Version]:
        check_names(thread_id, namespace, before)
        check_limit(limit)
        return await self._read(
            lambda it: it.list_history(thread_id, namespace, limit=limit, before=before)
        )

    async def remove(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str] | None = None,
        *,
        namespace: str = "",
        writer: str | None = None,
    ) -> int:
        if checkpoint_ids is None:
            return (await self.remove_thread(thread_id)).versions
        check_names(thread_id, namespace, *checkpoint_ids)
        return await self._write(
            lambda it: it.delete(thread_id, namespace, checkpoint_ids, writer=writer),
            thread_id=thread_id,
        )

    async def has_thread(self, thread_id: str) -> bool:
        check_text("thread_id", thread_id)
        return await self._query(lambda it: has_thread(it, thread_id))

    async def remove_thread(
        self, thread_id: str, *, head: Mark | None = None, namespace: str = ""
    ) -> Removed:
        check_names(thread_id, namespace)
        return await self._write(
            lambda it: it.delete_thread(thread_id, head, namespace), thread_id=thread_id
        )

    async def recent(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[Active]:
        check_limit(limit)
        return await self._query(
            lambda it: listing.list_threads(it, limit, pattern, after), self._lists
        )

    async def heads(self, limit: int = 100) -> list[Head]:
        check_limit(limit)
        return await self._query(lambda it: listing.list_heads(it, limit), self._lists)

    async def newest(self, wanted: VersionsWanted, limit: int) -> list[Version]:
        check_limit(limit)
        return await self._query(lambda it: version_lists.list_newest(it, wanted, limit))

    async def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        is_one = len(versions) <= version_lists.MOST_AT_ONCE
        read = self._query if is_one else self._read
        return await read(lambda it: version_lists.read_contents(it, versions))

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        value = check_wanted(key, value)
        check_limit(limit)
        return await self._query(lambda it: it.query(key, value, limit), self._lists)

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        wanted = query_words(query)
        candidates = await self._query(
            lambda it: searching.find_candidates(it, wanted), self._lists
        )
        found: list[searching.Ranked] = []
        for batch in searching.group_batches(candidates):
            found += await self._rank(batch, wanted)
        best = sorted(found, key=lambda it: (it.score, it.created_at), reverse=True)
        hits: list[Hit] = []
        while best and len(hits) < limit:  # a version may have been removed meanwhile
            missing = limit - len(hits)
            some, best = best[:missing], best[missing:]
            hits += await self._make_hits(some)
        return hits

    async def _rank(
        self, batch: list[searching.Candidate], words: list[str]
    ) -> list[searching.Ranked]:
        """Return the lines of a batch that match; text is compared outside any transaction."""
        lines, parts = [it.line for it in batch], list[Any]([None])
        if batch[0].stored_bytes > searching.BATCH_BYTES:  # a line by itself
            parts = await self._query(lambda it: searching.split_parts(it, lines[0]), self._lists)
        matching = searching.Matching(words, self.max_state_bytes)
        for part in parts:
            read = partial(searching.read_records, lines=lines, sequences=part)
            records = await self._query(read, self._lists)
            await run_in_thread(partial(matching.add, records))
        return matching.ranked

    async def _make_hits(self, best: list[searching.Ranked]) -> list[Hit]:
        return await self._query(lambda it: searching.make_hits(it, best), self._lists)

    @limit_calls(measure_copy)
    async def copy_thread(
        self, source_thread_id: str, dest_thread_id: str, *, thread: ArchivedThread | None = None
    ) -> bool:
        """See ``StoresThreads``; ``thread`` is the source, if it is in another database."""
        check_text("source_thread_id", source_thread_id)
        check_text("dest_thread_id", dest_thread_id)
        names = source_thread_id, dest_thread_id
        if thread is None:
            return await self._write_copy(lambda it: copy_thread(it, *names))
        copy = make_copy(thread, dest_thread_id)
        await self._write_copy(lambda it: archives.restore(it, copy))
        return True

    async def require_user_id_type(self, users: UserIdType) -> None:
        database = self._database
        if await self._query(lambda it: it.tables.user_id_type, self._runner) == users:
            return
        await self._redefine(
            partial(take, ours=database.tables, users=users, may_create=database.may_create)
        )
        database.opened.user_id_type = users

    async def _redefine(self, body: Callable[[Connection], T]) -> T:
        """Run a body that changes the schema, and that is alone in doing so."""
        return await self._write(lambda it: body(it.connection))

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        check_scan(limit, after)
        return await self._query(lambda it: archives.scan(it, limit, after), self._runner)

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        check_text("thread_id", thread_id)
        return await self._read(lambda it: archives.read_thread(it, thread_id), self._runner)

    @limit_calls(measure_thread)
    async def restore(self, thread: ArchivedThread) -> None:
        await self._write(lambda it: archives.restore(it, thread))

    @limit_calls(measure_writes)
    async def store_writes(self, put: PutWrites) -> bool:
        def store(repo: Repository) -> bool:
            repo.guard(put.thread_id, put.turn)
            line = versions.find_for_writes(repo, put)
            is_new = line is None and repo.open_thread(put.thread_id)
            line = line or repo.open_line(put.thread_id, put.namespace)
            stored = versions.put_writes(repo, line, put)
            if stored and put.ttl_seconds is not None:
                repo.renew(put.thread_id, put.ttl_seconds, begins=is_new)
            return stored

        return await self._write(store, thread_id=put.thread_id)

    async def writes_of(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, namespace: str = ""
    ) -> dict[str, list[PendingWrite]]:
        check_names(thread_id, namespace, *checkpoint_ids)
        return await self._read(
            lambda it: archives.read_writes(it, thread_id, namespace, checkpoint_ids)
        )

    async def list_writes(
        self, thread_id: str, namespace: str, checkpoint_id: str | None = None
    ) -> list[ArchivedWrite]:
        check_names(thread_id, namespace, checkpoint_id)
        names = None if checkpoint_id is None else [checkpoint_id]
        return await self._query(
            lambda it: archives.list_writes(it, thread_id, namespace, names), self._runner
        )

    async def namespaces(self, thread_id: str) -> list[str]:
        check_text("thread_id", thread_id)
        return await self._query(lambda it: archives.list_namespaces(it, thread_id))

    async def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        check_names(thread_id, namespace)
        return await self._read(lambda it: it.read_records(thread_id, namespace, first, last))

    async def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        value = check_wanted(key, value)
        return await self._query(lambda it: archives.find_tagged(it, key, value), self._runner)

    async def rewrite_thread(
        self, thread_id: str, change: Callable[[ArchivedThread], ArchivedThread]
    ) -> bool:
        check_text("thread_id", thread_id)
        return await self._write(
            lambda it: archives.rewrite_thread(it, thread_id, change), thread_id=thread_id
        )

    async def prune(self, thread_id: str) -> int:
        check_text("thread_id", thread_id)
        return await self._write(lambda it: it.prune(thread_id), thread_id=thread_id)

    async def find_threads(self, key: str, value: Any, *, user_id: str | None = None) -> list[str]:
        return await self._read(
            lambda it: archives.find_threads(it, key, value, user_id), self._runner
        )

    async def _erase(self, find: FindThreads, key: str, value: Any) -> dict[str, int]:
        counts = await super()._erase(find, key, value)
        return counts | {"store": await self._forget_items(key, value)}

    async def _forget_items(self, key: str, value: Any) -> int:
        return await self._write(lambda it: archives.forget_items(it, key, value))

    async def tenants(self) -> list[Tenant]:
        return await self._read(archives.list_tenants, self._runner)

    async def damage(self) -> list[str]:
        return await self._read(archives.find_damage, self._runner)

    async def facts(self) -> list[Fact]:
        return [
            *await super().facts(),
            *await self._read(lambda it: self.examination(it).collect(), self._runner),
        ]

    async def tenant_facts(self) -> list[Fact]:
        return await self._read(lambda it: self.examination(it).collect_of_tenant(), self._runner)

    async def vacuum_report(self, older_than_days: float = 30) -> Vacuumed:
        seconds = check_days(older_than_days) * DAY
        aged = await self._query(lambda it: it.find_aged(seconds), self._runner)
        sweep = Sweep()
        for at in range(0, len(expect_steps(aged)), VACUUM_BATCH):
            batch = aged[at : at + VACUUM_BATCH]
            await run_together(self._vacuum_thread(it, seconds, sweep) for it in batch)
        return sweep.report()

    async def _vacuum_thread(self, thread_id: str, seconds: float, sweep: Sweep) -> None:
        """Vacuum one thread; the threads of a batch may share a commit."""
        with sweep.sweep_thread(thread_id):
            removed = await self._write(
                lambda it: it.vacuum_thread(thread_id, seconds), thread_id=thread_id
            )
            sweep.count(thread_id, removed)
        step()

    async def renew(self, thread_id: str, ttl_seconds: float) -> bool:
        check_text("thread_id", thread_id)
        return await self._write(lambda it: it.renew(thread_id, ttl_seconds), thread_id=thread_id)

    async def expire(self) -> int:
        removed = 0
        while gone := await self._write(lambda it: it.expire()):
            removed += len(gone)
        return removed


class ServerBackend(SqlBackend):
    """The backend of a server, which has connections for each event loop."""

    _database: ServerDatabase
    _runner: PooledRunner

    async def _write_at_once(
        self, body: Callable[[Repository], T], *, is_repeatable: bool = False
    ) -> T:
        work = make_writing(self._database, body)
        with self._translating:
            return await self._runner.write_once(work, is_repeatable=is_repeatable)

    async def _write_by_itself(self, work: Body[T]) -> T:
        return await self._runner.write_once(work)

    async def _write_copy(self, body: Callable[[Repository], T]) -> T:
        with self._translating:
            work = make_writing(self._database, body)
            return await self._runner.write(work, self._database.begin_copy)


_KEPT: Final = ("tenant", "namespace", "head", "open_chain", "open_bytes", "floor", "last_sequence")
"""Columns of a line that its copy has as well."""


def copy_thread(repo: Repository, source: str, destination: str) -> bool:
    """See ``StoresThreads.copy_thread``; reads from one snapshot."""
    if not has_thread(repo, source):
        return False
    found = repo.read_row(destination)
    if found and found.live:
        raise make_occupied_error(destination, "copied")
    if found:
        repo.drop_threads([destination])
    _Copy(repo, source, destination).run()
    # A deletion that the snapshot does not show is a lost race; a save of the source is none.
    query = sa.select(repo.tables.threads.c.thread).where(*repo.is_thread(source))
    repo.connection.execute(query.with_for_update(read=True, key_share=True))
    return True


class _Copy:
    """The statements of one copy."""

    def __init__(self, repo: Repository, source: str, destination: str) -> None:
        self._it = repo
        self._source = source
        self._destination = destination

    def run(self) -> None:
        """Copy all rows of the source to a thread that does not exist."""
        tables = self._it.tables
        self._copy_thread_row()
        self._copy_messages()
        self._copy_lines()
        # The text for the search index is copied with its version.
        for table in (tables.checkpoints, tables.segments, tables.writes):
            names = [column.name for column in table.c]  # the first one is the key of the line
            self._insert(table, names, self._select_for_new_lines(table, names[1:]))
        if self._it.has_index:
            self._it.copy_index(self._select_for_new_lines)

    def _copy_thread_row(self) -> None:
        """Insert the copy's row; a copy that has versions is active from its creation."""
        threads = self._it.tables.threads
        has_version = select_last_save(self._it.tables).is_not(None)
        made: dict[str, Any] = {
            "thread_id": sa.literal(self._destination, threads.c.thread_id.type),
            "active_at": sa.case((has_version, Minute()), else_=threads.c.active_at),
        }
        kept = [column for column in threads.c if column.name not in {"thread", *made}]
        rows = sa.select(*made.values(), *kept).where(*self._it.is_thread(self._source))
        rows = rows.where(~has_other_layout(self._it.tables, self._it.tenancy.layout))
        names = [*made, *(column.name for column in kept)]
        require_layout(self._insert(threads, names, rows))

    def _copy_messages(self) -> None:
        threads = self._it.tables.threads
        new, old = (
            sa.select(threads.c.thread).where(*self._it.is_thread(name)).scalar_subquery()
            for name in (self._destination, self._source)
        )
        for table in (self._it.tables.logs, self._it.tables.messages):
            owner, *kept = table.c
            rows = sa.select(new, *kept).where(owner == old)
            self._insert(table, [column.name for column in table.c], rows)

    def _copy_lines(self) -> None:
        """Copy the lines without writer and run, which refer to the source's last save."""
        lines = self._it.tables.lines
        made: dict[str, Any] = {
            "thread_id": sa.literal(self._destination, lines.c.thread_id.type),
            "updated_at": make_moment(),
        }
        kept = [lines.c[name] for name in _KEPT]
        rows = sa.select(*made.values(), *kept).where(*self._match(lines, self._source))
        self._insert(lines, [*made, *_KEPT], rows)

    def _select_for_new_lines(self, table: sa.FromClause, names: Sequence[str]) -> sa.Select[Any]:
        """Return a query for the source's rows, with the keys of the copied lines."""
        lines = self._it.tables.lines
        old, new = lines.alias("old_lines"), lines.alias("new_lines")
        return (
            sa.select(new.c.line, *(table.c[name] for name in names))
            .select_from(old)
            .join(new, new.c.namespace == old.c.namespace)
            .join(table, table.c.line == old.c.line)
            .where(*self._match(old, self._source), *self._match(new, self._destination))
        )

    def _match(self, lines: sa.FromClause, thread_id: str) -> tuple[sa.ColumnElement[bool], ...]:
        return lines.c.tenant == self._it.tenant, lines.c.thread_id == thread_id

    def _insert(self, table: sa.Table, names: Sequence[str], rows: sa.Select[Any]) -> int:
        made = table.insert().from_select(names, rows, include_defaults=False)
        return self._it.connection.execute(made).rowcount
