"""Repositories of servers: locks on rows, for concurrent writers, and a text index."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable

from locus_store import versions
from locus_store.errors import SchemaError
from locus_store.sql.columns.dialect_columns import columns_of
from locus_store.sql.columns.types import now
from locus_store.sql.threads.pending import batches
from locus_store.sql.threads.repository import KEY, Repository
from locus_store.sql.threads.statements import WRITE, once
from locus_store.sql.threads.version_queries import whole_version
from locus_store.types import Mark, Stored
from locus_store.versions.segments import RecordSegment, pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.sql.compiler import SQLCompiler

    from locus_store.sql.schema.tables import Tables
    from locus_store.sql.threads.repository import Copied

NO_MARK: Final = Mark("", 0, 0, b"")
"""Names no version."""


class LockingRepository(Repository):
    """Locks rows before it changes them, with ``SELECT … FOR UPDATE``."""

    most_merged: ClassVar[int | None] = None
    """Bytes of a payload that ``MERGE`` takes; ``None``: any number."""

    def upsert_writes(self, rows: Sequence[dict[str, Any]]) -> None:
        """See ``Repository``; takes one round trip or two."""
        longest = max(
            (max(len(it["payload"]), 2 * len(it["task_path"] or "")) for it in rows), default=0
        )
        if self.most_merged is None or longest <= self.most_merged:
            statement: Any = Merge(self.tables.writes, ["line", *WRITE], clock=["created_at"])
        else:
            statement = self.tables.writes.insert().values(created_at=now())
            gone = [{f"its_{name}": it[name] for name in KEY} for it in rows if it["idx"] < 0]
            if gone:
                c = self.tables.writes.c
                is_it = (c[it] == sa.bindparam(f"its_{it}", type_=c[it].type) for it in KEY)
                self.connection.execute(self.tables.writes.delete().where(*is_it), gone)
        for some in batches(rows):
            self.connection.execute(statement, some)

    def fetch(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None = None,
        known: Mark | None = None,
        *,
        with_writes: bool = False,
    ) -> Stored | None:
        """See ``Reads.fetch``; one statement, and one more for pending writes."""
        mark = known if known is not None and known.store == self.store else NO_MARK
        key: dict[str, Any] = {
            "tenant": self.scope.tenant,
            "thread_id": thread_id,
            "namespace": namespace,
            "known_line": mark.line,
            "known_sequence": mark.sequence,
            "known_digest": mark.digest,
        }
        if checkpoint_id is not None:
            key["checkpoint_id"] = checkpoint_id
        named = checkpoint_id is not None
        whole = once(self.sql, ("whole", named), lambda: whole_version(self.tables, named=named))
        rows = whole.rows(self.connection, key)
        if not rows:
            self.require_none(thread_id, namespace, checkpoint_id)
            return None
        line, head, head_digest, *told, basis = rows[0][:-6]
        version = self.version(thread_id, namespace, line, tuple(told))
        with versions.told_of(version):
            payloads = _pieces(rows, version.mark.sequence, basis or 0)
        return Stored(
            version=version,
            head=Mark(self.store, line, head, head_digest),
            payloads=payloads,
            basis=None if basis is None else known,
            writes=self.writes_at(line, version.checkpoint_id) if with_writes else None,
        )

    def lock(self, *thread_ids: str, namespace: str | None = None) -> bool:
        """Lock in separate statements: a statement that locks reads a snapshot from before.

        Lines come before threads, as the saves take them, and rows in the order of their keys.
        Creating a line locks its thread, so lines created meanwhile are found in a second pass.
        """
        if namespace is not None:
            found = 0
            for thread_id in thread_ids:
                key = {"thread_id": thread_id, "namespace": namespace}
                key["tenant"] = self.scope.tenant
                found += len(self.sql.lock_line.rows(self.connection, key))
            return found > 0
        threads = self.tables.threads
        self._lock_lines(thread_ids)
        found = len(
            self.connection.execute(
                sa.select(threads.c.thread)
                .where(*self.is_thread(*thread_ids))
                .order_by(threads.c.thread_id)
                .with_for_update()
            ).all()
        )
        self._lock_lines(thread_ids)
        return found > 0

    def lock_unheld(self, thread_id: str, namespace: str | None = None) -> bool:
        """See ``Repository``; locks in the order of ``lock``."""
        lines, threads = self.tables.lines, self.tables.threads
        of_thread = lines.c.tenant == self.scope.tenant, lines.c.thread_id == thread_id
        wanted = [sa.select(lines.c.line).where(*of_thread)]
        if namespace is None:
            wanted.append(sa.select(threads.c.thread).where(*self.is_thread(thread_id)))
        else:
            wanted[0] = wanted[0].where(lines.c.namespace == namespace)
        for found in wanted:
            locked = self.connection.execute(found.with_for_update(skip_locked=True)).all()
            if len(locked) < len(self.connection.execute(found).all()):
                return False
        return True

    def lock_thread(self, thread_id: str) -> None:
        """See ``Repository``; a save that creates a line and a deletion exclude each other."""
        threads = self.tables.threads
        self.connection.execute(
            sa.select(threads.c.thread).where(*self.is_thread(thread_id)).with_for_update()
        )

    def _lock_lines(self, thread_ids: Sequence[str]) -> None:
        lines = self.tables.lines
        self.connection.execute(
            sa.select(lines.c.line)
            .where(lines.c.tenant == self.scope.tenant, lines.c.thread_id.in_(thread_ids))
            .order_by(lines.c.thread_id, lines.c.namespace)
            .with_for_update()
        )


def _pieces(rows: Sequence[tuple[Any, ...]], upto: int, after: int) -> list[bytes]:
    """Return the payloads in rows of ``whole_version``."""
    raw, segments = [], []
    for *_, at, own, chain, first, last, joined in rows:
        if last is not None:
            segments.append(RecordSegment(chain, first, last, joined))
        elif own:
            raw.append((at, own))
    return pieces(raw, segments, after=after, upto=upto)


class Merge(Executable, sa.sql.ClauseElement):
    """A statement that takes a row's columns as parameters.

    Two that make the same row at once may both find none: one of them fails with the error of a
    duplicate key, and must be run again.

    Args:
        table: The table; its primary key identifies the row.
        names: All columns that are bound; what is long stands last, as Oracle asks for.
        clock: Columns that get the server's clock.
    """

    def __init__(self, table: sa.Table, names: Sequence[str], clock: Sequence[str] = ()) -> None:
        self.table = table
        self.names = names
        self.clock = clock

    def _gen_cache_key(self, *_: object) -> tuple[Any, ...]:
        """Return what SQLAlchemy keeps the compiled statement by."""
        return Merge, self.table, *self.names, *self.clock


@compiles(Merge)
def _merge(element: Merge, compiler: SQLCompiler, **kw: Any) -> str:
    table, quote = element.table, compiler.preparer.quote
    keys = [it.name for it in table.primary_key]

    def bound(name: str) -> str:
        return compiler.process(sa.bindparam(name, type_=table.c[name].type), **kw)

    others = {it: compiler.process(now(), **kw) for it in element.clock}
    source = ", ".join(f"{bound(it)} AS {quote(it)}" for it in keys)
    others |= {it: bound(it) for it in element.names if it not in keys}
    no_table = columns_of(compiler.dialect).no_table
    is_same = " AND ".join(f"t.{quote(it)} = s.{quote(it)}" for it in keys)
    update = ", ".join(f"{quote(it)} = {value}" for it, value in others.items())
    columns = ", ".join(map(quote, [*keys, *others]))
    values = ", ".join([*(f"s.{quote(it)}" for it in keys), *others.values()])
    return (
        f"MERGE INTO {compiler.preparer.format_table(table)} t "  # noqa: S608  (ours)
        f"USING (SELECT {source}{no_table}) s ON ({is_same}) "
        f"WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
    )


SEARCH_SETTING: Final = "full_text_index"
"""Row of ``settings`` that says that the index was made."""

_FACTS: Final = ("store_id", SEARCH_SETTING)
"""Rows of ``settings`` that each transaction under the full rules looks at."""

_INDEXED_WORDS: Final = 64
"""Words of a query that the index is asked for; the lines are looked at again."""


def is_fact(tables: Tables, store: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition of a row of ``settings``: the opened database's, or an index's."""
    c = tables.settings.c
    return sa.or_(sa.and_(c.name == "store_id", c.value == store), c.name == SEARCH_SETTING)


