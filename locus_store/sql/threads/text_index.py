"""A text index in a separate table, for servers with a text index of their own."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from locus_store.errors import SchemaError
from locus_store.sql.threads.row_locks import LockingRepository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.sql.schema.tables import Tables
    from locus_store.sql.threads.repository import Copied

SEARCH_SETTING: Final = "full_text_index"
"""Row of ``settings`` that says that the index was made."""

_FACTS: Final = ("store_id", SEARCH_SETTING)
"""Rows of ``settings`` that each transaction under the full rules looks at."""

INDEXED_WORDS: Final = 64
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
        queries = [lines.where(self.has_word(it)) for it in wanted[:INDEXED_WORDS]]
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
