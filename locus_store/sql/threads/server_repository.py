"""Repositories of servers: locks on rows, for concurrent writers, and a text index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa

from locus_store import versions
from locus_store.errors import SchemaError
from locus_store.sql.columns.dialect_columns import get_columns
from locus_store.sql.schema.status import SEARCH_SETTING
from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads.repository import Copied, Repository
from locus_store.sql.threads.version_queries import select_whole_version
from locus_store.types import Mark, Stored
from locus_store.values import frames
from locus_store.versions.segments import RecordSegment, collect_payloads

NO_MARK: Final = Mark("", 0, 0, b"")
"""Names no version."""


class LockingRepository(Repository):
    """Locks rows before it changes them, with ``SELECT … FOR UPDATE``."""

    def fetch(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None = None,
        known_mark: Mark | None = None,
        *,
        with_writes: bool = False,
    ) -> Stored | None:
        """See ``Reads.fetch``; one statement, and one more for pending writes."""
        mark = known_mark if known_mark is not None and known_mark.store == self.store else NO_MARK
        key: dict[str, Any] = {
            "tenant": self.tenant,
            "thread_id": thread_id,
            "namespace": namespace,
            "known_line": mark.line,
            "known_sequence": mark.sequence,
            "known_digest": mark.digest,
        }
        if checkpoint_id is not None:
            key["checkpoint_id"] = checkpoint_id
        rows = self.ask(select_whole_version, "head" if checkpoint_id is None else "id", **key)
        if not rows:
            self.require_none(thread_id, namespace, checkpoint_id)
            return None
        line, head, head_digest, *fields, basis = rows[0][:-6]
        version = self.make_version(thread_id, namespace, line, tuple(fields))
        with versions.name_version_in_errors(version):
            payloads = _collect_pieces(rows, version.mark.sequence, basis or 0)
        return Stored(
            version=version,
            head=Mark(self.store, line, head, head_digest),
            payloads=payloads,
            basis=None if basis is None else known_mark,
            writes=self.read_writes(line, version.checkpoint_id) if with_writes else None,
        )

    def lock(self, *thread_ids: str, namespace: str | None = None) -> bool:
        """Lock in separate statements: a statement that locks reads a snapshot from before.

        Lines come before threads, as the saves take them, and rows in the order of their keys.
        Creating a line locks its thread, so lines created meanwhile are found in a second pass.
        """
        if namespace is not None:
            [thread_id] = thread_ids
            key = {"tenant": self.tenant, "thread_id": thread_id, "namespace": namespace}
            return bool(self.sql.lock_line.fetch_rows(self.connection, key))
        threads = self.tables.threads
        query = sa.select(threads.c.thread).where(*self.is_thread(*thread_ids))
        self._lock_lines(thread_ids)
        found = self.connection.execute(query.order_by(threads.c.thread_id).with_for_update()).all()
        self._lock_lines(thread_ids)
        return bool(found)

    def lock_unheld(self, thread_id: str, namespace: str | None = None) -> bool:
        """See ``Repository``; locks in the order of ``lock``, one line not against its writes."""
        lines, threads = self.tables.lines, self.tables.threads
        of_thread = lines.c.tenant == self.tenant, lines.c.thread_id == thread_id
        wanted = [sa.select(lines.c.line).where(*of_thread)]
        if namespace is None:
            wanted.append(sa.select(threads.c.thread).where(*self.is_thread(thread_id)))
        else:
            wanted[0] = wanted[0].where(lines.c.namespace == namespace)
        for found in wanted:
            lock = found.with_for_update(skip_locked=True, key_share=namespace is not None)
            locked = self.connection.execute(lock).all()
            if len(locked) < len(self.connection.execute(found).all()):
                return False
        return True

    def lock_thread(self, thread_id: str) -> Any:
        """See ``Repository``; a save that creates a line and a deletion exclude each other."""
        threads = self.tables.threads
        lock = sa.select(threads.c.thread).where(*self.is_thread(thread_id)).with_for_update()
        while True:  # a row that was created between the two statements is not locked yet
            is_locked, row = self.connection.execute(lock).first(), self.read_row(thread_id)
            if is_locked or row is None:
                return row

    def _lock_lines(self, thread_ids: Sequence[str]) -> None:
        lines = self.tables.lines
        self.connection.execute(
            sa.select(lines.c.line)
            .where(lines.c.tenant == self.tenant, lines.c.thread_id.in_(thread_ids))
            .order_by(lines.c.thread_id, lines.c.namespace)
            .with_for_update()
        )


def _collect_pieces(rows: Sequence[tuple[Any, ...]], upto: int, after: int) -> list[bytes]:
    """Return the payloads in rows of ``select_whole_version``."""
    raw, segments = [], []
    for *_, at, own, chain, first, last, joined in rows:
        if last is not None:
            segments.append(RecordSegment(chain, first, last, joined))
        elif own:
            raw.append((at, own))
    return collect_payloads(raw, segments, after=after, upto=upto)


_FACTS: Final = ("store_id", SEARCH_SETTING)
"""Rows of ``settings`` that each transaction under the full rules looks at."""


def is_setting(tables: Tables, store: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition of a row of ``settings``: the opened database's, or an index's."""
    c = tables.settings.c
    return sa.or_(sa.and_(c.name == "store_id", c.value == store), c.name == SEARCH_SETTING)