class OtherDatabaseError(SchemaError):
    """The connection leads to a database other than the opened one."""


class IndexedRepository(LockingRepository):
    """Base of the text indexes: rows of (line, sequence), and a setting that marks the index."""

    def look_for_index(self) -> bool:
        """Return whether the index exists; the query also checks the database's identity."""
        settings = self.tables.settings.c
        rows = self.connection.execute(
            sa.select(settings.name, settings.value).where(settings.name.in_(_FACTS))
        )
        facts = {name: value for name, value in rows}  # noqa: C416  (rows are not pairs)
        if facts.get("store_id") != self.scope.store:
            raise OtherDatabaseError(
                "another database has replaced the opened one; nothing was done. "
                "Load the thread again and repeat the step"
            )
        return SEARCH_SETTING in facts

    @cached_property
    @abstractmethod
    def index(self) -> sa.TableClause:
        """The table of the index."""

    @abstractmethod
    def has_word(self, word: str) -> sa.ColumnElement[bool]:
        """Return the condition that an index row contains the word."""

    def unindex(self, lines: Sequence[int], sequences: Sequence[int] | None = None) -> None:
        """See ``Repository``."""
        if not self.has_index:
            return
        gone = self.index.delete().where(self.index.c.line.in_(lines))
        if sequences is not None:
            gone = gone.where(self.index.c.sequence.in_(sequences))
        self.connection.execute(gone)

    def copy_index(self, copied: Copied) -> None:
        """See ``Repository``."""
        names = [column.name for column in self.index.c]
        rows = copied(self.index, names[1:])
        self.connection.execute(self.index.insert().from_select(names, rows))

    def lines_with(self, wanted: Sequence[str]) -> list[int] | None:
        """Return the lines that have each word in some version."""
        if not self.has_index:
            return None
        lines = sa.select(self.index.c.line)
        queries = [lines.where(self.has_word(it)) for it in wanted[:_INDEXED_WORDS]]
        return list(self.connection.execute(sa.intersect(*queries)).scalars())

    def index_all(self, kind: str) -> None:
        """Record that there is an index, and index all versions."""
        self.connection.execute(
            self.tables.settings.insert().values(name=SEARCH_SETTING, value=kind)
        )
        self._has_index = None
        lines = sa.select(self.tables.lines.c.line)
        for line in list(self.connection.execute(lines).scalars()):
            self.reindex(line)
