"""The part of each database in making, finding and changing our schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import sqlalchemy as sa

from locus_store.errors import InvalidArgumentError
from locus_store.sql.columns.dialect_columns import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import URL, Connection, Dialect
    from sqlalchemy.exc import DBAPIError

    from locus_store.sql.schema.place import DatabasePlace
    from locus_store.sql.schema.tables import Tables
    from locus_store.values.vectors import Metric

T = TypeVar("T")

OLD_USERS: Final = "user_id_before"
"""The column for users' ids while another type is made, where that takes a new column."""


class SchemaDefinition(ABC):
    """One database's part; the methods that are not abstract suit most databases."""

    commits_each: ClassVar[bool] = False
    """Each definition commits, so a migration that fails halfway leaves something."""

    offline_preface: ClassVar[str] = ""
    """Stands before statements that are run by hand: makes them end at the first error."""

    # --- connections

    @abstractmethod
    def run_on_url(
        self,
        url: str | URL,
        body: Callable[[Connection, Tables], T],
        prefix: str,
        schema: str | None,
    ) -> T:
        """Connect, run ``body`` and disconnect; ``migration_targets.run_on`` names the errors."""

    def absent(self, url: str | URL, schema: str | None) -> DatabasePlace | None:
        """Return the place of a database that connecting to it would create."""
        del url, schema
        return None

    def refuse_schema(self, schema: str | None) -> None:
        """Refuse the name of a database schema where there are none.

        Raises:
            InvalidArgumentError: The database has no schemas.
        """
        del schema

    @abstractmethod
    def locked(self, connection: Connection, ours: Tables) -> AbstractContextManager[None]:
        """Begin a transaction, alone among the migrations of this database; commit at the end."""

    def qualified(self, connection: Connection, ours: Tables) -> AbstractContextManager[Tables]:
        """Prepare a locked connection for Alembic; give the tables as it is to name them."""
        del connection
        return nullcontext(ours)

    def owner_only(self, connection: Connection) -> AbstractContextManager[None]:
        """Translate the refusal of an index to a role that does not own the tables."""
        del connection
        return nullcontext()

    def remedy(self, error: DBAPIError) -> str | None:
        """Return what to do where the server refuses a migration; ``{command}`` repeats it."""
        del error
        return None

    # --- what is there

    def home(self, connection: Connection, ours: Tables) -> str | None:
        """Return the database schema of our tables; ``None`` is the default one."""
        del connection
        return ours.schema

    def taken(self, connection: Connection, schema: str | None, wanted: frozenset[str]) -> set[str]:
        """Return those of the names that a table or view has."""
        inspector = sa.inspect(connection)
        # Views first: when another process commits in between, the tables below are seen too.
        names = set(inspector.get_view_names(schema)) | set(inspector.get_table_names(schema))
        return names & wanted

    def columns(self, connection: Connection, schema: str | None, table: str) -> set[str]:
        """Return the names of a table's columns; none where there is no such table."""
        inspector = sa.inspect(connection)
        if not inspector.has_table(table, schema):
            return set()
        return {column["name"] for column in inspector.get_columns(table, schema)}

    def queries_for_hidden(self, ours: Tables) -> list[Any]:
        """Return queries for names of ours that another schema hides; rows of (label, name)."""
        del ours
        return []

    def may_be_under_way(self, connection: Connection, ours: Tables) -> bool:
        """Return whether another process may be in the midst of a migration."""
        del connection, ours
        return False

    # --- users

    def lock_threads(self, connection: Connection, ours: Tables) -> None:
        """Keep others from writing threads until the transaction ends, where it does not yet."""
        del connection, ours

    @abstractmethod
    def user_column(self, dialect: Dialect, ours: Tables, found: Collection[str]) -> list[str]:
        """Return the statements that change the column for users' ids to the type that it has here.

        An id that is not such a number fails the statements, so that they may be run by hand.

        Args:
            dialect: The database's.
            ours: The tables, with the new type.
            found: The columns of the table; ``OLD_USERS`` is left by a run that was cut short.
        """

    # --- embeddings

    def vector_home(self, connection: Connection) -> str:
        """Return the schema of the extension for vectors; ``""`` where there is none."""
        del connection
        return ""

    @abstractmethod
    def embedding_columns(self, connection: Connection, ours: Tables, dimension: int) -> str:
        """Return the columns of the table of embeddings: item, part, embedding.

        Raises:
            UnsupportedError: The server has no vectors.
        """

    def drop_unfinished(self, connection: Connection, ours: Tables) -> None:
        """Drop a table of embeddings that was made, and whose setting was not written."""
        del connection, ours

    def make_vector_index(
        self, connection: Connection, ours: Tables, metric: Metric, method: str
    ) -> bool | None:
        """Make an index for one metric; ``False``: it was there; ``None``: there are no such.

        Raises:
            UnsupportedError: The database cannot have this index beside those that are there.
        """
        del connection, ours, metric, method
        return None


def column_type(dialect: Dialect, ours: Tables) -> str:
    """Return the type of the column for users' ids in SQL."""
    return str(dialect.type_compiler_instance.process(ours.threads.c.user_id.type))


def user_index(ours: Tables) -> sa.Index:
    """Return the index of a user's threads."""
    return next(it for it in ours.threads.indexes if "user_id" in it.columns)


def definition(dialect: str) -> SchemaDefinition:
    """Return the part of a database.

    Raises:
        InvalidArgumentError: The library has no such dialect.
    """
    if dialect not in DIALECTS:
        raise InvalidArgumentError(f"dialect {dialect!r}: choose one of {', '.join(DIALECTS)}")
    module = import_module(f"locus_store.backends.{dialect}.definition")
    found: SchemaDefinition = module.DEFINITION
    return found


def definition_of(connection: Connection) -> SchemaDefinition:
    """Return the part of the database that a connection leads to."""
    return definition(connection.dialect.name)