_LIKE: Final = {"*": "%", "?": "_", "%": "\\%", "_": "\\_", "\\": "\\\\"}
"""The characters of a shell-style pattern in ``LIKE``."""


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
        if facts.get("store_id") != self.tenancy.store:
            raise OtherDatabaseError(
                "another database has replaced the opened one; nothing was done. "
                "Load the thread again and repeat the step"
            )
        return SEARCH_SETTING in facts

    def make_pattern_condition(
        self, column: sa.ColumnElement[str], pattern: str
    ) -> sa.ColumnElement[bool] | None:
        """See ``Reads.make_pattern_condition``; ``LIKE`` has no character sets."""
        if "[" in pattern:
            return None
        like = "".join(_LIKE.get(it, it) for it in pattern)
        plain = self.match_pattern(column, like)
        mark = get_columns(self.connection.dialect).key_mark
        if not mark:
            return plain
        escaped = self.match_pattern(column, mark + like)
        if pattern[:1] not in {"", "*", "?"}:  # the id's prefix is known, so an index finds it
            return escaped if pattern[0] == mark else plain
        is_escaped = self.match_pattern(column, mark + "%")
        return sa.or_(sa.and_(is_escaped, escaped), sa.and_(~is_escaped, plain))

    @abstractmethod
    def match_pattern(self, column: sa.ColumnElement[str], pattern: str) -> sa.ColumnElement[bool]:
        """Return the condition of a pattern whose escape is a backslash."""

    @cached_property
    @abstractmethod
    def index(self) -> sa.TableClause:
        """The table of the index."""

    def index_record(self, line: int, sequence: int, payload: bytes) -> str | None:
        """Index a record; return its text for SQL readers, as the index holds words only."""
        if not self.has_index:
            return None
        text = frames.extract_text(payload, self.max_state_bytes)
        for row in self.make_index_rows(text):
            made = self.index.insert().values(line=line, sequence=sequence, **row)
            self.connection.execute(made)
        return text.replace("\0", " ")

    @abstractmethod
    def make_index_rows(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a text in the index, without their keys."""

    @abstractmethod
    def has_word(self, word: str) -> sa.ColumnElement[bool]:
        """Return the condition that an index row contains the word."""

    def unindex(self, lines: Sequence[int], sequences: Sequence[int] | None = None) -> None:
        if not self.has_index:
            return
        gone = self.index.delete().where(self.index.c.line.in_(lines))
        if sequences is not None:
            gone = gone.where(self.index.c.sequence.in_(sequences))
        self.connection.execute(gone)

    def copy_index(self, source: Copied) -> None:
        names = [column.name for column in self.index.c]
        rows = source(self.index, names[1:])
        self.connection.execute(self.index.insert().from_select(names, rows))

    def select_lines(self, word: str) -> sa.Select[Any]:
        return sa.select(self.index.c.line).where(self.has_word(word))
